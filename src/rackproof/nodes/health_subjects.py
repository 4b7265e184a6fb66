"""Define the subjects of health checks, the values to compare them with, and their findings.

A subject is a node, a GPU or a port, together with its state in earlier nights.
:mod:`rackproof.nodes.health_checks` passes a subject to each check. Job validate builds the
:class:`Expectation` (``validate_expect``) and the :class:`Limits` (``validate_limits``) from the inventory.
The module does no I/O.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Annotated, Literal

from pydantic import BeforeValidator

from rackproof.core.gpu_models import (
    HOTTEST_GPU_C,
    HOTTEST_MEMORY_C,
    LEAST_MARGIN_C,
    MODELS_WITH_SWITCH_BRIDGES,
    MOST_DRAM_CORRECTED,
    MOST_SLOWDOWN_S,
    MOST_SRAM_CORRECTED,
    is_one_of,
)
from rackproof.core.records import Record, Text, Verdict
from rackproof.core.text import sanitize
from rackproof.nodes.kernel_log import normalize_bus_id
from rackproof.nodes.snapshot_records import GpuSnapshot, NodeSnapshot, PortSnapshot

GIB = 1 << 30
Action = Literal["none", "watch", "configure", "reset", "reboot", "isolate", "inspect", "rma"]
Confidence = Literal["certain", "likely", "hint"]
PartKind = Literal["node", "gpu", "port", "link"]
_MOST_EVIDENCE = 1000
"""Longest evidence of a finding, in characters."""


class HealthFinding(Record):
    """A fault of a part of a node, found by a health check.

    A :class:`rackproof.core.records.Finding` is about a place in a log and may be a remark. A health finding
    always names a part and an action. ``night.json`` stores these keys.

    ``part`` is node, gpu, port or link (the PCIe link of a network card). ``name`` is a GPU's UUID, a network
    card's ``DEVICE/PORT`` or a PCIe address, and empty for the node itself. ``place`` is the part's location,
    such as ``GPU 3, 00000000:3B:00.0``. ``action`` is the operator's next step. ``confidence`` is the
    certainty that this part is at fault. ``fleetwide`` means that too many nodes have the finding
    (:func:`rackproof.nodes.health_checks.mark_fleetwide`). ``without_root`` means that a query as root may
    end the finding.
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
    without_root: bool = False

    @property
    def is_own(self) -> bool:
        """Return whether the finding is about this node, not about the fleet or a query without root."""
        return not (self.fleetwide or self.without_root)


@dataclass(frozen=True)
class Part:
    """The identity of a node's part. ``kind`` is the ``part`` of :class:`HealthFinding`."""

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
    """A mount that must exist at a path.

    An empty value matches anything. The mount must be writable unless ``options`` contain ``ro``.
    ``fstype`` is the beginning of the type, so ``nfs`` matches all versions of NFS.
    """

    path: str
    fstype: str = ""
    source: str = ""
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Expectation:
    """The properties required of a node. A property that is 0 or empty is not checked.

    Attributes:
        gpu_name: Text that each GPU's product name must contain. Empty means the SKU's name.
        hostname: The node's own name without its domain. An address is not compared.
        versions: The required versions, named as in :attr:`NodeSnapshot.versions`.
        ports: The number of compute ports of network cards (InfiniBand or RoCE).
        port_gbps: The rate of a compute port, in Gb/s.
        port_layer: The link layer of the compute ports, InfiniBand or Ethernet.
        port_devices: The cards of the compute ports, as names or patterns (``mlx5_[0-3]``). Without
            ``port_layer`` and ``port_devices``, each port is a compute port.
        other_ports: The number of ports that are no compute ports, such as the ports of a BlueField.
        other_port_gbps: The rate of these ports, in Gb/s.
        nvlinks: The number of NVLinks of a GPU that must be up.
        pcie_width: The lanes of a GPU's slot, if fewer than the GPU's.
        card_pcie_width: The lanes of a network card's slot, if fewer than the card's.
        gpu_readings: The readings that each GPU's driver must report (:data:`GPU_READINGS`) if a number
            of GPUs is expected. A missing reading is unproven.
        fabric: Whether the GPUs must be members of an NVLink fabric.
        nvlink_domain: Whether that fabric must span several nodes (NVL72).
        mig: Whether the GPUs may be divided (MIG).
        slurm: Whether the node must be in Slurm, if there is a Slurm cluster.
        services: The services that must run. ``a|b`` means one of the two, and ``a?`` means only if it
            is installed.
        skeleton: Whether the SKU is incomplete. None of its nodes passes.
        mounts: The mounts that must exist. A text is a path at which anything may be mounted.
    """

    gpus: int = 0
    gpu_name: str = ""
    hostname: str = ""
    ports: int = 0
    port_gbps: float = 0
    port_layer: str = ""
    port_devices: tuple[str, ...] = ()
    other_ports: int = 0
    other_port_gbps: float = 0
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


PortUse = Literal["compute", "other", "nvswitch"]
"""Use of a port: for jobs, for another network, or only to manage the node's NVSwitches."""


def port_use(port: PortSnapshot, expected: Expectation) -> PortUse:
    """Return the use of a port, as its card and the SKU state it."""
    if port.nvswitch:
        return "nvswitch"
    patterns = expected.port_devices or ("*",)
    is_named = any(fnmatchcase(port.device, pattern) for pattern in patterns)
    # A port without a readable layer counts as a compute port, which has the stricter checks.
    has_layer = not (expected.port_layer and port.layer) or port.layer.lower() == expected.port_layer.lower()
    return "compute" if is_named and has_layer else "other"


def expected_ports(expected: Expectation, use: PortUse) -> int:
    """Return how many ports of a use the SKU states, or 0."""
    return {"compute": expected.ports, "other": expected.other_ports}.get(use, 0)


@dataclass(frozen=True)
class Limits:
    """The limits that apply to every node, as in public health checks of fleets."""

    tool_seconds: float = 5
    """Seconds that a GPU's tool may take to answer."""
    memlock_bytes: int = 32 * GIB
    """Least value of a job's limit on locked memory, in bytes."""
    shm_bytes: int = 8 * GIB
    """Least size of shared memory (`/dev/shm`), in bytes."""
    foreign_memory_bytes: int = 2 * GIB
    """Bytes of memory that, if they are in use on a GPU of an idle node, fail the node."""
    disk_free: float = 0.05
    """Least share of a file system that must be free."""
    inodes_free: float = 0.02
    """Least share of a file system's inodes that must be free."""
    clock_s: float = 2
    """Number of seconds by which a node's clock may be wrong."""
    margin_c: float = LEAST_MARGIN_C
    """A GPU is degraded if it is within this number of °C of its slowdown temperature. At 0, it fails."""
    gpu_c: float = HOTTEST_GPU_C
    """A GPU fails from this temperature in °C."""
    memory_c: float = HOTTEST_MEMORY_C
    """At this temperature of its memory in °C, a GPU is degraded. At 10 °C more, it fails."""
    memory_share: float = 0.95
    """Least required share of the expected memory."""
    loaded_percent: float = 10
    """From this use of a GPU in percent, its PCIe link must have its highest generation."""
    sram_correctable: int = MOST_SRAM_CORRECTED
    """Corrected SRAM errors that are allowed in the life of a GPU (nvidia-smi's aggregate count)."""
    dram_correctable: int = MOST_DRAM_CORRECTED
    """Corrected DRAM errors that are allowed in the life of a GPU (nvidia-smi's aggregate count)."""
    pcie_replays: int = 100
    """PCIe replays that are allowed between two nights."""
    slowdown_s: float = MOST_SLOWDOWN_S
    """Seconds per day for which a GPU may be slowed down for one reason, such as heat or a power brake."""
    # The three limits of 10 are those that infiniband-diags proposes for ibqueryerrors in its file
    # `error_thresholds`. They are errors per day here, and errors since the counters were cleared there.
    # The limits of packets are above the 10 and 100 of this file.
    symbol_errors: int = 10
    """Symbol errors of a port that are allowed per day."""
    link_recoveries: int = 10
    """A port is degraded if its link recovered from errors. Above this number per day, it fails."""
    link_downs: int = 10
    """A port is degraded if its link went down. Above this number per day, it fails."""
    receive_errors: int = 100
    """Damaged packets that a port may receive per day."""
    transmit_discards: int = 1000
    """Packets that a port may discard per day."""


class Subject(ABC):
    """The subject of a check: a node or a part of a node."""

    @abstractmethod
    def where(self) -> tuple[NodeSnapshot, Part]:
        """Return the node's snapshot, and its part to use in findings."""

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
    """A node to check, with tonight's snapshot and the data for comparison."""

    snapshot: NodeSnapshot
    previous: NodeSnapshot | None
    expected: Expectation
    majority: Mapping[str, str]
    limits: Limits
    idle: bool

    def where(self) -> tuple[NodeSnapshot, Part]:
        """Return the snapshot, and the node itself as the part."""
        return self.snapshot, Part()

    @property
    def wants_gpus(self) -> bool:
        """Return whether GPUs are in the node or expected, or nvidia-smi is installed."""
        answer = self.snapshot.tools.get("nvidia_smi_xml", "")
        return bool(self.expected.gpus) or bool(self.snapshot.gpus) or answer not in ("", "absent")

    @cached_property
    def ports_by_use(self) -> Mapping[PortUse, Sequence[PortSnapshot]]:
        """Return tonight's ports by their use."""
        # A node may claim thousands of ports, and each is compared with the others.
        ports: dict[PortUse, list[PortSnapshot]] = {"compute": [], "other": [], "nvswitch": []}
        for port in self.snapshot.ports:
            ports[port_use(port, self.expected)].append(port)
        return ports

    @cached_property
    def has_switch_bridges(self) -> bool:
        """Return whether ports of the node may only manage its NVSwitches, as on an HGX B200."""
        return any(is_one_of(gpu.name, MODELS_WITH_SWITCH_BRIDGES) for gpu in self.snapshot.gpus)

    @cached_property
    def active_ports(self) -> Mapping[PortUse, int]:
        """Return the number of tonight's active ports by their use."""
        return {
            use: sum(port.state == "active" for port in ports) for use, ports in self.ports_by_use.items()
        }

    @cached_property
    def fast_compute_ports(self) -> int:
        """Return how many active compute ports have at least the SKU's rate."""
        return sum(
            port.state == "active" and (port.rate_gbps or 0.0) >= self.expected.port_gbps
            for port in self.ports_by_use["compute"]
        )

    @cached_property
    def known_ports(self) -> Mapping[tuple[str, str], PortSnapshot]:
        """Return the ports of earlier nights, by device and port, such as ``("mlx5_0", "1")``."""
        if self.previous is None:
            return {}
        return {(port.device, port.port): port for port in (*self.previous.gone_ports, *self.previous.ports)}

    @cached_property
    def gpu_changes(self) -> GpuChanges:
        """Return the GPUs that were added and removed since earlier nights."""
        return _gpu_changes(self.snapshot, self.previous, self.expected)


@dataclass(frozen=True)
class GpuSubject(Subject):
    """A GPU to check. ``before`` is the same GPU in the last night."""

    node: NodeSubject
    gpu: GpuSnapshot
    before: GpuSnapshot | None = None

    def where(self) -> tuple[NodeSnapshot, Part]:
        """Return the node's snapshot, and the GPU."""
        return self.node.snapshot, Part("gpu", self.gpu.uuid, self.gpu.place)


@dataclass(frozen=True)
class PortSubject:
    """A port of a network card to check. ``before`` is the same port in an earlier night."""

    node: NodeSubject
    port: PortSnapshot
    before: PortSnapshot | None

    @cached_property
    def use(self) -> PortUse:
        """Return the use of the port."""
        return port_use(self.port, self.node.expected)

    @property
    def expected_gbps(self) -> float:
        """Return the rate that the SKU states for ports of this use, or 0."""
        expected = self.node.expected
        return {"compute": expected.port_gbps, "other": expected.other_port_gbps}.get(self.use, 0.0)

    def finding(
        self, code: str, verdict: Verdict, evidence: str, action: Action = "inspect"
    ) -> HealthFinding:
        """Return a finding on this port. By default, its cable, cage and switch must be inspected."""
        part = Part("port", f"{self.port.device}/{self.port.port}")
        return part_finding(self.node.snapshot, code, verdict, action, evidence, "likely", part)


@dataclass(frozen=True)
class GpuChanges:
    """The GPUs that were added to a node and removed since earlier nights.

    ``known`` has the GPUs of earlier nights by UUID, and ``gone`` the GPUs of them that are missing tonight.
    If the node is complete, ``gone`` has only GPUs of the last night. ``replaced`` maps the UUID of a GPU in
    ``gone`` to the GPU in its place, which is in ``new``. ``last_night`` has the UUIDs of the last
    snapshot's GPUs.
    """

    known: Mapping[str, GpuSnapshot]
    gone: tuple[GpuSnapshot, ...]
    new: tuple[GpuSnapshot, ...]
    replaced: Mapping[str, GpuSnapshot]
    last_night: frozenset[str]


def _gpu_changes(snapshot: NodeSnapshot, previous: NodeSnapshot | None, expected: Expectation) -> GpuChanges:
    """Return the differences between tonight's GPUs and those of earlier nights."""
    # Without an earlier night, every GPU would be new.
    if previous is None:
        return GpuChanges({}, (), (), {}, frozenset())
    present, last_night = gpus_by_uuid(snapshot.gpus), frozenset(gpus_by_uuid(previous.gpus))
    known_gpus = gpus_by_uuid((*previous.gone_gpus, *previous.gpus))
    gone = [known_gpus[uuid] for uuid in known_gpus if uuid not in present]
    if expected.gpus and len(present) >= expected.gpus:
        # The node is complete, so a GPU that is missing for more than a night was taken out.
        gone = [gpu for gpu in gone if gpu.uuid in last_night]
    # If no earlier night could read any GPU, none counts as new.
    new = [present[uuid] for uuid in present if uuid not in known_gpus] if known_gpus else []
    return GpuChanges(known_gpus, tuple(gone), tuple(new), _replacements(gone, new), last_night)


def service_units(wanted: str) -> tuple[str, ...]:
    """Return the alternative units of an expected service, such as two for ``docker|podman?``."""
    names = (name.strip() for name in wanted.strip().removesuffix("?").split("|"))
    return tuple(name if "." in name else f"{name}.service" for name in names)


def gpus_by_uuid(gpus: Iterable[GpuSnapshot]) -> dict[str, GpuSnapshot]:
    """Return GPUs by their UUID. Of several GPUs with one UUID, the last one is returned."""
    return {gpu.uuid: gpu for gpu in gpus}


def _replacements(gone: Iterable[GpuSnapshot], new: Iterable[GpuSnapshot]) -> dict[str, GpuSnapshot]:
    """Map the UUID of each removed GPU to the new GPU on the same bus. Such a GPU was exchanged, not lost."""
    new_by_bus = {normalize_bus_id(gpu.bus_id): gpu for gpu in new}
    replaced = {}
    for gpu in gone:
        successor = new_by_bus.get(normalize_bus_id(gpu.bus_id))
        if successor is not None:
            replaced[gpu.uuid] = successor
    return replaced
