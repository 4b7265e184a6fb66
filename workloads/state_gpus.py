#!/usr/bin/env python3
"""Print what uses the first GPUs of this node, for logs without MLLOG events.

    state_gpus.py --moment begin --gpus 4

For each GPU, a line is printed with `:::RACKPROOF gpu_state` and a JSON object, which is the value of the
probes' event of this name. mnist_mxnet.py, mpirun_tf_cnn.py and run_command.py, which launch other programs,
print the lines before that program starts and after it ended well. For a GPU that the driver does not list,
no line is printed, and the run is then unproven. The program needs only the standard library of Python 3.8 or
newer.

Exit status: 0 done, 2 usage, 4 the driver reports an error.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping

import common
import gpu_state

PREFIX = ":::RACKPROOF gpu_state "
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def print_states(moment: str, uuids: Iterable[str]) -> None:
    """Print the states of GPUs.

    Args:
        moment: ``begin`` or ``end`` of the run.
        uuids: The UUIDs of the GPUs.
    """
    for state in gpu_state.read_states(uuids):
        print(PREFIX + json.dumps({"moment": moment, **state}), flush=True)


def run_between(run: Callable[[], int], states: Callable[[str], None]) -> int:
    """Run a program between two readings of its GPUs, and return its exit status.

    Args:
        run: A function that runs the program, and returns its exit status. After any but 0, nothing is read.
        states: A function that prints the states of a moment.
    """
    states("begin")
    status = run()
    if status == 0:
        # For some time, nvidia-smi's utilisation still includes the processes that ended.
        time.sleep(gpu_state.SETTLE_S)
        states("end")
    return status


def run_child(words: list[str], environment: Mapping[str, str]) -> int:
    """Run a program, and return its exit status as a shell does. Signals to end are sent on to it."""
    process = subprocess.Popen(words, env=dict(environment))
    before = {one: signal.signal(one, lambda number, _: process.send_signal(number)) for one in _FORWARDED}
    status = process.wait()
    for one, handler in before.items():
        signal.signal(one, handler)
    return status if status >= 0 else 128 - status


def main() -> int:
    """Print the lines of one moment. Return the exit status."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--moment", choices=("begin", "end"), required=True, help="of the run")
    arguments.add_argument("--gpus", type=int, required=True, help="number of GPUs, from the first")
    options = arguments.parse_args()
    try:
        gpus = common.gpus()
    except common.Refusal as refusal:
        print(f"error: {refusal}", file=sys.stderr, flush=True)
        return refusal.status
    print_states(options.moment, [gpu.uuid for gpu in gpus[: options.gpus]])
    return 0


if __name__ == "__main__":
    sys.exit(main())
