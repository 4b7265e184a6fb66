"""Generate the tables on the pages about source documents, with each published row beside Rackproof's.

Published rows come from the package (``rackproof.analysis.mlperf.published``). Other statements of a
document are in the YAML files beside them. Rackproof's values come from the records in docs/results, and from
public logs, which ``tools/read-source-logs`` read. ``tools/make-docs`` writes the tables into the pages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from rackproof.analysis.mlperf.published import PublishedResult, find_published, study_points
from rackproof.core.definitions import load_definitions
from rackproof.core.text import number
from rackproof.logs import FORMATS

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs/results"
STATED = ROOT / "src/rackproof/analysis/mlperf/published"
MODELS = ("ssd", "maskrcnn", "resnet", "gnmt", "transformer", "minigo")
UNITS = ("samples/s", "iterations/s", "samples/s", "tokens/s", "batches/s", "epochs/min")
PLAY = "ansible-playbook bench.yml"
TIMES = "\N{MULTIPLICATION SIGN}"
MXNET_RECORD = "cpu-mxnet"
SWEEP_RECORDS = ("h200-x4", "h200-x1", "h100-x1", "h100-x4")
SCHEDULE = ("learning_rate", "lr_step_epochs")


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines)


@cache
def stated(document: str) -> dict[str, Any]:
    """Return the statements of a document that are not rows."""
    return dict(yaml.safe_load((STATED / f"{document}.yml").read_text()))


@cache
def logs() -> dict[str, Any]:
    """Return the public logs' statements, as tools/read-source-logs stored them."""
    return dict(json.loads((RESULTS / "source-logs.json").read_text()))


@cache
def own_runs() -> tuple[dict[str, Any], ...]:
    """Return Rackproof's passed runs on real GPUs, the latest last, with their record's name and values."""
    return tuple(run for run in _runs("h?00-x[0-9].json") if run["verdict"] == "pass")


@cache
def mxnet_runs() -> tuple[dict[str, Any], ...]:
    """Return the evaluated runs of MXNet itself.

    Those that passed come last, and the latest of these is last.
    """
    runs = [run for run in _runs(f"{MXNET_RECORD}.json") if "eval_accuracy" in run["values"]]
    return tuple(sorted(runs, key=lambda run: run["verdict"] == "pass"))


def _runs(pattern: str) -> tuple[dict[str, Any], ...]:
    """Return the runs of the records that match, in the order of their start."""
    runs = []
    for path in sorted(RESULTS.glob(pattern)):
        for run in json.loads(path.read_text())["runs"]:
            values = {name: value for name, (value, _) in run.get("unjudged", {}).items()}
            values |= {
                measured["metric"]: measured["worst"] for measured in run["measured"] if "worst" in measured
            }
            runs.append({**run, "record": path.stem, "values": values})
    return tuple(sorted(runs, key=lambda run: str(run.get("started", ""))))


def cell(value: float | None) -> str:
    """Return a number of Rackproof's with four digits, or ""."""
    return "" if value is None else number(value)


def printed(value: float | None) -> str:
    """Return a published number with all of its published digits, or ""."""
    return "" if value is None else f"{value:,.10g}"


def off(ours: float | None, published: float | None) -> str:
    """Return Rackproof's number with its deviation from the published one."""
    if ours is None or not published:
        return cell(ours)
    return f"{number(ours)} ({(ours / published - 1) * 100:+.1f} %)".replace("-", "\N{MINUS SIGN}")


# Round 0.6


def _rows_06() -> dict[str, dict[str, PublishedResult]]:
    rows: dict[str, dict[str, PublishedResult]] = {system: {} for system in stated("mlperf-0.6")["systems"]}
    for result in find_published(round="0.6"):
        rows[result.system][result.benchmark] = result
    return rows


def _table_06(value: Callable[[PublishedResult], float | None], key: str, units: tuple[str, ...]) -> str:
    """Return a table of the published systems of round 0.6, with the numbers that were read from logs."""
    about = stated("mlperf-0.6")
    named = {system: name for name, system in about["logs"].items()}
    rows = []
    for system, by_model in _rows_06().items():
        title = f"{system} (in the document)" if system in about["document"] else system
        numbers = [printed(value(by_model[model]) if model in by_model else None) for model in MODELS]
        rows.append([title, about["systems"][system], *numbers])
        if system in named:
            read = logs()["0.6"][named[system]]
            ours = [off(read[model][key], value(by_model[model])) for model in MODELS]
            rows.append(["", f"read from one log each, `{named[system]}.log`", *ours])
    heads = [f"{model} ({unit})" for model, unit in zip(MODELS, units, strict=True)]
    return table(["published system", "value", *heads], rows)


def throughput_06() -> str:
    """Return the throughput of every published system of round 0.6, and its logs' statements."""
    return _table_06(lambda result: result.throughput, "throughput", UNITS)


def minutes_06() -> str:
    """Return the minutes of every published system of round 0.6, and its logs' statements."""
    return _table_06(lambda result: result.minutes, "minutes", ("min",) * len(MODELS))


def commands_06() -> str:
    """Return how each row of round 0.6 is made again."""
    about = stated("mlperf-0.6")
    together = " -e bench_together=true"
    rows = []
    for system, by_model in _rows_06().items():
        config = next(iter(by_model.values())).configuration or (
            "DGX1" if system == "HyperPlane" else "LambdaHyperplane16"
        )
        tuned = (
            "" if "tuned" not in system else "after `provision.yml` with `-e node_tuning_profile=mlperf-0.6`"
        )
        command = f"{PLAY} -l HOST -e suite=mlperf-training-0.6 -e bench_config={config}"
        command = f"`{command}{together * system.startswith('2x')}`"
        rows.append([system, f"{command} {tuned}".strip(), f"not available here: {about['cannot']}"])
    return table(["row", "command", "measured here"], rows)


# Round 5.1


def scores_51() -> str:
    """Return the official and unofficial results of round 5.1 with the scores of their logs."""
    about = stated("mlperf-5.1")
    rows = []
    for entry in about["scores"]:
        score = logs()["5.1"][entry["logs"]]
        (row,) = (
            result
            for result in find_published(round="5.1", benchmark=score["benchmark"], kind=entry["kind"])
            if (result.system, result.note) == (entry["system"], entry["note"])
        )
        rows.append(
            [
                entry["kind"],
                f"{row.accelerators} {TIMES} {row.accelerator.split('(')[-1].rstrip(')')}",
                " ".join(
                    filter(None, [score["benchmark"], entry["note"] if entry["kind"] == "unofficial" else ""])
                ),
                printed(row.minutes),
                cell(score["minutes"]),
                f"{cell(score['olympic_mean_minutes'])} {TIMES} {number(score['rcp_scaling'])}",
                f"{score['runs']}, {score['failed_runs']} failed",
                score["verdict"],
            ]
        )
    head = [
        "kind",
        "system",
        "benchmark",
        "published (min)",
        "score of the logs (min)",
        f"olympic mean {TIMES} RCP",
        "runs",
        "verdict",
    ]
    return table(head, rows)


def commands_51() -> str:
    """Return how each result of round 5.1 is made again."""
    about = stated("mlperf-5.1")
    rows = [
        [entry["logs"], f"`{PLAY} {entry['command']}`", f"not available here: {about['cannot']}"]
        for entry in about["scores"]
    ]
    return table(["logs", "command", "measured here"], rows)


def details_51() -> str:
    """Return sequence length, batch, warm-up and samples that the logs of round 5.1 state."""
    rows = []
    for entry in stated("mlperf-5.1")["scores"]:
        details = logs()["5.1"][entry["logs"]]["stated"]
        warmup = details.get("opt_learning_rate_warmup_steps")
        factor = details.get("opt_learning_rate_warmup_factor")
        shown = f"{number(warmup)} steps" if warmup is not None else f"factor {cell(factor)}"
        keys = ("max_sequence_length", "global_batch_size", "train_samples", "eval_samples")
        values = [cell(details.get(key)) or "not stated" for key in keys]
        rows.append([entry["logs"], values[0], values[1], shown, *values[2:]])
    head = [
        "logs",
        "tokens a sequence",
        "global batch",
        "warm-up of the learning rate",
        "training samples",
        "evaluation samples",
    ]
    return table(head, rows)


# The DDL document


def _resnet(benchmark: str, gpus: int) -> str:
    """Return Rackproof's rates for a number of GPUs, one for each record and batch, with the efficiency."""
    values: dict[tuple[str, int], dict[int, list[float]]] = {}
    for run in own_runs():
        if run["benchmark"] == benchmark:
            by_gpus = values.setdefault((run["record"], int(run["parameters"]["batch_per_gpu"])), {})
            by_gpus.setdefault(int(run["parameters"]["gpus"]), []).append(
                float(run["values"]["images_per_second"])
            )
    return "; ".join(
        f"{record}, batch {batch}: {number(fmean(rates[gpus]))} images/s"
        + (f", {fmean(rates[gpus]) / gpus / fmean(rates[1]):.3f}" if 1 in rates and gpus > 1 else "")
        for (record, batch), rates in sorted(values.items())
        if gpus in rates
    )


def environment_ddl() -> str:
    """Return the environment that the DDL document states."""
    return table(["stack", "in the document"], stated("ddl")["environment"])


def rows_ddl() -> str:
    """Return every row of the DDL document, including commented ones, with Rackproof's on as many GPUs."""
    about = stated("ddl")["systems"]
    rows = []
    for point in study_points():
        if point.system not in about:
            continue
        ours = _resnet(point.benchmark, point.accelerators)
        reason = f"not available here: {about[point.system]['cannot']}"
        accuracy = " / ".join(filter(None, [printed(point.top_1), printed(point.top_5)]))
        note = point.note.partition("; ")[2]
        rows.append(
            [
                point.system,
                f"{point.benchmark}, {' '.join(f'{key} {value}' for key, value in point.point.items())}",
                f"{printed(point.throughput)} {point.throughput_unit}",
                printed(point.efficiency),
                accuracy,
                note,
                f"{ours} ({about[point.system]['cannot']})" if ours and point.top_1 is None else reason,
            ]
        )
    head = ["system", "point", "published", "efficiency", "top-1 / top-5", "note", "ours: rate, efficiency"]
    return table(head, rows)


def commands_ddl() -> str:
    """Return how the rows of each system of the DDL document are made again."""
    about = stated("ddl")["systems"]
    rows = [[name, entry["what"], f"`{PLAY} -l RACK {entry['command']}`"] for name, entry in about.items()]
    return table(["rows", "content", "command"], rows)


def experiment_ddl() -> str:
    """Return where each of the 14 fields of an experiment's record is."""
    rows = [
        [
            str(at),
            experiment["field"],
            ", ".join(f"`{name}`" for name in experiment["record"]),
            experiment["column"],
            f"`{experiment['variable']}`" if "variable" in experiment else "",
        ]
        for at, experiment in enumerate(stated("ddl")["experiment"], 1)
    ]
    return table(["", "in the document", "in `run.json`", "column of the report", "variable to set"], rows)


def program_ddl() -> str:
    """Return the measurements of the real tf_cnn_benchmarks."""
    rows = [
        [
            program["where"],
            program["network"],
            f"`{program['way']}`",
            program["images"],
            f"{program['rate']} images/s",
            program["verdict"],
        ]
        for program in stated("ddl")["program"]
    ]
    return table(["where", "network", "variable_update", "images", "measured", "verdict"], rows)


# The MXNet document


def environment_mxnet() -> str:
    """Return the infrastructures of the MXNet document."""
    head = ["system", "machine", "GPUs", "MXNet", "driver", "CUDA", "cuDNN"]
    return table(head, [[str(part) for part in row] for row in stated("mxnet")["environment"]])


def _sweep_run(result: PublishedResult, record: str) -> dict[str, Any] | None:
    """Return Rackproof's latest run at a published point, with the same network, batch, GPUs and schedule."""
    point = {**dict.fromkeys(SCHEDULE, ""), **result.point}
    for run in reversed(own_runs()):
        parameters = {key: str(run["parameters"].get(key, "")) for key in point}
        if (run["benchmark"], run["record"], parameters) == (result.benchmark, record, point):
            return dict(run)
    return None


def _measured(run: Mapping[str, Any]) -> list[str]:
    """Return rate, accuracy and seconds an epoch of a run."""
    names = ("samples_per_second", "eval_accuracy", "seconds_per_epoch")
    return [cell(run["values"].get(name)) for name in names]


def _on_cpu(benchmark: str, point: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the runs of MXNet itself on the CPU at a point, the latest last."""
    point_texts = {key: str(point.get(key, "")) for key in ("batch_size", *SCHEDULE)}
    return [
        run
        for run in mxnet_runs()
        if run["benchmark"] == f"{benchmark}-mxnet"
        and {key: str(run["parameters"].get(key, "")) for key in point_texts} == point_texts
    ]


def _schedule(point: Mapping[str, Any]) -> str:
    return " ".join(f"{key} {point[key]}" for key in SCHEDULE if point.get(key, "") != "")


def _not_measured(result: PublishedResult) -> str:
    reasons = stated("mxnet")["cannot"]
    gpus = result.point["gpus"]
    return str(reasons.get(f"gpus_{gpus}") or reasons["cpu" if gpus == "0" else "other"])


def _times_cpu(result: PublishedResult) -> str:
    """Return by how much a published row is faster than the CPU, with the same machine, network and batch."""
    for base in study_points():
        same = (base.system, base.benchmark, base.point.get("batch_size")) == (
            result.system,
            result.benchmark,
            result.point.get("batch_size"),
        )
        if same and base.point["gpus"] == "0" and base.throughput and result.throughput:
            return f"{result.throughput / base.throughput:.1f}"
    return ""


def _rows_of_mxnet() -> Iterator[list[str]]:
    """Yield a row for each published point of a K80, with the run that repeats it or why there is none."""
    for study in study_points():
        if not study.system.startswith("k80-"):
            continue
        point = [study.point.get(key, "") for key in ("batch_size", "gpus")]
        schedule = _schedule(study.point)
        repeat = next((run for record in SWEEP_RECORDS if (run := _sweep_run(study, record))), None)
        shown = [f"not measured: {_not_measured(study)}", "", ""]
        if repeat:
            shown = _measured(repeat)
            shown[0] += f" ({repeat['record']})"
        elif study.point["gpus"] == "0" and (cpu_runs := _on_cpu(study.benchmark, study.point)):
            shown = _measured(cpu_runs[-1])
            epochs = cpu_runs[-1]["parameters"]["num_epochs"]
            shown[0] += f" ({MXNET_RECORD}, epochs: {epochs}, {cpu_runs[-1]['verdict']})"
        rate = printed(study.throughput) or "not stated"
        rows = [
            study.system,
            study.benchmark.removeprefix("mnist-"),
            *point,
            schedule,
            rate,
            _times_cpu(study),
        ]
        yield [*rows, printed(study.accuracy) or "error", printed(study.seconds_per_epoch), *shown]


def rows_mxnet() -> str:
    """Return every row of the MXNet document, and Rackproof's at the same point."""
    head = ["system", "network", "batch", "GPUs", "schedule", "samples/s", "times CPU", "accuracy", "s/epoch"]
    return table([*head, "ours: samples/s", "ours: accuracy", "ours: s/epoch"], _rows_of_mxnet())


def sweep_mxnet() -> str:
    """Return each point of the suite mnist-mxnet with MXNet's measurement, or the reason for its absence."""
    definitions = load_definitions(ROOT / "benchmarks", log_formats=FORMATS)
    rows = []
    for name in ("mnist-lenet-mxnet", "mnist-mlp-mxnet"):
        points = list(definitions[name].definition.points("mnist-mxnet", gpus=8))
        network = name.split("-")[1]
        rows += [_measured_row(network, point) for point in points if point["gpus"] == 0]
        for gpus in dict.fromkeys(point["gpus"] for point in points if point["gpus"] != 0):
            those = [point for point in points if point["gpus"] == gpus]
            stores = dict.fromkeys(str(point["kvstore"]) for point in those if gpus != 1)
            reason = f"not available here: {stated('mxnet')['cannot']['mxnet']}"
            rows.append(
                [
                    network,
                    str(gpus),
                    f"all, {len(those)} points",
                    "",
                    ", ".join(stores),
                    "",
                    reason,
                    "",
                    "",
                    "",
                ]
            )
    head = ["network", "GPUs", "batch", "schedule", "kvstore", "epochs", "samples/s", "accuracy", "s/epoch"]
    head.append("verdict")
    return table(head, rows)


def _measured_row(network: str, point: Mapping[str, Any]) -> list[str]:
    """Return the row of a point on the CPU, from the latest run that passed, or else the latest."""
    cpu_runs = _on_cpu(f"mnist-{network}", point)
    row = [network, "0", str(point["batch_size"]), _schedule(point)]
    if not cpu_runs:
        return [*row, "", "", "not measured", "", "", ""]
    shown = cpu_runs[-1]
    latest = {
        str(run["parameters"]["kvstore"]): run
        for run in sorted(cpu_runs, key=lambda run: str(run["started"]))
    }
    # A store whose latest run has another verdict, or was judged by another target, is not listed.
    stores = sorted(store for store, run in latest.items() if _judgement(run) == _judgement(shown))
    epochs = str(shown["parameters"]["num_epochs"])
    return [*row, ", ".join(stores), epochs, *_measured(shown), shown["verdict"]]


def _judgement(run: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the verdict of a run, and the target that it was judged by."""
    return run["verdict"], run["parameters"].get("target")


GENERATED: dict[str, Callable[[], str]] = {
    "throughput_06": throughput_06,
    "minutes_06": minutes_06,
    "commands_06": commands_06,
    "scores_51": scores_51,
    "details_51": details_51,
    "commands_51": commands_51,
    "environment_ddl": environment_ddl,
    "rows_ddl": rows_ddl,
    "commands_ddl": commands_ddl,
    "experiment_ddl": experiment_ddl,
    "program_ddl": program_ddl,
    "environment_mxnet": environment_mxnet,
    "rows_mxnet": rows_mxnet,
    "sweep_mxnet": sweep_mxnet,
}
"""The generated parts by the name in a page's marker."""
