"""Test workloads/make_runtime.py, which makes the Python environment of a workload on a node.

The tests start the program as a node does, with small wheels in a folder in place of a package index. They
show that only pinned files are installed, that an environment that was interrupted is made again, and that
each failure of pip, disk or interpreter ends with one line with the remedy.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rackproof.logs.progress import Follower
from tests.workloads.programs import load_program

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
# The requirements of the small runtime. NAMED is the remedy in messages: an interpreter of the operator.
COMPLETE = "first==1.0\nsecond==2.0\n"
NAMED = "bench_pythons={small: /path/to/python}"


def wheel(folder: Path, name: str, version: str, requires: str = "", code: str = "") -> None:
    """Write a wheel by hand, so that no build is necessary."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)


def hashed(wheels: Path, requirements: str) -> str:
    """Return requirements with the hashes of their wheels. A missing wheel gets the hash of an empty file."""
    lines = []
    for line in requirements.splitlines():
        found = wheels / f"{line.replace('==', '-')}-py3-none-any.whl"
        digest = hashlib.sha256(found.read_bytes() if found.exists() else b"").hexdigest()
        lines.append(line if "--hash" in line else f"{line} --hash=sha256:{digest}")
    return "\n".join([*lines, ""])


def program(path: Path, script: str) -> Path:
    """Write a shell script, such as a fake of an interpreter or of apt-get."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@dataclass
class Runtime:
    """A small runtime, and the folder of its environment."""

    root: Path
    base: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def source(self) -> Path:
        return self.base / "small"

    @property
    def folder(self) -> Path:
        return self.base / "home" / "runtimes" / "small"

    @property
    def marker(self) -> Path:
        return self.folder / "rackproof-runtime.sha256"

    def write(self, requirements: str = COMPLETE, no_deps: str = "", cuda: str = "", **needs: Any) -> None:
        """Write the requirements and runtime.json, whose fields ``needs`` replace."""
        self.source.mkdir(exist_ok=True)
        wheels = self.base / "wheels"
        (self.source / "requirements.txt").write_text(hashed(wheels, requirements))
        for name, text in (("requirements-no-deps.txt", no_deps), ("requirements-cuda.txt", cuda)):
            if text:
                (self.source / name).write_text(hashed(wheels, text))
        given = {"oldest": HERE, "newest": HERE, "imports": ["first"], "minimum_bytes": 1, **needs}
        (self.source / "runtime.json").write_text(json.dumps(given))

    def start(self, *arguments: str, python: str | Path = sys.executable) -> subprocess.Popen[str]:
        """Start the program without a package index."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
        links = {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.base / "wheels"),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_CACHE_DIR": "1",
        }
        program = str(self.root / "workloads" / "make_runtime.py")
        return subprocess.Popen(
            [python, program, "--runtime", self.source, "--folder", self.folder, *arguments],
            env={**kept, **links, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str) -> Mapping[str, Any]:
        """Run the program successfully. Return its answer."""
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        return json.loads(output.splitlines()[-1])

    def refusal(self, *arguments: str) -> str:
        """Run the program so that it fails. Return its one line with the reason."""
        process = self.start(*arguments)
        _, errors = process.communicate(timeout=120)
        assert process.returncode not in (0, None)
        lines = errors.splitlines()
        assert len(lines) == 1, errors
        assert lines[0].startswith("make_runtime: ")
        assert not self.marker.exists()
        return lines[0]

    def versions(self) -> dict[str, str]:
        """Return the packages of the environment without pip and setuptools, and their versions."""
        asked = "import importlib.metadata as m; print(*(f'{d.name} {d.version}' for d in m.distributions()))"
        said = subprocess.run(
            [self.folder / "bin" / "python", "-c", asked], capture_output=True, text=True, check=True
        ).stdout.split()
        found = dict(zip(said[::2], said[1::2], strict=True))
        return {name: version for name, version in found.items() if name not in ("pip", "setuptools")}


@pytest.fixture
def runtime(root: Path, tmp_path: Path) -> Runtime:
    """Return a runtime that needs two wheels. Wheels that import or require what is absent are there, too."""
    wheels = tmp_path / "wheels"
    wheel(wheels, "first", "1.0", requires="second")
    wheel(wheels, "second", "1.5")
    wheel(wheels, "second", "2.0")
    wheel(wheels, "third", "1.0", requires="absent-everywhere", code="import first")
    wheel(wheels, "broken", "1.0", code="raise ImportError('no libbroken.so.1')")
    runtime = Runtime(root, tmp_path)
    runtime.write()
    return runtime


@pytest.fixture(scope="module")
def make_runtime() -> Any:
    """Return the program as a module."""
    return load_program("make_runtime")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("requirements", "no_deps", "cuda", "expected"),
    [
        ("first==1.0\nsecond==1.5\n", "", "", {"first": "1.0", "second": "1.5"}),
        (COMPLETE, "third==1.0\n", "", {"first": "1.0", "second": "2.0", "third": "1.0"}),
        ("first==1.0\n", "third==1.0\n", "second==1.5\n", {"first": "1.0", "second": "1.5", "third": "1.0"}),
        (COMPLETE, "", "second==1.5\n", {"first": "1.0", "second": "2.0"}),
    ],
    ids=[
        "complete",
        "without what it requires",
        "a build that asks for CUDA's libraries",
        "one that does not",
    ],
)
def test_the_environment_has_the_pinned_packages(
    runtime: Runtime, requirements: str, no_deps: str, cuda: str, expected: dict[str, str]
) -> None:
    runtime.write(requirements, no_deps, cuda)
    python = str(runtime.folder / "bin" / "python")
    assert runtime() == {"changed": True, "python": python}
    assert runtime.versions() == expected
    assert not (runtime.folder / "tmp").exists()
    assert runtime() == {"changed": False, "python": python}


@pytest.mark.slow
def test_progress_distinguishes_the_runtime_from_cudas_libraries(runtime: Runtime) -> None:
    """The two sizes differ. Under one name, the progress would go from 1.9 of 2.0 GB to 1.3 of 7.5 GB."""
    runtime.write("first==1.0\n", "", "second==1.5\n")
    output, _ = runtime.start().communicate(timeout=300)
    reports = [line.partition(" ")[2] for line in output.splitlines() if line.startswith(":::RACKPROOF")]
    phases = list(dict.fromkeys(json.loads(report)["phase"] for report in reports))
    assert phases == ["fetching small", "fetching CUDA's libraries of small"]


@pytest.mark.slow
def test_changed_requirements_and_an_interrupted_start_make_it_again(runtime: Runtime) -> None:
    (runtime.folder / "lib").mkdir(parents=True)
    assert runtime()["changed"]
    runtime.write(COMPLETE, "third==1.0\n")
    assert runtime()["changed"]
    assert runtime.versions() == {"first": "1.0", "second": "2.0", "third": "1.0"}
    assert not runtime()["changed"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("requirements", "words"),
    [
        (f"first==1.0 --hash=sha256:{'5' * 64}\n", "another file than the pinned one"),
        ("first==1.0 --hash=md5:0123\n", "could not install"),
        ("first\n", "could not install"),
        ("source==1.0\n", "No matching distribution found for source==1.0"),
    ],
    ids=["another file", "a weak hash", "no version", "sources"],
)
def test_what_is_not_the_pinned_file_is_not_installed(
    runtime: Runtime, requirements: str, words: str
) -> None:
    (runtime.base / "wheels" / "source-1.0.tar.gz").write_bytes(b"sources build with what nobody pinned")
    runtime.write(requirements)
    assert words in runtime.refusal()
    assert not runtime.folder.exists()


@pytest.mark.parametrize(
    ("marker", "python", "expected"),
    [
        # The marker's text, with {} for the right checksum, and the script of the interpreter. Both must be
        # right in an environment that counts as made.
        ("{}", "echo 3 11", True),
        (None, "echo 3 11", False),
        ("", "echo 3 11", False),
        ("{}\n", "echo 3 11", False),
        ("\udcff", "echo 3 11", False),
        ("{}", None, False),
        ("{}", "exit 1", False),
    ],
    ids=["whole", "no marker", "cut off", "other", "damaged", "no interpreter", "interpreter does not run"],
)
def test_an_environment_counts_as_made_only_with_marker_and_interpreter(
    make_runtime: ModuleType, tmp_path: Path, marker: str | None, python: str | None, expected: bool
) -> None:
    checksum = "5" * 64
    if marker is not None:
        text = marker.format(checksum)
        (tmp_path / make_runtime.MARKER).write_text(text, encoding="utf-8", errors="surrogateescape")
    if python is not None:
        program(tmp_path / "bin" / "python", python)
    assert make_runtime.made_before(str(tmp_path), checksum) is expected


def test_the_checksum_covers_all_files(make_runtime: ModuleType, runtime: Runtime) -> None:
    checksums = set()
    given = [
        ("a\n", ""),
        ("a\nb\n", ""),
        ("a\n", "b\n"),
        ("a\n", "c\n"),
        ("", "a\nb\n"),
        ("a\n", "b\n", "c\n"),
    ]
    for files in given:
        (runtime.source / "requirements-no-deps.txt").unlink(missing_ok=True)
        runtime.write(*files)
        checksums.add(make_runtime.checksum_of(str(runtime.source))[0])
    assert len(checksums) == 6


@pytest.mark.slow
def test_killed_in_the_middle_it_is_made_again(runtime: Runtime) -> None:
    first = runtime.start()
    deadline = time.monotonic() + 300
    while not (runtime.folder / "pyvenv.cfg").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=300)
    assert not runtime.marker.exists()
    assert runtime()["changed"]
    assert runtime.versions() == {"first": "1.0", "second": "2.0"}


@pytest.mark.slow
def test_of_two_programs_at_once_one_makes_the_environment_and_the_other_finds_it(runtime: Runtime) -> None:
    both = [runtime.start(), runtime.start()]
    said = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sorted(json.loads(output.splitlines()[-1])["changed"] for output, _ in said) == [False, True]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("requirements", "needs", "environment", "words"),
    [
        ("absent==1.0\n", {}, {}, ["No matching distribution found for absent==1.0", "PIP_INDEX_URL", NAMED]),
        (
            "first==1.0\nsecond==9\n",
            {},
            {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"},
            ["pip reaches no package index", "PIP_INDEX_URL", NAMED],
        ),
        ("broken==1.0\n", {"imports": ["broken"]}, {}, ["cannot import broken", "no libbroken.so.1"]),
    ],
    ids=["no such package", "no network", "does not import"],
)
def test_an_installation_that_fails_names_what_to_do_and_leaves_nothing(
    runtime: Runtime,
    requirements: str,
    needs: dict[str, Any],
    environment: dict[str, str],
    words: list[str],
) -> None:
    runtime.write(requirements, **needs)
    runtime.environment.update(environment)
    said = runtime.refusal()
    for word in words:
        assert word in said
    assert not runtime.folder.exists()


@pytest.mark.parametrize(
    ("pip", "words"),
    [
        ("echo 'ERROR: [Errno 28] No space left on device'; exit 1", ["became full", "about 7 GB", NAMED]),
        ("kill -9 $$", ["signal 9", "memory"]),
        ("exit 3", ["could not install", "no message", NAMED]),
    ],
    ids=["disk full", "killed", "silent"],
)
def test_how_pip_fails_is_explained(runtime: Runtime, pip: str, words: list[str]) -> None:
    # No real interpreter has this version, so the program finds the fake one.
    runtime.write(oldest="3.70", newest="3.70")
    installed = program(runtime.base / "installed", f'case "$2" in pip) {pip};; esac')
    program(
        runtime.base / "bin" / "python3.70",
        'case "$2" in *version_info*) echo "3 70";; '
        f'venv) mkdir -p "$3/bin"; cp {installed} "$3/bin/python";; esac',
    )
    runtime.environment["PATH"] = f"{runtime.base / 'bin'}:{os.environ['PATH']}"
    said = runtime.refusal()
    for word in words:
        assert word in said
    assert not runtime.folder.exists()


def test_a_disk_that_is_too_small_is_found_before_anything_is_made(runtime: Runtime) -> None:
    runtime.write(minimum_bytes=10**18)
    said = runtime.refusal()
    assert "GB free, at least 1000000000.0 GB needed" in said
    assert "another bench_home" in said
    assert not runtime.folder.exists()


@pytest.mark.slow
def test_a_disk_without_room_for_cudas_libraries_is_found_before_they_are_fetched(runtime: Runtime) -> None:
    runtime.write("first==1.0\n", cuda="second==1.5\n", cuda_bytes=10**18)
    assert "GB needed for CUDA's libraries" in runtime.refusal()
    assert not runtime.folder.exists()
    # A runtime without CUDA's libraries needs no room for them.
    runtime.write(COMPLETE, cuda="second==1.5\n", cuda_bytes=10**18)
    assert runtime()["changed"]


@pytest.mark.parametrize("name", ["torch", "mxnet", "tensorflow"])
def test_shipped_runtimes_say_what_they_need_and_pin_it(root: Path, name: str) -> None:
    folder = root / "workloads" / name
    needs = json.loads((folder / "runtime.json").read_text())
    assert set(needs) - {"libraries", "cuda_bytes"} == {"oldest", "newest", "imports", "minimum_bytes"}
    assert needs["minimum_bytes"] > 10**8
    for file in folder.glob("requirements*.txt"):
        pinned = re.sub(r"(?m)^#.*\n", "", file.read_text()).replace("\\\n", " ").splitlines()
        assert pinned
        assert all("==" in line.split(";")[0] and "--hash=sha256:" in line for line in pinned), file


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({}, ["no interpreter fits: Python 3.70 to 3.71 is needed", "bench_pythons"]),
        ({"python3.70": "3 69"}, ["no interpreter fits: Python 3.70 to 3.71"]),
        ({"python3.71": "junk", "python3.70": ""}, ["no interpreter fits"]),
        ({"python3.71": "3 71"}, ["python3.71 cannot make environments: install python3.71-venv"]),
    ],
    ids=["none", "wrong version", "does not run", "no venv"],
)
def test_a_missing_interpreter_is_reported_with_the_remedy(
    runtime: Runtime, found: dict[str, str], words: list[str]
) -> None:
    runtime.write(oldest="3.70", newest="3.71")
    for name, version in found.items():
        program(
            runtime.base / "bin" / name, f'case "$2" in *version_info*) echo "{version}";; *) exit 1;; esac'
        )
    runtime.environment["PATH"] = f"{runtime.base / 'bin'}:{os.environ['PATH']}"
    said = runtime.refusal()
    for word in words:
        assert word in said


@pytest.mark.slow
def test_an_interpreter_without_venv_is_passed_over_for_one_with_it(runtime: Runtime) -> None:
    runtime.write(oldest="3.70", newest="3.71")
    bin_ = runtime.base / "bin"
    program(bin_ / "python3.71", 'case "$2" in *version_info*) echo "3 71";; *) exit 1;; esac')
    program(
        bin_ / "python3.70",
        f'case "$2" in *version_info*) echo "3 70";; *) exec {sys.executable} "$@";; esac',
    )
    runtime.environment["PATH"] = f"{bin_}:{os.environ['PATH']}"
    process = runtime.start()
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert f"passing over {bin_}/python3.71: it has no venv (package python3.71-venv)" in output
    assert f"with {bin_}/python3.70" in output


@pytest.mark.parametrize(
    ("python", "needs", "words"),
    [
        ("/nonexistent/python", {}, ["/nonexistent/python: not a Python interpreter that runs"]),
        ("/bin/true", {}, ["/bin/true: not a Python interpreter"]),
        (
            sys.executable,
            {"imports": ["json", "absent_module"]},
            ["cannot import absent_module", "not found"],
        ),
    ],
)
@pytest.mark.parametrize("environment", [{}, {"PYTHONOPTIMIZE": "1"}, {"PYTHONOPTIMIZE": "2"}])
def test_a_named_interpreter_that_cannot_be_used_is_refused(
    runtime: Runtime, python: str, needs: dict[str, Any], words: list[str], environment: dict[str, str]
) -> None:
    runtime.write(**needs)
    runtime.environment.update(environment)
    said = runtime.refusal(f"--python={python}")
    for word in words:
        assert word in said
    assert not runtime.folder.parent.exists()


def test_a_named_interpreter_is_used_without_importing_its_modules(runtime: Runtime) -> None:
    modules = runtime.base / "modules"
    modules.mkdir()
    (modules / "costly.py").write_text("raise SystemExit('imported')")
    runtime.environment["PYTHONPATH"] = str(modules)
    runtime.write(imports=["costly"], oldest="3.70", newest="3.70")
    assert runtime(f"--python={sys.executable}") == {"changed": False, "python": sys.executable}
    assert not runtime.folder.parent.exists()


@pytest.mark.parametrize(
    "names",
    [
        ["thesis.tex"],
        # As in ~/.local, and in a prefix of software.
        ["bin/mytool", "lib/python3/site-packages/mine.py", "share/man/mytool.1"],
        ["bin/mytool", "include/mine.h", "lib/libmine.so", "lib64/libmine.so"],
        ["tmp/notes"],
        ["lib/pyvenv.cfg"],
        [".gitignore"],
    ],
)
def test_a_folder_that_is_no_environment_is_not_emptied(runtime: Runtime, names: list[str]) -> None:
    for name in names:
        (runtime.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (runtime.folder / name).write_text("years of work")
    said = runtime.refusal()
    assert any(Path(name).name in said for name in names)
    assert "another bench_home" in said
    assert all((runtime.folder / name).exists() for name in names)


@pytest.mark.parametrize(
    "names",
    [
        # What a killed run leaves: the marker or configuration and anything else, or folders alone.
        ["pyvenv.cfg", "bin/python", "mine/more"],
        ["rackproof-runtime.sha256", "lib/half"],
        ["bin/", "include/", "lib/python3/site-packages/"],
        [],
    ],
)
def test_the_rest_of_an_environment_is_removed(
    make_runtime: ModuleType, tmp_path: Path, names: list[str]
) -> None:
    folder = tmp_path / "small"
    for name in names:
        path = folder / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_text("")
    if "bin/" in names:
        (folder / "lib64").symlink_to("lib")
    make_runtime.clear(str(folder), 0)
    assert not folder.exists()


def test_a_removal_that_is_killed_leaves_an_environment_that_is_not_whole(
    make_runtime: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pyvenv.cfg", "rackproof-runtime.sha256", "lib/half"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")

    def killed(path: str) -> None:
        raise KeyboardInterrupt(path)

    monkeypatch.setattr(make_runtime.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        make_runtime.remove(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lib", "pyvenv.cfg"]


def test_a_place_that_cannot_be_written_is_named(runtime: Runtime) -> None:
    runtime.folder.parent.parent.write_text("a file where a folder should be")
    said = runtime.refusal()
    assert str(runtime.folder.parent) in said
    assert "another bench_home" in said


def test_a_system_without_apt_gets_the_command_of_dnf(
    make_runtime: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "dnf", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit) as stopped:
        make_runtime.provide_libraries({"libthere.so.9": "there9"}, "mxnet")
    assert "type: sudo dnf install 'libthere.so.9()(64bit)', then" in str(stopped.value)


@pytest.mark.parametrize("installs", [True, False], ids=["installed", "not installed"])
def test_a_library_that_the_system_lacks_comes_before_anything_is_built(
    runtime: Runtime, tmp_path: Path, installs: bool
) -> None:
    runtime.write(libraries={str(tmp_path / "libthere.so.9"): "there9"})
    asked = tmp_path / "asked"
    apt = program(tmp_path / "fakes" / "apt-get", f'echo "$@" >> {asked}')
    loaded = next(
        line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libc" in line
    )
    if installs:
        program(apt, f'echo "$@" >> {asked}; cp {loaded} {tmp_path}/libthere.so.9')
    runtime.environment["PATH"] = f"{apt.parent}:{os.environ['PATH']}"
    child = runtime.start()
    _, said = child.communicate()
    if os.geteuid() == 0:
        assert "install -y -q --no-install-recommends there9" in asked.read_text()
    if installs and os.geteuid() == 0:
        assert child.returncode == 0, said
        return
    assert child.returncode != 0
    assert said.strip().endswith("type: sudo apt-get install there9, then start again")
    assert not runtime.folder.exists()


# The number of calls for which another process holds apt's lock, and the error that remains. The program does
# not wait for 99 calls.
@pytest.mark.parametrize(
    ("locked", "expected"),
    [(2, ""), (99, "E: Could not get lock /var/lib/apt/lists/lock"), (0, "E: Unable to locate package x")],
)
def test_apt_is_waited_for_while_a_new_machine_updates_itself(
    make_runtime: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: int, expected: str
) -> None:
    lock = "echo 'E: Could not get lock /var/lib/apt/lists/lock' >&2; exit 100"
    last = "exit 0" if locked else "echo 'E: Unable to locate package x' >&2; exit 100"
    program(
        tmp_path / "apt-get",
        f"echo x >>{tmp_path}/calls; [ $(wc -l <{tmp_path}/calls) -le {locked} ] && {{ {lock}; }}; {last}",
    )
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(make_runtime, "LOCK_POLL_S", 0.0)
    monkeypatch.setattr(make_runtime, "LOCK_WAIT_S", 0.1 if locked == 99 else 60.0)
    assert make_runtime.run_apt(["-q", "update"]) == expected


def test_the_reason_of_apt_is_shown(
    make_runtime: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "apt-get", "echo 'E: Unable to locate package there9' >&2; exit 100")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(SystemExit, match=r"\(apt-get: E: Unable to locate package there9\): type: sudo"):
        make_runtime.provide_libraries({"libthere.so.9": "there9"}, "mxnet")


def test_while_pip_works_the_size_of_the_environment_is_reported(
    make_runtime: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(make_runtime, "REPORT_S", 0.2)
    folder = tmp_path / "environment"
    folder.mkdir()
    reports: list[str] = []

    def report(text: str, **options: Any) -> None:
        print(text, **options)
        reports.append(text)
        (tmp_path / f"reported-{len(reports)}").touch()

    monkeypatch.setattr(make_runtime, "print", report, raising=False)
    # A busy machine reports late, so the fake pip continues only after each report.
    reported = f"until [ -e {tmp_path}/reported-$i ]; do sleep 0.1; done"
    pip = program(
        tmp_path / "pip",
        f"for i in 1 2 3; do head -c 1000000 /dev/zero >>{folder}/wheel; {reported}; done; echo said; exit 3",
    )
    status, output = make_runtime.run_pip([str(pip)], str(folder), 4_000_000, "torch", dict(os.environ))
    assert (status, output) == (3, "said\n")
    log = Follower("auto")
    sizes = []
    for line in capfd.readouterr().out.encode().splitlines(keepends=True):
        progress = log.feed(line)
        sizes.append(progress.done_bytes)
        assert progress.all_bytes == 4_000_000
        assert progress.phase == "fetching torch"
        assert progress.fraction == pytest.approx(progress.done_bytes / 4e6)
    assert len(sizes) >= 3
    assert sizes == sorted(set(sizes))


@pytest.mark.slow
def test_the_option_found_makes_no_environment(runtime: Runtime) -> None:
    asked = runtime.start("--found")
    assert asked.communicate(timeout=300) == ("", "")
    assert asked.returncode == 3
    assert not runtime.folder.exists()
    made = runtime()
    assert made["changed"] is True
    assert runtime("--found") == {**made, "changed": False}
