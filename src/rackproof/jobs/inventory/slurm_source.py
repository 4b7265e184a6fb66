"""Read the nodes of a Slurm cluster from scontrol on this machine, or from files.

``rackproof adopt`` calls :func:`ask_slurm_listing` for ``--slurm``, and :func:`read_slurm_files` for
``--slurm-file``. A line of scontrol is ``NodeName=n07 Gres=gpu:h100:8 NodeAddr=10.0.0.7 …``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rackproof.core.child_environment import SLURM_NEEDS, environment_of_tool
from rackproof.core.text import sanitize
from rackproof.jobs.inventory.nodes import (
    BY_NAME,
    MOST_BYTES,
    AdoptedNode,
    AdoptedSource,
    AdoptError,
    GpuHint,
    address_problem,
    name_problem,
)
from rackproof.jobs.inventory.read_file import read_text
from rackproof.nodes.slurm_listing import (
    SlurmListing,
    SlurmNode,
    has_slurm_lines,
    join_slurm_texts,
    read_slurm_listing,
)

_COMMANDS = (
    ("scontrol", "show", "node", "--oneliner"),
    ("scontrol", "show", "topology"),
    ("scontrol", "show", "config"),
)
"""Commands whose output is read. They change nothing, and any user may run them."""
_ASK_S = 60.0
"""Seconds after which scontrol counts as not answering."""
_OF_NIGHTS = ("scontrol", "squeue", "sinfo")
"""The programs of Slurm that a night runs on the host that it queries for Slurm's states."""
THIS_MACHINE = "localhost"
"""Name of the host that nights query for Slurm's states, if this machine's own scontrol listed the nodes."""


def ask_slurm_listing() -> AdoptedSource:
    """Return the nodes that this machine's scontrol lists, with their racks from the topology.

    Raises:
        AdoptError: There is no scontrol, it does not answer, or it prints nothing or too much.
        SlurmListingError: The output contains no node, cannot be parsed, or names too many nodes.
    """
    # Name all missing programs in one message, so that the operator can install them together.
    missing = [program for program in _OF_NIGHTS if shutil.which(program) is None]
    lack = f"this machine ({sanitize(os.uname().nodename, 100)}) has no {', '.join(missing)}"
    if "scontrol" in missing:
        raise AdoptError(
            f"{lack}: install Slurm's client programs, run it on a login node, or name files that hold the "
            "output of scontrol (--slurm-file)"
        )
    texts = [_ask(argv) for argv in _COMMANDS]
    if not texts[0]:
        raise AdoptError("Slurm's scontrol on this machine lists no nodes: is slurmctld up? (scontrol ping)")
    source = _source(read_slurm_listing(join_slurm_texts(texts), "scontrol"), "Slurm")
    # Slurm answered on this machine, so nights can query it here without a login on slurmctld's host.
    remarks = (
        *source.remarks,
        *([f"{lack}, which a night needs here to read Slurm's states"] if missing else []),
    )
    return source.model_copy(update={"controller": THIS_MACHINE, "remarks": remarks})


def _ask(argv: Sequence[str]) -> str:
    """Return a command's output, or "" if the command failed.

    Raises:
        AdoptError: The command cannot run, does not end, or prints too much.
    """
    try:
        process = subprocess.run(  # noqa: S603  (fixed programs, and no shell)
            argv,
            capture_output=True,
            timeout=_ASK_S,
            check=False,
            env=environment_of_tool(*SLURM_NEEDS),
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise AdoptError(f"{' '.join(argv)} gave no answer: {sanitize(error, 200)}") from None
    if len(process.stdout) > MOST_BYTES:
        raise AdoptError(f"{' '.join(argv)} printed more than {MOST_BYTES >> 20} MiB")
    # There may be no topology plugin. Without an answer, there is no topology.
    return process.stdout.decode("utf-8", "replace") if process.returncode == 0 else ""


def read_slurm_files(paths: Sequence[Path]) -> AdoptedSource:
    """Return the nodes in files: slurm.conf, gres.conf, topology.conf, or output of scontrol and sinfo.

    Raises:
        AdoptError: A file cannot be read.
        SlurmListingError: The files contain no node, cannot be parsed, or name too many nodes.
    """
    texts = {path: read_text(path) for path in paths}
    source = _source(
        read_slurm_listing(join_slurm_texts(texts.values()), ", ".join(map(str, paths))), "Slurm"
    )
    remarks = [
        f"{path}: it has no line of slurm.conf, gres.conf, topology.conf, scontrol or sinfo, and is not read"
        for path, text in texts.items()
        if not has_slurm_lines(text)
    ]
    if source.controller != THIS_MACHINE:
        return source.model_copy(update={"remarks": (*source.remarks, *remarks)})
    # The files may be from another machine, whose localhost is not this one.
    remarks.append(f"SlurmctldHost {THIS_MACHINE} is not used: run adopt --slurm on that machine")
    return source.model_copy(update={"controller": "", "remarks": (*source.remarks, *remarks)})


def _source(listing: SlurmListing, source: str) -> AdoptedSource:
    """Return the nodes of a Slurm listing, with remarks about nodes and addresses that are left out."""
    remarks = list(listing.remarks)
    nodes = []
    for listed in listing.nodes:
        if problem := name_problem(listed.name):
            remarks.append(f"left out: {sanitize(listed.name, 80)!r} of {source}: {problem}")
        else:
            nodes.append(_node(listed, source, remarks))
    controller = listing.controller
    if controller and address_problem(controller):
        remarks.append(f"SlurmctldHost {sanitize(controller, 60)!r} is not a host")
        controller = ""
    address = listing.controller_address
    is_needed = controller and address != controller and not address_problem(address)
    return AdoptedSource(
        nodes=tuple(nodes),
        controller=controller,
        controller_address=address if is_needed else "",
        remarks=tuple(remarks),
    )


def _node(node: SlurmNode, source: str, remarks: list[str]) -> AdoptedNode:
    """Return a node of Slurm with the hints about its GPUs.

    A remark is added to ``remarks`` if the address is refused.
    """
    address = node.address
    if address and address_problem(address):
        remarks.append(
            f"{node.name}: NodeAddr {sanitize(address, 60)!r} is not taken: {address_problem(address)}"
        )
        address = ""
    kinds = " ".join(kind for kind in node.gpus if kind)
    hints = [GpuHint(where="Gres", text=kinds)] if kinds else []
    hints += [GpuHint(where="InstanceType", text=node.instance_type)] if node.instance_type else []
    hints += [GpuHint(where="feature", text=feature) for feature in node.features]
    hostname = node.hostname if not name_problem(node.hostname) else ""
    is_same_name = hostname.partition(".")[0].lower() == node.name.partition(".")[0].lower()
    return AdoptedNode(
        name=node.name,
        source=source,
        address=address,
        hostname="" if is_same_name else hostname,
        rack=node.switch or rack_of_name(node.name),
        rack_from="topology" if node.switch else BY_NAME,
        partitions=node.partitions,
        gpu_count=sum(node.gpus.values()) if node.gpus_known else None,
        gpu_count_from="Gres",
        hints=tuple(hints),
        sizes=dict(node.sizes),
        in_slurm=True,
    )


def rack_of_name(name: str) -> str:
    """Return the rack in a host's name (``gb300-r01-n03``: ``gb300-r01``). No I/O.

    If there is none, return the name without the number at the end (``node07``: ``node``), or ``nodes``.
    """
    short = name.partition(".")[0]
    match = re.match(r"(.*?(?:^|[-_])(?:rack|row|r|cab|pod)[-_]?[0-9]{1,4})[-_].", short, re.I)
    return match[1] if match else short.rstrip("0123456789").rstrip("-_") or "nodes"
