"""Test the verdict on results of ``dcgmi diag`` (:mod:`rackproof.logs.dcgm_diag`), as DCGM 2 to 4 print them.

``dcgmi diag`` is NVIDIA's test of a node's GPUs. These tests check that faults and warnings are found, that a
result with a skipped test, a missing row or a missing GPU is unproven, and that a wrong setting is not
reported as a fault of hardware.

The forms are those of NVIDIA/DCGM issues 55 (3.0), 139 (JSON) and 253 (4.2), of NVIDIA/deepops
(docs/slurm-cluster, 2.0), aws-samples/awsome-distributed-training (efa-cheatsheet, 3.3), of
facebookresearch/gcm (test_check_dcgmi.py) and of dcgmi/Diag.cpp of DCGM 3.3.9. Errors are those of
dcgmlib/dcgm_errors.h.
"""

from __future__ import annotations

import io
import json

import pytest

from rackproof import logs
from rackproof.core.records import Verdict

from .log_samples import _DCGM_RULE, DCGM, dcgm_json

PASS, DEGRADED, UNPROVEN, FAIL = Verdict.PASS, Verdict.DEGRADED, Verdict.UNPROVEN, Verdict.FAIL
SOFTWARE = (
    *("NVML Library", "CUDA Main Library", "Permissions and OS Blocks", "Persistence Mode"),
    *("Environment Variables", "Page Retirement/Row Remap", "Graphics Processes", "Inforom"),
)
"""The software tests of DCGM 3 below the first one, which is called Denylist or Blacklist."""

PART = b"| " + b" " * 25 + b" | %b: Pass" + b" " * 36 + b" |\n"
"""The row of one part of a test in the table of DCGM 4."""
IDS = next(line for line in DCGM.splitlines(keepends=True) if b"Device IDs" in line)
"""The row with a device ID for each GPU that DCGM found."""


HARDWARE = ("PCIe", "Memory", "EUD Test")
LEVEL_3 = ("PCIe", "GPU Memory", "Diagnostic", "Targeted Stress", "Targeted Power", "Memory Bandwidth")
"""The hardware tests of level 3 of DCGM 3.3.9 on a V100, as its users published them."""


def judged(text: str | bytes) -> tuple[Verdict, set[str]]:
    """Return a log's verdict, and the codes of the findings that have a verdict."""
    parsed = logs.parse(io.BytesIO(text if isinstance(text, bytes) else text.encode()))
    assert parsed.format == "dcgmi_diag"
    return parsed.verdict, {one.code for one in parsed.findings if one.verdict is not None}


def below_memory(words: str) -> bytes:
    """Return DCGM 4's table with one more row of a part below the test of memory."""
    memory, row = PART % b"GPU1", f"| {'':25} | {words:46} |\n".encode()
    before, found, after = DCGM.partition(memory)
    return before + found + after.replace(memory, memory + row, 1)


def table(first: str = "Denylist", hardware: tuple[str, ...] = HARDWARE, **words: str) -> str:
    """Return the table of DCGM 3, in which tests have other words than Pass."""
    rows = [f"| {name:25} | {words.get(name.split()[0], 'Pass'):46} |\n" for name in (first, *SOFTWARE)]
    hardware_rows = [f"| {name:25} | {words.get(name.split()[0], 'Pass - All'):46} |\n" for name in hardware]
    return "".join(
        [
            "Successfully ran diagnostic for group.\n",
            _DCGM_RULE,
            f"| {'Diagnostic':25} | {'Result':46} |\n+{'=' * 27}+{'=' * 48}+\n",
            f"|-----  Deployment  --------+{'-' * 48}|\n",
            *rows,
            f"+-----  Integration  -------+{'-' * 48}+\n",
            *hardware_rows,
            _DCGM_RULE,
        ]
    )


@pytest.mark.parametrize(
    "text", [DCGM, table(), table("Blacklist"), dcgm_json(), dcgm_json("DCGM GPU Diagnostic")]
)
def test_the_output_for_a_healthy_node_passes(text: str | bytes) -> None:
    assert judged(text) == (PASS, set())


def with_rows(test: str, *words: str) -> bytes:
    """Return the table of DCGM 4 with one more test, and the words of the test and of its parts."""
    rows = [f"| {name:25} | {word:46} |\n" for name, word in zip((test, "", "", ""), words, strict=False)]
    return DCGM[: -len(_DCGM_RULE)] + "".join(rows).encode() + _DCGM_RULE.encode()


def with_json_test(test: str, group: str, status: str, *ids: int) -> bytes:
    """Return the JSON of DCGM 4 with one more test of parts of another kind."""
    root = json.loads(dcgm_json())
    results = [{"entity_group": group, "entity_id": one, "status": status} for one in ids]
    tests = root["DCGM Diagnostic"]["test_categories"][0]["tests"]
    tests.append({"name": test, "results": results, "test_summary": {"status": status}})
    return json.dumps(root).encode()


@pytest.mark.parametrize(
    "text",
    [
        with_rows("cpu_eud", "Pass", "CPU0: Pass", "CPU1: Pass"),
        with_rows("cpu_eud", "Skip", "CPU0: Skip"),
        with_rows("cpu_eud", "Skip"),
        with_rows("nvswitch", "Pass", "NVSwitch0: Pass"),
        with_json_test("cpu_eud", "CPU", "Pass", 0, 1),
        with_json_test("cpu_eud", "CPU", "Skip", 0),
        DCGM.replace(PART % b"GPU1", PART % b"GPU1" + PART % b"CPU0", 1),
    ],
)
def test_tests_of_processors_and_switches_do_not_hide_gpus(text: bytes) -> None:
    assert judged(text) == (PASS, set())


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (DCGM.replace(PART % b"GPU1", b"").replace(IDS, b""), "gpu_missing"),
        (DCGM.replace(IDS, b""), "gpu_missing"),
        (DCGM.replace(IDS, IDS.replace(b"2335, 2335", b"          ")), "gpu_missing"),
        (DCGM.replace(PART % b"GPU0", b"").replace(PART % b"GPU1", b""), "gpu_missing"),
        (DCGM.replace(PART % b"GPU0", b"", 1).replace(PART % b"GPU1", PART % b"CPU0", 1), "gpu_missing"),
        (dcgm_json().replace(b'"entity_groups"', b'"other"'), "gpu_missing"),
        (dcgm_json().replace(b'"entity_group": "GPU", "entity_group_id": 1, "entities"', b'"entity_group": '
         b'"CPU", "entities"'), "gpu_missing"),
        (with_json_test("memtest", "GPU", "Pass"), "gpu_missing"),
        # Parts of another kind are compared, too.
        (with_rows("cpu_eud", "Pass", "CPU0: Pass", "CPU1: Pass")
         .replace(b"| pcie", PART % b"CPU0" + b"| pcie"), "gpu_missing"),
    ],
)  # fmt: skip
def test_a_result_of_dcgm_4_without_some_of_its_gpus_is_unproven(text: bytes, code: str) -> None:
    found, codes = judged(text)
    assert (found, code in codes) == (UNPROVEN, True), codes


# A result with one change, its verdict, and the code of a finding.
@pytest.mark.parametrize(
    ("text", "verdict", "code"),
    [
        (table(PCIe="Fail - GPU: 0"), FAIL, "dcgm_fault"),
        (table(Page="Fail"), FAIL, "dcgm_fault"),
        (table(Persistence="Warn"), DEGRADED, "dcgm_warning"),
        (table(Memory="Skip - All"), UNPROVEN, "dcgm_skipped"),
        (table(Memory="Not Run"), UNPROVEN, "dcgm_warning"),
        (DCGM.replace(b"GPU1: Pass", b"GPU1: Fail", 1), FAIL, "dcgm_fault"),
        (DCGM.replace(b"y                    | Pass", b"y                    | Fail"), FAIL, "dcgm_fault"),
        (below_memory("GPU0: Fxil"), UNPROVEN, "damaged_line"),
        (below_memory("GPx: Fail"), UNPROVEN, "damaged_line"),
        (below_memory("GPU0 Fail"), UNPROVEN, "damaged_line"),
        (below_memory("GPU0: Fail"), FAIL, "dcgm_fault"),
        (dcgm_json(memory="Fail"), FAIL, "dcgm_fault"),
        (dcgm_json(memory="FAIL"), FAIL, "dcgm_fault"),
        (dcgm_json("DCGM GPU Diagnostic", pcie="Warn"), DEGRADED, "dcgm_warning"),
        (dcgm_json(pcie="Skip"), UNPROVEN, "dcgm_skipped"),
        # NVIDIA/DCGM issue 284: an error beside a test that passed.
        (dcgm_json().replace(b'"status": "Pass"}', b'"status": "Pass", "warnings": [{"warning": "x"}]}', 1),
         UNPROVEN, "dcgm_warning"),
        (table().replace("| PCIe ", f"| {'Warning':25} | {'GPU 0: MEMORY_ALLOC':46} |\n| PCIe "), UNPROVEN,
         "dcgm_warning"),
    ],
)  # fmt: skip
def test_faults_and_warnings_are_found(text: str | bytes, verdict: Verdict, code: str) -> None:
    found, codes = judged(text)
    assert (found, code in codes) == (verdict, True), codes


def test_a_test_that_needs_a_package_of_its_own_may_be_skipped() -> None:
    assert judged(table(EUD="Skip - All")) == (PASS, set())


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (table()[: -len(_DCGM_RULE)], "cut_off"),
        (table().partition("| Inforom")[0], "cut_off"),
        *((table().replace(f"| {name:25} | {'Pass':46} |\n", ""), "rows_missing") for name in SOFTWARE),
        (DCGM.replace(b"| " + b" " * 25 + b" | GPU1: Pass" + b" " * 36 + b" |\n", b"", 1), "gpu_missing"),
        (DCGM.replace(b"| " + b" " * 25 + b" | GPU1: Pass" + b" " * 36 + b" |\n", b""), "gpu_missing"),
        (table() + table(), "several_runs"),
        (dcgm_json()[:-20], "damaged_json"),
        (dcgm_json().replace(b'"entity_id": 1}]', b'"entity_id": 1}, {"entity_id": 2}]'), "gpu_missing"),
        (json.dumps({"DCGM Diagnostic": {"test_categories": [], "runtime_error": "no GPU"}}), "tool_error"),
    ],
)
def test_an_incomplete_repeated_or_damaged_result_is_unproven(text: str | bytes, code: str) -> None:
    found, codes = judged(text)
    assert (found, code in codes) == (UNPROVEN, True), codes


def test_the_message_has_the_words_of_dcgm_the_test_and_the_gpu() -> None:
    warned = json.dumps({"status": "Fail", "warnings": [{"warning": "Enable persistence mode " + "x" * 999}]})
    text = dcgm_json().replace(b'"status": "Pass"}', warned[1:].encode(), 1)
    messages = [one.message for one in logs.parse(io.BytesIO(text)).findings if one.code == "dcgm_warning"]
    assert messages[0].startswith("software of GPU0: DCGM reports: Enable persistence mode xxx")
    assert len(messages[0]) < 400


# Errors as DCGM's JSON lists them. The first three are wrong settings. Hardware may cause the others.
PERSISTENCE = {"warning": "Persistence mode for GPU 0 is disabled.", "error_id": 29, "error_severity": 5}
ECC_OFF = {"warning": "Skipping test memory because ECC is not enabled", "error_id": 55, "error_severity": 5}
DRIVER = {"warning": "Found driver on the denylist: nouveau", "error_id": 21, "error_severity": 5}
NARROW = {"warning": "GPU 0 is running at PCI link width 8X", "error_id": 46, "error_severity": 5}
FABRIC = {"warning": "Fabric Manager (Clique ID: 1)", "error_id": 112, "error_severity": 5}
NO_FILE = {"warning": "The number of devices NVML returns is different", "error_id": 20, "error_severity": 5}
PAGES = {"warning": "GPU 0 had an error", "error_id": 50, "error_severity": 2}


def failed_json(*errors: dict[str, object], root: str = "DCGM Diagnostic", in_summary: bool = False) -> bytes:
    """Return the JSON in which the first test of GPU 0 failed with these errors."""
    document = json.loads(dcgm_json(root))
    test = document[root]["test_categories"][0]["tests"][0]
    test["results"][0] |= {"status": "Fail", "warnings": list(errors)}
    test["test_summary"] = {"status": "Fail"} | ({"warnings": list(errors)} if in_summary else {})
    return json.dumps(document).encode()


@pytest.mark.parametrize("in_summary", [False, True])
@pytest.mark.parametrize("root", ["DCGM Diagnostic", "DCGM GPU Diagnostic"])
@pytest.mark.parametrize("errors", [(PERSISTENCE,), (ECC_OFF,), (DRIVER,), (PERSISTENCE, ECC_OFF)])
def test_a_setting_that_failed_a_test_is_no_fault(
    errors: tuple[dict[str, object], ...], root: str, in_summary: bool
) -> None:
    text = failed_json(*errors, root=root, in_summary=in_summary)
    assert judged(text) == (UNPROVEN, {"dcgm_setting"})
    messages = [one.message for one in logs.parse(io.BytesIO(text)).findings]
    assert f"software of GPU0: a setting is wrong: {errors[0]['warning']}" in messages


@pytest.mark.parametrize(
    "errors", [(), (PAGES,), (PERSISTENCE, PAGES), (NARROW,), (FABRIC,), (NO_FILE,), ({"warning": "x"},)]
)
def test_a_failure_that_hardware_may_cause_stays_a_fault(errors: tuple[dict[str, object], ...]) -> None:
    for in_summary in (False, True):
        found, codes = judged(failed_json(*errors, in_summary=in_summary))
        assert (found, "dcgm_fault" in codes) == (FAIL, True)


def test_one_gpu_with_a_wrong_setting_hides_no_fault_of_another_one() -> None:
    document = json.loads(failed_json(PERSISTENCE))
    document["DCGM Diagnostic"]["test_categories"][0]["tests"][0]["results"][1]["status"] = "Fail"
    assert judged(json.dumps(document)) == (FAIL, {"dcgm_fault", "dcgm_setting"})


LONG = (
    "Persistence mode for GPU 0 is disabled. Enable persistence mode by running "
    '"nvidia-smi -i <gpuId> -pm 1 " as root.'
)
SPACED = "A word that ends at the end of its row, 45 ch and a second one, and a third one in the last row"


def wrapped(name: str, words: str) -> str:
    """Return a remark as dcgmi prints it: 45 characters in each row, and its name in the first one."""
    chunks = [words[at : at + 45] for at in range(0, len(words), 45)]
    return "".join(f"| {'' if at else name:25} | {chunk:46} |\n" for at, chunk in enumerate(chunks))


@pytest.mark.parametrize("words", [LONG, SPACED, "x" * 90, "short"])
@pytest.mark.parametrize("name", ["Warning: GPU0", "Warning", "Error"])
def test_a_remark_of_several_rows_is_one_message(name: str, words: str) -> None:
    row = next(line for line in DCGM.decode().splitlines(keepends=True) if "GPU1: Pass" in line)
    text = DCGM.decode().replace(row, row.replace("Pass", "Fail") + wrapped(name, words), 1)
    parsed = logs.parse(io.BytesIO(text.encode()))
    messages = [one.message for one in parsed.findings if one.code == "dcgm_warning"]
    assert messages == [f"software: DCGM reports: {words}"]


@pytest.mark.parametrize("after", ["GPU1: Pass", "GPU1: Fail", "GPU1: Skip"])
def test_a_row_of_a_result_ends_a_remark(after: str) -> None:
    text = DCGM.decode()
    row = next(line for line in text.splitlines(keepends=True) if "GPU0: Pass" in line)
    text = text.replace(row, row + wrapped("Info: GPU0", LONG) + wrapped("Warning: GPU0", LONG), 1)
    text = text.replace("GPU1: Pass", after, 1)
    parsed = logs.parse(io.BytesIO(text.encode()))
    counted = [one.message for one in parsed.findings if one.code == "dcgm_warning"]
    assert counted == [f"software: DCGM reports: {LONG}"]
    assert parsed.verdict is (FAIL if after.endswith("Fail") else UNPROVEN)


PROMPT = "ubuntu@ip-172-31-35-99:~$ dcgmi diag -r 2 -p pcie.gpu_nvlinks_expected_up=12\n"


@pytest.mark.parametrize(
    "text",
    [
        PROMPT + table(hardware=("PCIe", "GPU Memory")),
        PROMPT.encode() + DCGM,
        "sudo dcgmi diag -r 3\n" + table(hardware=LEVEL_3),
        "+ dcgmi diag --run=4\n" + table(hardware=(*LEVEL_3, "Pulse Test", "Memtest")),
        "# dcgmi diag -r 1\n" + table(hardware=()),
        "dcgmi diag -r pcie\n" + table(hardware=("PCIe",)),
        # A command after the table, or in a text, is not that of the table.
        table(hardware=()) + "$ dcgmi diag -r 3\n",
        "If a test fails, run dcgmi diag -r 3 to see more\n" + table(hardware=()),
    ],
)
def test_a_whole_table_of_the_level_that_the_command_names_passes(text: str | bytes) -> None:
    assert judged(text) == (PASS, set())


# Each table lacks a hardware test that the level in its command has.
@pytest.mark.parametrize(
    ("command", "rows"),
    [
        *((PROMPT, rows) for rows in ((), ("PCIe",), ("GPU Memory",))),
        ("[root@n1 ~]# sudo /usr/bin/dcgmi diag --run medium\n", ("PCIe",)),
        ("$ kubectl exec dcgm-0 -- dcgmi diag -i 0,1 -r 2\n", ("PCIe",)),
        *(("sudo dcgmi diag -r 3\n", tuple(set(LEVEL_3) - {one})) for one in sorted(LEVEL_3)),
        ("dcgmi diag -r long\n", ("PCIe", "GPU Memory")),
        ("dcgmi diag -r xlong -j\n", LEVEL_3),
        ("dcgmi diag -r 4\n", LEVEL_3),
    ],
)
def test_a_table_without_a_test_of_the_level_in_the_command_is_unproven(
    command: str, rows: tuple[str, ...]
) -> None:
    assert judged(command + table(hardware=rows)) == (UNPROVEN, {"rows_missing"})


IDS_OF_3 = "2330,2330,2330,2330,2330,2330,2330,2330"
"""Device IDs of eight GPUs, as DCGM 3 prints them."""


def with_ids(text: str, ids: str = IDS_OF_3) -> str:
    """Return the table of DCGM 3.1 and later, which begins with device IDs of the GPUs."""
    heading = f"|-----  Deployment  --------+{'-' * 48}|\n"
    row = f"| {'GPU Device IDs Detected':25} | {ids:46} |\n"
    return text.replace(heading, f"|-----  Metadata  ----------+{'-' * 48}|\n{row}{heading}", 1)


def below(test: str, *rows: tuple[str, str], text: str | None = None, **words: str) -> str:
    """Return the table of DCGM 3 for eight GPUs, with more rows below one of its tests."""
    table_of_3 = text or with_ids(table(hardware=LEVEL_3, **words))
    row = next(line for line in table_of_3.splitlines(keepends=True) if line.startswith(f"| {test} "))
    return table_of_3.replace(row, row + "".join(wrapped(name, cell) for name, cell in rows), 1)


def json_of_3(*gpus: int, test: str = "GPU Memory", ids: int = 8, status: str = "Pass") -> bytes:
    """Return the JSON of DCGM 3.3 for eight GPUs, in which one test has results of only some of them."""
    deployment = [{"name": name, "results": [{"status": "Pass"}]} for name in ("Denylist", *SOFTWARE)]
    hardware = [
        {"name": name, "results": [{"gpu_id": str(gpu), "status": word} for gpu in tested]}
        for name, tested, word in (
            ("PCIe", range(8), "Pass"),
            ("Diagnostic", range(8), "Pass"),
            (test, gpus, status),
        )
    ]
    categories = [
        {"category": "Deployment", "tests": deployment},
        {"category": "Hardware", "tests": hardware},
    ]
    document = {"DCGM GPU Diagnostic": {"test_categories": categories}, "GPU Device IDs": ["2330"] * ids}
    return json.dumps(document).encode()


def gpu_messages(text: str | bytes) -> list[str]:
    """Return the messages about GPUs without results."""
    findings = logs.parse(io.BytesIO(text if isinstance(text, bytes) else text.encode())).findings
    return [one.message for one in findings if one.code == "gpu_missing"]


SEVEN = "Pass - GPUs: 0, 1, 2, 4, 5, 6, 7"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (below("PCIe", PCIe="Pass - GPU: 0"), "8 GPUs detected, PCIe has results of only GPU0"),
        (below("PCIe", Diagnostic=SEVEN),
         "8 GPUs detected, Diagnostic has results of only GPU0, GPU1, GPU2, GPU4, GPU5, GPU6, GPU7"),
        (with_ids(table(PCIe="Pass - GPU: 1"), "1eb8,1eb8"),
         "2 GPUs detected, PCIe has results of only GPU1"),
        # DCGM 2 states no number of GPUs, and writes All for all of them.
        (table(PCIe="Pass - GPUs: 0, 2"), "PCIe did not run on all GPUs: it has results of only GPU0, GPU2"),
        (json_of_3(*range(7)),
         "8 GPUs detected, GPU Memory has results of only GPU0, GPU1, GPU2, GPU3, GPU4, GPU5, GPU6"),
        (json_of_3(3, test="Targeted Power"), "8 GPUs detected, Targeted Power has results of only GPU3"),
        (json_of_3(), "GPU Memory does not state what it tested"),
    ],
)  # fmt: skip
def test_a_test_that_passed_on_some_gpus_only_is_unproven(text: str | bytes, message: str) -> None:
    found, codes = judged(text)
    assert (found, "gpu_missing" in codes) == (UNPROVEN, True), codes
    assert message in gpu_messages(text)


def test_a_number_of_gpus_counts_without_results_of_other_tests() -> None:
    text = json.loads(json_of_3(*range(7)))
    for test in text["DCGM GPU Diagnostic"]["test_categories"][1]["tests"]:
        del test["results"][7:]
    assert judged(json.dumps(text)) == (UNPROVEN, {"gpu_missing"})


@pytest.mark.parametrize(
    "words", ["Pass - GPUs: 0, 1, x", "Pass - GPUs:", "Pass - ", "Pass - GPU: 0...", "Pass 0"]
)
def test_a_passed_test_whose_gpus_cannot_be_read_is_unproven(words: str) -> None:
    assert judged(below("PCIe", PCIe=words)) == (UNPROVEN, {"damaged_line"})


@pytest.mark.parametrize(
    "text",
    [
        with_ids(table(hardware=LEVEL_3)),
        # The option -i or -g restricts the device IDs, too (NVIDIA/go-dcgm issue 52).
        "$ dcgmi diag -i 0,1 -r 3\n" + with_ids(table(hardware=LEVEL_3), "2330,2330"),
        with_ids(table(hardware=LEVEL_3), "1eb8"),
        # dcgmi cuts the IDs of 16 GPUs.
        with_ids(table(hardware=LEVEL_3), "20b0," * 8 + "20b..."),
        with_ids(table(EUD="Skip - All")),
        with_ids(table(EUD="Skip - GPU: 3")),
        below("EUD Test", ("", "Skip - GPU: 1"), text=with_ids(table(EUD="Pass - GPU: 0"), "2330,2330")),
        json_of_3(*range(8)),
        json_of_3(0, test="EUD Test", status="Skip"),
        json_of_3(*range(8)).replace(b'"GPU Device IDs"', b'"other"'),
    ],
)
def test_results_of_all_tested_gpus_pass(text: str | bytes) -> None:
    assert judged(text) == (PASS, set())


def faults(text: str | bytes) -> list[str]:
    """Return the messages of faults."""
    findings = logs.parse(io.BytesIO(text if isinstance(text, bytes) else text.encode())).findings
    return [one.message for one in findings if one.code == "dcgm_fault"]


ALL_BUT_0 = "Pass - GPUs: 1, 2, 3, 4, 5, 6, 7"
COOLING = "GPU 0 Thermal violations totaling 13.3 seconds started at 9.7 seconds into the test for GPU 0"


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (below("GPU Memory", ("", "Fail - GPU: 0"), ("Warning", COOLING), GPU=ALL_BUT_0),
         ["GPU Memory of GPU0 failed"]),
        (below("PCIe", ("", "Fail - GPUs: 1, 3"), PCIe="Pass - GPUs: 0, 2, 4, 5, 6, 7"),
         ["PCIe of GPU1 failed", "PCIe of GPU3 failed"]),
        (below("Diagnostic", ("", "Warn - GPU: 1"), ("", "Skip - GPU: 2"), Diagnostic="Fail - GPU: 0"),
         ["Diagnostic of GPU0 failed"]),
        (below("PCIe", ("Warning", COOLING), ("", "Fail - GPU: 0"), PCIe=ALL_BUT_0), ["PCIe of GPU0 failed"]),
        # dcgmi cuts a list of many GPUs. The number before the dots may be another one.
        (below("PCIe", ("", "Fail - GPUs: 8, 10, 1..."), PCIe="Pass - GPUs: 0, 1, 2, 3, 4, 5, 6, 7, 9, ..."),
         ["PCIe of GPU8 failed", "PCIe of GPU10 failed"]),
        (below("PCIe", ("", "Fail - GPUs: 1..."), PCIe="Pass - GPU: 0"), ["PCIe failed"]),
        (below("PCIe", PCIe="Fail - All"), ["PCIe failed"]),
    ],
)  # fmt: skip
def test_a_row_of_failed_gpus_below_a_test_is_a_fault(text: str, messages: list[str]) -> None:
    assert judged(text)[0] is FAIL
    assert faults(text) == messages


@pytest.mark.parametrize(
    ("word", "expected", "code"), [("Warn", DEGRADED, "dcgm_warning"), ("Skip", UNPROVEN, "dcgm_skipped")]
)
def test_a_row_of_gpus_that_warned_or_were_skipped_has_its_own_verdict(
    word: str, expected: Verdict, code: str
) -> None:
    assert judged(below("GPU Memory", ("", f"{word} - GPU: 0"), GPU=ALL_BUT_0)) == (expected, {code})


# Errors that only broken hardware causes.
BROKEN = (
    "GPU 3 has uncorrectable memory errors and row remappings are pending",
    "GPU 3 had memory errors and row remappings are pending",
    "GPU 3 had uncorrectable memory errors and row remapping failed.",
    "GPU 3 had uncorrectable memory errors and 4 rows were remapped",
    "Detected 2 volatile double-bit ECC error(s) in GPU 3.",
    "A pending retired page has been detected in GPU 3.",
    "60 or more retired pages have been detected in GPU 3. ",
    "CUDA APIs have indicated that a double-bit ECC error has occured on GPU 3.",
    "Found 12 faulty memory elements on GPU 3",
    "Detected a miscompare failure in the L1 cache.",
    "Detected 4 nvlink_crc_flit_error_count_total NvLink errors on GPU 3's NVLink (should be 0)",
    "GPU 3 was unsuccessfully written to by GPU 1 over NVLink in a peer-to-peer test: cudaMemcpy",
    "NVSwitch 4's NvLink 11 is down.",
    "Detected fatal NvSwitch SXID 12028",
    "GPU 3 has fallen off the bus",
)
# Errors that a setting, a library or another process may cause, too.
UNCLEAR = (
    "Persistence mode for GPU 0 is disabled.",
    "Couldn't allocate at least 75.0% of GPU memory on GPU 0",
    "Error using CUDA API cuInit",
    "Skipping test memory because ECC is not enabled on GPU 0",
    "ECC Memory is not turned on or is unsupported. Skipping test.",
    "GPU had a contained error.",
    "Detected clock throttling due to power violation in GPU 0.",
    COOLING,
)


@pytest.mark.parametrize("name", ["Error", "Warning"])
@pytest.mark.parametrize(
    ("words", "expected"), [*((one, FAIL) for one in BROKEN), *((one, UNPROVEN) for one in UNCLEAR)]
)
def test_an_error_that_only_broken_hardware_causes_is_a_fault(
    words: str, expected: Verdict, name: str
) -> None:
    code = "dcgm_fault" if expected is FAIL else "dcgm_warning"
    assert judged(below("Inforom", (name, words))) == (expected, {code})
    in_json = json.loads(json_of_3(*range(8)))
    tests = in_json["DCGM GPU Diagnostic"]["test_categories"][0]["tests"]
    # DCGM 3.3 has this key in tests of software.
    tests[-1]["results"] = [{"status": "Pass", "gpu_id": 3, "warnings": [{"warnings": words}]}]
    found, codes = judged(json.dumps(in_json))
    assert (found, code in codes) == (expected, True), codes


def test_an_error_above_all_tests_is_a_fault() -> None:
    heading = f"|-----  Deployment  --------+{'-' * 48}|\n"
    text = with_ids(table()).replace(heading, heading + wrapped("Error", BROKEN[0]), 1)
    assert faults(text) == [f"DCGM: DCGM reports: {BROKEN[0]}"]
