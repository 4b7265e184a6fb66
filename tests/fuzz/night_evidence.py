"""Remove evidence from nights: ``python tests/fuzz/night_evidence.py --mutations 10000 --seed 30``.

The program takes a healthy machine of the corpus (real nights with their right verdicts), adds a fault, and
then makes a field of the snapshot or a tool's answer absent, empty, not a number, cut off, failed or hung.
The verdict must not become better: a verdict that gates must still gate, and a degraded node must not pass. A
failure may become unproven, because its evidence is gone.
"""

from __future__ import annotations

import argparse
import math
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from rackproof.core.records import Verdict, worst
from rackproof.jobs.validate.inventory import parse_node_expectation
from rackproof.nodes.health_checks import check_node, check_sku
from rackproof.nodes.health_subjects import Expectation
from rackproof.nodes.kernel_log import HardwareEvent, XidEvent
from rackproof.nodes.night_evidence import GPU_EVIDENCE, NODE_EVIDENCE, PORT_EVIDENCE, TOOL_EVIDENCE
from rackproof.nodes.snapshot import GpuSnapshot, NodeSnapshot, PortSnapshot, build_snapshot
from tests.corpus import judging

Update = dict[str, Any]
# States of a tool without an answer, fields that may be missing, and lists that are empty on healthy nodes.
STATUSES = ("", "absent", "not_asked", "failed", "hung", "empty")
_HARMLESS = {row.name for row in (*NODE_EVIDENCE, *GPU_EVIDENCE, *PORT_EVIDENCE) if row.harmless}
_LISTS_THAT_MAY_BE_EMPTY = {"throttled", "repairs_pending"}


@dataclass(frozen=True)
class Base:
    """A healthy machine and the expectations of its SKU."""

    name: str
    snapshot: NodeSnapshot
    expected: Expectation


@cache
def bases() -> tuple[Base, ...]:
    """Return the healthy nights of the corpus that pass."""
    found = []
    for name in judging.case_names():
        case = judging.read_case(name)
        if case.kind != "night" or not case.healthy or case.expected.verdict is not Verdict.PASS:
            continue
        variables = judging.sku_variables(case.sku) | case.variables
        (machine,) = case.nodes.values()
        answer = judging.machine_answer(machine)["health"]
        answer = {**answer, "node": {**answer["node"], "clock": {"asked_at": 1.0, "epoch": 1.0}}}
        expected = {
            "gpus": variables.get("bench_sku_gpus", 0),
            "services": ["slurmd"],
            **variables.get("validate_expect", {}),
        }
        snapshot = build_snapshot("n1", answer, sku=variables.get("bench_sku", ""))
        answered = ("slurm_controller", "slurmd_status", "fabricmanager", "units")
        seen = {"reaches_slurm": True, "slurm_name": "n1", "services": {"slurmd.service": "active"}}
        tools = {**snapshot.tools, **dict.fromkeys(answered, "ok")}
        snapshot = snapshot.model_copy(update={"tools": tools, **seen})
        found.append(Base(name, snapshot, parse_node_expectation("n1", expected)))
    return tuple(found)


def _gpu(**update: Any) -> Callable[[NodeSnapshot], Update]:
    return lambda seen: {"gpus": (seen.gpus[0].model_copy(update=update), *seen.gpus[1:])}


def _port(**update: Any) -> Callable[[NodeSnapshot], Update]:
    return lambda seen: {"ports": tuple(port.model_copy(update=update) for port in seen.ports)}


# Faults by name, each as a function that returns the changed fields of a snapshot.
FAULTS: Mapping[str, Callable[[NodeSnapshot], Update]] = {
    "none": lambda seen: {},
    "sram": _gpu(sram_uncorrectable=3),
    "sram threshold": _gpu(sram_threshold=True),
    "dram": _gpu(dram_uncorrectable=2),
    "ecc off": _gpu(ecc_enabled=False),
    "bar1": _gpu(bar1_mib=256.0),
    "applications clock": _gpu(applications_clock_mhz=345.0),
    "compute mode": _gpu(compute_mode="Exclusive_Process"),
    "persistence mode": _gpu(persistence_mode="Disabled"),
    "ecc off later": _gpu(ecc_enabled_next=False),
    "remap": _gpu(remap_pending=True),
    "remap failed": _gpu(remap_failure=True),
    "repair": _gpu(repairs_pending=("tpc",)),
    "mig": _gpu(mig=True),
    "recovery": _gpu(recovery_action="GPU Reset"),
    "unknown recovery": _gpu(recovery_action="Sing"),
    "pcie": _gpu(pcie_width=4),
    "lost lanes": _gpu(pcie_width=8, pcie_width_max=8),
    "lost generation": _gpu(pcie_generation=2, pcie_generation_max=2),
    "lost memory": _gpu(memory_total_bytes=1 << 30),
    "lost serial number": _gpu(serial="S9"),
    "lost speed of links": lambda seen: _gpu(link_gb_s=dict.fromkeys(seen.gpus[0].links, 1.0))(seen),
    "lost mount": lambda seen: {"lost_mounts": ("/data",)},
    "throttled": _gpu(throttled=("sw_thermal_slowdown",)),
    "too hot": _gpu(temperature_c=101.0),
    "memory hot": _gpu(memory_c=96.0),
    "power": _gpu(power_limit_w=300.0),
    "xid": lambda seen: {"xids": (XidEvent(bus_id="0", xid=79, action="reboot"),)},
    "kernel": lambda seen: {
        "hardware_events": (HardwareEvent(code="unknown_kernel_error", verdict=Verdict.UNPROVEN, text="x"),)
    },
    "memlock": lambda seen: {"memlock_bytes": 65536},
    "shm": lambda seen: {"shm_bytes": 1 << 20},
    "clock": lambda seen: {"clock_offset_s": 99.0},
    "clock free": lambda seen: {"clock_synchronized": False},
    "unit": lambda seen: {"failed_units": ("a.service",)},
    "service": lambda seen: {"services": {"slurmd.service": "failed"}},
    "slurm": lambda seen: {"reaches_slurm": False},
    "slurm name": lambda seen: {"slurm_name": "n2"},
    "disk": lambda seen: {"disk": {"/": {"total_bytes": 100.0, "free_bytes": 1.0, "read_only": 0.0}}},
    "slow driver": lambda seen: {"seconds": {**seen.seconds, "nvidia_smi_xml": 9.0}},
    "gpu list": lambda seen: {"attached_gpus": 99},
    "port": _port(rate_gbps=1.0),
    "port down": _port(state="down"),
}  # fmt: skip

# The fields that build_snapshot leaves empty without a tool's answer.
_GONE: Mapping[str, Callable[[NodeSnapshot], Update]] = {
    "nvidia_smi_xml": lambda seen: {"gpus": (), "attached_gpus": None},
    "nvlink_status": lambda seen: {
        "gpus": tuple(gpu.model_copy(update={"links": {}, "link_gb_s": {}}) for gpu in seen.gpus)
    },
    "nvlink_errors": lambda seen: {
        "gpus": tuple(gpu.model_copy(update={"link_errors": None}) for gpu in seen.gpus)
    },
    "kernel_log": lambda seen: {"xids": (), "hardware_events": ()},
    "failed_units": lambda seen: {"failed_units": None},
    "units": lambda seen: {"services": None, "idle_units": ()},
    "clock": lambda seen: {"clock_synchronized": None},
    "slurm_controller": lambda seen: {"reaches_slurm": None},
    "slurmd_status": lambda seen: {"slurm_name": None},
}


def _values_instead(annotation: Any, name: str) -> list[Any]:
    """Return values that a field has without evidence: nothing, or values that are impossible."""
    kinds = set(typing.get_args(annotation)) if isinstance(annotation, types.UnionType) else {annotation}
    values: list[Any] = [None] if type(None) in kinds else []
    plain = {typing.get_origin(kind) or kind for kind in kinds}
    if plain & {int, float}:
        values += [math.nan, math.inf, -math.inf] if float in plain else []
        values += [-5] if name not in ("margin_c", "clock_offset_s", "memlock_bytes") else []
    if str in plain:
        values.append("")
    if dict in plain:
        values.append({})
    if tuple in plain and name not in _LISTS_THAT_MAY_BE_EMPTY | {"failed_units", "mounts"}:
        values.append(())
    return values


def _taken_from(record: Any, chance: Random) -> tuple[str, Update]:
    fields = type(record).model_fields
    names = [
        name for name in fields if name not in _HARMLESS and _values_instead(fields[name].annotation, name)
    ]
    name = chance.choice(names)
    value = chance.choice(_values_instead(fields[name].annotation, name))
    return f"{type(record).__name__}.{name} = {value!r}", {name: value}


def mutate(seen: NodeSnapshot, chance: Random) -> tuple[str, NodeSnapshot]:
    """Return what was removed from a snapshot, and the snapshot without it."""
    kind = chance.choice(("tool", "tool", "cut", "node", "gpu", "gpu", "gpu", "port"))
    if kind == "tool":
        asked = [row.name for row in TOOL_EVIDENCE if not row.harmless and row.name != "statfs"]
        tool, status = chance.choice(asked), chance.choice(STATUSES)
        update = {"tools": {**seen.tools, tool: status}, **_GONE.get(tool, lambda _: {})(seen)}
        return f"{tool}: {status or 'not asked'}", seen.model_copy(update=update)
    if kind == "cut":
        tool = chance.choice(sorted(seen.tools))
        update = {"truncated": (*seen.truncated, tool), **_GONE.get(tool, lambda _: {})(seen)}
        return f"{tool}: cut", seen.model_copy(update=update)
    if kind in ("gpu", "port") and (parts := seen.gpus if kind == "gpu" else seen.ports):
        at = chance.randrange(len(parts))
        what, update = _taken_from(parts[at], chance)
        changed: tuple[GpuSnapshot | PortSnapshot, ...]
        changed = (*parts[:at], parts[at].model_copy(update=update), *parts[at + 1 :])
        return what, seen.model_copy(update={f"{kind}s": changed})
    what, update = _taken_from(seen, chance)
    return what, seen.model_copy(update=update)


def verdict_of(seen: NodeSnapshot, previous: NodeSnapshot | None, expected: Expectation) -> Verdict:
    """Return the judge's verdict of a node for a night. A node that no check can process is unproven."""
    try:
        found = [*check_sku(seen, expected), *check_node(seen, previous=previous, expected=expected)]
    except Exception:  # as the judge does: a node that cannot be judged is unproven
        return Verdict.UNPROVEN
    return worst([one.verdict for one in found] or [Verdict.PASS])


def try_mutation(chance: Random) -> str:
    """Remove a part of a snapshot. Return the verdict that became better, in words, or ''."""
    base = chance.choice(bases())
    name = chance.choice(sorted(FAULTS))
    # A machine without ports cannot have a slow one, and a container has the clock of its host.
    if (not base.snapshot.ports and name.startswith("port")) or (
        base.snapshot.container and name == "clock free"
    ):
        name = "none"
    previous = chance.choice((None, base.snapshot))
    seen = base.snapshot.model_copy(update=FAULTS[name](base.snapshot))
    before = verdict_of(seen, previous, base.expected)
    taken = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        what, seen = mutate(seen, chance)
        taken.append(what)
    after = verdict_of(seen, previous, base.expected)
    is_better = (before.gates and not after.gates) or (before is Verdict.DEGRADED and after is Verdict.PASS)
    return f"{base.name}, {name}: {before.value} -> {after.value} by {taken}" if is_better else ""


def try_mutations(seed: int, count: int) -> list[str]:
    """Return the verdicts that became better, in words, each with its seed."""
    tried = ((number, try_mutation(Random(f"{seed}/{number}"))) for number in range(count))
    return [f"{seed}/{number}: {better}" for number, better in tried if better]


def main() -> int:
    """Run and report. The exit status is 1 if a verdict became better."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=30)
    options = parser.parse_args()
    better = try_mutations(options.seed, options.mutations)
    print("\n".join(better[:40]))
    print(
        f"{options.mutations:,} mutations of {len(bases())} healthy nights with {len(FAULTS)} faults, seed "
        f"{options.seed}: {len(better)} better verdicts"
    )
    return 1 if better else 0


if __name__ == "__main__":
    sys.exit(main())
