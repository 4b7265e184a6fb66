"""The tables of a scaling study, for pages and Markdown: results, environment, experiments, causes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rackproof.analysis.scaling_study import Study, StudyRow, rate_of, studies
from rackproof.core.records import Run
from rackproof.core.text import NOTHING, moment, number, quantity, sanitize, size, unit_text
from rackproof.report import view
from rackproof.report.charts import Chart, Line
from rackproof.report.view import Cell, Table, table

_FRAMEWORKS = ("torch", "tensorflow", "mxnet")
_LIBRARIES = ("cuda", "cudnn", "nccl", "mpi")
# What the environment table always names, in its order: the row, and the facts that fill it.
_STACK = (
    ("Firmware", ()),
    ("OS", ("os",)),
    ("Kernel", ("kernel",)),
    ("NVIDIA driver", ("driver",)),
    ("CUDA", ("cuda",)),
    ("cuDNN", ("cudnn",)),
    ("NCCL", ("nccl",)),
    ("OFED", ("ofed",)),
    ("MPI", ("mpi",)),
    ("Framework", _FRAMEWORKS),
    ("Orchestrator", ("slurm", "kubernetes")),
)
_ACCURACIES = ("top_1_accuracy", "top_5_accuracy", "eval_accuracy")
_STORAGE = ("storage", "storage_options", "s3fs", "s3fs_options", "mount_options", "cache")


def is_study(runs: Sequence[Run]) -> bool:
    """Whether runs measured a throughput at two sizes or more, so that the tables say something."""
    return any(one.scales for one in studies(runs))


def scaling_tables(runs: Sequence[Run], link: Callable[[Run], str] | None = None) -> tuple[Table, ...]:
    """Return the tables of results, one for each benchmark: rate, efficiency, accuracy, logs, notes."""
    found = studies(runs)
    tables = []
    for benchmark in dict.fromkeys(one.benchmark for one in found):
        own = [one for one in found if one.benchmark == benchmark]
        varying = _varying(own)
        rows = [_row(study, row, varying, link) for study in own for row in study.rows]
        shared = " ".join(f"{k}={v}" for k, v in own[0].point.items() if k not in varying)
        caption = f"Scaling of {sanitize(benchmark, 100)}" + (f" ({sanitize(shared, 300)})" if shared else "")
        tables.append(table(caption, _COLUMNS, rows))
    return tuple(tables)


_COLUMNS = (
    "Verdict",
    "Description",
    "Cluster",
    "Devices",
    "Processing rate",
    "Scaling efficiency",
    "Top-1",
    "Top-5",
    "Details",
    "Notes",
)


def _row(
    study: Study, row: StudyRow, varying: set[str], link: Callable[[Run], str] | None
) -> tuple[Cell, ...]:
    first = row.runs[0]
    what = " ".join(f"{name}={value}" for name, value in study.point.items() if name in varying)
    on_cpu = first.parameters.get("gpus") in (0, "", None) and "gpus" in first.parameters
    one, many = ("process", "processes") if on_cpu else ("GPU", "GPUs")
    devices = f"{row.devices} {one if row.devices == 1 else many}"
    described = devices + (f" on {row.nodes} nodes" if row.nodes > 1 else "")
    notes = [sanitize(one, 200) for one in row.left_out]
    notes += [
        sanitize(f"{one.text}: {'; '.join(one.evidence)}".rstrip(": "), 400) for one in row.explanations
    ]
    notes += [sanitize(one.message, 160) for run in row.runs for one in run.findings if one.verdict is None]
    measured = [run for run in row.runs if any(one.name == "link_bandwidth" for one in run.measurements)]
    notes += [f"network: {sanitize(run.network, 160)}" for run in measured]
    logs = [log.path for run in row.runs for log in run.logs]
    details = Cell(
        sanitize(", ".join(run.run_id for run in row.runs[:3]) + (" …" if len(row.runs) > 3 else ""), 200),
        "code",
        href=link(first) if link else "",
        note=sanitize(", ".join(dict.fromkeys(logs)), 160),
    )
    return (
        view.verdict_cell(row.verdict),
        Cell(described, note=sanitize(what, 160)),
        Cell(sanitize(view.hardware_text(first) or NOTHING, 160), note=sanitize(study.where, 80)),
        Cell(str(row.devices), "number"),
        Cell(_rate(row), "number"),
        _efficiency(study, row),
        Cell(NOTHING if row.top_1 is None else f"{row.top_1:.4f}", "number"),
        Cell(NOTHING if row.top_5 is None else f"{row.top_5:.4f}", "number"),
        details,
        Cell("; ".join(dict.fromkeys(notes))),
    )


def _rate(row: StudyRow) -> str:
    if row.rate is None:
        return NOTHING
    return (
        f"{row.rate:,.2f} {unit_text(row.unit)}".strip() if row.rate < 1e6 else quantity(row.rate, row.unit)
    )


def _efficiency(study: Study, row: StudyRow) -> Cell:
    """Return the efficiency with its base, its interval and how often the size was measured."""
    point = row.scaling
    if point is None:
        return Cell(NOTHING, "number", note="no rate that counts")
    repeats = f"{point.repeats} run{'' if point.repeats == 1 else 's'}"
    if point.devices == point.base:
        return Cell(f"{point.efficiency:.3f}", "number", note=f"the base, {repeats}")
    base = f"of {point.base}"
    if point.low is None or point.high is None:
        return Cell(f"{point.efficiency:.3f}", "number", note=f"{base}, {repeats}, no interval")
    span = f"{point.low:.3f} to {point.high:.3f} ({point.confidence:.0%}), {repeats}"
    return Cell(f"{point.efficiency:.3f}", "number", note=f"{base}, {span}")


def environment_table(runs: Sequence[Run]) -> Table:
    """Return the stack that the runs ran on, each version once; what was not reported is named as unknown."""
    versions, firmware = _versions(runs), _firmware(runs)
    launchers = sorted({run.launcher for run in runs if run.launcher})
    rows = []
    for title, names in _STACK:
        shown = [version for name in names for version in versions.get(name, ())]
        if title == "Firmware":
            shown = firmware
        elif title == "Framework":
            shown = [f"{name} {version}" for name in names for version in versions.get(name, ())]
        elif title == "Orchestrator":
            shown += [f"launched with {name}" for name in launchers]
        text = "; ".join(dict.fromkeys(shown)) or "not known"
        rows.append((Cell(title), Cell(sanitize(text, 400), "code")))
    containers = dict.fromkeys(
        " ".join(part for part in (run.container, run.container_digest) if part)
        for run in runs
        if run.container
    )
    rows.append((Cell("Container"), Cell(sanitize("; ".join(containers) or "none", 400), "code")))
    return table("Environment", ("Stack", "Version"), rows)


def _versions(runs: Sequence[Run]) -> dict[str, dict[str, None]]:
    """Return the versions of each piece of software in the order in which they were found.

    A workload's own libraries are marked: a container has others than its node.
    """
    versions: dict[str, dict[str, None]] = {}
    for run in runs:
        for node in run.nodes:
            for name, version in node.software.items():
                versions.setdefault(name, {})[version] = None
        for name, version in run.software.items():
            if name in _FRAMEWORKS:
                versions.setdefault(name, {})[version] = None
            elif name in _LIBRARIES:
                versions.setdefault(name, {})[f"{version} (in the workload)"] = None
    return versions


def _firmware(runs: Sequence[Run]) -> list[str]:
    versions = {
        f"{name} {version}": None
        for run in runs
        for node in run.nodes
        for name, version in node.firmware.items()
    }
    return list(versions)


def experiment_table(runs: Sequence[Run], link: Callable[[Run], str] | None = None) -> Table:
    """Return one row per run with every field that an experiment is to be written down with."""
    rows = [_experiment_row(run, link) for run in runs]
    columns = (
        "Verdict",
        "Description",
        "Time (GMT)",
        "Storage and endpoint",
        "Workload",
        "Cluster",
        "Servers",
        "Addresses",
        "Node hardware",
        "Network",
        "Results",
        "Expected results",
        "s3fs and mount options",
        "Input data (objects, size)",
        "Summary",
    )
    return table("The experiments, one by one", columns, rows)


def _experiment_row(run: Run, link: Callable[[Run], str] | None) -> tuple[Cell, ...]:
    data = run.dataset
    addresses = [address for node in run.nodes for address in node.addresses]
    hardware = [
        f"{node.name}: {node.cpu_count} CPUs, {_memory(node.memory_bytes)}, {len(node.gpus)} GPUs"
        for node in run.nodes
    ]
    storage = " ".join(f"{key}={run.parameters[key]}" for key in _STORAGE if run.parameters.get(key))
    # The network that was there and measured is worth more than the name of the one asked for.
    network = run.network or str(run.parameters.get("network", ""))
    return (
        view.verdict_cell(run.verdict),
        Cell(sanitize(run.description or run.title, 300), note=view.point_text(run)),
        Cell(moment(run.started) if run.started else NOTHING),
        Cell(sanitize(run.storage or (data.name if data else "") or NOTHING, 200)),
        Cell(sanitize(" ".join([run.benchmark, *run.command[1:2]]), 200)),
        Cell(sanitize(view.hardware_text(run) or NOTHING, 200)),
        Cell(str(len(run.nodes) or len(run.asked_nodes) or NOTHING), "number"),
        Cell(sanitize(", ".join(addresses) or NOTHING, 200)),
        Cell(sanitize("; ".join(hardware) or NOTHING, 400)),
        Cell(sanitize(network or NOTHING, 120)),
        Cell(sanitize("; ".join(_results(run)) or NOTHING, 300), href=link(run) if link else ""),
        Cell(sanitize("; ".join(_expected_results(run)) or "none stated", 400)),
        Cell(sanitize(storage or NOTHING, 200), "code"),
        Cell(sanitize(", ".join(_input_data(run)) or NOTHING, 300)),
        Cell(sanitize("; ".join([view.reasons(run)[0], *filter(None, [run.notes])]), 400)),
    )


def _results(run: Run) -> list[str]:
    rate = rate_of(run)
    results = [f"{view.words(rate.name)} {quantity(rate.value, rate.unit)}"] if rate is not None else []
    accuracies = [one for one in run.measurements if one.name in _ACCURACIES and not one.labels]
    return results + [f"{view.words(one.name)} {number(one.value)}" for one in accuracies]


def _expected_results(run: Run) -> list[str]:
    return [
        f"{view.words(judgement.metric)}: {quantity(reference.value, reference.unit)} ({reference.source})"
        for judgement in run.judgements
        if (reference := judgement.reference) is not None
    ]


def _input_data(run: Run) -> list[str]:
    data = run.dataset
    if data is None:
        return []
    parts = [sanitize(text, 120) for text in (data.name, data.source) if text]
    if data.objects is not None:
        parts.append(f"{data.objects:,} objects")
    if data.size_bytes is not None:
        parts.append(size(data.size_bytes))
    return parts


def _memory(amount: int) -> str:
    return size(amount) if amount else "memory not known"


def _varying(own: Sequence[Study]) -> set[str]:
    """Return the parameters in which studies differ."""
    names = {name for one in own for name in one.point}
    return {name for name in names if len({one.point.get(name) for one in own}) > 1}


def cause_table(runs: Sequence[Run]) -> Table:
    """Return what the samples of badly scaling points show, with the evidence."""
    rows = [
        (
            Cell(sanitize(study.benchmark, 100), note=f"{row.devices} devices"),
            Cell(f"{row.scaling.efficiency:.3f}" if row.scaling else NOTHING, "number"),
            Cell(sanitize(one.text, 300)),
            Cell(sanitize("; ".join(one.evidence) or "none", 600)),
        )
        for study in studies(runs)
        for row in study.rows
        for one in row.explanations
    ]
    return table("Why points scale badly", ("Point", "Efficiency", "What the samples show", "Evidence"), rows)


def tables(runs: Sequence[Run], link: Callable[[Run], str] | None = None) -> tuple[Table, ...]:
    """Return every table of a study, none where runs are no study."""
    if not is_study(runs):
        return ()
    every = (
        *scaling_tables(runs, link),
        cause_table(runs),
        environment_table(runs),
        experiment_table(runs, link),
    )
    return tuple(one for one in every if one.rows)


def scaling_charts(runs: Sequence[Run]) -> tuple[Chart, ...]:
    """Return the efficiency over the number of devices, one line for each study that scales."""
    found = [one for one in studies(runs) if one.scales]
    charts = []
    for benchmark in dict.fromkeys(one.benchmark for one in found):
        own = [one for one in found if one.benchmark == benchmark]
        varying = _varying(own)
        lines = []
        for study in own[:8]:
            label = " ".join(
                filter(
                    None,
                    [
                        study.where if len({one.where for one in own}) > 1 else "",
                        *(f"{k}={v}" for k, v in study.point.items() if k in varying),
                    ],
                )
            )
            points = [row.scaling for row in study.rows if row.scaling is not None]
            lines.append(
                Line(
                    sanitize(label, 60),
                    tuple(float(point.devices) for point in points),
                    tuple(point.efficiency for point in points),
                )
            )
        charts.append(
            Chart(
                title=f"Scaling efficiency: {sanitize(benchmark, 80)}",
                x_label="devices",
                y_label="of ideal",
                lines=tuple(lines),
                log_x=True,
                ticks_are_points=True,
                markers=True,
                level=1.0,
                level_label="ideal",
            )
        )
    return tuple(charts[:6])
