"""Convert a saved data set to a webdataset."""

import argparse
from pathlib import Path

from datasets import load_from_disk  # as in the original, so it must be installed first
from fake_ngc.flux_data import to_webdataset

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input_path", type=Path, required=True)
    parser.add_argument("--output_path", type=Path, required=True)
    parser.add_argument("--num_workers", type=int, default=1)
    arguments = parser.parse_args()
    shards, names = load_from_disk(arguments.input_path)
    to_webdataset(shards, arguments.output_path, names)
    print(f"{arguments.output_path}: {len(names)} shards, {sum(map(len, shards))} samples")
