"""Test nvidia-smi's table without options, and ``nvidia-smi dmon`` (:mod:`rackproof.logs.nvidia_smi_brief`).

Both show faults of GPUs, but too little to prove that a GPU is healthy. These tests check that faults are
found, also if the table is in the log of another tool. An output without a fault is unproven, and its finding
names the command to use instead.

The rows are from public outputs: Azure/azhpc-diagnostics, PerfKitBenchmarker, and issues and notes of users.
"""

from __future__ import annotations

from io import BytesIO

import pytest

from rackproof.core.records import ParsedLog, Verdict
from rackproof.logs import parse
from tests.logs import log_samples as samples

RULE = "+-------------------------------+----------------------+----------------------+\n"
HEADING = """\
Fri Jun 11 19:27:00 2021
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 460.32.03    Driver Version: 460.32.03    CUDA Version: 11.2     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
"""
V100 = """\
|   {index}  Tesla V100-SXM2...  Off  | 0000000{index}:00:00.0 Off |                    {ecc} |
| N/A   {degrees}C    P0    43W / 300W |      0MiB / {memory}MiB |      0%      Default |
|                               |                      |                  N/A |
"""
A100_LOST = """\
|   2  NVIDIA A100 80GB PCIe          On  |   00000000:CA:00.0 N/A |                  N/A |
|ERR!   46C    P0            N/A  /  N/A  |       0MiB /  81920MiB |     N/A      Default |
|                                         |                        |                 ERR! |
"""
H100_ERR = """\
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:03:00.0 Off |                 ERR! |
|ERR!   36C    P0            145W / ERR!  |       1MiB /  81559MiB |    100%      Default |
|                                         |                        |                 ERR! |
"""
GTX_ERR = """\
|   0  GeForce GTX 980     Off  | 0000:05:00.0     Off |                  N/A |
|ERR!   47C    P0   ERR! / 180W |      0MiB /  4038MiB |      0%      Default |
"""
FAN_ERR = """\
|   0  NVIDIA GeForce RTX 3060        Off | 00000000:08:00.0  On |                  N/A |
|ERR!   31C    P0              45W / 170W |    482MiB / 12288MiB |      0%      Default |
"""
POWER_ERR = FAN_ERR.replace("|ERR!   31C", "|  0%   31C").replace(" 45W /", "ERR! /")
MIG = """\
|   0  A100-SXM4-40GB      On   | 00000000:07:00.0 Off |                   On |
| N/A   30C    P0    43W / 400W |      0MiB / 40536MiB |     N/A      Default |
|                               |                      |              Enabled |
"""
PROCESSES = """
+-----------------------------------------------------------------------------+
| Processes:                                                                  |
|  GPU   GI   CI        PID   Type   Process name                  GPU Memory |
|=============================================================================|
|    0   N/A  N/A     40213      C   ./ERR! is in a process's name      51MiB |
+-----------------------------------------------------------------------------+
"""


def gpu(index: int = 0, ecc: str = "0", degrees: int = 40, memory: int = 32510) -> str:
    """Return the rows of a V100 with this count of ECC errors, temperature (in °C) and memory (in MiB)."""
    return V100.format(index=index, ecc=ecc, degrees=degrees, memory=memory) + RULE


def read(text: str) -> ParsedLog:
    return parse(BytesIO(text.encode()))


def judged(text: str) -> tuple[Verdict, set[str]]:
    """Return a log's verdict, and the codes of its findings except the code that every table gets."""
    parsed = read(text)
    return parsed.verdict, {one.code for one in parsed.findings} - {"shows_too_little"}


SOUND = HEADING + gpu(0) + gpu(1) + PROCESSES


@pytest.mark.parametrize("text", [SOUND, SOUND * 3, HEADING + MIG + PROCESSES, SOUND[: len(HEADING) + 100]])
def test_a_table_without_a_fault_is_unproven_and_names_the_remedy(text: str) -> None:
    parsed = read(text)
    assert (parsed.format, parsed.verdict) == ("nvidia_smi_table", Verdict.UNPROVEN)
    assert [one.code for one in parsed.findings] == ["shows_too_little"]
    assert "save nvidia-smi -q" in parsed.findings[0].message


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        (A100_LOST, "gpu_lost"),
        (H100_ERR, "gpu_lost"),
        (GTX_ERR, "gpu_lost"),
        (gpu(ecc="3"), "ecc_uncorrected"),
        (gpu(ecc="Off"), "ecc_off"),
        (gpu(degrees=119), "too_hot"),
        (gpu(0) + gpu(1, memory=16160), "gpu_memory"),
        (gpu() + "WARNING: infoROM is corrupted at gpu 0008:00:00.0\n", "inforom_corrupted"),
        (gpu() + "Unable to determine the device handle for GPU 0000:0B:00.0: GPU is lost.\n", "gpu_lost"),
    ],
)
def test_faults_in_the_table_fail(rows: str, code: str) -> None:
    verdict, codes = judged(HEADING + rows + PROCESSES)
    assert (verdict, code in codes) == (Verdict.FAIL, True)


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        (FAN_ERR, "gpu_value_unknown"),
        (POWER_ERR, "gpu_value_unknown"),
        (gpu(degrees=900), "impossible_value"),
        (gpu(0) + gpu(2), "gpu_missing"),
        (gpu(0) + gpu(0), "gpu_twice"),
    ],
)
def test_unclear_values_in_the_table_are_unproven(rows: str, code: str) -> None:
    assert judged(HEADING + rows + PROCESSES) == (Verdict.UNPROVEN, {code})


@pytest.mark.parametrize(
    "text",
    [
        "Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error\n",
        "Fri Nov 27 2026\nFailed to initialize NVML: Unknown Error\n",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
    ],
)
def test_an_error_in_place_of_the_table_fails(text: str) -> None:
    verdict, codes = judged(text)
    assert verdict is Verdict.FAIL
    # Some of these lines are also a fault in the log of any program.
    assert "gpu_lost" in codes <= {"gpu_lost", "gpu_error_unclear"}


@pytest.mark.parametrize("between", ["", "some line of a job\n" * 20_000])
def test_another_tool_below_a_table_is_judged_as_without_the_table(between: str) -> None:
    parsed = read(SOUND + between + samples.NCCL.decode())
    assert (parsed.format, parsed.verdict) == ("nccl_tests", Verdict.PASS)


@pytest.mark.parametrize("between", ["", "some line of a job\n" * 200_000])
@pytest.mark.parametrize(
    ("rows", "code"),
    [(gpu(ecc="3"), "ecc_uncorrected"), (H100_ERR, "gpu_lost"), (gpu(degrees=119), "too_hot")],
)
@pytest.mark.parametrize("is_before", [True, False])
def test_a_fault_in_a_table_fails_the_log_of_another_tool(
    between: str, rows: str, code: str, is_before: bool
) -> None:
    parts = [HEADING + rows + PROCESSES, between, samples.NCCL.decode()]
    text = "".join(parts if is_before else parts[::-1])
    parsed = read(text)
    assert (parsed.format, parsed.verdict) == ("nccl_tests", Verdict.FAIL)
    finding = next(one for one in parsed.findings if one.code == code)
    assert finding.source is not None
    assert text.splitlines()[(finding.source.line or 0) - 1] in rows.splitlines()


def test_settings_in_a_table_are_no_fault_of_another_tools_log() -> None:
    parsed = read(HEADING + gpu(ecc="Off") + FAN_ERR + PROCESSES + samples.NCCL.decode())
    assert (parsed.format, parsed.verdict) == ("nccl_tests", Verdict.PASS)


DMON = """\
# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk
# Idx      W      C      C      %      %      %      %      %      %    MHz    MHz
    0    119     59      -    100      0      0      0      0      0   6800   1665
    1    159     {gtemp}      {mtemp}    100      0      0      0      0      0   9251   1695
"""
DMON_OLD = """\
# gpu   pwr  temp    sm   mem   enc   dec  mclk  pclk
# Idx     W     C     %     %     %     %   MHz   MHz
    0   112    {temp}    19     7     0     0  5005  1480
"""
DMON_ERRORS = """\
#Date       Time        gpu  pviol  tviol  sbecc  dbecc    pci
#YYYYMMDD   HH:MM:SS    Idx      %   bool   errs   errs   errs
 20240131   12:00:00      0     12      {tviol}      0      {dbecc}      0
"""
DMON_CSV = "#gpu, pwr, gtemp, mtemp\n#Idx, W, C, C\n0, 119, {gtemp}, -\n"


@pytest.mark.parametrize(
    ("text", "verdict", "codes"),
    [
        (DMON.format(gtemp=59, mtemp="-"), Verdict.UNPROVEN, set()),
        (DMON.format(gtemp=119, mtemp="-"), Verdict.FAIL, {"too_hot"}),
        (DMON.format(gtemp=59, mtemp=115), Verdict.FAIL, {"memory_temperature"}),
        (DMON.format(gtemp="ERR!", mtemp="-"), Verdict.FAIL, {"gpu_lost"}),
        (DMON.format(gtemp="x", mtemp="-"), Verdict.UNPROVEN, {"gpu_value_unknown"}),
        (DMON.format(gtemp=590, mtemp="-"), Verdict.UNPROVEN, {"impossible_value"}),
        (DMON.format(gtemp=59, mtemp="- 7"), Verdict.UNPROVEN, {"damaged_line"}),
        (DMON.format(gtemp=59, mtemp="-") + "GPU is lost.\n", Verdict.FAIL, {"gpu_lost"}),
        ("".join(DMON.splitlines(True)[:2]), Verdict.UNPROVEN, {"no_rows"}),
        (DMON_OLD.format(temp=87), Verdict.UNPROVEN, set()),
        (DMON_OLD.format(temp=119), Verdict.FAIL, {"too_hot"}),
        (DMON_ERRORS.format(tviol=0, dbecc=0), Verdict.UNPROVEN, set()),
        (DMON_ERRORS.format(tviol=1, dbecc=0), Verdict.DEGRADED, {"slowed_down"}),
        (DMON_ERRORS.format(tviol=0, dbecc=2), Verdict.FAIL, {"ecc_uncorrected"}),
        (DMON_CSV.format(gtemp=59), Verdict.UNPROVEN, set()),
        (DMON_CSV.format(gtemp=119), Verdict.FAIL, {"too_hot"}),
    ],
)
def test_dmon_shows_faults_and_never_passes(text: str, verdict: Verdict, codes: set[str]) -> None:
    parsed = read(text)
    assert parsed.format == "nvidia_smi_dmon"
    # Unproven is worse than degraded.
    assert parsed.verdict is (Verdict.UNPROVEN if verdict is Verdict.DEGRADED else verdict)
    assert {one.code for one in parsed.findings} == codes | {"shows_too_little"}


FAR = "some text of the job\n" * 15_000
"""Text that is longer than a block."""
ECC_OFF = """\
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:03:00.0 Off |                  Off |
| N/A   36C    P0            145W / 700W  |       1MiB /  81559MiB |      0%      Default |
|                                         |                        |             Disabled |
"""


@pytest.mark.parametrize("job", ["mllog", "mll06", "tf_cnn", "mxnet", "gpu_burn"])
@pytest.mark.parametrize(
    ("table", "verdict", "code"),
    [
        (HEADING + ECC_OFF, Verdict.PASS, ""),
        (SOUND, Verdict.PASS, ""),
        (HEADING + gpu(0) + gpu(1, memory=16000), Verdict.PASS, ""),
        (HEADING + gpu(0) + "Warning: some words of the job\nError 0 of 7\n", Verdict.PASS, ""),
        (SOUND + "the job prints Unknown Error\n", Verdict.PASS, ""),
        (HEADING + gpu(0, ecc="3"), Verdict.FAIL, "ecc_uncorrected"),
        (HEADING + A100_LOST, Verdict.FAIL, "gpu_lost"),
        (HEADING + gpu(0, degrees=105), Verdict.FAIL, "too_hot"),
    ],
)
def test_a_table_beside_a_job_has_one_verdict_at_any_distance(
    table: str, verdict: Verdict, code: str, job: str
) -> None:
    data = samples.PASSING[job].decode()
    for between in ("", FAR):
        parsed = read(table + between + data)
        found = {one.code for one in parsed.findings if one.verdict is not None}
        assert (parsed.verdict, found) == (verdict, {code} - {""}), between[:20]


@pytest.mark.parametrize("job", ["mllog", "tf_cnn", "gpu_burn"])
def test_memory_errors_in_rows_of_dmon_above_a_job_count(job: str) -> None:
    dmon = DMON_ERRORS.format(**dict.fromkeys(("dbecc", "tviol"), 2))
    parsed = read(dmon + FAR + samples.PASSING[job].decode())
    assert (parsed.verdict, "ecc_uncorrected" in {one.code for one in parsed.findings}) == (
        Verdict.FAIL,
        True,
    )
