"""Test reimage.yml on nodes of the test rack, which are containers.

With the method ``rack``, the playbook replaces a node's container instead of writing an image. All other
steps are the same as for a machine: drain, provision, validate, and resume. One test also measures the node
alone and with a partner before it is resumed. The longer one re-images many nodes in waves.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rackproof.jobs.reimage import tasks
from rackproof.jobs.reimage.lifecycle import STEPS, Step
from rackproof.store.probe_results import ProbeNight
from testrack.tests.on_rack import CONTROLLER, NAMED, PROVISIONED, Command, play

pytestmark = [pytest.mark.rack, pytest.mark.slow, pytest.mark.timeout(1800)]
PARTNER, NODE = PROVISIONED[:2]
BOOT = "cat /proc/sys/kernel/random/boot_id"


@pytest.mark.torch
def test_a_node_comes_back_after_it_was_measured_alone_and_with_a_partner(
    root: Path, tmp_path: Path, rack: Command, nodes: list[str], shared_torch: str
) -> None:
    """Slurm and the all-reduce of both nodes are real. The speeds mean nothing, because the CPUs compute."""
    results = tmp_path / "results"
    health = {"validate_results": str(results), "bench_require_references": False}
    done = play(root, "validate.yml", [PARTNER], given=health)
    assert done.returncode == 0, done.stdout
    before = rack(NODE, BOOT).stdout
    given = {
        "reimage_method": "rack",
        "reimage_results": str(results),
        "reimage_acceptance": ["probes", "pair"],
        "validate_probe_python": shared_torch,
        "validate_probe_device": "cpu",
        "bench_require_references": False,
    }
    done = play(root, "reimage.yml", [NODE], given=given, timeout=1500)
    assert done.returncode == 0, done.stdout
    (found,) = tasks.read_progress(results)
    assert (found.node, found.progress.state) == (NODE, "returned"), done.stdout
    assert set(STEPS) - {Step.BOOT} <= set(found.progress.done)
    assert rack(NODE, BOOT).stdout not in ("", before)
    # The results are stored, with the partner.
    nights = [ProbeNight.model_validate_json(path.read_text()) for path in results.glob("*/probes.json")]
    assert [one.measured for one in nights if one.measured] == [(NODE,)]
    assert [(sorted(pair.nodes), pair.passed) for one in nights for pair in one.pairs] == [
        (sorted([PARTNER, NODE]), True)
    ]
    listed = rack(CONTROLLER, f"sinfo -hN -n {PARTNER},{NODE} -o '%N %T'; squeue -h").stdout
    assert sorted(listed.splitlines()) == sorted([f"{PARTNER} idle", f"{NODE} idle"])


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_many_nodes_go_through_all_states_wave_by_wave(root: Path, tmp_path: Path, rack: Command) -> None:
    if len(NAMED) < 4:
        pytest.skip("four provisioned nodes are needed: name them in RACK_TEST_NODES")
    results = tmp_path / "results"
    given = {
        "reimage_method": "rack",
        "reimage_results": str(results),
        "reimage_per_rack": 8,
        "reimage_per_partition": 8,
        "reimage_canary": 0,
    }
    done = play(root, "reimage.yml", NAMED, given=given, timeout=3400)
    assert done.returncode == 0, done.stdout
    found = {one.node: one.progress for one in tasks.read_progress(results)}
    assert sorted(found) == sorted(NAMED)
    assert {one.state for one in found.values()} == {"returned"}
    assert all(set(STEPS) - {Step.BOOT} <= set(one.done) for one in found.values())
    listed = rack(CONTROLLER, f"sinfo -hN -n {','.join(NAMED)} -o '%N %T'").stdout
    assert sorted(listed.splitlines()) == sorted(f"{node} idle" for node in NAMED)
    print(done.stdout[-3000:])
