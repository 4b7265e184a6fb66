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
"""How much longer than its job the overlay of a run stays, when nobody takes it away."""
COLD = 0.01
"""Share of sampled data that may still be in memory of a cache that counts as emptied."""
LEAST_BYTES = 1 << 20
"""What an interface has carried at least where several nodes trained over it."""

_TYPES = {"nfs": ("nfs", "nfs4"), "s3fs": ("fuse.s3fs",)}
_NOT_LOCAL = re.compile(r"nfs4?|cifs|smb3?|fuse\..*|lustre|gpfs|beegfs|ceph|9p|wekafs")
_INTERFACE = re.compile(r"^\d+:\s+(\S+)\s+inet\s+([0-9.]{7,15})/", re.MULTILINE)
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
    """What the inventory says of a node for experiments: the variables bench_* of that name."""

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
    """What the nodes showed of their setting."""

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
    said = answer.get("stdout") if isinstance(answer, Mapping) else None
    for name, found in _INTERFACE.findall(said if isinstance(said, str) else ""):
        if name == interface if interface else not name.startswith(_OWN):
            return str(found)
    return ""


def data_folder(point: Mapping[str, Scalar], experiment: ExperimentConfig) -> str:
    """Return the folder of a point's data, which ``{{ storage_folder }}`` stands for; '' for synthetic."""
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
    """Return why a point cannot be set up on these nodes, empty if nothing speaks against it.

    Args:
        point: The point.
        experiment: What the inventory says of the first node.
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
        return f"bench_storages: {storage}: no folder; say where the data lie"
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
        experiment: What the inventory says of the first node.
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
    """Judge what nodes say of a run's setting: whatever is not shown is unproven.

    Args:
        planned: What was to be set up.
        lead: The node whose job the run's own findings speak of.
        reports: By node what ``rackproof_bench_setup`` returned when it took the setting away.
        jobs: By node the end of its job, for the nodes but the lead.
        started: Whether a job was started at all; if not, the run says so itself.
    """
    findings: list[Finding] = []
    measurements: list[Measurement] = []
    told = {peer.name: _map(reports.get(peer.name)) for peer in planned.nodes}
    for name, report in told.items():
        if planned.network == "overlay" and report.get("removed") is not True:
            text = f"{name}: nobody saw the overlay go; it ends by its timer, or by `ip link del rackproof0`"
            findings.append(_finding("setting_left", None, text, name))
    if not started:
        return SetupEvidence(findings=tuple(findings), network=planned.network)
    for name, report in told.items():
        findings += _network_findings(planned, name, report)
        findings += _storage_findings(planned, name, report)
        if name != lead:
            findings += _job_findings(name, _map(jobs.get(name)))
    if len(planned.nodes) > 1:
        measured = _bandwidths(planned, lead, told[lead])
        measurements += measured
        missing = 2 * (len(planned.nodes) - 1) - len(measured)
        if missing > 0:
            text = (
                f"the bandwidth between nodes was not measured ({missing} of {missing + len(measured)} ways)"
            )
            findings.append(_finding("network_not_measured", Verdict.UNPROVEN, text, lead))
    first = told[lead]
    return SetupEvidence(
        measurements=tuple(measurements),
        findings=tuple(findings),
        network=_network_text(planned, first, measurements),
        storage=_storage_text(planned, first),
    )


def _network_findings(planned: NodeSetup, name: str, report: Mapping[str, Any]) -> list[Finding]:
    wrong = _network_wrong(planned, name, report)
    if not wrong:
        return []
    text = f"{name}: the network was not {planned.network}: {'; '.join(wrong)}"
    return [_finding("network_differs", Verdict.UNPROVEN, text, name)]


def _network_wrong(planned: NodeSetup, name: str, report: Mapping[str, Any]) -> list[str]:
    """Return what about a node's network is not as it was planned."""
    if report.get("node") != name or report.get("network") != planned.network:
        return ["nothing is known of it"]
    wrong = []
    interface = report.get("interface")
    for when, link in (("before", _map(report.get("link"))), ("after", _map(report.get("ended")))):
        kind = link.get("kind")
        if link.get("interface") != interface or not interface:
            wrong.append(f"{sanitize(interface, 40)} was not there {when} the run")
        elif planned.network == "overlay" and kind != "vxlan":
            wrong.append(
                f"{sanitize(interface, 40)} was no VXLAN {when} the run, but "
                f"{sanitize(kind or 'a plain link', 40)}"
            )
        elif planned.network == "host" and kind in ("vxlan", "ipip", "geneve", "wireguard", "gre", "tun"):
            wrong.append(f"{sanitize(interface, 40)} was a tunnel ({sanitize(kind, 40)}) {when} the run")
        elif when == "before" and "UP" not in (link.get("flags") or ()):
            wrong.append(f"{sanitize(interface, 40)} was down")
    routes = _map(report.get("routes"))
    wrong += [
        f"{peer.name} was reached by {sanitize(routes.get(peer.name) or 'nothing', 40)}"
        for peer in planned.nodes
        if peer.name != name and routes.get(peer.name) != interface
    ]
    if len(planned.nodes) > 1:
        rendezvous = _map(report.get("rendezvous"))
        before, after = _map(rendezvous.get("before")), _map(rendezvous.get("after"))
        for way in ("rx", "tx"):
            start, end = before.get(way), after.get(way)
            if not (isinstance(start, int) and isinstance(end, int)):
                wrong.append(f"what {sanitize(interface, 40)} carried ({way}) is not known")
            # On the host's network InfiniBand may carry what the interface does not.
            elif planned.network == "overlay" and end - start < LEAST_BYTES:
                carried = f"{sanitize(interface, 40)} carried {end - start} bytes ({way})"
                wrong.append(f"{carried}: the training went another way")
    return wrong


def _storage_findings(planned: NodeSetup, name: str, report: Mapping[str, Any]) -> list[Finding]:
    if planned.storage in ("", "synthetic"):
        return []
    found = []
    told = _map(report.get("storage"))
    mount = _map(told.get("mount"))
    kind = mount.get("type")
    wanted = _TYPES.get(planned.storage)
    if not isinstance(kind, str) or told.get("folder") != planned.data:
        text = f"{name}: nothing is known of the storage at {planned.data}"
        found.append(_finding("storage_differs", Verdict.UNPROVEN, text, name))
    elif kind not in wanted if wanted else _NOT_LOCAL.fullmatch(kind):
        what = f"{sanitize(kind, 40)} ({sanitize(mount.get('source'), 100)})"
        text = f"{name}: {planned.data} was not {planned.storage} but {what}"
        found.append(_finding("storage_differs", Verdict.UNPROVEN, text, name))
    if planned.cache:
        why = _cache_wrong(planned, told)
        if why:
            text = f"{name}: the cache was not {planned.cache}: {why}"
            found.append(_finding("cache_differs", Verdict.UNPROVEN, text, name))
    return found


def _cache_wrong(planned: NodeSetup, told: Mapping[str, Any]) -> str:
    """Return why a cache was not what the point says, empty if it was."""
    if told.get("cache") != planned.cache:
        return "nothing is known of it"
    if planned.cache == "warm":
        read = told.get("read_bytes")
        return "" if type(read) is int and read > 0 else "nothing was read"
    if told.get("trouble"):
        return sanitize(told["trouble"], 300)
    if planned.storage == "s3fs":
        return "" if told.get("how") else "nothing is known of it"
    resident = told.get("resident")
    if not isinstance(resident, list) or len(resident) != 2 or not all(type(one) is int for one in resident):
        return "the kernel does not say what it holds in memory"
    held, total = resident
    if total <= 0:
        return "there are no data"
    return "" if held / total <= COLD else f"{held / total:.0%} of the data were still in memory"


def _job_findings(name: str, job: Mapping[str, Any]) -> list[Finding]:
    """Return what the end of another node's job says against the run."""
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
    told = _map(report.get("storage"))
    mount = _map(told.get("mount"))
    source = told.get("unit_source") or mount.get("source") or "not known"
    options = sanitize(told.get("unit_options") or mount.get("options") or "", 300)
    cache = f", cache {planned.cache}" if planned.cache else ""
    return sanitize(f"{planned.storage}: {sanitize(source, 100)} at {planned.data}{cache}; {options}", 600)


def _finding(code: str, verdict: Verdict | None, message: str, node: str) -> Finding:
    return Finding(code=code, verdict=verdict, message=sanitize(message, 600), source=Source(file=node))


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
