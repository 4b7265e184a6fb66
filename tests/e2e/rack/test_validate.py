"""Test validate.yml on two provisioned nodes of the test rack, with fake hardware and a real Slurm.

A night is one run of validate.yml. The tests check that:

- a night drains a node with a fault, and the second night without the fault resumes it
- a drain by an operator remains
- a night finds each fault on its node and part, and nothing else
- a night finds a node that left its NVLink domain
- Slurm jobs measure idle nodes, alone and as a pair.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rackproof.store.night_store import NodeNight, night_folders, read_night, read_snapshot
from rackproof.store.probe_results import ProbeNight
from testrack.tests.on_rack import CONTROLLER, PROVISIONED, Command, Done, play
from tests.e2e.rack.rack_faults import MACHINE, Fault, break_, fault, mend, of_slurm, reboot

pytestmark = [pytest.mark.rack, pytest.mark.slow]
BAD, OTHER = PROVISIONED[:2]
"""The node with the fault, and a node that an operator drains."""
DRAIN_BY_BOB = "bob: waits for a cable"
"""The reason with which an operator drains the second node."""
# For each night, the faults of the first and of the second node. A number is the index of the faulty GPU or
# port.
NIGHTS: list[tuple[list[Fault], list[Fault]]] = [
    (
        [
            fault("missing-gpu", 0),
            fault("ecc-uncorrectable", 1),
            fault("row-remap-pending", 2),
            fault("xid", 3),
            fault("hca-port-down", 1),
        ],
        [
            fault("link-trained-down", 3),
            fault("nvlink-down", 2),
            fault("throttling", 1),
            fault("hca-port-down", 0),
            fault("full-disk"),
        ],
    ),
    ([fault("hung-nvidia-smi")], [fault("version-mismatch")]),
    # A wrong clock restarts slurmd, which would wait for a hanging nvidia-smi. So it has another night.
    ([fault("dead-sshd")], [fault("clock-skew")]),
]


@pytest.fixture(scope="module")
def slurm(nodes: list[str], rack: Command) -> Command:
    """Return a function that runs a command on the Slurm controller of both nodes."""
    return lambda command: rack(CONTROLLER, command)


def reason(slurm: Command, node: str) -> str:
    """Return why Slurm keeps a node out of service, or "none"."""
    return slurm(f"sinfo --noheader --Node --nodes {node} --format %E").stdout.strip()


@pytest.fixture
def sound(slurm: Command, driver: Command) -> Iterator[None]:
    """End the fault ``link-trained-down`` of the first node, and resume both nodes, after the test."""
    yield
    driver("fault", BAD, "link-trained-down", "--off")
    slurm(f"scontrol update nodename={BAD},{OTHER} state=resume")


@pytest.mark.usefixtures("sound")
def test_a_night_drains_a_bad_node_and_a_later_night_resumes_it(
    root: Path, tmp_path: Path, slurm: Command, driver: Command
) -> None:
    """The first of three nights drains the node, and the third one resumes it."""
    results = tmp_path / "results"
    acting = ("-e", f"validate_results={results}", "-e", "validate_drain=true", "-e", "validate_resume=true")
    # By default, nights that are less than 12 hours apart count as one. The nights here are minutes apart.
    acting += ("-e", "validate_resume_hours=0")

    def night() -> tuple[Done, dict[str, NodeNight]]:
        done = play(root, "validate.yml", [BAD, OTHER], *acting)
        assert night_folders(results), done.stdout + done.stderr
        return done, {one.node: one for one in read_night(night_folders(results)[0]).nodes}

    assert driver("fault", BAD, "link-trained-down", "--gpu", "2").returncode == 0
    assert slurm(f"scontrol update nodename={OTHER} state=drain reason='{DRAIN_BY_BOB}'").returncode == 0
    done, found = night()
    assert done.returncode == 2, done.stdout
    # The second node has no fault, but the night reports that an operator drained it.
    assert [(one.code, one.verdict.value) for one in found[OTHER].findings] == [("slurm_drained", "degraded")]
    assert DRAIN_BY_BOB in found[OTHER].findings[0].evidence
    assert found[BAD].verdict.value == "fail"
    (why,) = [one for one in found[BAD].findings if one.verdict.value == "fail"]
    assert (why.part, why.place[:5]) == ("gpu", "GPU 2")
    assert found[BAD].did == "drained"
    assert reason(slurm, BAD).startswith("rackproof-night:")
    assert "GPU 2" in reason(slurm, BAD)
    assert reason(slurm, OTHER) == DRAIN_BY_BOB

    assert driver("fault", BAD, "link-trained-down", "--off").returncode == 0
    done, found = night()
    assert done.returncode == 0, done.stdout
    assert "passed 1 of 2 times" in found[BAD].why
    assert reason(slurm, BAD).startswith("rackproof-night:")
    done, found = night()
    assert found[BAD].did == "returned to service", done.stdout
    assert reason(slurm, BAD) == "none"
    assert reason(slurm, OTHER) == DRAIN_BY_BOB


@pytest.fixture
def broken(slurm: Command, driver: Command, rack: Command) -> Iterator[list[str]]:
    """Yield a list of the nodes. After the test, mend, boot and resume those that the test left in it."""
    some = [BAD, OTHER]
    yield some
    for node in some:
        mend(rack, driver, node)
    if some:
        reboot(rack, some)
        slurm(f"scontrol update nodename={BAD},{OTHER} state=resume")


def test_a_night_finds_each_fault_on_its_node_and_part_and_nothing_else(
    root: Path, tmp_path: Path, driver: Command, rack: Command, broken: list[str]
) -> None:
    """Run two nights before the faults, three nights with faults, and one after a reboot.

    Both nodes pass in the second night and after the reboot. Nights compare a node with the snapshot of the
    night before.
    """
    results = tmp_path / "results"
    asked = ("-e", f"validate_results={results}", "-e", "validate_tool_timeout_s=4")

    def night() -> dict[str, NodeNight]:
        done = play(root, "validate.yml", [BAD, OTHER], *asked)
        assert night_folders(results), done.stdout + done.stderr
        return {one.node: one for one in read_night(night_folders(results)[0]).nodes}

    # The first night reads the kernel log since the boot, with faults of other tests, so it may not pass.
    night()
    sound = night()
    assert {one.verdict.value for one in sound.values()} == {"pass"}, [
        one.reason_texts() for one in sound.values()
    ]
    # If a GPU is missing, nvidia-smi renumbers the others, so GPUs are compared by UUID.
    slots = {
        gpu.uuid: f"GPU {gpu.index}"
        for node in (BAD, OTHER)
        if (kept := read_snapshot(night_folders(results)[0], node)) is not None
        for gpu in kept.snapshot.gpus
    }
    assert len(slots) == 8

    def news(one: NodeNight) -> set[tuple[str, str]]:
        # XIDs remain until the next boot of the node. Those of an earlier night are left out.
        return {
            (found.code, slots.get(found.name, found.name))
            for found in one.findings
            if found.verdict.value == "fail" and "reported before" not in found.evidence
            if not of_slurm(found.code)
        }

    for on_bad, on_other in NIGHTS:
        for node, faults in ((BAD, on_bad), (OTHER, on_other)):
            break_(rack, driver, node, faults)
        found = night()
        for node, faults in ((BAD, on_bad), (OTHER, on_other)):
            names = {name for name, _, _ in faults}
            assert news(found[node]) == set().union(*(found_ for _, _, found_ in faults)), found[
                node
            ].reason_texts()
            assert bool(found[node].unreached) == ("dead-sshd" in names)
            assert found[node].verdict.value == ("unproven" if found[node].unreached else "fail")
            mend(rack, driver, node, names & set(MACHINE))
    reboot(rack, broken)
    found = night()
    assert {one.verdict.value for one in found.values()} == {"pass"}, [
        one.reason_texts() for one in found.values()
    ]
    broken.clear()


@pytest.mark.usefixtures("sound")
def test_a_night_finds_a_node_that_left_its_nvlink_domain(
    root: Path, tmp_path: Path, rack: Command, driver: Command
) -> None:
    """Put the node first into another NVLink domain than the night before, and then into none.

    An NVLink domain is the group of nodes whose GPUs are connected by one set of switches. All other checks
    of the GPUs still pass.
    """
    results = tmp_path / "results"

    def night() -> dict[str, NodeNight]:
        done = play(root, "validate.yml", [BAD, OTHER], "-e", f"validate_results={results}")
        assert night_folders(results), done.stdout + done.stderr
        return {one.node: one for one in read_night(night_folders(results)[0]).nodes}

    def fabric(one: NodeNight) -> set[tuple[str, str]]:
        return {(f.code, f.verdict.value) for f in one.findings if f.code.startswith("fabric")}

    hardware = "/var/lib/rack/hardware.json"
    other = f'sed -i.kept -E \'s/("cluster_uuid": *")[0-9a-f]{{8}}/\\1deadbeef/\' {hardware}'
    assert {one.verdict.value for one in night().values()} == {"pass"}
    assert rack(BAD, other).returncode == 0
    try:
        found = night()
        assert fabric(found[BAD]) == {("fabric_changed", "degraded")}, found[BAD].reason_texts()
        assert rack(BAD, f"mv {hardware}.kept {hardware}").returncode == 0
        assert driver("fault", BAD, "no-nvlink-domain").returncode == 0
        found = night()
        # Only this node fails. On a node with its own NVSwitches (HGX), the same answer would be normal.
        assert ("fabric_failed", "fail") in fabric(found[BAD]), found[BAD].reason_texts()
        assert found[OTHER].verdict.value == "pass"
    finally:
        rack(BAD, f"! [ -f {hardware}.kept ] || mv {hardware}.kept {hardware}")
        driver("fault", BAD, "no-nvlink-domain", "--off")


@pytest.mark.torch
def test_slurm_jobs_measure_idle_nodes_alone_and_as_a_pair(
    root: Path, tmp_path: Path, slurm: Command, shared_torch: str
) -> None:
    slurm(f"scontrol update nodename={BAD},{OTHER} state=resume")
    results = tmp_path / "results"
    # Measure on CPUs, all nodes in one night, within a budget that is large enough for all jobs.
    given = {
        "validate_results": str(results),
        "validate_probe_gpu_minutes": 500,
        "validate_probe_python": shared_torch,
        "validate_probe_device": "cpu",
        "validate_probe_share": 1.0,
        "bench_require_references": False,
    }
    done = play(root, "validate.yml", [BAD, OTHER], given=given)
    assert done.returncode == 0, done.stdout
    night = read_night(night_folders(results)[0])
    assert {one.node: one.verdict.value for one in night.nodes} == {BAD: "pass", OTHER: "pass"}
    (probes,) = results.glob("*/probes.json")
    night_probes = ProbeNight.model_validate_json(probes.read_text())
    assert sorted(night_probes.measured) == sorted([BAD, OTHER])
    assert [(sorted(pair.nodes), pair.passed) for pair in night_probes.pairs] == [
        (sorted([BAD, OTHER]), True)
    ]
    assert "rackproof-night" not in slurm("squeue --noheader --format %j").stdout
