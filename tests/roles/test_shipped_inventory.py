"""Test that the shipped inventory describes a real rack, and that the test rack's values override it.

The test rack is made of containers, and needs other values, such as smaller problem sizes. They are in
testrack/overlay, and override the inventory only while the rack is up. Records of the test rack state where
they come from.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from driver import overlay

ROOT = Path(__file__).resolve().parents[2]
SHIPPED: dict[str, Any] = yaml.safe_load((ROOT / "inventory/group_vars/gb300-rack/main.yml").read_text())
TEST_RACK: dict[str, Any] = yaml.safe_load((ROOT / "testrack/overlay/gb300-rack.yml").read_text())


@pytest.mark.parametrize(
    "variable",
    [
        "bench_size_factor",
        "bench_published_references",
        "bench_require_references",
        "bench_sku_references",
        "bench_test_rack",
        "enroot_pyxis_registry_scheme",
        "nvidia_container_insecure_registries",
        "node_tuning_kernel",
        "slurm_slurmd_parameters",
        "validate_limits",
        "preflight_disk_gib",
        "ngc_registry",
    ],
)
def test_variables_for_the_test_rack_alone_are_not_shipped(variable: str) -> None:
    assert variable not in SHIPPED
    assert variable in TEST_RACK


def test_the_shipped_inventory_names_no_host_of_the_test_rack_and_no_plain_http() -> None:
    text = (ROOT / "inventory/group_vars/gb300-rack/main.yml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert not [line for line in lines if "http://" in line or "gb300-r01" in line or ".rackproof" in line]
    for path in ROOT.glob("inventory/group_vars/*.yml"):
        assert "gb300-r01-svc" not in path.read_text(), path.name


def test_records_of_the_test_rack_name_it() -> None:
    assert TEST_RACK["bench_test_rack"] is True
    assert "'test rack' if bench_test_rack" in (ROOT / "roles/bench/tasks/run.yml").read_text()


def test_the_values_of_the_test_rack_are_read_last_and_removed_with_it(tmp_path: Path) -> None:
    for part in ("inventory/group_vars/gb300-rack", "testrack/overlay"):
        shutil.copytree(ROOT / part, tmp_path / part, symlinks=True, ignore=lambda *_: ["test-rack.yml"])
    assert overlay.lay(tmp_path)
    assert not overlay.lay(tmp_path)
    folder = tmp_path / "inventory/group_vars/gb300-rack"
    # Ansible reads the files of a group's folder in the order of their names.
    assert sorted(path.name for path in folder.iterdir()) == ["main.yml", "test-rack.yml"]
    assert yaml.safe_load((folder / "test-rack.yml").read_text()) == TEST_RACK
    assert overlay.take_away(tmp_path)
    assert not overlay.take_away(tmp_path)
    assert [path.name for path in folder.iterdir()] == ["main.yml"]


@pytest.mark.parametrize("there", ["file", "dangling link", "link elsewhere"])
def test_another_file_in_the_place_of_the_values_is_replaced(tmp_path: Path, there: str) -> None:
    for part in ("inventory/group_vars/gb300-rack", "testrack/overlay"):
        shutil.copytree(ROOT / part, tmp_path / part, symlinks=True, ignore=lambda *_: ["test-rack.yml"])
    path = overlay.place(tmp_path)
    if there == "file":
        path.write_text("bench_size_factor: 1\n")
    else:
        path.symlink_to("main.yml" if there == "link elsewhere" else "none.yml")
    assert overlay.lay(tmp_path)
    assert yaml.safe_load(path.read_text()) == TEST_RACK
