"""Start the training of llama2_70b_lora's fake image."""

import sys

from fake_ngc.training import run

if __name__ == "__main__":
    sys.exit(run("llama2_70b_lora"))
