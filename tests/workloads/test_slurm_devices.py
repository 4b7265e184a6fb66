"""Test how workloads/slurm_run.py finds devices that a container lacks, and the NVLink domain of a node.

A script prints network adapters, their device files, IMEX channels and GPUs, once on each node and once in a
container there. A container without one of them would be slow, or its ranks could not meet. The tests compare
made-up answers, and run the script on a made-up node.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import ModuleType

import pytest

# The devices of a node by kind: adapters, their device files, IMEX channels, and GPUs.
FULL = "mlx5_0 mlx5_1 |rdma_cm uverbs0 uverbs1 |channel0 |nvidia0 nvidia1 nvidia2 nvidia3 |"


def answers(**nodes: str) -> str:
    """Return the output of the script on nodes."""
    return "".join(f"DEVICES|{node}|{cells}\n" for node, cells in nodes.items())


@pytest.mark.parametrize(
    ("inside", "lacking"),
    [
        (FULL, []),
        # A container with more devices than the node lacks none.
        (FULL.replace("channel0", "channel0 channel1"), []),
        (FULL.replace("mlx5_0 mlx5_1 ", ""), ["network adapters mlx5_0, mlx5_1"]),
        (FULL.replace("mlx5_1 ", ""), ["network adapters mlx5_1"]),
        (FULL.replace("uverbs1 ", ""), ["adapters' device files uverbs1"]),
        (FULL.replace("rdma_cm ", ""), ["adapters' device files rdma_cm"]),
        (FULL.replace("channel0 ", ""), ["IMEX channels channel0"]),
        (FULL.replace("nvidia3 ", ""), ["GPUs nvidia3"]),
        ("||||", ["network adapters", "adapters' device files", "IMEX channels", "GPUs"]),
    ],
)
def test_what_a_container_lacks_is_named_by_kind(
    slurm_run: ModuleType, inside: str, lacking: list[str]
) -> None:
    found = slurm_run.devices_lacking(["n1", "n2"], answers(n1=FULL, n2=FULL), answers(n1=FULL, n2=inside))
    assert len(found) == len(lacking), found
    for text, words in zip(found, lacking, strict=True):
        assert text.startswith(f"n2: a container lacks the {words}")
        assert "enroot's hook 9" in text


@pytest.mark.parametrize(
    ("nodes", "containers", "silent"),
    [
        ("", "", "n1, n2"),
        (answers(n1=FULL), answers(n1=FULL, n2=FULL), "n2"),
        (answers(n1=FULL, n2=FULL), answers(n1=FULL), "n2"),
        (answers(n1=FULL, n2=FULL), answers(n2=FULL) + "DEVICES|n1|mlx5_0", "n1"),
        (answers(n1=FULL, n2=FULL), answers(n1=FULL) + answers(**{"": FULL}), "n2"),
        ("Permission denied", answers(n1=FULL, n2=FULL), "n1, n2"),
    ],
)
def test_the_devices_of_a_node_with_incomplete_output_are_not_known(
    slurm_run: ModuleType, nodes: str, containers: str, silent: str
) -> None:
    assert slurm_run.devices_lacking(["n1", "n2"], nodes, containers) == [
        f"{silent}: the devices of a container there are not known"
    ]


def test_a_node_without_adapters_lacks_none(slurm_run: ModuleType) -> None:
    bare = "|||nvidia0 |"
    assert slurm_run.devices_lacking(["n1"], answers(n1=bare), answers(n1=bare)) == []


@pytest.mark.parametrize("tool", [True, False])
def test_the_script_prints_the_devices_of_a_node(slurm_run: ModuleType, tmp_path: Path, tool: bool) -> None:
    for name in (
        "dev/infiniband/uverbs0",
        "dev/infiniband/uverbs1",
        "dev/infiniband/rdma_cm",
        "dev/infiniband/umad0",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in ("nvidia-caps-imex-channels/channel0", "nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "dev" / name).touch()
    (tmp_path / "sys/class/infiniband/ibp27s0").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    if tool:
        program = tmp_path / "bin/ibv_devinfo"
        program.write_text("#!/bin/sh\nprintf '2 HCAs found:\\n\\tmlx5_1\\n\\tmlx5_0\\n\\n'\n")
        program.chmod(0o755)
    text = slurm_run.DEVICES.replace(" /dev", f" {tmp_path}/dev").replace(" /sys", f" {tmp_path}/sys")
    done = subprocess.run(
        ["/bin/sh", "-c", text.replace("2> " + str(tmp_path), "2> ")],
        env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "SLURMD_NODENAME": "n7"},
        capture_output=True,
        text=True,
        check=True,
    )
    adapters = {"mlx5_0", "mlx5_1"} if tool else {"ibp27s0"}
    assert slurm_run.read_devices(done.stdout) == {
        "n7": [adapters, {"uverbs0", "uverbs1", "rdma_cm"}, {"channel0"}, {"nvidia0", "nvidia3"}]
    }


SMI = """\
    Fabric
        State                                          : Completed
        Status                                         : {}
        CliqueId                                       : {}
        ClusterUUID                                    : {}
        Health
            Summary                                    : N/A
"""
UUID, NO_UUID = "5f0e7d2c-9a41-4c55-8d1b-3c6a2f90e7b4", "00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    ("gpus", "listed", "state", "found", "is_one"),
    [
        # The fabric of each GPU, IMEX's list of nodes, its state, what the script finds, and whether the node
        # is in an NVLink domain.
        ([("Success", "32766", UUID)] * 4, "10.0.0.1\n", "READY", (f"{UUID}/32766", "810ab5", "READY"), True),
        (
            [("Success", "1", UUID), ("Success", "2", UUID)],
            "",
            "READY",
            (f"{UUID}/1 {UUID}/2", "", "READY"),
            False,
        ),
        # An HGX, and an NVL72 whose switches have no fabric manager, report no UUID.
        ([("Success", "0", NO_UUID)] * 8, "", "", (f"{NO_UUID}/0", "", ""), False),
        ([("N/A", "N/A", "N/A")], "x\n", "DOWN", ("N/A/N/A", "73cb38", "DOWN"), False),
        ([], "", "", ("", "", ""), False),
    ],
)
def test_the_script_prints_which_domain_a_node_is_in(
    slurm_run: ModuleType,
    tmp_path: Path,
    gpus: list[tuple[str, str, str]],
    listed: str,
    state: str,
    found: tuple[str, str, str],
    is_one: bool,
) -> None:
    text = "".join(SMI.format(*gpu) for gpu in gpus)
    for name, said in (("nvidia-smi", text), ("nvidia-imex-ctl", f"{state}\n" if state else "")):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{said}END\n")
        program.chmod(0o755)
    if listed:
        (tmp_path / "nodes_config.cfg").write_text(listed)
    done = subprocess.run(
        ["/bin/bash", "-c", slurm_run.DOMAIN.replace("/etc/nvidia-imex", str(tmp_path))],
        env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "SLURMD_NODENAME": "n7"},
        capture_output=True,
        text=True,
        check=True,
    )
    ((node, (groups, digest, imex)),) = slurm_run.read_domains(done.stdout).items()
    assert (node, groups, digest[:6], imex) == ("n7", *found)
    assert slurm_run.is_domain(groups) == is_one
