"""What slurm_run.py finds that a container lacks of devices: the script on a node, two answers compared."""

from __future__ import annotations

import importlib
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

FULL = "mlx5_0 mlx5_1 |rdma_cm uverbs0 uverbs1 |channel0 |nvidia0 nvidia1 nvidia2 nvidia3 |"


@pytest.fixture
def slurm_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(root / "workloads")
    return importlib.import_module("slurm_run")


def answers(**nodes: str) -> str:
    return "".join(f"DEVICES|{node}|{cells}\n" for node, cells in nodes.items())


@pytest.mark.parametrize(
    ("inside", "complaints"),
    [
        (FULL, []),
        # More than the node has is nothing that is lacking.
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
    slurm_run: ModuleType, inside: str, complaints: list[str]
) -> None:
    found = slurm_run.devices_lacking(["n1", "n2"], answers(n1=FULL, n2=FULL), answers(n1=FULL, n2=inside))
    assert len(found) == len(complaints), found
    for text, words in zip(found, complaints, strict=True):
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
def test_a_node_without_a_whole_answer_is_not_known(
    slurm_run: ModuleType, nodes: str, containers: str, silent: str
) -> None:
    assert slurm_run.devices_lacking(["n1", "n2"], nodes, containers) == [
        f"{silent}: what devices a container has there is not known"
    ]


def test_a_node_without_adapters_lacks_none(slurm_run: ModuleType) -> None:
    bare = "|||nvidia0 |"
    assert slurm_run.devices_lacking(["n1"], answers(n1=bare), answers(n1=bare)) == []


@pytest.mark.parametrize("tool", [True, False])
def test_the_script_prints_what_there_is(slurm_run: ModuleType, tmp_path: Path, tool: bool) -> None:
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
