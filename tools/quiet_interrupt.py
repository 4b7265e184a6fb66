"""End a tool that imports this module without a traceback after Ctrl-C.

A tool imports this module before its slow imports. Temporary files are still removed, and the exit status is
the status of a program that SIGINT ended.
"""

import sys
from types import TracebackType


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error, or one word after Ctrl-C."""
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _show
