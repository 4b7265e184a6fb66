"""Test the references that are proposed from repeated runs (:mod:`rackproof.analysis.reference_bounds`).

``rackproof references`` proposes a reference for a SKU from runs on healthy machines, with a bound of twice
their spread. These tests check the bound, which runs do not count, and which values give no reference because
they are too few or differ too much. Values are speeds in GB/s, and bounds are fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rackproof.analysis.reference_bounds import propose_references, reference_entry
from rackproof.core.judging import parse_sku_reference
from rackproof.core.records import (
    Direction,
    Finding,
    Gpu,
    Judgement,
    LogFile,
    Measurement,
    Node,
    Reference,
    Run,
    Verdict,
)
from rackproof.store.history.references import acceptance_objection


def run(number: int, *values: float, machine: str = "m1", **changes: Any) -> Run:
    """Return a run with a speed for each of its GPUs. The speeds have no reference yet."""
    measured = tuple(
        Measurement(
            name="copy",
            value=value,
            unit="GB/s",
            direction=Direction.HIGHER,
            labels={"gpu": f"GPU-{gpu}", "size_bytes": "8"},
        )
        for gpu, value in enumerate(values)
    )
    judged = tuple(
        Judgement(
            metric="copy",
            labels=one.labels,
            value=one.value,
            verdict=Verdict.UNPROVEN,
            reason="no reference yet",
        )
        for one in measured
    )
    given: dict[str, Any] = {
        "run_id": f"run-{number}",
        "benchmark": "copies",
        "parameters": {"gpus": len(values), "seconds": 5},
        "nodes": (Node(name="n1", serial=machine),),
        "measurements": measured,
        "judgements": judged,
    }
    return Run(**{**given, **changes})


def runs(*values: float) -> list[Run]:
    """Return one run for each speed."""
    return [run(number, value) for number, value in enumerate(values)]


def of_product(product: str, metric: str, value: float, unit: str, **labels: str) -> list[Run]:
    """Return five runs of a metric on one GPU of a model, or on none without a model."""
    gpus = (Gpu(index=0, uuid="GPU-00000000-0000-4000-8000-000000000001", name=product),) if product else ()
    measured = Measurement(
        name=metric,
        value=value,
        unit=unit,
        direction=Direction.HIGHER,
        labels=labels | ({"gpu": gpus[0].uuid} if gpus else {}),
    )
    judged = Judgement(
        metric=metric,
        labels=measured.labels,
        value=value,
        verdict=Verdict.UNPROVEN,
        reason="no reference yet",
    )
    node = Node(name="n1", serial="m1", gpus=gpus)
    return [run(n, nodes=(node,), measurements=(measured,), judgements=(judged,)) for n in range(5)]


@pytest.mark.parametrize(
    ("product", "metric", "value", "unit", "labels", "objection"),
    [
        ("NVIDIA H200", "memory_copy", 2.0, "TB/s", {}, "reach more than 3.744"),
        ("NVIDIA H200", "memory_copy", 6.0, "TB/s", {}, "more than the peak of NVIDIA H200, 4.8 TB/s"),
        ("NVIDIA H200", "gemm_best", 500, "TFLOP/s", {"dtype": "bf16"}, "but healthy ones of NVIDIA H200"),
        ("NVIDIA H200", "host_to_device", 20, "GB/s", {}, "but healthy ones of NVIDIA H200"),
        ("NVIDIA H200", "all_reduce_busbw", 90, "GB/s", {"size_bytes": str(1 << 30)}, "but healthy ones"),
        ("", "copy", 1e300, "GB/s", {}, "no quantity is that small or large"),
        ("NVIDIA H200", "memory_copy", 4.3, "TB/s", {}, ""),
        ("NVIDIA H200", "gemm_best", 700, "TFLOP/s", {"dtype": "bf16"}, ""),
        ("NVIDIA GB200", "host_to_device", 20, "GB/s", {}, ""),
        ("NVIDIA Unheard-of", "memory_copy", 0.1, "TB/s", {}, ""),
        ("", "memory_copy", 2.0, "TB/s", {}, ""),
    ],
)
def test_a_number_that_accept_refuses_gives_no_reference(
    product: str, metric: str, value: float, unit: str, labels: dict[str, str], objection: str
) -> None:
    given = of_product(product, metric, value, unit, **labels)
    (one,) = propose_references(given)
    assert objection in one.objection
    assert bool(one.objection) == bool(objection)
    (despite,) = propose_references(given, plausible=False)
    assert despite.objection == ""


def test_the_bound_is_twice_the_spread_and_never_closer_than_the_closest() -> None:
    (quiet,) = propose_references(runs(100, 100.1, 99.9, 100, 100))
    assert (quiet.value, quiet.bound, quiet.objection) == (100, 0.05, "")
    (noisy,) = propose_references(runs(100, 102, 98, 100, 100))
    assert (round(noisy.spread, 4), noisy.bound) == (0.04, 0.08)
    # This is the loss that brings the best healthy value below the bound.
    assert noisy.smallest_loss == pytest.approx(1 - 92 / 102)


@pytest.mark.parametrize(("machines", "bound"), [(1, 0.05), (2, 0.05), (3, 0.03), (5, 0.03)])
def test_runs_of_few_machines_allow_no_close_bound(machines: int, bound: float) -> None:
    """Repeats on one machine do not show how much machines differ."""
    (one,) = propose_references([run(number, 100, machine=f"m{number % machines}") for number in range(6)])
    assert (one.machines, one.bound) == (machines, bound)


def test_healthy_values_lie_within_their_own_bound_and_the_loss_beyond_it() -> None:
    for values in ((90, 100, 95, 96, 94), (1.0, 1.01, 0.99, 1.0, 1.0), (780, 784, 770, 775, 781)):
        (one,) = propose_references(runs(*values))
        assert min(values) > one.value * (1 - one.bound) or one.objection
        assert max(values) * (1 - one.smallest_loss) <= one.value * (1 - one.bound) * 1.000001


def test_all_gpus_of_all_machines_are_one_quantity() -> None:
    several = [run(number, 100, 101, machine=f"m{number % 2}") for number in range(5)]
    (one,) = propose_references(several)
    assert (one.runs, one.machines, one.lowest, one.highest) == (5, 2, 100, 101)
    assert one.labels == {"size_bytes": "8"}


# Speeds, a bound that the operator requires, and the objection.
@pytest.mark.parametrize(
    ("values", "bound", "objection"),
    [
        ((100, 100, 100, 100), None, "4 sound runs, 5 are needed"),
        ((100, 102, 98, 100, 100), 0.03, "within twice that"),
        ((100, 102, 98, 100, 100), 0.079, "8.0% is the closest"),
        # The bound in the message is rounded up, so that it would be accepted.
        ((100, 102.02, 98, 100, 100), 0.0801, "8.1% is the closest"),
        # A required bound may be closer than any that is proposed.
        ((100, 100.5, 99.5, 100, 100), 0.015, "2.0% is the closest"),
        ((100, 110, 95, 100, 100), 0.1, "too much to judge by"),
        ((100, 100.5, 99.5, 100, 100), 0.2, "a bound of 20.0% would miss most faults; 15.0% is the widest"),
        ((100, 110, 95, 100, 100), None, "too much to judge by"),
        ((0, 0, 0, 0, 0), None, "too much to judge by"),
        ((1e-320, 1e-320, 1e-320, 1e-320, 1e300), None, "too much to judge by"),
        ((1e-320, 1e-320, 1e-320, 1e-320, 1e300), 0.1, "too much to judge by"),
        ((1, 1, 1, 1, 1.7e308), None, "too much to judge by"),
        ((1e307, 1e307, 1.5e308, 1.7e308, 1.7e308, 1.7e308), None, "too much to judge by"),
    ],
)
def test_an_objection_states_why_there_is_no_reference(
    values: tuple[float, ...], bound: float | None, objection: str
) -> None:
    (one,) = propose_references(runs(*values), bound=bound, plausible=False)
    assert objection in one.objection


def test_the_median_of_huge_values_is_finite() -> None:
    given = runs(1.6e308, 1.6e308, 1.6e308, 1.61e308, 1.61e308, 1.61e308)
    (one,) = propose_references(given, plausible=False)
    assert one.lowest <= one.value <= one.highest
    assert one.objection == ""


def test_the_closest_bound_is_accepted() -> None:
    (one,) = propose_references(runs(100, 102.02, 98, 100, 100), bound=0.081)
    assert one.objection == ""


def failed(one: Run) -> dict[str, Any]:
    return {"findings": (Finding(code="ecc_error", verdict=Verdict.FAIL, message="x"),)}


def slow(one: Run) -> dict[str, Any]:
    reference = Reference(value=200, low=-0.05, unit="GB/s", source="x")
    bad = one.judgements[0].model_copy(update={"reference": reference, "verdict": Verdict.FAIL})
    return {"judgements": (bad,)}


def unmeasured(one: Run) -> dict[str, Any]:
    return {"judgements": (one.judgements[0].model_copy(update={"value": None}),)}


def wrong(one: Run) -> dict[str, Any]:
    bound = Reference(value=0, low=0, high=0, unit="1", source="x")
    count = Judgement(
        metric="wrong_values", value=3, reference=bound, verdict=Verdict.FAIL, reason="3 wrong values"
    )
    return {"judgements": (*one.judgements, count)}


def on_a_busy_machine(one: Run) -> dict[str, Any]:
    return {"findings": (Finding(code="machine_busy", message="n1 was not idle"),)}


def degraded(one: Run) -> dict[str, Any]:
    return {"findings": (Finding(code="gpu_throttled", verdict=Verdict.DEGRADED, message="x"),)}


def nearly_slow(one: Run) -> dict[str, Any]:
    reference = Reference(value=105, low=-0.1, warn=-0.03, unit="GB/s", source="x")
    bad = one.judgements[0].model_copy(update={"reference": reference, "verdict": Verdict.DEGRADED})
    return {"judgements": (bad,)}


def with_log(verdict: Verdict) -> Callable[[Run], dict[str, Any]]:
    log = LogFile(path="logs/copy.log", sha256="0" * 64, size_bytes=1, verdict=verdict)
    return lambda one: {"logs": (log,)}


def ended_badly(one: Run) -> dict[str, Any]:
    return {"exit_status": 1}


BAD_LOGS = [with_log(verdict) for verdict in (Verdict.FAIL, Verdict.UNPROVEN, Verdict.DEGRADED)]


@pytest.mark.parametrize(
    "bad",
    [
        failed, slow, nearly_slow, unmeasured, wrong, on_a_busy_machine, degraded, ended_badly, *BAD_LOGS,
    ],
)  # fmt: skip
def test_a_run_with_an_objection_does_not_count(bad: Any) -> None:
    good = runs(100, 100, 100, 100, 100)
    spoilt = [*good[:4], good[4].model_copy(update=bad(good[4]))]
    (one,) = propose_references(spoilt)
    assert "4 sound runs" in one.objection


@pytest.mark.parametrize("bad", [failed, degraded, on_a_busy_machine, ended_badly, *BAD_LOGS])
def test_accept_refuses_the_runs_that_references_leave_out(bad: Any) -> None:
    (good,) = runs(100)
    assert acceptance_objection(good) == ""
    assert acceptance_objection(good.model_copy(update=bad(good)))


def test_a_run_whose_logs_pass_counts() -> None:
    update = with_log(Verdict.PASS)(run(0, 1.0))
    (one,) = propose_references(one.model_copy(update=update) for one in runs(100, 100, 100, 100, 100))
    assert (one.runs, one.objection) == (5, "")


def test_a_metric_with_a_bound_of_its_definition_gets_no_reference() -> None:
    bound = Reference(value=0.9, low=0, unit="", source="benchmarks/copies.yml")
    judged = Judgement(metric="copy", value=1, reference=bound, verdict=Verdict.PASS, reason="good")
    assert propose_references([run(n, 1.0, judgements=(judged,)) for n in range(5)]) == []


def test_a_sku_accepts_the_proposed_entry() -> None:
    (one,) = propose_references(runs(331.234, 331.1, 330.9, 331.2, 331.5))
    entry = reference_entry(one, "own measurement")
    assert entry["value"] == 331.2
    assert entry["parameters"] == {"gpus": 1}
    assert entry["source"] == "own measurement, 5 runs, machines 1: 330.9 to 331.5"
    parsed = parse_sku_reference(entry)
    assert parsed.fits("copies", {"gpus": 1, "seconds": 9}, run(0, 1.0).measurements[0])


@pytest.mark.parametrize(
    ("name", "measured", "other"),
    [
        *(("model", "resnet50", "vgg16"), ("batch_size", 128, 512), ("kvstore", "device", "nccl")),
        *(("network", "overlay", "host"), ("precision", "bf16", "fp32"), ("dtype", "float32", "bfloat16")),
    ],
)
def test_an_entry_applies_to_no_point_that_was_not_measured(
    name: str, measured: object, other: object
) -> None:
    point = {"gpus": 1, "seconds": 5, "seed": 1, "lag_limit": 0.04, name: measured}
    (one,) = propose_references([run(n, 331.0 + n / 10, parameters=point) for n in range(5)])
    parsed, speed = parse_sku_reference(reference_entry(one, "own measurement")), run(0, 1.0).measurements[0]
    assert parsed.fits("copies", {**point, "seconds": 30, "seed": 7}, speed)
    assert not parsed.fits("copies", {**point, name: other}, speed)


def test_runs_with_and_without_a_parameter_give_separate_entries() -> None:
    plain, overlay = {"gpus": 1}, {"gpus": 1, "network": "overlay"}
    given = [run(n, 300.0, parameters=plain) for n in range(5)]
    given += [run(n + 5, 200.0, parameters=overlay) for n in range(5)]
    parsed = [parse_sku_reference(reference_entry(one, "own")) for one in propose_references(given)]
    speed = run(0, 1.0).measurements[0]
    for point, value in ((plain, 300.0), (overlay, 200.0)):
        assert [one.reference.value for one in parsed if one.fits("copies", point, speed)] == [value]


@pytest.mark.parametrize(
    ("name", "values"), [("seed", range(10)), ("seconds", (5, 30)), ("target", (0.9, 0.8))]
)
def test_runs_that_differ_only_in_seed_time_or_target_are_repeats(
    name: str, values: Sequence[object]
) -> None:
    runs = [run(n, 331.0, parameters={"gpus": 1, name: values[n % len(values)]}) for n in range(10)]
    (one,) = propose_references(runs)
    assert (one.runs, one.objection, one.parameters) == (10, "", {"gpus": 1})
