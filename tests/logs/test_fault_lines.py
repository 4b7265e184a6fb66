"""Test that :mod:`rackproof.logs.fault_texts` finds a fault's line in a training log that reports success.

A log may state that the run reached its target although a GPU, a rank or a node failed. These tests insert
one line into a published MLPerf log, and check the verdict. Faults of hardware also count after the end of
the run, where crashes of processes are only its teardown. Harmless lines count nowhere.
"""

from __future__ import annotations

import io
import lzma
from pathlib import Path

import pytest

from rackproof import logs
from rackproof.core.records import ParsedLog, Verdict

FAIL, UNPROVEN, DEGRADED = Verdict.FAIL, Verdict.UNPROVEN, Verdict.DEGRADED
LOG = "tests/data/real/mlperf-5.1/lambda-gb300-n18/llama2_70b_lora/result_1.txt.xz"
OLD_LOG = "tests/data/real/mlperf-0.6/translation/DGX1.log"
WARN = "node02:123:456 [2] {} NCCL WARN {}"

ALWAYS = [
    ("CUDA error: uncorrectable ECC error encountered", "ecc_error"),
    ("3: RuntimeError: CUDA error: uncorrectable ECC error was encountered", "ecc_error"),
    (WARN.format("init.cc:9", "Cuda failure 'uncorrectable ECC error encountered'"), "ecc_error"),
    ("NVRM: Xid (PCI:0009:01:00): 79, pid=1, GPU has fallen off the bus.", "xid_reset"),
    ("[ 99.1] NVRM: Xid (PCI:0009:01:00): 48, pid=1, Double Bit ECC Error", "xid_reset"),
    ("half a line of another rank Xid (PCI:0009:01:00): 119, Timeout", "xid_reset"),
    ("0: GPU 0000:09:00.0 has fallen off the bus", "gpu_lost"),
    ("srun: error: Node failure on node02", "node_failed"),
    *(
        (
            f"slurmstepd: error: *** {job} CANCELLED AT 2025-10-08T00:32:36 DUE TO NODE FAILURE{end} ***",
            "node_failed",
        )
        for job, end in (
            ("STEP 7.0 ON n07", ", SEE SLURMCTLD LOG FOR DETAILS"),
            ("JOB 4 ON n07", ""),
            ("STEP 7.batch ON n07", ""),
        )
    ),
    ("3: Second rerun: unexpected result is not reproducible on a different GPU, therefore", "wrong_values"),
]
"""Lines of faults that count also after the end of the measurement."""

DURING = [
    ("RuntimeError: CUDA error: an illegal memory access was encountered", FAIL, "gpu_error"),
    (WARN.format("misc.cc:1", "Cuda failure 719 'unspecified launch failure'"), FAIL, "gpu_error"),
    ("[rank3]: DistBackendError: NCCL error in: a.cpp:2, unhandled cuda error (run with", FAIL, "gpu_error"),
    ("RuntimeError: CUBLAS error: CUBLAS_STATUS_EXECUTION_FAILED when calling", FAIL, "gpu_error"),
    ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", FAIL, "gpu_error"),
    ("srun: error: node02: tasks 0-3: Killed", UNPROVEN, "crashed"),
    ("srun: error: node02: task 5: Aborted (core dumped)", UNPROVEN, "crashed"),
    ("srun: error: node[02-03]: tasks 4,6-7: Terminated", UNPROVEN, "crashed"),
    ("srun: error: node02: task 1: Bus error (core dumped)", UNPROVEN, "crashed"),
    ("srun: error: node02: task 1: Exited with exit code 1", UNPROVEN, "task_failed"),
    ("/spool/slurm_script: line 10: 12345 Killed                  python train.py", UNPROVEN, "crashed"),
    ("Killed", UNPROVEN, "crashed"),
    ("  7: Killed", UNPROVEN, "crashed"),
    ("[node02:12345] Signal: Segmentation fault (11)", UNPROVEN, "crashed"),
    ("[node02:12345] *** Process received signal ***", UNPROVEN, "crashed"),
    ("Fatal Python error: Bus error", UNPROVEN, "crashed"),
    ("Segmentation fault (core dumped)", UNPROVEN, "crashed"),
    ("terminate called after throwing an instance of 'c10::Error'", UNPROVEN, "crashed"),
    ("  Signal 11 (SIGSEGV) received by PID 77", UNPROVEN, "crashed"),
    ("process rank 3 with PID 0 on node node02 exited on signal 9 (Killed).", UNPROVEN, "crashed"),
    (
        WARN.format("net_ib.cc:8", "NET/IB : Got completion from peer 1.2.3.4 with status=12"),
        UNPROVEN,
        "nccl_peer_lost",
    ),
    (
        WARN.format("socket.cc:5", "socketProgress: Connection closed by remote peer node03"),
        UNPROVEN,
        "nccl_peer_lost",
    ),
    (
        WARN.format("net_ib/common.cc:187", "NET/IB : mlx5_3:1 async fatal event: local catastrophic error"),
        UNPROVEN,
        "network_failed",
    ),
    ("[default] Worker group FAILED. 3/3 attempts left; will restart worker group", UNPROVEN, "task_failed"),
    ("0: val_accuracy: nan", UNPROVEN, "no_examples"),
    ("NVRM: Xid (PCI:0009:01:00): 999, pid=1, something", UNPROVEN, "xid_unknown"),
    ("NVRM: Xid (PCI:0009:01:00): 13, pid=1, Graphics Exception", DEGRADED, "xid"),
]
"""Lines of faults that count before the end of the measurement, with verdict and code. After the end, they
belong to the teardown of the processes."""

HARMLESS = [
    # From published logs of 4.1 and 5.1 that reached their targets.
    WARN.format("proxy.cc:1", "[Service thread] Could not receive type from localRank 3, res=3, closed=0"),
    WARN.format("proxy.cc:1", "[Proxy Service 3] Failed to execute operation Close from rank 3, retcode 3"),
    WARN.format("proxy.cc:1", "[Service thread] Accept failed Resource temporarily unavailable"),
    "init.cc:7 NCCL WARN MSCCL++: Cannot enable MSCCL++; environment is not MSCCL compatible",
    "0: [monza:1] PMIX ERROR: ERROR in file gds_ds12_lock_pthread.c at line 168",
    "0:         possible_oom: false",
    # Lines that tools and frameworks print on a healthy machine.
    "        SRAM Uncorrectable                : 0",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
    "Killed 0 stale processes",
    "CUDA error checking is off",
    "srun: error: node02: task 1: Exited with exit code 0",
    "handlers for unhandled exceptions are installed",
    "PCIe Bus Error counters: 0",
    "xid (transaction) 79",
]
"""Lines that contain words of a fault but report none."""


def real(root: Path, name: str) -> list[str]:
    """Return the lines of a real log that reports success."""
    data = (root / name).read_bytes()
    text = (lzma.decompress(data) if name.endswith(".xz") else data).decode()
    return text.splitlines(keepends=True)


def with_line(lines: list[str], line: str, *, after: bool = False) -> ParsedLog:
    """Parse a log with one more line, before or after its successful end."""
    stop = next(at for at, one in enumerate(lines) if "run_stop" in one) + after
    return logs.parse(io.BytesIO("".join([*lines[:stop], line + "\n", *lines[stop:]]).encode()))


@pytest.mark.parametrize("name", [LOG, OLD_LOG])
@pytest.mark.parametrize(
    ("line", "verdict", "code"), [*DURING, *((text, FAIL, code) for text, code in ALWAYS)]
)
def test_a_fault_in_a_log_that_reports_success_counts(
    root: Path, name: str, line: str, verdict: Verdict, code: str
) -> None:
    found = with_line(real(root, name), line)
    assert (found.verdict, code in {one.code for one in found.findings}) == (verdict, True)


@pytest.mark.parametrize(("line", "code"), ALWAYS)
def test_a_fault_of_hardware_counts_after_the_end_too(root: Path, line: str, code: str) -> None:
    found = with_line(real(root, LOG), line, after=True)
    assert found.verdict is FAIL
    assert code in {one.code for one in found.findings if one.verdict is FAIL}


@pytest.mark.parametrize("line", [line for line, _, _ in DURING])
def test_other_faults_after_the_end_are_ignored(root: Path, line: str) -> None:
    assert with_line(real(root, LOG), line, after=True).verdict is Verdict.PASS


@pytest.mark.parametrize("line", HARMLESS)
def test_harmless_lines_give_no_finding(root: Path, line: str) -> None:
    found = with_line(real(root, LOG), line)
    assert (found.verdict, found.findings) == (Verdict.PASS, ())


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some have been OOM Killed.", FAIL),
        ("Out of memory: Killed process 4711 (python3) total-vm:1kB", FAIL),
        ("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB", FAIL),
        (
            "2020-07-10 08:43:17.1: I tensorflow/stream_executor/cuda/cuda_driver.cc:831] failed to allocate "
            "2.88G (3091663872 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
            Verdict.PASS,
        ),
        (
            "2020-07-10 08:43:17.4: W tensorflow/core/common_runtime/bfc_allocator.cc:239] Allocator "
            "(GPU_0_bfc) ran out of memory trying to allocate 3.54GiB",
            Verdict.PASS,
        ),
    ],
)
def test_only_retries_of_the_allocator_are_harmless_in_a_log_of_tensorflow(
    root: Path, line: str, verdict: Verdict
) -> None:
    lines = real(root, "tests/data/real/tf_cnn/resnet50-fp32-8gpu.log.xz")
    # More retries than findings are kept must not hide a process that was killed.
    retry = "tensorflow/stream_executor/cuda/cuda_driver.cc:831] from device: CUDA_ERROR_OUT_OF_MEMORY: x\n"
    for before in ([], [retry] * 9):
        text = "".join([*lines[:95], *before, line + "\n", *lines[95:]])
        assert logs.parse(io.BytesIO(text.encode())).verdict is verdict


def test_a_fatal_event_of_the_network_counts_in_a_real_log_of_nccl_tests(root: Path) -> None:
    lines = real(root, "tests/data/real/nccl/b200-8gpu-all_reduce.txt")
    for event in ("async fatal event: local catastrophic error", "Got non-fatal async event: port error(10)"):
        line = WARN.format("net_ib/common.cc:187", f"NET/IB : mlx5_3:1 {event}") + "\n"
        found = logs.parse(io.BytesIO("".join([*lines[:17], line, *lines[17:]]).encode()))
        assert found.verdict is UNPROVEN
        assert "network_failed" in {one.code for one in found.findings}


def test_a_wrong_computation_names_its_rank(root: Path) -> None:
    found = with_line(real(root, LOG), "3: Possible persistent error!")
    assert [one.source.rank for one in found.findings if one.source and one.code == "wrong_values"] == [3]
