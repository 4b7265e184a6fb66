"""Compare parts, firmware, driver, speeds, rules and answers of two certificates. No I/O.

The command ``rackproof evidence compare`` calls :func:`certificate_changes`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping

from rackproof.analysis.certificate.models import Certificate, EvidencePiece
from rackproof.core.hostlist import compress_hostlist
from rackproof.core.records import Gpu, Judgement, Node, Record

_Key = tuple[str, str, str]
"""The identity of a speed: nodes with benchmark and point, metric, and labels, each as text."""


class CertificateChange(Record):
    """One difference between two certificates.

    ``kind`` is part, version, speed, reference, requirement, limit, expectation or answer. ``where`` is a
    node, nodes, nodes with a point, or the catalogue, and ``what`` is the name of the value.
    """

    kind: str
    where: str
    what: str
    old: str = ""
    new: str = ""


def certificate_changes(old: Certificate, new: Certificate) -> list[CertificateChange]:
    """Return the changes from one certificate to a later one."""
    return [
        *_node_changes(old, new),
        *_speed_changes(old, new),
        *_reference_changes(old, new),
        *_requirement_changes(old, new),
        *_night_changes("limit", _limits(old), _limits(new)),
        *_night_changes("expectation", _expectations(old), _expectations(new)),
        *_answer_changes(old, new),
    ]


def _node_changes(old: Certificate, new: Certificate) -> Iterator[CertificateChange]:
    """Yield changed parts and versions by node.

    If only one certificate has a node, all its parts and versions are changes.
    """
    before = {node.name: node for node in old.nodes}
    after = {node.name: node for node in new.nodes}
    for name in sorted(before.keys() | after.keys()):
        parts = _parts(before.get(name)), _parts(after.get(name))
        versions = _versions(before.get(name)), _versions(after.get(name))
        yield from _differences("part", name, *parts)
        yield from _differences("version", name, *versions)


def _differences(
    kind: str, where: str, old: Mapping[str, str], new: Mapping[str, str]
) -> Iterator[CertificateChange]:
    """Yield a change for each value that differs. An absent value equals an empty one."""
    for name in sorted(old.keys() | new.keys()):
        if old.get(name, "") != new.get(name, ""):
            yield CertificateChange(
                kind=kind, where=where, what=name, old=old.get(name, ""), new=new.get(name, "")
            )


def _parts(node: Node | None) -> dict[str, str]:
    """Return the parts of a node by name. A GPU is identified by its UUID, or else by its index."""
    if node is None:
        return {}
    gpus = {f"GPU {gpu.uuid or gpu.index}": _gpu_text(gpu) for gpu in node.gpus}
    descriptions = {"product": node.product, "processor": node.cpu, "serial number": node.serial}
    return {**descriptions, "chassis": node.chassis_serial, **gpus}


def _gpu_text(gpu: Gpu) -> str:
    """Return model, serial number and power limit of a GPU, or ``there`` if none of them is known."""
    limit = "" if gpu.power_limit_w is None else f"{gpu.power_limit_w:g} W"
    return ", ".join(text for text in (gpu.name, gpu.serial, limit) if text) or "there"


def _versions(node: Node | None) -> dict[str, str]:
    """Return the versions of a node's software and firmware, and of each GPU's VBIOS."""
    if node is None:
        return {}
    vbios = {f"VBIOS of {gpu.uuid or gpu.index}": gpu.vbios for gpu in node.gpus}
    return {**node.software, **{f"firmware {name}": value for name, value in node.firmware.items()}, **vbios}


def _speeds(certificate: Certificate) -> dict[_Key, tuple[Judgement, str]]:
    """Return the latest judgement of each measurement with a bounded reference, and the id of its run."""
    speeds: dict[_Key, tuple[Judgement, str]] = {}
    for piece in sorted(certificate.evidence, key=lambda piece: piece.moment):
        for judgement in piece.judgements:
            reference = judgement.reference
            if judgement.value is not None and reference and (reference.low, reference.high) != (None, None):
                labels = ", ".join(f"{name} {value}" for name, value in sorted(judgement.labels.items()))
                speeds[(f"{_nodes_of(piece)}: {piece.point}", judgement.metric, labels)] = (
                    judgement,
                    piece.id,
                )
    return speeds


def _nodes_of(piece: EvidencePiece) -> str:
    return ", ".join(sorted(node.name for node in piece.nodes))


def _speed_changes(old: Certificate, new: Certificate) -> Iterator[CertificateChange]:
    """Yield the speeds that moved beyond the bounds of their present reference, and the speeds that are gone.

    A speed with another unit is a change. A speed that only the later certificate has is not a change.
    """
    before, after = _speeds(old), _speeds(new)
    for key in sorted(before):
        then, old_id = before[key]
        # A measurement that is gone is a change, too.
        present, run_id = after.get(key, (None, old_id))
        where, metric, labels = key
        if present is None or not _within(then, present):
            yield CertificateChange(
                kind="speed",
                where=where,
                what=f"{metric} {labels} ({run_id})".replace("  ", " "),
                old=f"{then.value:g} {then.unit}",
                new="" if present is None else f"{present.value:g} {present.unit}",
            )


def _within(earlier: Judgement, present: Judgement) -> bool:
    """Return whether a number is within its reference's bounds, applied to the earlier number.

    For example, with a lower bound of -0.07, the number may be 7 % less than the earlier one.
    """
    bounds, value, before = present.reference, present.value, earlier.value
    if bounds is None or value is None or before is None or earlier.unit != present.unit:
        return False
    if before == value:
        return True
    change = (value - before) / abs(before) if before else math.inf
    low, high = bounds.low, bounds.high
    # NaN is not within any bounds.
    return (low is None or change >= low) and (high is None or change <= high)


def _reference_changes(old: Certificate, new: Certificate) -> Iterator[CertificateChange]:
    """Yield the references that changed, once for all measurements of a metric with the same change."""
    before, after = _speeds(old), _speeds(new)
    changes = {
        (where, metric, *map(_reference_text, (before[where, metric, labels][0], judgement))): None
        for (where, metric, labels), (judgement, _) in after.items()
        if (where, metric, labels) in before
    }
    for where, metric, old_text, new_text in changes:
        if old_text != new_text:
            yield CertificateChange(kind="reference", where=where, what=metric, old=old_text, new=new_text)


def _reference_text(judgement: Judgement) -> str:
    """Return value and bounds of a judgement's reference, such as ``4.3 TB/s, low -0.05``."""
    reference = judgement.reference
    if reference is None:
        return ""
    bounds = {"low": reference.low, "warn": reference.warn, "high": reference.high}
    stated = [f"{name} {bound:+g}" for name, bound in bounds.items() if bound is not None]
    return ", ".join([f"{reference.value:g} {reference.unit}", *stated])


def _requirement_changes(old: Certificate, new: Certificate) -> Iterator[CertificateChange]:
    """Yield the changed keys of the requirements that both certificates have.

    A requirement that only one of them has is a changed answer.
    """
    before = {row.id: row for row in old.catalogue.requirements}
    for row in new.catalogue.requirements:
        if row.id in before:
            texts = (_texts(one.model_dump(mode="json", exclude={"id"})) for one in (before[row.id], row))
            yield from _differences("requirement", f"{new.catalogue.name} {row.id}", *texts)


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    """Return values as text. A value that states nothing is empty."""
    return {
        name: _value_text(value)
        for name, value in values.items()
        if value is not None and value not in ([], {})
    }


def _value_text(value: object) -> str:
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _limits(certificate: Certificate) -> dict[str, dict[str, str]]:
    """Return the limits of each node's last night that differ from the defaults."""
    limits: dict[str, dict[str, str]] = {}
    for piece in sorted(certificate.evidence, key=lambda piece: piece.moment):
        for node, changed in piece.limits.items():
            texts = {limit.name: f"{limit.value:g} (default {limit.default:g})" for limit in changed or ()}
            limits[node] = {"all": "not known"} if changed is None else texts
    return limits


def _expectations(certificate: Certificate) -> dict[str, dict[str, str]]:
    """Return what the inventory expected of each node in its last night."""
    pieces = sorted(certificate.evidence, key=lambda piece: piece.moment)
    return {node: _texts(expected) for piece in pieces for node, expected in piece.expected.items()}


def _night_changes(
    kind: str, before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]]
) -> Iterator[CertificateChange]:
    """Yield the changed values of nights, once for all nodes with the same change.

    A node that was in no night of one of the certificates has no values to compare.
    """
    nodes: dict[tuple[str, str, str], list[str]] = {}
    for node in before.keys() & after.keys():
        for change in _differences(kind, node, before[node], after[node]):
            nodes.setdefault((change.what, change.old, change.new), []).append(node)
    for (what, old, new), names in sorted(nodes.items()):
        yield CertificateChange(kind=kind, where=compress_hostlist(names), what=what, old=old, new=new)


def _answer_changes(old: Certificate, new: Certificate) -> Iterator[CertificateChange]:
    """Yield the answers whose verdict differs, and the answers that only one certificate has."""
    before = {answer.id: answer.verdict.value for answer in old.answers}
    after = {answer.id: answer.verdict.value for answer in new.answers}
    yield from _differences("answer", new.catalogue.name, before, after)
