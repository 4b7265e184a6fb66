"""Start the training of llama2_70b_lora's fake image, on the call of its run_and_time.sh."""

import sys

from fake_ngc.training import run

if __name__ == "__main__":
    sys.exit(run("llama2_70b_lora"))
