"""Check that the runs of one result share their hyperparameters. No I/O.

:mod:`.repeats` reads them with :func:`hyperparameters_of`, and compares the runs with
:func:`other_hyperparameters`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

HYPERPARAMETERS_SINCE = (3, 1)
"""First round (3.1) whose runs are compared. The published results that were read begin with it."""
_OPTIMIZER = re.compile(r"(?:[a-z]{1,10}_)?opt_[a-z0-9_]{1,80}")
"""The key of an optimizer's hyperparameter, such as ``opt_base_learning_rate``, perhaps with a prefix."""
_OTHERS = frozenset(
    {
        "d_batch_size",
        "evaluation_frequency",
        "gradient_accumulation_steps",
        "init_checkpoint_step",
        "lars_epsilon",
        "local_batch_size",
        "lora_alpha",
        "lora_rank",
        "max_predictions_per_seq",
        "max_sequence_length",
        "model_bn_span",
        "num_warmup_steps",
        "oversampling",
        "start_warmup_step",
    }
)
"""Hyperparameters, other than the optimizer's, that do not differ between the runs of any of 947 published
results. The samples and steps of a training (``train_samples``, ``max_steps``) do differ. Different
``global_batch_size`` are a failure of their own."""
_FREE = frozenset({("stable_diffusion", "opt_learning_rate_warmup_steps")})
"""The benchmark and the key for which a healthy published result states several values: 999, 1000 and 1200
steps in Google's result of round 4.1."""

Hyperparameters = Mapping[str, frozenset[str]]
"""All values that a log states for each key."""


def hyperparameters_of(events: Iterable[tuple[float, str, Any, Mapping[str, Any]]]) -> Hyperparameters:
    """Return the hyperparameters in the events of a log.

    An event is ``(seconds, key, value, metadata)``.
    """
    values: dict[str, set[str]] = {}
    for _, key, value, _ in events:
        if key in _OTHERS or _OPTIMIZER.fullmatch(key):
            values.setdefault(key, set()).add(_text(value))
    return {key: frozenset(texts) for key, texts in values.items()}


def _text(value: Any) -> str:
    """Return a value in a form that does not depend on its spelling: 1e-4 is 0.0001, and "8" is 8."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return repr(value)[:200]
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return str(value).strip()[:200]
    return f"{number:.9g}" if math.isfinite(number) else str(value).strip()


def other_hyperparameters(
    benchmark: str, runs: Sequence[tuple[str, Hyperparameters]]
) -> Iterator[tuple[str, str]]:
    """Yield the log of each run that states other values than most runs, and a message.

    A key that a run does not state is not compared for this run. The check of each log requires the keys.

    Args:
        benchmark: The benchmark's name in the logs.
        runs: The names of the logs, with their hyperparameters.
    """
    stated: dict[str, list[frozenset[str]]] = {}
    for _, values_by_key in runs:
        for key, values in values_by_key.items():
            if (benchmark, key) not in _FREE:
                stated.setdefault(key, []).append(values)
    usual = {key: Counter(values).most_common(1)[0][0] for key, values in stated.items()}
    for file, values_by_key in runs:
        differences = [
            f"{key} {_shown(values_by_key[key])} (theirs is {_shown(common)})"
            for key, common in sorted(usual.items())
            if values_by_key.get(key, common) != common
        ]
        if differences:
            yield file, f"states {', '.join(differences[:5])}, unlike the other runs"


def _shown(values: frozenset[str]) -> str:
    return " and ".join(sorted(values)[:3])[:80]
