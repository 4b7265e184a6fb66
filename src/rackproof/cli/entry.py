"""Start the command ``rackproof``.

The imports of the command take up to a second. Ctrl-C during that time would print a traceback of the import.
Until a command starts, and after its end, SIGINT therefore ends the process at once, which is the system's
default. A command itself may clean up (:mod:`rackproof.cli.main`).
"""

# The import of `signal` would take longer than everything before this line. Its part in C is loaded already.
import _signal as signal  # type: ignore[import-not-found]

# A background job of a shell ignores SIGINT, and has to go on doing so.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run() -> None:
    """Run the command of the command line, and end the process with its exit status."""
    from rackproof.cli.main import main

    try:
        main()
    finally:
        # Python's own end takes time, too, and joins threads.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
