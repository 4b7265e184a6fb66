"""Test ``rackproof adopt``, which makes an inventory of an existing cluster.

Its data comes from Slurm, a table (CSV), NetBox (a database of hardware), or several of these. The tests run
the command, and show that the inventory has no mistakes, that a later call changes nothing without --write,
and that each wrong input ends with one line.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rackproof.cli.main import main
from rackproof.jobs.inventory.lint import lint_inventory, list_inventory
from rackproof.jobs.inventory.nodes import NETBOX_TOKEN as TOKEN_VARIABLE

from ..jobs.inventory.fake_netbox import TOKEN, FakeNetbox, device

ROOT = Path(__file__).parents[2]
# A cluster with nodes of two known SKUs, of an unknown SKU (odd), and without GPUs.
SLURM = """SlurmctldHost=ctl
NodeName=gpu-a[001-016] NodeAddr=10.0.1.[1-16] Gres=gpu:h100:8 Feature=hgx
NodeName=gpu-b[001-008] NodeAddr=10.0.2.[1-8] Gres=gpu:h200:8
NodeName=odd[1-2] Gres=gpu:tesla:4 CPUs=64
NodeName=cpu[1-4] CPUs=64
PartitionName=train Nodes=gpu-a[001-016],gpu-b[001-008]
PartitionName=debug Nodes=ALL
"""

Adopt = Callable[..., Result]


@pytest.fixture
def adopt(tmp_path: Path) -> Adopt:
    """Return a function that runs the command with an inventory in ``cluster``."""

    def run(*words: object) -> Result:
        given = ["adopt", "--checkout", ROOT, "-o", tmp_path / "cluster", *words]
        return CliRunner().invoke(main, [str(word) for word in given])

    return run


def saved(tmp_path: Path, text: str, name: str = "slurm.conf") -> Path:
    """Write a file, and return its path."""
    (tmp_path / name).write_text(text)
    return tmp_path / name


def members(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the groups as Ansible reads them. The inventory must have no mistakes."""
    inventory, complaints = list_inventory(folder)
    assert complaints == []
    assert lint_inventory(inventory, ROOT) == []
    return dict(inventory.groups)


@pytest.mark.slow
def test_a_slurm_cluster_and_what_changes_there(adopt: Adopt, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster"
    first = adopt("--slurm-file", saved(tmp_path, SLURM))
    assert first.exit_code == 0, first.output
    assert "30 nodes, 4 racks, 2 partitions" in first.output
    assert "sku_tesla_x4 UNPROVEN" in first.output
    assert f"rackproof validate -i {cluster} --check" in first.output
    found = members(cluster)
    assert len(found["sku_h100"]) == 16
    assert len(found["gpu_nodes"]) == 26
    assert len(found["partition_debug"]) == 30
    assert found["slurm_controller"] == ("ctl",)

    # Slurm has one node more and one less. Without --write nothing changes, and the missing node stays.
    conf = saved(
        tmp_path,
        SLURM.replace("gpu-b[001-008]", "gpu-b[001-009]")
        .replace("[1-8]", "[1-9]")
        .replace("odd[1-2]", "odd[1-1]"),
    )
    shown = adopt("--slurm-file", conf)
    assert "\n         gpu-b008: {ansible_host: 10.0.2.8}\n" in shown.output
    assert "\n+        gpu-b009: {ansible_host: 10.0.2.9}\n" in shown.output
    assert "nothing was written" in shown.output
    assert "odd2 any more: they stay" in shown.output
    assert "gpu-b009" not in (cluster / "hosts.yml").read_text()
    assert adopt("--slurm-file", conf, "--write").exit_code == 0
    assert "gpu-b009" in members(cluster)["sku_h200"]
    assert "odd2" in members(cluster)["sku_tesla_x4"]
    assert adopt("--slurm-file", conf, "--write", "--remove-missing").exit_code == 0
    assert members(cluster)["sku_tesla_x4"] == ("odd1",)
    assert "nothing to write" in adopt("--slurm-file", conf).output


@pytest.mark.slow
def test_a_node_whose_entry_is_cut_off_stays_judged(adopt: Adopt, tmp_path: Path) -> None:
    whole = "SlurmctldHost=ctl\nNodeName=g1 Gres=gpu:h200:8\nNodeName=g2 CPUs=64 Gres=gpu:h200:8\n"
    assert adopt("--slurm-file", saved(tmp_path, whole)).exit_code == 0
    cut = saved(tmp_path, whole[: whole.index(" Gres=gpu:h200:8\n", whole.index("g2"))])
    table = saved(tmp_path, "name\ng1.example.org\n", "names.csv")
    done = adopt("--slurm-file", cut, "--csv", table, "--write")
    output = " ".join(done.output.split())
    assert "g2: the entry is cut off" in output
    assert "some of g1,g1.example.org may be one machine" in output
    assert "sku_unknown UNPROVEN" in output
    groups = members(tmp_path / "cluster")
    assert "g2" in groups["gpu_nodes"]
    assert groups["sku_h200"] == ("g1",)


TOPOLOGY = "\nSwitchName=leaf1 Nodes=gpu-a[001-016]\nSwitchName=leaf2 Nodes=gpu-b[001-008]\n"


@pytest.mark.slow
def test_only_racks_that_no_source_states_are_guessed(adopt: Adopt, tmp_path: Path) -> None:
    said = "racks are guessed by the nodes' names: no source states that of"
    conf = saved(tmp_path, SLURM + TOPOLOGY)
    table = saved(tmp_path, '"name","rack"\n"cpu[1-4]","z1"\n"odd[1-2]","z1"\n', "racks.csv")
    some = saved(tmp_path, '"name"\n"cpu[1-4]"\n', "names.csv")
    first = adopt("--slurm-file", conf, "--csv", some)
    assert f"{said} cpu[1-4],odd[1-2]" in " ".join(first.output.split()), first.output
    assert "guessed" not in adopt("--slurm-file", conf, "--csv", table).output


@pytest.mark.slow
def test_a_controller_of_an_ansible_inventory_is_no_node(adopt: Adopt, tmp_path: Path) -> None:
    hosts = {"n1": {}, "n2": {}, "kepler-ctl": {"ansible_host": "10.0.0.9", "ansible_user": "ops"}}
    listed = {"_meta": {"hostvars": hosts}, "rack1": {"hosts": ["n1", "n2"]}}
    listed["slurm_controller"] = {"hosts": ["kepler-ctl"]}
    listed["all"] = {"hosts": list(hosts)}
    done = adopt("--ansible", saved(tmp_path, json.dumps(listed), "theirs.json"))
    assert "2 nodes, 1 rack, 0 partitions" in done.output
    assert "kepler-ctl is the Slurm controller, and no GPU node" in done.output
    found = members(tmp_path / "cluster")
    assert "rack-kepler-ctl" not in found
    assert found["slurm_controller"] == ("kepler-ctl",)
    line = "kepler-ctl: {ansible_host: 10.0.0.9, ansible_user: ops}"
    assert line in (tmp_path / "cluster/hosts.yml").read_text()


@pytest.mark.slow
def test_the_next_commands_check_the_inventory_first_and_name_it_for_all(
    adopt: Adopt, tmp_path: Path
) -> None:
    conf, cluster = saved(tmp_path, SLURM), tmp_path / "cluster"
    lines = [line.strip() for line in adopt("--slurm-file", conf).output.splitlines()]
    commands = (
        f"rackproof lint-inventory -i {cluster}",
        f"rackproof validate -i {cluster} --check",
        f"export ANSIBLE_INVENTORY={cluster}",
    )
    assert [line for line in lines if line in commands] == list(commands)
    # A completed skeleton is no longer called unproven.
    file = cluster / "group_vars/sku_tesla_x4.yml"
    file.write_text(file.read_text().replace("  skeleton: true\n", "  nvlinks: 0\n"))
    again = adopt("--slurm-file", conf).output
    assert "sku_tesla_x4" in again
    assert "UNPROVEN" not in again


@pytest.mark.slow
def test_a_cloud_without_slurm(adopt: Adopt, tmp_path: Path) -> None:
    lines = ["name,ip,type,gpus", *(f"vm-{at},192.0.2.{at},gpu_8x_h100_sxm5,8" for at in range(1, 5))]
    done = adopt("--csv", saved(tmp_path, "\n".join([*lines, "vm-9,192.0.2.9,mystery-box,"]), "vms.csv"))
    assert done.exit_code == 0, done.output
    found = members(tmp_path / "cluster")
    assert len(found["sku_h100"]) == 4
    assert found["sku_mystery_box_unknown"] == ("vm-9",)
    assert found["slurm_controller"] == ()
    assert "slurm_racks: []" in (tmp_path / "cluster/group_vars/all.yml").read_text()


@pytest.mark.slow
def test_a_netbox_with_300_devices(adopt: Adopt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    with FakeNetbox([device(number) for number in range(1, 301)], most=100) as netbox:
        done = adopt("--netbox", netbox.url, "--json")
    assert done.exit_code == 0, done.output
    assert TOKEN not in done.output
    found = json.loads(done.output)
    assert len(found["nodes"]) == 300
    assert found["written"] is True
    assert len(members(tmp_path / "cluster")["sku_h100"]) == 300
    assert not any(TOKEN in path.read_text() for path in (tmp_path / "cluster").rglob("*") if path.is_file())


@pytest.mark.slow
def test_a_thousand_nodes_of_two_sources(adopt: Adopt, tmp_path: Path) -> None:
    table = saved(
        tmp_path,
        "name,rack,gpu,gpus\n"
        + "".join(f'"n[{first:04}-{first + 49:04}]",r{first // 50},h100,8\n' for first in range(1, 1001, 50)),
        "n.csv",
    )
    conf = saved(tmp_path, "SlurmctldHost=ctl\nNodeName=n[0001-1000] Gres=gpu:h100:8\n")
    done = adopt("--slurm-file", conf, "--csv", table, "--exclude", "n1000")
    assert done.exit_code == 0, done.output
    found = members(tmp_path / "cluster")
    assert len(found["sku_h100"]) == 999
    assert len(found["r3"]) == 50


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name a source: --slurm"),
        (("--csv", "absent.csv"), f"absent.csv cannot be read: {os.strerror(errno.ENOENT)}"),
        (("--csv", "x.csv", "--sku", "h100"), "PATTERN=SKU"),
        (("--netbox", "http://netbox.example.org", "--netbox-token-file", "token"), "plain HTTP"),
        (("--netbox", "https://netbox.example.org"), "holds no token of NetBox"),
        (("--slurm-file", "twins.conf"), r"n1 and n2 have the same address (10.0.0.1)"),
        (("--csv", "vms.csv", "--exclude", "*"), "no node is left"),
    ],
)
def test_what_is_wrong_is_one_line(
    adopt: Adopt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    saved(tmp_path, TOKEN, "token").chmod(0o600)
    saved(tmp_path, "name\nn1\n", "vms.csv")
    saved(tmp_path, "NodeName=n[1-2] NodeAddr=10.0.0.1,10.0.0.1 Gres=gpu:h100:8\n", "twins.conf")
    done = adopt(*words)
    assert done.exit_code == 1
    assert message in done.output
    assert done.output.count("\n") == 1
    assert not (tmp_path / "cluster").exists()


def test_changes_by_hand_that_do_not_fit_are_refused(adopt: Adopt, tmp_path: Path) -> None:
    conf = saved(tmp_path, "SlurmctldHost=ctl\nNodeName=n[1-2] Gres=gpu:h100:8\n")
    assert adopt("--slurm-file", conf).exit_code == 0
    hosts = tmp_path / "cluster/hosts.yml"
    broken = hosts.read_text().replace("        n1:", "        n1: [")
    hosts.write_text(broken)
    done: Any = adopt("--slurm-file", saved(tmp_path, "NodeName=n[1-3] Gres=gpu:h100:8\n"), "--write")
    assert done.exit_code == 1
    assert "hosts.yml" in done.output
    assert hosts.read_text() == broken


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("SlurmctldHost=ctl(10.0.0.9)", "        ctl: {ansible_host: 10.0.0.9}\n"),
        ("SlurmctldHost=ctl", "        ctl:\n"),
        # A node has its address in the line of its rack.
        ("SlurmctldHost=cpu1(10.0.0.9)", "    slurm_controller:\n      hosts:\n        cpu1:\n"),
    ],
)
def test_the_host_of_slurmctld_is_written_with_its_address(
    adopt: Adopt, tmp_path: Path, line: str, written: str
) -> None:
    result = adopt("--slurm-file", saved(tmp_path, SLURM.replace("SlurmctldHost=ctl", line)))
    assert result.exit_code == 0, result.output
    assert written in (tmp_path / "cluster/hosts.yml").read_text()
    members(tmp_path / "cluster")
