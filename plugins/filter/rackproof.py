"""Provide Rackproof's filters to Ansible.

:class:`FilterModule` lists the filters by name. Rackproof's roles and playbooks use them, except parse_log
and verdict, which are for the playbooks of a site. Most filters check the types of their input, call a
function of the package, and translate errors into Ansible's. A file with the filter's name beside this one
documents it.

Errors are raised `from None`. Otherwise, Ansible would show the cause, too, which repeats the text.
"""

from __future__ import annotations

import sys
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from io import BytesIO
from pathlib import Path
from typing import Any

from ansible import context
from ansible.errors import AnsibleFilterError
from pydantic import ValidationError

try:
    import rackproof_ansible  # noqa: F401
except ImportError:
    # The callback rackproof usually adds this path. A listing loads no callback, but evaluates the hosts.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from rackproof import logs
from rackproof.core.judging import judge
from rackproof.core.records import Measurement, Reference
from rackproof.core.task_failures import failure_reasons
from rackproof.core.text import sanitize
from rackproof.jobs.bench import plan_text
from rackproof.jobs.reimage import autoinstall, order_signature
from rackproof.jobs.reimage import image_report as reports
from rackproof.nodes import files as node_files
from rackproof.nodes import imex, packages, peer_memory, preflight, slurm_listing, slurm_releases
from rackproof_ansible import asked_hosts


def first_error(error: ValueError) -> str:
    """Return an error on one line. Of several mistakes, return the first."""
    if not isinstance(error, ValidationError):
        return str(error)
    # Ansible shows a single line, long enough for one mistake.
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    return f"{field}: {first['msg']}" if field else str(first["msg"])


def parse_log(text: Any, format: str = "auto") -> dict[str, Any]:
    """Return the measurements, findings and verdict of a log's text."""
    if not isinstance(text, str | bytes):
        raise AnsibleFilterError(f"parse_log needs the text of a log, not {type(text).__name__}")
    # Ansible decodes files with surrogates, so this restores the bytes of a log that is not UTF-8.
    data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    try:
        return logs.parse(BytesIO(data), format=format).model_dump(mode="json")
    except ValueError as error:
        raise AnsibleFilterError(f"parse_log: {error}") from None


def verdict(value: Any, reference: Any, unit: str = "", direction: str = "higher") -> dict[str, Any]:
    """Judge one number against a reference."""
    _check_verdict_input(value, reference, direction)
    measurement = {"name": "number", "value": value, "unit": unit or reference.get("unit", "")}
    try:
        measured = Measurement.model_validate({**measurement, "direction": direction})
    except ValueError as error:
        raise AnsibleFilterError(f"verdict: {first_error(error)}") from None
    try:
        judgement = judge(measured, Reference.model_validate({"unit": "", "source": "playbook", **reference}))
    except ValueError as error:
        raise AnsibleFilterError(f"verdict: reference: {first_error(error)}") from None
    return {"verdict": judgement.verdict.value, "reason": judgement.reason}


def _check_verdict_input(value: Any, reference: Any, direction: str) -> None:
    """Refuse a boolean, a reference that is not a mapping, and one that every number would pass."""
    if not isinstance(reference, Mapping):
        raise AnsibleFilterError("verdict needs a reference: {value, low, high, warn, unit, source}")
    # Python takes True as the number 1.
    if isinstance(value, bool):
        raise AnsibleFilterError("verdict needs a number, not a boolean")
    bad_side = "high" if direction == "lower" else "low"
    if reference.get(bad_side) is None and reference.get("warn") is None:
        raise AnsibleFilterError(f"verdict: give {bad_side} or warn in the reference, or nothing can fail")


def peer_memory_choice(
    facts: Any, method: str = "auto", dmabuf_kernel: str = "", driver: str = "", ofed: str = ""
) -> dict[str, Any]:
    """Choose the method by which GPU and network card share memory on a node."""
    if not isinstance(facts, Mapping) or not {"kernel", "packages", "modules", "commands"} <= set(facts):
        raise AnsibleFilterError("peer_memory_choice needs the fact rackproof_node")
    node = peer_memory.expect_driver(peer_memory.describe_node(facts), driver)
    # Use the network driver that the play is going to install, not the present one.
    node = replace(node, ofed=ofed or node.ofed)
    try:
        choice = peer_memory.choose_method(node, method=method, dmabuf_kernel=dmabuf_kernel)
    except ValueError as error:
        raise AnsibleFilterError(f"peer_memory_choice: {error}") from None
    return {
        "method": choice.method,
        "reason": choice.reason,
        "unmet": list(choice.unmet.get(choice.method, ())),
        "driver": node.driver,
    }


def preflight_remarks(facts: Any, expected: Any, answered_at: float = 0) -> list[dict[str, Any]]:
    """Return a remark for each difference between a node and its expectations."""
    if not isinstance(facts, Mapping) or not {"os", "pci", "space", "clock"} <= set(facts):
        raise AnsibleFilterError("preflight_remarks needs the fact rackproof_node")
    remarks = preflight.preflight_remarks(facts, _expectations(expected), answered_at)
    return [{**asdict(remark), "line": remark.line()} for remark in remarks]


def dry_run_answers(results: Any) -> dict[str, list[str]]:
    """Return the answers of nodes to a dry run, each answer once."""
    try:
        return plan_text.dry_run_answers(results)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise AnsibleFilterError(
            f"dry_run_answers needs results of `slurm_run.py check`: {type(error).__name__}: {error}"
        ) from None


def _expectations(expected: Any) -> preflight.Expected:
    """Return a playbook's expectations of a node."""
    if not isinstance(expected, Mapping):
        raise AnsibleFilterError("preflight_remarks needs a dict of expectations")
    # Refuse a misspelt expectation, because no check would use it.
    known = {field.name for field in fields(preflight.Expected)}
    if stray := sorted(set(expected) - known):
        raise AnsibleFilterError(f"preflight_remarks: unknown expectation {', '.join(map(str, stray))}")
    given: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in expected.items()
    }
    return preflight.Expected(**given)


def packages_lacking(wanted: Any, installed: Any, hold: bool = True, exact: bool = False) -> list[str]:
    """Return the names of the packages of a node that differ from their pins."""
    if not isinstance(wanted, Mapping) or not isinstance(installed, Mapping):
        raise AnsibleFilterError(
            "packages_lacking needs a dict of name to version, and rackproof_node.packages"
        )
    versions = {name: str(version or "") for name, version in wanted.items()}
    return packages.lacking_packages(versions, installed, hold=hold, exact=exact)


def task_failure(result: Any) -> str:
    """Return why a task failed, on one line."""
    if not isinstance(result, Mapping):
        raise AnsibleFilterError(f"task_failure needs the result of a task, not {type(result).__name__}")
    # Sanitize the node's text, because it is shown on terminals, in Slurm and on pages.
    return " / ".join(
        sanitize(line.strip(), 1000) for reason in failure_reasons(result) for line in reason.splitlines()
    )


def files_lacking(wanted: Any, facts: Any, modes: bool = False) -> list[Mapping[str, Any]]:
    """Return the wanted files that are absent on a node, or differ there."""
    compared = {"files", "modes"} if modes else {"files"}
    if not isinstance(facts, Mapping) or not all(isinstance(facts.get(name), Mapping) for name in compared):
        raise AnsibleFilterError("files_lacking needs the fact rackproof_node")
    needed = ("path", "content", "mode") if modes else ("path", "content")
    if not isinstance(wanted, list) or not all(_has_texts(file, needed) for file in wanted):
        raise AnsibleFilterError(f"files_lacking needs a list of files with {', '.join(needed)}, all strings")
    try:
        return node_files.lacking_files(wanted, facts["files"], facts["modes"] if modes else None)
    except UnicodeEncodeError:
        raise AnsibleFilterError("files_lacking: a file's content cannot be encoded in UTF-8") from None


def units_outdated(files: Any, facts: Any) -> list[str]:
    """Return the units of a node that started before one of their files changed."""
    needed = ("unit_starts", "changed_at")
    if not isinstance(facts, Mapping) or not all(isinstance(facts.get(name), Mapping) for name in needed):
        raise AnsibleFilterError("units_outdated needs the fact rackproof_node")
    if not isinstance(files, Mapping) or not all(isinstance(paths, list) for paths in files.values()):
        raise AnsibleFilterError("units_outdated needs a dict of unit to the list of its files")
    return node_files.outdated_units(files, facts["unit_starts"], facts["changed_at"])


def _has_texts(entry: Any, keys: tuple[str, ...]) -> bool:
    """Return whether an entry is a mapping with a text for each of the keys."""
    return isinstance(entry, Mapping) and all(isinstance(entry.get(key), str) for key in keys)


def slurm_misfit(node: Any, controller: Any) -> str:
    """Explain why a host's Slurm cannot work with its controller's."""
    if not isinstance(node, str) or not isinstance(controller, str):
        raise AnsibleFilterError(
            "slurm_misfit needs two versions, of the host's Slurm and of its controller's"
        )
    return slurm_releases.incompatibility(node, controller)


def slurm_lost_nodes(text: Any, nodes: Any, place: str = "slurm.conf") -> str:
    """Explain which nodes of a slurm.conf a new one would lack."""
    if not isinstance(text, str) or isinstance(nodes, str) or not isinstance(nodes, Sequence):
        raise AnsibleFilterError("slurm_lost_nodes needs the text of slurm.conf, and the list of nodes")
    return slurm_listing.lost_nodes(text, str(place), {str(node) for node in nodes})


def plain_data(value: Any) -> Any:
    """Return data in Python's own containers. Ansible's containers render a value only when it is read."""
    if isinstance(value, Mapping):
        return {str(name): plain_data(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain_data(item) for item in value]
    return value


def autoinstall_user_data(
    entry: Any, report: Any, system: Any, network: Any, files: Any, more: Any = None
) -> str:
    """Return the instructions of Ubuntu's installer for a node."""
    values = {"entry": entry, "system": system, "network": network, "more": more or {}}
    for name, value in values.items():
        if not isinstance(value, Mapping):
            raise AnsibleFilterError(f"autoinstall_user_data: {name} has to be a dictionary")
    try:
        return autoinstall.build_user_data(report=str(report), files=Path(str(files)), **plain_data(values))
    except OSError as error:
        raise AnsibleFilterError(f"autoinstall_user_data: {error}") from None
    except ValueError as error:
        raise AnsibleFilterError(f"autoinstall_user_data: {first_error(error)}") from None


def image_report(results: Any, known_hosts: str, name: str, wave: Any = None) -> dict[str, Any]:
    """Return the verified contents of a node's boot report."""
    if not isinstance(results, Sequence) or len(results) != 2:
        raise AnsibleFilterError("image_report needs the boot report and its alarms, as slurp returns them")
    report, alarms = map(_slurped, results)
    path = Path(known_hosts).expanduser()
    known = path.read_text(errors="replace") if path.exists() else ""
    others = [_slurped(result[0]) for result in wave or []]
    if report in others:
        others.remove(report)  # Remove the node's own report once. A second equal report is another node's.
    found = reports.read_image_report(report, alarms, known, name, others)
    return found.model_dump(mode="json")


def imex_nodes_config(addresses: Any) -> str:
    """Return the nodes of an NVLink domain as nvidia-imex reads them."""
    if not isinstance(addresses, Mapping):
        raise AnsibleFilterError(f"imex_nodes_config needs a dictionary, not {type(addresses).__name__}")
    try:
        return imex.render_nodes_config({str(node): str(wanted) for node, wanted in addresses.items()})
    except imex.ImexError as error:
        raise AnsibleFilterError(str(error)) from None


def order_key_problem(path: Any) -> str:
    """Explain why a key cannot sign orders for nodes."""
    return order_signature.find_signing_problem(Path(str(path)).expanduser())


def order_signature_for(report: Any, order: Any, key: Any) -> str:
    """Return the signature of an order for the boot whose ramdisk requests it."""
    try:
        return order_signature.sign_order(str(order), str(report), Path(str(key)).expanduser())
    except order_signature.SignatureError as error:
        raise AnsibleFilterError(str(error)) from None


def _slurped(result: Mapping[str, Any]) -> str:
    """Return the text of a file that slurp read, or "" if the file was missing."""
    return b64decode(result.get("content", "")).decode(errors="replace")


def refuse_partial_runs(pattern: Any, groups: Any) -> str:
    """Return the hosts of a play, unless the command line leaves out some of them or some tasks."""
    if not isinstance(pattern, str) or not isinstance(groups, Mapping):
        raise AnsibleFilterError("refuse_partial_runs needs the hosts of a play and the variable groups")
    try:
        asked_hosts.check_hosts(pattern, groups, context.CLIARGS)
    except asked_hosts.PartialRunError as error:
        raise AnsibleFilterError(str(error)) from None
    return pattern


class FilterModule:
    """The filters by name, for Ansible."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {
            "parse_log": parse_log,
            "refuse_partial_runs": refuse_partial_runs,
            "verdict": verdict,
            "peer_memory_choice": peer_memory_choice,
            "packages_lacking": packages_lacking,
            "task_failure": task_failure,
            "files_lacking": files_lacking,
            "units_outdated": units_outdated,
            "preflight_remarks": preflight_remarks,
            "dry_run_answers": dry_run_answers,
            "slurm_lost_nodes": slurm_lost_nodes,
            "slurm_misfit": slurm_misfit,
            "imex_nodes_config": imex_nodes_config,
            "autoinstall_user_data": autoinstall_user_data,
            "image_report": image_report,
            "order_key_problem": order_key_problem,
            "order_signature": order_signature_for,
        }
