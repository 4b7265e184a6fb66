"""The command line in-process, small logs, and a results folder with runs in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

EVENTS = (
    ("POINT_IN_TIME", "submission_benchmark", '"llama2_70b_lora"', "{}"),
    ("POINT_IN_TIME", "global_batch_size", "8", "{}"),
    ("POINT_IN_TIME", "seed", "7", "{}"),
    ("INTERVAL_START", "init_start", "null", "{}"),
    ("INTERVAL_END", "init_stop", "null", "{}"),
    ("INTERVAL_START", "run_start", "null", "{}"),
    ("POINT_IN_TIME", "eval_accuracy", "0.92", '{"samples_count": 1536}'),
    ("INTERVAL_END", "run_stop", "null", '{"status": "success"}'),
)


def mllog(*, minutes: float = 2.0, status: str = "success", events: int = len(EVENTS)) -> str:
    """Return a small log as MLPerf 5.1 writes it, of so many events."""
    lines = []
    for index, (kind, key, value, metadata) in enumerate(EVENTS[:events]):
        time = 1_759_852_000_000 + (round(minutes * 60_000) if index >= 6 else index)
        metadata = metadata.replace("success", status)
        lines.append(
            f':::MLLOG {{"namespace": "", "time_ms": {time}, "event_type": "{kind}", "key": "{key}", '
            f'"value": {value}, "metadata": {metadata}}}'
        )
    return "\n".join(lines) + "\n"


@pytest.fixture
def log(tmp_path: Path) -> Callable[..., Path]:
    """Write a small MLPerf log."""

    def write(name: str = "result_0.txt", **how: object) -> Path:
        path = tmp_path / "logs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(mllog(**how))  # type: ignore[arg-type]
        return path

    return write


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Call ``rackproof`` in a folder of its own."""
    from rackproof.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "110")  # whatever started the tests has set
    monkeypatch.delenv("RACKPROOF_DATABASE_URL", raising=False)
    monkeypatch.delenv("RACKPROOF_RESULTS", raising=False)

    def call(*arguments: object, stdin: bytes | None = None) -> Result:
        return CliRunner().invoke(main, [str(one) for one in arguments], input=stdin)

    return call
