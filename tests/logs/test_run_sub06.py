"""Test MLPerf Training 0.6 as a suite of bench.yml: the plan, and the judgement of a run's output.

Each benchmark of that round starts the round's own script run.sub, on one node with Docker or on several
nodes with Slurm. Its exit status does not show failed steps, but its output does
(:mod:`rackproof.logs.run_sub06`). These tests check which runs are planned for which nodes, and the findings
for an output with one change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rackproof.core import definitions
from rackproof.core.definitions import DefinitionError
from rackproof.core.records import Finding, Measurement, Node, Run, Verdict
from rackproof.jobs.bench import launch_docker, mlperf_checks, planning
from rackproof.jobs.bench.launch_slurm import Site
from rackproof.jobs.bench.plan_text import describe_plan
from rackproof.jobs.bench.planning import Plan, PlannedRun
from rackproof.jobs.bench.required_evidence import SlurmJob, slurm_lacks
from rackproof.logs import FORMATS, run_sub, run_sub06

MODELS = ("gnmt", "maskrcnn", "minigo", "resnet", "ssd", "translation")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
COMMIT = "ab" * 20


def suite_plan(
    root: Path,
    hosts: Sequence[str] = ("n1", "n2"),
    unreached: Sequence[str] = (),
    ref: str = COMMIT,
    **site: Any,
) -> Plan:
    """Return the plan of the whole suite on some hosts."""
    known = definitions.load_definitions(root / "benchmarks", log_formats=FORMATS)
    variables = {
        "bench_home": "/var/lib/rackproof",
        "bench_data": "/data",
        "bench_workloads": "/workloads",
        "bench_imagenet": "/data/imagenet",
        "bench_imagenet_archives": "/data/imagenet/archives",
        "bench_imagenet_pins": "",
        "bench_mlperf06_ref": ref,
        "bench_mlperf06_sources": "https://example.org/sources.tar.gz",
    }
    described = Site.model_validate({"sku": "hyperplane", "sku_gpus": 8, "rack": "hyperplane", **site})
    return planning.make_plan(
        definitions.select_benchmarks(known, suite="mlperf-training-0.6"),
        {host: Node(name=host) for host in hosts},
        dict.fromkeys(hosts, variables),
        suite="mlperf-training-0.6",
        unreached=unreached,
        sites=dict.fromkeys(hosts, described),
        now=NOW,
    )


def spec_of(run: planning.PlannedRun) -> dict[str, Any]:
    """Return what the plan passes to the launcher of a run."""
    found: dict[str, Any] = json.loads(run.arguments[1].removeprefix("--spec="))
    return found


def test_every_host_is_a_system_with_a_run_of_each_model(root: Path) -> None:
    plan = suite_plan(root)
    assert sorted((run.benchmark, *run.nodes) for run in plan.runs) == [
        (f"{name}-0.6", host) for name in MODELS for host in ("n1", "n2")
    ]
    assert len({run.run_id for run in plan.runs}) == 12
    for run in plan.runs:
        spec = spec_of(run)
        assert (run.launcher, run.unproven_because, spec["together"]) == ("docker", "", False)
        assert spec["home"] == "/var/lib/rackproof/docker"
        assert spec["data"] == "/data/mlperf-0.6"
        own = "/data/imagenet/recordio" if run.benchmark == "resnet-0.6" else "/data/mlperf-0.6"
        assert run.environment["DATADIR"].startswith(own)
        assert run.parameters == {"system": "LambdaHyperplaneBasic"}
    text = describe_plan(plan)
    assert "build   mlperf-nvidia:single_stage_detector from https://example.org/sources.tar.gz" in text
    assert "start   PULL=0 DGXSYSTEM=LambdaHyperplaneBasic ./run.sub" in text


@pytest.mark.parametrize(
    ("site", "system"),
    [
        ({"sku": "dgx1"}, "DGX1"),
        ({"sku": "dgx2"}, "DGX2"),
        ({"sku": "hyperplane16"}, "LambdaHyperplane16"),
        ({"config": "config_LambdaQuadBasic.sh"}, "LambdaQuadBasic"),
        ({"config": "LambdaQuadBasic"}, "LambdaQuadBasic"),
    ],
)
def test_the_system_is_that_of_the_sku_or_of_bench_config(
    root: Path, site: dict[str, str], system: str
) -> None:
    (ssd,) = [run for run in suite_plan(root, ("n1",), **site).runs if run.benchmark == "ssd-0.6"]
    assert spec_of(ssd)["system"] == system
    assert ssd.unproven_because == ""


def test_together_the_nodes_are_one_system_under_slurm(root: Path) -> None:
    plan = suite_plan(root, together=True, shared="/shared", launch_host="n2")
    assert [(run.benchmark, run.lead, run.nodes) for run in plan.runs] == [
        (f"{name}-0.6", "n2", ("n2", "n1")) for name in MODELS
    ]
    for run in plan.runs:
        assert spec_of(run)["system"] == "2xLambdaHyperplaneBasic"
        assert spec_of(run)["home"] == "/shared/docker"
        # Only the role's bench_imagenet decides where ImageNet is. With several nodes, it is shared storage.
        own = "/data/imagenet/recordio" if run.benchmark == "resnet-0.6" else "/shared/data/mlperf-0.6"
        assert run.environment["DATADIR"].startswith(own)
    assert "--ntasks-per-node $DGXNGPU run.sub" in describe_plan(plan)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"sku": "h100"}, "no config for SKU h100; there are hyperplane, hyperplane16, dgx1"),
        ({"sku": ""}, "set bench_sku"),
        ({"ref": "master"}, "give 40 hexadecimal digits, not a branch"),
        ({"together": True}, "bench_shared is not set"),
        ({"together": True, "shared": "/s", "hosts": ("n1",)}, "needs two nodes or more"),
        ({"together": True, "shared": "/s", "sku": "hyperplane16"}, "together .bench_together.; there are"),
        ({"together": True, "shared": "/s", "unreached": ["n7"]}, "n7 did not answer"),
        ({"together": True, "shared": "/s", "launch_host": "n9"}, "bench_launch_host is n9"),
        ({"config": "../../etc/passwd"}, "or set bench_config"),
    ],
)
def test_a_run_that_cannot_start_is_planned_as_unproven(
    root: Path, options: dict[str, Any], complaint: str
) -> None:
    runs = suite_plan(root, **options).runs
    assert runs
    for run in runs:
        assert re.search(complaint, run.unproven_because), run.unproven_because


def test_a_node_that_does_not_answer_leaves_its_neighbour_alone(root: Path) -> None:
    plan = suite_plan(root, ("n1",), unreached=["n2"])
    assert {run.unproven_because for run in plan.runs} == {""}
    assert plan.unreached == ("n2",)


def test_one_hosts_failed_repeats_do_not_end_those_of_another(root: Path) -> None:
    plan = suite_plan(root, repeats=0)
    ssd = [run for run in plan.runs if run.benchmark == "ssd-0.6"]
    assert [sum(run.lead == host for run in ssd) for host in ("n1", "n2")] == [5, 5]

    def recorded(bad: Sequence[planning.PlannedRun]) -> dict[str, Run]:
        return {
            run.run_id: Run(run_id=run.run_id, benchmark=run.benchmark, verdict=Verdict.FAIL) for run in bad
        }

    first, second = ([run for run in ssd if run.lead == host] for host in ("n1", "n2"))
    assert plan.given_up(recorded([first[0], second[0]])) == {}
    given_up = plan.given_up(recorded(first[:2]))
    assert list(given_up) == ["ssd-0.6 on n1"]
    assert plan.result_names()[first[3].run_id] in given_up
    assert plan.result_names()[second[3].run_id] not in given_up


BROKEN = """\
name: broken
summary: x
build: {sources: x, ref: x, folder: a/b, image: "a:1"}
configs: {systems: {dgx1: DGX1}}
stage: [{creates: data, run: "true"}]
launch: {with: docker}
result: {judge: [{metric: m, at_least: 1}]}
"""
"""A complete definition. Each case breaks one key."""


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("configs: {systems: {dgx1: DGX1}}\n", "", "launch with docker needs `configs`"),
        ("with: docker", "with: docker, program: x.py", "starts the image's run.sub"),
        ("with: docker", "with: local, runtime: torch, program: x.py", "`build` is for launch with docker"),
        ('run: "true"', "program: x.py", "launch with docker stages by `run`"),
        ("folder: a/b", "folder: ../b", "not a relative path"),
        ('image: "a:1"', "image: a b", "pattern"),
    ],
)
def test_a_definition_for_docker_is_whole_or_refused(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    path = tmp_path / "broken.yml"
    path.write_text(BROKEN)
    assert definitions.load_definition(path, log_formats=FORMATS).definition.launch.with_ == "docker"
    path.write_text(BROKEN.replace(old, new))
    with pytest.raises(DefinitionError, match=complaint):
        definitions.load_definition(path, log_formats=FORMATS)


@pytest.mark.parametrize(
    ("together", "systems", "several", "key"),
    [
        (False, "{{ wrong }}", "DGX1", "systems"),
        (True, "DGX1", "{{ wrong }}", "together"),
        (False, "DGX1", "{{ wrong }}", ""),
        (True, "{{ wrong }}", "DGX{{ nodes }}", ""),
    ],
)
def test_an_unknown_variable_in_a_name_of_a_config_is_found_where_it_is(
    tmp_path: Path, together: bool, systems: str, several: str, key: str
) -> None:
    path = tmp_path / "broken.yml"
    configs = f'configs: {{systems: {{dgx1: "{systems}"}}, together: {{dgx1: "{several}"}}}}'
    path.write_text(BROKEN.replace("configs: {systems: {dgx1: DGX1}}", configs))
    loaded = definitions.load_definition(path, log_formats=FORMATS)
    site = Site(sku="dgx1", together=together)
    if key:
        with pytest.raises(DefinitionError, match=rf"configs\.{key}"):
            launch_docker.system_config(loaded, site, 2)
    else:
        assert launch_docker.system_config(loaded, site, 2) == ("DGX2" if together else "DGX1")


GOOD = """\
:::RACKPROOF {"digest": "sha256:1"}
Launching on node n1
:::MLL 1.0 cache_clear: {"metadata": {"lineno": 1}, "value": true}
:::MLL 2.0 run_start: {"value": null, "metadata": {}}
:::RACKPROOF {"end": {"status": 0}}
"""


SCRIPT = run_sub.RunScript()


def all_findings(
    path: Path, nodes: list[str], script: run_sub.RunScript = SCRIPT, run_id: str = ""
) -> list[Finding]:
    """Return the findings against a run, and those on missing evidence, the causes first."""
    output, launcher = run_sub06.read_run_sub06(path), run_sub.read_run_sub(path)
    planned = PlannedRun.model_construct(launcher="docker", nodes=tuple(nodes))
    found = run_sub06.run_sub06_findings(output, launcher, nodes, run_id=run_id, script=script)
    return mlperf_checks.causes_first(found, slurm_lacks(SlurmJob(planned, script, launcher, output)))


@pytest.mark.parametrize(
    ("old", "new", "nodes", "code", "verdict"),
    [
        ("", "", ["n1"], "", None),
        ('"value": true', '"value": false', ["n1"], "cache_not_cleared", "unproven"),
        ("", "", ["n1", "n2"], "wrong_nodes", "unproven"),
        ("Launching", "ERR: Cache clearing failed.\nLaunching", ["n1"], "run_sub_error", "fail"),
        ("Launching", "Unknown system, assuming DGX1\nLaunching", ["n1"], "run_sub_error", "fail"),
        ('{"status": 0}', '{"status": 1}', ["n1"], "run_sub_status", "fail"),
        ('{"status": 0}', '{"state": "CANCELLED", "job": "7"}', ["n1"], "slurm_state", "fail"),
        (':::RACKPROOF {"end": {"status": 0}}', "", ["n1"], "no_end", "unproven"),
        (
            '{"end"',
            '{"hang": {"step": "epoch 3", "silent_s": 9, "last": "x"}, "end"',
            ["n1"],
            "hung_at_step",
            "fail",
        ),
        ('{"end"', '{"refused": "no Docker", "end"', ["n1"], "refused", "unproven"),
    ],
)
def test_failures_in_the_output_of_run_sub_are_found(
    tmp_path: Path, old: str, new: str, nodes: list[str], code: str, verdict: str | None
) -> None:
    path = tmp_path / "n1.log"
    path.write_text(GOOD.replace(old, new) if old else GOOD)
    found = all_findings(path, nodes)
    if not code:
        assert found == []
        return
    assert (code, verdict) in [(one.code, one.verdict) for one in found]


TOGETHER = {
    "job": "7",
    "name": "r",
    "state": "COMPLETED",
    "exit_code": "0:0",
    "nodes": ["n1", "n2"],
    "node_count": "2",
    "start": "1700000000",
    "end": "1700000900",
}
"""Slurm's record of a job on two nodes."""
PAIR = GOOD.replace('{"status": 0}', json.dumps(TOGETHER)).replace(
    "Launching on node n1\n", "Launching on node n1\n1: Launching on node n2\n"
)
PAIR = PAIR.replace(":::MLL 1.0", ':::MLL 0.5 cache_clear: {"value": true}\n:::MLL 1.0')


@pytest.mark.parametrize(
    ("old", "new", "code", "verdict"),
    [
        ("", "", "", None),
        ("Launching", "Beginning", "nodes_unknown", "unproven"),
        ('"nodes": ["n1", "n2"]', '"nodes": ["n1"]', "wrong_nodes", "unproven"),
        ('"nodes": ["n1", "n2"], ', "", "nodes_unknown", "unproven"),
        ('"node_count": "2"', '"node_count": "3"', "wrong_nodes", "unproven"),
        ('"name": "r"', '"name": "earlier"', "another_job", "unproven"),
        ('"exit_code": "0:0"', '"exit_code": "3:0"', "slurm_state", "fail"),
        ('"state": "COMPLETED", ', "", "slurm_state", "unproven"),
        (" run_start: ", " begin: ", "", None),
    ],
)
def test_a_run_of_several_nodes_must_agree_with_slurms_record(
    tmp_path: Path, old: str, new: str, code: str, verdict: str | None
) -> None:
    path = tmp_path / "n1.log"
    path.write_text(PAIR.replace(old, new) if old else PAIR)
    found = all_findings(path, ["n1", "n2"], run_id="r")
    assert {(one.code, one.verdict) for one in found} == ({(code, verdict)} if code else set())


@pytest.mark.parametrize(
    ("end", "code"),
    [({"node": "n1"}, "no_end"), ({"status": None}, "no_end"), ({"status": "0"}, "no_end"), ([], "no_end")]
    + [({"status": status}, "no_end") for status in ("137", True, 1.0)],
)
def test_an_end_without_a_valid_status_is_missing(tmp_path: Path, end: object, code: str) -> None:
    path = tmp_path / "n1.log"
    path.write_text(GOOD.replace('{"status": 0}', json.dumps(end)))
    found = all_findings(path, ["n1"])
    assert [(one.code, one.verdict) for one in found] == [(code, Verdict.UNPROVEN)]


def test_a_script_may_be_declared_to_name_no_node(tmp_path: Path) -> None:
    path = tmp_path / "n1.log"
    path.write_text(GOOD.replace("Launching on node n1\n", ""))
    script = run_sub.RunScript(lacks=("node_list",))
    assert all_findings(path, ["n1"], script) == []
    assert [one.code for one in all_findings(path, ["n1"])] == ["nodes_unknown"]


@pytest.mark.parametrize(
    ("name", "system", "metric", "unit", "value"),
    [
        ("ssd-0.6", "LambdaHyperplaneBasic", "samples_per_second", "samples/s", 4273.94),
        ("ssd-0.6", "DGX1", "samples_per_second", "samples/s", 4420.04),
        ("translation-0.6", "LambdaHyperplaneBasic", "time_to_train", "min", 23.19),
        ("ssd-0.6", "LambdaHyperplane16", "time_to_train", "min", 12.62),
        ("resnet-0.6", "DGX2", "samples_per_second", "samples/s", 22361.42),
        ("minigo-0.6", "LambdaHyperplane16", "time_to_train", "min", None),
        # The config of two nodes, on one of them.
        ("ssd-0.6", "2xLambdaHyperplaneBasic", "samples_per_second", "samples/s", None),
        ("ssd-0.6", "DGX100", "time_to_train", "min", None),
        ("ssd-0.6", "DGX1", "samples_per_second", "images/s", None),
    ],
)
def test_a_run_is_compared_with_the_published_result_of_its_system(
    root: Path, name: str, system: str, metric: str, unit: str, value: float | None
) -> None:
    runs = suite_plan(root, ("n1",), config=system).runs
    (run,) = [one for one in runs if one.benchmark == name]
    found = mlperf_checks.published_references(run, Measurement(name=metric, value=1, unit=unit))
    assert [one.value for one in found] == ([] if value is None else [value])


@pytest.mark.parametrize(
    ("system", "metric", "unit", "value"),
    [
        ("2xLambdaHyperplaneBasic", "samples_per_second", "samples/s", 8310.40),
        ("2xLambdaHyperplaneBasic", "time_to_train", "min", None),
        ("DGX1_multi", "time_to_train", "min", None),
        ("LambdaHyperplane16", "time_to_train", "min", None),
    ],
)
def test_a_run_of_two_nodes_is_compared_with_a_result_of_two_nodes(
    root: Path, system: str, metric: str, unit: str, value: float | None
) -> None:
    (run,) = [one for one in suite_plan(root, ("n1",), config=system).runs if one.benchmark == "ssd-0.6"]
    both = run.model_copy(update={"nodes": ("n1", "n2")})
    found = mlperf_checks.published_references(both, Measurement(name=metric, value=1, unit=unit))
    assert [one.value for one in found] == ([] if value is None else [value])


@pytest.mark.parametrize(
    ("labels", "count"),
    [
        (["0: ", "0: "], 1),
        (["0: ", "1: ", "0: ", "1: "], 2),
        (["0: words ", "0: "], 1),
        (["0: ", "1: "], 2),
        # Without a number, two nodes may have written the same text in the same millisecond.
        (["", ""], 2),
    ],
)
def test_a_node_that_cleared_its_cache_twice_counts_once(labels: list[str], count: int) -> None:
    reader = run_sub06.RunSub06Reader()
    for at, label in enumerate(labels):
        reader.line(at, f'{label}:::MLL 7.5 cache_clear: {{"value": true}}\n'.encode())
    assert reader.result().caches_cleared == count


def test_the_number_of_stored_nodes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_sub06, "_MOST_NODES", 10)
    reader = run_sub06.RunSub06Reader()
    for at in range(40):
        reader.line(at, f"Launching on node n{at}\n".encode())
        reader.line(at, f'{at}: :::MLL 1.5 cache_clear: {{"value": true}}\n'.encode())
    output = reader.result()
    assert (len(output.nodes), output.caches_cleared) == (10, 10)
