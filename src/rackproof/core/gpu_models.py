"""Find the GPU model of a SKU or a product name, and the readings and limits of a model.

The parsers of logs, the scores of MLPerf, the facts and health checks of nodes, nights, the history, and the
commands that adopt an inventory call this module. A *product name* is the name that the driver reports
(``NVIDIA H200``), and a *SKU* is the name of a node model in the inventory (``h200x8``). Begin with
:func:`expected_model` for a SKU, and with :func:`is_product` or :func:`physics_of` for a product name. To add
a model, add its name to ``_MODELS``, and to each table below that describes it. The module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class GpuPhysics:
    """The physical limits of a GPU model.

    Attributes:
        tflops: The peak in TFLOP/s by precision (``bf16``, ``fp8``), without sparsity.
        memory: The bandwidth of the GPU's memory in TB/s.
        nvlink: The bandwidth of all NVLinks of a GPU together, in one direction, in GB/s.
        host: The bandwidth between GPU and processor in one direction, in GB/s.
        nvls_off: The all-reduce bus bandwidth in GB/s that a node with all its GPUs reaches without
            NVLS, for sizes of 1 GiB and more. None if unknown.
        nvls_gpus: The smallest number of GPUs that use NVLS.
        even_links: Whether switches connect the GPUs, so that all pairs are equally fast.
    """

    tflops: Mapping[str, float]
    memory: float
    nvlink: float
    host: float
    nvls_off: float | None = None
    nvls_gpus: int = 5
    even_links: bool = True


# Two V100s of a DGX-1 are connected by two NVLinks, one or none.
_V100 = GpuPhysics({"fp16": 125, "fp32": 15.7}, 0.9, 150, 16, even_links=False)
# The limits of modules, by the model or the system in lower case. The values of an entry are in the order of
# the attributes of GpuPhysics.
PHYSICS: Mapping[str, GpuPhysics] = {
    # The numbers are from V100 SXM2's data sheet. NVLS came with later models.
    "dgx1": _V100,
    "hyperplane": _V100,
    # From the data sheets (dense). The bandwidth without NVLS is from published runs with 8 GPUs.
    "h100": GpuPhysics({"bf16": 989.5, "fp8": 1979, "fp32": 67}, 3.35, 450, 64, 367),
    "h200": GpuPhysics({"bf16": 989.5, "fp8": 1979, "fp32": 67}, 4.8, 450, 64, 367),
    "b200": GpuPhysics({"bf16": 2250, "fp8": 4500}, 8.0, 900, 64, 682, 6),
    "b300": GpuPhysics({"bf16": 2250, "fp8": 4500}, 8.0, 900, 128),
    "gb200": GpuPhysics({"bf16": 2500, "fp8": 5000}, 8.0, 900, 450),
    "gb300": GpuPhysics({"bf16": 2500, "fp8": 5000}, 8.0, 900, 450),
}
# The limits of cards that differ from those of their model's module, by model and board.
_CARDS: Mapping[str, GpuPhysics] = {
    # Memory and bridges (one direction) are from the cards' data sheets. TFLOP/s of NVL cards are the
    # module's, which are higher than the card's own.
    "H100 NVL": GpuPhysics({"bf16": 989.5, "fp8": 1979, "fp32": 67}, 3.94, 300, 64, even_links=False),
    "H100 PCIe": GpuPhysics({"bf16": 756.5, "fp8": 1513, "fp32": 51.2}, 2.04, 300, 64, even_links=False),
    "H200 NVL": GpuPhysics({"bf16": 989.5, "fp8": 1979, "fp32": 67}, 4.8, 450, 64, even_links=False),
}

MODELS_OF_DOMAINS = ("GB300", "GB200")
"""Models whose NVLink can connect the GPUs of several nodes, as in an NVL72."""

MODELS_WITH_SWITCH_BRIDGES = ("B300", "B200")
"""Models of an HGX whose NVSwitches have no PCI device. Devices that look like network cards manage them."""

# A model is a whole word of the product name. "H200" is in neither "GH200" nor "H20".
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
"""GPU models by the name of a system after which a SKU is named."""
_BOARDS: Mapping[str, str] = {"nvl": "NVL", "pcie": "PCIe"}
"""Words that mark a card, with their spelling in product names. A card differs from the module (SXM) of the
same model in power, memory and links."""
MODELS_WITH_BOARDS = ("H200", "H100", "H800", "A100", "A800", "V100")
"""Models that exist both as modules and as cards.

For other models, a word such as PCIe in a SKU's name means nothing.
"""
_VIRTUAL = re.compile(r"-\d{1,3}[ABCQ]$")
"""Pattern of the end of a virtual GPU's name: the size of its memory in GB, and the kind of its licence."""
# Matches a word such as "h200nvl".
_WITH_BOARD = re.compile(rf"({'|'.join(MODELS_WITH_BOARDS)})({'|'.join(_BOARDS)})".lower())

_LINK_GB_S: Mapping[str, float] = {
    **dict.fromkeys(("GB300", "GB200", "B300", "B200"), 50.0),
    **dict.fromkeys(("GH200", "H200", "H100", "H800", "H20", "A100", "A800", "V100"), 25.0),
}
"""Speed of an NVLink in one direction in GB/s by its data sheet. Drivers report up to 6 % more."""
SLOW_LINK_SHARE = 0.98
"""Share of a link's required speed below which the link is slow.

The required speed is the speed of the fastest NVLink of the same GPU model, or of the data sheet. The share
is below 1, because drivers round the speed.
"""
_SLOWEST_LINK_GB_S = 14.0
"""Speed in GB/s of the slowest NVLinks, rounded down. For GA102, drivers report 14.062 GB/s."""
_LINKS: Mapping[str, int] = {
    **dict.fromkeys(("GB300", "GB200", "B300", "B200", "H200", "H100", "H20"), 18),
    "A100": 12,
}
"""Number of NVLinks of a module by its data sheet.

Models that some boards connect with fewer links are not in this table.
"""
FASTEST_LINK_SHARE = 1.2
"""Largest plausible ratio of a link's speed to its data sheet. Drivers report up to 6 % more."""
_LINKLESS = ("A10", "L40S", "L40", "L4", "T4")
"""Models without NVLink."""

MODELS_WITH_ALL = ("A100", "H100", "H200", "B200", "B300", "GB200", "GB300")
"""Models of which all samples in tests/data/real contain the MIG mode and the memory temperature."""
MODELS_WITH_REPAIRS = ("H100", "H200", "B200", "B300", "GB200", "GB300")
"""Models of which all samples in tests/data/real contain the memory repairs that wait for a reset."""
DRIVER_WITH_REPAIRS = 575.0
"""Version (MAJOR.MINOR) of the first driver that reports memory repairs that wait for a reset."""
MODELS_WITHOUT_REPAIRS = ("V100", "T4")
"""Models without memory repairs and row remapping, which the generation Ampere introduced. No driver reports
repairs or remapped rows of these models."""
MODELS_WITH_ECC = (
    *("GB300", "GB200", "GH200", "B300", "B200", "H200", "H100", "H800", "H20"),
    *("A100", "A800", "A30", "V100"),
)
"""Models with HBM, whose ECC is on unless an operator switches it off."""
MODELS_WITH_REMAPPING = tuple(model for model in MODELS_WITH_ECC if model not in MODELS_WITHOUT_REPAIRS)
"""Models with HBM that remap rows of their memory, and count errors in SRAM by kind."""

HOTTEST_GPU_C = 100.0
"""A temperature in °C above the specification of every model."""
HOTTEST_MEMORY_C = 95.0
"""Temperature in °C from which a GPU's memory is too hot, with verdict ``degraded``. From ten degrees more
on, the verdict is ``fail``."""
LEAST_MARGIN_C = 5.0
"""Distance in °C to the slowdown temperature. A GPU within this distance lacks cooling. At distance 0, the
GPU slows down."""
MOST_SLOWDOWN_S = 60.0
"""Seconds per day for which a healthy GPU may slow down. Of 31 real GPUs, the worst had 7.3 s since boot."""
MOST_SRAM_CORRECTED, MOST_DRAM_CORRECTED = 10_000, 20_000_000
"""Numbers of corrected errors in SRAM and DRAM that a healthy GPU does not reach in its lifetime.

Public health checks of fleets use the same numbers.
"""


def expected_model(sku: str, stated: str = "") -> str:
    """Return the words in a product name that identify a SKU's GPU, or "" if the model is unknown.

    Args:
        sku: The SKU's name. The name must contain a known model as a word, perhaps with a number of GPUs
            before or after it (``h200x8``). The model means the module (SXM) unless another word means a card
            (``h200-nvl``, ``h100-pcie``).
        stated: The name in the inventory (``bench_sku_gpu_name``). If it is given, it is used.
    """
    if stated.strip():
        return stated.strip()
    words = _words(sku)
    if system := next((word for word in words if word in _SYSTEMS), ""):
        return _SYSTEMS[system]
    bare = _bare_words(words)
    models = [model for model in _MODELS if model.lower() in bare]
    boards = [board for board in _BOARDS if board in bare]
    # A name with two models does not identify one GPU model.
    if len(models) != 1 or len(boards) > 1:
        return ""
    is_card_sku = bool(boards) and models[0] in MODELS_WITH_BOARDS
    return f"{models[0]} {_BOARDS[boards[0]]}" if is_card_sku else models[0]


def _bare_words(words: Iterable[str]) -> set[str]:
    """Return words without a number of GPUs. A word such as h200nvl also gives its two parts."""
    bare = {re.fullmatch(r"(?:\d+x)?(.+?)(?:x\d+)?", word)[1] for word in words}  # type: ignore[index]
    splits = filter(None, map(_WITH_BOARD.fullmatch, bare))
    return bare.union(*(split.groups() for split in splits))


def _words(name: str) -> list[str]:
    """Return the words of a name in lower case."""
    return [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]


def is_model(product_name: str, model: str) -> bool:
    """Return whether a product name contains a model as whole words, in any case."""
    pattern = rf"(?<![a-z0-9]){re.escape(model.lower())}(?![a-z0-9])"
    return re.search(pattern, product_name.lower()) is not None


def is_one_of(product_name: str, models: Iterable[str]) -> bool:
    """Return whether a product is one of several models."""
    return any(is_model(product_name, model) for model in models)


def is_virtual(product_name: str) -> bool:
    """Return whether a product is a part of a GPU in a virtual machine (``A100-40C``, ``H100XM-1-10C``)."""
    return _VIRTUAL.search(product_name) is not None


def is_card(product_name: str) -> bool:
    """Return whether a product name contains a word that marks a card (PCIe, NVL)."""
    return not _BOARDS.keys().isdisjoint(_words(product_name))


def is_product(product_name: str, product: str) -> bool:
    """Return whether a product name contains all words of the wanted name, and the same board.

    H200 is not H200 NVL.
    """
    name_words, product_words = set(_words(product_name)), set(_words(product))
    return product_words <= name_words and name_words & _BOARDS.keys() == product_words & _BOARDS.keys()


def other_models(product_names: Iterable[str], model: str) -> list[str]:
    """Return the product names that are not of a model, sorted, each once. An empty name counts as another.

    ``model`` has the form of the result of :func:`expected_model`, such as ``H200 NVL``.
    """
    return sorted({name for name in product_names if not is_product(name, model)})


def least_link_gb_s(product_name: str) -> float:
    """Return the lowest speed in GB/s that an NVLink of a product may have, in one direction.

    For an unknown model, return the speed of the slowest NVLinks of all models.
    """
    for model, speed in _LINK_GB_S.items():
        if is_model(product_name, model):
            return speed
    return _SLOWEST_LINK_GB_S


def links_of(product_name: str) -> int | None:
    """Return the number of a module's NVLinks, or None for a card and for a model not in the table."""
    if is_card(product_name):
        return None
    return next((links for model, links in _LINKS.items() if is_model(product_name, model)), None)


def most_link_gb_s(product_name: str) -> float | None:
    """Return the highest plausible speed of an NVLink in GB/s, or None if the model is unknown.

    A driver that reports a higher speed is wrong.
    """
    for model, speed in _LINK_GB_S.items():
        if is_model(product_name, model):
            return FASTEST_LINK_SHARE * speed
    return None


def has_own_links(product_name: str) -> bool | None:
    """Return whether a product has NVLinks without a bridge, or None if its model is unknown.

    A bridge connects the NVLinks of two cards, so a card has no NVLinks without one.
    """
    if is_card(product_name) or is_one_of(product_name, _LINKLESS):
        return False
    return True if is_one_of(product_name, _LINK_GB_S) else None


def physics_of(product_name: str) -> GpuPhysics | None:
    """Return the limits of a product's GPU model, or None if they are unknown.

    The limits of some cards differ. For example, the memory of an H100 NVL is faster than the module's.
    """
    for card, physics in _CARDS.items():
        if is_product(product_name, card):
            return physics
    for model in _MODELS:
        if is_model(product_name, model):
            return _V100 if model == "V100" else PHYSICS.get(model.lower())
    return None


def share_of_peak(product_name: str, dtype: str, tflops: float) -> float | None:
    """Return a speed as a share of the GPU model's dense peak, or None if the peak is unknown.

    Args:
        product_name: The product name of the GPU.
        dtype: The precision of the operations, such as ``bf16``, as in ``tflops`` of :class:`GpuPhysics`.
        tflops: The speed of one GPU in TFLOP/s.
    """
    physics = physics_of(product_name)
    peak = physics.tflops.get(dtype) if physics is not None else None
    return tflops / peak if peak else None
