"""Test the shell tools that the Makefile starts: make-venv, apt-install, make-dist, and others.

PATH has only scripts that fake Python, apt-get and browsers, so each machine can be imitated.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

NOT_ROOT = {"id": "echo 1000"}
ROOT = {"id": "echo 0"}
INSTALL = "-qq -o DPkg::Lock::Timeout=600 install -y --no-install-recommends"
"""The arguments with which tools/apt-install calls apt-get."""
Tool = Callable[..., subprocess.CompletedProcess[str]]


def python(version: str, venv: bool = True, pip: int = 0, pip_says: str = ":") -> str:
    """Return a script that answers as a Python of that version. `pip` is the exit status of its pip."""
    fits = (3, 11) <= tuple(map(int, version.split("."))) <= (3, 13)
    made = f'#!/bin/sh\necho "$@" >> "${{0%/bin/python}}/installed"\n{pip_says}\n'
    # pip writes the start script of the command like this.
    made += 'printf "import re\\nimport sys\\n" > "${0%/python}/rackproof"\n' + f"exit {pip}\n"
    return (
        'case "$2" in\n'
        f"*sys.exit*) exit {int(not fits)};;\n"
        f"*ensurepip*) exit {int(not venv)};;\n"
        f"*print*) echo {version};;\n"
        f'venv) mkdir -p "$4/bin"; echo {version} > "$4/made"; cat > "$4/bin/python" <<\'END\'\n{made}END\n'
        'chmod +x "$4/bin/python";;\n'
        "esac"
    )


@pytest.fixture
def tool(root: Path, tmp_path: Path) -> Tool:
    """Return a function that runs a tool with the given programs, and a few of the system, on PATH."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for needed in ("bash", "sh", "dirname", "mkdir", "rm", "touch", "chmod", "cat", "grep"):
        (bin_ / needed).symlink_to(
            next(path for path in (Path("/usr/bin"), Path("/bin")) if (path / needed).exists()) / needed
        )

    def run(
        name: str, *arguments: str, programs: dict[str, str], **environment: str
    ) -> subprocess.CompletedProcess[str]:
        for program, script in programs.items():
            (bin_ / program).write_text(f"#!/bin/sh\n{script}\n")
            (bin_ / program).chmod(0o755)
        return subprocess.run(
            ["/bin/bash", root / "tools" / name, *arguments],
            env={"PATH": str(bin_), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.parametrize(
    ("programs", "environment", "words"),
    [
        ({}, {}, ["no Python 3.11, 3.12 or 3.13 found", "apt-get install python3.11 python3.11-venv"]),
        ({"python3": python("3.10"), "python3.12": "exit 127"}, {}, ["no Python 3.11, 3.12 or 3.13 found"]),
        (
            {"python3": python("3.11", venv=False), **NOT_ROOT},
            {},
            ["python3 has no venv", "sudo apt-get install python3.11-venv"],
        ),
        (
            {"python3": python("3.11"), "mine": python("3.14")},
            {"RACKPROOF_PYTHON": "mine"},
            ["RACKPROOF_PYTHON: mine cannot be started, or is not Python 3.11, 3.12 or 3.13"],
        ),
        (
            {"python3": python("3.11")},
            {"RACKPROOF_PYTHON": "absent"},
            ["RACKPROOF_PYTHON: absent cannot be started"],
        ),
    ],
    ids=["none", "none that fits", "no venv", "the named one does not fit", "the named one is absent"],
)
def test_make_venv_names_what_is_missing(
    tool: Tool, tmp_path: Path, programs: dict[str, str], environment: dict[str, str], words: list[str]
) -> None:
    done = tool("make-venv", str(tmp_path / "venv"), programs=programs, **environment)
    assert done.returncode == 1, done
    for word in words:
        assert word in done.stderr
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize(
    ("programs", "environment", "made_by"),
    [
        ({"python3": python("3.11"), "python3.13": python("3.13")}, {}, "3.11"),
        ({"python3": python("3.14"), "python3.12": python("3.12")}, {}, "3.12"),
        ({"python3": python("3.11", venv=False), "python3.12": python("3.12")}, {}, "3.12"),
        ({"python3": python("3.11"), "my own": python("3.13")}, {"RACKPROOF_PYTHON": "my own"}, "3.13"),
    ],
    ids=["python3 is preferred", "python3 is too new", "python3 has no venv", "named"],
)
def test_make_venv_chooses_a_python(
    tool: Tool, tmp_path: Path, programs: dict[str, str], environment: dict[str, str], made_by: str
) -> None:
    folder = tmp_path / "venv"
    done = tool("make-venv", str(folder), programs=programs, **environment)
    assert done.returncode == 0, done
    assert (folder / "made").read_text().strip() == made_by
    packages, itself = (folder / "installed").read_text().splitlines()
    assert packages.endswith("--require-hashes --only-binary=:all: --requirement constraints.txt")
    assert itself.endswith("--no-deps --no-build-isolation --editable .")
    assert (folder / ".ready").exists()


@pytest.mark.parametrize(("umask", "modes"), [(0o000, 0o022), (0o002, 0o022), (0o022, 0o022), (0o077, 0o077)])
def test_no_other_user_can_write_what_make_venv_makes(
    tool: Tool, tmp_path: Path, umask: int, modes: int
) -> None:
    folder = tmp_path / "venv"
    before = os.umask(umask)
    try:
        done = tool("make-venv", str(folder), programs={"python3": python("3.11")})
    finally:
        os.umask(before)
    assert done.returncode == 0, done
    made = [folder, *folder.rglob("*")]
    assert {path.name for path in made} >= {"venv", "activate", "python", ".ready"}
    assert [f"{path} {path.stat().st_mode:o}" for path in made if path.stat().st_mode & modes] == []


@pytest.mark.parametrize(
    ("charmap", "came"),
    [("echo UTF-8", "de_DE.UTF-8"), ("echo ANSI_X3.4-1968", "C.UTF-8"), ("exit 127", "C.UTF-8")],
)
def test_an_activated_environment_has_a_locale_that_ansible_accepts(
    tool: Tool, tmp_path: Path, charmap: str, came: str
) -> None:
    folder = tmp_path / "venv"
    programs = {"python3": python("3.11"), "locale": charmap}
    assert tool("make-venv", str(folder), programs=programs).returncode == 0
    done = subprocess.run(
        ["/bin/sh", "-c", f'. "{folder}/bin/activate" && echo "$LC_ALL"'],
        env={"PATH": str(tmp_path / "bin"), "LC_ALL": "de_DE.UTF-8"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == came


@pytest.mark.parametrize("environment", [{"LC_ALL": "C"}, {"LANG": "xx_YY.UTF-8"}, {}])
def test_make_has_a_locale_that_ansible_accepts(root: Path, environment: dict[str, str]) -> None:
    asked = ["make", "-s", "--eval", "shown: ; @locale charmap", "shown"]
    environment = {"PATH": os.environ["PATH"], **environment}
    done = subprocess.run(asked, env=environment, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["UTF-8"]


def test_pytest_has_a_locale_that_ansible_accepts(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import os, conftest; print(os.environ['LC_ALL'])"],
        env={**os.environ, "LC_ALL": "xx_YY.UTF-8"},
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["C.UTF-8"]


@pytest.mark.parametrize(("fetched", "shown"), [(0, []), (24, []), (25, ["25"]), (60, ["25", "50"])])
def test_make_venv_prints_each_step_and_its_progress(
    tool: Tool, tmp_path: Path, fetched: int, shown: list[str]
) -> None:
    """An installation takes minutes, so each step and every 25th package is shown."""
    lines = "".join(f'echo "Collecting p{number}";' for number in range(fetched))
    pip = f'{lines} echo "Installing collected packages: all"'
    done = tool("make-venv", str(tmp_path / "venv"), programs={"python3": python("3.11", pip_says=pip)})
    assert done.returncode == 0, done
    steps = re.findall(r"^make: (\d)/4 .*\(about ", done.stderr, re.MULTILINE)
    assert steps == ["1", "2", "3", "4"]
    assert re.findall(r"^make: (\d+) of \d+ packages$", done.stderr, re.MULTILINE) == shown


@pytest.mark.parametrize("names", [("PYTHONPATH",), ("PYTHONHOME",), ("PYTHONPATH", "PYTHONHOME")])
def test_pip_of_make_venv_finds_no_packages_of_the_caller(
    tool: Tool, tmp_path: Path, names: tuple[str, ...]
) -> None:
    """pip leaves out packages that it finds in the caller's folders, and the environment would lack them."""
    seen = tmp_path / "seen"
    programs = {"python3": python("3.11", pip_says=f'echo "${{PYTHONPATH-}}${{PYTHONHOME-}}." >> "{seen}"')}
    done = tool("make-venv", str(tmp_path / "venv"), programs=programs, **dict.fromkeys(names, "/elsewhere"))
    assert done.returncode == 0, done
    assert seen.read_text().split() == [".", "."]


def test_pip_of_make_dist_finds_no_packages_of_the_caller(tool: Tool, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    script = f'echo "${{PYTHONPATH-}}${{PYTHONHOME-}}." >> "{seen}"; echo 1.0'
    programs = {
        "mine": script,
        "git": "[ $1 != archive ] || cat /dev/null",
        **dict.fromkeys(("tar", "sha256sum", "mv"), "exit 0"),
        "mktemp": 'mkdir "$2.draft"; echo "$2.draft"'.replace("$2", f"{tmp_path}/made"),
    }
    environment = {"PYTHON": "mine", "PYTHONPATH": "/elsewhere", "PYTHONHOME": "/elsewhere"}
    tool("make-dist", str(tmp_path / "dist"), programs=programs, **environment)
    assert seen.read_text().split() == [".", "."]


def test_the_start_script_of_make_venv_imports_nothing_before_it_handles_ctrl_c(
    tool: Tool, tmp_path: Path
) -> None:
    done = tool("make-venv", str(tmp_path / "venv"), programs={"python3": python("3.11")})
    assert done.returncode == 0, done
    assert (tmp_path / "venv/bin/rackproof").read_text() == "import sys\n"


def test_an_environment_is_not_ready_if_pip_failed(tool: Tool, tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    folder.mkdir()
    (folder / ".ready").touch()
    done = tool("make-venv", str(folder), programs={"python3": python("3.11", pip=3)})
    assert done.returncode == 3
    assert not (folder / ".ready").exists()


def test_make_venv_installs_the_missing_package_venv_as_root(tool: Tool, tmp_path: Path) -> None:
    marker = tmp_path / "apt"
    programs = {**ROOT, "python3": python("3.13", venv=False), "apt-get": f'echo "$@" >> {marker}'}
    done = tool("make-venv", str(tmp_path / "venv"), programs=programs)
    assert done.returncode == 0, done
    assert marker.read_text() == f"{INSTALL} python3.13-venv\n"


@pytest.mark.parametrize(
    "lock",
    [
        "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 2879 (apt-get)",
        "E: Unable to lock directory /var/lib/apt/lists/",
        "E: Unable to acquire the dpkg frontend lock, is another process using it?",
    ],
)
def test_an_installation_waits_for_another_apt(tool: Tool, tmp_path: Path, lock: str) -> None:
    held, marker = tmp_path / "held", tmp_path / "apt"
    held.touch()
    apt = f'if [ -e {held} ]; then echo "{lock}" >&2; exit 100; fi; echo "$@" >> {marker}'
    done = tool("apt-install", "gcc", programs={"apt-get": apt, "sleep": f"rm {held}"})
    assert done.returncode == 0, done
    assert marker.read_text() == f"{INSTALL} gcc\n"


def test_an_installation_renews_lists_that_lack_a_package_and_prints_the_error_of_apt(
    tool: Tool, tmp_path: Path
) -> None:
    marker = tmp_path / "apt"
    refuse = 'case "$*" in *install*) echo "E: Unable to locate package gcc" >&2; exit 100;; esac'
    apt = f'echo "$@" >> {marker}; {refuse}'
    done = tool("apt-install", "gcc", programs={"apt-get": apt})
    assert done.returncode != 0
    assert done.stderr == "E: Unable to locate package gcc\n"
    assert [line.split()[-1] for line in marker.read_text().splitlines()] == ["gcc", "update", "gcc"]


@pytest.mark.parametrize("browser", ["chromium", "chromium-browser", "google-chrome"])
def test_install_test_packages_requests_no_second_browser(tool: Tool, browser: str) -> None:
    done = tool("install-test-packages", programs={browser: "true", **NOT_ROOT})
    assert "chromium" not in done.stderr
    assert done.returncode == ("The tests need" in done.stderr)


def test_install_test_packages_prints_the_command_to_type_without_root(tool: Tool) -> None:
    done = tool("install-test-packages", programs=NOT_ROOT)
    assert done.returncode == 1
    assert "sudo apt-get install chromium" in done.stderr
