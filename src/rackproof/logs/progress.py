"""Follow a log while it grows, for job bench's live display of a job. Nothing is judged here.

:mod:`rackproof_ansible.bench_follow` passes the log's new bytes to a :class:`Follower` every few seconds. The
:class:`Progress` that it returns has a message such as ``training, epoch 2/4, step 50/100, loss 0.5``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import orjson

from rackproof.logs._mlperf import TARGETS, TARGETS_06
from rackproof.logs._reading import MAX_LINE, clean, number, whole

# The patterns of lines that show progress, as the parser of each format describes them.
_MLL = re.compile(rb":::MLL [0-9.]{1,30} ([A-Za-z0-9_]{1,80}): *(\{.*)")
_TF_STEP = re.compile(rb"^(\d{1,12})\s+images/sec: (\S{1,30}) \+/- \S+ \(jitter = [^)]{1,30}\)\s+(\S{1,30})")
_TF_TOTAL = re.compile(rb"^total images/sec: (\S{1,30})")
_TF_BATCHES = re.compile(rb"^Num batches:\s+(\d{1,12})")
_MXNET = re.compile(
    rb"Epoch\[(\d{1,7})\] (?:Batch \[(?:\d+-)?(\d{1,12})\]\s+Speed: (\S{1,30}) samples/sec|(\S{1,60}))"
)
_MXNET_EPOCHS = re.compile(rb"\bnum_epochs=(\d{1,7})\b")
_MXNET_VALUE = re.compile(rb"Validation-accuracy=(\S{1,30})")
_SSD = re.compile(rb"Iteration:\s+(\d{1,12}), Loss function: (\S{1,30}),.{0,200} samples / sec: (\S{1,30})")
_GNMT = re.compile(rb"TRAIN \[(\d{1,6})\]\[(\d{1,9})/(\d{1,9})\].{0,300}Tok/s (\d{1,12})")
_MASKRCNN = re.compile(rb"iter: (\d{1,12})\s+loss: (\S{1,30})")
_NCCL = re.compile(
    rb"^\s*(\d{1,20})\s+\d{1,20}\s+[a-z]\w{1,20}\s+(?:[a-z]+\s+)?(?:-?\d+\s+)?[\d.]+\s+[\d.]+\s+([\d.]+)\s"
)
_NCCL_MAX = re.compile(rb"^# nThread .* maxBytes (\d{1,20})")
_BURN = re.compile(rb"^(\d[\d.]{0,9})%\s+proc'd: ")
_PHASES = {
    "init_start": "starting",
    "init_stop": "ready",
    "eval_start": "evaluating",
    "run_stop": "ended",
}
"""Phase of a job after an event of MLPerf. The status of run_stop, if stated, replaces its phase."""
_AT_WORK = ("run_start", "eval_stop")
"""Events after which a job trains or measures. The benchmark decides the name of this phase."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a job as shown live. A value that the log does not show is ``None`` or "".

    Attributes:
        step: The current step of ``steps``. For nccl-tests, it is the message size in bytes, and for gpu_burn
            the percentage of the time.
        epoch: The current epoch of ``epochs``, as MLPerf's events number it, or else from 1. Fractions are
            possible.
        throughput: The throughput in ``throughput_unit``.
        loss: The loss of the last step.
        accuracy: The last evaluation in the benchmark's own unit, which may be a loss.
        target: The quality to reach, in the unit of ``accuracy``.
        phase: The job's present work (``training``), or after the end the log's status (``success``).
        done_bytes: The downloaded bytes.
        all_bytes: The approximate size of the download, in bytes.
        fraction: The completed share, between 0 and 1.
        message: One cleaned line to show.
    """

    step: int | None = None
    steps: int | None = None
    epoch: float | None = None
    epochs: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    throughput: float | None = None
    throughput_unit: str = ""
    target: float | None = None
    phase: str = ""
    done_bytes: int | None = None
    all_bytes: int | None = None
    fraction: float | None = None
    message: str = ""

    @property
    def has_ended(self) -> bool:
        """Return whether the log shows a good end. A status such as ``aborted`` does not count."""
        return self.phase in ("ended", "success")

    def count(self, name: str, format_number: Callable[[float], str]) -> str:
        """Return the current epoch or step with the last one (``step 50/100``), or "" if it is unknown.

        A job that stops at a target has "at most N", because it may end before its last epoch or step.

        Args:
            name: ``epoch`` or ``step``.
            format_number: The function that formats a number.
        """
        value, last = (self.epoch, self.epochs) if name == "epoch" else (self.step, self.steps)
        if value is None:
            return ""
        text = f"{name} {format_number(value)}"
        if not last:
            return text
        may_end_early = self.target is not None and (name == "epoch" or not self.epochs)
        if not may_end_early or value >= last:
            return f"{text}/{format_number(last)}"
        return text if self.has_ended else f"{text}, at most {format_number(last)}"


class Follower:
    """A reader of a log in chunks that may split lines anywhere, with limited memory.

    A line of more than :data:`MAX_LINE` bytes is cut or ignored.

    Args:
        format: The name of a format, or ``auto``. A line's own text shows its format, so the name only
            excludes other lines: with ``mllog`` and ``mlp05``, only MLLOG events and the launcher's reports
            are read.
        epochs: The requested number of epochs, used if the log does not show it.
        steps: The requested number of steps, used likewise.
    """

    def __init__(self, format: str = "auto", *, epochs: int | None = None, steps: int | None = None) -> None:
        self._events_only = format in ("mllog", "mlp05")
        self._rest = b""
        """Beginning of the line whose end was not read yet."""
        self._skipping = False
        """True within a line that is too long to store."""
        self._now = Progress(epochs=epochs, steps=steps)
        self._own_progress = False
        """True if the log has progress events of Rackproof's own workloads."""
        self._batch_size: float | None = None
        self._work = "training"
        """Name of the phase in which the job does its work."""

    @property
    def progress(self) -> Progress:
        """Return the state after the last chunk."""
        return self._now

    def feed(self, chunk: bytes) -> Progress:
        """Read the next bytes of the log, and return the state."""
        lines = (self._rest + chunk).replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop()
        if self._skipping and lines:
            # Drop the rest of a line that was too long to store.
            lines[0] = b""
            self._skipping = False
        if len(self._rest) > MAX_LINE:
            self._rest, self._skipping = b"", True
        for line in lines:
            if line:
                self._line(line[:MAX_LINE])
        self._now = replace(self._now, fraction=self._fraction(), message=self._message())
        return self._now

    # -- lines ------------------------------------------------------------------------------------

    def _line(self, line: bytes) -> None:
        """Read a line: the launcher's report, an event of MLPerf, or text."""
        position = line.find(b":::MLLOG")
        if line.startswith(b":::RACKPROOF {"):
            self._launcher_report(line[len(b":::RACKPROOF ") :])
        elif position >= 0:
            self._event_json(line[position + 8 :])
        elif self._events_only:
            return
        elif match := _MLL.search(line):
            try:
                body = orjson.loads(match[2])
            except ValueError:
                return
            if isinstance(body, dict):
                self._event(match[1].decode("ascii"), body.get("value"), body.get("metadata"), old=True)
        else:
            self._text(line)

    def _launcher_report(self, payload: bytes) -> None:
        """Read the report of a cluster's launcher on a job: its phase, and the reason why it waits."""
        try:
            report: Any = orjson.loads(payload)
        except ValueError:
            return
        if not isinstance(report, dict) or not isinstance(report.get("phase"), str):
            return
        queue = report.get("queue")
        phase = report["phase"] + (f", {queue} in the queue" if isinstance(queue, str) and queue else "")
        finished, total = whole(report.get("bytes")), whole(report.get("of_bytes"))
        self._update({"phase": clean(phase, 80), "done_bytes": finished, "all_bytes": total or None})

    def _event_json(self, payload: bytes) -> None:
        """Read the JSON of an MLLOG event."""
        try:
            entry: Any = orjson.loads(payload)
        except ValueError:
            return
        if isinstance(entry, dict) and isinstance(entry.get("key"), str):
            self._event(entry["key"], entry.get("value"), entry.get("metadata"), old=False)

    def _event(self, key: str, value: object, meta: object, *, old: bool) -> None:
        """Read an event. ``old`` means round 0.6."""
        changes = self._position(key, meta if isinstance(meta, dict) else {})
        # A progress event's own step and epoch override those in the metadata around it.
        changes.update(self._event_value(key, value, old=old))
        self._update(changes)

    def _position(self, key: str, meta: Mapping[str, object]) -> dict[str, Any]:
        """Return the changes of phase, step and epoch by an event's key and metadata."""
        changes: dict[str, Any] = {}
        if phase := self._work if key in _AT_WORK else _PHASES.get(key):
            changes["phase"] = phase
        status = meta.get("status")
        if key == "run_stop" and isinstance(status, str):
            changes["phase"] = clean(status, 40)
        step = whole(meta.get("step", meta.get("step_num")))
        # Rackproof's progress events count steps within an epoch, other metadata over the whole run.
        if step is not None and not self._own_progress:
            changes["step"] = step
        epoch = number(meta.get("epoch_num"))
        if epoch is not None and isfinite(epoch):
            changes["epoch"] = epoch
            if self._own_progress and epoch != self._now.epoch:
                changes["step"] = 0
        return changes

    def _event_value(self, key: str, value: object, *, old: bool) -> dict[str, Any]:
        """Return the changes from an event's value. ``old`` means round 0.6, which has other targets."""
        if key == "global_batch_size":
            self._batch_size = number(value)
            return {}
        if key == "submission_benchmark" and isinstance(value, str):
            # Only MLPerf's benchmarks are known to train. Others state their own phase with their progress.
            if value not in (TARGETS_06 if old else TARGETS):
                self._work = "running"
            return _benchmark_target(value, old=old)
        if key == "tracked_stats" and isinstance(value, dict):
            return self._stats(value)
        if key == "progress" and isinstance(value, dict):
            return self._progress_event(value)
        value_reader = _VALUE_READERS.get(key)
        return value_reader(value) if value_reader else {}

    def _progress_event(self, value: Mapping[str, object]) -> dict[str, Any]:
        """Return the changes from a progress event of Rackproof's own workloads."""
        self._own_progress = True
        changes: dict[str, Any] = {name: whole(value.get(name)) for name in ("step", "steps")}
        changes.update({name: number(value.get(name)) for name in ("epoch", "epochs", "target")})
        phase = value.get("phase")
        if isinstance(phase, str):
            changes["phase"] = clean(phase, 40)
            if not phase.startswith("eval"):
                self._work = changes["phase"]
        return changes

    def _stats(self, value: Mapping[str, object]) -> dict[str, Any]:
        """Return the changes that an event with throughput or loss makes to the progress."""
        changes: dict[str, Any] = {
            "loss": number(value.get("train_loss", value.get("reduced_train_loss", value.get("loss"))))
        }
        throughput = number(value.get("throughput"))
        step_time = number(value.get("train_step_time"))
        if throughput is None and step_time and self._batch_size:
            throughput = self._batch_size / step_time
        if throughput is not None:
            changes.update(throughput=throughput, throughput_unit="samples/s")
        return changes

    def _text(self, line: bytes) -> None:
        """Read a line that is not an event with the first reader that recognizes it."""
        for text_reader in _TEXT_READERS:
            changes = text_reader(line)
            if changes is not None:
                self._update(changes)
                return

    def _update(self, changes: Mapping[str, Any]) -> None:
        """Store the changed values by their names in :class:`Progress`. None leaves a value unchanged."""
        stated = {name: value for name, value in changes.items() if value is not None}
        if stated:
            self._now = replace(self._now, **stated)

    # -- conclusions -------------------------------------------------------------------------

    def _fraction(self) -> float | None:
        """Return the finished share of the run (0 to 1), or None if the total is unknown."""
        now = self._now
        if now.has_ended:
            return 1.0
        if now.done_bytes is not None and now.all_bytes:
            return min(1.0, now.done_bytes / now.all_bytes)
        fraction = _fraction_of_epochs(now)
        if fraction is None and now.step is not None and now.steps:
            fraction = now.step / now.steps
        # The count in a log may exceed the requested number.
        return None if fraction is None else min(1.0, max(0.0, fraction))

    def _message(self) -> str:
        """Return phase, counts, loss, accuracy and speed, separated by commas."""
        now = self._now
        words = [now.phase] if now.phase else []
        words += filter(None, (now.count(name, "{:g}".format) for name in ("epoch", "step")))
        if now.loss is not None:
            words.append(f"loss {now.loss:.4g}")
        if now.accuracy is not None:
            words.append(f"accuracy {now.accuracy:.4g}" + (f" (target {now.target:g})" if now.target else ""))
        if now.throughput is not None:
            words.append(f"{now.throughput:,.1f} {now.throughput_unit}")
        return ", ".join(words)


def _benchmark_target(benchmark: str, *, old: bool) -> dict[str, Any]:
    """Return the first target of a benchmark of MLPerf."""
    targets = (TARGETS_06 if old else TARGETS).get(benchmark)
    return {"target": targets[0].value} if targets else {}


def _target_value(value: object) -> dict[str, Any]:
    return {"target": number(value.get("value") if isinstance(value, dict) else value)}


def _accuracy_value(value: object) -> dict[str, Any]:
    if isinstance(value, dict) and isinstance(value.get("accuracy"), dict):  # 0.6 maskrcnn
        # Of its two values, for boxes and masks, the first is shown.
        value = next(iter(value["accuracy"].values()), None)
    return {"accuracy": number(value)}


def _steps_value(value: object) -> dict[str, Any]:
    return {"steps": whole(value)}


_VALUE_READERS: Mapping[str, Callable[[object], dict[str, Any]]] = {
    "target": _target_value,
    "target_accuracy": _target_value,
    "quality_target": _target_value,
    "max_steps": _steps_value,
    "eval_accuracy": _accuracy_value,
}
"""Functions that return the changes from an event's value, by the event's key."""


def _fraction_of_epochs(now: Progress) -> float | None:
    """Return the completed share by epochs, or None if their number or the current one is unknown."""
    if not now.epochs or not isfinite(now.epochs) or now.epoch is None or not isfinite(now.epoch):
        return None
    # Epochs count from 1 while they run. Steps refine the fraction within an epoch if both are known.
    finished = now.epoch - 1
    if now.step is not None and now.steps and now.step <= now.steps:
        finished += now.step / now.steps
    return finished / now.epochs


def _number(raw: bytes) -> float | None:
    return number(raw.decode("ascii", "replace"))


def _tf_cnn_changes(line: bytes) -> dict[str, Any] | None:
    """Return the changes that a line of tf_cnn_benchmarks makes to the progress, or None."""
    if step := _TF_STEP.match(line):
        return {
            "step": int(step[1]),
            "loss": _number(step[3]),
            "phase": "training",
            "throughput": _number(step[2]),
            "throughput_unit": "images/s",
        }
    if total := _TF_TOTAL.match(line):
        return {"throughput": _number(total[1]), "throughput_unit": "images/s", "phase": "ended"}
    if batches := _TF_BATCHES.match(line):
        return {"steps": int(batches[1])}
    return None


def _mxnet_changes(line: bytes) -> dict[str, Any] | None:
    """Return the changes that a line of MXNet makes to the progress, or None."""
    if epoch := _MXNET.search(line):
        changes: dict[str, Any] = {"epoch": float(epoch[1]) + 1, "phase": "training"}
        if epoch[3] is not None:
            changes.update(step=int(epoch[2]), throughput=_number(epoch[3]), throughput_unit="samples/s")
        elif accuracy := _MXNET_VALUE.search(line):
            changes["accuracy"] = _number(accuracy[1])
        return changes
    if b"num_epochs=" in line and (epochs := _MXNET_EPOCHS.search(line)):
        return {"epochs": float(epochs[1])}
    return None


def _round06_changes(line: bytes) -> dict[str, Any] | None:
    """Return the changes that a line of ssd, gnmt or maskrcnn of MLPerf training 0.6 makes, or None."""
    if ssd := _SSD.search(line):
        return {
            "step": int(ssd[1]),
            "loss": _number(ssd[2]),
            "throughput": _number(ssd[3]),
            "throughput_unit": "samples/s",
        }
    if gnmt := _GNMT.search(line):
        return {
            "epoch": float(gnmt[1]) + 1,
            "step": int(gnmt[2]),
            "steps": int(gnmt[3]),
            "throughput": _number(gnmt[4]),
            "throughput_unit": "tokens/s",
        }
    if maskrcnn := _MASKRCNN.search(line):
        return {"step": int(maskrcnn[1]), "loss": _number(maskrcnn[2])}
    return None


def _tool_changes(line: bytes) -> dict[str, Any] | None:
    """Return the changes that a line of nccl-tests or gpu_burn makes to the progress, or None."""
    if row := _NCCL.match(line):
        return {
            "step": int(row[1]),
            "throughput": _number(row[2]),
            "throughput_unit": "GB/s",
            "phase": "measuring",
        }
    if _NCCL_MAX.match(line):
        return {"phase": "measuring"}
    if burn := _BURN.match(line):
        percent = _number(burn[1])
        if percent is not None and percent <= 100:
            return {"step": int(percent), "steps": 100, "phase": "burning"}
        return {}
    return None


_TEXT_READERS = (_tf_cnn_changes, _mxnet_changes, _round06_changes, _tool_changes)
"""Readers that return the changes from a line, or None if it is from another program; the first
match counts."""
