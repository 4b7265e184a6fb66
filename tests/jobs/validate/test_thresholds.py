"""Test ``rackproof.jobs.validate.fleet.reference_lint``, and run it on the shipped references.

A reference is the expected speed of a SKU with its bounds. Public health checks have known mistakes in them,
such as wrong units, floors above the hardware's peak, or floors that a node passes with NVLS (the reduction
in NVLink switches) off. The tests check that each mistake is found, and that inventory/group_vars has none.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackproof.core.judging import judge, parse_sku_reference
from rackproof.core.records import Measurement, Verdict
from rackproof.jobs.validate.fleet.reference_lint import GIB, PHYSICS, ReferenceFinding, lint_references

UNITS = {"gemm_best": "TFLOP/s", "memory_copy": "TB/s", "all_reduce_busbw": "GB/s"}
SIZES = {"all_reduce_busbw": {8 << 20, GIB, 4 * GIB}}
GOOD: list[dict[str, Any]] = [
    {
        "metric": "gemm_best",
        "labels": {"dtype": "bf16"},
        "value": 793,
        "low": -0.05,
        "unit": "TFLOP/s",
        "source": "own",
    },
    {"metric": "memory_copy", "value": 4.3, "low": -0.05, "unit": "TB/s", "source": "own"},
    {
        "metric": "all_reduce_busbw",
        "labels": {"size_bytes": str(4 * GIB)},
        "value": 470,
        "low": -0.07,
        "unit": "GB/s",
        "source": "own",
    },
]


def mistakes(at: int, **changes: Any) -> list[tuple[str, str]]:
    """Return the findings on good references of which one was changed."""
    changed = [*GOOD]
    changed[at] = {**GOOD[at], **changes}
    return [(one.kind, one.text) for one in lint_references({"h200": changed}, units=UNITS, sizes=SIZES)]


def test_good_references_have_no_slip() -> None:
    assert lint_references({"h200": GOOD}, units=UNITS, sizes=SIZES) == ()


# Each case changes the reference with this index in GOOD.
@pytest.mark.parametrize(
    ("at", "changes", "said"),
    [
        (1, {"unit": "GB/s"}, "in GB/s, but measured in TB/s"),
        (1, {"value": 4800}, "4800 TB/s is not below the physical peak, 4.8"),
        (0, {"value": 1000}, "1000 TFLOP/s is not below the physical peak, 989.5"),
        (0, {"low": -5}, "low, high and warn are fractions"),
        (0, {"low": None}, "give low, high or warn"),
        (0, {"low": None, "high": 0.3}, "no low bound: nothing slow can fail"),
        (0, {"value": 0}, "a value of 0"),
        (0, {"value": "fast"}, "valid number"),
        (0, {"lo": -0.1}, "Extra inputs"),
        (2, {"value": 390}, "a floor of 362.7 passes with NVLS off, 367"),
        (2, {"labels": {"size_bytes": str(16 * GIB)}}, "is not one that is measured"),
        (2, {"labels": {}}, "is valid for one message size"),
        (1, {**GOOD[0]}, "given twice"),
    ],
)
def test_each_slip_is_an_error(at: int, changes: dict[str, Any], said: str) -> None:
    errors = [text for kind, text in mistakes(at, **changes) if kind == "error"]
    assert len(errors) == 1
    assert said in errors[0]


def test_few_gpus_have_no_nvls_to_lose() -> None:
    assert mistakes(2, value=362.6, parameters={"gpus": 4}) == []
    assert mistakes(2, value=362.6, parameters={"gpus": 8})


def test_what_is_left_open_is_a_gap() -> None:
    assert mistakes(0, source="published guide, GB200") == [("gap", "borrowed from gb200")]
    assert mistakes(0, source="H200, as fast as an H100") == []
    found = lint_references({"x900": []}, units=UNITS, sizes=SIZES)
    assert {one.kind for one in found} == {"gap"}
    assert [one.text for one in found][1:] == [
        "no reference for gemm_best bf16",
        "no reference for memory_copy",
    ]


# A slice is a virtual machine with one, two or four GPUs of a machine, such as sku_h100_x4.
SLICE = re.compile(r"(\w+)_x[124]")


def shipped_skus(root: Path) -> dict[str, dict[str, Any]]:
    """Return the variables of each SKU. A slice's own variables override those of the whole machine."""
    files = {
        path.stem.removeprefix("sku_"): yaml.safe_load(path.read_text())
        for path in (root / "inventory/group_vars").glob("sku_*.yml")
    }
    wholes = {name: found[1] for name in files if (found := SLICE.fullmatch(name))}
    return {name: {**files[wholes[name]], **own} if name in wholes else own for name, own in files.items()}


def inventory(root: Path) -> tuple[ReferenceFinding, ...]:
    skus = {
        # A slice has the references of the whole machine, so only the whole machine is checked.
        name: one["bench_sku_references"]
        for name, one in shipped_skus(root).items()
        if not SLICE.fullmatch(name)
    }
    assert skus
    units: dict[str, str] = {}
    sizes: dict[str, set[int]] = {}
    for path in (root / "benchmarks").glob("*.yml"):
        for rule in yaml.safe_load(path.read_text()).get("result", {}).get("judge", []):
            units.setdefault(rule["metric"], rule.get("unit", ""))
            if "size_bytes" in rule.get("labels", {}):
                sizes.setdefault(rule["metric"], set()).add(int(rule["labels"]["size_bytes"]))
    return lint_references(skus, units={name: unit for name, unit in units.items() if unit}, sizes=sizes)


def test_the_inventorys_thresholds_have_no_error(root: Path) -> None:
    assert [one for one in inventory(root) if one.kind == "error"] == []


def test_every_sku_of_the_inventory_is_known_and_covered_except_for_unpublished_figures(root: Path) -> None:
    """A gap is allowed only where it is listed here."""
    allowed = {
        ("gb300", "borrowed from gb200"),
        ("gb300", "no reference for gemm_best bf16"),
        ("gb300", "no reference for memory_copy"),
        ("b200", "no reference for memory_copy"),
        # These machines of 2019 are only for round 0.6, and their GPUs have no bf16.
        *(
            (sku, f"no reference for {name}")
            for sku in ("dgx1", "hyperplane")
            for name in ("gemm_best bf16", "memory_copy")
        ),
    }
    found = {(one.sku, one.text) for one in inventory(root) if one.kind == "gap"}
    assert found <= allowed
    assert {name for name in shipped_skus(root) if not SLICE.fullmatch(name)} <= set(PHYSICS)


def test_what_a_sku_expects_of_links_follows_from_what_it_is(root: Path) -> None:
    """Whole machines, NVL72 and slices of several GPUs have links and a fabric. A slice of one has none."""
    # V100 have no fabric, and their links are not counted.
    skus = {name: one for name, one in shipped_skus(root).items() if name not in ("dgx1", "hyperplane")}
    groups = yaml.safe_load((root / "inventory/hosts.yml").read_text())["all"]["children"]
    for name, one in skus.items():
        several, expect = one["bench_sku_gpus"] > 1, one["validate_expect"]
        assert (expect["nvlinks"], expect["fabric"]) == ((18, True) if several else (0, False)), name
        if found := SLICE.fullmatch(name):
            whole = skus[found[1]]
            assert name in one["bench_sku"].replace("-", "_")
            assert one["bench_sku_gpus"] == int(name[-1]) < whole["bench_sku_gpus"]
            # Its group is below that of the whole machine, so that the references reach it.
            assert f"sku_{name}" in groups[f"sku_{found[1]}"]["children"]
            assert one["bench_sku_references"] is whole["bench_sku_references"]


def test_no_run_without_nvls_is_compared_with_a_rate_that_needs_it(root: Path) -> None:
    # By default, collectives turns NVLS off, and eight GPUs reach about 367 GB/s.
    failed = []
    for sku, variables in shipped_skus(root).items():
        for size in (8 << 20, 64 << 20, 128 << 20, GIB, 4 * GIB):
            healthy = Measurement(
                name="all_reduce_busbw", value=360, unit="GB/s", labels={"size_bytes": str(size)}
            )
            failed += [
                f"{sku}: {one.reference.source}"
                for one in map(parse_sku_reference, variables.get("bench_sku_references", []))
                if one.fits("collectives", {"gpus": 8, "multicast": "off"}, healthy)
                and judge(healthy, one.reference).verdict is Verdict.FAIL
            ]
    assert failed == []
