"""Make logs that follow the rules of MLPerf Training 5.1, for the tests of scores.

:func:`result` returns a compliant log of llama2_70b_lora, and :func:`fill` writes a folder with ten such
logs, because the rules require ten runs for a result. Other arguments make a log that breaks a rule. The
values are made up. They have the magnitudes of the published results of the benchmark.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

START_MS = 1_759_852_000_000
"""The start of the first run, as Unix time in milliseconds (7 October 2025, before round 5.1 appeared)."""


def event(time_ms: int, key: str, value: Any = None, **metadata: Any) -> str:
    """Return one MLLOG event as text.

    Args:
        time_ms: The time of the event, as Unix time in milliseconds.
        key: The key of the event.
        value: The value of the event.
        **metadata: More metadata of the event, such as ``samples_count``.
    """
    body = {
        "namespace": "",
        "time_ms": time_ms,
        "event_type": "POINT_IN_TIME",
        "key": key,
        "value": value,
        "metadata": {"file": "train.py", "lineno": 1, **metadata},
    }
    return f":::MLLOG {json.dumps(body)}"


def result(
    number: int = 0,
    *,
    minutes: float = 10.0,
    status: str = "success",
    samples: int = 3456,
    batch: int = 8,
    benchmark: str = "llama2_70b_lora",
    accuracy: float = 0.92,
) -> list[str]:
    """Return the lines of a log. With the defaults, it is a compliant log of llama2_70b_lora.

    Args:
        number: The number of the run, from 0. Runs with different numbers have different times and seeds.
        minutes: The time to train in minutes.
        status: The status of run_stop.
        samples: The number of training samples before the last evaluation.
        batch: The global batch size.
        benchmark: The name of the benchmark in the log.
        accuracy: The value of the last evaluation, which is a loss for llama2_70b_lora.
    """
    start = START_MS + number * 10_000_000
    stop = start + round(minutes * 60_000)
    middle = (start + stop) // 2
    settings = {
        "submission_benchmark": benchmark,
        "submission_org": "Example",
        "submission_division": "closed",
        "submission_status": "onprem",
        "submission_platform": "1xEXAMPLE",
        "seed": 1000 + number,
        "global_batch_size": batch,
        "train_samples": 3901,
        "eval_samples": 173,
        "gradient_accumulation_steps": 1,
        "opt_base_learning_rate": 0.0004,
        "opt_adamw_weight_decay": 0.0001,
        "opt_gradient_clip_norm": 0.3,
        "opt_learning_rate_training_steps": 1024,
        "opt_learning_rate_warmup_factor": 0.0,
        "lora_rank": 16,
        "lora_alpha": 32,
    }
    return [
        "+ srun --mpi=pmix bash run.sh",
        event(start - 60_000, "cache_clear", True),
        event(start - 50_000, "init_start"),
        *(event(start - 40_000, key, value) for key, value in settings.items()),
        event(start - 1, "init_stop"),
        event(start, "run_start"),
        event(start, "block_start", samples_count=0),
        event(start + 1000, "tracked_stats", {"throughput": samples / (60 * minutes)}),
        event(middle - 20, "block_stop", samples_count=samples // 2),
        event(middle - 20, "eval_start", samples_count=samples // 2),
        event(middle - 10, "eval_accuracy", 0.95, samples_count=samples // 2),
        event(middle - 10, "eval_stop", samples_count=samples // 2),
        event(middle, "block_start", samples_count=samples // 2),
        event(stop - 20, "block_stop", samples_count=samples),
        event(stop - 20, "eval_start", samples_count=samples),
        event(stop - 10, "eval_accuracy", accuracy, samples_count=samples),
        event(stop - 10, "eval_stop", samples_count=samples),
        event(stop, "run_stop", samples_count=samples, status=status),
        f"RESULT,LLM_FINETUNING,,{round(minutes * 60) + 60},nvidia,2025-10-07",
    ]


def write(path: Path, lines: list[str]) -> None:
    """Write lines as a log in UTF-8, with a line feed after each."""
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def fill(folder: Path, runs: int = 10, name: str = "result_{}.txt", **changes: Any) -> Path:
    """Write logs into a folder, which is created if it is missing. Return the folder.

    Args:
        folder: The path of the folder.
        runs: The number of logs.
        name: The name of each log, in which ``{}`` is replaced by the number of the run, from 0.
        **changes: Arguments of :func:`result`. Without ``minutes``, the runs take 10.0, 10.1, 10.2 … minutes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(runs):
        minutes = changes.get("minutes", 10 + number / 10)
        write(folder / name.format(number), result(number, **changes | {"minutes": minutes}))
    return folder
