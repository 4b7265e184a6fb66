"""Test the sentence at the top of a report, which states what was judged and what to type next.

A run can pass because its results are correct, although a speed was not judged: it has no reference, or the
node was not idle. The sentence must say so. The tests also show which id the history uses for a node.
"""

from __future__ import annotations

import pytest

from rackproof.core.judging import NO_REFERENCE
from rackproof.core.records import Gpu, Judgement, Node, Run, Verdict
from rackproof.nodes.facts import node_from_facts
from rackproof.report import view

QUALITY = Judgement(metric="accuracy", value=0.99, verdict=Verdict.PASS, reason="within bounds")


def speed(reason: str, *, gating: bool = False, verdict: Verdict = Verdict.UNPROVEN) -> Judgement:
    """Return the judgement of a speed."""
    return Judgement(metric="speed", value=1.0, unit="MB/s", verdict=verdict, gating=gating, reason=reason)


def run(*judgements: Judgement, verdict: Verdict = Verdict.PASS) -> Run:
    """Return a run with judgements."""
    return Run(run_id="r1", plan_id="plan-1", benchmark="b", judgements=judgements, verdict=verdict)


@pytest.mark.parametrize(
    ("judgements", "verdict", "sentence"),
    [
        (
            (QUALITY, speed(NO_REFERENCE)),
            Verdict.PASS,
            "Correct; 1 speed not judged: no reference. If the machine was idle, run `rackproof accept r1`.",
        ),
        (
            (QUALITY, *[speed(NO_REFERENCE)] * 5),
            Verdict.PASS,
            "Correct; 5 speeds not judged: no reference. If the machine was idle, run `rackproof accept r1`.",
        ),
        (
            (QUALITY, speed("n1 was not idle: processes outside the job used 1.9 of its 2 processors")),
            Verdict.PASS,
            "Correct; 1 speed not judged: n1 was not idle. See the reasons, then run again.",
        ),
        (
            (
                QUALITY,
                *[speed("its 9 samples range from 1 to 4; find out why")] * 2,
                speed("n1 was not idle: x"),
            ),
            Verdict.PASS,
            "Correct; 3 speeds not judged: its 9 samples range from 1 to 4, and other causes. "
            "See the reasons, then run again.",
        ),
        (
            (QUALITY, speed("within bounds", gating=True, verdict=Verdict.PASS)),
            Verdict.PASS,
            view.WORDS["pass"],
        ),
        ((QUALITY, speed(NO_REFERENCE)), Verdict.FAIL, view.WORDS["fail"]),
    ],
)
def test_the_sentence_says_which_speeds_were_not_judged(
    judgements: tuple[Judgement, ...], verdict: Verdict, sentence: str
) -> None:
    assert view.verdict_meaning(run(*judgements, verdict=verdict)) == sentence


def test_a_plan_counts_the_speeds_of_all_runs() -> None:
    runs = [run(QUALITY, speed(NO_REFERENCE)), run(speed(NO_REFERENCE)), run(QUALITY)]
    assert view.plan_meaning(runs, Verdict.PASS, "plan-1").startswith("Correct; 2 speeds not judged")
    assert "`rackproof accept plan-1`" in view.speeds_not_judged(runs, "plan-1")
    assert view.speeds_not_judged([run(QUALITY)], "plan-1") == ""


@pytest.mark.parametrize(
    ("files", "key"),
    [
        ({"machine_id": "0123456789abcdef0123456789abcdef\n"}, "machine:0123456789abcdef0123456789abcdef"),
        ({"machine_id": "uninitialized\n"}, "host:localhost"),
        ({"machine_id": "0" * 32}, "host:localhost"),
        ({"machine_id": "\x1b[31m"}, "host:localhost"),
        ({}, "host:localhost"),
    ],
)
def test_a_node_without_a_serial_is_known_by_its_machine_id_or_name(files: dict[str, str], key: str) -> None:
    node = node_from_facts("localhost", {"files": files, "hostname": "box7.example"})
    assert node.hardware_key == key
    shown = view.node_table(Run(run_id="r1", benchmark="b", nodes=(node,)))
    assert "localhost (box7.example)" in str(shown)


@pytest.mark.parametrize(
    ("node", "key"),
    [
        (Node(name="n", serial="S", machine_id="m"), "S"),
        (Node(name="n", chassis_serial="C", machine_id="m"), "C"),
        (
            Node(name="n", gpus=(Gpu(index=0, uuid="GPU-b"), Gpu(index=1, uuid="GPU-a")), machine_id="m"),
            "GPU-a+GPU-b",
        ),
        (Node(name="n", gpus=(Gpu(index=0, uuid=""), Gpu(index=1, uuid="GPU-a")), machine_id="m"), "GPU-a"),
        (Node(name="n", gpus=(Gpu(index=0, uuid=""),), machine_id="m"), "machine:m"),
        (Node(name="n", gpus=(Gpu(index=0, uuid=""), Gpu(index=1, uuid=""))), "host:n"),
        (Node(name="n", machine_id="m"), "machine:m"),
        (Node(name="n"), "host:n"),
    ],
)
def test_a_node_is_known_by_its_serial_then_its_gpus_then_machine_id_then_name(node: Node, key: str) -> None:
    assert node.hardware_key == key
