"""Make logs that follow the rules of MLPerf Training 5.1, for the tests of scores.

:func:`result` returns a compliant log of llama2_70b_lora, and :func:`fill` writes a folder of ten such runs,
as a result needs them. Other arguments make a log that breaks a rule.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TARGET = 0.925
START_MS = 1_759_852_000_000
"""The start of the first run, as Unix time in milliseconds. It is in the time of round 5.1."""


def event(time_ms: int, key: str, value: Any = None, **metadata: Any) -> str:
    """Return one MLLOG event as text."""
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
    """Return the lines of a compliant llama2_70b_lora log. ``number`` makes the times and seed its own."""
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
        f"RESULT,LLM_FINETUNING,,{round(minutes * 60) + 20},nvidia,2025-10-07",
    ]


def write(path: Path, lines: list[str]) -> None:
    """Write lines as a log."""
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def fill(folder: Path, runs: int = 10, name: str = "result_{}.txt", **changes: Any) -> Path:
    """Fill a folder with compliant logs of 10.0, 10.1, 10.2 … minutes."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(runs):
        minutes = changes.get("minutes", 10 + number / 10)
        write(folder / name.format(number), result(number, **changes | {"minutes": minutes}))
    return folder
