"""Test that Rackproof trusts no file that another user could have put into a folder such as /tmp.

Every user can create files, links and pipes in /tmp, /run/lock and /dev/shm, so a predictable name is not
safe. The tests search the code for such names, and run two commands that look for files in /tmp.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from rackproof_ansible import pair_half

VERSION = "24.10-1.1.4.0"


def find_command(root: Path, folder: Path) -> list[str]:
    """Return role ofed's command that finds a generated installer, with ``folder`` in place of /tmp."""
    (block, *_) = [
        task
        for task in yaml.safe_load((root / "roles/ofed/tasks/mlnx.yml").read_text())
        if "rescue" in task and any("generated" in str(one.get("name")) for one in task["rescue"])
    ]
    (task,) = [one for one in block["rescue"] if one.get("register") == "ofed_generated"]
    words = task["ansible.builtin.command"]["argv"]
    return [
        str(folder) if one == "/tmp" else one.replace("{{ ofed_wanted_version }}", VERSION) for one in words
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_an_installer_that_another_user_can_change_is_not_found(root: Path, tmp_path: Path) -> None:
    # Only root can write to own and own-too. The others are writable by all, belong to another user, are in
    # a folder of another user, or are not folders. 12345 is the id of a user that does not exist.
    name = f"MLNX_OFED_LINUX-{VERSION}-%s-ext"
    for folder in ("own", "work/own-too", "open", "users", "users-work/own"):
        path = tmp_path / Path(folder).parent / (name % Path(folder).name)
        path.mkdir(parents=True)
    (tmp_path / name.replace("%s", "open")).chmod(0o777)
    os.chown(tmp_path / name.replace("%s", "users"), 12345, 12345)
    os.chown(tmp_path / "users-work", 12345, 12345)
    (tmp_path / name.replace("%s", "link")).symlink_to(tmp_path / "users-work")
    (tmp_path / name.replace("%s", "file")).write_text("#!/bin/sh\n")
    done = subprocess.run(find_command(root, tmp_path), capture_output=True, text=True, check=True)
    found = {line.split(" ", 1)[1] for line in done.stdout.splitlines()}
    assert found == {
        str(tmp_path / name.replace("%s", "own")),
        str(tmp_path / "work" / name.replace("%s", "own-too")),
    }


def test_tasks_use_no_path_below_tmp(root: Path) -> None:
    named = re.compile(r"(?:src|dest|path|deb|chdir|creates|copy|template): *\"?'?/(?:var/)?tmp/")
    texts = {path: path.read_text() for path in sorted((root / "roles").rglob("*.yml"))}
    texts |= {path: path.read_text() for path in sorted((root / "playbooks").rglob("*.yml"))}
    assert len(texts) > 100
    assert [str(path) for path, text in texts.items() if named.search(text)] == []


# A predictable name in a folder where every user can write, or a call that returns such a folder or name.
PREDICTABLE = re.compile(
    r"(?:/var)?/tmp/[\w$.{]|/run/lock/|/dev/shm/[\w$]|gettempdir\(\)|TMPDIR:-"
    r"|tempfile\.mktemp|mktemp (?:-u|\S*/tmp/)"
)
REVIEWED = {
    # mkstemp makes the names.
    "workloads/probe_all_reduce.py": 1,
    # Only folders of the same user are read and removed.
    "src/rackproof/jobs/validate/nightly.py": 1,
    "src/rackproof_ansible/pair_half.py": 1,
    "roles/validate/tasks/cancel_leftovers.yml": 1,
    # These lines are messages and documentation. The test above checks which installer is used.
    "roles/ofed/tasks/mlnx.yml": 3,
    "roles/ofed/tasks/main.yml": 1,
    "roles/ofed/meta/argument_specs.yml": 1,
    # The lock is shared by all users. It has no content, is opened read-only, and must be a plain file.
    "roles/bench/defaults/main.yml": 1,
    "roles/bench/meta/argument_specs.yml": 1,
}
"""The number of lines with such a name, by file. Each line was reviewed. Review new ones, too."""


def count_predictable_names(text: str) -> int:
    """Return the number of lines with a predictable name."""
    return sum(bool(PREDICTABLE.search(line)) for line in text.splitlines())


def test_only_reviewed_lines_have_a_predictable_name(root: Path) -> None:
    found = {}
    for folder in ("src", "plugins", "workloads", "roles", "playbooks", "tools"):
        for path in sorted((root / folder).rglob("*")):
            if not path.is_file() or path.suffix in (".md", ".pyc", ".csv", ".json", ".gz", ".xz"):
                continue
            if count := count_predictable_names(path.read_text(errors="replace")):
                found[str(path.relative_to(root))] = count
    assert found == REVIEWED


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('path = Path("/tmp/rackproof.log")', 1),
        ("  flock /run/lock/x true", 1),
        ('open(f"{tempfile.gettempdir()}/x-{os.getpid()}")', 1),
        ("name = tempfile.mktemp()", 1),
        ("name=$(mktemp -u)", 1),
        ("echo > /var/tmp/$name", 1),
        ("folder=$(mktemp -d --tmpdir rackproof.XXXXXX)", 0),
        ("mkdir {{ enroot_pyxis_scratch }}/tmp", 0),
        ("the size of /dev/shm", 0),
    ],
)
def test_predictable_names_are_found(line: str, found: int) -> None:
    assert count_predictable_names(line) == found


def old_halves(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command that ends the old halves of pairs on the node n1, with ``folder`` as /tmp."""
    command = pair_half._END_OLD_HALVES.replace("NAME", "rackproof-night.n1.")
    environment = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True)


def test_only_the_own_halves_that_were_left_are_ended(tmp_path: Path) -> None:
    # A half is one node's part of a pair measurement. A killed playbook leaves it running.
    own, other, link = (tmp_path / f"rackproof-night.n1.{name}" for name in ("own", "other", "link"))
    own.mkdir()
    with subprocess.Popen(["sleep", "3600"], cwd=own, start_new_session=True) as half:
        (own / "pid").write_text(f"{half.pid}\n")
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere/pid").write_text("1\n")
        link.symlink_to(tmp_path / "elsewhere")
        if os.geteuid() == 0:
            other.mkdir()
            # A program that reads the pipe would wait without end.
            os.mkfifo(other / "pid")
            os.chown(other, 12345, 12345)
        assert old_halves(tmp_path).returncode == 0
        assert half.wait() != 0
    assert not own.exists()
    assert (tmp_path / "elsewhere/pid").exists()
    assert other.exists() is (os.geteuid() == 0)
