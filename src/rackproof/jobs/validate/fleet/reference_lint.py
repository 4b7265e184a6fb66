"""Find mistakes in a SKU's references that would pass a bad node or fail every good node. No I/O.

No job calls this module. A test runs :func:`lint_references` on ``bench_sku_references`` of
``inventory/group_vars/sku_*.yml``, so that a commit with such a mistake fails.

A reference is the expected speed of a SKU's metric with its bounds, such as ``{metric: gemm_best, value: 793,
unit: TFLOP/s, low: -0.07, source: ...}``, and its floor is ``value * (1 + low)``. NVLS is the reduction in
NVLink switches. The module finds these mistakes, which occur in public health checks, and references that are
given twice:

* The unit differs from the unit of the measurement.
* The value is not below the peak of the hardware.
* A node passes the floor although its NVLS is off.
* No benchmark measures the message size.
* There is no floor.
* The floor was measured on another SKU.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from rackproof.core.gpu_models import PHYSICS, GpuPhysics
from rackproof.core.judging import SkuReference
from rackproof.core.records import Reference

GIB = 1 << 30
"""Smallest number of bytes of an all-reduce whose floor must show whether NVLS works."""


ESSENTIAL = (("gemm_best", "bf16"), ("memory_copy", ""))
"""Metrics for which every SKU needs a reference, given with their precision or "". Without the reference, a
bad GPU passes."""


@dataclass(frozen=True)
class ReferenceFinding:
    """A mistake in a SKU's reference, or a missing check.

    Attributes:
        sku: The SKU.
        reference: The position of the reference in the SKU's list, from 1, and its metric (``3: gemm_best``).
            Empty if the finding concerns the whole SKU.
        kind: ``error`` for a mistake, and ``gap`` for a missing check.
        text: The text of the mistake.
    """

    sku: str
    reference: str
    kind: Literal["error", "gap"]
    text: str


def lint_references(
    skus: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    units: Mapping[str, str],
    sizes: Mapping[str, Collection[int]],
) -> tuple[ReferenceFinding, ...]:
    """Return the mistakes (``error``) and missing checks (``gap``) in the references of SKUs.

    An entry that cannot be parsed is an error, and is not checked further. A SKU with unknown physics is
    a gap, because its values cannot be compared with a peak. Each metric of :data:`ESSENTIAL` without an
    entry is a gap, too, and so is a value that was measured on another SKU.

    Args:
        skus: The ``bench_sku_references`` of each SKU, from ``inventory/group_vars/sku_*.yml``.
        units: The unit of each metric in benchmarks.
        sizes: The message sizes in bytes that benchmarks measure, by metric.
    """
    mistakes = []
    for sku, references in skus.items():
        if sku not in PHYSICS:
            mistakes.append(
                ReferenceFinding(sku, "", "gap", "its physics are not known here: values cannot be checked")
            )
        seen_keys = set()
        for number, raw in enumerate(references, 1):
            label = f"{number}: {raw.get('metric', '?')}"
            try:
                reference = read_reference(raw)
            except (ValidationError, TypeError, ValueError) as error:
                reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
                mistakes.append(ReferenceFinding(sku, label, "error", reason))
                continue
            key = (
                reference.metric,
                reference.benchmark,
                tuple(sorted(reference.labels.items())),
                repr(reference.parameters),
            )
            if key in seen_keys:
                mistakes.append(ReferenceFinding(sku, label, "error", "given twice: remove one"))
            seen_keys.add(key)
            mistakes += [
                ReferenceFinding(sku, label, *mistake)
                for mistake in _find_mistakes(sku, reference, units, sizes)
            ]
        have = {
            (raw_reference.get("metric"), (raw_reference.get("labels") or {}).get("dtype", ""))
            for raw_reference in references
        }
        for metric, precision in ESSENTIAL:
            if (metric, precision) not in have:
                mistakes.append(
                    ReferenceFinding(sku, "", "gap", f"no reference for {f'{metric} {precision}'.strip()}")
                )
    return tuple(mistakes)


def read_reference(raw: Mapping[str, Any]) -> SkuReference:
    """Parse an entry of ``bench_sku_references``.

    Raises:
        ValueError: A key is missing or unknown, or a value is invalid (pydantic's ValidationError).
        TypeError: A key is not a text.
    """
    place = {name: raw[name] for name in ("metric", "benchmark", "parameters", "labels") if name in raw}
    bounds = {name: value for name, value in raw.items() if name not in place}
    return SkuReference(**place, reference=Reference(**bounds))


def _find_mistakes(
    sku: str, entry: SkuReference, units: Mapping[str, str], sizes: Mapping[str, Collection[int]]
) -> list[tuple[Literal["error", "gap"], str]]:
    """Return the mistakes in one reference, as kind and text."""
    mistakes: list[tuple[Literal["error", "gap"], str]] = []
    reference = entry.reference
    if entry.metric in units and reference.unit != units[entry.metric]:
        mistakes.append(("error", f"in {reference.unit}, but measured in {units[entry.metric]}"))
    if reference.low is None and reference.high is not None and reference.high > 0:
        mistakes.append(("error", "no low bound: nothing slow can fail"))
    physics = PHYSICS.get(sku)
    peak = math.inf if physics is None else _peak(physics, entry)
    if reference.value >= peak:
        mistakes.append(
            ("error", f"{reference.value:g} {reference.unit} is not below the physical peak, {peak:g}")
        )
    mistakes += _size_mistakes(entry, sizes)
    mistakes += _nvls(physics, entry, entry.labels.get("size_bytes"))
    other_skus = _named_skus(reference.source, PHYSICS) - {sku}
    # If the source names this SKU, too, the value was measured on it, and the others are a comparison.
    if other_skus and not _named_skus(reference.source, [sku]):
        mistakes.append(("gap", f"borrowed from {', '.join(sorted(other_skus))}"))
    return mistakes


def _size_mistakes(
    reference: SkuReference, sizes: Mapping[str, Collection[int]]
) -> list[tuple[Literal["error", "gap"], str]]:
    """Return the mistake in a reference's message size, if there is one."""
    size = reference.labels.get("size_bytes")
    if size is None:
        if reference.metric.endswith("busbw"):
            return [("error", "without size_bytes: a bus bandwidth is valid for one message size")]
        return []
    measured = sizes.get(reference.metric)
    # Without the measured sizes of a metric, any size may be right.
    if measured is not None and (not size.isdecimal() or int(size) not in measured):
        return [("error", f"size {size} is not one that is measured")]
    return []


def _named_skus(source: str, skus: Iterable[str]) -> set[str]:
    """Return the SKUs that a source names as whole words. "gh100" does not name h100."""
    return {name for name in skus if re.search(rf"\b{name}\b", source.lower())}


def _nvls(
    physics: GpuPhysics | None, reference: SkuReference, size: str | None
) -> list[tuple[Literal["error", "gap"], str]]:
    """Return an error if the floor of a large all-reduce passes although NVLS is off.

    ``physics.nvls_off`` is the bus bandwidth with NVLS off.
    """
    gpus = reference.parameters.get("gpus")
    if physics is None or physics.nvls_off is None or "all_reduce" not in reference.metric:
        return []
    # With fewer GPUs, NCCL does not use NVLS, so a floor cannot show that NVLS is broken.
    if (isinstance(gpus, int) and gpus < physics.nvls_gpus) or not (size or "").isdecimal():
        return []
    floor = reference.reference.value * (1 + (reference.reference.low or 0))
    if int(size or 0) >= GIB and floor <= physics.nvls_off:
        return [("error", f"a floor of {floor:.4g} passes with NVLS off, {physics.nvls_off:g}")]
    return []


def _peak(physics: GpuPhysics, reference: SkuReference) -> float:
    """Return the metric's physical maximum in its own unit, or infinity if unknown."""
    if reference.metric.startswith("gemm"):
        return physics.tflops.get(reference.labels.get("dtype", ""), max(physics.tflops.values()))
    if reference.metric.startswith("memory_"):
        return physics.memory
    if reference.metric in ("host_to_device", "device_to_host"):
        return physics.host
    if reference.metric == "peer_copy":
        return physics.nvlink
    # If the switches reduce, the bus bandwidth of an all-reduce is nearly twice the bandwidth of the links.
    return 2 * physics.nvlink if reference.metric.endswith("busbw") else math.inf
