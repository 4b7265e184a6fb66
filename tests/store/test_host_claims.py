"""Test that one playbook at a time claims a host, and that the claim of a killed one needs no clean-up.

A claim is an entry of .claims.json with the process id and the start time of the playbook.
store/host_claims.py writes these entries.
"""

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
def other_process() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that runs until the test ends."""
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_a_host_that_a_running_process_claimed_is_refused(
    tmp_path: Path, other_process: subprocess.Popen[bytes]
) -> None:
    claim_hosts(tmp_path, ["n1", "n2"], other_process.pid)
    with pytest.raises(HostClaimedError, match=rf"n2 .*pid {other_process.pid}.*wait for it"):
        claim_hosts(tmp_path, ["n2"], os.getpid())
    claim_hosts(tmp_path, ["n3"], os.getpid())
    claim_hosts(tmp_path, ["n1"], other_process.pid)


def test_the_claim_of_a_killed_process_is_taken_over(
    tmp_path: Path, other_process: subprocess.Popen[bytes]
) -> None:
    claim_hosts(tmp_path, ["n1"], other_process.pid)
    other_process.kill()
    other_process.wait()
    claim_hosts(tmp_path, ["n1"], os.getpid())


def test_a_reused_process_id_does_not_own_the_claim(tmp_path: Path) -> None:
    claim_hosts(tmp_path, ["n1"], os.getpid())
    claims = tmp_path / CLAIMS
    # Change the start time. The claim then looks like one of an earlier process with the same id.
    claims.write_text(claims.read_text().replace('"start_ticks": ', '"start_ticks": 1'))
    claim_hosts(tmp_path, ["n1"], os.getppid())


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param("", id="empty file"),
        pytest.param("[", id="half of a list"),
        pytest.param("[" * 100_000, id="deeply nested list"),
        pytest.param('{"a":' * 100_000, id="deeply nested object"),
        pytest.param("[]", id="list"),
        pytest.param("3", id="number"),
        pytest.param("null", id="null"),
        pytest.param('"n1"', id="text"),
        pytest.param('{"n1": 3}', id="claim is a number"),
        pytest.param('{"n1": {"pid": "x"}}', id="pid is a text"),
        pytest.param('{"n1": {"pid": -1}}', id="pid is negative"),
    ],
)
def test_damaged_claims_do_not_block(tmp_path: Path, damage: str) -> None:
    (tmp_path / CLAIMS).write_text(damage)
    claim_hosts(tmp_path, ["n1"], os.getpid())


def test_a_claim_without_its_time_is_still_valid(
    tmp_path: Path, other_process: subprocess.Popen[bytes]
) -> None:
    claim_hosts(tmp_path, ["n1"], other_process.pid)
    claims = json.loads((tmp_path / CLAIMS).read_text())
    del claims["n1"]["since"]
    (tmp_path / CLAIMS).write_text(json.dumps(claims))
    with pytest.raises(HostClaimedError, match=f"pid {other_process.pid}"):
        claim_hosts(tmp_path, ["n1"], os.getpid())


def test_a_refused_claim_names_the_action_of_its_owner(
    tmp_path: Path, other_process: subprocess.Popen[bytes]
) -> None:
    claim_hosts(tmp_path, ["n1"], other_process.pid, "re-imaged")
    with pytest.raises(HostClaimedError, match="n1 is being re-imaged by another playbook"):
        claim_hosts(tmp_path, ["n1"], os.getpid(), "benchmarked")


@pytest.mark.parametrize("doing", [None, 3, ""])
def test_a_claim_of_an_older_version_names_no_action(
    tmp_path: Path, other_process: subprocess.Popen[bytes], doing: object
) -> None:
    claim_hosts(tmp_path, ["n1"], other_process.pid)
    claims = json.loads((tmp_path / CLAIMS).read_text())
    del claims["n1"]["doing"]
    claims["n1"] |= {} if doing is None else {"doing": doing}
    (tmp_path / CLAIMS).write_text(json.dumps(claims))
    with pytest.raises(HostClaimedError, match="n1 is in use by another playbook"):
        claim_hosts(tmp_path, ["n1"], os.getpid(), "benchmarked")


def test_a_refused_claim_takes_none_of_the_hosts(
    tmp_path: Path, other_process: subprocess.Popen[bytes]
) -> None:
    claim_hosts(tmp_path, ["n2"], other_process.pid)
    with pytest.raises(HostClaimedError):
        claim_hosts(tmp_path, ["n1", "n2"], os.getpid())
    assert set(json.loads((tmp_path / CLAIMS).read_text())) == {"n2"}


def test_one_of_six_simultaneous_claims_succeeds(tmp_path: Path) -> None:
    """Start six processes, and let them claim the host when all of them have imported the package.

    Each process prints the outcome, and then runs on, because the claim of an ended process is not valid.
    """
    program = (
        "import os, sys; from pathlib import Path\n"
        "from rackproof.store.host_claims import HostClaimedError, claim_hosts\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "try: claim_hosts(Path(sys.argv[1]), ['n1'], os.getpid()); print('claimed', flush=True)\n"
        "except HostClaimedError: print('refused', flush=True)\n"
        "sys.stdin.read()"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    try:
        assert [_next_line(process) for process in processes] == ["ready"] * 6
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        outcomes = [_next_line(process) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert sorted(outcomes) == ["claimed"] + ["refused"] * 5


def _next_line(process: subprocess.Popen[str]) -> str:
    """Wait for the next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_an_unwritable_results_folder_names_the_option_to_set(tmp_path: Path) -> None:
    from rackproof.store.run_folder import ResultsError

    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="bench_results"):
        claim_hosts(tmp_path / "file" / "results", ["n1"], os.getpid())
