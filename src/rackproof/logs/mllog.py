"""MLLOG, the notation of MLPerf training 4.x to 6.x and of Rackproof's own workloads.

``:::MLLOG {"namespace": "", "time_ms": 1759852232919, "event_type": "POINT_IN_TIME", "key": …}``
"""

from __future__ import annotations

import math
from typing import BinaryIO, ClassVar

import orjson

from rackproof.logs._mlperf import Events, decode_leniently
from rackproof.logs._reading import number, run_parser
from rackproof.records import ParsedLog

TOKEN = b":::MLLOG"


class Parser(Events):
    """Reads the events between everything else that a job prints."""

    format: ClassVar[str] = "mllog"

    def block(self, data: bytes) -> None:
        """Find the tokens; nothing else of the block is looked at here."""
        find, loads, event = data.find, orjson.loads, self.event
        position = find(TOKEN)
        size = len(data)
        while position >= 0:
            end = find(b"\n", position)
            if end < 0:
                end = size
            payload = data[position + 8 : end]
            following = find(TOKEN, position + 8)
            if 0 <= following < end:
                # Two ranks on one line: the first event ends where the second begins.
                payload = data[position + 8 : following]
            try:
                entry = loads(payload)
                time_ms = entry["time_ms"]
                if type(time_ms) is int:
                    event(entry["key"], entry["value"], entry.get("metadata"), time_ms / 1000, position)
                else:
                    self.lenient(payload, position)
            except (ValueError, KeyError, TypeError, AttributeError):
                self.lenient(payload, position)
            position = following

    def lenient(self, payload: bytes, position: int) -> None:
        """Read an event that is not strict JSON of the usual shape; note what is wrong with it."""
        start = payload.find(b"{")
        if start < 0:
            self.unreadable(payload, position)
            return
        try:
            entry, what = decode_leniently(payload[start:])
        except ValueError:
            self.unreadable(payload, position)
            return
        if not isinstance(entry, dict) or not isinstance(entry.get("key"), str):
            self.unreadable(payload, position, "is no event")
            return
        time_ms = number(entry.get("time_ms"))
        if time_ms is not None and (not math.isfinite(time_ms) or not 0 < time_ms < 1e15):
            time_ms = None
        line = self.log.line_at(position)
        self.log.find("ugly_line", f"an event line {what}", line=line, excerpt=payload)
        seconds = None if time_ms is None else time_ms / 1000
        self.event(entry["key"][:100], entry.get("value"), entry.get("metadata"), seconds, position)


def parse(stream: BinaryIO, name: str = "") -> ParsedLog:
    """Return what an MLLOG log says."""
    return run_parser(Parser, stream, name)


def recognise(head: bytes) -> bool:
    """Whether the bytes hold an MLLOG event."""
    return TOKEN in head
