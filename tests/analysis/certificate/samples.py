"""Make certificates of real runs for the tests of :mod:`rackproof.analysis.certificate`.

A certificate answers a catalogue of requirements with runs and nights as evidence. :func:`make_results`
judges healthy cases of tests/corpus into a results folder, with the functions that the playbooks use. The
other functions make a certificate of this folder, a key to sign it, and its page.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml

from rackproof.analysis.certificate.catalogue import load_catalogue
from rackproof.analysis.certificate.making import make_certificate
from rackproof.analysis.certificate.models import Certificate
from rackproof.analysis.certificate.page_parts import PageParts, dump_certificate, fill_page, shell_digest
from rackproof.analysis.certificate.signature import sign_bytes
from rackproof.core.records import Run, Verdict
from rackproof.report.certificate import certificate_shell
from rackproof.store.history.repository import open_store
from rackproof.store.history.spool import rebuild_history
from rackproof.store.run_folder import iter_runs, write_run
from tests.corpus import judging

NODE = "localhost"
CASES = ("h100-x2-night", "h100-x2-gemm-alone", "h100-x2-all-reduce-alone", "h100-x2-memory-bandwidth-alone")
"""A healthy night and healthy runs of one machine with two H100."""
CONTRACT = {
    "name": "contract",
    "title": "A customer's contract",
    "requirements": [
        {"id": "S1", "text": "Each node is healthy.", "max_age_days": 7, "night": True},
        {
            "id": "S2",
            "text": "Products are right and fast.",
            "max_age_days": 30,
            "benchmarks": ["gemm"],
            "metrics": ["wrong_values", "gemm_best"],
        },
        {
            "id": "S3",
            "text": "An all-reduce over all of the rack works.",
            "scope": "rack",
            "max_age_days": 30,
            "benchmarks": ["all-reduce"],
        },
    ],
}
"""A catalogue with a requirement for a night, for a node, and for a rack."""


def make_results(folder: Path, cases: Sequence[str] = CASES) -> Path:
    """Judge cases of the corpus into one results folder, with its history.

    The night has the time of the test, so the runs end on the day before, and not at the times of the cases.
    """
    results, day = folder / "results", datetime.now(UTC) - timedelta(days=1)
    for name in cases:
        results.mkdir(exist_ok=True)
        judged = judging.judge_case(name, results)
        assert judged.verdict is Verdict.PASS, judged.reasons
        shutil.rmtree(results / "definitions", ignore_errors=True)
    for run in iter_runs(results):
        if run.started and run.ended and run.ended < day:
            times = {"started": day - (run.ended - run.started), "ended": day}
            write_run(run.model_copy(update=times), results / run.run_id)
    (results / "history.sqlite").unlink()
    rebuild_history(results, None)
    return results


def add_run(results: Path, benchmark: str, **changes: object) -> Run:
    """Add a run like the last one of a benchmark, an hour later, to folder and history."""
    like = [run for run in iter_runs(results) if run.benchmark == benchmark][-1]
    later = {"started": like.started, "ended": like.ended}
    shifted = {key: moment + timedelta(hours=1) for key, moment in later.items() if moment}
    added = len(list(results.glob(f"*-{benchmark}-*")))
    run_id = f"{like.run_id[:-6]}{int(like.run_id[-6:], 16) ^ added:06x}"
    run = like.model_copy(update={"run_id": run_id, **shifted, **changes})
    shutil.copytree(results / like.run_id, results / run_id)
    write_run(run, results / run_id)
    with open_store(results / "history.sqlite") as store:
        store.keep(run)
    return run


def contract_file(folder: Path) -> Path:
    """Write CONTRACT to a file, and return its path."""
    path = folder / "contract.yml"
    path.write_text(yaml.safe_dump(CONTRACT, sort_keys=False))
    return path


def certify(results: Path, catalogue: str, *, now: datetime | None = None) -> Certificate:
    """Return a certificate of the node ``localhost`` from its results folder."""
    with open_store(results / "history.sqlite") as store:
        moment = now or datetime.now(UTC)
        return make_certificate(results, store, load_catalogue(catalogue), [NODE], now=moment)


def make_key(folder: Path, who: str = "ops@example.com") -> tuple[Path, Path]:
    """Make a key, and the file of allowed signers that names it. Return both paths."""
    key = folder / f"key-{who}"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    signers = folder / f"signers-{who}"
    signers.write_text(f"{who} {key.with_name(key.name + '.pub').read_text()}")
    return key, signers


def page_of(certificate: Certificate, key: Path | None = None) -> tuple[bytes, bytes, str]:
    """Return a certificate's page, JSON and signature."""
    shell = certificate_shell(certificate)
    written = dump_certificate(certificate.model_copy(update={"page_sha256": shell_digest(shell)}))
    signature = sign_bytes(written, key) if key else ""
    return fill_page(PageParts(shell, written, signature)), written, signature
