"""Start the training of llama31_8b's fake image."""

import sys

from fake_ngc.training import run

if __name__ == "__main__":
    sys.exit(run("llama31_8b"))
