"""Start the training of llama31_8b's fake image, on the call of its run_and_time.sh."""

import sys

from fake_ngc.training import run

if __name__ == "__main__":
    sys.exit(run("llama31_8b"))
