"""Test ``rackproof.jobs.bench.planning``, which makes the list of runs that one command requests.

A plan has a run for each combination of parameters (point) and each node, or for a rack as a whole. The tests
check which points are left out, which runs are planned but unproven because something is missing, and when an
interrupted plan is continued instead of started again. They also check the image of an MLPerf benchmark for
the architecture of its nodes.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rackproof.core import definitions
from rackproof.core.definitions import DefinitionError, JudgeRule, LoadedDefinition
from rackproof.core.records import Gpu, Node, Run, Verdict
from rackproof.jobs.bench import launch_slurm, mlperf_checks, planning
from rackproof.jobs.bench.launch_slurm import Site
from rackproof.jobs.bench.plan_text import describe_plan
from rackproof.jobs.bench.planning import Plan
from rackproof.logs import FORMATS
from rackproof.store.run_folder import ResultsError, write_run

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
TEXT = """\
name: train
summary: Trains
parameters: {gpus: all, batch_size: 64, lr: ""}
suites:
  sweep: {gpus: [0, 1, 2, 4, 8], batch_size: [64, 128]}
launch:
  with: local
  runtime: torch
  program: train.py
  arguments: {data: "{{ bench_data }}", gpus: "{{ gpus }}", batch: "{{ batch_size }}", lr: "{{ lr }}"}
result:
  judge: [{metric: eval_accuracy, at_least: 0.9}]
"""


@pytest.fixture
def train(tmp_path: Path) -> LoadedDefinition:
    path = tmp_path / "train.yml"
    path.write_text(TEXT)
    return definitions.load_definition(path, log_formats=FORMATS)


def node(name: str, gpus: int) -> Node:
    return Node(name=name, gpus=tuple(Gpu(index=i, uuid=f"GPU-{name}-{i}") for i in range(gpus)))


def plan(train: LoadedDefinition, gpus: int = 2, now: datetime = NOW, **options: object) -> Plan:
    """Return a plan of the benchmark on node n1, which has two GPUs by default."""
    return planning.make_plan(
        [train],
        {"n1": node("n1", gpus)},
        {"n1": {"bench_data": "/data"}},
        now=now,
        **options,  # type: ignore[arg-type]
    )


def test_a_suite_leaves_out_what_a_node_cannot_run_and_reports_it(train: LoadedDefinition) -> None:
    made = plan(train, suite="sweep")
    assert [(r.parameters["gpus"], r.parameters["batch_size"]) for r in made.runs] == [
        (gpus, batch) for gpus in (0, 1, 2) for batch in (64, 128)
    ]
    assert {one.reason for one in made.skipped} == {"gpus=4: n1 has 2", "gpus=8: n1 has 2"}
    assert made.runs[0].arguments == ("--data=/data", "--gpus=0", "--batch=64")
    assert "lr" not in made.runs[0].parameters


def test_a_gpu_asked_for_but_absent_is_planned_as_unproven(train: LoadedDefinition) -> None:
    made = plan(train, overrides={"gpus": (4,)})
    assert len(made.runs) == 1
    assert made.runs[0].unproven_because == "4 GPUs requested, n1 has 2; give gpus=2 or fewer"


@pytest.mark.parametrize(("gpus", "used"), [(0, 0), (1, 1), (8, 8)])
def test_all_means_all_gpus_of_the_node(train: LoadedDefinition, gpus: int, used: int) -> None:
    assert [run.parameters["gpus"] for run in plan(train, gpus).runs] == [used]


def test_too_few_gpus_leave_a_benchmark_out(train: LoadedDefinition) -> None:
    needy = train.model_copy(
        update={"definition": train.definition.model_copy(update={"needs_gpus": 2})},
    )
    made = plan(needy, gpus=1)
    assert made.runs == ()
    assert made.skipped[0].reason == "needs 2 GPUs, n1 has 1"


def test_an_unknown_parameter_is_refused_with_near_names(train: LoadedDefinition) -> None:
    with pytest.raises(DefinitionError, match="`batch_size`"):
        plan(train, overrides={"bach_size": (1,)})


def test_nodes_that_did_not_answer_stay_in_the_plan(train: LoadedDefinition) -> None:
    made = plan(train, unreached=["n2"])
    assert made.unreached == ("n2",)
    assert "not reached: n2" in describe_plan(made)


def test_run_ids_stay_distinct_when_chance_repeats_itself(
    train: LoadedDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = iter(["20260501T120000Z-train-a"] * 5 + [f"20260501T120000Z-train-{n}" for n in range(9)])
    monkeypatch.setattr(planning, "new_run_id", lambda benchmark, now: next(ids))
    made = plan(train, suite="sweep")
    assert len({run.run_id for run in made.runs}) == len(made.runs) == 6


@pytest.mark.parametrize("overrides", [{"gpus": (1,)}, {}])
def test_a_benchmark_of_which_every_point_is_excluded_is_named(
    train: LoadedDefinition, overrides: dict[str, tuple[int, ...]]
) -> None:
    alone = train.model_copy(
        update={"definition": train.definition.model_copy(update={"exclude": ({"gpus": (1,)},)})}
    )
    made = plan(alone, gpus=1, overrides=overrides)
    assert made.runs == ()
    assert "train: " in describe_plan(made)
    assert "excludes" in made.skipped[0].reason
    assert made.unused == {"n1": f"train: {made.skipped[0].reason}"}


def test_a_node_on_which_something_runs_is_not_unused(train: LoadedDefinition) -> None:
    assert plan(train, suite="sweep").skipped
    assert plan(train, suite="sweep").unused == {}


def recorded(planned: planning.PlannedRun, results: Path, **facts: object) -> None:
    """Write the record of a planned run."""
    run = Run.model_validate({"run_id": planned.run_id, "benchmark": planned.benchmark, **facts})
    write_run(run, results / planned.run_id)


@pytest.mark.parametrize(
    "other", [{"run_id": "another"}, {"benchmark": "another"}, {"plan_id": "plan-of-somebody-else"}]
)
def test_the_record_of_another_run_is_refused(
    train: LoadedDefinition, tmp_path: Path, other: dict[str, str]
) -> None:
    made = plan(train)
    recorded(made.runs[0], tmp_path, verdict="pass", **other)
    with pytest.raises(ResultsError, match="another run"):
        made.done(tmp_path)


def test_a_run_whose_job_still_runs_is_not_done(train: LoadedDefinition, tmp_path: Path) -> None:
    made = plan(train)
    running = {"code": planning.STILL_RUNNING, "message": "not seen to end", "verdict": "unproven"}
    recorded(made.runs[0], tmp_path, findings=[running])
    assert made.done(tmp_path) == {}
    recorded(made.runs[0], tmp_path)
    assert set(made.done(tmp_path)) == {made.runs[0].run_id}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"plan_id": "plan-', '"plan_id": "plan-other-'),
        ('"run_id": "20', '"run_id": "../../20'),
        ('"lead": "n1"', '"leader": "n1"'),
        ('"timeout_s": 3600', '"timeout_s": "long"'),
    ],
)
def test_a_plan_that_was_tampered_with_is_not_carried_out(
    train: LoadedDefinition, tmp_path: Path, old: str, new: str
) -> None:
    made, _ = planning.resume_or_keep(plan(train), tmp_path)
    path = tmp_path / made.plan_id / planning.PLAN_FILE
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ResultsError, match="damaged"):
        planning.read_plan(tmp_path, made.plan_id)
    _, resumed = planning.resume_or_keep(plan(train), tmp_path)
    assert not resumed


def test_a_plan_that_names_a_run_twice_is_damaged(train: LoadedDefinition, tmp_path: Path) -> None:
    made = plan(train)
    twice = made.model_copy(update={"runs": made.runs * 2})
    (tmp_path / made.plan_id).mkdir()
    (tmp_path / made.plan_id / planning.PLAN_FILE).write_text(twice.model_dump_json())
    with pytest.raises(ResultsError, match="damaged"):
        planning.read_plan(tmp_path, made.plan_id)


def test_the_same_request_continues_a_plan_until_every_run_is_recorded(
    train: LoadedDefinition, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    first, resumed = planning.resume_or_keep(plan(train, suite="sweep"), results)
    assert not resumed
    recorded(first.runs[0], results)

    again, resumed = planning.resume_or_keep(
        plan(train, suite="sweep", now=NOW + timedelta(hours=1)), results
    )
    assert resumed
    assert again.plan_id == first.plan_id
    assert set(again.done(results)) == {first.runs[0].run_id}

    for run in first.runs:
        recorded(run, results)
    third, resumed = planning.resume_or_keep(
        plan(train, suite="sweep", now=NOW + timedelta(hours=2)), results
    )
    assert not resumed
    assert third.plan_id != first.plan_id


@pytest.mark.parametrize(
    "case", ["asked not to", "old", "another request", "changed definition", "damaged", "changed environment"]
)
def test_an_old_damaged_or_different_plan_is_not_continued(
    train: LoadedDefinition, tmp_path: Path, case: str
) -> None:
    results = tmp_path / "results"
    first, _ = planning.resume_or_keep(plan(train), results)
    later = NOW + timedelta(days=3 if case == "old" else 0, minutes=1)
    overrides = {"batch_size": (32,)} if case == "another request" else {}
    if case == "changed definition":
        train = train.model_copy(update={"sha256": "0" * 64})
    if case == "changed environment":
        launch = train.definition.launch.model_copy(update={"environment": {"A": "1"}})
        train = train.model_copy(
            update={"definition": train.definition.model_copy(update={"launch": launch})},
        )
    if case == "damaged":
        (results / first.plan_id / planning.PLAN_FILE).write_text("{")
    wanted = plan(train, now=later, overrides=overrides)
    _, resumed = planning.resume_or_keep(wanted, results, resume=case != "asked not to")
    assert not resumed


# The nodes that did not answer when the first plan was made, and those that do not answer now. The new plan
# must name the latter.
@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({}, {"unreached": ("n2",)}),
        ({"unreached": ("n2",)}, {"unreached": ("n3",)}),
        ({"unreached": ("n2",)}, {"unreached": ("n2", "n3")}),
        ({"unreached": ("n2",)}, {}),
    ],
)
def test_a_plan_that_lacks_an_unreached_node_is_not_continued(
    train: LoadedDefinition, tmp_path: Path, before: dict[str, Any], now: dict[str, Any]
) -> None:
    planning.resume_or_keep(plan(train, **before), tmp_path)
    made, resumed = planning.resume_or_keep(plan(train, **now), tmp_path)
    assert not resumed
    assert made.unreached == now.get("unreached", ())


def test_a_plan_that_lacks_a_node_without_runs_is_not_continued(
    train: LoadedDefinition, tmp_path: Path
) -> None:
    def of(*names: str) -> Plan:
        nodes = {name: node(name, 2 if name == "n1" else 0) for name in names}
        needy = train.model_copy(update={"definition": train.definition.model_copy(update={"needs_gpus": 1})})
        return planning.make_plan([needy], nodes, {name: {"bench_data": "/data"} for name in names}, now=NOW)

    planning.resume_or_keep(of("n1"), tmp_path)
    made, resumed = planning.resume_or_keep(of("n1", "n2"), tmp_path)
    assert not resumed
    assert made.unused == {"n2": "train: needs 1 GPU, n2 has 0"}


@pytest.mark.parametrize(
    ("seconds", "gpus", "optional", "why"),
    [
        (149, 2, False, "a run of 149 s is too short for sag: set `seconds` to 150 or more"),
        (150, 2, False, ""),
        (149, 0, False, ""),
        (149, 2, True, ""),
        ("", 2, False, ""),
    ],
)
def test_a_run_that_is_too_short_to_be_judged_does_not_start(
    train: LoadedDefinition, seconds: object, gpus: int, optional: bool, why: str
) -> None:
    rule = JudgeRule(metric="sag", at_most=0.02, needs_gpus=1, needs_seconds=150, optional=optional)
    definition = train.definition.model_copy(
        update={
            "parameters": {**train.definition.parameters, "gpus": gpus, "seconds": seconds},
            "result": train.definition.result.model_copy(update={"judge": (rule,)}),
        }
    )
    made = plan(train.model_copy(update={"definition": definition}))
    assert {run.unproven_because for run in made.runs} == {why}
    assert (why in describe_plan(made)) is True


def test_a_plan_is_continued_whatever_the_order_of_unreached_nodes(
    train: LoadedDefinition, tmp_path: Path
) -> None:
    planning.resume_or_keep(plan(train, unreached=("n2", "n3")), tmp_path)
    assert planning.resume_or_keep(plan(train, unreached=("n3", "n2")), tmp_path)[1]


def test_a_missing_plan_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="start the playbook again"):
        planning.read_plan(tmp_path, "plan-x")


def test_the_plan_says_how_long_it_takes_when_all_is_known(train: LoadedDefinition) -> None:
    known = plan(train, suite="sweep", estimate=lambda *_: 10.0)
    assert "6 runs, about 60 s" in describe_plan(known)


@pytest.mark.parametrize(
    ("expected_s", "impossible", "first"),
    [
        (3600.0, 1, "train: 1 run"),
        (None, 1, "train: 1 run"),
        (3600.0, 3, "sweep: 6 runs, about 10800 s by earlier runs"),
        (3600.0, 6, "sweep: 6 runs"),
    ],
)
def test_a_run_that_cannot_be_made_takes_no_time(
    train: LoadedDefinition, expected_s: float | None, impossible: int, first: str
) -> None:
    many = {"suite": "sweep"} if impossible > 1 else {}
    made = plan(train, estimate=lambda *_: expected_s, **many)
    runs = [
        run.model_copy(update={"unproven_because": "no GPU"}) if number < impossible else run
        for number, run in enumerate(made.runs)
    ]
    text = describe_plan(made.model_copy(update={"runs": tuple(runs)}))
    assert text.splitlines()[0] == first
    assert not any("(about" in line for line in text.splitlines() if "UNPROVEN" in line)
    assert text.count("UNPROVEN: no GPU") == impossible


# A benchmark that needs a whole rack, and is started through Slurm.
RACK = """\
name: big
summary: Trains on a rack
suites: {mlperf: {}}
container: {images: {amd64: "a/b:1", arm64: "a/b:1"}, folder: /workspace, size_gb: 7}
configs: {systems: {gb300: GB300}}
stage: [{creates: data, run: "fetch {{ bench_shared }}", mount: /data, size_gb: 3}]
launch: {with: slurm, environment: {DATADIR: "{{ bench_shared }}/data/big/data"}, timeout_s: 99, hang_s: 50}
result: {repeats: 10, judge: [{metric: eval_accuracy, at_most: 0.9}]}
"""


@pytest.fixture
def big(tmp_path: Path) -> LoadedDefinition:
    path = tmp_path / "big.yml"
    path.write_text(RACK)
    return definitions.load_definition(path, log_formats=FORMATS)


def rack_plan(big: LoadedDefinition, racks: tuple[str, ...] = ("a", "a"), **options: object) -> Plan:
    """Return a plan on one node for each entry of ``racks``. A node is called by its rack and number."""
    site = {"shared": "/shared", "sku": "gb300", "sku_gpus": 4, **options.pop("site", {})}  # type: ignore[dict-item]
    names = [f"{rack}{index}" for index, rack in enumerate(racks)]
    return planning.make_plan(
        [big],
        {name: node(name, 4) for name in names},
        {name: {"bench_data": "/data"} for name in names},
        now=NOW,
        sites={name: Site(rack=rack, **site) for name, rack in zip(names, racks, strict=True)},  # type: ignore[arg-type]
        **options,  # type: ignore[arg-type]
    )


def test_a_benchmark_for_a_rack_is_one_run_on_all_its_nodes_from_the_first(big: LoadedDefinition) -> None:
    (run,) = rack_plan(big).runs
    assert (run.lead, run.nodes, run.repeat, run.repeats) == ("a0", ("a0", "a1"), 1, 1)
    assert run.unproven_because == ""
    assert run.environment == {"DATADIR": "/shared/data/big/data"}
    spec = json.loads(run.arguments[1].removeprefix("--spec="))
    assert spec["hosts"] == ["a0", "a1"]
    assert spec["stage"][0]["run"] == "fetch /shared"
    assert (spec["system"], spec["gpus"], spec["hang_s"]) == ("GB300", 4, 50)
    # The program's limit must end first, because only the program can report the step that hung.
    assert run.hang_s > 50
    assert run.launcher == "slurm"


def test_a_plan_has_only_the_names_of_secrets_and_is_continued_whatever_their_values(
    big: LoadedDefinition, tmp_path: Path
) -> None:
    first, _ = planning.resume_or_keep(rack_plan(big, site={"secrets": {"HF_TOKEN": 20}}), tmp_path)
    (run,) = first.runs
    assert run.environment["HF_TOKEN"] == "(secret)"
    assert json.loads(run.arguments[1].removeprefix("--spec="))["environment"]["HF_TOKEN"] == "(secret)"
    # The numbers are the lengths of the secrets. A new key is the same request, but another set of
    # variables is a different one.
    renewed = rack_plan(big, site={"secrets": {"HF_TOKEN": 33}})
    assert planning.resume_or_keep(renewed, tmp_path)[1]
    for others in ({}, {"HF_TOKEN": 20, "WANDB_API_KEY": 40}):
        assert not planning.resume_or_keep(rack_plan(big, site={"secrets": others}), tmp_path)[1]


@pytest.mark.parametrize(
    ("site", "words"),
    [
        ({"environment": {"HF_TOKEN": "canary"}}, "HF_TOKEN: a secret.*bench_secret_environment"),
        ({"environment": {"PROXY": "http://u:canary@h"}}, "PROXY: a secret.*bench_secret_environment"),
        (
            {"secrets": {"HF_TOKEN": 0}},
            "HF_TOKEN has 0 characters, a secret 8 or more: is it in Vault, or in the environment",
        ),
        ({"secrets": {"no-name": 9}}, "'no-name' is not a name of an environment variable"),
    ],
)
def test_secrets_in_the_wrong_place_or_empty_are_refused(site: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Site.model_validate(site)


@pytest.mark.parametrize(
    "line", ["environment: {WANDB_API_KEY: canary}", "environment: {A: 'ftp://u:canary@h'}"]
)
def test_a_definition_with_a_secret_is_refused(big: LoadedDefinition, tmp_path: Path, line: str) -> None:
    path = tmp_path / "leaky.yml"
    text = RACK.replace("name: big", "name: leaky")
    path.write_text(re.sub(r"environment: \{.*?\}\}.*?\}", line, text))
    with pytest.raises(definitions.DefinitionError, match="a secret") as refused:
        definitions.load_definition(path, log_formats=FORMATS)
    assert "canary" not in str(refused.value)


def test_two_racks_are_two_runs(big: LoadedDefinition) -> None:
    assert [run.nodes for run in rack_plan(big, ("a", "a", "b")).runs] == [("a0", "a1"), ("b2",)]


def test_repeats_are_runs_of_their_own(big: LoadedDefinition) -> None:
    plan = rack_plan(big, site={"repeats": 3})
    assert [(run.repeat, run.repeats) for run in plan.runs] == [(1, 3), (2, 3), (3, 3)]
    assert len({run.run_id for run in plan.runs}) == 3
    assert len(rack_plan(big, site={"repeats": 0}).runs) == 10


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"unreached": ["a7"]}, "a7 did not answer"),
        ({"site": {"shared": ""}}, "bench_shared is not set"),
        ({"site": {"sku": "h100"}}, "no config for SKU h100; there are gb300"),
        ({"site": {"sku_gpus": 0}}, "bench_sku_gpus is not set"),
        ({"site": {"launch_host": "a9"}}, "bench_launch_host is a9"),
    ],
)
def test_what_cannot_run_on_a_rack_is_planned_as_unproven(
    big: LoadedDefinition, options: dict[str, object], complaint: str
) -> None:
    (run,) = rack_plan(big, **options).runs
    assert complaint in run.unproven_because


ARM, AMD = {"machine": "aarch64"}, {"machine": "x86_64"}


def real_plan(
    root: Path, benchmark: str, software: dict[str, dict[str, str]], **site: object
) -> planning.PlannedRun:
    """Plan a shipped benchmark on nodes with these facts."""
    loaded = definitions.load_definition(root / f"benchmarks/{benchmark}.yml", log_formats=FORMATS)
    names = ("bench_mlcommons_fetch", "bench_mlcommons_metadata")
    cluster = Site.model_validate({"shared": "/shared", "sku": "gb300", "sku_gpus": 4, **site})
    (run,) = planning.make_plan(
        [loaded],
        {name: node(name, 4).model_copy(update={"software": facts}) for name, facts in software.items()},
        {name: dict.fromkeys(names, "x") for name in software},
        now=NOW,
        sites=dict.fromkeys(software, cluster),
    ).runs
    return run


@pytest.mark.parametrize(
    ("name", "facts", "site", "image"),
    [
        ("llama2_70b_lora", ARM, {}, "nvcr.io/nvdlfwea/mlperftv51/llama2_70b_lora-arm:20250930"),
        ("llama2_70b_lora", AMD, {}, "nvcr.io/nvdlfwea/mlperftv51/llama2_70b_lora-amd:20251008"),
        ("llama31_8b", ARM, {}, "nvcr.io/nvdlfwea/mlperftv51/llama31_8b-arm:20250922"),
        ("llama31_8b", AMD, {}, "nvcr.io/nvdlfwea/mlperftv51/llama31_8b-amd:20251008"),
        ("gpt_oss_20b", ARM, {}, "nvcr.io/nvdlfwea/mlperftv61/gpt_oss_20b:latest"),
        (
            "llama31_8b",
            ARM,
            {"image_tags": {"llama31_8b": "2"}},
            "nvcr.io/nvdlfwea/mlperftv51/llama31_8b-arm:2",
        ),
        ("flux1", ARM, {"images": {"flux1": "own/flux:7"}}, "nvcr.io/own/flux:7"),
        # The full name of an image is used as it is, and only for the benchmark that it is set for.
        (
            "llama31_8b",
            ARM,
            {"images": {"llama31_8b": "own/8b:7"}, "image_tags": {"llama31_8b": "2"}},
            "nvcr.io/own/8b:7",
        ),
        (
            "llama31_8b",
            AMD,
            {"images": {"flux1": "own/flux:7"}},
            "nvcr.io/nvdlfwea/mlperftv51/llama31_8b-amd:20251008",
        ),
    ],
)
def test_the_image_is_the_one_for_the_nodes_architecture(
    root: Path, name: str, facts: dict[str, str], site: dict[str, object], image: str
) -> None:
    run = real_plan(root, name, {"n1": facts, "n2": facts}, **site)
    assert (run.container, run.unproven_because) == (image, "")
    spec = json.loads(run.arguments[1].removeprefix("--spec="))
    assert image == f"nvcr.io/{spec['repository']}:{spec['tag']}"
    assert spec["architecture"] == {"aarch64": "arm64", "x86_64": "amd64"}[facts["machine"]]
    assert any(line.startswith(f"pull    {image} (for {spec['architecture']}, ") for line in run.would)


@pytest.mark.parametrize(
    ("name", "software", "words"),
    [
        (
            "flux1",
            {"n1": ARM},
            "its nodes are arm64, and there are images for amd64: name one with bench_images: {flux1",
        ),
        (
            "llama31_8b",
            {"n1": {"machine": "riscv64"}},
            "its nodes are riscv64, and there are images for amd64, arm64",
        ),
        ("llama2_70b_lora", {"n1": {}}, "the architecture of its nodes is not known"),
        ("llama2_70b_lora", {"n1": ARM, "n2": {}}, "the architecture of its nodes is not known"),
        (
            "llama2_70b_lora",
            {"n1": ARM, "n2": ARM, "n3": AMD},
            "(amd64: n3; arm64: n1, n2): select nodes of one",
        ),
        ("gpt_oss_20b", {"n1": AMD, "n2": ARM}, "different architectures"),
    ],
)
def test_nodes_without_an_image_and_mixed_ones_are_refused_before_anything_runs(
    root: Path, name: str, software: dict[str, dict[str, str]], words: str
) -> None:
    assert words in real_plan(root, name, software).unproven_because


def test_mixed_nodes_are_named_in_the_remedy(root: Path) -> None:
    run = real_plan(root, "llama31_8b", {"n1": ARM, "n2": AMD, "n3": ARM})
    assert run.unproven_because.endswith("-l 'RACK:!n2'")


@pytest.mark.parametrize(
    "name",
    ["a/b", "a/b:", "A/b:1", "a/b:1@sha256:12", "/a:1", "a//:1", "a/b@1", "https://a/b:1", "a b:1", ""],
)
def test_an_incomplete_or_invalid_name_of_an_image_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="images"):
        Site.model_validate({"images": {"big": name}})


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a/b:1", ("a/b", "1")),
        (f"a/b:1@sha256:{'a' * 64}", ("a/b", f"1@sha256:{'a' * 64}")),
        (f"a/b@sha256:{'b' * 64}", ("a/b", f"sha256:{'b' * 64}")),
        ("x-y_z.w/b-c:1.0", ("x-y_z.w/b-c", "1.0")),
    ],
)
def test_a_name_of_an_image_has_repository_and_tag(
    big: LoadedDefinition, name: str, parts: tuple[str, str]
) -> None:
    assert launch_slurm.image_of(big, Site.model_validate({"images": {"big": name}})) == parts


def test_the_lead_can_be_named(big: LoadedDefinition) -> None:
    assert rack_plan(big, site={"launch_host": "a1"}).runs[0].lead == "a1"


def test_a_dry_run_says_what_would_be_pulled_staged_and_submitted(big: LoadedDefinition) -> None:
    text = describe_plan(rack_plan(big, site={"partition": "batch", "image_tags": {"big": "2"}}))
    assert "pull    nvcr.io/a/b:2" in text
    assert "stage   /shared/data/big/data unless it is there, 3 GB" in text
    assert "config_GB300_2x4x*.sh" in text
    assert "sbatch -N 2 --nodelist=a[0-1] --partition=batch run.sub" in text


# A case has the matrix of a benchmark with two repeats, the racks of the nodes, and the names of its results.
@pytest.mark.parametrize(
    ("matrix", "racks", "names"),
    [
        ({}, ("a", "a"), ["big"]),
        ({}, ("a", "b"), ["big on a0", "big on b1"]),
        ({"lr": (1, 2)}, ("a", "a"), ["big lr=1", "big lr=2"]),
        ({"lr": ("", 2)}, ("a", "a"), ["big", "big lr=2"]),
        ({"lr": (1,), "size": (8, 16)}, ("a",), ["big size=8", "big size=16"]),
        (
            {"lr": (1, 2)},
            ("a", "b"),
            ["big lr=1 on a0", "big lr=2 on a0", "big lr=1 on b1", "big lr=2 on b1"],
        ),
    ],
)
def test_each_point_on_each_rack_is_a_result_of_its_own(
    big: LoadedDefinition,
    tmp_path: Path,
    matrix: dict[str, tuple[Any, ...]],
    racks: tuple[str, ...],
    names: list[str],
) -> None:
    changes = {"parameters": {"lr": 1, "size": 8}, "matrix": matrix}
    big = big.model_copy(update={"definition": big.definition.model_copy(update=changes)})
    plan = rack_plan(big, racks, site={"repeats": 2})
    result = plan.result_names()
    assert [result[run.run_id] for run in plan.runs[::2]] == names
    assert [result[run.run_id] for run in plan.runs[1::2]] == names
    failed = {
        run.run_id: Run(run_id=run.run_id, benchmark="big", plan_id=plan.plan_id, verdict=Verdict.FAIL)
        for run in plan.runs[:2]
    }
    # The other results can still become valid.
    given_up = plan.given_up(failed)
    assert list(given_up) == names[:1]
    assert [result[run.run_id] for run in plan.remaining_runs(failed, given_up)][::2] == names[1:]
    # One failure of each result is allowed.
    failed = {
        run.run_id: Run(run_id=run.run_id, benchmark="big", plan_id=plan.plan_id, verdict=Verdict.FAIL)
        for run in plan.runs[::2]
    }
    assert plan.given_up(failed) == {}
    # A repeat is compared only with earlier ones of its own result.
    for run in plan.runs:
        write_run(
            Run(run_id=run.run_id, benchmark="big", plan_id=plan.plan_id, verdict=Verdict.PASS),
            tmp_path / run.run_id,
        )
    planning.resume_or_keep(plan, tmp_path, resume=False)
    earlier = [len(mlperf_checks._earlier_repeats(run, tmp_path, plan.plan_id)) for run in plan.runs]
    assert earlier == [0, 1] * len(names)


def test_repeats_end_when_the_result_cannot_become_valid_any_more(
    big: LoadedDefinition, tmp_path: Path
) -> None:
    plan = rack_plan(big, site={"repeats": 5})

    def recorded(*verdicts: str) -> dict[str, Run]:
        return {
            run.run_id: Run(run_id=run.run_id, benchmark="big", plan_id=plan.plan_id, verdict=verdict)  # type: ignore[arg-type]
            for run, verdict in zip(plan.runs, verdicts, strict=False)
        }

    assert plan.given_up(recorded("fail", "pass", "degraded")) == {}
    assert "repeats 1 (fail), 3 (unproven)" in plan.given_up(recorded("fail", "pass", "unproven"))["big"]
    # A plan that was given up and reported is not continued: the same request starts a new one.
    planning.resume_or_keep(plan, tmp_path / "results")
    for run in recorded("fail", "fail").values():
        write_run(run, tmp_path / "results" / run.run_id)
    again, resumed = planning.resume_or_keep(rack_plan(big, site={"repeats": 5}), tmp_path / "results")
    # Without its report, the plan is continued.
    assert resumed
    (tmp_path / "results" / plan.plan_id / planning.REPORT_FILE).write_text("page")
    again, resumed = planning.resume_or_keep(rack_plan(big, site={"repeats": 5}), tmp_path / "results")
    assert not resumed
    assert again.plan_id != plan.plan_id
