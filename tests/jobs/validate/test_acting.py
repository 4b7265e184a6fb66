"""Test ``rackproof.jobs.validate.fleet.drain_policy``, which decides which nodes a night drains or resumes.

A night drains a node from Slurm for a certain failure, within a share of each partition. It resumes a node
that a night drained after the failed checks passed in two nights. The tests check the nodes that are left
alone, the share, and which evidence counts as a pass of which failure.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
import yaml

from rackproof.core.records import Verdict
from rackproof.jobs.validate.explain import _service_lines
from rackproof.jobs.validate.fleet.drain_policy import DrainPolicy, decide_drains, drained_by_partition
from rackproof.jobs.validate.fleet.healing import COMPARED_CODES
from rackproof.jobs.validate.messages import describe_changes, describe_drain_plan
from rackproof.jobs.validate.pages import _acts
from rackproof.nodes.health_subjects import HealthFinding
from rackproof.store.night_store import DRAIN_PREFIX, Hold, NightReason, NightRecord, NodeNight, SlurmState
from tests.jobs.validate.probes import ROOT

NOW = datetime(2026, 11, 21, 2, tzinfo=UTC)
LATER = NOW + timedelta(hours=24)
READ = ("health:booted", "health:gpus", "health:kernel_log", "health:reset_or_booted")
"""The evidence of a rebooted node that heals a drain for an XID."""


def finding(node: str, code: str = "xid_79", **more: object) -> HealthFinding:
    values = {"verdict": Verdict.FAIL, "action": "reboot", "confidence": "likely", "evidence": "E"} | more
    return HealthFinding(node=node, code=code, part="gpu", name="GPU-1", place="GPU 0", **values)


def night(
    name: str, *found: HealthFinding, by: str = "none", known: bool = True, **more: object
) -> NodeNight:
    values: dict[str, object] = {
        "verdict": Verdict.FAIL if found else Verdict.PASS,
        "slurm": SlurmState(
            known=known, state="IDLE", drained_by=by, reason="bob: cable" if by == "other" else ""
        ),
    }
    return NodeNight(node=name, findings=found, **(values | more))


def drained(reason: str) -> SlurmState:
    return SlurmState(known=True, state="IDLE+DRAIN", drained_by="other", reason=reason)


def members(count: int, ours: tuple[str, ...] = ()) -> dict[str, dict[str, bool]]:
    """Return a partition of nodes n01, n02, …, and whether a night drained each of them."""
    return {"batch": {f"n{number:02d}": f"n{number:02d}" in ours for number in range(1, count + 1)}}


def plans(nodes: tuple[NodeNight, ...]) -> dict[str, str]:
    return {one.node: one.plan for one in nodes if one.plan}


def test_a_node_that_fails_alone_is_drained_with_the_reason() -> None:
    decided, remarks = decide_drains([night("n01", finding("n01")), night("n02")], {}, members(18), "N1", NOW)
    assert plans(decided) == {"n01": "drain"}
    assert decided[0].why == "xid_79 GPU 0"
    assert decided[0].hold == Hold(since="N1", codes=("xid_79",))
    assert remarks == ()


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (night("n01", finding("n01"), by="other"), "by another owner: bob: cable"),
        (night("n01", finding("n01"), slurm=drained("rackproof: x")), "by provision.yml: rackproof: x"),
        (night("n01", finding("n01"), slurm=drained("rackproof-reimage: x")), "by reimage.yml: rackproof"),
        (night("n01", finding("n01"), slurm=drained("rackproofs")), "by another owner: rackproofs"),
        (night("n01", finding("n01"), known=False), "it is not in Slurm"),
        (night("n01", finding("n01"), slurm=None), "Slurm could not be queried"),
        (night("n99", finding("n99")), "not drained: sinfo lists it in no partition"),
        (night("n99", finding("n99"), known=False), "not drained: it is not in Slurm"),
        (
            night("n01", finding("n01", fleetwide=True, verdict=Verdict.UNPROVEN), verdict=Verdict.UNPROVEN),
            "",
        ),
        (night("n01", finding("n01", confidence="hint")), ""),
        (night("n01", unreached="no answer", verdict=Verdict.UNPROVEN), ""),
        (night("n01", finding("n01", verdict=Verdict.DEGRADED), verdict=Verdict.DEGRADED), ""),
    ],
)
def test_nodes_that_are_not_drained(one: NodeNight, why: str) -> None:
    decided, _ = decide_drains([one], {}, members(18), "N1", NOW)
    assert not plans(decided)
    assert why in decided[0].why
    assert bool(why) == bool(decided[0].why)


# Four nodes are bad. Nights may drain 15 % of a partition, and `ours` are drained already.
@pytest.mark.parametrize(
    ("size", "ours", "drained"),
    [(18, (), 2), (18, ("n18",), 1), (18, ("n17", "n18"), 0), (6, (), 0), (40, (), 4)],
)
def test_never_more_than_the_share_of_a_partition(size: int, ours: tuple[str, ...], drained: int) -> None:
    bad = [night(f"n{number:02d}", finding(f"n{number:02d}")) for number in (1, 2, 3, 4)]
    decided, remarks = decide_drains(bad, {}, members(size, ours), "N1", NOW)
    assert len(plans(decided)) == drained
    assert (
        len([one for one in decided if "the share of partition batch is used up" in one.why]) == 4 - drained
    )
    assert bool(remarks) == (drained < 4)


def test_a_node_that_the_night_before_left_out_is_compared_with_its_last_one() -> None:
    def record(*nodes: NodeNight) -> NightRecord:
        return NightRecord(night_id="N", started=NOW, ended=NOW, verdict=Verdict.PASS, nodes=nodes)

    now = record(night("n01", finding("n01")), night("n02", finding("n02")), night("n03"))
    limited = record(night("n03"))
    earlier = {"n01": night("n01", finding("n01")), "n02": night("n02")}
    assert describe_changes(now, limited, earlier) == ("n02: pass → fail: GPU-1 (GPU 0): E",)
    # A node that tonight leaves out is named only if the night before had it.
    assert describe_changes(limited, limited, earlier) == ()


@pytest.mark.parametrize(
    ("plan", "acts", "line"),
    [
        ("drain", (), "would drain n01: xid_79 (a dry run: allow it with -e validate_drain=true)"),
        ("drain", ("return",), "would drain n01: xid_79 (a dry run: allow it with -e validate_drain=true)"),
        ("drain", ("drain",), "drain n01: xid_79"),
        ("return", (), "would resume n01: xid_79 (a dry run: allow it with -e validate_resume=true)"),
        ("return", ("drain",), "would resume n01: xid_79 (a dry run: allow it with -e validate_resume=true)"),
        ("return", ("drain", "return"), "resume n01: xid_79"),
    ],
)
def test_a_planned_act_is_named_with_the_variable_that_allows_it(
    plan: str, acts: tuple[str, ...], line: str
) -> None:
    node = night("n01", plan=plan, why="xid_79")
    record = NightRecord(
        night_id="N", started=NOW, ended=NOW, verdict=Verdict.PASS, nodes=(node, night("n02")), acts=acts
    )
    assert describe_drain_plan(record) == [line]
    options = yaml.safe_load((ROOT / "roles/validate/defaults/main.yml").read_text())
    assert options.keys() >= set(re.findall("validate_[a-z]+", line))
    (explained,) = [text for text in _service_lines(record, node) if "xid_79" in text]
    (row,) = _acts(record).rows
    if plan in acts:
        assert (explained, row[1].text) == (f"{line.split()[0]}: xid_79", line.split()[0])


def test_without_permission_the_reason_is_that_draining_is_off() -> None:
    bad = [night(f"n{number:02d}", finding(f"n{number:02d}")) for number in (1, 2, 3)]
    decided, remarks = decide_drains(bad, {}, members(9), "N1", NOW, DrainPolicy(allowed=False))
    assert plans(decided) == {"n01": "drain"}
    for one in decided[1:]:
        assert one.why.startswith("not drained: draining is off (validate_drain); with it, it would wait")
        assert "the share of partition batch is used up (15.0 % of 9 nodes: 1;" in one.why
    assert remarks == ("3 nodes should be drained and are not: draining is off (validate_drain)",)


def test_of_several_the_worst_goes_first() -> None:
    nodes = [
        night("n01", finding("n01", "memlock", action="configure")),
        night("n02", finding("n02", "remap_failure", action="rma")),
    ]
    decided, _ = decide_drains(nodes, {}, members(7), "N1", NOW)
    assert plans(decided) == {"n02": "drain"}


def test_a_node_of_two_partitions_counts_in_both() -> None:
    both = members(18) | {"small": {"n01": False, "n02": False}}
    decided, _ = decide_drains([night("n01", finding("n01"))], {}, both, "N1", NOW)
    assert not plans(decided)
    assert "partition small" in decided[0].why


def test_with_half_the_rack_unreachable_no_node_is_drained() -> None:
    lost = [night(f"n{n:02d}", unreached="no answer", verdict=Verdict.UNPROVEN) for n in range(1, 10)]
    decided, remarks = decide_drains(
        [*lost, night("n10", finding("n10")), night("n11")], {}, members(18), "N1", NOW
    )
    assert not plans(decided)
    assert "9 of 11 nodes cannot be reached" in remarks[0]


def test_a_drain_of_ours_ends_after_two_passes_and_not_before() -> None:
    before: dict[str, NodeNight] = {"n01": night("n01", hold=Hold(since="N1", codes=("xid_79",)))}
    steps = [
        (night("n01", by="ours", read_again=READ), "", 1),
        (night("n01", by="ours", verdict=Verdict.UNPROVEN), "", 1),
        (night("n01", by="ours", verdict=Verdict.UNPROVEN, unreached="no answer"), "", 1),
        (night("n01", finding("n01", "xid_48"), by="ours"), "", 0),
        (night("n01", by="ours", read_again=READ), "", 1),
        (night("n01", by="ours", read_again=READ, verdict=Verdict.DEGRADED), "return", 2),
    ]
    for step, (one, plan, passes) in enumerate(steps):
        now = NOW + timedelta(days=step)
        (decided,), _ = decide_drains([one], before, members(18, ("n01",)), f"N{step + 2}", now)
        assert (decided.plan, decided.hold and decided.hold.passes) == (plan, passes), step
        before = {"n01": decided}
    assert before["n01"].hold == Hold(
        since="N1", failed="N5", codes=("xid_79", "xid_48"), passes=2, passed=NOW + timedelta(days=5)
    )


def test_a_measurement_that_failed_has_to_be_measured_again() -> None:
    slow = NightReason(check="floor", verdict=Verdict.FAIL, metric="gemm_best", text="T")
    one = night("n01", verdict=Verdict.FAIL, reasons=(slow,))
    (drained,), _ = decide_drains([one], {}, members(18), "N1", NOW)
    assert drained.plan == "drain"
    assert drained.hold is not None
    drained = drained.model_copy(update={"hold": drained.hold.model_copy(update={"before": "N0"})})
    (still,), _ = decide_drains([night("n01", by="ours")], {"n01": drained}, members(18, ("n01",)), "N2", NOW)
    assert still.why == (
        "stays drained: the failed checks were not made again since the night before: "
        "floor:gemm_best (gemm_best)"
    )
    (once,), _ = decide_drains(
        [night("n01", by="ours", read_again=("gemm_best",))], {"n01": still}, members(18), "N3", LATER
    )
    assert once.hold is not None
    assert once.hold.passes == 1


# The code of a failure, the evidence that a night read, and the passes after this night.
@pytest.mark.parametrize(
    ("code", "read_again", "passes"),
    [
        ("xid_79", READ, 1),
        ("xid_79", (), 0),
        ("xid_79", ("health:gpus", "health:kernel_log"), 0),
        # This metric has the name of a piece of evidence.
        ("floor:kernel_log", READ, 0),
        ("floor:gemm_best dtype=bf16", ("gemm_best dtype=bf16",), 1),
        ("fleet:gemm_best dtype=bf16", ("gemm_best dtype=fp8", "memory_copy", "job"), 0),
        # A comparison needs the same comparison of the same metric, and not only a measurement.
        ("fleet:gemm_best dtype=bf16", ("gemm_best dtype=bf16", "job"), 0),
        ("fleet:gemm_best dtype=bf16", ("gemm_best dtype=bf16", "drift:gemm_best dtype=bf16"), 0),
        ("fleet:gemm_best dtype=bf16", ("fleet:gemm_best dtype=fp8", "gemm_best dtype=bf16"), 0),
        ("fleet:gemm_best dtype=bf16", ("fleet:gemm_best dtype=bf16", "gemm_best dtype=bf16"), 1),
        ("fleet:gemm_best", ("fleet:gemm_best dtype=bf16", "gemm_best dtype=bf16"), 1),
        ("drift:memory_copy", ("memory_copy", "job"), 0),
        ("drift:memory_copy", ("memory_copy", "fleet:memory_copy"), 0),
        ("drift:memory_copy", ("memory_copy", "fleet:memory_copy", "drift:memory_copy"), 1),
        ("drift:gemm_best", ("gemm_best dtype=bf16", "fleet:gemm_best dtype=bf16"), 0),
        ("drift:gemm_best", ("gemm_best dtype=bf16", "drift:gemm_best dtype=bf16"), 1),
        # Slurm's reason has only the first word of a code.
        ("floor:gemm_best", ("gemm_best dtype=bf16",), 1),
        ("floor:gemm_best", ("gemm_best_of dtype=bf16",), 0),
        ("bits:training step", ("training-step",), 1),
        ("bits:training", ("training-step",), 1),
        ("bits:training step", ("gemm", "job"), 0),
        ("probe:gemm wrong_values", ("gemm",), 1),
        ("probe:gemm wrong_values", ("memory", "job"), 0),
        ("probe:job", ("gemm", "job"), 1),
        ("probe:job", ("gemm",), 0),
        # Codes of earlier versions name no program, so all programs must end well.
        ("probe:wrong_values", ("job",), 1),
        ("probe:wrong_values", ("gemm",), 0),
        # Without a partner, the pair is not measured.
        ("pair:fabric", ("job",), 0),
    ],
)
def test_a_pass_is_one_of_what_failed(code: str, read_again: tuple[str, ...], passes: int) -> None:
    before = {"n01": night("n01", hold=Hold(since="N1", codes=(code,)))}
    (one,), _ = decide_drains(
        [night("n01", by="ours", measured=True, read_again=read_again)], before, members(18), "N2", NOW
    )
    assert one.hold is not None
    assert one.hold.passes == passes


@pytest.mark.parametrize("check", ["fleet", "drift"])
def test_what_a_comparison_drained_returns_after_two_nights_that_compare_it_again(check: str) -> None:
    code = f"{check}:memory_copy"
    before = {"n01": night("n01", hold=Hold(since="N1", codes=(code,)))}
    alone, again = ("memory_copy", "job"), ("memory_copy", f"{check}:memory_copy")
    steps = [(alone, "", 0), (again, "", 1), (alone, "", 1), (alone, "", 1), (again, "return", 2)]
    for step, (read, plan, passes) in enumerate(steps):
        one = night("n01", by="ours", measured=True, read_again=read)
        now = NOW + timedelta(days=step)
        (decided,), _ = decide_drains([one], before, members(18, ("n01",)), f"N{step + 2}", now)
        assert (decided.plan, decided.hold and decided.hold.passes) == (plan, passes), decided.why
        if not plan and read == alone:
            assert f"{code} (memory_copy, " in decided.why
        before = {"n01": decided}


@pytest.mark.parametrize("check", ["fleet", "drift", "floor"])
def test_a_number_that_is_degraded_still_is_not_well(check: str) -> None:
    before = {"n01": night("n01", hold=Hold(since="N1", codes=(f"{check}:memory_copy",), passes=1))}
    slow = NightReason(check=check, verdict=Verdict.DEGRADED, metric="memory_copy", text="a little slow")
    read = ("memory_copy", "fleet:memory_copy", "drift:memory_copy")
    one = night("n01", by="ours", verdict=Verdict.DEGRADED, reasons=(slow,), read_again=read)
    (decided,), _ = decide_drains([one], before, members(18, ("n01",)), "N2", LATER)
    assert (decided.plan, decided.why) == ("", f"stays drained: still found: {check}:memory_copy")


HELD = Hold(since="N1", before="N0", codes=("pcie_width",), passes=1, passed=NOW)


@pytest.mark.parametrize(
    ("more", "hold", "why"),
    [
        ({"verdict": Verdict.UNPROVEN}, HELD, "Slurm did not show whether its drain by nights goes on"),
        ({"verdict": Verdict.PASS, "read_again": READ}, HELD, "Slurm did not show"),
        ({"verdict": Verdict.UNPROVEN, "unreached": "no answer"}, HELD, "Slurm did not show"),
        (
            {"verdict": Verdict.FAIL, "findings": (finding("n01"),)},
            Hold(since="N1", before="N0", failed="N2", codes=("pcie_width", "xid_79")),
            "nights goes on; failed tonight: xid_79 GPU 0",
        ),
    ],
)
@pytest.mark.parametrize("state", [None, SlurmState(), SlurmState(state="IDLE", drained_by="ours")])
def test_a_night_without_slurms_answer_keeps_the_drain(
    state: SlurmState | None, more: dict[str, object], hold: Hold, why: str
) -> None:
    before = night("n01", by="ours", hold=HELD)
    tonight = NodeNight(node="n01", slurm=state, **more)
    (one,), _ = decide_drains([tonight], {"n01": before}, {}, "N2", LATER)
    assert (one.plan, one.hold) == ("", hold)
    assert why in one.why
    # The next night continues from there, and a resume by hand ends it.
    (later,), _ = decide_drains([night("n01", by="ours")], {"n01": one}, {}, "N3", LATER)
    assert later.hold == hold
    (resumed,), _ = decide_drains([night("n01")], {"n01": one}, {}, "N3", LATER)
    assert resumed.hold is None


AS_BEFORE = tuple(f"health:{code}_as_before" for code in COMPARED_CODES)


# Evidence, the night before the drain, whether a later night is lost, and the reason why it is no pass.
@pytest.mark.parametrize(
    ("read", "before", "is_lost", "why"),
    [
        (READ, "N0", False, ""),
        ((*READ, *AS_BEFORE), "N0", True, ""),
        ((*READ, *AS_BEFORE[1:]), "N0", True, f"worse than before the drain: {COMPARED_CODES[0]}"),
        ((*READ, *AS_BEFORE[2:]), "N0", True, f"{COMPARED_CODES[0]}, {COMPARED_CODES[1]}"),
        (READ, "N0", True, "nothing compares the node with the state before the drain; repair it"),
        (READ, None, True, "nothing compares the node with the state before the drain; repair it"),
    ],
)
def test_after_a_lost_night_a_pass_needs_the_comparison_with_the_night_before_the_drain(
    read: tuple[str, ...], before: str | None, is_lost: bool, why: str
) -> None:
    hold = Hold(since="N1", before=before, codes=("xid_79",), is_incomplete=is_lost)
    tonight = night("n01", by="ours", read_again=read)
    (one,), _ = decide_drains([tonight], {"n01": night("n01", by="ours", hold=hold)}, {}, "N9", LATER)
    assert one.hold is not None
    assert one.hold.passes == (0 if why else 1)
    assert why in one.why


@pytest.mark.parametrize(
    ("before", "is_kept"),
    [
        (night("n01", hold=HELD, plan="drain"), True),
        (night("n01", hold=HELD, slurm=None), True),
        (night("n01", by="ours", hold=HELD, plan="return"), True),
        (night("n01", hold=HELD, plan="return"), False),
        (night("n01", hold=HELD), False),
    ],
)
def test_a_drain_that_was_over_is_not_kept_without_slurms_answer(before: NodeNight, is_kept: bool) -> None:
    (one,), _ = decide_drains([night("n01", slurm=None)], {"n01": before}, {}, "N2", LATER)
    assert (one.hold is not None) is is_kept
    assert bool(one.why) is is_kept


def test_a_drain_of_ours_of_which_nothing_has_the_cause_is_not_lifted() -> None:
    before: dict[str, NodeNight] = {}
    for number in range(3):
        one = night("n01", by="ours", read_again=READ)
        now = NOW + timedelta(days=number)
        (decided,), _ = decide_drains([one], before, members(18, ("n01",)), f"N{number}", now)
        assert (decided.plan, decided.hold) == ("", Hold(since="N0"))
        assert "neither a night nor Slurm's reason has the reason of its drain" in decided.why
        before = {"n01": decided}


@pytest.mark.parametrize(
    ("hours", "apart", "counted"),
    [
        # Hours after the first night. Nights that are less than `hours` apart count once.
        (12, (0, 0.1, 0.2, 1, 11.9), 1),
        (12, (0, 12), 2),
        (12, (0, 24), 2),
        # A night in between does not delay the second pass.
        (12, (0, 6, 12.1), 2),
        (23.5, (0, 12), 1),
        (0, (0, 0), 2),
        # The clock was ahead in the first night, so its pass counts from the next night on.
        (12, (1000, 0, 1), 1),
        (12, (1000, 0, 12), 2),
    ],
)
def test_two_runs_are_two_nights_only_hours_apart(
    hours: float, apart: tuple[float, ...], counted: int
) -> None:
    before: dict[str, NodeNight] = {"n01": night("n01", hold=Hold(since="N0", codes=("xid_79",)))}
    for number, hour in enumerate(apart):
        assert not plans(tuple(before.values()))
        one = night("n01", by="ours", read_again=READ)
        now, policy = NOW + timedelta(hours=hour), DrainPolicy(hours=hours)
        (decided,), _ = decide_drains([one], before, members(18, ("n01",)), f"N{number + 1}", now, policy)
        before = {"n01": decided}
    assert decided.hold is not None
    assert (decided.hold.passes, decided.plan) == (counted, "return" if counted == 2 else "")
    if counted == 1 and len(apart) > 1:
        assert "validate_resume_hours" in decided.why


def test_a_pass_that_an_earlier_version_counted_without_its_time_counts_from_now_on() -> None:
    before = {"n01": night("n01", hold=Hold(since="N0", codes=("xid_79",), passes=1))}
    for now, plan in ((NOW, ""), (NOW + timedelta(hours=1), ""), (LATER, "return")):
        (one,), _ = decide_drains([night("n01", by="ours", read_again=READ)], before, members(18), "N2", now)
        assert one.plan == plan, one.why
        before = {"n01": one}


@pytest.mark.parametrize("verdict", [Verdict.DEGRADED, Verdict.UNPROVEN])
def test_what_is_degraded_or_a_hint_still_is_not_well(verdict: Verdict) -> None:
    before = {"n01": night("n01", hold=Hold(since="N0", codes=("throttled",), passes=1))}
    seen = finding("n01", "throttled", verdict=verdict, confidence="hint")
    one = night("n01", seen, by="ours", verdict=Verdict.DEGRADED, read_again=("health:throttling",))
    (decided,), _ = decide_drains([one], before, members(18), "N1", LATER)
    assert (decided.plan, decided.why) == ("", "stays drained: still found: throttled")


def test_many_findings_cost_no_more_than_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    codes = NodeNight.codes

    def counted(one: NodeNight) -> tuple[str, ...]:
        nonlocal asked
        asked += 1
        return codes(one)

    monkeypatch.setattr(NodeNight, "codes", counted)
    many = [finding("n01", f"port_{number}") for number in range(200)]
    decide_drains([night("n01", *many), night("n02")], {}, members(18), "N1", NOW)
    assert asked < 10


def test_partitions_are_read_from_sinfo() -> None:
    text = f"n01|batch|{DRAIN_PREFIX} xid_79\nn01|debug|{DRAIN_PREFIX} xid_79\n"
    text += "n02|batch|rackproof: provisioning\nn03|batch|none\n\n|x\n"
    assert drained_by_partition(text) == {
        "batch": {"n01": True, "n02": False, "n03": False},
        "debug": {"n01": True},
    }


def test_a_policy_of_one_pass() -> None:
    before = {"n01": night("n01", hold=Hold(since="N0", codes=("xid_79",)))}
    one, policy = night("n01", by="ours", read_again=READ), DrainPolicy(passes=1)
    (one,), _ = decide_drains([one], before, members(18), "N1", NOW, policy)
    assert one.plan == "return"


@pytest.mark.parametrize(
    ("reason", "plan"),
    [
        ("xid_79 GPU 0, 00000018:06:00.0; rackproof explain n01", "return"),
        ("xid_79 GPU 0; rackproof explain --results '/srv/rack results' n01", "return"),
        ("bits:training step GPU-1; rackproof explain n01", ""),
        ("xid_79 GPU 0; pair:fabric n01; https://example.org/r/n01.html", ""),
    ],
)
def test_where_the_nights_are_lost_slurm_remembers_what_failed(reason: str, plan: str) -> None:
    """Two healthy nights heal an XID, but not a failed measurement, which was not made again."""
    state = SlurmState(known=True, state="IDLE+DRAIN", drained_by="ours", reason=f"{DRAIN_PREFIX} {reason}")
    before: dict[str, NodeNight] = {}
    for number in range(2):
        now = NOW + timedelta(days=number)
        (one,), _ = decide_drains(
            [night("n01", slurm=state, read_again=READ)], before, members(18), f"N{number}", now
        )
        before = {"n01": one}
    assert one.plan == plan, one.why


def test_the_first_reason_is_one_that_explains_the_verdict() -> None:
    """The first reason has the night's verdict, in whatever order the reasons were found."""
    reasons = (
        NightReason(check="probe", verdict=Verdict.UNPROVEN, metric="gemm", part="g", text="in use"),
        NightReason(check="floor", verdict=Verdict.FAIL, metric="gemm", part="g", text="too slow"),
    )
    remark = finding("n1", verdict=Verdict.DEGRADED, evidence="a remark")
    failed = night("n1", remark, reasons=reasons, verdict=Verdict.FAIL)
    before = night("n1", remark, verdict=Verdict.DEGRADED)
    texts = [one.rpartition(": ")[2] for one in failed.reason_texts()]
    assert texts == ["too slow", "in use", "a remark"]
    then, now = (
        NightRecord(night_id="N", started=NOW, ended=NOW, verdict=one.verdict, nodes=(one,))
        for one in (before, failed)
    )
    assert describe_changes(now, then) == ("n1: degraded → fail: gemm g: too slow",)
