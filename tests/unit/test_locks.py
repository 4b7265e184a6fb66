"""Claims on hosts: one playbook at a time, and nothing to clean up after a killed one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rackproof.locks import CLAIMS, Busy, claim_hosts


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """Another process, which lives until the test ends it."""
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_a_host_claimed_by_a_living_process_is_busy(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    claim_hosts(tmp_path, ["n1", "n2"], other.pid)
    with pytest.raises(Busy, match=rf"n2 .*pid {other.pid}.*wait for it"):
        claim_hosts(tmp_path, ["n2"], os.getpid())
    claim_hosts(tmp_path, ["n3"], os.getpid())
    claim_hosts(tmp_path, ["n1"], other.pid)


def test_the_claim_of_a_killed_process_is_taken_over(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    claim_hosts(tmp_path, ["n1"], other.pid)
    other.kill()
    other.wait()
    claim_hosts(tmp_path, ["n1"], os.getpid())


def test_a_reused_process_id_is_not_the_claimant(tmp_path: Path) -> None:
    claim_hosts(tmp_path, ["n1"], os.getpid())
    claims = tmp_path / CLAIMS
    # The same process id with another start: what a reused number looks like.
    claims.write_text(claims.read_text().replace('"start_ticks": ', '"start_ticks": 1'))
    claim_hosts(tmp_path, ["n1"], os.getppid())


def test_damaged_claims_do_not_block(tmp_path: Path) -> None:
    for damage in ["", "[", '{"n1": 3}', '{"n1": {"pid": "x"}}']:
        (tmp_path / CLAIMS).write_text(damage)
        claim_hosts(tmp_path, ["n1"], os.getpid())


def test_a_results_folder_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    from rackproof.results import ResultsError

    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="bench_results"):
        claim_hosts(tmp_path / "file" / "results", ["n1"], os.getpid())
