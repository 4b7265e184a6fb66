"""Parse the output of gpu_burn, a stress test of GPUs, for :func:`rackproof.logs.parse`.

Progress lines state the number of products, speed, errors and temperature of every GPU. At the end, the
program lists its own verdict on each GPU::

    50.0%  proc'd: 31808 (6114 Gflop/s) - 31808 (6105 Gflop/s)   errors: 0 - 0   temps: 51 C - 49 C
    Tested 2 GPUs:
            GPU 0: OK
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from rackproof.core.gpu_models import HOTTEST_GPU_C, is_model
from rackproof.core.records import Direction, ParsedLog, Verdict
from rackproof.core.text import amount
from rackproof.logs._launchers import split_label
from rackproof.logs._nvidia_smi import COLDEST_C, HOTTEST_C, find_twice
from rackproof.logs._reading import Log, LogParser, number

_GPU = re.compile(r"^GPU (\d{1,4}): (.{1,100}) \(UUID: (GPU-[0-9A-Fa-f-]{1,60})\)")
_PROGRESS = re.compile(r"^(\d[\d.]{0,9})%\s+proc'd: ")
_SPEED = re.compile(r"(-?\d{1,15}) \((-?(?:\d{1,12}|nan|inf)) Gflop/s\)")
_ERRORS = re.compile(r"errors: ([-0-9 ()A-Za-z!]{1,4000}?)\s+temps:")
_MEMORY = re.compile(
    r"^Initialized device (\d{1,4}) with (\d{1,9}) MB of memory \(\d{1,9} MB available, using (\d{1,9}) MB"
)
_BEGIN = re.compile(r"^Burning for \d{1,12} seconds")
_ENDING = re.compile(r"^Killing processes")
_TEMPERATURE = re.compile(r"\s*(\d{1,4}) C")
_TESTED = re.compile(r"^Tested (\d{1,4}) GPUs:")
_RESULT = re.compile(r"^\s+GPU (\d{1,4}): (\w{1,20})\s*$")
_BAD = re.compile(r"DIED!|WARNING!|Couldn't init|No clients are alive|CUDA error|FAULTY")
_MOST_TFLOP_S: Mapping[str, float] = {
    "GB300": 1250, "GB200": 1250, "B300": 1125, "B200": 1125, "GH200": 495, "H200": 495, "H100": 495,
    "H800": 495, "H20": 74, "A100": 156, "A800": 156, "A40": 74.8, "A30": 82.5, "A10": 62.5, "L40S": 183,
    "L40": 90.5, "L4": 60.5, "V100": 130, "T4": 65,
}  # fmt: skip
"""Largest dense TFLOP/s that gpu_burn reaches in fp32, from data sheets: the speeds of TF32, or of fp16
on GPUs without TF32."""
_WITHOUT_TF32 = ("V100", "T4")
"""Models whose figure above is the speed of fp16."""
_FP16_SHARE = 2
"""Ratio of the speeds of fp16 and TF32. With -tc, cuBLAS may multiply fp32 in fp16."""
_DOUBLES_SHARE = 1 / 7
"""Largest fp64 speed of a GPU, as a share of its speed in :data:`_MOST_TFLOP_S`."""
_FASTEST_GFLOP_S = 1e7
"""Upper limit for plausible speeds, in any format."""
_ALIKE = 0.98
"""Smallest ratio of the memory, and of its use, of equal GPUs. The driver's own share varies."""
_WHOLE = 100.0
"""Percentage in the last progress line of a test that ended by itself."""
_SLOW, _BROKEN = 0.8, 0.5
"""Shares of the usual speed below which a GPU is slow, or broken. Eight A100 are within 2 %."""
_LONG_GAPS, _LONG_GAP_PERCENT, _FEWEST_GAPS = 4, 20.0, 3
"""Longest time without products of a GPU that works: as a multiple of the usual gap, and in per cent of the
test. The smallest number of gaps that show the usual one."""
_MOST_GAPS = 100_000
_HEAD = re.compile(rb"\d%\s+proc'd: |Tested \d+ GPUs:")


@dataclass
class _Work:
    """The products of a GPU.

    Attributes:
        products: The number in the last progress line.
        latest: The progress of the test, in per cent, at which the number last rose. None if it never did.
        gaps: The progress between two rises.
    """

    products: int = 0
    latest: float | None = None
    gaps: list[float] = field(default_factory=list)

    def take(self, products: int, done: float) -> None:
        """Take the number of products in a progress line."""
        if products > self.products:
            if self.latest is not None and len(self.gaps) < _MOST_GAPS:
                self.gaps.append(done - self.latest)
            self.latest = done
        self.products = products

    @property
    def longest(self) -> float:
        """Return the longest progress without products, up to the end of the test."""
        return max([*self.gaps, _WHOLE - (self.latest or 0.0)])


class GpuBurnParser(LogParser):
    """The parser of gpu_burn's progress and of its own verdict."""

    format: ClassVar[str] = "gpu_burn"
    description: ClassVar[str] = "gpu_burn"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Return whether the bytes contain gpu_burn's progress or result."""
        return _HEAD.search(head) is not None

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.uuids: dict[int, str] = {}
        # These contain, by the index of each GPU, the last speed in GFLOP/s, the highest temperature in °C,
        # and the sum of all errors, each with its line.
        self.speeds: dict[int, tuple[float, int]] = {}
        self.work: dict[int, _Work] = {}
        self.hottest: dict[int, tuple[float, int]] = {}
        self.errors: dict[int, tuple[float, int]] = {}
        self.done = 0.0
        """Progress of the test in its last progress line, in per cent."""
        self.models: dict[int, str] = {}
        self.memory: dict[int, tuple[float, float]] = {}
        """Memory of each GPU in MB, and how much of it the test uses."""
        self.doubles = False
        """True if the test multiplies fp64, as the lines about the memory of the GPUs state."""
        self.tensor_cores = False
        """True if the test was started with -tc, as the same lines state."""
        self.shown = 0
        """Largest number of GPUs in a progress line."""
        self.tested: int | None = None
        self.results: dict[int, str] = {}
        self.labels: set[str] = set()
        """Up to two labels of a launcher before the lines. Two labels show several tests."""
        self.tests = 1
        """Number of tests of which the log has a start."""
        self.begun = False
        """True after a line that states the length of a test, which old versions do not print."""
        self.is_ending = False
        """True from the line before the processes of the GPUs end to the results. A process whose output goes
        to a file or pipe then prints the lines again that its parent had not written at the fork."""

    def line(self, at: int, text: str) -> None:
        """Read one line, with or without a launcher's label."""
        if self._take(at, text):
            return
        label, unlabelled = split_label(text)
        if unlabelled != text and self._take(at, unlabelled):
            if len(self.labels) < 2:
                self.labels.add(label)
        elif _BAD.search(text):
            self.log.find("tool_error", "the test reports a fault", Verdict.FAIL, line=at, excerpt=text)

    def _take(self, at: int, text: str) -> bool:
        """Return whether a line is gpu_burn's, and read such a line."""
        if progress := _PROGRESS.match(text):
            self._take_progress(at, text, number(progress[1]) or 0.0)
        elif match := _GPU.match(text):
            self._take_gpu(at, text, int(match[1]), match[2], match[3])
        elif match := _MEMORY.match(text):
            self._take_memory(text, match)
        elif _BEGIN.match(text):
            self.tests += self.begun and not self.is_ending
            self.begun = True
        elif _ENDING.match(text):
            self.is_ending = True
        elif match := _TESTED.match(text):
            self.tested = int(match[1])
            self.is_ending = False
        elif self.tested is not None and (match := _RESULT.match(text)):
            self._take_result(at, text, match[1], match[2])
        else:
            return False
        return True

    def _take_progress(self, at: int, text: str, done: float) -> None:
        """Read a progress line. Another test may begin with it."""
        if self.tested is not None or done < self.done:
            # Another test starts in the same file, so it is unknown how the first test ended.
            self.tests += 1
            self.tested, self.results, self.speeds, self.work = None, {}, {}, {}
        self.done, self.is_ending = done, False
        self.progress(at, text)
        if _BAD.search(text):
            self.log.find("tool_error", "the test reports a fault", Verdict.FAIL, line=at, excerpt=text)

    def _take_memory(self, text: str, match: re.Match[str]) -> None:
        """Read the memory of a GPU and the precision of the test."""
        self.doubles = self.doubles or ", using DOUBLES" in text
        self.tensor_cores = self.tensor_cores or ", using Tensor Cores" in text
        if int(match[1]) in self.memory:
            # Each test initializes a GPU once, so the test before this one may not have ended.
            self.tests += 1
        if len(self.memory) < 1024:
            self.memory[int(match[1])] = float(match[2]), float(match[3])

    def _take_gpu(self, at: int, text: str, index: int, model: str, uuid: str) -> None:
        """Read a GPU of the list at the start, which another test in the file may repeat."""
        if any(known_uuid == uuid and known_index != index for known_index, known_uuid in self.uuids.items()):
            find_twice(self.log, at, uuid, text)
        if len(self.uuids) < 1024:
            self.uuids[index] = uuid
            self.models[index] = model
        self.log.tag("device", model)

    def _take_result(self, at: int, text: str, index: str, word: str) -> None:
        """Read the program's own verdict on one GPU."""
        if len(self.results) < 1024:
            self.results[int(index)] = word
        if word != "OK":
            self.log.find("gpu_faulty", f"GPU {index} is {word}", Verdict.FAIL, line=at, excerpt=text)

    def progress(self, at: int, text: str) -> None:
        """Read speeds, errors and temperatures. Each GPU has a speed and a number of errors."""
        speeds, found = _SPEED.findall(text)[:1024], _ERRORS.search(text)
        counts = found[1].split(" - ")[:1024] if found else []
        self.shown = max(self.shown, len(speeds))
        for index, cell in enumerate(counts):
            self._take_errors(at, index, cell.strip())
        if len(counts) == len(speeds):
            self._take_speeds(at, speeds)
        else:
            message = (
                f"progress of {len(speeds)} readable speeds and {len(counts)} readable numbers of errors"
            )
            self.log.find("damaged_line", message, Verdict.UNPROVEN, line=at, excerpt=text)
        for index, cell in enumerate(text.partition("temps:")[2].split(" - ")[:1024]):
            # "--" means that nvidia-smi gave no value.
            degrees = _TEMPERATURE.match(cell)
            if degrees and not float(degrees[1]) > COLDEST_C:
                message = f"GPU {index}: {cell.strip():.20}, which cannot be"
                self.log.find("impossible_value", message, Verdict.UNPROVEN, line=at)
            if degrees and float(degrees[1]) > self.hottest.get(index, (-1.0, at))[0]:
                self.hottest[index] = (float(degrees[1]), at)

    def _take_speeds(self, at: int, speeds: list[tuple[str, str]]) -> None:
        """Store the speed of each GPU, and find GPUs that died. ``speeds`` has products and GFLOP/s."""
        for index, (products, speed) in enumerate(speeds):
            self.work.setdefault(index, _Work()).take(int(products), self.done)
            if int(products) < 0:
                # gpu_burn continues without a GPU that died, and shows -1 for it.
                self.log.find("gpu_died", f"GPU {index} died", Verdict.FAIL, line=at)
            # The speed of a GPU in its first round is not known yet.
            elif index in self.speeds or float(speed) != 0:
                self.speeds[index] = (float(speed), at)

    def _take_errors(self, at: int, index: int, cell: str) -> None:
        """Add the errors since the last progress line. Text that is not a number is also a fault."""
        count = number(cell.split(" ")[0])
        if count is None or count != 0:
            self.log.find("compute_errors", f"GPU {index}: errors {cell:.40}", Verdict.FAIL, line=at)
        if count is not None:
            self.errors[index] = (self.errors.get(index, (0.0, at))[0] + count, at)

    def finish(self) -> ParsedLog:
        """Return the last speed, the errors and the highest temperature of every GPU."""
        log = self.log
        measurements = []
        for values, name, unit, direction in (
            (self.speeds, "gpu_burn_speed", "GFLOP/s", Direction.HIGHER),
            (self.errors, "gpu_burn_errors", "", Direction.LOWER),
            (self.hottest, "gpu_temperature", "C", Direction.LOWER),
        ):
            for index, (value, line) in sorted(values.items()):
                gpu = self.uuids.get(index, "")
                measurements.append(
                    self.measure(name, value, unit, direction, line, labels={"index": str(index), "gpu": gpu})
                )
        self._compare_speeds()
        self._judge_bounds()
        self._compare_memory()
        if self.tests > 1 or len(self.labels) > 1:
            message = (
                "several tests in one log, of which only the last one's speeds remain: give each its own file"
            )
            log.find("several_runs", message, Verdict.UNPROVEN)
        proven = self._every_gpu_passed()
        log.marks_as_findings(log.line_after_last if proven else None)
        return log.parsed(self.format, Verdict.PASS if proven else Verdict.UNPROVEN, measurements)

    def _compare_speeds(self) -> None:
        """Find a GPU that is much slower than the others of its model, although all do the same work."""
        speeds = {index: speed for index, (speed, _at) in self.speeds.items() if 0 < speed < math.inf}
        for index, speed in sorted(speeds.items()):
            model = self.models.get(index)
            usual = statistics.median_high(
                other_speed
                for other_index, other_speed in speeds.items()
                if self.models.get(other_index) == model
            )
            if speed < _SLOW * usual:
                verdict = Verdict.FAIL if speed < _BROKEN * usual else Verdict.DEGRADED
                message = f"GPU {index} reaches {speed:.0f} Gflop/s, and the others {usual:.0f}"
                self.log.find("gpu_slow", message, verdict, line=self.speeds[index][1])

    def _judge_bounds(self) -> None:
        """Find temperatures that no GPU may reach, and impossible figures."""
        for index, (degrees, line) in sorted(self.hottest.items()):
            if degrees > HOTTEST_C:
                message = f"GPU {index}: {degrees:g} °C, which cannot be"
                self.log.find("impossible_value", message, Verdict.UNPROVEN, line=line)
            elif degrees >= HOTTEST_GPU_C:
                self.log.find("too_hot", f"GPU {index}: at {degrees:g} °C", Verdict.FAIL, line=line)
        for index, (speed, line) in sorted(self.speeds.items()):
            most = self._most(self.models.get(index, ""))
            if most < speed < math.inf:
                message = f"GPU {index}: {speed:.0f} Gflop/s, but at most {most:.0f} is possible"
                self.log.find("impossible_value", message, Verdict.UNPROVEN, line=line)

    def _most(self, model: str) -> float:
        """Return the largest speed of a model in the precision of the test, in Gflop/s."""
        peaks = {name: peak for name, peak in _MOST_TFLOP_S.items() if is_model(model, name)}
        if not peaks:
            return _FASTEST_GFLOP_S
        share: float = 1
        if self.doubles:
            share = _DOUBLES_SHARE
        elif self.tensor_cores and not any(name in _WITHOUT_TF32 for name in peaks):
            share = _FP16_SHARE
        return 1e3 * max(peaks.values()) * share

    def _compare_memory(self) -> None:
        """Find a GPU with less memory, or less tested memory, than others of its model."""
        for index, figures in sorted(self.memory.items()):
            model = self.models.get(index)
            alike = [
                other_figures
                for other_index, other_figures in self.memory.items()
                if self.models.get(other_index) == model
            ]
            for verb, value, most in zip(
                ("has", "uses"), figures, map(max, zip(*alike, strict=True)), strict=True
            ):
                if value < _ALIKE * most:
                    message = f"GPU {index} {verb} {value:.0f} MB of memory, another one {most:.0f}"
                    self.log.find("gpus_unlike", message, Verdict.UNPROVEN)

    def _stalled(self) -> str:
        """Return a text about a GPU that computed nothing for a large part of the test, or "".

        The number of products rises whenever a GPU reports its round. All GPUs of a model need equally long.
        The time before the first round is not compared, because it contains the start of the program.
        """
        for index, work in sorted(self.work.items()):
            model = self.models.get(index)
            alike = [
                other for other_index, other in self.work.items() if self.models.get(other_index) == model
            ]
            gaps = [gap for other in alike for gap in other.gaps]
            usual = statistics.median(gaps) if len(gaps) >= _FEWEST_GAPS else _WHOLE
            most = statistics.median_high(other.products for other in alike)
            if work.latest is None:
                return f"GPU {index} shows a speed, but no product"
            if work.longest > max(_LONG_GAPS * usual, _LONG_GAP_PERCENT):
                return f"GPU {index} computed nothing during {work.longest:.0f} % of the test"
            if work.products < _BROKEN * most:
                return f"GPU {index} computed {work.products} products, and the others {most}"
        return ""

    def _every_gpu_passed(self) -> bool:
        """Return whether the log proves an ended test that found every GPU good. Record missing parts."""
        log, results, listed = self.log, len(self.results), len(self.uuids)
        if self.tested is None:
            log.find("cut_off", "the test did not end", Verdict.UNPROVEN, line=max(1, log.lines))
            return False
        # The list at the start may be missing. A list that exists must agree.
        agree = self.results.keys() == set(range(self.tested)) and self.shown <= self.tested
        agree = agree and listed in (0, self.tested)
        if not self.tested or not agree:
            log.find(
                "gpu_missing",
                f"{results} results for {self.tested} tested, {listed} listed and {self.shown} shown GPUs",
                Verdict.UNPROVEN,
            )
            return False
        working = sum(0 < speed < math.inf for speed, _line in self.speeds.values())
        if working < self.tested:
            # "OK" means that a GPU found no wrong result, even if it computed none.
            tested = amount(self.tested, "GPU")
            message = f"{working} of {tested} show a speed at the end: the others computed nothing"
            log.find("no_work", message, Verdict.UNPROVEN)
            return False
        if stalled := self._stalled():
            log.find("no_work", stalled, Verdict.UNPROVEN)
            return False
        if self.done != _WHOLE:
            message = (
                f"the test shows {self.done:g} % of its progress: it was ended early, or lines are missing"
            )
            log.find("cut_off", message, Verdict.UNPROVEN)
            return False
        every_ok = all(word == "OK" for word in self.results.values())
        if log.ends_in_line and not every_ok:
            # A result that is not OK may be incomplete.
            log.find("cut_off", "the log ends in mid-line", Verdict.UNPROVEN)
        return every_ok
