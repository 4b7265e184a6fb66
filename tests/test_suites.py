"""Test the gate and the suites (tools/proof), which `make test` and `make prove` run.

Each test belongs to one suite, a change makes the suites stale that depend on it, and a red part ends the
others.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tools.proof import __main__ as program
from tools.proof import runner, suites
from tools.proof.helpers import with_helpers
from tools.proof.runner import Lanes, Part
from tools.proof.suites import FAST, Suite, input_files, read_table, state_of, suite_of

TABLE = read_table()


@pytest.fixture(scope="module")
def inputs(root: Path) -> dict[str, set[str]]:
    """Return the input files of each suite, which take a second to find."""
    return {name: set(input_files(suite, root)) for name, suite in TABLE.items()}


@pytest.mark.parametrize(
    ("path", "marks", "suite"),
    [
        ("tests/core/test_records.py", [], FAST),
        ("tests/core/test_records.py", ["parametrize"], FAST),
        ("tests/core/test_records.py", ["slow"], "processes"),
        ("tests/e2e/bench/test_bench_playbook.py", ["slow", "playbook"], "playbooks"),
        ("tests/e2e/browser/test_browser_reports.py", ["browser", "slow"], "browser-and-database"),
        ("tests/workloads/test_mnist.py", ["torch", "slow"], "workloads"),
        ("tests/e2e/rack/test_four_jobs.py", ["rack", "slow"], "four-jobs"),
        ("tests/e2e/rack/test_validate.py", ["rack", "slow", "torch"], "nights"),
        ("tests/e2e/rack/test_training_rounds.py", ["rack", "slow"], "trainings"),
        ("tests/e2e/rack/test_training_rounds.py", ["rack", "slow", "proof"], "proofs"),
        ("tests/e2e/rack/test_upstream.py", ["rack", "slow"], "upstream"),
        ("tests/e2e/rack/test_reimage_vms.py", ["rack", "proof"], "vm"),
        ("testrack/tests/live/test_rack_life.py", ["rack", "slow"], "rack"),
        ("testrack/tests/live/test_rack_layout.py", [], FAST),
    ],
)
def test_a_test_belongs_to_one_suite(path: str, marks: list[str], suite: str) -> None:
    assert suite_of(path, marks, TABLE) == suite


def test_a_test_that_needs_a_rack_is_in_a_suite_with_a_rack(root: Path) -> None:
    for folder in ("tests", "testrack/tests"):
        for path in (root / folder).rglob("test_*.py"):
            if "mark.rack" in path.read_text() and path.name != "test_suites.py":
                name = suite_of(path.relative_to(root).as_posix(), ["rack"], TABLE)
                assert name != FAST, path
                assert TABLE[name].rack, path


def test_a_suite_of_files_reads_no_other_tests() -> None:
    assert suites.files_with_tests(TABLE["vm"]) == [
        "tests/e2e/rack/test_boot_attacks.py", "tests/e2e/rack/test_reimage_vms.py",
    ]  # fmt: skip
    assert "tests/e2e/reimage/conftest.py" not in suites.files_with_tests(TABLE["imaging"])
    assert suites.files_with_tests(TABLE["playbooks"]) == []
    assert program.pytest_command(TABLE["rack"]).endswith(" testrack/tests/live/test_rack_live.py")


@pytest.mark.parametrize("suite", TABLE.values(), ids=list(TABLE))
def test_the_files_and_modules_that_a_suite_names_exist(root: Path, suite: Suite) -> None:
    for path in suite.paths:
        assert (root / path).exists(), path
    for pattern in suite.files:
        assert list(root.glob(pattern)), pattern
    assert suite.minutes <= 15 or suite.only_named
    assert suites.modules_of(suite, root) or not suite.modules


@pytest.mark.parametrize(
    ("changed", "stale", "not_stale"),
    [
        ("roles/ofed/tasks/main.yml", {"scenarios", "provisioning", "vm"}, {"trainings", "nights", "fuzz"}),
        (
            "src/rackproof/report/html.py",
            {"browser-and-database", "playbooks"},
            {"trainings", "nights", "vm"},
        ),
        (
            "src/rackproof/jobs/bench/planning.py",
            {"trainings", "playbooks"},
            {"provisioning", "vm", "nights"},
        ),
        ("src/rackproof/logs/xid.py", {"trainings", "playbooks", "fuzz"}, {"rack"}),
        ("benchmarks/llama31_8b.yml", {"trainings", "playbooks"}, {"nights", "provisioning", "scenarios"}),
        ("testrack/rack.py", {"rack", "trainings", "nights", "vm", "scenarios"}, {"browser-and-database"}),
        ("workloads/probe_gemm.py", {"workloads", "trainings", "nights"}, {"provisioning", "rack"}),
        ("docs/using/cli.md", {"processes"}, {"trainings", "nights", "fuzz", "scenarios"}),
        ("molecule/upgrade/converge.yml", {"scenarios"}, {"provisioning", "trainings", "playbooks"}),
        ("constraints.txt", set(TABLE), set()),
        # Helpers and data of tests.
        ("tests/e2e/rack/rack_faults.py", {"nights", "provisioning"}, {"trainings", "rack", "bundle"}),
        ("tests/e2e/reimage/conftest.py", {"vm", "four-jobs", "imaging"}, {"nights", "rack"}),
        ("tests/e2e/canaries.py", {"imaging", "playbooks"}, {"nights", "rack"}),
        ("tests/logs/log_samples.py", {"fuzz"}, {"nights", "vm"}),
        ("tests/nodes/health/healthy.py", {"fuzz"}, {"nights", "vm"}),
        ("testrack/tests/rack_fixtures.py", {"nights", "vm", "rack"}, {"fuzz", "bundle"}),
        ("tests/e2e/bench/definitions/toy.yml", {"playbooks"}, {"nights", "vm", "fuzz"}),
    ],
)
def test_a_change_makes_the_suites_stale_that_depend_on_it(
    root: Path, inputs: dict[str, set[str]], changed: str, stale: set[str], not_stale: set[str]
) -> None:
    assert (root / changed).is_file()
    depend = {name for name, files in inputs.items() if changed in files}
    assert depend >= stale
    assert not depend & not_stale


def test_imports_programs_and_data_of_tests_are_inputs(tmp_path: Path) -> None:
    files = {
        "conftest.py": "",
        "tests/__init__.py": "",
        "tests/other.py": "",
        "tests/a/__init__.py": "",
        "tests/a/conftest.py": "from tests.c import (\n    deep,\n)\n",
        "tests/a/fake.py": "",
        "tests/a/kept/answer.txt": "",
        "tests/a/test_a.py": "from . import near\nfrom driver.claim import claim\n"
        'HELPER = Path(__file__).with_name("fake.py")\ndef test_a(real_logs):\n    import tests.b.far\n',
        "tests/a/near.py": "from ..b import side\n",
        "tests/b/__init__.py": "",
        "tests/b/far.py": "import rackproof\n",
        "tests/b/side.py": "",
        "tests/b/test_b.py": "",
        "tests/c/deep.py": "from tests.a import near\n",
        "tests/data/real/log.txt": "",
        "tests/d/answer.txt": "",
        "testrack/driver/claim.py": "",
        "testrack/driver/other.py": "",
        "src/rackproof/__init__.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    left_out = {"tests/other.py", "tests/b/test_b.py", "tests/d/answer.txt", "testrack/driver/other.py"}
    expected = files.keys() - left_out - {"src/rackproof/__init__.py"}
    assert with_helpers(["tests/a/test_a.py"], files, tmp_path) == expected


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout with one file."""
    folder = tmp_path / "checkout"
    (folder / "roles").mkdir(parents=True)
    (folder / "roles" / "main.yml").write_text("one\n")
    (folder / ".gitignore").write_text("ignored\n.rackproof\n")
    subprocess.run(["git", "init", "-q", folder], check=True)
    return folder


PROGRAM = '''"""Add."""

LIMIT = 3
"""The limit."""


def add(one: int) -> int:
    """Add one."""
    # A reader asks why.
    return one + LIMIT
'''


@pytest.mark.parametrize(
    ("name", "before", "after", "same"),
    [
        pytest.param(
            "a.py", PROGRAM, PROGRAM.replace("Add", "Sum").replace("The l", "A l"), True, id="docstrings"
        ),
        pytest.param("a.py", PROGRAM, PROGRAM.replace("A reader asks why.", "Why?"), True, id="comment"),
        pytest.param("a.py", PROGRAM, PROGRAM.replace("LIMIT = 3", "LIMIT = 4"), False, id="constant"),
        pytest.param(
            "a.py", PROGRAM, PROGRAM.replace("one + LIMIT", 'one + LIMIT + len("a")'), False, id="code"
        ),
        pytest.param("a.py", 'a = "one"', 'a = "two"', False, id="a string that is a value"),
        pytest.param(
            "a.py", "if broken: # one", "if broken: # two", False, id="program that cannot be parsed"
        ),
        pytest.param("a.py", "a = '\0'", "a = '\0' #", False, id="program with a NUL"),
        pytest.param(
            "a.yml", "a: 1  # one\n# two\nb: 2\n", "a: 1\nb: 2  # three\n", True, id="comments of YAML"
        ),
        pytest.param(
            "a.py", "#!/usr/bin/python3\na = 1\n", "#!/bin/python3\na = 1\n", False, id="interpreter"
        ),
        pytest.param("a.py", "# one\na = 1\n", "# two\na = 1\n", True, id="comment in the first line"),
        pytest.param("a.yml", "#cloud-config\na: 1\n", "a: 1\n", False, id="kind of a YAML file"),
        pytest.param("a.yml", "a: 1\n", "a: '1'\n", False, id="quotes make another value"),
        pytest.param("a.yml", "a: '# one'\n", "a: '# two'\n", False, id="a value with a hash"),
        pytest.param("a.yaml", "a: !vault b\n", "a: !unsafe b\n", False, id="tag"),
        pytest.param("a.yml", "a: &one b\n", "a: &two b\n", False, id="anchor"),
        pytest.param("a.yml", "a: |\n  one # 1\n", "a: |\n  one # 2\n", False, id="a block with a hash"),
        pytest.param("a.yml", "a:\n  b: 1\nc: 2\n", "a:\n  b: 1\n  c: 2\n", False, id="indentation"),
        pytest.param("a.yml", "a: 'one # 1", "a: 'one # 2", False, id="YAML that cannot be parsed"),
        pytest.param("a.j2", "a # one", "a # two", False, id="a template"),
        pytest.param("README.md", "one", "two", False, id="a page"),
    ],
)
def test_a_change_of_words_alone_makes_no_suite_stale(name: str, before: str, after: str, same: bool) -> None:
    digests = [suites.digest_without_words(name, text.encode()) for text in (before, after)]
    assert (digests[0] == digests[1]) is same


def test_a_suite_is_green_only_for_the_files_with_which_it_ran(checkout: Path, tmp_path: Path) -> None:
    suite = Suite("one", "", (), 1, paths=("roles",))

    def state() -> str:
        suites.working_tree.cache_clear()
        return state_of(suite, checkout, tmp_path)

    def digest() -> str:
        suites.working_tree.cache_clear()
        return suites.digest_inputs(suite, checkout)

    assert state() == "never"
    suites.write_record("one", {"result": "green", "inputs": digest()}, tmp_path)
    assert state() == "green"
    (checkout / "other").write_text("what it does not depend on")
    (checkout / "roles" / "ignored").write_text("what git ignores")
    assert state() == "green"
    (checkout / "roles" / "main.yml").write_text("two\n")
    assert state() == "stale"
    (checkout / "roles" / "main.yml").write_text("one\n")
    (checkout / "roles" / "new.yml").write_text("a file that is not committed yet\n")
    assert state() == "stale"
    suites.write_record("one", {"result": "red", "inputs": digest()}, tmp_path)
    assert state() == "red"
    (tmp_path / "one.json").write_text("{damaged")
    assert state() == "never"
    assert (
        state_of(Suite("two", "", (), 1, needs="no-such-program"), checkout, tmp_path)
        == "needs no-such-program"
    )


@pytest.mark.parametrize(("after", "named"), [("tree", "digest"), ("another", "")])
def test_a_run_during_which_files_changed_counts_for_no_files(
    monkeypatch: pytest.MonkeyPatch, after: str, named: str
) -> None:
    monkeypatch.setattr(program, "tree_hash", lambda: after)
    monkeypatch.setattr(program, "read_record", lambda name: {})
    kept: dict[str, dict[str, object]] = {}
    monkeypatch.setattr(program, "write_record", lambda name, record: kept.update({name: dict(record)}))
    program.store_result("one", program.Inputs("digest", "tree"), "green", 2.4, [])
    assert (kept["one"]["inputs"], kept["one"]["result"], kept["one"]["seconds"]) == (named, "green", 2)


@pytest.mark.parametrize(("options", "stored"), [("", {"gate", "four-jobs"}), ("-k one", {"four-jobs"})])
def test_a_gate_with_options_of_pytest_stores_no_result_of_the_gate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: str, stored: set[str]
) -> None:
    """The options may leave out tests, so a green result would be one of a part of them."""

    def all_green(lanes: Lanes, parts: list[list[Part]]) -> bool:
        for part in (part for lane in parts for part in lane):
            part.state = "green"
        return True

    monkeypatch.setenv("PYTEST", options)
    monkeypatch.setattr(program, "RECORDS", tmp_path)
    monkeypatch.setattr(program, "end_leftovers", lambda variable: [])
    monkeypatch.setattr(program, "tree_hash", lambda: "tree")
    monkeypatch.setattr(program, "digest_inputs", lambda suite: "digest")
    monkeypatch.setattr(program, "claim", lambda root, console: contextlib.nullcontext())
    monkeypatch.setattr(program.Proof, "check_disk", lambda proof: None)
    monkeypatch.setattr(Lanes, "run", all_green)
    kept: set[str] = set()
    monkeypatch.setattr(program, "write_record", lambda name, record: kept.add(name))
    assert program.run_gate() == 0
    assert kept - {"timings"} == stored


def test_the_parts_get_no_options_that_leave_out_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "end_leftovers", lambda variable: [])
    for name in ("PYTEST_ADDOPTS", "MAKEFLAGS"):
        monkeypatch.setenv(name, "-k one")
    environment = program.Proof().environment
    assert not {"PYTEST_ADDOPTS", "MAKEFLAGS"} & environment.keys()


def test_the_trees_hash_is_that_of_the_commit(checkout: Path) -> None:
    before = suites.tree_hash(checkout)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(checkout)]
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "one"], check=True)
    done = subprocess.run([*git, "rev-parse", "HEAD^{tree}"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == before == suites.tree_hash(checkout)


def test_another_run_of_the_same_checkout_does_not_stop_the_hash(checkout: Path) -> None:
    """A shared index fails with "unable to create index.lock" when two suites begin at the same moment."""
    lock = checkout / ".rackproof" / "suites" / ".index.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    with ThreadPoolExecutor(8) as pool:
        hashes = set(pool.map(suites.tree_hash, [checkout] * 8))
    assert len(hashes) == 1
    assert list(lock.parent.iterdir()) == [lock]


@pytest.mark.parametrize("failures", [1, 3])
def test_a_file_that_vanishes_while_git_reads_does_not_stop_the_hash(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    expected = suites.tree_hash(checkout)
    git, tries = tmp_path / "bin" / "git", tmp_path / "tries"
    git.parent.mkdir()
    git.write_text(
        f"#!/bin/sh\necho >> {tries}\n[ $(wc -l < {tries}) -gt {failures} ] || exit 128\n"
        f'exec {shutil.which("git")} "$@"\n'
    )
    git.chmod(0o755)
    monkeypatch.setenv("PATH", str(git.parent), prepend=os.pathsep)
    assert suites.tree_hash(checkout) == expected


def test_a_checkout_that_git_cannot_read_is_an_error_with_the_message_of_git(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "git").write_text("#!/bin/sh\necho 'fatal: no repository' >&2; exit 128\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(OSError, match="fatal: no repository"):
        suites.tree_hash(checkout)


@pytest.fixture
def lanes(tmp_path: Path) -> Lanes:
    return Lanes(tmp_path, dict(os.environ), lambda text: None)


def part(tmp_path: Path, name: str, *commands: str, limit_s: float = 300) -> Part:
    return Part(name, commands, limit_s, log=tmp_path / f"{name}.log")


def test_parts_of_a_lane_run_one_after_another_and_their_tests_are_counted(
    tmp_path: Path, lanes: Lanes
) -> None:
    one = part(
        tmp_path, "one", "echo '== 3 passed, 1 skipped in 2.0s =='; touch made", "echo '4 passed in 1s'"
    )
    two = part(tmp_path, "two", "test -e made")
    assert lanes.run([[one, two]])
    assert [(one.state, one.tests), (two.state, two.tests)] == [("green", 7), ("green", 0)]
    table = runner.format_table([one, two], 9)
    assert table.splitlines()[-1].split() == ["in", "all", "9", "7"]


@pytest.mark.parametrize(
    ("command", "state"),
    [
        ("true pytest -q; echo '== 12 skipped in 2.0s =='", "red"),
        ("true pytest -q; echo '== 1 passed, 12 skipped in 2.0s =='", "green"),
        ("echo no tests", "green"),
    ],
)
def test_a_suite_whose_tests_were_all_skipped_is_not_green(
    tmp_path: Path, lanes: Lanes, command: str, state: str
) -> None:
    suite = part(tmp_path, "one", command)
    assert lanes.run([[suite]]) is (state == "green")
    assert suite.state == state
    assert bool(suite.problem) is (state == "red")


def test_a_red_part_ends_the_others_and_all_that_they_started(tmp_path: Path, lanes: Lanes) -> None:
    # The process has a session of its own, as playbooks have that tests start.
    slow = part(tmp_path, "slow", "setsid sleep 1234.5 & echo $! > pid; sleep 1235")
    red = part(tmp_path, "red", "while [ ! -s pid ]; do sleep 0.1; done; echo reason; exit 3", "touch never")
    last = part(tmp_path, "last", "touch never")
    assert not lanes.run([[slow, last], [red]])
    assert [one.state for one in (slow, red, last)] == ["ended", "red", "waits"]
    assert not (tmp_path / "never").exists()
    assert not runner.is_alive(int((tmp_path / "pid").read_text()))


def test_other_suites_continue_beside_and_after_a_red_one(tmp_path: Path, lanes: Lanes) -> None:
    red = part(tmp_path, "red", "exit 3")
    behind = part(tmp_path, "behind", "touch made")
    beside = part(tmp_path, "beside", "while [ ! -e made ]; do sleep 0.1; done")
    lanes.go_on = True
    seen: list[str] = []
    assert not lanes.run([[red, behind], [beside]], lambda one: seen.append(one.name))
    assert [red.state, behind.state, beside.state] == ["red", "green", "green"]
    assert sorted(seen) == ["behind", "beside", "red"]


def test_a_part_that_hangs_is_ended_at_its_limit(tmp_path: Path, lanes: Lanes) -> None:
    hangs = part(tmp_path, "hangs", "trap '' INT; while true; do sleep 1; done", limit_s=0.5)
    hangs_not = part(tmp_path, "next", "true")
    runner_grace = runner.GRACE_S
    try:
        runner.GRACE_S = 1
        assert not lanes.run([[hangs, hangs_not]])
    finally:
        runner.GRACE_S = runner_grace
    assert [hangs.state, hangs_not.state] == ["red", "waits"]


def test_processes_that_a_killed_gate_left_are_ended_and_no_others(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    environment = dict(os.environ)
    environment.pop("PROOF_OF_A_TEST", None)
    left = subprocess.Popen(["sleep", "1236"], env=environment | {"PROOF_OF_A_TEST": str(gone.pid)})
    other = subprocess.Popen(["sleep", "1237"], env=environment)
    # This process counts as a running gate, because its command line names the module.
    gate = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)  # tools.proof"])
    its = subprocess.Popen(["sleep", "1238"], env=environment | {"PROOF_OF_A_TEST": str(gate.pid)})
    try:
        deadline = time.monotonic() + 300
        while "sleep" not in runner.end_leftovers("PROOF_OF_A_TEST"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert left.wait(300) == -9
        assert [one.poll() for one in (other, gate, its)] == [None, None, None]
    finally:
        for one in (left, other, gate, its):
            one.kill()
            one.wait()
