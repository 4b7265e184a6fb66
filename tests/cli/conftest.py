"""Provide the tests of the command line with ``rackproof`` in-process, small logs, and results folders."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Self

import pytest
from click.testing import CliRunner, Result

from rackproof.analysis import importing
from rackproof.core.records import LogFile, Verdict
from rackproof.jobs import fleet_status
from rackproof.store.acceptance_log import note_acceptance
from rackproof.store.audit_log import append_acts, provision_of, write_provision
from rackproof.store.night_store import NightRecord, NodeNight, SlurmState, write_night
from rackproof.store.run_folder import write_run
from tests.report import example_runs

NOW = datetime(2026, 11, 22, 2, tzinfo=UTC)
"""The time of the night in the fixture ``fleet``, and of the tests for commands that judge a log's age."""
Call = Callable[..., Result]
"""A function that calls ``rackproof`` with arguments."""

EVENTS = (
    ("POINT_IN_TIME", "submission_benchmark", '"llama2_70b_lora"', "{}"),
    ("POINT_IN_TIME", "global_batch_size", "8", "{}"),
    ("POINT_IN_TIME", "seed", "7", "{}"),
    ("POINT_IN_TIME", "gradient_accumulation_steps", "1", "{}"),
    ("POINT_IN_TIME", "opt_base_learning_rate", "0.0004", "{}"),
    ("POINT_IN_TIME", "lora_alpha", "32", "{}"),
    ("POINT_IN_TIME", "lora_rank", "16", "{}"),
    ("POINT_IN_TIME", "opt_adamw_weight_decay", "0.0001", "{}"),
    ("POINT_IN_TIME", "opt_gradient_clip_norm", "0.3", "{}"),
    ("POINT_IN_TIME", "opt_learning_rate_training_steps", "1024", "{}"),
    ("POINT_IN_TIME", "opt_learning_rate_warmup_factor", "0.0", "{}"),
    ("POINT_IN_TIME", "submission_org", '"Example"', "{}"),
    ("POINT_IN_TIME", "submission_division", '"closed"', "{}"),
    ("POINT_IN_TIME", "submission_status", '"onprem"', "{}"),
    ("POINT_IN_TIME", "submission_platform", '"1xEXAMPLE"', "{}"),
    ("POINT_IN_TIME", "train_samples", "3901", "{}"),
    ("POINT_IN_TIME", "eval_samples", "173", "{}"),
    ("POINT_IN_TIME", "cache_clear", "true", "{}"),
    ("INTERVAL_START", "init_start", "null", "{}"),
    ("INTERVAL_END", "init_stop", "null", "{}"),
    ("INTERVAL_START", "run_start", "null", "{}"),
    ("INTERVAL_START", "block_start", "null", "{}"),
    ("POINT_IN_TIME", "tracked_stats", '{"throughput": 25.6}', "{}"),
    ("INTERVAL_START", "eval_start", "null", "{}"),
    ("POINT_IN_TIME", "eval_accuracy", "0.95", '{"samples_count": 2304}'),
    ("INTERVAL_END", "eval_stop", "null", "{}"),
    ("INTERVAL_START", "eval_start", "null", "{}"),
    ("POINT_IN_TIME", "eval_accuracy", "0.92", '{"samples_count": 3072}'),
    ("INTERVAL_END", "eval_stop", "null", "{}"),
    ("INTERVAL_END", "block_stop", "null", "{}"),
    ("INTERVAL_END", "run_stop", "null", '{"status": "success"}'),
)

LATE = next(at for at, one in enumerate(EVENTS) if one[2] == "0.92")
"""The index of the last evaluation. From this event on, the log has the time of the run's end."""


def mllog(*, minutes: float = 2.0, status: str = "success", events: int = len(EVENTS)) -> str:
    """Return a small log as MLPerf 5.1 writes it, of the given length, status and number of events."""
    lines = []
    for index, (kind, key, value, metadata) in enumerate(EVENTS[:events]):
        time = 1_759_852_000_000 + (round(minutes * 60_000) if index >= LATE else index)
        metadata = metadata.replace("success", status)
        value = value.replace("25.6", str(3072 / max(0.001, 60 * minutes)))
        lines.append(
            f':::MLLOG {{"namespace": "", "time_ms": {time}, "event_type": "{kind}", "key": "{key}", '
            f'"value": {value}, "metadata": {metadata}}}'
        )
    return "\n".join(lines) + "\n"


@pytest.fixture(autouse=True)
def import_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge the age of imported logs at the time NOW, because the logs of the tests have fixed dates."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp(NOW.timestamp(), tz)

    monkeypatch.setattr(importing, "datetime", Clock)


@pytest.fixture
def log(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a small MLPerf log."""

    def write(name: str = "result_0.txt", **how: object) -> Path:
        path = tmp_path / "logs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(mllog(**how))  # type: ignore[arg-type]
        return path

    return write


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Return a function that calls ``rackproof`` in a temporary folder."""
    from rackproof.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "110")  # the width must not depend on the terminal of the tests
    monkeypatch.delenv("RACKPROOF_DATABASE_URL", raising=False)
    monkeypatch.delenv("RACKPROOF_RESULTS", raising=False)

    def call(*arguments: object, stdin: bytes | None = None) -> Result:
        return CliRunner().invoke(main, [str(one) for one in arguments], input=stdin)

    return call


@pytest.fixture
def kept(run: Call, tmp_path: Path) -> str:
    """Store a run of known hardware in the results folder and its history. Return the id of the run."""
    from rackproof.store.history.client import History

    text = b"0.992 reached\n"
    log = LogFile(
        path="logs/log.txt",
        sha256=hashlib.sha256(text).hexdigest(),
        size_bytes=len(text),
        verdict=Verdict.PASS,
    )
    made = example_runs.healthy(logs=(log,))
    (tmp_path / "results" / made.run_id / "logs").mkdir(parents=True)
    (tmp_path / "results" / made.run_id / log.path).write_bytes(text)
    write_run(made, tmp_path / "results" / made.run_id)
    assert History(tmp_path / "results").keep(tmp_path / "results" / made.run_id) == ""
    return made.run_id


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a results folder with a night, a provisioning and acts, on a machine without sinfo."""
    results = tmp_path / "results"
    monkeypatch.setenv("SUDO_USER", "ada")
    monkeypatch.setattr(fleet_status, "_ASK", ("/nonexistent/sinfo",))
    nodes = tuple(
        NodeNight(node=name, verdict=verdict, slurm=SlurmState(known=True, state=state, reason=reason))
        for name, verdict, state, reason in (
            ("n1", Verdict.PASS, "IDLE", ""),
            ("n2", Verdict.FAIL, "IDLE+DRAIN", "rackproof-night: xid_79"),
        )
    )
    night = results / "20261122T020000Z-health-abcdef"
    record = NightRecord(night_id=night.name, started=NOW, ended=NOW, verdict=Verdict.FAIL, nodes=nodes)
    write_night(night, record)
    done = provision_of({"n3": ["Install the driver"], "n4": []}, {"n4": ["apt: \x1b[31mno space"]}, {"n4"})
    write_provision(results, NOW, done, playbook="provision.yml", limit="rack")
    append_acts(results, [("n2", "drain", "rackproof-night: xid_79"), ("n3", "drain", "x")], "validate.yml")
    append_acts(results, [("n3", "resume", "")], "provision.yml")
    note_acceptance(results, "accept", "20261121T1-gemm", 3)
    return results
