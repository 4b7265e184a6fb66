"""The training of llama2_70b_lora's stand-in image."""

import sys

from standin.training import run

if __name__ == "__main__":
    sys.exit(run("llama2_70b_lora"))
