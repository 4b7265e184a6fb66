"""Turn the events of MLPerf training logs into measurements, findings and a verdict, for every notation.

The notations ``mllog`` (rounds 0.7 to 6.x), ``mll06`` (0.6) and ``mlp05`` (0.5) differ only in how an event
is written. Their parsers derive from :class:`Events`, and call :meth:`Events.event` for every event line::

    :::MLLOG {"key": "eval_accuracy", "value": 0.71, "time_ms": 1700000000000, "metadata": {"epoch_num": 3}}

An event has a key, a value, a time, and metadata (``meta`` here). A handler ``on_...`` receives the events of
some keys, with their position in the block of bytes. :meth:`Events.finish` then judges the log. The modules
_course, _pace and _statements have the checks that need a state of their own. Rackproof's own workloads log
in the same notation, also for benchmarks that are not of MLPerf.

"Published logs" are those of MLCommons' published results. A *benchmark* is the value of
``submission_benchmark``, by its name in MLPerf's rules. A *target* is the quality that ends a training.
"""

from __future__ import annotations

import ast
import json
import re
import statistics
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from math import inf, isclose, isfinite

from rackproof.core.gpu_models import share_of_peak
from rackproof.core.published_events import (
    PROGRESS,
    SECOND_EVALUATION,
    THROUGHPUT,
    WHOLE_EPOCHS,
    events_of,
)
from rackproof.core.records import Direction, Measurement, ParsedLog, Spread, Verdict
from rackproof.core.training_limits import (
    COCO_IMAGES,
    FEWEST_IMAGES,
    NOISE_S,
    PROGRESS_KEYS,
    STATES_PROCESS,
    RunTimes,
    beside_stated,
    gpus_of_log,
    images_of_epoch,
    impossible_speeds,
    other_model,
    samples_trained,
    too_few_samples,
    trained_benchmark,
)
from rackproof.logs._course import EPOCHS, KINDS, Course
from rackproof.logs._pace import SINCE, Pace
from rackproof.logs._reading import (
    MAX_EXCERPT,
    MAX_FINDINGS_PER_CODE,
    MAX_TAGS,
    TASK_FAILED,
    Curve,
    Log,
    LogParser,
    clean,
    number,
    rank_of,
    text_of,
)
from rackproof.logs._statements import TIMED, Statements, local_batch
from rackproof.logs.gpu_use import note_gpu_state
from rackproof.logs.probe_bounds import PROBE, probe_problem

HIGHER, LOWER = Direction.HIGHER, Direction.LOWER
NOT_TAGS = frozenset(
    {
        "init_stop",
        "epoch_stop",
        "block_start",
        "block_stop",
        "eval_start",
        "eval_stop",
        "weights_initialization",
    }
)
"""Keys whose values never become tags, because they are part of the run's course."""
_OWN_TAGS = ("gpu_state.", "software.", "dataset.")
"""Beginnings of the tags that other events set after a check. No event of such a name becomes one."""

JUDGED_BY = "judged_by"
"""Tag of a parsed log that states the basis of its verdict: a target, ``evaluation``, or ``measurements``. A
log without this tag has nothing that proves a result."""
MOST_LOSS = 1e4
"""Largest plausible loss of an MLPerf benchmark. The largest in a published log is 28.1 (llama31_8b, 5.1)."""


@dataclass(frozen=True, slots=True)
class QualityTarget:
    """The quality that a benchmark must reach.

    Attributes:
        value: The smallest good value, or the largest one if ``at_most``.
        at_most: True for a loss or a rate of errors.
        metric: The name of the metric if an evaluation has several (``BBOX``), or "".
    """

    value: float
    at_most: bool = False
    metric: str = ""

    def reached(self, value: float) -> bool:
        """Return whether a value is good enough (NaN is not)."""
        return value <= self.value if self.at_most else value >= self.value

    @property
    def highest(self) -> float:
        """Return the highest possible value: 1 for a fraction, 100 for BLEU in percent, or else inf."""
        if self.at_most or self.value > 100:
            return inf
        return 1.0 if self.value <= 1 else 100.0

    @property
    def believable(self) -> tuple[float, float]:
        """Return the lowest and highest plausible evaluation of a run that ends at this target.

        A run stops at the first evaluation that reaches the target. In 12,200 published logs, a
        final loss is between 0.94 and 2.3 times its target (rnnt's word error rate begins at 15),
        and a fraction covers at most a third of the distance from its target to 1.
        """
        if self.at_most:
            return self.value / 2, 4 * self.value if self.value > 0.1 else MOST_LOSS
        return 0.0, (self.value + self.highest) / 2

    def __str__(self) -> str:
        return f"{'at most' if self.at_most else 'at least'} {self.value:g}" + (
            f" {self.metric}" if self.metric else ""
        )


TARGETS: Mapping[str, tuple[QualityTarget, ...]] = {
    "bert": (QualityTarget(0.706),),  # the lowest of any round: 0.7 with large batches; 0.72 since 1.0
    "deepseekv3_671b": (QualityTarget(3.6, at_most=True),),
    "dlrm": (QualityTarget(0.8025),),
    "dlrm_dcnv2": (QualityTarget(0.80275),),
    "flux1": (QualityTarget(0.586, at_most=True),),
    "gnmt": (QualityTarget(0.240),),
    "gnn": (QualityTarget(0.72),),
    "gpt3": (QualityTarget(2.69, at_most=True),),
    "gpt_oss_20b": (QualityTarget(3.34, at_most=True),),
    "llama2_70b_lora": (QualityTarget(0.925, at_most=True),),
    "llama31_405b": (QualityTarget(5.6, at_most=True),),
    "llama31_8b": (QualityTarget(3.3, at_most=True),),
    "maskrcnn": (QualityTarget(0.377, metric="BBOX"), QualityTarget(0.339, metric="SEGM")),
    "resnet": (QualityTarget(0.759),),
    "retinanet": (QualityTarget(0.34),),
    "rgat": (QualityTarget(0.72),),
    "rnnt": (QualityTarget(0.058, at_most=True),),
    "ssd": (QualityTarget(0.23),),
    "transformer": (QualityTarget(0.25),),
    "unet3d": (QualityTarget(0.908),),
}
"""Targets of rounds 0.7 to 6.1 by ``submission_benchmark``, from MLCommons' own rules.

Stable diffusion and minigo are missing, because their checkpoints are evaluated later, and any of these
may be the one that reached the target.
"""
_SSD_SINCE_2_0 = (QualityTarget(0.34),)
"""Target of ssd since round 2.0, which trains on another data set."""
OWN_TARGET_AT_LEAST = frozenset({"dlrmv4", "qwen35_397b_grpo"})
"""Benchmarks of round 6.1 whose rules require that the log states its own target (``target_accuracy``)."""

TARGETS_06: Mapping[str, tuple[QualityTarget, ...]] = {
    "ssd": (QualityTarget(0.23),),
    "maskrcnn": (QualityTarget(0.377, metric="BBOX"), QualityTarget(0.339, metric="SEGM")),
    "gnmt": (QualityTarget(24.0),),
    "transformer": (QualityTarget(25.0),),
    "resnet": (QualityTarget(0.759),),
    "minigo": (QualityTarget(0.50),),
}
"""Targets of round 0.6 by ``submission_benchmark``."""

_FRACTIONS = frozenset({"minigo", "ncf"})
"""Benchmarks that are not in :data:`TARGETS`. Their metric, a rate of games won or of hits, is a fraction."""
_IN_WHOLE_BATCHES = frozenset({"flux1", "llama2_70b_lora", "llama31_405b", "llama31_8b", "stable_diffusion"})
"""Benchmarks that are evaluated after whole batches in all 2,860 published logs of rounds 4.0 to 5.1."""
_COUNTS = ("global_batch_size", "train_samples", "eval_samples", "gradient_accumulation_steps")
"""Events whose values must be positive whole numbers."""
_DATA: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "eval_samples": {
        "bert": (10_000, 12_288),
        "deepseekv3_671b": (1024, 1024),
        "dlrm": (89_137_318, 89_137_319),
        "dlrm_dcnv2": (89_137_319, 89_137_319),
        "dlrmv4": (2_058_204, 2_058_204),
        "flux1": (29_696, 29_696),
        "gnmt": (3003, 3003),
        "gnn": (788_379, 788_379),
        "gpt_oss_20b": (1024, 1024),
        "llama2_70b_lora": (173, 173),
        "llama31_405b": (5760, 5760),
        "llama31_8b": (1024, 1024),
        "qwen35_397b_grpo": (251, 251),
        "rgat": (788_379, 788_379),
        "rnnt": (2703, 2703),
        "stable_diffusion": (30_000, 30_000),
        "transformer": (3003, 3003),
        "unet3d": (42, 42),
    },
    "train_samples": {
        "dlrm_dcnv2": (4_195_155_968, 4_195_197_692),
        "flux1": (1_099_776, 1_099_776),
        "gnmt": (3_442_299, 3_969_024),
        "gnn": (94_605_581, 94_605_581),
        "llama2_70b_lora": (3901, 3901),
        "llama31_405b": (1_574_207_408, 1_574_207_408),
        "resnet": (1_277_952, 1_281_168),
        "rgat": (94_605_581, 94_605_581),
        "rnnt": (276_480, 279_512),
        "unet3d": (168, 168),
    },
}
"""Smallest and largest number of samples of each benchmark's data set: the values in any of 25,229 logs of
rounds 0.5 to 5.1, and those that the rules of 6.x require. A benchmark is left out if some submitters state
batches, the samples trained on (bert), or another number (gpt3)."""
_MOST_AMOUNTS = 32
"""Largest number of different values of these events that are stored."""
_FIRST_STEPS = {"init_checkpoint_step": 0.0, "first_epoch_num": 1.0, "step": 0.0}
"""Largest value of a key for a run that trains from the beginning. ``step`` is of the first block_start."""
_FROM_CHECKPOINT = frozenset({"gpt3"})
"""Benchmarks whose training starts from a checkpoint's step under the rules."""

_STATS = {
    "train_loss": "train_loss",
    "reduced_train_loss": "train_loss",
    "loss": "train_loss",
    "train_step_time": "train_step_time",
    "throughput": "samples_per_second",
}
"""Statistics in a ``tracked_stats`` event, and the curve of each."""
_LOSSES = frozenset({"train_loss", "reduced_train_loss", "loss", "eval_loss", "val_loss", "validation_loss"})
"""Names of losses, as keys of events and as statistics."""
WATCHED = TIMED | _LOSSES
"""Statistics without a curve that are read. Those of :data:`_STATS` are found by their curve."""
_PARTS = {f"{kind}_{end}": (kind, end == "start") for kind in KINDS for end in ("start", "stop")}
"""Events that start or stop a part of a run, with the kind of the part and whether the event starts it."""
_TRAINED = tuple(dict.fromkeys(_STATS.values()))
"""Curves of the training itself, without samples of GPUs."""
_SAMPLED = {
    "utilisation": ("gpu_utilisation", "%"),
    "power": ("gpu_power", "W"),
    "temperature": ("gpu_temperature", "°C"),
    "clock": ("gpu_clock", "MHz"),
    "throttle": ("gpu_throttle", ""),
    "rate": ("soak_rate", "TFLOP/s"),
    "stalls": ("stalled_steps", ""),
}
"""The curve and the unit of each value in a ``gpu_sample`` of Rackproof's workloads."""
_SAMPLE_KINDS: tuple[tuple[str, str, Mapping[str, tuple[str, str]]], ...] = (
    ("gpus", "gpu", _SAMPLED),
    ("links", "interface", {"use": ("link_use", "%")}),
)
"""Lists in a ``gpu_sample``, with the key of the list, the key of the device in an entry, and the values
of an entry."""
_MOST_SAMPLED = 256
"""Number of curves beyond which samples of new devices are left out."""
_OTHER_NAMES = {"mask": "maskrcnn", "mask_rcnn": "maskrcnn"}
"""Other names of benchmarks that some submitters use. Without this table, no target would apply."""
_LISTED_METRICS = {"maskrcnn": ("BBOX", "SEGM")}
"""Metrics that some submitters log as one list per evaluation, in the list's order."""
_MOST_ABORTED = 5
"""Largest number of ranks whose status other than success is stored."""
_OUTCOMES = {"true": "success", "1": "success", "false": "aborted", "0": "aborted"}
"""Status for each ``success`` of round 0.5."""
IMPORTANT = ("run_start", "run_stop", "eval_accuracy", "measurement")
"""Keys of the events without which a log proves nothing, so that their damage counts."""
_SALVAGE_KEY = re.compile(rb"""["']key["']\s*:\s*["']([A-Za-z0-9_]{1,80})["']""")
"""Pattern of the key in an event that cannot be decoded."""
_NAN_VALUE = re.compile(rb"(?i)[:\[,(=]\s*[-+]?nan\b")
"""Pattern of a value that is not a number in such an event."""
_BARE_WORD = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|\b(null|true|false|NaN)\b""")
"""Pattern of a quoted text, or of a word of JSON that Python writes otherwise."""
_PYTHON_WORD = {"null": "None", "true": "True", "false": "False", "NaN": "'nan'"}
MAX_JSON = 1 << 16
"""Largest number of bytes of an event that are decoded leniently, or searched for a key or NaN."""
MOST_UUID_CHARACTERS = 4000
"""Largest number of characters of the list of UUIDs of a run's GPUs."""
CLOCK_SLACK_S = 1.0
"""Largest difference between the clocks of ranks. An event further back is from another clock or another
run."""
FIRST_YEAR = 2018
"""First year that an event's time may have: the year of MLPerf Training 0.5."""
_OTHER_UNITS = {1e3: "s", 1e-3: "µs", 1e-6: "ns"}
"""Units in which a program may log a moment by mistake, by the factor that turns it into milliseconds."""
SECONDS_OF_A_YEAR = 365.2425 * 86_400
"""Length of an average year in seconds."""
STEPS_OF_RUN = 1.03
"""Largest total time of all steps, as a share of the run. In 174 published logs of round 5.1, it is at
most 0.99."""
SHARES_OF_RATE = 0.7, 1.3
"""Bounds for a training's actual throughput, as a share of the stated one. In published logs, it is 0.82
to 1.02."""
_BLOCKS_ARE_TRAINING = frozenset({"flux1", "llama2_70b_lora", "llama31_405b", "llama31_8b"})
"""Benchmarks whose blocks contain only training, and whose evaluations count samples."""
COMPARED_FORMAT = "mllog"
"""Notation of the published logs from which the bounds for times come. Other notations are not compared."""
BATCHES_SLACK = 0.02
"""Largest share by which the batches of an epoch may differ from the data set. Published logs have at most
0.008."""
SHARES_OF_BATCH = 0.67, 1.5
"""Bounds for the stated throughput times the stated time of a step, as a share of the batch size. In 489
published logs of rounds 4.0 to 5.1 that state both, it is 0.91 to 1.02."""
FEWEST_LOSSES = 10
"""Smallest number of equal losses that show that nothing was trained."""
CLOCK_S = 0.5
"""Seconds by which the steps may take longer than the run, because clocks count whole milliseconds."""
AFTER_STOP_S = 60.0
"""Seconds after run_stop in which other ranks report. In 1,900 logs of rounds 2.1, 4.1 and 5.0, it is at
most 14 s."""
SEEDS_S = 120.0
"""Seconds from the first seed in which ranks log their own seeds. In the same logs, it is at most 4 s."""
EVALUATED_OFFLINE = frozenset({"stable_diffusion", "minigo"})
"""Benchmarks whose checkpoints are evaluated after the training. run_stop is then set back to the
checkpoint that reached the target."""
_COURSE = frozenset({"run_start", "epoch_start", "eval_start", "eval_accuracy", "eval_stop", "run_stop"})
"""Events that a run logs in order of time. If one of them is too early, the run's duration is unproven. Other
events may come from buffers, seconds later (cache_clear of each node, HugeCTR's statistics), so an early one
is only a remark."""
_LOGGED_AFTER_STOP = frozenset({"run_stop", "status", "gpu_state"})
"""Events that may follow the end of a run. Every rank logs its own end, and probes read their GPUs again."""
_OF_ANOTHER_RUN = frozenset({"run_start", "eval_accuracy", "measurement"})
"""Events after the end that belong to another run. No rank of this run still logs them."""


class KeyTwiceError(ValueError):
    """A JSON object with a key twice, so that it is unknown which value is meant."""


def _distinct_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object. Raise a KeyTwiceError if a key occurs twice."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise KeyTwiceError("has a key twice")
    return members


_DECODER = json.JSONDecoder(object_pairs_hook=_distinct_pairs)


def decode_leniently(payload: bytes) -> tuple[object, str]:
    """Decode JSON that a strict decoder refused.

    Args:
        payload: The bytes from the opening brace on, including any further text of the line.

    Returns:
        The value, and a description of its problem. The latter is "" for NaN and infinities, which only
            Python's JSON accepts, and for control characters.

    Raises:
        KeyTwiceError: An object has a key twice.
        ValueError: The bytes contain no readable value.
    """
    payload = payload[:MAX_JSON]
    # Replace undecodable bytes. A byte that is not UTF-8, for example in a file name, does no harm.
    text = clean(payload, MAX_JSON)
    try:
        value, end = _DECODER.raw_decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except KeyTwiceError:
        raise
    except ValueError:
        # Python's parser needs time and memory in proportion to length and depth, and a hostile log
        # can choose both.
        if len(text) > 8192 or text.count("{") + text.count("[") > 50:
            raise
        return _decode_python_literal(text), "written with single quotes"
    if text[end:].strip():
        return value, "followed by other text"
    # Other deviations are NaN and infinities, which the logger itself writes.
    return value, "with bytes that are not UTF-8" if "\ufffd" in text else ""


def has_key_twice(payload: bytes, entry: Mapping[str, object]) -> bool:
    """Return whether a JSON object, or an object in it, contains a key twice. Decoders keep only the last.

    Args:
        payload: The text of the object. The answer for more than ``MAX_JSON`` bytes is False.
        entry: The decoder's result.
    """
    keys = len(entry) + sum(len(value) for value in entry.values() if type(value) is dict)
    # Each key is followed by a colon. Nearly no line contains other colons, so few need decoding in Python.
    if payload.count(b":") == keys or len(payload) > MAX_JSON:
        return False
    try:
        json.loads(payload, object_pairs_hook=_distinct_pairs)
    except KeyTwiceError:
        return True
    except (ValueError, RecursionError):
        return False
    return False


def _decode_python_literal(text: str) -> object:
    """Return a literal that Python printed, usually a dict with single quotes.

    Raises:
        KeyTwiceError: A dict contains a key twice.
        ValueError: The text is not a literal.
    """
    try:
        # literal_eval evaluates only literals. For an unknown escape in a string, it only warns.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(_BARE_WORD.sub(lambda m: m[1] or _PYTHON_WORD[m[2]], text).strip(), mode="eval")
            value = ast.literal_eval(tree)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError("not JSON") from error
    if any(_has_key_twice(node.keys) for node in ast.walk(tree) if isinstance(node, ast.Dict)):
        raise KeyTwiceError("has a key twice")
    return value


def _has_key_twice(keys: list[ast.expr | None]) -> bool:
    names = [key.value for key in keys if isinstance(key, ast.Constant)]
    return len(set(names)) != len(names)


def _important_key(key: str, payload: bytes) -> str:
    """Return the important key of a damaged event, or "".

    If the key is lost, search the whole line.
    """
    for name in IMPORTANT:
        if name == key or (not key and name.encode() in payload):
            return name
    return ""


def _eval_values(value: object, meta: Mapping[str, object], benchmark: str) -> Mapping[str, object]:
    """Return an evaluation's values by metric ("" if unnamed), or none for a list of unknown meaning.

    Each round nests the values differently.
    """
    if isinstance(value, dict) and isinstance(value.get("accuracy"), dict | list):  # 0.6 maskrcnn
        value = value["accuracy"]
    if isinstance(value, list | tuple):  # 0.6 maskrcnn on TPUs
        # If the length differs, or for another benchmark, the meaning of the values is unknown.
        names = _LISTED_METRICS.get(benchmark, ("",))
        return dict(zip(names, value, strict=True)) if len(names) == len(value) else {}
    if isinstance(value, dict):
        return value
    metric = meta.get("metric")
    return {metric if isinstance(metric, str) else "": value}


def _stated_outcome(success: object) -> str | None:
    """Return the status in a 0.5 log, or None.

    The log states ``{"success": true}`` or ``{"success": "true"}``.
    """
    if isinstance(success, str):
        return _OUTCOMES.get(success.strip().lower())
    return _OUTCOMES.get(str(success).lower()) if isinstance(success, bool) or success in (0, 1) else None


def _status_text(status: object) -> str:
    """Return the status of a run as the log states it, or "" if it states none."""
    if status is None:
        return ""
    text = text_of(status, 40)
    # Cleaning must not turn another text, such as one with a space at its end, into the logger's own word.
    return status[:40] if text == "success" and isinstance(status, str) else text


def _utilisation(measurement: Measurement) -> Iterator[Measurement]:
    """Yield the MFU, which is a training's ``model_flops`` relative to its GPU's peak, if that is known.

    The program does not state the MFU itself, because the table of peaks is not on the nodes.
    """
    labels = measurement.labels
    if measurement.name == "model_flops" and measurement.unit == "TFLOP/s":
        share = share_of_peak(labels.get("gpu_model", ""), labels.get("dtype", ""), measurement.value)
        if share is not None:
            yield measurement.model_copy(update={"name": "mfu", "value": share, "unit": "1", "spread": None})


def _numbers_of(meta: Mapping[str, object]) -> dict[str, float]:
    """Return the progress that an event's metadata state, by name, without values that are not finite."""
    numbers = {name: number(meta[name]) for name in PROGRESS_KEYS if name in meta}
    return {name: value for name, value in numbers.items() if value is not None and isfinite(value)}


def _speed_of(measurements: list[Measurement]) -> float | None:
    """Return the throughput that a log states, or None."""
    return next(
        (measurement.value for measurement in measurements if measurement.name == "samples_per_second"), None
    )


def _day_of(seconds: float) -> date | None:
    """Return the day of a time in seconds since 1970, or None if it is out of range."""
    try:
        return datetime.fromtimestamp(seconds, UTC).date()
    except (ValueError, OverflowError, OSError):
        return None


class Events(LogParser):
    """The base of the parsers of MLPerf logs. It collects the events of one log, and judges them at its end.

    Names with ``line`` are line numbers. Times are in seconds since 1970.
    """

    targets: Mapping[str, tuple[QualityTarget, ...]] = TARGETS
    """Targets of the notation's rounds."""
    stated_target: tuple[float, int] | None = None
    """Target that the log states, and its line."""
    late_seed_line: int | None = None
    """Line of the first seed that was logged too late for a rank of this run."""
    last_outcome = ""
    """Status that the last run_stop states, or ""."""
    open_at_stop = 0
    """Number of evaluations that began before run_stop and may end after it."""
    ended_after_stop = 0
    """Number of these evaluations that ended after it."""
    placed_evaluations = 0
    """Number of evaluations that state the training's progress."""
    init_start_line = 0
    begun: tuple[str, str, int] | None = None
    """The event that shows a start from a trained model, as key, value and line."""
    largest_loss: tuple[float, int] | None = None
    """The first loss of :data:`MOST_LOSS` or more, and its line."""
    is_steady = False
    """True between the start and the stop of a run. The order of statistics is checked only in between."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.first_time: float | None = None
        self.latest = inf  # until the first event, then the latest time so far
        self.backwards = 0.0  # largest number of seconds by which an event is earlier than one before it
        self.backwards_line = 0
        self.init_start: float | None = None
        self.run_start: float | None = None
        self.run_start_line = 0
        self.run_starts = 0
        self.run_stop: float | None = None
        self.run_stop_line = 0
        self.latest_at_stop = -inf
        # Outcomes that some run_stop states: "success", or "" for none. Every rank may log a run_stop.
        self.outcomes: set[str] = set()
        # Status of each run_stop that states another outcome, and its line.
        self.aborted: list[tuple[str, int]] = []
        self.after_stop = 0  # number of events after run_stop
        self.after_stop_line = 0
        # First event of _OF_ANOTHER_RUN after run_stop, and its line.
        self.unexpected_after_stop: tuple[str, int] | None = None
        # Latest time of an event of _COURSE. The second value is the event that is furthest behind an earlier
        # one, as seconds, key and line.
        self.course_latest = -inf
        self.course_backwards: tuple[float, str, int] | None = None
        self.seeds: dict[str, int] = {}  # line of the first event with each seed
        self.first_seed_time: float | None = None
        # Last value of each metric, its line and rank.
        self.evals: dict[str, tuple[float, int, int | None]] = {}
        # Lines of the first and the last damaged event of each key of IMPORTANT.
        self.damaged_important: dict[str, tuple[int, int]] = {}
        self.epochs: tuple[float, int] | None = None  # highest epoch, and its line
        self.epoch_times: list[float] = []  # durations in seconds
        self._epoch_began: float | None = None
        self.stats: dict[str, tuple[float, int]] = {}
        """Last value of each curve, and its line."""
        # Values of the current block of bytes, with positions in place of lines, because looking up each line
        # would be too slow. `block_done` turns them into lines.
        self.last_evals: dict[str, tuple[float, int]] = {}
        self.last_epoch: tuple[float, int] | None = None
        self.extra: list[Measurement] = []  # stated by a workload of Rackproof itself
        self.own_target: QualityTarget | None = None  # stated with its good side
        self.curves = {
            "train_loss": Curve("train_loss", "", "s"),
            "samples_per_second": Curve("samples_per_second", "samples/s", "s"),
            "train_step_time": Curve("train_step_time", "s", "s"),
        }
        self.curves["train_loss"].above, self.curves["train_loss"].below = -inf, MOST_LOSS
        self.tracked = {name: self.curves[kind] for name, kind in _STATS.items()}
        self.batch_size: float | None = None
        self.amounts: dict[tuple[str, float], int] = {}
        """Stated numbers of samples, and the line of each number."""
        self.first_block: tuple[float, float, int] | None = None
        """Samples and steps of the first block of training, and the block's line."""
        self.steps = 0.0  # highest step of a block_stop
        self.course = Course()
        self.pace = Pace()
        self.statements = Statements()
        self.handlers = {
            "init_start": self.on_init_start,
            "init_stop": self.on_init_stop,
            "run_start": self.on_run_start,
            "run_stop": self.on_run_stop,
            "run_final": self.on_run_stop,
            "block_start": self.on_part,
            "block_stop": self.on_block_stop,
            **dict.fromkeys(_LOSSES, self.on_other_loss),
            "train_loss": self.on_train_loss,
            "eval_start": self.on_part,
            "eval_stop": self.on_part,
            "eval_accuracy": self.on_eval_accuracy,
            "epoch_start": self.on_epoch,
            "epoch_stop": self.on_epoch,
            "init_checkpoint_step": self.on_first_step,
            "first_epoch_num": self.on_first_step,
            "seed": self.on_seed,
            "cache_clear": self.on_cache_clear,
            **dict.fromkeys(_COUNTS, self.on_count),
            "measurement": self.on_measurement,
            "facts": self.on_facts,
            "dataset": self.on_dataset,
            "target": self.on_target,
            "target_accuracy": self.on_target,
            "quality_target": self.on_target,
            "eval_target": self.on_target,
            "progress": self.on_progress,
            "gpu_sample": self.on_gpu_sample,
            "gpu_state": self.on_gpu_state,
            "unproven": self.on_unproven,
        }

    @property
    def benchmark(self) -> str:
        """Return the benchmark by its name in MLPerf's rules, or "" until the log states it."""
        stated = self.log.tags.get("submission_benchmark", "")
        return _OTHER_NAMES.get(stated, stated)

    # -- taking events ----------------------------------------------------------------------------

    def event(self, key: str, value: object, meta: object, time: float | None, position: int) -> None:
        """Process one event.

        Args:
            key: The key.
            value: The decoded value.
            meta: The decoded metadata, of any type.
            time: The time in seconds since 1970, or None if it cannot be read.
            position: The position of the event in the current block of bytes.
        """
        if time is None or not isfinite(time):
            self._event_without_time(key, value, position)
            return
        if key == "tracked_stats":
            self.on_tracked_stats(value, meta, time, position)
            return
        if key in self.course.watched:
            self.course.logged.add(key)
        if self.run_stop is not None:
            self._note_after_stop(key, position)
        elif key in _COURSE:
            self._follow_course(key, time, position)
        self.pass_time(time, position, counts=key not in _LOGGED_AFTER_STOP)
        handler = self.handlers.get(key)
        if handler is not None:
            handler(key, value, meta if type(meta) is dict else {}, time, position)
        else:
            self._state(key, value)

    def _state(self, key: str, value: object) -> None:
        """Store a statement that is not part of the run's course, such as a hyperparameter, as a tag."""
        if key in NOT_TAGS or key.startswith(_OWN_TAGS) or value is None:
            return
        if key == "submission_benchmark":
            self.note_benchmark(text_of(value, 40))
        if key not in self.log.tags:
            self.log.tag(key, value)
        self.statements.take_hyperparameter(key, value)

    def note_benchmark(self, name: str) -> None:
        """Note the benchmark of a run. A log of several runs may state several; its tag has the first."""
        self.statements.take_benchmark(_OTHER_NAMES.get(name, name))

    def _note_after_stop(self, key: str, position: int) -> None:
        """Note an event after run_stop: the end of an open evaluation, or the first event of another run."""
        if key == "eval_accuracy" and self.ended_after_stop < self.open_at_stop:
            self.ended_after_stop += 1
        elif key in _OF_ANOTHER_RUN and self.unexpected_after_stop is None:
            self.unexpected_after_stop = key, self.log.line_at(position)

    def _follow_course(self, key: str, time: float, position: int) -> None:
        """Record the event that is furthest behind an event that was logged before it."""
        behind = self.course_latest - time
        if behind <= 0:
            self.course_latest = time
        elif self.course_backwards is None or behind > self.course_backwards[0]:
            self.course_backwards = behind, key, self.log.line_at(position)

    def _event_without_time(self, key: str, value: object, position: int) -> None:
        """Note an event without a time. One that no handler reads is still a tag, and a loss is checked."""
        if key in IMPORTANT:
            self.damaged(key, position)
            return
        # A statement such as the benchmark is valid without a time.
        if key not in self.handlers:
            self._state(key, value)
        elif key in _LOSSES:
            self._check_loss(key, value, position)
        self.log.find("damaged_line", "an event without a time", line=self.log.line_at(position))

    def pass_time(self, time: float, position: int, counts: bool = True) -> None:
        """Follow the clock.

        If ``counts`` is false, an event after run_stop is not counted as such.
        """
        if self.first_time is None:
            self.first_time = self.latest = time
        elif time >= self.latest:
            self.latest = time
        elif self.latest - time > self.backwards:
            self.backwards, self.backwards_line = self.latest - time, self.log.line_at(position)
        if self.run_stop is not None and counts:
            self.after_stop += 1
            if not self.after_stop_line:
                self.after_stop_line = self.log.line_at(position)

    def damaged(self, key: str, position: int) -> None:
        """Record an unreadable line that matters."""
        line = self.log.line_at(position)
        first, _last = self.damaged_important.get(key, (line, line))
        self.damaged_important[key] = first, line
        self.log.find(
            "damaged_line", f"a damaged {key} line", line=line, excerpt=self.log.line_text(position)[1]
        )

    def unreadable(self, payload: bytes, position: int, why: str = "cannot be decoded") -> None:
        """Record an event line that cannot be decoded. A NaN in it fails.

        The line matters (:meth:`damaged`) if its key is in :data:`IMPORTANT`, or if the key is lost and the
        line contains one of :data:`IMPORTANT`.
        """
        payload = payload[:MAX_JSON]
        match = _SALVAGE_KEY.search(payload)
        key = match[1].decode("ascii") if match else ""
        if key in self.course.watched and key not in _PARTS:
            self.course.logged.add(key)  # the line is there, and its damage is a finding of its own
        # Search even a damaged event, so that a NaN loss is recognized in any notation.
        if _NAN_VALUE.search(payload):
            line = self.log.line_at(position)
            message = f"NaN in an event ({key or 'key lost'})"
            self.log.find("nan", message, Verdict.FAIL, line=line, excerpt=payload)
        important = _important_key(key, payload)
        if important:
            self.damaged(important, position)
        else:
            self.log.find(
                "damaged_line",
                f"a log line ({key or 'key lost'}) {why}",
                line=self.log.line_at(position),
                excerpt=payload,
            )

    def key_twice(self, payload: bytes, position: int) -> None:
        """Record an event with a key twice. Either of the two values may be the true one."""
        line = self.log.line_at(position)
        self.log.find("key_twice", "an event has a key twice", Verdict.UNPROVEN, line=line, excerpt=payload)
        self.unreadable(payload, position, "has a key twice")

    def place(self, position: int) -> tuple[int, int | None]:
        """Return the line and the rank of a position."""
        return self.log.line_at(position), rank_of(self.log.line_text(position)[0])

    def at(self, time: float) -> float:
        """Return the seconds since run_start or, if it was not read yet, since the first event."""
        start = self.run_start if self.run_start is not None else self.first_time
        return time - (start if start is not None else time)

    def on_init_start(
        self, key: str, value: object, meta: Mapping[str, object], time: float, position: int
    ) -> None:
        """Store the earliest start of initialization. Every rank logs one."""
        self.init_start_line = self.init_start_line or self.log.line_at(position)
        self.init_start = time if self.init_start is None else min(self.init_start, time)

    def on_init_stop(
        self, key: str, value: object, meta: Mapping[str, object], time: float, position: int
    ) -> None:
        """Store the latest end of initialization before the start of the run."""
        if self.run_start is None:
            self.pace.init_stop = max(time, self.pace.init_stop or time)

    def on_first_step(
        self, key: str, value: object, meta: Mapping[str, object], time: float, position: int
    ) -> None:
        """Record a training that continues an earlier one, which took time of its own."""
        self.log.tag(key, value)
        self._note_beginning(key, value, position)

    def _note_beginning(self, key: str, value: object, position: int) -> None:
        """Note the first step or epoch, if it shows that the training began with a trained model."""
        count = number(value)
        if self.begun is None and (count is None or not 0 <= count <= _FIRST_STEPS[key]):
            self.begun = key, text_of(value, 40), self.log.line_at(position)

    def on_run_start(
        self, key: str, value: object, meta: Mapping[str, object], time: float, position: int
    ) -> None:
        """Store the first start of the run."""
        self.run_starts += 1
        if self.run_start is None:
            self.run_start, self.run_start_line = time, self.log.line_at(position)
            self.is_steady = self.run_stop is None

    def on_run_stop(
        self, key: str, value: object, meta: Mapping[str, object], time: float, position: int
    ) -> None:
        """Store the first ``run_stop``, and the status of every ``run_stop`` and ``run_final``."""
        status = meta.get("status")
        if status is None and isinstance(value, dict):  # 0.5: {"success": true}
            status = _stated_outcome(value.get("success"))
        line = self.log.line_at(position)
        outcome = self.last_outcome = _status_text(status)
        if outcome in ("success", ""):
            self.outcomes.add(outcome)
        elif len(self.aborted) < _MOST_ABORTED:
            self.aborted.append((outcome, line))
        if self.run_stop is None and key == "run_stop":
            self.run_stop, self.run_stop_line = time, line
            self.is_steady = False
            self.pace.at_stop = _numbers_of(meta)
            self.statements.duration = text_of(meta.get("duration", ""), 80)
            self.open_at_stop = self._open_evaluations()
            self.latest_at_stop = self.latest

    def _open_evaluations(self) -> int:
        """Return how many evaluations may end after run_stop, because the target was reached before it.

        On TPUs of round 0.6, the training of ssd goes on while it is evaluated.
        """
        targets, evaluations = self.targets.get(self.benchmark, ()), self.pace.evaluations
        if self.format == COMPARED_FORMAT or self.benchmark != "ssd" or not evaluations:
            return 0
        value, pairs = evaluations[-1].value, self.course.pairs["eval"]
        is_reached = value is not None and all(target.reached(value) for target in targets)
        return pairs.starts - pairs.stops if is_reached else 0

    def on_block_stop(
        self, key: str, value: object, meta: Mapping[str, object], time: float, position: int
    ) -> None:
        """Record the samples and steps at the end of the first block, and the highest step of all blocks."""
        self.on_part(key, value, meta, time, position)
        samples, steps = number(meta.get("samples_count")), number(meta.get("step"))
        if self.run_stop is None:
            self.course.mark(key, samples, self.log.line_at, position)
        self.statements.batch_of_block(meta.get("self.gbs"), self.batch_size)
        if samples is None or steps is None or not (0 < samples < inf and 0 < steps < inf):
            return
        if self.first_block is None:
            self.first_block = samples, steps, self.log.line_at(position)
        self.steps = max(self.steps, steps)

    def on_train_loss(
        self, key: str, value: object, meta: Mapping[str, object], time: float, position: int
    ) -> None:
        """Follow the losses that some programs log as events, each with the samples until then."""
        if key not in self.log.tags and value is not None:
            self.log.tag(key, value)
        self._check_loss(key, value, position)
        self.statements.take_rate(meta.get("lr"))
        if self.run_stop is None:
            self.course.mark(key, number(meta.get("samples_count")), self.log.line_at, position)

    def on_other_loss(
        self, key: str, value: object, meta: Mapping[str, object], time: float, position: int
    ) -> None:
        """Store a loss that has another name than ``train_loss``, such as that of an evaluation."""
        self._state(key, value)
        self._check_loss(key, value, position)

    def _check_loss(self, name: str, value: object, position: int) -> None:
        """Find a loss that is infinite or not a number."""
        loss = number(value)
        if loss is not None and not isfinite(loss):
            line, rank = self.place(position)
            self.log.find("nan", f"{name} is {loss}", Verdict.FAIL, line=line, rank=rank)

    def on_part(
        self, key: str, value: object, meta: Mapping[str, object], time: float, position: int
    ) -> None:
        """Follow the parts of a run, which are blocks, evaluations and epochs."""
        if self.run_stop is not None:
            return  # ranks report their last ones late
        kind, starts = _PARTS[key]
        course = self.course
        self.pace.part(key, time)
        if key == "block_start" and not course.pairs[kind].starts and "step" in meta:
            self._note_beginning("step", meta["step"], position)
        if kind == "block":
            curves = self.curves
            counts = tuple([curves[name].count for name in _TRAINED])
            step = number(meta.get("step"))
            (course.block_started if starts else course.block_stopped)(time, counts, step)
            self._compare_block(time, step, starts=starts)
        elif kind == "eval":
            (self.statements.eval_started if starts else self.statements.eval_stopped)(time)
        if starts:
            course.pairs[kind].start(self.log.line_at, position)
        else:
            course.pairs[kind].stop(self.log.line_at, position)

    def _compare_block(self, time: float, step: float | None, *, starts: bool) -> None:
        times = self.curves["train_step_time"]
        if starts:
            self.statements.block_started(time, step, times.count)
        else:
            self.statements.block_stopped(time, step, times.count, times.last)

    def on_eval_accuracy(
        self, key: str, value: object, meta: Mapping[str, object], time: float, position: int
    ) -> None:
        """Store the values of an evaluation by metric, with the progress that it states."""
        progress = self._take_progress(meta, position)
        self.course.evaluations += 1
        epoch = number(meta.get("epoch_num"))
        if isinstance(value, dict) and "epoch" in value:  # 0.5: {"epoch": 59, "value": 0.7}
            epoch, value = number(value.get("epoch")), value.get("value")
        values = _eval_values(value, meta, self.benchmark)
        if not values:
            self._impossible(f"an evaluation is {text_of(value, 40)}: no number", position)
            self.damaged(key, position)
        if value is None:
            self._impossible("an evaluation has no value", position)
        if self.run_stop is None:
            self.pace.part(key, time)
            only = number(next(iter(values.values()))) if len(values) == 1 else None
            self.pace.evaluate(progress, time, only)
        for name, raw in list(values.items())[:20]:
            accuracy = number(raw)
            if accuracy is None:
                # The line is whole, so its value was written like this, and no logger does.
                self._impossible(f"an evaluation is {text_of(raw, 40)}: no number", position)
                self.damaged(key, position)
            else:
                self._take_eval(text_of(name, 40), accuracy, time, position)
        self._epoch_seen(epoch, position)

    def _take_progress(self, meta: Mapping[str, object], position: int) -> dict[str, float]:
        """Return the progress that an evaluation states, by name. Report impossible values."""
        progress: dict[str, float] = {}
        stated = [name for name in PROGRESS_KEYS if name in meta]
        self.placed_evaluations += bool(stated)
        for name in stated:
            amount = number(meta[name])
            broken = name != "epoch_num" and amount is not None and amount % 1 != 0
            if amount is None or not 0 <= amount < inf or broken:
                self._impossible(f"{name} of an evaluation is {text_of(meta[name], 40)}", position)
            else:
                progress[name] = amount
                metric = text_of(meta.get("metric", ""), 40)
                self.course.advance(name, metric, amount, self.log.line_at, position)
        return progress

    def _impossible(self, text: str, position: int) -> None:
        line, rank = self.place(position)
        self.log.find("impossible_value", text, Verdict.UNPROVEN, line=line, rank=rank)

    def _take_eval(self, name: str, accuracy: float, time: float, position: int) -> None:
        """Store the value of one metric, of at most twenty. Record an impossible value."""
        if not isfinite(accuracy):
            line, rank = self.place(position)
            self.log.find("nan", f"eval_accuracy is {accuracy}", Verdict.FAIL, line=line, rank=rank)
        elif accuracy < 0:
            self._impossible(f"an evaluation of {accuracy:g}: no metric of MLPerf is negative", position)
        else:
            self.course.evaluate(name, accuracy, position)
        # Metrics of this block are not in `evals` yet. Both count towards the limit.
        is_counted = name in self.evals or name in self.last_evals
        if is_counted or len(self.evals.keys() | self.last_evals.keys()) < 20:
            self.last_evals[name] = accuracy, position
            curve = self.curves.get(f"eval {name}")
            if curve is None:
                curve = self.curves[f"eval {name}"] = Curve(f"eval_accuracy {name}".strip(), "", "s")
            curve.add(self.at(time), accuracy)

    def _epoch_seen(self, epoch: float | None, position: int) -> None:
        latest = self.last_epoch or self.epochs
        if epoch is not None and isfinite(epoch) and (latest is None or epoch > latest[0]):
            self.last_epoch = epoch, position

    def on_tracked_stats(self, value: object, meta: object, time: float, position: int) -> None:
        """Record the loss, step time and throughput in ``tracked_stats``, by far the most frequent event."""
        # The code of pass_time without recording is inlined here, because four of five events get here.
        after_stop = self.after_stop
        if self.latest - time > self.backwards or (self.run_stop is not None and not after_stop):
            self.pass_time(time, position)
        else:
            if time > self.latest:
                self.latest = time
            if after_stop:
                self.after_stop = after_stop + 1
        if type(value) is dict:
            tracked = self.tracked
            for name in value:  # not items(): most events contain no value of interest
                if name in tracked:
                    self.take_stat(name, tracked[name], value[name], meta, time, position)
                elif name in WATCHED:
                    self.take_watched(name, value[name], time, position)

    def take_watched(self, name: str, raw: object, time: float, position: int) -> None:
        """Record a statistic of :data:`WATCHED`: a time, or a loss that is not a number."""
        if name in _LOSSES:
            self._check_loss(name, raw, position)
        elif self.run_start is not None and self.run_stop is None:
            self.statements.take_time(name, raw, time - self.run_start)

    def take_stat(
        self, name: str, curve: Curve, raw: object, meta: object, time: float, position: int
    ) -> None:
        """Add one statistic to its curve."""
        curve.count += 1
        if self.is_steady and type(meta) is dict:
            self.statements.place(curve.name, meta, self.log.line_at, position)
        value = raw if type(raw) is float and curve.above < raw < curve.below else None
        if value is None:
            value = self.odd_stat(name, curve, raw, position)
            if value is None:
                return
        curve.last, curve.position = value, position
        if curve.skip:
            # This is Curve.add, inlined so that points to skip need no time since run_start.
            curve.skip -= 1
        elif curve.above < value < inf:  # the speed of a step without time is undefined
            start = self.run_start
            curve.keep(self.at(time) if start is None else time - start, value)

    def odd_stat(self, name: str, curve: Curve, raw: object, position: int) -> float | None:
        """Return a statistic outside its curve's limits or of another type, or None if it is no number.

        Record an impossible one.
        """
        stat = number(raw)
        if stat is not None and curve.above < stat < curve.below:
            return stat
        if stat is not None and curve.below <= stat < inf:
            if self.largest_loss is None:
                self.largest_loss = stat, self.log.line_at(position)
            return stat
        line, rank = self.place(position)
        if curve.name == "train_loss" and stat is not None:
            self.log.find("nan", f"{name} is {stat}", Verdict.FAIL, line=line, rank=rank)
        else:
            stat_text = "no number" if stat is None else f"{stat}"
            self.log.find(
                "impossible_value", f"{name} is {stat_text}", Verdict.UNPROVEN, line=line, rank=rank
            )
        return stat

    def block_done(self) -> None:
        """Turn the positions of the last values into lines while the block is still available."""
        for curve in self.tracked.values():
            if curve.position is not None:
                self.stats[curve.name] = (curve.last, self.log.line_at(curve.position))
                curve.position = None
        for name, (value, position) in self.last_evals.items():
            self.evals[name] = (value, *self.place(position))
        self.last_evals.clear()
        self.course.keep_lines(self.log.line_at)
        if self.last_epoch is not None:
            epoch, position = self.last_epoch
            self.epochs, self.last_epoch = (epoch, self.log.line_at(position)), None

    def on_epoch(
        self, key: str, value: object, meta: Mapping[str, object], time: float, position: int
    ) -> None:
        """Record epoch numbers and durations."""
        self.on_part(key, value, meta, time, position)
        epoch = number(meta.get("epoch_num"))
        if key == "epoch_start":
            self._epoch_began = time
            self.course.epochs.start(epoch, self.log.line_at, position)
            if epoch is not None and isfinite(epoch):
                self.course.advance("epoch_num", EPOCHS, epoch, self.log.line_at, position)
            return
        self.course.epochs.stop(is_late=self.run_stop is not None)
        self._epoch_seen(epoch, position)
        if self._epoch_began is not None and len(self.epoch_times) < 100_000:
            self.epoch_times.append(time - self._epoch_began)
            self._epoch_began = None

    def on_seed(
        self, key: str, value: object, meta: Mapping[str, object], time: float, position: int
    ) -> None:
        """Store the first seed as a tag, and the line of each different seed. Ranks may use their own."""
        if value is None:
            return
        self.log.tag("seed", value)
        seed = text_of(value, 40)
        if self.first_seed_time is None:
            self.first_seed_time = time
        if seed not in self.seeds and len(self.seeds) < 100_000:
            self.seeds[seed] = self.log.line_at(position)
            if abs(time - self.first_seed_time) > SEEDS_S and self.late_seed_line is None:
                self.late_seed_line = self.seeds[seed]

    def on_cache_clear(
        self, key: str, value: object, meta: Mapping[str, object], time: float, position: int
    ) -> None:
        """Record a failed cache clear."""
        if value is False:
            self.log.mark("cache_clear_failed", position)

    def on_count(
        self, key: str, value: object, meta: Mapping[str, object], time: float, position: int
    ) -> None:
        """Record a count of :data:`_COUNTS`. The batch size turns step times into samples per second."""
        self.log.tag(key, value)
        # A submitter of 1.1 logged its numbers of samples as lists with one element.
        count = number(value[0] if isinstance(value, list) and len(value) == 1 else value)
        if count is None or not 0 < count < inf or count % 1 != 0:
            self._impossible(f"{key} is {text_of(value, 40)}: no positive whole number", position)
        elif key in _DATA and len(self.amounts) < _MOST_AMOUNTS:
            self.amounts.setdefault((key, count), self.log.line_at(position))
        elif key == "global_batch_size" and self.batch_size is None:
            self.batch_size = count

    def on_measurement(
        self, key: str, value: object, meta: Mapping[str, object], time: float, position: int
    ) -> None:
        """Record a measurement that a Rackproof workload states itself."""
        line, rank = self.place(position)
        if len(self.extra) >= 5000:
            self.log.find("too_many_measurements", "more measurements than are kept", line=line)
            return
        try:
            measurement = self._stated_measurement(value, line, rank)
        except (KeyError, TypeError, ValueError, AttributeError):
            self.damaged(key, position)
            return
        if not measurement.finite:
            message = f"measurement {measurement.name} is {measurement.value}"
            self.log.find("nan", message, Verdict.FAIL, line=line, rank=rank)
        elif self.benchmark.startswith(PROBE) and (problem := probe_problem(measurement)):
            self.log.find("impossible_value", problem, Verdict.UNPROVEN, line=line, rank=rank)
        self.extra.extend((measurement, *_utilisation(measurement)))

    def _stated_measurement(self, value: object, line: int, rank: int | None) -> Measurement:
        """Return the measurement that an event's value states.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: The value is not of the shape that workloads
                write.
        """
        if not isinstance(value, dict):
            raise TypeError("no mapping")
        figure = number(value.get("value"))
        if figure is None:
            raise TypeError("no number")
        # JSON can express a non-finite number only as text. Any other text is a mistake.
        if isinstance(value["value"], str) and isfinite(figure):
            raise TypeError("a number as text")
        labels, spread = value.get("labels") or {}, value.get("spread")
        return Measurement(
            name=text_of(value["name"], 200),
            value=figure,
            unit=text_of(value["unit"], 40),
            direction=Direction(value["direction"]) if value.get("direction") else None,
            labels={text_of(k, 100): text_of(v) for k, v in list(labels.items())[:50]},
            spread=None if spread is None else Spread.model_validate(spread),
            source=self.log.source(line, rank),
        )

    def on_facts(
        self, key: str, value: object, meta: Mapping[str, object], time: float, position: int
    ) -> None:
        """Store as tags what a workload reports about its machine: software versions, and UUIDs of GPUs."""
        if isinstance(value, dict):
            for name, item in list(value.items())[:100]:
                # The UUIDs of eight GPUs take 327 characters. A shorter limit would cut the last ones
                # off.
                limit = MOST_UUID_CHARACTERS if name == "gpus" else MAX_EXCERPT
                self.log.tag(f"software.{text_of(name)}", item, limit=limit)

    def on_dataset(
        self, key: str, value: object, meta: Mapping[str, object], time: float, position: int
    ) -> None:
        """Record the data set that the workload read."""
        if isinstance(value, dict):
            for name, item in list(value.items())[:100]:
                self.log.tag(f"dataset.{text_of(name)}", item)

    def on_target(
        self, key: str, value: object, meta: Mapping[str, object], time: float, position: int
    ) -> None:
        """Record a quality target in the log.

        ``{"value": 0.99, "at_most": false}`` becomes the target of a benchmark without one in MLPerf's rules.
        A plain number (in NVIDIA's logs) does not state which side is good. It is only compared with the
        target in the rules, and is the target itself for :data:`OWN_TARGET_AT_LEAST`.
        """
        direction_known = isinstance(value, dict) and isinstance(value.get("at_most"), bool)
        target = number(value.get("value") if isinstance(value, dict) else value)
        if target is not None and isfinite(target):
            self.log.tag("target", target)
            if self.stated_target is None:
                self.stated_target = target, self.log.line_at(position)
            if direction_known and isinstance(value, dict):
                self._note_own_target(QualityTarget(target, at_most=value["at_most"]), position)

    def _note_own_target(self, target: QualityTarget, position: int) -> None:
        """Store the log's own target. It is unknown which one counts if the log states another one later."""
        if self.own_target is None:
            self.own_target = target
        elif self.own_target != target:
            message = f"the log's own target is {target}, and a line above states {self.own_target}"
            self.log.find("target_contradicts", message, Verdict.UNPROVEN, line=self.log.line_at(position))

    def on_progress(
        self, key: str, value: object, meta: Mapping[str, object], time: float, position: int
    ) -> None:
        """Ignore progress, which only the live display shows."""

    def on_gpu_sample(
        self, key: str, value: object, meta: Mapping[str, object], time: float, position: int
    ) -> None:
        """Record samples of GPUs and links during the run.

        Samples of the start-up are left out, because they would distort the averages.
        """
        if self.run_start is None or not isinstance(value, dict):
            return
        # A load that was interrupted and continued states its own seconds, which include the interruptions.
        stated_s = number(value.get("at_s"))
        at_s = stated_s if stated_s is not None and isfinite(stated_s) and stated_s >= 0 else self.at(time)
        for kind, label, names in _SAMPLE_KINDS:
            samples = value.get(kind)
            for sample in samples[:64] if isinstance(samples, list) else ():
                if isinstance(sample, dict):
                    self._take_sample(sample, label, names, at_s)

    def _take_sample(
        self,
        sample: Mapping[str, object],
        label: str,
        names: Mapping[str, tuple[str, str]],
        at_s: float,
    ) -> None:
        """Add a sample of one GPU or link to its curves."""
        device = text_of(sample.get(label, ""), 40)
        for name, (curve_name, unit) in names.items():
            figure = number(sample.get(name))
            curve_of_device = f"{curve_name} {device}"
            # A hostile log could name a new device in every sample.
            if figure is None or (curve_of_device not in self.curves and len(self.curves) > _MOST_SAMPLED):
                continue
            if curve_of_device not in self.curves:
                self.curves[curve_of_device] = Curve(curve_name, unit, "s")
                self.curves[curve_of_device].labels = {label: device}
            self.curves[curve_of_device].add(at_s, figure)

    def on_gpu_state(
        self, key: str, value: object, meta: Mapping[str, object], time: float, position: int
    ) -> None:
        """Find other uses of the run's GPUs. A state with all evidence becomes a tag."""
        note_gpu_state(self.log, value, *self.place(position))

    def on_unproven(
        self, key: str, value: object, meta: Mapping[str, object], time: float, position: int
    ) -> None:
        """Record a part that a Rackproof workload reports as not proven, with the reason."""
        line, rank = self.place(position)
        stated = value if isinstance(value, dict) else {}
        subject, why = (
            text_of(stated.get("what") or "something", 200),
            text_of(stated.get("why") or "no reason"),
        )
        self.log.find("stated_unproven", f"{subject}: {why}", Verdict.UNPROVEN, line=line, rank=rank)

    # -- the end ----------------------------------------------------------------------------------

    def finish(self) -> ParsedLog:
        """Judge the recorded events and return the parsed log."""
        log = self.log
        measurements: list[Measurement] = []
        proven = self.judge_end(measurements)
        self._forgive_helpers()
        log.marks_as_findings(self.run_stop_line if proven else None)
        self.judge_quality(measurements)
        self.remark()
        self.measure_speed(measurements)
        self._find_missing_spread()
        stated = {measurement.name for measurement in self.extra}
        measurements = [
            measurement for measurement in measurements if measurement.name not in stated
        ] + self.extra
        curves = [curve for name, curve in self.curves.items() if name != "train_step_time"]
        parsed = log.parsed(self.format, Verdict.PASS if proven else Verdict.UNPROVEN, measurements, curves)
        if self.first_time is None:
            return parsed
        earliest = self.first_time if self.run_start is None else min(self.first_time, self.run_start)
        return parsed.model_copy(update={"first_event_s": earliest, "last_event_s": self.latest})

    def _find_missing_spread(self) -> None:
        """Find a measurement without the spread that others of its name state."""
        spread = {measurement.name for measurement in self.extra if measurement.spread is not None}
        for measurement in self.extra:
            if measurement.spread is None and measurement.name in spread:
                message = (
                    f"{measurement.name} states no spread, and another {measurement.name} of the log does"
                )
                self.log.find("spread_missing", message, Verdict.UNPROVEN, line=measurement.source.line)

    def _forgive_helpers(self) -> None:
        """Turn srun's messages about a task that ended before the program logged anything into remarks.

        Such a task was not a rank of the training, but a helper of the run script, for example one that
        describes the system.
        """
        marks = self.log.marks.get(TASK_FAILED)
        if marks is None or not self.init_start_line or not isfinite(self.log.first_event):
            return
        kept_early = min(marks.early, MAX_FINDINGS_PER_CODE)
        for mark in marks.kept[:kept_early]:
            message = "a task ended with an error before the training began: it was not a rank of it"
            self.log.find(TASK_FAILED, message, line=mark.line, rank=mark.rank, excerpt=mark.excerpt)
        del marks.kept[:kept_early]
        marks.count -= marks.early
        if not marks.count:
            del self.log.marks[TASK_FAILED]

    def judge_end(self, measurements: list[Measurement]) -> bool:
        """Return whether the log proves a run that ended well. If so, add its duration and start-up time."""
        aborted = self._find_aborted()
        succeeded = self._stopped_well()
        self._find_missing_ends(has_status=succeeded or aborted)
        if self.run_start is None or self.run_stop is None:
            return False
        seconds = self.run_stop - self.run_start
        if seconds <= 0:
            code, moment = "no_time", "at the moment of"
            if seconds < 0:
                code, moment = "negative_time", f"{-seconds:.3f} s before"
            message = f"run_stop is {moment} run_start: no run took place between them"
            self.log.find(code, message, Verdict.UNPROVEN, line=self.run_stop_line)
            return False
        # A single rank that aborted spoils the run, even if all others report success.
        if not succeeded or aborted:
            return False
        measurements.append(self.measure("time_to_train", seconds / 60, "min", LOWER, self.run_stop_line))
        self.measure_startup(measurements)
        self.check_result_line(seconds)
        return True

    def measure_startup(self, measurements: list[Measurement]) -> None:
        """Add the time from init_start to run_start. If the clock ran backwards, it is unknown."""
        start, run = self.init_start, self.run_start
        if start is not None and run is not None and start <= run:
            measurements.append(self.measure("startup_time", run - start, "s", LOWER, self.run_start_line))

    def _find_aborted(self) -> bool:
        """Record the ranks that report a status other than success. Return whether there are any."""
        for status, line in self.aborted:
            self.log.find("aborted", f"run_stop has the status {status!r}", Verdict.FAIL, line=line)
        return bool(self.aborted)

    def _stopped_well(self) -> bool:
        """Return whether any rank reports success."""
        return "success" in self.outcomes

    def _find_missing_ends(self, *, has_status: bool) -> None:
        """Record a missing run_start, run_stop or status."""
        log = self.log
        if self.run_start is None:
            log.find("no_run_start", "no readable run_start", Verdict.UNPROVEN, line=self._lost("run_start"))
        if self.run_stop is None:
            log.find(
                "no_run_stop",
                "no readable run_stop: the run did not end, or the log is cut off",
                Verdict.UNPROVEN,
                line=self._lost("run_stop") or max(1, log.lines),
            )
        elif not has_status:
            log.find(
                "no_status",
                "run_stop does not state how the run ended",
                Verdict.UNPROVEN,
                line=self.run_stop_line,
            )

    def _lost(self, key: str) -> int | None:
        """Return the line of the first damaged event with a key, or None."""
        first_and_last = self.damaged_important.get(key)
        return None if first_and_last is None else first_and_last[0]

    def check_result_line(self, seconds: float) -> None:
        """Compare the time with the wall time that the run script prints for the training."""
        if not self.log.results:
            return
        line, wall, _name = self.log.results[0]
        # The script's clock counts whole seconds and includes start-up and teardown.
        if wall < seconds - 2:
            self.log.find(
                "result_mismatch",
                f"the RESULT line has {wall:.0f} s, run_start to run_stop takes {seconds:.0f} s",
                Verdict.UNPROVEN,
                line=line,
            )

    def judge_quality(self, measurements: list[Measurement]) -> None:
        """Add the last evaluation of each metric, and compare it with the benchmark's target."""
        for name, (value, line, rank) in self.evals.items():
            labels = {"metric": name} if name else {}
            measurements.append(self.measure("eval_accuracy", value, "", None, line, rank, labels))
        # A run that did not end successfully cannot pass, so its last evaluation does not matter.
        stopped = self._stopped_well()
        lost = self._lost_evaluation()
        if lost is not None and stopped:
            self.log.find(
                "damaged_evaluation", "the last evaluation cannot be read", Verdict.UNPROVEN, line=lost
            )
        unread = self._lost("measurement")
        if unread is not None:
            self.log.find(
                "damaged_measurement", "a measurement cannot be read", Verdict.UNPROVEN, line=unread
            )
        targets = self._valid_targets() if stopped else ()
        self._note_judged_by(targets)
        self._find_too_good(targets)
        for target in targets:
            self._judge_target(target, last_is_lost=lost is not None)

    def _note_judged_by(self, targets: tuple[QualityTarget, ...]) -> None:
        """Store the basis of the judgement as a tag, and remove a tag of this name that the log stated."""
        tags = self.log.tags
        tags.pop(JUDGED_BY, None)
        if len(tags) >= MAX_TAGS:
            tags.popitem()
        if targets:
            tags[JUDGED_BY] = f"target {', '.join(map(str, targets))}"
        elif self.benchmark in EVALUATED_OFFLINE | _FRACTIONS:
            tags[JUDGED_BY] = "evaluation"
        elif self.extra:
            tags[JUDGED_BY] = "measurements"

    def _find_too_good(self, targets: tuple[QualityTarget, ...]) -> None:
        """Record evaluations outside the range of the metric or of any run, which prove no quality."""
        least, highest = 0.0, min((target.highest for target in targets), default=inf)
        if not targets and self.benchmark in _FRACTIONS:
            highest = 1.0
        known_targets = self.targets.get(self.benchmark, ()) and targets
        if known_targets:
            least = min(target.believable[0] for target in known_targets)
            highest = max(target.believable[1] for target in known_targets)
        for (name, _highest), extreme in self.course.extremes.items():
            if not least <= extreme.value <= highest:
                text = f"an evaluation of {extreme.value:g}{' ' + name if name else ''}"
                message = f"{text}: it can be {least:g} to {highest:g}"
                self.log.find("impossible_value", message, Verdict.UNPROVEN, line=extreme.line)

    def _lost_evaluation(self) -> int | None:
        """Return the line of the last unreadable evaluation, unless a readable one comes after it."""
        last_line = max((line for _value, line, _rank in self.evals.values()), default=0)
        _first, lost = self.damaged_important.get("eval_accuracy", (0, 0))
        # One metric of an evaluation may be readable, and another one in the same line damaged.
        return lost if lost and lost >= last_line else None

    def _valid_targets(self) -> tuple[QualityTarget, ...]:
        """Return the benchmark's targets.

        The log's own target is used only if MLPerf defines no target or requires the log's. For a log with
        several benchmarks, which :meth:`_remark_on_several_runs` leaves unproven, there is none.
        """
        benchmark, tags = self.benchmark, self.log.tags
        if len(self.statements.benchmarks) > 1:
            return ()  # the last evaluation may be of another run than the first benchmark
        if benchmark in OWN_TARGET_AT_LEAST:
            stated = number(tags.get("target"))
            if stated is None:
                self.log.find("no_target", "the log states no target to reach", Verdict.UNPROVEN)
                return ()
            return (QualityTarget(stated),)
        if benchmark == "ssd" and self.targets is TARGETS:
            images = number(tags.get("train_samples"))
            return TARGETS["ssd"] if images is None or images in COCO_IMAGES else _SSD_SINCE_2_0
        own_targets = (self.own_target,) if self.own_target is not None else ()
        return self.targets.get(benchmark, own_targets)

    def _judge_target(self, target: QualityTarget, *, last_is_lost: bool) -> None:
        """Fail the run if the last evaluation missed the target. Without an evaluation, it is unproven."""
        evaluation = self.evals.get(target.metric)
        if evaluation is None:
            message = f"no evaluation to compare with the target ({target})"
            self.log.find("no_evaluation", message, Verdict.UNPROVEN)
            return
        value, line, _rank = evaluation
        # If the last evaluation is lost, an earlier one that missed the target does not prove a failure.
        if not target.reached(value) and not last_is_lost:
            message = f"the last evaluation is {value:g}, the target is {target}"
            self.log.find("target_not_reached", message, Verdict.FAIL, line=line)

    def remark(self) -> None:
        """Record contradictions and gaps, which leave the log unproven, and remarks without a verdict."""
        self._remark_on_course()
        self._remark_on_missing_events()
        self._remark_on_checkpoint()
        self._remark_on_loss()
        self._remark_on_clocks()
        self._remark_on_year()
        self._remark_on_events_after_stop()
        self._remark_on_several_runs()
        self._remark_on_batch_size()
        self._remark_on_batches_of_evaluations()
        self._remark_on_batches()
        self._remark_on_rates()
        self._remark_on_data()
        self._remark_on_hyperparameters()
        self._remark_on_stated_target()
        self._remark_on_step_times()
        if self.log.ends_in_line and self.log.size:
            self.log.find("no_final_newline", "the log ends in mid-line", line=self.log.lines + 1)

    def _remark_on_course(self) -> None:
        """Record missing parts of the run's course.

        A run without an end is not checked, because it lacks its rest anyway. Only MLPerf's benchmarks are
        checked, because other trainings may be evaluated in any way.
        """
        is_of_mlperf = self.benchmark in self.targets or self.benchmark in EVALUATED_OFFLINE
        if is_of_mlperf and (self.run_stop is not None or self.outcomes or self.aborted):
            platform, stopped = self.log.tags.get("submission_platform", ""), self.run_stop is not None
            for message, line in self.course.missing(self.benchmark, platform, stopped=stopped):
                self.log.find("course_incomplete", message, Verdict.UNPROVEN, line=line)

    def _remark_on_missing_events(self) -> None:
        """Find events that are in all published logs of the benchmark in the table, and not in this log.

        The check is skipped for a run that did not end well, which lacks parts anyway.
        """
        day = _day_of(self.latest)
        if day is None or not self._stopped_well():
            return
        # Use the time of the last event, so that an earlier clock error hides nothing.
        course = self.course
        needed = events_of(self.format, self.benchmark, day, course.logged)
        if WHOLE_EPOCHS in needed:
            for message, line in course.epochs.missing(self.benchmark, course.evaluated_epoch):
                self.log.find("course_incomplete", message, Verdict.UNPROVEN, line=line)
        missing = sorted(needed - course.logged - {WHOLE_EPOCHS} - frozenset(self._held_otherwise()))
        if missing:
            message = (
                f"the log has no {', '.join(missing)}, which the published logs of {self.benchmark} have "
                "that ended well: lines are missing"
            )
            self.log.find("course_incomplete", message, Verdict.UNPROVEN)

    def _held_otherwise(self) -> Iterator[str]:
        """Yield the entries of the table of published events that the log has in another form than events."""
        rates, times = self.curves["samples_per_second"], self.curves["train_step_time"]
        if rates.y or (times.y and self.batch_size):
            yield THROUGHPUT
        if self.course.evaluations and self.placed_evaluations == self.course.evaluations:
            yield PROGRESS
        if self.course.evaluations > 1:
            yield SECOND_EVALUATION

    def _remark_on_checkpoint(self) -> None:
        """Find a training that started from a trained model against its benchmark's rules."""
        if (
            self.begun is not None
            and self.benchmark in self.targets
            and self.benchmark not in _FROM_CHECKPOINT
        ):
            key, value, line = self.begun
            message = (
                f"{key} is {value}: the training continued an earlier one, whose time is not counted; "
                f"{self.benchmark} begins at {_FIRST_STEPS[key]:g}"
            )
            self.log.find("from_checkpoint", message, Verdict.UNPROVEN, line=line)

    def _remark_on_loss(self) -> None:
        """Record a loss that is impossible for an MLPerf benchmark, and losses that are all equal.

        Any loss is possible in other trainings.
        """
        if self.largest_loss is not None and self.benchmark in self.targets:
            loss, line = self.largest_loss
            message = f"a training loss of {loss:g}: {self.benchmark} has none above {MOST_LOSS:g}"
            self.log.find("impossible_value", message, Verdict.UNPROVEN, line=line)
        losses = self.curves["train_loss"].y
        if self.benchmark in self.targets and len(losses) >= FEWEST_LOSSES and len(set(losses)) == 1:
            message = f"each of {len(losses)} training losses is {losses[0]:g}: no training does that"
            self.log.find("impossible_value", message, Verdict.UNPROVEN, line=self.stats["train_loss"][1])

    def _remark_on_clocks(self) -> None:
        """Find times that run backwards. If the run's own events do, its duration is unproven."""
        behind, key, line = self.course_backwards or (0.0, "", 0)
        offline = self.log.tags.get("submission_benchmark") in EVALUATED_OFFLINE
        if behind > CLOCK_SLACK_S and not offline:
            # After two runs in a file, an adjusted clock or a moved run_stop, no duration can be trusted.
            self.log.find(
                "events_out_of_order",
                f"{key} is {behind:.3f} s earlier than an event before it: the duration is unknown",
                Verdict.UNPROVEN,
                line=line,
            )
        elif self.backwards > CLOCK_SLACK_S:
            self.log.find(
                "time_backwards",
                f"time runs backwards by up to {self.backwards:.3f} s",
                line=self.backwards_line,
            )

    def _remark_on_year(self) -> None:
        """Find a run_start in another unit than milliseconds (unproven), or by a wrong clock (a remark)."""
        if self.run_start is None:
            return
        years, now = self.run_start / SECONDS_OF_A_YEAR, datetime.now(UTC).year + 1
        if FIRST_YEAR <= 1970 + years < now:
            return
        for factor, unit in _OTHER_UNITS.items():
            if FIRST_YEAR <= 1970 + factor * years < now:
                message = f"the time of run_start is in {unit}, not in milliseconds: no duration is known"
                self.log.find("wrong_year", message, Verdict.UNPROVEN, line=self.run_start_line)
                return
        message = f"run_start is in {1970 + years:.0f}: that clock was wrong; durations count, moments do not"
        self.log.find("wrong_year", message, line=self.run_start_line)

    def _remark_on_events_after_stop(self) -> None:
        """Find events after run_stop. They are unproven if they belong to another run or are late."""
        if self.run_stop is None:
            return
        offline = self.log.tags.get("submission_benchmark") in EVALUATED_OFFLINE
        if self.unexpected_after_stop is not None and not offline:
            key, line = self.unexpected_after_stop
            message = f"{key} after run_stop: the log goes on with another run, or was put together"
            self.log.find("events_after_run_stop", message, Verdict.UNPROVEN, line=line)
        elif self.after_stop:
            # An earlier event may state a later time. In Intel's dlrm 2.1 logs, one event uses another
            # clock.
            late = self.latest > max(self.latest_at_stop, self.run_stop + AFTER_STOP_S)
            is_expected = offline or self.ended_after_stop
            self.log.find(
                "events_after_run_stop",
                f"{self.after_stop} events after run_stop",
                Verdict.UNPROVEN if late and not is_expected else None,
                line=self.after_stop_line,
            )

    def _remark_on_batches_of_evaluations(self) -> None:
        """Find an evaluation after a part of a batch."""
        amounts = [evaluation.amount for evaluation in self.pace.evaluations] if self.batch_size else []
        part = next((amount for amount in amounts if amount % (self.batch_size or 1)), None)
        if part is not None and self.pace.kind == "samples_count" and self.benchmark in _IN_WHOLE_BATCHES:
            message = (
                f"an evaluation after {part:g} samples, no multiple of the batch size {self.batch_size:g}"
            )
            self.log.find("batch_size_contradicts", message, Verdict.UNPROVEN)

    def _remark_on_batch_size(self) -> None:
        """Find progress (samples and steps) that contradicts the stated global batch size."""
        if self.first_block is None or not self.batch_size:
            return
        samples, steps, line = self.first_block
        if not isclose(samples / steps, self.batch_size, rel_tol=0.02):
            batch = f"a global_batch_size of {self.batch_size:g}"
            message = f"{samples:g} samples in {steps:g} steps do not fit {batch}"
            self.log.find("batch_size_contradicts", message, Verdict.UNPROVEN, line=line)

    def _remark_on_rates(self) -> None:
        """Find a batch size that does not fit the stated throughput and the stated time of a step."""
        rates, times = self.curves["samples_per_second"].y, self.curves["train_step_time"].y
        if not (rates and times and self.batch_size and self._is_compared()):
            return
        if self.benchmark in STATES_PROCESS:
            return
        # The first values are from the warm-up.
        stepped = statistics.median(rates[1:] or rates) * statistics.median(times[1:] or times)
        least, most = SHARES_OF_BATCH
        if not least <= stepped / self.batch_size <= most:
            message = (
                f"{stepped:.4g} samples in a step, by the stated throughput and time of a step, do not fit a "
                f"global_batch_size of {self.batch_size:g}"
            )
            self.log.find("batch_size_contradicts", message, Verdict.UNPROVEN)

    def _remark_on_batches(self) -> None:
        """Find a number of batches per epoch that does not fit the batch size and the data set."""
        images, batches = images_of_epoch(self.benchmark), number(self.log.tags.get("train_samples"))
        if (
            not (images and batches and self.batch_size)
            or batches >= FEWEST_IMAGES
            or not self._is_compared()
        ):
            return
        if not isclose(batches * self.batch_size, images, rel_tol=BATCHES_SLACK):
            stated = f"{batches:g} batches of {self.batch_size:g}"
            message = f"{stated} in an epoch, and {self.benchmark} has {images} images"
            self.log.find("batch_size_contradicts", message, Verdict.UNPROVEN)

    def _remark_on_data(self) -> None:
        """Find numbers of samples that do not match the data set. The open division may use other data."""
        if self.log.tags.get("submission_division") == "open":
            return
        for (key, amount), line in self.amounts.items():
            least, most = _DATA[key].get(self.benchmark, (0, inf))
            if not least <= amount <= most:
                expected = f"{least:g}" if least == most else f"{least:g} to {most:g}"
                message = f"{key} is {amount:g}: {self.benchmark} has {expected}"
                self.log.find("samples_contradict", message, Verdict.UNPROVEN, line=line)

    def _remark_on_hyperparameters(self) -> None:
        """Find hyperparameters that no run of the closed division has, or that its steps contradict."""
        is_closed = self.log.tags.get("submission_division") != "open"
        if is_closed and self._is_compared() and self._stopped_well():
            for message in self.statements.hyperparameters(self.benchmark, self.log.tags):
                self.log.find("hyperparameters_contradict", message, Verdict.UNPROVEN)

    def _remark_on_stated_target(self) -> None:
        """Find a stated target that is easier than the benchmark's, and a log that lacks its target.

        A run that reaches an easier target does not meet the rules.
        """
        targets = self.targets.get(self.benchmark, ())
        if self.stated_target is None and targets and self.first_block is not None:
            # NVIDIA's code since 5.1 logs steps in blocks. All 827 published logs with such blocks state
            # a target.
            message = "the log does not state its target, as the code that wrote it does: lines are missing"
            self.log.find("no_target", message, Verdict.UNPROVEN)
        if self.stated_target is None or len(targets) != 1:
            return
        stated, line = self.stated_target
        if not targets[0].reached(stated):
            message = f"the log's own target is {stated:g}: {self.benchmark} has to reach {targets[0]}"
            self.log.find("target_contradicts", message, Verdict.UNPROVEN, line=line)

    def _remark_on_step_times(self) -> None:
        """Find steps that take longer than the whole run, by the stated time of a step."""
        times = self.curves["train_step_time"].y
        if times and self.run_start is not None and self.run_stop is not None:
            needed, had = self.steps * statistics.median(times), self.run_stop - self.run_start
            if needed - CLOCK_S > STEPS_OF_RUN * had > 0:
                message = f"{self.steps:g} steps take {needed:.3f} s, and the whole run took {had:.3f} s"
                self.log.find("steps_contradict", message, Verdict.UNPROVEN, line=self.run_stop_line)

    def _remark_on_several_runs(self) -> None:
        """Find several seeds, benchmarks or starts of a run in one log."""
        if len(self.seeds) > 1:
            self.log.find(
                "seeds_differ",
                f"{len(self.seeds)} different seeds (one per rank, or several runs)",
                None if self.late_seed_line is None else Verdict.UNPROVEN,
                line=self.late_seed_line or list(self.seeds.values())[1],
            )
        if len(self.statements.benchmarks) > 1:
            names = ", ".join([*self.statements.benchmarks][:4])
            message = f"runs of several benchmarks ({names}): judge each run's log by itself"
            self.log.find("several_runs", message, Verdict.UNPROVEN, line=self.run_start_line)
        if self.run_starts > 1:
            message = f"{self.run_starts} run_start events: it is not known which run the numbers belong to"
            self.log.find("several_runs", message, Verdict.UNPROVEN, line=self.run_start_line)

    def measure_speed(self, measurements: list[Measurement]) -> None:
        """Add throughput, epochs, last loss and time of an epoch, and compare speeds and times."""
        self._measure_throughput(measurements)
        self._compare_with_course(measurements)
        self._compare_with_gpus(measurements)
        self._compare_times(measurements)
        if self.epochs is not None:
            measurements.append(self.measure("epochs", self.epochs[0], "epochs", LOWER, self.epochs[1]))
        if "train_loss" in self.stats:
            loss, line = self.stats["train_loss"]
            measurements.append(self.measure("train_loss", loss, "", LOWER, line))
        # Clocks of ranks differ, so an epoch may seem to end before its start.
        durations = [seconds for seconds in self.epoch_times if seconds > 0]
        if durations:
            name, value = "seconds_per_epoch", statistics.median(durations)
            measurements.append(self.measure(name, value, "s", LOWER, None))

    def _compare_with_course(self, measurements: list[Measurement]) -> None:
        """Find a throughput that contradicts the progress that the evaluations state."""
        rate, samples = _speed_of(measurements), self.course.samples
        has_all_blocks = self.benchmark in _BLOCKS_ARE_TRAINING and not self.course.pairs["block"].broken
        if not has_all_blocks or not rate or not samples or self.course.trained_s <= 0:
            return
        share = samples / self.course.trained_s / rate
        least, most = SHARES_OF_RATE
        is_short = abs(samples / rate - self.course.trained_s) < NOISE_S
        if not least <= share <= most and not is_short:
            message = (
                f"{samples:g} samples in {self.course.trained_s:.0f} s of training are {share:.3g} times the "
                f"throughput of {rate:.4g} samples/s that the log states"
            )
            self.log.find("steps_contradict", message, Verdict.UNPROVEN)

    def _compare_with_gpus(self, measurements: list[Measurement]) -> None:
        """Find a speed that the GPUs that the log states cannot reach, and two different models of them."""
        if problem := other_model(self.log.tags.get("submission_platform", ""), self.log.printed):
            self.log.find("system_contradicts", problem, Verdict.UNPROVEN)
        gpus = self._gpus()
        had, samples = (self.run_stop or 0.0) - (self.run_start or inf), self._samples()
        trained = samples / had if had > 0 and samples else None
        speeds = (("trained", trained), ("states", _speed_of(measurements)))
        for message in impossible_speeds(self._trained_benchmark(), gpus, speeds):
            self.log.find(
                "implausible_speed", f"the log {message}", Verdict.UNPROVEN, line=self.run_stop_line or None
            )

    def _gpus(self) -> tuple[str, int] | None:
        """Return the model and the largest possible number of the GPUs that the log states, or None."""
        platform = self.log.tags.get("submission_platform", "")
        return gpus_of_log(platform, self.log.printed, self.log.stated_nodes)

    def _is_compared(self) -> bool:
        """Return whether the bounds of published logs apply to this log's times."""
        day = _day_of(self.latest)
        is_of_mlperf = self.benchmark in self.targets or self.benchmark in EVALUATED_OFFLINE
        return self.format == COMPARED_FORMAT and is_of_mlperf and day is not None and day >= SINCE

    def _samples(self) -> float | None:
        """Return the number of samples trained until the last evaluation, or None if it is unknown.

        For a benchmark of :data:`EVALUATED_OFFLINE`, return the samples until run_stop if the log has them.
        """
        amount, steps = self.pace.amount, self.pace.at_stop.get("step_num")
        if self.benchmark in EVALUATED_OFFLINE and steps and self.batch_size:
            return steps * self.batch_size  # run_stop is at the checkpoint that reached the target
        if amount is None:
            return None
        train_samples = number(self.log.tags.get("train_samples"))
        return samples_trained(self._trained_benchmark(), self.pace.kind, amount, train_samples)

    def _trained_benchmark(self) -> str:
        """Return the benchmark's name in the tables of speeds, which depends on the data set."""
        train_samples = number(self.log.tags.get("train_samples"))
        return trained_benchmark(self.benchmark, train_samples, before_2_0=self.format != COMPARED_FORMAT)

    def _compare_times(self, measurements: list[Measurement]) -> None:
        """Find times that contradict the course of the run or the speed that the log states."""
        start, stop = self.run_start, self.run_stop
        if start is None or stop is None or stop <= start or not self._is_compared():
            return
        gpus = self._gpus()
        stated, processes = _speed_of(measurements), gpus[1] if gpus else None
        run = RunTimes(self.benchmark, start, stop, self._samples(), stated, processes, self._processes())
        for code, messages in (
            ("training_before_run_start", self.pace.early_start(start, stop)),
            ("events_out_of_order", self.pace.without_duration()),
            ("implausible_speed", self.pace.too_fast(run)),
            ("steps_contradict", beside_stated(run)),
            ("steps_contradict", self.statements.times(stop - start)),
            ("course_incomplete", self.pace.missing()),
            ("course_incomplete", self._went_on()),
            ("impossible_value", self._odd_course()),
            ("events_out_of_order", self.pace.instant_evaluations(self.benchmark)),
        ):
            for message in messages:
                self.log.find(code, message, Verdict.UNPROVEN, line=self.run_stop_line)
        for message, line in self.statements.other_steps():
            self.log.find("course_incomplete", message, Verdict.UNPROVEN, line=line)
        self._compare_batches(gpus[1] if gpus else None)

    def _compare_batches(self, gpus: int | None) -> None:
        """Find a batch size that contradicts other numbers of the log."""
        epochs = [evaluation.amount for evaluation in self.pace.evaluations if self.pace.kind == "epoch_num"]
        if not self.batch_size:
            return
        for message in self.statements.batches(self.benchmark, self.batch_size, self.log.tags, epochs, gpus):
            self.log.find("batch_size_contradicts", message, Verdict.UNPROVEN)

    def _processes(self) -> float | None:
        """Return the number of processes by the batch sizes of the run and of one process, or None."""
        local = local_batch(self.log.tags)
        return self.batch_size / local if local and self.batch_size else None

    def _odd_course(self) -> Iterator[str]:
        """Yield signs that this is no training: too few samples until the target, or uneven evaluations."""
        targets = self.targets.get(self.benchmark, ())
        if self._stopped_well():
            yield from too_few_samples(self._trained_benchmark(), self.batch_size or 0.0, self._samples())
        if len(targets) == 1:
            yield from self.pace.impossible_course(self.benchmark, at_most=targets[0].at_most)

    def _went_on(self) -> Iterator[str]:
        """Yield a message if the training went on after it reached the target."""
        targets = self.targets.get(self.benchmark, ())
        if len(targets) != 1:
            return
        reached = [
            evaluation.value is not None and targets[0].reached(evaluation.value)
            for evaluation in self.pace.evaluations
        ]
        amount = self.pace.reached_before(self.benchmark, reached)
        if amount is not None:
            yield (
                f"the evaluation at {self.pace.kind} {amount:g} reached the target ({targets[0]}), and the "
                "training continued: this is not the time to the target"
            )

    def _measure_throughput(self, measurements: list[Measurement]) -> None:
        """Add samples per second, from the log or else from the time of a step."""
        rates, steps = self.curves["samples_per_second"], self.curves["train_step_time"]
        name, unit = "samples_per_second", "samples/s"
        if rates.y:
            # The first interval includes the warm-up. Pauses for evaluations do not move the median.
            value = statistics.median(rates.y[1:] or rates.y)
            measurements.append(self.measure(name, value, unit, HIGHER, self.stats[name][1]))
        elif steps.y and self.batch_size:
            value = self.batch_size / statistics.median(steps.y)
            measurements.append(self.measure(name, value, unit, HIGHER, self.stats["train_step_time"][1]))
            rates.extend(steps.x, [self.batch_size / y for y in steps.y])
