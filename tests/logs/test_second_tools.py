"""Test that the output of a second tool in a log counts (:mod:`rackproof.logs.other_tools`).

A log is judged by one format. The output of another tool in it may contain a fault that is not judged, so
such a log is unproven until each output has a file of its own. These tests also check that the failures of
both tools keep their verdict in any order, and that lines of a launcher or the kernel which name a tool
change nothing.
"""

from __future__ import annotations

import io

import pytest

from rackproof.core.records import ParsedLog, Verdict
from rackproof.logs import parse
from tests.logs import log_samples as samples
from tests.logs import test_unread_tools as unread

FAIL, UNPROVEN, PASS = Verdict.FAIL, Verdict.UNPROVEN, Verdict.PASS
KERNEL = """\
[    0.000000] Linux version 6.8.0-45-generic (buildd@lcy02) (gcc 13.2.0) #45-Ubuntu SMP
[    1.234567] pci 0000:c1:00.0: [1002:74a1] type 00 class 0x120000 PCIe Endpoint
[   12.345678] systemd[1]: Started Journal Service.
"""
READ = {
    "hpl": samples.HPL.decode(),
    "stream": samples.STREAM.decode(),
    "gpu_burn": samples.GPU_BURN.decode(),
    "ib_write_bw": samples.PERFTEST.decode(),
    "nccl_tests": samples.NCCL.decode(),
    "fio": samples.fio_json().decode(),
    "xid": KERNEL,
}
"""Passing logs of tools that Rackproof reads, by format."""
UNREAD = {
    "fio": unread.FIO.replace("IOPS=133, BW=66MiB/s", "IOPS=0, BW=0MiB/s"),
    "fio, before its version": "seqread: (g=0): rw=read, bs=(R) 1024KiB-1024KiB\nfio: verify: bad header\n",
    "IOR": unread.IOR + "ERROR: data check errors: 12\n",
    "OSU": unread.OSU.rstrip() + "  Fail\n",
    "OSU, labelled": "".join(f"node01: {line}\n" for line in unread.OSU.splitlines()),
    "iperf3": "[ ID] Interval           Transfer     Bitrate\niperf3: error - unable to receive\n",
    "mdtest": unread.MDTEST,
    "STREAM in Fortran": unread.STREAM_FORTRAN,
    "BabelStream": unread.BABEL,
}
"""Outputs that Rackproof does not read, by the name of their tool."""
SPEED_LOG = READ["stream"]
EIO = "dd: error reading '/dev/nvme0n1': Input/output error\n"
ABORT = "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD\n"


def read(text: str | bytes) -> ParsedLog:
    """Return the parsed log of a text."""
    return parse(io.BytesIO(text.encode() if isinstance(text, str) else text))


def codes(log: ParsedLog) -> set[str]:
    """Return the codes of a log's findings."""
    return {finding.code for finding in log.findings}


@pytest.mark.parametrize("tool", READ)
def test_the_log_of_one_tool_passes(tool: str) -> None:
    assert (read(READ[tool]).format, read(READ[tool]).verdict) == (tool, PASS)


@pytest.mark.parametrize(
    ("tool", "name"),
    # fio may print its JSON and its text in one run.
    [(tool, name) for name in UNREAD for tool in READ if not (tool == "fio" and name.startswith("fio"))],
)
def test_the_output_of_an_unread_tool_beside_a_read_one_is_unproven(tool: str, name: str) -> None:
    for text in (READ[tool] + UNREAD[name], UNREAD[name] + READ[tool]):
        log = read(text)
        assert (log.format, log.verdict.gates, "second_tool" in codes(log)) == (tool, True, True), (
            log.findings
        )


def test_the_finding_names_the_tool_and_its_first_line() -> None:
    (finding,) = read(SPEED_LOG + UNREAD["fio"]).findings
    assert (
        finding.message == "judged as stream; the output of fio is not: give each tool's output its own file"
    )
    assert finding.source is not None
    assert finding.source.line == SPEED_LOG.count("\n") + 1


@pytest.mark.parametrize("name", ["fio", "IOR", "OSU", "BabelStream"])
def test_an_output_in_an_earlier_or_later_block_is_found(name: str) -> None:
    filler = "some line of a job\n" * 20_000
    for text in (
        UNREAD[name] + filler + SPEED_LOG,
        SPEED_LOG + filler + UNREAD[name],
        KERNEL * 3_000 + UNREAD[name],
        KERNEL * 3_000 + SPEED_LOG,
    ):
        parsed = read(text)
        assert (parsed.verdict, codes(parsed)) == (UNPROVEN, {"second_tool"})


@pytest.mark.parametrize(
    "line",
    [
        '[   13.000000] audit: type=1400 comm="fio" fio-3.36 # OSU MPI Bandwidth Test\n',
        "[   13.000000] seqread: (groupid=0, jobs=4): err= 0: pid=1\n",
        "Nov 27 10:00:00 node01 systemd[1]: Started ROCm System Management Interface.\n",
        "node01: [   13.000000] systemd[1]: Started HPC Challenge Benchmark.\n",
        "2026-11-27T10:00:00,000000+00:00 systemd[1]: IOR-4.0.0: started\n",
        "<6>[   13.000000] HPL-MxP-NVIDIA: started\n",
    ],
)
def test_a_line_of_the_kernel_may_name_a_tool(line: str) -> None:
    parsed = read(KERNEL + line)
    # A line of systemd with the prefix of a syslog gets a remark.
    assert (parsed.verdict, codes(parsed) - {"other_programs"}) == (PASS, set())


@pytest.mark.parametrize("text", [unread.SMI_LIST, unread.PMON, unread.DMON, unread.LINK_ERRORS])
def test_a_description_of_the_node_beside_a_tool_is_harmless(text: str) -> None:
    for log in (read(text + READ["hpl"]), read(READ["nccl_tests"] + text)):
        assert (log.verdict, log.findings) == (PASS, ())


@pytest.mark.parametrize("name", ["fio", "IOR", "OSU", "iperf3"])
@pytest.mark.parametrize("training", ["mllog", "mxnet", "tf_cnn"])
def test_the_launcher_of_a_training_may_run_tools(name: str, training: str) -> None:
    text = UNREAD[name].partition("\niperf3: error")[0] + "\n" + samples.PASSING[training].decode()
    assert (read(text).verdict, "second_tool" in codes(read(text))) == (PASS, False)


def test_a_training_that_follows_a_tool_in_a_later_block_is_judged_as_a_training() -> None:
    text = READ["nccl_tests"] + UNREAD["OSU"] + "some line\n" * 40_000 + samples.PASSING["mllog"].decode()
    log = read(text)
    assert (log.format, log.verdict, "second_tool" in codes(log)) == ("mllog", PASS, False)


FAILED = {
    "fio": UNREAD["fio"].replace("err= 0:", "err= 5 (func=io_u error, error=Input/output error):"),
    "IOR": unread.IOR + "ERROR: read() failed, errno 5, Input/output error (aiori-POSIX.c:700)\n",
    "OSU": unread.OSU + ABORT,
    "mdtest": unread.MDTEST + "slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-11-27T10:00:00 ***\n",
    "HPL": READ["hpl"][: READ["hpl"].index("WR0")] + ABORT,
}


@pytest.mark.parametrize("name", FAILED)
@pytest.mark.parametrize("own", ["stream", "gpu_burn"])
def test_a_failed_tool_before_or_after_another_tool_fails_the_log(name: str, own: str) -> None:
    before, after = read(FAILED[name] + READ[own]), read(READ[own] + FAILED[name])
    assert (before.verdict, after.verdict) == (FAIL, FAIL), (before.findings, after.findings)


@pytest.mark.parametrize("name", ["stream", "hpl", "mllog", "mll06", "mxnet", "tf_cnn", "nccl_tests"])
@pytest.mark.parametrize(
    "line",
    [
        EIO,
        "OSError: [Errno 5] Input/output error: '/scratch/step_100.pt'\n",
        "ls: cannot access '/scratch': Structure needs cleaning\n",
        "cp: error writing '/nfs/x': Remote I/O error\n",
    ],
)
def test_a_broken_disk_fails_a_log_even_after_a_good_end(name: str, line: str) -> None:
    sample = samples.PASSING.get(name, samples.PASSING.get("nccl", b"")) if name != "hpl" else samples.HPL
    assert read(sample).verdict is PASS
    log = read(sample + line.encode())
    assert (log.verdict, "io_error" in codes(log)) == (FAIL, True)


@pytest.mark.parametrize(
    "line", [ABORT, "Traceback (most recent call last):\n", "srun: error: n1: task 0: Killed\n"]
)
@pytest.mark.parametrize("own", ["stream", "hpl"])
def test_the_shutdown_of_the_tool_itself_stays_a_remark(line: str, own: str) -> None:
    log = read(READ[own] + line)
    assert (log.verdict, [finding.verdict for finding in log.findings]) == (PASS, [None])
    # The line belongs to the last tool, and not to the one before it.
    verdicts = {finding.code: finding.verdict for finding in read(UNREAD["OSU"] + READ[own] + line).findings}
    assert verdicts.pop("second_tool") is UNPROVEN
    assert set(verdicts.values()) == {None}
    # The line belongs to the first tool, because the second one has not started.
    verdicts = {finding.code: finding.verdict for finding in read(READ[own] + line + UNREAD["OSU"]).findings}
    assert verdicts.pop("second_tool") is UNPROVEN
    assert set(verdicts.values()) == {None}


DESCRIBED = ("nvidia_smi_topo", "nvlink_status", "nvidia_smi_text", "nvidia_smi_csv")
"""Samples that describe a node."""
TESTED = ("gpu_burn", "nccl_tests", "nvbandwidth", "dcgmi_diag", "ib_write_bw", "hpl", "stream", "fio")
"""Samples of tests of a node."""
CUT = {name: b"".join(samples.PASSING[name].splitlines(keepends=True)[:-3]) for name in ("tf_cnn", "mxnet")}
"""Trainings that did not end."""
FAR = b"some text of the job\n" * 20_000
"""Text that is longer than a block."""


def sample(name: str) -> bytes:
    return {"hpl": samples.HPL, "stream": samples.STREAM, "fio": samples.fio_json()}.get(
        name, samples.PASSING.get(name, b"")
    )


@pytest.mark.parametrize("name", [*DESCRIBED, *TESTED])
@pytest.mark.parametrize("training", CUT)
@pytest.mark.parametrize("between", [b"", FAR], ids=["near", "far"])
def test_a_training_that_did_not_end_does_not_pass_by_the_output_of_a_tool(
    name: str, training: str, between: bytes
) -> None:
    log = read(sample(name) + between + CUT[training])
    assert log.verdict.gates, log.findings
    assert between or log.format == training


@pytest.mark.parametrize("name", DESCRIBED)
@pytest.mark.parametrize("training", CUT)
def test_a_training_below_a_description_of_its_node_passes(name: str, training: str) -> None:
    log = read(sample(name) + samples.PASSING[training])
    assert (log.format, log.verdict) == (training, PASS), log.findings


@pytest.mark.parametrize("name", TESTED)
def test_a_training_of_tf_cnn_beside_a_test_of_its_node_is_unproven(name: str) -> None:
    for data in (sample(name) + samples.TF_CNN, samples.TF_CNN + sample(name)):
        log = read(data)
        assert (log.format, log.verdict, "second_tool" in codes(log)) == ("tf_cnn", UNPROVEN, True)


@pytest.mark.parametrize("word", ["python tf_cnn_benchmarks.py", "/opt/tensorflow/core/serve"])
def test_a_process_of_tensorflow_in_the_output_of_a_tool_is_no_training(word: str) -> None:
    text = samples.NVIDIA_SMI_TEXT.decode() + f"    Processes\n        Name : {word}\n"
    assert read(text).format == "nvidia_smi_text"
    assert read(f"{word}: Resource exhausted: OOM when allocating\n").format == "tf_cnn"
