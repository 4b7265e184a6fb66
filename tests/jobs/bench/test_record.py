"""Test ``rackproof.jobs.bench.record``, which makes a record with a verdict of each job that ended.

The verdict depends on the state of the job, its logs, the facts of its nodes, and references. The tables have
one change to a good run in each row, with the verdict and the finding that it causes. Whatever is damaged or
missing, a record is written, and only a run with all its evidence passes.
"""

from __future__ import annotations

import builtins
import io
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rackproof.core import definitions
from rackproof.core.judging import SkuReference
from rackproof.core.records import Finding, Measurement, Node, ParsedLog, Reference, Run, Verdict
from rackproof.jobs.bench import mlperf_checks, planning, record
from rackproof.jobs.bench.planning import PlannedRun
from rackproof.jobs.bench.record import build_run, job_findings, job_seal
from rackproof.jobs.bench.required_evidence import Evidence
from rackproof.logs import FORMATS
from rackproof.store.acceptance_log import LOG_NAME, note_acceptance
from rackproof.store.history.client import History
from rackproof.store.run_folder import ResultsError, read_run
from tests.jobs.bench.log_states import stated_log

TEXT = """\
name: train
summary: Trains
parameters: {gpus: 0}
launch: {with: local, runtime: torch, program: train.py, timeout_s: 60, hang_s: 5}
result:
  format: mllog
  judge:
    - {metric: eval_accuracy, at_least: 0.9}
    - {metric: speed, unit: samples/s, direction: higher}
"""
# The state of a job that ended well, as its supervisor writes it, but without the run's id and its seal.
ENDED = {
    "phase": "ended",
    "ended_by": "itself",
    "exit_status": 0,
    "signal": None,
    "succeeded": True,
    "started": 0,
    "ended": 4,
    "log_bytes": 400,
    "log_sha256": "a" * 64,
}
NODE = Node(name="n1", serial="S1")
GOOD = ParsedLog(
    format="mllog",
    size_bytes=400,
    lines=4,
    first_event_s=1.0,
    last_event_s=3.0,
    measurements=(
        Measurement(name="eval_accuracy", value=0.95, unit=""),
        Measurement(name="speed", value=100, unit="samples/s"),
    ),
    verdict=Verdict.PASS,
)


@pytest.fixture
def planned(tmp_path: Path) -> PlannedRun:
    path = tmp_path / "definitions" / "train.yml"
    path.parent.mkdir()
    path.write_text(TEXT)
    made = planning.make_plan(
        [definitions.load_definition(path, log_formats=FORMATS)], {"n1": NODE}, {"n1": {}}
    )
    return made.runs[0]


def evidence(planned: PlannedRun, /, **changes: Any) -> Evidence:
    """Return the evidence of a good run with these changes. ``job`` changes keys of the job's state."""
    job = {"id": planned.run_id, **ENDED, **changes.pop("job", {})}
    job = {"seal": job_seal(job), **job}
    return Evidence.model_validate({"nodes": (NODE,), "job": job, **changes})


def built(planned: PlannedRun, known: Evidence, *parsed: ParsedLog, **options: Any) -> Run:
    """Return the judged run of this evidence and these logs, without files."""
    return build_run(planned, parsed, known, lambda one: [], **{"require_references": False, **options})


def test_a_job_that_ended_well_adds_no_finding(planned: PlannedRun) -> None:
    assert job_findings(planned, evidence(planned)) == []
    assert built(planned, evidence(planned), GOOD).verdict == "pass"


# Rackproof's programs end with 2 for a bad parameter, 4 for an absent GPU, and 5 for missing data. These runs
# are unproven, because the hardware was not tested.
@pytest.mark.parametrize(
    ("job", "verdict", "code", "words"),
    [
        ({"ended_by": "timeout"}, "fail", "timed_out", "limit of 60 s"),
        ({"ended_by": "hang"}, "fail", "hung", "did not grow for 5 s"),
        ({"ended_by": "log_limit"}, "fail", "log_limit", "more log than allowed"),
        ({"ended_by": "stopped"}, "unproven", "stopped", "from outside"),
        ({"ended_by": "supervisor_died", "exit_status": None}, "unproven", "supervisor_died", "ended unseen"),
        ({"ended_by": "meteorite"}, "unproven", "unknown_end", "meteorite"),
        ({"ended_by": None}, "unproven", "unknown_end", "not known"),
        ({"ended_by": ["itself"]}, "unproven", "unknown_end", "damaged"),
        ({"signal": "x"}, "unproven", "job_damaged", "damaged"),
        ({"signal": True}, "unproven", "job_damaged", "damaged"),
        ({"unkillable": "all"}, "unproven", "job_damaged", "damaged"),
        ({"log_bytes": None}, "unproven", "log_not_stated", "the one that the job wrote"),
        ({"log_bytes": "400"}, "unproven", "log_not_stated", "the one that the job wrote"),
        ({"log_sha256": None}, "unproven", "log_not_stated", "the one that the job wrote"),
        ({"log_sha256": ""}, "unproven", "log_not_stated", "the one that the job wrote"),
        ({"log_sha256": 7}, "unproven", "log_not_stated", "the one that the job wrote"),
        ({"exit_status": 1}, "fail", "exit_status", "exit status 1"),
        ({"exit_status": 255}, "fail", "exit_status", "exit status 255"),
        ({"exit_status": -1}, "fail", "exit_status", "exit status -1"),
        ({"exit_status": 2}, "unproven", "could_not_run", "parameter has a value that it cannot use"),
        ({"exit_status": 4}, "unproven", "could_not_run", "GPU that was requested is absent"),
        ({"exit_status": 5}, "unproven", "could_not_run", "data is missing"),
        ({"exit_status": None}, "unproven", "no_exit_status", "no exit status"),
        ({"exit_status": "0"}, "unproven", "no_exit_status", "damaged"),
        ({"exit_status": False}, "unproven", "no_exit_status", "damaged"),
        ({"exit_status": 0.0}, "unproven", "no_exit_status", "damaged"),
        ({"exit_status": [0]}, "unproven", "no_exit_status", "damaged"),
        ({"exit_status": math.nan}, "unproven", "no_exit_status", "damaged"),
        ({"signal": 9, "exit_status": 137}, "fail", "killed", "signal 9"),
        ({"signal": 9}, "fail", "killed", "signal 9"),
        ({"succeeded": False}, "unproven", "contradiction", "no success"),
        ({"succeeded": None}, "unproven", "contradiction", "no success"),
        ({"phase": "running", "ended_by": None, "exit_status": None}, "unproven", "still_running", "runs"),
        ({"phase": "running"}, "unproven", "still_running", "runs"),
        ({"phase": "asleep"}, "unproven", "unknown_end", "not known"),
        ({"id": "another"}, "unproven", "another_job", "another"),
        ({"id": None}, "unproven", "another_job", "None"),
    ],
)
def test_how_a_job_ended_decides_whatever_its_log_says(
    planned: PlannedRun, job: dict[str, object], verdict: str, code: str, words: str
) -> None:
    run = built(planned, evidence(planned, job=job), GOOD)
    assert run.verdict == verdict
    assert code in [finding.code for finding in run.findings]
    assert words in run.reasons[0]


@pytest.mark.parametrize(
    ("launcher", "status", "code", "words"),
    [
        ("local", 3, "exit_status", "exit status 3: a loss or weight is NaN or infinite"),
        ("local", 6, "exit_status", "exit status 6: its target was not reached"),
        ("mpirun", 6, "exit_status", "exit status 6: its target was not reached"),
        ("local", 7, "exit_status", "exit status 7"),
        ("slurm", 3, "exit_status", "exit status 3"),
        ("slurm", 2, "exit_status", "exit status 2"),
        ("slurm", 6, "could_not_run", "image could not be built or fetched"),
        ("docker", 6, "could_not_run", "image could not be built or fetched"),
        ("docker", 7, "could_not_run", "no config fits"),
        ("docker", 5, "could_not_run", "data is missing"),
    ],
)
def test_an_exit_status_means_what_the_started_program_means(
    planned: PlannedRun, launcher: str, status: int, code: str, words: str
) -> None:
    by_other = planned.model_copy(update={"launcher": launcher})
    (finding,) = job_findings(by_other, evidence(by_other, job={"exit_status": status}))
    assert (finding.code, finding.verdict) == (code, "fail" if code == "exit_status" else "unproven")
    assert words in finding.message
    assert ("target" in finding.message) == (status == 6 and launcher in ("local", "mpirun"))


@pytest.mark.parametrize(
    ("launcher", "nodes", "code"),
    [
        ("slurm", ("n1",), planning.STILL_RUNNING),
        ("slurm", ("n1", "n2"), planning.STILL_RUNNING),
        ("docker", ("n1", "n2"), planning.STILL_RUNNING),
        ("docker", ("n1",), "supervisor_died"),
        ("mpirun", ("n1", "n2"), "supervisor_died"),
    ],
)
def test_only_a_job_of_slurm_continues_without_its_follower(
    planned: PlannedRun, launcher: str, nodes: tuple[str, ...], code: str
) -> None:
    on_rack = planned.model_copy(update={"launcher": launcher, "nodes": nodes})
    took_part = tuple(Node(name=name) for name in nodes)
    lost = evidence(on_rack, nodes=took_part, job={"ended_by": "supervisor_died"})
    assert [finding.code for finding in job_findings(on_rack, lost)] == [code]


def test_a_slurm_job_that_lost_its_follower_is_followed_again_not_made_again(planned: PlannedRun) -> None:
    on_rack = planned.model_copy(update={"launcher": "slurm"})
    (finding,) = job_findings(on_rack, evidence(on_rack, job={"ended_by": "supervisor_died"}))
    assert (finding.code, finding.verdict) == (planning.STILL_RUNNING, "unproven")
    assert f"scancel --name {on_rack.run_id}" in finding.message


# Values that a damaged state of a job may have.
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["ended", "running", "itself", "0", 0, 1, 9]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    changes=st.dictionaries(
        st.sampled_from([*ENDED, "id", "started", "ended", "log_bytes", "unkillable"]), ODD, min_size=1
    )
)
def test_no_state_of_a_job_crashes_and_only_a_good_one_passes(
    planned: PlannedRun, changes: dict[str, Any]
) -> None:
    run = built(planned, evidence(planned, job=changes), GOOD)
    compared_elsewhere = {"started", "ended", "log_bytes", "log_sha256"}
    keys = {*ENDED, "id"} - compared_elsewhere
    decisive = {name: value for name, value in changes.items() if name in keys}
    good = {"id": planned.run_id, **ENDED}
    as_good = all(type(good[name]) is type(value) and good[name] == value for name, value in decisive.items())
    if run.verdict in ("pass", "degraded"):
        assert as_good
    else:
        assert run.reasons
    assert Run.model_validate_json(run.model_dump_json()).verdict == run.verdict


@pytest.mark.parametrize("lines", [("starting", "", "ValueError: no disk"), ("rank 0: gone", "killed")])
@pytest.mark.parametrize("end", [{"exit_status": 1}, {"exit_status": 2}, {"signal": 9}, {"ended_by": "hang"}])
def test_the_last_words_of_a_program_that_ended_early_are_in_the_reason(
    planned: PlannedRun, tmp_path: Path, lines: tuple[str, ...], end: dict[str, Any]
) -> None:
    folder = tmp_path / "results" / planned.run_id
    (folder / "logs").mkdir(parents=True)
    log = "\n".join(
        ["first", *lines, ':::MLLOG {"key": "run_stop"}', "rackproof: /x ended with exit status 3"]
    )
    (folder / "logs" / "n1.log").write_text(f"{log}\n")
    known = evidence(planned, job={"succeeded": False, **end})
    run, _ = record.judge_folder(planned, known, folder, record.History(tmp_path / "results"))
    words = " / ".join([line for line in ("first", *lines) if line][-2:])
    assert f"its last lines: {words}" in run.reasons[0]


def test_the_lines_of_a_file_that_is_no_log_of_the_run_are_not_shown(
    planned: PlannedRun, tmp_path: Path
) -> None:
    folder = tmp_path / "results" / planned.run_id
    (folder / "logs").mkdir(parents=True)
    (tmp_path / "secret").write_text("of another file")
    (folder / "logs" / "n1.log").symlink_to(tmp_path / "secret")
    known = evidence(planned, job={"succeeded": False, "exit_status": 1})
    run, _ = record.judge_folder(planned, known, folder, record.History(tmp_path / "results"))
    assert "another file" not in " ".join(run.reasons)


@pytest.mark.parametrize("key", ["phase", "ended_by", "exit_status", "succeeded", "id"])
def test_a_state_without_a_key_is_no_pass(planned: PlannedRun, key: str) -> None:
    known = evidence(planned)
    job = {name: value for name, value in known.job.items() if name != key}
    run = built(planned, known.model_copy(update={"job": job}), GOOD)
    assert run.verdict == "unproven"
    assert run.reasons


@pytest.mark.parametrize(
    ("change", "codes"),
    [
        ({}, []),
        ({"id": "another"}, ["another_job", "job_damaged"]),
        ({"id": None}, ["another_job", "job_damaged"]),
        ({"log_sha256": "0" * 64}, ["job_damaged"]),
        ({"seal": None}, ["job_damaged"]),
        ({"seal": "0" * 64}, ["job_damaged"]),
    ],
)
def test_a_part_of_another_run_or_with_a_broken_seal_is_unproven(
    planned: PlannedRun, change: dict[str, Any], codes: list[str]
) -> None:
    part = {**evidence(planned).job, **change}
    found = record.part_findings(planned.run_id, {"n2": part, "n3": {}, "n4": None})
    assert [one.code for one in found] == codes
    assert all(one.verdict == "unproven" and one.message.startswith("n2: ") for one in found)
    # A running part has no seal yet, and its own finding.
    assert record.part_findings(planned.run_id, {"n2": {"id": planned.run_id, "phase": "running"}}) == []


def test_a_run_without_a_state_of_its_job_is_unproven(planned: PlannedRun) -> None:
    run = built(planned, Evidence(nodes=(NODE,)), GOOD)
    assert run.verdict == "unproven"
    assert run.reasons[0].startswith("nothing is known of the job: ")


@pytest.mark.parametrize(
    ("names", "words"),
    [((), "n1 took no part"), (("n2",), "n1 took no part"), (("n1", "n2"), "n2 was not requested")],
)
def test_a_run_on_other_nodes_than_requested_is_unproven(
    planned: PlannedRun, names: tuple[str, ...], words: str
) -> None:
    run = built(planned, evidence(planned, nodes=tuple(Node(name=name) for name in names)), GOOD)
    assert run.verdict == "unproven"
    assert words in run.reasons[0]


def test_thousands_of_missing_nodes_still_make_a_record(planned: PlannedRun) -> None:
    many = planned.model_copy(update={"nodes": tuple(f"node-{n:05}" for n in range(5000))})
    assert built(many, evidence(many), GOOD).verdict == "unproven"


def test_a_run_that_could_not_start_is_unproven_even_with_a_good_log(planned: PlannedRun) -> None:
    run = built(planned, Evidence(nodes=(NODE,), could_not_start="Stage the data: disk full"), GOOD)
    assert (run.verdict, run.reasons[0]) == ("unproven", "Stage the data: disk full")


def test_a_job_that_was_left_running_is_reported_as_running(planned: PlannedRun) -> None:
    known = evidence(planned, job={"phase": "running"}, could_not_start="Follow the job: gives no answer")
    run = built(planned, known)
    assert run.verdict == "unproven"
    assert [finding.code for finding in run.findings] == ["could_not_start", planning.STILL_RUNNING]
    assert "start the playbook again" in " ".join(run.reasons)


def test_a_finding_in_the_facts_counts(planned: PlannedRun) -> None:
    hung = Finding(code="tool_hung", message="nvidia-smi gave no answer", verdict=Verdict.FAIL)
    assert built(planned, evidence(planned, findings=(hung,)), GOOD).verdict == "fail"


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (lambda path: path.write_text(TEXT + "# changed\n"), "definition_changed", "changed after"),
        (lambda path: path.write_text(TEXT.replace("0.9", "0.1")), "definition_changed", "changed after"),
        (lambda path: path.write_text("{"), "definition_unreadable", "not YAML"),
        (lambda path: path.unlink(), "definition_unreadable", "cannot be read"),
    ],
)
def test_a_run_whose_definition_was_changed_meanwhile_is_unproven(
    planned: PlannedRun, change: Any, code: str, words: str
) -> None:
    change(Path(planned.definition_path))
    run = built(planned, evidence(planned), GOOD)
    assert run.verdict == "unproven"
    assert code in [finding.code for finding in run.findings]
    assert any(words in reason for reason in run.reasons)


@pytest.mark.parametrize(
    ("tags", "seeds"),
    [
        ({"seed": "7"}, (7,)),
        ({"seed": "-7"}, (-7,)),
        ({"seed": "--7"}, ()),
        ({"seed": "²"}, ()),
        ({"seed": "9" * 5000}, ()),
        ({"seed": ""}, ()),
        ({}, ()),
    ],
)
def test_a_run_with_hostile_tags_is_recorded(
    planned: PlannedRun, tags: dict[str, str], seeds: tuple[int, ...]
) -> None:
    data = {"dataset.objects": "²", "dataset.size_bytes": "9" * 5000, "dataset.name": "\x1b[2J"}
    run = built(planned, evidence(planned), GOOD.model_copy(update={"tags": {**tags, **data}}))
    assert run.seeds == seeds
    assert run.dataset is not None
    assert (run.dataset.objects, run.dataset.size_bytes) == (None, None)


@pytest.mark.parametrize(
    ("raw", "moment"),
    [
        ("2026-05-01T12:00:00Z", datetime(2026, 5, 1, 12, tzinfo=UTC)),
        ("2026-05-01T12:00:00", datetime(2026, 5, 1, 12, tzinfo=UTC)),
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        ("yesterday", None),
        (math.nan, None),
        (1e300, None),
        (True, None),
        (None, None),
        ("0001-01-01T00:00:00+23:00", None),
        ({}, None),
    ],
)
def test_a_run_with_an_invalid_time_is_recorded(
    planned: PlannedRun, raw: object, moment: datetime | None
) -> None:
    assert built(planned, evidence(planned, job={"started": raw}), GOOD).started == moment


# These tests call write_record() with logs in files.


def event(key: str, value: object, **metadata: object) -> str:
    event_type = "INTERVAL_END" if key == "run_stop" else "POINT_IN_TIME"
    moment_ms = {"run_start": 1000, "run_stop": 3000}.get(key, 2000)
    line = {"time_ms": moment_ms, "event_type": event_type, "key": key, "value": value, "metadata": metadata}
    return f":::MLLOG {json.dumps(line)}\n"


def speed(value: float | str = 100, unit: str = "samples/s", name: str = "speed") -> str:
    return event("measurement", {"name": name, "value": value, "unit": unit, "direction": "higher"})


BEGIN = event("run_start", None) + event("eval_accuracy", 0.95)
END = event("run_stop", None, status="success")
LOG = BEGIN + speed() + END


@pytest.fixture
def folder(planned: PlannedRun, tmp_path: Path) -> Path:
    place = tmp_path / "results" / planned.run_id
    (place / "logs").mkdir(parents=True)
    return place


def recorded(planned: PlannedRun, folder: Path, /, **options: Any) -> Run:
    """Write the record of a run whose logs are in the folder, and return it."""
    known = options.pop("evidence", None) or evidence(planned, job=stated_log(folder / "logs/n1.log"))
    done = record.write_record(planned, known, folder, **{"require_references": False, **options})
    assert read_run(folder).model_dump_json() == done.run.model_dump_json()
    return done.run


@pytest.mark.parametrize(
    ("logs", "verdict", "words"),
    [
        ({"n1.log": LOG}, "pass", ""),
        ({}, "unproven", "n1.log"),
        ({"n1.log": ""}, "unproven", "empty"),
        ({"n1.log": BEGIN + speed()}, "unproven", "run_stop"),
        ({"n1.log": LOG[:-30]}, "unproven", "run_stop"),
        ({"n1.log": BEGIN + speed("NaN") + END}, "fail", "nan"),
        ({"n1.log": BEGIN + END}, "unproven", "no such measurement"),
        ({"n1.log": BEGIN + speed(unit="epochs/s") + END}, "unproven", "epochs/s"),
        ({"n1.log": "Epoch[0] Speed: 100 samples/sec\n"}, "unproven", "run_start"),
        ({"n1.log": "no log at all"}, "unproven", "run_start"),
        # A log of another node alone, an additional log, and the copy of an editor.
        ({"n2.log": LOG}, "unproven", "n1.log"),
        ({"n1.log": LOG, "n2.log": LOG}, "unproven", "n2.log"),
        ({"n1.log": LOG, "n1.log~": LOG}, "unproven", "n1.log~"),
        # What is left of an interrupted copy is not a log.
        ({"n1.log": LOG, ".n1.log.part": LOG[:50]}, "pass", ""),
        ({".n1.log.part": LOG}, "unproven", "n1.log"),
    ],
)
def test_the_logs_decide_the_verdict(
    planned: PlannedRun, folder: Path, logs: Mapping[str, str], verdict: str, words: str
) -> None:
    for name, text in logs.items():
        (folder / "logs" / name).write_text(text)
    run = recorded(planned, folder)
    assert run.verdict == verdict, run.reasons
    assert any(words in reason for reason in run.reasons) or not words, run.reasons
    assert run.verdict == "pass" or run.reasons
    assert (folder / "report.html").is_file()


def test_a_link_does_not_count_as_a_log_of_the_run(planned: PlannedRun, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.log").write_text(LOG)
    (folder / "logs" / "n1.log").symlink_to(tmp_path / "elsewhere.log")
    assert recorded(planned, folder).verdict == "unproven"


@pytest.mark.parametrize(("more", "verdict"), [(0, "pass"), (1, "unproven"), (-1, "unproven")])
def test_a_log_is_as_long_here_as_on_the_node(
    planned: PlannedRun, folder: Path, more: int, verdict: str
) -> None:
    (folder / "logs" / "n1.log").write_text(LOG)
    stated = stated_log(folder / "logs/n1.log")
    stated["log_bytes"] += more
    run = recorded(planned, folder, evidence=evidence(planned, job=stated))
    assert run.verdict == verdict
    assert run.verdict == "pass" or "bytes" in run.reasons[0]


def baseline(value: float, high: float | None = None, **more: Any) -> SkuReference:
    return SkuReference(
        metric="speed",
        reference=Reference(value=value, low=-0.07, high=high, unit="samples/s", source=f"floor {value}"),
        **more,
    )


# The run's speed is 100, and the floor is 7 % below a reference. A reference of 200 therefore fails the run.
@pytest.mark.parametrize(
    ("baselines", "verdict"),
    [
        ([baseline(100)], "pass"),
        ([baseline(200)], "fail"),
        # A reference for one benchmark does not lower the SKU's floor, in whatever order they are.
        ([baseline(200), baseline(100, benchmark="train")], "fail"),
        ([baseline(100, benchmark="train"), baseline(200)], "fail"),
        ([baseline(100), baseline(90, benchmark="train"), baseline(200, labels={})], "fail"),
        # It may raise the floor. The upper bound of the general reference then does not count. Two general
        # references both count.
        ([baseline(20, high=0.25), baseline(100, benchmark="train")], "pass"),
        ([baseline(20, high=0.25), baseline(200, benchmark="train")], "fail"),
        ([baseline(100), baseline(200)], "fail"),
        ([baseline(200), baseline(100)], "fail"),
        ([baseline(100, parameters={"gpus": 8})], "unproven"),
        ([], "unproven"),
    ],
)
def test_the_references_of_the_sku_judge_a_speed(
    planned: PlannedRun, folder: Path, baselines: list[SkuReference], verdict: str
) -> None:
    (folder / "logs" / "n1.log").write_text(LOG)
    run = recorded(planned, folder, sku_references=baselines, require_references=True)
    assert run.verdict == verdict, run.reasons


def test_without_the_history_a_speed_is_not_taken_for_new(
    planned: PlannedRun, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history may have a reference that the run misses. A run without it does not pass."""
    monkeypatch.setenv("RACKPROOF_DATABASE_URL", "postgresql://rackproof:sesame@127.0.0.1:9/history")
    (folder / "logs" / "n1.log").write_text(LOG)
    run = recorded(planned, folder)
    assert run.verdict == "unproven"
    assert "history" in run.reasons[0]
    assert "sesame" not in (folder / "run.json").read_text()
    assert recorded(planned, folder, sku_references=[baseline(100)]).verdict == "pass"


def test_a_report_that_fails_loses_no_run(
    planned: PlannedRun, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no font")

    (folder / "logs" / "n1.log").write_text(LOG)
    with monkeypatch.context() as patched:
        patched.setattr("rackproof.jobs.bench.record.write_run_reports", fail)
        known = evidence(planned, job=stated_log(folder / "logs/n1.log"))
        done = record.write_record(planned, known, folder, require_references=False)
    assert (done.run.verdict, read_run(folder).verdict) == ("pass", "pass")
    assert "no font" in done.history
    assert done.report == ""


def test_a_record_that_cannot_be_written_reports_it(planned: PlannedRun, folder: Path) -> None:
    (folder / "logs" / "n1.log").write_text(LOG)
    (folder / "run.json").mkdir()
    with pytest.raises(ResultsError, match=r"run\.json"):
        record.write_record(planned, evidence(planned), folder)
    assert sorted(path.name for path in folder.iterdir()) == ["logs", "run.json"]


@pytest.mark.parametrize("how", ["database deleted", "database deleted, log damaged", "log is a folder"])
def test_a_run_is_unproven_if_an_accepted_reference_was_lost(
    planned: PlannedRun, folder: Path, how: str
) -> None:
    (folder / "logs" / "n1.log").write_text(LOG)
    results = folder.parent

    def verdict() -> Verdict:
        (folder / "run.json").unlink(missing_ok=True)
        known = evidence(planned, job=stated_log(folder / "logs/n1.log"))
        return record.write_record(planned, known, folder, require_references=False).run.verdict

    assert verdict() == "pass"
    note_acceptance(results, "accept", "an earlier run", 1)
    if "damaged" in how:
        (results / LOG_NAME).write_bytes((results / LOG_NAME).read_bytes()[:-9])
    elif "folder" in how:
        (results / LOG_NAME).unlink()
        (results / LOG_NAME).mkdir()
    assert verdict() == "unproven"
    if "folder" not in how:
        (results / LOG_NAME).unlink()
        note_acceptance(results, "accept", "an earlier run", 1)
        note_acceptance(results, "withdraw", "an earlier run", 1)
        assert verdict() == "pass"


def test_a_history_that_does_not_answer_is_asked_once_for_estimates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that is down takes seconds to fail, and the plan of a rack has hundreds of queries."""
    from rackproof.store.history import store

    asked = []

    def down(where: object) -> object:
        asked.append(where)
        raise store.HistoryError("does not answer")

    monkeypatch.setattr(store, "open_store", down)
    history = History(tmp_path)
    assert [history.estimate("train", {"gpus": n}, NODE) for n in range(9)] == [None] * 9
    assert len(asked) == 1


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the path of every file is added that is opened for reading."""
    paths: list[str] = []
    to_open = io.open

    def noting(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if "r" in mode:
            paths.append(str(file))
        return to_open(file, mode, *rest, **options)

    # pathlib opens by io.open, the rest by the builtin.
    monkeypatch.setattr(io, "open", noting)
    monkeypatch.setattr(builtins, "open", noting)
    return paths


def test_a_definition_and_a_log_are_read_once(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "SETTLED_NS", -1)  # otherwise a file of this second is read again
    definition = tmp_path / "definitions" / "train.yml"
    definition.parent.mkdir()
    definition.write_text(TEXT)
    planned = planning.make_plan(
        [definitions.load_definition(definition, log_formats=FORMATS)], {"n1": NODE}, {"n1": {}}
    ).runs[0]
    folder = tmp_path / "results" / planned.run_id
    log = folder / "logs" / "n1.log"
    log.parent.mkdir(parents=True)
    log.write_text(LOG)
    stated = evidence(planned, job=stated_log(LOG.encode()))
    assert recorded(planned, folder, evidence=stated).verdict == "pass"
    assert (opened.count(str(definition)), opened.count(str(log))) == (1, 1)


@pytest.mark.parametrize("launcher", ["slurm", "docker"])
def test_the_log_of_a_cluster_s_job_is_read_whole_once(
    planned: PlannedRun, folder: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    """Only MLCommons' checker reads the whole log again, because it is a separate program."""
    checked: list[Path] = []

    def check(run: PlannedRun, path: Path) -> list[Finding]:
        checked.append(path)
        return []

    monkeypatch.setattr(mlperf_checks, "check_compliance", check)
    log = folder / "logs" / "n1.log"
    log.write_text("RUNANDTIME_START 1700000000\n:::MLL 1.0 run_start: {}\n" + LOG)
    planned = planned.model_copy(update={"launcher": launcher})
    stated = evidence(planned, job=stated_log(LOG.encode()))
    codes = {finding.code for finding in recorded(planned, folder, evidence=stated).findings}
    assert "no_end" in codes, "what the launcher writes is read in the same pass"
    # The second time, only the last lines are read, because the run did not pass.
    assert opened.count(str(log)) == 2
    assert checked == [log]
