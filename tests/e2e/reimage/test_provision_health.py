"""Test that provision.yml resumes a node in Slurm only if the health checks of a night pass on it.

After the changes on a node, the playbook gathers its facts and judges them as validate.yml does. The nodes
here are fake hardware on this machine. The tests show that a fault or a missing answer keeps a node drained,
with a reason for the operator, that a degraded node is resumed, and that another user's drain is not changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from rackproof.store.night_store import night_folders

if TYPE_CHECKING:
    from .conftest import Rack

pytestmark = pytest.mark.playbook
HEALTH = "rackproof: health: "
"""Beginning of the reason of a drain for a health finding."""
ALL_AT_ONCE = (
    "-e",
    "provision_canary=0",
    "-e",
    "provision_max_drain_fraction=1",
    "-e",
    "provision_max_failures=9",
)
"""Options that provision all nodes in one wave, without a limit of failures. So each node is judged."""


def drained_for(rack: Rack) -> dict[str, str]:
    """Return the reasons of the drained nodes without their common beginning. All must be health findings."""
    drained = rack.drained()
    assert all(reason.startswith(HEALTH) for reason in drained.values()), drained
    return {node: reason.removeprefix(HEALTH) for node, reason in drained.items()}


def fail_tool(rack: Rack, node: str, tool: str) -> None:
    """Replace a tool of a node by one that prints nothing and fails."""
    path = rack.folder / node / "usr/bin" / tool
    path.unlink()
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(0o755)


def test_a_node_with_findings_stays_drained_until_it_is_mended(rack: Rack) -> None:
    rack.fleet.hardware("n02", "--fault", "row-remap-pending", "--gpu", "1")
    rack.fleet.hardware("n03", "--fault", "nvlink-down", "--gpu", "0")
    rack.fleet.hardware("n04", "--fault", "xid", "--gpu", "3")
    done = rack.play("provision.yml", "-l", "n01,n02,n03,n04", *ALL_AT_ONCE)
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    reasons = drained_for(rack)
    assert set(reasons) == {"n02", "n03", "n04"}, said
    assert "a row or page of its memory waits for a reset" in reasons["n02"]
    assert "NVLink" in reasons["n03"]
    assert "XID" in reasons["n04"]
    summary = done.stdout.split("NODES ****", 1)[1]
    assert "a row or page of its memory waits for a reset to be replaced" in summary
    assert summary.count("ATTENTION Prove that the node is healthy") == 3
    # A provisioning is not recorded as a night.
    assert not rack.results.exists() or night_folders(rack.results) == []

    rack.fleet.hardware("n02", "--fault", "row-remap-pending", "--off")
    rack.fleet.hardware("n03", "--fault", "nvlink-down", "--off")
    rack.fleet.hardware("n04", "--fault", "xid", "--off")
    for node in ("n02", "n03", "n04"):
        rack.fleet.hardware(node, "--boot")
    done = rack.play("provision.yml", "-l", "n01,n02,n03,n04", *ALL_AT_ONCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert rack.drained() == {}


def test_what_is_not_known_of_a_node_keeps_it_drained_and_a_strangers_drain_stays_theirs(rack: Rack) -> None:
    # Without a kernel log, nothing shows that there was no XID.
    fail_tool(rack, "n02", "dmesg")
    fail_tool(rack, "n02", "journalctl")
    rack.fleet.hardware("n03", "--fault", "ecc-uncorrectable", "--gpu", "2")
    rack.fleet.hardware("n04", "--fault", "link-trained-down", "--gpu", "2")
    theirs = "bob: waits for a cable"
    rack.fleet.set_slurm(nodes=rack.fleet.slurm["nodes"] | {"n04": theirs})
    done = rack.play("provision.yml", "-l", "n01,n02,n03,n04", *ALL_AT_ONCE)
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    drained = rack.drained()
    assert set(drained) == {"n02", "n03", "n04"}, said
    assert drained["n02"].startswith(f"{HEALTH}kernel_log")
    assert "uncorrectable error" in drained["n03"]
    assert drained["n04"] == theirs
    assert "n02: unproven: kernel_log" in done.stdout
    assert "PCIe x8 of x16" in done.stdout


def test_a_node_whose_sku_has_no_gpus_is_provisioned_beside_others(rack: Rack) -> None:
    path = rack.folder / "hosts.yml"
    inventory = yaml.safe_load(path.read_text())
    hosts = inventory["all"]["children"]["sku_gb300"]["children"]["rack-one"]["hosts"]
    # The node without GPUs is the first one of this run. In the second run below, only a login host is beside
    # it.
    hosts["n01"] |= {"bench_sku": "cpu", "bench_sku_gpus": 0}
    inventory["all"]["children"]["slurm_login"] = {"hosts": {"ctl": None}}
    path.write_text(yaml.safe_dump(inventory, sort_keys=False))
    for tool in ("nvidia-smi", "dmesg", "journalctl"):
        fail_tool(rack, "n01", tool)
    rack.fleet.hardware("n02", "--fault", "row-remap-pending", "--gpu", "1")
    done = rack.play("provision.yml", "-l", "n01,ctl,n02,n03", *ALL_AT_ONCE)
    assert done.returncode == 2, done.stdout + done.stderr
    assert set(drained_for(rack)) == {"n02"}, done.stdout
    done = rack.play("provision.yml", "-l", "n01,ctl")
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(rack.drained()) == {"n02"}


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"bench_sku": ""}, "the inventory has no SKU of it"),
        ({"bench_sku": "h100"}, "not H100 as SKU h100 has"),
        ({"validate_expect": {"nvlinks": 24}}, "NVLinks"),
    ],
    ids=["no SKU", "another model", "more links"],
)
def test_what_the_inventory_expects_is_what_a_night_expects(
    rack: Rack, variables: dict[str, object], why: str
) -> None:
    path = rack.folder / "hosts.yml"
    inventory = yaml.safe_load(path.read_text())
    inventory["all"]["children"]["sku_gb300"]["children"]["rack-one"]["hosts"]["n01"] |= variables
    path.write_text(yaml.safe_dump(inventory))
    done = rack.play("provision.yml", "-l", "n01")
    assert done.returncode == 2, done.stdout + done.stderr
    assert why in drained_for(rack)["n01"], done.stdout


def test_what_only_degrades_is_shown_and_keeps_no_node_drained(rack: Rack) -> None:
    program = rack.folder / "n01/usr/bin/systemctl"
    program.write_text(
        "#!/bin/sh\ncase \"$*\" in *failed*) echo 'backup.service loaded failed failed Backup';; esac\n"
    )
    done = rack.play("provision.yml", "-l", "n01")
    assert done.returncode == 0, done.stdout + done.stderr
    assert rack.drained() == {}
    assert "ATTENTION backup.service has failed" in done.stdout.split("NODES ****", 1)[1]
