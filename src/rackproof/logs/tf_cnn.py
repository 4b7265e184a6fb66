"""Parse the output of tf_cnn_benchmarks: a heading with facts, a table of steps, and a total.

    Step    Img/sec total_loss
    100     images/sec: 326.7 +/- 0.1 (jitter = 0.7)        7.839 1593278768
    total images/sec: 326.58

The last column may be followed by a Unix time. TensorFlow's memory allocator writes that it ran out of memory
even if it only retries, so such text together with a good total is a remark. Slurm, the kernel and other
programs do not retry, so their texts count as in every log.

Each step states its worker's mean speed so far. The total must match the last step's speed and, with one
worker, the speed by the times of the steps. Otherwise this run did not measure the total. With several
workers (Horovod's ranks, ``/job:worker``), the total is the total of all workers.

Under mpirun and srun, every rank prints, and a label states its rank (``[1,3]<stdout>:``, ``3: ``). Open MPI
writes a line in pieces, between the pieces of other ranks, so the parser joins pieces by rank and stream.
With Horovod, each rank prints the total of all ranks. Otherwise, a total covers all ranks if the heading
lists the devices, and the global batch is the batch of one worker times the number of ranks. Each rank must
state a total, and the lowest total counts.

An evaluation prints ``Accuracy @ 1 = 0.7318 Accuracy @ 5 = 0.9107 [50000 examples]``. Rackproof's launcher
prints lines with the states of the GPUs before and after the training, which :mod:`rackproof.logs.gpu_use`
reads.

:func:`rackproof.logs.parse` creates the parser. Begin with :meth:`TfCnnParser.line`.
"""

from __future__ import annotations

import math
import re
from typing import ClassVar

from rackproof.core.records import Direction, Measurement, ParsedLog, Verdict
from rackproof.logs._reading import MAX_LINE, Curve, Log, LogParser, Steps, number
from rackproof.logs.fault_texts import MEANING
from rackproof.logs.other_tools import MARKS

_STEP = re.compile(
    r"^(\d{1,12})\s+images/sec:\s+(\S{1,30})\s+\+/-\s+\S{1,30}\s+\(jitter = [^)]{1,30}\)"
    r"\s+(\S{1,30})(?:\s+(?:(?P<time>\d{10})|\S+)){0,4}\s*$"
)
"""Pattern of a whole step: number, speed, loss or another last column, and perhaps a Unix time."""
_HALF_STEP = re.compile(r"^\d{1,12}\s+images/sec:")
"""Pattern of a step that may be damaged."""
_TOTAL = re.compile(r"^total images/sec:\s*(\S{0,40})\s*$")
_FACT = re.compile(
    r"^(TensorFlow|Model|Dataset|Mode|Num batches|Num epochs|Data format|Optimizer|Variables|AllReduce)"
    r":\s+(\S.*)$"
)
_BATCH = re.compile(r"^(?:Batch size:\s+(\d{1,9}) global|\s*(\d{1,9})(?:\.0)? per device)")
_ACCURACY = re.compile(r"^Accuracy @ 1 = (\S{1,30}) Accuracy @ 5 = (\S{1,30}) \[(\d{1,12}) examples\]\s*$")
_RANK = re.compile(r"^\s*(\d{1,6}): ")
# Open MPI puts this tag before every piece that a rank writes, even within a line.
_TAG = re.compile(r"\[\d{1,6},(\d{1,6})\]<std(out|err)>: ?")
_MAX_UNFINISHED_LINES, _MAX_UNFINISHED_CHARACTERS = 10_000, 1000
"""Largest number of unfinished lines that are stored, and of characters of each."""
_MAX_RANKS = 100_000
"""Largest number of ranks and of GPUs that are stored."""
_TOTALS_TOLERANCE = 0.05
"""Largest relative difference between totals of the same run."""
_MAX_TOTAL_TO_STEPS, _MIN_TOTAL_TO_STEPS = 1.05, 0.95
"""Limits for the ratio of the total to the last step's speed. In published logs, total and speed differ
by at most 0.1 %."""
_STEP_ROUNDING = 0.05
"""Rounding error of a step's speed in images/s: steps state one decimal, and the total two."""
_MAX_TOTAL_TO_CLOCK, _MIN_TOTAL_TO_CLOCK = 1.25, 0.5
"""Limits for the ratio of the total to the speed by the times of the steps."""
_MIN_TOTAL_WITH_PAUSES = 0.5
"""Limit in place of ``_MIN_TOTAL_TO_STEPS`` if the run did other work between its steps."""
_PAUSE = re.compile(r"checkpoint|[Ss]aving|[Ss]ummar(?:y|ies)|Accuracy @")
"""Pattern of lines that show work between the steps. Such work lowers only the total."""
_HEADING_TAGS = frozenset({"model", "global_batch_size"})
"""Tags of values that the program always states above its first step."""
_STATES_BATCHES = (1, 8)
"""First TensorFlow whose tf_cnn_benchmarks always state the number of batches. Those of 2017 do not."""
_MIN_CLOCK_SPAN_S = 10
"""Smallest time between the first and the last step that gives a speed. Step times are whole seconds."""
_DEVICES = re.compile(r"^Devices:\s+(.*)$")
_MEMORY = re.compile(r"(?<!\()\bOOM\b|ran out of memory|Resource exhausted")
_ALLOCATION = re.compile(
    r"\btensorflow/\S{1,120}\.cc:\d{1,6}\] (?!.{0,200}\br[au]n out of memory)"
    r".{0,200}(?:ut of memory|OUT_OF_MEMORY)"
)
"""Pattern of a failed allocation in TensorFlow's own source (cuda_driver.cc), after which it tries again with
less."""
# Without a GPU the program trains on the CPU and still lists '/gpu:0' as its device. A server does not train.
_CREATED = re.compile(
    r"Created (?:TensorFlow )?device \(?"
    r"(/job:(?!ps/)\w{1,20}/replica:\d{1,6}/task:\d{1,6}/device:GPU:\d{1,3})\b"
)
_SPEEDS = re.compile(rb"images/sec|Img/sec")
_TENSORFLOW = re.compile(rb"tf_cnn_benchmarks|tensorflow/core/")
"""Pattern of words of TensorFlow that failed before its first step. Names of processes have them, too."""


def _is_failed_allocation(line: bytes) -> bool:
    """Return whether TensorFlow itself reports an allocation that failed, and tries again."""
    return _ALLOCATION.search(line[:MAX_LINE].decode("latin-1")) is not None


class TfCnnParser(LogParser):
    """The parser of steps, totals, and facts of the heading."""

    format: ClassVar[str] = "tf_cnn"
    description: ClassVar[str] = "tf_cnn_benchmarks"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Return whether the bytes look like tf_cnn_benchmarks, or TensorFlow that failed before a step."""
        if _SPEEDS.search(head):
            return True
        return _TENSORFLOW.search(head) is not None and not any(mark.search(head) for mark in MARKS.values())

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.total: tuple[float, int] | None = None
        """The total that counts in images/s, and its line."""
        self.totals = 0
        self.lowest, self.highest = math.inf, -math.inf
        """Range of the totals."""
        self.last_step_at = 0
        self.steps = Steps()
        self.first_step: float | None = None
        self.last_speed, self.has_loss = 0.0, False
        """Speed in images/s of the last step, and whether any step has a loss other than 0."""
        self.pauses = False
        """True if the run did other work between its steps."""
        self.clock: tuple[float, float, float, float] | None = None
        """Step and Unix time of the first and of the last step that states a time."""
        self.loss: tuple[float, int] | None = None
        self.speed = Curve("images_per_second", "images/s", "step")
        self.losses = Curve("train_loss", "", "step")
        self.memory: tuple[int, str] | None = None
        """First line about a lack of memory, and its text."""
        self.memory_count = 0
        self.allocation: tuple[int, str, int | None] | None = None
        """First line of a failed allocation, its text and its rank."""
        log.reads_line = _is_failed_allocation
        self.last_line = 0
        self.accuracy: tuple[float, float, int] | None = None
        """Top-1 and top-5 accuracy of the last evaluation, and its line."""
        self.rank: int | None = None
        """Rank of the current line, if a launcher wrote it."""
        self.ranks: dict[int, tuple[float, int] | None] = {}
        """Each training rank, with its total and the total's line."""
        self.first_rank: int | None = None
        self.gpus: set[tuple[int | None, str]] = set()
        """GPUs that TensorFlow uses, by rank and TensorFlow's name."""
        self.pieces: dict[tuple[str, str], str] = {}
        """Text of unfinished lines, by rank and stream."""

    def line(self, at: int, text: str) -> None:
        """Read one line."""
        self.last_line = at
        text = self.remove_rank(text)
        self.pauses = self.pauses or _PAUSE.search(text) is not None
        if "images/sec" in text:
            self.add_training_rank()
            self.read_speed(at, text)
        elif text.startswith("Accuracy @ 1"):
            self.record_accuracy(at, text)
        elif not self._record_fact(text):
            self._record_message(at, text)

    def _record_message(self, at: int, text: str) -> None:
        """Record TensorFlow's own messages about GPUs and memory."""
        if (created := _CREATED.search(text)) and len(self.gpus) < _MAX_RANKS:
            self.gpus.add((self.rank, created[1]))
        elif _ALLOCATION.search(text):
            self.allocation = self.allocation or (at, text, self.rank)
        elif _MEMORY.search(text):
            self.memory_count += 1
            if self.memory is None:
                self.memory = (at, text)

    def _record_fact(self, text: str) -> bool:
        """Record a fact of the heading. Return whether the line states a fact."""
        if fact := _FACT.match(text):
            self.log.tag(fact[1].lower().replace(" ", "_"), fact[2])
        elif batch := _BATCH.match(text):
            self.log.tag("global_batch_size" if batch[1] else "batch_size_per_device", batch[1] or batch[2])
        elif devices := _DEVICES.match(text):
            # GPUs or CPUs: '/gpu:0', '/job:worker/replica:0/task:0/cpu:0'.
            self.log.tag("devices", str(devices[1].count("pu:") or 1))
        else:
            return False
        return True

    def remove_rank(self, text: str) -> str:
        """Record the rank that a launcher wrote before a line, and return the line without it."""
        self.rank = None
        # For most lines the first character decides, so the patterns are not needed.
        if text[:1] == "[" and (tag := _TAG.match(text)):
            return self.join_pieces(text, tag)
        if text[:1] not in " 0123456789" or not (prefix := _RANK.match(text)):
            return text
        self.rank = int(prefix[1])
        return text[prefix.end() :]

    def join_pieces(self, text: str, tag: re.Match[str]) -> str:
        """Store the pieces of an unfinished line. Return the line that ends here."""
        while following := _TAG.search(text, tag.end()):
            if len(self.pieces) < _MAX_UNFINISHED_LINES:
                began = self.pieces.get((tag[1], tag[2]), "")
                self.pieces[tag[1], tag[2]] = (began + text[tag.end() : following.start()])[
                    :_MAX_UNFINISHED_CHARACTERS
                ]
            tag = following
        self.rank = int(tag[1])
        return self.pieces.pop((tag[1], tag[2]), "") + text[tag.end() :]

    def add_training_rank(self) -> None:
        """Record that the current line's rank trains, so that it must state a total."""
        if self.rank is not None and len(self.ranks) < _MAX_RANKS:
            self.ranks.setdefault(self.rank, None)
            self.first_rank = self.rank if self.first_rank is None else self.first_rank

    def read_speed(self, at: int, text: str) -> None:
        """Read a line that states a speed: a step or a total."""
        if step := _STEP.match(text):
            self._record_step(at, text, step)
        elif total := _TOTAL.match(text):
            self._read_total(at, text, total[1])
        elif _HALF_STEP.match(text):
            # The loss that the line lost may have been NaN.
            self.log.find(
                "damaged_line", "a step that cannot be read", Verdict.UNPROVEN, line=at, excerpt=text
            )

    def _record_step(self, at: int, text: str, match: re.Match[str]) -> None:
        """Record speed and loss of a step."""
        step, speed, loss = float(match[1]), number(match[2]), number(match[3])
        if loss is None or speed is None:
            self.log.find(
                "damaged_line", "a step that cannot be read", Verdict.UNPROVEN, line=at, excerpt=text
            )
            return
        if not math.isfinite(loss):
            message = f"the loss is {loss} at step {match[1]}"
            self.log.find("nan", message, Verdict.FAIL, line=at, excerpt=text)
        if not 0 <= speed < math.inf:
            message = f"the speed is {speed} images/sec at step {match[1]}"
            self.log.find("impossible_value", message, Verdict.UNPROVEN, line=at, excerpt=text)
        # One rank's curve is enough. Several would be mixed into one.
        if self.rank == self.first_rank:
            self.last_step_at = at
            self.steps.take(step, at)
            self.first_step = step if self.first_step is None else self.first_step
            self.last_speed, self.has_loss = speed, self.has_loss or loss != 0
            if match["time"]:
                first_step_and_time = (step, float(match["time"])) if self.clock is None else self.clock[:2]
                self.clock = *first_step_and_time, step, float(match["time"])
            self.loss = (loss, at)
            self.speed.add(step, speed)
            self.losses.add(step, loss)

    def _read_total(self, at: int, text: str, raw: str) -> None:
        """Read the total at the end of a run."""
        self.totals += 1
        value = number(raw)
        if value is None:
            self.log.find(
                "damaged_line", "a total that is not a number", Verdict.UNPROVEN, line=at, excerpt=text
            )
            return
        message = f"total images/sec is {raw}"
        if not math.isfinite(value):
            self.log.find("nan", message, Verdict.FAIL, line=at, excerpt=text)
        elif value <= 0:
            self.log.find("impossible_value", message, Verdict.UNPROVEN, line=at, excerpt=text)
        self.record_total(value, at)

    def record_total(self, value: float, at: int) -> None:
        """Record a total, with its rank."""
        self.total = (value, at)
        self.lowest, self.highest = min(self.lowest, value), max(self.highest, value)
        if self.rank in self.ranks:
            self.ranks[self.rank] = (value, at)

    def record_accuracy(self, at: int, text: str) -> None:
        """Record the accuracies of an evaluation."""
        match = _ACCURACY.match(text)
        accuracies = (number(match[1]), number(match[2])) if match else (None, None)
        # A right first guess is always among the top five.
        ordered = (accuracies[0] or 0.0) <= (accuracies[1] or 0.0)
        if (
            match is None
            or not ordered
            or not all(value is not None and 0 <= value <= 1 for value in accuracies)
        ):
            message = "an accuracy that cannot be read, or is impossible"
            self.log.find("damaged_line", message, Verdict.UNPROVEN, line=at, excerpt=text)
        elif match[3] == "0":
            self.log.find("no_examples", "an evaluation of no example", Verdict.UNPROVEN, line=at)
        else:
            self.accuracy = (accuracies[0] or 0.0, accuracies[1] or 0.0, at)

    def combine_totals(self) -> None:
        """Use the lowest total of several ranks. Record totals that are missing, unclear or unequal."""
        stated = {rank: total for rank, total in self.ranks.items() if total is not None}
        if len(self.ranks) < 2 or not stated:
            return
        silent = sorted(set(self.ranks) - set(stated))
        if silent:
            names = ", ".join(map(str, silent[:8]))
            self.log.find("ranks_without_total", f"no total from rank {names}", Verdict.UNPROVEN)
        if not self._totals_cover_all_ranks():
            message = (
                f"{len(stated)} ranks state totals, and their batch is that of {self._workers():g} workers: "
                "it is unknown how many workers each total covers"
            )
            self.log.find("several_totals", message, Verdict.UNPROVEN)
        self.total = min(stated.values())
        highest = max(value for value, _ in stated.values())
        if not highest <= self.total[0] * (1 + _TOTALS_TOLERANCE):
            message = f"ranks state totals from {self.total[0]:g} to {highest:g}: they did not work in step"
            self.log.find("ranks_disagree", message, Verdict.UNPROVEN, line=self.total[1])
        self.totals = 1

    def _totals_cover_all_ranks(self) -> bool:
        """Return whether each rank's total covers all ranks.

        It does with Horovod. It also does if the heading lists the devices, and its batches give as many
        workers as there are ranks.
        """
        tags = self.log.tags
        return tags.get("variables") == "horovod" or (
            "devices" in tags and self._workers() == len(self.ranks)
        )

    def _tag_devices_and_clock(self) -> None:
        """Store the number of GPUs that TensorFlow created, and the end of the last step."""
        if self.gpus:
            # Horovod gives each rank one GPU, and all ranks use the same name for it.
            ranks = {rank for rank, _ in self.gpus}
            of_horovod = self.log.tags.get("variables") == "horovod"
            self.log.tag("gpus_created", len(ranks if of_horovod else self.gpus))
        if self.clock is not None:
            self.log.tag("last_step_time", int(self.clock[3]))

    def _find_other_runs(self) -> None:
        """Record further totals, and steps of a run that did not end."""
        if self.totals > 1:
            # Unlabelled ranks of one run print nearly equal totals. Others come from several runs.
            differ = not self.highest <= self.lowest * (1 + _TOTALS_TOLERANCE)
            span = f"from {self.lowest:g} to {self.highest:g}"
            message = f"{self.totals} totals in one log, {span}; the last one counts"
            self.log.find("several_runs", message, Verdict.UNPROVEN if differ else None)
        if self.total and len(self.ranks) < 2 and self.last_step_at > self.total[1]:
            message = "steps after the total: another run began, and did not end"
            self.log.find("several_runs", message, Verdict.UNPROVEN, line=self.last_step_at)

    def finish(self) -> ParsedLog:
        """Return the parsed log. It passes only with a total, and steps or an evaluation that fit it."""
        log = self.log
        self._tag_devices_and_clock()
        self.combine_totals()
        measurements: list[Measurement] = []
        proven = self._judge_total(measurements)
        self._find_other_runs()
        ended_at = self.total[1] if proven and self.total else None
        log.marks_as_findings(ended_at)
        self._judge_memory(proven=proven)
        self._measure_quality(measurements)
        self._judge_heading_and_losses()
        # A loss or an accuracy proves that work was done. A total alone may be of no step at all.
        if proven and self.loss is None and self.accuracy is None:
            log.find("no_steps", "a total without any step", Verdict.UNPROVEN)
        base = Verdict.PASS if proven else Verdict.UNPROVEN
        return log.parsed(self.format, base, measurements, [self.speed, self.losses])

    def _judge_memory(self, *, proven: bool) -> None:
        """Record TensorFlow's own lines about a lack of memory, which are remarks in a proven run."""
        if self.allocation is not None:
            at, text, rank = self.allocation
            message, verdict, _ = MEANING["out_of_memory"]
            verdict = None if proven else verdict
            self.log.find("out_of_memory", message, verdict, line=at, rank=rank, excerpt=text)
        if self.memory is not None:
            at, text = self.memory
            message = f"{self.memory_count} lines report that memory ran out"
            verdict = None if proven else Verdict.UNPROVEN
            self.log.find("memory_text", message, verdict, line=at, excerpt=text)

    def _judge_heading_and_losses(self) -> None:
        """Find a log without its heading, and a training without a loss."""
        required = _HEADING_TAGS | ({"num_batches"} if self._states_batches() else set())
        if lacking := required - self.log.tags.keys():
            message = f"the log's heading does not state {' and '.join(sorted(lacking))}: lines are missing"
            self.log.find("no_heading", message, Verdict.UNPROVEN)
        trains = not self.log.tags.get("mode", "training").startswith(("forward", "eval"))
        if self.loss is not None and not self.has_loss and trains:
            message = "the loss is 0 in every step: nothing was trained"
            self.log.find("impossible_value", message, Verdict.UNPROVEN, line=self.loss[1])

    def _states_batches(self) -> bool:
        """Return whether the heading of this version states the number of batches.

        Without that number, nothing shows that the last steps are missing.
        """
        version = re.match(r"(\d{1,3})\.(\d{1,3})", self.log.tags.get("tensorflow", ""))
        is_old = version is not None and (int(version[1]), int(version[2])) < _STATES_BATCHES
        return "num_epochs" in self.log.tags or not is_old

    def _judge_total(self, measurements: list[Measurement]) -> bool:
        """Return whether the total proves a run that ended well. Add ``images_per_second``."""
        log = self.log
        if self.total is None:
            message = "no total images/sec: the run did not end"
            log.find("no_total", message, Verdict.UNPROVEN, line=max(1, log.lines))
            return False
        value, line = self.total
        if log.ends_in_line and line == self.last_line:
            # Half of a number still looks like a number.
            log.find("cut_off", "the log ends inside the line of the total", Verdict.UNPROVEN, line=line)
            return False
        measurements.append(self.measure("images_per_second", value, "images/s", Direction.HIGHER, line))
        if not (math.isfinite(value) and value > 0):
            return False
        self._compare_with_steps(value, line)
        self._judge_steps(line)
        return True

    def _judge_steps(self, at: int) -> None:
        """Find steps that are missing or were not requested."""
        if self.totals > 1 and len(self.ranks) < 2:
            return  # several runs, whose steps restart
        # A line that cannot be read explains a gap, but no step that goes back.
        is_explained = "damaged_line" in self.log.findings and self.steps.back is None
        if not is_explained and (problem := self.steps.problem("steps")):
            self.log.find("rows_missing", problem[0], Verdict.UNPROVEN, line=problem[1])
        if len(self.ranks) < 2 and (self.first_step or 0) > max(1.0, self.steps.usual):
            # The program prints its first step, even if it rarely prints the others.
            message = f"the first step is {self.first_step:g}: those before it are missing"
            self.log.find("rows_missing", message, Verdict.UNPROVEN, line=at)
        requested_batches, last = number(self.log.tags.get("num_batches")), self.steps.last
        if (
            requested_batches is not None
            and last is not None
            and not last <= requested_batches < last + max(1.0, self.steps.usual)
        ):
            message = f"the last step is {last:g}, and {requested_batches:g} batches were requested"
            self.log.find("rows_missing", message, Verdict.UNPROVEN, line=at)

    def _compare_with_steps(self, total: float, at: int) -> None:
        """Find a total that contradicts the steps, according to their stated speeds and their clock."""
        if not {"several_totals", "ranks_disagree"}.isdisjoint(self.log.findings):
            return
        stated, rounded, workers = self.last_speed, _STEP_ROUNDING * (self.last_speed > 0), self._workers()
        below = _MIN_TOTAL_WITH_PAUSES if self.pauses else _MIN_TOTAL_TO_STEPS
        lowest, highest = (stated - rounded) * below, (stated + rounded) * workers * _MAX_TOTAL_TO_STEPS
        if stated and not lowest * workers <= total <= highest:
            message = (
                f"the total is {total:g} images/s, and the last step states {stated:g} of each of "
                f"{workers:g} workers: it is not of this run"
            )
            self.log.find("total_contradicts_steps", message, Verdict.UNPROVEN, line=at)
        by_clock = self._speed_by_clock()
        if (
            by_clock is not None
            and not by_clock * _MIN_TOTAL_TO_CLOCK <= total <= by_clock * _MAX_TOTAL_TO_CLOCK
        ):
            message = f"the total is {total:g} images/s, and by the times of the steps it was {by_clock:.0f}"
            self.log.find("total_contradicts_steps", message, Verdict.UNPROVEN, line=at)

    def _workers(self) -> float:
        """Return the number of workers that share the global batch, which the total covers."""
        tags = self.log.tags
        batch, share = number(tags.get("global_batch_size")), number(tags.get("batch_size_per_device"))
        # Horovod lists the devices of all ranks, one for each rank.
        devices = 1.0 if tags.get("variables") == "horovod" else number(tags.get("devices")) or 1.0
        return max(1.0, batch / share / devices) if batch and share else 1.0

    def _speed_by_clock(self) -> float | None:
        """Return images per second from the Unix times of the steps, or None if these are not sufficient."""
        batch = number(self.log.tags.get("global_batch_size"))
        if self.clock is None or not batch or self._workers() > 1:
            return None
        first_step, began, last_step, ended = self.clock
        if last_step <= first_step or ended - began < _MIN_CLOCK_SPAN_S:
            return None
        return batch * (last_step - first_step) / (ended - began)

    def _measure_quality(self, measurements: list[Measurement]) -> None:
        """Add the accuracies of an evaluation, and the last loss."""
        if self.accuracy is not None:
            top_1, top_5, line = self.accuracy
            for name, value in (("top_1_accuracy", top_1), ("top_5_accuracy", top_5)):
                measurements.append(self.measure(name, value, "fraction", Direction.HIGHER, line))
        if self.loss is not None:
            measurements.append(self.measure("train_loss", self.loss[0], "", Direction.LOWER, self.loss[1]))
