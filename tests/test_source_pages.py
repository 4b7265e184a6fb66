"""Test the pages that compare published results with Rackproof's own (docs/using/ddl.md and others).

tools/source_pages.py generates their tables. Every published row must be there, and every statement about
Rackproof's records must agree with the records in docs/results.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from rackproof.analysis.mlperf.published import find_published, study_points
from rackproof.core.definitions import load_definitions
from rackproof.core.records import (
    Dataset,
    Direction,
    Gpu,
    Judgement,
    LogFile,
    Measurement,
    Node,
    Reference,
    Run,
    Verdict,
)
from rackproof.jobs.bench.planning import make_plan
from rackproof.logs import FORMATS, parse_path
from rackproof.report.study import experiment_table
from tools import source_pages

PAGES = {
    "ddl.md": ("rows_ddl", "commands_ddl", "environment_ddl", "experiment_ddl", "program_ddl"),
    "mxnet.md": ("rows_mxnet", "sweep_mxnet", "environment_mxnet"),
    "mlperf-0.6.md": ("throughput_06", "minutes_06", "commands_06"),
    "mlperf-5.1.md": ("scores_51", "details_51", "commands_51"),
}


def rows(name: str) -> list[str]:
    """Return the rows of a generated table, without its heading."""
    return source_pages.GENERATED[name]().splitlines()[2:]


def test_each_document_has_its_page_and_each_part_is_in_one(root: Path) -> None:
    assert sorted(sum(PAGES.values(), ())) == sorted(source_pages.GENERATED)
    for page, parts in PAGES.items():
        text = (root / "docs/using" / page).read_text()
        for name in parts:
            assert f"<!-- generated: {name} -->\n{source_pages.GENERATED[name]()}\n<!-- end -->" in text, page


def test_every_row_of_the_studies_is_on_its_page() -> None:
    points = study_points()
    for name, begins in (("rows_ddl", "p100-"), ("rows_mxnet", "k80-")):
        of_document = [one for one in points if one.system.startswith(begins)]
        assert len(rows(name)) == len(of_document)
        for row, one in zip(rows(name), of_document, strict=True):
            assert row.startswith(f"| {one.system} |")
            assert one.throughput is None or f" {one.throughput:,.10g} " in row
            # The row has Rackproof's number, or the reason why there is none.
            reasons = ("h100", "h200", "cpu-mxnet", "not available here", "not measured: ")
            assert any(words in row for words in reasons)


def test_every_number_of_round_06_is_on_its_page() -> None:
    throughput, minutes = "\n".join(rows("throughput_06")), "\n".join(rows("minutes_06"))
    for one in find_published(round="0.6"):
        assert one.throughput is not None
        assert f" {one.throughput:,.10g} |" in throughput, one
        assert one.minutes is None or f" {one.minutes:,.10g} |" in minutes, one
    systems = {one.system for one in find_published(round="0.6")}
    assert {row.split(" | ")[0].strip("| ") for row in rows("commands_06")} == systems


def test_the_published_scores_of_lambda_are_those_of_the_logs() -> None:
    """The results are official and unofficial ones. Four digits were published."""
    published = [one for one in find_published(round="5.1") if one.submitter == "Lambda"]
    read = source_pages.logs()["5.1"]
    assert len(published) == len(rows("scores_51")) == len(read)
    for entry in source_pages.stated("mlperf-5.1")["scores"]:
        score = read[entry["logs"]]
        (one,) = (
            one
            for one in published
            if (one.kind, one.system, one.note, one.benchmark)
            == (entry["kind"], entry["system"], entry["note"], score["benchmark"])
        )
        assert score["verdict"] == "pass"
        assert one.minutes == pytest.approx(score["minutes"], rel=2e-5)
        assert one.olympic_mean_minutes == pytest.approx(score["olympic_mean_minutes"], rel=2e-5)
        assert one.rcp_scaling == pytest.approx(score["rcp_scaling"], rel=2e-5)
        assert (one.runs, one.failed_runs) == (score["runs"], score["failed_runs"])
        assert one.global_batch_size == score["stated"]["global_batch_size"]


@pytest.mark.slow
def test_what_the_logs_say_is_what_the_program_reads(root: Path, tmp_path: Path) -> None:
    found = tmp_path / "read.json"
    subprocess.run([sys.executable, root / "tools/read-source-logs", "--output", found], check=True)
    read, kept = json.loads(found.read_text()), source_pages.logs()
    assert read["0.6"] == kept["0.6"]
    assert len(read["5.1"]) == 2
    for name, score in read["5.1"].items():
        # The tests' copies of the logs are shortened, so their digest is another one.
        assert {**score, "sha256": ""} == {**kept["5.1"][name], "sha256": ""}


def test_every_command_names_a_benchmark_and_its_parameters(root: Path) -> None:
    """Compare each command of the page with the definitions."""
    names = ("commands_ddl", "commands_51", "commands_06")
    commands = [
        command for name in names for row in rows(name) for command in re.findall(r"`(ansible-[^`]+)`", row)
    ]
    assert len(commands) == 6 + 7 + 10
    known = load_definitions(root / "benchmarks", log_formats=FORMATS)
    suites = {suite for one in known.values() for suite in one.definition.suites}
    for command in commands:
        words = shlex.split(command)
        given = dict(word.split("=", 1) for word in words if "=" in word and not word.startswith("{"))
        assert given.get("suite", "mlperf-training-0.6") in suites
        parameters = {
            key for word in words if word.startswith("{") for key in json.loads(word)["bench_parameters"]
        }
        if parameters:
            assert parameters <= set(known[given["benchmark"]].definition.parameters), command
        assert given.get("benchmark", "tf-cnn") in known


def test_what_the_real_tf_cnn_benchmarks_measured_is_in_its_logs(real_logs: Path) -> None:
    stated = [one for one in source_pages.stated("ddl")["program"] if "log" in one]
    assert len(stated) == 5
    for one in stated:
        parsed = parse_path(real_logs / "tf_cnn_cpu" / one["log"])
        rate = parsed.measurement("images_per_second")
        assert rate is not None
        assert (rate.value, parsed.verdict.value) == (one["rate"], one["verdict"])
        assert parsed.tags["variables"] == one["way"]
        assert ("synthetic" in parsed.tags["dataset"]) == (one["images"] == "synthetic")


# The 14 fields of an experiment's record.


def experiment() -> list[dict[str, Any]]:
    """Return the 14 fields of an experiment in the document, each with its place in a record."""
    return list(source_pages.stated("ddl")["experiment"])


def model_at(annotation: Any) -> type[BaseModel] | None:
    """Return the model that the annotation of a field contains, or None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := model_at(part))), None)


def test_every_field_of_the_document_is_in_the_record(root: Path) -> None:
    assert len(experiment()) == 14
    specs = yaml.safe_load((root / "roles/bench/meta/argument_specs.yml").read_text())["argument_specs"]
    known = {name for entry in specs.values() for name in entry.get("options", {})}
    for one in experiment():
        for path in one["record"]:
            model: type[BaseModel] | None = Run
            for name in path.replace("[]", "").split("."):
                assert model is not None, path
                assert name in model.model_fields, path
                model = model_at(model.model_fields[name].annotation)
        assert one.get("variable", "bench_description") in known


def test_the_report_shows_what_the_record_carries_of_each_field() -> None:
    node = Node(
        name="n1", sku="dgx1", addresses=("10.0.0.7",), cpu="Xeon", cpu_count=80, memory_bytes=512 << 30,
        gpus=(Gpu(index=0, uuid="GPU-0", name="P100"),),
    )  # fmt: skip
    reference = Reference(value=220, unit="images/s", source="published study")
    judged = Judgement(metric="images_per_second", reference=reference, verdict=Verdict.FAIL, reason="slow")
    rate = Measurement(name="images_per_second", value=188, unit="images/s", direction=Direction.HIGHER)
    run = Run(
        run_id="r1",
        benchmark="tf-cnn",
        description="one node, s3fs",
        started=datetime(2018, 1, 29, 20, 35, tzinfo=UTC),
        storage="cos at s3.example",
        command=("python", "mpirun_tf_cnn.py"),
        parameters={"model": "resnet50", "storage_options": "use_cache="},
        nodes=(node,),
        network="host, behind a gateway",
        measurements=(rate,),
        judgements=(judged,),
        logs=(LogFile(path="logs/n1.log", sha256="0" * 64, size_bytes=1),),
        dataset=Dataset(name="imagenet-tfrecord", objects=1024, size_bytes=150 << 30),
        verdict=Verdict.FAIL,
        reasons=("188 images/s is below 220",),
        notes="look at the GPUs' use",
    )
    made = experiment_table([run])
    by_column = {column: cell.text for column, cell in zip(made.columns, made.rows[0], strict=True)}
    wanted = {
        "Description": "one node, s3fs",
        "Time (GMT)": "2018-01-29 20:35",
        "Storage and endpoint": "cos at s3.example",
        "Workload": "mpirun_tf_cnn.py",
        "Cluster": "P100",
        "Servers": "1",
        "Addresses": "10.0.0.7",
        "Node hardware": "80 CPUs",
        "Network": "behind a gateway",
        "Results": "188",
        "Expected results": "220",
        "s3fs and mount options": "use_cache=",
        "Input data (objects, size)": "1,024",
        "Summary": "look at the GPUs' use",
    }
    assert sorted(one["column"] for one in experiment()) == sorted(wanted)
    for column, text in wanted.items():
        assert text in by_column[column], column


# The sweep of the MXNet document.


@pytest.mark.parametrize("name", ["mnist-lenet", "mnist-mlp"])
@pytest.mark.parametrize(("form", "suite"), [("", "mnist"), ("-mxnet", "mnist-mxnet")])
def test_the_sweep_has_every_point_of_the_document(root: Path, name: str, form: str, suite: str) -> None:
    definition = load_definitions(root / "benchmarks", log_formats=FORMATS)[name + form].definition
    points = [{key: str(value) for key, value in point.items()} for point in definition.points(suite, gpus=8)]
    plain = {"learning_rate": "", "lr_step_epochs": ""}
    for one in study_points():
        if one.benchmark == name:
            assert any((plain | one.point).items() <= point.items() for point in points), one.point
    whole = {(point["batch_size"], point["gpus"]) for point in points}
    assert whole == {
        (str(batch), str(gpus)) for batch in (64, 128, 256, 512, 1024, 2048) for gpus in (0, 1, 2, 3, 4, 8)
    }
    if form:
        stores = {(point["gpus"] in ("0", "1"), point["kvstore"]) for point in points}
        assert stores == {(True, "device"), (False, "local"), (False, "device"), (False, "nccl")}


@pytest.mark.parametrize("network", ["lenet", "mlp"])
def test_every_point_that_a_cpu_can_run_was_run_by_mxnet_itself(network: str) -> None:
    """The CPU has six batch sizes, the largest also with both schedules. GPUs have a reason in each row."""
    own = [row.split(" | ") for row in rows("sweep_mxnet") if row.startswith(f"| {network} |")]
    on_cpu = {(row[2], row[3]) for row in own if row[1] == "0"}
    assert on_cpu == {(str(batch), "") for batch in (64, 128, 256, 512, 1024, 2048)} | {
        ("2048", "learning_rate 0.07"),
        ("2048", "learning_rate 0.07 lr_step_epochs 13"),
    }
    for row in own:
        if row[1] == "0":
            assert 0.9 < float(row[7]) < 1, row
            assert (row[9].strip(" |") == "pass") <= bool(re.match(r"[\d,]{3,}", row[6])), row
        else:
            assert "not available here: " in row[6]
            assert ("nccl" in row[4]) is (row[1] != "1")
    assert {row[1] for row in own} == {"0", "1", "2", "3", "4", "8"}


def test_stores_on_one_device_exchange_nothing() -> None:
    """MXNet makes no store for one device: the same bits come out whichever is named."""
    accuracies: dict[str, set[float]] = {}
    stores: dict[str, set[str]] = {}
    for run in source_pages.mxnet_runs():
        given = run["parameters"]
        if run["benchmark"] == "mnist-mlp-mxnet" and given["batch_size"] in (64, 128, 256):
            accuracies.setdefault(str(given["batch_size"]), set()).add(run["values"]["eval_accuracy"])
            stores.setdefault(str(given["batch_size"]), set()).add(given["kvstore"])
    assert set(accuracies) == {"64", "128", "256"}
    assert all(len(found) == 1 for found in accuracies.values())
    assert all(found == {"local", "device", "nccl"} for found in stores.values())


def test_a_store_is_listed_only_with_its_own_verdict() -> None:
    """With batch 512, local and nccl ran once, missed the target of that time, and were not run again."""
    own = [row.split(" | ") for row in rows("sweep_mxnet") if row.startswith("| mlp | 0 |")]
    stores = {row[2]: (row[4], row[9].strip(" |")) for row in own if not row[3]}
    every = ("device, local, nccl", "pass")
    assert {batch: stores[batch] for batch in ("64", "128", "256")} == dict.fromkeys(
        ("64", "128", "256"), every
    )
    assert stores["512"] == ("device", "pass")
    last = {
        run["parameters"]["kvstore"]: (run["verdict"], run["parameters"]["target"])
        for run in sorted(source_pages.mxnet_runs(), key=lambda run: run["started"])
        if (run["benchmark"], run["parameters"]["batch_size"]) == ("mnist-mlp-mxnet", 512)
    }
    assert last == {"device": ("pass", 0.975), "local": ("fail", 0.978), "nccl": ("fail", 0.978)}


SITE = {
    "bench_data": "/data",
    "bench_mnist_folder": "/mnist",
    "bench_mnist_url": "",
    "bench_mnist_wheel": "",
    "bench_download_min_bytes_per_s": 1000,
    "bench_download_timeout_s": 600,
}
"""Variables of a site that a plan of the MNIST benchmarks needs."""


# The number of GPUs, and words that one of the planned commands must have.
@pytest.mark.parametrize(
    ("gpus", "wanted"),
    [
        # The CPU has six batch sizes, and the largest also with both schedules.
        (
            0,
            [
                ["--batch-size", "64", "--gpu-count", "0"],
                ["--batch-size", "2048", "--gpu-count", "0", "--lr", "0.07"],
            ],
        ),
        (3, [["--batch-size", "128", "--gpu-count", "3", "--kv-store", "nccl"], ["--lr-step-epochs", "13"]]),
    ],
)
def test_points_of_the_sweep_are_started_as_the_document_does(
    root: Path, gpus: int, wanted: list[list[str]]
) -> None:
    loaded = load_definitions(root / "benchmarks", log_formats=FORMATS)["mnist-lenet-mxnet"]
    node = Node(name="n1", gpus=tuple(Gpu(index=at, uuid=f"GPU-{at}") for at in range(gpus)))
    plan = make_plan([loaded], {"n1": node}, {"n1": SITE}, suite="mnist-mxnet")
    assert len(plan.runs) == (8 if gpus == 0 else 16 + 8 * 3 * 2)
    assert all(run.parameters["gpus"] in range(gpus + 1) for run in plan.runs)
    commands = [" ".join(run.arguments) for run in plan.runs]
    for words in wanted:
        pairs = [" ".join(words[at : at + 2]) for at in range(0, len(words), 2)]
        assert any(all(pair.replace(" ", "=") in one or pair in one for pair in pairs) for one in commands), (
            pairs
        )
