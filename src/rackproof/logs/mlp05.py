"""Parse logs of MLPerf Training 0.5 for :func:`rackproof.logs.parse`.

An event is a line with benchmark, seconds since 1970, place in the source, key and, for many keys, a value:

    :::MLPv0.5.0 resnet 1541053363 (solver.cpp:573) eval_accuracy: {"epoch": 59, "value": 0.74982}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

import orjson

from rackproof.core.records import Verdict
from rackproof.logs._mlperf import (
    Events,
    KeyTwiceError,
    QualityTarget,
    decode_leniently,
    has_key_twice,
)
from rackproof.logs._reading import number, text_of

TOKEN = b":::MLPv0.5"
_EVENT = re.compile(
    rb":::MLPv0\.5\.\d{1,3} ([A-Za-z0-9_-]{1,80}) ([0-9.]{1,30}) "
    rb"\(([^)\r\n]{0,200})\) ([A-Za-z0-9_]{1,80})(: *)?"
)
"""Pattern of an event up to its value: benchmark, time, place, key, and the colon before a value."""
_RENAMED = {
    "run_set_random_seed": "seed",
    "input_batch_size": "global_batch_size",
}
"""Later rounds' names of events, by the name in round 0.5."""
_ENDS = ("run_stop", "run_final")
"""Events that state how a run ended."""
TARGETS_05: Mapping[str, tuple[QualityTarget, ...]] = {
    "gnmt": (QualityTarget(21.7999),),
    "ncf": (QualityTarget(0.635),),
    "resnet": (QualityTarget(0.749),),
    "ssd": (QualityTarget(0.212),),
    "transformer": (QualityTarget(25.0),),
}
"""Targets of round 0.5, as stated in its logs. gnmt's 21.8 is slightly less in single precision."""


class Mlp05Parser(Events):
    """The parser of the events of round 0.5."""

    format: ClassVar[str] = "mlp05"
    description: ClassVar[str] = "MLPerf training 0.5"
    targets: Mapping[str, tuple[QualityTarget, ...]] = TARGETS_05

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Return whether the bytes contain an event of round 0.5."""
        return TOKEN in head

    def block(self, data: bytes) -> None:
        """Read the events."""
        position = data.find(TOKEN)
        while position >= 0:
            end = data.find(b"\n", position)
            end = len(data) if end < 0 else end
            following = data.find(TOKEN, position + len(TOKEN), end)
            self.one_event(data[position : following if following >= 0 else end], position)
            position = data.find(TOKEN, position + len(TOKEN))
        self.block_done()

    def one_event(self, raw: bytes, position: int) -> None:
        """Read one event. A value that is an object also counts as the event's metadata."""
        head = _EVENT.match(raw)
        if head is None:
            self.unreadable(raw, position)
            return
        key = head[4].decode("ascii")
        key = _RENAMED.get(key, key)
        value: object = None
        payload = raw[head.end() :].strip()
        if head[5] and payload:
            try:
                value = _decode_value(payload)
            except KeyTwiceError:
                self.key_twice(b'"key": "' + key.encode() + b'" ' + payload, position)
                return
            except ValueError:
                self.unreadable(b'"key": "' + key.encode() + b'" ' + payload, position)
                return
        self.log.tag("submission_benchmark", head[1].decode("ascii"))
        if key == "run_start":
            # Other events may be of a part of the model, and name the benchmark that the part is from.
            self.note_benchmark(head[1].decode("ascii"))
        time = number(head[2].decode("ascii"))
        if key in _ENDS:
            value = _end_value(value)
            if key == "run_final" and not self._counts_as_end(value):
                return
        self.event(key, value, value if isinstance(value, dict) else {}, time, position)

    def _counts_as_end(self, value: Mapping[str, object]) -> bool:
        """Return whether a run_final counts as the run's end.

        Before run_stop, it counts only if it states a failure. After run_stop, it counts if it states an
        outcome or has no value.
        """
        if self.run_stop is None:
            outcome = str(value.get("status", value.get("success", True))).strip().lower()
            return outcome not in ("true", "1", "success")
        return not value or not {"success", "status"}.isdisjoint(value)

    def on_run_stop(
        self, key: str, value: object, meta: Mapping[str, object], time: float, position: int
    ) -> None:
        """Store the end of the run. An outcome that cannot be read leaves the run unproven."""
        super().on_run_stop(key, value, meta, time, position)
        stated = value.get("success") if isinstance(value, dict) else None
        if stated not in (None, "") and self.last_outcome == "":
            message = f"{key} states an outcome that is neither true nor false: {text_of(stated, 40)}"
            self.log.find("no_status", message, Verdict.UNPROVEN, line=self.log.line_at(position))


def _end_value(value: object) -> Mapping[str, object]:
    """Return the value of an end as an object with the outcome, which is empty if none is stated.

    A bare word states the outcome, too. In some logs, run_stop gives only the time of the end, and run_final
    gives the outcome.
    """
    if isinstance(value, dict):
        return value
    word = str(value).strip().lower() if isinstance(value, str | bool) else ""
    if word in ("true", "false"):
        return {"success": value}
    return {"status": value} if word else {}


def _decode_value(payload: bytes) -> object:
    """Return the value after an event's key: JSON, or a bare word, which round 0.5 also writes.

    Raises:
        KeyTwiceError: An object contains a key twice.
        ValueError: A number, text or object cannot be read.
    """
    try:
        value: object = orjson.loads(payload)
    except ValueError:
        try:
            return decode_leniently(payload)[0]
        except KeyTwiceError:
            raise
        except ValueError:
            if payload[:1] in b'{["':
                raise
            return payload[:200].decode("utf-8", "replace")
    if isinstance(value, dict) and has_key_twice(payload, value):
        raise KeyTwiceError("has a key twice")
    return value
