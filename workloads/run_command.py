"""Run a program of the node, and state which file it was.

bench.yml starts this program for a definition with `launch.command`, which names the other program. A line
with the path and digest of that program begins the log, because another build is another program. The output
follows unchanged. If RACKPROOF_START_FOLDER is set, the program starts in that folder, and a relative path of
the program begins there. If RACKPROOF_STATE_GPUS is set to a number of GPUs, lines before and after the
output state what uses that many GPUs, counted from the first (state_gpus.py). This program needs only the
standard library of Python 3.8 or newer.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys

import common
import state_gpus

MISSING = 9
"""Exit status if the program or its folder is not on the node, or the program cannot be started. It proves
neither success nor failure."""
START_FOLDER = "RACKPROOF_START_FOLDER"
STATE_GPUS = "RACKPROOF_STATE_GPUS"


def digest_of(path: str) -> str:
    """Return the SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def run_stating_gpus(command: list[str], count: int) -> int:
    """Run a command between two statements of what uses the first GPUs. Return its exit status.

    Without a driver, nothing is stated. If ``count`` is 0, only the command runs.
    """

    def run() -> int:
        return subprocess.call(command, stdin=subprocess.DEVNULL)

    def print_states(moment: str) -> None:
        try:
            uuids = [gpu.uuid for gpu in common.gpus()[:count]]
        except common.Refusal as refusal:
            print(f"rackproof: the states of the GPUs cannot be read: {refusal}", flush=True)
        else:
            # The last line of the program's output may have no newline.
            print(end="\n" if uuids and moment == "end" else "")
            state_gpus.print_states(moment, uuids)

    return state_gpus.run_between(run, print_states) if count else run()


def main(command: list[str]) -> int:
    """Run the command. Return the exit status, which is 0 only if the command's is 0."""
    if not command:
        print("rackproof: no command to run: the definition's `launch.command` is empty", flush=True)
        return 2
    folder = os.environ.get(START_FOLDER)
    if folder:
        try:
            os.chdir(folder)
        except OSError as error:
            print(f"rackproof: {command[0]} cannot start in {folder}: {error.strerror}", flush=True)
            return MISSING
    program = shutil.which(command[0])
    if program is None:
        print(
            f"rackproof: {command[0]} is not on this node (PATH={os.environ.get('PATH', '')}): install it, "
            "or give its whole path in `launch.command`",
            flush=True,
        )
        return MISSING
    path = os.path.realpath(program)
    try:
        print(f"rackproof: program {path}, sha256 {digest_of(path)}", flush=True)
        status = run_stating_gpus([program, *command[1:]], int(os.environ.get(STATE_GPUS) or 0))
    except OSError as error:
        print(f"rackproof: {path} cannot be run: {error.strerror}", flush=True)
        return MISSING
    if status < 0:
        # End by the same signal, so that the process that started this one sees it, too.
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    if status:
        print(f"rackproof: {path} ended with exit status {status}", flush=True)
    # Only Rackproof's own programs give other statuses a meaning (docs/extending/workloads.md).
    return min(status, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
