"""Test which numbers probe_all_reduce.py sums, and how it finds out whether NCCL connects nodes by NVLink.

In an NVL72 rack, NVLink connects the GPUs of several nodes (MNNVL). If that fails, NCCL uses network cards
without a message, and the measured speed is that of the network. The probe therefore reads NCCL's log. A
clique is the set of ranks that NVLink connects, and the tests show that it must have all ranks.
"""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import ModuleType

import pytest

# Lines of NCCL's log: a GPU's fabric, the clique that a rank joined, and whether its communicator uses MNNVL.
BUS = (
    "n1:7:9 [0] NCCL INFO MNNVL busId 0x901000 fabric UUID 9a8b.1c2d cliqueId 0x7ffe state 3 healthMask 0x0\n"
)
JOINED = "n1:7:9 [0] NCCL INFO MNNVL 1 cliqueId 7ffe cliqueSize {} cliqueRank 0{}\n"
COMM = "n1:7:9 [0] NCCL INFO comm 0x55 rank 0 nRanks 8 nNodes 2 localRanks 4 localRank 0 MNNVL {}\n"


@pytest.fixture
def probe(root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return workloads/probe_all_reduce.py as a module."""
    monkeypatch.syspath_prepend(root / "workloads")
    return importlib.import_module("probe_all_reduce")


@pytest.mark.parametrize(("ranks", "largest"), [(2, 4), (72, 4), (200, 4), (201, 3), (1000, 1), (2000, 1)])
def test_sums_over_many_ranks_remain_exact(probe: ModuleType, ranks: int, largest: int) -> None:
    assert probe.largest_input(ranks) == largest
    assert 7 * math.sqrt(ranks * largest * (largest + 1) / 3) < 256


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (BUS + JOINED.format(8, "") + COMM.format(1), 8),
        (BUS + JOINED.format(8, " nvlDomainSize 8") + COMM.format(1), 8),
        (JOINED.format(72, ""), 72),
        # Two halves of a domain: each has a clique of its own.
        (BUS + JOINED.format(4, "") + COMM.format(1), 4),
        # Every node has a fabric, but NCCL uses network cards.
        (BUS + COMM.format(0), 0),
        ("n1:7:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE\n" + COMM.format(0), 0),
        ("MNNVL 1 cliqueId 7ffe cliqueSize many\n", 0),
        ("", 0),
    ],
)
def test_the_size_of_the_clique_is_read_from_the_log_of_nccl(probe: ModuleType, text: str, size: int) -> None:
    assert probe.mnnvl_clique(text) == size


def test_nccl_logs_to_a_private_file_of_each_rank(
    probe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        monkeypatch.setenv(name, "WARN")
    path = probe.enable_nccl_log(tmp_path)
    assert path.parent == tmp_path
    assert [probe.os.environ[name] for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS")] == ["INFO", "INIT"]
    assert probe.os.environ["NCCL_DEBUG_FILE"] == str(path)
    # No other user can write the log, or could have created it.
    assert path.stat().st_mode & 0o777 == 0o600
    assert probe.enable_nccl_log(tmp_path) != path
    assert str(probe.os.getpid()) not in path.name


@pytest.mark.parametrize(
    ("joined", "text"),
    [
        # Two cliques of 4: no rank is without NVLink.
        (4, "the clique of this rank has 4"),
        (0, "this rank has no clique"),
        (8, "another rank has a smaller clique or no log"),
    ],
)
def test_the_message_states_the_clique_of_the_rank(probe: ModuleType, joined: int, text: str) -> None:
    message = probe.describe_clique(joined, 8)
    assert f"NCCL does not connect all 8 ranks with NVLink between nodes ({text})" in message
    assert message.startswith(probe.socket.gethostname())
    assert "network card" not in message
