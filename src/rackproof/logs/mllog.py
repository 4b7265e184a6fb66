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
        """Decode the events; nothing else of the block is looked at here."""
        loads, event, tracked = orjson.loads, self.event, self.on_tracked_stats
        for position, end in self.log.events:
            try:
                entry = loads(data[position + 8 : end])
                time_ms, key, value = entry["time_ms"], entry["key"], entry["value"]
            except (ValueError, KeyError, TypeError):
                self.lenient(data[position + len(TOKEN) : end], position)
                continue
            if type(time_ms) is not int or type(key) is not str:
                self.lenient(data[position + len(TOKEN) : end], position)
                continue
            time = time_ms / 1000
            if key == "tracked_stats":
                # Four events of five: spared the way through the dispatcher.
                self.pass_time(time, position)
                tracked(key, value, {}, time, position)
            else:
                event(key, value, entry.get("metadata"), time, position)
        self.block_done()

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
        if what:
            self.log.find("ugly_line", f"an event line {what}", line=line, excerpt=payload)
        seconds = None if time_ms is None else time_ms / 1000
        self.event(entry["key"][:100], entry.get("value"), entry.get("metadata"), seconds, position)


def parse(stream: BinaryIO, name: str = "") -> ParsedLog:
    """Return what an MLLOG log says."""
    return run_parser(Parser, stream, name)


def recognise(head: bytes) -> bool:
    """Whether the bytes hold an MLLOG event."""
    return TOKEN in head
