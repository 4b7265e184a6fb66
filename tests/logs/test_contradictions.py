"""Test that :func:`rackproof.logs.parse` passes no real log that was edited so that it contradicts itself.

An operator may get a log from a vendor, and cannot see whether it was edited. Most tests change one place of
a log, such as a state, a figure, a row, or a second run, and check the verdict and the code of the finding.
Others check that lines which only resemble a contradiction change nothing.
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from rackproof import logs
from rackproof.core.records import Verdict
from tests.logs import log_samples as samples

REAL = Path(__file__).parents[1] / "data/real"
XID = b"[1234.5] NVRM: Xid (PCI:0000:0f:00): %s, pid=77, GPU is in trouble.\n"
"""A kernel line with an XID, which is the number of an error of NVIDIA's driver."""


def read(name: str) -> bytes:
    """Return a log of tests/data/real, decompressed."""
    data = (REAL / name).read_bytes()
    return lzma.decompress(data) if name.endswith(".xz") else data


def codes(data: bytes) -> tuple[Verdict, set[str]]:
    """Return a log's verdict, and the codes of the findings that have a verdict."""
    parsed = logs.parse(BytesIO(data))
    return parsed.verdict, {one.code for one in parsed.findings if one.verdict is not None}


def swap(old: bytes, new: bytes, count: int = 1) -> Callable[[bytes], bytes]:
    """Return a change that replaces a pattern, which must occur. With ``count`` 0, it replaces all."""

    def change(data: bytes) -> bytes:
        assert re.search(old, data), old
        return re.sub(old, new, data, count=count)

    return change


def before_the_end(line: bytes) -> Callable[[bytes], bytes]:
    """Return a change that inserts a line in the middle of a log."""

    def change(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        middle = len(lines) // 2
        return b"".join([*lines[:middle], line, *lines[middle:]])

    return change


GB300, A100 = "nvidia-smi/qx-gb300.xml.xz", "nvidia-smi/qx-a100.xml"
NCCL = "nccl/a100-8gpu-all_reduce.txt"
ROW = rb"(?m)^( +1073741824 +\d+ +float +sum)"
SM_CLOCK = rb"(<clocks>\s*<graphics_clock>[^<]*</graphics_clock>\s*<sm_clock>)\d+"
MOST_SM_CLOCK = SM_CLOCK.replace(b"<clocks>", b"<max_clocks>")
TF = "tf_cnn/resnet50-fp32-1gpu.log"
BURN = "tools/gpu_burn.log.xz"
FLOATS, TENSOR_CORES, DOUBLES = b"FLOATS", b"FLOATS, using Tensor Cores", b"DOUBLES, using Tensor Cores"
IB = "tools/ib_loopback_8M_size.log"


# Log, change, verdict and code: states of GPUs, speeds of gpu_burn that are zero or beyond the GPU's peak,
# impossible clocks, XIDs, and tables of nccl-tests and perftest that lack rows.
@pytest.mark.parametrize(
    ("name", "change", "verdict", "code"),
    [
        (GB300, swap(rb"(recovery_action>)None", rb"\1GPU Reset"), Verdict.FAIL, "recovery_action"),
        (GB300, swap(rb"(recovery_action>)None", rb"\1Node Reboot"), Verdict.FAIL, "recovery_action"),
        (GB300, swap(rb"(recovery_action>)None", rb"\1Drain P2P"), Verdict.FAIL, "recovery_action"),
        (GB300, swap(rb"(recovery_action>)None", rb"\1Unknown Error"), Verdict.UNPROVEN, "recovery_action"),
        (GB300, swap(rb"(hw_slowdown>)Not Active", rb"\1Active"), Verdict.DEGRADED, "slowed_down"),
        (GB300, swap(rb"(hw_thermal_slowdown>)Not Active", rb"\1Active"), Verdict.DEGRADED, "slowed_down"),
        (A100, swap(rb"(power_brake_slowdown>)Not Active", rb"\1Active"), Verdict.DEGRADED, "slowed_down"),
        (GB300, swap(rb"(gpu_temp>)\d+ C", rb"\1-400 C"), Verdict.UNPROVEN, "impossible_value"),
        (A100, swap(rb"(gpu_temp>)\d+ C", rb"\1ERR!"), Verdict.UNPROVEN, "impossible_value"),
        (
            GB300,
            swap(rb"(instant_power_draw>)[^<]+", rb"\1[Unknown Error]"),
            Verdict.UNPROVEN,
            "impossible_value",
        ),
        (BURN, swap(rb"\(\d+ Gflop/s\)", b"(0 Gflop/s)", 0), Verdict.UNPROVEN, "no_work"),
        (BURN, swap(rb"\d+\.\d% +proc'd[^\r\n]*", b"", 0), Verdict.UNPROVEN, "no_work"),
        (BURN, swap(rb"(?m)(proc'd: \d+ \()\d+( Gflop/s\))", rb"\g<1>0\2", 0), Verdict.UNPROVEN, "no_work"),
        (BURN, swap(rb"(\d+)( Gflop/s)", rb"\g<1>0\2", 0), Verdict.UNPROVEN, "impossible_value"),
        (BURN, swap(rb"\d+( Gflop/s\) - \d+ \(\d+)", rb"30000\1", 0), Verdict.UNPROVEN, "impossible_value"),
        (
            BURN,
            # The change removes -tc, with which ten times the speed of fp64 would be possible in fp16.
            lambda data: swap(rb"(\d+)( Gflop/s)", rb"\g<1>0\2", 0)(data.replace(DOUBLES, FLOATS)),
            Verdict.UNPROVEN,
            "impossible_value",
        ),
        (GB300, swap(SM_CLOCK, rb"\g<1>9999"), Verdict.UNPROVEN, "impossible_value"),
        (GB300, swap(MOST_SM_CLOCK, rb"\g<1>100", 0), Verdict.UNPROVEN, "impossible_value"),
        (A100, swap(SM_CLOCK, rb"\g<1>1411"), Verdict.UNPROVEN, "impossible_value"),
        (TF, before_the_end(XID % b"79"), Verdict.FAIL, "xid_reset"),
        (TF, before_the_end(XID % b"95"), Verdict.FAIL, "xid_reset"),
        (TF, before_the_end(XID % b"119"), Verdict.FAIL, "xid_reset"),
        (TF, before_the_end(XID % b"13"), Verdict.DEGRADED, "xid"),
        (
            NCCL,
            swap(ROW + rb"( +[\d.]+) +[\d.]+ +[\d.]+", rb"\1\2 0.00 0.00"),
            Verdict.UNPROVEN,
            "impossible_value",
        ),
        (
            NCCL,
            swap(rb"(?m)^ +(?:8589934592|4294967296|2147483648) .*\n", b"", 0),
            Verdict.UNPROVEN,
            "cut_off",
        ),
        (NCCL, swap(rb"maxBytes \d+", b"maxBytes 34359738368"), Verdict.UNPROVEN, "cut_off"),
        (IB, swap(rb"(?m)^ +8388608 .*\n", b""), Verdict.UNPROVEN, "cut_off"),
    ],
)
def test_a_log_that_was_edited_does_not_pass(
    name: str, change: Callable[[bytes], bytes], verdict: Verdict, code: str
) -> None:
    data = read(name)
    assert codes(data)[0] in (Verdict.PASS, Verdict.DEGRADED)
    found, why = codes(change(data))
    assert code in why
    assert found is verdict


@pytest.mark.parametrize("name", ["all_foo", "allreduce", "all_reduce_bias", "ring", "broadcast2"])
@pytest.mark.parametrize(
    "line",
    ["# Collective test starting: %s_perf", "# Collective test concluded: %s_perf", "+ ./%s_perf -b 8",
     "mpirun -n 8 ./%s_perf -c 1 -e 8"],
)  # fmt: skip
def test_a_collective_that_nccl_tests_does_not_have_is_unproven(name: str, line: str) -> None:
    data = read(NCCL)
    place = data.index(b"#  ") if line.endswith("8") else data.index(b"# nThread")
    verdict, why = codes(data[:place] + (line % name).encode() + b"\n" + data[place:])
    assert (verdict, "unknown_collective" in why) == (Verdict.UNPROVEN, True)


@pytest.mark.parametrize("line", ["+ ./ring_perf -b 8", "mpirun -n 8 all_foo_perf -g 1", "x_perf -e 8G -f 2"])
def test_an_unknown_collective_without_a_table_is_unproven(line: str) -> None:
    verdict, why = codes(read(NCCL) + line.encode() + b"\n")
    assert (verdict, "cut_off" in why) == (Verdict.UNPROVEN, True)


# Programs whose names end like those of nccl-tests, but that have other options.
@pytest.mark.parametrize(
    "line", ["+ ib_perf -d mlx5_0", "# 2026 my_perf -x", "+ tools/net_perf -d mlx5_0 | mpirun -n 8 cat"]
)
@pytest.mark.parametrize("place", ["start", "header"])
def test_a_wrapper_is_no_collective(line: str, place: str) -> None:
    data = read(NCCL)
    at = data.index(b"#  ") if place == "header" else 0
    assert codes(data[:at] + line.encode() + b"\n" + data[at:]) == codes(data)
    assert codes(data)[0] is Verdict.PASS


BURN_HEAD = b"Burning for 60 seconds.\n"
BURN_START = b"Initialized device 0 with 81089 MB of memory (80000 MB available, using 72000 MB of it)\n"


LORA, LLAMA = (
    f"mlperf-5.1/lambda-gb300-n18/{name}/result_1.txt.xz" for name in ("llama2_70b_lora", "llama31_8b")
)
RUNS: dict[str, bytes] = {
    "lora": read(LORA),
    "llama": read(LLAMA),
    # An evaluation of resnet is a fraction, and good from a target on. The others are losses.
    "resnet": samples.mllog_of("resnet", 0.76),
    "ssd": samples.mllog_of("ssd", 0.35),
    "resnet 0.5": samples.MLP05,
    "ssd 0.5": samples.MLP05.replace(b" resnet ", b" ssd ").replace(b"0.74982", b"0.22"),
}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("lora", "llama"),
        ("llama", "lora"),
        ("resnet", "ssd"),
        ("ssd", "resnet"),
        ("resnet", "lora"),
        ("lora", "resnet"),
        ("resnet 0.5", "ssd 0.5"),
        ("ssd 0.5", "resnet 0.5"),
        ("lora", "lora"),
        ("resnet", "resnet"),
    ],
)
def test_runs_of_two_benchmarks_in_a_log_are_unproven_in_any_order(first: str, second: str) -> None:
    assert [codes(RUNS[name]) for name in (first, second)] == [(Verdict.PASS, set())] * 2
    verdict, why = codes(RUNS[first] + RUNS[second])
    assert (verdict, "several_runs" in why) == (Verdict.UNPROVEN, True)
    # So is a run beside half of another benchmark's. A failure of either run is a failure of the log.
    half = RUNS[second].splitlines(keepends=True)
    if first != second:
        assert codes(RUNS[first] + b"".join(half[: len(half) // 2]))[0] is Verdict.UNPROVEN
    aborted = RUNS[second].replace(b'"status": "success"', b'"status": "aborted"')
    aborted = aborted.replace(b'"success": true', b'"success": false')
    assert codes(RUNS[first] + aborted)[0] is Verdict.FAIL


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (read(BURN).partition(b"Tested")[0], b""),
        (BURN_HEAD, b""),
        (b"", BURN_HEAD),
        (b"", BURN_START),
    ],
)
def test_a_gpu_burn_that_did_not_end_beside_one_that_did_is_unproven(before: bytes, after: bytes) -> None:
    one = read(BURN)
    if BURN_HEAD[:7] not in one:
        one = BURN_HEAD + one
    assert codes(one)[0] is Verdict.PASS
    verdict, why = codes(before + one + after)
    assert (verdict, "several_runs" in why) == (Verdict.UNPROVEN, True)


BURN_ENDING = b"Killing processes with SIGTERM (soft kill)\n"


def test_lines_that_the_processes_of_gpu_burn_repeat_at_their_end_are_no_second_test() -> None:
    # With its output in a file or pipe, each process prints what its parent had not written at the fork.
    progress, results = read(BURN).partition(b"Killing")[0], read(BURN).partition(b"Tested")[2]
    ending = BURN_ENDING + BURN_HEAD + BURN_HEAD + b"Freed memory for dev 0\n"
    log = BURN_HEAD + progress + ending + b"Tested" + results
    assert codes(log)[0] is Verdict.PASS
    # The same lines before the end or after the results are those of another test.
    for other in (
        BURN_HEAD + BURN_HEAD + progress + ending + b"Tested" + results,
        BURN_HEAD + progress + BURN_HEAD + BURN_ENDING + b"Tested" + results,
        log + BURN_HEAD,
        BURN_HEAD + progress + BURN_ENDING + log,
    ):
        assert (codes(other)[0], "several_runs" in codes(other)[1]) == (Verdict.UNPROVEN, True)


@pytest.mark.parametrize("line", ["+ run_perf -n 8", "+ node_perf -w n01 -- date", "my_perf -g 8"])
@pytest.mark.parametrize("order", ["%s\n%s\n", "%s %s\n"])
def test_a_wrapper_beside_the_programs_own_name_is_no_collective(line: str, order: str) -> None:
    data = read(NCCL)
    own = "build/all_reduce_perf -b 8 -e 8G -f 2 -g 8"
    assert codes((order % (line, own)).encode() + data) == codes(data)
    # The table below another program is that program's.
    verdict, why = codes(f"{own}\n".encode() + data + f"{line}\n".encode() + data)
    assert (verdict, "unknown_collective" in why) == (Verdict.UNPROVEN, True)


@pytest.mark.parametrize("steps", [1, 3, 8])
def test_steps_of_a_second_run_after_the_total_are_unproven(steps: int) -> None:
    data = read(TF)
    again = [line for line in data.splitlines(keepends=True) if re.match(rb"\d+\timages/sec", line)][:steps]
    verdict, why = codes(data + b"".join(again))
    assert (verdict, "several_runs" in why) == (Verdict.UNPROVEN, True)


@pytest.mark.parametrize("name", [IB, "tools/ib_loopback_all_sizes.log"])
def test_a_second_test_of_perftest_without_a_table_is_unproven(name: str) -> None:
    data = read(name)
    title = next(line for line in data.splitlines(keepends=True) if b"RDMA_Write BW Test" in line)
    verdict, why = codes(data + b"-" * 87 + b"\n" + title + b" Mtu             : 4096[B]\n")
    assert verdict is Verdict.UNPROVEN
    assert "cut_off" in why


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("name", [NCCL, BURN, IB, "tools/nvbandwidth_results.log"])
def test_a_failure_in_a_last_line_without_line_feed_counts(name: str, end: bytes) -> None:
    good = read(name)
    assert codes(good)[0] is Verdict.PASS
    ended = good if good.endswith(b"\n") else good + b"\n"
    assert codes(ended + b"1: CUDA out of memory" + end)[0] is Verdict.FAIL


def stating(benchmark: str, key: str, value: object, final: float, *more: str) -> bytes:
    """Return a log of a benchmark that reaches ``final`` and states something of its data or target."""
    return samples.mllog_of(benchmark, final, samples.event(key, value, 150), *more)


# Benchmark, a quality that reaches its target, and a key with the number of samples in the benchmark's data
# set and with another number.
@pytest.mark.parametrize(
    ("trained", "final", "key", "good", "bad"),
    [
        ("llama2_70b_lora", 0.92, "eval_samples", 173, 17),
        ("llama31_8b", 3.2, "eval_samples", "1024", "102"),
        ("unet3d", 0.91, "eval_samples", [42], [4]),
        ("bert", 0.73, "eval_samples", 10240, 1000),
        ("dlrm_dcnv2", 0.804, "train_samples", 4_195_155_968, 419_515_596),
        ("resnet", 0.76, "train_samples", 1_281_167, 128_116),
        ("rgat", 0.73, "train_samples", 94_605_581, 946_055_810),
    ],
)
def test_a_number_of_samples_that_is_not_that_of_the_data_set_is_unproven(
    trained: str, final: float, key: str, good: object, bad: object
) -> None:
    assert codes(stating(trained, key, good, final))[0] is Verdict.PASS
    verdict, why = codes(stating(trained, key, bad, final))
    assert (verdict, "samples_contradict" in why) == (Verdict.UNPROVEN, True)
    # A right statement does not hide a wrong one, and a statement before the benchmark's name counts.
    both = stating(trained, key, good, final, samples.event(key, bad, 160))
    assert "samples_contradict" in codes(both)[1]
    early = samples.event(key, bad).encode() + stating(trained, key, good, final)
    assert "samples_contradict" in codes(early)[1]


@pytest.mark.parametrize("name", ["a_new_one", "retinanet", "gpt3"])
def test_without_a_known_number_of_samples_none_is_judged(name: str) -> None:
    assert "samples_contradict" not in codes(stating(name, "train_samples", 5, 0.5))[1]


def test_the_open_division_may_use_other_data() -> None:
    division = samples.event("submission_division", "open", 1)
    data = stating("resnet", "train_samples", 160_000, 0.76).replace(b'"closed"', b'"open"')
    assert codes(division.encode() + data)[0] is Verdict.PASS


@pytest.mark.parametrize("key", ["target_accuracy", "quality_target", "target"])
@pytest.mark.parametrize(
    ("trained", "final", "good", "bad"),
    [("llama31_8b", 3.2, 3.3, 3.6), ("flux1", 0.58, 0.586, 0.7), ("dlrm_dcnv2", 0.804, 0.80275, 0.75)],
)
def test_a_target_that_is_easier_than_the_rules_is_unproven(
    key: str, trained: str, final: float, good: float, bad: float
) -> None:
    assert codes(stating(trained, key, good, final))[0] is Verdict.PASS
    verdict, why = codes(stating(trained, key, bad, final))
    assert (verdict, "target_contradicts" in why) == (Verdict.UNPROVEN, True)


# Open Images has 1,170,301 images: 4,572 batches of 256, or 915 of 1,280. The target is a quality of 0.34.
@pytest.mark.parametrize(("count", "batch"), [(4572, 256), (915, 1280), (1_170_301, 8)])
def test_ssd_on_open_images_has_their_target(count: int, batch: int) -> None:
    # Since round 2.0 most submitters state batches, which are fewer than COCO's images.
    def of(final: float) -> bytes:
        log = stating("ssd", "train_samples", count, final)
        return swap(rb'("global_batch_size", "value": )8', rb"\g<1>%d" % batch)(log)

    assert codes(of(0.341))[0] is Verdict.PASS
    assert "target_not_reached" in codes(of(0.25))[1]


# The training set of COCO has 118,287 images, of which 117,266 have labels. The target is a quality of 0.23.
@pytest.mark.parametrize("count", [117_266, 118_287])
def test_ssd_on_coco_has_its_target(count: int) -> None:
    assert codes(stating("ssd", "train_samples", count, 0.231))[0] is Verdict.PASS
    assert "target_not_reached" in codes(stating("ssd", "train_samples", count, 0.22))[1]


def scaled(data: bytes, share: float) -> bytes:
    """Return a log of tf_cnn_benchmarks or gpu_burn in which all speeds are multiplied by a share."""
    tf = re.sub(rb"(images/sec: )([0-9.]+)", lambda m: m[1] + b"%.2f" % (share * float(m[2])), data)
    return re.sub(rb"\((\d+)( Gflop/s)", lambda m: b"(%d%b" % (share * int(m[1]), m[2]), tf)


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("name", [TF, BURN])
@pytest.mark.parametrize("better_last", [False, True])
def test_several_runs_in_a_log_are_unproven_even_if_one_is_good(
    name: str, share: float, better_last: bool
) -> None:
    data = read(name)
    both = [scaled(data, share), data]
    verdict, why = codes(b"".join(both if better_last else reversed(both)))
    assert (verdict, "several_runs" in why) == (Verdict.UNPROVEN, True)


# Model, a speed in GFLOP/s that its tensor cores reach in fp16, whether this is beyond the peak of TF32 (1),
# and the peak in fp16.
@pytest.mark.parametrize(
    ("model", "speed", "doubled", "most"),
    [
        (b"NVIDIA A100-SXM4-80GB", 250_000, 1, 312_000),
        (b"NVIDIA H100 80GB HBM3", 700_000, 1, 990_000),
        (b"NVIDIA B200", 1_500_000, 1, 2_250_000),
        # These models have no TF32, so the bound is always that of fp16.
        (b"Tesla V100-SXM2-32GB", 90_000, 0, 130_000),
        (b"Tesla T4", 40_000, 0, 65_000),
    ],
)
def test_tensor_cores_may_multiply_in_fp16(model: bytes, speed: int, doubled: int, most: int) -> None:
    def burn(speed: int, words: bytes) -> tuple[Verdict, set[str]]:
        data = re.sub(rb"\(\d+ Gflop/s", b"(%d Gflop/s" % speed, read(BURN))
        data = data.replace(DOUBLES, words)
        assert data.count(b"using " + words) == 8
        return codes(data.replace(b"NVIDIA A100-SXM4-80GB", model))

    assert "impossible_value" not in burn(speed, TENSOR_CORES)[1]
    assert "impossible_value" in burn(most + 1000, TENSOR_CORES)[1]
    # Without the option, the bound is the peak of TF32.
    assert ("impossible_value" in burn(speed, FLOATS)[1]) == bool(doubled)
    assert "impossible_value" in burn(most // 7 + 1000, DOUBLES)[1]


def labelled(data: bytes, label: bytes) -> bytes:
    """Return a log with a launcher's label before each line."""
    return b"".join(label + line for line in data.splitlines(keepends=True))


@pytest.mark.parametrize("label", [b"0: ", b" 3: ", b"[1,0]<stdout>:", b"node-7: ", b"[0] "])
def test_gpu_burn_with_a_launchers_label_is_read(label: bytes) -> None:
    data = read(BURN)
    plain = logs.parse(BytesIO(data), name="log")
    found = logs.parse(BytesIO(labelled(data, label)), name="log")
    assert found.format == "gpu_burn"
    assert found.verdict is plain.verdict is Verdict.PASS
    assert [one.value for one in found.measurements] == [one.value for one in plain.measurements]
    faulty = labelled(data.replace(b"GPU 0: OK", b"GPU 0: FAULTY"), label)
    assert codes(faulty)[0] is Verdict.FAIL
    # In the outputs of two tasks, GPU 0 stands for two GPUs.
    verdict, why = codes(labelled(data, label) + labelled(data, b"n9: "))
    assert (verdict, "several_runs" in why) == (Verdict.UNPROVEN, True)
