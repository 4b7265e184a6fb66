"""Test how a night reads the kernel log of a node (nodes/kernel_log.py).

A line of a journal has its time since 1970, and a line of dmesg the seconds since the kernel's start. A
container is younger than its kernel.
"""

from __future__ import annotations

import pytest

from rackproof.nodes.kernel_log import read_kernel_log

BOOTED = 1_795_000_000.0
PORTS = [
    "mlx5_core 0000:3b:00.0 ens1f0: Link {}",
    "ice 0000:5e:00.0 eth0: NIC Link is {}",
    "tg3 0000:02:00.0 eno3: Link is {}",
]


def dmesg(seconds: float, text: str) -> str:
    return f"[{seconds:12.6f}] {text}"


def journal(seconds: float, text: str) -> str:
    return f"{BOOTED + seconds:.6f} n1 kernel: {text}"


def unknown(lines: list[str], booted: float = BOOTED, *, is_container: bool = False) -> int:
    """Return the number of unknown errors in a log."""
    reading = read_kernel_log("\n".join(lines), booted, {}, is_container=is_container)
    return sum(event.times for event in reading.hardware if event.code == "unknown_kernel_error")


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("form", [dmesg, journal])
@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ([(12.5, "Down"), (14.5, "Up")], 0),
        ([(12.5, "Down"), (14.5, "Up"), (40.0, "Down"), (42.0, "Up")], 0),
        ([(12.5, "Down")], 0),
        ([(12.5, "Up")], 0),
        ([(5000.0, "Down"), (5002.0, "Up")], 1),
        ([(12.5, "Up"), (800.0, "Down")], 1),
        ([(5000.0, "Down")], 1),
    ],
)
def test_a_port_that_goes_down_while_the_node_starts_is_harmless(
    port: str, form: object, changes: list[tuple[float, str]], lost: int
) -> None:
    lines = [form(seconds, port.format(way)) for seconds, way in changes]  # type: ignore[operator]
    assert unknown(lines) == lost


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("booted", [BOOTED, 0.0])
def test_the_times_of_dmesg_need_no_time_of_the_boot(port: str, booted: float) -> None:
    assert unknown([dmesg(12.5, port.format("Down")), dmesg(14.5, port.format("Up"))], booted) == 0


@pytest.mark.parametrize("port", PORTS)
def test_the_times_of_dmesg_are_unknown_in_a_container(port: str) -> None:
    lines = [dmesg(12.5, port.format("Down")), dmesg(14.5, port.format("Up"))]
    assert unknown(lines, is_container=True) == 1


@pytest.mark.parametrize("port", PORTS)
def test_a_clock_that_is_set_back_changes_no_order(port: str) -> None:
    assert unknown([journal(30.0, port.format("Down")), journal(5.0, port.format("Up"))]) == 0
    assert unknown([journal(30.0, port.format("Up")), journal(5.0, port.format("Down"))]) == 1


@pytest.mark.parametrize("port", PORTS)
def test_lines_of_dmesg_after_those_of_a_journal_are_earlier(port: str) -> None:
    """The node adds lines of dmesg that its journal lacks."""
    up, down = dmesg(14.5, port.format("Up")), journal(800.0, port.format("Down"))
    assert unknown([down, up]) == 1
    assert unknown([journal(42.0, port.format("Up")), dmesg(12.5, port.format("Down"))]) == 0
