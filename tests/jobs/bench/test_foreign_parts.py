"""Test that a run is stored without parts of other nodes.

A part is a serial number, or a GPU's UUID. A node may report parts that belong to another node, by mistake or
by intent. ``rackproof.store.known_parts`` compares them with earlier nights. These tests check that task
record then makes the run unproven and stores none of these parts, and that a node's own parts, new GPUs and
accepted GPUs raise no finding.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rackproof.core.records import Run, Verdict
from rackproof.store.run_folder import read_run
from tests.jobs.bench.test_bench_tasks import Site
from tests.jobs.validate.nights import uuid
from tests.jobs.validate.test_hostile_nodes import CLAIMS
from tests.jobs.validate.test_identity import FIRST, SECOND, machine, night

# A node that was in no night.
NEW = "r1-n99"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    night(site.results, {})
    return site


def recorded(site: Site, name: str, answer: dict[str, Any]) -> Run:
    """Return the record of a run on a node that reports these facts about itself."""
    outcome = site.plan(name)
    site.record(outcome, facts={name: answer["facts"]})
    return read_run(site.results / outcome.plan.runs[0].run_id)


def codes(run: Run) -> set[str]:
    return {finding.code for finding in run.findings}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_run_of_a_node_that_reports_parts_of_others_is_unproven_and_stores_none(
    site: Site, claim: str
) -> None:
    run = recorded(site, SECOND, CLAIMS[claim]())
    assert run.verdict is Verdict.UNPROVEN
    assert "foreign_parts" in codes(run)
    (kept,) = run.nodes
    victim = {uuid(number, slot) for number in (0, 2) for slot in range(4)} | {"SN0000"}
    assert victim.isdisjoint({kept.serial, kept.hardware_key, *(gpu.uuid for gpu in kept.gpus)})
    (text,) = [one.message for one in run.findings if one.code == "foreign_parts"]
    assert f"of {FIRST}" in text


OWN: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "its own parts": (SECOND, lambda: machine(1)),
    "a new GPU": (SECOND, lambda: machine(1, chips={2: uuid(77, 2)})),
    "a GPU in another slot": (SECOND, lambda: machine(1, chips={0: uuid(1, 1), 1: uuid(1, 0)})),
    "a node that no night has seen": (NEW, lambda: machine(1, hostname=NEW)),
}


@pytest.mark.parametrize("name", OWN)
def test_a_node_s_own_and_new_parts_are_stored(site: Site, name: str) -> None:
    node, answer = OWN[name]
    run = recorded(site, node, answer())
    assert "foreign_parts" not in codes(run)
    assert run.nodes[0].serial == "SN0001"
    assert len(run.nodes[0].gpus) == 4


def test_a_gpu_that_an_operator_accepted_on_a_node_is_the_node_s_own(site: Site) -> None:
    moved = machine(1, chips={0: uuid(0, 0)})
    left = machine(0, chips={0: uuid(88, 0)})
    assert "foreign_parts" in codes(recorded(site, SECOND, moved))
    night(site.results, {FIRST: left, SECOND: moved}, accepted=(FIRST, SECOND))
    run = recorded(site, SECOND, moved)
    assert "foreign_parts" not in codes(run)
    assert uuid(0, 0) in {gpu.uuid for gpu in run.nodes[0].gpus}
