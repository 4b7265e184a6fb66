"""Nothing of /tmp that another user of a node could have put there is started or unpacked as root."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

VERSION = "24.10-1.1.4.0"


def find_command(root: Path, folder: Path) -> list[str]:
    """Return the command by which role ofed looks for a generated installer, in another folder than /tmp."""
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
def test_an_installer_that_is_not_root_s_is_not_started(root: Path, tmp_path: Path) -> None:
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


def test_tasks_write_no_predictable_name_below_tmp(root: Path) -> None:
    named = re.compile(r"(?:src|dest|path|deb|chdir|creates|copy|template): *\"?'?/(?:var/)?tmp/")
    texts = {path: path.read_text() for path in sorted((root / "roles").rglob("*.yml"))}
    texts |= {path: path.read_text() for path in sorted((root / "playbooks").rglob("*.yml"))}
    assert len(texts) > 100
    assert [str(path) for path, text in texts.items() if named.search(text)] == []
