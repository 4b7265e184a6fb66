"""Claims on hosts: one playbook at a time, and nothing to clean up after a killed one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rackproof.store.host_claims import CLAIMS, HostClaimedError, claim_hosts


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """Another process, which lives until the test ends it."""
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_a_host_claimed_by_a_living_process_is_busy(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    claim_hosts(tmp_path, ["n1", "n2"], other.pid)
    with pytest.raises(HostClaimedError, match=rf"n2 .*pid {other.pid}.*wait for it"):
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
    # The same process id with another start: as with a reused number.
    claims.write_text(claims.read_text().replace('"start_ticks": ', '"start_ticks": 1'))
    claim_hosts(tmp_path, ["n1"], os.getppid())


def test_damaged_claims_do_not_block(tmp_path: Path) -> None:
    for damage in [
        "",
        "[",
        "[]",
        "3",
        "null",
        '"n1"',
        '{"n1": 3}',
        '{"n1": {"pid": "x"}}',
        '{"n1": {"pid": -1}}',
    ]:
        (tmp_path / CLAIMS).write_text(damage)
        claim_hosts(tmp_path, ["n1"], os.getpid())


def test_a_claim_that_lacks_its_moment_still_holds(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    claim_hosts(tmp_path, ["n1"], other.pid)
    claims = json.loads((tmp_path / CLAIMS).read_text())
    del claims["n1"]["since"]
    (tmp_path / CLAIMS).write_text(json.dumps(claims))
    with pytest.raises(HostClaimedError, match=f"pid {other.pid}"):
        claim_hosts(tmp_path, ["n1"], os.getpid())


def test_a_refused_claim_takes_none_of_the_hosts(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    claim_hosts(tmp_path, ["n2"], other.pid)
    with pytest.raises(HostClaimedError):
        claim_hosts(tmp_path, ["n1", "n2"], os.getpid())
    assert set(json.loads((tmp_path / CLAIMS).read_text())) == {"n2"}


def test_of_many_that_claim_at_once_one_wins(tmp_path: Path) -> None:
    """Each waits until all are ready, claims, prints whether it got the host, and lives on."""
    program = (
        "import os, sys; from pathlib import Path\n"
        "from rackproof.store.host_claims import HostClaimedError, claim_hosts\n"
        "sys.stdin.readline()\n"
        "try: claim_hosts(Path(sys.argv[1]), ['n1'], os.getpid()); print('won', flush=True)\n"
        "except HostClaimedError: print('busy', flush=True)\n"
        "sys.stdin.read()"
    )
    many = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    try:
        for one in many:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        answers = [one.stdout.readline().strip() for one in many if one.stdout is not None]
    finally:
        for one in many:
            one.kill()
            one.communicate()
    assert sorted(answers) == ["busy"] * 5 + ["won"]


def test_a_results_folder_that_cannot_be_made_names_what_to_do(tmp_path: Path) -> None:
    from rackproof.store.run_folder import ResultsError

    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="bench_results"):
        claim_hosts(tmp_path / "file" / "results", ["n1"], os.getpid())
