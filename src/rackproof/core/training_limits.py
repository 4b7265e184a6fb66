"""Compute limits for the numbers in logs of MLPerf Training, from GPU peaks and published results.

The readers of MLPerf logs and the checks of scores call this module with the speeds, the samples and the
hyperparameters of a log. A number beyond its limit is not plausible for the stated training and GPUs. The
limits are in four tables beside this file, whose comments give the origin of the numbers. Reading these
tables is the only I/O.

Begin with :func:`impossible_speeds`, :func:`beside_stated`, :func:`faster_than_itself` and
:func:`too_few_samples`. Each yields the text of a finding if a log breaks its limit.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import pairwise
from typing import NamedTuple

from rackproof.core.gpu_models import is_model

TABLE, SPEEDS, SAMPLES = "training_limits.csv", "published_speeds.csv", "published_samples.csv"
HYPERPARAMETERS = "published_hyperparameters.csv"
"""Files of the four tables in this package: the work of a training and the peaks of GPUs (:data:`TABLE`), the
fastest published speeds, the fewest published samples, and the published hyperparameters."""
FASTER_THAN_PUBLISHED_GPUS = 1.8
"""Largest plausible ratio of a run's speed per GPU to the fastest published speed per GPU of the same model,
if as many GPUs or fewer train together. The fastest new round reached 1.45."""
FASTER_THAN_FEW_RESULTS = 2.5
"""The ratio :data:`FASTER_THAN_PUBLISHED_GPUS` for GPUs with one or two published results.

In rounds 4.0 to 5.1, 0.75 % of 697 results exceeded this ratio to another result of the same GPU.
"""
FEW_RESULTS = 2
"""Largest number of published results for which :data:`FASTER_THAN_FEW_RESULTS` applies."""
FASTER_THAN_STATED = 1.2
"""Largest plausible ratio of a whole run's throughput to the throughput that its log states.

In published results of the rounds 2.1, 4.1, 5.0 and 5.1, the ratio is at most 1.12.
"""
_STATES_HALF = frozenset({"dlrm"})
"""Benchmarks of which some logs state half of the throughput (with the framework HugeCTR)."""
_SLOWEST: Mapping[str, float] = {
    "bert": 0.6, "dlrm_dcnv2": 0.6, "flux1": 0.4, "gnn": 0.4, "gpt3": 0.6, "llama2_70b_lora": 0.4,
    "llama31_405b": 0.4, "llama31_8b": 0.4, "maskrcnn": 0.5, "resnet": 0.5, "retinanet": 0.2, "rgat": 0.5,
    "rnnt": 0.5, "stable_diffusion": 0.25, "unet3d": 0.4,
}  # fmt: skip
"""Smallest ratio of a run's throughput to the throughput that its log states, by benchmark.

Other benchmarks have no smallest ratio. Published logs since 2023 have at least 0.90 (bert, dlrm_dcnv2,
gpt3), 0.48 (stable_diffusion), 0.36 (retinanet), and 0.63 (all other benchmarks here). Logs of unet3d in
round 1.0 have at least 0.45.
"""
_SLOWEST_OF_PROCESSES = 0.5
"""Smallest ratio of a run's throughput to the stated throughput of one process times the number of processes.

Published logs of ssd have at least 0.82.
"""
_WITHOUT_TRAINING_S = 30.0
"""Seconds that a run may spend without training. In round 3.0, resnet on 512 H100 trains for 12 of 32 s."""
STATES_PROCESS = frozenset({"retinanet", "ssd"})
"""Benchmarks of which some logs state the throughput of one process, which trains on one GPU."""
_MOST_OF_PROCESS = 1200.0
"""Samples per second of :data:`STATES_PROCESS` that no single GPU reaches. The fastest GPU reaches 454."""
NOISE_S = 2.0
"""Seconds by which a busy processor may delay a training. A smaller difference of times is no contradiction.
Real benchmarks take much longer than this."""
FASTER_THAN_ITSELF = 1.5
"""Largest plausible ratio of a whole run's pace to the median pace between its evaluations.

In published results, the ratio is at most 1.22.
"""
MOST_OF_NODE = 72
"""Largest number of GPUs of a node in a log. An NVL72 counts as one node, and other nodes have at most 16."""
FEWER_THAN_PUBLISHED = 0.8
"""Smallest plausible ratio of a run's samples to the fewest samples of published results.

Published results with a smaller batch than the run's do not count. The comment in
``published_samples.csv`` says how often a new round needed less.
"""

OTHER_LEARNING_RATE = 3.0
"""Largest plausible ratio of a learning rate to the nearest published one.

The learning rates of a new round differed from the range of earlier rounds by a factor of at most 2. This is
the result for the benchmarks whose range is in ``published_hyperparameters.csv``.
"""
_ROUNDED = 1e-6
"""Share by which a hyperparameter may differ from the value in the rules, because a program may store the
value in 32 bits."""

PROGRESS_KEYS = ("samples_count", "epoch_num", "step_num")
"""Keys with which an evaluation in a log states the training's progress. Epochs may be fractions and start
at 0."""
WITHOUT_PACE = frozenset({"dlrm", "minigo", "stable_diffusion"})
"""Benchmarks that are evaluated after the training or at uneven intervals, and therefore show no pace."""
MOST_EPOCHS = 1000
"""Largest ``epoch_num`` that is a number of epochs. Larger values are numbers of samples, which logs of bert,
gpt3 and unet3d contain in place of epochs (rounds 3.1 to 5.0)."""
_MOST_EPOCHS_OF = {"unet3d": 20_000}
"""The limit :data:`MOST_EPOCHS` for benchmarks whose data set has few samples.

In round 3.1, 756 logs of unet3d have up to 9,700 epochs.
"""
EARLY_SSD = "ssd_coco"
"""Name in these tables for ssd before round 2.0, which trains on the smaller data set COCO."""
COCO_IMAGES = frozenset({117_266, 118_287})
"""Values of ``train_samples`` in the logs of ssd of rounds 0.7 to 1.1. Logs of round 0.6 lack
``train_samples``."""
_IMAGES_OF_EPOCH = {EARLY_SSD: 117_266, "maskrcnn": 117_266, "retinanet": 1_170_301, "ssd": 1_170_301}
"""Images per epoch of the benchmarks of which some submitters' logs state ``train_samples`` in batches, or
not at all."""
FEWEST_IMAGES = 100_000
"""Smallest ``train_samples`` of the benchmarks in :data:`_IMAGES_OF_EPOCH` that is a number of images. A
smaller value is a number of batches."""


class RunTimes(NamedTuple):
    """The time of a run, its samples, and the throughput that its log states.

    Attributes:
        benchmark: The name in MLPerf's rules, or the name that :func:`trained_benchmark` returns.
        start: The time of run_start in seconds since 1970.
        stop: The time of run_stop in seconds since 1970.
        samples: The number of samples trained until the last evaluation, or None if unknown.
        stated: The throughput in the log in samples per second, or None.
        processes: The largest possible number of processes, or None if unknown.
        exact_processes: The number of processes that follows from the global batch and the batch of one
            process, or None if unknown.
    """

    benchmark: str
    start: float
    stop: float
    samples: float | None
    stated: float | None
    processes: int | None
    exact_processes: float | None = None

    @property
    def seconds(self) -> float:
        """Return the duration of the run in seconds."""
        return self.stop - self.start


@lru_cache
def read_limits() -> Mapping[str, Mapping[str, float]]:
    """Return TFLOP per sample under "benchmark", and dense peak TFLOP/s under "gpu", each by name."""
    limits: dict[str, dict[str, float]] = {"benchmark": {}, "gpu": {}}
    for kind, name, value, *_ in _read_cells(TABLE):
        limits[kind][name] = float(value)
    return limits


@lru_cache
def read_fewest_samples() -> Mapping[str, tuple[tuple[float, float], ...]]:
    """Return the pairs of batch size and fewest samples of each benchmark, smallest batch first.

    Cells of the table have the form ``66:1751040 4608:2602727``.
    """
    pairs = {name: (pair.split(":") for pair in cell.split()) for name, cell, *_ in _read_cells(SAMPLES)}
    return {name: tuple((float(size), float(few)) for size, few in row) for name, row in pairs.items()}


@lru_cache
def read_hyperparameters() -> Mapping[str, Mapping[str, tuple[float, float]]]:
    """Return the smallest and largest plausible value of each hyperparameter, by benchmark and name."""
    ranges: dict[str, dict[str, tuple[float, float]]] = {}
    for benchmark, fixed, rates, *_ in _read_cells(HYPERPARAMETERS):
        ranges[benchmark] = {}
        for pair in fixed.split() if fixed != "-" else ():
            name, _, value = pair.partition(":")
            ranges[benchmark][name] = (1 - _ROUNDED) * float(value), (1 + _ROUNDED) * float(value)
        if rates != "-":
            least, most = map(float, rates.split(":"))
            ranges[benchmark]["opt_base_learning_rate"] = (
                least / OTHER_LEARNING_RATE,
                most * OTHER_LEARNING_RATE,
            )
    return ranges


@lru_cache
def hyperparameter_names() -> frozenset[str]:
    """Return every name in the table of hyperparameters."""
    return frozenset(name for ranges in read_hyperparameters().values() for name in ranges)


def too_few_samples(benchmark: str, batch: float, samples: float | None) -> Iterator[str]:
    """Yield a sentence if a target was reached with far fewer samples than in any published result.

    Args:
        benchmark: The name that :func:`trained_benchmark` returns.
        batch: The global batch size, or 0 if it is unknown. Larger batches need more samples, so 0 gives the
            mildest limit.
        samples: The number of samples trained until the target, or None if it is unknown.
    """
    table = read_fewest_samples().get(benchmark)
    if table is None or not samples:
        return
    fewest = max((few for size, few in table if size <= batch), default=table[0][1])
    if samples < FEWER_THAN_PUBLISHED * fewest:
        yield (
            f"the target was reached after {samples:.4g} samples, but published results of {benchmark} "
            f"need {fewest:.4g} or more"
        )


class PublishedSpeeds(NamedTuple):
    """The fastest published speeds of a benchmark on a GPU model.

    ``of_gpu`` has samples per second of one GPU. Its key is a number of GPUs that train together, and the
    value is the fastest of all results with that many GPUs or more. ``results`` is the number of published
    results.
    """

    of_gpu: Mapping[int, float]
    results: int


@lru_cache
def read_speeds() -> Mapping[tuple[str, str], PublishedSpeeds]:
    """Return the fastest published speeds by benchmark and GPU model."""
    speeds: dict[tuple[str, str], PublishedSpeeds] = {}
    for benchmark, gpu, cell, results, *_ in _read_cells(SPEEDS):
        pairs = (pair.split(":") for pair in cell.split())
        of_gpu = {int(gpus): float(speed) for gpus, speed in pairs}
        speeds[benchmark, gpu] = PublishedSpeeds(of_gpu, int(results))
    return speeds


def _read_cells(table: str) -> Iterator[list[str]]:
    """Yield the cells of each line of a table beside this file."""
    for line in (files("rackproof.core") / table).read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            yield [cell.strip() for cell in line.split("|")]


def lacks_gpu(benchmark: str, product_name: str) -> bool:
    """Return whether a benchmark's speed has no limit only because this GPU is not in the table of limits."""
    return benchmark in read_limits()["benchmark"] and not _peaks(product_name)


def _peaks(product_name: str) -> list[float]:
    """Return the peaks in TFLOP/s of the models that a product name contains as a word."""
    # "B200" is not a word in "GB200".
    return [peak for model, peak in read_limits()["gpu"].items() if is_model(product_name, model)]


@lru_cache
def fastest_possible(benchmark: str, product_name: str, gpus: int) -> float | None:
    """Return the samples per second that GPUs cannot exceed, or None if the limit is unknown.

    Args:
        benchmark: The name in MLPerf's rules.
        product_name: The name of the GPUs in a system description or from a driver.
        gpus: The number of GPUs that train together.
    """
    work, peaks = read_limits()["benchmark"].get(benchmark), _peaks(product_name)
    return max(peaks) * gpus / work if peaks and work and gpus > 0 else None


@lru_cache
def fastest_published(benchmark: str, product_name: str, gpus: int) -> float | None:
    """Return the samples per second that GPUs would reach at the fastest published speed per GPU, or None.

    The published speed per GPU is in the table's entry with the most GPUs, but not more than ``gpus``.
    Without such an entry, it is in the entry with the fewest GPUs. It is multiplied by ``gpus``. The result
    is None if no published result is comparable. The arguments are as in :func:`fastest_possible`.
    """
    published = _published(benchmark, product_name, gpus)
    if published is None:
        return None
    table = published.of_gpu
    return table[max((number for number in table if number <= gpus), default=min(table))] * gpus


def _published(benchmark: str, product_name: str, gpus: int) -> PublishedSpeeds | None:
    """Return the published speeds of a benchmark on a GPU model, or None if there are no comparable ones.

    Results are comparable if the smallest of them has at most twice as many GPUs.
    """
    for (name, model), published in read_speeds().items():
        # Each GPU is faster if fewer GPUs train together. The speed far below the smallest published number
        # of GPUs is therefore unknown.
        if name == benchmark and is_model(product_name, model) and 2 * gpus >= min(published.of_gpu):
            return published
    return None


def fastest_believable(benchmark: str, product_name: str, gpus: int) -> float | None:
    """Return the largest plausible samples per second, or None if no published result is comparable.

    The arguments are as in :func:`fastest_possible`.
    """
    published = _published(benchmark, product_name, gpus)
    fastest = fastest_published(benchmark, product_name, gpus)
    if published is None or fastest is None:
        return None
    few = published.results <= FEW_RESULTS
    return fastest * (FASTER_THAN_FEW_RESULTS if few else FASTER_THAN_PUBLISHED_GPUS)


def _model_in(platform: str) -> re.Match[str] | None:
    """Return the match of a GPU model in a platform, with a number directly before it as its first group."""
    models = "|".join(map(re.escape, read_limits()["gpu"]))
    pattern = rf"(?<![A-WYZa-wyz0-9])(?:([1-9][0-9]?)x?)?({models})(?:(?=x[0-9])|(?![A-Za-z0-9]))"
    return re.search(pattern, platform)


@lru_cache
def gpus_of_platform(platform: str) -> tuple[str, int] | None:
    """Return the model and the number of GPUs in a log's ``submission_platform``, or None.

    The form of ``submission_platform`` is ``NODESxSYSTEM``. The system's name may include the number of GPUs
    per node (``2xXE9680Lx8B200-SXM-180GB``). If it does not (``18xNVIDIA GB200``), :data:`MOST_OF_NODE` GPUs
    per node are assumed. The result is None for another form, and for a GPU that is not in the table of
    limits.
    """
    nodes = re.match(r"([1-9][0-9]{0,4})x(?=.*[A-Za-z])", platform)
    match = _model_in(platform)
    if nodes is None or match is None:
        return None
    # A number at the beginning is the number of nodes, even directly before the model (8xB200).
    stated = match[1] is not None and match.start() >= nodes.end()
    return match[2], int(nodes[1]) * (int(match[1]) if stated else MOST_OF_NODE)


def _printed_model(printed: Mapping[str, object]) -> str | None:
    """Return the GPU model of a printed description if it is in the table of limits, or None."""
    name = str(printed.get("accelerator_model_name", ""))
    return next((model for model in read_limits()["gpu"] if is_model(name, model)), None)


def gpus_of_log(
    platform: str, printed: Mapping[str, object], stated_nodes: int | None
) -> tuple[str, int] | None:
    """Return the model and the largest possible number of the GPUs that a log states, or None if unknown.

    If the statements differ, the printed model and the largest number of nodes count. A script may print its
    default of one node for a job of several.

    Args:
        platform: The ``submission_platform``, or "".
        printed: The description that a run script printed (``:::SYSJSON``), or an empty one.
        stated_nodes: The number of nodes in ``:::DLPAL``, or None.
    """
    first, named = re.match(r"[1-9][0-9]{0,4}(?=x)", platform), _model_in(platform)
    nodes = max(stated_nodes or 0, _count_of(printed, "number_of_nodes"), int(first[0]) if first else 0)
    if (model := _printed_model(printed)) is not None:
        return (
            (model, nodes * (_count_of(printed, "accelerators_per_node") or MOST_OF_NODE)) if nodes else None
        )
    if (gpus := gpus_of_platform(platform)) is not None or named is None or not nodes:
        return gpus
    return named[2], nodes * (int(named[1]) if named[1] else MOST_OF_NODE)


def _count_of(printed: Mapping[str, object], key: str) -> int:
    """Return a number of a printed description, or 0 if it is missing or no number."""
    text = str(printed.get(key, ""))
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else 0


def other_model(platform: str, printed: Mapping[str, object]) -> str:
    """Return a text about two different known GPU models that a log states, or "".

    The arguments are as in :func:`gpus_of_log`. Of 157 published results whose logs print a description
    (2.1, 4.0 and 5.1), none states two models.
    """
    named, model = _model_in(platform), _printed_model(printed)
    if named is None or model is None or named[2] == model:
        return ""
    return f"submission_platform names {named[2]}, and :::SYSJSON {model}: the GPUs of this run are not known"


def images_of_epoch(benchmark: str) -> int | None:
    """Return the images per epoch of a benchmark whose logs may state batches instead, or None for others.

    The result for maskrcnn is None, because its logs state neither images nor batches.
    """
    return None if benchmark == "maskrcnn" else _IMAGES_OF_EPOCH.get(benchmark)


def trained_benchmark(benchmark: str, train_samples: float | None, *, before_2_0: bool = False) -> str:
    """Return a benchmark's name in these tables, which distinguish the two data sets of ssd.

    Args:
        benchmark: The name in MLPerf's rules.
        train_samples: The number of samples per epoch in the log, or None if the log states none.
        before_2_0: Whether the rules are from a round before 2.0.
    """
    is_early = benchmark == "ssd" and (before_2_0 or train_samples in COCO_IMAGES)
    return EARLY_SSD if is_early else benchmark


def samples_trained(benchmark: str, kind: str, amount: float, train_samples: float | None) -> float | None:
    """Return the number of samples that a training trained at some progress, or None if unknown.

    Args:
        benchmark: The name that :func:`trained_benchmark` returns.
        kind: The name of the progress in the log, one of :data:`PROGRESS_KEYS`. A number of steps
            (``step_num``) gives None.
        amount: The progress.
        train_samples: The number of samples per epoch in the log, or None if the log states none.
    """
    if kind == "samples_count" or (
        kind == "epoch_num" and amount > _MOST_EPOCHS_OF.get(benchmark, MOST_EPOCHS)
    ):
        return amount
    images = _IMAGES_OF_EPOCH.get(benchmark)
    if images is not None and (train_samples or 0) < FEWEST_IMAGES:
        train_samples = images
    return amount * train_samples if kind == "epoch_num" and train_samples else None


def impossible_speeds(
    benchmark: str, gpus: tuple[str, int] | None, speeds: Iterable[tuple[str, float | None]]
) -> Iterator[str]:
    """Yield the end of a sentence about a log for each speed that the GPUs cannot reach.

    Args:
        benchmark: The name in MLPerf's rules.
        gpus: The name and number of the GPUs, or None if unknown. If unknown, no speed is impossible.
        speeds: The kind of each speed (``states`` for the throughput that the log states, ``trained`` for
            the throughput of the whole run), and its samples per second, or None if unknown. Only ``trained``
            is compared with published results.
    """
    if gpus is None:
        return
    bound, published = fastest_possible(benchmark, *gpus), fastest_published(benchmark, *gpus)
    believable = fastest_believable(benchmark, *gpus)
    for name, speed in speeds:
        if bound is not None and speed and speed >= bound:
            yield (
                f"{name} {speed:.4g} samples/s, but {gpus[1]} of {gpus[0][:80]} reach less than {bound:.4g} "
                f"samples/s of {benchmark} at their peak"
            )
        elif published and believable and name == "trained" and speed and speed > believable:
            yield (
                f"trained {speed:.4g} samples/s, {speed / published:.3g} times what {gpus[1]} of "
                f"{gpus[0][:80]} reach in the fastest published result of {benchmark}"
            )


def beside_stated(run: RunTimes) -> Iterator[str]:
    """Yield a text if a run's samples per second contradict the throughput that its log states."""
    if not run.samples or not run.stated or run.seconds <= 0:
        return
    lost_s = run.seconds - run.samples / run.stated
    if abs(lost_s) < NOISE_S:
        return
    share = run.samples / run.seconds / run.stated
    if not any(_fits_stated(run, run.stated * times, least) for times, least in _meanings_of_stated(run)):
        yield (
            f"{run.samples:g} samples in {run.seconds:.0f} s are {share:.3g} times the throughput of "
            f"{run.stated:.4g} samples/s that the log states"
        )


def _meanings_of_stated(run: RunTimes) -> Iterator[tuple[float, float]]:
    """Yield the possible factors of a stated throughput, each with the smallest share that a run reaches."""
    yield 1.0, _SLOWEST.get(run.benchmark, 0.0)
    if run.benchmark in STATES_PROCESS and (run.stated or 0) < _MOST_OF_PROCESS:
        exact = run.exact_processes
        yield (exact, _SLOWEST_OF_PROCESSES) if exact else (run.processes or math.inf, 0.0)


def _fits_stated(run: RunTimes, stated: float, least: float) -> bool:
    """Return whether a run's speed fits a stated throughput. A run that lost little time is not too slow.

    Args:
        run: The run, whose samples are known.
        stated: The stated throughput of all processes in samples per second.
        least: The smallest share of the stated throughput that a run reaches, or 0.
    """
    most = FASTER_THAN_STATED * (2 if run.benchmark in _STATES_HALF else 1)
    needed_s = (run.samples or 0.0) / stated
    is_slow = needed_s < least * run.seconds and run.seconds - needed_s > _WITHOUT_TRAINING_S
    return needed_s <= most * run.seconds and not is_slow


def paces_between(points: Sequence[tuple[float, float]]) -> list[float]:
    """Return the progress per second between evaluations. Intervals without time are left out.

    Args:
        points: The time in seconds and the progress of each evaluation, in the order of the log.
    """
    return [
        (amount - before) / (time - began)
        for (began, before), (time, amount) in pairwise(points)
        if time > began
    ]


def faster_than_itself(run: RunTimes, points: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Yield a text if the whole run is faster than the training between its evaluations.

    The arguments are as in :func:`beside_stated` and :func:`paces_between`.
    """
    paces = paces_between(points)
    usual = statistics.median(paces) if paces else 0.0
    # The pace is 0 if numbers are so small that their differences are rounded to 0.
    if not usual or run.benchmark in WITHOUT_PACE or run.seconds <= 0:
        return
    times = points[-1][1] / run.seconds / usual
    if times > FASTER_THAN_ITSELF:
        yield f"the whole run has {times:.3g} times the pace between its evaluations"
