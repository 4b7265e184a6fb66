"""What changed in a node's hardware between two records of it. Pure.

Silence is no sameness: a part that one of the two records does not list where it could not be asked is said
to be unproven, never unchanged.
"""

from __future__ import annotations

from typing import Literal

from rackproof.records import Node, Record, Verdict
from rackproof.text import clean, size

MEMORY_SLACK = 0.02
"""Kernels reserve differing shares of memory; a missing DIMM is far more than that."""


class Change(Record):
    """One difference. ``before`` and ``after`` are as the records say; empty is not there."""

    part: str
    kind: Literal["swapped", "missing", "new", "moved", "differs", "unproven"]
    verdict: Verdict | None = None
    before: str = ""
    after: str = ""

    def text(self) -> str:
        """Return the change as a person reads it."""
        was, now = clean(self.before, 120) or "nothing", clean(self.after, 120) or "nothing"
        if self.kind == "unproven":
            return f"{self.part}: not known {'before' if not self.before else 'after'}, so not compared"
        words = {
            "swapped": f"swapped: was {was}, is {now}",
            "missing": f"missing: was {was}",
            "new": f"new: {now}",
            "moved": f"moved: {was} to {now}",
            "differs": f"was {was}, is {now}",
        }
        return f"{self.part} {words[self.kind]}"


def compare(before: Node | None, after: Node) -> tuple[Change, ...]:
    """Return what changed, the worst first.

    A missing part and another machine fail; a swapped GPU and other firmware are reported and do not.

    Args:
        before: The record before imaging; None where there was none.
        after: The record of the node as it is.
    """
    if before is None:
        return (Change(part="hardware", kind="unproven", after="recorded"),)
    found: list[Change] = []
    if before.serial and after.serial and before.serial != after.serial:
        found.append(
            Change(
                part="serial number",
                kind="differs",
                verdict=Verdict.FAIL,
                before=before.serial,
                after=after.serial,
            )
        )
    elif bool(before.serial) != bool(after.serial):
        found.append(Change(part="serial number", kind="unproven", before=before.serial, after=after.serial))
    found += _gpus(before, after)
    found += _memory(before, after)
    found += _firmware(before, after)
    rank = {Verdict.FAIL: 0, Verdict.UNPROVEN: 1}
    return tuple(sorted(found, key=lambda one: rank.get(one.verdict, 2) if one.verdict else 2))


def _gpus(before: Node, after: Node) -> list[Change]:
    if not before.gpus or not after.gpus:
        # Without its driver a node lists no GPU at all: then nothing was asked, and nothing is missing.
        if not before.gpus and not after.gpus:
            return []
        lost = bool(before.gpus)
        return [
            Change(
                part="GPUs",
                kind="unproven",
                verdict=Verdict.UNPROVEN if lost else None,
                before=f"{len(before.gpus)} GPUs" if lost else "",
                after="" if lost else f"{len(after.gpus)} GPUs",
            )
        ]
    found: list[Change] = []
    # A slot is where a GPU sits on the bus; where the bus is not told, its number.
    was = {gpu.bus_id or str(gpu.index): gpu for gpu in before.gpus}
    now = {gpu.bus_id or str(gpu.index): gpu for gpu in after.gpus}
    stood = {gpu.uuid: slot for slot, gpu in was.items()}
    for slot, gpu in was.items():
        other = now.get(slot)
        label = f"GPU {gpu.index} ({slot})"
        if other is None:
            if gpu.uuid not in {one.uuid for one in after.gpus}:
                found.append(Change(part=label, kind="missing", verdict=Verdict.FAIL, before=gpu.uuid))
        elif other.uuid != gpu.uuid:
            if other.uuid in stood:
                found.append(
                    Change(part=f"GPU {other.uuid}", kind="moved", before=stood[other.uuid], after=slot)
                )
            else:
                found.append(Change(part=label, kind="swapped", before=gpu.uuid, after=other.uuid))
        elif gpu.vbios and other.vbios and gpu.vbios != other.vbios:
            found.append(
                Change(part=f"{label} firmware", kind="differs", before=gpu.vbios, after=other.vbios)
            )
    for slot, gpu in now.items():
        if slot in was:
            continue
        if gpu.uuid in stood:
            found.append(Change(part=f"GPU {gpu.uuid}", kind="moved", before=stood[gpu.uuid], after=slot))
        else:
            found.append(Change(part=f"GPU {gpu.index} ({slot})", kind="new", after=gpu.uuid))
    return found


def _memory(before: Node, after: Node) -> list[Change]:
    was, now = before.memory_bytes, after.memory_bytes
    if not was or not now:
        return []
    if abs(now - was) <= MEMORY_SLACK * was:
        return []
    less = now < was
    return [
        Change(
            part="memory",
            kind="differs",
            verdict=Verdict.FAIL if less else None,
            before=size(was),
            after=size(now),
        )
    ]


def _firmware(before: Node, after: Node) -> list[Change]:
    found = []
    for name in sorted({*before.firmware, *after.firmware} - {"vbios"}):
        was, now = before.firmware.get(name, ""), after.firmware.get(name, "")
        if was == now:
            continue
        label = f"firmware {clean(name, 60)}"
        if was and now:
            found.append(Change(part=label, kind="differs", before=was, after=now))
        else:
            found.append(Change(part=label, kind="missing" if was else "new", before=was, after=now))
    return found
