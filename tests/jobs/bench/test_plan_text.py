"""Test ``rackproof.jobs.bench.plan_text``, which describes a plan for the operator before it is started.

The text has the images to pull, the data to stage, the Slurm command and the references of each run. A dry
run also lists everything that the runs lack. Most of the tests plan MLPerf benchmarks on a rack of 18 nodes,
of which some do not answer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rackproof.core import definitions
from rackproof.core.judging import parse_sku_reference
from rackproof.core.records import Node
from rackproof.jobs.bench import planning
from rackproof.jobs.bench.launch_slurm import Site
from rackproof.jobs.bench.plan_text import describe_plan, dry_run_answers, lacking
from rackproof.jobs.bench.planning import Plan
from rackproof.logs import FORMATS

VARIABLES = ("bench_mlcommons_fetch", "bench_mlcommons_metadata")
NAMES = [f"n{number:02d}" for number in range(1, 19)]


def rack_plan(
    root: Path, answered: list[str], silent: list[str], *, also: tuple[str, ...] = (), **site: Any
) -> Plan:
    """Plan llama2_70b_lora and the benchmarks ``also`` on a rack of GB300 with some silent nodes."""
    loaded = [
        definitions.load_definition(root / f"benchmarks/{name}.yml", log_formats=FORMATS)
        for name in ("llama2_70b_lora", *also)
    ]
    cluster = Site.model_validate({"shared": "/shared", "sku": "gb300", "sku_gpus": 4, **site})
    every = [*answered, *silent]
    return planning.make_plan(
        loaded,
        {name: Node(name=name, software={"machine": "aarch64"}) for name in answered},
        {name: dict.fromkeys(VARIABLES, "x") for name in every},
        unreached=silent,
        assumed=silent,
        sites=dict.fromkeys(every, cluster),
    )


def reference(**changes: Any) -> Any:
    """Return a reference of the SKU, by default for the NCCL preflight before a training."""
    given = {"metric": "nccl_preflight_busbw", "value": 681, "low": -0.1, "high": 0.4, "unit": "GB/s"}
    return parse_sku_reference({**given, "source": "a table", **changes})


def test_a_rack_of_which_no_node_answers_has_its_whole_plan(root: Path) -> None:
    plan = rack_plan(root, [], NAMES)
    text = describe_plan(plan)
    for line in (
        "18 nodes, from n01: llama2_70b_lora nodes=18",
        "pull    nvcr.io/nvdlfwea/mlperftv51/llama2_70b_lora-arm:20250930 (for arm64, imported once",
        "pull    nvcr.io/nvdlfwea/mlperftv51/llama2_70b_lora-amd:20251008 (for amd64, imported once",
        "stage   /shared/data/llama2_70b_lora/model unless it is there, 300 GB",
        "config  config_GB300_18x4x*.sh",
        "submit  sbatch -N 18 --nodelist=n[01-18] run.sub",
        "judge   convergence by MLCommons' points for global batch sizes 8, 16, 32, 128",
        "judge   time_to_train 1.2612 min, by MLPerf Training 5.1, official, Lambda",
        "not reached: n[01-18]",
    ):
        assert line in text
    (line,) = lacking(plan)
    assert line.startswith("llama2_70b_lora: it runs on all nodes of the rack together, and n[01-18] did not")


def test_one_silent_node_is_in_the_plan_and_is_missing(root: Path) -> None:
    plan = rack_plan(root, NAMES[:-1], NAMES[-1:])
    text = describe_plan(plan)
    assert "-N 18 --nodelist=n[01-18]" in text
    # The nodes that answered have one architecture, so only its image is listed.
    assert "llama2_70b_lora-amd" not in text
    (line,) = lacking(plan)
    assert "n18 did not answer: repair it, or leave it out with -l 'RACK:!n18'" in line


def test_everything_that_is_missing_is_in_one_list(root: Path) -> None:
    plan = rack_plan(root, NAMES[:2], NAMES[2:4], shared="", sku="x", sku_gpus=0)
    lines = lacking(plan)
    for line, words in zip(
        lines,
        (
            "n[03-04] did not answer",
            "bench_shared is not set",
            "no config for SKU x",
            "bench_sku_gpus",
        ),
        strict=True,
    ):
        assert words in line
        assert f"    lacks   {line.removeprefix('llama2_70b_lora: ')}\n" in describe_plan(plan)
    assert lacking(rack_plan(root, NAMES, [])) == []


def test_what_all_benchmarks_lack_comes_before_the_image_that_one_lacks(root: Path) -> None:
    plan = rack_plan(root, [], NAMES, also=("flux1", "llama31_8b"), sku_architecture="arm64")
    every, image = lacking(plan)
    assert every.startswith("llama2_70b_lora, flux1, llama31_8b: it runs on all nodes of the rack together")
    assert image == (
        "flux1: its nodes are arm64, and there are images for amd64: name one with "
        "bench_images: {flux1: REPOSITORY:TAG}"
    )
    text = describe_plan(plan)
    assert "pull    no image for arm64 is known" in text
    assert "-amd:" not in text


def test_the_architecture_that_a_node_reports_chooses_the_image(root: Path) -> None:
    """The inventory's architecture, which is wrong here, is not used."""
    text = describe_plan(rack_plan(root, NAMES[:1], NAMES[1:], sku_architecture="amd64"))
    assert "llama2_70b_lora-arm:20250930" in text
    assert "-amd:" not in text


# A case has the racks of the nodes that answer and of the silent ones, and for the first node of each rack
# the silent node that prevents the run.
@pytest.mark.parametrize(
    ("racks", "silent", "against"),
    [
        ({"a1": "a", "a2": "a", "b1": "b"}, {"b2": "b"}, {"a1": "", "b1": "b2"}),
        ({"a1": "a", "a2": "a", "b1": "b"}, {"a3": "a", "b2": "b"}, {"a1": "a3", "b1": "b2"}),
        ({"a1": "a", "a2": "a", "b1": "b"}, {"c1": "c"}, {"a1": "", "b1": ""}),
        ({"a1": "", "a2": "", "b1": ""}, {"b2": ""}, {"a1": "b2"}),
        # The inventory of a silent node may be unknown, so it may be in any rack.
        ({"a1": "a", "a2": "a", "b1": "b"}, {"x": None}, {"a1": "x", "b1": "x"}),
    ],
)
@pytest.mark.parametrize("name", ["llama31_8b", "ssd-0.6"])
def test_a_silent_node_stops_only_the_runs_of_its_rack(
    root: Path,
    name: str,
    racks: dict[str, str],
    silent: dict[str, str | None],
    against: dict[str, str],
) -> None:
    together = name != "llama31_8b"
    cluster = {"shared": "/shared", "sku": "gb300", "sku_gpus": 4, "repeats": 1, "together": together}
    variables = (*VARIABLES, "bench_data", "bench_home", "bench_mlperf06_sources", "bench_workloads")
    plan = planning.make_plan(
        [definitions.load_definition(root / f"benchmarks/{name}.yml", log_formats=FORMATS)],
        {host: Node(name=host, software={"machine": "aarch64"}) for host in racks},
        {host: {**dict.fromkeys(variables, "x"), "bench_mlperf06_ref": "a" * 40} for host in racks},
        unreached=list(silent),
        sites={host: Site.model_validate({**cluster, "rack": rack}) for host, rack in racks.items()},
        racks={host: rack for host, rack in silent.items() if rack is not None},
    )
    assert {run.lead for run in plan.runs} == set(against)
    for run in plan.runs:
        missing = against[run.lead]
        assert (f"and {missing} did not answer" in run.unproven_because) is bool(missing)
        assert ("did not answer" in run.unproven_because) is bool(missing)


# A case has the name of the node with an obstacle, the silent nodes, and the last line.
@pytest.mark.parametrize(
    ("name", "silent", "line"),
    [
        ("n10", ("n1",), "n1 did not answer"),
        ("n1", ("n10",), "n10 did not answer"),
        ("n7", ("n7",), "n7 did not answer"),
        ("gpu", ("gpu-1", "gpu-2"), "gpu-[1-2] did not answer"),
        ("a.b", ("b", "a"), "a,b did not answer"),
    ],
)
def test_a_silent_node_is_listed_whatever_its_name(
    root: Path, name: str, silent: tuple[str, ...], line: str
) -> None:
    plan = rack_plan(root, [name], [])
    obstacle = {"unproven_because": f"{name}: lacks x", "obstacles": ()}
    runs = tuple(run.model_copy(update=obstacle) for run in plan.runs)
    plan = plan.model_copy(update={"runs": runs, "unreached": silent})
    assert sorted(lacking(plan)[-1].removesuffix(" did not answer").split(",")) == sorted(
        line.removesuffix(" did not answer").split(",")
    )
    assert lacking(plan)[0] == f"llama2_70b_lora: {name}: lacks x"


def test_a_silent_node_without_a_run_is_also_listed(root: Path) -> None:
    plan = rack_plan(root, NAMES[:2], []).model_copy(update={"unreached": ("n07", "n08")})
    assert lacking(plan) == ["n[07-08] did not answer"]


@pytest.mark.parametrize(
    ("references", "lines", "other"),
    [
        ([], ["has no reference: unproven until"], False),
        ([reference()], ["681 GB/s, by a table"], False),
        (
            [reference(labels={"ranks": "72", "dtype": "half"})],
            [
                "681 GB/s at ranks=72 dtype=half, by a table",
                "of another case has no reference: unproven until",
            ],
            True,
        ),
        ([reference(benchmark="flux1")], ["has no reference: unproven until"], False),
    ],
)
def test_each_reference_that_judges_is_shown_with_its_case(
    root: Path, references: list[Any], lines: list[str], other: bool
) -> None:
    text = describe_plan(rack_plan(root, NAMES, []), references)
    for line in lines:
        assert f"judge   nccl_preflight_busbw {line}" in text
    assert ("of another case" in text) is other


def test_without_published_references_the_plan_says_that_a_first_run_is_unproven(root: Path) -> None:
    text = describe_plan(rack_plan(root, NAMES, [], published_references=False))
    assert "judge   time_to_train has no reference: unproven until" in text


def answered(missing: list[str], *phases: str) -> dict[str, Any]:
    """Return the result of a node's dry run, with the missing things and the state of each phase."""
    reports = [f":::RACKPROOF {json.dumps({'phase': one})}" for one in phases]
    return {"stdout_lines": [*reports, ':::RACKPROOF {"node": "n1"}', json.dumps({"lacking": missing})]}


def test_what_several_nodes_answer_is_listed_once() -> None:
    results = [
        answered(["the image", "room"], "flux1: there"),
        {"skipped": True},
        answered(["room"], "flux1: there", "llama: not there yet"),
    ]
    assert dry_run_answers(results) == {
        "phases": ["flux1: there", "llama: not there yet"],
        "lacking": ["room", "the image"],
    }
    assert dry_run_answers([]) == {"phases": [], "lacking": []}


@pytest.mark.parametrize("line", ["", "[]", "null", "{}", '{"lacking": 3}', "Killed"])
def test_an_answer_that_was_cut_off_is_an_error(line: str) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        dry_run_answers([{"stdout_lines": [line]}])


DEFINITION = """
name: disk
summary: Reads a disk
launch: {with: local, command: [dd, --version], timeout_s: 60, hang_s: 60}
result:
  format: lines
  lines:
    good_end: copied
    metrics: {read: {pattern: '(\\d+) MB/s', unit: MB/s}}
  judge: [{metric: read, unit: MB/s, direction: higher}]
"""


# The benchmark judges only a speed. The plan notes that unless a reference fits. None means no reference.
@pytest.mark.parametrize(
    ("changes", "notes"),
    [(None, 1), ({}, 0), ({"benchmark": "disk"}, 0), ({"benchmark": "llm"}, 1), ({"metric": "write"}, 1)],
)
def test_a_plan_says_that_a_run_judges_speed_alone_if_it_has_no_reference(
    tmp_path: Path, changes: dict[str, Any] | None, notes: int
) -> None:
    (tmp_path / "disk.yml").write_text(DEFINITION)
    loaded = definitions.load_definition(tmp_path / "disk.yml", log_formats=FORMATS)
    plan = planning.make_plan([loaded], {"n1": Node(name="n1")}, {"n1": {}})
    given = {"metric": "read", "value": 700, "unit": "MB/s"}
    baselines = [] if changes is None else [reference(**{**given, **changes})]
    assert describe_plan(plan, baselines).count("judges speed alone") == notes
