"""Test that a link, a pipe or a held lock in a results folder neither harms a user nor blocks a playbook.

Several users may write a results folder. Locks, logs and journals there have fixed names, so another user
could put something else in their place. store/plain_file.py opens only plain files, and gives locks to those
who share the folder.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rackproof.core.errors import RackproofError
from rackproof.jobs.reimage.acceptance import _add_pair
from rackproof.jobs.reimage.lifecycle import Entry, Step
from rackproof.jobs.reimage.run_files import append_entry, read_journal
from rackproof.jobs.validate.nightly import LOCK, _single_nightly
from rackproof.store import audit_log
from rackproof.store.history import spool
from rackproof.store.host_claims import CLAIMS, claim_hosts, claimed_hosts

ENTRY = Entry(at=datetime(2026, 1, 1, tzinfo=UTC), event="begun", step=Step.DRAIN)


def nightly(results: Path) -> None:
    with _single_nightly(results):
        pass


def use_journal(results: Path) -> None:
    append_entry(results / "n1.journal", ENTRY, reserve=True)


WRITERS: list[tuple[str, Callable[[Path], object]]] = [
    (".claims.lock", lambda results: claim_hosts(results, ["n1"], os.getpid())),
    (audit_log.LOG_NAME, lambda results: audit_log.append_acts(results, [("n1", "drain", "")], "x.yml")),
    ("n1.journal", use_journal),
    (".n1.journal.reserve", use_journal),
    ("pairs.lock", lambda results: _add_pair(results, "n1", None, "why")),
    (LOCK, nightly),
]
"""Each file with a fixed name, and a call that writes it."""
LOCKS = [one for one in WRITERS if one[0] in (".claims.lock", "n1.journal", "pairs.lock")]
USERS_LOCKS = [".claims.lock", "pairs.lock", LOCK]
"""Locks that all users of the folder share."""
READERS: list[tuple[str, Callable[[Path], object]]] = [
    (CLAIMS, claimed_hosts),
    (CLAIMS, lambda results: claim_hosts(results, ["n1"], os.getpid())),
    ("n1.journal", lambda results: read_journal(results / "n1.journal")),
]
"""Each file with a fixed name that is read, and a call that reads it."""


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """End a call that waits for ever."""

    def stop(*_: object) -> None:
        raise AssertionError("it waits for a pipe or a lock")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(("name", "write"), WRITERS, ids=[name for name, _ in WRITERS])
def test_a_link_in_the_place_of_a_file_is_not_followed(
    tmp_path: Path, name: str, write: Callable[[Path], object]
) -> None:
    results, victim = tmp_path / "results", tmp_path / "authorized_keys"
    results.mkdir()
    victim.write_text("ssh-ed25519 AAAA\n")
    (results / name).symlink_to(victim)
    with pytest.raises((RackproofError, OSError), match="not a plain file"):
        write(results)
    assert victim.read_text() == "ssh-ed25519 AAAA\n"


@pytest.mark.parametrize(("name", "write"), WRITERS, ids=[name for name, _ in WRITERS])
def test_a_pipe_in_the_place_of_a_file_is_neither_written_nor_waited_for(
    tmp_path: Path, name: str, write: Callable[[Path], object]
) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises((RackproofError, OSError), match="not a plain file"):
        write(tmp_path)


@pytest.mark.parametrize(("name", "read"), READERS)
def test_a_pipe_is_not_read(tmp_path: Path, name: str, read: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(RackproofError, match="not a plain file"):
        read(tmp_path)


def test_a_pipe_among_records_is_one_damaged_record(tmp_path: Path) -> None:
    (tmp_path / audit_log.PROVISIONS).mkdir()
    os.mkfifo(tmp_path / audit_log.PROVISIONS / "provision-x.json")
    assert audit_log.read_provisions(tmp_path) == ([], 1)
    os.mkfifo(tmp_path / "note.json")
    drained = spool.drain_spool(tmp_path / "history.sqlite", tmp_path)
    assert drained.waiting == ("note",)


@pytest.mark.parametrize(("name", "write"), LOCKS, ids=[name for name, _ in LOCKS])
def test_a_lock_that_is_never_released_is_an_error_that_names_its_holder(
    tmp_path: Path, name: str, write: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rackproof.store.plain_file.LOCK_WAIT_S", 0.0)
    (tmp_path / name).touch()
    # A user of the group may read what an earlier version wrote, and so hold its lock.
    program = (
        "import fcntl, sys; held = open(sys.argv[1]); fcntl.flock(held, fcntl.LOCK_EX);"
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises((RackproofError, OSError), match=f"process {other.pid} of .* holds its lock"):
            write(tmp_path)
        other.kill()
    write(tmp_path)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("name", USERS_LOCKS)
def test_no_other_user_can_open_a_lock(tmp_path: Path, name: str, umask: int, is_old: bool) -> None:
    if is_old:
        (tmp_path / name).touch(0o644)
    before = os.umask(umask)
    try:
        dict(WRITERS)[name](tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def by_user(name: str, folder: Path, uid: int, gid: int, umask: int) -> str:
    """Write one of the files as another user, and return the error or ""."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            # The folders above are closed to others.
            os.chdir(folder)
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
            os.umask(umask)
            dict(WRITERS)[name](Path())
        except BaseException as error:
            os.write(writes, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as stream:
        said = stream.read()
    os.waitpid(child, 0)
    return said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("umask", [0o002, 0o007, 0o022])
@pytest.mark.parametrize("name", USERS_LOCKS)
def test_members_of_a_group_that_writes_the_folder_share_its_locks(
    tmp_path: Path, name: str, umask: int
) -> None:
    os.chown(tmp_path, 12345, 5000)
    tmp_path.chmod(0o2775)
    for uid in (12346, 12347, 12345):
        assert by_user(name, tmp_path, uid, 5000, umask) == ""
    facts = (tmp_path / name).stat()
    assert (stat.S_IMODE(facts.st_mode), facts.st_gid) == (0o660, 5000)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("mode", "gid"),
    [
        pytest.param(0o2755, 5000, id="the group cannot write the folder"),
        pytest.param(0o2777, 100, id="no setgid: the group of the first user is another"),
        pytest.param(0o1777, 100, id="as /tmp"),
    ],
)
@pytest.mark.parametrize("name", USERS_LOCKS)
def test_a_group_that_does_not_share_the_folder_cannot_open_its_locks(
    tmp_path: Path, mode: int, gid: int, name: str
) -> None:
    os.chown(tmp_path, 12345, 5000)
    tmp_path.chmod(mode if gid == 5000 else mode & ~0o2000)
    assert by_user(name, tmp_path, 12345, gid, 0o002) == ""
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads and gives away files of others")
@pytest.mark.parametrize("name", USERS_LOCKS)
def test_after_a_playbook_of_root_the_owner_of_the_folder_can_use_its_files(
    tmp_path: Path, name: str
) -> None:
    results = tmp_path / "results"
    results.mkdir()
    os.chown(results, 12345, 12345)
    claim_hosts(results, ["n1"], os.getpid())
    assert (results / CLAIMS).stat().st_uid == 12345
    dict(WRITERS)[name](results)
    os.truncate(results / CLAIMS, 0)
    assert by_user(name, results, 12345, 12345, 0o022) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives away files of others")
@pytest.mark.parametrize("name", USERS_LOCKS)
def test_a_hard_link_to_a_file_of_root_keeps_its_owner_and_mode(tmp_path: Path, name: str) -> None:
    results, victim = tmp_path / "results", tmp_path / "shadow"
    results.mkdir()
    os.chown(results, 12345, 0)
    results.chmod(0o770)
    victim.touch(0o600)
    (results / name).hardlink_to(victim)
    dict(WRITERS)[name](results)
    assert (victim.stat().st_uid, stat.S_IMODE(victim.stat().st_mode)) == (0, 0o600)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives away files")
@pytest.mark.parametrize("number", [errno.EPERM, errno.EINVAL, errno.EROFS])
@pytest.mark.parametrize("call", ["chown", "fchown"])
def test_a_file_system_without_owners_keeps_claims(
    tmp_path: Path, number: int, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    os.chown(tmp_path, 12345, 12345)
    monkeypatch.setattr(os, call, refuse)
    claim_hosts(tmp_path, ["n1"], os.getpid())
    assert claimed_hosts(tmp_path) == {"n1"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("call", ["claimed_hosts(Path('.'))", "claim_hosts(Path('.'), ['n2'], os.getpid())"])
def test_claims_that_cannot_be_read_are_an_error(tmp_path: Path, call: str, root: Path) -> None:
    tmp_path.chmod(0o777)
    claim_hosts(tmp_path, ["n1"], os.getpid())
    (tmp_path / ".claims.lock").unlink()
    os.chown(tmp_path / CLAIMS, 0, 0)
    (tmp_path / CLAIMS).chmod(0o640)
    known = (tmp_path / CLAIMS).read_bytes()
    program = (
        "import os; from pathlib import Path\n"
        "from rackproof.store.host_claims import claim_hosts, claimed_hosts\n"
        f"os.chdir({str(tmp_path)!r}); os.setgid(12345); os.setuid(12345)\n{call}\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "it is not known which hosts other playbooks use" in done.stderr
    assert (tmp_path / CLAIMS).read_bytes() == known
    assert json.loads(known)["n1"]["pid"] == os.getpid()
