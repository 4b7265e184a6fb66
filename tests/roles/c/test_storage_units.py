"""Test the systemd units by which role storage mounts file systems, and the values that it refuses.

A mount is an NFS export, an S3 bucket (by s3fs), a disk, or a folder on one of these. The tests render the
units for nodes that have none of them, all, or all but one. They show that the role never formats a disk, and
that no unit contains a key.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import FACTS, Renderer, run_playbook

pytestmark = pytest.mark.playbook

MOUNTS = [
    {"path": "/data", "kind": "nfs", "source": "nas:/export/data", "options": ["ro"]},
    {"path": "/mnt/data-set", "kind": "s3fs", "source": "bucket:/sets"},
    {"path": "/mnt/other", "kind": "s3fs", "source": "public", "url": "http://other:9000"},
    {"path": "/scratch", "kind": "device", "source": "LABEL=scratch", "type": "xfs"},
    {"path": "/scratch/jobs", "kind": "folder", "mode": "0755"},
]
KEYS = [
    {"access_key": "AK", "secret_key": "SK"},
    {"bucket": "bucket", "access_key": "AK2", "secret_key": "SK2"},
]
SECRET = "AK:SK\nbucket:AK2:SK2\n"
ASKED = [
    "storage_units",
    "storage_changed_units",
    "storage_to_mount",
    "storage_packages",
    "storage_secret",
    "storage_secret_changed",
]


@pytest.fixture(scope="module")
def values(render: Renderer) -> dict[str, dict[str, Any]]:
    """Return the values of ASKED for nodes with no mount, all mounts, a changed unit, or a mount missing."""
    case = {
        "storage_mounts": MOUNTS,
        "storage_s3fs_credentials": KEYS,
        "storage_s3fs_url": "https://s3.example.net",
    }
    bare = render("storage", ASKED, {"bare": case})["bare"]
    sums = {
        unit["path"]: hashlib.sha256(unit["content"].encode()).hexdigest() for unit in bare["storage_units"]
    }
    there = {
        **FACTS,
        "files": {**sums, "/etc/passwd-s3fs": hashlib.sha256(SECRET.encode()).hexdigest()},
        "mounts": {mount["path"]: {"source": mount.get("source", "")} for mount in MOUNTS[:4]},
    }
    stale = {**there, "files": {**there["files"], "/etc/systemd/system/data.mount": "0" * 64}}
    # A playbook ended before it mounted /data again, another one before it mounted the buckets again.
    started = {"unit_starts": {"data.mount": 20.0, "mnt-data\\x2dset.mount": 20.0, "mnt-other.mount": 20.0}}
    old = {**there, **started, "changed_at": {"/etc/systemd/system/data.mount": 30.0}}
    old_keys = {**there, **started, "changed_at": {"/etc/passwd-s3fs": 30.0}}
    new_keys = {**there, "files": {**there["files"], "/etc/passwd-s3fs": "0" * 64}}
    unmounted = {
        **there,
        "mounts": {key: value for key, value in there["mounts"].items() if key != "/scratch"},
    }
    render.folder = render.folder / "again"
    render.folder.mkdir()
    again = render(
        "storage",
        ASKED,
        {
            "done": {**case, "rackproof_node": there},
            "stale": {**case, "rackproof_node": stale},
            "unmounted": {**case, "rackproof_node": unmounted},
            "old": {**case, "rackproof_node": old},
            "old_keys": {**case, "rackproof_node": old_keys},
            "new_keys": {**case, "rackproof_node": new_keys},
            "none": {},
        },
    )
    return {"bare": bare, **again}


def unit(values: dict[str, dict[str, Any]], mount: str) -> dict[str, str]:
    """Return the lines of the unit of a mount, by key."""
    (content,) = (one["content"] for one in values["bare"]["storage_units"] if one["mount"] == mount)
    return dict(line.split("=", 1) for line in content.splitlines() if "=" in line)


def test_units_are_named_as_systemd_wants_them(values: dict[str, dict[str, Any]]) -> None:
    assert [Path(one["path"]).name for one in values["bare"]["storage_units"]] == [
        "data.mount",
        "mnt-data\\x2dset.mount",
        "mnt-other.mount",
        "scratch.mount",
    ]


def test_nfs(values: dict[str, dict[str, Any]]) -> None:
    lines = unit(values, "/data")
    assert (lines["What"], lines["Where"], lines["Type"]) == ("nas:/export/data", "/data", "nfs4")
    options = lines["Options"].split(",")
    assert options[0] == "hard"
    assert options[-2:] == ["_netdev", "ro"]
    # WantedBy lets a node boot if the server is down.
    assert lines["WantedBy"] == "remote-fs.target"
    assert "automount" not in str(values["bare"]["storage_units"])


def test_s3(values: dict[str, dict[str, Any]]) -> None:
    lines = unit(values, "/mnt/data-set")
    options = lines["Options"].split(",")
    assert (lines["What"], lines["Type"]) == ("bucket:/sets", "fuse.s3fs")
    assert {"_netdev", "url=https://s3.example.net", "passwd_file=/etc/passwd-s3fs"} <= set(options)
    # By default, systemd would order a mounted s3fs as a local file system.
    assert lines["DefaultDependencies"] == "no"
    assert lines["Before"].split() == ["remote-fs.target", "umount.target"]
    assert "url=http://other:9000" in unit(values, "/mnt/other")["Options"].split(",")
    assert "SK" not in str(values["bare"]["storage_units"])
    assert values["bare"]["storage_secret"] == SECRET


def test_a_disk_is_mounted_and_never_formatted(values: dict[str, dict[str, Any]]) -> None:
    lines = unit(values, "/scratch")
    assert (lines["What"], lines["Type"], lines["WantedBy"]) == ("LABEL=scratch", "xfs", "local-fs.target")
    assert "nofail" in lines["Options"].split(",")
    role = Path(__file__).resolve().parents[3] / "roles" / "storage"
    assert not [path for path in role.rglob("*.*") if "mkfs" in path.read_text()]


def test_only_what_is_needed_is_installed(values: dict[str, dict[str, Any]]) -> None:
    assert values["bare"]["storage_packages"] == ["nfs-common", "s3fs", "fuse3", "xfsprogs"]
    assert values["none"]["storage_packages"] == []


def test_what_is_due(values: dict[str, dict[str, Any]]) -> None:
    assert len(values["bare"]["storage_changed_units"]) == len(values["bare"]["storage_to_mount"]) == 4
    assert values["bare"]["storage_secret_changed"] is True
    for name in ("done", "none"):
        assert values[name]["storage_changed_units"] == values[name]["storage_to_mount"] == []
        assert values[name]["storage_secret_changed"] is False
    assert [one["mount"] for one in values["stale"]["storage_to_mount"]] == ["/data"]
    assert [one["mount"] for one in values["unmounted"]["storage_to_mount"]] == ["/scratch"]
    assert [one["mount"] for one in values["old"]["storage_to_mount"]] == ["/data"]
    for name in ("old_keys", "new_keys"):
        assert [one["mount"] for one in values[name]["storage_to_mount"]] == ["/mnt/data-set", "/mnt/other"]


PLAYBOOK = """
- hosts: all
  gather_facts: false
  connection: local
  tasks:
    - name: Check
      block:
        - ansible.builtin.import_role: {name: storage}
      rescue:
        - ansible.builtin.copy:
            dest: "{{ playbook_dir }}/{{ inventory_hostname }}.said"
            content: "{{ ansible_failed_result.msg }}"
            mode: "0644"
"""


def test_what_is_wrong_is_reported_before_anything_is_done(root: Path, tmp_path: Path) -> None:
    key = {"storage_s3fs_credentials": KEYS}
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "no-source": ({"storage_mounts": [{"path": "/data", "kind": "nfs"}]}, "wrong: /data"),
        "spaces": ({**key, "storage_mounts": [{"path": "/a b", "kind": "folder"}]}, "wrong: /a b"),
        "root": ({"storage_mounts": [{"path": "/", "kind": "device", "source": "/dev/sda"}]}, "wrong: /"),
        "no-key": ({"storage_mounts": [{"path": "/d", "kind": "s3fs", "source": "b"}]}, "Vault"),
        "twice": (
            {"storage_mounts": [{"path": "/d", "kind": "nfs", "source": f"{name}:/x"} for name in "ab"]},
            "every mount needs its own path",
        ),
    }
    hosts = {name: {"rackproof_node": FACTS, **case} for name, (case, _) in cases.items()}
    shared = {"ansible_python_interpreter": sys.executable}
    (tmp_path / "inventory.json").write_text(json.dumps({"all": {"hosts": hosts, "vars": shared}}))
    (tmp_path / "playbook.yml").write_text(PLAYBOOK)
    done = run_playbook(root, tmp_path / "inventory.json", tmp_path / "playbook.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    for name, (_, said) in cases.items():
        message = (tmp_path / f"{name}.said").read_text()
        assert said in message
        assert name in message
