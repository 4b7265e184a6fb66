"""What the points of an experiment need of their nodes (network, storage), and whether they had it.

A point with one of the parameters ``nodes``, ``network`` and ``storage`` is set up on its nodes by the module
``rackproof_bench_setup`` and started on each of them by workloads/rendezvous.py. Everything here is pure: the
answers of nodes come in as raw data, and are hostile until they are checked.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, field_validator

from rackproof.core.definitions import Parameters, Scalar
from rackproof.core.records import Direction, Finding, Measurement, Record, Source, Verdict
from rackproof.core.text import sanitize

PARAMETERS = ("nodes", "network", "storage")
"""A parameter so called sets a node up; an empty value leaves it as it is."""
NETWORKS = ("host", "overlay")
BEFORE_AFTER_S = 900
"""How much longer than its job the overlay of a run stays where nothing removes it."""
COLD = 0.01
"""Share of sampled data that may still be in memory of a cache that counts as emptied."""
LEAST_BYTES = 1 << 20
"""What an interface has carried at least where several nodes trained over it."""

_TYPES = {"nfs": ("nfs", "nfs4"), "s3fs": ("fuse.s3fs",)}
_NOT_LOCAL = re.compile(r"nfs4?|cifs|smb3?|fuse\..*|lustre|gpfs|beegfs|ceph|9p|wekafs")
_INTERFACE = re.compile(r"^\d+:\s+(\S+)\s+inet\s+([0-9.]{7,15})/", re.MULTILINE)
_TUNNELS = ("vxlan", "ipip", "geneve", "wireguard", "gre", "tun")
_OWN = ("lo", "docker", "virbr", "veth", "cni", "flannel", "cali", "vxlan", "rackproof")
"""Interfaces that containers and we make: no network between nodes."""


class Storage(Record):
    """A storage that the parameter ``storage`` may name."""

    kind: Literal["local", "nfs", "s3fs", "synthetic"]
    folder: str = Field(default="", description="Folder of the data on the nodes.")
    mount: dict[str, Any] = Field(
        default={},
        description="Entry of `storage_mounts` that the role storage mounts first; empty for none.",
    )

    @field_validator("folder")
    @classmethod
    def _absolute(cls, folder: str) -> str:
        if folder and not folder.startswith("/"):
            raise ValueError(f"folder: {folder!r} is no absolute path")
        return folder


class ExperimentConfig(Record):
    """What the inventory has of a node for experiments: the variables bench_* of that name."""

    storages: dict[str, Storage] = {}  # noqa: RUF012  (pydantic copies defaults)
    fabric_interface: str = ""
    overlay_subnet: str = "198.19.0.0/16"
    port: int = Field(default=29417, gt=1023, lt=65536)

    @field_validator("overlay_subnet")
    @classmethod
    def _subnet(cls, subnet: str) -> str:
        return str(ipaddress.IPv4Network(subnet))


class Peer(Record):
    """A node of a run and its address."""

    name: str
    address: str


class NodeSetup(Record):
    """What is set up on each node of a run, as the module takes it."""

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
    """What the nodes showed of their setup."""

    measurements: tuple[Measurement, ...] = ()
    findings: tuple[Finding, ...] = ()
    network: str = ""
    storage: str = ""


def needs_setup(point: Mapping[str, Scalar]) -> bool:
    """Whether a point sets its nodes up."""
    return any(point.get(name, "") != "" for name in PARAMETERS)


def node_address(raw: Mapping[str, Any], interface: str = "") -> str:
    """Return a node's IPv4 address on the network that trains, from its raw facts; '' where none is known.

    Args:
        raw: Raw facts of the node.
        interface: The interface that the inventory names; empty takes the first that is no container's.
    """
    tools = raw.get("tools")
    answer = tools.get("ip") if isinstance(tools, Mapping) else None
    output = answer.get("stdout") if isinstance(answer, Mapping) else None
    for name, address in _INTERFACE.findall(output if isinstance(output, str) else ""):
        if name == interface if interface else not name.startswith(_OWN):
            return str(address)
    return ""


def data_folder(point: Mapping[str, Scalar], experiment: ExperimentConfig) -> str:
    """Return the folder of a point's data, the value of ``{{ storage_folder }}``; '' for synthetic."""
    name = str(point.get("storage", ""))
    if not name:
        return str(point.get("data_folder", ""))
    storage = experiment.storages.get(name)
    if storage is None or storage.kind == "synthetic":
        return ""
    return str(point.get("data_folder", "")) or storage.folder


def setup_obstacle(
    point: Mapping[str, Scalar], experiment: ExperimentConfig, peers: Sequence[Peer], asked: int
) -> str:
    """Return why a point cannot be set up on these nodes, empty if there is no obstacle.

    Args:
        point: The point.
        experiment: What the inventory has of the first node.
        peers: The nodes that there are for it.
        asked: How many it wants.
    """
    if asked > len(peers):
        return f"{asked} nodes asked for, {len(peers)} of them answered; give nodes={len(peers)} or fewer"
    network, storage = str(point.get("network", "")), str(point.get("storage", ""))
    if network not in ("", *NETWORKS):
        return f"no network `{sanitize(network, 40)}`; there are {', '.join(NETWORKS)}"
    if storage and storage not in experiment.storages:
        known = ", ".join(sorted(experiment.storages)) or "none"
        return f"no storage `{sanitize(storage, 40)}`; bench_storages has {known}"
    if storage and experiment.storages[storage].kind != "synthetic" and not data_folder(point, experiment):
        return f"bench_storages: {storage}: no folder; set the folder of the data"
    if point.get("cache", "") not in ("", "cold", "warm"):
        return f"cache is cold, warm or empty, not {sanitize(point['cache'], 40)}"
    if asked > 1 or network == "overlay":
        for peer in peers[:asked]:
            if not peer.address:
                which = (
                    f"interface {experiment.fabric_interface}"
                    if experiment.fabric_interface
                    else "any interface"
                )
                return (
                    f"{peer.name} has no IPv4 address on {which}: name the one that trains "
                    "(bench_fabric_interface)"
                )
    return ""


def plan_setup(
    point: Mapping[str, Scalar],
    experiment: ExperimentConfig,
    peers: Sequence[Peer],
    limit_s: int,
    *,
    only_first: bool = False,
) -> NodeSetup:
    """Return what is set up on the nodes of a run.

    Args:
        point: The point.
        experiment: What the inventory has of the first node.
        peers: The run's nodes in the order of their ranks.
        limit_s: Limit of the job.
        only_first: Whether only the first node starts the program, which is a launcher.
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
    """Return the entries for the role storage that points need on a node, each once."""
    found: list[dict[str, Any]] = []
    for point in points:
        storage = experiment.storages.get(str(point.get("storage", "")))
        if storage is not None and storage.mount and storage.mount not in found:
            found.append(storage.mount)
    return found


def judge_setup(
    planned: NodeSetup, lead: str, reports: Mapping[str, Any], jobs: Mapping[str, Any], started: bool
) -> SetupEvidence:
    """Judge what nodes report of a run's setup: whatever is not shown is unproven.

    Args:
        planned: What was to be set up.
        lead: The node whose job the run's own findings are about.
        reports: By node what ``rackproof_bench_setup`` returned when it removed the setup.
        jobs: By node the end of its job, for the nodes but the lead.
        started: Whether a job was started at all; if not, the run has a finding of its own.
    """
    findings: list[Finding] = []
    measurements: list[Measurement] = []
    report_of = {peer.name: _map(reports.get(peer.name)) for peer in planned.nodes}
    for name, report in report_of.items():
        if planned.network == "overlay" and report.get("removed") is not True:
            text = f"{name}: the overlay may still be there until its timer ends; `ip link del rackproof0`"
            findings.append(_finding("setting_left", None, text, name))
    if not started:
        return SetupEvidence(findings=tuple(findings), network=planned.network)
    for name, report in report_of.items():
        findings += _network_findings(planned, name, report)
        findings += _storage_findings(planned, name, report)
        if name != lead:
            findings += _job_findings(name, _map(jobs.get(name)))
    if len(planned.nodes) > 1:
        measured = _bandwidths(planned, lead, report_of[lead])
        measurements += measured
        missing = 2 * (len(planned.nodes) - 1) - len(measured)
        if missing > 0:
            text = (
                f"the bandwidth between nodes was not measured ({missing} of {missing + len(measured)} ways)"
            )
            findings.append(_finding("network_not_measured", Verdict.UNPROVEN, text, lead))
    first = report_of[lead]
    return SetupEvidence(
        measurements=tuple(measurements),
        findings=tuple(findings),
        network=_network_text(planned, first, measurements),
        storage=_storage_text(planned, first),
    )


def _network_findings(planned: NodeSetup, name: str, report: Mapping[str, Any]) -> list[Finding]:
    differences = _network_differences(planned, name, report)
    if not differences:
        return []
    text = f"{name}: the network was not {planned.network}: {'; '.join(differences)}"
    return [_finding("network_differs", Verdict.UNPROVEN, text, name)]


def _network_differences(planned: NodeSetup, name: str, report: Mapping[str, Any]) -> list[str]:
    """Return what about a node's network is not as it was planned."""
    if report.get("node") != name or report.get("network") != planned.network:
        return ["nothing is known of it"]
    interface = report.get("interface")
    differences = []
    for moment, link in (("before", _map(report.get("link"))), ("after", _map(report.get("ended")))):
        difference = _link_difference(planned.network, interface, link, moment)
        if difference:
            differences.append(difference)
    routes = _map(report.get("routes"))
    for peer in planned.nodes:
        if peer.name != name and routes.get(peer.name) != interface:
            route = sanitize(routes.get(peer.name) or "nothing", 40)
            differences.append(f"{peer.name} was reached by {route}")
    if len(planned.nodes) > 1:
        differences += _traffic_differences(planned.network, interface, _map(report.get("rendezvous")))
    return differences


def _link_difference(network: str, interface: object, link: Mapping[str, Any], moment: str) -> str:
    """Return what is wrong with a node's interface before or after the run, empty if nothing is."""
    shown, kind = sanitize(interface, 40), link.get("kind")
    if link.get("interface") != interface or not interface:
        return f"{shown} was not there {moment} the run"
    if network == "overlay" and kind != "vxlan":
        return f"{shown} was no VXLAN {moment} the run, but {sanitize(kind or 'a plain link', 40)}"
    if network == "host" and kind in _TUNNELS:
        return f"{shown} was a tunnel ({sanitize(kind, 40)}) {moment} the run"
    if moment == "before" and "UP" not in (link.get("flags") or ()):
        return f"{shown} was down"
    return ""


def _traffic_differences(network: str, interface: object, rendezvous: Mapping[str, Any]) -> list[str]:
    """Return where an interface did not carry the training, or its counters are not known."""
    shown = sanitize(interface, 40)
    before, after = _map(rendezvous.get("before")), _map(rendezvous.get("after"))
    differences = []
    for way in ("rx", "tx"):
        start, end = before.get(way), after.get(way)
        if not (isinstance(start, int) and isinstance(end, int)):
            differences.append(f"what {shown} carried ({way}) is not known")
        # On the host's network InfiniBand may carry what the interface does not.
        elif network == "overlay" and end - start < LEAST_BYTES:
            carried = f"{shown} carried {end - start} bytes ({way})"
            differences.append(f"{carried}: the training went another way")
    return differences


def _storage_findings(planned: NodeSetup, name: str, report: Mapping[str, Any]) -> list[Finding]:
    if planned.storage in ("", "synthetic"):
        return []
    found = []
    storage = _map(report.get("storage"))
    mount = _map(storage.get("mount"))
    kind = mount.get("type")
    wanted = _TYPES.get(planned.storage)
    if not isinstance(kind, str) or storage.get("folder") != planned.data:
        text = f"{name}: nothing is known of the storage at {planned.data}"
        found.append(_finding("storage_differs", Verdict.UNPROVEN, text, name))
    elif kind not in wanted if wanted else _NOT_LOCAL.fullmatch(kind):
        what = f"{sanitize(kind, 40)} ({sanitize(mount.get('source'), 100)})"
        text = f"{name}: {planned.data} was not {planned.storage} but {what}"
        found.append(_finding("storage_differs", Verdict.UNPROVEN, text, name))
    if planned.cache:
        why = _cache_wrong(planned, storage)
        if why:
            text = f"{name}: the cache was not {planned.cache}: {why}"
            found.append(_finding("cache_differs", Verdict.UNPROVEN, text, name))
    return found


def _cache_wrong(planned: NodeSetup, storage: Mapping[str, Any]) -> str:
    """Return why a cache was not what the point asks for, empty if it was."""
    if storage.get("cache") != planned.cache:
        return "nothing is known of it"
    if planned.cache == "warm":
        read = storage.get("read_bytes")
        return "" if type(read) is int and read > 0 else "nothing was read"
    if storage.get("trouble"):
        return sanitize(storage["trouble"], 300)
    if planned.storage == "s3fs":
        return "" if storage.get("how") else "nothing is known of it"
    resident = storage.get("resident")
    if not isinstance(resident, list) or len(resident) != 2 or not all(type(one) is int for one in resident):
        return "the kernel does not report what it has in memory"
    in_memory, total = resident
    if total <= 0:
        return "there are no data"
    return "" if in_memory / total <= COLD else f"{in_memory / total:.0%} of the data were still in memory"


def _job_findings(name: str, job: Mapping[str, Any]) -> list[Finding]:
    """Return findings where another node's part of the job did not end well."""
    if not job:
        return [
            _finding("no_job", Verdict.UNPROVEN, f"{name}: nothing is known of its part of the job", name)
        ]
    if job.get("phase") == "ended" and job.get("succeeded") is True and job.get("exit_status") == 0:
        return []
    how = sanitize(job.get("message") or job.get("ended_by") or "how is not known", 200)
    return [
        _finding(
            "part_failed", Verdict.UNPROVEN, f"{name}: its part of the job did not end well: {how}", name
        )
    ]


def _bandwidths(planned: NodeSetup, lead: str, report: Mapping[str, Any]) -> list[Measurement]:
    """Return the bandwidths that the lead measured, of pairs of this run only."""
    names = {peer.name for peer in planned.nodes}
    found: dict[tuple[str, str], Measurement] = {}
    raw = _map(report.get("rendezvous")).get("bandwidth")
    for one in raw if isinstance(raw, list) else []:
        pair = _map(one)
        ends, rate = (pair.get("from"), pair.get("to")), pair.get("bytes_per_second")
        known = (
            all(isinstance(end, str) and end in names for end in ends) and lead in ends and ends[0] != ends[1]
        )
        if known and isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < 1e15:
            found[(str(ends[0]), str(ends[1]))] = Measurement(
                name="link_bandwidth",
                value=rate * 8 / 1e9,
                unit="Gbit/s",
                direction=Direction.HIGHER,
                labels={"from": str(ends[0]), "to": str(ends[1]), "network": planned.network},
                source=Source(file=f"{lead}/rendezvous.json"),
            )
    return list(found.values())


def _network_text(planned: NodeSetup, report: Mapping[str, Any], measured: Sequence[Measurement]) -> str:
    link = _map(report.get("link"))
    parts = []
    if planned.network == "overlay":
        parts.append(f"VXLAN {sanitize(link.get('vni'), 20)} over {sanitize(report.get('over'), 40)}")
    elif report.get("interface"):
        parts.append(sanitize(report["interface"], 40))
    if link.get("mtu"):
        parts.append(f"MTU {sanitize(link['mtu'], 10)}")
    if measured:
        parts.append(f"at least {min(one.value for one in measured):.3g} Gbit/s")
    return planned.network + (f" ({', '.join(parts)})" if parts else "")


def _storage_text(planned: NodeSetup, report: Mapping[str, Any]) -> str:
    if not planned.storage:
        return ""
    if planned.storage == "synthetic":
        return "synthetic"
    storage = _map(report.get("storage"))
    mount = _map(storage.get("mount"))
    source = storage.get("unit_source") or mount.get("source") or "not known"
    options = sanitize(storage.get("unit_options") or mount.get("options") or "", 300)
    cache = f", cache {planned.cache}" if planned.cache else ""
    return sanitize(f"{planned.storage}: {sanitize(source, 100)} at {planned.data}{cache}; {options}", 600)


def _finding(code: str, verdict: Verdict | None, message: str, node: str) -> Finding:
    return Finding(code=code, verdict=verdict, message=sanitize(message, 600), source=Source(file=node))


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
