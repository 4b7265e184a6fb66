"""Define the checked parts of a node, the values that they are compared with, and findings. No I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal

from pydantic import BeforeValidator

from rackproof.core.gpu_models import (
    HOTTEST_GPU_C,
    HOTTEST_MEMORY_C,
    LEAST_MARGIN_C,
    MOST_DRAM_CORRECTED,
    MOST_SLOWDOWN_S,
    MOST_SRAM_CORRECTED,
)
from rackproof.core.records import Record, Text, Verdict
from rackproof.core.text import sanitize
from rackproof.nodes.kernel_log import normalize_bus_id
from rackproof.nodes.snapshot import GpuSnapshot, NodeSnapshot, PortSnapshot

GIB = 1 << 30
Action = Literal["none", "watch", "configure", "reset", "reboot", "isolate", "inspect", "rma"]
Confidence = Literal["certain", "likely", "hint"]
PartKind = Literal["node", "gpu", "port", "link"]
_MOST_EVIDENCE = 1000


class HealthFinding(Record):
    """Something wrong with a part of a node.

    It is not a :class:`rackproof.core.records.Finding`, which is about a place in a log, and may be a remark.
    This one always names a part and an action, and is stored in ``night.json`` with these keys.

    ``part`` is node, gpu, port or link; ``name`` a GPU's UUID, ``DEVICE/PORT`` of a network card, a PCIe
    address, and empty for the node itself; ``place`` where the part sits. ``confidence`` says how surely
    this part is at fault.
    """

    node: str
    code: str
    part: PartKind = "node"
    name: str = ""
    place: str = ""
    verdict: Verdict
    action: Action
    confidence: Confidence = "certain"
    evidence: Annotated[Text, BeforeValidator(lambda text: sanitize(text, _MOST_EVIDENCE))]
    fleetwide: bool = False


@dataclass(frozen=True)
class Part:
    """A part of a node: ``kind`` is the ``part`` of :class:`HealthFinding`."""

    kind: PartKind = "node"
    name: str = ""
    place: str = ""


def part_finding(
    snapshot: NodeSnapshot,
    code: str,
    verdict: Verdict,
    action: Action,
    evidence: str,
    confidence: Confidence = "certain",
    part: Part = Part(),
) -> HealthFinding:
    """Return a finding on a part of a node, by default on the node itself."""
    return HealthFinding(
        node=snapshot.node,
        code=code,
        part=part.kind,
        name=part.name,
        place=part.place,
        verdict=verdict,
        action=action,
        confidence=confidence,
        evidence=evidence,
    )


@dataclass(frozen=True)
class ExpectedMount:
    """A mount that a path must have; an empty value matches any. It is writable unless ``options``
    have ``ro``.

    ``fstype`` is how the type begins: ``nfs`` is any version of it.
    """

    path: str
    fstype: str = ""
    source: str = ""
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Expectation:
    """The properties that a node must have; 0, None and empty are not checked.

    ``gpu_name`` is the required part of each GPU's product name; empty for the SKU's name. ``hostname`` is
    the node's own name, without its domain; an address is not a name. ``versions`` names versions as
    :attr:`NodeSnapshot.versions` does; ``port_gbps`` is a port's rate. ``nvlinks`` is the number of a GPU's
    NVLinks that are up. ``pcie_width`` and ``card_pcie_width`` are the lanes of a GPU's and a network card's
    slot, where these have fewer than the device. ``gpu_readings`` names the readings that each GPU's driver
    has to report (:data:`GPU_READINGS`) if a number of GPUs is expected; a missing one is unproven. With
    ``fabric``, GPUs have to be members of an NVLink fabric, and with ``nvlink_domain`` of one that spans
    several nodes (NVL72); without ``mig`` they may not be shared out. ``slurm`` is whether a cluster of
    Slurm, where there is one, has to know the node. Of ``services`` each has to run: ``a|b`` is one of both,
    and ``a?`` only where it is installed. A ``skeleton`` is a SKU that was not completed yet: no node of
    it passes.
    """

    gpus: int = 0
    gpu_name: str = ""
    hostname: str = ""
    ports: int = 0
    port_gbps: float = 0
    nvlinks: int = 0
    pcie_width: int = 0
    card_pcie_width: int = 0
    power_limit_w: float = 0
    memory_bytes: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[str | ExpectedMount, ...] = ()
    services: tuple[str, ...] = ()
    gpu_readings: tuple[str, ...] = (
        "ecc",
        "row_remapping",
        "pcie_link",
        "temperature",
        "throttling",
        "power_limit",
        "recovery_action",
        "memory",
    )
    fabric: bool = False
    nvlink_domain: bool = False
    mig: bool = False
    slurm: bool = True
    skeleton: bool = False


@dataclass(frozen=True)
class Limits:
    """Bounds that hold on any node, as public health checks of fleets have them."""

    tool_seconds: float = 5
    """Seconds that a tool of the GPUs may take to answer."""
    memlock_bytes: int = 32 * GIB
    """The least memory that a job may lock."""
    shm_bytes: int = 8 * GIB
    """The least shared memory (`/dev/shm`)."""
    foreign_memory_bytes: int = 2 * GIB
    """GPU memory in use on an idle node."""
    disk_free: float = 0.05
    """The least share of a file system that is free."""
    inodes_free: float = 0.02
    """The least share of its inodes that is free."""
    clock_s: float = 2
    """Seconds that the clock may differ."""
    margin_c: float = LEAST_MARGIN_C
    """Degrees between a GPU and its slowdown temperature; 0 fails."""
    gpu_c: float = HOTTEST_GPU_C
    """Temperature of a GPU, in °C."""
    memory_c: float = HOTTEST_MEMORY_C
    """Temperature of its memory, in °C; 10 more fails."""
    memory_share: float = 0.95
    """The least share of the expected memory of the node."""
    loaded_percent: float = 10
    """Use of a GPU, in percent, from which its links have to run at full width and generation."""
    sram_correctable: int = MOST_SRAM_CORRECTED
    """Corrected errors of SRAM since the driver was loaded."""
    dram_correctable: int = MOST_DRAM_CORRECTED
    """Corrected errors of DRAM since the driver was loaded."""
    pcie_replays: int = 100
    """PCIe replays between two nights."""
    slowdown_s: float = MOST_SLOWDOWN_S
    """Seconds of thermal slow-down a day."""


class Subject(ABC):
    """The subject that a check reads: a node, or a part of it."""

    @abstractmethod
    def where(self) -> tuple[NodeSnapshot, Part]:
        """Return the node's snapshot, and the part of it that findings name."""

    def finding(
        self,
        code: str,
        verdict: Verdict,
        action: Action,
        evidence: str,
        confidence: Confidence = "certain",
    ) -> HealthFinding:
        """Return a finding on this node or part."""
        snapshot, part = self.where()
        return part_finding(snapshot, code, verdict, action, evidence, confidence, part)


@dataclass(frozen=True)
class NodeSubject(Subject):
    """A node to be checked: tonight's snapshot and the data that it is compared with."""

    snapshot: NodeSnapshot
    previous: NodeSnapshot | None
    expected: Expectation
    majority: Mapping[str, str]
    limits: Limits
    idle: bool

    def where(self) -> tuple[NodeSnapshot, Part]:
        """Return the snapshot, and the node itself."""
        return self.snapshot, Part()

    @property
    def wants_gpus(self) -> bool:
        """Return whether the node has, or should have, GPUs."""
        answer = self.snapshot.tools.get("nvidia_smi_xml", "")
        return bool(self.expected.gpus) or bool(self.snapshot.gpus) or answer not in ("", "absent")

    @cached_property
    def known_ports(self) -> Mapping[tuple[str, str], PortSnapshot]:
        """Return the ports of earlier nights, by device and port."""
        if self.previous is None:
            return {}
        return {(port.device, port.port): port for port in (*self.previous.gone_ports, *self.previous.ports)}

    @cached_property
    def gpu_changes(self) -> GpuChanges:
        """Return the GPUs that came and went since earlier nights."""
        return _gpu_changes(self.snapshot, self.previous, self.expected)


@dataclass(frozen=True)
class GpuSubject(Subject):
    """A GPU to be checked; ``before`` is the same GPU in the last night."""

    node: NodeSubject
    gpu: GpuSnapshot
    before: GpuSnapshot | None = None

    def where(self) -> tuple[NodeSnapshot, Part]:
        """Return the node's snapshot, and the GPU."""
        return self.node.snapshot, Part("gpu", self.gpu.uuid, self.gpu.place)


@dataclass(frozen=True)
class PortSubject:
    """A port of a network card to be checked; ``before`` is the same port in an earlier night."""

    node: NodeSubject
    port: PortSnapshot
    before: PortSnapshot | None

    def finding(self, code: str, verdict: Verdict, evidence: str) -> HealthFinding:
        """Return a finding on this port: cable, cage and switch are to be inspected."""
        part = Part("port", f"{self.port.device}/{self.port.port}")
        return part_finding(self.node.snapshot, code, verdict, "inspect", evidence, "likely", part)


@dataclass(frozen=True)
class GpuChanges:
    """GPUs that came and went: ``replaced`` maps the UUID of one that is gone to the one in its place."""

    known: Mapping[str, GpuSnapshot]
    gone: tuple[GpuSnapshot, ...]
    new: tuple[GpuSnapshot, ...]
    replaced: Mapping[str, GpuSnapshot]
    last_night: frozenset[str]


def _gpu_changes(snapshot: NodeSnapshot, previous: NodeSnapshot | None, expected: Expectation) -> GpuChanges:
    # Without an earlier night every GPU would be new.
    if previous is None:
        return GpuChanges({}, (), (), {}, frozenset())
    present, last_night = gpus_by_uuid(snapshot.gpus), frozenset(gpus_by_uuid(previous.gpus))
    known = gpus_by_uuid((*previous.gone_gpus, *previous.gpus))
    gone = [known[uuid] for uuid in known if uuid not in present]
    if expected.gpus and len(present) >= expected.gpus:
        # As many as there have to be: what was missing for longer than a night was taken out.
        gone = [gpu for gpu in gone if gpu.uuid in last_night]
    # Nor does a night that could read no GPU make all of them new.
    new = [present[uuid] for uuid in present if uuid not in known] if known else []
    return GpuChanges(known, tuple(gone), tuple(new), _replacements(gone, new), last_night)


def gpus_by_uuid(gpus: Iterable[GpuSnapshot]) -> dict[str, GpuSnapshot]:
    """Return GPUs by their UUID."""
    return {gpu.uuid: gpu for gpu in gpus}


def _replacements(gone: Iterable[GpuSnapshot], new: Iterable[GpuSnapshot]) -> dict[str, GpuSnapshot]:
    """Return by UUID of a GPU that is gone the new one on the same bus: an exchange, and no loss."""
    new_by_bus = {normalize_bus_id(gpu.bus_id): gpu for gpu in new}
    replaced = {}
    for gpu in gone:
        successor = new_by_bus.get(normalize_bus_id(gpu.bus_id))
        if successor is not None:
            replaced[gpu.uuid] = successor
    return replaced
