"""Make run folders for the tests of submissions, as bench.yml leaves them.

A run folder has the record of a run with its nodes, a log, and the scripts of the run. MLCommons' own logger
writes the logs. Their values follow the rules, unless a test passes other values.
"""

from __future__ import annotations

import hashlib
import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mlperf_logging.mllog.mllog import MLLogger

from rackproof.core.records import Gpu, LogFile, Node, Run, Verdict
from rackproof.store.run_folder import read_run, write_run

START_MS = 1_790_000_000_000
SYSTEM = {
    "system": "b200_n2",
    "submitter": "Example Org",
    "division": "closed",
    "status": "Available on-premise",
    "system_name": "Example_B200_n2",
    "host_storage_type": "local NVMe",
    "host_storage_capacity": "15 TB",
    "host_networking": "8x 400 Gb/s InfiniBand",
    "host_networking_topology": "fat tree",
    "host_memory_configuration": "32x 64 GB",
    "accelerator_host_interconnect": "PCIe 5",
    "accelerator_memory_configuration": "HBM3e",
    "accelerator_interconnect": "NVLink 5",
    "cooling": "air",
}
"""The operator's system file."""
PRINTED = {
    "submitter": "UNKNOWN_MLPERF_SUBMITTER",
    "division": "closed",
    "system_name": "UNKNOWN_MLPERF_SYSTEM_NAME",
    "number_of_nodes": "2",
    "host_processors_per_node": "2",
    "host_processor_model_name": "INTEL(R) XEON(R) PLATINUM 8570",
    "host_processor_core_count": "56",
    "host_memory_capacity": "",
    "accelerators_per_node": "8",
    "accelerator_model_name": "NVIDIA B200",
    "framework": "PyTorch Release 26.01",
    "other_software_stack": {"cuda_version": "13.1", "nccl_version": "2.29.1", "trt_version": ""},
}
"""The system that a run script prints into a log."""
COMMON = {"train_samples": 3901, "gradient_accumulation_steps": 1}
DISCLOSED = {
    "lowest_numerical_precision_in_linear": "nvfp4",
    "lowest_numerical_precision_in_attn": "fp8",
    "lowest_numerical_precision_in_comm": "bfloat16",
    "tensor_parallelism": 1,
    "pipeline_parallelism": 1,
    "context_parallelism": 1,
    "expert_parallelism": 1,
    "micro_batch_size": 1,
    "config_filename": "config_B200_2x8.sh",
}
# By benchmark: settings that the rules accept, about as many samples as the reference needs, and a loss below
# the target.
BENCHMARKS: dict[str, tuple[dict[str, Any], int, float]] = {
    "llama2_70b_lora": (
        {
            "eval_samples": 173,
            "global_batch_size": 8,
            "opt_base_learning_rate": 0.0004,
            "opt_adamw_weight_decay": 0.0001,
            "opt_gradient_clip_norm": 0.3,
            "opt_learning_rate_training_steps": 1024,
            "opt_learning_rate_warmup_factor": 0.0,
            "lora_rank": 16,
            "lora_alpha": 32,
        },
        3456,
        0.92,
    ),
    "gpt_oss_20b": (
        {
            "eval_samples": 1024,
            "global_batch_size": 16,
            "max_sequence_length": 8192,
            "opt_name": "adamw",
            "opt_base_learning_rate": 0.0004,
            "opt_end_learning_rate": 0.00004,
            "opt_learning_rate_warmup_steps": 128,
            "opt_learning_rate_decay_steps": 1_199_872,
            "opt_learning_rate_decay_schedule": "cosine with linear warmup",
            "opt_adamw_beta_1": 0.9,
            "opt_adamw_beta_2": 0.95,
            "opt_adamw_epsilon": 1e-05,
            "opt_adamw_weight_decay": 0.1,
            "opt_gradient_clip_norm": 1.0,
            "max_steps": 1_200_000,
        },
        208_896,
        3.33,
    ),
}


def write_log(
    path: Path,
    number: int,
    *,
    benchmark: str = "llama2_70b_lora",
    division: str = "closed",
    status: str | None = "success",
    samples: int = 0,
    minutes: float = 10.0,
    printed: dict[str, Any] | None = PRINTED,
    settings: dict[str, Any] | None = None,
) -> None:
    """Write a result log as a workload does: with MLCommons' logger, in the order of the rules.

    Args:
        path: The path of the log.
        number: The number of the run. Each run has different times and another seed.
        benchmark: One of ``BENCHMARKS``.
        division: The division that the log states.
        status: The status in ``run_stop``. With ``None``, there is no ``run_stop``, as in a cancelled job.
        samples: The number of samples up to ``run_stop``. With 0, it is that of ``BENCHMARKS``.
        minutes: The time from ``run_start`` to ``run_stop``.
        printed: The system that the run script prints as ``:::SYSJSON``, or ``None`` to print no system.
        settings: Values that replace or add to the usual ones.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    values, usual, loss = BENCHMARKS[benchmark]
    samples = samples or usual
    sink = logging.Logger(f"corpus-{number}", logging.INFO)
    handler = logging.FileHandler(path, encoding="utf-8")
    sink.addHandler(handler)
    log = MLLogger(sink)
    start = START_MS + number * 10_000_000
    stop = start + round(minutes * 60_000)
    sink.info("+ export MLPERF_RULESET=5.1.0")
    sink.info("+ srun --mpi=pmix bash run_and_time.sh")
    if printed is not None:
        sink.info("+ echo ':::SYSJSON %s'", json.dumps(printed))
        sink.info(":::SYSJSON %s", json.dumps(printed))
    log.event("cache_clear", True, time_ms=start - 90_000)
    log.start("init_start", time_ms=start - 80_000)
    identity = {
        "submission_benchmark": benchmark,
        "submission_org": "Example Org",
        "submission_division": division,
        "submission_status": "onprem",
        "submission_platform": "2xB200",
        "seed": 100 + number,
    }
    for key, value in {**identity, **COMMON, **DISCLOSED, **values, **(settings or {})}.items():
        log.event(key, value, time_ms=start - 70_000)
    log.end("init_stop", time_ms=start - 1)
    log.start("run_start", time_ms=start)
    # There are two blocks and two evaluations, as in the shortest published logs.
    middle, batch = start + (stop - start) // 2, values["global_batch_size"]
    half = samples // 2 // batch * batch
    blocks = ((0, half, start, middle, loss + 0.3), (half, samples, middle, stop, loss))
    for begun, done, opened, closed, reached in blocks:
        place = {"samples_count": done}
        stats = {"throughput": (done - begun) / ((closed - opened) / 1000)}
        log.start("block_start", metadata={"samples_count": begun}, time_ms=opened)
        log.event("tracked_stats", stats, metadata={"step": done // batch}, time_ms=closed - 30)
        log.end("block_stop", metadata=place, time_ms=closed - 20)
        log.start("eval_start", metadata=place, time_ms=closed - 20)
        log.event("eval_accuracy", reached, metadata=place, time_ms=closed - 10)
        log.end("eval_stop", metadata=place, time_ms=closed - 10)
    if status is not None:
        log.end("run_stop", metadata={"samples_count": samples, "status": status}, time_ms=stop)
    handler.close()


def node(name: str, *, gpus: int = 8, gpu: str = "NVIDIA B200", driver: str = "590.10") -> Node:
    """Return the record of a node."""
    return Node(
        name=name,
        sku="b200",
        cpu="INTEL(R) XEON(R) PLATINUM 8570",
        cpu_count=224,
        memory_bytes=2_100_000_000_000,
        gpus=tuple(
            Gpu(index=index, uuid=f"GPU-{name}-{index}", name=gpu, memory_bytes=192_000 << 20)
            for index in range(gpus)
        ),
        software={"os": "Ubuntu 24.04.3 LTS", "kernel": "6.8.0-90-generic", "driver": driver},
    )


def make_run(
    results: Path,
    number: int,
    *,
    verdict: Verdict = Verdict.PASS,
    nodes: tuple[Node, ...] | None = None,
    scripts: dict[str, str] | None = None,
    **log: Any,
) -> Run:
    """Make a run folder as ``bench.yml`` leaves it. ``log`` goes to :func:`write_log`."""
    benchmark = log.get("benchmark", "llama2_70b_lora")
    run_id = f"20261121T1{number:05}Z-{benchmark}-{number:06x}"
    folder = results / run_id
    path = folder / "logs" / f"261121{number:06}_1.log"
    write_log(path, number, **({"minutes": 10 + number / 10} | log))
    for name, text in (scripts or {"config_B200_2x8.sh": "export DGXNNODES=2\n"}).items():
        script = folder / name
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(text)
    data = path.read_bytes()
    run = Run(
        run_id=run_id,
        benchmark=benchmark,
        started=datetime.fromtimestamp((START_MS + number * 10_000_000) / 1000, UTC),
        parameters={"nodes": 2},
        container="registry.example/llama2:26.01",
        launcher="slurm",
        command=("sbatch", "-N", "2", "run.sub"),
        nodes=(node("n1"), node("n2")) if nodes is None else nodes,
        seeds=(100 + number,),
        verdict=verdict,
        reasons=() if verdict is Verdict.PASS else ("as the test wants it",),
        logs=(
            LogFile(
                path=f"logs/{path.name}",
                sha256=hashlib.sha256(data).hexdigest(),
                size_bytes=len(data),
                format="mllog",
            ),
        ),
    )
    write_run(run, folder)
    return run


def make_runs(results: Path, count: int = 10, *, first: int = 0, **how: Any) -> list[Run]:
    """Make runs with consecutive numbers. The default is the number that the rules require."""
    return [make_run(results, number, **how) for number in range(first, first + count)]


def all_runs(results: Path) -> list[tuple[Run, Path]]:
    """Return every run of a results folder with its folder."""
    return [(read_run(path.parent), path.parent) for path in sorted(results.glob("*/run.json"))]
