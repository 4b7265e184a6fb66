"""Test format, verdict, findings and numbers of real logs (:func:`rackproof.logs.parse_path`).

The logs are those of tests/data/real, whose README.md has their sources: MLPerf Training, tf_cnn_benchmarks,
MXNet, nccl-tests, gpu_burn, perftest, nvbandwidth, fio, nvidia-smi and kernel logs. Some show a failure.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from rackproof import logs
from rackproof.core.records import ParsedLog, Verdict

PASS, FAIL, UNPROVEN = Verdict.PASS, Verdict.FAIL, Verdict.UNPROVEN

# File, format, verdict, {code: line of its first finding}, {measurement: value}. time_to_train is in minutes.
CASES: list[tuple[str, str, Verdict, dict[str, int | None], dict[str, float]]] = [
    (
        "mlperf-0.6/single_stage_detector/DGX1.log",
        "mll06",
        PASS,
        {},
        {"time_to_train": 22.865, "samples_per_second": 4296.73, "epochs": 50, "eval_accuracy": 0.23202},
    ),
    (
        "mlperf-0.6/single_stage_detector/LambdaHyperplaneBasic.log",
        "mll06",
        PASS,
        {},
        {"time_to_train": 22.8545, "samples_per_second": 4290.82, "epochs": 50},
    ),
    (
        "mlperf-0.6/maskrcnn/DGX1.log",
        "mll06",
        PASS,
        {},
        {"time_to_train": 205.675, "iterations_per_second": 133.445, "epochs": 14},
    ),
    (
        "mlperf-0.6/maskrcnn/LambdaHyperplaneBasic.log",
        "mll06",
        PASS,
        {},
        {"time_to_train": 196.2388, "iterations_per_second": 139.877, "epochs": 14, "eval_accuracy": 0.37878},
    ),
    (
        "mlperf-0.6/resnet/DGX1.log",
        "mll06",
        PASS,
        {},
        {"time_to_train": 118.9255, "samples_per_second": 10864.36, "epochs": 60},
    ),
    (
        "mlperf-0.6/resnet/LambdaHyperplaneBasic.log",
        "mll06",
        PASS,
        {},
        {"time_to_train": 123.9464, "samples_per_second": 10415.69, "epochs": 60, "eval_accuracy": 0.7607},
    ),
    (
        "mlperf-0.6/gnmt/DGX1.log",
        "mll06",
        PASS,
        {},
        {"time_to_train": 21.2783, "tokens_per_second": 697133.25, "epochs": 4},
    ),
    (
        "mlperf-0.6/gnmt/LambdaHyperplaneBasic.log",
        "mll06",
        PASS,
        {},
        {"time_to_train": 21.0882, "tokens_per_second": 705504.75, "epochs": 4, "eval_accuracy": 24.11},
    ),
    (
        "mlperf-0.6/translation/DGX1.log",
        "mll06",
        PASS,
        {},
        {"time_to_train": 19.7728, "batches_per_second": 33.8055, "epochs": 3},
    ),
    (
        "mlperf-0.6/translation/LambdaHyperplaneBasic.log",
        "mll06",
        PASS,
        {},
        {"time_to_train": 23.1969, "batches_per_second": 40.0333, "epochs": 3, "eval_accuracy": 25.41385},
    ),
    (
        "mlperf-0.6/minigo/DGX1.log",
        "mll06",
        PASS,
        {},
        {"time_to_train": 28.4248, "epochs_per_minute": 0.50533, "epochs": 15, "eval_accuracy": 0.54},
    ),
    (
        "mlperf-0.6/minigo/LambdaHyperplaneBasic.log",
        "mll06",
        PASS,
        {},
        {"time_to_train": 26.7066, "epochs_per_minute": 0.6598, "epochs": 18, "eval_accuracy": 0.52},
    ),
    (
        "mlperf-5.1/flux1-sample/result_1.txt",
        "mllog",
        PASS,
        {},
        {"time_to_train": 170.4598, "samples_per_second": 826.055, "eval_accuracy": 0.585935},
    ),
    (
        "mlperf-hard/0.6-maskrcnn-nan.txt",
        "mll06",
        FAIL,
        {"nan": 742, "loss_scale": 767, "no_run_stop": 1902},
        {},
    ),
    (
        "mlperf-hard/0.6-maskrcnn-oom-ret_code-0.txt",
        "mll06",
        FAIL,
        {"out_of_memory": 737, "traceback": 692, "no_run_stop": 922},
        {},
    ),
    (
        "mlperf-hard/4.1-llama2_70b_lora-damaged-json.txt",
        "mllog",
        PASS,
        {"damaged_line": 779},
        {"time_to_train": 8.56215, "samples_per_second": 8.3302, "eval_accuracy": 0.9229034},
    ),
    (
        "mlperf-hard/5.0-rgat-cut-off.txt",
        "mllog",
        PASS,
        {},
        {"time_to_train": 8.22628, "eval_accuracy": 0.72009, "epochs": 0.9, "samples_per_second": 181449.299},
    ),
    (
        "mlperf-hard/5.0-stable_diffusion-ansi.txt",
        "mllog",
        PASS,
        {"time_backwards": 1182},
        {"time_to_train": 6.32298, "eval_accuracy": 85.326},
    ),
    (
        "mlperf-hard/5.1-crlf-dlrm_dcnv2.txt",
        "mllog",
        PASS,
        {"events_after_run_stop": 68},
        {"time_to_train": 2.32495, "eval_accuracy": 0.802923, "startup_time": 58.571},
    ),
    ("mlperf-hard/5.1-dlrm_dcnv2-aborted.txt", "mllog", FAIL, {"aborted": 99}, {"eval_accuracy": 0.802588}),
    (
        "mlperf-hard/5.1-llama2_70b_lora-bare-cr.txt",
        "mllog",
        PASS,
        {},
        {"time_to_train": 9.50707, "samples_per_second": 6.15055, "startup_time": 273.903},
    ),
    (
        "mlperf-hard/5.1-llama2_70b_lora-cancelled-no-run_stop.txt",
        "mllog",
        FAIL,
        {"cancelled": 986, "no_run_stop": 1002},
        {"train_loss": 1.16961},
    ),
    (
        "mlperf-hard/5.1-rgat-prefetcher-timeout.txt",
        "mllog",
        FAIL,
        {"out_of_memory": 4513, "traceback": 4487, "task_failed": 5097, "no_run_stop": 5141},
        {"eval_accuracy": 0.71788},
    ),
    (
        "mxnet/mxnet_lenet_digits.log",
        "mxnet",
        PASS,
        {},
        {"samples_per_second": 2839.02, "eval_accuracy": 0.9875, "epochs": 12, "wall_time": 7.7777},
    ),
    (
        "mxnet/mxnet_lenet_mnist.log",
        "mxnet",
        PASS,
        {},
        {"samples_per_second": 3192.76, "eval_accuracy": 0.983496, "epochs": 2, "seconds_per_epoch": 19.978},
    ),
    ("tf_cnn/resnet50-fp32-1gpu.log", "tf_cnn", PASS, {}, {"images_per_second": 326.58, "train_loss": 7.839}),
    ("tf_cnn/resnet50-fp32-2gpu.log", "tf_cnn", PASS, {}, {"images_per_second": 639.52, "train_loss": 7.728}),
    ("tf_cnn/resnet50-fp32-4gpu.log", "tf_cnn", PASS, {}, {"images_per_second": 1277.06}),
    ("tf_cnn/resnet50-fp32-8gpu.log", "tf_cnn", PASS, {}, {"images_per_second": 2544.13}),
    ("tf_cnn/resnet50-fp32-8gpu.thermal.csv", "unknown", UNPROVEN, {"unrecognised": 1}, {}),
    ("tf_cnn/nan-vgg16-8gpu.log", "tf_cnn", FAIL, {"nan": 183}, {"images_per_second": 2886.73}),
    ("tf_cnn/oom-text.log", "tf_cnn", PASS, {"memory_text": 68}, {"images_per_second": 425.67}),
    ("tf_cnn/traceback-no-total.log", "tf_cnn", FAIL, {"traceback": 1088, "no_total": 1230}, {}),
    ("tf_cnn_cpu/horovod.log", "tf_cnn", PASS, {}, {"images_per_second": 0.25, "train_loss": 7.647}),
    ("tf_cnn_cpu/tfrecords.log", "tf_cnn", PASS, {}, {"images_per_second": 1.49}),
    ("tf_cnn_cpu/parameter_server.log", "tf_cnn", PASS, {}, {"images_per_second": 1.47}),
    ("tf_cnn_cpu/distributed_replicated.log", "tf_cnn", PASS, {}, {"images_per_second": 1.73}),
    ("tf_cnn_cpu/distributed_all_reduce.log", "tf_cnn", PASS, {}, {"images_per_second": 1.75}),
    ("tf_cnn_cpu/killed-rank.log", "tf_cnn", FAIL, {"no_total": 81, "crashed": 80}, {}),
    ("tf_cnn_cpu/killed-server.log", "tf_cnn", FAIL, {"no_total": 145, "crashed": 143}, {}),
    ("tf_cnn_cpu/killed-worker.log", "tf_cnn", FAIL, {"no_total": 88, "crashed": 87}, {}),
    ("tf_cnn_cpu/unknown-model.log", "tf_cnn", FAIL, {"no_total": 41, "traceback": 7}, {}),
    ("tf_cnn_cpu/no-horovod.log", "tf_cnn", FAIL, {"no_total": 39, "traceback": 7}, {}),
    ("tf_cnn_cpu/no-data.log", "tf_cnn", FAIL, {"no_total": 89, "traceback": 23}, {}),
    # The programs end well. Job bench compares them with the request (tests/jobs/bench/test_log_checks.py).
    ("tf_cnn_cpu/batch-0.log", "tf_cnn", PASS, {}, {"images_per_second": 538.19}),
    ("tf_cnn_cpu/no-gpu.log", "tf_cnn", PASS, {}, {"images_per_second": 0.58}),
    (
        "tools/gpu_burn.log",
        "gpu_burn",
        PASS,
        {},
        {"gpu_burn_speed": 16942, "gpu_burn_errors": 0, "gpu_temperature": 62},
    ),
    ("tools/ib_loopback_8M_size.log", "ib_write_bw", PASS, {}, {"ib_write_bw": 201.8024}),
    ("tools/ib_loopback_all_sizes.log", "ib_write_bw", PASS, {}, {"ib_write_bw": 0.04446}),
    (
        "tools/nvbandwidth_results.log",
        "nvbandwidth",
        PASS,
        {"waived": None},
        {"host_to_device_memcpy_ce": 369.36},
    ),
    (
        "tools/fio-3.33-randread-jobs.txt",
        "fio",
        PASS,
        {},
        {"fio_read_bw": 157.7614},
    ),
    (
        "tools/fio-3.33-randrw-group.txt",
        "fio",
        PASS,
        {},
        {"fio_write_bw": 46.64957},
    ),
    (
        "tools/fio-3.33-json-and-text.txt",
        "fio",
        PASS,
        {},
        {"fio_read_lat_p99": 4816.896},
    ),
    (
        "tools/fio-3.33-verify-write.txt",
        "fio",
        PASS,
        {},
        {"fio_verified": 67.108864},
    ),
    (
        "tools/fio-3.33-verify-error.txt",
        "fio",
        FAIL,
        {"wrong_values": 1, "tool_error": None},
        {"fio_read_bw": 393.216},
    ),
    ("tools/xid-lines.txt", "xid", FAIL, {"xid_149": 1, "xid_79": 20, "gpu_lost": 5}, {}),
    *(
        (f"nvidia-smi/qx-{name}.xml", "nvidia_smi_xml", PASS, {}, {"gpu_temperature": degrees})
        for name, degrees in (("a100", 33), ("b200", 39), ("gb200", 27), ("gb300", 38), ("h100", 29))
    ),
    (
        "h200-x4/nvidia-smi-q.xml",
        "nvidia_smi_xml",
        PASS,
        {},
        {"gpu_power": 77.56, "pcie_link_width": 16},
    ),
    ("h200-x4/nvidia-smi-query.csv", "nvidia_smi_csv", PASS, {}, {"gpu_power": 77.49}),
    (
        "h200-x4/nvlink-status.txt",
        "nvlink_status",
        PASS,
        {},
        {"nvlink_links": 18, "nvlink_bandwidth": 478.116},
    ),
    ("h200-x4/topo.txt", "nvidia_smi_topo", PASS, {}, {"nvlinks_between": 18}),
]


def first_lines(parsed: ParsedLog) -> dict[str, int | None]:
    lines: dict[str, int | None] = {}
    for finding in parsed.findings:
        lines.setdefault(finding.code, finding.source.line)
    return lines


@pytest.mark.parametrize(
    ("file", "format_name", "verdict", "codes", "numbers"), CASES, ids=[c[0] for c in CASES]
)
def test_a_real_log_has_its_format_verdict_findings_and_numbers(
    real_logs: Path,
    file: str,
    format_name: str,
    verdict: Verdict,
    codes: dict[str, int | None],
    numbers: dict[str, float],
) -> None:
    parsed = logs.parse_path(real_logs / file)
    assert (parsed.format, parsed.verdict) == (format_name, verdict), [f.message for f in parsed.findings]
    found = first_lines(parsed)
    assert codes.items() <= found.items()
    for name, value in numbers.items():
        measurement = parsed.measurement(name)
        assert measurement is not None, name
        assert measurement.value == pytest.approx(value, rel=1e-4), name


@pytest.mark.parametrize("case", [c for c in CASES if c[2] is not PASS], ids=lambda c: c[0])
def test_a_log_that_does_not_pass_has_a_reason_with_a_line(real_logs: Path, case: tuple[str, ...]) -> None:
    parsed = logs.parse_path(real_logs / case[0])
    grave = [one for one in parsed.findings if one.verdict is not None]
    assert grave
    assert all(one.message for one in grave)
    assert any(one.source.line for one in grave)


@pytest.mark.parametrize(
    ("submitted", "olympic_mean", "samples_per_second"),
    [("llama2_70b_lora", 1.2612, 49.81), ("llama31_8b", 14.1242, 223.276)],
)
def test_ten_logs_give_the_published_score_and_throughput(
    real_logs: Path, submitted: str, olympic_mean: float, samples_per_second: float
) -> None:
    """Check that ten logs give the published score before its scaling for convergence, and the throughput."""
    folder = real_logs / "mlperf-5.1/lambda-gb300-n18" / submitted
    parsed = [logs.parse_path(path) for path in sorted(folder.glob("result_*.txt"))]
    assert [one.verdict for one in parsed] == [PASS] * 10
    minutes = sorted(one.measurement("time_to_train").value for one in parsed)  # type: ignore[union-attr]
    assert statistics.fmean(minutes[1:-1]) == pytest.approx(olympic_mean, abs=5e-5)
    rates = [one.measurement("samples_per_second").value for one in parsed]  # type: ignore[union-attr]
    assert statistics.median(rates) == pytest.approx(samples_per_second, rel=0.005)
    assert {one.tags["submission_benchmark"] for one in parsed} == {submitted}


@pytest.mark.parametrize(
    ("file", "name", "size", "place", "busbw"),
    [
        ("nccl/a100-8gpu-all_reduce.txt", "all_reduce_busbw", "8589934592", "out_of_place", 235.26),
        ("nccl/a100-8gpu-all_reduce.txt", "all_reduce_algbw", "8589934592", "in_place", 134.30),
        ("nccl/alltoall.txt", "alltoall_busbw", "8589934592", "in_place", 226.16),
        ("nccl/b200-8gpu-all_reduce.txt", "all_reduce_busbw", "40160460", "in_place", 406.30),
        (
            "mlperf-hard/5.0-stable_diffusion-ansi.txt",
            "all_reduce_busbw",
            "1731821448",
            "out_of_place",
            240.18,
        ),
    ],
)
def test_tables_of_nccl_tests_are_read(
    real_logs: Path, file: str, name: str, size: str, place: str, busbw: float
) -> None:
    parsed = logs.parse_path(real_logs / file, format="nccl_tests")
    assert parsed.verdict is PASS
    found = parsed.measurement(name, size_bytes=size, place=place)
    assert found is not None
    assert (found.value, found.unit) == (busbw, "GB/s")
    wrong = parsed.measurement("wrong_values")
    # The tables of the A100 and of alltoall were made without validation, so wrong values were not counted.
    assert (wrong is None) == file.startswith(("nccl/a100", "nccl/alltoall"))


# File, number of GPUs, name, memory in MiB, and power limit in W.
@pytest.mark.parametrize(
    ("file", "count", "name", "memory_mib", "limit"),
    [
        ("nvidia-smi/qx-a100.xml", 1, "NVIDIA A100-SXM4-40GB", 40960, 400.0),
        ("nvidia-smi/qx-h100.xml", 8, "NVIDIA H100 80GB HBM3", 81559, 700.0),
        ("nvidia-smi/qx-b200.xml", 8, "NVIDIA B200", 183359, 1000.0),
        ("nvidia-smi/qx-gb200.xml", 4, "NVIDIA GB200", 189471, 1200.0),
        ("nvidia-smi/qx-gb300.xml", 4, "NVIDIA GB300", 284208, 1400.0),
        ("h200-x4/nvidia-smi-q.xml", 4, "NVIDIA H200", 143771, 700.0),
    ],
)
def test_gpus_are_read_from_real_xml(
    real_logs: Path, file: str, count: int, name: str, memory_mib: int, limit: float
) -> None:
    gpus = logs.read_gpus((real_logs / file).read_bytes())
    assert len(gpus) == count
    assert {(gpu.name, gpu.memory_bytes, gpu.power_limit_w) for gpu in gpus} == {
        (name, memory_mib << 20, limit)
    }
    assert [gpu.index for gpu in gpus] == list(range(count))
    assert len({gpu.uuid for gpu in gpus}) == count
    assert all(gpu.serial and gpu.bus_id and gpu.vbios for gpu in gpus)
