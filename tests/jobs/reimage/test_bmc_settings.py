"""Test the comparison of a node's BIOS settings and firmware with ``reimage_expect``.

The inventory may state the settings and versions that a model must have. ``rackproof.jobs.reimage.tasks``
reads them through the BMC, and ``rackproof.jobs.reimage.hardware`` compares them before and after a new
image. A difference stops the node after the image. A value that cannot be read is unproven. The last tests
run playbooks, which must not show the password.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rackproof.core.records import Node, Verdict
from rackproof.jobs.reimage import hardware
from rackproof.jobs.reimage.bmc import Access, Firmware, Settings
from rackproof.jobs.reimage.hardware import (
    add_settings,
    check_expectation,
    compare_hardware,
    parse_expectation,
    record_hardware,
)
from rackproof.jobs.reimage.run_files import ReimageError
from rackproof.jobs.reimage.tasks import begin_run, read_settings

from .fake_redfish import ROOT, FakeRedfish

# The resources of a fake BMC, and the settings that are read from them.
BIOS = {"SriovGlobalEnable": "Enabled", "NumaNodesPerSocket": 1, "AcsEnabled": False, "Unset": None}
FIRMWARE = {
    "HGX_FW_GPU_SXM_1": "96.00.A5",
    "BMC|BMC image": "24.10",
    "Installed-1|NIC": "28.1",
    "Installed-2|NIC": "",
}
REPORTED = Settings(
    bios={"SriovGlobalEnable": "Enabled", "NumaNodesPerSocket": 1, "AcsEnabled": False},
    firmware=(
        Firmware("HGX_FW_GPU_SXM_1", "HGX_FW_GPU_SXM_1", "96.00.A5"),
        Firmware("BMC", "BMC image", "24.10"),
        Firmware("Installed-1", "NIC", "28.1"),
        Firmware("Installed-2", "NIC", ""),
    ),
)


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ({}, []),
        ({"bios": {"SriovGlobalEnable": "Enabled", "NumaNodesPerSocket": 1, "AcsEnabled": False}}, []),
        # Some BIOSes report numbers as text, so an inventory may have them as text.
        ({"bios": {"NumaNodesPerSocket": "1"}}, []),
        (
            {"bios": {"NumaNodesPerSocket": True}},
            [("BIOS setting NumaNodesPerSocket is 1, not True", "fail")],
        ),
        (
            {"bios": {"SriovGlobalEnable": "Disabled"}},
            [("BIOS setting SriovGlobalEnable is Enabled, not Disabled", "fail")],
        ),
        (
            {"bios": {"X": "Enabled"}},
            [
                (
                    "BIOS setting X is not known, has to be Enabled: its BMC shows no setting of that name",
                    "unproven",
                )
            ],
        ),
        ({"firmware": {"HGX_FW_GPU_SXM_1": "96.00.A5", "BMC": "24.10"}}, []),
        ({"firmware": {"BMC image": "24.11"}}, [("firmware BMC (BMC image) is 24.10, not 24.11", "fail")]),
        (
            {"firmware": {"CPLD": "1"}},
            [
                (
                    "firmware CPLD is not known, has to be 1: its BMC lists no firmware of that id or name",
                    "unproven",
                )
            ],
        ),
        # All pieces with this name must have the version, also the piece without a known version.
        (
            {"firmware": {"NIC": "28.2"}},
            [
                ("firmware NIC is not known, has to be 28.2: its BMC lists no version of it", "unproven"),
                ("firmware Installed-1 (NIC) is 28.1, not 28.2", "fail"),
            ],
        ),
    ],
)
def test_what_is_not_as_it_has_to_be_is_reported_with_both_values(
    expected: dict[str, Any], said: list[tuple[str, str]]
) -> None:
    found = check_expectation(parse_expectation("n1", expected), REPORTED)
    assert [(one.text(), one.verdict) for one in found] == [(text, Verdict(word)) for text, word in said]


def test_what_could_not_be_read_is_unproven_with_its_reason() -> None:
    settings_read = Settings(bios_error="n1: its BMC does not answer", firmware_error="n1: its BMC is slow")
    found = check_expectation(
        parse_expectation("n1", {"bios": {"A": "x"}, "firmware": {"B": "1"}}), settings_read
    )
    assert [one.verdict for one in found] == [Verdict.UNPROVEN] * 2
    assert [one.text() for one in found] == [
        "BIOS setting A is not known, has to be x: n1: its BMC does not answer",
        "firmware B is not known, has to be 1: n1: its BMC is slow",
    ]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"bois": {}}, r"reimage_expect of n1: bois: .*bios has settings"),
        ({"firmware": {"BMC": 1.1}}, r"reimage_expect of n1: firmware\.BMC: .*in quotes"),
        ({"bios": {"A": ["x"]}}, r"reimage_expect of n1: bios\.A"),
        ({"bios": "A"}, r"reimage_expect of n1: bios"),
    ],
)
def test_an_expectation_with_a_typing_error_is_refused(values: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_expectation("n1", values)


def test_the_record_has_all_firmware_and_the_expected_settings() -> None:
    expected = parse_expectation("n1", {"bios": {"AcsEnabled": False}})
    before = add_settings(Node(name="n1", firmware={"bios": "1.0"}), REPORTED, expected)
    assert before.firmware == {
        "bios": "1.0",
        "bios.AcsEnabled": "False",
        "bmc.HGX_FW_GPU_SXM_1": "96.00.A5",
        "bmc.BMC": "24.10",
        "bmc.Installed-1": "28.1",
    }
    newer = Settings(
        bios={"AcsEnabled": True}, firmware=(Firmware("BMC", "BMC", "24.11"), *REPORTED.firmware[::2])
    )
    after = add_settings(Node(name="n1", firmware={"bios": "1.0"}), newer, expected)
    assert [one.text() for one in compare_hardware(before, after)] == [
        "firmware bios.AcsEnabled was False, is True",
        "firmware bmc.BMC was 24.10, is 24.11",
    ]
    # If one side has no answer of a BMC, that is one remark, and not many missing parts.
    silent = Node(name="n1", firmware={"bios": "1.0"})
    assert [(one.text(), one.verdict) for one in compare_hardware(before, silent)] == [
        ("firmware that the BMC lists: not known after, so not compared", None),
        ("BIOS settings: not known after, so not compared", None),
    ]
    first, _ = compare_hardware(silent, before)
    assert first.text() == "firmware that the BMC lists: not known before, so not compared"


FACTS = {"dmi": {"product_serial": "S1"}, "boot_id": "one"}


def test_a_node_returns_only_as_its_model_has_to_be(tmp_path: Path) -> None:
    run = begin_run(tmp_path, {"n1": []}, method="rack", owner_pid=os.getpid())
    wrong = parse_expectation("n1", {"bios": {"AcsEnabled": True}})
    # Before the image, it is only a remark, because new settings apply from the next boot on.
    assert record_hardware(run, "n1", "before", FACTS, settings=REPORTED, expected=wrong) == (
        "before: BIOS setting AcsEnabled is False, not True",
    )
    with pytest.raises(
        ReimageError, match=r"n1 is not as its model has to be: .*AcsEnabled is False, not True"
    ):
        record_hardware(run, "n1", "after", FACTS, settings=REPORTED, expected=wrong)
    # An expectation without a known BMC cannot be checked.
    with pytest.raises(ReimageError, match=r"has to be True: no address of its BMC is known"):
        record_hardware(run, "n1", "after", FACTS, expected=wrong)
    right = parse_expectation("n1", {"bios": {"AcsEnabled": False}})
    assert record_hardware(run, "n1", "after", FACTS, settings=REPORTED, expected=right) == ()
    kept = hardware.read_record(Path(run.folder), "after", "n1")
    assert kept is not None
    assert kept.firmware["bios.AcsEnabled"] == "False"
    # Without an expectation, a BMC that reports nothing is a remark and stops no node.
    silent = Settings(bios_error="n1: no", firmware_error="n1: nor this")
    assert record_hardware(run, "n1", "after", FACTS, settings=silent)[-2:] == ("n1: no", "n1: nor this")


@pytest.fixture
def bmc() -> Iterator[FakeRedfish]:
    made = FakeRedfish({"Id": "1", "SerialNumber": "S1", "bios": BIOS}, firmware=FIRMWARE)
    yield made
    made.close()


def way(bmc: FakeRedfish, **changed: Any) -> Access:
    return Access(**({"address": bmc.address, "user": "ops", "password": "secret"} | changed))


@pytest.mark.slow
def test_settings_and_firmware_are_read_by_redfish(bmc: FakeRedfish) -> None:
    assert read_settings("n1", way(bmc)) == REPORTED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "bios_error", "firmware_error"),
    [
        ("/Bios", "n1: its BMC shows no BIOS settings", ""),
        ("/FirmwareInventory", "", "n1: its BMC lists no firmware"),
        ("/Systems", "n1: its BMC at .* refuses with status 404", ""),
        ("drips", *["n1: its BMC at .* did not finish within 2 s"] * 2),
    ],
)
def test_what_of_it_cannot_be_read_gives_the_reason_and_leaves_the_rest(
    bmc: FakeRedfish, fault: str, bios_error: str, firmware_error: str
) -> None:
    bmc.fault = fault
    settings_read = read_settings("n1", way(bmc), timeout_s=2 if fault == "drips" else 60)
    assert (
        re.match(bios_error, settings_read.bios_error) if bios_error else settings_read.bios == REPORTED.bios
    )
    assert (
        re.match(firmware_error, settings_read.firmware_error)
        if firmware_error
        else settings_read.firmware == REPORTED.firmware
    )


@pytest.mark.slow
def test_an_answer_that_the_library_cannot_read_is_an_error_of_this_bmc(bmc: FakeRedfish) -> None:
    bmc.resources[f"{ROOT}/UpdateService/FirmwareInventory"]["Members"] = [{"@odata.id": 7}]
    settings_read = read_settings("n1", way(bmc))
    assert "n1: the answer of its BMC at" in settings_read.firmware_error


@pytest.mark.slow
def test_a_piece_that_is_listed_and_not_there_and_a_slow_bmc_are_reported(bmc: FakeRedfish) -> None:
    del bmc.resources[f"{ROOT}/UpdateService/FirmwareInventory/1"]
    settings_read = read_settings("n1", way(bmc))
    assert settings_read.firmware[1] == Firmware("1", "1", "")
    assert len(settings_read.firmware) == len(FIRMWARE)
    settings_read = read_settings("n1", way(bmc), timeout_s=0)
    assert (settings_read.bios, settings_read.firmware) == (REPORTED.bios, ())
    assert "only 0 pieces were requested" in settings_read.firmware_error


def test_ipmi_or_a_missing_address_is_an_error_of_the_reading() -> None:
    assert "IPMI lists neither" in read_settings("n1", Access("10.0.0.1", protocol="ipmi")).bios_error
    assert "set reimage_bmc_address" in read_settings("n1", Access("")).firmware_error


PLAYBOOK = """
- hosts: n1
  gather_facts: false
  vars:
    ansible_connection: local
    ansible_python_interpreter: "{{{{ ansible_playbook_python }}}}"
    reimage_started: {begun}
    # As playbooks/reimage.yml has it.
    reimage_bmc_options:
      address: "{address}"
      user: ops
      password: "{{{{ lookup('ansible.builtin.env', 'BMC_PASSWORD') }}}}"
    reimage_expect: {{bios: {{SriovGlobalEnable: "{wanted}"}}}}
  tasks:
    - rackproof_reimage_record:
        run: "{{{{ reimage_started }}}}"
        which: "{{{{ item }}}}"
        expect: "{{{{ reimage_expect }}}}"
        bmc: "{{{{ reimage_bmc_options }}}}"
      loop: [before, after]
"""


@pytest.mark.playbook
def test_the_task_asks_the_bmc_and_shows_no_password(bmc: FakeRedfish, tmp_path: Path) -> None:
    run = begin_run(tmp_path / "results", {"n1": []}, method="rack", owner_pid=os.getpid())
    playbook = tmp_path / "playbook.yml"
    for wanted, password, status, said in (
        ("Enabled", "secret", 0, "'remarks': []"),
        (
            "Disabled",
            "secret",
            2,
            "n1 is not as its model has to be: BIOS setting SriovGlobalEnable is Enabled, not Disabled",
        ),
        ("Enabled", "hunter2", 2, "has to be Enabled: n1: its BMC at"),
    ):
        begun = run.model_dump_json(exclude={"message"})
        playbook.write_text(PLAYBOOK.format(begun=begun, address=bmc.address, wanted=wanted))
        done = subprocess.run(
            [Path(sys.executable).with_name("ansible-playbook"), "-vvv", "-i", "n1,", playbook],
            cwd=Path(__file__).resolve().parents[3],
            env=os.environ | {"BMC_PASSWORD": password, "ANSIBLE_NOCOLOR": "1", "COLUMNS": "400"},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        assert said in " ".join(done.stdout.split()) or status == 0
        assert password not in done.stdout + done.stderr
    kept = hardware.read_record(Path(run.folder), "before", "n1")
    assert kept is not None
    assert kept.firmware["bmc.BMC"] == "24.10"


@pytest.mark.playbook
def test_a_typing_error_in_an_expectation_is_reported_before_a_node_is_touched(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(
        "gpu_nodes: {hosts: {n1: {}, n2: {reimage_expect: {bios: {A: x}, frimware: {}}}}}\n"
    )
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            *("-i", tmp_path / "hosts.yml", "reimage.yml", "-l", "n1,n2"),
            *("-e", f"reimage_results={tmp_path / 'results'}"),
        ],
        cwd=Path(__file__).resolve().parents[3],
        env=os.environ | {"ANSIBLE_NOCOLOR": "1", "COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 2
    assert "reimage_expect of n2: frimware: Extra inputs are not permitted" in done.stdout
    assert not list(tmp_path.glob("results/*"))
