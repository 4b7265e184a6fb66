"""Test that a value which became worse stays a finding until it is back or an operator accepts it.

Each night is compared with the best values that earlier nights read (``usual`` of a snapshot's parts). A loss
that lasted for two nights must not become the value with which the third night is compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackproof.core.records import Verdict, worst
from rackproof.jobs.validate.fleet.drain_policy import lacking_for
from rackproof.jobs.validate.fleet.healing import DrainedNode, healed_evidence
from rackproof.nodes.health_checks import check_node
from rackproof.nodes.health_subjects import Expectation, HealthFinding
from rackproof.nodes.snapshot import NodeSnapshot, build_snapshot

from .healthy import DRIVER, answer_ok, healthy_gathered
from .healthy_parts import CARD_LINKS

EXPECTED = Expectation(gpus=4, gpu_readings=())
"""An SKU that states only the number of GPUs, so that all other values are compared with earlier nights."""
DATA_MOUNT = "30 22 8:17 / /data rw,relatime - ext4 /dev/sdb1 rw\n"
Answer = dict[str, Any]


def healthy(**options: Any) -> Answer:
    """Return the answer of a healthy node with a disk at /data."""
    answer = healthy_gathered(**options)
    answer["facts"]["files"]["mountinfo"] += DATA_MOUNT
    return answer


def smi(old: str, new: str) -> Callable[[Answer], None]:
    """Return a loss that replaces a text of every GPU in nvidia-smi's answer."""

    def lose(answer: Answer) -> None:
        tool = answer["facts"]["tools"]["nvidia_smi_xml"]
        assert re.search(old, tool["stdout"])
        tool["stdout"] = re.sub(old, new, tool["stdout"])

    return lose


def links(old: str, new: str) -> Callable[[Answer], None]:
    """Return a loss that replaces a text in the states of NVLinks."""

    def lose(answer: Answer) -> None:
        tool = answer["health"]["tools"]["nvlink_status"]
        assert re.search(old, tool["stdout"])
        tool["stdout"] = re.sub(old, new, tool["stdout"])

    return lose


def read_only(answer: Answer) -> None:
    """Mount /data only for reading."""
    files = answer["facts"]["files"]
    files["mountinfo"] = files["mountinfo"].replace("/data rw", "/data ro")


def in_error(answer: Answer) -> None:
    """Make the file system at /data read-only, as the kernel does on an error. The mount stays writable."""
    files = answer["facts"]["files"]
    files["mountinfo"] = files["mountinfo"].replace("/dev/sdb1 rw", "/dev/sdb1 ro")


def unmounted(answer: Answer) -> None:
    """Mount /data not at all."""
    files = answer["facts"]["files"]
    files["mountinfo"] = files["mountinfo"].replace(DATA_MOUNT, "")


def port(name: str, value: str) -> Callable[[Answer], None]:
    """Return a loss that replaces a value of the port."""
    return lambda answer: answer["health"]["hca"]["mlx5_0"]["1"].update({name: value})


def without(*path: str) -> Callable[[Answer], None]:
    """Return a loss that takes an entry out of the answer."""

    def lose(answer: Answer) -> None:
        for key in path[:-1]:
            answer = answer[key]
        del answer[path[-1]]

    return lose


def narrow_width(answer: Answer) -> None:
    """Take half of the lanes from each GPU, as a worn contact does, which also lowers the maximum."""
    smi("16x<", "8x<")(answer)


# A loss by name, with the code of its finding. No loss differs between the GPUs of the node.
LOSSES: Mapping[str, tuple[Callable[[Answer], None], str]] = {
    "PCIe lanes": (narrow_width, "pcie_width"),
    "PCIe generation": (smi("link_gen>5<", "link_gen>4<"), "pcie_generation"),
    "memory": (smi("143771 MiB", "71885 MiB"), "gpu_memory"),
    "serial number": (smi("<serial>S1", "<serial>S9"), "gpu_serial_changed"),
    "NVLink down": (links(r"Link 1: 50 GB/s", "Link 1: <inactive>"), "nvlink_down"),
    "NVLink gone": (links(r"\t Link 1: 50 GB/s\n", ""), "nvlink_missing"),
    "all NVLinks gone": (links(r"\t Link \d: 50 GB/s\n", ""), "nvlink_missing"),
    "NVLink slow": (links("50 GB/s", "26.562 GB/s"), "nvlink_slow"),
    "mount": (read_only, "mount_read_only"),
    "port rate": (port("rate", "200 Gb/sec"), "port_slow"),
    "port": (port("state", "1: DOWN"), "port_down"),
    "reading of the GPUs": (smi("<replay_counter>0</replay_counter>", ""), "gpu_readings_missing"),
    "list of NVLinks": (
        lambda answer: answer["health"]["tools"].update(nvlink_status={"status": "failed"}),
        "nvlink_status_unknown",
    ),
    "version of the fabric manager": (without("facts", "tools", "fabricmanager"), "system_unknown"),
    "boot's id": (without("facts", "boot_id"), "system_unknown"),
    "counter of a port": (
        without("health", "hca", "mlx5_0", "1", "counters", "symbol_error"),
        "port_unknown",
    ),
    "link of a card": (
        lambda answer: answer["health"].update(
            pci={address: dict.fromkeys(link, "Unknown") for address, link in CARD_LINKS.items()}
        ),
        "system_unknown",
    ),
}  # fmt: skip


def lost(*names: str) -> Answer:
    """Return the answer of a node with some losses."""
    answer = healthy()
    for name in names:
        LOSSES[name][0](answer)
    return answer


def unread() -> Answer:
    """Return the answer of a node on which nothing could be read."""
    answer = healthy()
    failed = {"status": "failed"}
    answer["facts"]["tools"] = dict.fromkeys(answer["facts"]["tools"], failed)
    answer["health"]["tools"] = dict.fromkeys(answer["health"]["tools"], failed)
    answer["health"] |= {"hca": {}, "pci": {}}
    del answer["facts"]["files"]["mountinfo"], answer["facts"]["boot_id"]
    return answer


def absent() -> Answer:
    """Return the answer of a node without GPUs and ports."""
    answer = healthy(gpus=0)
    answer["health"] |= {"hca": {}, "pci": {}}
    return answer


def nights(
    *answers: Answer, accepted: tuple[int, ...] = (), expected: Expectation = EXPECTED
) -> list[tuple[HealthFinding, ...]]:
    """Return the findings of each night. A snapshot is stored and read between two nights."""
    previous, found = None, []
    for at, answer in enumerate(answers):
        now = build_snapshot("n1", deepcopy(answer), previous=previous, accept_identity=at in accepted)
        found.append(check_node(now, previous=previous, expected=expected, idle=True))
        previous = NodeSnapshot.model_validate_json(now.model_dump_json())
    return found


def verdict(found: tuple[HealthFinding, ...]) -> Verdict:
    return worst([one.verdict for one in found] or [Verdict.PASS])


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_a_finding_in_every_night_until_it_is_over(name: str) -> None:
    found = nights(healthy(), lost(name), lost(name), lost(name), healthy())
    assert found[0] == found[4] == ()
    assert [one.code for one in found[1]] == [one.code for one in found[3]]
    assert [one.verdict for one in found[1]] == [one.verdict for one in found[3]]
    assert LOSSES[name][1] in {one.code for one in found[3]}
    assert verdict(found[3]).gates


@pytest.mark.parametrize("name", LOSSES)
def test_a_night_without_readings_ends_no_loss(name: str) -> None:
    others = {"memory", "mount", "boot's id", "port rate"} - {name}
    for between in (unread(), absent(), lost(*others)):
        found = nights(healthy(), between, between, lost(name))
        assert LOSSES[name][1] in {one.code for one in found[3]}
        assert verdict(found[3]).gates


@settings(max_examples=20, deadline=None)
@given(
    chosen=st.sampled_from(sorted(LOSSES)),
    kinds=st.lists(st.sampled_from(["well", "lost", "lost", "unread", "absent"]), max_size=5),
)
def test_after_a_loss_no_night_passes_until_the_value_is_back(chosen: str, kinds: list[str]) -> None:
    answers = {"well": healthy(), "lost": lost(chosen), "unread": unread(), "absent": absent()}
    found = nights(healthy(), *(answers[kind] for kind in kinds))
    assert [verdict(one) is Verdict.PASS for one in found[1:]] == [kind == "well" for kind in kinds]


@pytest.mark.parametrize("name", LOSSES)
def test_an_operator_accepts_a_loss(name: str) -> None:
    found = nights(healthy(), *[lost(name)] * 2, healthy(), lost(name), accepted=(1,))
    if name not in ("port", "list of NVLinks"):
        # A port that is down, and a list of links that an SKU needs, have their own remedies.
        assert {one.verdict for one in found[1]} <= {Verdict.DEGRADED}
        assert {one.action for one in found[1]} <= {"watch"}
        assert not verdict(found[2]).gates
    if name != "serial number":
        # The better value is the usual one again. Of two serial numbers, neither is better.
        assert found[3] == ()
        assert verdict(found[4]).gates


def test_a_loss_names_the_command_that_accepts_it() -> None:
    for name in (
        "PCIe lanes",
        "PCIe generation",
        "memory",
        "NVLink down",
        "NVLink slow",
        "mount",
        "port rate",
    ):
        (first, *_) = nights(healthy(), lost(name))[1]
        assert "validate_accept_identity=true" in first.evidence, name


def test_acceptance_keeps_what_the_night_could_not_read() -> None:
    found = nights(healthy(), unread(), lost("PCIe generation"), accepted=(1,))
    assert "pcie_generation" in {one.code for one in found[2]}


def test_a_replaced_gpu_is_not_compared_with_the_old_one() -> None:
    new = lost("PCIe generation", "memory", "NVLink slow")
    for tool in (*new["facts"]["tools"].values(), *new["health"]["tools"].values()):
        # Another UUID and serial number, in the same place.
        tool["stdout"] = re.sub(r"GPU-0{7}1", "GPU-00000007", tool["stdout"]).replace(
            "<serial>S1", "<serial>S7"
        )
    found = nights(healthy(), new, new, accepted=(1,))
    assert {one.code for one in found[1]} == {"gpu_replaced"}
    assert found[2] == ()


def test_another_driver_may_report_less() -> None:
    other = lost("reading of the GPUs")
    tools = other["facts"]["tools"]
    tools["nvidia_smi_xml"]["stdout"] = tools["nvidia_smi_xml"]["stdout"].replace(DRIVER, "570.1")
    tools["fabricmanager"] = answer_ok("Fabric Manager version is : 570.1")
    other["node"]["modules"] = {"nvidia": "570.1"}
    # Also after a night in which the new driver did not run yet.
    for found in (nights(healthy(), other, other), nights(healthy(), unread(), other)[1:]):
        assert found[1:] == [()] * (len(found) - 1)
    # Without a version of the kernel module, as a driver without GSP firmware has no version of that.
    other["node"]["modules"] = {}
    assert nights(healthy(), other, other)[1:] == [(), ()]
    assert nights(healthy(), unread(), unread(), other, other)[3:] == [(), ()]
    # The same driver must report what it reported before.
    same = lost("version of the fabric manager")
    assert {one.code for one in nights(healthy(), unread(), same)[2]} == {"system_unknown"}


def test_memory_that_ecc_takes_is_no_loss() -> None:
    without_ecc = healthy()
    smi("<current_ecc>Enabled", "<current_ecc>Disabled")(without_ecc)
    smi("143771 MiB", "153600 MiB")(without_ecc)
    found = nights(without_ecc, healthy(), lost("memory"))
    assert {one.code for one in found[0]} == {"ecc_off"}
    assert found[1] == ()
    assert {one.code for one in found[2]} == {"gpu_memory"}


@pytest.mark.parametrize("lose", [read_only, in_error])
def test_a_mount_that_became_read_only_and_is_gone_is_no_pass(lose: Callable[[Answer], None]) -> None:
    gone, damaged = healthy(), healthy()
    unmounted(gone)
    lose(damaged)
    found = nights(healthy(), damaged, gone, gone, healthy(), gone)
    assert [len(night) for night in found] == [0, 1, 1, 1, 0, 0]
    codes = [{one.code for one in night} for night in found]
    # A file system that is only unmounted is not compared, because no SKU requires it.
    assert codes == [set(), *[{"mount_read_only"}] * 3, set(), set()]


def test_a_disk_whose_space_is_read_is_no_pass_if_it_became_read_only_and_is_gone() -> None:
    gone, damaged = healthy(), lost("mount")
    unmounted(gone)
    for answer in (gone, damaged):
        # The space of a path is also read if nothing is mounted there.
        answer["health"]["disk"]["/data"] = answer["health"]["disk"]["/"]
    assert "mount_read_only" in {one.code for one in nights(healthy(), damaged, gone)[2]}


def test_snapshots_of_earlier_versions_have_no_usual_values() -> None:
    fields = ("usual", "lost_counters", "absent_gpus", "writable_mounts", "lost_mounts", "lost_readings")
    stored = build_snapshot("n1", healthy()).model_dump(mode="json")
    for record in (stored, *stored["gpus"], *stored["ports"]):
        for name in fields:
            record.pop(name, None)
    before = NodeSnapshot.model_validate(stored)
    for name, (_, code) in LOSSES.items():
        tonight = build_snapshot("n1", lost(name), previous=before)
        assert code in {one.code for one in check_node(tonight, previous=before, expected=EXPECTED)}, name


def test_an_accepted_loss_does_not_resume_a_drained_node() -> None:
    before = build_snapshot("n1", healthy())
    failed = build_snapshot("n1", lost("PCIe generation"), previous=before)
    accepted = build_snapshot("n1", lost("PCIe generation"), previous=failed, accept_identity=True)
    for tonight, is_healed in ((accepted, False), (build_snapshot("n1", healthy(), previous=accepted), True)):
        drained = DrainedNode(tonight, EXPECTED, failed=failed, before=before)
        read = healed_evidence(drained)
        assert (lacking_for("pcie_generation", read) == ()) is is_healed
