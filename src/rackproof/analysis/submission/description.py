"""Build the system description ``systems/SYSTEM.json`` of a submission from facts only.

The facts are the operator's file (YAML: ``submitter: Example Cloud``, ``division: closed``, …), the nodes'
facts in the runs' records, and the descriptions in the runs' logs. :mod:`.building` calls
:func:`describe_system`. The command reads the operator's file with :func:`load_system_file`, which is the
only function here with I/O.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from rackproof.analysis.agreement import COUNTS, Doubt, doubt_of, same_version
from rackproof.analysis.submission.models import ChosenRun, Issue, SubmissionError
from rackproof.core.definitions import DefinitionError, construct_document, lines_of_keys
from rackproof.core.records import Node, Record, Verdict
from rackproof.core.text import sanitize

STATUSES = (
    "Available on-premise",
    "Available cloud",
    "Research, Development, or Internal (RDI)",
    "Preview",
)
DIVISIONS = ("closed", "open")

# The keys in the order of the rules, and the kind of value for each. A value of the kind "identity" must be
# known and true. For "answered", the rules require an answer, but an operator may decline to give one. All
# others may be empty.
_NEED = {
    "submitter": "identity",
    "division": "identity",
    "status": "identity",
    "system_name": "identity",
    "number_of_nodes": "identity",
    "host_processors_per_node": "answered",
    "host_processor_model_name": "answered",
    "host_processor_core_count": "answered",
    "host_processor_vcpu_count": "",
    "host_processor_frequency": "",
    "host_processor_caches": "",
    "host_processor_interconnect": "",
    "host_memory_capacity": "answered",
    "host_storage_type": "answered",
    "host_storage_capacity": "answered",
    "host_networking": "answered",
    "host_networking_topology": "answered",
    "host_memory_configuration": "answered",
    "accelerators_per_node": "identity",
    "accelerator_model_name": "identity",
    "accelerator_host_interconnect": "answered",
    "accelerator_frequency": "",
    "accelerator_on-chip_memories": "",
    "accelerator_memory_configuration": "answered",
    "accelerator_memory_capacity": "answered",
    "accelerator_interconnect": "answered",
    "accelerator_interconnect_topology": "",
    "cooling": "answered",
    "hw_notes": "",
    "framework": "identity",
    "framework_name": "",
    "other_software_stack": "answered",
    "operating_system": "answered",
    "sw_notes": "",
}
FIELDS = tuple(_NEED)
IDENTITY = tuple(key for key, need in _NEED.items() if need == "identity")
ANSWERED = tuple(key for key, need in _NEED.items() if need == "answered")
STACK = "other_software_stack"
"""The key whose value is a mapping of software to versions, or one text."""

_ONLY_THE_OPERATOR_KNOWS = frozenset({"submitter", "division", "status", "system_name"})
# Only one value of each of these keys is true, so another value contradicts it.
_SINGLE = frozenset({*COUNTS, "accelerator_model_name", "host_processor_model_name"})
_IN_ALL_PLACES = frozenset({*_SINGLE, "framework", STACK})
"""Keys that are compared with the nodes' facts and with the log. All others are compared with the nodes'
facts or, if these do not have the key, with the log."""
_PROVEN = ("number_of_nodes", "accelerators_per_node", "accelerator_model_name")
"""Keys that the nodes' facts or the log of every run must have."""
_FILE_BYTES = 65_536
"""Largest size of the operator's file."""
_NO_NUMBER = re.compile(r"\s*[-+.]?(?:nan|inf|infinity)\b", re.IGNORECASE)
_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# The availability of a system in a log (the value of submission_status), and in the description.
_STATUS_IN_LOGS = dict(zip(("onprem", "cloud", "research", "preview"), STATUSES, strict=True))


class SystemFile(Record):
    """The content of the operator's file about the system, given with ``--system``.

    ``file`` is the path of the file. ``system`` and ``implementation`` are names of folders in the package.
    ``values`` has the values of :data:`FIELDS` that the file states. An empty value means that the operator
    declines to state it.
    """

    file: str
    system: str
    implementation: str
    values: dict[str, Any]

    @property
    def submitter_folder(self) -> str:
        """Return the submitter's name in a form that is valid for a folder in a git repository."""
        return re.sub(r"[^A-Za-z0-9._-]+", "_", self.values["submitter"]).strip("._-")


def load_system_file(path: Path) -> SystemFile:
    """Return the content of the operator's YAML file.

    Raises:
        SubmissionError: The file is unreadable or not YAML, contains an unknown key or a wrong value, or
            lacks a value that no log or record contains. The message names the file and the key.
    """
    values = {_key(path, key): _value(path, key, value) for key, value in _read_yaml(path).items()}
    system = values.pop("system", "")
    implementation = values.pop("implementation", "") or system
    for key, name in (("system", system), ("implementation", implementation)):
        if not _FOLDER_NAME.fullmatch(name):
            raise SubmissionError(
                f"{path}: {key} {name!r} cannot name a folder: letters, digits, '.', '_' and '-' can"
            )
    for key in ("submitter", "division", "status", "system_name"):
        if not values.get(key):
            raise SubmissionError(f"{path}: {key} is missing; only you can give it")
    for key, allowed in (("division", DIVISIONS), ("status", STATUSES)):
        if values[key] not in allowed:
            raise SubmissionError(f"{path}: {key} {values[key]!r} is none of: {'; '.join(allowed)}")
    system_file = SystemFile(file=str(path), system=system, implementation=implementation, values=values)
    if not _FOLDER_NAME.fullmatch(system_file.submitter_folder):
        raise SubmissionError(f"{path}: submitter {values['submitter']!r} has no letter that names a folder")
    return system_file


def _read_yaml(path: Path) -> dict[Any, Any]:
    """Return the keys of a system's file.

    Raises:
        SubmissionError: The file cannot be read, is too large, has a key twice, or is not a mapping.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(_FILE_BYTES + 1)
    except OSError as error:
        raise SubmissionError(
            f"cannot read {path}: {error.strerror}; docs/using/submission.md has an example of this file"
        ) from None
    # Check this before parsing, because YAML's parser takes long for large input.
    if len(data) > _FILE_BYTES:
        raise SubmissionError(f"{path} is too large: more than {_FILE_BYTES} bytes")
    try:
        # Of two equal keys, YAML would drop the first, so lines_of_keys refuses them.
        document = yaml.compose(data, Loader=yaml.SafeLoader)
        lines_of_keys(document, path)
        content = construct_document(document)
    except DefinitionError as error:
        raise SubmissionError(sanitize(error, 400)) from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise SubmissionError(f"{path} is not YAML: {sanitize(error, 300)}") from None
    if not isinstance(content, dict):
        raise SubmissionError(f"{path} has no keys; docs/using/submission.md has an example of it")
    return content


def _key(path: Path, key: object) -> str:
    """Return a key of the file as text, or raise a SubmissionError with similar keys if it is unknown."""
    known_keys = ("system", "implementation", *FIELDS)
    if key in known_keys:
        return str(key)
    near = difflib.get_close_matches(str(key), known_keys, 2)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise SubmissionError(f"{path}: unknown key {sanitize(key, 100)}{hint}")


def _value(path: Path, key: object, value: object) -> Any:
    """Return a value as text, as the checker reads it. :data:`STACK` may be a mapping of such values.

    Raises:
        SubmissionError: The value is neither text nor a finite number.
    """
    if key == STACK and isinstance(value, dict):
        return {sanitize(name, 100): _value(path, name, item) for name, item in value.items()}
    if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
        # The checker concatenates the values as text. Python refuses to write thousands of digits.
        with suppress(ValueError):
            text = sanitize(value, 1000)
            if not _NO_NUMBER.match(text):
                return text
    raise SubmissionError(
        f"{path}: {sanitize(key, 100)} must be text or a number (an empty text '' means: not stated)"
    )


def facts_of_nodes(nodes: Sequence[Node]) -> dict[str, Any]:
    """Return the nodes' facts by the description's keys. Keys without a fact are left out.

    Args:
        nodes: The nodes of one run, which are alike, so that the first node determines their kind.
    """
    if not nodes:
        return {}
    first_node = nodes[0]
    # If nodes differ slightly in usable memory, the description states the smallest.
    memory = min(node.memory_bytes for node in nodes)
    facts: dict[str, Any] = {
        "number_of_nodes": str(len(nodes)),
        **_accelerator_facts(first_node),
        "host_processor_model_name": first_node.cpu,
        "host_memory_capacity": _capacity(memory) if memory else "",
        "operating_system": first_node.software.get("os", ""),
        STACK: _driver_stack(first_node),
    }
    return {key: value for key, value in facts.items() if value}


def _accelerator_facts(node: Node) -> dict[str, str]:
    """Return the keys about GPUs from the facts of a node. All its GPUs count as the first one's model."""
    if not node.gpus:
        return {}
    gpu = node.gpus[0]
    return {
        "accelerators_per_node": str(len(node.gpus)),
        "accelerator_model_name": gpu.name,
        "accelerator_memory_capacity": f"{gpu.memory_bytes >> 20} MiB",
    }


def _driver_stack(node: Node) -> dict[str, str]:
    """Return the versions of the node's kernel and drivers by their names in descriptions."""
    names = {"kernel": "kernel_version", "driver": "nvidia_kernel_driver", "ofed": "mofed_version"}
    return {name: node.software[key] for key, name in names.items() if node.software.get(key)}


def _capacity(size_bytes: int) -> str:
    """Return a size with a decimal unit: ``2.2 TB``, ``512 GB``."""
    if size_bytes >= 10**12:
        return f"{size_bytes / 1e12:.1f} TB"
    return f"{round(size_bytes / 1e9)} GB"


def describe_system(system: SystemFile, chosen: Sequence[ChosenRun]) -> tuple[dict[str, Any], list[Issue]]:
    """Return the description, which has every key, and issues about missing values and contradictions.

    The operator's file comes first, then the nodes' facts, and then the run script's output in the logs.
    Contradictions between these sources are issues.

    Args:
        system: The operator's statements about the system.
        chosen: The runs of the package.
    """
    nodes = [facts_of_nodes(run.run.nodes) for run in chosen]
    printed = [_log_facts(run) for run in chosen]
    description = {key: _value_of(key, system.values, nodes, printed) for key in FIELDS}
    issues: list[Issue] = []
    issues += _missing(system, description)
    issues += _unlike_nodes(chosen)
    for run in chosen:
        issues += _contradictions(system, description, run)
    issues += _identity_in_logs(system, chosen)
    return description, issues


def _log_facts(run: ChosenRun) -> dict[str, Any]:
    """Return a log's facts about the system, except facts that only the operator can state."""
    return {key: value for key, value in run.system.items() if key not in _ONLY_THE_OPERATOR_KNOWS}


def _value_of(
    key: str,
    stated: Mapping[str, Any],
    nodes: Sequence[Mapping[str, Any]],
    printed: Sequence[Mapping[str, Any]],
) -> Any:
    """Return the value of one key from the most trusted source that states it, or "".

    If runs state several values, all are returned as one text, or the first for a key of :data:`_SINGLE`.
    """
    if key == STACK:
        return _stack(stated.get(key), nodes, printed)
    if key in stated:
        return stated[key]
    # Rackproof itself read the nodes. A run script may have printed a placeholder.
    for sources in (nodes, printed):
        values = dict.fromkeys(str(source[key]) for source in sources if source.get(key))
        if values:
            return next(iter(values)) if key in _SINGLE else "; ".join(values)
    return ""


def _stack(stated: object, nodes: Sequence[Mapping[str, Any]], printed: Sequence[Mapping[str, Any]]) -> Any:
    """Return the versions from the logs, overridden by the nodes' and then by the operator's."""
    if isinstance(stated, str):
        return stated
    stack: dict[str, str] = {}
    for sources in (printed, nodes):
        versions_by_name: dict[str, dict[str, None]] = {}
        for source in sources:
            versions = source.get(STACK)
            for name, version in versions.items() if isinstance(versions, dict) else ():
                versions_by_name.setdefault(name, {})[str(version)] = None
        # Benchmarks use separate images with different libraries, so several versions may be true.
        stack |= {name: "; ".join(versions) for name, versions in versions_by_name.items()}
    if isinstance(stated, dict):
        stack |= stated
    return stack or ""


def _missing(system: SystemFile, description: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield an issue for each required key without a value, and a remark on those left empty on purpose."""
    for key in (*IDENTITY, *ANSWERED):
        if description[key]:
            continue
        on_purpose = key in system.values and key not in IDENTITY
        if not on_purpose:
            yield Issue(
                code="key_missing",
                verdict=Verdict.UNPROVEN,
                file=system.file,
                message=f"neither the nodes' facts nor the logs nor this file state the system's {key}",
                remedy=f"write `{key}: …` into it"
                + ("" if key in IDENTITY else f" (`{key}: ''` if it shall not be stated)"),
            )
    unstated = [key for key in ANSWERED if not description[key] and key in system.values]
    if unstated:
        yield Issue(
            code="key_not_stated",
            file=system.file,
            message=f"left empty on purpose, although the rules require an answer: {', '.join(unstated)}",
        )


def _unlike_nodes(chosen: Sequence[ChosenRun]) -> Iterator[Issue]:
    """Yield an issue for each run on nodes that differ from each other or from the first run's."""
    first_kind: tuple[tuple[object, ...], str] | None = None
    for run in chosen:
        kinds = _kinds_of_nodes(run.run.nodes)
        if not kinds:
            continue
        kind = next(iter(kinds))
        first_kind = first_kind or (kind, run.run.run_id)
        remedy = "choose runs on nodes of one kind"
        if len(kinds) > 1:
            kinds_text = " / ".join(_shown_names(names) for names in kinds.values())
            message = f"its nodes are not alike in processor or accelerators: {kinds_text}"
            remedy += ", or mend the node that lacks a GPU"
        elif kind != first_kind[0]:
            message = f"its nodes have other processors or accelerators than those of run {first_kind[1]}"
        else:
            continue
        yield Issue(
            code="nodes_unlike",
            verdict=Verdict.FAIL,
            run=run.run.run_id,
            message=message,
            remedy=remedy,
        )


def _kinds_of_nodes(nodes: Sequence[Node]) -> dict[tuple[object, ...], list[str]]:
    """Return the names of the nodes of each kind.

    A kind is the processor, and the number and models of accelerators.
    """
    kinds: dict[tuple[object, ...], list[str]] = {}
    for node in nodes:
        kind = (node.cpu, len(node.gpus), *sorted({gpu.name for gpu in node.gpus}))
        kinds.setdefault(kind, []).append(node.name)
    return kinds


def _shown_names(names: Sequence[str]) -> str:
    return f"{', '.join(names[:3])}{' …' * (len(names) > 3)}"


def _contradictions(
    system: SystemFile, description: Mapping[str, Any], chosen_run: ChosenRun
) -> Iterator[Issue]:
    """Yield an issue for each disagreement between the description and a run's facts or its log.

    There are also issues about a log with several descriptions, and about keys of :data:`_PROVEN` that
    neither the facts nor the log have.
    """
    if chosen_run.system_conflicts:
        yield _several_systems(chosen_run)
    nodes = facts_of_nodes(chosen_run.run.nodes)
    printed = _log_facts(chosen_run)
    software = _only_of_log(printed.get(STACK), nodes.get(STACK))
    places = (
        ("the nodes' facts", nodes, ""),
        ("the log", {**printed, STACK: software}, chosen_run.log.path),
    )
    for key in FIELDS:
        # A run script reads the values of its container, so a value of the nodes themselves decides.
        stating = [origin for origin in places if origin[1].get(key)]
        for where, source, file in stating if key in _IN_ALL_PLACES else stating[:1]:
            for name, doubt, described, seen in _doubts(key, description[key], source[key]):
                yield _doubtful(
                    system, (key, name), doubt, (described, seen), (chosen_run.run.run_id, where, file)
                )
    unknown = [key for key in _PROVEN if key not in nodes and key not in printed]
    if unknown:
        yield chosen_run.issue(
            code="description_unproven",
            verdict=Verdict.UNPROVEN,
            message=f"neither its nodes' facts nor its log show {', '.join(unknown)}",
            remedy="choose runs made by bench.yml, or logs into which the run script printed :::SYSJSON",
        )


def _several_systems(chosen_run: ChosenRun) -> Issue:
    """Return the issue about a log whose printed descriptions contradict each other."""
    keys = ", ".join(sanitize(key, 100) for key in chosen_run.system_conflicts[:5])
    return chosen_run.issue(
        code="description_not_compared",
        verdict=Verdict.UNPROVEN,
        message=f"its log has several :::SYSJSON lines, which differ in {keys}: its system is not known",
        remedy="choose another run, or find out why the log has the lines of two systems",
    )


def _remedy_of_contradiction(system: SystemFile, key: str) -> str:
    if key in system.values:
        return f"correct {key} in {system.file}, or choose runs of that system"
    return "choose runs of one system: the description follows the first of them"


def _only_of_log(printed: Any, nodes: Any) -> Any:
    """Return the software in a log that the nodes' facts do not have.

    Without software of either, or if it is one text, the log's value is returned unchanged.
    """
    if not (isinstance(printed, dict) and isinstance(nodes, dict)):
        return printed
    return {name: version for name, version in printed.items() if name not in nodes}


_Doubts = Iterator[tuple[str, Doubt, str, str]]
"""Name of the value, kind of doubt, value in the description, observed value."""


def _doubts(key: str, described: Any, seen: Any) -> _Doubts:
    """Yield the values of a key that disagree. For software, each version is a value."""
    if key == STACK:
        yield from _doubts_of_software(described, seen)
    elif described and (doubt := doubt_of(key, str(described), str(seen))):
        yield key, doubt, str(described), str(seen)


def _doubts_of_software(described: Any, seen: Any) -> _Doubts:
    """Yield the versions of the description that disagree with an observed version of the same software.

    If either side is not a mapping of versions, the sides are unproven unless they are equal.
    """
    if not described:
        return
    if not (isinstance(described, dict) and isinstance(seen, dict)):
        if described != seen:
            reason = "only versions by name can be compared, such as `cuda_version: 13.0`"
            yield STACK, Doubt(Verdict.UNPROVEN, reason), str(described), str(seen)
        return
    versions = {_plain_name(name): str(version) for name, version in seen.items()}
    for name, version in described.items():
        seen_version = versions.get(_plain_name(name), "")
        if version and seen_version and (doubt := same_version(str(version), seen_version)):
            yield name, doubt, str(version), seen_version


def _plain_name(name: str) -> str:
    """Return a software's name for comparison: ``CUDA`` and ``cuda_version`` become ``cuda``."""
    return re.sub(r"[^a-z0-9]", "", name.casefold()).removesuffix("version")


def _doubtful(
    system: SystemFile,
    names: tuple[str, str],
    doubt: Doubt,
    values: tuple[str, str],
    source: tuple[str, str, str],
) -> Issue:
    """Return the issue about a contradicted value.

    ``names`` is the key and the name of the value, ``values`` is the described and the observed one, and
    ``source`` is the run's id, the origin and the log.
    """
    key, name = names
    described, seen = (sanitize(value, 100) for value in values)
    run_id, where, file = source
    return Issue(
        code="description_contradicted" if doubt.verdict is Verdict.FAIL else "description_not_compared",
        verdict=doubt.verdict,
        run=run_id,
        file=file,
        message=f"{sanitize(name, 100)} is {seen!r} in {where}, {described!r} in the description"
        + (f": {doubt.reason}" if doubt.reason else ""),
        remedy=_remedy_of_contradiction(system, key),
    )


def _identity_in_logs(system: SystemFile, chosen: Sequence[ChosenRun]) -> Iterator[Issue]:
    """Yield remarks on identity in the logs, where run scripts often put placeholders.

    Reviewers use the folder and the description, so these remarks do not block the package.
    """
    submitter, status = system.values["submitter"], system.values["status"]
    expected = {"submission_org": submitter, "submission_status": status}
    for key, ours in expected.items():
        stated = {run.stated[key] for run in chosen if run.stated.get(key)}
        differing = {text for text in stated if _STATUS_IN_LOGS.get(text, text).casefold() != ours.casefold()}
        if differing:
            yield Issue(
                code="identity_in_logs",
                message=f"the logs have {key} {', '.join(map(repr, sorted(differing)))}, "
                f"the description {ours!r}",
                remedy="nothing for this package; set it before the next runs",
            )
