"""Describe NVML's reasons for low clocks of a GPU, and mark the reasons that are a fault.

The parsers of nvidia-smi and of ``gpu_state`` events use this table. Its bits are those of
``nvmlClocksEventReasons`` (until driver 535 ``nvmlClocksThrottleReasons``) in NVML's reference. ``nvidia-smi
--query-gpu=clocks_event_reasons.active`` prints their sum: ``0x0000000000000048`` is a hardware slowdown
(0x8) by heat (0x40). The module does no I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class ClockReason:
    """A reason for low clocks.

    Attributes:
        bit: The bit of the reason in NVML's mask.
        name: The name in nvidia-smi's XML, without its prefix (``clocks_event_reason_``).
        words: The name in messages.
        is_slowdown: Whether it is a fault: the GPU slowed down because of heat or its power supply.
    """

    bit: int
    name: str
    words: str
    is_slowdown: bool = False


CLOCK_REASONS = (
    ClockReason(0x1, "gpu_idle", "idle"),
    ClockReason(0x2, "applications_clocks_setting", "clocks that a user set"),
    # This is no fault, because a healthy GPU under full load is at its power limit.
    ClockReason(0x4, "sw_power_cap", "power limit"),
    ClockReason(0x8, "hw_slowdown", "hardware slowdown", is_slowdown=True),
    ClockReason(0x10, "sync_boost", "in step with other GPUs"),
    ClockReason(0x20, "sw_thermal_slowdown", "software thermal slowdown", is_slowdown=True),
    ClockReason(0x40, "hw_thermal_slowdown", "hardware thermal slowdown", is_slowdown=True),
    ClockReason(0x80, "hw_power_brake_slowdown", "power brake", is_slowdown=True),
    ClockReason(0x100, "display_clocks_setting", "clocks of a display"),
)
_ALL_BITS = sum(reason.bit for reason in CLOCK_REASONS)
_MASK = re.compile(r"0x[0-9a-fA-F]{1,16}")


def read_mask(text: str) -> int | None:
    """Return the number in a mask like ``0x0000000000000048``, or None for another text."""
    return int(text, 16) if _MASK.fullmatch(text) else None


def slowdowns_of(bits: int) -> tuple[ClockReason, ...]:
    """Return the reasons among some bits that are a fault of cooling or power."""
    return tuple(reason for reason in CLOCK_REASONS if reason.is_slowdown and bits & reason.bit)


def unknown_bits(bits: int) -> int:
    """Return the bits of unknown reasons, whose meaning must be looked up."""
    return bits & ~_ALL_BITS
