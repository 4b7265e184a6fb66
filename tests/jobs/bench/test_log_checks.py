"""Test ``rackproof.jobs.bench.log_checks``, which checks that a run's logs belong to the run.

A log may be left over from another run or another time, be about GPUs of another node, or show that the
program did something else than was requested. Each of these makes the run unproven. Most tests change one
statement of a good log, and expect the code of a finding. The last ones are about tf_cnn_benchmarks, an old
training program.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rackproof.core import definitions
from rackproof.core.records import Gpu, Measurement, Node, ParsedLog, Verdict
from rackproof.jobs.bench import planning
from rackproof.jobs.bench.log_checks import BY_ITSELF, log_findings
from rackproof.jobs.bench.planning import PlannedRun
from rackproof.logs import FORMATS, parse_path

UUIDS = tuple(f"GPU-{number}" for number in range(4))
NODE = Node(name="n1", serial="S1", gpus=tuple(Gpu(index=at, uuid=uuid) for at, uuid in enumerate(UUIDS)))
PROBE = """\
name: probe
summary: Probes
parameters: {gpus: all}
launch: {with: local, runtime: torch, program: probe.py, timeout_s: 60, hang_s: 5}
result:
  format: mllog
  states_run: true
  judge:
    - {metric: speed, unit: TB/s, direction: higher, per: gpu}
    - {metric: fp8, unit: TB/s, direction: higher, optional: true, per: gpu}
    - {metric: copy, unit: GB/s, direction: higher, optional: true, per: pair}
"""
# The job's start and end in Unix time (s). The job took 100 s.
STARTED, ENDED = 1_795_000_000.0, 1_795_000_100.0


@pytest.fixture
def planned(tmp_path: Path) -> PlannedRun:
    path = tmp_path / "probe.yml"
    path.write_text(PROBE)
    loaded = definitions.load_definition(path, log_formats=FORMATS)
    return planning.make_plan([loaded], {"n1": NODE}, {"n1": {}}).runs[0]


def speeds(*uuids: str, name: str = "speed") -> tuple[Measurement, ...]:
    """Return a speed of each GPU. A GPU without a UUID is not named."""
    return tuple(
        Measurement(name=name, value=3, unit="TB/s", labels={"gpu": uuid} if uuid else {}) for uuid in uuids
    )


def copies(pairs: list[tuple[str, str]]) -> tuple[Measurement, ...]:
    """Return the speed of a copy from one GPU to another for each pair."""
    return tuple(
        Measurement(name="copy", value=3, unit="GB/s", labels={"from": source, "to": target})
        for source, target in pairs
    )


PAIRS = [(source, target) for source in UUIDS for target in UUIDS if source != target]


def codes(planned: PlannedRun, *, job: bool = True, **changes: Any) -> set[str]:
    """Return the codes of the findings on a good log with these changes."""
    times = {
        "started": STARTED,
        "ended": ENDED,
        **{k: changes.pop(k) for k in ("started", "ended") if k in changes},
    }
    tags = {"run_id": planned.run_id, "software.gpus": ",".join(UUIDS), **changes.pop("tags", {})}
    log = {
        "format": "mllog",
        "measurements": speeds(*UUIDS),
        "first_event_s": STARTED + 1,
        "last_event_s": ENDED - 1,
        "verdict": Verdict.PASS,
        "tags": {key: value for key, value in tags.items() if value is not None},
        **changes,
    }
    moments = {name: None if at is None else datetime.fromtimestamp(at, UTC) for name, at in times.items()}
    state = {"id": planned.run_id} if job else {}
    found = log_findings(planned, state, moments["started"], moments["ended"], [ParsedLog(**log)], [NODE])
    assert {one.verdict for one in found} <= {Verdict.UNPROVEN}
    return {one.code for one in found}


def test_a_log_of_this_run_on_these_gpus_has_no_finding(planned: PlannedRun) -> None:
    assert codes(planned) == set()
    assert (
        codes(planned, measurements=(*speeds(*UUIDS), *speeds(*UUIDS, name="fp8"), *copies(PAIRS))) == set()
    )
    # The log may begin up to 5 s before the job, because clocks differ. Without a job, the log need not name
    # the run.
    assert codes(planned, first_event_s=STARTED - 2) == set()
    assert codes(planned, job=False, tags={"run_id": None}) == set()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"measurements": speeds(UUIDS[0])}, "gpus_not_measured"),
        ({"measurements": speeds(*UUIDS[:3])}, "gpus_not_measured"),
        ({"measurements": speeds(*[UUIDS[0]] * 4)}, "gpus_not_measured"),
        ({"measurements": speeds(*UUIDS[:3], "GPU-of-another-node")}, "foreign_gpus"),
        ({"measurements": speeds(*UUIDS, "GPU-of-another-node")}, "foreign_gpus"),
        ({"measurements": speeds("", "", "", "")}, "gpus_not_named"),
        ({"measurements": speeds(*UUIDS[:3], "")}, "gpus_not_named"),
        ({"measurements": (*speeds(*UUIDS), *speeds(UUIDS[1], name="fp8"))}, "gpus_not_measured"),
        ({"measurements": (*speeds(*UUIDS), *copies(PAIRS[:-1]))}, "gpus_not_measured"),
        ({"measurements": (*speeds(*UUIDS), *copies([(UUIDS[0], UUIDS[0])] * 12))}, "gpus_not_measured"),
        ({"tags": {"software.gpus": None}}, "gpus_not_named"),
        ({"tags": {"software.gpus": UUIDS[0]}}, "gpus_not_measured"),
        ({"tags": {"software.gpus": "GPU-9,GPU-8,GPU-7,GPU-6"}}, "foreign_gpus"),
    ],
)
def test_every_planned_gpu_is_measured_and_no_other(
    planned: PlannedRun, changes: dict[str, Any], code: str
) -> None:
    assert code in codes(planned, **changes)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"first_event_s": STARTED - 864_000, "last_event_s": ENDED - 864_000}, "log_of_another_time"),
        ({"first_event_s": STARTED + 10_000, "last_event_s": ENDED + 10_000}, "log_of_another_time"),
        ({"first_event_s": STARTED - 60}, "log_of_another_time"),
        ({"last_event_s": ENDED + 60}, "log_of_another_time"),
        ({"started": ENDED, "ended": STARTED}, "job_times"),
        ({"tags": {"run_id": None}}, "log_of_another_run"),
        ({"tags": {"run_id": "20260101T000000Z-probe-aaaaaa"}}, "log_of_another_run"),
        ({"tags": {"run_id": "\\x1b[2Jowned"}}, "log_of_another_run"),
    ],
)
def test_a_log_of_another_run_or_time_proves_nothing(
    planned: PlannedRun, changes: dict[str, Any], code: str
) -> None:
    assert code in codes(planned, **changes)


PARTS = {"n1": UUIDS[:2], "n2": UUIDS[2:]}
TWO_NODES = [
    Node(name=name, gpus=tuple(Gpu(index=at, uuid=uuid) for at, uuid in enumerate(uuids)))
    for name, uuids in PARTS.items()
]


@pytest.mark.parametrize(
    ("logs", "code"),
    [
        (PARTS, ""),
        ({"n1": PARTS["n1"]}, ""),  # the log of the first node alone
        ({**PARTS, "n2": PARTS["n1"]}, "foreign_gpus"),  # the second log is of the first node
        ({**PARTS, "n2": PARTS["n2"][:1]}, "gpus_not_measured"),
        ({**PARTS, "n1": UUIDS}, "foreign_gpus"),
        ({**PARTS, "n2": ()}, "gpus_not_named"),
    ],
)
def test_the_log_of_each_node_is_about_its_own_gpus(
    planned: PlannedRun, logs: dict[str, tuple[str, ...]], code: str
) -> None:
    parsed = [
        ParsedLog(
            format="mllog",
            file=f"logs/{name}.log",
            verdict=Verdict.PASS,
            tags={"run_id": planned.run_id, "software.gpus": ",".join(uuids)},
            measurements=(*speeds(*uuids), *copies([uuids[:2], uuids[1::-1]] if len(uuids) == 2 else [])),
        )
        for name, uuids in logs.items()
    ]
    run = planned.model_copy(update={"parameters": {"nodes": 2, "gpus": 2}, "nodes": ("n1", "n2")})
    found = log_findings(run, {"id": run.run_id}, None, None, parsed, TWO_NODES)
    assert code in {one.code for one in found} if code else found == []


def test_a_log_need_not_state_its_run_if_the_definition_does_not_require_it(planned: PlannedRun) -> None:
    result = planned.result.model_copy(update={"states_run": False})
    other = planned.model_copy(update={"result": result})
    assert codes(other, tags={"run_id": None, "software.gpus": None}) == set()
    assert "log_of_another_run" in codes(other, tags={"run_id": "another"})


def states(*uuids: str, moments: tuple[str, ...] = ("begin", "end")) -> dict[str, str]:
    """Return the tags of a log that states the use of GPUs by other processes, before and after the run."""
    return {f"gpu_state.{moment}.{uuid}": "read" for moment in moments for uuid in uuids}


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (states(*UUIDS), set()),
        ({}, {"gpu_use_not_stated"}),
        (states(*UUIDS, moments=("begin",)), {"gpu_use_not_stated"}),
        (states(*UUIDS, moments=("end",)), {"gpu_use_not_stated"}),
        (states(*UUIDS[:3]), {"gpu_use_not_stated"}),
        (states(*UUIDS[:3], "GPU-of-another-node"), {"gpu_use_not_stated"}),
        # The log does not list the fourth GPU as used, but has its speed.
        (
            {**states(*UUIDS[:3]), "software.gpus": ",".join(UUIDS[:3])},
            {"gpu_use_not_stated", "gpus_not_measured"},
        ),
        ({**states(), "software.gpus": None}, {"gpu_use_not_stated", "gpus_not_named"}),
    ],
)
def test_a_log_has_to_state_the_use_of_each_gpu_before_and_after_the_run(
    planned: PlannedRun, tags: dict[str, str | None], expected: set[str]
) -> None:
    result = planned.result.model_copy(update={"states_gpu_use": True})
    assert codes(planned.model_copy(update={"result": result}), tags=tags) == expected
    # Without states_gpu_use in the definition, the log need not state the use.
    assert codes(planned, tags=tags) == expected - {"gpu_use_not_stated"}


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (states(*UUIDS), set()),
        (states(*UUIDS[:3]), {"gpus_not_measured"}),
        (states(*UUIDS, moments=("begin",)), {"gpu_use_not_stated"}),
        # Without any state, the log names no GPU at all.
        ({}, {"gpus_not_named"}),
    ],
)
def test_a_log_without_a_list_of_gpus_names_them_by_their_states(
    planned: PlannedRun, tags: dict[str, str], expected: set[str]
) -> None:
    asked = {"states_gpu_use": True, "states_run": False, "format": "mxnet"}
    mxnet = planned.model_copy(update={"result": planned.result.model_copy(update=asked)})
    none = {"run_id": None, "software.gpus": None}
    assert codes(mxnet, format="mxnet", measurements=(), tags={**none, **tags}) == expected
    # A log that another program wrote need not name them.
    another = {**asked, "states_gpu_use": False}
    other = planned.model_copy(update={"result": planned.result.model_copy(update=another)})
    assert codes(other, format="mxnet", measurements=(), tags=none) == set()


def test_rackproofs_programs_have_to_state_what_else_used_their_gpus(root: Path) -> None:
    paths = list((root / "benchmarks").glob("*.yml"))
    assert paths
    for path in paths:
        definition = definitions.load_definition(path, log_formats=FORMATS).definition
        # Slurm and Docker start programs of MLPerf, which state no use of GPUs. Some tools use no GPU.
        uses_gpus = definition.launch.with_ in BY_ITSELF and "gpus" in definition.parameters
        assert definition.result.states_gpu_use is uses_gpus, path.name


# If tf_cnn_benchmarks cannot use a value, it uses another one without an error: 32 instead of a batch of 0,
# and the CPU instead of an absent GPU. These are the tags of a log of a run with the requested values.

TF_CNN = {
    "model": "resnet50",
    "batch_size_per_device": "64",
    "num_batches": "100",
    "variables": "horovod",
    "dataset": "imagenet (synthetic)",
    "gpus_created": "4",
}


WITHOUT_STATES = dict.fromkeys(states(*UUIDS))


@pytest.fixture
def tf_cnn(root: Path) -> PlannedRun:
    loaded = definitions.load_definition(root / "benchmarks/tf-cnn.yml", log_formats=FORMATS)
    made = planning.make_plan(
        [loaded],
        {"n1": NODE},
        {"n1": {"bench_tf_cnn_command": "tf_cnn"}},
        overrides={"nodes": (1,), "model": ("resnet50",)},
    )
    return made.runs[0]


def tf_cnn_codes(planned: PlannedRun, **tags: str | None) -> set[str]:
    """Return the codes of the findings on a good log of tf_cnn_benchmarks with other tags."""
    stated = {**TF_CNN, "run_id": None, "software.gpus": None, **states(*UUIDS), **tags}
    return codes(planned, format="tf_cnn", measurements=(), tags=stated)


def test_a_log_of_tf_cnn_benchmarks_with_the_requested_values_has_no_finding(tf_cnn: PlannedRun) -> None:
    assert tf_cnn.parameters["gpus"] == 4
    assert tf_cnn_codes(tf_cnn) == set()
    # A run on the CPU needs no GPU in its log.
    on_cpu = tf_cnn.model_copy(update={"parameters": {**tf_cnn.parameters, "gpus": 0}})
    assert tf_cnn_codes(on_cpu, gpus_created=None, **WITHOUT_STATES) == set()
    records = tf_cnn.model_copy(update={"arguments": (*tf_cnn.arguments, "--data=/records")})
    assert tf_cnn_codes(records, dataset="imagenet") == set()


@pytest.mark.parametrize(
    ("tags", "code"),
    [
        ({"batch_size_per_device": "32"}, "log_of_another_point"),
        ({"batch_size_per_device": None}, "log_of_another_point"),
        ({"model": "trivial"}, "log_of_another_point"),
        ({"model": None}, "log_of_another_point"),
        ({"variables": "replicated"}, "log_of_another_point"),
        ({"num_batches": "4"}, "log_of_another_point"),
        ({"gpus_created": None}, "gpus_not_measured"),
        ({"gpus_created": "3"}, "gpus_not_measured"),
        ({"gpus_created": "5"}, "gpus_not_measured"),
        ({f"gpu_state.end.{UUIDS[1]}": None}, "gpu_use_not_stated"),
        ({f"gpu_state.{moment}.{UUIDS[1]}": None for moment in ("begin", "end")}, "gpus_not_measured"),
        (WITHOUT_STATES, "gpus_not_named"),
        (states("GPU-of-another-node"), "foreign_gpus"),
    ],
)
def test_a_log_of_tf_cnn_benchmarks_with_other_values_proves_nothing(
    tf_cnn: PlannedRun, tags: dict[str, str | None], code: str
) -> None:
    assert tf_cnn_codes(tf_cnn, **tags) == {code}


@pytest.mark.parametrize("dataset", ["imagenet (synthetic)", None])
def test_synthetic_images_in_place_of_records_prove_nothing(tf_cnn: PlannedRun, dataset: str | None) -> None:
    records = tf_cnn.model_copy(update={"arguments": (*tf_cnn.arguments, "--data=/records")})
    assert tf_cnn_codes(records, dataset=dataset) == {"log_of_another_point"}


# Real logs from a machine without GPUs, with the parameters that a run would have requested.
@pytest.mark.parametrize(
    ("name", "asked", "found"),
    [
        # A GPU was requested, the CPU trained, and no GPU has a state.
        (
            "no-gpu",
            {"gpus": 1, "batch_per_gpu": 1, "variable_update": "replicated"},
            {"gpus_not_measured", "gpus_not_named"},
        ),
        ("batch-0", {"model": "trivial", "batch_per_gpu": 0}, {"log_of_another_point"}),
        ("batch-0", {"model": "trivial", "batch_per_gpu": 32}, set()),
        ("horovod", {"variable_update": "horovod", "num_batches": 6, "batch_per_gpu": 1}, set()),
        ("tfrecords", {"variable_update": "horovod", "num_batches": 6, "batch_per_gpu": 1}, set()),
        (
            "parameter_server",
            {"variable_update": "horovod", "num_batches": 6, "batch_per_gpu": 1},
            {"log_of_another_point"},
        ),
    ],
)
def test_real_logs_of_tf_cnn_benchmarks_are_compared_with_the_request(
    real_logs: Path, tf_cnn: PlannedRun, name: str, asked: dict[str, Any], found: set[str]
) -> None:
    parsed = parse_path(real_logs / f"tf_cnn_cpu/{name}.log")
    point = {**tf_cnn.parameters, "gpus": 0, "num_batches": 3, "variable_update": "replicated", **asked}
    planned = tf_cnn.model_copy(update={"parameters": point})
    now = datetime.fromtimestamp(STARTED, UTC)
    findings = log_findings(planned, {"id": planned.run_id}, now, now, [parsed], [NODE])
    assert {one.code for one in findings} == found, [one.message for one in findings]
