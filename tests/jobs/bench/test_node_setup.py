"""Test ``rackproof.jobs.bench.node_setup``, which plans and checks the network and storage of a run.

The parameters ``nodes``, ``network``, ``storage`` and ``cache`` of a benchmark describe an experiment: on how
many nodes it trains, over which network, where its data are, and whether the data are in the page cache. The
nodes are set up for each run, and report the network and storage that they used.

The first tests check the plan: the runs and their nodes, the order of the runs, the arguments, the mounts,
the addresses, and the reasons why a point cannot be set up. The other tests check the judgement. A run is
unproven if a node reports another network, storage or cache than was planned, a part of the job that did not
end well, or nothing.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from rackproof.core import definitions
from rackproof.core.definitions import DefinitionError, LoadedDefinition
from rackproof.core.records import Gpu, Node, Verdict
from rackproof.jobs.bench import node_setup, planning
from rackproof.jobs.bench.launch_slurm import Site
from rackproof.jobs.bench.node_setup import ExperimentConfig, NodeSetup, Peer, Storage
from rackproof.jobs.bench.plan_text import describe_plan
from rackproof.jobs.bench.planning import Plan
from rackproof.logs import FORMATS

TEXT = """\
name: train
summary: Trains
parameters: {nodes: "", network: "", storage: "", cache: "", gpus: all, data_folder: ""}
suites:
  sizes: {nodes: [1, 2, 4, 8], gpus: all}
launch:
  {with: local, runtime: torch, program: train.py, arguments: {data: "{{ storage_folder }}"}, timeout_s: 600}
result:
  judge: [{metric: eval_accuracy, at_least: 0.9}]
"""
"""Definition of the benchmark that all plans contain."""
STORAGES = {
    "local": Storage(kind="local", folder="/data"),
    "synthetic": Storage(kind="synthetic"),
    "s3": Storage(
        kind="s3fs", folder="/mnt/s3/set", mount={"path": "/mnt/s3", "kind": "s3fs", "source": "b"}
    ),
}
"""The storages in the inventory, by the name that the parameter ``storage`` gives."""
EXPERIMENT = ExperimentConfig(storages=STORAGES)
"""The settings for experiments of each node."""
NAMES = ("n1", "n2", "n3", "n4")
"""The names of the nodes in a plan, unless a test gives others."""


def loaded(tmp_path: Path) -> LoadedDefinition:
    """Return the definition of the benchmark, read from a file."""
    path = tmp_path / "train.yml"
    path.write_text(TEXT)
    return definitions.load_definition(path, log_formats=FORMATS)


def plan(tmp_path: Path, names: tuple[str, ...] = NAMES, gpus: int = 4, **options: Any) -> Plan:
    """Return a plan of the benchmark on nodes with addresses 192.0.2.1, 192.0.2.2, …

    Args:
        tmp_path: A folder for the definition.
        names: The names of the nodes that answered.
        gpus: The number of GPUs of each node.
        **options: More arguments of :func:`rackproof.jobs.bench.planning.make_plan`.
    """
    found = tuple(Gpu(index=index, uuid=f"GPU-{index}") for index in range(gpus))
    options.setdefault("addresses", {name: f"192.0.2.{rank}" for rank, name in enumerate(names, 1)})
    return planning.make_plan(
        [loaded(tmp_path)],
        {name: Node(name=name, gpus=found) for name in names},
        {name: {} for name in names},
        experiments=dict.fromkeys(names, EXPERIMENT),
        **options,
    )


def test_a_point_with_a_number_of_nodes_is_one_run_on_the_first_nodes(tmp_path: Path) -> None:
    made = plan(tmp_path, suite="sizes")
    assert [(run.lead, run.nodes) for run in made.runs] == [
        ("n1", ("n1",)),
        ("n1", ("n1", "n2")),
        ("n1", NAMES),
    ]
    assert made.skipped[0].reason == "nodes=8: there are 4"
    assert [run.parameters["gpus"] for run in made.runs] == [4, 4, 4]
    two = made.runs[1].setup
    assert two is not None
    assert two.nodes == (Peer(name="n1", address="192.0.2.1"), Peer(name="n2", address="192.0.2.2"))
    assert two.expires_s > made.runs[1].timeout_s


# A case has the values of a matrix, the number of GPUs by node, the nodes without a run with the reason, and
# the nodes that the requested numbers of nodes leave idle.
@pytest.mark.parametrize(
    ("matrix", "exclude", "gpus", "unused", "reason", "idle"),
    [
        ({"nodes": (8,)}, {}, {"n1": 4, "n2": 4, "n3": 4}, ["n1", "n2", "n3"], "nodes=8: there are 3", ()),
        (
            {"nodes": (2,), "gpus": (8,)},
            {},
            {"n1": 8, "n2": 4, "n3": 8},
            ["n1", "n2", "n3"],
            "gpus=8: there are 4",
            (),
        ),
        ({"nodes": (2,)}, {"gpus": (1,)}, {"n1": 2, "n2": 1, "n3": 2}, ["n1", "n2", "n3"], "excludes", ()),
        ({"nodes": (1, 2)}, {}, {"n1": 4, "n2": 4, "n3": 4, "n4": 4}, [], "", ("n3", "n4")),
        ({"nodes": (2, 8)}, {}, {"n1": 4, "n2": 4, "n3": 4}, [], "", ("n3",)),
        ({"nodes": (3,)}, {}, {"n1": 4, "n2": 4, "n3": 4}, [], "", ()),
        ({"nodes": ("", 2)}, {}, {"n1": 4, "n2": 4, "n3": 4}, [], "", ()),
    ],
)
def test_each_node_that_answered_has_a_run_or_is_listed(
    tmp_path: Path,
    matrix: dict[str, tuple[Any, ...]],
    exclude: dict[str, tuple[Any, ...]],
    gpus: dict[str, int],
    unused: list[str],
    reason: str,
    idle: tuple[str, ...],
) -> None:
    one = loaded(tmp_path)
    changes = {"matrix": matrix, "exclude": (exclude,) if exclude else ()}
    one = one.model_copy(update={"definition": one.definition.model_copy(update=changes)})
    made = planning.make_plan(
        [one],
        {
            name: Node(name=name, gpus=tuple(Gpu(index=index, uuid=f"GPU-{index}") for index in range(count)))
            for name, count in gpus.items()
        },
        {name: {} for name in gpus},
    )
    assert sorted(made.unused) == unused
    assert all(reason in why for why in made.unused.values())
    assert made.idle == idle
    assert ("without a run: " in describe_plan(made)) == bool(idle)


def test_a_point_without_a_number_of_nodes_is_a_run_on_each_node_without_setup(tmp_path: Path) -> None:
    made = plan(tmp_path)
    assert [(run.nodes, run.setup) for run in made.runs] == [((name,), None) for name in NAMES]


def test_a_run_on_several_nodes_stays_within_a_rack(tmp_path: Path) -> None:
    sites = {name: Site(rack="a" if name < "n3" else "b") for name in NAMES}
    made = plan(tmp_path, overrides={"nodes": (2,)}, sites=sites)
    assert [run.nodes for run in made.runs] == [("n1", "n2"), ("n3", "n4")]


# A case has parameters of the plan, the addresses of nodes (None for an address of each), and a part of the
# reason.
@pytest.mark.parametrize(
    ("overrides", "addresses", "reason"),
    [
        ({"nodes": (5,)}, None, "5 nodes requested, 4 of them answered"),
        ({"nodes": (2,), "gpus": (8,)}, None, "8 GPUs requested"),
        ({"nodes": (2,), "network": ("calico",)}, None, "no network `calico`; there are host, overlay"),
        ({"storage": ("tape",)}, None, "no storage `tape`; bench_storages has local, s3, synthetic"),
        ({"nodes": (2,)}, {"n1": "192.0.2.1"}, "n2 has no IPv4 address"),
        ({"storage": ("s3",), "cache": ("hot",)}, None, "cache is cold, warm or empty"),
    ],
)
def test_a_point_that_cannot_be_set_up_is_planned_as_unproven(
    tmp_path: Path, overrides: dict[str, Any], addresses: dict[str, str] | None, reason: str
) -> None:
    more = {} if addresses is None else {"addresses": addresses}
    made = plan(tmp_path, overrides=overrides, **more)
    assert made.runs
    assert all(reason in run.unproven_because for run in made.runs)


@pytest.mark.parametrize("nodes", [0, -1, "two", 1.5])
def test_a_value_that_is_no_number_of_nodes_is_refused(tmp_path: Path, nodes: Any) -> None:
    with pytest.raises(DefinitionError, match="is not a number of nodes"):
        plan(tmp_path, overrides={"nodes": (nodes,)})


def test_a_storage_gives_the_folder_of_the_data_and_the_mount(tmp_path: Path) -> None:
    made = plan(tmp_path, ("n1",), overrides={"storage": ("synthetic", "local", "s3")})
    assert [run.arguments for run in made.runs] == [(), ("--data=/data",), ("--data=/mnt/s3/set",)]
    points = [run.parameters for run in made.runs]
    assert node_setup.storage_mounts(points, EXPERIMENT) == [
        {"path": "/mnt/s3", "kind": "s3fs", "source": "b"}
    ]
    own = plan(tmp_path, ("n1",), overrides={"storage": ("s3",), "data_folder": ("/mnt/s3/other",)})
    assert own.runs[0].arguments == ("--data=/mnt/s3/other",)
    bare = plan(tmp_path, ("n1",), overrides={"data_folder": ("/elsewhere",)})
    assert bare.runs[0].arguments == ("--data=/elsewhere",)


def test_runs_are_ordered_so_that_network_and_storage_change_least(tmp_path: Path) -> None:
    overrides = {"nodes": (1, 2), "storage": ("local", "s3"), "network": ("host", "overlay")}
    made = plan(tmp_path, overrides=overrides)
    order = [(run.parameters["network"], run.parameters["storage"], len(run.nodes)) for run in made.runs]
    assert order == [
        (network, storage, nodes)
        for network in ("host", "overlay")
        for storage in ("local", "s3")
        for nodes in (1, 2)
    ]


def test_the_address_is_that_of_the_named_interface_or_of_the_first_one_of_the_host() -> None:
    printed = (
        "1: lo    inet 127.0.0.1/8 scope host lo\n"
        "2: docker0    inet 172.17.0.1/16 scope global docker0\n"
        "3: ens1    inet6 fe80::1/64 scope link\n"
        "3: ens1    inet 192.0.2.9/24 brd 192.0.2.255 scope global ens1\n"
        "4: bond0    inet 198.51.100.9/24 scope global bond0\n"
    )
    raw = {"tools": {"ip": {"stdout": printed}}}
    assert node_setup.node_address(raw) == "192.0.2.9"
    assert node_setup.node_address(raw, "bond0") == "198.51.100.9"
    assert node_setup.node_address(raw, "ib0") == ""
    assert node_setup.node_address({"tools": None}) == ""


# The tests below are about judge_setup, which judges the reports of the nodes after a run.


def node_setup_of(network: str = "overlay", storage: str = "", cache: str = "", count: int = 2) -> NodeSetup:
    """Return the planned setup of a run on nodes n1, n2, …"""
    nodes = tuple(Peer(name=f"n{rank}", address=f"192.0.2.{rank}") for rank in range(1, count + 1))
    data = "/data" if storage else ""
    return NodeSetup(
        network=network,
        nodes=nodes,
        subnet="198.19.0.0/16",
        expires_s=60,
        storage=storage,
        data=data,
        cache=cache,
        port=29417,
    )


def report(planned: NodeSetup, name: str) -> dict[str, Any]:
    """Return the report of a node on which everything is as planned."""
    overlay = planned.network == "overlay"
    interface = "rackproof0" if overlay else "eth0"
    link = {
        "interface": interface,
        "mtu": 1450,
        "flags": ["UP"],
        "kind": "vxlan" if overlay else "",
        "vni": 7117,
    }
    others = [peer.name for peer in planned.nodes if peer.name != name]
    types = {"nfs": "nfs4", "s3fs": "fuse.s3fs", "local": "ext4"}
    return {
        "node": name,
        "network": planned.network,
        "interface": interface,
        "over": "eth0",
        "link": link,
        "ended": copy.deepcopy(link),
        "routes": dict.fromkeys(others, interface),
        "removed": True,
        "storage": {
            "kind": planned.storage,
            "folder": planned.data,
            "cache": planned.cache,
            "mount": {"type": types.get(planned.storage, ""), "source": "bucket", "options": "rw"},
            "resident": [0, 1 << 20],
            "read_bytes": 4096,
            "how": "posix_fadvise",
            "trouble": "",
        },
        "rendezvous": {
            "before": {"rx": 100, "tx": 100},
            "after": {"rx": 100 + (8 << 20), "tx": 100 + (8 << 20)},
            "bandwidth": [
                {"from": "n1", "to": "n2", "bytes_per_second": 1.25e9},
                {"from": "n2", "to": "n1", "bytes_per_second": 1.00e9},
            ],
        },
    }


ENDED = {"phase": "ended", "succeeded": True, "exit_status": 0}
"""The state of a node's part of the job that ended well."""


def seen(planned: NodeSetup, reports: dict[str, Any] | None = None, **jobs: Any) -> node_setup.SetupEvidence:
    """Return the evidence of a setup, in a run with n1 as its lead.

    Args:
        planned: The planned setup.
        reports: The report of each node, or None for reports of nodes on which everything is as planned.
        **jobs: The state of a node's part of the job, if it is not :data:`ENDED`.
    """
    names = [peer.name for peer in planned.nodes]
    received = {name: report(planned, name) for name in names} if reports is None else reports
    return node_setup.judge_setup(planned, "n1", received, {"n2": ENDED, **jobs}, started=True)


@pytest.mark.parametrize("network", ["host", "overlay"])
def test_a_setup_that_was_used_as_planned_gives_bandwidths_and_no_finding(network: str) -> None:
    found = seen(node_setup_of(network))
    assert found.findings == ()
    assert [(one.name, one.value, one.labels["to"]) for one in found.measurements] == [
        ("link_bandwidth", 10.0, "n2"),
        ("link_bandwidth", 8.0, "n1"),
    ]
    assert found.network.startswith(network)
    assert "at least 8 Gbit/s" in found.network


def damage(reports: dict[str, Any], path: str, value: Any) -> None:
    """Change the value of a report at a path such as ``n1.link.kind``."""
    *way, last = path.split(".")
    place: Any = reports
    for part in way:
        place = place[part]
    place[last] = value


# Each case changes one value of a good report (its path and the new value), and has a part of the message.
# `tx` and `rx` are the numbers of bytes that the interface sent and received.
@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("n1.link.kind", "", "rackproof0 was not a VXLAN before the run, but a plain link"),
        ("n2.ended.kind", "bridge", "rackproof0 was not a VXLAN after the run, but bridge"),
        ("n2.ended", {}, "was not there after the run"),
        ("n1.link.flags", [], "was down"),
        ("n1.link.flags", 5, "was down"),
        ("n2.link.flags", True, "was down"),
        ("n1.link.flags", "SETUP", "was down"),
        ("n1.routes.n2", "eth0", "n2 was reached by eth0"),
        ("n1.routes", {}, "n2 was reached by nothing"),
        ("n2.rendezvous.after.tx", 200, "carried 100 bytes (tx): the training used another network"),
        ("n2.rendezvous.after", None, "is not known"),
        ("n2.rendezvous", None, "is not known"),
        ("n1.network", "host", "nothing is known of it"),
        ("n1.node", "n9", "nothing is known of it"),
        ("n1", None, "nothing is known of it"),
        ("n2", "text", "nothing is known of it"),
    ],
)
def test_a_run_is_unproven_if_a_node_did_not_use_the_planned_network(path: str, value: Any, why: str) -> None:
    planned = node_setup_of()
    reports: dict[str, Any] = {name: report(planned, name) for name in ("n1", "n2")}
    damage(reports, path, value)
    found = [one for one in seen(planned, reports).findings if one.code == "network_differs"]
    assert found
    assert all(one.verdict is Verdict.UNPROVEN for one in found)
    assert why in found[0].message


def test_a_run_on_the_host_s_network_is_unproven_if_a_node_used_a_tunnel() -> None:
    planned = node_setup_of("host")
    reports: dict[str, Any] = {name: report(planned, name) for name in ("n1", "n2")}
    damage(reports, "n2.link.kind", "vxlan")
    assert (
        "n2: the network was not host: eth0 was a tunnel (vxlan)"
        in seen(planned, reports).findings[0].message
    )


# Bandwidths in the lead's report, in bytes per second. In the last case, one direction is missing.
@pytest.mark.parametrize(
    "bandwidth",
    [
        [],
        None,
        [{"from": "n1", "to": "n2", "bytes_per_second": float("nan")}],
        [{"from": "n1", "to": "n2", "bytes_per_second": 0}],
        [{"from": "n1", "to": "n9", "bytes_per_second": 1e9}],
        [{"from": "n1", "to": "n1", "bytes_per_second": 1e9}],
        [{"from": ["n1"], "to": {}, "bytes_per_second": True}],
        [{"from": "n1", "to": "n2", "bytes_per_second": 1e9}],
    ],
)
def test_a_run_is_unproven_if_a_link_was_not_measured_in_both_directions(bandwidth: Any) -> None:
    planned = node_setup_of()
    reports: dict[str, Any] = {name: report(planned, name) for name in ("n1", "n2")}
    damage(reports, "n1.rendezvous.bandwidth", bandwidth)
    found = seen(planned, reports)
    assert [one.code for one in found.findings] == ["network_not_measured"]
    assert found.findings[0].verdict is Verdict.UNPROVEN


# States of the part of the job on node n2 that contradict a good end or do not show one.
@pytest.mark.parametrize(
    "job",
    [
        {},
        None,
        {"phase": "running"},
        {"phase": "ended", "succeeded": False, "exit_status": 1, "message": "ended with exit status 1"},
        {"phase": "ended", "succeeded": True, "exit_status": 3},
        {"phase": "ended", "succeeded": True, "exit_status": False},
        {"phase": "ended", "succeeded": True, "exit_status": 0.0},
        {"phase": "ended", "succeeded": True},
    ],
)
def test_a_run_is_unproven_if_another_node_s_part_of_the_job_did_not_end_well(job: Any) -> None:
    found = seen(node_setup_of(), n2=job).findings
    assert [one.verdict for one in found] == [Verdict.UNPROVEN]
    assert found[0].message.startswith("n2: ")


# Each case changes one value of a good report. `resident` are the bytes of the sampled data that are in
# memory, and all sampled bytes. If the cache is to be cold, at most 1 % may be in memory. If it is to be
# warm, the data were read before the run (`read_bytes`). For s3fs, `how` is the way in which its own cache
# was emptied.
@pytest.mark.parametrize(
    ("storage", "cache", "path", "value", "why"),
    [
        ("s3fs", "", "n1.storage.mount.type", "ext4", "/data was not s3fs but ext4"),
        ("nfs", "", "n2.storage.mount.type", "overlay", "/data was not nfs but overlay"),
        ("local", "", "n2.storage.mount.type", "nfs4", "/data was not local but nfs4"),
        ("local", "", "n2.storage.mount.type", "fuse.s3fs", "/data was not local but fuse.s3fs"),
        ("local", "", "n1.storage.folder", "/other", "nothing is known of the storage"),
        ("local", "cold", "n1.storage.resident", [1 << 19, 1 << 20], "50% of the data were still in memory"),
        ("local", "cold", "n1.storage.resident", None, "the kernel does not report"),
        ("local", "cold", "n1.storage.resident", [0, 0], "there are no data"),
        ("local", "cold", "n1.storage.resident", [-9, 10], "are impossible"),
        ("local", "cold", "n2.storage.resident", [11, 10], "are impossible"),
        ("local", "cold", "n1.storage.resident", [10**400, 10], "are impossible"),
        ("local", "cold", "n1.storage.resident", [0, -1], "there are no data"),
        ("s3fs", "cold", "n1.storage.trouble", "it is in use", "it is in use"),
        ("local", "cold", "n1.storage.trouble", "/data/b cannot be read", "/data/b cannot be read"),
        ("nfs", "warm", "n2.storage.trouble", "more than 9 files", "more than 9 files"),
        ("s3fs", "warm", "n1.storage.trouble", "/data/b cannot be read", "/data/b cannot be read"),
        ("s3fs", "cold", "n2.storage.how", "", "nothing is known of it"),
        ("s3fs", "warm", "n2.storage.read_bytes", 0, "nothing was read"),
        ("s3fs", "warm", "n2.storage.cache", "", "nothing is known of it"),
    ],
)
def test_a_run_is_unproven_if_a_node_did_not_use_the_planned_storage_or_cache(
    storage: str, cache: str, path: str, value: Any, why: str
) -> None:
    planned = node_setup_of("host", storage, cache)
    assert seen(planned).findings == ()
    reports: dict[str, Any] = {name: report(planned, name) for name in ("n1", "n2")}
    damage(reports, path, value)
    found = seen(planned, reports).findings
    assert [one.verdict for one in found] == [Verdict.UNPROVEN]
    assert why in found[0].message
    assert found[0].message.startswith(path[:2])


def test_only_overlays_that_may_remain_are_reported_of_a_run_that_never_began() -> None:
    planned = node_setup_of()
    found = node_setup.judge_setup(planned, "n1", {}, {}, started=False)
    assert [(one.code, one.verdict) for one in found.findings] == [("setting_left", None)] * 2
    assert "ip link del rackproof0" in found.findings[0].message
