"""Test the wait for a node's ports and NVLink fabric before its health is gathered (rackproof_settling).

After a boot, ports of InfiniBand train and then wait for a subnet manager, and GPUs join their NVLink fabric.
A healthy node needs a minute or more for both, and a snapshot before that would fail the node.
"""

from __future__ import annotations

import importlib
import threading
import time
from pathlib import Path
from typing import Any

import ansible.module_utils
import pytest

ROOT = Path(__file__).resolve().parents[2]
WANTED = {"seconds": 30, "after": "now", "fabric": True, "ports": 2, "port_layer": "InfiniBand"}


@pytest.fixture
def settling(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(
        ansible.module_utils, "__path__", [*ansible.module_utils.__path__, str(ROOT / "plugins/module_utils")]
    )
    module = importlib.import_module("ansible.module_utils.rackproof_settling")
    monkeypatch.setattr(module, "PAUSE_S", 0.01)
    return module


def smi(monkeypatch: pytest.MonkeyPatch, settling: Any, *answers: str, status: str = "ok") -> list[str]:
    """Let nvidia-smi give these answers one after another, and the last one from then on. Return the rest."""
    rest = list(answers)

    def answer(argv: list[str], _timeout_s: float) -> dict[str, Any]:
        assert argv[0] == "nvidia-smi"
        return {"status": status, "stdout": rest.pop(0) if len(rest) > 1 else rest[0]}

    monkeypatch.setattr(settling, "ask", answer)
    return rest


def cards(folder: Path, *ports: tuple[str, str]) -> str:
    """Make the ports of cards, each of a state and a layer. Return the folder of cards."""
    for index, (state, layer) in enumerate(ports):
        port = folder / f"mlx5_{index}/ports/1"
        port.mkdir(parents=True, exist_ok=True)
        (port / "state").write_text(f"{state}\n")
        (port / "link_layer").write_text(f"{layer}\n")
    return str(folder)


ACTIVE = ("4: ACTIVE", "InfiniBand")
ETHERNET = ("4: ACTIVE", "Ethernet")


def test_a_fabric_in_progress_is_waited_for(
    settling: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rest = smi(
        monkeypatch, settling, "In Progress\nCompleted\n", "Not Started\nCompleted\n", "Completed\n" * 2
    )
    settled = settling.settle(WANTED, cards(tmp_path, ACTIVE, ACTIVE), time.time(), 5)
    assert settled["unready"] == []
    assert settled["awaited"] == ["the NVLink fabric of 1 of 2 GPUs"]
    assert len(rest) == 1


def test_ports_are_waited_for_until_as_many_are_active_as_the_sku_has(
    settling: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    smi(monkeypatch, settling, "Completed\n")
    # The port of a BlueField is active at once, and stands in for no InfiniBand port.
    folder = cards(tmp_path, ACTIVE, ("2: INIT", "InfiniBand"), ETHERNET)
    timer = threading.Timer(0.2, lambda: cards(tmp_path, ACTIVE, ACTIVE, ETHERNET))
    timer.start()
    settled = settling.settle(WANTED, folder, time.time(), 5)
    timer.join()
    assert settled["awaited"] == ["1 of 2 ports are active"]
    assert settled["unready"] == []
    assert settled["waited_s"] >= 0.15


@pytest.mark.parametrize(
    ("ports", "unready"),
    [
        ([ACTIVE, ("1: DOWN", "InfiniBand")], ["1 of 2 ports are active"]),
        ([ACTIVE, ACTIVE, ("3: ARMED", "InfiniBand")], ["ports mlx5_2/1"]),
        # A port without a readable layer counts, as it does when the node is judged.
        ([ACTIVE, ("4: ACTIVE", "")], []),
    ],
)
def test_the_wait_ends_and_names_what_is_not_ready(
    settling: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    ports: list[tuple[str, str]],
    unready: list[str],
) -> None:
    smi(monkeypatch, settling, "Completed\n")
    wanted = {**WANTED, "seconds": 0.1}
    assert settling.settle(wanted, cards(tmp_path, *ports), time.time(), 5)["unready"] == unready


@pytest.mark.parametrize(
    ("port", "other_ports", "unready"),
    [
        # A port of Ethernet is never in a starting state, so the active ones are counted.
        (("1: DOWN", "Ethernet"), 1, ["0 of 1 other ports are active"]),
        (("1: DOWN", "Ethernet"), 0, []),
        (ETHERNET, 1, []),
        # It may have been active in earlier nights, although the SKU does not need it.
        (("2: INIT", "InfiniBand"), 0, ["ports mlx5_2/1"]),
    ],
)
def test_ports_of_other_networks_are_waited_for(
    settling: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    port: tuple[str, str],
    other_ports: int,
    unready: list[str],
) -> None:
    smi(monkeypatch, settling, "Completed\n")
    devices = ["mlx5_0", "mlx5_1"]
    wanted = {**WANTED, "seconds": 0.1, "other_ports": other_ports, "port_devices": devices}
    folder = cards(tmp_path, ACTIVE, ACTIVE, port)
    assert settling.settle(wanted, folder, time.time(), 5)["unready"] == unready


def test_the_product_data_of_a_card_is_read_once(
    settling: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    vpd = tmp_path / "vpd"
    vpd.write_text("")
    assert settling.manages_nvswitches(str(tmp_path)) is None
    vpd.write_text("SW_MNG")
    assert settling.manages_nvswitches(str(tmp_path)) is True
    monkeypatch.setattr(settling, "read", lambda *_: pytest.fail("read again"))
    assert settling.manages_nvswitches(str(tmp_path)) is True


def test_a_node_that_has_been_up_for_longer_is_not_waited_for(
    settling: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    smi(monkeypatch, settling, "In Progress\n")
    folder, wanted = cards(tmp_path), {**WANTED, "after": "boot"}
    settled = settling.settle(wanted, folder, time.time() - 31, 5)
    assert settled == {"waited_s": 0.0, "awaited": [], "unready": []}
    assert settling.settle(wanted, folder, time.time() - 29.9, 5)["unready"]


def test_a_tool_without_an_answer_is_not_waited_for(
    settling: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    smi(monkeypatch, settling, "", status="hung")
    settled = settling.settle(WANTED, cards(tmp_path, ACTIVE, ACTIVE), time.time(), 5)
    assert (settled["awaited"], settled["unready"]) == ([], [])


def test_a_tool_that_is_stuck_in_the_driver_is_run_once(
    settling: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[str] = []

    def hang(argv: list[str], _timeout_s: float) -> dict[str, Any]:
        calls.append(argv[0])
        return {"status": "hung", "stuck": True, "stdout": ""}

    monkeypatch.setattr(settling, "ask", hang)
    wanted = {**WANTED, "seconds": 0.1}
    settled = settling.settle(wanted, cards(tmp_path, ACTIVE), time.time(), 5)
    assert settled["unready"] == ["1 of 2 ports are active"]
    assert calls == ["nvidia-smi"]
