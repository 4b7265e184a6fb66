"""Build the valid inputs that the fuzzers damage: a node's answer, a log, and definitions of benchmarks."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from rackproof.nodes.answer_seal import sealed_answer
from tests.nodes.health.healthy import EPOCH, answer_ok, healthy_gathered


def healthy_answer(number: int) -> dict[str, Any]:
    """Return what ``rackproof_facts`` answers on a healthy node with two GPUs.

    Args:
        number: The node's number, which its UUIDs and serial numbers contain.
    """
    gathered = healthy_gathered(number, gpus=2, log="1794999990.000001 n kernel: hello\n")
    gathered["health"]["tools"]["units"] = answer_ok(_unit("active"))
    return sealed_answer(gathered)


def _unit(state: str) -> str:
    return f"Id=docker.service\nLoadState=loaded\nUnitFileState=enabled\nActiveState={state}\n"


def with_faults(healthy: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a copy of a healthy answer for each fault in the table below."""
    smi = healthy["facts"]["tools"]["nvidia_smi_xml"]["stdout"]
    links = healthy["health"]["tools"]["nvlink_status"]["stdout"]
    tools = ("health", "tools")
    kernel_log, gpus = (*tools, "kernel_log", "stdout"), ("facts", "tools", "nvidia_smi_xml", "stdout")
    for place, value in (
        (kernel_log, "1794999990.0 n kernel: NVRM: Xid (PCI:0000:06:00): 79, lost\n"),
        (kernel_log, "1794999990.0 n kernel: NVRM: Xid (PCI:0000:06:00): 13, x\n"),
        (kernel_log, "1794999990.0 n kernel: mce: [Hardware Error]: CPU 1: Machine Check: 0\n"),
        ((*tools, "kernel_log", "truncated"), True),
        ((*tools, "failed_units", "stdout"), "\u25cf nvidia-persistenced.service loaded failed failed x\n"),
        ((*tools, "units", "stdout"), _unit("inactive")),
        ((*tools, "clock", "stdout"), "NTPSynchronized=no\n"),
        ((*tools, "nvlink_status", "stdout"), links.replace("50 GB/s", "<inactive>", 1)),
        (gpus, smi.replace("<remapped_row_pending>No", "<remapped_row_pending>Yes", 1)),
        (gpus, smi.replace("<gpu_temp_tlimit>30", "<gpu_temp_tlimit>4", 1)),
        (("facts", "tools", "nvidia_smi_xml", "status"), "hung"),
        (("facts", "memlock_bytes"), 65536),
        (("facts", "shm_bytes"), 1 << 20),
        (("facts", "files", "mountinfo"), "22 1 8:1 / /other rw - ext4 /dev/sda1 rw\n"),
        (("node", "modules", "nvidia"), "570.1"),
        (("node", "clock", "epoch"), EPOCH + 100),
        (("health", "hca", "mlx5_0", "1", "state"), "1: DOWN"),
        (("health", "hca", "mlx5_0", "1", "rate"), "100 Gb/sec (4X EDR)"),
        (("health", "hca", "mlx5_0", "1", "counters", "symbol_error"), 999),
        (("health", "pci", "0000:03:00.0", "current_link_width"), "4"),
        (("health", "disk", "/", "free_bytes"), 1),
        (("health", "disk", "/", "free_inodes"), 0),
        (("health", "disk", "/", "read_only"), True),
    ):  # fmt: skip
        answer = copy.deepcopy(healthy)
        answer.pop("seal")
        holder = answer
        for key in place[:-1]:
            holder = holder[key]
        holder[place[-1]] = value
        yield sealed_answer(answer)


def run_sub_log() -> str:
    """Return the log of a successful job of three nodes that run.sub started.

    The NCCL preflight in it has only the ranks of two nodes, which is enough for a fuzzer.
    """
    end = {
        "job": "7",
        "state": "COMPLETED",
        "exit_code": "0:0",
        "nodes": ["n1", "n2", "n3"],
        "steps": [
            {"step": "1", "nodes": "n[1-3]", "state": "COMPLETED", "exit_code": "0:0", "elapsed_s": 60,
             "start": 1700000020},
        ],
    }  # fmt: skip
    row = "  1073741824  536870912  half  sum  -1 2473.5  434.10  759.67      0   2449.0  438.44  767.27    0"
    return f"""\
:::RACKPROOF {{"image": "r/x", "digest": "sha256:ab"}}
PROLOG_START 1700000000
NCCL_TEST = 1
NCCL_TEST_START 1700000005
# nThread 1 nGpus 1 minBytes 1073741824 maxBytes 1073741824 step: 2(factor) validation: 1 graph: 0
#  Rank  0 Group  0 Pid   4000 on n1 device  0 [0x1b] NVIDIA GB300
#  Rank  1 Group  0 Pid   4001 on n1 device  1 [0x3b] NVIDIA GB300
#  Rank  2 Group  0 Pid   4002 on n1 device  2 [0x5b] NVIDIA GB300
#  Rank  3 Group  0 Pid   4003 on n1 device  3 [0x7b] NVIDIA GB300
#  Rank  4 Group  0 Pid   4004 on n2 device  0 [0x1b] NVIDIA GB300
#  Rank  5 Group  0 Pid   4005 on n2 device  1 [0x3b] NVIDIA GB300
#  Rank  6 Group  0 Pid   4006 on n2 device  2 [0x5b] NVIDIA GB300
#  Rank  7 Group  0 Pid   4007 on n2 device  3 [0x7b] NVIDIA GB300
#       size         count    type   redop    root   time   algbw   busbw #wrong   time   algbw   busbw #wrong
{row}
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 763.470
NCCL_TEST_STOP 1700000015
PROLOG_STOP 1700000016
EXPERIMENT_START 1700000016
:::DLPAL image#x 7 3 n[1-3] 'unknown' GB300_3x4x1
Clearing cache on n1
Clearing cache on n2
Clearing cache on n3
vm.drop_caches = 3
vm.drop_caches = 3
vm.drop_caches = 3
RUNANDTIME_START 1700000020
0: All distributed processes registered. Starting with 12 processes
0: :::MLLOG {{"key": "eval_accuracy", "value": 0.92, "metadata": {{"samples_count": 3072}}}}
RUNANDTIME_STOP 1700000080
:::RACKPROOF {json.dumps({"end": end})}
"""


def definition_of(number: int) -> dict[str, Any]:
    """Return one of three definitions: 0 is a single run, 1 has a matrix, and 2 runs on all GPUs."""
    launch: dict[str, Any] = {
        "with": "local",
        "runtime": "torch",
        "program": "train.py",
        "timeout_s": 60,
        "hang_s": 5,
    }
    result: dict[str, Any] = {
        "format": "mllog",
        "judge": [
            {"metric": "eval_accuracy", "at_least": 0.9},
            {"metric": "speed", "unit": "samples/s", "direction": "higher", "optional": True},
        ],
    }
    single_run = {
        "name": "fuzzed",
        "summary": "Trains",
        "parameters": {"gpus": 0},
        "launch": launch,
        "result": result,
    }
    matrix = {
        **single_run,
        "parameters": {"gpus": 0, "batch": 32},
        "launch": {**launch, "arguments": {"batch": "{{ batch }}"}},
        "matrix": {"batch": [1, 2, 3]},
        "suites": {"quick": {}},
    }
    all_gpus = {
        **single_run,
        "parameters": {"gpus": "all"},
        "result": {
            **result,
            "states_run": True,
            "judge": [{"metric": "speed", "unit": "T", "direction": "higher", "per": "gpu"}],
        },
    }
    return (single_run, matrix, all_gpus)[number]
