"""The training of flux1's stand-in image."""

import sys

from standin.training import run

if __name__ == "__main__":
    sys.exit(run("flux1"))
