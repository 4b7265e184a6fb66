"""Test that `parse` names a tool whose output no parser reads, and does not judge it as that of another tool.

src/rackproof/logs/unread_tools.py has the patterns. If you add a pattern, add a sample here. Samples without
an origin are shortened from a tool's output, or written after its source code.
"""

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
"""The text is from github.com/Azure/azurehpc, doc/testing-with-imbmpi1.md."""
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
FIO = "rand: (groupid=0, jobs=4): err= 0: pid=3114: Tue Jul 20 06:41:18 2021\n  read: IOPS=133, BW=66MiB/s\n"
IBSTAT = "CA 'mlx5_0'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Down\n"
MLXLINK = "Operational Info\n----------------\nState                              : Active\n"
IOR = "IOR-3.3.0: MPI Coordinated Test of Parallel I/O\n\nMax Write: 1234.56 MiB/sec (1294.53 MB/sec)\n"
MDTEST = "-- started at 06/11/2021 19:27:00 --\n\nmdtest-3.3.0 was launched with 8 total task(s)\n"
MNDIAG = "Successfully ran multi-node diagnostic.\n+------+\n| MNUBERGEMM Test           | Pass     |\n"
SMI_LIST = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-e18afb8d-1627-f8ff-2ba3-c05c5a8e9e67)\n"
LINK_ERRORS = (
    SMI_LIST + "\t Link 0: Replay Errors: 0\n\t Link 0: Recovery Errors: 0\n\t Link 0: CRC Errors: 0\n"
)
"""The text is from a virtual machine with 4 H100 and driver 580."""
IBSTAT_CRLF = "CA 'mlx5_0'\r\n\tCA type: MT4123\r\n\tNumber of ports: 1\r\n"
IBV_DEVINFO = "hca_id:\tmlx4_1\n\ttransport:\t\t\tInfiniBand (0)\n\tfw_ver:\t\t\t\t2.42.5000\n"
"""The text is from github.com/Heioy/Books, ibv_devinfo.md."""
IBLINKINFO = """\
CA: node01 HCA-1:
      0x0002c903000e0b73      3    1[  ] ==( 4X       10.0 Gbps Active/  LinkUp)==>       1    2[  ] "sw" ( )
"""
IBDIAGNET = """\
Loading IBDIAGNET from: /usr/lib/ibdiagnet1.5.7
-W- Topology file is not specified.
    Reports regarding cluster links will use direct routes.
Loading IBDM from: /usr/lib/ibdm1.5.7
-I- Using port 1 as the local port.
-I- Discovering ... 2 nodes (0 Switches & 2 CA-s) discovered.
"""
"""The text is from a wiki on InfiniBand, with ibdiagnet 1.5.7."""
PMON = """\
# gpu        pid  type    sm   mem   enc   dec   command
# Idx          #   C/G     %     %     %     %   name
    0    3263942     C     -     -     -     -   python
"""
ROCM = """\
========================================= ROCm System Management Interface ====================
=================================================== Concise Info ==============================
0       [0x74a1 : 0x00]       45.0°C      173.0W    NPS1, SPX       132Mhz  900Mhz  0%   auto
"""
"""The text is from github.com/stas00/ml-engineering, compute/accelerator/amd/debug.md."""
DMON = "#Entity   GPUTL   FBUSD   SMACT   POWR\nID\nGPU 0     0       500     0.005   51.3\n"
STREAM_FORTRAN = """\
----------------------------------------------
STREAM Version $Revision: 5.6 $
----------------------------------------------
 Array size =  100000000
Function     Rate (MB/s)  Avg time   Min time  Max time
Copy:      201005.0251      0.0080      0.0080      0.0084
 Solution Validates!
"""
"""The format is that of www.cs.virginia.edu/stream/FTP/Code/stream.f."""
BABEL = """\
BabelStream
Version: 5.0
Implementation: CUDA
Running kernels 100 times
Function    MBytes/sec  Min (sec)   Max         Average
Copy        3001234.123 0.00018     0.00019     0.00018
"""
"""The format is that of github.com/UoB-HPC/BabelStream, src/main.cpp."""
BABEL_CSV = "function,num_times,n_elements,sizeof,max_mbytes_per_sec,min_runtime,max_runtime,avg_runtime\n"
FIO_EARLY = "job: (g=0): rw=randread, bs=(R) 4096B-4096B, (W) 4096B-4096B, (T) 4096B-4096B, ioengine=libaio\n"
IPERF = "Connecting to host 10.0.0.2, port 5201\n"
IPERF_ERROR = "iperf3: error - unable to connect to server: No route to host\n"
IOR_ERROR = "ERROR: open64(/scratch/x, 66, 0664) failed. Error: Permission denied, (aiori-POSIX.c:563)\n"
IOR_COMPARED = "WARNING: Incorrect data on read (12 errors found).\n"


def read(text: str) -> ParsedLog:
    """Return the parsed log of a text."""
    return parse(BytesIO(text.encode()))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (IMB, "Intel MPI Benchmarks (IMB)"),
        (IMB_PINGPONG, "Intel MPI Benchmarks (IMB)"),
        (IMB_RMA, "Intel MPI Benchmarks (IMB)"),
        (OSU, "OSU Micro-Benchmarks"),
        (OSU_LABELLED, "OSU Micro-Benchmarks"),
        (FIO, "fio"),
        (IBSTAT, "ibstat"),
        (IBSTAT_CRLF, "ibstat"),
        (IBV_DEVINFO, "ibv_devinfo"),
        (IBLINKINFO, "iblinkinfo"),
        (IBDIAGNET, "ibdiagnet"),
        # A log may begin in the middle of the output.
        (IBDIAGNET.partition("\n")[2], "ibdiagnet"),
        (IBDIAGNET[IBDIAGNET.index("-I- Using") :], "ibdiagnet"),
        (IBDIAGNET[IBDIAGNET.index("-I- Disc") :], "ibdiagnet"),
        ("\n".join(IMB.splitlines()[1:3]) + "\n", "Intel MPI Benchmarks (IMB)"),
        (ROCM, "rocm-smi or amd-smi"),
        (DMON, "dcgmi dmon"),
        (MLXLINK, "mlxlink"),
        (IOR, "IOR"),
        (MDTEST, "mdtest"),
        (MNDIAG, "dcgmi mndiag"),
        ('{\n  "DCGM Multi-Node Diagnostic" : {}\n}\n', "dcgmi mndiag"),
        (SMI_LIST, "nvidia-smi -L"),
        (PMON, "nvidia-smi pmon"),
        (LINK_ERRORS, "nvidia-smi nvlink --errorcounters"),
        (STREAM_FORTRAN, "STREAM in Fortran"),
        (BABEL, "BabelStream"),
        (BABEL[BABEL.index("Function") :], "BabelStream"),
        (BABEL.replace("BabelStream", "GPU-STREAM").replace("5.0", "3.0"), "BabelStream"),
        (BABEL_CSV, "BabelStream"),
        (FIO_EARLY, "fio"),
        (IPERF, "iperf3"),
        (IPERF_ERROR, "iperf3"),
        (IOR_ERROR, "IOR"),
        (IOR_COMPARED, "IOR"),
        ("".join(f"node01: {line}\n" for line in OSU.splitlines()), "OSU Micro-Benchmarks"),
        ("".join(f"[1,0]<stdout>:{line}\n" for line in MDTEST.splitlines()), "mdtest"),
        (" 0: " + IOR, "IOR"),
    ],
)
def test_the_log_of_an_unread_tool_is_unproven_and_its_finding_names_the_tool(text: str, name: str) -> None:
    parsed_log = read(text)
    assert (parsed_log.format, parsed_log.verdict, parsed_log.measurements) == (
        "unknown",
        Verdict.UNPROVEN,
        (),
    )
    assert [finding.code for finding in parsed_log.findings] == ["unrecognised"]
    assert f"the output of {name}, which parse does not read: " in parsed_log.findings[0].message


def test_a_failed_diagnostic_of_several_nodes_fails() -> None:
    # No parser reads the table, but logs/fault_texts.py has a rule for a row of a failed test.
    parsed_log = read(MNDIAG.replace("Pass", "Fail"))
    assert (parsed_log.verdict, {finding.code for finding in parsed_log.findings}) == (
        Verdict.FAIL,
        {"unrecognised", "dcgm_fault"},
    )


def test_an_unknown_text_names_no_tool() -> None:
    assert read("hello\nworld\n").findings[0].message == "the log is of no known format"


@pytest.mark.parametrize(
    "text",
    [
        "-I- epoch 3 of 10 begins\n-W- slow loader\n",
        "-E- retry of a checkpoint\n",
        "epoch 1\n   Benchmarking model\nepoch 2\n",
        "# Benchmarking resnet50\nthe next line\n",
        "-I- Discovering data files ...\n",
    ],
)
def test_a_line_of_a_training_log_names_no_tool(text: str) -> None:
    assert read(text).findings[0].message == "the log is of no known format"


def test_a_tool_is_named_after_20_000_other_lines() -> None:
    assert "the output of OSU" in read("some line of a job\n" * 20_000 + OSU).findings[0].message
