"""Parse MLLOG, the notation of MLPerf Training 0.7 to 6.x and of Rackproof's own workloads.

:func:`rackproof.logs.parse` creates the parser. An event is one line, with a time in milliseconds since 1970:

    :::MLLOG {"namespace": "", "time_ms": 1759852232919, "event_type": "POINT_IN_TIME",
              "key": "eval_accuracy", "value": 0.921, "metadata": {"samples_count": 3072}}
"""

from __future__ import annotations

import math
from itertools import islice
from typing import ClassVar

import orjson

from rackproof.logs._mlperf import WATCHED, Events, KeyTwiceError, decode_leniently, has_key_twice
from rackproof.logs._reading import EVENT_TOKEN, number

TOKEN = b":::MLLOG"
_TOKEN_LENGTH = len(EVENT_TOKEN)
_REST_OF_NAME = len(TOKEN) - _TOKEN_LENGTH
"""Number of bytes of :data:`TOKEN` (``LOG``) after the token at which :class:`Log` splits blocks."""


class MllogParser(Events):
    """The parser of events among all other output of a job."""

    format: ClassVar[str] = "mllog"
    description: ClassVar[str] = "MLPerf training 0.7 to 6.x and Rackproof's own workloads"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Return whether the bytes contain an MLLOG event."""
        return TOKEN in head

    def block(self, data: bytes) -> None:
        """Decode the events in the log's current block. Its other text is not examined here."""
        loads, event, take, log = orjson.loads, self.event, self.take_stat, self.log
        curves = self.tracked
        following = len(log.pieces[0])
        for piece, end in zip(islice(log.pieces, 1, None), log.ends, strict=True):
            position, following = following, following + _TOKEN_LENGTH + len(piece)
            try:
                entry = loads(piece[_REST_OF_NAME:end])
                time_ms, key, value = entry["time_ms"], entry["key"], entry["value"]
            except (ValueError, KeyError, TypeError):
                self.lenient(piece[_REST_OF_NAME:end], position)
                continue
            if type(time_ms) is not int or type(key) is not str:
                self.lenient(piece[_REST_OF_NAME:end], position)
                continue
            metadata = entry.get("metadata")
            # Each key is followed by a colon. Few lines contain other colons, so the call is rarely needed.
            keys = len(entry) + (len(metadata) if type(metadata) is dict else 0)
            keys += len(value) if type(value) is dict else 0
            if piece.count(b":", _REST_OF_NAME, end) != keys and has_key_twice(
                piece[_REST_OF_NAME:end], entry
            ):
                self.key_twice(piece[_REST_OF_NAME:end], position)
            elif key == "tracked_stats" and self.is_steady and (time := time_ms / 1000) >= self.latest:
                # Four of five events get here and skip the dispatcher.
                self.latest = time
                for name in value if type(value) is dict else ():  # not items(): most hold nothing to keep
                    if name in curves:
                        take(name, curves[name], value[name], metadata, time, position)
                    elif name in WATCHED:
                        self.take_watched(name, value[name], time, position)
            else:
                event(key, value, metadata, time_ms / 1000, position)
        self.block_done()

    def lenient(self, payload: bytes, position: int) -> None:
        """Read an event that is not strict JSON of the usual shape, and record its defect, if it has one."""
        start = payload.find(b"{")
        if start < 0:
            self.unreadable(payload, position)
            return
        try:
            entry, defect = decode_leniently(payload[start:])
        except KeyTwiceError:
            self.key_twice(payload, position)
            return
        except ValueError:
            self.unreadable(payload, position)
            return
        if not isinstance(entry, dict) or not isinstance(entry.get("key"), str):
            self.unreadable(payload, position, "is not an event")
            return
        time_ms = _milliseconds(entry)
        if time_ms is not None and (not math.isfinite(time_ms) or not 0 < time_ms < 1e15):
            time_ms = None
        line = self.log.line_at(position)
        if defect:
            self.log.find("ugly_line", f"an event line {defect}", line=line, excerpt=payload)
        seconds = None if time_ms is None else time_ms / 1000
        self.event(entry["key"][:100], entry.get("value"), entry.get("metadata"), seconds, position)


def _milliseconds(entry: dict[str, object]) -> float | None:
    """Return an event's time in milliseconds, or None if it has none.

    A submitter of 0.7 logged seconds, under the key ``time_s``.
    """
    if "time_ms" in entry or "time_s" not in entry:
        return number(entry.get("time_ms"))
    seconds = number(entry["time_s"])
    return None if seconds is None else seconds * 1000
