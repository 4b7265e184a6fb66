"""Limit the time of a call to a BMC, object store, webhook or mail server.

The libraries limit only the time between two bytes of an answer, not the time of the whole call. Job reimage
calls :func:`answer_within` for BMCs, ``rackproof nightly`` for webhooks and mail servers, and the upload of
results for object stores.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_Answer = TypeVar("_Answer")


def answer_within(limit_s: float, ask: Callable[[], _Answer]) -> _Answer:
    """Return the result of a function, or raise its exception.

    Args:
        limit_s: The number of seconds to wait.
        ask: The function, which runs in a thread of its own. After the limit, this thread continues, but
            its result is lost.

    Raises:
        TimeoutError: The function does not end within ``limit_s`` seconds.
    """
    answer: Future[_Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    # A server that sends a byte now and then could block the caller for hours. A thread cannot be ended, but
    # nothing has to wait for it, and as a daemon it does not keep the process alive.
    threading.Thread(target=run, daemon=True).start()
    return answer.result(limit_s)
