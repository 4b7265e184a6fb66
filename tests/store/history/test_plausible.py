"""What becomes a reference is a sound machine's: no finding, within physics, like the others of its SKU."""

from __future__ import annotations

import pytest

from rackproof.core.records import Direction, Finding, Judgement, Measurement, Reference, Verdict
from rackproof.store.history.references import acceptance_objection, fleet_objection, physical_objection
from rackproof.store.history.store import HistoryError, Store, open_store
from tests.store.history.samples import node, run

UP, DOWN = Direction.HIGHER, Direction.LOWER


@pytest.mark.parametrize(
    ("metric", "labels", "unit", "value", "product", "objects"),
    [
        # Numbers that were measured on sound machines.
        ("gemm_best", {"dtype": "bf16"}, "TFLOP/s", 793, "NVIDIA H200", False),
        ("gemm_best", {"dtype": "fp8"}, "TFLOP/s", 1402.6, "NVIDIA H100 80GB HBM3", False),
        ("gemm_best", {"dtype": "fp16"}, "TFLOP/s", 90, "Tesla V100-SXM2-16GB", False),
        ("memory_copy", {}, "TB/s", 4.3, "NVIDIA H200", False),
        ("memory_copy", {}, "TB/s", 1.6, "NVIDIA H100 PCIe", False),
        ("host_to_device", {}, "GB/s", 52, "NVIDIA H200", False),
        ("host_to_device", {}, "GB/s", 120, "NVIDIA GB300", False),
        ("peer_copy", {}, "GB/s", 396, "NVIDIA H200", False),
        ("all_reduce_busbw", {"size_bytes": "8388608"}, "GB/s", 20, "NVIDIA H200", False),
        ("gemm_best", {"dtype": "bf16"}, "TFLOP/s", 12, "a GPU that nobody knows", False),
        # Half of it, less, and more than there is.
        ("gemm_best", {"dtype": "bf16"}, "TFLOP/s", 396, "NVIDIA H200", True),
        ("gemm_best", {"dtype": "fp8"}, "TFLOP/s", 700, "NVIDIA H200", True),
        ("memory_copy", {}, "TB/s", 2.15, "NVIDIA H200", True),
        ("memory_triad", {}, "TB/s", 1.4, "NVIDIA H100 80GB HBM3", True),
        ("host_to_device", {}, "GB/s", 26, "NVIDIA H200", True),
        ("peer_copy", {}, "GB/s", 198, "NVIDIA H200", True),
        ("gemm_best", {"dtype": "bf16"}, "TFLOP/s", 1200, "NVIDIA H200", True),
        ("memory_copy", {}, "TB/s", 5.0, "NVIDIA H200", True),
        ("all_reduce_busbw", {}, "GB/s", 1000, "NVIDIA H200", True),
        # Of what nobody knows a peak.
        ("latency", {}, "s", 1e-320, "a GPU that nobody knows", True),
        ("speed", {}, "images/s", 1e308, "", True),
        ("speed", {}, "images/s", -1e30, "", True),
        ("latency", {}, "s", 1e-9, "", False),
        ("faults", {}, "", 0, "", False),
    ],
)
def test_physics(
    metric: str, labels: dict[str, str], unit: str, value: float, product: str, objects: bool
) -> None:
    assert bool(physical_objection(metric, labels, unit, value, product)) is objects


@pytest.mark.parametrize(
    ("value", "others", "direction", "objects"),
    [
        (100, [100, 101, 99], UP, False),
        (91, [100, 101, 99], UP, False),
        (150, [100, 101, 99], UP, False),
        (50, [100, 101], UP, False),
        (89, [100, 101, 99], UP, True),
        (50, [100, 101, 99, 50], UP, True),
        (112, [100, 101, 99], DOWN, True),
        (50, [100, 101, 99], DOWN, False),
        (112, [100, 101, 99], None, True),
    ],
)
def test_the_others_of_a_sku(
    value: float, others: list[float], direction: Direction | None, objects: bool
) -> None:
    assert bool(fleet_objection(value, others, direction)) is objects


@pytest.fixture
def store(tmp_path: object) -> Store:
    with open_store(tmp_path / "history.sqlite") as opened:  # type: ignore[operator]
        yield opened  # type: ignore[misc]


@pytest.mark.parametrize("code", ["xid", "throttled", "unkillable"])
def test_a_run_with_a_finding_that_degrades_is_no_reference(store: Store, code: str) -> None:
    finding = Finding(code=code, message=f"what {code} says", verdict=Verdict.DEGRADED)
    store.keep(run(findings=(finding,), verdict=Verdict.DEGRADED, reasons=(finding.message,)))
    with pytest.raises(HistoryError, match=f"what {code} says"):
        store.accept("run-1")
    store.keep(run("run-2", verdict=Verdict.DEGRADED, reasons=("slow",)))
    with pytest.raises(HistoryError, match="slow"):
        store.accept("run-2")


@pytest.mark.parametrize(("speed", "words"), [(2.1, "less than half"), (4.9, "more than the peak")])
def test_a_machine_against_physics_is_no_reference(store: Store, speed: float, words: str) -> None:
    store.keep(run(speed=speed))
    with pytest.raises(HistoryError, match=words):
        store.accept("run-1")


def test_a_slow_machine_among_its_like_is_no_reference(store: Store) -> None:
    for number in (2, 3, 4):
        store.keep(run(f"other-{number}", nodes=(node(number),), speed=4.3))
    store.keep(run("slow", speed=3.6))
    store.keep(run("sound", speed=4.25, night=1))
    with pytest.raises(HistoryError, match="worse than the median of"):
        store.accept("slow")
    assert store.accept("sound") > 0
    assert store.accept("other-2") > 0


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.UNPROVEN, Verdict.DEGRADED])
def test_a_finding_without_words_is_an_objection_too(verdict: Verdict) -> None:
    wordless = run(findings=(Finding(code="odd", verdict=verdict, message=""),))
    assert acceptance_objection(wordless) == "it has the finding odd, without words"


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.DEGRADED])
@pytest.mark.parametrize("reasons", [(), ("",), ("", "it is slow")])
def test_a_reason_without_words_is_an_objection_too(verdict: Verdict, reasons: tuple[str, ...]) -> None:
    words = reasons[-1] if reasons else ""
    assert acceptance_objection(run(verdict=verdict, reasons=reasons)) == (words or f"it is {verdict.value}")


@pytest.mark.parametrize(
    ("value", "reference", "direction", "objects"),
    [
        (77.0, Reference(value=0, low=0, high=0, unit="", source="exact"), DOWN, True),
        (0.4, Reference(value=1, low=-0.07, unit="", source="SKU"), UP, True),
        (2.0, Reference(value=1, low=-0.5, high=0.2, unit="", source="SKU"), DOWN, True),
        (0.95, Reference(value=1, low=-0.07, warn=-0.035, unit="", source="SKU"), UP, False),
        (0.0, Reference(value=0, low=0, high=0, unit="", source="exact"), DOWN, False),
    ],
)
def test_a_pass_that_its_own_number_contradicts_is_an_objection(
    value: float, reference: Reference, direction: Direction, objects: bool
) -> None:
    forged = run(
        measurements=(Measurement(name="m", value=value, unit="", direction=direction),),
        judgements=(
            Judgement(
                metric="m", value=value, reference=reference, verdict=Verdict.PASS, reason="so it says"
            ),
        ),
    )
    assert ("stands there as pass" in acceptance_objection(forged)) is objects
