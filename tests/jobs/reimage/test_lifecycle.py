"""Test ``rackproof.jobs.reimage.lifecycle``, which computes the state of a node from its journal.

Re-imaging is a sequence of steps (drain, record, boot, image, first_boot, provision, validate, return). The
tests check which state a journal shows, with which step a new attempt begins, that no node is resumed without
a validation, and the waves in which nodes are imaged.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from rackproof.jobs.reimage.lifecycle import (
    DEFAULT_LIMITS_S,
    STEPS,
    Entry,
    Event,
    NodeProgress,
    Step,
    describe_progress,
    next_command,
    plan_waves,
    remaining_steps,
    replay,
    step_limits,
)

BEGAN = datetime(2026, 11, 22, 2, 0, tzinfo=UTC)


def journal(*said: tuple[Event, Step | None] | Entry) -> list[Entry]:
    """Return a journal with one entry a minute."""
    return [
        one
        if isinstance(one, Entry)
        else Entry(at=BEGAN + timedelta(minutes=number), event=one[0], step=one[1], limit_s=60)
        for number, one in enumerate(said)
    ]


def through(*steps: Step) -> list[tuple[Event, Step | None]]:
    """Return the events of steps that began and ended well."""
    found: list[tuple[Event, Step | None]] = []
    for step in steps:
        found += [("begun", step), ("done", step)]
    return found


def test_a_node_that_did_everything_has_returned_and_starts_from_the_beginning() -> None:
    now = replay(journal(("adopted", None), *through(*STEPS)), alive=True)
    assert (now.state, now.done) == ("returned", STEPS)
    assert remaining_steps(now) == STEPS
    assert next_command("n1", now) == ""


@pytest.mark.parametrize("step", STEPS)
def test_a_run_cut_off_in_a_step_continues_there_and_drains_again(step: Step) -> None:
    before = STEPS[: STEPS.index(step)]
    now = replay(journal(("adopted", None), *through(*before), ("begun", step)), alive=False)
    assert (now.state, now.step, now.done) == ("interrupted", step, before)
    steps = remaining_steps(now)
    assert steps[0] is Step.DRAIN
    assert steps[-1] is Step.RETURN
    assert step in steps
    # Completed steps are not repeated, except that an interrupted image needs a new boot, and an interrupted
    # validation or return a new provisioning.
    again = {
        Step.IMAGE: Step.BOOT,
        Step.VALIDATE: Step.PROVISION,
        Step.RETURN: Step.PROVISION,
    }.get(step, step)
    assert steps[-len(STEPS) + STEPS.index(again) :] == STEPS[STEPS.index(again) :]
    assert not set(steps) - {Step.DRAIN} & set(STEPS[: STEPS.index(again)])
    assert next_command("n1", now) == "ansible-playbook reimage.yml -l n1"


@pytest.mark.parametrize("step", STEPS)
def test_a_run_cut_off_between_two_steps_continues_with_the_next_step(step: Step) -> None:
    now = replay(journal(("adopted", None), *through(*STEPS[: STEPS.index(step) + 1])), alive=False)
    if step is Step.RETURN:
        assert now.state == "returned"
    else:
        assert (now.state, now.step) == ("interrupted", STEPS[STEPS.index(step) + 1])


def test_a_failure_names_its_step_and_is_retried_there() -> None:
    failed = Entry(at=BEGAN, event="failed", step=Step.PROVISION, reason="no driver")
    done = STEPS[: STEPS.index(Step.PROVISION)]
    now = replay(journal(("adopted", None), *through(*done), ("begun", Step.PROVISION), failed), alive=False)
    assert (now.state, now.step, now.reason) == ("failed", Step.PROVISION, "no driver")
    assert remaining_steps(now) == (Step.DRAIN, Step.PROVISION, Step.VALIDATE, Step.RETURN)


def test_a_step_that_is_done_again_undoes_what_came_after_it() -> None:
    now = replay(journal(*through(*STEPS[:6]), *through(Step.DRAIN), ("begun", Step.BOOT)), alive=True)
    assert now.done == (Step.DRAIN, Step.RECORD)
    assert (now.state, now.step) == ("running", Step.BOOT)


def test_only_the_adopted_steps_are_done() -> None:
    adopted = Entry(at=BEGAN, event="adopted", steps=(Step.RECORD, Step.BOOT), attempt=3)
    now = replay([adopted], alive=True)
    assert (now.state, now.step, now.attempt) == ("waiting", Step.DRAIN, 3)
    assert now.done == (Step.RECORD, Step.BOOT)
    assert replay([adopted], alive=False).state == "interrupted"
    assert replay([], alive=False) == NodeProgress(state="waiting", step=Step.DRAIN)


@given(
    some.lists(
        some.tuples(
            some.sampled_from(["adopted", "begun", "done", "skipped", "failed"]), some.sampled_from(STEPS)
        ),
        max_size=24,
    ),
    some.booleans(),
)
def test_no_journal_returns_a_node_that_was_not_returned(said: list[tuple[Event, Step]], alive: bool) -> None:
    now = replay(journal(*said), alive)
    if now.state == "returned":
        assert (("done", Step.RETURN) in said) or (("skipped", Step.RETURN) in said)
    steps = remaining_steps(now)
    assert steps[0] is Step.DRAIN
    assert steps[-1] is Step.RETURN
    # A node is returned only after it was validated in the same attempt.
    assert {Step.PROVISION, Step.VALIDATE} < set(steps)
    assert all(STEPS.index(a) < STEPS.index(b) for a, b in pairwise(steps))


def test_the_status_shows_the_step_its_time_and_an_exceeded_limit() -> None:
    now = replay(journal(("begun", Step.IMAGE)), alive=True)
    assert describe_progress(now, BEGAN + timedelta(seconds=50)) == "image (50.0 s)"
    assert (
        describe_progress(now, BEGAN + timedelta(seconds=90))
        == "image (1 min 30 s, over its limit of 1 min 00 s)"
    )
    assert (
        describe_progress(NodeProgress(state="waiting", step=Step.DRAIN), BEGAN)
        == "waits to begin with drain"
    )


def test_only_damaged_files_start_a_node_from_the_first_step() -> None:
    again = "start again with -e reimage_again=true"
    lost_part = NodeProgress(
        state="failed", step=Step.VALIDATE, reason=f"a GPU is missing; if it was meant, {again}"
    )
    assert next_command("n1", lost_part) == "ansible-playbook reimage.yml -l n1"
    unknown = NodeProgress(state="failed", reason="cannot read it")
    assert next_command("n1", unknown) == "ansible-playbook reimage.yml -l n1"
    assert describe_progress(lost_part, BEGAN) == "failed at validate"


def test_invalid_limits_are_refused() -> None:
    assert step_limits({"drain": 5})[Step.DRAIN] == 5
    assert step_limits({})[Step.BOOT] == DEFAULT_LIMITS_S[Step.BOOT]
    for bad in ({"boot ": 1}, {"boot": 0}, {"boot": True}, {"boot": "10"}):
        with pytest.raises(ValueError, match="reimage_limits"):
            step_limits(bad)  # type: ignore[arg-type]


# 18 nodes in three racks of six. All are in one partition, and every second one is in another.
FLEET = {f"n{i:02}": {"per_rack": [f"r{i // 6}"], "per_partition": ["all", f"p{i % 2}"]} for i in range(18)}


@pytest.mark.parametrize(("at_once", "rack", "partition"), [(18, 18, 18), (4, 2, 3), (8, 1, 8), (1, 1, 1)])
def test_waves_keep_every_limit_and_lose_no_node(at_once: int, rack: int, partition: int) -> None:
    found = plan_waves(FLEET, at_once, {"per_rack": rack, "per_partition": partition})
    assert sorted(name for wave in found for name in wave) == sorted(FLEET)
    for wave in found:
        assert len(wave) <= at_once
        for kind, limit in (("per_rack", rack), ("per_partition", partition)):
            for group in {one for name in wave for one in FLEET[name][kind]}:
                assert sum(group in FLEET[name][kind] for name in wave) <= limit
    # No node waits longer than the limits require.
    assert len(found) <= -(-18 // min(at_once, rack * 3, partition))


def test_a_limit_of_0_is_refused() -> None:
    with pytest.raises(ValueError, match="reimage_per_rack: at least 1"):
        plan_waves(FLEET, 4, {"per_rack": 0})
    with pytest.raises(ValueError, match="reimage_max_concurrent: at least 1"):
        plan_waves(FLEET, 0, {})
    with pytest.raises(ValueError, match="reimage_canary: at least 0"):
        plan_waves(FLEET, 4, {}, canary=-1)


def test_the_first_wave_is_small_and_takes_nodes_that_are_out_of_service_already() -> None:
    per_group = {"per_rack": 4, "per_partition": 8}
    waves = plan_waves(FLEET, 8, per_group, canary=2)
    assert [len(wave) for wave in waves][:2] == [2, 8]
    assert sorted(name for wave in waves for name in wave) == sorted(FLEET)
    assert plan_waves(FLEET, 8, per_group, canary=1, first=["n17", "n16"])[0] == ["n16"]
    assert plan_waves(FLEET, 1, per_group, canary=5)[0] == ["n00"]
    assert plan_waves(FLEET, 8, per_group, canary=0) == plan_waves(FLEET, 8, per_group)


def test_the_page_of_reimaging_states_the_default_limits() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/using/reimage.md").read_text()
    words = " ".join(page.partition("The defaults of `reimage_limits` are")[2].partition(".\n")[0].split())
    limits = [f"`{step}` {seconds:g}" for step, seconds in DEFAULT_LIMITS_S.items()]
    assert words == ", ".join(limits[:-1]) + " and " + limits[-1]
