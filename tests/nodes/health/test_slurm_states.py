"""Test the finding and verdict that follow from Slurm's state of a node (nodes/slurm_states.py).

A state is a word of scontrol or sinfo with flags (IDLE+DRAIN) or symbols (IDLE*), as releases 21.08 to 25.05
write it. A node that Slurm found faulty fails, one that a person or provision.yml drained is degraded, and
one that takes no work for another reason is unproven. A drain by a night or by reimage.yml is no finding.
"""

from __future__ import annotations

import pytest

from rackproof.core.records import Verdict
from rackproof.nodes.slurm_states import check_slurm_state, missing_state, state_words

P, D, U, F = Verdict.PASS, Verdict.DEGRADED, Verdict.UNPROVEN, Verdict.FAIL


# State, reason of the drain, user and time of the drain, code, verdict.
@pytest.mark.parametrize(
    ("state", "reason", "set_by", "code", "verdict"),
    [
        ("IDLE", "", "", "", P),
        ("MIXED+PLANNED", "", "", "", P),
        ("ALLOCATED+COMPLETING", "", "", "", P),
        ("IDLE+CLOUD", "", "", "", P),
        ("IDLE+MAINTENANCE+RESERVED", "", "", "", P),
        ("IDLE+DYNAMIC_NORM", "", "", "", P),
        ("IDLE$", "", "", "", P),
        ("mixed-", "", "", "", P),
        ("IDLE+PLANNED+CLOUD", "", "", "", P),
        ("resv", "", "", "", P),
        ("IDLE+BLOCKED", "", "", "", P),
        # Slurm found the node faulty, or gets no answer from it.
        ("DOWN", "", "", "slurm_down", F),
        ("DOWN*", "Not responding", "slurm@2026-01-05T10:00:00", "slurm_not_responding", F),
        ("DOWN*+DRAIN", "rackproof: provisioning", "root@x", "slurm_not_responding", F),
        ("IDLE*", "", "", "slurm_not_responding", U),
        ("IDLE+NOT_RESPONDING", "", "", "slurm_not_responding", U),
        ("IDLE*+INVALID_REG", "", "", "slurm_not_responding", F),
        ("IDLE+NO_RESPOND", "", "", "slurm_no_respond", U),
        ("down*", "", "", "slurm_not_responding", F),
        ("ERROR", "", "", "slurm_error", F),
        ("IDLE+FAIL", "", "", "slurm_fail", F),
        ("ALLOCATED+FAILING", "", "", "slurm_failing", F),
        ("INVAL", "", "", "slurm_inval", F),
        ("IDLE+DRAIN+INVALID_REG", "gres/gpu count reported lower", "slurm@x", "slurm_invalid_reg", F),
        ("DOWN+DRAIN", "rackproof-night: xid_79 GPU 0; x", "root@x", "slurm_down", F),
        # Drained by Slurm, by a check that Slurm runs, by a person, or by Rackproof.
        ("IDLE+DRAIN", "Kill task failed", "root@x", "slurm_drained_itself", F),
        ("MIXED+DRAIN", "anything", "slurm@2026-01-05T10:00:00", "slurm_drained_itself", F),
        ("IDLE+DRAIN", "NHC: check_fs_mount: /shared not mounted", "root@x", "slurm_drained_itself", F),
        ("IDLE+DRAIN", "Low RealMemory", "", "slurm_drained_itself", F),
        ("IDLE+DRAIN", "Low socket*core*thread count, Low CPUs", "root@x", "slurm_drained_itself", F),
        ("IDLE+DRAIN", "gres/gpu count too low (7 < 8)", "root@x", "slurm_drained_itself", F),
        ("IDLE+DRAIN", "Low voltage on PSU 2", "root@x", "slurm_drained", D),
        ("IDLE+DRAIN", "gres/gpu board is being replaced", "root@x", "slurm_drained", D),
        ("IDLE+DRAIN", "Duplicate serial number", "root@x", "slurm_drained", D),
        ("IDLE+DRAIN", "bob: waits for a cable", "bob@x", "slurm_drained", D),
        ("DRAINED", "", "", "slurm_drained", D),
        ("DRAINING", "bob: cable", "", "slurm_drained", D),
        ("IDLE+DRAIN", "rackproof: provisioning", "root@x", "slurm_drained", D),
        ("IDLE+DRAIN", "rackproof-night: xid_79 GPU 0; page", "root@x", "", P),
        ("IDLE+DRAIN", "rackproof-reimage: gets a new image", "root@x", "", P),
        # Nothing shows that a node in this state takes work.
        ("UNKNOWN", "", "", "slurm_state_unproven", U),
        ("FUTURE", "", "", "slurm_state_unproven", U),
        ("IDLE+POWERED_DOWN", "", "", "slurm_state_unproven", U),
        ("IDLE~", "", "", "slurm_state_unproven", U),
        ("IDLE#", "", "", "slurm_state_unproven", U),
        ("ALLOCATED+REBOOT_REQUESTED", "", "", "slurm_state_unproven", U),
        ("IDLE@", "", "", "slurm_state_unproven", U),
        ("REBOOT^", "", "", "slurm_state_unproven", U),
        ("IDLE+DRAIN+REBOOT_ISSUED", "rackproof-reimage: x", "", "slurm_state_unproven", U),
        ("SOMETHING_OF_SLURM_27", "", "", "slurm_state_unproven", U),
        ("FUTURE*", "", "", "slurm_not_responding", U),
        ("UNKNOWN*", "", "", "slurm_not_responding", U),
        ("IDLE!", "", "", "slurm_state_unproven", U),
        ("MIXED%", "", "", "slurm_state_unproven", U),
        ("ALLOCATED^", "", "", "slurm_state_unproven", U),
        ("IDLE+CLOUD+POWERED_DOWN", "", "", "slurm_state_unproven", U),
        ("(null)", "", "", "slurm_state_unproven", U),
        ("n/a", "", "", "slurm_state_unproven", U),
        # Flags without a state do not show that the node has registered.
        ("CLOUD", "", "", "slurm_state_unproven", U),
        ("DYNAMIC_FUTURE", "", "", "slurm_state_unproven", U),
        ("EXTERNAL+CLOUD", "", "", "slurm_state_unproven", U),
        ("RESUME", "", "", "slurm_state_unproven", U),
        ("", "", "", "slurm_state_unknown", U),
        ("+", "", "", "slurm_state_unknown", U),
    ],
)
def test_a_state_counts(state: str, reason: str, set_by: str, code: str, verdict: Verdict) -> None:
    found = list(check_slurm_state("n1", state, known=True, reason=reason, set_by=set_by))
    assert [(one.code, one.verdict) for one in found] == ([(code, verdict)] if code else [])
    # Slurm gives such a node no job anyway, so no night has to drain it.
    assert all(one.confidence == "hint" for one in found)


def test_a_node_that_slurm_does_not_know_is_unproven_where_it_belongs_to_the_cluster() -> None:
    (found,) = check_slurm_state("n1", "unknown", known=False)
    assert (found.code, found.verdict) == ("slurm_node_unknown", U)
    assert list(check_slurm_state("n1", "unknown", known=False, member=False)) == []


def test_an_answer_that_lacks_the_node_is_unproven() -> None:
    assert missing_state("n1", "Slurm could not be queried").verdict is U


def test_symbols_and_words_are_one() -> None:
    assert state_words("DOWN*+DRAIN") == ("DOWN", "NOT_RESPONDING", "DRAIN")
    assert state_words("IDLE%") == ("IDLE", "POWERING_DOWN")
