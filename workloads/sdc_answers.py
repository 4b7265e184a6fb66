#!/usr/bin/env python3
"""Find silent data corruption (SDC) by comparing what GPUs computed with a CPU, a table or other GPUs.

A *path* is a kernel whose blocks all compute the same words, so that each SM (streaming multiprocessor) of
the GPU gives the same *answer*. probe_sdc.py imports this module, counts the wrong words of each SM by
:class:`Counts` and :func:`settle`, and compares the digests of the answers. Started as a program with logs of
``probe_sdc.py``, :func:`main` compares the GPUs of a node or a fleet, lists those whose answers differ, and
prints the rows that the logs would add to ``sdc_golden.csv``. The module needs only the standard library.
"""

from __future__ import annotations

import array
import collections
import csv
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common import majority

GOLDEN = Path(__file__).resolve().with_name("sdc_golden.csv")
COLUMNS = ("model", "software", "path", "digest")
CONFIDENCE = 0.95

Key = tuple[str, str, str]
"""Model of the GPU, software, path."""


@dataclass
class Counts:
    """The counts of a GPU's SMs on one path, by SM.

    Args:
        sms: The number of the GPU's SMs.
        blocks: The number of blocks of each SM that returned words.
        launches: The number of launches in which each SM took part.
        wrong: The number of wrong words of each SM.
        queued: The number of requested blocks.
    """

    sms: int
    blocks: dict[int, int] = field(default_factory=dict)
    launches: dict[int, int] = field(default_factory=dict)
    wrong: dict[int, int] = field(default_factory=dict)
    queued: int = 0

    @property
    def missed(self) -> int:
        """Return the number of SMs that computed nothing on this path."""
        return max(0, self.sms - len(self.blocks))

    @property
    def fewest_launches(self) -> int:
        """Return the smallest number of launches of an SM, or 0 if an SM took part in none."""
        return 0 if self.missed else min(self.launches.values(), default=0)

    @property
    def lost_blocks(self) -> int:
        """Return the difference between the requested blocks and those that returned words."""
        return abs(self.queued - sum(self.blocks.values()))

    def add_wrong(self, wrong: Mapping[int, int]) -> None:
        """Count more words that differed."""
        for sm, count in wrong.items():
            self.wrong[sm] = self.wrong.get(sm, 0) + count


def words_of(block: bytes) -> array.array[int]:
    """Return the words of a block, 32 bits each."""
    return array.array("I", block)


def differing(got: bytes, right: bytes) -> int:
    """Return how many words of two blocks differ."""
    if got == right:
        return 0
    return sum(word != other for word, other in zip(words_of(got), words_of(right), strict=True))


def settle(blocks: Sequence[tuple[int, bytes]], right: bytes | None) -> tuple[bytes, dict[int, int]]:
    """Return a GPU's answer for one input, and the number of wrong words of each SM that has some.

    Args:
        blocks: The SM and the words of each block. All blocks computed the same.
        right: The right words if they can be computed. Otherwise, the words of most blocks count.
    """
    answer = collections.Counter(words for _, words in blocks).most_common(1)[0][0]
    wrong: collections.Counter[int] = collections.Counter()
    for sm, words in blocks:
        wrong[sm] += differing(words, answer if right is None else right)
    return answer, {sm: count for sm, count in wrong.items() if count}


def digest_of(answers: Iterable[bytes]) -> str:
    """Return the digest of the answers for several inputs."""
    whole = hashlib.sha256()
    for answer in answers:
        whole.update(answer)
    return whole.hexdigest()


def smallest_rate(launches: int) -> float:
    """Return the smallest share of faulty launches that these launches would show with 95 % probability."""
    return 1.0 if launches < 1 else 1 - (1 - CONFIDENCE) ** (1 / launches)


def is_odd(digest: str, golden: str | None, alike: Sequence[str]) -> bool | None:
    """Return whether an answer is wrong, or None if there is nothing to compare it with.

    Args:
        digest: The digest of the answers that no CPU can compute.
        golden: The golden digest of this model and software, or None if the table has none.
        alike: The digests of all GPUs of the model in this node, including this one. Without a majority,
            all count as wrong, because the right one is unknown.
    """
    if golden is not None:
        return digest != golden
    if len(alike) < 2:
        return None
    return digest != majority(alike)


def read_golden(path: Path = GOLDEN) -> dict[Key, str]:
    """Return the table of golden digests.

    Raises:
        ValueError: The table has other columns, or a key occurs twice.
    """
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise ValueError(f"{path.name}: the columns are {', '.join(COLUMNS)}")
        rows = [(key_of(row), row["digest"]) for row in reader]
    if len(dict(rows)) != len(rows):
        raise ValueError(f"{path.name}: a model, software and path has two rows")
    return dict(rows)


def key_of(row: Mapping[str, str]) -> Key:
    """Return the identity of a row."""
    return row["model"], row["software"], row["path"]


def compare_fleet(
    rows: Iterable[Mapping[str, str]], golden: Mapping[Key, str]
) -> tuple[dict[Key, str], list[str]]:
    """Compare answers of many GPUs, and of each GPU with itself.

    For each model, software and path, the right answer is the golden one, or else the answer of more than
    half. A GPU that gave several answers is reported, too.

    Args:
        rows: The answers with their ``gpu``.
        golden: The table of right answers.

    Returns:
        The right digest of each key, if known, and texts about differences.
    """
    by_key: dict[Key, dict[str, set[str]]] = {}
    for row in rows:
        by_key.setdefault(key_of(row), {}).setdefault(row["gpu"], set()).add(row["digest"])
    right: dict[Key, str] = {}
    odd: list[str] = []
    for key, gpus in sorted(by_key.items()):
        digest = golden.get(key) or majority([vote for digests in gpus.values() for vote in digests])
        if digest is None:
            odd.append(f"{' '.join(key)}: no majority agrees: {', '.join(sorted(gpus))}")
            continue
        right[key] = digest
        wrong = sorted(gpu for gpu, digests in gpus.items() if digests != {digest})
        odd += [f"{' '.join(key)}: {gpu} gives another answer than {digest[:12]}" for gpu in wrong]
    return right, odd


def answers_of(lines: Iterable[str]) -> list[dict[str, str]]:
    """Return the answers in a log, or an empty list if the log shows a fault or did not end with success."""
    rows: list[dict[str, str]] = []
    ended = False
    for line in lines:
        head, mark, rest = line.partition(":::MLLOG ")
        if head.strip() or not mark:
            continue
        event = json.loads(rest)
        value, key = event["value"], event["key"]
        if key == "sdc_answer":
            row = {name: str(value[name]) for name in COLUMNS}
            rows.append({**row, "gpu": str(value["labels"].get("gpu", ""))})
        elif key == "measurement" and value["name"] in ("wrong_words", "odd_answers") and value["value"] != 0:
            return []
        elif key == "run_stop":
            ended = event["metadata"].get("status") == "success"
    return [row for row in rows if row["gpu"]] if ended else []


def main(logs: Sequence[str]) -> int:
    """Compare the answers in logs, and print the rows that they would add. Return the exit status."""
    golden = read_golden()
    rows: list[dict[str, str]] = []
    try:
        for log in logs:
            with open(log, errors="replace") as file:
                answers = answers_of(file)
            print(f"{log}: {len(answers)} answers", file=sys.stderr)
            rows += answers
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        print(f"error: {log}: {error!r}", file=sys.stderr)
        return 2
    right, odd = compare_fleet(rows, golden)
    for text in odd:
        print(text, file=sys.stderr)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerows((*key, digest) for key, digest in right.items() if key not in golden)
    return int(bool(odd))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
