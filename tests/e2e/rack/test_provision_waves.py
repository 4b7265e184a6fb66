"""Test how provision.yml installs a new driver on a test rack that is in use.

The playbook provisions the nodes in waves, one group after the other. The first node has a fault, so the test
shows that the first wave fails, that the other nodes keep their driver and their jobs, and that the same
command installs the driver on all nodes after the fault is gone.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from testrack.tests.on_rack import CONTROLLER, PROVISIONED, Command, play, state_in_slurm
from tests.e2e.rack.rack_faults import reboot

pytestmark = [pytest.mark.rack, pytest.mark.slow]
NODES = PROVISIONED
# The driver before the test, and the one that the inventory requires.
LAST_YEAR = "570.172.08"
DRIVER = "580.95.05"
LIMIT_S = 1800


def driver_of(rack: Command, node: str) -> str:
    return str(rack(node, "modinfo -F version nvidia").stdout.strip())


def test_a_driver_goes_over_a_rack_in_use_and_a_bad_node_stops_it(
    root: Path, rack: Command, driver: Command
) -> None:
    bad, *others = NODES
    # Earlier tests may have left any driver. Install the old one on all nodes at once.
    at_once = ("-e", "provision_max_drain_fraction=1", "-e", "provision_canary=0")
    done = play(
        root, "provision.yml", NODES, "-e", f"lambda_stack_driver_version={LAST_YEAR}",
        "-e", "lambda_stack_allow_downgrade=true", *at_once, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    assert [driver_of(rack, node) for node in NODES] == [LAST_YEAR] * len(NODES)
    job = rack(CONTROLLER, f"sbatch --parsable -w {others[-1]} --wrap 'sleep 3000'").stdout.strip()
    # The fault survives the reboot for the new driver. The health checks after it find the fault.
    assert driver("fault", bad, "ecc-uncorrectable").returncode == 0
    try:
        done = play(root, "provision.yml", NODES, "-e", "provision_drain_timeout_s=60", timeout=LIMIT_S)
        assert done.returncode == 2, done.stdout[-4000:]
        assert f", canary: {bad}" in done.stdout
        assert driver_of(rack, bad) == DRIVER
        assert "rackproof: health" in state_in_slurm(rack, bad)
        # The other nodes were not changed: in service, with the old driver, and the job on one of them runs.
        assert {driver_of(rack, node) for node in others} == {LAST_YEAR}
        assert not [node for node in others if "drain" in state_in_slurm(rack, node)]
        assert rack(CONTROLLER, f"squeue -h -j {job} -o %T").stdout.strip() == "RUNNING"
        typed = f"ansible-playbook provision.yml -l {','.join(NODES)}"
        assert typed in " ".join(done.stdout.split())
    finally:
        driver("fault", bad, "ecc-uncorrectable", "--off")
        # A reboot ends the fault's messages in the kernel log.
        reboot(rack, [bad])
        rack(CONTROLLER, f"scancel {job}")
    done = play(root, "provision.yml", NODES, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout[-4000:]
    assert [driver_of(rack, node) for node in NODES] == [DRIVER] * len(NODES)
    assert all(state_in_slurm(rack, node).startswith("idle") for node in NODES)
