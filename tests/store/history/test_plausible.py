"""Test that only plausible numbers of a sound machine become references of the history.

A reference that is too low hides a slow GPU for ever. `rackproof accept` therefore refuses a run with a
finding, a number beyond the peak of the GPU or far below what sound ones reach, a number worse than other
machines of the kind, and a number too far from the first accepted one (store/history/references.py).
"""

from __future__ import annotations

import math
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from rackproof.core.records import Direction, Finding, Gpu, Judgement, Measurement, Node, Reference, Verdict
from rackproof.store.history.references import (
    CHAIN_DEVIATION,
    AcceptedNumber,
    acceptance_objection,
    better_way,
    comparison_objection,
    drift_objection,
    loss_of,
    physical_objection,
)
from rackproof.store.history.store import HistoryError, Store, open_store
from tests.store.history.samples import START, measured, node, run, unjudged

POINT = {"batch_size": 128, "gpus": 2}
UP, DOWN = Direction.HIGHER, Direction.LOWER


# Each row has a measurement, the product of its GPU, and whether the number is refused as implausible.
@pytest.mark.parametrize(
    ("metric", "labels", "unit", "value", "product", "objects"),
    [
        # These numbers were measured on sound machines, or have no known peak.
        ("gemm_best", {"dtype": "bf16"}, "TFLOP/s", 793, "NVIDIA H200", False),
        ("gemm_best", {"dtype": "fp8"}, "TFLOP/s", 1402.6, "NVIDIA H100 80GB HBM3", False),
        ("gemm_best", {"dtype": "fp16"}, "TFLOP/s", 90, "Tesla V100-SXM2-16GB", False),
        ("memory_copy", {}, "TB/s", 4.3, "NVIDIA H200", False),
        ("memory_copy", {}, "TB/s", 1.6, "NVIDIA H100 PCIe", False),
        ("host_to_device", {}, "GB/s", 52, "NVIDIA H200", False),
        ("host_to_device", {}, "GB/s", 120, "NVIDIA GB300", False),
        ("peer_copy", {}, "GB/s", 396, "NVIDIA H200", False),
        ("peer_copy", {}, "GB/s", 48, "Tesla V100-SXM2-16GB", False),
        ("gemm_fixed", {"dtype": "fp32"}, "TFLOP/s", 51.3, "NVIDIA H200", False),
        ("gemm_best", {"dtype": "bf16"}, "TFLOP/s", 1745, "NVIDIA B200", False),
        ("gemm", {"dtype": "fp32", "shape": "256x256x256"}, "TFLOP/s", 3, "NVIDIA H200", False),
        ("all_reduce_busbw", {"size_bytes": "8388608"}, "GB/s", 212.9, "NVIDIA H200", False),
        ("all_reduce_busbw", {"size_bytes": "268435456"}, "GB/s", 338, "NVIDIA H200", False),
        ("all_reduce_busbw", {"size_bytes": "1073741824"}, "GB/s", 682, "NVIDIA B200", False),
        ("all_reduce_busbw", {"size_bytes": "4096"}, "GB/s", 0.2, "NVIDIA H200", False),
        ("all_reduce_busbw", {"size_bytes": "1073741824"}, "GB/s", 60, "NVIDIA H100 PCIe", False),
        ("all_reduce_busbw", {"size_bytes": "1073741824"}, "GB/s", 60, "Tesla V100-SXM2-32GB", False),
        ("all_reduce_busbw", {"size_bytes": "1073741824", "device": "cpu"}, "GB/s", 2, "NVIDIA H200", False),
        ("gemm_best", {"dtype": "bf16"}, "TFLOP/s", 12, "a GPU that nobody knows", False),
        # These are 62 or 70 % of what sound machines reach, or less for collectives.
        ("gemm_best", {"dtype": "bf16"}, "TFLOP/s", 0.62 * 793, "NVIDIA H200", True),
        ("gemm_best", {"dtype": "bf16"}, "TFLOP/s", 0.7 * 794, "NVIDIA H100 80GB HBM3", True),
        ("gemm_best", {"dtype": "fp8"}, "TFLOP/s", 0.7 * 1453, "NVIDIA H200", True),
        ("gemm_fixed", {"dtype": "fp32"}, "TFLOP/s", 0.7 * 51.3, "NVIDIA H200", True),
        ("memory_copy", {}, "TB/s", 0.7 * 4.3, "NVIDIA H200", True),
        ("memory_triad", {}, "TB/s", 0.7 * 2.97, "NVIDIA H100 80GB HBM3", True),
        ("peer_copy", {}, "GB/s", 0.7 * 396, "NVIDIA H200", True),
        ("host_to_device", {}, "GB/s", 0.7 * 52, "NVIDIA H200", True),
        ("all_reduce_busbw", {"size_bytes": "8388608"}, "GB/s", 21, "NVIDIA H200", True),
        ("all_reduce_busbw", {"size_bytes": "67108864"}, "GB/s", 31, "NVIDIA H200", True),
        ("all_gather_busbw", {"size_bytes": "1073741824"}, "GB/s", 0.7 * 354, "NVIDIA H200", True),
        ("reduce_scatter_busbw", {"size_bytes": "8589934592"}, "GB/s", 200, "NVIDIA B200", True),
        # These are the slowest numbers of two and four healthy H100 and of two healthy H200, without NVLS.
        ("all_gather_busbw", {"size_bytes": "8388608"}, "GB/s", 113.5, "NVIDIA H100 80GB HBM3", False),
        ("all_gather_busbw", {"size_bytes": "134217728"}, "GB/s", 230.1, "NVIDIA H100 80GB HBM3", False),
        ("all_gather_busbw", {"size_bytes": "536870912"}, "GB/s", 253.8, "NVIDIA H100 80GB HBM3", False),
        ("all_gather_busbw", {"size_bytes": "1073741824"}, "GB/s", 266.8, "NVIDIA H100 80GB HBM3", False),
        ("all_gather_busbw", {"size_bytes": "1073741824"}, "GB/s", 269.4, "NVIDIA H200", False),
        ("reduce_scatter_busbw", {"size_bytes": "536870912"}, "GB/s", 250.0, "NVIDIA H100 80GB HBM3", False),
        ("reduce_scatter_busbw", {"size_bytes": "1073741824"}, "GB/s", 268.0, "NVIDIA H100 80GB HBM3", False),
        ("all_reduce_busbw", {"size_bytes": "8388608"}, "GB/s", 154.3, "NVIDIA H100 80GB HBM3", False),
        # These are half of what sound machines reach, or less, or more than the peak.
        ("gemm_best", {"dtype": "bf16"}, "TFLOP/s", 396, "NVIDIA H200", True),
        ("gemm_best", {"dtype": "fp8"}, "TFLOP/s", 700, "NVIDIA H200", True),
        ("memory_copy", {}, "TB/s", 2.15, "NVIDIA H200", True),
        ("memory_triad", {}, "TB/s", 1.4, "NVIDIA H100 80GB HBM3", True),
        ("host_to_device", {}, "GB/s", 26, "NVIDIA H200", True),
        ("peer_copy", {}, "GB/s", 198, "NVIDIA H200", True),
        ("gemm_best", {"dtype": "bf16"}, "TFLOP/s", 1200, "NVIDIA H200", True),
        ("memory_copy", {}, "TB/s", 5.0, "NVIDIA H200", True),
        ("all_reduce_busbw", {}, "GB/s", 1000, "NVIDIA H200", True),
        # These have no known peak, but some are absurd.
        ("latency", {}, "s", 1e-320, "a GPU that nobody knows", True),
        ("speed", {}, "images/s", 1e308, "", True),
        ("speed", {}, "images/s", -1e30, "", True),
        ("latency", {}, "s", 1e-9, "", False),
        ("faults", {}, "", 0, "", False),
    ],
)
def test_numbers_above_the_peak_or_far_below_sound_ones_get_an_objection(
    metric: str, labels: dict[str, str], unit: str, value: float, product: str, objects: bool
) -> None:
    assert bool(physical_objection(metric, labels, unit, value, product)) is objects


# `others` are the numbers of other machines. More than 10 % worse than their median is refused.
@pytest.mark.parametrize(
    ("value", "others", "direction", "objects"),
    [
        (100, [100, 101, 99], UP, False),
        (91, [100, 101, 99], UP, False),
        (150, [100, 101, 99], UP, False),
        (50, [], UP, False),
        (91, [100], UP, False),
        (50, [100, 101], UP, True),
        (50, [100], UP, True),
        (1.2, [1.0], DOWN, True),
        (89, [100, 101, 99], UP, True),
        (50, [100, 101, 99, 50], UP, True),
        (112, [100, 101, 99], DOWN, True),
        (50, [100, 101, 99], DOWN, False),
        (112, [100, 101, 99], None, True),
    ],
)
def test_a_number_far_worse_than_those_of_others_gets_an_objection(
    value: float, others: list[float], direction: Direction | None, objects: bool
) -> None:
    assert bool(comparison_objection("speed", value, others, direction)) is objects


@pytest.fixture
def store(tmp_path: object) -> Store:
    """Yield an empty history."""
    with open_store(tmp_path / "history.sqlite") as opened:  # type: ignore[operator]
        yield opened  # type: ignore[misc]


@pytest.mark.parametrize("code", ["xid", "throttled", "unkillable"])
def test_a_degraded_run_is_no_reference(store: Store, code: str) -> None:
    finding = Finding(code=code, message=f"what {code} says", verdict=Verdict.DEGRADED)
    store.keep(run(findings=(finding,), verdict=Verdict.DEGRADED, reasons=(finding.message,)))
    with pytest.raises(HistoryError, match=f"what {code} says"):
        store.accept("run-1")
    store.keep(run("run-2", verdict=Verdict.DEGRADED, reasons=("slow",)))
    with pytest.raises(HistoryError, match="slow"):
        store.accept("run-2")


@pytest.mark.parametrize(("speed", "words"), [(2.1, "healthy ones of"), (4.9, "more than the peak")])
def test_a_speed_above_the_peak_or_far_too_low_is_no_reference(
    store: Store, speed: float, words: str
) -> None:
    store.keep(run(speed=speed))
    with pytest.raises(HistoryError, match=words):
        store.accept("run-1")


def test_a_machine_slower_than_others_of_its_kind_is_no_reference(store: Store) -> None:
    for number in (2, 3, 4):
        store.keep(run(f"other-{number}", nodes=(node(number),), speed=4.3))
    store.keep(run("slow", speed=3.8))
    store.keep(run("sound", speed=4.25, night=1))
    with pytest.raises(HistoryError, match=r"memory_copy on GPU-.*worse than the median of"):
        store.accept("slow")
    assert store.accept("sound") > 0
    assert store.accept("other-2") > 0


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.UNPROVEN, Verdict.DEGRADED])
def test_a_finding_without_words_is_an_objection_too(verdict: Verdict) -> None:
    wordless = run(findings=(Finding(code="odd", verdict=verdict, message=""),))
    assert acceptance_objection(wordless) == "it has the finding odd, without a message"


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
        # Rules at_most and at_least, for numbers of which more or less is better.
        (0.5, Reference(value=1, high=0, unit="", source="llm.yml"), UP, False),
        (0.5, Reference(value=1, high=0, unit="", source="llm.yml"), DOWN, False),
        (1.5, Reference(value=1, high=0, unit="", source="llm.yml"), UP, True),
        (0.5, Reference(value=0.02, low=0, unit="", source="llm.yml"), DOWN, False),
        (0.01, Reference(value=0.02, low=0, unit="", source="llm.yml"), DOWN, True),
        (0.01, Reference(value=0.02, low=0, unit="", source="llm.yml"), UP, True),
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
    assert ("has the verdict pass" in acceptance_objection(forged)) is objects


def test_between_nodes_the_network_decides_and_not_the_links_of_the_gpus() -> None:
    labels = {"size_bytes": "1073741824"}
    assert physical_objection("all_reduce_busbw", labels, "GB/s", 190, "NVIDIA H200", nodes=1)
    assert not physical_objection("all_reduce_busbw", labels, "GB/s", 190, "NVIDIA H200", nodes=2)
    assert physical_objection("all_reduce_busbw", labels, "GB/s", 901, "NVIDIA H200", nodes=2)


def bare_node(product: str, *, gpus: int = 4, number: int = 1) -> Node:
    """Return a node without a SKU, as `localhost` is."""
    made = [
        Gpu(index=at, uuid=f"GPU-{number:04x}{at:04x}-aaaa-bbbb-cccc-0123456789ab", name=product)
        for at in range(gpus)
    ]
    return Node(name=f"bare{number}", serial=f"B{number}", gpus=tuple(made))


def of_gpus(
    run_id: str, on: Node, values: list[float], name: str, unit: str, way: Direction | None, night: int = 0
) -> object:
    """Return a run with one number of each GPU. For `peer_copy`, it is that of a link between two GPUs."""
    gpus = on.gpus
    numbers = [
        measured(name, value, unit, way, gpu=gpu.uuid)
        if name != "peer_copy"
        else measured(name, value, unit, way, **{"from": gpu.uuid, "to": gpus[at - 1].uuid})
        for at, (gpu, value) in enumerate(zip(gpus, values, strict=True))
    ]
    return run(
        run_id,
        night=night,
        nodes=(on,),
        measurements=tuple(numbers),
        judgements=tuple(map(unjudged, numbers)),
    )


# `good` and `bad` are numbers of GPUs of the same run. `way` is the direction of better numbers.
@pytest.mark.parametrize(
    ("product", "name", "unit", "way", "good", "bad"),
    [
        # The peaks of an L40S are unknown here, so its numbers are only compared with the other GPUs.
        ("NVIDIA L40S", "memory_copy", "TB/s", UP, 0.75, 0.62 * 0.75),
        ("NVIDIA L40S", "samples_per_second", "samples/s", UP, 1000, 700),
        ("NVIDIA L40S", "samples_per_second", "samples/s", None, 1000, 880),
        ("NVIDIA L40S", "step_time", "ms", DOWN, 100, 130),
        ("NVIDIA L40S", "step_time", "ms", None, 100, 130),
        ("NVIDIA L40S", "host_to_device", "GB/s", UP, 25, 15),
        ("NVIDIA H200", "memory_copy", "TB/s", UP, 4.3, 3.8),
        ("NVIDIA H200", "peer_copy", "GB/s", UP, 396, 340),
    ],
)
def test_one_gpu_that_is_slower_than_the_others_of_its_run_is_no_reference(
    store: Store, product: str, name: str, unit: str, way: Direction | None, good: float, bad: float
) -> None:
    for gpus in (4, 2):
        on = bare_node(product, gpus=gpus, number=gpus)
        store.keep(of_gpus(f"bad-{gpus}", on, [good] * (gpus - 1) + [bad], name, unit, way))
        with pytest.raises(HistoryError, match=f"{name} on .*worse than .*in the same run"):
            store.accept(f"bad-{gpus}")
        store.keep(
            of_gpus(f"good-{gpus}", on, [good * (1 + at / 100) for at in range(gpus)], name, unit, way, 1)
        )
        assert store.accept(f"good-{gpus}") == gpus


@pytest.mark.parametrize("product", ["Tesla V100-SXM2-16GB", "NVIDIA A100 80GB PCIe", "NVIDIA H100 NVL"])
def test_links_without_switches_may_differ_and_are_accepted(store: Store, product: str) -> None:
    store.keep(of_gpus("mesh", bare_node(product), [48, 24, 10, 48], "peer_copy", "GB/s", UP))
    assert store.accept("mesh") == 4


def test_copies_to_the_host_may_differ_between_processors(store: Store) -> None:
    on = bare_node("NVIDIA L40S")
    store.keep(of_gpus("numa", on, [25, 25, 21, 21], "host_to_device", "GB/s", UP))
    assert store.accept("numa") == 4


def test_machines_without_a_sku_are_compared_with_others_with_the_same_gpu(store: Store) -> None:
    for number in (1, 2):
        on = bare_node("NVIDIA L40S", gpus=1, number=number)
        store.keep(of_gpus(f"sound-{number}", on, [0.75], "memory_copy", "TB/s", UP))
    for number, product, refused in ((3, "NVIDIA L40S", True), (4, "NVIDIA L40", False)):
        on = bare_node(product, gpus=1, number=number)
        store.keep(of_gpus(f"slow-{number}", on, [0.55], "memory_copy", "TB/s", UP))
        if refused:
            with pytest.raises(HistoryError, match="worse than the median of 2 others of its kind"):
                store.accept(f"slow-{number}")
        else:
            assert store.accept(f"slow-{number}") == 1


def beyond_bound(store: Store, run_id: str, bounding: dict[str, datetime]) -> str:
    """Accept a run. Return the refusal because of its distance from the first number, or ""."""
    try:
        store.accept(run_id, bounding=bounding)
    except HistoryError as error:
        return str(error)[str(error).index("accepted first, from night-00") :]
    return ""


# `first` is the first number, and `step` the relative change of each run against the reference of the day.
@pytest.mark.parametrize(
    ("name", "unit", "way", "first", "step"),
    [
        ("memory_copy", "TB/s", UP, 0.8, -0.034),
        ("samples_per_second", "samples/s", UP, 800, -0.034),
        ("samples_per_second", "samples/s", None, 800, -0.034),
        ("samples_per_second", "samples/s", UP, 800, 0.034),
        ("all_reduce_busbw", "GB/s", UP, 20, -0.01),
        ("step_time", "ms", DOWN, 100, 0.034),
        ("step_time", "ms", None, 100, 0.034),
        ("step_time", "ms", DOWN, 100, -0.034),
        ("unheard_of", "1", None, 3, 0.034),
    ],
)
@pytest.mark.parametrize("withdrawn", [False, True])
def test_thirty_acceptances_stay_within_the_bound_of_the_first(
    store: Store, name: str, unit: str, way: Direction | None, first: float, step: float, withdrawn: bool
) -> None:
    """Each run is a little off the reference, always on one side. Earlier runs are withdrawn, or kept."""
    on = bare_node("NVIDIA L40S", gpus=1)
    bounding: dict[str, datetime] = {}
    value, reference = first, first
    for night in range(30):
        run_id = f"night-{night:02d}"
        store.keep(of_gpus(run_id, on, [value], name, unit, way, night))
        if beyond_bound(store, run_id, bounding):
            break
        bounding[run_id] = START + timedelta(days=night)
        kept = store.baseline("probe", POINT, name, {"gpu": on.gpus[0].uuid}, (on,))
        assert kept is not None
        reference = kept.value
        assert abs(reference / first - 1) <= CHAIN_DEVIATION
        if withdrawn:
            store.withdraw(run_id)
        value = reference * (1 + step)
    else:
        # With the median of many runs, the numbers may also stop changing within the bound.
        assert abs(value / first - 1) <= 2 * CHAIN_DEVIATION
        assert not withdrawn


@pytest.mark.parametrize(
    ("unit", "given", "way"),
    [("ms", None, DOWN), ("s", None, DOWN), ("samples/s", None, UP), ("", None, None), ("s", UP, UP)],
)
def test_the_better_way_is_the_given_one_or_that_of_the_unit(
    unit: str, given: Direction | None, way: Direction | None
) -> None:
    assert better_way(given, unit) is way


@pytest.mark.parametrize("moments", [(0, 1), (1, 0)])
def test_drift_is_counted_from_the_first_accepted_number_even_if_it_was_withdrawn(
    moments: tuple[int, int],
) -> None:
    numbers = [
        AcceptedNumber("a", 100, START + timedelta(days=moments[0]), standing=False),
        AcceptedNumber("b", 90, START + timedelta(days=moments[1])),
    ]
    assert bool(drift_objection(numbers, 91, UP)) is (moments == (0, 1))


def test_numbers_that_are_refused_can_be_accepted_with_a_reason(store: Store) -> None:
    store.keep(run(speed=2.1))
    with pytest.raises(HistoryError, match="not a reference"):
        store.accept("run-1")
    assert store.accept("run-1", despite="power capped to 400 W on purpose") == 3
    # A reason does not help against a finding of the run itself.
    store.keep(run("run-2", verdict=Verdict.DEGRADED, reasons=("slow",)))
    with pytest.raises(HistoryError, match="slow"):
        store.accept("run-2", despite="so what")


def machine(number: int, *, product: str = "Rack server", gpus: int = 0) -> Node:
    """Return a machine without a SKU, with GPUs whose peaks are unknown here."""
    made = bare_node("NVIDIA L40S", gpus=gpus, number=number)
    return made.model_copy(update={"product": product})


def of_node(
    run_id: str, on: Node, value: float, name: str, unit: str, way: Direction | None, night: int = 0
) -> object:
    """Return a run with one number of a whole node, and one of each of its GPUs."""
    number = measured(name, value, unit, way)
    numbers = [number, *(measured("clock", 1980, "MHz", UP, gpu=gpu.uuid) for gpu in on.gpus)]
    return run(
        run_id,
        night=night,
        nodes=(on,),
        measurements=tuple(numbers),
        judgements=tuple(map(unjudged, numbers)),
    )


# Metric of a whole node, unit, direction, the number of a sound machine, and that of a slow one.
WHOLE = [
    ("samples_per_second", "samples/s", UP, 1000.0, 700.0),
    ("disk_write", "GiB/s", None, 2.0, 1.4),
    ("step_time", "ms", DOWN, 100.0, 142.0),
    ("latency", "us", None, 5.0, 7.1),
]


@pytest.mark.parametrize(("name", "unit", "way", "good", "bad"), WHOLE)
@pytest.mark.parametrize("gpus", [0, 2])
def test_five_slow_machines_in_a_row_are_compared_with_the_sound_one(
    store: Store, name: str, unit: str, way: Direction | None, good: float, bad: float, gpus: int
) -> None:
    store.keep(of_node("sound", machine(1, gpus=gpus), good, name, unit, way))
    assert name in store.unbounded_metrics("sound")
    assert store.accept("sound") > 0
    for number in range(2, 7):
        store.keep(of_node(f"slow-{number}", machine(number, gpus=gpus), bad, name, unit, way, number))
        assert name not in store.unbounded_metrics(f"slow-{number}")
        with pytest.raises(HistoryError, match=f"{name} on .*worse than "):
            store.accept(f"slow-{number}")
    store.keep(of_node("as-sound", machine(9, gpus=gpus), good, name, unit, way, 9))
    assert store.accept("as-sound") > 0


@pytest.mark.parametrize(("name", "unit", "way", "good", "bad"), WHOLE)
def test_machines_that_are_each_a_little_worse_get_no_further_than_the_first_allows(
    store: Store, name: str, unit: str, way: Direction | None, good: float, bad: float
) -> None:
    step = 0.93 if bad < good else 1.07
    values = [good * step**number for number in range(6)]
    accepted = []
    for number, value in enumerate(values):
        store.keep(of_node(f"m-{number}", machine(number), value, name, unit, way, number))
        with suppress(HistoryError):
            store.accept(f"m-{number}")
            accepted.append(value)
    assert 0 < len(accepted) < len(values)
    assert all(abs(value / good - 1) <= 0.1 for value in accepted)


@pytest.mark.parametrize(
    ("on", "why"),
    [
        (machine(2, product="Another server"), "another machine"),
        (machine(2, product=""), "a machine that does not name itself"),
        (machine(2, gpus=4), "another number of GPUs"),
    ],
)
def test_a_machine_of_another_kind_has_no_bound_and_that_is_shown(store: Store, on: Node, why: str) -> None:
    store.keep(of_node("sound", machine(1), 1000, "samples_per_second", "samples/s", UP))
    store.accept("sound")
    store.keep(of_node("other", on, 700, "samples_per_second", "samples/s", UP, 1))
    assert "samples_per_second" in store.unbounded_metrics("other"), why
    assert store.accept("other") > 0


@pytest.mark.parametrize(
    ("product", "name", "unit", "value", "unbounded"),
    [
        ("NVIDIA H200", "memory_copy", "TB/s", 4.3, []),
        ("NVIDIA L40S", "memory_copy", "TB/s", 0.75, ["memory_copy"]),
        ("NVIDIA H200", "samples_per_second", "samples/s", 1000, ["samples_per_second"]),
        # A data sheet does not bound the numbers of cards and copies to a Grace CPU from below.
        ("NVIDIA H100 PCIe", "memory_copy", "TB/s", 0.1, ["memory_copy"]),
        ("NVIDIA H200 NVL", "host_to_device", "GB/s", 1.0, ["host_to_device"]),
        ("NVIDIA GB200", "host_to_device", "GB/s", 1.0, ["host_to_device"]),
        ("NVIDIA GB200", "memory_copy", "TB/s", 7.0, []),
        ("NVIDIA H200", "host_to_device", "GB/s", 55.0, []),
    ],
)
def test_a_metric_without_a_known_peak_or_another_gpu_is_unbounded(
    store: Store, product: str, name: str, unit: str, value: float, unbounded: list[str]
) -> None:
    store.keep(of_gpus("first", bare_node(product, gpus=1), [value], name, unit, UP))
    assert store.unbounded_metrics("first") == unbounded
    store.keep(of_gpus("two", bare_node(product, gpus=2, number=7), [value, value], name, unit, UP))
    assert store.unbounded_metrics("two") == []


@pytest.mark.parametrize("name", ["all_reduce_busbw", "all_gather_busbw", "reduce_scatter_busbw"])
@pytest.mark.parametrize(("nodes", "unbounded"), [(1, False), (2, True), (3, True)])
def test_a_data_sheet_does_not_confirm_a_speed_between_nodes(
    store: Store, name: str, nodes: int, unbounded: bool
) -> None:
    speed = measured(name, 400.0, "GB/s", UP, size_bytes="1073741824")
    several = tuple(bare_node("NVIDIA H100 80GB HBM3", gpus=8, number=number) for number in range(nodes))
    store.keep(run("first", nodes=several, measurements=(speed,), judgements=(unjudged(speed),)))
    assert store.unbounded_metrics("first") == ([name] if unbounded else [])


@pytest.mark.parametrize(
    ("value", "reference", "direction", "loss"),
    [
        (500, 0, Direction.LOWER, math.inf),
        (0.001, 0, None, math.inf),
        (-1, 0, None, math.inf),
        (-1, 0, Direction.HIGHER, math.inf),
        (1, 0, Direction.HIGHER, -math.inf),
        (0, 0, Direction.LOWER, 0),
        (0, 0, None, 0),
        (0, 5, Direction.LOWER, -1),
    ],
)
def test_the_loss_against_a_reference_of_zero_is_infinite_unless_the_number_is_zero(
    value: float, reference: float, direction: Direction | None, loss: float
) -> None:
    assert loss_of(value, reference, direction) == loss


def test_faults_are_far_worse_than_a_number_of_zero() -> None:
    objection = comparison_objection("errors", 500, [0], Direction.LOWER)
    assert objection == "500 is far worse than the other of its kind in the history, 0"
    assert comparison_objection("errors", 0, [0, 0], Direction.LOWER) == ""
    first = AcceptedNumber("run-1", 0.0, datetime(2026, 11, 1, tzinfo=UTC))
    assert drift_objection([first], 500, Direction.LOWER).startswith(
        "500 is far worse than 0 (accepted first"
    )
    assert drift_objection([first], 0, Direction.LOWER) == ""
