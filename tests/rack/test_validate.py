"""validate.yml on the rack: each fault is found on its node and part; who is bad is drained and returned."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from on_rack import CONTROLLER, PROVISIONED, Command, Done, play

from rackproof.fleet.probing import ProbeNight
from rackproof.fleet.record import NodeNight, nights, read_look, read_night

pytestmark = [pytest.mark.rack, pytest.mark.slow]
BAD, THEIRS = PROVISIONED[:2]
STRANGER = "bob: waits for a cable"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
MACHINE = ("full-disk", "clock-skew", "dead-sshd")
"""Faults of the machine; the others are of the stand-in hardware, which a node switches by itself."""
# Night by night: the faults that are switched on on each of the two nodes, and all that fails there for it.
NIGHTS: list[tuple[dict[str, set[tuple[str, str]]], dict[str, set[tuple[str, str]]]]] = [
    (
        {
            "missing-gpu --gpu 0": {("gpu_missing", "GPU 0"), ("xid_79", "GPU 0")},
            "ecc-uncorrectable --gpu 1": {
                ("ecc_sram_uncorrectable", "GPU 1"),
                ("recovery_needed", "GPU 1"),
                ("xid_95", "GPU 1"),
                ("xid_154", "GPU 1"),
            },
            "row-remap-pending --gpu 2": {
                ("remap_pending", "GPU 2"),
                ("recovery_needed", "GPU 2"),
                ("xid_48", "GPU 2"),
                ("xid_154", "GPU 2"),
            },
            "xid --gpu 3 --number 119": {("xid_119", "GPU 3")},
            "hca-port-down --hca 1": {("port_down", "mlx5_1/1"), ("port_link_downed", "mlx5_1/1")},
        },
        {
            "link-trained-down --gpu 3": {("pcie_width", "GPU 3")},
            "nvlink-down --gpu 2": {("nvlink_down", "GPU 2"), ("xid_74", "GPU 2")},
            "throttling --gpu 1": {("throttled", "GPU 1"), ("temperature", "GPU 1")},
            "hca-port-down --hca 0": {("port_down", "mlx5_0/1"), ("port_link_downed", "mlx5_0/1")},
            "full-disk": {("disk_full", "")},
        },
    ),
    (
        {"hung-nvidia-smi": {("tool_hung", "")}},
        {"version-mismatch": {("no_driver", "")}},
    ),
    # With a wrong clock slurmd starts anew: it would wait for a tool that hangs.
    ({"dead-sshd": set()}, {"clock-skew": {("clock", "")}}),
]


@pytest.fixture(scope="module")
def slurm(nodes: list[str], rack: Command) -> Command:
    """Run a command on Slurm's controller, which knows both nodes."""
    return lambda command: rack(CONTROLLER, command)


def reason(slurm: Command, node: str) -> str:
    """Return why Slurm keeps a node out of service; none where it does not."""
    return slurm(f"sinfo --noheader --Node --nodes {node} --format %E").stdout.strip()


@pytest.fixture
def sound(slurm: Command, driver: Command) -> Iterator[None]:
    """Leave both nodes without fault and in service."""
    yield
    driver("fault", BAD, "link-trained-down", "--off")
    slurm(f"scontrol update nodename={BAD},{THEIRS} state=resume")


@pytest.mark.usefixtures("sound")
def test_a_bad_node_is_found_drained_and_returned(
    root: Path, tmp_path: Path, slurm: Command, driver: Command
) -> None:
    """Three nights in one test: each needs what the one before left."""
    results = tmp_path / "results"
    acting = ("-e", f"validate_results={results}", "-e", "validate_drain=true", "-e", "validate_return=true")

    def night() -> tuple[Done, dict[str, NodeNight]]:
        done = play(root, "validate.yml", [BAD, THEIRS], *acting)
        assert nights(results), done.stdout + done.stderr
        return done, {one.node: one for one in read_night(nights(results)[0]).nodes}

    assert driver("fault", BAD, "link-trained-down", "--gpu", "2").returncode == 0
    assert slurm(f"scontrol update nodename={THEIRS} state=drain reason='{STRANGER}'").returncode == 0
    done, found = night()
    assert done.returncode == 2, done.stdout
    assert found[THEIRS].verdict.value == "pass", found[THEIRS].says()
    assert found[BAD].verdict.value == "fail"
    (why,) = [one for one in found[BAD].findings if one.verdict.value == "fail"]
    assert (why.part, why.place[:5]) == ("gpu", "GPU 2")
    assert found[BAD].did == "drained"
    assert reason(slurm, BAD).startswith("rackproof-night:")
    assert "GPU 2" in reason(slurm, BAD)
    assert reason(slurm, THEIRS) == STRANGER

    assert driver("fault", BAD, "link-trained-down", "--off").returncode == 0
    done, found = night()
    assert done.returncode == 0, done.stdout
    assert "passed 1 of 2 times" in found[BAD].why
    assert reason(slurm, BAD).startswith("rackproof-night:")
    done, found = night()
    assert found[BAD].did == "returned to service", done.stdout
    assert reason(slurm, BAD) == "none"
    assert reason(slurm, THEIRS) == STRANGER


@pytest.fixture
def broken(slurm: Command, driver: Command, rack: Command) -> Iterator[list[str]]:
    """Return the nodes that have to be mended, booted and given work again in the end."""
    some = [BAD, THEIRS]
    yield some
    for node in some:
        for name in MACHINE:
            driver("fault", node, name, "--off")
        mend(rack, node)
    if some:
        reboot(rack)
        slurm(f"scontrol update nodename={BAD},{THEIRS} state=resume")


def break_(rack: Command, driver: Command, node: str, faults: dict[str, set[tuple[str, str]]]) -> None:
    """Switch faults on: the hardware's by the node itself, in one call."""
    hardware = [f"/opt/rack/hardware --fault {words}" for words in faults if words not in MACHINE]
    done = rack(node, " && ".join(hardware) or "true")
    assert done.returncode == 0, done.stderr
    for name in set(faults) & set(MACHINE):
        assert driver("fault", node, name).returncode == 0


def mend(rack: Command, node: str) -> None:
    """Switch all faults of the hardware off."""
    names = {words.split()[0] for night in NIGHTS for faults in night for words in faults} - set(MACHINE)
    rack(node, "; ".join(f"/opt/rack/hardware --fault {name} --off" for name in sorted(names)))


def reboot(rack: Command) -> None:
    """Boot both nodes; Slurm has them back when they answer."""
    before = {node: rack(node, f"cat {BOOT_ID}; systemctl reboot").stdout for node in (BAD, THEIRS)}
    deadline = time.monotonic() + 90
    for node, boot in before.items():
        while (now := rack(node, f"cat {BOOT_ID}").stdout) in ("", boot):
            assert time.monotonic() < deadline, node
            time.sleep(0.5)
        assert now


def test_every_fault_is_found_on_its_node_and_part_and_nothing_else(
    root: Path, tmp_path: Path, driver: Command, rack: Command, broken: list[str]
) -> None:
    """Nights in one test: what is missing was there before, and who was bad passes in the end."""
    results = tmp_path / "results"
    asked = ("-e", f"validate_results={results}", "-e", "validate_tool_timeout_s=4")

    def night() -> dict[str, NodeNight]:
        done = play(root, "validate.yml", [BAD, THEIRS], *asked)
        assert nights(results), done.stdout + done.stderr
        return {one.node: one for one in read_night(nights(results)[0]).nodes}

    assert {one.verdict.value for one in night().values()} == {"pass"}
    # Where a GPU is gone nvidia-smi numbers the others anew; its UUID is what it is.
    slots = {
        gpu.uuid: f"GPU {gpu.index}"
        for node in (BAD, THEIRS)
        if (kept := read_look(nights(results)[0], node)) is not None
        for gpu in kept.look.gpus
    }
    assert len(slots) == 8

    def news(one: NodeNight) -> set[tuple[str, str]]:
        # XIDs stay until the node was booted: those of an earlier night are no news.
        return {
            (found.code, slots.get(found.name, found.name))
            for found in one.findings
            if found.verdict.value == "fail" and "reported before" not in found.evidence
        }

    for on_bad, on_theirs in NIGHTS:
        for node, faults in ((BAD, on_bad), (THEIRS, on_theirs)):
            break_(rack, driver, node, faults)
        found = night()
        for node, faults in ((BAD, on_bad), (THEIRS, on_theirs)):
            assert news(found[node]) == set().union(*faults.values()), found[node].says()
            assert bool(found[node].unreached) == ("dead-sshd" in faults)
            assert found[node].verdict.value == ("unproven" if found[node].unreached else "fail")
            for name in set(faults) & set(MACHINE):
                assert driver("fault", node, name, "--off").returncode == 0
            mend(rack, node)
    reboot(rack)
    found = night()
    assert {one.verdict.value for one in found.values()} == {"pass"}, [one.says() for one in found.values()]
    broken.clear()


@pytest.mark.torch
def test_idle_nodes_are_measured_by_slurm_s_jobs_alone_and_as_a_pair(
    root: Path, tmp_path: Path, slurm: Command, shared_torch: str
) -> None:
    slurm(f"scontrol update nodename={BAD},{THEIRS} state=resume")
    results = tmp_path / "results"
    given = {
        "validate_results": str(results),
        "validate_probe_gpu_minutes": 500,
        "validate_probe_python": shared_torch,
        "validate_probe_device": "cpu",
        "validate_probe_share": 1.0,
        "bench_require_references": False,
    }
    done = play(root, "validate.yml", [BAD, THEIRS], given=given)
    assert done.returncode == 0, done.stdout
    night = read_night(nights(results)[0])
    assert {one.node: one.verdict.value for one in night.nodes} == {BAD: "pass", THEIRS: "pass"}
    (probes,) = results.glob("*/probes.json")
    told = ProbeNight.model_validate_json(probes.read_text())
    assert sorted(told.measured) == sorted([BAD, THEIRS])
    assert [(sorted(pair.nodes), pair.passed) for pair in told.pairs] == [(sorted([BAD, THEIRS]), True)]
    assert "rackproof-night" not in slurm("squeue --noheader --format %j").stdout
