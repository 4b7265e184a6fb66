"""Advise which playbooks measure the unproven requirements of a certificate. No I/O.

``rackproof evidence`` calls :func:`advise_measuring` after it made a certificate. A requirement may need more
GPUs than a node has, such as that of an all-reduce on a node with one GPU. No playbook is advised for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from rackproof.analysis.certificate.models import Certificate, Requirement
from rackproof.core.definitions import Definition, DefinitionError
from rackproof.core.records import Verdict

NIGHT = "validate.yml"
"""The playbook that makes nights. It takes the place of a benchmark's name."""


@dataclass
class Measuring:
    """A benchmark or night that measures some requirements on some nodes, or benchmarks for more GPUs.

    Attributes:
        names: A benchmark or :data:`NIGHT`. If nodes have too few GPUs, the benchmarks or metrics for which
            they are too few.
        gpus: The value that the benchmark's parameter ``gpus`` needs, or None if the usual one does. If nodes
            have too few GPUs, the number of their GPUs.
        nodes: The names of the nodes, as keys in order.
        ids: The ids of the requirements, as keys in order.
    """

    names: tuple[str, ...]
    gpus: int | None
    nodes: dict[str, None] = field(default_factory=dict)
    ids: dict[str, None] = field(default_factory=dict)


def advise_measuring(
    certificate: Certificate, definitions: Mapping[str, Definition]
) -> tuple[list[Measuring], list[Measuring]]:
    """Return what measures the unproven requirements of a certificate, and what needs more GPUs.

    Args:
        certificate: The certificate. A node whose GPUs it does not have may have any number.
        definitions: The benchmarks. A benchmark without a definition may run on any node.
    """
    unproven = {answer.id for answer in certificate.answers if answer.verdict is Verdict.UNPROVEN}
    gpus = {node.name: len(node.gpus) for node in certificate.nodes if node.gpus}
    nodes_of_gpus: dict[int | None, list[str]] = {}
    for name in certificate.asked:
        nodes_of_gpus.setdefault(gpus.get(name), []).append(name)
    possible: dict[object, Measuring] = {}
    impossible: dict[object, Measuring] = {}
    for row in certificate.catalogue.requirements:
        # What Rackproof does not measure stays unproven.
        for gpus_there, nodes in nodes_of_gpus.items() if row.id in unproven and not row.unmeasured else ():
            known = [definitions[name] for name in row.benchmarks if name in definitions]
            if gpus_there is not None and (too_large := _too_large(row, known, gpus_there)):
                found = [impossible.setdefault((too_large, gpus_there), Measuring(too_large, gpus_there))]
            else:
                found = [
                    possible.setdefault(key, Measuring(*key))
                    for key in _measuring_keys(row, definitions, gpus_there)
                ]
            for measuring in found:
                measuring.nodes |= dict.fromkeys(nodes)
                measuring.ids[row.id] = None
    return list(possible.values()), list(impossible.values())


def _measuring_keys(
    row: Requirement, definitions: Mapping[str, Definition], gpus: int | None
) -> Iterator[tuple[tuple[str, ...], int | None]]:
    """Yield names and ``gpus`` of what measures a requirement on a node with so many GPUs (None: unknown)."""
    if row.night:
        yield (NIGHT,), None
    for benchmark in row.benchmarks:
        definition = definitions.get(benchmark)
        is_usual = definition is None or gpus is None or _reaches(definition, gpus, {})
        yield (benchmark,), None if is_usual else gpus


def _too_large(row: Requirement, definitions: Sequence[Definition], gpus: int) -> tuple[str, ...]:
    """Return the benchmarks of a requirement that need more GPUs than a node has.

    If there are none, return the required metrics that these benchmarks do not judge on so few GPUs.
    """
    benchmarks = tuple(
        definition.name
        for definition in definitions
        if not any(_reaches(definition, gpus, axes) for axes in ({}, {"gpus": (gpus,)}))
    )
    rules = [rule for definition in definitions for rule in definition.result.judge]
    needed = {rule.metric for rule in rules if rule.metric in row.metrics}
    judged = {rule.metric for rule in rules if rule.needs_gpus <= gpus}
    return benchmarks or tuple(sorted(needed - judged))


def _reaches(definition: Definition, gpus: int, axes: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether a benchmark has a point on all GPUs of a node with so many.

    ``axes`` are values of its parameters. A benchmark without the parameter ``gpus`` uses all GPUs.
    """
    if definition.needs_gpus > gpus:
        return False
    # The benchmark may not have the parameter, or its bounds may exclude the value.
    with suppress(DefinitionError):
        return any(point.get("gpus", gpus) == gpus for point in definition.points(overrides=axes, gpus=gpus))
    return False
