"""Define the records of a snapshot, which is the state of a node in one night.

:mod:`rackproof.nodes.snapshot` makes a snapshot of a node's answer. A new field also needs a row in
:mod:`rackproof.nodes.night_evidence`. The module does no I/O.
"""

from __future__ import annotations

from pydantic import Field

from rackproof.core.records import Record
from rackproof.nodes.kernel_log import HardwareEvent, XidEvent


class GpuUsual(Record):
    """The best values that nights read of a GPU since it came into the node, or since the last acceptance."""

    serial: str = ""
    """The first serial number that was read."""
    values: dict[str, float] = Field(default={})
    """The highest value of each quantity: ``pcie_width_max``, ``pcie_generation_max``, ``link_gb_s`` of the
    fastest NVLink, and the memory by ECC mode (:func:`memory_key`)."""
    links: dict[str, bool] = Field(default={})
    """True for each NVLink that was ever up, by its number."""
    lost_readings: tuple[str, ...] = ()
    """Fields of the GPU that this driver reported in an earlier night, and does not report now."""
    driver: str = ""
    """The version of the driver that last reported the GPU."""

    def joined(self, other: GpuUsual) -> GpuUsual:
        """Return the better one of each pair of values. ``other`` was read later."""
        values = {name: self.best(name, other) for name in self.values | other.values}
        links = {link: self.was_up(link) or other.was_up(link) for link in self.links | other.links}
        return self.model_copy(
            update={"serial": self.serial or other.serial, "values": values, "links": links}
        )

    def replaced(self, accepted: GpuUsual, *, links_read: bool) -> GpuUsual:
        """Return the accepted values. Values that were not read remain."""
        links = accepted.links if links_read else accepted.links or self.links
        update = {"serial": accepted.serial or self.serial, "links": links}
        return self.model_copy(update={**update, "values": self.values | accepted.values})

    def best(self, name: str, other: GpuUsual) -> float:
        """Return the higher of two values of a quantity, or 0 if neither is known."""
        return max(self.values.get(name, 0.0), other.values.get(name, 0.0))

    def was_up(self, link: str) -> bool:
        """Return whether an NVLink was ever up."""
        return self.links.get(link, False)


class GpuSnapshot(Record):
    """One GPU in a snapshot.

    Where ``nvidia-smi`` gives no value, a number is None and a text is empty. Temperatures are in °C, power
    in W, clocks in MHz, memory in bytes, use in percent.

    Attributes:
        module: The position of the GPU on its board.
        gsp: The version of the GSP firmware.
        sram_uncorrectable: Number of errors since the driver was loaded, as in ``dram_uncorrectable``. The
            correctable errors are counted over the whole life of the GPU.
        sram_threshold: Whether the driver reports more errors in SRAM than the vendor allows.
        margin_c: The distance in °C to the temperature at which the GPU slows down or shuts down. If
            the driver states only these temperatures, it is computed from them.
        mig: Whether MIG is on, or None if unknown.
        mig_next: Whether MIG will be on after the next reset, or None if unknown.
        throttled: The active reasons for throttling, without idling, or None if unknown.
        links: Whether each NVLink is up, by its number.
        link_errors: Sum of all error counters of the links, or None if there are none, or if those of an
            active link cannot be read.
    """

    uuid: str
    serial: str = ""
    index: int = 0
    bus_id: str = ""
    module: str = ""
    name: str = ""
    vbios: str = ""
    gsp: str = ""
    sram_uncorrectable: int | None = None
    sram_threshold: bool | None = None
    sram_correctable: int | None = None
    dram_uncorrectable: int | None = None
    dram_correctable: int | None = None
    ecc_enabled: bool | None = None
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    memory_unrepairable: bool | None = None
    repairs_pending: tuple[str, ...] | None = None
    """Parts that a reset will repair (channels, TPCs), or None if unknown."""
    ecc_enabled_next: bool | None = None
    """True if ECC will be on after the next reset, or None if unknown."""
    mig: bool | None = None
    mig_next: bool | None = None
    memory_total_bytes: int | None = None
    recovery_action: str = ""
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_replays: int | None = None
    utilisation: float | None = None
    throttled: tuple[str, ...] | None = ()
    slowdown_s: dict[str, float] = Field(default={})
    """Seconds of slowdown since the driver was loaded, by reason."""
    temperature_c: float | None = None
    margin_c: float | None = None
    memory_c: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    clock_max_mhz: float | None = None
    memory_clock_max_mhz: float | None = None
    applications_clock_mhz: float | None = None
    applications_memory_clock_mhz: float | None = None
    bar1_mib: float | None = None
    compute_mode: str = ""
    persistence_mode: str = ""
    spent_banks: int | None = None
    """Number of memory banks without a spare row."""
    remapped_rows: int | None = None
    memory_used_bytes: int | None = None
    fabric_state: str = ""
    fabric_status: str = ""
    fabric_health: str = ""
    fabric_clique: str = ""
    fabric_cluster: str = ""
    links: dict[str, bool] = Field(default={})
    link_gb_s: dict[str, float] = Field(default={})
    """Speed of each active NVLink, in GB/s per direction."""
    link_errors: int | None = None
    errors: tuple[str, ...] = ()
    """Error texts that the driver printed in place of values. "N/A" is not an error text."""
    unknown_values: tuple[str, ...] = ()
    """Textual values that no check recognizes, as ``path: words``."""
    lacking_beside: tuple[str, ...] = ()
    """Paths that nvidia-smi prints for another GPU of this model, but not for this GPU."""
    usual: GpuUsual = GpuUsual()
    """The best values that nights read of the GPU, including this night."""

    @property
    def place(self) -> str:
        """Return the GPU's index, bus address and module."""
        module = f", module {self.module}" if self.module else ""
        return f"GPU {self.index}, {self.bus_id}{module}"


_LOST_LINK_COUNTERS = ("link_downed", "LinkDownedCounter")
"""Names of the counter, in /sys and of perfquery, of how often a port's link went down since the driver
started."""


class PortSnapshot(Record):
    """One port of a network card in a snapshot. ``rate_gbps`` is its signalling rate, or None if unknown.

    ``device`` is the card's name, such as ``mlx5_0``. ``state`` is the logical state (``active``, ``down``),
    and ``physical`` the state of the link (``linkup``, ``polling``). ``layer`` is InfiniBand or Ethernet.
    ``usual_gbps`` is the highest rate that nights read of the port since the last acceptance. ``was_active``
    is whether the port was active since then: a night observed it, or the port lost a link. ``nvswitch`` is
    whether the port only manages NVSwitches (HGX B200), or None if unknown.
    """

    device: str
    port: str
    state: str = ""
    physical: str = ""
    rate_gbps: float | None = None
    usual_gbps: float | None = None
    was_active: bool = False
    layer: str = ""
    nvswitch: bool | None = None
    counters: dict[str, int] = Field(default={})
    lost_counters: tuple[str, ...] = ()
    """Counters that an earlier night read of the port, and that are missing tonight."""

    @property
    def lost_links(self) -> tuple[str, int] | None:
        """Return the name and value of the counter of lost links, or None if it is 0 or the card has none."""
        counts = ((name, self.counters.get(name, 0)) for name in _LOST_LINK_COUNTERS)
        return next((count for count in counts if count[1]), None)


class NodeSnapshot(Record):
    """The state of a node in one night.

    ``tools`` gives the status of each tool's answer (ok, absent, empty, failed, hung, no_driver, not_asked),
    and ``seconds`` the time that the tool took. ``truncated`` names the incomplete answers. ``reboots``
    counts the reboots that an XID required, by ``GPU/XID``. ``gone_gpus`` and ``gone_ports`` were present in
    an earlier night, and are listed until they are back or others replaced them. ``epoch`` and ``booted`` are
    in seconds since 1970.
    """

    node: str
    sku: str = ""
    hardware_key: str
    hostname: str = ""
    serial: str = ""
    identity_serial: str = ""
    identity_gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs of the node's identity. They and ``identity_serial`` were read in the node's first
    nights, or an operator accepted them. GPUs that were added later and replaced none are among them."""
    identity_accepted: bool = False
    """True if an operator accepted the parts that this night read as the node's identity."""
    foreign_parts: tuple[str, ...] = ()
    """Serial numbers and UUIDs that the node reported, and that identify another node. No other field
    contains them."""
    epoch: float | None = None
    booted: float | None = None
    boot_id: str = ""
    loaded: bool = False
    """True if a load ran on the GPUs while the data was gathered."""
    asked_as_root: bool | None = None
    """False if the query ran without root rights, and therefore may not have read the kernel log and serial
    numbers. None if unknown."""
    container: bool = False
    """True if the node is a container. Its clock and services may belong to its host."""
    gpus: tuple[GpuSnapshot, ...] = ()
    attached_gpus: int | None = None
    """Number of GPUs that the driver counts, independently of their list."""
    unlisted_gpus: tuple[str, ...] = ()
    """UUIDs that ``nvidia-smi nvlink`` reports but ``nvidia-smi -q`` does not list."""
    smi_remarks: tuple[str, ...] = ()
    """Lines that nvidia-smi printed beside its answers. They are warnings, and nvidia-smi still succeeds."""
    ports: tuple[PortSnapshot, ...] = ()
    gone_gpus: tuple[GpuSnapshot, ...] = ()
    gone_ports: tuple[PortSnapshot, ...] = ()
    absent_gpus: dict[str, GpuUsual] = Field(default={})
    """The usual values of GPUs in the node's identity that were not read tonight, by UUID."""
    lost_readings: tuple[str, ...] = ()
    """Readings of the node, such as ``boot_id``, that an earlier night had and that are missing tonight."""
    links: dict[str, dict[str, str]] = Field(default={})
    """PCIe links of network cards, with current and maximum speed and width, by address."""
    xids: tuple[XidEvent, ...] = ()
    hardware_events: tuple[HardwareEvent, ...] = ()
    declared_lines: tuple[str, ...] = ()
    """Lines of the kernel log that an operator declared harmless, each with the reason."""
    journal_lost_before: float | None = None
    """The journal lost messages of the kernel from before this time, and no snapshot has them. None if it
    lost none, or if the time is unknown."""
    next_log_since: float | None = None
    """The time on the node's clock from which the next night reads the kernel log, in seconds since 1970. It
    is the beginning of the last gathering that read the log. 0 means the whole boot. Snapshots of earlier
    versions have None."""
    late_lines: tuple[str, ...] = ()
    """Digests of the kernel's lines that this or an earlier night judged and the next night reads again.
    Their times begin a minute before ``next_log_since``."""
    reboots: dict[str, int] = Field(default={})
    versions: dict[str, str] = Field(default={})
    tools: dict[str, str] = Field(default={})
    seconds: dict[str, float] = Field(default={})
    truncated: tuple[str, ...] = ()
    mounts: tuple[str, ...] | None = None
    failed_units: tuple[str, ...] | None = None
    idle_units: tuple[str, ...] = ()
    """Units that are enabled but not running."""
    services: dict[str, str] | None = None
    """State of each unit (active, inactive, masked, not-found, …). The state "condition" means that the
    unit need not run on this node."""
    reaches_slurm: bool | None = None
    """True if a Slurm controller answers the node, or None if unknown."""
    slurm_name: str | None = None
    """The name of the node in its slurmd, or None if unknown."""
    mount_table: dict[str, dict[str, str]] = Field(default={})
    """Source, type and options of each mount, and super_options of its file system, by path."""
    writable_mounts: tuple[str, ...] = ()
    """Paths of the disks that were writable when the mounts were last read."""
    lost_mounts: tuple[str, ...] = ()
    """Paths of disks that were writable in an earlier night, and have not been writable since."""
    disk: dict[str, dict[str, float]] = Field(default={})
    """Total and free bytes and inodes of each file system, and 1 if it is read-only, by path."""
    memory_bytes: int = 0
    memlock_bytes: int | None = None
    shm_bytes: int | None = None
    clock_offset_s: float | None = None
    clock_synchronized: bool | None = None
