"""Open addresses of servers that may be slow, silent or never finish, within limits of rate, time and size.

Programs of this folder that download something themselves, and not by pip or Docker, call
:func:`open_limited`. urllib only limits the time between two bytes, so it accepts a server that sends one
byte every ten seconds. The limits here include the status line, headers, redirects and the sizes of chunks.
For the rate, only the time spent waiting for the server counts. The module needs only the standard library of
Python 3.8 or newer.
"""

from __future__ import annotations

import argparse
import http.client
import io
import time
import urllib.request
from dataclasses import dataclass
from typing import Any

SILENT_S = 60.0
"""Largest time in seconds between two bytes, and for making a connection."""
_OVERHEAD_BYTES = 1 << 20
"""Room for headers, redirects and the sizes of chunks, in addition to the content of an answer."""
_BUFFER_BYTES = 1 << 16


class LimitError(OSError):
    """A server that is too slow, or whose answer is too long. The text gives the address and the limit."""


@dataclass
class Limits:
    """The limits of one download.

    Attributes:
        min_bytes_per_s: The lowest rate in each window. 0 means no limit.
        timeout_s: The largest time from beginning to end.
        most_bytes: The largest size of the content.
        window_s: The least waiting time over which the rate is measured. The first bytes do not count.
    """

    min_bytes_per_s: int = 1000
    timeout_s: int = 21600
    most_bytes: int = 1 << 40
    window_s: float = 60.0


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the options that set the limits of rate and time of a program's downloads."""
    default = Limits()
    parser.add_argument(
        "--min-bytes-per-s", type=int, default=default.min_bytes_per_s, help="lowest rate of a download"
    )
    parser.add_argument("--timeout-s", type=int, default=default.timeout_s, help="largest time of a download")


class _Pace:
    """The progress of one download, over all its connections."""

    def __init__(self, url: str, limits: Limits) -> None:
        self.url, self.limits = url, limits
        self.begin = time.monotonic()
        self.total = self.window_bytes = 0
        self.window_waited = 0.0

    def note(self, count: int, waited_s: float) -> None:
        """Count bytes that arrived. Raise LimitError if a limit is exceeded."""
        limits = self.limits
        if time.monotonic() - self.begin > limits.timeout_s:
            raise LimitError(
                f"{self.url} did not end within {limits.timeout_s:g} s ({self.total:,} bytes arrived); "
                "bench_download_timeout_s sets the limit"
            )
        self.total += count
        if self.total > limits.most_bytes + _OVERHEAD_BYTES:
            raise LimitError(f"{self.url} sends more than {limits.most_bytes:,} bytes")
        # The first bytes do not count for the rate, because a server may need to fetch the file first.
        if self.total > count:
            self.window_bytes += count
            self.window_waited += waited_s
        if count and self.window_waited >= limits.window_s:
            self._check_rate()

    def _check_rate(self) -> None:
        """Start a new window, or raise LimitError if the server was too slow in the last one."""
        rate = self.window_bytes / self.window_waited
        if rate < self.limits.min_bytes_per_s:
            raise LimitError(
                f"{self.url} sends {rate:.3g} bytes/s, less than {self.limits.min_bytes_per_s} over "
                f"{self.window_waited:.0f} s; bench_download_min_bytes_per_s sets the limit"
            )
        self.window_bytes, self.window_waited = 0, 0.0


class _PacedStream(io.RawIOBase):
    """The bytes of a connection. Each read is checked against the limits of time, size and rate."""

    def __init__(self, raw: Any, pace: _Pace) -> None:
        super().__init__()
        self._raw, self._pace = raw, pace

    def readable(self) -> bool:
        """Return True, because the stream can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for bytes, read them, and check the limits."""
        begin = time.monotonic()
        count = self._raw.readinto(buffer) or 0
        self._pace.note(count, time.monotonic() - begin)
        return count

    def close(self) -> None:
        """Close the stream and the connection."""
        self._raw.close()
        super().close()


def open_limited(
    request: str | urllib.request.Request,
    limits: Limits,
    *handlers: urllib.request.BaseHandler,
) -> Any:
    """Open an address as ``urllib.request.urlopen`` does. Over HTTP, the limits apply to its answer, too.

    The caller checks the scheme of the address, because only HTTP and HTTPS have limits. FTP is refused,
    because a server may redirect to it. The caller may add handlers, for example for redirects.

    Raises:
        LimitError: The server exceeds a limit, also while the answer is read.
        OSError: The address cannot be opened, or the server sends nothing for :data:`SILENT_S`, also while
            the answer is read.
    """
    url = request if isinstance(request, str) else request.full_url
    pace = _Pace(url, limits)

    class Response(http.client.HTTPResponse):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.fp = io.BufferedReader(_PacedStream(self.fp.detach(), pace), _BUFFER_BYTES)

    class Connection(http.client.HTTPConnection):
        response_class = Response

    class HttpsConnection(http.client.HTTPSConnection):
        response_class = Response

    class Handler(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> Any:
            return self.do_open(Connection, req)

    class HttpsHandler(urllib.request.HTTPSHandler):
        def https_open(self, req: urllib.request.Request) -> Any:
            return self.do_open(HttpsConnection, req)

    class FtpHandler(urllib.request.FTPHandler):
        def ftp_open(self, req: urllib.request.Request) -> Any:
            raise OSError(f"{url} leads to {req.full_url[:200]!r}, which is not followed: FTP has no limits")

    opener = urllib.request.build_opener(Handler(), HttpsHandler(), FtpHandler(), *handlers)
    return opener.open(request, timeout=min(SILENT_S, limits.timeout_s))
