"""Fake `energon prepare`, which asks three questions, with megatron-energon's texts.

bin/energon of an image starts this program. It describes the shards of flux1's data set.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from fake_ngc.flux_data import describe

CLASSES = (
    *("CaptioningSample", "ImageClassificationSample", "ImageSample", "InterleavedSample"),
    *("MultiChoiceVQASample", "OCRSample", "Sample", "SimilarityInterleavedSample", "TextSample"),
    *("VQASample", "VidQASample", "Crude sample (plain dict for cooking)"),
)
CRUDE = 11
"""Position in :data:`CLASSES` of the class that flux1 needs."""


class AbortedError(Exception):
    """The answer was no, or there was none."""


def ask(question: str) -> str:
    """Return the answer to a question."""
    print(f"{question}: ", end="", flush=True)
    answer = sys.stdin.readline()
    if not answer:
        raise AbortedError
    if not sys.stdin.isatty():
        print(answer.strip())
    return answer.strip()


def confirm(question: str) -> bool:
    """Ask until the answer is yes or no. Enter alone means yes."""
    while True:
        answer = ask(f"{question} [Y/n]").lower()
        if answer in ("", "y", "yes", "n", "no"):
            return not answer.startswith("n")
        print("Error: invalid input")


def prepare(folder: Path, patterns: list[str]) -> None:
    """Ask the questions, and write the description of the shards in a folder.

    ``patterns`` are the splits as ``SPLIT:PATTERN``, with a regular expression for the names of shards.

    Raises:
        AbortedError: The answer to the first question was no, or an answer is missing.
        SystemExit: The splits or the chosen class cannot be used.
    """
    shards = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.tar"))
    if not shards:
        raise SystemExit(f"Error: there are no *.tar files under {folder}")
    print(
        f"Found {len(shards)} tar files in total. The first and last ones are:\n- {shards[0]}\n- {shards[-1]}"
    )
    splits: dict[str, list[str]] = {}
    for pattern in patterns:
        name, _, expression = pattern.partition(":")
        splits[name] = [one for one in shards if re.fullmatch(f"(?:{expression})(?:\\.tar)?", one)]
        if not splits[name]:
            raise SystemExit(f"Error: no shard matches {expression!r} of the split {name!r}")
    if not splits:
        raise SystemExit("Error: give --split-parts; this fake asks for no ratio")
    print(f"Indexing shards  [####################################]  {len(shards)}/{len(shards)}")
    print("The same sample keys occur in more than one shard, e.g. 000000 (train and val).")
    if not confirm("Duplicate keys were found. Do you want to continue"):
        raise AbortedError
    print("Sample 0, keys:\n - latents.npy\nFound the following part types in the dataset: latents.npy")
    if not confirm("Do you want to create a dataset.yaml interactively?"):
        print("Done. Write .nv-meta/dataset.yaml yourself before the data set can be used.")
        return
    print("The following sample types are available:")
    for number, name in enumerate(CLASSES):
        print(f"{number}. {name}")
    while True:
        answer = ask("Please enter a number to choose a class")
        if answer.isdigit() and int(answer) < len(CLASSES):
            break
        print("Error: invalid choice")
    if int(answer) != CRUDE:
        # The real program then asks for a field map, which needs a person.
        raise SystemExit(f"Error: {CLASSES[int(answer)]} needs a field map; for flux1 choose {CRUDE}")
    describe(folder, splits, "CrudeWebdataset")
    print("CrudeWebdataset does not need a field map.\nDone")


def main() -> int:
    """Run the command, and return its exit status."""
    parser = argparse.ArgumentParser(prog="energon")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("prepare")
    one.add_argument("--split-parts", action="append", default=[], metavar="SPLIT:PATTERN")
    one.add_argument("path", type=Path)
    arguments = parser.parse_args()
    try:
        prepare(arguments.path.resolve(), arguments.split_parts)
    except AbortedError:
        print("\nAborted!", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
