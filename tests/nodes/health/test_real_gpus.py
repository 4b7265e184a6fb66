"""Test the health checks on real answers of nvidia-smi, of six models of healthy GPUs.

The answers are in tests/data/real. A healthy GPU has no finding. Then the tests change one value, as a fault
or a setting would, and expect the finding, or none if healthy GPUs show that value, too.
"""

from __future__ import annotations

import io
import lzma
import re
from pathlib import Path
from typing import Any

import pytest

from rackproof import logs
from rackproof.core.records import Verdict
from rackproof.nodes.health_checks import check_node
from rackproof.nodes.health_subjects import Expectation, HealthFinding
from rackproof.nodes.snapshot import NodeSnapshot, build_snapshot

REAL = Path(__file__).resolve().parents[2] / "data" / "real"
ANSWERS = sorted([*REAL.glob("nvidia-smi/qx-*.xml*"), REAL / "h200-x4" / "nvidia-smi-q.xml.xz"])


@pytest.mark.parametrize("path", ANSWERS, ids=lambda path: path.name)
def test_a_real_answer_holds_every_reading(path: Path) -> None:
    raw = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    answer = {
        "facts": {"tools": {"nvidia_smi_xml": {"status": "ok", "stdout": raw.decode()}}},
        "health": {"booted": 1795000000.0, "epoch": 1795000000.0 + 90 * 86_400},
    }
    snapshot = build_snapshot("n1", answer)
    # The fabric of an A100 is set up without a state that its driver shows.
    expected = Expectation(gpus=len(snapshot.gpus), fabric="a100" not in path.name)
    found = [finding for finding in check_node(snapshot, expected=expected) if finding.part == "gpu"]
    assert snapshot.gpus
    assert [(finding.code, finding.evidence) for finding in found] == []


@pytest.mark.parametrize(
    ("temperature", "verdicts"),
    [(94, [Verdict.FAIL]), (89, [Verdict.FAIL]), (84, [Verdict.DEGRADED]), (83, [])],
)
def test_an_a100_is_judged_by_the_temperature_at_which_it_slows_down(
    temperature: int, verdicts: list[Verdict]
) -> None:
    xml = (
        (REAL / "nvidia-smi/qx-a100.xml")
        .read_text()
        .replace("<gpu_temp>33 C<", f"<gpu_temp>{temperature} C<")
    )
    answer = {"facts": {"tools": {"nvidia_smi_xml": {"status": "ok", "stdout": xml}}}}
    snapshot = build_snapshot("n1", answer)
    assert snapshot.gpus[0].temperature_c == temperature
    found = check_node(snapshot, expected=Expectation(gpus=len(snapshot.gpus)))
    assert [finding.verdict for finding in found if finding.code == "temperature"] == verdicts


H200 = lzma.decompress((REAL / "h200-x4" / "nvidia-smi-q.xml.xz").read_bytes()).decode()
# What nvlink -s and -e print about four H200 with two links each.
SPEEDS = "\n".join(
    line
    for uuid in re.findall(r"<uuid>(GPU-\S+)</uuid>", H200)
    for line in (f"GPU 0: NVIDIA H200 (UUID: {uuid})", "\t Link 0: 26.562 GB/s", "\t Link 1: 26.562 GB/s")
)
ERRORS = re.sub(r" Link (\d): .*", r" Link \1: Replay Errors: 0", SPEEDS)


def h200s(
    xml: str = H200, speeds: str = SPEEDS, errors: str = ERRORS, log: str = "", **smi: Any
) -> NodeSnapshot:
    """Return the snapshot of the real node with four H200. ``smi`` changes nvidia-smi's answer."""
    texts = {"nvidia_smi_xml": xml, "nvlink_status": speeds, "nvlink_errors": errors}
    tools: dict[str, dict[str, Any]] = {
        name: {"status": "ok", "stdout": text} for name, text in texts.items()
    }
    tools["nvidia_smi_xml"] |= smi
    tools["kernel_log"] = {"status": "ok", "stdout": "1795000000.1 n1 kernel: x\n", "stderr": log}
    return build_snapshot("n1", {"facts": {"tools": tools}})


def codes_of(snapshot: NodeSnapshot, expected: Expectation | None = None) -> set[str]:
    """Return the codes of the findings that the same node without a fault does not have."""
    expected, before = expected or Expectation(gpus=4), h200s()

    def found(one: NodeSnapshot) -> tuple[HealthFinding, ...]:
        return check_node(one, expected=expected, previous=before)

    return {one.code for one in found(snapshot)} - {one.code for one in found(before)}


# Each row replaces the first occurrence of a text, and has a code that is found.
@pytest.mark.parametrize(
    ("good", "bad", "code"),
    [
        ("<unrepairable_memory>No", "<unrepairable_memory>Yes", "memory_unrepairable"),
        ("<tpc_repair_pending>No", "<tpc_repair_pending>Yes", "repair_pending"),
        ("<channel_repair_pending>No", "<channel_repair_pending>Yes", "repair_pending"),
        # V100 and older GPUs retire pages instead of remapping rows.
        ("<pending_retirement>N/A", "<pending_retirement>Yes", "remap_pending"),
        ("<pending_blacklist>N/A", "<pending_blacklist>Yes", "remap_pending"),
        *(
            (
                "<volatile>",
                f"<volatile><double_bit><{place}>1</{place}></double_bit>",
                f"ecc_{kind}_uncorrectable",
            )
            for place, kind in (("device_memory", "dram"), ("l2_cache", "sram"), ("cbu", "sram"))
        ),
        ("<pending_ecc>Enabled", "<pending_ecc>Disabled", "ecc_off"),
        ("<pending_mig>Disabled", "<pending_mig>Enabled", "mig_on"),
        ("<pending_mig>Disabled", "<pending_mig>N/A", "gpu_readings_missing"),
        ("<current_mig>Disabled", "<current_mig>N/A", "gpu_readings_missing"),
        # The driver prints an error in place of a value that no check reads.
        ("<gpu_util>0 %", "<gpu_util>GPU requires reset", "gpu_unreadable"),
        ("<persistence_mode>Enabled", "<persistence_mode>Unknown Error", "gpu_unreadable"),
        ("<replay_counter>0", "<replay_counter>ERR!", "gpu_unreadable"),
        ("<current_mig>Disabled", "<current_mig>Enabled", "mig_on"),
        ("<total>143771 MiB", "<total>71885 MiB", "gpu_memory"),
        ("<max_link_width>16x", "<max_link_width>8x", "pcie_width_unproven"),
        ("<current_link_width>16x", "<current_link_width>8x", "pcie_width"),
        ("<max_link_gen>5", "<max_link_gen>3", "pcie_generation"),
        ("<memory_temp>36 C", "<memory_temp>98 C", "memory_temperature"),
        ("<memory_temp>36 C", "<memory_temp>110 C", "memory_temperature"),
        ("<gpu_temp>31 C", "<gpu_temp>105 C", "too_hot"),
        ("<gpu_temp>31 C", "<gpu_temp>0 C", "gpu_readings_missing"),
        ("<compute_mode>Default", "<compute_mode>Prohibited", "compute_prohibited"),
        ("<row_remapper_histogram_none>0", "<row_remapper_histogram_none>12", "remap_spent"),
        ("<remapped_row_unc>0", "<remapped_row_unc>512", "remap_spent"),
        (
            "<sm_clock>1980 MHz</sm_clock>\n\t\t\t<mem_clock>3201",
            "<sm_clock>345 MHz</sm_clock>\n\t\t\t<mem_clock>3201",
            "gpus_unlike",
        ),
        ("<attached_gpus>4", "<attached_gpus>8", "gpu_list_contradictory"),
        ("<attached_gpus>4", "<attached_gpus>3", "gpu_list_contradictory"),
    ],
)
def test_one_bad_value_in_a_real_answer_is_found(good: str, bad: str, code: str) -> None:
    assert good in H200
    assert code in codes_of(h200s(H200.replace(good, bad, 1)))


@pytest.mark.parametrize(
    ("tag", "texts"),
    [
        *(
            (tag, ("", "Unknown", "garbage", "-1", "1,234", "1.234"))
            for tag in (
                *("dram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded"),
                *("remapped_row_unc", "row_remapper_histogram_none", "replay_counter"),
                *("current_link_width", "max_link_gen"),
            )
        ),
        *(
            (tag, ("", "Unknown", "hot", "1 or 2"))
            for tag in (
                *("memory_temp", "gpu_temp_tlimit", "current_power_limit", "sm_clock"),
                "clocks_event_reasons_counters_hw_therm_slowdown",
            )
        ),
        *(
            (tag, ("", "Unknown", "On", "default"))
            for tag in ("persistence_mode", "compute_mode", "current_ecc")
        ),
    ],
)
def test_a_value_that_is_no_number_or_known_word_is_unproven(tag: str, texts: tuple[str, ...]) -> None:
    expected = Expectation(gpus=4)
    for text in texts:
        night = h200s(in_first_gpu((tag, text)))
        found = {
            one.verdict for one in check_node(night, expected=expected) if one.code == "gpu_value_unknown"
        }
        assert found == {Verdict.UNPROVEN}, text


def in_first_gpu(*changes: tuple[str, str]) -> str:
    """Return the real answer with other values of its first GPU."""
    xml = H200
    for tag, value in changes:
        xml = re.sub(rf"<{tag}>[^<]*<", f"<{tag}>{value}<", xml, count=1)
    return xml


def in_section(section: str, tag: str, value: str, count: int = 1) -> str:
    """Return the real answer with another value in a section of its first GPUs."""
    pattern = rf"(<{section}>(?:(?!</{section}>).)*<{tag}>)[^<]*<"
    return re.sub(pattern, rf"\g<1>{value}<", H200, count=count, flags=re.DOTALL)


SECOND_SERIAL, SECOND_BUS = (
    re.findall(pattern, H200)[1] for pattern in (r"<serial>([^<]+)<", r'<gpu id="([^"]+)"')
)


@pytest.mark.parametrize(
    ("xml", "code"),
    [
        (in_first_gpu(("max_link_gen", "4"), ("current_link_gen", "4")), "gpus_unlike"),
        (
            in_first_gpu(("current_power_limit", "500.00 W"), ("default_power_limit", "500.00 W")),
            "gpus_unlike",
        ),
        (in_first_gpu(("compute_mode", "Exclusive_Process")), "gpus_unlike"),
        (in_first_gpu(("persistence_mode", "Disabled")), "gpus_unlike"),
        (in_section("bar1_memory_usage", "total", "256 MiB"), "gpus_unlike"),
        (in_section("applications_clocks", "graphics_clock", "345 MHz"), "gpus_unlike"),
        (in_section("applications_clocks", "mem_clock", "1593 MHz"), "gpus_unlike"),
        (in_section("max_clocks", "mem_clock", "1593 MHz"), "gpus_unlike"),
        # A value that only this GPU lacks.
        (in_section("bar1_memory_usage", "total", "N/A"), "gpu_readings_missing"),
        (in_section("applications_clocks", "graphics_clock", "N/A"), "gpu_readings_missing"),
        (in_first_gpu(("persistence_mode", "N/A")), "gpu_readings_missing"),
        (in_first_gpu(("serial", SECOND_SERIAL)), "gpu_twice"),
        (re.sub(r'<gpu id="[^"]+"', f'<gpu id="{SECOND_BUS}"', H200, count=1), "gpu_twice"),
    ],
)
def test_a_gpu_unlike_those_beside_it_is_unproven_in_its_first_night(xml: str, code: str) -> None:
    assert xml != H200
    expected = Expectation(gpus=4)
    usual = {finding.code for finding in check_node(h200s(), expected=expected)}
    found = [one for one in check_node(h200s(xml), expected=expected) if one.code not in usual]
    assert [(one.code, one.verdict) for one in found] == [(code, Verdict.UNPROVEN)]


def test_trays_whose_gpus_share_a_serial_number_and_a_fleet_with_one_low_limit_pass() -> None:
    assert codes_of(h200s(re.sub(r"<serial>[^<]+<", "<serial>0000<", H200))) & {"gpu_twice"} == set()
    serial = re.sub(r"<serial>[^<]+<", "<serial>1<", H200)
    assert codes_of(h200s(serial)) >= {"gpu_twice"}
    tray = serial.replace("NVIDIA H200", "NVIDIA GB200")
    assert "gpu_twice" not in {one.code for one in check_node(h200s(tray))}
    low = H200.replace("<current_power_limit>700.00 W", "<current_power_limit>500.00 W")
    assert codes_of(h200s(low), Expectation(gpus=4, power_limit_w=500)) == set()


@pytest.mark.parametrize(
    ("good", "also_good"),
    [
        # At rest: the link and the clocks are slow, and nothing holds the driver.
        ("<current_link_gen>5", "<current_link_gen>1"),
        ("<performance_state>P0", "<performance_state>P8"),
        ("reason_gpu_idle>Active", "reason_gpu_idle>Not Active"),
        # At work: at its power limit, warm, and used to the full.
        ("reason_sw_power_cap>Not Active", "reason_sw_power_cap>Active"),
        ("<gpu_util>0 %", "<gpu_util>100 %"),
        ("<gpu_temp>31 C", "<gpu_temp>68 C"),
        ("<memory_temp>36 C", "<memory_temp>84 C"),
        ("<used>0 MiB", "<used>130000 MiB"),
        # After years: rows that were remapped, and errors that were corrected.
        ("<remapped_row_corr>0", "<remapped_row_corr>4"),
        ("<remapped_row_unc>0", "<remapped_row_unc>2"),
        ("<sram_correctable>0", "<sram_correctable>9"),
        ("<dram_correctable>0", "<dram_correctable>1200"),
        ("<replay_counter>0", "<replay_counter>60"),
        ("<row_remapper_histogram_high>0", "<row_remapper_histogram_high>6"),
    ],
)
@pytest.mark.parametrize("count", [1, 0], ids=["one", "all"])
def test_what_healthy_gpus_show_is_no_finding(good: str, also_good: str, count: int) -> None:
    assert good in H200
    assert codes_of(h200s(H200.replace(good, also_good, count or -1))) == set()


@pytest.mark.parametrize(
    "xml",
    [
        H200.replace("<persistence_mode>Enabled", "<persistence_mode>Disabled"),
        H200.replace("<compute_mode>Default", "<compute_mode>Exclusive_Process"),
        in_section("bar1_memory_usage", "total", "256 MiB", 0),
        in_section("applications_clocks", "graphics_clock", "345 MHz", 0),
        in_section("max_clocks", "mem_clock", "1593 MHz", 0),
        # The memory of a GPU at rest may be slow.
        in_section("clocks", "mem_clock", "405 MHz"),
    ],
)
def test_settings_that_all_gpus_share_are_no_finding(xml: str) -> None:
    assert xml != H200
    assert codes_of(h200s(xml)) == set()


def test_a_setting_of_most_gpus_is_the_usual_one() -> None:
    # If two settings are equally frequent, the driver's default is the usual one.
    for count, places in ((1, ["0"]), (2, ["0", "1"]), (3, ["3"])):
        xml = H200.replace("<compute_mode>Default", "<compute_mode>Exclusive_Process", count)
        found = [one for one in check_node(h200s(xml)) if one.code == "gpus_unlike"]
        assert [one.place.split(",")[0].split()[1] for one in found] == places
    # Some drivers show no applications clocks.
    without = h200s(in_section("applications_clocks", "graphics_clock", "N/A", 0))
    assert {one.code for one in check_node(without)} == {one.code for one in check_node(h200s())}
    prohibited = H200.replace("<compute_mode>Default", "<compute_mode>Prohibited", 1)
    assert codes_of(h200s(prohibited)) == {"compute_prohibited"}


@pytest.mark.parametrize(
    ("model", "codes"),
    [("NVIDIA H200", {"gpus_unlike"}), ("NVIDIA H200 NVL", set()), ("NVIDIA L40S", set())],
)
def test_slots_of_cards_may_be_of_several_generations(model: str, codes: set[str]) -> None:
    slow = in_first_gpu(("max_link_gen", "4"), ("current_link_gen", "4")).replace("NVIDIA H200", model)
    found = {one.code for one in check_node(h200s(slow), expected=Expectation(gpus=4))}
    assert found & {"gpus_unlike"} == codes
    parsed = logs.parse(io.BytesIO(slow.encode()))
    assert {one.code for one in parsed.findings} & {"gpus_unlike"} == codes


def test_a_link_at_half_its_speed_and_counters_that_are_gone_are_found() -> None:
    assert codes_of(h200s(speeds=SPEEDS.replace("26.562", "13.281", 1))) == {"nvlink_slow"}
    assert codes_of(h200s(speeds=SPEEDS.replace("26.562", "13.281"))) == {"nvlink_slow"}
    assert codes_of(h200s(errors="")) == {"nvlink_errors_unknown"}


def test_a_gpu_that_only_the_links_have_is_found() -> None:
    uuids = re.findall(r"UUID: (GPU-[0-9a-f-]+)", SPEEDS)
    other = "GPU-00000000-aaaa-bbbb-cccc-000000000000"
    assert "gpu_unlisted" in codes_of(h200s(speeds=SPEEDS.replace(uuids[0], other)))
    assert "gpu_unlisted" in codes_of(h200s(errors=ERRORS.replace(uuids[3], other)))
    more = f"\nGPU 4: NVIDIA H200 (UUID: {other})\n\t Link 0: <inactive>\n"
    assert codes_of(h200s(speeds=SPEEDS + more)) == {"gpu_unlisted"}
    many = "".join(f"\nGPU {slot}: NVIDIA H200 (UUID: GPU-{slot:08x})" for slot in range(3000))
    (one,) = [one for one in check_node(h200s(speeds=SPEEDS + many)) if one.code == "gpu_unlisted"]
    assert one.evidence.count("GPU-") == 8


def test_links_below_a_heading_that_cannot_be_read_are_not_the_gpu_s_before_it() -> None:
    broken = SPEEDS + "\nGPU 4: Unable to get the UUID: Unknown Error\n\t Link 0: <inactive>\n"
    assert codes_of(h200s(speeds=broken)) == set()
    errors = ERRORS + "\nGPU 4: Unknown Error\n\t Link 0: Replay Errors: 7\n"
    assert h200s(errors=errors).gpus == h200s().gpus


# Each row replaces a pattern in the output of nvlink -e.
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"(?s).*", ""),
        (r"\t Link 1: .*", ""),
        (r"Errors: 0", "Errors: N/A"),
        (r"Errors: 0", "Errors: -1"),
        (r"Errors: 0", "Errors: 1e9"),
        (r"Link 1: .*", "Link 1: Unknown Error"),
        (r"\(UUID: GPU-.", "(UUID: GPU?"),
    ],
)
def test_links_without_error_counters_prove_nothing(old: str, new: str) -> None:
    assert codes_of(h200s(errors=re.sub(old, new, ERRORS))) == {"nvlink_errors_unknown"}


@pytest.mark.parametrize("words", ["Malformed packet", "Rx remote", "CRC"])
def test_errors_that_newer_drivers_count_are_errors(words: str) -> None:
    counted = ERRORS.replace("Replay Errors: 0", f"{words} Errors: 3\n\t Link 0: FEC Errors - 0: 81")
    assert h200s(errors=counted).gpus[0].link_errors == 6


@pytest.mark.parametrize("second", ["<inactive>", "0 GB/s", "Unknown Error"])
def test_of_a_link_that_is_named_twice_the_worse_counts(second: str) -> None:
    for lines in (
        f"Link 1: {second}\n\t Link 1: 26.562 GB/s",
        f"Link 1: 26.562 GB/s\n\t Link 1: {second}",
    ):
        twice = h200s(speeds=SPEEDS.replace("Link 1: 26.562 GB/s", lines))
        assert all(gpu.links == {"0": True, "1": False} for gpu in twice.gpus)


@pytest.mark.parametrize(
    "log",
    [
        "NVRM: loaded\n",
        "Nov 24 01:00:00 n1 kernel: NVRM: loaded\n",
        "<6>NVRM: loaded\n\n",
        "[] x\n",
        "-- No entries --\nNVRM: loaded\n",
        "---[ end trace 0000000000000000 ]---\n",
    ],
)
def test_a_kernel_log_whose_messages_have_no_moment_may_have_lost_any(log: str) -> None:
    tools = {"kernel_log": {"status": "ok", "stdout": log}}
    assert "kernel_log" in build_snapshot("n1", {"facts": {"tools": tools}}).truncated


@pytest.mark.parametrize("log", ["", "\n", "-- No entries --\n", "-- Boot 5f1c09b4a3c34a7f --\n"])
def test_a_quiet_night_s_log_lacks_nothing(log: str) -> None:
    tools = {"kernel_log": {"status": "ok", "stdout": log}}
    assert build_snapshot("n1", {"facts": {"tools": tools}}).truncated == ()


@pytest.mark.parametrize("booted", [1795000001.0, 1e12, 1e300])
def test_a_boot_that_is_still_to_come_has_mended_nothing(booted: float) -> None:
    line = "1794999000.5 n1 kernel: NVRM: Xid (PCI:0008:06:00): 79, pid=1, GPU has fallen off the bus.\n"
    answer = {
        "facts": {"tools": {"kernel_log": {"status": "ok", "stdout": line}}},
        "health": {"epoch": 1795000000.0, "booted": booted},
    }
    (event,) = build_snapshot("n1", answer).xids
    assert not event.rebooted
    answer["health"]["booted"] = 1794999900.0
    (event,) = build_snapshot("n1", answer).xids
    assert event.rebooted


@pytest.mark.parametrize(
    "words",
    [
        "Journal file /var/log/journal/x/system.journal is truncated, ignoring file.",
        "File /var/log/journal/x/system@1.journal corrupted or uncleanly shut down, renaming and replacing.",
        "Failed to iterate through journal: Bad message",
    ],
)
def test_a_journal_that_lost_a_file_is_cut_off(words: str) -> None:
    assert "kernel_log" in h200s(log=words).truncated
    assert (
        "kernel_log"
        not in h200s(log="Hint: You are currently not seeing messages from other users.").truncated
    )


def test_gpus_are_shared_out_where_that_is_expected() -> None:
    shared = h200s(H200.replace("<current_mig>Disabled", "<current_mig>Enabled"))
    assert codes_of(shared, Expectation(gpus=4, mig=True)) == set()


# The next tests are about GPUs whose links are missing. Drivers print different texts in their place.

UUID = re.findall(r"<uuid>(GPU-\S+)</uuid>", H200)
LINKS = "\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s"


def without_links(instead: str, *places: int) -> str:
    """Return the link speeds of four H200, with another text for the GPUs at ``places``."""
    lines = []
    for place, uuid in enumerate(UUID):
        lines += [f"GPU {place}: NVIDIA H200 (UUID: {uuid})", instead if place in places else LINKS]
    return "\n".join(lines)


INACTIVE = "\t NVML: Unable to retrieve NVLink information as all links are inActive"


# `missing` is the number of GPUs that fail. `wanted` is the number of links that the SKU states (0: none).
@pytest.mark.parametrize("previous", [None, h200s()])
@pytest.mark.parametrize(
    ("speeds", "missing"),
    [
        (without_links(INACTIVE, 2), 1),
        (without_links(INACTIVE, 0), 1),
        (without_links("", 3), 1),
        (without_links("\t Link 0: <inactive>\n\t Link 1: <inactive>", 1), 1),
        (without_links("\t Link 0: 26.562 GB/s", 1, 2), 2),
        (without_links(INACTIVE, 1, 2, 3), 3),
        ("\n".join(SPEEDS.split("\n")[:-3]), 1),
    ],
)
@pytest.mark.parametrize("wanted", [0, 2])
def test_a_gpu_without_the_links_of_its_neighbours_fails(
    speeds: str, missing: int, wanted: int, previous: NodeSnapshot | None
) -> None:
    found = check_node(h200s(speeds=speeds), expected=Expectation(gpus=4, nvlinks=wanted), previous=previous)
    failed = [one for one in found if one.code in ("nvlink_missing", "nvlink_down")]
    assert [one.verdict for one in failed] == [Verdict.FAIL] * missing


@pytest.mark.parametrize("product", ["NVIDIA H100 PCIe", "NVIDIA H200 NVL", "NVIDIA L40S"])
@pytest.mark.parametrize("speeds", ["", INACTIVE, "GPU 0: {product} (UUID: {uuid})\n" + INACTIVE])
def test_cards_without_links_are_fine(product: str, speeds: str) -> None:
    xml = H200.replace("NVIDIA H200<", f"{product}<")
    printed = "\n".join(speeds.format(product=product, uuid=uuid) for uuid in UUID)
    found = check_node(h200s(xml, speeds=printed, errors=""), expected=Expectation(gpus=4))
    assert [one.code for one in found if "nvlink" in one.code or "links" in one.evidence] == []


# GB/s of a link. An H200 and an A100 have at least 25.
@pytest.mark.parametrize("speed", ["1.5", "0.001", "13.281", "20"])
@pytest.mark.parametrize("product", ["NVIDIA H200", "NVIDIA A100-SXM4-80GB"])
def test_links_below_their_model_s_speed_fail_in_a_first_night_too(speed: str, product: str) -> None:
    xml = H200.replace("NVIDIA H200<", f"{product}<")
    slow = h200s(xml, speeds=SPEEDS.replace("26.562", speed))
    found = [one for one in check_node(slow, expected=Expectation(gpus=4)) if one.code == "nvlink_slow"]
    assert [one.verdict for one in found] == [Verdict.FAIL] * 4


def test_a_gpu_whose_links_are_all_slower_than_its_neighbours_fails() -> None:
    xml = H200.replace("NVIDIA H200<", "NVIDIA Next<")
    slow = SPEEDS.replace("26.562", "100").replace("100", "50", 2)
    found = [one for one in check_node(h200s(xml, speeds=slow)) if one.code == "nvlink_slow"]
    assert [one.name for one in found] == [UUID[0]]


# The next tests are about warnings that nvidia-smi prints beside its answer. The InfoROM is a GPU's memory
# for its configuration.

BUS = re.findall(r'<gpu id="([^"]+)">', H200)
CORRUPTED = f"WARNING: infoROM is corrupted at gpu {BUS[2][4:]}\n"


# Status 14 of nvidia-smi means the same as the warning, but names no GPU, so the node is blamed.
@pytest.mark.parametrize(
    ("snapshot", "part"),
    [
        (h200s(CORRUPTED + H200), "gpu"),
        (h200s(H200 + CORRUPTED), "gpu"),
        (h200s(stderr=CORRUPTED), "gpu"),
        (h200s(stderr="x\nwarning: infoROM is corrupted at gpu 0000:ff:00.0\n"), "node"),
        (h200s(speeds=CORRUPTED + SPEEDS), "gpu"),
        (h200s(errors=ERRORS + "\nWARNING: infoROM is corrupted"), "node"),
        (h200s(rc=14), "node"),
        (h200s(status="failed", rc=14), "node"),
        (h200s(CORRUPTED + H200, status="failed", rc=14), "gpu"),
    ],
)
def test_a_corrupted_inforom_fails(snapshot: NodeSnapshot, part: str) -> None:
    (found,) = [one for one in check_node(snapshot) if one.code == "inforom_corrupted"]
    assert (found.verdict, found.part, found.action) == (Verdict.FAIL, part, "inspect")
    assert part == "node" or found.name == UUID[2]


@pytest.mark.parametrize(
    ("snapshot", "unknown"),
    [
        (h200s(status="failed", rc=14), False),
        (h200s(CORRUPTED + H200, status="failed", rc=14), False),
        (h200s(H200 + CORRUPTED, status="failed", rc=14), False),
        (h200s("", status="failed", rc=14), True),
        (h200s(CORRUPTED, status="failed", rc=14), True),
        (h200s(status="failed", rc=15), True),
        (h200s(status="failed", rc=255), True),
    ],
)
def test_gpus_that_were_listed_beside_a_corrupted_inforom_are_known(
    snapshot: NodeSnapshot, unknown: bool
) -> None:
    found = codes_of(snapshot)
    assert ("gpus_unknown" in found) is unknown
    assert found - {"gpus_unknown"} or unknown


@pytest.mark.parametrize("line", ["WARNING: a thing of drivers to come\n", "hello\n", "Error: x\n"])
def test_a_line_that_no_check_knows_beside_the_xml_is_unproven(line: str) -> None:
    for snapshot in (h200s(line + H200), h200s(H200 + line)):
        assert snapshot.gpus
        assert codes_of(snapshot) == {"tool_warning"}
    assert h200s(H200 + line + "<gpu/>").gpus == ()


def test_what_other_programs_print_on_stderr_is_no_warning() -> None:
    assert codes_of(h200s(stderr="bash: warning: setlocale: LC_ALL: cannot change locale\n")) == set()


# GPUs that MIG divides. The forms are those of published captures of A100, H100 and H200.
DIVIDED = re.sub(
    r"<remapped_rows>.*?</remapped_rows>",
    "<remapped_rows>N/A</remapped_rows>",
    re.sub(r"<(current|pending)_mig>Disabled<", r"<\1_mig>Enabled<", H200),
    flags=re.DOTALL,
)
NO_QUERIES = "Nvlink queries are not supported for Devices in MIG mode"


@pytest.mark.parametrize("previous", [None, h200s()])
@pytest.mark.parametrize("wanted", [0, 2])
def test_divided_gpus_report_neither_links_nor_remapped_rows(
    wanted: int, previous: NodeSnapshot | None
) -> None:
    divided = h200s(DIVIDED, speeds=without_links(NO_QUERIES, 0, 1, 2, 3), errors="")
    expected = Expectation(gpus=4, nvlinks=wanted, mig=True)
    found = check_node(divided, expected=expected, previous=previous)
    assert [(one.code, one.evidence) for one in found if one.part == "gpu"] == []
    # A whole GPU beside them must still have its links and its rows.
    half = DIVIDED.replace("_mig>Enabled<", "_mig>Disabled<", 2)
    one_whole = h200s(half, speeds=without_links("", 0, 1, 2, 3), errors="")
    codes = {one.code for one in check_node(one_whole, expected=expected, previous=previous)}
    assert "gpu_readings_missing" in codes
    # Links are missing if the SKU needs them, or if an earlier night found them.
    assert ("nvlink_missing" in codes) is bool(wanted or previous)
