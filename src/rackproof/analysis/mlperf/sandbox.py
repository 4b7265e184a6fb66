"""Run MLPerf's tools in a separate process with limits on time, memory and files.

The tools change global state, print, may crash, and may take very long on hostile logs. Scores and
submissions call :func:`run_in_sandbox`, which starts one of the two modules named ``worker``. That module
calls :func:`serve_job`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import rackproof
from rackproof.core.text import sanitize

# Limits against logs that would exhaust the machine. The largest folder of a full round needs a tenth of
# them.
_MEMORY_BYTES = 8 << 30
_FILE_BYTES = 2 << 30
_GRACE_S = 5
"""The process ends itself this many seconds after the time limit, if the caller was killed before."""
_TAIL_BYTES = 2000
"""The last error line is searched in this many bytes at the end of standard error."""


class SandboxExit(NamedTuple):
    """The end of a sandbox's process.

    ``timed_out`` is whether the time limit stopped the process. ``status`` is its exit status, or the
    negative number of the signal that ended it. ``last_error`` is the last line of its standard error.
    """

    timed_out: bool
    status: int
    last_error: str


def run_in_sandbox(
    module: str,
    job: Mapping[str, Any],
    work: Path,
    *,
    timeout_s: float,
    on_answer: Callable[[bytes], None],
) -> SandboxExit:
    """Run a job of a module in a separate process, and end that process before returning.

    If the caller is killed, an alarm ends the separate process a few seconds after the time limit.

    Args:
        module: The module to start, which calls :func:`serve_job`.
        job: The job, as JSON values.
        work: The working folder of the process.
        timeout_s: The number of seconds after which the process is stopped.
        on_answer: A function that is called with each line of the job's answer. The time limit may cut
            the last line off.
    """
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(  # noqa: S603  (callers name modules of this package)
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=work,
            env=worker_environment(),
            start_new_session=True,
        )
        timed_out = threading.Event()

        def stop() -> None:
            timed_out.set()
            _kill(process)

        timer = threading.Timer(timeout_s, stop)
        timer.start()
        try:
            _exchange(process, {**job, "alarm_s": math.ceil(timeout_s) + _GRACE_S}, on_answer)
            process.wait()
        finally:
            timer.cancel()
            _kill(process)
            process.wait()
        return SandboxExit(timed_out.is_set(), process.returncode, _last_line(errors))


def worker_environment() -> dict[str, str]:
    """Return the environment of the process: no secrets, one thread, and this package's path."""
    inherited = {
        key: os.environ[key] for key in ("PATH", "LANG", "TMPDIR", "LD_LIBRARY_PATH") if key in os.environ
    }
    package_parent = str(Path(rackproof.__file__).resolve().parent.parent)
    search = [package_parent, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return inherited | {
        "PYTHONPATH": os.pathsep.join(part for part in search if part),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }


def _exchange(
    process: subprocess.Popen[bytes], job: Mapping[str, Any], on_answer: Callable[[bytes], None]
) -> None:
    """Pass the job to the process, and its answers to the caller, until the process closes its output."""
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the worker was started without pipes")
    # A process that ended at once no longer reads standard input. Its exit status explains why.
    with process.stdin as stdin, contextlib.suppress(BrokenPipeError):
        stdin.write(json.dumps(job).encode())
        stdin.close()
    with process.stdout as stdout:
        for line in stdout:
            on_answer(line)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that still runs, with the processes that it started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _last_line(errors: IO[bytes]) -> str:
    """Return the last line of the process's standard error, or "it printed nothing"."""
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - _TAIL_BYTES))
    lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    return sanitize(lines[-1]) if lines else "it printed nothing"


def serve_job(work: Callable[[Mapping[str, Any], Callable[[str], None]], None]) -> None:
    """Read the job on standard input, and do it under the sandbox's limits of memory, file size and time.

    Args:
        work: A function that is called with the job and a function that answers one line to the
            caller.
    """
    # The tools print. Only answers may reach the caller.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    def answer(line: str) -> None:
        answers.write(line + "\n")
        answers.flush()

    job = json.loads(sys.stdin.buffer.read())
    # If the caller was killed, only this alarm stops this process.
    signal.alarm(int(job["alarm_s"]))
    for kind, limit in ((resource.RLIMIT_AS, _MEMORY_BYTES), (resource.RLIMIT_FSIZE, _FILE_BYTES)):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    work(job, answer)
