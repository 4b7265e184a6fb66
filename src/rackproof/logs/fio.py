"""Parse the JSON of fio, which measures storage, for :func:`rackproof.logs.parse`.

fio prints one object for each job, or for each group of jobs with ``group_reporting``. Lines of text, such as
errors and notes, may stand before and after the document of ``--output-format=json`` or ``json+``::

    {"fio version": "fio-3.33", "jobs": [{"jobname": "read", "error": 0, "read": {"bw_bytes": 1048576, …}}]}

Clones of a job (``numjobs``) run at the same time, so their operations and bytes are added. Options without a
value, such as ``group_reporting`` and ``time_based``, are not in the JSON.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from rackproof.core.records import Direction, Measurement, ParsedLog, Verdict
from rackproof.logs._reading import (
    Log,
    LogParser,
    distinct_members,
    document_of,
    number,
    text_of,
    whole,
)

MAX_JSON = 64 << 20
"""Largest document in bytes. ``json+`` has a histogram of each job's latencies."""
MOST_JOBS = 1000
"""Largest number of jobs whose speeds are recorded."""
_HEAD = re.compile(rb'(?m)^(?:\{\s{0,9})?"fio version"\s{0,9}:')
_WAYS = ("read", "write", "trim")
_AGREE = 0.02
"""Relative tolerance for a speed that is computed from bytes or operations and the time in ms, and for the
bytes of a job, because fio rounds each file down to whole operations."""
_BUCKET = 0.05
"""Relative error of a percentile of latencies. The buckets of fio's histogram are 1.6 % wide."""
_WRONG = re.compile(
    r"^(?:verify: bad |\w{2,20}: verify failed at |fio: verify type mismatch)|Invalid or incomplete"
)
_ERROR = re.compile(
    r"^fio: (?:io_u error|failed parsing|.{0,300}error=|pid=\d+, got signal=|pid=\d+ disappeared|"
    r"\d+ jobs? failed to start|job '.{0,200}' \(state=|end_fsync failed|aio appears to be stalled|"
    r"(?:ENOSPC|EDQUOT) on laying out)|^syncfs .{0,300} failed|^\S{1,100}: .{0,200}(?:error=|err= *[1-9])"
)
"""Pattern of text about a job that failed. Other texts that begin with ``fio:`` are about fio's own logs, its
choice of random numbers, or features that a machine lacks."""
_NOT_VERIFIED = re.compile(r"^fio: verification read phase will never start")
_STOPPED = re.compile(r"^fio: terminating on signal")
_CLOCK = re.compile(r"^(?:(\d{1,6}):)?(\d{1,6}):(\d{1,6})$")
_SECONDS = re.compile(r"^(\d{1,15})(d|h|m|s|ms|us)?(?:ec)?$", re.IGNORECASE)
_SECONDS_OF = {None: 1.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_BYTES = re.compile(r"^(\d{1,15})([kmgt])?(?:i?b)?$", re.IGNORECASE)
_BYTES_OF = {None: 1.0, "k": 2.0**10, "m": 2.0**20, "g": 2.0**30, "t": 2.0**40}
_WHOLE_RUN = 0.95
"""Smallest share of the requested time that a job must run, unless it ended with its size."""
_OTHER_ENDS = ("number_ios", "fill_device", "loops", "zonesize", "steadystate")
"""Options by which a job may move another number of bytes than its size."""


class FioParser(LogParser):
    """The parser of fio's JSON."""

    format: ClassVar[str] = "fio"
    description: ClassVar[str] = "fio, JSON of --output-format=json or json+"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Return whether the bytes contain the first key of fio's JSON."""
        return _HEAD.search(head) is not None

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.document = bytearray()
        self.is_open = False
        """True from the line of the document's first brace to the line of its last brace."""
        self.documents = 0

    def line(self, at: int, text: str) -> None:
        """Collect a line of the document, or read a line of text outside."""
        if not self.is_open and text.startswith("{"):
            self.is_open = True
            self.documents += 1
        if not self.is_open:
            self._take_text(at, text)
            return
        if self.documents == 1 and len(self.document) <= MAX_JSON:
            self.document += f"{text}\n".encode()
        self.is_open = not (text.startswith("}") or (text.startswith("{") and text.rstrip().endswith("}")))

    def _take_text(self, at: int, text: str) -> None:
        """Find the errors that fio prints as text."""
        if _WRONG.search(text):
            message = "data read back differ from the data written"
            self.log.find("wrong_values", message, Verdict.FAIL, line=at, excerpt=text)
        elif _STOPPED.match(text):
            message = "a signal ended fio before its jobs did"
            self.log.find("cut_off", message, Verdict.UNPROVEN, line=at, excerpt=text)
        elif _NOT_VERIFIED.match(text):
            message = "the written data were not read back: leave out time_based"
            self.log.find("not_checked", message, Verdict.UNPROVEN, line=at, excerpt=text)
        elif text.lstrip().startswith('"fio version"'):
            self.documents += 1
        elif _ERROR.search(text):
            self.log.find("tool_error", "fio reports an error", Verdict.FAIL, line=at, excerpt=text)

    def finish(self) -> ParsedLog:
        """Return speeds, operations per second and latencies of every job and direction."""
        log = self.log
        if self.documents > 1:
            message = "several outputs of fio in one log: give each its own file, without --status-interval"
            log.find("several_runs", message, Verdict.UNPROVEN)
        if self.is_open:
            log.find("cut_off", "the JSON has no end", Verdict.UNPROVEN)
        measurements = list(self._read_document(bytes(self.document)))
        proven = bool(measurements) and not self.is_open
        log.marks_as_findings(log.line_after_last if proven else None)
        return log.parsed(self.format, Verdict.PASS if proven else Verdict.UNPROVEN, measurements)

    def _read_document(self, document: bytes) -> Iterator[Measurement]:
        """Yield the measurements of the document. A document that cannot be read is a finding."""
        if len(document) > MAX_JSON:
            self.log.find("too_large", f"more JSON than {MAX_JSON >> 20} MiB", Verdict.UNPROVEN)
            return
        try:
            root: Any = document_of(document, _distinct_but_options)
        except (ValueError, RecursionError) as error:
            self.log.find("damaged_json", f"the JSON cannot be read: {error!r:.100}", Verdict.UNPROVEN)
            return
        jobs = root.get("jobs") if isinstance(root, dict) else None
        # Clients of a server (`--client`) have their results in `client_stats`.
        if not isinstance(jobs, list) or not jobs or "client_stats" in root:
            jobs = [None]
        if not all(isinstance(job, dict) for job in jobs):
            self.log.find(
                "damaged_json", "the JSON does not list the jobs of this machine alone", Verdict.UNPROVEN
            )
            return
        self.log.tag("software.fio", root.get("fio version", ""))
        shared = _members(root, "global options")
        clones: dict[str, list[Mapping[str, Any]]] = {}
        for job in jobs[:MOST_JOBS]:
            clones.setdefault(str(job.get("jobname", "")), []).append(job)
        if len(jobs) > MOST_JOBS:
            message = f"only the first {MOST_JOBS} jobs are stored: split the log"
            self.log.find("too_many_rows", message, Verdict.UNPROVEN)
        for name, members in clones.items():
            yield from self._judge_job(_Job(text_of(name, 100), members, shared))

    def _judge_job(self, job: _Job) -> Iterator[Measurement]:
        """Yield the measurements of the clones of one job, and judge each of them."""
        if message := job.missing_clones():
            self.log.find("rows_missing", message, Verdict.UNPROVEN)
        if message := job.early_end():
            self.log.find("cut_off", message, Verdict.UNPROVEN)
        for clone in job.clones:
            self._judge_end(job.name, clone)
        measurements = [found for way in _WAYS for found in self._measure_direction(job, way)]
        yield from measurements
        if verified := job.verified_mb():
            labels = {"job": job.name}
            yield self.measure("fio_verified", verified, "MB", Direction.HIGHER, None, labels=labels)
        if not measurements:
            message = f"{job.name}: no figures of reads, writes or trims"
            self.log.find("no_rows", message, Verdict.UNPROVEN)

    def _measure_direction(self, job: _Job, way: str) -> Iterator[Measurement]:
        """Yield the measurements of one direction of a job, if each clone has consistent figures."""
        parts = [_members(clone, way) for clone in job.clones]
        shown = [any(part.get(key) for key in ("total_ios", "io_bytes", "runtime")) for part in parts]
        if not any(shown) and not job.names(way):
            return
        if not all(shown):
            message = f"{job.name}, {way}: {shown.count(True)} of {len(shown)} results have figures"
            self.log.find("rows_missing", message, Verdict.UNPROVEN)
        elif all(self._is_consistent(f"{job.name}, {way}", part) for part in parts):
            yield from self._measurements(job.name, way, parts)

    def _judge_end(self, name: str, clone: Mapping[str, Any]) -> None:
        """Judge the error number with which a job ended, and the errors after which it went on."""
        error = clone.get("error")
        if isinstance(error, bool) or not isinstance(error, int):
            message = f"{name}: the job's error number is missing"
            self.log.find("rows_missing", message, Verdict.UNPROVEN)
        elif error:
            self.log.find("tool_error", f"{name}: the job ended with error {error}", Verdict.FAIL)
        elif total := clone.get("total_err"):
            message = f"{name}: the job met {total!r:.20} errors, and went on after them (total_err)"
            self.log.find("tool_error", message, Verdict.FAIL)

    def _is_consistent(self, where: str, part: Mapping[str, Any]) -> bool:
        """Return whether the speeds of one direction follow from bytes, operations and time.

        Record figures that are missing or contradict each other, and dropped operations.
        """
        bytes_moved, operations, runtime = (
            whole(part.get(key)) for key in ("io_bytes", "total_ios", "runtime")
        )
        kilobytes, rate = number(part.get("bw")), number(part.get("iops"))
        # Versions before 3.2 have no speed in bytes.
        speed = number(part["bw_bytes"]) if "bw_bytes" in part else kilobytes and kilobytes * 1024
        if not bytes_moved or not operations or not runtime or speed is None or rate is None:
            message = f"{where}: bytes, operations, time or speed are missing"
            self.log.find("rows_missing", message, Verdict.UNPROVEN)
            return False
        seconds = runtime / 1000
        speeds = ((speed, bytes_moved / seconds, "bytes/s"), (rate, operations / seconds, "operations/s"))
        for shown, by_time, unit in speeds:
            # The time is cut to whole ms.
            if not abs(shown - by_time) <= (_AGREE + 1 / runtime) * by_time:
                message = f"{where}: {by_time:.6g} {unit} follow from the time, not {shown:.6g}"
                self.log.find("figures_contradict", message, Verdict.UNPROVEN)
                return False
        for kind in ("clat_ns", "lat_ns"):
            if problem := _latency_problem(_members(part, kind)):
                message = f"{where}: {problem} ({kind})"
                self.log.find("figures_contradict", message, Verdict.UNPROVEN)
                return False
        if part.get("drop_ios"):
            message = f"{where}: {part.get('drop_ios')!s:.20} operations were dropped"
            self.log.find("rows_missing", message, Verdict.UNPROVEN)
        return True

    def _measurements(self, name: str, way: str, parts: Sequence[Mapping[str, Any]]) -> Iterator[Measurement]:
        """Yield speed, operations per second and latencies of one direction of a job."""
        labels = {"job": name}
        seconds = max(whole(part["runtime"]) or 0 for part in parts) / 1000
        for suffix, key, scale, unit in (("bw", "io_bytes", 1e-6, "MB/s"), ("iops", "total_ios", 1.0, "1/s")):
            value = sum(whole(part[key]) or 0 for part in parts) * scale / seconds
            yield self.measure(f"fio_{way}_{suffix}", value, unit, Direction.HIGHER, None, labels=labels)
        for suffix, path in (("lat", ("mean",)), ("lat_p99", ("percentile", "99.000000"))):
            values = [_latency_us(part, path) for part in parts]
            known = [value for value in values if value is not None]
            if 0 < len(known) < len(values):
                message = f"{name}, {way}: {len(known)} of {len(values)} results have a latency"
                self.log.find("rows_missing", message, Verdict.UNPROVEN)
            elif known:
                yield self.measure(
                    f"fio_{way}_{suffix}", max(known), "us", Direction.LOWER, None, labels=labels
                )


class _Job:
    """A job of fio: its clones, or the one result of their group, and the options of the first."""

    def __init__(self, name: str, clones: Sequence[Mapping[str, Any]], shared: Mapping[str, Any]) -> None:
        self.name = name
        self.clones = clones
        self.options = {**shared, **_members(clones[0], "job options")}
        self.rw = str(self.options.get("rw", self.options.get("readwrite", "read"))).partition(":")[0]
        self.count = whole(self.options.get("numjobs", 1)) or 0
        """Number of clones that the options request."""
        self.size = _as_bytes(self.options.get("io_size", self.options.get("size"))) * self.count
        """Bytes that the options request from all clones, or 0 if they state no size."""

    def names(self, way: str) -> bool:
        """Return whether the options request a direction (read, write or trim)."""
        return way in self.rw or (self.rw in ("rw", "randrw") and way != "trim")

    def moved(self, way: str) -> int:
        """Return the bytes that all clones moved in a direction."""
        return sum(whole(_members(clone, way).get("io_bytes")) or 0 for clone in self.clones)

    def missing_clones(self) -> str:
        """Return a message if there is not one result for each requested clone, or "".

        A single result may be of the whole group. It then has the sum of the clones' times, or all bytes.
        With ``time_based``, one clone may move more bytes than requested of all, so more bytes show no
        group. Old versions state no times of clones.
        """
        sum_s = number(self.clones[0].get("job_runtime"))
        is_by_size = self._has_all_bytes() and (
            sum_s is None or self._moved_once() <= (1 + _AGREE) * self.size
        )
        is_group = is_by_size or (sum_s or 0.0) / 1000 > (self.count - 0.5) * self._seconds()
        if len(self.clones) == self.count or (len(self.clones) == 1 and is_group):
            return ""
        return f"{self.name}: {len(self.clones)} results, and its options ask for {self.count} jobs"

    def early_end(self) -> str:
        """Return a message if the job ended before its time and before its size, or ""."""
        asked_s, size, moved = _as_seconds(self.options.get("runtime")), self.size, self._moved_once()
        if any(option in self.options for option in _OTHER_ENDS):
            return ""
        is_by_size = self._has_all_bytes() and moved <= (1 + _AGREE) * size
        if asked_s and self._seconds() < _WHOLE_RUN * asked_s and not is_by_size:
            return f"{self.name}: {self._seconds():g} s, and its options ask for {asked_s:g} s"
        if not asked_s and size and not self._has_all_bytes():
            return f"{self.name}: {moved} bytes, and its options ask for {size:.0f}"
        return ""

    def _seconds(self) -> float:
        """Return the longest time of a direction of a clone, in seconds."""
        parts = (_members(clone, way) for clone in self.clones for way in _WAYS)
        return max(number(part.get("runtime")) or 0.0 for part in parts) / 1000

    def _moved_once(self) -> int:
        """Return the bytes that were read and written, without data that were only read back."""
        return self.moved("write") if self._is_verified() else sum(map(self.moved, _WAYS))

    def _has_all_bytes(self) -> bool:
        return self._moved_once() >= (1 - _AGREE) * self.size > 0

    def verified_mb(self) -> float:
        """Return the MB that were written, read back and compared, or 0 if not all written data were."""
        written = self.moved("write")
        is_whole = self._is_verified() and self.moved("read") >= written >= (1 - _AGREE) * self.size
        return written / 1e6 if is_whole else 0.0

    def _is_verified(self) -> bool:
        """Return whether the job reads back what it wrote. fio does not compare the reads of a mix."""
        verify, do_verify = (str(self.options.get(key, "")) for key in ("verify", "do_verify"))
        is_asked = verify not in ("", "none", "null", "0") and do_verify not in ("0", "false", "no")
        return is_asked and self.rw in ("write", "randwrite")


def _distinct_but_options(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Only options, which are texts, may occur twice. For fio, the last one counts."""
    return dict(pairs) if all(isinstance(value, str) for _, value in pairs) else distinct_members(pairs)


def _members(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return an object in another one, or {} if it is missing or no object."""
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def _as_seconds(option: object) -> float:
    """Return the option ``runtime`` in seconds, or 0 if it is missing or cannot be read."""
    text = str(option)
    if clock := _CLOCK.match(text):
        hours, minutes, seconds = (float(part or 0) for part in clock.groups())
        return hours * 3600 + minutes * 60 + seconds
    match = _SECONDS.match(text)
    return float(match[1]) * _SECONDS_OF[match[2] and match[2].lower()] if match else 0.0


def _as_bytes(option: object) -> float:
    """Return a size option in bytes, or 0 if it is missing, relative or cannot be read."""
    match = _BYTES.match(str(option))
    return float(match[1]) * _BYTES_OF[match[2] and match[2].lower()] if match else 0.0


def _latency_problem(latency: Mapping[str, Any]) -> str:
    """Return a message if the mean or a percentile of latencies is outside their range, or "".

    fio rounds percentiles to the bounds of its histogram. Statistics that are missing contradict nothing.
    """
    least, most, mean = (number(latency.get(key)) for key in ("min", "max", "mean"))
    if mean is not None and not 0 < mean < math.inf and (most or latency.get("N")):
        return f"the mean latency is {mean:g} ns"
    figures = {f"percentile {key}": number(value) for key, value in _members(latency, "percentile").items()}
    for name, value in {"mean": mean, **figures}.items():
        if value is None or not value:
            continue
        if most is not None and not value <= (1 + _BUCKET) * most:
            return f"the {name} of {value:g} ns is above the longest latency of {most:g} ns"
        if least is not None and not value >= (1 - _BUCKET) * least:
            return f"the {name} of {value:g} ns is below the shortest latency of {least:g} ns"
    return ""


def _latency_us(part: Mapping[str, Any], path: Sequence[str]) -> float | None:
    """Return a completion latency in microseconds, or None if it is missing or impossible."""
    value: Any = _members(part, "clat_ns")
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    nanoseconds = number(value)
    if nanoseconds is None or not 0 < nanoseconds < math.inf:
        return None
    return nanoseconds / 1000
