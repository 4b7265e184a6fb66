"""Build the tables and charts of a scaling study, which is one benchmark on several numbers of devices.

The HTML and Markdown reports of a plan call :func:`tables`, and the page also :func:`scaling_charts`. The
tables show results, environment, experiments and causes. The study itself is computed in
:mod:`rackproof.analysis.scaling_study`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rackproof.analysis.scaling_study import ScalingExplanation, Study, StudyRow, rate_of, studies
from rackproof.core.records import Run
from rackproof.core.text import NOTHING, amount, moment, number, quantity, sanitize, size, unit_text
from rackproof.report import view
from rackproof.report.charts import MAX_LINES, Chart, Line
from rackproof.report.view import Cell, Table, build_table

_FRAMEWORKS = ("torch", "tensorflow", "mxnet")
_LIBRARIES = ("cuda", "cudnn", "nccl", "mpi")
# The rows that are always in the environment table. Each is a title, and the keys of Node.software and
# Run.software in the row. The firmware of a row without keys is in Node.firmware.
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
# Parameters of a run that are shown as the options of its storage.
_STORAGE = ("storage", "storage_options", "s3fs", "s3fs_options", "mount_options", "cache")


def is_study(runs: Sequence[Run]) -> bool:
    """Return whether runs of one benchmark measured a throughput at two or more sizes."""
    return any(study.scales for study in studies(runs))


def scaling_tables(runs: Sequence[Run], link: Callable[[Run], str] | None = None) -> tuple[Table, ...]:
    """Return the tables of results, one per benchmark, with rate, efficiency, accuracy, logs and notes.

    ``link`` is a function that returns the relative link to a run's page, here and in all functions below.
    """
    every = studies(runs)
    tables = []
    for benchmark in dict.fromkeys(study.benchmark for study in every):
        related = [study for study in every if study.benchmark == benchmark]
        varying = _varying(related)
        rows = [_row(study, row, varying, link) for study in related for row in study.rows]
        tables.append(build_table(_scaling_caption(related[0], varying), _COLUMNS, rows))
    return tuple(tables)


def _scaling_caption(study: Study, varying: set[str]) -> str:
    """Return a caption with the benchmark and the parameters that all of its studies share."""
    shared = " ".join(f"{name}={value}" for name, value in study.point.items() if name not in varying)
    caption = f"Scaling of {sanitize(study.benchmark, 100)}"
    return f"{caption} ({sanitize(shared, 300)})" if shared else caption


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
    """Return the row of a study's results on one number of devices."""
    first_run = row.runs[0]
    point_text = " ".join(f"{name}={value}" for name, value in study.point.items() if name in varying)
    return (
        view.verdict_cell(row.verdict),
        Cell(_devices_text(row), note=sanitize(point_text, 160)),
        Cell(sanitize(view.hardware_text(first_run) or NOTHING, 160), note=sanitize(study.where, 80)),
        Cell(str(row.devices), "number"),
        Cell(_rate(row), "number"),
        _efficiency(study, row),
        Cell(NOTHING if row.top_1 is None else f"{row.top_1:.4f}", "number"),
        Cell(NOTHING if row.top_5 is None else f"{row.top_5:.4f}", "number"),
        _details(row, link),
        Cell("; ".join(dict.fromkeys(_notes(row)))),
    )


def _devices_text(row: StudyRow) -> str:
    """Return the number of devices of a row and, if there are several, of their nodes as text."""
    parameters = row.runs[0].parameters
    # Only 0 or an empty parameter means that there is no GPU. A run without the parameter may have used any
    # number of GPUs.
    on_cpu = "gpus" in parameters and parameters["gpus"] in (0, "", None)
    singular, plural = ("process", "processes") if on_cpu else ("GPU", "GPUs")
    devices = f"{row.devices} {singular if row.devices == 1 else plural}"
    return devices + (f" on {amount(row.nodes, 'node')}" if row.nodes > 1 else "")


def _details(row: StudyRow, link: Callable[[Run], str] | None) -> Cell:
    """Return the ids of a row's first three runs with a link to the first run's page, and the logs' paths."""
    logs = dict.fromkeys(log.path for run in row.runs for log in run.logs)
    run_ids = ", ".join(run.run_id for run in row.runs[:3])
    if len(row.runs) > 3:
        run_ids += " …"
    href = link(row.runs[0]) if link else ""
    return Cell(sanitize(run_ids, 200), "code", href=href, note=sanitize(", ".join(logs), 160))


def _notes(row: StudyRow) -> list[str]:
    """Return notes on runs that do not count, causes of bad scaling, remarks, and a measured network."""
    notes = [sanitize(reason, 200) for reason in row.left_out]
    notes += [_cause_note(cause) for cause in row.explanations]
    for run in row.runs:
        remarks = [finding for finding in run.findings if finding.verdict is None]
        notes += [sanitize(remark.message, 160) for remark in remarks]
    # The network is named only if its links were measured.
    for run in row.runs:
        if any(measured.name == "link_bandwidth" for measured in run.measurements):
            notes.append(f"network: {sanitize(run.network, 160)}")
    return notes


def _cause_note(cause: ScalingExplanation) -> str:
    """Return a cause of bad scaling with its evidence."""
    return sanitize(f"{cause.text}: {'; '.join(cause.evidence)}".rstrip(": "), 400)


def _rate(row: StudyRow) -> str:
    """Return the processing rate of a row as text."""
    if row.rate is None:
        return NOTHING
    return (
        f"{row.rate:,.2f} {unit_text(row.unit)}".strip() if row.rate < 1e6 else quantity(row.rate, row.unit)
    )


def _efficiency(study: Study, row: StudyRow) -> Cell:
    """Return the cell of the efficiency, with its base, its interval and the number of repeats as a note."""
    point = row.scaling
    if point is None:
        return Cell(NOTHING, "number", note="no valid rate")
    repeats = amount(point.repeats, "run")
    # The base is 1 by definition. An interval would suggest a measurement.
    if point.devices == point.base:
        return Cell(f"{point.efficiency:.3f}", "number", note=f"the base, {repeats}")
    base = f"of {point.base}"
    if point.low is None or point.high is None:
        return Cell(f"{point.efficiency:.3f}", "number", note=f"{base}, {repeats}, no interval")
    span = f"{point.low:.3f} to {point.high:.3f} ({point.confidence:.0%}), {repeats}"
    return Cell(f"{point.efficiency:.3f}", "number", note=f"{base}, {span}")


def environment_table(runs: Sequence[Run]) -> Table:
    """Return the table of the runs' software, each version once.

    A missing version is shown as "not known", and a missing container as "none".
    """
    rows = []
    for title, versions in _stack_versions(runs):
        text = "; ".join(dict.fromkeys(versions)) or "not known"
        rows.append((Cell(title), Cell(sanitize(text, 400), "code")))
    containers = dict.fromkeys(view.container_text(run) for run in runs if run.container)
    rows.append((Cell("Container"), Cell(sanitize("; ".join(containers) or "none", 400), "code")))
    return build_table("Environment", ("Stack", "Version"), rows)


def _stack_versions(runs: Sequence[Run]) -> Iterator[tuple[str, list[str]]]:
    """Yield the title of each row of :data:`_STACK` with its versions."""
    versions = _versions(runs)
    for title, names in _STACK:
        if title == "Firmware":
            yield title, _firmware(runs)
            continue
        # Several frameworks share this row. Without names, their versions would be ambiguous.
        mark = "{name} {version}" if title == "Framework" else "{version}"
        software_versions = [
            mark.format(name=name, version=version) for name in names for version in versions.get(name, ())
        ]
        yield title, software_versions + (_launched_with(runs) if title == "Orchestrator" else [])


def _launched_with(runs: Sequence[Run]) -> list[str]:
    """Return a text for each launcher of the runs."""
    return [f"launched with {name}" for name in sorted({run.launcher for run in runs if run.launcher})]


def _versions(runs: Sequence[Run]) -> dict[str, dict[str, None]]:
    """Return the versions of each software, in the order in which they were found (the values are None).

    The libraries that a workload reports are marked, because libraries in a container may differ from the
    node's. Other software that a workload reports is left out.
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
    """Return all versions of firmware on the runs' nodes."""
    versions = {
        f"{name} {version}": None
        for run in runs
        for node in run.nodes
        for name, version in node.firmware.items()
    }
    return list(versions)


def experiment_table(runs: Sequence[Run], link: Callable[[Run], str] | None = None) -> Table:
    """Return a table with one row per run, and a column for each field that describes an experiment."""
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
    return build_table("The experiments, one by one", columns, rows)


def _experiment_row(run: Run, link: Callable[[Run], str] | None) -> tuple[Cell, ...]:
    """Return the row of one run in the table of experiments."""
    servers = str(len(run.nodes) or len(run.asked_nodes) or NOTHING)
    # The measured network comes before the requested one.
    network = run.network or str(run.parameters.get("network", ""))
    return (
        view.verdict_cell(run.verdict),
        Cell(sanitize(run.description or run.title, 300), note=view.point_text(run)),
        Cell(moment(run.started) if run.started else NOTHING),
        Cell(_or_nothing(run.storage or (run.dataset.name if run.dataset else ""), 200)),
        Cell(sanitize(" ".join([run.benchmark, *run.command[1:2]]), 200)),
        Cell(_or_nothing(view.hardware_text(run), 200)),
        Cell(servers, "number"),
        Cell(_or_nothing(_addresses(run), 200)),
        Cell(_or_nothing(_node_hardware(run), 400)),
        Cell(_or_nothing(network, 120)),
        Cell(_or_nothing("; ".join(_results(run)), 300), href=link(run) if link else ""),
        Cell(sanitize("; ".join(_expected_results(run)) or "none stated", 400)),
        Cell(_or_nothing(_storage_options(run), 200), "code"),
        Cell(_or_nothing(", ".join(_input_data(run)), 300)),
        Cell(sanitize("; ".join([view.verdict_reasons(run)[0], *filter(None, [run.notes])]), 400)),
    )


def _or_nothing(text: str, limit: int) -> str:
    """Return a sanitized text, or the mark for a missing value if it is empty."""
    return sanitize(text or NOTHING, limit)


def _addresses(run: Run) -> str:
    """Return the addresses of a run's nodes."""
    return ", ".join(address for node in run.nodes for address in node.addresses)


def _node_hardware(run: Run) -> str:
    """Return the processors, memory and GPUs of each node."""
    return "; ".join(
        f"{node.name}: {amount(node.cpu_count, 'CPU')}, {_memory(node.memory_bytes)}, "
        f"{amount(len(node.gpus), 'GPU')}"
        for node in run.nodes
    )


def _storage_options(run: Run) -> str:
    """Return the parameters of a run that concern its storage."""
    return " ".join(f"{key}={run.parameters[key]}" for key in _STORAGE if run.parameters.get(key))


def _results(run: Run) -> list[str]:
    """Return the rate and the accuracies of a run."""
    rate = rate_of(run)
    results = (
        [f"{view.metric_words(rate.name)} {quantity(rate.value, rate.unit)}"] if rate is not None else []
    )
    accuracies = [
        measurement
        for measurement in run.measurements
        if measurement.name in _ACCURACIES and not measurement.labels
    ]
    return results + [
        f"{view.metric_words(measurement.name)} {number(measurement.value)}" for measurement in accuracies
    ]


def _expected_results(run: Run) -> list[str]:
    """Return the references that the run was judged by."""
    return [
        f"{view.metric_words(judgement.metric)}: "
        f"{quantity(reference.value, reference.unit)} ({reference.source})"
        for judgement in run.judgements
        if (reference := judgement.reference) is not None
    ]


def _input_data(run: Run) -> list[str]:
    """Return the name, the source and the size of a run's dataset."""
    if run.dataset is None:
        return []
    names = [sanitize(text, 120) for text in (run.dataset.name, run.dataset.source) if text]
    return names + view.data_amount(run.dataset)


def _memory(amount: int) -> str:
    """Return an amount of memory as text."""
    return size(amount) if amount else "memory not known"


def _varying(related: Sequence[Study]) -> set[str]:
    """Return the names of the parameters that differ between studies, or that not all of them have."""
    names = {name for study in related for name in study.point}
    return {name for name in names if len({study.point.get(name) for study in related}) > 1}


def cause_table(runs: Sequence[Run]) -> Table:
    """Return the causes of bad scaling that the samples show, with the evidence."""
    rows = [
        (
            Cell(sanitize(study.benchmark, 100), note=f"{amount(row.devices, 'device')}"),
            Cell(f"{row.scaling.efficiency:.3f}" if row.scaling else NOTHING, "number"),
            Cell(sanitize(explanation.text, 300)),
            Cell(sanitize("; ".join(explanation.evidence) or "none", 600)),
        )
        for study in studies(runs)
        for row in study.rows
        for explanation in row.explanations
    ]
    return build_table(
        "Why points scale badly", ("Point", "Efficiency", "What the samples show", "Evidence"), rows
    )


def tables(runs: Sequence[Run], link: Callable[[Run], str] | None = None) -> tuple[Table, ...]:
    """Return all tables of the studies among runs that have rows, or none if the runs are not a study."""
    if not is_study(runs):
        return ()
    every = (
        *scaling_tables(runs, link),
        cause_table(runs),
        environment_table(runs),
        experiment_table(runs, link),
    )
    return tuple(study for study in every if study.rows)


def scaling_charts(runs: Sequence[Run]) -> tuple[Chart, ...]:
    """Return charts of the efficiency over the number of devices, one for each benchmark, at most six.

    A chart has a line for each study of the benchmark that scales, at most ``MAX_LINES``.
    """
    scaling = [study for study in studies(runs) if study.scales]
    charts = []
    for benchmark in dict.fromkeys(study.benchmark for study in scaling):
        related = [study for study in scaling if study.benchmark == benchmark]
        charts.append(
            Chart(
                title=f"Scaling efficiency: {sanitize(benchmark, 80)}",
                x_label="devices",
                y_label="of ideal",
                lines=_efficiency_lines(related),
                log_x=True,
                ticks_are_points=True,
                markers=True,
                level=1.0,
                level_label="ideal",
            )
        )
    return tuple(charts[:6])


def _efficiency_lines(related: Sequence[Study]) -> tuple[Line, ...]:
    """Return a line for each study of a benchmark, labelled with the parameters that differ."""
    varying = _varying(related)
    several_places = len({study.where for study in related}) > 1
    # A chart has no more colours than this.
    return tuple(_efficiency_line(study, varying, several_places) for study in related[:MAX_LINES])


def _efficiency_line(study: Study, varying: set[str], several_places: bool) -> Line:
    """Return the line of one study."""
    labels = [study.where] if several_places and study.where else []
    labels += [f"{name}={value}" for name, value in study.point.items() if name in varying]
    points = [row.scaling for row in study.rows if row.scaling is not None]
    devices = tuple(float(point.devices) for point in points)
    return Line(sanitize(" ".join(labels), 60), devices, tuple(point.efficiency for point in points))
