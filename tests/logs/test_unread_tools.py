"""Outputs of tools that operators run and that no parser reads: named, and never judged as another tool's."""

from __future__ import annotations

from io import BytesIO

import pytest

from rackproof.core.records import ParsedLog, Verdict
from rackproof.logs import parse

IMB = """\
#----------------------------------------------------------------
# Benchmarking Allreduce
# #processes = 1408
#----------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
            0        10000         0.13         0.41         0.16
            8        10000        24.06        30.77        27.94
"""
"""IMB-MPI1 of Azure/azurehpc (doc/testing-with-imbmpi1.md)."""
IMB_PINGPONG = """\
#------------------------------------------------------------
#    Intel(R) MPI Benchmarks 2019 Update 6, MPI-1 part
#------------------------------------------------------------
# Benchmarking Multi-PingPong
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]   Mbytes/sec
         1024       100000        56.92        61.39        59.15        16.68
"""
IMB_RMA = """\
       #bytes #repetitions      t[usec]   Mbytes/sec
            0           10         0.10         0.00
"""
OSU = """\
# OSU MPI Multiple Bandwidth / Message Rate Test v5.7.1
# [ pairs: 4 ] [ window size: 64 ]
# Size                  MB/s        Messages/s
4                     126.43       31608531.76
"""
OSU_LABELLED = "\n# OSU MPI-CUDA Allreduce Latency Test v7.4\n# Size       Avg Latency(us)\n1     1.88\n"
FIO_JSON = '{\n  "fio version" : "fio-3.16",\n  "timestamp" : 1626763278,\n  "jobs" : [\n'
FIO = "rand: (groupid=0, jobs=4): err= 0: pid=3114: Tue Jul 20 06:41:18 2021\n  read: IOPS=133, BW=66MiB/s\n"
FIO_WITH_WARNING = "fio: terminating on signal 2\n" + FIO_JSON
IBSTAT = "CA 'mlx5_0'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Down\n"
MLXLINK = "Operational Info\n----------------\nState                              : Active\n"
IOR = "IOR-3.3.0: MPI Coordinated Test of Parallel I/O\n\nMax Write: 1234.56 MiB/sec (1294.53 MB/sec)\n"
MDTEST = "-- started at 06/11/2021 19:27:00 --\n\nmdtest-3.3.0 was launched with 8 total task(s)\n"
MNDIAG = "Successfully ran multi-node diagnostic.\n+------+\n| MNUBERGEMM Test           | Pass     |\n"
SMI_LIST = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-e18afb8d-1627-f8ff-2ba3-c05c5a8e9e67)\n"
LINK_ERRORS = (
    SMI_LIST + "\t Link 0: Replay Errors: 0\n\t Link 0: Recovery Errors: 0\n\t Link 0: CRC Errors: 0\n"
)
"""Driver 580 on a virtual machine with 4 x H100."""


def read(text: str) -> ParsedLog:
    return parse(BytesIO(text.encode()))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (IMB, "Intel MPI Benchmarks (IMB)"),
        (IMB_PINGPONG, "Intel MPI Benchmarks (IMB)"),
        (IMB_RMA, "Intel MPI Benchmarks (IMB)"),
        (OSU, "OSU Micro-Benchmarks"),
        (OSU_LABELLED, "OSU Micro-Benchmarks"),
        (FIO_JSON, "fio"),
        (FIO, "fio"),
        (FIO_WITH_WARNING, "fio"),
        (IBSTAT, "ibstat"),
        (MLXLINK, "mlxlink"),
        (IOR, "IOR"),
        (MDTEST, "mdtest"),
        (MNDIAG, "dcgmi mndiag"),
        ('{\n  "DCGM Multi-Node Diagnostic" : {}\n}\n', "dcgmi mndiag"),
        (SMI_LIST, "nvidia-smi -L"),
        (LINK_ERRORS, "nvidia-smi nvlink --errorcounters"),
    ],
)
def test_a_tool_that_is_not_read_is_named_and_unproven(text: str, name: str) -> None:
    parsed = read(text)
    assert (parsed.format, parsed.verdict, parsed.measurements) == ("unknown", Verdict.UNPROVEN, ())
    assert [one.code for one in parsed.findings] == ["unrecognised"]
    assert f"the output of {name}, which parse does not read: " in parsed.findings[0].message


def test_a_failed_diagnostic_of_several_nodes_fails() -> None:
    parsed = read(MNDIAG.replace("Pass", "Fail"))
    assert (parsed.verdict, {one.code for one in parsed.findings}) == (
        Verdict.FAIL,
        {"unrecognised", "dcgm_fault"},
    )


def test_a_text_of_no_known_tool_gets_no_name() -> None:
    assert read("hello\nworld\n").findings[0].message == "the log is of no known format"


def test_a_tool_is_named_far_below_other_text() -> None:
    assert "the output of OSU" in read("some line of a job\n" * 20_000 + OSU).findings[0].message
