"""The training of llama31_8b's stand-in image."""

import sys

from standin.training import run

if __name__ == "__main__":
    sys.exit(run("llama31_8b"))
