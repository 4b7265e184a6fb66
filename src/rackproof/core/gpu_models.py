"""GPU models: which one a SKU has, by its driver's product name, and what it cannot exceed. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class GpuPhysics:
    """What a GPU of a SKU cannot exceed: dense TFLOP/s by precision, TB/s of memory, GB/s of links one way.

    ``nvls_off`` is the all-reduce bus bandwidth in GB/s that a node reaches with all its GPUs at 1 GiB and
    more though NVLS is broken (None: not known); ``nvls_gpus`` how many GPUs it takes for NVLS to be used.
    ``even_links``: whether each GPU reaches each other equally fast, through switches.
    """

    tflops: Mapping[str, float]
    memory: float
    nvlink: float
    host: float
    nvls_off: float | None = None
    nvls_gpus: int = 5
    even_links: bool = True


# Its GPUs are linked by two NVLinks, by one, or by none.
_V100 = GpuPhysics({"fp16": 125, "fp32": 15.7}, 0.9, 150, 16, even_links=False)
PHYSICS: Mapping[str, GpuPhysics] = {
    # V100 SXM2's data sheet; NVLS came with later ones.
    "dgx1": _V100,
    "hyperplane": _V100,
    # Data sheets (dense); NVLS off: published runs of 8 GPUs.
    "h100": GpuPhysics({"bf16": 989.5, "fp8": 1979, "fp32": 67}, 3.35, 450, 64, 367),
    "h200": GpuPhysics({"bf16": 989.5, "fp8": 1979, "fp32": 67}, 4.8, 450, 64, 367),
    "b200": GpuPhysics({"bf16": 2250, "fp8": 4500}, 8.0, 900, 64, 682, 6),
    "b300": GpuPhysics({"bf16": 2250, "fp8": 4500}, 8.0, 900, 128),
    "gb200": GpuPhysics({"bf16": 2500, "fp8": 5000}, 8.0, 900, 450),
    "gb300": GpuPhysics({"bf16": 2500, "fp8": 5000}, 8.0, 900, 450),
}

# A model's name is a word of the product name: "H200" is in neither "GH200" nor "H20".
_MODELS = (
    "GB300",
    "GB200",
    "GH200",
    "B300",
    "B200",
    "H200",
    "H100",
    "H800",
    "H20",
    "A100",
    "A800",
    "A40",
    "A30",
    "A10",
    "L40S",
    "L40",
    "L4",
    "V100",
    "T4",
)
_SYSTEMS = {"dgx1": "V100", "hyperplane": "V100"}
"""SKUs that are named after the system, with the model of its GPUs."""


def expected_model(sku: str, given: str = "") -> str:
    """Return what the product name of a SKU's GPUs has to contain, empty where that is not known.

    Args:
        sku: The SKU's name; its own name for a known model, alone or as a word of it, is enough. A word may
            have the number of GPUs before or behind: ``h200x8``.
        given: What the inventory says (``bench_sku_gpu_name``), which goes before.
    """
    if given.strip():
        return given.strip()
    words = [word for word in re.split(r"[^a-z0-9]+", sku.lower()) if word]
    for word in words:
        if word in _SYSTEMS:
            return _SYSTEMS[word]
    bare = {re.fullmatch(r"(?:\d+x)?(.+?)(?:x\d+)?", word)[1] for word in words}  # type: ignore[index]
    found = [model for model in _MODELS if model.lower() in bare]
    # A name of two models, such as one of a host with both, says nothing of a single GPU.
    return found[0] if len(found) == 1 else ""


def is_model(product_name: str, model: str) -> bool:
    """Whether a product name contains a model as whole words, whatever the case."""
    pattern = rf"(?<![a-z0-9]){re.escape(model.lower())}(?![a-z0-9])"
    return re.search(pattern, product_name.lower()) is not None


def other_models(product_names: Iterable[str], model: str) -> list[str]:
    """Return the product names that are not of a model, each once; one that is empty is not of it either."""
    return sorted({name for name in product_names if not is_model(name, model)})


def physics_of(product_name: str) -> GpuPhysics | None:
    """Return the peaks of the model that a product name is of, None where they are not known."""
    for model in _MODELS:
        if is_model(product_name, model):
            return _V100 if model == "V100" else PHYSICS.get(model.lower())
    return None
