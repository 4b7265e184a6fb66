"""Test that systemd and `rackproof nightly` accept the files of the role nightly.

The role writes units of systemd, which start `rackproof nightly` every night, and a file with its secrets.
The tests fill the templates with values that need quotes in a unit. They show that the command line is
right, that a night interrupted by a reboot is started again, and that the units contain no secret.
"""

from __future__ import annotations

import configparser
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from rackproof.cli.main import main

pytestmark = pytest.mark.playbook
FILES = (
    "rackproof-nightly.service",
    "rackproof-nightly.timer",
    "rackproof-nightly-again.service",
    "nightly.env",
)


def program_in(folder: Path) -> Path:
    """Make an executable whose path has a blank. Return its path."""
    program = folder / "rack proof/rackproof"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return program


@pytest.fixture(scope="module")
def written(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that the role's templates give."""
    folder = tmp_path_factory.mktemp("role")
    variables = {
        "ansible_python_interpreter": sys.executable,
        "nightly_checkout": str(folder),
        "nightly_program": str(program_in(folder)),
        "nightly_drain": True,
        "nightly_gpu_minutes": 240,
        "nightly_link": "https://example.org/100%/$x",
        "nightly_mail_to": ["ops@example.org", "noc@example.org"],
        "nightly_webhook_url": 'https://hooks.example.org/a"b\\c',
    }
    tasks = [
        {
            "name": "Write",
            "ansible.builtin.template": {
                "src": f"{root}/roles/nightly/templates/{name}.j2",
                "dest": str(folder / name),
                "mode": "0600",
            },
        }
        for name in FILES
    ]
    defaults = [f"{root}/roles/nightly/{part}/main.yml" for part in ("vars", "defaults")]
    play = {
        "name": "Write",
        "hosts": "localhost",
        "gather_facts": False,
        "vars_files": defaults,
        "tasks": tasks,
    }
    (folder / "play.yml").write_text(yaml.safe_dump([play]))
    (folder / "vars.yml").write_text(yaml.safe_dump(variables))
    program = Path(sys.executable).with_name("ansible-playbook")
    done = subprocess.run(
        [program, "-i", "localhost,", "-c", "local", folder / "play.yml", "-e", f"@{folder}/vars.yml"],
        cwd=root,
        env=os.environ | {"ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


CHECK = """
- hosts: localhost
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: nightly, tasks_from: check}
"""


def check(root: Path, folder: Path, program: Path) -> subprocess.CompletedProcess[str]:
    """Run the role's check of the program, for nights of the user daemon. Return the finished playbook."""
    (folder / "play.yml").write_text(CHECK)
    given = {
        "nightly_user": "daemon",
        "nightly_checkout": str(program.parent),
        "nightly_program": str(program),
    }
    return subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            *("-i", "localhost,", "-c", "local", folder / "play.yml", "-e", json.dumps(given)),
            *("-e", f"ansible_python_interpreter={sys.executable}", "--check"),
        ],
        cwd=root,
        env=os.environ | {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_ROLES_PATH": str(root / "roles")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_program_that_only_root_can_run_is_refused(root: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("another user's program needs root")
    # The folder of pytest is closed for other users, so the program is in one that is open.
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        program = Path(name) / "rackproof"
        program.write_text('#!/bin/sh\ntest "$1" = nightly && test -z "$HOME"\n')
        program.chmod(0o700)
        done = check(root, tmp_path, program)
        said = " ".join(done.stdout.split())
        assert done.returncode == 2, done.stdout + done.stderr
        assert f"daemon (nightly_user) cannot run {program} in {program.parent}" in said
        assert "Permission denied" in said
        program.chmod(0o755)
        done = check(root, tmp_path, program)
        assert done.returncode == 0, done.stdout + done.stderr


def unit(path: Path) -> configparser.ConfigParser:
    """Return the sections of a unit of systemd, with the case of their keys."""
    read = configparser.ConfigParser(interpolation=None, strict=False)
    read.optionxform = str  # type: ignore[assignment, method-assign]
    read.read(path)
    return read


def test_the_command_is_one_that_the_program_takes(written: Path) -> None:
    service = unit(written / "rackproof-nightly.service")["Service"]
    # systemd reads quotes as a shell does. In a unit, $$ means $, and %% means %.
    words = [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(service["ExecStart"])]
    assert words[:2] == [str(written / "rack proof/rackproof"), "nightly"]
    assert words[words.index("--link") + 1] == "https://example.org/100%/$x"
    assert "--drain" in words
    assert "--resume" not in words
    assert words[words.index("--gpu-minutes") + 1] == "240"
    done = CliRunner().invoke(
        main, [*words[1:], "--checkout", str(written / "none"), "--results", str(written)]
    )
    assert done.exit_code == 1
    assert "has no validate.yml" in done.output
    assert service["SuccessExitStatus"] == "2 3"
    assert unit(written / "rackproof-nightly.timer")["Timer"]["OnCalendar"] == "*-*-* 02:30:00"


def test_an_interrupted_night_is_known_by_the_file_that_it_leaves(written: Path) -> None:
    from rackproof.jobs.validate.nightly import LOCK

    again = unit(written / "rackproof-nightly-again.service")["Unit"]
    assert again["ConditionFileNotEmpty"] == f"{written}/results/{LOCK}"


def test_secrets_stand_in_the_environment_alone(written: Path) -> None:
    lines = (written / "nightly.env").read_text().splitlines()
    assert 'RACKPROOF_WEBHOOK_URL="https://hooks.example.org/a\\"b\\\\c"' in lines
    assert len([line for line in lines if "=" in line]) == 1
    for name in FILES[:3]:
        assert "hooks.example.org" not in (written / name).read_text()


def test_systemd_understands_the_units(written: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd here")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *FILES[:3]],
        cwd=written,
        env=os.environ | {"SYSTEMD_UNIT_PATH": f"{written}:"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if "rackproof" in line]) == (0, [])
