"""Start the command ``rackproof``.

Its imports take up to a second. Ctrl-C during that time would print a traceback of the import. Until a
command starts, SIGINT therefore ends the process at once, as it ends any program that is not in Python.
"""

from __future__ import annotations

import signal


def run() -> None:
    """Run the command of the command line, and end the process with its exit status."""
    # A background job of a shell ignores SIGINT, and has to go on doing so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from rackproof.cli.main import main

    main()
