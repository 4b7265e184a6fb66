"""Test that wrong or incomplete output of nccl-tests, gpu_burn, perftest or nvidia-smi does not pass.

An output may end well although a bandwidth does not follow from size and time, a row or a GPU is missing, or
the output of a second tool follows. Most tests make one such change in a passing output, and check the
verdict of :func:`rackproof.logs.parse`. Some also check the code of the finding.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rackproof import logs
from rackproof.core.records import Verdict

from .log_samples import GPU_BURN, NCCL, PERFTEST

PASS, UNPROVEN, FAIL = Verdict.PASS, Verdict.UNPROVEN, Verdict.FAIL
REAL = Path(__file__).parents[1] / "data/real"
Change = Callable[[str], str]


def judged(text: str) -> tuple[Verdict, set[str]]:
    """Return a log's verdict, and the codes of the findings that have a verdict."""
    parsed = logs.parse(io.BytesIO(text.encode()))
    return parsed.verdict, {one.code for one in parsed.findings if one.verdict is not None}


def without(pattern: str) -> Change:
    """Return a change that removes the lines that match a pattern."""
    return lambda text: "".join(line for line in text.splitlines(True) if not re.search(pattern, line))


def instead(old: str, new: str) -> Change:
    """Return a change that replaces a text, and fails if the text does not occur."""

    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return change


def followed_by(words: str) -> Change:
    """Return a change that adds a text at the end."""
    return lambda text: text + words


B200 = (REAL / "nccl/b200-8gpu-all_reduce.txt").read_text()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (without("nThread"), "rows_missing"),
        (lambda text: without("nThread")(without("2224200 556050")(text)), "rows_missing"),
        (without("#  Rank "), "devices_contradict"),
        (followed_by("# Collective test starting: alltoall_perf\n"), "cut_off"),
        (followed_by("# Collective test starting: alltoall_perf\n"
                     "# nThread 1 nGpus 2 minBytes 8 maxBytes 8\n"), "cut_off"),
        (followed_by("bash: ./build/all_gather_perf: No such file or directory\n"), "cut_off"),
        (followed_by("all_gather_perf: error while loading shared libraries: libnccl.so.2\n"), "task_failed"),
        (followed_by("srun: error: Unable to create step for job 4711: More processors requested than "
                     "permitted\n"), "task_failed"),
        (followed_by("n1:77:99 [0] NCCL WARN NET/IB : mlx5_0:1 Got async event : port error\n"),
         "network_failed"),
        (followed_by("n1:77:99 [0] NCCL WARN NET/IB : mlx5_0:1 Got async event: device fatal\n"),
         "network_failed"),
        (followed_by("# Collective test concluded: all_gather_perf\n"), "mixed_tables"),
        (instead("validation: 1", "validation: 0"), "not_checked"),
        (instead("2224200 556050", "2224200 278025"), "busbw_contradicts"),
        (instead("10.00  222.42  222.42", "0.10  22242.00  22242.00"), "impossible_value"),
    ],
)  # fmt: skip
def test_wrong_or_incomplete_output_of_nccl_tests_does_not_pass(change: Change, code: str) -> None:
    assert judged(NCCL.decode()) == (PASS, set())
    verdict, codes = judged(change(NCCL.decode()))
    # Some of these findings, such as that of a program that could not be loaded, have the verdict FAIL.
    assert (verdict in (UNPROVEN, FAIL), code in codes) == (True, True), codes


def test_tabs_instead_of_blanks_move_no_column() -> None:
    assert judged(B200)[0] is PASS
    tabs = "".join(
        line if line.startswith("# ") else re.sub(" +", "\t", line) for line in B200.splitlines(True)
    )
    heading = re.sub("(?m)^#( +)size.*$", lambda found: re.sub(" +", "\t", found[0]), tabs)
    assert "wrong_values" not in judged(heading)[1]


@pytest.mark.parametrize(
    ("change", "verdict", "code"),
    [
        (without(r"^GPU \d|GPU 1: "), UNPROVEN, "gpu_missing"),
        (lambda text: text + text[: len(text) // 2], UNPROVEN, "cut_off"),
        (lambda text: re.sub(r"temps: \d+ C", "temps: 149 C", text), FAIL, "too_hot"),
        (lambda text: re.sub(r"temps: \d+ C", "temps: 1490 C", text), UNPROVEN, "impossible_value"),
        (lambda text: re.sub(r"\(\d+ Gflop", "(99999999 Gflop", text), UNPROVEN, "impossible_value"),
        (lambda text: re.sub(r"\(\d+ Gflop", "(2000000 Gflop", text), UNPROVEN, "impossible_value"),
        (lambda text: re.sub(r"UUID: GPU-\S+", "UUID: GPU-0)", text), UNPROVEN, "gpu_twice"),
        (instead("proc'd:", "DIED! proc'd:"), FAIL, ""),
        (lambda text: "".join(
            f"Initialized device {gpu} with 81251 MB of memory (80837 MB available, using {used} MB of it)\n"
            for gpu, used in enumerate((72753, 1343))) + text, UNPROVEN, "gpus_unlike"),
    ],
)  # fmt: skip
def test_wrong_or_incomplete_output_of_gpu_burn_does_not_pass(
    change: Change, verdict: Verdict, code: str
) -> None:
    assert judged(GPU_BURN.decode()) == (PASS, set())
    found, codes = judged(change(GPU_BURN.decode()))
    if code:
        assert (found, code in codes) == (verdict, True), codes
    else:
        assert found is not PASS


# The row has a peak of 395.10 and a mean of 394.20 Gbit/s, and 0.751895 million messages of 65,536 bytes per
# second. The changes make the peak smaller than the mean, both larger than any link allows, or the rate one
# that does not follow from the mean.
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("395.10             394.20", "100.00             394.20"),
        (
            "395.10             394.20             0.751895",
            "99999.00             99999.00             190.732956",
        ),
        ("0.751895", "0.000001"),
        ("0.751895", "7.518950"),
        ("0.751895", "1.503790"),
    ],
)
def test_a_row_of_perftest_with_contradictory_numbers_is_unproven(old: str, new: str) -> None:
    assert judged(PERFTEST.decode()) == (PASS, set())
    assert judged(instead(old, new)(PERFTEST.decode())) == (UNPROVEN, {"figures_contradict"})


LATENCY = (
    "                    RDMA_Write Latency Test\n"
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"
    "   99% percentile[usec]   99.9% percentile[usec] \n"
    " 2       1000          {figures}    0.06   {tail}\n" + "-" * 87 + "\n"
)


# Figures: minimum, maximum, median and mean in microseconds. Median and mean must lie between the others.
@pytest.mark.parametrize(
    ("figures", "verdict"),
    [
        ("1.85 6.20 1.89 1.90", PASS),
        ("5.00 1.00 1.89 1.90", UNPROVEN),
        ("1.85 6.20 1.89 0.01", UNPROVEN),
        ("1.85 6.20 1.89 7.10", UNPROVEN),
        ("1.85 6.20 9.86 1.90", UNPROVEN),
    ],
)
def test_latencies_out_of_order_are_unproven(figures: str, verdict: Verdict) -> None:
    assert judged(LATENCY.format(figures=figures, tail="2.05    5.90"))[0] is verdict


# `tail` has the 99th and the 99.9th percentile in microseconds. The median is 1.89, and the maximum 6.20.
@pytest.mark.parametrize(
    ("tail", "verdict"),
    [
        ("1.89 1.89", PASS),
        ("6.20 6.20", PASS),
        ("1.05 5.90", UNPROVEN),
        ("5.90 2.05", UNPROVEN),
        ("2.05 9.90", UNPROVEN),
        ("1.87 5.90", UNPROVEN),
    ],
)
def test_percentiles_outside_of_median_and_maximum_are_unproven(tail: str, verdict: Verdict) -> None:
    assert judged(LATENCY.format(figures="1.85 6.20 1.89 1.90", tail=tail))[0] is verdict


SECOND = {
    "gpu_burn": "Tested 2 GPUs:\n\tGPU 0: OK\n\tGPU 1: FAULTY\n",
    "nvlink_status": "GPU 0: NVIDIA H200 (UUID: GPU-1)\n\t Link 0: <inactive>\n\t Link 1: 26.562 GB/s\n",
    "nvidia_smi_csv": "index, uuid, ecc.errors.uncorrected.volatile.total\n0, GPU-1, 7\n",
    "nvbandwidth": "nvbandwidth Version: v0.8\n\nRunning host_to_device_memcpy_ce.\n",
    "ib_write_bw": " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n",
    "nvidia_smi_topo": "\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n",
}
"""Outputs of other tools, by the name of their format, to put below the output of nccl-tests."""


@pytest.mark.parametrize("name", SECOND)
def test_the_output_of_a_second_tool_is_not_ignored(name: str) -> None:
    verdict, codes = judged(NCCL.decode() + "\n" + SECOND[name])
    assert (verdict is PASS, "second_tool" in codes) == (False, True), codes


@pytest.mark.parametrize(
    "words",
    [
        "| Memory                    | Fail - GPU: 3                                  |\n",
        "timeout: sending signal TERM to command 'all_gather_perf'\n",
        "+ exit 139\n",
    ],
)
def test_a_failure_after_a_good_end_does_not_pass(words: str) -> None:
    assert judged(NCCL.decode() + words)[0] is not PASS


def loop(*samples: tuple[int, ...]) -> str:
    """Return nvidia-smi's table of a query in a loop, with a row for each GPU of each sample."""
    rows = (
        f"2026/11/24 10:00:{at:02d}.000, {gpu}, GPU-0000000{gpu}, 33\n"
        for at, gpus in enumerate(samples)
        for gpu in gpus
    )
    return "timestamp, index, uuid, temperature.gpu\n" + "".join(rows)


@pytest.mark.parametrize(
    ("samples", "verdict"),
    [
        ([(0, 1)] * 6, PASS),
        ([(0, 1)] * 5 + [(0,)], PASS),  # ended within a sample
        ([(0, 1)] * 3 + [(0,)] * 3, UNPROVEN),
        ([(0,)] * 3 + [(0, 1)] * 3, UNPROVEN),
        ([(0, 1)] * 2 + [(0,)] * 2 + [(0, 1)] * 2, UNPROVEN),
    ],
)
def test_a_gpu_that_is_missing_in_some_samples_of_a_loop_is_unproven(
    samples: list[tuple[int, ...]], verdict: Verdict
) -> None:
    assert judged(loop(*samples))[0] is verdict
