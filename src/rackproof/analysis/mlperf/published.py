"""Read published results of MLPerf Training and of two scaling studies.

``rackproof compare``, ``rackproof score`` and job bench compare runs with the results that
:func:`find_published` returns. The folder ``published`` has these files, and YAML files with further
statements of the same publications, which only ``make docs`` reads:

- ``results.csv``: The closed division of rounds 4.1, 5.0 and 5.1 as published by MLCommons (``kind``
  official), and the scores of Lambda's published logs of round 5.1 that were not submitted (``unofficial``).
- ``mlperf-0.6.csv``: Throughput and minutes of round 0.6 as published by Lambda.
- ``ddl.csv``: A study of ResNet-50 and VGG16 on 1 to 16 P100.
- ``mxnet.csv``: A study of LeNet and an MLP on K80, or on the CPU alone, in five infrastructures.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import Field

from rackproof.core.records import Record, Reference

Metric = Literal["minutes", "throughput"]


class PublishedResult(Record):
    """One published result, of a round of MLPerf or of a scaling study.

    Attributes:
        round: The round of MLPerf Training, for example ``"5.1"``.
        kind: Either ``official`` (reviewed by MLCommons) or ``unofficial``.
        benchmark: The benchmark, for example ``llama2_70b_lora``.
        submitter: The organization that published the result, or "" for a study.
        system: The name of the system.
        accelerator: The name of the accelerator's model.
        nodes: The number of nodes.
        accelerators: The number of accelerators on all nodes together.
        minutes: The score, or None if only a throughput was published. From round 4.1 on, this is the
            olympic mean times RCP scaling, and for round 0.6 the minutes that Lambda published.
        runs: The number of runs.
        failed_runs: The number of runs that failed.
        global_batch_size: The number of samples in a step.
        olympic_mean_minutes: The mean minutes without the fastest and the slowest runs.
        rcp_scaling: The factor of the score, from MLCommons' reference convergence points (RCP).
        throughput: The throughput in ``throughput_unit``, if known.
        note: Further statements, such as the availability of an official system or the precision of an
            unofficial run.
        configuration: The name of the config of a row of round 0.6. Runs with other configs are not
            comparable with the row.
        study: The publication, if it is not a round of MLPerf. ``round`` is then empty.
        point: The parameters of a study's row, such as ``{"gpus": "2", "batch_size": "64"}``.
        efficiency: The scaling efficiency in the study, 1.0 for the ideal.
        top_1, top_5, accuracy: Accuracies as fractions.
        seconds_per_epoch: The time for one pass over the data.
    """

    round: str
    kind: Literal["official", "unofficial"]
    benchmark: str
    submitter: str
    system: str
    accelerator: str
    nodes: int = Field(ge=1)
    accelerators: int = Field(ge=1)
    runs: int | None = None
    failed_runs: int | None = None
    global_batch_size: float | None = None
    olympic_mean_minutes: float | None = None
    rcp_scaling: float | None = None
    minutes: float | None = Field(default=None, gt=0)
    throughput: float | None = None
    throughput_unit: str = ""
    note: str = ""
    configuration: str = ""
    study: str = ""
    point: dict[str, str] = Field(default={})
    efficiency: float | None = None
    top_1: float | None = None
    top_5: float | None = None
    accuracy: float | None = None
    seconds_per_epoch: float | None = None

    @property
    def source(self) -> str:
        """Return the origin of the result as text, such as its round, submitter, system and benchmark."""
        origin = self.study or f"MLPerf Training {self.round}"
        point = " ".join(f"{name}={value}" for name, value in self.point.items())
        words = (origin, self.kind, self.submitter, self.system, self.benchmark, point, self.note)
        return ", ".join(word for word in words if word)

    def reference(
        self,
        metric: Metric = "minutes",
        *,
        tolerance: float = 0.07,
        warn: float = 0.035,
        ceiling: float = 0.3,
    ) -> Reference:
        """Return the reference with which a run is judged.

        Args:
            metric: Either ``minutes`` (lower is better) or ``throughput`` (higher is better).
            tolerance: The largest loss that does not fail, as a fraction of the published number.
            warn: The largest loss that still passes, as a fraction. A larger loss is degraded.
            ceiling: The largest plausible gain, as a fraction. A larger gain is unproven.

        Raises:
            ValueError: No number was published for the metric.
        """
        if metric == "minutes":
            if self.minutes is None:
                raise ValueError(f"no minutes were published for {self.source}")
            return Reference(
                value=self.minutes, low=-ceiling, high=tolerance, warn=warn, unit="min", source=self.source
            )
        if self.throughput is None:
            raise ValueError(f"no throughput was published for {self.source}")
        return Reference(
            value=self.throughput,
            low=-tolerance,
            high=ceiling,
            warn=-warn,
            unit=self.throughput_unit,
            source=self.source,
        )


def find_published(
    *,
    benchmark: str | None = None,
    accelerator: str | None = None,
    accelerators: int | None = None,
    nodes: int | None = None,
    round: str | None = None,
    kind: Literal["official", "unofficial"] | None = None,
) -> tuple[PublishedResult, ...]:
    """Return the results of rounds that match all given criteria, newest round first, then fastest first.

    :func:`study_points` returns the results of studies.

    Args:
        benchmark: The exact name, for example ``llama2_70b_lora``.
        accelerator: The words that the accelerator's name must contain, in any case. ``gb300`` finds
            "NVIDIA Blackwell Ultra GPU (GB300)", but ``b200`` does not find a GB200.
        accelerators: The total number of accelerators.
        nodes: The number of nodes.
        round: The name of the round, for instance ``5.1``.
        kind: Either ``official`` or ``unofficial``.
    """
    words = _words(accelerator or "")
    exact = {
        "benchmark": benchmark,
        "accelerators": accelerators,
        "nodes": nodes,
        "round": round,
        "kind": kind,
    }
    criteria = {key: value for key, value in exact.items() if value is not None}
    results = [
        result
        for result in _all_results()
        if words <= _words(result.accelerator) and _has_values(result, criteria)
    ]
    return tuple(sorted(results, key=_newest_and_fastest))


def _has_values(result: PublishedResult, criteria: Mapping[str, Any]) -> bool:
    return all(getattr(result, key) == value for key, value in criteria.items())


def _newest_and_fastest(result: PublishedResult) -> tuple[list[int], float]:
    """Return the sort key of a result. Results without minutes come last in their round."""
    # Compare rounds as numbers. As text, round 10.0 would be older than 2.0.
    return [-int(part) for part in result.round.split(".")], result.minutes or math.inf


@cache
def study_points() -> tuple[PublishedResult, ...]:
    """Return the rows of the published scaling studies, in order. Their field ``round`` is empty."""
    points = []
    for row in (*_rows("ddl.csv"), *_rows("mxnet.csv")):
        row["point"] = dict(part.split("=", 1) for part in row["point"].split())
        points.append(
            PublishedResult.model_validate({"round": "", "kind": "unofficial", "submitter": ""} | row)
        )
    return tuple(points)


def _rows(name: str) -> list[dict[str, Any]]:
    """Return the rows of a file in ``published`` by column, without their empty cells."""
    text = files("rackproof.analysis.mlperf").joinpath("published", name).read_text(encoding="utf-8")
    return [{key: value for key, value in row.items() if value} for row in csv.DictReader(text.splitlines())]


def _words(text: str) -> frozenset[str]:
    """Return the words of a name in lower case: ``8x B200-SXM`` has ``8x``, ``b200`` and ``sxm``."""
    return frozenset(re.findall(r"[a-z0-9]+", text.lower()))


@cache
def _all_results() -> tuple[PublishedResult, ...]:
    """Return the results of all rounds."""
    # These columns of results.csv have other names than the fields.
    renamed = {"score_minutes": "minutes", "samples_per_second": "throughput"}
    results = []
    for name, defaults in (
        ("results.csv", {"throughput_unit": "samples/s"}),
        ("mlperf-0.6.csv", {"kind": "unofficial"}),
    ):
        for row in _rows(name):
            fields = {renamed.get(key, key): value for key, value in row.items()}
            results.append(PublishedResult.model_validate(defaults | fields))
    return tuple(results)
