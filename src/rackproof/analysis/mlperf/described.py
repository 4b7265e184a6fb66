"""Compare the logs of a scored result with the description of its system, ``systems/SYSTEM.json``. No I/O.

A log states its system in several places: the run script prints a description (``:::SYSJSON {…}``) and the
number of nodes (``:::DLPAL``), and the event ``submission_platform`` has a text such as ``2xXE9680Lx8B200``.
:mod:`.repeats` calls :func:`description_findings`, and :func:`printed_findings`, which compares the printed
descriptions with each other. The findings are ``unproven`` or remarks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rackproof.analysis.agreement import doubt_of, model_words
from rackproof.core.gpu_models import is_model
from rackproof.core.records import Finding, Source, Verdict
from rackproof.core.text import amount
from rackproof.core.training_limits import MOST_OF_NODE, gpus_of_platform
from rackproof.logs.printed_system import keys_that_differ

_PRINTED_KEYS = ("number_of_nodes", "accelerators_per_node", "accelerator_model_name", "division")
"""The keys of a printed description that must be equal in all logs of a result. The first two are counts."""
_NO_GPU = re.compile(r"no devices|not found|failed|unable|error", re.IGNORECASE)
"""Words of messages that nvidia-smi prints in place of GPUs. Run scripts count the lines as GPUs."""


@dataclass(frozen=True)
class DescribedSystem:
    """The accelerators of a system, from its description.

    Attributes:
        gpu: The name of the accelerators.
        gpus: The number of accelerators on all nodes together.
        nodes: The number of nodes.
        division: The division ("" if not stated).
    """

    gpu: str
    gpus: int
    nodes: int
    division: str = ""


class RunStatements(Protocol):
    """The statements of a log that are compared, as in :class:`.repeats.RunTrace`."""

    file: str
    stated_nodes: int | None
    system: tuple[str, ...]
    printed: tuple[Mapping[str, Any], ...]

    @property
    def platform(self) -> str:
        """Return the log's ``submission_platform``, or ""."""


def description_findings(traces: Sequence[RunStatements], described: DescribedSystem) -> Iterator[Finding]:
    """Yield contradictions between the logs and the description, by which speeds are judged.

    Logs with the same contradiction share a finding. Another GPU in ``submission_platform`` of the first log
    is only a remark.

    Of 739 published results of rounds 4.0 to 5.1, none contradicts its description in a compared value. 301
    of them print a description, and 318 name a known GPU in their platform, eleven of these a wrong one from
    an older script.
    """
    files: dict[tuple[str, str], dict[str, None]] = {}
    for trace in traces:
        for difference in _differences(trace, described):
            files.setdefault(difference, {})[trace.file] = None
    for (logged, stated), names in files.items():
        does = "does" if len(names) == 2 else "do"
        others = f", as {does} {amount(len(names) - 1, 'other log')}" * (len(names) > 1)
        message = (
            f"the log states {logged}, and the system's description {stated}{others}: the system of this "
            "run is not known; correct systems/SYSTEM.json, or score the run with its own system"
        )
        yield _contradiction(message, next(iter(names)))
    first_trace = next(iter(traces), None)
    named = gpus_of_platform(first_trace.platform) if first_trace is not None else None
    if first_trace is not None and named is not None and not is_model(described.gpu, named[0]):
        message = f"submission_platform names {named[0]}, the system's description {described.gpu[:80]}"
        yield Finding(code="other_accelerator", message=message, source=Source(file=first_trace.file))


def _contradiction(message: str, file: str) -> Finding:
    source = Source(file=file)
    return Finding(code="system_contradicts", verdict=Verdict.UNPROVEN, message=message, source=source)


def _differences(trace: RunStatements, described: DescribedSystem) -> Iterator[tuple[str, str]]:
    """Yield each difference as a pair of texts: the log's statement with its place, and the description's.

    The description's number of nodes, GPUs and division are compared. A missing statement is no difference.
    """
    yield from _other_numbers(trace, described)
    for printed in trace.printed:
        yield from _other_counts(printed, trace, described)
        # A log may state anything, such as an object in place of a name.
        name = str(printed.get("accelerator_model_name", ""))
        if _is_other("accelerator_model_name", described.gpu, name):
            yield f"the GPU {name[:80]} (:::SYSJSON)", described.gpu[:80]
    divisions = [("submission_division", trace.system[2] if len(trace.system) > 2 else "")]
    divisions += [(":::SYSJSON", str(printed.get("division", ""))) for printed in trace.printed]
    for place, division in divisions:
        if _is_other("division", described.division, division):
            yield f"the division {division[:40]} ({place})", described.division[:40]


def _other_numbers(trace: RunStatements, described: DescribedSystem) -> Iterator[tuple[str, str]]:
    """Yield the numbers in ``:::DLPAL`` and ``submission_platform`` that differ, as :func:`_differences`."""
    if trace.stated_nodes is not None and trace.stated_nodes != described.nodes:
        yield f"{trace.stated_nodes} nodes (:::DLPAL)", str(described.nodes)
    named = gpus_of_platform(trace.platform)
    if named is None:
        return
    nodes = int(trace.platform.partition("x")[0])
    # 8xB200 may name the GPUs of one node.
    if nodes not in (described.nodes, described.gpus):
        yield f"{nodes} nodes (submission_platform)", str(described.nodes)
    # If the platform does not state the GPUs of a node, gpus_of_platform assumes MOST_OF_NODE for each.
    elif nodes == described.nodes and (
        named[1] < described.gpus or (named[1] != nodes * MOST_OF_NODE and named[1] != described.gpus)
    ):
        yield f"{named[1]} GPUs (submission_platform)", str(described.gpus)


def _other_counts(
    printed: Mapping[str, Any], trace: RunStatements, described: DescribedSystem
) -> Iterator[tuple[str, str]]:
    """Yield the printed numbers of nodes and of GPUs per node that differ from the description.

    Of 301 published results whose logs print them, 6 print one node, the default of the script, for a job
    of several (``:::DLPAL``). 2 print the GPUs of a machine that has more than the run used
    (``submission_platform``), and 2 count a message of nvidia-smi.
    """
    nodes, gpus = (str(printed.get(key, "")) for key in _PRINTED_KEYS[:2])
    is_default = nodes == "1" and trace.stated_nodes == described.nodes
    if not is_default and _is_other("number_of_nodes", str(described.nodes), nodes):
        yield f"{nodes[:20]} nodes (:::SYSJSON)", str(described.nodes)
    named = gpus_of_platform(trace.platform)
    uses_fewer = named is not None and named[1] == described.gpus and _exceeds(gpus, described)
    is_message = _NO_GPU.search(str(printed.get("accelerator_model_name", ""))) is not None
    per_node = f"{described.gpus / described.nodes:g}" if described.nodes else ""
    if not uses_fewer and not is_message and _is_other("accelerators_per_node", per_node, gpus):
        yield f"{gpus[:20]} GPUs per node (:::SYSJSON)", per_node


def _exceeds(gpus: str, described: DescribedSystem) -> bool:
    """Return whether a printed number of GPUs per node is above the described one."""
    return gpus.isdecimal() and int(gpus[:9]) * described.nodes > described.gpus


def _is_other(key: str, described: str, seen: str) -> bool:
    """Return whether a log's value contradicts the described one. A missing value contradicts nothing."""
    described, seen = described.strip(), seen.strip()
    if not described or not seen:
        return False
    if key == "division":
        return _division(described) != _division(seen)
    if key == "accelerator_model_name" and not (model_words(described) and model_words(seen)):
        # Names such as "NVIDIA Graphics Device" name no model.
        return False
    return doubt_of(key, described, seen) is not None


def _division(text: str) -> str:
    """Return a division in a form in which "closed", "close" (round 1.0) and "Closed" (0.7) are equal."""
    return text.casefold().removesuffix("d")


def printed_findings(traces: Sequence[RunStatements]) -> Iterator[Finding]:
    """Yield a finding for each log that prints several different systems, or another system than most.

    Of 301 published results whose logs print a description, none mixes two.
    """
    for trace in traces:
        if len(trace.printed) > 1:
            keys = ", ".join(keys_that_differ([dict(printed) for printed in trace.printed])[:5])
            message = f"has several :::SYSJSON lines, which differ in {keys[:200]}: its system is not known"
            yield _contradiction(message, trace.file)
    printing = [(trace.file, _identity(trace.printed[0])) for trace in traces if trace.printed]
    usual = Counter(identity for _, identity in printing).most_common(1)
    for file, identity in printing:
        pairs = zip(_PRINTED_KEYS, identity, usual[0][0], strict=True)
        differences = [
            f"{key} {mine[:80]!r} (theirs: {common[:80]!r})" for key, mine, common in pairs if mine != common
        ]
        if differences:
            message = f"prints {', '.join(differences)} in :::SYSJSON, unlike the other runs"
            source = Source(file=file)
            yield Finding(code="systems_differ", verdict=Verdict.UNPROVEN, message=message, source=source)


def _identity(printed: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the values of :data:`_PRINTED_KEYS`, "" for a missing one."""
    return tuple(str(printed.get(key, "")) for key in _PRINTED_KEYS)
