"""Test plans of a benchmark with a matrix (``rackproof.jobs.bench.planning`` and ``plan_text``).

A matrix lists the values of several parameters, and each combination is a point. The tests check the order of
the points, the filters ``only`` and ``exclude``, and the duration that the text of the plan expects.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rackproof.core import definitions
from rackproof.core.definitions import DefinitionError, LoadedDefinition
from rackproof.core.records import Gpu, Node
from rackproof.jobs.bench import planning
from rackproof.jobs.bench.node_setup import ExperimentConfig, Storage
from rackproof.jobs.bench.plan_text import describe_plan
from rackproof.jobs.bench.planning import Plan
from rackproof.logs import FORMATS

# Eight points. FILTERS is replaced by the filters of a test.
TEXT = """\
name: train
summary: Trains
parameters: {gpus: 1, network: host, storage: local, precision: bf16}
matrix:
  gpus: [1, 2]
  network: [host, overlay]
  storage: [local, s3fs]
FILTERS
launch: {with: local, runtime: torch, program: train.py, arguments: {gpus: "{{ gpus }}"}, timeout_s: 600}
result:
  judge: [{metric: eval_accuracy, at_least: 0.9}]
"""


def loaded(tmp_path: Path, filters: str = "") -> LoadedDefinition:
    path = tmp_path / "train.yml"
    path.write_text(TEXT.replace("FILTERS", filters))
    return definitions.load_definition(path, log_formats=FORMATS)


def plan(one: LoadedDefinition, names: tuple[str, ...] = ("n1",), **options: object) -> Plan:
    gpus = tuple(Gpu(index=index, uuid=f"GPU-{index}") for index in range(2))
    nodes = {name: Node(name=name, gpus=gpus) for name in names}
    known = {name: Storage(kind=name, folder="/data") for name in ("local", "s3fs")}  # type: ignore[arg-type]
    options.setdefault("experiments", {name: ExperimentConfig(storages=known) for name in names})
    options.setdefault("addresses", {name: f"192.0.2.{rank}" for rank, name in enumerate(names, 1)})
    return planning.make_plan([one], nodes, {name: {} for name in names}, **options)  # type: ignore[arg-type]


def points(made: Plan) -> list[tuple[object, ...]]:
    """Return network, storage and GPUs of each run in the order of the plan."""
    return [tuple(run.parameters[name] for name in ("network", "storage", "gpus")) for run in made.runs]


def test_the_network_and_the_storage_change_least(tmp_path: Path) -> None:
    found = points(plan(loaded(tmp_path)))
    assert found == [
        (network, storage, gpus)
        for network in ("host", "overlay")
        for storage in ("local", "s3fs")
        for gpus in (1, 2)
    ]
    both = plan(loaded(tmp_path), ("n1", "n2"))
    assert [run.lead for run in both.runs] == ["n1"] * 8 + ["n2"] * 8


def test_only_keeps_points_and_exclude_leaves_points_out(tmp_path: Path) -> None:
    filters = "only: [{storage: local}, {gpus: 2, network: [host, overlay]}]\n"
    filters += "exclude: [{gpus: [1], network: overlay}]"
    assert points(plan(loaded(tmp_path, filters))) == [
        ("host", "local", 1),
        ("host", "local", 2),
        ("host", "s3fs", 2),
        ("overlay", "local", 2),
        ("overlay", "s3fs", 2),
    ]


@pytest.mark.parametrize("kind", ["only", "exclude"])
def test_a_filter_that_names_no_parameter_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(DefinitionError, match=rf"{kind}: `gpu` is not one of the parameters.*`gpus`"):
        loaded(tmp_path, f"{kind}: [{{gpu: 1}}]")
    with pytest.raises(DefinitionError, match="fits every point"):
        loaded(tmp_path, f"{kind}: [{{}}]")


def test_a_plan_says_how_many_runs_and_how_long(tmp_path: Path) -> None:
    """A run has the duration of earlier runs, or else its limit of 600 s."""
    one = loaded(tmp_path)
    assert describe_plan(plan(one)).startswith(
        "train: 8 runs; 8 have no successful run here yet and take at most 1 h 20 min by their limits\n"
    )
    half = plan(one, estimate=lambda name, point, node: 50.0 if point["network"] == "host" else None)
    assert describe_plan(half).splitlines()[0] == (
        "train: 8 runs, about 200 s for 4 of them by earlier runs; 4 have no successful run here yet and "
        "take at most 40 min 00 s by their limits"
    )
    last = plan(
        one, estimate=lambda name, point, node: None if point == plan(one).runs[0].parameters else 50.0
    )
    assert "; 1 has no successful run here yet and takes at most 10 min 00 s by its limit" in describe_plan(
        last
    )
    every = plan(one, estimate=lambda *_: 50.0)
    assert describe_plan(every).splitlines()[0] == "train: 8 runs, about 400 s by earlier runs"


def test_an_estimate_is_asked_for_the_point_as_runs_record_it(tmp_path: Path) -> None:
    path = tmp_path / "train.yml"
    path.write_text(TEXT.replace("FILTERS", "").replace("precision: bf16", 'precision: ""'))
    asked = []
    plan(
        definitions.load_definition(path, log_formats=FORMATS),
        estimate=lambda name, point, node: asked.append(point),
    )
    assert asked
    assert all("precision" not in point for point in asked)
