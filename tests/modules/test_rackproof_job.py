"""Test the module rackproof_job, which starts, finds and stops a benchmark's job on a node.

A supervisor on the node, which does not need the playbook, limits the job's time, silence and log, and writes
its end to state.json. The tests show that a job is never started twice, that none of its processes is left,
that a job whose supervisor died is no success, and that a full disk does not lose the result.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from .conftest import Jobs, Modules, until

# Each case starts processes. All of them together are too slow for `make check`.
pytestmark = pytest.mark.slow

# A job whose processes ignore SIGTERM, in the job's session and in others, with and without the job's token.
STUBBORN = (
    "trap '' TERM HUP INT",
    "(trap '' TERM; while :; do sleep 1; done) &",
    "setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' &",  # in another session
    "env -i setsid sh -c 'trap \"\" TERM; echo stray $$; while :; do sleep 1; done' &",  # also without token
    "echo ready",
    "while :; do sleep 1; done",
)


def stray(jobs: Jobs) -> int:
    """Return the id of the process without the job's token in its environment."""
    log = until(lambda: "ready" in (text := jobs.log()) and "stray" in text and text)
    return int(next(line.split()[1] for line in log.splitlines() if line.startswith("stray")))


def alive(pid: int) -> bool:
    """Return whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("script", "ended_by", "exit_status", "number", "message"),
    [
        ("echo out; echo err >&2", "itself", 0, None, "ended with exit status 0"),
        ("exit 7", "itself", 7, None, "ended with exit status 7"),
        ("kill -9 $$", "itself", 137, 9, "killed by signal 9"),
        ("kill -TERM $$", "itself", 143, 15, "killed by signal 15"),
    ],
)
def test_how_a_job_ends_by_itself(
    jobs: Jobs, script: str, ended_by: str, exit_status: int, number: int | None, message: str
) -> None:
    begun = jobs("job", script)
    assert begun["changed"] is True
    state = jobs.ended()
    assert (state["ended_by"], state["exit_status"], state["signal"], state["message"]) == (
        ended_by,
        exit_status,
        number,
        message,
    )
    assert state["succeeded"] is (exit_status == 0)
    assert datetime.fromisoformat(state["started"]) <= datetime.fromisoformat(state["ended"])
    assert state["log_bytes"] == len(jobs.log())


def test_output_and_error_go_to_the_log_and_input_is_empty(jobs: Jobs) -> None:
    jobs("job", "echo out; echo err >&2; cat; echo after cat; pwd")
    jobs.ended()
    assert jobs.log().split("\n")[:3] == ["out", "err", "after cat"]
    assert jobs.log().split("\n")[3] == str(jobs.folder / "job")


def test_starting_again_finds_the_running_job_then_its_result(jobs: Jobs) -> None:
    release = jobs.folder / "release"
    script = f"echo run >>{jobs.folder}/runs; until [ -e {release} ]; do sleep 0.1; done; exit 3"
    first = jobs("job", script)
    again = jobs("job", script)
    assert again["changed"] is False
    assert again["job"]["phase"] == "running"
    assert again["job"]["pid"] == first["job"]["pid"]
    release.touch()
    jobs.ended()
    result = jobs("job", script)
    assert result["changed"] is False
    assert (result["job"]["phase"], result["job"]["exit_status"]) == ("ended", 3)
    assert (jobs.folder / "runs").read_text() == "run\n"


def test_starts_at_the_same_time_give_one_job(jobs: Jobs, modules: Modules) -> None:
    options = {
        "id": "job",
        "folder": str(jobs.folder / "job"),
        "timeout_s": 30,
        "argv": ["sh", "-c", f"echo run >>{jobs.folder}/runs; sleep 1"],
    }
    jobs.ids.add("job")

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: modules("rackproof_job", **options), range(4)))
    assert sorted(result["changed"] for result in results) == [False, False, False, True]
    assert len({result["job"]["pid"] for result in results}) == 1
    jobs.ended()
    assert (jobs.folder / "runs").read_text() == "run\n"


@pytest.mark.parametrize(
    ("options", "ended_by"),
    [
        ({"timeout_s": 1.5}, "timeout"),
        ({"hang_s": 1.5}, "hang"),
    ],
)
def test_a_bounded_job_dies_with_all_its_processes(
    jobs: Jobs, options: dict[str, Any], ended_by: str
) -> None:
    jobs("job", *STUBBORN, grace_s=0.5, **options)
    lost_child = stray(jobs)
    state = jobs.ended()
    assert (state["ended_by"], state["signal"], state["succeeded"]) == (ended_by, 9, False)
    assert jobs.processes() == []
    assert not alive(lost_child)
    assert state["unkillable"] == []


def test_a_job_that_keeps_talking_is_not_hung(jobs: Jobs) -> None:
    jobs("job", "for i in 1 2 3 4 5 6; do echo $i; sleep 0.5; done", hang_s=2.5)
    assert jobs.ended()["ended_by"] == "itself"


def test_a_log_that_grows_without_end_stops_the_job(jobs: Jobs) -> None:
    jobs("job", "while :; do echo all work and no play; sleep 0.01; done", log_limit_bytes=200, grace_s=1)
    state = jobs.ended()
    assert (state["ended_by"], state["succeeded"]) == ("log_limit", False)


def test_an_exit_status_of_zero_after_a_stop_is_no_success(jobs: Jobs) -> None:
    jobs("job", "trap 'exit 0' TERM", "echo ready", "while :; do sleep 0.1; done")
    jobs.logged("ready")
    stopped = jobs.stop()
    assert stopped["changed"] is True
    job = stopped["job"]
    assert (job["ended_by"], job["exit_status"], job["succeeded"]) == ("stopped", 0, False)


def test_stopping_kills_stubborn_children_and_stopping_again_changes_nothing(jobs: Jobs) -> None:
    jobs("job", *STUBBORN, grace_s=0.5)
    lost_child = stray(jobs)
    assert len(jobs.processes()) >= 3
    assert jobs.stop(check=True)["changed"] is True
    assert jobs.state()["phase"] == "running"
    assert jobs.stop()["job"]["ended_by"] == "stopped"
    assert jobs.processes() == []
    assert not alive(lost_child)
    assert jobs.stop()["changed"] is False
    assert jobs.log().count("ready") == 1, "nothing is deleted"


def test_children_left_behind_are_killed_and_counted(jobs: Jobs) -> None:
    jobs("job", "sleep 300 & sleep 300 & exit 0")
    state = jobs.ended()
    assert (state["succeeded"], state["leftovers"]) == (True, 2)
    assert jobs.processes() == []


def test_helpers_that_end_soon_after_the_program_are_left_in_peace(jobs: Jobs) -> None:
    jobs("job", "(trap 'echo terminated' TERM; sleep 0.3; echo done) & exit 0")
    state = jobs.ended()
    assert (state["succeeded"], state["leftovers"]) == (True, 0)
    assert jobs.log() == "done\n"


def test_a_killed_supervisor_is_no_success_and_leaves_nothing_running(jobs: Jobs) -> None:
    jobs("job", *STUBBORN, lock=str(jobs.folder / "lock"))
    lost_child = stray(jobs)
    state = jobs.state()
    os.kill(state["supervisor_pid"], signal.SIGKILL)
    until(lambda: not alive(state["pid"]))  # the kernel kills the program with its supervisor
    found = jobs.find()["job"]
    assert (found["phase"], found["ended_by"], found["succeeded"]) == ("ended", "supervisor_died", False)
    assert found["exit_status"] is None
    assert jobs.processes() == []
    assert not alive(lost_child)
    assert jobs("job", "true")["job"]["ended_by"] == "supervisor_died", "the job was started a second time"
    assert jobs("job", "true", check=True, again=True)["changed"] is True
    assert jobs("job", "true", again=True)["changed"] is True, "the job was not started again, as requested"
    assert (jobs.ended()["succeeded"], jobs.log()) == (True, "")
    assert jobs("job", "true", again=True)["changed"] is False, "the ended job was started again"


@pytest.mark.parametrize("script", ["trap 'exit 1' TERM; echo ready; while :; do sleep 0.1; done", "exit 3"])
def test_what_ends_on_a_node_that_shuts_down_has_no_result(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    systemctl = tmp_path / "bin" / "systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text("#!/bin/sh\necho stopping; exit 1\n")
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{systemctl.parent}:{os.environ['PATH']}")
    jobs("job", script)
    if "ready" in script:
        jobs.logged("ready")
        os.kill(jobs.state()["supervisor_pid"], signal.SIGTERM)
    state = jobs.ended()
    assert (state["ended_by"], state["exit_status"], state["signal"]) == ("supervisor_died", None, None)


def test_the_next_job_ends_what_a_dead_supervisor_left_on_the_node(jobs: Jobs) -> None:
    lock = str(jobs.folder / "lock")
    jobs("first", "(trap '' TERM; while :; do sleep 1; done) & echo ready; wait", lock=lock)
    jobs.logged("ready", "first")
    os.kill(jobs.state("first")["supervisor_pid"], signal.SIGKILL)
    until(lambda: not alive(jobs.state("first")["pid"]))
    assert jobs.processes("first") != []
    second = jobs("second", "true", lock=lock)
    assert second["orphans_killed"] >= 1
    assert jobs.processes("first") == []
    assert jobs.ended("second")["succeeded"] is True


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"boot_id": "00000000-0000-4000-8000-000000000000"}, id="rebooted"),
        pytest.param({"supervisor_start_ticks": 2, "supervisor_pid": os.getpid()}, id="process id reused"),
    ],
)
def test_a_state_from_another_life_is_not_believed(jobs: Jobs, change: dict[str, Any]) -> None:
    jobs("job", "true")
    state = jobs.ended() | {"phase": "running", "ended_by": None, "exit_status": None} | change
    (jobs.folder / "job" / "state.json").write_text(json.dumps(state))
    checked = jobs.find(check=True)["job"]
    assert checked["ended_by"] == "supervisor_died"
    assert jobs.state()["phase"] == "running", "check mode writes nothing"
    found = jobs.find()["job"]
    assert (found["phase"], found["ended_by"], found["succeeded"]) == ("ended", "supervisor_died", False)
    assert jobs.state()["phase"] == "ended"


def test_one_job_a_node(jobs: Jobs) -> None:
    lock = str(jobs.folder / "locks" / "node")
    release = jobs.folder / "release"
    first = jobs("first", f"until [ -e {release} ]; do sleep 0.1; done", lock=lock)["job"]
    refused = jobs("second", "true", lock=lock)
    assert refused["failed"] is True
    for part in ("'first'", str(first["supervisor_pid"]), str(jobs.folder / "first"), "state=absent", lock):
        assert part in refused["msg"]
    assert not (jobs.folder / "second" / "job.json").exists()
    release.touch()
    jobs.ended("first")
    assert Path(lock).read_text() == ""
    second = jobs("second", "true", lock=lock)
    assert (second["changed"], second["orphans_killed"]) == (True, 0)


def test_secrets_reach_the_job_and_nothing_else(jobs: Jobs) -> None:
    begun = jobs(
        "job",
        'test "${#KEY}" = 15 && echo "known, $COLOUR"',
        environment={"COLOUR": "blue"},
        secret_environment={"KEY": "tops3cret-value"},
    )
    jobs.ended()
    assert jobs.log() == "known, blue\n"
    written = b"".join(p.read_bytes() for p in (jobs.folder / "job").iterdir())
    assert b"tops3cret" not in written
    assert "tops3cret" not in json.dumps(begun)
    job = json.loads((jobs.folder / "job" / "job.json").read_text())
    assert (job["environment"], job["secret_environment"]) == ({"COLOUR": "blue"}, ["KEY"])


def test_a_job_on_the_controller_itself_does_not_get_its_secrets(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RACKPROOF_DATABASE_URL", "canary")
    monkeypatch.setenv("NETBOX_TOKEN", "canary")
    monkeypatch.setenv("DATADIR", "/data")
    jobs("job", 'echo "$RACKPROOF_DATABASE_URL$NETBOX_TOKEN$DATADIR"')
    jobs.ended()
    assert jobs.log() == "/data\n"


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_no_other_user_may_write_what_a_job_leaves(jobs: Jobs, umask: int) -> None:
    top, jobs.folder = jobs.folder, jobs.folder / "home/runs"
    before = os.umask(umask)
    try:
        jobs("job", f"echo made >{top}/made")
        jobs.ended()
    finally:
        os.umask(before)
    paths = [*(top / "home").rglob("*"), top / "home", top / "made"]
    assert len(paths) >= 6
    assert [str(path) for path in paths if path.stat().st_mode & 0o002] == []
    # The group keeps its rights, so that users of one group can share files.
    assert (top / "made").stat().st_mode & 0o777 == 0o666 & ~(umask | 0o002)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("is_old", [False, True])
def test_no_other_user_can_hold_the_locks_of_a_job(jobs: Jobs, umask: int, is_old: bool) -> None:
    paths = [jobs.folder / "job/.starting", jobs.folder / "node.lock"]
    before = os.umask(umask)
    try:
        if is_old:
            paths[0].parent.mkdir()
            for path in paths:
                path.touch(0o644)
        jobs("job", "true", lock=str(paths[1]))
        jobs.ended()
    finally:
        os.umask(before)
    # A user who may read a file can hold its lock.
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o600, 0o600]


def test_check_mode_changes_nothing(jobs: Jobs) -> None:
    assert jobs("job", "true", check=True)["changed"] is True
    assert not (jobs.folder / "job").exists()
    jobs("job", "true")
    assert jobs("job", "true", check=True)["changed"] is False


# Each request cannot be carried out. The texts are parts of the message.
@pytest.mark.parametrize(
    ("options", "parts"),
    [
        pytest.param({"argv": ["no-such-program"]}, ["no-such-program", "install it"], id="program missing"),
        pytest.param({"argv": ["/"]}, ["cannot start /", "not executable"], id="not executable"),
        pytest.param({"argv": ["PLAIN"]}, ["PLAIN", "not a program"], id="no program"),
        pytest.param({"argv": ["true"], "chdir": "/no/such"}, ["/no/such", "not exist"], id="chdir missing"),
        pytest.param({"argv": []}, ["argv"], id="empty argv"),
        pytest.param({"argv": ["true"], "timeout_s": 0}, ["timeout_s", "above 0"], id="no time"),
        pytest.param({"argv": ["true"], "timeout_s": float("inf")}, ["timeout_s"], id="unbounded"),
        pytest.param({"argv": ["true"], "hang_s": -1}, ["hang_s"], id="negative"),
        pytest.param({"argv": ["true"], "folder": "here"}, ["folder", "absolute"], id="relative folder"),
        pytest.param({"argv": ["true"], "id": "../x"}, ["id", "letters"], id="id is not a path"),
        pytest.param({"argv": ["true"], "folder": "/proc/x"}, ["/proc/x"], id="folder cannot be made"),
        pytest.param({"argv": ["true"], "folder": "/dev/null/x"}, ["/dev/null/x"], id="file in the way"),
        pytest.param({"argv": ["true"], "lock": "/proc/lock"}, ["/proc/lock"], id="lock cannot be made"),
    ],
)
def test_what_cannot_start_names_what_to_do(
    modules: Modules, tmp_path: Path, options: dict[str, Any], parts: list[str]
) -> None:
    folder = tmp_path / "job"
    plain = tmp_path / "PLAIN"
    plain.write_text("no interpreter line")
    plain.chmod(0o755)
    if options["argv"] == ["PLAIN"]:
        options = {"argv": [str(plain)]}
    result = modules("rackproof_job", **{"id": "job", "folder": str(folder), "timeout_s": 9, **options})
    assert result["failed"] is True
    for part in parts:
        assert part in result["msg"]
    left = {path.name for path in folder.iterdir()} if folder.exists() else set()
    assert left <= {".starting"}, "nothing half-written"


def test_a_failed_start_can_be_repeated(jobs: Jobs) -> None:
    program = jobs.folder / "program"
    assert jobs("job", argv=[str(program)])["failed"] is True
    program.write_text("#!/bin/sh\necho there now\n")
    program.chmod(0o755)
    assert jobs("job", argv=[str(program)])["changed"] is True
    assert jobs.ended()["succeeded"] is True


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
def test_folder_of_someone_else(modules: Modules) -> None:
    if not all(parent.stat().st_mode & 0o001 for parent in Path(__file__).resolve().parents):
        pytest.skip("nobody else may enter this checkout, as one under /root")
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    result = modules("rackproof_job", _user=65534, id="job", folder=str(folder), argv=["true"], timeout_s=9)
    assert result["failed"] is True
    assert "not permitted: give user nobody access" in result["msg"]
    folder.rmdir()


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ('{"phase": "running"', "damaged"),
        ("[]", "damaged"),
        ('{"phase": "running", "id": "job"}', "damaged"),
    ],
)
def test_a_damaged_state_is_an_error_not_a_new_start(jobs: Jobs, content: str, part: str) -> None:
    (jobs.folder / "job").mkdir()
    (jobs.folder / "job" / "state.json").write_text(content)
    result = jobs("job", "true")
    assert result["failed"] is True
    assert part in result["msg"]


def test_a_folder_belongs_to_one_run(jobs: Jobs, modules: Modules) -> None:
    jobs("job", "true")
    jobs.ended()
    other = modules("rackproof_job", id="other", folder=str(jobs.folder / "job"), argv=["true"], timeout_s=9)
    assert other["failed"] is True
    assert "'job'" in other["msg"]


def test_finding_what_is_not_there(jobs: Jobs) -> None:
    assert "no job 'job'" in jobs.find()["msg"]
    assert jobs.stop() == {
        "changed": False,
        "log": str(jobs.folder / "job" / "log.txt"),
        **_invocation(jobs.stop()),
    }


def _invocation(result: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that Ansible adds to a module's result, if it does."""
    return {key: value for key, value in result.items() if key == "invocation"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """Yield a folder on a file system of 128 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "none", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=False)


def fill(folder: Path) -> None:
    """Write to a small file system until it is full."""
    with open(folder / "filler", "ab", buffering=0) as stream:
        try:
            while True:
                stream.write(b"x" * 512)
        except OSError:
            return


def test_a_full_disk_at_the_start(modules: Modules, small_disk: Path) -> None:
    fill(small_disk)
    result = modules("rackproof_job", id="job", folder=str(small_disk / "job"), argv=["true"], timeout_s=9)
    assert result["failed"] is True
    assert "the disk is full" in result["msg"]
    assert str(small_disk) in result["msg"]


def test_a_disk_that_fills_up_does_not_swallow_the_result(jobs: Jobs, small_disk: Path) -> None:
    jobs.folder = small_disk
    release = small_disk.parent / "release"
    jobs("job", f"until [ -e {release} ]; do sleep 0.1; done; echo lost words; exit 5")
    fill(small_disk)
    release.touch()
    state = jobs.ended()
    assert (state["ended_by"], state["exit_status"]) == ("itself", 5)


def test_the_supervisor_costs_next_to_nothing(jobs: Jobs) -> None:
    state = jobs("job", "while :; do echo tick; sleep 0.05; done", timeout_s=30)["job"]

    def ticks() -> int:
        """Return the processor time of the supervisor, in hundredths of a second."""
        fields = Path(f"/proc/{state['supervisor_pid']}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    time.sleep(4)
    assert ticks() - before <= 2, "more than 5 ms of CPU a second"
    jobs.stop()


def test_the_supervisor_is_cut_loose_from_its_starter(jobs: Jobs) -> None:
    state = jobs("job", "echo ready; while :; do sleep 0.1; done")["job"]
    supervisor = state["supervisor_pid"]
    assert os.getsid(supervisor) not in (os.getsid(0), supervisor)
    assert os.getsid(state["pid"]) == state["pid"]
    jobs.logged("ready")
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE):
        os.kill(supervisor, number)
    time.sleep(0.3)
    assert jobs.find()["job"]["phase"] == "running"
    targets = {os.readlink(f"/proc/{supervisor}/fd/{n}") for n in os.listdir(f"/proc/{supervisor}/fd")}
    assert targets == {"/dev/null"}, "no pipe keeps the connection open"


@pytest.mark.parametrize("variable", ["LOGNAME", "USER", "LNAME", "USERNAME"])
def test_the_user_is_the_one_who_runs_the_module(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "alice")
    jobs("job", "true")
    described = json.loads((jobs.folder / "job" / "job.json").read_text())
    assert described["user"] == pwd.getpwuid(os.geteuid()).pw_name
    jobs.ended()


@pytest.fixture(scope="module")
def module(root: Path) -> Any:
    """Return the module's code."""
    import ansible.module_utils

    ansible.module_utils.__path__.append(str(root / "plugins" / "module_utils"))
    loader = importlib.machinery.SourceFileLoader("job", str(root / "plugins/modules/rackproof_job.py"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    code = importlib.util.module_from_spec(spec)
    loader.exec_module(code)
    return code


@pytest.mark.parametrize("at_once", [1, 1000, 4096, 100000])
def test_a_state_is_written_whole_or_not_at_all(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    real, room = os.write, [10**6]

    def write(descriptor: int, data: bytes) -> int:
        count = real(descriptor, data[: min(at_once, room[0])])
        room[0] -= count
        if not count:
            raise OSError(28, "No space left on device")
        return count

    folder = module.Folder(str(tmp_path), "job")
    long = {"unkillable": list(range(2000, 3000))}
    monkeypatch.setattr(module.os, "write", write)
    folder.write_state(long)
    assert json.loads((tmp_path / "state.json").read_text()) == long
    room[0] = 2000
    with pytest.raises(OSError, match="No space"):
        folder.write_state({**long, "more": 1})
    assert json.loads((tmp_path / "state.json").read_text()) == long
    room[0] = 10**6
    folder.write_state({"phase": "ended"})
    assert json.loads((tmp_path / "state.json").read_text()) == {"phase": "ended"}


@pytest.mark.parametrize("count", [1, 20, 21, 1000])
def test_the_message_about_processes_that_cannot_be_killed_is_short(module: Any, count: int) -> None:
    state = {"ended_by": "stopped", "timeout_s": 1, "hang_s": 1, "log_limit_bytes": 1}
    text = module.end_sentence({**state, "unkillable": list(range(10**6, 10**6 + count))})
    assert (f"and {count - 20} more survive" in text) is (count > 20)
    assert len(text) < 300


@pytest.mark.parametrize(
    ("table", "holder"),
    [
        (["POSIX ADVISORY WRITE 4000001 DEV:7 0 EOF", "FLOCK ADVISORY WRITE 4000002 DEV:7 0 EOF"], "4000002"),
        (
            ["FLOCK ADVISORY WRITE 4000001 fe:99:7 0 EOF", "FLOCK ADVISORY WRITE 4000002 DEV:7 0 EOF"],
            "4000002",
        ),
        (
            ["FLOCK ADVISORY WRITE 4000002 DEV:7 0 EOF", "FLOCK ADVISORY WRITE 4000001 fe:99:7 0 EOF"],
            "4000002",
        ),
        # btrfs: stat() shows another device
        (["FLOCK ADVISORY WRITE 4000002 00:1d:7 0 EOF"], "4000002"),
        (["-> FLOCK ADVISORY WRITE 4000002 DEV:7 0 EOF", "FLOCK ADVISORY WRITE 4000001 DEV:8 0 EOF"], ""),
    ],
)
def test_the_holder_of_a_lock_has_the_same_file_of_the_same_file_system(
    module: Any, tmp_path: Path, table: list[str], holder: str
) -> None:
    lines = [f"{number}: {line.replace('DEV', 'fe:01')}\n" for number, line in enumerate(table)]
    (tmp_path / "locks").write_text("".join(lines))
    status = os.stat_result((0, 7, os.makedev(0xFE, 1), 1, 0, 0, 0, 0, 0, 0))
    found = module.lock_holder(status, str(tmp_path / "locks"))
    assert found == (f"process {holder}" if holder else "an unknown process")


# A program whose supervisor hangs in a method, and whose module waits for its answer for a second.
LATE = """
import sys, time, types
source, method, folder = sys.argv[1:]
import ansible.module_utils
ansible.module_utils.__path__.append(source + "/plugins/module_utils")
code = types.ModuleType("job")
exec(compile(open(source + "/plugins/modules/rackproof_job.py").read(), "job", "exec"), code.__dict__)
code.START_WAIT_S = 1.0
owner = code.Supervisor if method == "start" else code.Folder
real = getattr(owner, method)
def hang(*given):
    if code.os.getpid() != module:
        time.sleep(5)
    return real(*given)
module = code.os.getpid()
setattr(owner, method, hang)
options = dict(
    id="job", argv=["sh", "-c", "touch started; sleep 300 & sleep 300"], environment={}, chdir="",
    secret_environment={}, timeout_s=600, hang_s=0, grace_s=1, log_limit_bytes=10**6,
)
job = code.Folder(folder, "job")
with job.starting() as starting:
    try:
        code.start_supervised(job, options, starting, (None, None))
    except code.JobError as error:
        print(error)
"""


@pytest.mark.parametrize("method", ["start", "write_state", "allocate"])
def test_a_supervisor_that_is_late_starts_no_job_afterwards(root: Path, tmp_path: Path, method: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE, root, method, tmp_path], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("the supervisor did not answer within 1 s, and was stopped"), done.stderr
    # Nothing is left that would start the job, run it, or say that it runs.
    names = {"log.txt", "job.json", "state.json", ".state.next"}
    assert not names & {path.name for path in tmp_path.iterdir()}
    work = str(tmp_path).encode()
    for path in Path("/proc").glob("[0-9]*/cwd"):
        try:
            assert os.readlink(path).encode() != work
        except OSError:
            continue
    assert (tmp_path / "started").exists() is (method != "start")
