"""Test how an existing Slurm cluster's nodes are read for `rackproof adopt` (nodes/slurm_listing.py).

The input is slurm.conf and gres.conf, or the output of scontrol or sinfo. A line that cannot be read is named
in a remark. A node with an incomplete line may have GPUs, so it does not count as a node without GPUs.
"""

from __future__ import annotations

import re

import pytest

from rackproof.nodes.slurm_gres import read_gres
from rackproof.nodes.slurm_listing import SlurmListingError, join_slurm_texts, lost_nodes, read_slurm_listing

CONF = """# slurm.conf
SlurmctldHost=ctl(10.0.0.1)
SlurmctldHost=ctl2
NodeName=DEFAULT Sockets=2 CoresPerSocket=56 ThreadsPerCore=2 RealMemory=2000000
NodeName=n[01-02] NodeAddr=10.0.0.[11-12] Gres=gpu:h100:8 \\
   Feature=h100,ib State=UNKNOWN
NodeName=c1 Gres=(null)  # no GPU
PartitionName=gpu Nodes=n[01-02] Default=YES
PartitionName=all Nodes=ALL
Include extra.conf
"""
SCONTROL = """NodeName=n01 Arch=x86_64 CoresPerSocket=56
   CPUAlloc=0 CPUTot=224 CPULoad=1.2
   AvailableFeatures=(null)
   ActiveFeatures=hgx
   Gres=gpu:h100:8(S:0-1)
   NodeAddr=n01 NodeHostName=n01.dc Version=23.11.4
   OS=Linux 5.15.0-94-generic #104-Ubuntu SMP Tue Jan 9 15:25:40 UTC 2024
   RealMemory=2063937 Sockets=2 Boards=1
   State=IDLE+DRAIN ThreadsPerCore=2
   Partitions=gpu,debug
   Reason=NodeName=x Gres=gpu:b200:4 Partitions=stolen [root@2026-01-01T00:00:00]

NodeName=n02 Arch=x86_64 Gres=gpu:h100:8 OS=Linux 6 #1 SMP RealMemory=1 State=IDLE Partitions=gpu

SlurmctldHost[0]        = ctl1(10.0.0.1)
SlurmctldHost[1]        = ctl2
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[01-02]
SwitchName=s1 Level=1 LinkSpeed=1 Nodes=n[01-02] Switches=s0
"""


def test_a_configuration_is_read() -> None:
    listing = read_slurm_listing(CONF, "slurm.conf")
    n01, n02, c1 = listing.nodes
    assert (n01.name, n01.address, n02.address) == ("n01", "10.0.0.11", "10.0.0.12")
    assert n01.gpus == {"h100": 8}
    assert n01.features == ("h100", "ib")
    assert n01.partitions == ("gpu", "all")
    assert c1.gpus == {}
    assert c1.partitions == ("all",)
    # CPUs are not stated. Like slurmctld, the reader multiplies sockets, cores and threads.
    assert n01.sizes["cpus"] == 224
    assert listing.controller == "ctl"
    assert "Include extra.conf" in listing.remarks[0]


def test_output_of_scontrol_is_read_except_the_text_of_a_reason() -> None:
    listing = read_slurm_listing(SCONTROL, "scontrol")
    n01, n02 = listing.nodes
    assert n01.gpus == {"h100": 8}
    assert n01.partitions == ("gpu", "debug")
    assert (n01.hostname, n01.features, n01.switch) == ("n01.dc", ("hgx",), "s0")
    assert n01.sizes == {
        "cpus": 224,
        "sockets": 2,
        "cores_per_socket": 56,
        "threads": 2,
        "real_memory_mb": 2063937,
    }
    # The kernel's "#1" in the line of n02 begins no comment.
    assert n02.partitions == ("gpu",)
    assert listing.controller == "ctl1"


def test_lines_of_sinfo_are_read() -> None:
    listing = read_slurm_listing("n01|gpu*|gpu:b200:8|(null)\nn01|debug|gpu:b200:8|(null)\n", "sinfo")
    assert listing.nodes[0].gpus == {"b200": 8}
    assert listing.nodes[0].partitions == ("gpu", "debug")


def test_the_block_of_a_node_is_read_like_its_switch() -> None:
    blocks = (
        "NodeName=n[1-4]\nBlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\n"
        "BlockName=b2 BlockIndex=1 Nodes=n[3-4] BlockSize=2\n"
        "AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-4] BlockSize=4\n"
    )
    listing = read_slurm_listing(blocks, "scontrol")
    assert [node.switch for node in listing.nodes] == ["b1", "b1", "b2", "b2"]


# `known` is whether the text shows that the node has no GPU.
@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("NodeName=n1 Arch=x86_64 CoresPerSocket=56\n   CPUAlloc=0 CPUTot=224", False),
        ("NodeName=n1 CoresPerSocket=1\n   CPUAlloc=0 CPUTot=1\n   Gres=(null)\n", True),
        ("NodeName=n1 Arch=x86_64\nNodeName=n1 Gres=(null)", True),
        ("NodeName=n1 CPUs=4", True),
        ("NodeName=n1 Gres=gpu:0", True),
        ("NodeName=n1 Gres=shard:0", True),
        ("NodeName=n1 Gres=craynetwork:1", True),
        ("NodeName=n1 Gres = (null) CPUs = 4", True),
        ('NodeName=n1 CPUs=4 Reason="its fan failed" State=DOWN', True),
        # Parts of GPUs are on a node with GPUs.
        ("NodeName=n1 Gres=shard:8", False),
        ("NodeName=n1 Gres=shard:h200:32", False),
        ("NodeName=n1 Gres=mps:400", False),
        ("NodeName=n1 Gres=(null) CfgTRES=cpu=4,gres/shard=32", False),
        # A word that is no key with a value is the place where the entry is cut off.
        ("NodeName=n1 CPUs=64 RealMem", False),
        ("NodeName=n1 CPUs=64 RealMemConfiguration data as of 2026-01-01", False),
        ("NodeName=n1 CPUs=64 Gre", False),
        ("NodeName=n1 CPUs=64 Gres=", False),
        ("NodeName=n1 CPUs=64 RealMemory=\n", False),
        ("NodeName=n1 CPUs=64 Gres= gpu:h200:8", False),
        ("NodeName=n1 CPUs=64 \\\n", False),
        ("NodeName=DEFAULT CPUs=64 Gr\nNodeName=n1 State=UNKNOWN\n", False),
        ("NodeName=n1 Gres=gpu", False),
        ("NodeName=n1 Gres=nic:2,gpu:h10", False),
    ],
)
def test_a_node_whose_gres_is_cut_off_may_have_gpus(text: str, known: bool) -> None:
    (node,) = read_slurm_listing(text, "nodes.txt").nodes
    assert (node.gpus, node.gpus_known) == ({}, known)


# A file that ends in the middle of its last line may lack the GPUs of the last node.
@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("NodeName=n1 CPUs=64", False),
        ("NodeName=n1", False),
        ("NodeName=n1 CPUs=64 Gres=", False),
        ("NodeName=n1 CPUs=64 Gres=gp", False),
        ("NodeName=n1 CPUs=64 Gres=craynetwork:1,g", False),
        ("NodeName=n1 CoresPerSocket=56\n   CPUAlloc=0 CPUTot=224 Gres=(nul", False),
        ("NodeName=n1 CoresPerSocket=56", False),
        ("NODELIST|GRES\nn1|", False),
        ("NODELIST|GRES\nn1|(null)", True),
        ("NodeName=n1 CPUs=64 Gres=(null)", True),
        ("NodeName=n1 CPUs=64\n", True),
        ("NodeName=n1 CPUs=64\nPartitionName=p Nodes=n1", True),
    ],
)
@pytest.mark.parametrize("after", [(), ("SwitchName=s1 Nodes=n1\n",)])
def test_a_node_on_a_last_line_without_an_end_may_have_gpus(
    text: str, known: bool, after: tuple[str, ...]
) -> None:
    listing = read_slurm_listing(join_slurm_texts([text, *after]), "nodes.txt")
    (node,) = listing.nodes
    assert (node.name, node.gpus, node.gpus_known) == ("n1", {}, known)
    if text.startswith("NodeName"):
        assert [remark for remark in listing.remarks if "n1: the entry is cut off" in remark] == (
            [] if known else list(listing.remarks[:1])
        )


SCONTROL_ENTRY = """NodeName={node} {arch}CoresPerSocket=32
   CPUAlloc=0 CPUTot=64 CPULoad=0.1
   AvailableFeatures=(null)
   Gres=gpu:h200:8
   NodeAddr={node} NodeHostName={node}
   OS=Linux 5.15.0 #104-Ubuntu SMP
   Reason=its fan failed [root@2026-01-01T00:00:00]

"""
GRES_LINES = "NodeName=g1 Name=gpu Type=h200 File=/dev/nvidia[0-7]\nNodeName=g2 Name=gpu Type=h200 Count=8\n"


@pytest.mark.parametrize(
    "whole",
    [
        "NodeName=g1 Gres=gpu:h200:8 CPUs=64\nNodeName=g2 CPUs=64 RealMemory=1000 Gres=gpu:h200:16 State=X\n",
        'NodeName=g1 CPUs=64 \\\n  Gres=gpu:h200:8\nNodeName=g2 Reason="its fan" \\\n  Gres=gpu:h200:8 \n',
        f"NodeName=g[1-2] Gres=gpu:8\n{GRES_LINES}",
        GRES_LINES,
        SCONTROL_ENTRY.format(node="g1", arch="Arch=x86_64 ") + SCONTROL_ENTRY.format(node="g2", arch=""),
        SCONTROL_ENTRY.format(node="g1", arch="").replace("\n  ", "") + "NodeName=g2 Gres=gpu:8\n",
        "NODELIST|GRES|PARTITION\ng1|gpu:h200:8|p\ng2|gpu:h200:8|p\n",
        "NODELIST|PARTITION|GRES\ng1|p|gpu:h200:8\ng2|p|gpu:h200:8\n",
        "g1|p|gpu:h200:8|f\ng2|p|gpu:h200:8|f\n",
    ],
)
def test_no_cut_of_a_file_hides_that_a_node_has_gpus(whole: str) -> None:
    for end in range(len(whole) + 1):
        try:
            nodes = read_slurm_listing(join_slurm_texts([whole[:end]]), "nodes.txt").nodes
        except SlurmListingError:
            continue
        hidden = [node.name for node in nodes if not node.gpus and node.gpus_known]
        assert hidden == [], whole[:end]


def test_a_whole_file_without_a_last_line_break_is_read_as_before() -> None:
    for text in (CONF, SCONTROL):
        whole = read_slurm_listing(text, "x")
        assert read_slurm_listing(join_slurm_texts([text.rstrip()]), "x") == whole
    (node,) = read_slurm_listing(join_slurm_texts(["NodeName=n1 Gres=gpu:h200:8"]), "x").nodes
    assert (node.gpus, node.gpus_known) == ({"h200": 8}, True)


# Slurm refuses a slurm.conf that has a node twice. Files of several days or sources may differ.
@pytest.mark.parametrize(
    ("text", "remark"),
    [
        (
            "NodeName=g2 Gres=gpu:h200:4\nNodeName=g[1-3] Gres=gpu:h200:8\n",
            "g2: Gres has several values (gpu:h200:4, later gpu:h200:8)",
        ),
        (
            "NodeName=g[1-2] Gres=gpu:h100:8\nNodeName=g[1-2] Gres=gpu:h200:8\n",
            "g[1-2]: Gres has several values (gpu:h100:8, later gpu:h200:8)",
        ),
        ("NodeName=g1 Gres=(null)\nNodeName=g1 Gres=gpu:8\n", "g1: Gres has several values ((null), later"),
        ("NodeName=g1 Gres=gpu:8\nNodeName=g1 Gres=(null)\n", "g1: Gres has several values (gpu:8, later"),
        ("NodeName=g1 Gres=gpu:h200:8\ng1|p|gpu:h200:4|a\n", "g1: Gres has several values"),
        ("NodeName=g1 NodeAddr=10.0.0.1\nNodeName=g1 NodeAddr=10.0.0.2\n", "g1: NodeAddr has several"),
        ("NodeName=g1 RealMemory=1000\nNodeName=g1 RealMemory=2000\n", "g1: RealMemory has several"),
        ("NodeName=g1 Gres=gpu:8\nNodeName=g1 Gres=gpu:h200:8(S:0-1) Arch=x86_64\n", ""),
        ("NodeName=g1 Gres=gpu:h200:8 State=UNKNOWN\nNodeName=g1 Arch=x Gres=gpu:H200:8 State=IDLE\n", ""),
        ("NodeName=g1 CPUs=4\nNodeName=g1 Arch=x86_64 CPUTot=8 Gres=gpu:h200:8 NodeAddr=g1\n", ""),
        ("n1|p|gpu:8|a\nn1|q|gpu:8(S:0)|a\n", ""),
        ("NodeName=n1 Gres=gpu:8\nNODELIST|PARTITION\nn1|q\n", ""),
    ],
)
def test_several_values_of_one_key_are_named(text: str, remark: str) -> None:
    listing = read_slurm_listing(text, "slurm.conf")
    named = [one for one in listing.remarks if "has several values" in one]
    assert len(named) == bool(remark)
    assert all(one.startswith(f"slurm.conf: {remark}") for one in named)


def test_blanks_before_a_sign_do_not_hide_gpus() -> None:
    (node,) = read_slurm_listing("NodeName = n1 CPUs = 4 Gres = gpu:h200:8 NodeAddr =10.0.0.1\n", "x").nodes
    assert (node.gpus, node.address, node.sizes) == ({"h200": 8}, "10.0.0.1", {"cpus": 4})


@pytest.mark.parametrize("text", ["gpu:" + "x" * 100_000, "gpu:" * 30_000, "(" * 100_000, "gpu:(" * 30_000])
def test_a_long_gres_is_read_quickly(text: str) -> None:
    # A quadratic search takes minutes.
    assert read_gres(text) == {}
    (node,) = read_slurm_listing(f"NodeName=n1 Gres={text}", "nodes.txt").nodes
    assert node.gpus == {}


@pytest.mark.parametrize("words", ["name=x", "AutoDetect=nvml", "Name=gpu Type=h100 File=/dev/nvidia0"])
@pytest.mark.parametrize("key", ["Reason", "Comment", "Extra"])
def test_a_reason_is_no_line_of_gres_conf(words: str, key: str) -> None:
    listing = read_slurm_listing(f"NodeName=n1 Gres=gpu:h100:8 {key}=drained for {words}", "nodes.txt")
    assert [(node.name, node.gpus) for node in listing.nodes] == [("n1", {"h100": 8})]


@pytest.mark.parametrize("line", ["NodeName[0]=n2", "NodeSet[0]=some Nodes=n1", "SwitchName[0]=s Nodes=n1"])
def test_a_numbered_statement_is_named_and_not_read(line: str) -> None:
    listing = read_slurm_listing(f"NodeName=n1 Gres=gpu:8\n{line}\n", "nodes.txt")
    assert [node.name for node in listing.nodes] == ["n1"]
    assert any(f"{line}: this line is not read" in remark for remark in listing.remarks)


@pytest.mark.parametrize("line", ["n2[01|gpu|gpu:8|a", "n2|gpu|gpu:8|a|b", "n2|gpu"])
def test_a_damaged_line_of_sinfo_is_named(line: str) -> None:
    listing = read_slurm_listing(f"n1|gpu|gpu:8|a\n{line}\n", "nodes.txt")
    assert [node.name for node in listing.nodes] == ["n1"]
    assert any(line in remark for remark in listing.remarks)


def test_a_set_of_nodes_is_in_its_partition() -> None:
    listing = read_slurm_listing(
        "NodeName=n[1-3] Feature=big\nNodeName=n4\nNodeSet=some Nodes=n[1-2]\nNodeSet=large Feature=big\n"
        "PartitionName=p Nodes=some,n4\nPartitionName=q Nodes=large,ghost",
        "slurm.conf",
    )
    assert [node.partitions for node in listing.nodes] == [("p", "q"), ("p", "q"), ("q",), ("p",)]
    assert "partitions name ghost that" in listing.remarks[0]


# The GPUs by type, "" if the type is not stated. A total (gpu=8) includes the GPUs with a type.
@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpu:h100:8(S:0-1),nic:2", {"h100": 8}),
        ("gpu:8", {"": 8}),
        ("gpu=8", {"": 8}),
        ("cpu=224,mem=2T,billing=1,gres/gpu=8,gres/gpu:h100=8", {"h100": 8}),
        ("gres/gpu=16,gres/gpu:nvidia_b200=4", {"nvidia_b200": 4, "": 12}),
        ("gres/gpu:a100=2,gres/gpu=4,gres/gpu:h100=1", {"a100": 2, "h100": 1, "": 1}),
        ("gres/gpu=4,gres/gpu:a100=2,gres/gpu:h100=2", {"a100": 2, "h100": 2}),
        ("gpu:nvidia_h100_80gb_hbm3:4,gpu:a100:2", {"nvidia_h100_80gb_hbm3": 4, "a100": 2}),
        ("gpu:tesla:no_consume:4", {"tesla": 4}),
        ("gpu:1g.10gb:14", {"1g.10gb": 14}),
        ("shard:40", {}),
        ("gpu:0", {}),
        ("(null)", {}),
        ("", {}),
    ],
)
def test_generic_resources_are_read(text: str, gpus: dict[str, int]) -> None:
    assert read_gres(text) == gpus


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lists no node"),
        ('{"nodes": []}', "lists no node"),
        ("ClusterName=a\nInclude nodes.conf\n", "not read: Include nodes.conf; name these files, too"),
        ("PARTITION AVAIL NODES STATE NODELIST\ngpu* up 2 idle n[1-2]\n", "sinfo --Node --noheader"),
        ("NodeName=n[1-999999] Gres=gpu:8", "not a range of up to 10,000"),
        ("NodeName=n[1-200][1-200]", "more than 10,000 hosts"),
        ("NodeName=n[01-", "a bracket has no partner"),
        ("NodeName=n1\nPartitionName=p Nodes=n[x-y]", "is not a range of numbers"),
        ("".join(f"NodeName=n{at}[1-9999]\n" for at in range(2)), "more than 10,000 nodes"),
    ],
)
def test_a_text_without_usable_nodes_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(SlurmListingError, match=re.escape(message)):
        read_slurm_listing(text, "file.txt")


def test_a_node_that_only_a_partition_names_is_a_remark() -> None:
    listing = read_slurm_listing("NodeName=n1\nPartitionName=p Nodes=n1,ghost", "x")
    assert "ghost" in listing.remarks[0]


@pytest.mark.parametrize(
    "line",
    [
        "NodeName=n1 CPUs=4\t# Gres=gpu:4",
        "NodeName=n1 CPUs=4 # Gres=gpu:4",
        "NodeName=n1 CPUs=4# Gres=gpu:4",
        "# a comment does not continue \\\nNodeName=n1 CPUs=4",
        "#NodeName=n2 Gres=gpu:4\nNodeName=n1 CPUs=4",
    ],
)
def test_a_comment_is_ignored(line: str) -> None:
    (n1,) = read_slurm_listing(line, "slurm.conf").nodes
    assert (n1.name, n1.gpus, n1.sizes["cpus"]) == ("n1", {}, 4)


GRES_CONF = "NodeName=n[1-2] Name=gpu Type=h100 File=/dev/nvidia[0-7]\n"


@pytest.mark.parametrize(
    ("conf", "gres_conf", "gpus"),
    [
        ("Gres=gpu:8", GRES_CONF, {"h100": 8}),
        ("Gres=gpu:8", "AutoDetect=nvml\nName=gpu Type=H100 File=/dev/nvidia[0-7]", {"h100": 8}),
        ("Gres=gpu:8", "NodeName=n1 AutoDetect=nvml", {"": 8}),
        ("Gres=gpu:8", "Name=gpu Type=h100 File=/dev/nvidia0\n" * 8, {"h100": 8}),
        ("Gres=gpu:8", "Name=gpu Type=a Count=4\nName=gpu Type=b Count=4", {"a": 4, "b": 4}),
        # Two types whose numbers contradict slurm.conf are not used.
        ("Gres=gpu:8", "Name=gpu Type=a Count=4\nName=gpu Type=b Count=2", {"": 8}),
        ("Gres=gpu:h200:8", GRES_CONF, {"h200": 8}),
        ("CPUs=4", GRES_CONF, {"h100": 8}),
        # A line without nodes is for the nodes that have GPUs.
        ("CPUs=4", "Name=gpu Type=h100 File=/dev/nvidia[0-7]", {}),
        ("Gres=gpu:8", "Name=mps Count=400", {"": 8}),
    ],
)
def test_the_types_of_gres_conf_are_read(conf: str, gres_conf: str, gpus: dict[str, int]) -> None:
    (n1,) = (
        node
        for node in read_slurm_listing(f"NodeName=n[1-2] {conf}\n\n{gres_conf}", "two files").nodes
        if node.name == "n1"
    )
    assert n1.gpus == gpus


@pytest.mark.parametrize(
    ("text", "known", "gpus"),
    [
        (GRES_CONF, True, {"h100": 8}),
        ("NodeName=n[1-2] AutoDetect=nvml", False, {}),
        ("NodeName=n[1-2] Name=gpu", False, {}),
    ],
)
def test_gres_conf_alone_never_states_that_a_node_has_no_gpu(
    text: str, known: bool, gpus: dict[str, int]
) -> None:
    listing = read_slurm_listing(text, "gres.conf")
    assert [(node.name, node.gpus_known, node.gpus) for node in listing.nodes] == [
        ("n1", known, gpus),
        ("n2", known, gpus),
    ]
    assert "only nodes with GPUs" in listing.remarks[0]


def test_a_node_of_gres_conf_that_slurm_does_not_have_is_left_out() -> None:
    listing = read_slurm_listing(f"NodeName=n1 Gres=gpu:8\n{GRES_CONF}", "both")
    assert [node.name for node in listing.nodes] == ["n1"]
    assert "left out: n2" in listing.remarks[0]


@pytest.mark.parametrize(
    "text",
    [
        "NODELIST|PARTITION|GRES|AVAIL_FEATURES\nn1|gpu*|gpu:h100:8(S:0-1)|ib\nn2|gpu*|gpu:h100:8(S:0-1)|ib",
        "n[1-2]|gpu*|gpu:h100:8(S:0-1)|ib",
        "n1,n2|gpu|gpu:h100:8|ib",
        "HOSTNAMES |GRES |PARTITION |STATE |AVAIL_FEATURES |ACTIVE_FEATURES \n"
        "n1 |gpu:h100:8 |gpu |idle |x |ib\nn2 |gpu:h100:8 |gpu |idle |x |ib",
    ],
)
def test_the_heading_of_sinfo_states_the_order_and_no_node_is_lost(text: str) -> None:
    listing = read_slurm_listing(text, "sinfo")
    assert [(node.name, node.gpus, node.partitions, node.features) for node in listing.nodes] == [
        (name, {"h100": 8}, ("gpu",), ("ib",)) for name in ("n1", "n2")
    ]


@pytest.mark.parametrize(
    "line",
    ["n1|gpu:h100:8(S:0-1)|gpu*|(null)", "cpu|n[1-4]|(null)|(null)", "n1|gpu|idle|gpu:h100:8"],
)
def test_fields_of_sinfo_in_another_order_are_refused(line: str) -> None:
    with pytest.raises(SlurmListingError, match="have no heading"):
        read_slurm_listing(line, "sinfo")


def test_nodes_of_sinfo_without_resources_may_have_gpus() -> None:
    (n1,) = read_slurm_listing("NODELIST|PARTITION\nn1|gpu\n", "sinfo").nodes
    assert not n1.gpus_known


@pytest.mark.parametrize(
    ("members", "names"),
    [
        ("ALL,-n2", ["n1", "n3", "n4"]),
        ("all,-n[2-3]", ["n1", "n4"]),
        ("n[1-3],-n3", ["n1", "n2"]),
        ("half,-n1", ["n2"]),
        ("ALL,-half", ["n3", "n4"]),
    ],
)
def test_a_partition_leaves_out_names_after_a_minus(members: str, names: list[str]) -> None:
    text = f"NodeName=n[1-4]\nNodeSet=half Nodes=n[1-2]\nPartitionName=p Nodes={members}\n"
    listing = read_slurm_listing(text, "slurm.conf")
    assert [node.name for node in listing.nodes if node.partitions] == names
    assert listing.remarks == ()


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ("FUTURE", "FUTURE"),
        ("CLOUD", "cloud"),
        ("IDLE+CLOUD+POWERED_DOWN", "cloud"),
        ("IDLE+CLOUD", ""),
        ("UNKNOWN", ""),
        ("DOWN*", ""),
    ],
)
def test_nodes_that_need_not_exist_are_a_remark(state: str, word: str) -> None:
    listing = read_slurm_listing(f"NodeName=n[1-4] State={state}\n", "slurm.conf")
    assert len(listing.nodes) == 4
    assert word in " ".join(listing.remarks)
    assert bool(listing.remarks) == bool(word)


@pytest.mark.parametrize("key", ["NodeAddr", "NodeHostname", "nodeaddr"])
def test_addresses_that_do_not_match_the_number_of_nodes_are_a_remark(key: str) -> None:
    listing = read_slurm_listing(f"NodeName=n[1-4] {key}=h1 Port=[17001-17004]\n", "slurm.conf")
    assert "names 1 host for 4 nodes" in listing.remarks[0]


@pytest.mark.parametrize(
    ("line", "host", "address"),
    [
        ("SlurmctldHost=ctl(10.0.0.1)", "ctl", "10.0.0.1"),
        ("SlurmctldHost[0]        = ctl(10.0.0.1)", "ctl", "10.0.0.1"),
        ('SlurmctldHost="ctl(ctl.example.com)"', "ctl", "ctl.example.com"),
        ("SlurmctldHost=ctl", "ctl", ""),
    ],
)
def test_the_address_of_slurmctld_is_read(line: str, host: str, address: str) -> None:
    listing = read_slurm_listing(f"{line}\nSlurmctldHost=b(10.0.0.2)\nNodeName=n1\n", "slurm.conf")
    assert (listing.controller, listing.controller_address) == (host, address)


@pytest.mark.parametrize("text", ["GPU:H100:8", "Gpu:h100:8(S:0-1)", "gpu:H100:8"])
def test_gpus_are_read_in_upper_and_lower_case(text: str) -> None:
    assert read_gres(text) == {"h100": 8}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("", ""),
        ("ClusterName=c\nNodeName=DEFAULT CPUs=4\n", ""),
        ("NodeName=n1 CPUs=4\nnodename=n[2-3]\nPartitionName=p Nodes=ALL\n", ""),
        ("NodeName=n[1-5] \\\n  CPUs=4\n# NodeName=n9\nNodeName=m1\n", "ctl:slurm.conf has m1,n[4-5]"),
        ('Epilog=/a|b|c\nNodeName=n7 Reason="a|b"\n', "ctl:slurm.conf has n7"),
        ("NodeName=n1\nInclude nodes.conf\n", "ctl:slurm.conf includes nodes.conf, which was not read"),
        ("NodeName=n[1-\n", "ctl:slurm.conf: n[1- is not a list of hosts"),
    ],
)
def test_nodes_that_a_new_slurm_conf_would_lose_are_named(text: str, answer: str) -> None:
    found = lost_nodes(text, "ctl:slurm.conf", ["n1", "n2", "n3", "n8"])
    assert found.startswith(answer)
    assert bool(found) == bool(answer)
