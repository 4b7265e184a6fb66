"""Test that a hostile node cannot change the verdict of another node, or hang the night.

A node may send huge or deep answers, wrong types, escape sequences, or serial numbers and GPUs of other
nodes. The night must judge the other two nodes of this small fleet as usual, in bounded time, and the hostile
node must fail or be unproven.
"""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from rackproof.core.text import sanitize
from rackproof.jobs.validate.probes import nodes_with_parts_of_others
from rackproof.nodes.answer_seal import sealed_answer
from rackproof.nodes.health_checks import MOST_FINDINGS
from rackproof.store.history.store import open_store
from rackproof.store.night_store import last_snapshot, night_folders, read_snapshot
from tests.jobs.validate.nights import uuid
from tests.jobs.validate.test_identity import FIRST, NODES, SECOND, THIRD, found, machine, night, verdicts

ESCAPES = "\x1b]0;title\x07\x1b[2J <!channel> \u202e"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


def tool(answer: dict[str, Any], name: str, text: str) -> None:
    """Replace the output of a tool."""
    tools = answer["health"]["tools"] if name in answer["health"]["tools"] else answer["facts"]["tools"]
    tools[name] = {
        **tools.get(name, {}),
        "status": "ok",
        "rc": 0,
        "stdout": text,
        "stderr": "",
        "truncated": False,
    }


# Each of these functions spoils an answer. `size` is the share of the largest size that is tried.


def links(answer: dict[str, Any], size: float = 1) -> None:
    lines = "".join(f"\t Link {number}: <inactive>\n" for number in range(int(12_800 * size)))
    tool(answer, "nvlink_status", f"GPU 0: H200 (UUID: {uuid(1, 0)})\n{lines}")


def ports(answer: dict[str, Any], size: float = 1) -> None:
    port = {"state": "1: DOWN", "phys_state": "2: Polling", "rate": "400 Gb/sec", "link_layer": "InfiniBand"}
    cards = range(int(100 * size))
    answer["health"]["hca"] = {f"mlx5_{card}": {str(one): port for one in range(128)} for card in cards}


def units(answer: dict[str, Any], size: float = 1) -> None:
    numbers = range(int(20_000 * size))
    lines = [f"\u25cf unit{one}.service loaded failed failed {ESCAPES}\n" for one in numbers]
    tool(answer, "failed_units", "".join(lines))


def long_answer(answer: dict[str, Any], size: float = 1) -> None:
    text = "1794999990.0 n kernel: NVRM: Xid (PCI:0000:06:00): 79, " + "x" * int((64 << 20) * size)
    tool(answer, "kernel_log", text)


def many_lines(answer: dict[str, Any], size: float = 1) -> None:
    line = "1794999990.0 n kernel: nvme nvme0: I/O error, dev nvme0n1\n"
    tool(answer, "kernel_log", line * int(1_000_000 * size))


def deep(answer: dict[str, Any], size: float = 1) -> None:
    nested: dict[str, Any] = {}
    for _ in range(int(200 * size)):
        nested = {"/": nested}
    answer["health"]["disk"] = nested


def deep_xml(answer: dict[str, Any], size: float = 1) -> None:
    tool(answer, "nvidia_smi_xml", "<nvidia_smi_log>" + "<gpu>" * int(50_000 * size))


def not_text(answer: dict[str, Any], size: float = 1) -> None:
    answer["facts"]["hostname"] = f"{SECOND}\udcff{ESCAPES}"
    tool(answer, "failed_units", "\udcff\udcfe.service loaded failed failed \ud800\n" * int(1000 * size))


def escapes(answer: dict[str, Any], size: float = 1) -> None:
    text = ESCAPES * int(100 * size)
    answer["facts"] |= {"hostname": text, "kernel": text, "boot_id": text, "dmi": {"product_serial": text}}
    answer["health"]["pci"] = {text: {text: text}}
    answer["health"]["hca"] = {text: {text: {"state": text, "rate": text, "counters": {text: 1}}}}


def foreign(answer: dict[str, Any], size: float = 1) -> None:
    """Replace the node's GPUs by those of the first node."""
    for tools in (answer["facts"]["tools"], answer["health"]["tools"]):
        for one in tools.values():
            one["stdout"] = re.sub(r"GPU-[0-9a-f]{8}-", uuid(0, 0)[:13], one["stdout"])


def no_numbers(answer: dict[str, Any], size: float = 1) -> None:
    values = itertools.cycle(("NaN", "-5", "1e999", "9" * int(400 * size), "inf"))
    smi = answer["facts"]["tools"]["nvidia_smi_xml"]
    smi["stdout"] = re.sub(r">\d+(?= \w+<|<)", lambda _: f">{next(values)}", smi["stdout"])
    wild = itertools.cycle((math.nan, math.inf, 10**400, -1e308))
    for part in (answer["health"]["disk"]["/"], answer["health"]["hca"]["mlx5_0"]["1"]["counters"]):
        part |= {name: next(wild) for name in part}


def other_types(answer: dict[str, Any], size: float = 1) -> None:
    answer["health"]["hca"] = [1, 2, 3]
    answer["health"]["pci"] = {str(number): number for number in range(int(100_000 * size))}
    answer["facts"]["dmi"] = "x" * 100_000


def no_mappings(answer: dict[str, Any], size: float = 1) -> None:
    answer |= {"health": "x" * int((4 << 20) * size), "facts": [1, 2], "node": "ab"}


HOSTILE: list[Callable[..., None]] = [
    *(links, ports, units, long_answer, many_lines, deep, deep_xml, not_text, escapes, foreign, no_numbers),
    *(other_types, no_mappings),
]


@pytest.mark.parametrize("spoil", HOSTILE)
def test_whatever_one_node_answers_the_others_are_judged(results: Path, spoil: Callable[..., None]) -> None:
    night(results, {})
    answer = deepcopy(machine(1))
    # `make prove SUITE=perf` tries the whole size, with 1,000 nodes.
    spoil(answer, size=1 / 4)
    begin = time.process_time()
    nodes = night(results, {SECOND: answer})
    assert time.process_time() - begin < 20
    first, second, third = verdicts(nodes)
    assert (first, third) == ("pass", "pass")
    assert second in ("fail", "unproven")
    texts = [text for one in nodes[SECOND].findings for text in (one.evidence, one.name, one.place)]
    assert texts == [sanitize(text, 4000) for text in texts]
    assert len(nodes[SECOND].findings) <= MOST_FINDINGS
    # The next night can be compared with this one.
    assert verdicts(night(results, {}))[::2] == ["pass", "pass"]


@pytest.mark.parametrize(
    ("part", "value"),
    [
        *((part, value) for part in ("facts", "health", "node") for value in ("text", [1, 2], 7)),
        *(("node.clock", value) for value in ("text", [1], 7)),
        *(("health.begin", value) for value in (10**400, math.nan, "1795000000")),
        *(("health.epoch", value) for value in (10**400, math.nan, {})),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_one_that_lacks(results: Path, part: str, value: Any) -> None:
    answer = machine(1)
    answer.setdefault("node", {})
    *above, name = part.split(".")
    (answer[above[0]] if above else answer)[name] = value
    nodes = night(results, {SECOND: answer})
    first, second, third = verdicts(nodes)
    assert (first, third) == ("pass", "pass")
    # Without this value, the clock is judged by the time of the answer.
    assert second == ("pass" if part == "node.clock" else "unproven")
    assert not nodes[SECOND].unreached


@pytest.mark.parametrize("value", [7, ["5: LinkUp"], {"1": "x"}, True, "x"])
@pytest.mark.parametrize("place", ["phys_state", "link_layer", "max_link_width", "max_link_speed", "epoch"])
def test_what_sys_and_the_clock_never_show_is_unproven(results: Path, place: str, value: Any) -> None:
    answer = machine(1)
    health = answer["health"]
    # Each name is at only one place of the answer.
    port, (link, *_) = health["hca"]["mlx5_0"]["1"], health["pci"].values()
    (owner,) = [one for one in (port, link, health) if place in one]
    owner[place] = value
    is_text_of_sys = value == "x" and owner is port
    assert verdicts(night(results, {SECOND: answer})) == [
        "pass",
        "pass" if is_text_of_sys else "unproven",
        "pass",
    ]


def test_a_finding_is_not_lost_among_thousands_of_others(results: Path) -> None:
    answer = machine(1)
    ports(answer)
    assert {"answer_cut", "more_findings", "port_down"} <= found(night(results, {SECOND: answer})[SECOND])


def test_a_check_that_cannot_cope_with_a_node_leaves_the_others_judged(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rackproof.jobs.validate import judge

    def check(snapshot: Any, **options: Any) -> Any:
        if snapshot.node == SECOND:
            raise RecursionError("deep")
        return original(snapshot, **options)

    original = judge.check_node
    monkeypatch.setattr(judge, "check_node", check)
    nodes = night(results, {})
    assert verdicts(nodes) == ["pass", "unproven", "pass"]
    assert found(nodes[SECOND]) == {"not_checked"}


# Answers with parts of other nodes, by the kind of the false claim.


def with_serial(number: int, serial: str) -> dict[str, Any]:
    answer = machine(number)
    answer["facts"]["dmi"]["product_serial"] = serial
    return answer


CLAIMS = {
    "a GPU": lambda: machine(1, chips={0: uuid(0, 0)}),
    "all GPUs": lambda: machine(1, chips={slot: uuid(0, slot) for slot in range(4)}),
    "GPUs of two nodes": lambda: machine(1, chips={0: uuid(0, 0), 1: uuid(2, 1)}),
    "the serial number": lambda: with_serial(1, machine(0)["facts"]["dmi"]["product_serial"]),
    "all of it": lambda: machine(0, hostname=SECOND),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_node_that_names_another_s_parts_harms_itself_alone(results: Path, claim: str) -> None:
    night(results, {})
    for _ in range(3):
        # The claimed parts do not become its own, even after many nights.
        nodes = night(results, {SECOND: CLAIMS[claim]()})
        assert verdicts(nodes) == ["pass", "unproven", "pass"]
        assert found(nodes[SECOND]) == {"foreign_parts"}
        assert "of another node that answers tonight" in nodes[SECOND].findings[0].evidence
    # In the history, the parts remain with their owners.
    with open_store(results / "history.sqlite") as store:
        newest = store.run(night_folders(results)[0].name)
    homes = {gpu.uuid: node.name for node in newest.nodes for gpu in node.gpus}
    assert {homes[uuid(number, slot)] for number, slot in ((0, 0), (0, 3))} == {FIRST}
    assert homes[uuid(2, 1)] == THIRD
    # The node's own GPUs, which it did not report meanwhile, are new for one night.
    nodes = night(results, {})
    assert verdicts(nodes)[::2] == ["pass", "pass"]
    assert found(nodes[SECOND]) <= {"gpu_new"}


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("nights", [1, 3])
def test_what_it_claims_while_the_owner_does_not_answer_is_not_its_own_when_that_is_back(
    results: Path, claim: str, nights: int
) -> None:
    night(results, {})
    for _ in range(nights):
        nodes = night(results, {SECOND: CLAIMS[claim]()}, names=(SECOND, THIRD))
        assert nodes[SECOND].verdict.value == "unproven"
    # The node is not measured either, because its numbers would be the owner's.
    last, *earlier = night_folders(results)
    kept = {name: one for name in (SECOND, THIRD) if (one := read_snapshot(last, name))}
    assert nodes_with_parts_of_others(earlier, kept) == {SECOND}
    nodes = night(results, {SECOND: CLAIMS[claim]()})
    assert verdicts(nodes) == ["pass", "unproven", "pass"]
    assert "foreign_parts" in found(nodes[SECOND])


def test_faults_that_a_node_reports_of_another_nodes_gpu_count_for_no_node(results: Path) -> None:
    night(results, {})
    answer = machine(1, chips={0: uuid(0, 0)})
    smi = answer["facts"]["tools"]["nvidia_smi_xml"]
    smi["stdout"] = smi["stdout"].replace("<remapped_row_failure>No", "<remapped_row_failure>Yes")
    nodes = night(results, {SECOND: answer})
    assert verdicts(nodes) == ["pass", "unproven", "pass"]
    assert verdicts(night(results, {}))[0] == "pass"


def test_in_a_first_night_both_nodes_with_the_same_gpu_are_unproven(results: Path) -> None:
    nodes = night(results, {SECOND: machine(1, chips={0: uuid(0, 0)})})
    assert verdicts(nodes) == ["unproven", "unproven", "pass"]


def test_two_that_never_agreed_are_unproven_until_an_operator_accepts_the_one_that_does_not_lie(
    results: Path,
) -> None:
    liar = machine(1, chips={0: uuid(0, 0)})
    for _ in range(2):
        nodes = night(results, {SECOND: liar})
        assert verdicts(nodes) == ["unproven", "unproven", "pass"]
        assert "validate_accept_identity=true" in nodes[FIRST].findings[0].evidence
    for accepted in ((FIRST,), ()):
        nodes = night(results, {SECOND: liar}, accepted=accepted)
        assert verdicts(nodes) == ["pass", "unproven", "pass"]
        assert found(nodes[SECOND]) == {"foreign_parts"}


def test_two_nodes_with_one_serial_number_and_one_boot_are_one_machine(results: Path) -> None:
    twin = with_serial(1, machine(0)["facts"]["dmi"]["product_serial"])
    nodes = night(results, {SECOND: twin})
    assert verdicts(nodes) == ["unproven", "unproven", "pass"]
    assert found(nodes[FIRST]) == found(nodes[SECOND]) == {"node_twice"}


def test_trays_that_share_a_serial_number_are_two(results: Path) -> None:
    tray = with_serial(1, machine(0)["facts"]["dmi"]["product_serial"])
    tray["facts"]["boot_id"] = "another boot"
    for _ in range(2):
        assert verdicts(night(results, {SECOND: tray})) == ["pass"] * 3


@pytest.mark.parametrize("lost", [{"seal": None}, {"seal": ""}, {"seal": "0" * 64}, "all of it"])
def test_an_answer_without_its_seal_is_not_all_that_the_node_said(
    results: Path, monkeypatch: pytest.MonkeyPatch, lost: dict[str, Any] | str
) -> None:
    def seal(answer: dict[str, Any]) -> dict[str, Any]:
        if answer["facts"]["hostname"] != SECOND:
            return sealed_answer(answer)
        return answer if isinstance(lost, str) else answer | lost

    monkeypatch.setattr("tests.jobs.validate.test_identity.sealed_answer", seal)
    nodes = night(results, {})
    assert verdicts(nodes) == ["pass", "unproven", "pass"]
    assert found(nodes[SECOND]) == {"answer_cut"}


def test_a_gpu_that_was_moved_is_not_foreign(results: Path) -> None:
    night(results, {})
    left = machine(0, chips={0: "GPU-0000ffff-0000-0000-0000-000000000000"})
    nodes = night(results, {FIRST: left, SECOND: machine(1, chips={0: uuid(0, 0)})})
    assert "foreign_parts" not in found(nodes[FIRST]) | found(nodes[SECOND])
    kept = last_snapshot(night_folders(results), SECOND)
    assert kept is not None
    assert uuid(0, 0) in {gpu.uuid for gpu in kept.snapshot.gpus}
    assert sorted(nodes) == sorted(NODES)
