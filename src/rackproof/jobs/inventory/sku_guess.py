"""Guess the SKU (model) of a node from texts of its sources, with the reason and the doubts.

``rackproof adopt`` calls :func:`read_shipped_skus` and :func:`read_sku_rules` once, and :func:`guess_sku` for
each node. The texts are, for example, ``nvidia_h100_80gb_hbm3`` of Slurm's Gres, or the device type
``DGX H100`` of NetBox. A slice is a virtual machine with some GPUs of a whole machine, and has its own SKU.
Only the files of the shipped SKUs are read. To recognize another system by its name, add it to ``_SYSTEMS``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import yaml

from rackproof.core.gpu_models import MODELS_WITH_BOARDS, expected_model
from rackproof.core.records import Record
from rackproof.core.text import amount, sanitize
from rackproof.core.untrusted import as_int, as_mapping, text_at
from rackproof.jobs.inventory.nodes import SKU_NAME, AdoptedNode, AdoptError, GpuHint

PREFIX = "sku_"
"""Prefix of the group of a SKU."""
# The end of a slice's group (``sku_h200_x2``), and a profile of MIG (``1g.10gb``).
_SLICE = re.compile(r"_x[0-9]+$")
_MIG = re.compile(r"\d+g\.\d+gb", re.I)
_MODULE = re.compile(r"(?<![a-z])(?:sxm|[dh]gx|p[4-6]|a[34]-)", re.I)
"""Pattern of words that only descriptions of modules (GPUs on an SXM board) contain: SXM, DGX, p5."""
_PLACE = re.compile(
    r"(?<![a-z])(?:rack|row|cab|cabinet|pod|bldg|building|hall|room|floor|zone|cage|aisle|leaf|switch|slot)"
    r"[-_ :]?[a-z][0-9]{1,2}(?![a-z0-9])",
    re.I,
)
"""Pattern of places such as ``rack_a10`` or ``bldg-l4``, which are no GPU models."""
_STUCK = re.compile(
    r"(?:(?<=nvidia)|(?<=tesla)|(?<=[hd]gx))(?=[a-z]{1,2}[0-9])|(?<=[0-9])(?=sxm|mig|pcie|nvl)", re.I
)
"""Pattern of the positions at which a type of Slurm lacks a separator: ``nvidiah100pcie``, ``h100sxm5``."""

_SYSTEMS: Mapping[str, tuple[str, int]] = {
    # These are from the data sheets of the systems.
    "dgx-1": ("dgx1", 8),
    "dgx1": ("dgx1", 8),
    "dgx h100": ("H100", 8),
    "dgx h200": ("H200", 8),
    "dgx b200": ("B200", 8),
    "dgx b300": ("B300", 8),
    "dgx a100": ("A100", 8),
    "gb300 nvl72": ("GB300", 4),
    "gb200 nvl72": ("GB200", 4),
    # These types of virtual machines and of whole hosts are from the clouds' own lists.
    "p5.48xlarge": ("H100", 8),
    "p5.4xlarge": ("H100", 1),
    "p5e.48xlarge": ("H200", 8),
    "p5en.48xlarge": ("H200", 8),
    "p6-b200.48xlarge": ("B200", 8),
    "nd96isr_h100_v5": ("H100", 8),
    "nd96isr_h200_v5": ("H200", 8),
    "p4d.24xlarge": ("A100", 8),
    "a3-highgpu-8g": ("H100", 8),
    "a3-megagpu-8g": ("H100", 8),
    "a3-ultragpu-8g": ("H200", 8),
    "a4-highgpu-8g": ("B200", 8),
}
"""Model and number of GPUs, by names of systems and types in lower case."""
_COUNTS = (
    re.compile(
        r"(?<![a-z0-9.])([0-9]{1,2})[ _-]?[x*\u00d7](?![0-9])"
        r"[ _-]*(?=(?:nvidia[ _-]*)?(?:gb|gh|h|b|a|l|v|t)[0-9])"
    ),
    re.compile(r"(?<![0-9.])([0-9]{1,2})[ _-]?gpus?(?![a-z])"),
    re.compile(r"(?<![a-z])(?:gb|gh|h|b|a|l|v|t)[0-9]{1,3}s?(?:[ _.-]?x|\.)([0-9]{1,2})(?![a-z0-9])"),
)
"""Patterns that find the number in ``8xH100``, ``8-GPU``, ``H100x8`` and ``GPU.H100.8``."""


class ShippedSku(Record):
    """A SKU that Rackproof ships.

    ``gpus`` is the number of GPUs of a node, ``model`` their product, and ``text`` the SKU's file in
    group_vars.
    """

    group: str
    name: str
    gpus: int
    model: str
    text: str

    @property
    def parent(self) -> str:
        """Return the group of the machine that a slice is a part of, or "" for a whole machine."""
        machine_group = _SLICE.sub("", self.group)
        return machine_group if machine_group != self.group else ""


class SkuGuess(Record):
    """The probable SKU of a node, with the reason and the doubts.

    Attributes:
        group: The SKU's group, or "" for a node without GPUs.
        name: ``bench_sku``.
        gpus: The number of GPUs, or None if unknown.
        model: The product of the GPUs, or "" if unknown.
        shipped: Whether Rackproof ships a file for the SKU. Otherwise, adopt writes a skeleton.
        why: The text that decided, with its origin.
        unsure: The doubts, such as contradictions and unknown numbers.
    """

    group: str
    name: str = ""
    gpus: int | None = None
    model: str = ""
    shipped: bool = False
    why: str
    unsure: tuple[str, ...] = ()


def read_shipped_skus(checkout: Path) -> tuple[ShippedSku, ...]:
    """Return the SKUs of a checkout's inventory that have a name and GPUs.

    Raises:
        AdoptError: The folder has no such SKU, so it is not a checkout.
    """
    skus = []
    for path in sorted((checkout / "inventory/group_vars").glob(f"{PREFIX}*.yml")):
        text = path.read_text(encoding="utf-8")
        values = as_mapping(yaml.safe_load(text))
        name, gpus = text_at(values, "bench_sku"), as_int(values.get("bench_sku_gpus"))
        if name and gpus:
            model = expected_model(name, text_at(values, "bench_sku_gpu_name"))
            skus.append(ShippedSku(group=path.stem, name=name, gpus=gpus, model=model, text=text))
    if not skus:
        raise AdoptError(
            f"{checkout} is not a checkout of Rackproof: run it there, or name one with --checkout"
        )
    return tuple(skus)


def read_sku_rules(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the pattern and the SKU of each rule ``PATTERN=SKU`` of the command line.

    Raises:
        AdoptError: A rule is not of this form.
    """
    rules = []
    for text in texts:
        pattern, _, sku = text.rpartition("=")
        if not pattern or not SKU_NAME.fullmatch(sku):
            raise AdoptError(
                f"--sku {sanitize(text, 80)}: it has the form PATTERN=SKU, such as 'gpu-a*=h200'"
            )
        rules.append((pattern, sku))
    return tuple(rules)


def guess_sku(
    node: AdoptedNode, shipped: Sequence[ShippedSku], rules: Iterable[tuple[str, str]] = ()
) -> SkuGuess:
    """Return the SKU of a node. No I/O.

    The first of these that gives a SKU decides: the rules, the SKU of a source, and the texts with a GPU
    model. Without any of them, a node with 0 GPUs has no SKU, and any other node gets a skeleton.

    Args:
        node: The node, with the data of its sources.
        shipped: The SKUs that Rackproof ships.
        rules: Patterns with SKUs. A pattern is compared with the node's name, and, regardless of case, with
            the texts that describe the node. The first pattern that fits decides.
    """
    for pattern, sku in rules:
        if fnmatchcase(node.name, pattern) or any(
            fnmatchcase(hint.text.lower(), pattern.lower()) for hint in node.hints
        ):
            return _named(sku, f"--sku {pattern}", node, shipped)
    if node.sku:
        return _named(node.sku, f"{node.source}: it names the SKU", node, shipped)
    best, contradictions = _models(node.hints)
    if not best and node.gpu_count == 0:
        return SkuGuess(group="", why=f"{node.gpu_count_from or node.source}: no GPU")
    unsure = list(contradictions)
    count, count_from = _count(node, best, unsure)
    if not best:
        return _unknown(node, count, count_from, unsure)
    model, hint = best
    why = f"{hint.where} {sanitize(hint.text, 60)}" + (f", {count_from}" if count_from else "")
    return _of_model(model, count, why, unsure, shipped)


def _models(hints: Sequence[GpuHint]) -> tuple[tuple[str, GpuHint] | None, list[str]]:
    """Return the model, with the text that names it, and a doubt for each text with another model.

    The first text with a model decides. If another text names the same model more precisely, that name is
    used. The name of a whole system, such as ``dgx1``, comes before the names of GPUs.
    """
    models = [(model, hint) for hint in hints if (model := model_of_text(hint.text))]
    if not models:
        return None, []
    contradictions = [
        f"{hint.where} {sanitize(hint.text, 40)} names {model}, {models[0][1].where} {models[0][0]}"
        for model, hint in models[1:]
        # A model without its board does not contradict one with it, such as h100 and H100 PCIe.
        if _bare(model) != _bare(models[0][0])
    ]
    # The more precise name of the same model counts: H100 PCIe of a device type, h100 of Gres.
    same_model = [entry for entry in models if _bare(entry[0]) == _bare(models[0][0])]
    systems = [entry for entry in same_model if entry[0] != expected_model(entry[0])]
    return max(systems or same_model, key=lambda entry: len(entry[0])), contradictions


def _bare(model: str) -> str:
    """Return the model of the GPUs in a model's or system's name, without its board."""
    return expected_model(model).split()[0]


def model_of_text(text: str) -> str:
    """Return the model in a text such as ``nvidia_h100_80gb_hbm3`` or ``DGX H100``, or "". No I/O."""
    return (_system(text) or (expected_model(_STUCK.sub(" ", _PLACE.sub(" ", text))), 0))[0]


def _system(text: str) -> tuple[str, int] | None:
    """Return the GPU model and the number of GPUs of a known system that a text names, or None."""
    plain = " ".join(text.lower().split())
    for name, system in _SYSTEMS.items():
        if re.search(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9])", plain):
            return system
    return None


def _count(node: AdoptedNode, named: tuple[str, GpuHint] | None, unsure: list[str]) -> tuple[int | None, str]:
    """Return the number of GPUs, and its origin with the number (``Gres 8``). Add doubts to ``unsure``.

    The number of a source comes before a number in a text. The number is None if it is unknown. The origin is
    "" if a text states the number, or if the number is unknown.
    """
    if any(_MIG.search(hint.text) for hint in node.hints):
        unsure.append("its GPUs are divided (MIG), so their number is not known")
        return None, ""
    texts = [hint for hint in node.hints if _count_of_text(hint.text)]
    stated = _count_of_text(texts[0].text) if texts else None
    if node.gpu_count:
        if stated and stated != node.gpu_count:
            unsure.append(
                f"{texts[0].where} names {amount(stated, 'GPU')}, {node.gpu_count_from} {node.gpu_count}"
            )
        return node.gpu_count, f"{node.gpu_count_from} {node.gpu_count}"
    if named and node.gpu_count == 0:
        unsure.append(f"{node.gpu_count_from} has no GPU, {named[1].where} names {named[0]}")
    if stated:
        return stated, ""
    if named or node.gpu_count is None:
        unsure.append("its number of GPUs is not known")
    return None, ""


def _count_of_text(text: str) -> int | None:
    """Return the number of GPUs that a text states, or None."""
    if (system := _system(text)) is not None:
        return system[1]
    for pattern in _COUNTS:
        if (hit := pattern.search(text.lower())) and int(hit[1]):
            return int(hit[1])
    return None


def _of_model(
    model: str, count: int | None, why: str, unsure: list[str], shipped: Sequence[ShippedSku]
) -> SkuGuess:
    """Return the shipped SKU with a model and number of GPUs, or a skeleton if there is not exactly one.

    If the model is the name of a shipped SKU, such as ``dgx1``, an unknown number of GPUs fits, too.
    """
    named = [sku for sku in shipped if sku.name == model]
    fitting = named or [sku for sku in shipped if sku.model == model and sku.gpus == count]
    sku = fitting[0] if len(fitting) == 1 else None
    if sku and (count == sku.gpus or (count is None and named)):
        return _shipped(sku, why, [*unsure, *_doubts(sku, model, why)])
    if len(fitting) > 1:
        unsure.append(f"it may be {' or '.join(sku.name for sku in fitting)}: name it with --sku")
    return _skeleton(model, model, count, why, unsure)


def _doubts(sku: ShippedSku, model: str, why: str) -> Iterator[str]:
    """Yield reasons why the node may not be of the shipped SKU with the same model and number of GPUs."""
    if model in MODELS_WITH_BOARDS and not _MODULE.search(why):
        yield f"{model} is taken for the module (SXM), not a card (PCIe, NVL)"
    if sku.parent:
        yield f"{sku.name} is a part of a machine of {sku.parent}; a board of its own is another SKU"


def _shipped(sku: ShippedSku, why: str, unsure: Sequence[str]) -> SkuGuess:
    """Return a SKU that Rackproof ships."""
    return SkuGuess(
        group=sku.group, name=sku.name, gpus=sku.gpus, model=sku.model, shipped=True, why=why,
        unsure=tuple(unsure),
    )  # fmt: skip


def _skeleton(kind: str, model: str, count: int | None, why: str, unsure: Sequence[str]) -> SkuGuess:
    """Return a SKU that Rackproof does not ship, named after its model and number (``h100-pcie-x4``).

    If the number of GPUs is unknown, the name ends with ``-unknown``.
    """
    words = re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-")[:40].strip("-") or "unknown"
    name = f"{words}-x{count}" if count else words if words == "unknown" else f"{words}-unknown"
    return SkuGuess(
        group=PREFIX + name.replace("-", "_"),
        name=name,
        gpus=count,
        model=model,
        why=why,
        unsure=tuple(unsure),
    )


def _unknown(node: AdoptedNode, count: int | None, count_from: str, unsure: list[str]) -> SkuGuess:
    """Return a skeleton for a node whose GPU model is unknown."""
    unsure.append("its GPU model is not known")
    hint = next(iter(node.hints), None)
    hint_text = f"{hint.where} {sanitize(hint.text, 60)}" if hint else f"{node.source} names no GPU"
    why = f"{hint_text}, {count_from}" if count_from else hint_text
    return _skeleton(hint.text if hint else "unknown", "", count, why, unsure)


def _named(stated: str, why: str, node: AdoptedNode, shipped: Sequence[ShippedSku]) -> SkuGuess:
    """Return the SKU that a rule or source names: a shipped one by its group or name, or else a skeleton."""
    bare = stated.lower().removeprefix(PREFIX).replace("_", "-")
    for sku in shipped:
        if bare == sku.name or bare == sku.group.removeprefix(PREFIX).replace("_", "-"):
            differs = node.gpu_count and node.gpu_count != sku.gpus
            text = f"{node.gpu_count_from} {amount(node.gpu_count or 0, 'GPU')}, the SKU has {sku.gpus}"
            return _shipped(sku, why, [text] if differs else [])
    return SkuGuess(
        group=PREFIX + bare.replace("-", "_"), name=bare, gpus=node.gpu_count or None,
        model=expected_model(bare), why=why, unsure=("Rackproof ships no such SKU",),
    )  # fmt: skip
