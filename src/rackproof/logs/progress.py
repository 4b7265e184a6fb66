"""Follow a log while it grows, for the live display of a job. Judges nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import orjson

from rackproof.logs._mlperf import TARGETS, TARGETS_06
from rackproof.logs._reading import MAX_LINE, clean, number, whole

_MLL = re.compile(rb":::MLL [0-9.]{1,30} ([A-Za-z0-9_]{1,80}): *(\{.*)")
_TF_STEP = re.compile(rb"^(\d{1,12})\s+images/sec: (\S{1,30}) \+/- \S+ \(jitter = [^)]{1,30}\)\s+(\S{1,30})")
_TF_TOTAL = re.compile(rb"^total images/sec: (\S{1,30})")
_TF_BATCHES = re.compile(rb"^Num batches:\s+(\d{1,12})")
_MXNET = re.compile(
    rb"Epoch\[(\d{1,7})\] (?:Batch \[(?:\d+-)?(\d{1,12})\]\s+Speed: (\S{1,30}) samples/sec|(\S{1,60}))"
)
_MXNET_EPOCHS = re.compile(rb"\bnum_epochs=(\d{1,7})\b")
_MXNET_VALUE = re.compile(rb"Validation-accuracy=(\S{1,30})")
_SSD = re.compile(rb"Iteration:\s+(\d{1,12}), Loss function: (\S{1,30}),.* samples / sec: (\S{1,30})")
_GNMT = re.compile(rb"TRAIN \[(\d{1,6})\]\[(\d{1,9})/(\d{1,9})\].*Tok/s (\d{1,12})")
_MASKRCNN = re.compile(rb"iter: (\d{1,12})\s+loss: (\S{1,30})")
_NCCL = re.compile(
    rb"^\s*(\d{1,20})\s+\d{1,20}\s+[a-z]\w{1,20}\s+(?:[a-z]+\s+)?(?:-?\d+\s+)?[\d.]+\s+[\d.]+\s+([\d.]+)\s"
)
_NCCL_MAX = re.compile(rb"^# nThread .* maxBytes (\d{1,20})")
_BURN = re.compile(rb"^(\d[\d.]{0,9})%\s+proc'd: ")
_PHASES = {
    "init_start": "starting",
    "init_stop": "ready",
    "run_start": "training",
    "eval_start": "evaluating",
    "eval_stop": "training",
    "run_stop": "ended",
}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is. What the log does not say is ``None`` or "".

    ``step`` of ``steps``, ``epoch`` of ``epochs`` (from 1; fractions are possible); ``throughput`` in
    ``throughput_unit``; ``target`` is the quality to reach, in the units of ``accuracy``; ``fraction``
    between 0 and 1; ``message`` is one cleaned line to show.
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
    fraction: float | None = None
    message: str = ""


class Follower:
    """Takes a log in chunks that may split lines anywhere; memory is bounded.

    Args:
        format: a format's name, or ``auto``. Lines of all formats are told apart by themselves, so the
            name only keeps foreign lines out: ``mllog`` reads nothing but events.
        epochs: number of epochs that was asked for, where the log does not say.
        steps: likewise the number of steps.
    """

    def __init__(self, format: str = "auto", *, epochs: int | None = None, steps: int | None = None) -> None:
        self._events_only = format in ("mllog", "mlp05")
        self._rest = b""
        self._skipping = False
        self._now = Progress(epochs=epochs, steps=steps)
        self._own_progress = False
        self._batch_size: float | None = None
        self._first: tuple[float, float] | None = None

    @property
    def progress(self) -> Progress:
        """The state after the last chunk."""
        return self._now

    def feed(self, chunk: bytes) -> Progress:
        """Take the next bytes of the log and return the state."""
        lines = (self._rest + chunk).replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop()
        if self._skipping and lines:
            # The rest of a line that was too long to keep.
            lines[0] = b""
            self._skipping = False
        if len(self._rest) > MAX_LINE:
            self._rest, self._skipping = b"", True
        for line in lines:
            if line:
                self._line(line[:MAX_LINE])
        self._now = replace(self._now, fraction=self._fraction(), message=self._message())
        return self._now

    def seconds_left(self, now: float) -> float | None:
        """Estimate the seconds to the end from how the fraction has grown since the first call.

        Args:
            now: a monotonic clock in seconds; call regularly with the same clock.

        Returns:
            Seconds, or ``None`` as long as nothing can be said.
        """
        fraction = self._now.fraction
        if fraction is None:
            return None
        if fraction >= 1:
            return 0.0
        if self._first is None:
            self._first = (now, fraction)
            return None
        began, began_at = self._first
        if now <= began or fraction <= began_at:
            return None
        return (1 - fraction) * (now - began) / (fraction - began_at)

    # -- lines ------------------------------------------------------------------------------------

    def _line(self, line: bytes) -> None:
        at = line.find(b":::MLLOG")
        if line.startswith(b":::RACKPROOF {"):
            self._said(line[len(b":::RACKPROOF ") :])
        elif at >= 0:
            self._event_json(line[at + 8 :])
        elif self._events_only:
            return
        elif found := _MLL.search(line):
            try:
                body = orjson.loads(found[2])
            except ValueError:
                return
            if isinstance(body, dict):
                self._event(found[1].decode("ascii"), body.get("value"), body.get("metadata"), old=True)
        else:
            self._text(line)

    def _said(self, payload: bytes) -> None:
        """Take what the launcher on a cluster says of a job: its phase, and why it waits."""
        try:
            told: Any = orjson.loads(payload)
        except ValueError:
            return
        if not isinstance(told, dict) or not isinstance(told.get("phase"), str):
            return
        queue = told.get("queue")
        words = told["phase"] + (f", {queue} in the queue" if isinstance(queue, str) and queue else "")
        self._update({"phase": clean(words, 80)})

    def _event_json(self, payload: bytes) -> None:
        try:
            entry: Any = orjson.loads(payload)
        except ValueError:
            return
        if isinstance(entry, dict) and isinstance(entry.get("key"), str):
            self._event(entry["key"], entry.get("value"), entry.get("metadata"), old=False)

    def _event(self, key: str, value: object, meta: object, *, old: bool) -> None:
        meta = meta if isinstance(meta, dict) else {}
        changes: dict[str, Any] = {}
        if phase := _PHASES.get(key):
            changes["phase"] = phase
        if key == "run_stop" and isinstance(meta.get("status"), str):
            changes["phase"] = clean(meta["status"], 40)
        step = whole(meta.get("step", meta.get("step_num")))
        # Rackproof's progress events count steps within an epoch, other metadata over the whole run.
        if step is not None and not self._own_progress:
            changes["step"] = step
        epoch = number(meta.get("epoch_num"))
        if epoch is not None and isfinite(epoch):
            changes["epoch"] = epoch
            if self._own_progress and epoch != self._now.epoch:
                changes["step"] = 0
        if key == "submission_benchmark" and isinstance(value, str):
            targets = (TARGETS_06 if old else TARGETS).get(value)
            if targets:
                changes["target"] = targets[0].value
        elif key in ("target", "target_accuracy", "quality_target"):
            changes["target"] = number(value.get("value") if isinstance(value, dict) else value)
        elif key == "global_batch_size":
            self._batch_size = number(value)
        elif key == "max_steps":
            changes["steps"] = whole(value)
        elif key == "eval_accuracy":
            if isinstance(value, dict) and isinstance(value.get("accuracy"), dict):
                value = next(iter(value["accuracy"].values()), None)
            changes["accuracy"] = number(value)
        elif key == "tracked_stats" and isinstance(value, dict):
            changes.update(self._stats(value))
        elif key == "progress" and isinstance(value, dict):
            self._own_progress = True
            for name in ("step", "steps"):
                changes[name] = whole(value.get(name))
            for name in ("epoch", "epochs"):
                changes[name] = number(value.get(name))
            if isinstance(value.get("phase"), str):
                changes["phase"] = clean(value["phase"], 40)
        self._update(changes)

    def _stats(self, value: Mapping[str, object]) -> dict[str, Any]:
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
        changes: dict[str, Any] = {}
        if found := _TF_STEP.match(line):
            changes = {"step": int(found[1]), "loss": _number(found[3]), "phase": "training"}
            changes.update(throughput=_number(found[2]), throughput_unit="images/s")
        elif found := _TF_TOTAL.match(line):
            changes = {"throughput": _number(found[1]), "throughput_unit": "images/s", "phase": "ended"}
        elif found := _TF_BATCHES.match(line):
            changes = {"steps": int(found[1])}
        elif found := _MXNET.search(line):
            changes = {"epoch": float(found[1]) + 1, "phase": "training"}
            if found[3] is not None:
                changes.update(step=int(found[2]), throughput=_number(found[3]), throughput_unit="samples/s")
            elif value := _MXNET_VALUE.search(line):
                changes["accuracy"] = _number(value[1])
        elif b"num_epochs=" in line and (found := _MXNET_EPOCHS.search(line)):
            changes = {"epochs": float(found[1])}
        elif found := _SSD.search(line):
            changes = {"step": int(found[1]), "loss": _number(found[2])}
            changes.update(throughput=_number(found[3]), throughput_unit="samples/s")
        elif found := _GNMT.search(line):
            changes = {"epoch": float(found[1]) + 1, "step": int(found[2]), "steps": int(found[3])}
            changes.update(throughput=_number(found[4]), throughput_unit="tokens/s")
        elif found := _MASKRCNN.search(line):
            changes = {"step": int(found[1]), "loss": _number(found[2])}
        elif found := _NCCL.match(line):
            changes = {"step": int(found[1]), "throughput": _number(found[2]), "throughput_unit": "GB/s"}
            changes["phase"] = "measuring"
        elif found := _NCCL_MAX.match(line):
            changes = {"phase": "measuring"}
        elif found := _BURN.match(line):
            percent = _number(found[1])
            if percent is not None and percent <= 100:
                changes = {"step": int(percent), "steps": 100, "phase": "burning"}
        self._update(changes)

    def _update(self, changes: Mapping[str, Any]) -> None:
        known = {name: value for name, value in changes.items() if value is not None}
        if known:
            self._now = replace(self._now, **known)

    # -- what follows from it ---------------------------------------------------------------------

    def _fraction(self) -> float | None:
        now = self._now
        if now.phase in ("ended", "success"):
            return 1.0
        fraction: float | None = None
        if now.epochs and isfinite(now.epochs) and now.epoch is not None and isfinite(now.epoch):
            # Epochs count from 1 while they run; within one, steps refine it where both are known.
            done = now.epoch - 1
            if now.step is not None and now.steps and now.step <= now.steps:
                done += now.step / now.steps
            fraction = done / now.epochs
        elif now.step is not None and now.steps:
            fraction = now.step / now.steps
        return None if fraction is None else min(1.0, max(0.0, fraction))

    def _message(self) -> str:
        now = self._now
        words = [now.phase] if now.phase else []
        for name, value, total in (("epoch", now.epoch, now.epochs), ("step", now.step, now.steps)):
            if value is not None:
                words.append(f"{name} {value:g}" + (f"/{total:g}" if total else ""))
        if now.loss is not None:
            words.append(f"loss {now.loss:.4g}")
        if now.accuracy is not None:
            words.append(f"accuracy {now.accuracy:.4g}" + (f" (target {now.target:g})" if now.target else ""))
        if now.throughput is not None:
            words.append(f"{now.throughput:,.1f} {now.throughput_unit}")
        return ", ".join(words)


def _number(raw: bytes) -> float | None:
    return number(raw.decode("ascii", "replace"))
