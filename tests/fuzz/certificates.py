"""Alter certificates and their evidence: ``python tests/fuzz/certificates.py --mutations 10000``.

A certificate is a page with the answers to a catalogue of requirements, their evidence and a signature. This
program makes two kinds of mutations in turn:

* ``page``: a signed certificate's page, its JSON, its copies or its signature are altered, with and without
  a new digest. Nothing that was altered may verify as a pass.
* ``results``: files of the results folder are altered, cut or removed, whole folders as well, and the
  certificate is made again, by a contract or a shipped catalogue. No answer becomes better, and none that
  rests on the altered file is a pass.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from json import dumps, loads
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from rackproof.analysis.certificate.catalogue import catalogue_names
from rackproof.analysis.certificate.models import Certificate
from rackproof.analysis.certificate.page_parts import PageParts, fill_page, split_page
from rackproof.analysis.certificate.verification import verify_certificate
from rackproof.core.errors import RackproofError
from rackproof.core.records import Run, Verdict
from rackproof.store.run_folder import RECORD_NAME
from rackproof.store.sealed_json import SealError, open_sealed, seal_json
from tests.analysis.certificate import samples
from tests.fuzz.batches import read_options, try_in_batches
from tests.fuzz.edits import draw_edits, edited

ORDER = (Verdict.PASS, Verdict.DEGRADED, Verdict.UNPROVEN, Verdict.FAIL)
BATCH = 1000


class Subject:
    """A results folder with a pass and a failure in it, its certificate, and a signed one that passes."""

    def __init__(self, folder: Path) -> None:
        self.results = samples.make_results(folder)
        self.contract = str(samples.contract_file(folder))
        self.key, self.signers = samples.make_key(folder)
        self.now = datetime.now(UTC) + timedelta(hours=2)
        passing = samples.certify(self.results, self.contract, now=self.now)
        assert passing.verdict is Verdict.PASS, passing.answers
        self.page, self.json, self.signature = samples.page_of(passing, self.key)
        _, self.stranger = samples.make_key(folder, "stranger@example.com")
        samples.add_run(self.results, "gemm", verdict=Verdict.FAIL)
        self.before = {name: self.certify(name) for name in (self.contract, *catalogue_names())}
        assert [one.verdict.value for one in self.before[self.contract].answers] == ["pass", "fail", "pass"]
        self.files = sorted(path for path in self.results.rglob("*") if path.is_file())
        self.folders = sorted(path for path in self.results.iterdir() if path.is_dir())

    def certify(self, catalogue: str) -> Certificate:
        """Return the certificate of the results folder as it is now."""
        return samples.certify(self.results, catalogue, now=self.now)

    def verify(self, page: bytes, beside: dict[str, bytes], signers: Path | None = None) -> Verdict:
        """Return the verdict of a page after it was verified."""
        return verify_certificate(page, beside, self.now, signers or self.signers).verdict


def damaged_bytes(data: bytes, chance: Random) -> bytes:
    """Return bytes of which a piece was flipped, removed, doubled or added, or the end was cut off."""
    at = chance.randrange(len(data) + 1)
    end = min(len(data), at + chance.choice((1, 1, 1, 4, 50, 1000)))
    flipped = bytes(byte ^ (1 << chance.randrange(8)) for byte in data[at:end])
    return chance.choice(
        (
            data[:at] + flipped + data[end:],
            data[:at] + data[end:],
            data[:at] + data[at:end] + data[at:],
            data[:at] + chance.choice((b" ", b"\n", b"pass", b"</pre>", b"\x00")) + data[at:],
            data[:at],
            b"",
        )
    )


def edited_json(data: bytes, chance: Random) -> bytes:
    """Return a sealed JSON object with edited fields, often with a digest that fits again."""
    content = edited(loads(open_sealed(data)), draw_edits(chance))
    if not isinstance(content, dict) or not content:
        content = {"schema_version": 1}
    try:
        sealed = seal_json(dumps(content, indent=1, ensure_ascii=True) + "\n")
    except (UnicodeEncodeError, ValueError):
        return b"{}"
    return sealed if chance.random() < 0.5 else data[:75] + sealed[75:]


# Mutations of pages.


def _with_json(subject: Subject, chance: Random) -> tuple[bytes, dict[str, bytes]]:
    """Return a page whose JSON was changed, together with the copy beside it."""
    changed = edited_json(subject.json, chance).replace(b"<", b"\\u003c")
    parts = split_page(subject.page)
    return fill_page(PageParts(parts.shell, changed, parts.signature)), {".json": changed}


def _with_bytes(subject: Subject, chance: Random) -> tuple[bytes, dict[str, bytes]]:
    return damaged_bytes(subject.page, chance), {}


def _with_copy(subject: Subject, chance: Random) -> tuple[bytes, dict[str, bytes]]:
    """Return the unchanged page beside a copy that was changed."""
    suffix, data = chance.choice(((".json", subject.json), (".json.sig", subject.signature.encode())))
    return subject.page, {suffix: damaged_bytes(data, chance)}


def _with_signature(subject: Subject, chance: Random) -> tuple[bytes, dict[str, bytes]]:
    parts = split_page(subject.page)
    changed = damaged_bytes(parts.signature.encode(), chance).decode("latin-1")
    return fill_page(PageParts(parts.shell, parts.json, changed)), {}


def _with_verdicts(subject: Subject, chance: Random) -> tuple[bytes, dict[str, bytes]]:
    """Return the page with a word of its text or JSON replaced, as a forger would."""
    words = ((b"pass", b"fail"), (b"2026", b"2031"), (b"GPU-", b"GPU-0"), (b"localhost", b"otherhost"))
    old, new = chance.choice([pair for pair in words if pair[0] in subject.page])
    places = subject.page.split(old)
    at = chance.randrange(1, len(places))
    return old.join(places[:at]) + new + old.join(places[at:]), {}


PAGE_KINDS: dict[str, Callable[[Subject, Random], tuple[bytes, dict[str, bytes]]]] = {
    "json": _with_json,
    "bytes": _with_bytes,
    "copy": _with_copy,
    "signature": _with_signature,
    "words": _with_verdicts,
}


def check_page(subject: Subject, chance: Random) -> tuple[str, str]:
    """Alter a page. Return the kind and the fault, or "" without a fault."""
    kind = chance.choice(list(PAGE_KINDS))
    page, beside = PAGE_KINDS[kind](subject, chance)
    unchanged = {".json": subject.json, ".json.sig": subject.signature.encode()}
    if page == subject.page and all(unchanged[suffix] == data for suffix, data in beside.items()):
        return f"page:{kind}:same", ""
    verdict = subject.verify(page, beside)
    return f"page:{kind}", "" if verdict.gates else f"page {kind}: verifies as {verdict.value}"


# Mutations of results folders.


@contextmanager
def altered_file(path: Path, chance: Random) -> Iterator[str]:
    """Alter or remove a file until the end of the block. Yield the kind of the change, or "same"."""
    before = path.read_bytes()
    kind = chance.choice(("remove", "empty", "bytes", "bytes", "json", "json"))
    try:
        if kind == "remove":
            path.unlink()
        else:
            path.write_bytes(b"" if kind == "empty" else _altered(path, kind, chance))
        yield "same" if path.exists() and _reads_alike(path, before) else kind
    finally:
        path.write_bytes(before)


def _reads_alike(path: Path, before: bytes) -> bool:
    """Return whether a file is unchanged. A record that lost only an empty field counts as unchanged."""
    after = path.read_bytes()
    if after == before or path.name != RECORD_NAME:
        return after == before
    try:
        return Run.model_validate_json(open_sealed(after)) == Run.model_validate_json(open_sealed(before))
    except ValueError:
        return False


def _altered(path: Path, kind: str, chance: Random) -> bytes:
    before = path.read_bytes()
    if kind == "json":
        try:
            return edited_json(before, chance)
        except (SealError, ValueError):
            pass
    return damaged_bytes(before, chance)


@contextmanager
def removed_folder(path: Path) -> Iterator[str]:
    """Remove a folder until the end of the block. Yield the kind of this change."""
    aside = path.parent.parent / "aside"
    shutil.move(path, aside)
    try:
        yield "folder"
    finally:
        shutil.move(aside, path)


def check_results(subject: Subject, chance: Random) -> tuple[str, str]:
    """Alter the results folder, and certify it again. Return the kind and the fault, or "" without one."""
    takes_folder = chance.random() < 0.1
    path = chance.choice(subject.folders if takes_folder else subject.files)
    catalogue = chance.choice(list(subject.before))
    before = subject.before[catalogue]
    with removed_folder(path) if takes_folder else altered_file(path, chance) as kind:
        try:
            after = subject.certify(catalogue)
        except RackproofError:
            # The folder gives no certificate, so nothing became better.
            return f"results:{kind}:refused", ""
    place = str(path.relative_to(subject.results))
    found = list(_better(before, after))
    if kind != "same":
        found += _kept(before, after, place)
    return f"results:{kind}", f"{catalogue}: {kind} {place}: {'; '.join(found)}" if found else ""


def _better(before: Certificate, after: Certificate) -> Iterator[str]:
    for was, now in zip(before.answers, after.answers, strict=True):
        # A failure whose evidence was damaged may become unproven, but nothing better.
        best = min(ORDER.index(was.verdict), ORDER.index(Verdict.UNPROVEN))
        if ORDER.index(now.verdict) < best:
            yield f"{was.id}: {was.verdict.value} became {now.verdict.value}"


def _kept(before: Certificate, after: Certificate, place: str) -> Iterator[str]:
    """Yield the answers that still pass although their evidence was altered."""
    touched = {
        piece.id
        for piece in before.evidence
        if any(file.path == place or file.path.startswith(f"{place}/") for file in piece.files)
    }
    for was, now in zip(before.answers, after.answers, strict=True):
        if touched & set(was.by) and not now.verdict.gates:
            yield f"{was.id}: still {now.verdict.value}, though its evidence was altered"


# Both kinds.


def try_mutations(seed: int, first: int, count: int) -> tuple[Counter[str], list[str]]:
    """Try mutations. Return the number of each kind, and the faults."""
    kinds: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        subject = Subject(Path(folder))
        for index in range(first, first + count):
            chance = Random(f"{seed}/{index}")
            try:
                kind, wrong = (check_page if index % 2 else check_results)(subject, chance)
            except Exception:  # an unexpected error, because a reader did not refuse the damage
                kind, wrong = "crash", traceback.format_exc(limit=-4)
            kinds[kind] += 1
            failures += [f"--seed {seed} --start {index}: {wrong}"] if wrong else []
    return kinds, failures


def main() -> int:
    """Run and report. The exit status is 1 if a mutation was not seen."""
    options = read_options(__doc__)
    os.fsync = lambda _: None  # type: ignore[assignment]  # nothing here outlives the machine
    began = time.monotonic()
    kinds, failures = try_in_batches(try_mutations, options, BATCH)
    print("\n".join(failures[:20]))
    print(", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common()))
    took = time.monotonic() - began
    print(f"{kinds.total():,} mutations in {took:.0f} s, {len(failures)} not seen, seed {options.seed}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
