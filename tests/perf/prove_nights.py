# ruff: noqa: E402  (what the unit tests simulate is imported from where it lies)
"""Prove that nights find faults: run the code of validate.yml on a simulated rack with faults.

    python tests/perf/prove_nights.py [--nights 50] [--healthy 1000] [--links 10] [--seed 1] [--docs FILE]

Eighteen nodes answer as `rackproof_facts` does and measure as the probes do, behind a Slurm that is a
function. Gathering, measuring, judging, history and draining are the package's own code. Each faulty night
has one fault or two, in turn, on random nodes and GPUs. Numbers vary from night to night as nine runs on one
H100 did, and differ between GPUs as those of four H200 did (docs/results). A fault counts as found when its
node fails in the same night, for the right reason, on the right GPU. The fault of a link must be named within
17 nights. A false alarm is any other node that fails, is unproven though it answered, or is to be drained. In
one of a hundred jobs of a node, one GPU is slow by chance, which must not drain the node. The program prints
a Markdown table. Its exit status is not 0 after a false alarm or a fault that was not found.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import yaml

from rackproof.core.records import Verdict
from rackproof.jobs.validate import judge, probes, tasks
from rackproof.jobs.validate.fleet.pairing import nights_needed
from rackproof.nodes.answer_seal import sealed_answer
from rackproof.nodes.probe_slurm_jobs import JobRunner
from rackproof.store.night_store import NodeNight, night_folders, read_night
from rackproof.store.probe_results import ProbeNight, read_probes
from tests.jobs.validate.nights import uuid
from tests.jobs.validate.probes import Slurm, line, log, measurement, pair_says, plan, section
from tests.jobs.validate.test_health_nights import DAY, FAULTS, RACK, START, Rack

GPUS = 4
BEGIN, END = "<!-- proven nights -->", "<!-- end: proven nights -->"
NODE_S, PAIR_S = 89.0, 30.0
"""Seconds of a node's job (measured with all probes on two H100) and of a pair's (assumed)."""
REPEATS = json.loads((ROOT / "docs/results/h100-x1-repeats.json").read_text())["measured"]
SWING = {
    name: [value / statistics.median(one["values"]) for value in one["values"]]
    for name, one in REPEATS.items()
}
# Nights measure no fp8. fleet/probe_jobs.py explains why.
TYPICAL = {
    name: (statistics.median(one["values"]), one["unit"])
    for name, one in REPEATS.items()
    if name != "gemm_best fp8"
}
BETWEEN = {"gemm_best bf16": 0.001, "host_to_device": 0.0004, "device_to_host": 0.0004}
"""Relative spread between four H200 of one host, for the numbers in which they clearly differ."""
FABRIC_SPREAD = 0.006
"""Relative spread of the bandwidth of a pair of nodes."""
BY_CHANCE = 0.01
"""Assumed share of the jobs in which one GPU is slow once, without a fault."""
REFERENCES = yaml.safe_load((ROOT / "inventory/group_vars/sku_h100.yml").read_text())["bench_sku_references"]
# Faults that measurements find: a name for the fault, and the code of the reason. All but the last two name
# the GPU.
MEASURED = {
    "GPU 12 % slow in products": ("slow", "floor:gemm_best dtype=bf16"),
    "memory of a GPU 12 % slow": ("memory", "floor:memory_copy"),
    "host link of a GPU at half speed": ("host", "floor:host_to_device"),
    "wrong values": ("wrong", "probe:gemm wrong_values"),
    "silent corruption in training": ("bits", "bits:training step"),
    "a probe dies": ("dies", "probe:job"),
    "a node's network": ("fabric", "pair:fabric"),
}


class Clock(datetime):
    """A clock that is ``shift`` ahead, so that each night has a day of its own."""

    shift = timedelta(0)

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        """Return the present time plus ``shift``."""
        return datetime.now(tz) + cls.shift


@dataclass
class Tally:
    """The outcome of the nights with one kind of fault."""

    there: int = 0
    found: int = 0
    nights: int = 0


@dataclass
class Count:
    """The outcome of all nights."""

    kinds: dict[str, Tally] = field(default_factory=dict)
    alarms: list[str] = field(default_factory=list)
    degraded: int = 0
    healthy: int = 0
    minutes: list[float] = field(default_factory=list)
    by_chance: int = 0
    again: int = 0


class Proven(Rack):
    """A rack whose nodes also run the jobs of a night's measurements."""

    def __init__(self, results: Path, seed: int) -> None:
        super().__init__(results, seed)
        self.chips = {
            (number, slot, name): self.dice.gauss(1, BETWEEN.get(name, 0.0002))
            for number in range(18)
            for slot in range(GPUS)
            for name in TYPICAL
        }
        self.by_chance: set[str] = set()

    def node_says(self, number: int, wrong: dict[int, str]) -> str:
        """Return the output of a node's job. ``wrong`` has the fault of a GPU, by its place."""
        if "dies" in wrong.values():
            return section("python", "") + section("gemm", "CUDA error: an illegal memory access", 1)
        hit = {"slow": ("gemm_best", 0.88), "memory": ("memory", 0.88), "host": ("host_to_device", 0.5)}

        def speeds(*names: str) -> list[str]:
            said = []
            for name in names:
                metric, _, dtype = name.partition(" ")
                typical, unit = TYPICAL[name]
                for slot in range(GPUS):
                    what, factor = hit.get(wrong.get(slot, ""), ("none", 1.0))
                    value = typical * self.chips[number, slot, name] * self.dice.choice(SWING[name])
                    value *= factor if metric.startswith(what) else 1.0
                    labels = {"gpu": uuid(number, slot)} | ({"dtype": dtype} if dtype else {})
                    said.append(measurement(metric, value, unit, "higher", **labels))
            for slot in range(GPUS):
                count = 3 if wrong.get(slot) == "wrong" else 0
                said.append(measurement("wrong_values", count, "1", "lower", gpu=uuid(number, slot)))
            return said

        steps = [
            line(
                "training_digest",
                {
                    "digest": ("b" if wrong.get(slot) == "bits" else "a") * 64,
                    "loss": 1.0,
                    "alike": "H100, torch 2",
                    "labels": {"gpu": uuid(number, slot)},
                },
            )
            for slot in range(GPUS)
        ]
        return "\n".join(
            [
                section("python", ""),
                section("gemm", log(*speeds("gemm_best bf16"))),
                section("memory", log(*speeds("memory_copy", "memory_triad"))),
                section("host-device", log(*speeds("host_to_device", "device_to_host"))),
                section("training-step", log(*steps)),
            ]
        )

    def proven_night(
        self,
        health: dict[int, tuple[Any, int]],
        wrong: dict[int, dict[int, str]],
        link: frozenset[str] = frozenset(),
        chosen: tuple[str, ...] = ("gemm", "memory", "host-device", "training-step", "fabric"),
    ) -> tuple[dict[str, NodeNight], list[str], ProbeNight]:
        """Make a night. Return its nodes, the links between them that fail, and its measurements."""
        self.by_chance.clear()
        Clock.shift = timedelta(days=self.night)
        night = tasks.begin_night(self.results, RACK, owner_pid=os.getpid())
        epoch = START + self.night * DAY
        for number, name in enumerate(RACK):
            fault, slot = health.get(number, (None, -1))
            tasks.store_snapshot(
                night,
                name,
                sealed_answer(self.gathered(number, fault, slot)),
                asked=epoch - self.dice.uniform(0, 20),
                answered=epoch + 60,
                sku="h100",
                rack="r1",
                expected={
                    "gpus": 4,
                    # The answers are those of an H200, and the speeds are those of an H100.
                    "gpu_name": "H200",
                    "ports": 1,
                    "port_gbps": 400,
                    "mounts": ["/shared"],
                },
                references=REFERENCES,
            )
        self.night += 1

        def answer(nodes: tuple[str, ...]) -> tuple[str, int | None, float]:
            if len(nodes) == 1:
                number = RACK.index(nodes[0])
                mine = dict(wrong.get(number, {}))
                if self.dice.random() < BY_CHANCE and not mine:
                    mine[self.dice.randrange(GPUS)] = self.dice.choice(("slow", "memory", "host"))
                    self.by_chance.add(nodes[0])
                return self.node_says(number, mine), 0, NODE_S
            bad = any("fabric" in wrong.get(RACK.index(name), {}).values() for name in nodes)
            if link and link <= set(nodes):
                bad = True
            return pair_says(380 * self.dice.gauss(1, FABRIC_SPREAD) * (0.7 if bad else 1)), 0, PAIR_S

        slurm = Slurm(answer)
        states = {
            name: {
                "known": True,
                "state_after": "IDLE",
                "drained_by": "none",
                "jobs": [],
                "in_service": True,
            }
            for name in RACK
        }
        members = "".join(f"{name}|batch|none\n" for name in RACK)
        probes.measure_night(
            night,
            plan(minutes=500.0, chosen=chosen, node_limit_s=300, pair_limit_s=120),
            slurm=states,
            members=members,
            remark="",
            shell=slurm.shell,
            jobs=lambda *given: JobRunner(*given, clock=lambda: slurm.now, sleep=slurm.sleep),
        )
        judge.judge_fleet(
            night,
            asked=dict.fromkeys(RACK, "timed out"),
            benchmarks=ROOT / "benchmarks",
            being_imaged={},
            slurm=states,
            members=members,
            acts=["drain"],
            # Pairs have no reference until one is accepted, and are compared with each other.
            policy=judge.night_policy(require_references=False),
        )
        folder = night_folders(self.results)[0]
        made, probed = read_night(folder), read_probes(folder)
        assert probed is not None
        parts = [one.part for one in made.between if one.verdict is Verdict.FAIL]
        return {one.node: one for one in made.nodes}, parts, probed


def found(mine: NodeNight, kind: str, number: int, slot: int) -> bool:
    """Return whether a night names a fault: its node fails, for its reason, on its GPU."""
    if mine.verdict is not Verdict.FAIL:
        return False
    if kind in FAULTS:
        _, code, part = FAULTS[kind]
        return any(one.code == code and (not part or one.name == uuid(number, slot)) for one in mine.findings)
    what, code = MEASURED[kind]
    parts = [one.part for one in mine.reasons if one.code == code and one.verdict is Verdict.FAIL]
    return bool(parts) and (what in ("dies", "fabric") or any(uuid(number, slot) in one for one in parts))


def note(
    count: Count, rack: Proven, nodes: dict[str, NodeNight], probed: ProbeNight, bad: set[str], when: str
) -> None:
    """Count the verdicts of a night on nodes without fault, and the GPU-minutes that it took."""
    count.minutes.append(probed.spent)
    count.again += len(set(probed.again) - bad)
    count.by_chance += len(rack.by_chance - bad)
    for name, one in nodes.items():
        if name in bad:
            continue
        count.healthy += 1
        count.degraded += one.verdict is Verdict.DEGRADED
        if one.verdict.gates or one.plan == "drain":
            count.alarms.append(f"{when}: {name}: {one.verdict.value}: {'; '.join(one.reason_texts()[:2])}")


def healthy(count: Count, node_nights: int, seed: int, folder: Path) -> None:
    """Make nights without any fault."""
    rack = Proven(folder, seed)
    for _ in range(-(-node_nights // len(RACK))):
        nodes, between, probed = rack.proven_night({}, {})
        note(count, rack, nodes, probed, set(), "no fault")
        count.alarms += [f"no fault: between {one}" for one in between]


def faulty(count: Count, number: int, seed: int, folder: Path) -> None:
    """Make nights with one fault or two, every kind in turn and then at random."""
    dice, rack = random.Random(seed), Proven(folder, seed)
    kinds = [*sorted(FAULTS), *sorted(MEASURED)]
    for trial in range(number):
        some = dice.sample(kinds, 1 + trial % 2)
        if trial < len(kinds):
            some[0] = kinds[trial]
            some = list(dict.fromkeys(some))
        where = dice.sample(range(len(RACK)), len(some))
        slots = [dice.randrange(GPUS) for _ in some]
        health, wrong = {}, {}
        for kind, node, slot in zip(some, where, slots, strict=True):
            if kind in FAULTS:
                health[node] = (FAULTS[kind][0], slot)
            else:
                wrong[node] = {slot: MEASURED[kind][0]}
        nodes, between, probed = rack.proven_night(health, wrong)
        for kind, node, slot in zip(some, where, slots, strict=True):
            tally = count.kinds.setdefault(kind, Tally())
            tally.there += 1
            hit = found(nodes[RACK[node]], kind, node, slot)
            tally.found += hit
            tally.nights += hit
        note(count, rack, nodes, probed, {RACK[node] for node in where}, "+".join(some))
        count.alarms += [f"{'+'.join(some)}: between {one}" for one in between]
        # In the next night, the node is repaired.
        rack.proven_night({}, {})


def links(count: Count, number: int, seed: int, folder: Path) -> None:
    """Make nights in which the link between two nodes is slow, until a night names it."""
    dice = random.Random(seed)
    tally = count.kinds.setdefault("the link between two nodes", Tally())
    for trial in range(number):
        rack = Proven(folder / str(trial), seed + trial)
        link = frozenset(dice.sample(RACK, 2))
        tally.there += 1
        for night in range(1, nights_needed(len(RACK)) + 1):
            nodes, between, probed = rack.proven_night({}, {}, link, ("fabric",))
            note(count, rack, nodes, probed, set(), "link")
            count.alarms += [f"link: between {one}" for one in between if one != "+".join(sorted(link))]
            if "+".join(sorted(link)) in between:
                tally.found += 1
                tally.nights += night
                break


def table(count: Count) -> tuple[str, bool]:
    """Return the results of the nights as Markdown, and whether every fault was found."""
    lines = ["| fault | found | nights until found |", "| --- | --- | --- |"]
    for kind, one in sorted(count.kinds.items()):
        mean = f"{one.nights / one.found:.1f}" if one.found else "-"
        lines.append(f"| {kind} | {one.found}/{one.there} | {mean} |")
    there = sum(one.there for one in count.kinds.values())
    hits = sum(one.found for one in count.kinds.values())
    lines += [
        f"| **all** | **{hits}/{there}** | |",
        "",
        f"{count.healthy:,} node-nights without a fault: {len(count.alarms)} false alarms, {count.degraded} "
        f"degraded. {count.by_chance} times one was slow by chance, {count.again} times measured again. "
        f"GPU-minutes a night: {statistics.mean(count.minutes):.0f} in the mean, "
        f"{max(count.minutes):.0f} at most.",
    ]
    return "\n".join(lines), hits == there


def main() -> None:
    """Make the nights and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nights", type=int, default=50, help="nights with faults")
    parser.add_argument("--healthy", type=int, default=1000, help="node-nights without any fault, at least")
    parser.add_argument("--links", type=int, default=10, help="links, each up to 17 nights")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--docs", type=Path, help="write the table there, between its two marks")
    options = parser.parse_args()
    tasks.datetime = judge.datetime = probes.datetime = Clock  # type: ignore[misc, attr-defined]
    os.environ.pop("RACKPROOF_DATABASE_URL", None)
    os.fsync = lambda _: None  # no loss of power happens here
    count = Count()
    with tempfile.TemporaryDirectory(prefix="rackproof-nights-") as folder:
        healthy(count, options.healthy, options.seed, Path(folder) / "healthy")
        faulty(count, options.nights, options.seed, Path(folder) / "faulty")
        links(count, options.links, options.seed, Path(folder) / "links")
    text, whole = table(count)
    print(text)
    if options.docs:
        before, begin, rest = options.docs.read_text().partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise SystemExit(f"{options.docs} has no place for the table: {BEGIN} and {END}")
        options.docs.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
    if count.alarms or not whole:
        print(*count.alarms[:20], sep="\n", file=sys.stderr)
        raise SystemExit("false alarms, or a fault that was not found")


if __name__ == "__main__":
    main()
