"""Plan the network and storage of an experiment on its nodes, and check that they were used. No I/O.

A point with a value for ``nodes``, ``network`` or ``storage`` needs a setup. Planning
(:mod:`rackproof.jobs.bench.planning`) calls :func:`setup_obstacle` and :func:`plan_setup`. The module
``rackproof_bench_setup`` makes the setup on each node, and workloads/rendezvous.py starts the point there.
When the run is recorded, :mod:`rackproof.jobs.bench.tasks` calls :func:`judge_setup` with the nodes' reports.
The result consists of findings, bandwidths, and texts for the record. The reports are checked, because they
may be hostile.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, field_validator

from rackproof.core.definitions import Parameters, Scalar
from rackproof.core.records import Direction, Finding, Measurement, Record, Source, Verdict
from rackproof.core.text import sanitize

PARAMETERS = ("nodes", "network", "storage")
"""Parameters that need a setup of nodes. If all of them are empty, the nodes remain as they are."""
NETWORKS = ("host", "overlay")
"""Values of the parameter ``network``: ``host`` is the node's own network, and ``overlay`` is a VXLAN that is
made for the run."""
BEFORE_AFTER_S = 900
"""Seconds that are added to the time limit of a job, for the work before and after the job. The sum is the
lifetime of the run's overlay, from the moment before the overlay is made. After this time, the node removes
the overlay if the playbook did not."""
COLD = 0.01
"""Largest share of the sampled data that may be in memory if the cache counts as emptied."""
LEAST_BYTES = 1 << 20
"""Smallest number of bytes that an overlay's interface carries each way if several nodes train over it."""

# Types of file systems in /proc/mounts, by the kind of storage. A local storage has any type that _NOT_LOCAL
# does not match.
_TYPES = {"nfs": ("nfs", "nfs4"), "s3fs": ("fuse.s3fs",)}
_NOT_LOCAL = re.compile(r"nfs4?|cifs|smb3?|fuse\..*|lustre|gpfs|beegfs|ceph|9p|wekafs")
# Matches a line of ``ip -oneline address show``: ``2: eth0    inet 10.0.0.7/24 …``. Groups are name and
# address.
_INTERFACE = re.compile(r"^\d+:\s+(\S+)\s+inet\s+([0-9.]{7,15})/", re.MULTILINE)
# Kinds of interfaces, as ``ip`` names them, that are not the network of the host.
_TUNNELS = ("vxlan", "ipip", "geneve", "wireguard", "gre", "tun")
_OWN = ("lo", "docker", "virbr", "veth", "cni", "flannel", "cali", "vxlan", "rackproof")
"""Prefixes of interfaces that do not connect nodes, such as the interfaces of containers and of Rackproof."""


class Storage(Record):
    """A storage that the parameter ``storage`` may name, an entry of ``bench_storages``.

    ``kind`` is the kind of file system. With ``synthetic``, a program generates its data in memory.
    """

    kind: Literal["local", "nfs", "s3fs", "synthetic"]
    folder: str = Field(default="", description="Folder of the data on the nodes.")
    mount: dict[str, Any] = Field(
        default={},
        description="Entry of `storage_mounts` that the role storage mounts first; empty for none.",
    )

    @field_validator("folder")
    @classmethod
    def _absolute(cls, folder: str) -> str:
        """Refuse a relative path."""
        if folder and not folder.startswith("/"):
            raise ValueError(f"folder: {folder!r} is not an absolute path")
        return folder


class ExperimentConfig(Record):
    """A node's inventory settings for experiments, as roles/bench/tasks/plan.yml passes them.

    Attributes:
        storages: The storages by name, from the role and from ``bench_storages``.
        fabric_interface: The network interface over which nodes train together (``bench_fabric_interface``),
            or "" for the first that does not belong to containers.
        overlay_subnet: The addresses of overlays (``bench_overlay_subnet``).
        port: The TCP port of the rendezvous (``bench_meet_port``).
    """

    storages: dict[str, Storage] = {}  # noqa: RUF012  (pydantic copies defaults)
    fabric_interface: str = ""
    # RFC 2544 reserves 198.18.0.0/15 for measurements of networks, so no site routes it.
    overlay_subnet: str = "198.19.0.0/16"
    # The port is below Linux's ephemeral ports (from 32768), and is not PyTorch's default, 29500.
    port: int = Field(default=29417, gt=1023, lt=65536)

    @field_validator("overlay_subnet")
    @classmethod
    def _subnet(cls, subnet: str) -> str:
        """Refuse a text that is not an IPv4 network."""
        return str(ipaddress.IPv4Network(subnet))


class Peer(Record):
    """A node of a run and its IPv4 address, or "" if it has no usable address."""

    name: str
    address: str


class NodeSetup(Record):
    """The setup of each node of a run, in the form that ``rackproof_bench_setup`` accepts.

    Attributes:
        network: The network, one of :data:`NETWORKS`.
        nodes: The nodes in the order of ranks.
        subnet: The addresses of the overlay.
        expires_s: Seconds after which a node removes the overlay.
        storage: The kind of the storage, or "" if the point names none.
        data: The folder of the data, or "".
        cache: The required state of the page cache before the run: ``cold``, ``warm``, or "" for any.
        port: The TCP port of the rendezvous, at which the ranks meet.
        only_first: Whether only the first node starts the program, which starts the ranks on other nodes.
    """

    network: str = "host"
    nodes: tuple[Peer, ...]
    subnet: str
    expires_s: int
    storage: str = ""
    data: str = ""
    cache: str = ""
    port: int
    only_first: bool = False


class SetupEvidence(Record):
    """The evidence of a run's setup: bandwidths, findings, and the record's texts on network and storage."""

    measurements: tuple[Measurement, ...] = ()
    findings: tuple[Finding, ...] = ()
    network: str = ""
    storage: str = ""


def needs_setup(point: Mapping[str, Scalar]) -> bool:
    """Return whether a point requires a setup of its nodes."""
    return any(point.get(name, "") != "" for name in PARAMETERS)


def node_address(raw: Mapping[str, Any], interface: str = "") -> str:
    """Return a node's IPv4 address on the training network from its raw facts, or "".

    Args:
        raw: The raw facts of the node.
        interface: The interface in the inventory, or "" for the first interface that does not belong to
            containers.
    """
    tools = raw.get("tools")
    answer = tools.get("ip") if isinstance(tools, Mapping) else None
    output = answer.get("stdout") if isinstance(answer, Mapping) else None
    # The kernel lists software interfaces after hardware interfaces.
    for name, address in _INTERFACE.findall(output if isinstance(output, str) else ""):
        if name == interface if interface else not name.startswith(_OWN):
            return str(address)
    return ""


def data_folder(point: Mapping[str, Scalar], experiment: ExperimentConfig) -> str:
    """Return the folder of a point's data, the value of ``{{ storage_folder }}`` in the definition.

    The parameter ``data_folder`` of the point overrides the folder of the storage. Without both, for
    synthetic data, and for an unknown storage, return "".
    """
    name = str(point.get("storage", ""))
    if not name:
        return str(point.get("data_folder", ""))
    storage = experiment.storages.get(name)
    if storage is None or storage.kind == "synthetic":
        return ""
    return str(point.get("data_folder", "")) or storage.folder


def setup_obstacle(
    point: Mapping[str, Scalar], experiment: ExperimentConfig, peers: Sequence[Peer], requested: int
) -> str:
    """Return why a point cannot be set up on these nodes, or "".

    Args:
        point: The point.
        experiment: The settings of the first node.
        peers: The available nodes.
        requested: The number of nodes that the point requests.
    """
    if requested > len(peers):
        return f"{requested} nodes requested, {len(peers)} of them answered; give nodes={len(peers)} or fewer"
    network = str(point.get("network", ""))
    if network not in ("", *NETWORKS):
        return f"no network `{sanitize(network, 40)}`; there are {', '.join(NETWORKS)}"
    obstacle = _storage_obstacle(point, experiment)
    # A single node on the host's network needs no address, because there are no peers.
    if not obstacle and (requested > 1 or network == "overlay"):
        obstacle = _address_obstacle(peers[:requested], experiment.fabric_interface)
    return obstacle


def _storage_obstacle(point: Mapping[str, Scalar], experiment: ExperimentConfig) -> str:
    """Return why a point's storage or cache is not available, or "" if they are."""
    storage = str(point.get("storage", ""))
    if storage and storage not in experiment.storages:
        storage_names = ", ".join(sorted(experiment.storages)) or "none"
        return f"no storage `{sanitize(storage, 40)}`; bench_storages has {storage_names}"
    if storage and experiment.storages[storage].kind != "synthetic" and not data_folder(point, experiment):
        return f"bench_storages: {storage}: no folder; set the folder of the data"
    if point.get("cache", "") not in ("", "cold", "warm"):
        return f"cache is cold, warm or empty, not {sanitize(point['cache'], 40)}"
    return ""


def _address_obstacle(peers: Sequence[Peer], interface: str) -> str:
    """Return a text about the first node without an address for the rendezvous, or "" if all have one."""
    lacking = next((peer for peer in peers if not peer.address), None)
    if lacking is None:
        return ""
    device = f"interface {interface}" if interface else "any interface"
    return (
        f"{lacking.name} has no IPv4 address on {device}: name the one that trains (bench_fabric_interface)"
    )


def plan_setup(
    point: Mapping[str, Scalar],
    experiment: ExperimentConfig,
    peers: Sequence[Peer],
    limit_s: int,
    *,
    only_first: bool = False,
) -> NodeSetup:
    """Return the setup of a run's nodes, also if :func:`setup_obstacle` returns an obstacle.

    Args:
        point: The point.
        experiment: The settings of the first node.
        peers: The run's nodes, ordered by rank.
        limit_s: The time limit of the job in seconds.
        only_first: Whether only the first node starts the program, as with mpirun.
    """
    storage = experiment.storages.get(str(point.get("storage", "")))
    return NodeSetup(
        network=str(point.get("network", "")) or "host",
        nodes=tuple(peers),
        subnet=experiment.overlay_subnet,
        expires_s=limit_s + BEFORE_AFTER_S,
        storage=storage.kind if storage else "",
        data=data_folder(point, experiment) if storage else "",
        cache=str(point.get("cache", "")),
        port=experiment.port,
        only_first=only_first,
    )


def storage_mounts(points: Sequence[Parameters], experiment: ExperimentConfig) -> list[dict[str, Any]]:
    """Return the entries of the role storage that points need on a node, without duplicates."""
    mounts: list[dict[str, Any]] = []
    for point in points:
        storage = experiment.storages.get(str(point.get("storage", "")))
        # A mount is a mapping, which cannot be hashed, so compare it by value.
        if storage is not None and storage.mount and storage.mount not in mounts:
            mounts.append(storage.mount)
    return mounts


def judge_setup(
    planned: NodeSetup, lead: str, reports: Mapping[str, Any], jobs: Mapping[str, Any], started: bool
) -> SetupEvidence:
    """Judge the nodes' reports on a run's setup. Anything that a report does not show is unproven.

    Args:
        planned: The planned setup.
        lead: The lead node. The run's own findings cover its job.
        reports: The result of ``rackproof_bench_setup`` on each node, from the removal of the setup.
        jobs: The final state of each node's part of the job, except the lead's.
        started: Whether a job was started. If not, only leftovers of the setup are reported, because another
            finding states that there was no job.
    """
    measurements: list[Measurement] = []
    report_of = {peer.name: _map(reports.get(peer.name)) for peer in planned.nodes}
    # Check this even if no job was started, because the setup comes before the job.
    findings = _leftover_findings(planned, report_of)
    if not started:
        return SetupEvidence(findings=tuple(findings), network=planned.network)
    for name, report in report_of.items():
        findings += _network_findings(planned, name, report)
        findings += _storage_findings(planned, name, report)
        if name != lead:
            findings += _job_findings(name, _map(jobs.get(name)))
    if len(planned.nodes) > 1:
        measurements = _bandwidths(planned, lead, report_of[lead])
        findings += _unmeasured_findings(planned, lead, len(measurements))
    lead_report = report_of[lead]
    return SetupEvidence(
        measurements=tuple(measurements),
        findings=tuple(findings),
        network=_network_text(planned, lead_report, measurements),
        storage=_storage_text(planned, lead_report),
    )


def _leftover_findings(planned: NodeSetup, report_of: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Return a remark for each node that does not report the removal of the run's overlay."""
    findings = []
    for name, report in report_of.items():
        if planned.network == "overlay" and report.get("removed") is not True:
            text = (
                f"{name}: its overlay network may remain until the timer ends; "
                "remove it with `ip link del rackproof0`"
            )
            # A leftover after the run does not invalidate the measurements, so give no verdict.
            findings.append(_finding("setting_left", None, text, name))
    return findings


def _unmeasured_findings(planned: NodeSetup, lead: str, measured: int) -> list[Finding]:
    """Return a finding if the lead did not measure its link to each other node in both directions."""
    required = 2 * (len(planned.nodes) - 1)
    if measured >= required:
        return []
    text = f"the bandwidth between nodes was not measured ({required - measured} of {required} ways)"
    return [_finding("network_not_measured", Verdict.UNPROVEN, text, lead)]


def _network_findings(planned: NodeSetup, name: str, report: Mapping[str, Any]) -> list[Finding]:
    """Return a finding if a node's network was not the planned one."""
    differences = _network_differences(planned, name, report)
    if not differences:
        return []
    text = f"{name}: the network was not {planned.network}: {'; '.join(differences)}"
    return [_finding("network_differs", Verdict.UNPROVEN, text, name)]


def _network_differences(planned: NodeSetup, name: str, report: Mapping[str, Any]) -> list[str]:
    """Return the differences of a node's network from the plan."""
    # The report names its node. The report of another node is no evidence for this one.
    if report.get("node") != name or report.get("network") != planned.network:
        return ["nothing is known of it"]
    interface = report.get("interface")
    differences = []
    # Check before and after the run. If the link was lost in between, the training may have used another
    # link.
    for moment, link in (("before", _map(report.get("link"))), ("after", _map(report.get("ended")))):
        difference = _link_difference(planned.network, interface, link, moment)
        if difference:
            differences.append(difference)
    differences += _route_differences(planned, name, interface, _map(report.get("routes")))
    if len(planned.nodes) > 1:
        differences += _traffic_differences(planned.network, interface, _map(report.get("rendezvous")))
    return differences


def _route_differences(
    planned: NodeSetup, name: str, interface: object, routes: Mapping[str, Any]
) -> list[str]:
    """Return the other nodes that a node reached through an interface other than the run's."""
    differences = []
    for peer in planned.nodes:
        if peer.name != name and routes.get(peer.name) != interface:
            route = sanitize(routes.get(peer.name) or "nothing", 40)
            differences.append(f"{peer.name} was reached by {route}")
    return differences


def _link_difference(network: str, interface: object, link: Mapping[str, Any], moment: str) -> str:
    """Return the fault of a node's interface before or after the run, or "" if it has none.

    ``link`` is the report on the interface at this ``moment`` (``before`` or ``after``).
    """
    shown_name = sanitize(interface, 40)
    if link.get("interface") != interface or not interface:
        return f"{shown_name} was not there {moment} the run"
    difference = _kind_difference(network, link.get("kind"), moment)
    if difference:
        return f"{shown_name} was {difference}"
    # A link that is down after the run did no harm, if it carried the bytes.
    flags = link.get("flags")
    if moment == "before" and not (isinstance(flags, list) and "UP" in flags):
        return f"{shown_name} was down"
    return ""


def _kind_difference(network: str, kind: object, moment: str) -> str:
    """Return how the kind of an interface does not fit the network, or "" if it fits."""
    if network == "overlay" and kind != "vxlan":
        shown_kind = sanitize(kind or "a plain link", 40)
        return f"not a VXLAN {moment} the run, but {shown_kind}"
    if network == "host" and kind in _TUNNELS:
        return f"a tunnel ({sanitize(kind, 40)}) {moment} the run"
    return ""


def _traffic_differences(network: str, interface: object, rendezvous: Mapping[str, Any]) -> list[str]:
    """Return a text for each way (received, sent) in which the training is not shown on an interface."""
    shown_name = sanitize(interface, 40)
    before, after = _map(rendezvous.get("before")), _map(rendezvous.get("after"))
    differences = []
    for way in ("rx", "tx"):
        start, end = before.get(way), after.get(way)
        if not (isinstance(start, int) and isinstance(end, int)):
            differences.append(f"the number of bytes that {shown_name} carried ({way}) is not known")
        # On the host's network, InfiniBand may carry the traffic instead of the interface, so its bytes
        # are not compared.
        elif network == "overlay" and end - start < LEAST_BYTES:
            carried = f"{shown_name} carried {end - start} bytes ({way})"
            differences.append(f"{carried}: the training used another network")
    return differences


def _storage_findings(planned: NodeSetup, name: str, report: Mapping[str, Any]) -> list[Finding]:
    """Return findings if a node's storage or its cache was not as planned."""
    # Synthetic data is generated in memory, so no storage can differ.
    if planned.storage in ("", "synthetic"):
        return []
    storage = _map(report.get("storage"))
    differences = [("storage_differs", _mount_difference(planned, storage))]
    if planned.cache:
        reason = _cache_difference(planned, storage)
        differences.append(("cache_differs", reason and f"the cache was not {planned.cache}: {reason}"))
    return [_finding(code, Verdict.UNPROVEN, f"{name}: {text}", name) for code, text in differences if text]


def _mount_difference(planned: NodeSetup, storage: Mapping[str, Any]) -> str:
    """Return how the mount at the data's folder differs from the planned storage, or "" if it does not."""
    mount = _map(storage.get("mount"))
    kind = mount.get("type")
    if not isinstance(kind, str) or storage.get("folder") != planned.data:
        return f"nothing is known of the storage at {planned.data}"
    allowed = _TYPES.get(planned.storage)
    # There are too many local file systems to list. Any that is not a network file system is local.
    if kind not in allowed if allowed else _NOT_LOCAL.fullmatch(kind):
        shown_mount = f"{sanitize(kind, 40)} ({sanitize(mount.get('source'), 100)})"
        return f"{planned.data} was not {planned.storage} but {shown_mount}"
    return ""


def _cache_difference(planned: NodeSetup, storage: Mapping[str, Any]) -> str:
    """Return the reason why a cache was not as the point requests, or "" if it was."""
    if storage.get("cache") != planned.cache:
        return "nothing is known of it"
    if storage.get("trouble"):
        return sanitize(storage["trouble"], 300)
    if planned.cache == "warm":
        read_bytes = storage.get("read_bytes")
        return "" if type(read_bytes) is int and read_bytes > 0 else "nothing was read"
    return _warmth(planned, storage)


def _warmth(planned: NodeSetup, storage: Mapping[str, Any]) -> str:
    """Return the reason why a cache was not cold, or "" if it was."""
    # s3fs caches by itself, which the kernel's page counts do not include.
    if planned.storage == "s3fs":
        return "" if storage.get("how") else "nothing is known of it"
    resident = storage.get("resident")
    if not isinstance(resident, list) or [type(pages) for pages in resident] != [int, int]:
        return "the kernel does not report its cached pages"
    in_memory, total = resident
    if total <= 0:
        return "there are no data"
    if not 0 <= in_memory <= total:
        return "the numbers of the kernel's cached pages are impossible"
    return "" if in_memory / total <= COLD else f"{in_memory / total:.0%} of the data were still in memory"


def _job_findings(name: str, job: Mapping[str, Any]) -> list[Finding]:
    """Return findings if another node's part of the job did not end well."""
    if not job:
        return [
            _finding("no_job", Verdict.UNPROVEN, f"{name}: nothing is known of its part of the job", name)
        ]
    status = job.get("exit_status")
    # All conditions are required, because a state that contradicts itself proves no success. False equals 0,
    # but is no exit status.
    if job.get("phase") == "ended" and job.get("succeeded") is True and type(status) is int and status == 0:
        return []
    ending = sanitize(job.get("message") or job.get("ended_by") or "its end is not known", 200)
    return [
        _finding(
            "part_failed", Verdict.UNPROVEN, f"{name}: its part of the job did not end well: {ending}", name
        )
    ]


def _bandwidths(planned: NodeSetup, lead: str, report: Mapping[str, Any]) -> list[Measurement]:
    """Return the bandwidths that the lead measured, in Gbit/s, one for each direction of a link."""
    names = {peer.name for peer in planned.nodes}
    # Count by pair, so that a node that reports one link twice does not compensate for another node.
    measurements: dict[tuple[str, str], Measurement] = {}
    raw = _map(report.get("rendezvous")).get("bandwidth")
    for entry in raw if isinstance(raw, list) else []:
        pair = _map(entry)
        ends, rate = _pair_of_run(pair, names, lead), _plausible_rate(pair.get("bytes_per_second"))
        if ends is None or rate is None:
            continue
        measurements[ends] = Measurement(
            name="link_bandwidth",
            # Links are sold in bits per second, with powers of ten.
            value=rate * 8 / 1e9,
            unit="Gbit/s",
            direction=Direction.HIGHER,
            labels={"from": ends[0], "to": ends[1], "network": planned.network},
            source=Source(file=f"{lead}/rendezvous.json"),
        )
    return list(measurements.values())


def _pair_of_run(pair: Mapping[str, Any], names: Container[str], lead: str) -> tuple[str, str] | None:
    """Return the ends of a reported link between the lead and another node of the run, or None."""
    start, end = pair.get("from"), pair.get("to")
    if not (isinstance(start, str) and isinstance(end, str)) or start == end or lead not in (start, end):
        return None
    return (start, end) if start in names and end in names else None


def _plausible_rate(value: object) -> float | None:
    """Return a reported rate in bytes per second, or None if it is impossible for any link."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # A petabyte per second is beyond any link, and far below the range of overflow.
    return value if 0 < value < 1e15 else None


def _network_text(planned: NodeSetup, report: Mapping[str, Any], measured: Sequence[Measurement]) -> str:
    """Describe the network that the run used."""
    link = _map(report.get("link"))
    parts = []
    if planned.network == "overlay":
        parts.append(f"VXLAN {sanitize(link.get('vni'), 20)} over {sanitize(report.get('over'), 40)}")
    elif report.get("interface"):
        parts.append(sanitize(report["interface"], 40))
    if link.get("mtu"):
        parts.append(f"MTU {sanitize(link['mtu'], 10)}")
    if measured:
        # The slowest link limits a collective, and therefore the training.
        parts.append(f"at least {min(measurement.value for measurement in measured):.3g} Gbit/s")
    return planned.network + (f" ({', '.join(parts)})" if parts else "")


def _storage_text(planned: NodeSetup, report: Mapping[str, Any]) -> str:
    """Describe the storage that the run used, or return "" if the point names none."""
    if not planned.storage:
        return ""
    if planned.storage == "synthetic":
        return "synthetic"
    storage = _map(report.get("storage"))
    mount = _map(storage.get("mount"))
    # The source of a FUSE mount is the program. The mounting unit names the bucket.
    source = storage.get("unit_source") or mount.get("source") or "not known"
    options = sanitize(storage.get("unit_options") or mount.get("options") or "", 300)
    cache = f", cache {planned.cache}" if planned.cache else ""
    return sanitize(f"{planned.storage}: {sanitize(source, 100)} at {planned.data}{cache}; {options}", 600)


def _finding(code: str, verdict: Verdict | None, message: str, node: str) -> Finding:
    """Return a finding on a node. A finding without a verdict is a remark."""
    return Finding(code=code, verdict=verdict, message=sanitize(message, 600), source=Source(file=node))


def _map(value: Any) -> Mapping[str, Any]:
    """Return a value from a node if it is a mapping, or else an empty mapping."""
    return value if isinstance(value, Mapping) else {}
