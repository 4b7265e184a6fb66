"""Test how `parse` judges the output of nvidia-smi: XML, text of -q, CSV, `nvlink -s` and `topo -m`.

nvidia-smi shows the state of a node's GPUs, such as memory errors, clocks, temperatures and links. Most of
these tests change one value in an output of healthy GPUs, which is often a real one of tests/data/real. They
check the verdict of :func:`rackproof.logs.parse` and the code of the finding. Outputs of other healthy
machines must pass.
"""

from __future__ import annotations

import io
import lzma
import re
import time
from pathlib import Path

import pytest

from rackproof import logs
from rackproof.core.records import Verdict
from rackproof.logs import nvidia_smi
from rackproof.logs._nvidia_smi import MAX_GPUS
from rackproof.logs._reading import Log
from rackproof.logs.clock_reasons import CLOCK_REASONS, read_mask, slowdowns_of, unknown_bits
from rackproof.logs.gpu_description import PARTS
from rackproof.logs.nvidia_smi_csv import NvidiaSmiCsvParser

from .log_samples import NVIDIA_SMI_TEXT, NVIDIA_SMI_XML, TOPO

PASS, DEGRADED, UNPROVEN, FAIL = Verdict.PASS, Verdict.DEGRADED, Verdict.UNPROVEN, Verdict.FAIL
REAL = Path(__file__).resolve().parents[1] / "data/real"
WHOLE = lzma.decompress((REAL / "h200-x4/nvidia-smi-q.xml.xz").read_bytes()).decode()
# Keep two of the four GPUs, which are enough for comparisons.
XML = WHOLE.replace("_gpus>4<", "_gpus>2<")
for _gpu in re.findall("(?s)<gpu id=.*?</gpu>", WHOLE)[2:]:
    XML = XML.replace(_gpu, "")
CSV = (REAL / "h200-x4/nvidia-smi-query.csv").read_text()
STATUS = (REAL / "h200-x4/nvlink-status.txt").read_text()


def judged(text: str | bytes) -> tuple[Verdict, set[str]]:
    """Return the verdict of a log, and the codes of the findings that have a verdict."""
    parsed = logs.parse(io.BytesIO(text if isinstance(text, bytes) else text.encode()))
    return parsed.verdict, {one.code for one in parsed.findings if one.verdict is not None}


# -- Lists of NVLinks (nvidia-smi nvlink -s) ------------------------------------------------------

ALL_INACTIVE = "\t NVML: Unable to retrieve NVLink information as all links are inActive\n"


def listed(*gpus: tuple[str, str]) -> str:
    """Return the output of `nvidia-smi nvlink -s` for GPUs with these product names and lines."""
    heads = (f"GPU {at}: {name} (UUID: GPU-{at:08x}-0000-4000-8000-000000000000)\n{lines}"
             for at, (name, lines) in enumerate(gpus))  # fmt: skip
    return "".join(heads)


def links(speed: float | str, count: int = 4) -> str:
    """Return the lines of a GPU whose links all have one speed, in GB/s."""
    return "".join(f"\t Link {at}: {speed} GB/s\n" for at in range(count))


H200, UP = "NVIDIA H200", links("26.562", 18)
# From utkuozdemir/nvidia_gpu_exporter, internal/captures: L40S and RTX 4080 (driver 595), H100, H200 (590).
LINKLESS = "Device does not have or support Nvlink\n"
DIVIDED = "Nvlink queries are not supported for Devices in MIG mode\n"
DOWN = "\t Link 0: <inactive>\n\t Link 1: <inactive>\n"


# GPUs with the lines of their links. Speeds are in GB/s. An H200 has 18 links of 26.562 GB/s. Rackproof does
# not know the model "NVIDIA Next".
@pytest.mark.parametrize(
    ("gpus", "verdict", "code"),
    [
        ([(H200, UP), (H200, ALL_INACTIVE)], FAIL, "nvlink_missing"),
        ([(H200, ALL_INACTIVE), (H200, UP)], FAIL, "nvlink_missing"),
        ([(H200, UP), (H200, "")], FAIL, "nvlink_missing"),
        ([(H200, UP), (H200, ""), (H200, UP)], FAIL, "nvlink_missing"),
        ([("NVIDIA B200", links(53.125)), ("NVIDIA B200", ALL_INACTIVE.upper())], FAIL, "nvlink_missing"),
        ([("NVIDIA A40", links(14.062)), ("NVIDIA A40", "")], FAIL, "nvlink_missing"),
        ([("NVIDIA A100-PCIE-40GB", links(25)), ("NVIDIA A100-PCIE-40GB", "")], FAIL, "nvlink_missing"),
        ([(H200, ALL_INACTIVE)], UNPROVEN, "nvlink_absent"),
        ([(H200, ALL_INACTIVE), (H200, ALL_INACTIVE)], UNPROVEN, "nvlink_absent"),
        ([("NVIDIA Next", ALL_INACTIVE)], UNPROVEN, "nvlink_absent"),
        ([(H200, LINKLESS)], UNPROVEN, "nvlink_absent"),
        ([(H200, UP), (H200, LINKLESS)], FAIL, "nvlink_missing"),
        ([("NVIDIA Next", links(50)), ("NVIDIA Next", LINKLESS)], FAIL, "nvlink_missing"),
        ([(H200, DIVIDED)], UNPROVEN, "nvlink_unclear"),
        ([("NVIDIA H100 80GB HBM3", DIVIDED)] * 8, UNPROVEN, "nvlink_unclear"),
        ([(H200, UP), (H200, DIVIDED)], UNPROVEN, "nvlink_unclear"),
        ([(H200, UP), (H200, links("26.562", 3))], FAIL, "nvlink_uneven"),
        ([(H200, links(1.5)), (H200, links(1.5))], FAIL, "nvlink_slow"),
        ([(H200, links("0.001"))], FAIL, "nvlink_slow"),
        ([(H200, links(13.281))], FAIL, "nvlink_slow"),
        ([(H200, links(20))], FAIL, "nvlink_slow"),
        ([("NVIDIA GB300", links(26.562))], FAIL, "nvlink_slow"),
        ([("NVIDIA Next", links(1.5))], FAIL, "nvlink_slow"),
        ([("NVIDIA Next", links(100)), ("NVIDIA Next", links(50))], FAIL, "nvlink_slow"),
        ([(H200, UP), (H200, DOWN)], FAIL, "nvlink_down"),
        ([(H200, UP + "\t Link 9: <inactive>\n")], FAIL, "nvlink_down"),
        ([("NVIDIA A100-PCIE-40GB", DOWN), ("NVIDIA A100-PCIE-40GB", links(25))], FAIL, "nvlink_down"),
        ([("NVIDIA A100-PCIE-40GB", DOWN.replace("<inactive>", "Unknown Error"))], FAIL, "nvlink_down"),
        ([("NVIDIA A100-PCIE-40GB", links(0))], FAIL, "nvlink_down"),
        ([(H200, DOWN)], FAIL, "nvlink_down"),
        ([(H200, UP + "GPU 7: Unable to determine the device handle: Unknown Error\n")], FAIL, "gpu_lost"),
        ([(H200, UP + "GPU 7: no answer\n\t Link 9: 26.562 GB/s\n")], UNPROVEN, "gpu_lost"),
        ([(H200, UP + "WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n")], FAIL, "inforom_corrupted"),
    ],
)  # fmt: skip
def test_links_that_are_missing_or_slow_do_not_pass(
    gpus: list[tuple[str, str]], verdict: Verdict, code: str
) -> None:
    found, codes = judged(listed(*gpus))
    assert (found, code in codes) == (verdict, True), codes


@pytest.mark.parametrize(
    "gpus",
    [
        [("NVIDIA H100 PCIe", ALL_INACTIVE)],
        [("NVIDIA H200 NVL", ALL_INACTIVE)] * 2,
        [("NVIDIA A100 80GB PCIe", DOWN)],
        [("NVIDIA L40S", ALL_INACTIVE)],
        [("NVIDIA L40S", LINKLESS)] * 2,
        [("NVIDIA GeForce RTX 4080 SUPER", LINKLESS)],
        [("Tesla T4", LINKLESS), (H200, UP)],
        [("Tesla T4", ""), (H200, UP), (H200, UP)],
        [("Tesla V100-SXM2-16GB", links("25.781", 6))] * 8,
        [("NVIDIA A100-SXM4-40GB", links(25, 12))] * 4,
        [("NVIDIA GB200", links(50, 18))] * 4,
        [("NVIDIA GB200", links(53.125, 18))] * 4,
        [("NVIDIA GeForce RTX 3090", links(14.062))] * 2,
        [("NVIDIA A40", links(14.062))] * 2,
    ],
)
def test_links_of_healthy_machines_pass(gpus: list[tuple[str, str]]) -> None:
    assert judged(listed(*gpus)) == (PASS, set())


def test_a_list_of_error_counters_is_not_taken_for_links() -> None:
    counters = (REAL.parents[1] / "corpus/machines/h200-vm-x4/nvlink-errors.txt").read_text()
    assert judged(counters) == (UNPROVEN, {"unrecognised"})


# -- Topologies (nvidia-smi topo -m) --------------------------------------------------------------
#
# NV2 marks a pair of GPUs with two NVLinks, and other words are paths over PCIe or the processors. Both
# meshes are those of published servers with eight V100. The others follow NVIDIA's documents.

CUBE_MESH = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tmlx5_0\tCPU Affinity
GPU0\t X \tNV1\tNV1\tNV2\tNV2\tSYS\tSYS\tSYS\tPIX\t0-19,40-59
GPU1\tNV1\t X \tNV2\tNV1\tSYS\tNV2\tSYS\tSYS\tPIX\t0-19,40-59
GPU2\tNV1\tNV2\t X \tNV2\tSYS\tSYS\tNV1\tSYS\tPHB\t0-19,40-59
GPU3\tNV2\tNV1\tNV2\t X \tSYS\tSYS\tSYS\tNV1\tPHB\t0-19,40-59
GPU4\tNV2\tSYS\tSYS\tSYS\t X \tNV1\tNV1\tNV2\tSYS\t20-39,60-79
GPU5\tSYS\tNV2\tSYS\tSYS\tNV1\t X \tNV2\tNV1\tSYS\t20-39,60-79
GPU6\tSYS\tSYS\tNV1\tSYS\tNV1\tNV2\t X \tNV2\tSYS\t20-39,60-79
GPU7\tSYS\tSYS\tSYS\tNV1\tNV2\tNV1\tNV2\t X \tSYS\t20-39,60-79
mlx5_0\tPIX\tPIX\tPHB\tPHB\tSYS\tSYS\tSYS\tSYS\t X \t
"""
OTHER_MESH = """\
        GPU0    GPU1    GPU2    GPU3    GPU4    GPU5    GPU6    GPU7    mlx5_0  CPU Affinity    NUMA Affinity
GPU0     X      NV1     NV2     NV1     SYS     SYS     SYS     NV2     NODE    0-11,24-35      0
GPU1    NV1      X      NV1     NV2     SYS     SYS     NV2     SYS     NODE    0-11,24-35      0
GPU2    NV2     NV1      X      NV2     SYS     NV1     SYS     SYS     PIX     0-11,24-35      0
GPU3    NV1     NV2     NV2      X      NV1     SYS     SYS     SYS     PIX     0-11,24-35      0
GPU4    SYS     SYS     SYS     NV1      X      NV2     NV2     NV1     SYS     12-23,36-47     1
GPU5    SYS     SYS     NV1     SYS     NV2      X      NV1     NV2     SYS     12-23,36-47     1
GPU6    SYS     NV2     SYS     SYS     NV2     NV1      X      NV1     SYS     12-23,36-47     1
GPU7    NV2     SYS     SYS     SYS     NV1     NV2     NV1      X      SYS     12-23,36-47     1
"""


def matrix(*rows: str) -> str:
    """Return the output of `topo -m` with these rows of cells. `X` is on the diagonal."""
    names = [f"GPU{at}" for at in range(len(rows))]
    lines = [f"{name}\t" + "\t".join(row.split()) for name, row in zip(names, rows, strict=True)]
    return "\t" + "\t".join([*names, "CPU Affinity"]) + "\n" + "".join(f"{line}\t0-31\n" for line in lines)


def alike(count: int, kind: str) -> list[str]:
    """Return the rows of a matrix in which all pairs are connected alike."""
    return [" ".join("X" if one == other else kind for one in range(count)) for other in range(count)]


QUAD = ("X NV1 NV1 NV2", "NV1 X NV2 NV1", "NV1 NV2 X NV2", "NV2 NV1 NV2 X")
PAIRS = ("X NV4 NODE SYS", "NV4 X NODE SYS", "NODE NODE X NV4", "SYS SYS NV4 X")
"""Four cards in two pairs, each connected by a bridge."""


@pytest.mark.parametrize(
    "text",
    [
        CUBE_MESH,
        OTHER_MESH,
        CUBE_MESH.replace("NV2", "NV1"),  # DGX-1 with P100
        matrix(*QUAD),  # half of a DGX-1, as a virtual machine of a cloud has it
        matrix(*PAIRS).replace("SYS", "PHB"),
        matrix("X NV12 SYS SYS", "NV12 X SYS SYS", "SYS SYS X NV12", "SYS SYS NV12 X"),
        matrix("X NV3 SYS SYS", "NV3 X SYS SYS", "SYS SYS X NV3", "SYS SYS NV3 X"),
        # Two bridges that connect four cards each.
        matrix(*(f"{row} SYS SYS SYS SYS" for row in alike(4, "NV6")),
               *(f"SYS SYS SYS SYS {row}" for row in alike(4, "NV6"))),
        matrix(*alike(4, "NV6")),
        matrix(*alike(16, "NV6")),
        matrix(*alike(8, "NV18")),
        matrix(*alike(2, "NV18")),
        matrix("X PIX SYS", "PIX X SYS", "SYS SYS X"),
        matrix("X SOC", "SOC X"),
    ],
)  # fmt: skip
def test_pairs_of_healthy_machines_pass(text: str) -> None:
    parsed = logs.parse(io.BytesIO(text.encode()))
    assert (parsed.format, *judged(text)) == ("nvidia_smi_topo", PASS, set())


def with_pair(text: str, first: int, second: int, kind: str) -> str:
    """Return a matrix in which one pair has another connection, in the rows of both GPUs."""
    rows = [line.split("\t") for line in text.split("\n")]
    for one, other in ((first, second), (second, first)):
        rows[one + 1][other + 1] = kind
    return "\n".join("\t".join(row) for row in rows)


@pytest.mark.parametrize("kind", ["OK", "CNS", "GNS", "TNS", "NS", "DR", "U"])
@pytest.mark.parametrize(
    "form",
    [
        " \tGPU0\tGPU1\t\n GPU0\tX\t{0}\t\n GPU1\t{0}\tX\t\n\nLegend:\n",
        "        GPU0    GPU1\n GPU0   X       {0}\n GPU1   {0}     X\n",
    ],
)
def test_a_matrix_of_topo_p2p_is_unproven_and_named(form: str, kind: str) -> None:
    parsed = logs.parse(io.BytesIO(form.format(kind).encode()))
    assert (parsed.format, parsed.verdict) == ("nvidia_smi_topo", UNPROVEN)
    (finding,) = parsed.findings
    assert finding.code == "topology_unknown"
    assert "topo -p2p" in finding.message
    # A single word of such a matrix among connections is only an unknown connection.
    other = logs.parse(io.BytesIO(form.format(kind).replace(kind, "SYS", 1).encode()))
    assert (other.verdict, "topo -p2p" in other.findings[0].message) == (UNPROVEN, False)


@pytest.mark.parametrize(
    ("text", "verdict", "code"),
    [
        (with_pair(CUBE_MESH, 0, 3, "NV1"), DEGRADED, "topology_uneven"),
        (with_pair(CUBE_MESH, 0, 4, "SYS"), DEGRADED, "topology_uneven"),
        (with_pair(matrix(*QUAD), 0, 3, "NV1"), DEGRADED, "topology_uneven"),
        (with_pair(matrix(*QUAD), 0, 1, "SYS"), DEGRADED, "topology_uneven"),
        (with_pair(matrix(*PAIRS), 0, 1, "NODE"), DEGRADED, "topology_uneven"),
        (with_pair(matrix(*PAIRS), 0, 1, "NV2"), DEGRADED, "topology_uneven"),
        (with_pair(matrix(*alike(8, "NV18")), 2, 3, "NV17"), DEGRADED, "topology_uneven"),
        (with_pair(matrix(*alike(4, "NV18")), 2, 3, "SYS"), DEGRADED, "topology_uneven"),
        # Switches in two parts: each GPU has as many links as the others, but reaches only half of them.
        (matrix(*(f"{row} SYS SYS SYS" for row in alike(3, "NV12")),
                *(f"SYS SYS SYS {row}" for row in alike(3, "NV12"))), DEGRADED, "topology_uneven"),
        (CUBE_MESH.replace("NV1", "SYS", 1), DEGRADED, "topology_uneven"),
        (matrix("X NV4", "NV2 X"), DEGRADED, "topology_uneven"),
        (matrix("X ERR", "ERR X"), UNPROVEN, "topology_unknown"),
        (with_pair(CUBE_MESH, 0, 5, "?"), UNPROVEN, "topology_unknown"),
        (with_pair(CUBE_MESH, 0, 5, ""), UNPROVEN, "topology_unknown"),
        (CUBE_MESH.replace("GPU7\tSYS", "GPX7\tSYS"), UNPROVEN, "cut_off"),
    ],
)  # fmt: skip
def test_a_faulty_or_unknown_topology_does_not_pass(text: str, verdict: Verdict, code: str) -> None:
    found, codes = judged(text)
    assert (found, codes) == (verdict, {code})


def test_the_finding_names_the_gpu_that_lost_links() -> None:
    text = matrix(*alike(8, "NV18"))
    for other in (0, 1, 2, 4, 5, 6, 7):
        text = with_pair(text, 3, other, "NV16")
    (found,) = logs.parse(io.BytesIO(text.encode())).findings
    assert found.message == "each pair is connected by NV18 through switches, except those of GPU3"


# -- Values in CSV, XML and text ------------------------------------------------------------------

HEAD = "index, name, uuid, {column}\n"
UUIDS = [f"GPU-00000000-0000-4000-8000-{at:012d}" for at in range(4)]


def table(column: str, *cells: str, name: str = H200) -> str:
    """Return the CSV of GPUs with index, name, UUID and ``column``. Each GPU has one of the cells."""
    rows = (f"{at}, {name}, {UUIDS[at]}, {cell}\n" for at, cell in enumerate(cells))
    return HEAD.format(column=column) + "".join(rows)


def looped(columns: str, cells: str) -> str:
    """Return the CSV of a query in a loop, with two GPUs at three moments. Cells contain {gpu} and {at}."""
    rows = (f"2026/01/31 12:00:0{at}.00{gpu}, {H200}, {cells.format(gpu=gpu, at=at)}, 3{at}\n"
            for at in range(3) for gpu in range(2))  # fmt: skip
    return f"timestamp, name, {columns}, temperature.gpu\n" + "".join(rows)


WIDTHS = "pcie.link.width.current, pcie.link.width.max"
GENERATIONS = "pcie.link.gen.current, pcie.link.gen.max, utilization.gpu [%]"


# The masks are NVML's reasons for low clocks: 0x8, 0x20, 0x40 and 0x80 are slowdowns, and bits from 0x200 on
# are unknown.
@pytest.mark.parametrize(
    ("text", "verdict", "code"),
    [
        *(
            (table(f"clocks_{word}_reasons.active", mask), verdict, code)
            for word in ("event", "throttle")
            for mask, verdict, code in (
                ("0x0000000000000048", DEGRADED, "slowed_down"),
                ("0x0000000000000008", DEGRADED, "slowed_down"),
                ("0x20", DEGRADED, "slowed_down"),
                ("0x81", DEGRADED, "slowed_down"),
                ("0x0000000000000200", UNPROVEN, "gpu_value_unknown"),
                ("0x8000000000000001", UNPROVEN, "gpu_value_unknown"),
                ("Active", UNPROVEN, "gpu_value_unknown"),
                ("", UNPROVEN, "gpu_value_unknown"),
            )
        ),
        (table("clocks_event_reasons.hw_thermal_slowdown", "Active"), DEGRADED, "slowed_down"),
        (table("clocks_event_reasons.sw_thermal_slowdown", "Active"), DEGRADED, "slowed_down"),
        (table("clocks_throttle_reasons.new_reason", "Active"), UNPROVEN, "gpu_value_unknown"),
        (table("clocks_event_reasons.hw_slowdown", "Perhaps"), UNPROVEN, "gpu_value_unknown"),
        *(
            (table(column, cell), UNPROVEN, "impossible_value")
            for column, cell in (
                ("temperature.gpu", "-40"),
                ("temperature.gpu", "0"),
                ("temperature.gpu", "200"),
                ("temperature.memory", "-3"),
                ("power.draw [W]", "nan W"),
                ("power.draw [W]", "inf W"),
                ("power.draw.instant [W]", "99999.00 W"),
                ("power.limit [W]", "-700.00 W"),
                ("memory.total [MiB]", "-1 MiB"),
                ("clocks.current.sm [MHz]", "nan MHz"),
                ("utilization.gpu [%]", "140 %"),
                ("ecc.errors.corrected.volatile.total", "-2"),
            )
        ),
        *(
            (table(column, cell), UNPROVEN, "gpu_value_unknown")
            for column, cell in (
                ("power.draw [W]", "much"),
                ("memory.total [MiB]", ""),
                ("temperature.gpu", "[Insufficient Permissions]"),
            )
        ),
        (table("temperature.gpu", "[GPU requires reset]"), FAIL, "gpu_lost"),
        (table("temperature.gpu", "104"), FAIL, "too_hot"),
        (table("temperature.memory", "97"), DEGRADED, "memory_temperature"),
        (table("temperature.memory", "106"), FAIL, "memory_temperature"),
        (table("ecc.mode.current", "Enabled", "Disabled"), FAIL, "ecc_off"),
        (table("ecc.mode.current", "Disabled"), FAIL, "ecc_off"),
        (table("ecc.mode.current", "Disabled", name="Tesla V100-SXM2-16GB"), FAIL, "ecc_off"),
        (table("ecc.mode.pending", "Disabled"), FAIL, "ecc_off"),
        (table("ecc.mode.current", "Enabled", "Disabled", name="NVIDIA RTX A6000"), FAIL, "ecc_off"),
        ("index, ecc.mode.current\n0, Enabled\n1, Disabled\n", UNPROVEN, "ecc_off"),
        (table(WIDTHS, "16, 16", "1, 16"), FAIL, "pcie_width"),
        (table(WIDTHS, "16, 16", "8, 16"), FAIL, "pcie_width"),
        (table(WIDTHS, "1, 16"), UNPROVEN, "pcie_width_unproven"),
        (table(WIDTHS, "8, 16", "8, 16"), UNPROVEN, "pcie_width_unproven"),
        (table(WIDTHS, "16, 16", "8, 8"), UNPROVEN, "pcie_width_unproven"),
        (table("pcie.link.width.current", "16", "4"), FAIL, "pcie_width"),
        (table(GENERATIONS, "3, 5, 97 %"), FAIL, "pcie_generation"),
        (table("memory.total [MiB]", "143771 MiB", "71885 MiB"), FAIL, "gpu_memory"),
        (table("memory.total [MiB]", "143771 MiB", "135000 MiB", "143771 MiB"), FAIL, "gpu_memory"),
        ("index, memory.total [MiB]\n0, 143771 MiB\n1, 71885 MiB\n", UNPROVEN, "gpu_memory"),
        (table("remapped_rows.pending", "Yes"), FAIL, "remap_pending"),
        (table("remapped_rows.failure", "Yes"), FAIL, "remap_failure"),
        (table("gpu_recovery_action", "Reset"), FAIL, "recovery_action"),
        (table("inforom.checksum_validation", "invalid"), FAIL, "inforom_corrupted"),
        ("index, clocks_event_reasons.active\n0, 0x0000000000000048\n", DEGRADED, "slowed_down"),
        ("index, temperature.gpu, power.draw [W]\n0, -40, 77.49 W\n", UNPROVEN, "impossible_value"),
    ],
)
def test_a_bad_cell_of_a_table_gets_its_verdict_and_code(text: str, verdict: Verdict, code: str) -> None:
    parsed = logs.parse(io.BytesIO(text.encode()))
    assert parsed.format == "nvidia_smi_csv"
    # The text of an error in place of a number is an unknown value as well.
    assert judged(text) == (verdict, {code} if code != "gpu_lost" else {code, "gpu_value_unknown"})


@pytest.mark.parametrize(
    "text",
    [
        CSV,
        *(table("clocks_event_reasons.active", mask)
          for mask in ("0x0000000000000000", "0x1", "0x17", "0x104")),
        table("clocks_event_reasons.sw_power_cap", "Active"),
        table("clocks_event_reasons.supported", "0x00000000000001FF"),
        table("temperature.gpu, power.draw [W]", "31, [N/A]"),
        table("temperature.gpu.tlimit", "6"),
        table("temperature.gpu, power.management", "31, Enabled"),
        # Two runs of a query that wrote to the same file.
        (LOOP := table("timestamp, temperature.gpu", "2026/01/31 12:00:00.000, 31"))
        + LOOP.replace("12:00:00", "12:00:05"),
        table(GENERATIONS, "1, 5, 0 %"),
        table(GENERATIONS, "5, 5, 99 %"),
        # Cards of workstations are sold with ECC off.
        table("ecc.mode.current", "Disabled", "Disabled", name="NVIDIA RTX A6000"),
        table("temperature.gpu, ecc.mode.current", "31, [N/A]", name="NVIDIA GeForce RTX 3090"),
        table("memory.total [MiB]", "143771 MiB", "143500 MiB"),
        "index, name, memory.total [MiB]\n0, NVIDIA H200, 143771 MiB\n1, Tesla T4, 15360 MiB\n",
        "timestamp, index, temperature.gpu\n" + "".join(
            f"2026/01/31 12:00:{at:02d}.000, {gpu}, 5{at}\n" for at in range(9) for gpu in (0, 1)),
        looped("pci.bus_id, driver_version, pstate", "00000000:1{gpu}:00.0, 580.159.04, P0"),
        looped("serial", "165000000000{gpu}"),
        looped("gpu_serial", "165000000000{gpu}"),
        looped("gpu_uuid", "GPU-00000000-0000-4000-8000-00000000000{gpu}"),
        # A value that is usually constant changed while the query ran.
        looped("uuid, serial, memory.total [MiB]", "GPU-{gpu}, 165000000000{gpu}, 14377{at} MiB"),
        *(table("temperature.gpu, reset_status.reset_required", f"31, {cell}")
          for cell in ("No", "[Requested functionality has been deprecated]")),
        table("temperature.gpu, reset_status.drain_and_reset_recommended", "31, [N/A]"),
    ],
)  # fmt: skip
def test_tables_of_healthy_machines_pass(text: str) -> None:
    assert judged(text) == (PASS, set())


def with_value(path: str, value: str, xml: str = XML) -> str:
    """Return XML, by default of two H200, in which the first element ``path`` has another value."""
    changed, count = re.subn(f"<{path}>[^<]*</{path}>", f"<{path}>{value}</{path}>", xml, count=1)
    assert count == 1
    return changed


@pytest.mark.parametrize(
    ("tag", "value", "verdict", "code"),
    [
        ("current_ecc", "Disabled", FAIL, "ecc_off"),
        ("pending_ecc", "Disabled", FAIL, "ecc_off"),
        ("current_link_width", "1x", FAIL, "pcie_width"),
        ("current_link_width", "8x", FAIL, "pcie_width"),
        ("max_link_width", "8x", UNPROVEN, "pcie_width_unproven"),
        ("gpu_temp", "-40 C", UNPROVEN, "impossible_value"),
        ("gpu_temp", "0 C", UNPROVEN, "impossible_value"),
        ("gpu_temp", "200 C", UNPROVEN, "impossible_value"),
        ("gpu_temp", "101 C", FAIL, "too_hot"),
        ("gpu_temp", "cold", UNPROVEN, "impossible_value"),
        ("memory_temp", "-1 C", UNPROVEN, "impossible_value"),
        ("current_power_limit", "nan W", UNPROVEN, "impossible_value"),
        ("memory_temp", "99 C", DEGRADED, "memory_temperature"),
        ("instant_power_draw", "nan W", UNPROVEN, "impossible_value"),
        ("instant_power_draw", "-3.00 W", UNPROVEN, "impossible_value"),
        ("instant_power_draw", "1e9 W", UNPROVEN, "impossible_value"),
        ("sm_clock", "inf MHz", UNPROVEN, "impossible_value"),
        ("total", "71885 MiB", FAIL, "gpu_memory"),
        ("clocks_event_reason_hw_thermal_slowdown", "Active", DEGRADED, "slowed_down"),
        ("clocks_event_reason_hw_slowdown", "Active", DEGRADED, "slowed_down"),
    ],
)
def test_a_bad_value_of_the_xml_gets_its_verdict_and_code(
    tag: str, value: str, verdict: Verdict, code: str
) -> None:
    assert judged(XML) == (PASS, set())
    # A smaller total of memory also contradicts its used and free parts. That second finding is ignored.
    found, codes = judged(with_value(tag, value))
    assert (found, codes - {"impossible_value"} or codes) == (verdict, {code})


@pytest.mark.parametrize(
    ("tag", "value", "code"),
    [
        ("product_name", "", "cut_off"),
        ("product_name", "N/A", "gpu_lost"),
        ("vbios_version", "", "cut_off"),
        ("vbios_version", "N/A", "gpu_readings_missing"),
        ("performance_state", "", "cut_off"),
        ("sram_threshold_exceeded", "", "cut_off"),
        ("pci_bus_id", "00000000:3B:00.0", "impossible_value"),
        ("pci_bus_id", "", "cut_off"),
        ("reserved", "90000 MiB", "impossible_value"),
        ("reserved", "0 MiB", "impossible_value"),
        ("free", "1 MiB", "impossible_value"),
        ("instant_power_draw", "1400.00 W", "impossible_value"),
        ("average_power_draw", "1400.00 W", "impossible_value"),
        ("instant_power_draw", "", "cut_off"),
        ("clocks_event_reasons_counters_hw_therm_slowdown", "61000000 us", "slowdown_unknown"),
        ("clocks_event_reasons_counters_sw_therm_slowdown", "900000000 us", "slowdown_unknown"),
        ("clocks_event_reasons_counters_hw_power_brake", "61000000 us", "slowdown_unknown"),
        ("clocks_event_reasons_counters_hw_power_brake", "-5 us", "gpu_value_unknown"),
        ("clocks_event_reasons_counters_sw_therm_slowdown", "many", "gpu_value_unknown"),
    ],
)
def test_a_missing_or_contradictory_value_of_the_xml_is_unproven(tag: str, value: str, code: str) -> None:
    found, codes = judged(with_value(tag, value))
    assert (found, code in codes) == (UNPROVEN, True), codes


@pytest.mark.parametrize(
    ("tag", "value"),
    [
        ("clocks_event_reasons_counters_sw_power_cap", "7015815635 us"),
        ("clocks_event_reasons_counters_sw_therm_slowdown", "7322346 us"),
        ("instant_power_draw", "715.00 W"),
    ],
)
def test_values_of_healthy_gpus_pass(tag: str, value: str) -> None:
    assert judged(with_value(tag, value)) == (PASS, set())


def with_instance(counts: str) -> str:
    """Return XML in which the first GPU has a MIG instance with these counters."""
    device = f"<mig_device><index>0</index>{counts}</mig_device>"
    return re.sub(r"(?s)<mig_devices>.*?</mig_devices>", f"<mig_devices>{device}</mig_devices>", XML, count=1)


def counted(text: str, kind: str = "volatile", tag: str = "sram_uncorrectable") -> str:
    """Return an instance's counter of memory errors."""
    return f"<ecc_error_count><{kind}_count><{tag}>{text}</{tag}></{kind}_count></ecc_error_count>"


@pytest.mark.parametrize(
    ("counts", "verdict", "codes"),
    [
        (counted("0"), PASS, set()),
        (counted("N/A"), PASS, set()),
        (counted("1"), FAIL, {"ecc_uncorrected"}),
        (counted("7", tag="sram_uncorrectable_parity"), FAIL, {"ecc_uncorrected"}),
        (counted("2", kind="aggregate", tag="dram_uncorrectable"), FAIL, {"ecc_uncorrected"}),
        (counted("-1"), UNPROVEN, {"gpu_value_unknown"}),
        (counted("some"), UNPROVEN, {"gpu_value_unknown"}),
        (counted("0", tag="sram_correctable"), UNPROVEN, {"cut_off"}),
        ("", UNPROVEN, {"cut_off"}),
    ],
)
def test_the_errors_of_an_instance_are_judged(counts: str, verdict: Verdict, codes: set[str]) -> None:
    assert judged(with_instance(counts)) == (verdict, codes)


def test_a_pcie_link_that_is_slow_under_load_is_found_in_the_xml() -> None:
    slow = with_value("current_link_gen", "1")
    assert judged(slow) == (PASS, set())
    assert judged(with_value("gpu_util", "60 %", slow)) == (FAIL, {"pcie_generation"})


@pytest.mark.parametrize(
    ("old", "new", "verdict", "code"),
    [
        ("31 C", "-40 C", UNPROVEN, "impossible_value"),
        ("77.49 W", "nan W", UNPROVEN, "impossible_value"),
        (
            "Current                   : 16x",
            "Current                   : 1x",
            UNPROVEN,
            "pcie_width_unproven",
        ),
        (
            "ECC Mode\n        Current                           : Enabled",
            "ECC Mode\n        Current  : Disabled",
            FAIL,
            "ecc_off",
        ),
        ("52 C", "-1 C", FAIL, "temperature"),
        ("52 C", "5 C", DEGRADED, "temperature"),
        ("0 %", "-5 %", UNPROVEN, "impossible_value"),
        ("0 %", "150 %", UNPROVEN, "impossible_value"),
        ("143771 MiB", "0 MiB", UNPROVEN, "impossible_value"),
    ],
)
def test_a_bad_value_of_the_text_gets_its_verdict_and_code(
    old: str, new: str, verdict: Verdict, code: str
) -> None:
    text = NVIDIA_SMI_TEXT.decode()
    assert judged(text) == (PASS, set())
    assert old in text
    assert judged(text.replace(old, new, 1)) == (verdict, {code})


# The counters of V100 and older GPUs, as in influxdata/telegraf (plugins/inputs/nvidia_smi/testdata)
# and Azure/azurehpc-health-checks (test/data/bad_nvsmi8_output.txt).
PLACES = ("device_memory", "register_file", "l1_cache", "l2_cache", "texture_memory", "texture_shm", "cbu")


def with_places(kind: str, place: str, count: int) -> str:
    """Return the XML of two GPUs that count errors by the number of wrong bits, with one such count."""
    counts = "".join(
        f"<{bits}>"
        + "".join(f"<{one}>{count if (bits, one) == (kind, place) else 0}</{one}>" for one in PLACES)
        + f"</{bits}>"
        for bits in ("single_bit", "double_bit")
    )
    return re.sub("(?s)<volatile>.*?</volatile>", f"<volatile>{counts}</volatile>", XML)


@pytest.mark.parametrize("place", PLACES)
def test_double_bit_errors_are_a_fault(place: str) -> None:
    # Damaged device memory is only degraded: its page is replaced, as newer GPUs replace a row.
    wanted = (DEGRADED, "ecc_dram_uncorrected") if place == "device_memory" else (FAIL, "ecc_uncorrected")
    parsed = logs.parse(io.BytesIO(with_places("double_bit", place, 3).encode()))
    assert wanted in {(one.verdict, one.code) for one in parsed.findings}
    for kind, count in (("double_bit", 0), ("single_bit", 3)):
        assert wanted[1] not in judged(with_places(kind, place, count))[1]


DOUBLE = "ECC Errors\n        Volatile\n            Double Bit\n                "


@pytest.mark.parametrize(
    ("section", "code"),
    [
        (
            "Retired Pages\n        Double Bit ECC  : 61\n        Pending Page Blacklist  : Yes\n",
            "remap_pending",
        ),
        ("Retired Pages\n        Pending Page Blacklist  : Yes\n", "remap_pending"),
        (f"{DOUBLE}L2 Cache  : 1\n", "ecc_uncorrected"),
        (f"{DOUBLE}Register File  : 4\n", "ecc_uncorrected"),
    ],
)
def test_faults_of_older_gpus_are_found_in_the_text(section: str, code: str) -> None:
    # A query of some sections (nvidia-smi -q -d PAGE_RETIREMENT,ECC) shows nothing else.
    head = "==============NVSMI LOG==============\n\nDriver Version : 535.86.10\n\nAttached GPUs : 1\n"
    verdict, codes = judged(f"{head}GPU 00000002:00:00.0\n    {section}\n")
    assert (verdict, code in codes) == (FAIL, True)
    sound = re.sub("Yes|: [1-9]", lambda found: "No" if found[0] == "Yes" else ": 0", section)
    assert judged(f"{head}GPU 00000002:00:00.0\n    {sound}\n") == (UNPROVEN, {"cut_off"})


# -- Outputs without a part that every driver prints, or without a reading that other GPUs have ---


def test_a_text_without_a_line_that_is_judged_does_not_pass() -> None:
    # Each line that a check reads is removed. It could have shown a fault, so the rest must not pass.
    lines = NVIDIA_SMI_TEXT.decode().splitlines(keepends=True)
    judging = (
        "Pending",
        "Failure Occurred",
        "Uncorrectable",
        "Exceeded",
        "Recovery",
        "T.Limit Temp   ",
        "State",
        "Status",
        "Slowdown  ",
        "GPU Current Temp",
        "Memory Current",
        "Limit    ",
        "Total",
        "Width",
        "Max  ",
    )
    taken = [at for at, line in enumerate(lines) if any(word in line for word in judging)]
    # The pending mode of MIG and a limit of a sensor are not judged.
    passing = {
        lines[at].strip().split("  ")[0]
        for at in taken
        if judged("".join(lines[:at] + lines[at + 1 :]))[0] == PASS
    }
    assert len(taken) > 30
    assert passing <= {"Pending", "GPU Shutdown T.Limit Temp"}


PRINTED = {
    path.rpartition("/")[2]
    for part in PARTS
    for path in part.paths
    if sum(f"<{one}>" in XML for one in part.tags) == 1 and part.since_driver < 590
    if f"<{path.rpartition('/')[2]}>" in XML and not part.section.startswith("power_readings")
}
"""Tags in XML of the parts of a GPU that drivers before 590 print, too, without its power readings."""


@pytest.mark.parametrize("tag", sorted(PRINTED))
def test_the_xml_without_a_part_of_all_gpus_does_not_pass(tag: str) -> None:
    verdict, codes = judged(re.sub(rf"(?s)<{tag}>.*?</{tag}>", "", XML))
    assert verdict is not PASS
    assert codes & {"cut_off", "gpu_lost", "damaged_xml"}


@pytest.mark.parametrize(
    "tag",
    [
        "gpu_temp",
        "gpu_temp_tlimit",
        "memory_temp",
        "state",
        "remapped_row_failure",
        "sram_threshold_exceeded",
        "current_link_width",
        "current_power_limit",
    ],
)
def test_a_reading_that_only_one_gpu_has_is_missing_on_the_other(tag: str) -> None:
    text = with_value(tag, "N/A")
    assert judged(text) == (UNPROVEN, {"gpu_readings_missing"})
    # If no GPU has the reading, the driver or the model does not report it. Every H200 has some readings.
    xml = re.sub(rf"<{tag}>[^<]*</{tag}>", f"<{tag}>N/A</{tag}>", XML)
    is_known = tag in ("memory_temp", "remapped_row_failure")
    assert judged(xml) == ((UNPROVEN, {"gpu_readings_missing"}) if is_known else (PASS, set()))
    assert judged(xml.replace("NVIDIA H200", "NVIDIA Next"))[0] == PASS


# -- Values that are no number, or no known word --------------------------------------------------

NO_COUNTS = ("Unknown", "garbage", "-1", "1,234", "1.234", "NaN", "7 errors")
NO_NUMBERS = ("Unknown", "hot", "31 C or 32 C")
NO_WORDS = ("Unknown", "On", "enabled")


def test_models_without_a_name_are_known_by_no_reading() -> None:
    assert judged(XML.replace("NVIDIA H200", "NVIDIA Next")) == (PASS, set())


@pytest.mark.parametrize("text", NO_COUNTS)
@pytest.mark.parametrize(
    "tag",
    [
        *("dram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded", "sram_correctable"),
        *("sram_l2", "remapped_row_corr", "remapped_row_unc", "row_remapper_histogram_none"),
        *("current_link_width", "current_link_gen", "replay_counter"),
    ],
)
def test_a_count_that_is_none_is_unproven(tag: str, text: str) -> None:
    verdict, codes = judged(with_value(tag, text))
    assert verdict in (UNPROVEN, FAIL)
    assert codes & {"gpu_value_unknown", "impossible_value"}, codes


@pytest.mark.parametrize("text", ["Unknown", "garbage", "-1", "1,234"])
@pytest.mark.parametrize("tag", ["dram_uncorrectable", "sram_uncorrectable_secded", "dram_correctable"])
def test_a_count_over_the_life_of_a_gpu_that_is_none_is_unproven(tag: str, text: str) -> None:
    xml = re.sub(rf"(?s)(<aggregate>.*?<{tag}>)[^<]*<", rf"\g<1>{text}<", XML, count=1)
    assert judged(xml) == (UNPROVEN, {"gpu_value_unknown"})


@pytest.mark.parametrize("text", NO_NUMBERS)
@pytest.mark.parametrize(
    "tag",
    ["memory_temp", "gpu_temp_tlimit", "current_power_limit", "default_power_limit", "sm_clock", "gpu_util"],
)
def test_a_number_that_is_none_is_unproven(tag: str, text: str) -> None:
    verdict, codes = judged(with_value(tag, text))
    assert (verdict, "gpu_value_unknown" in codes) == (UNPROVEN, True)


@pytest.mark.parametrize("text", NO_WORDS)
@pytest.mark.parametrize(
    "tag",
    ["current_ecc", "pending_ecc", "current_mig", "pending_mig", "compute_mode", "persistence_mode"],
)
def test_a_word_that_no_check_knows_is_unproven(tag: str, text: str) -> None:
    assert judged(with_value(tag, text)) == (UNPROVEN, {"gpu_value_unknown"})


@pytest.mark.parametrize(
    ("line", "value"),
    [
        *((line, value)
          for line in ("DRAM Uncorrectable", "SRAM Uncorrectable Parity", "Uncorrectable Error")
          for value in ("Unknown", "-1", "1,234")),
        *((line, value)
          for line in ("Memory Current Temp", "Current Power Limit", "SM") for value in NO_NUMBERS),
        *(("Current", value) for value in NO_WORDS),
    ],
)  # fmt: skip
def test_a_value_of_the_text_that_is_none_is_unproven(line: str, value: str) -> None:
    text, count = re.subn(rf"(?m)^( *{line} +: ).*$", rf"\g<1>{value}", NVIDIA_SMI_TEXT.decode(), count=1)
    assert count == 1
    verdict, codes = judged(text)
    assert (verdict, "gpu_value_unknown" in codes) == (UNPROVEN, True), codes


def with_cell(column: str, cell: str, row: int = 2) -> str:
    """Return the real table of four H200 with another cell in one row."""
    lines = [line.split(", ") for line in CSV.splitlines()]
    place = next(at for at, name in enumerate(lines[0]) if name.partition(" ")[0] == column)
    lines[row][place] = cell
    return "".join(f"{', '.join(line)}\n" for line in lines)


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        *((column, cell)
          for column in ("ecc.mode.current", "mig.mode.current", "persistence_mode")
          for cell in ("", *NO_WORDS)),
        *((column, cell)
          for column in ("ecc.errors.uncorrected.volatile.total", "ecc.errors.corrected.aggregate.total",
                         "pcie.link.gen.current", "pcie.link.width.max")
          for cell in ("", "Unknown", "1.234", "7 errors")),
        *((column, cell)
          for column in ("temperature.gpu", "power.limit", "clocks.max.sm", "memory.total")
          for cell in ("", "Unknown", "31 or 32")),
        *(("index", cell) for cell in ("", "Unknown", "one")),
    ],
)  # fmt: skip
def test_a_cell_without_a_number_or_known_word_is_unproven(column: str, cell: str) -> None:
    verdict, codes = judged(with_cell(column, cell))
    assert (verdict, "gpu_value_unknown" in codes) == (UNPROVEN, True), codes


@pytest.mark.parametrize("cell", ["", "Unknown", "N/A", "[N/A]"])
@pytest.mark.parametrize("column", ["gpu_recovery_action", "fabric.state", "count", "compute_mode"])
def test_another_column_without_a_known_word_is_unproven(column: str, cell: str) -> None:
    verdict, codes = judged(table(f"temperature.gpu, {column}", f"31, {cell}", name="NVIDIA Next"))
    assert (verdict, codes) == (PASS, set()) if "N/A" in cell else verdict in (UNPROVEN, FAIL)


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("uuid", "N/A"),
        ("uuid", "[N/A]"),
        ("uuid", ""),
        ("uuid", "1650000000001"),
        ("name", "N/A"),
        ("name", ""),
    ],
)
def test_a_row_that_names_no_gpu_is_unproven(column: str, cell: str) -> None:
    verdict, codes = judged(with_cell(column, cell))
    assert (verdict, "gpu_lost" in codes) == (UNPROVEN, True), codes


# -- Readings that every GPU of a model has -------------------------------------------------------


def without(*tags: str, name: str = H200) -> str:
    """Return the real answer of four GPUs of a product, with N/A in place of all values of these tags."""
    return re.sub(rf"<({'|'.join(tags)})>[^<]*<", r"<\1>N/A<", WHOLE.replace(H200, name))


@pytest.mark.parametrize(
    "tags",
    [
        ("current_ecc", "pending_ecc"),
        ("pending_ecc",),
        ("dram_uncorrectable",),
        ("sram_uncorrectable_parity",),
        ("dram_correctable", "dram_uncorrectable", "sram_correctable", "sram_uncorrectable_secded"),
        ("remapped_row_pending", "remapped_row_failure"),
        ("memory_temp",),
        ("gpu_recovery_action",),
    ],
)
def test_a_reading_that_every_gpu_of_the_model_has_may_not_be_absent(tags: tuple[str, ...]) -> None:
    assert judged(without(*tags)) == (UNPROVEN, {"gpu_readings_missing"})
    # The driver shows less of a divided GPU, of a part of a GPU in a virtual machine, and of other models.
    for name in ("NVIDIA H200-141C", "NVIDIA H200-1-18C", "NVIDIA RTX A6000"):
        assert judged(without(*tags, name=name)) == (PASS, set())
    divided = without(*tags).replace("<current_mig>Disabled", "<current_mig>Enabled")
    assert "gpu_readings_missing" not in judged(divided)[1]


def test_a_section_with_na_in_place_of_its_counts_is_unproven() -> None:
    for section in ("ecc_mode", "ecc_errors", "remapped_rows"):
        xml = re.sub(rf"(?s)<{section}>.*?</{section}>", f"<{section}>N/A</{section}>", WHOLE)
        assert judged(xml) == (UNPROVEN, {"gpu_readings_missing"})


@pytest.mark.parametrize("tags", [("memory_temp",), ("gpu_recovery_action",)])
def test_a_card_may_lack_readings_of_the_module(tags: tuple[str, ...]) -> None:
    assert judged(without(*tags, name="NVIDIA H100 PCIe")) == (PASS, set())


def test_a_gpu_whose_fabric_is_not_shown_passes() -> None:
    assert judged(without("state", "status", "clusterUuid", "cliqueId")) == (PASS, set())


@pytest.mark.parametrize(
    "column",
    [
        *("ecc.mode.current", "ecc.mode.pending", "remapped_rows.pending", "temperature.memory"),
        *(f"ecc.errors.uncorrected.volatile.{place}" for place in ("total", "dram", "sram", "device_memory")),
    ],
)
def test_a_column_that_every_gpu_of_the_model_has_may_not_be_absent(column: str) -> None:
    for cell in ("N/A", "[N/A]"):
        text = table(f"temperature.gpu, {column}", f"31, {cell}", f"32, {cell}")
        assert judged(text) == (UNPROVEN, {"gpu_readings_missing"})
        assert judged(text.replace(H200, "NVIDIA L40S")) == (PASS, set())
        assert judged(text.replace(H200, "NVIDIA A100-40C")) == (PASS, set())


@pytest.mark.parametrize("word", ["power", "enforced.power"])
def test_a_limit_of_the_power_below_the_default_degrades(word: str) -> None:
    columns = f"temperature.gpu, {word}.limit [W], power.default_limit [W]"
    assert judged(table(columns, "31, 350.00 W, 700.00 W")) == (DEGRADED, {"power_limit"})
    assert judged(table(columns, "31, 700.00 W, 700.00 W")) == (PASS, set())


def test_an_enforced_limit_of_an_older_driver_is_judged() -> None:
    old = XML.replace("gpu_power_readings>", "power_readings>").replace("instant_power_draw>", "power_draw>")
    old = re.sub(r"<current_(power_limit>)([^<]*)</current_", r"<enforced_\1\2</enforced_\1<\1\2</", old)
    assert judged(old) == (PASS, set())
    low = old.replace("<enforced_power_limit>700.00 W", "<enforced_power_limit>350.00 W")
    assert judged(low) == (DEGRADED, {"power_limit"})


# -- Queries in a loop ----------------------------------------------------------------------------


def rounds(*listed: str, has_time: bool = True) -> str:
    """Return a query in a loop, each round with the GPUs of these indexes (``0123``)."""
    times = [f"2026/01/31 12:00:{at:02d}.123, " if has_time else "" for at in range(len(listed))]
    rows = (
        f"{time}{gpu}, {UUIDS[int(gpu)]}, {H200}, 31\n"
        for time, gpus in zip(times, listed, strict=True)
        for gpu in gpus
    )
    return ("timestamp, " if has_time else "") + "index, uuid, name, temperature.gpu\n" + "".join(rows)


@pytest.mark.parametrize(
    "listed",
    [
        ("0123", "023", "0123"),
        ("0123", "0123", "023"),
        ("0123", "123", "0123"),
        ("123", "0123", "0123"),
        ("0123", "0123", "123"),
        ("0123", "0", "0123"),
        ("012", "0123", "0123"),
    ],
)
def test_a_gpu_that_is_missing_in_one_round_of_a_loop_is_found(listed: tuple[str, ...]) -> None:
    assert judged(rounds(*listed)) == (UNPROVEN, {"gpu_missing"})
    assert judged(rounds(*listed, has_time=False))[0] is UNPROVEN


def test_a_loop_passes_and_its_last_round_may_be_cut() -> None:
    whole = ("0123",) * 3
    assert judged(rounds(*whole)) == (PASS, set())
    assert judged(rounds(*whole, has_time=False)) == (PASS, set())
    assert judged(rounds(*whole, "01")) == (PASS, set())
    # Without times, the last rows may also be a GPU that is listed twice.
    assert judged(rounds(*whole, "01", has_time=False)) == (UNPROVEN, {"gpu_missing"})
    assert judged(rounds("0123", "01") + rounds("0123", "0123")) == (PASS, set())
    assert judged(rounds("0123", has_time=False) * 2) == (PASS, set())
    # A run with a single round is no loop that was ended in a round.
    assert judged(rounds("0123", "0123") + rounds("01")) == (UNPROVEN, {"gpu_missing"})


@pytest.mark.parametrize("listed", ["01123", "0123012", "00", "0120"])
def test_a_list_without_times_that_has_a_gpu_twice_is_unproven(listed: str) -> None:
    assert judged(rounds(listed, has_time=False))[0] is UNPROVEN


THRESHOLD = "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded"
FABRIC = "fabric.clusterUuid, fabric.cliqueId, fabric.state"


@pytest.mark.parametrize(
    ("columns", "healthy", "faulty", "verdict", "code"),
    [
        (THRESHOLD, "No", "Yes", FAIL, "ecc_uncorrected"),
        (THRESHOLD, "No", "Maybe", UNPROVEN, "gpu_value_unknown"),
        ("retired_pages.pending", "No", "Yes", FAIL, "remap_pending"),
        ("fabric.health.summary", "Healthy", "Unhealthy", FAIL, "fabric_unhealthy"),
        ("fabric.health.bandwidth", "Full", "Degraded", UNPROVEN, "gpu_value_unknown"),
        ("fabric.health.route_unhealthy", "False", "True", UNPROVEN, "gpu_value_unknown"),
        ("temperature.gpu.tlimit", "40", "-1", FAIL, "temperature"),
        ("temperature.gpu.tlimit", "40", "[N/A]", UNPROVEN, "gpu_readings_missing"),
        (FABRIC, "a, 1, Completed", "a, 2, Completed", FAIL, "fabric_split"),
        ("remapped_rows.failure", "No", "[N/A]", UNPROVEN, "gpu_readings_missing"),
        ("fabric.state", "Completed", "[N/A]", UNPROVEN, "gpu_readings_missing"),
        ("ecc.errors.corrected.aggregate.dram", "0", "20000001", DEGRADED, "ecc_dram_correctable"),
        ("ecc.errors.corrected.aggregate.sram", "0", "10001", DEGRADED, "ecc_sram_correctable"),
        ("remapped_rows.uncorrectable", "0", "-5", UNPROVEN, "impossible_value"),
        ("remapped_rows.histogram.low", "0", "nan", UNPROVEN, "impossible_value"),
        ("memory.total [MiB]", "143771 MiB", "[N/A]", UNPROVEN, "gpu_readings_missing"),
    ],
)
def test_a_bad_cell_of_a_healthy_table_gets_the_finding_of_the_xml(
    columns: str, healthy: str, faulty: str, verdict: Verdict, code: str
) -> None:
    assert judged(table(columns, healthy, healthy)) == (PASS, set())
    assert judged(table(columns, healthy, faulty)) == (verdict, {code})


@pytest.mark.parametrize(
    ("tag", "value", "verdict", "code"),
    [
        ("cliqueId", "7", FAIL, "fabric_split"),
        ("clusterUuid", "11110000-0000-0000-0000-000000000000", FAIL, "fabric_split"),
        ("gpu_temp_tlimit", "0 C", FAIL, "temperature"),
        ("gpu_temp_tlimit", "5 C", DEGRADED, "temperature"),
        ("gpu_util", "101 %", UNPROVEN, "impossible_value"),
    ],
)
def test_a_gpu_in_another_fabric_or_without_margin_does_not_pass(
    tag: str, value: str, verdict: Verdict, code: str
) -> None:
    assert judged(with_value(tag, value)) == (verdict, {code})


# A real A100 at 33 °C, which states no margin. It slows down at 89 °C and shuts down at 92 °C.
A100 = (REAL / "nvidia-smi/qx-a100.xml").read_text()


@pytest.mark.parametrize(
    ("temperature", "slowdown", "shutdown", "expected"),
    [
        ("94 C", "89 C", "92 C", (FAIL, {"temperature"})),
        ("92 C", "89 C", "92 C", (FAIL, {"temperature"})),
        ("89 C", "89 C", "92 C", (FAIL, {"temperature"})),
        ("84 C", "89 C", "92 C", (DEGRADED, {"temperature"})),
        ("92 C", "N/A", "92 C", (FAIL, {"temperature"})),
        ("89 C", "89 C", "N/A", (FAIL, {"temperature"})),
        ("70 C", "89 C", "60 C", (FAIL, {"temperature"})),
        # Healthy GPUs, and thresholds and temperatures that are none.
        ("83 C", "89 C", "92 C", (PASS, set())),
        ("33 C", "N/A", "N/A", (PASS, set())),
        ("33 C", "0 C", "0 C", (PASS, set())),
        ("200 C", "89 C", "92 C", (UNPROVEN, {"impossible_value"})),
    ],
)
def test_a_gpu_without_a_margin_is_judged_by_the_thresholds_that_it_states(
    temperature: str, slowdown: str, shutdown: str, expected: tuple[Verdict, set[str]]
) -> None:
    stated = {
        "gpu_temp": temperature,
        "gpu_temp_slow_threshold": slowdown,
        "gpu_temp_max_threshold": shutdown,
    }
    xml = A100
    for tag, value in stated.items():
        xml = with_value(tag, value, xml)
    assert judged(xml) == expected
    # The same three lines of the text output, in place of the margin.
    lines = f"GPU Shutdown Temp                 : {shutdown}\n        GPU Slowdown Temp : {slowdown}\n"
    text, count = re.subn(r"GPU T\.Limit Temp .*\n", lines, NVIDIA_SMI_TEXT.decode(), count=1)
    text = re.sub(r"(GPU Current Temp +:) \S+ C", rf"\1 {temperature}", text, count=1)
    assert count == 1
    assert ("temperature" in judged(text)[1]) == ("temperature" in expected[1])


def test_a_stated_margin_counts_and_not_the_thresholds_beside_it() -> None:
    hot = with_value("gpu_temp", "94 C", A100)
    assert judged(with_value("gpu_temp_tlimit", "6 C", hot)) == (PASS, set())
    assert judged(with_value("gpu_temp_tlimit", "0 C", A100)) == (FAIL, {"temperature"})


def test_the_deeper_power_limits_of_drivers_since_610_are_read() -> None:
    text = NVIDIA_SMI_TEXT.decode()
    limits = "        Current Power Limit               : 700.00 W\n        Default Power Limit"
    deeper = "        GPU Ceiling Power Limit\n" + limits.replace("        ", "            ", 1).replace(
        "\n", "\n    "
    )
    deep = text.replace(limits, deeper).replace("GPU T.Limit Temp ", "GPU Current T.Limit Temp ")
    assert judged(deep) == (PASS, set())
    assert judged(deep.replace("700.00 W", "200.00 W", 1)) == (DEGRADED, {"power_limit"})
    assert judged(deep.replace("52 C", "-1 C")) == (FAIL, {"temperature"})


def test_two_gpus_at_one_address_are_unproven() -> None:
    first, second = re.findall(r'<gpu id="([^"]*)"', XML)
    assert judged(XML.replace(second, first)) == (UNPROVEN, {"gpu_twice"})


# -- GPUs that are missing or unlike the others, and faults that a table states -------------------

WHOLE_XML = lzma.decompress((REAL / "nvidia-smi/qx-h100.xml.xz").read_bytes()).decode()
"""Eight H100 of one machine."""


@pytest.mark.parametrize("first_alone", [True, False], ids=["of one GPU", "of all"])
@pytest.mark.parametrize(
    "section",
    [
        *("ecc_errors", "ecc_mode", "remapped_rows", "temperature", "gpu_recovery_action", "fabric", "pci"),
        *("clocks_event_reasons", "fb_memory_usage", "product_name", "utilization", "processes", "mig_mode"),
    ],
)
def test_the_xml_without_a_section_is_unproven(section: str, first_alone: bool) -> None:
    assert judged(WHOLE_XML) == (PASS, set())
    pattern = rf"\n\t\t<{section}>.*?</{section}>"
    verdict, codes = judged(re.sub(pattern, "", WHOLE_XML, count=int(first_alone), flags=re.DOTALL))
    assert (verdict, "cut_off" in codes) == (UNPROVEN, True)


@pytest.mark.parametrize(
    ("tag", "value", "verdict", "code"),
    [
        ("current_power_limit", "200.00 W", UNPROVEN, "gpus_unlike"),
        ("max_link_gen", "3", UNPROVEN, "gpus_unlike"),
        ("current_mig", "Enabled", UNPROVEN, "gpus_unlike"),
        ("product_name", "NVIDIA H200", UNPROVEN, "gpus_unlike"),
        ("compute_mode", "Prohibited", UNPROVEN, "compute_prohibited"),
        ("serial", "1650000000008", UNPROVEN, "gpu_twice"),
        ("row_remapper_histogram_none", "12 bank(s)", DEGRADED, "remap_spent"),
        ("remapped_row_unc", "512", DEGRADED, "remap_spent"),
        ("product_name", "NVIDIA H100 160GB HBM3", UNPROVEN, "gpu_memory"),
    ],
)
def test_a_gpu_that_is_unlike_the_others_does_not_pass(
    tag: str, value: str, verdict: Verdict, code: str
) -> None:
    found, codes = judged(with_value(tag, value, WHOLE_XML))
    assert (found, code in codes) == (verdict, True), codes


def test_all_gpus_below_their_default_power_are_degraded() -> None:
    text = WHOLE_XML.replace("<current_power_limit>700.00 W", "<current_power_limit>500.00 W")
    assert judged(text) == (DEGRADED, {"power_limit"})


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (
            HEAD.format(column="count") + f"0, {H200}, {UUIDS[0]}, 8\n1, {H200}, {UUIDS[1]}, 8\n",
            "gpu_missing",
        ),
        (f"index, uuid, temperature.gpu\n0, {UUIDS[0]}, 33\n3, {UUIDS[1]}, 33\n", "gpu_missing"),
        ("temperature.gpu, power.draw [W]\n38, 77.49 W\n", "gpu_missing"),
        (table("temperature.gpu", "[N/A]"), "no_rows"),
        ("timestamp, index, name\n2026/01/31 12:00:00.000, 0, NVIDIA H200\n", "no_rows"),
        (
            f"gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n{UUIDS[0]}, 4711, python, 500 MiB\n",
            "no_rows",
        ),
        (
            "gpu_uuid, retired_pages.address, retired_pages.cause\n"
            f"{UUIDS[0]}, [N/A], Single Bit ECC\n{UUIDS[0]}, [N/A], Double Bit ECC\n",
            "no_rows",
        ),
    ],
)
def test_tables_without_values_of_all_gpus_are_unproven(text: str, code: str) -> None:
    verdict, codes = judged(text)
    assert (verdict, code in codes) == (UNPROVEN, True), codes


@pytest.mark.parametrize(
    ("column", "cell", "code"),
    [
        ("fabric.state, fabric.status", "In Progress, Success", "fabric_incomplete"),
        ("fabric.state, fabric.status", "Completed, Unknown", "fabric_failed"),
        ("retired_pages.pending", "Yes", "remap_pending"),
        ("reset_status.reset_required", "Yes", "recovery_action"),
        ("temperature.gpu, reset_status.reset_required", "40, Yes", "recovery_action"),
        ("reset_status.drain_and_reset_recommended", "Yes", "recovery_action"),
    ],
)
def test_words_of_a_table_that_state_a_fault_fail(column: str, cell: str, code: str) -> None:
    assert judged(table(column, cell)) == (FAIL, {code})


@pytest.mark.parametrize("word", ["Maybe", "Pending"])
def test_another_word_about_a_reset_is_unproven(word: str) -> None:
    assert judged(table("temperature.gpu, reset_status.reset_required", f"31, {word}"))[0] is UNPROVEN


@pytest.mark.parametrize(
    ("column", "cell"), [("serial", "1650000000001"), ("pci.bus_id", "00000000:18:00.0")]
)
@pytest.mark.parametrize("moments", [1, 3])
def test_a_gpu_that_a_table_without_uuids_lists_twice_is_found(column: str, cell: str, moments: int) -> None:
    text = looped(column, cell)
    assert judged("".join(text.splitlines(keepends=True)[: 1 + 2 * moments])) == (UNPROVEN, {"gpu_twice"})


def test_the_number_of_gpus_of_a_query_in_a_loop_is_not_that_of_its_rows() -> None:
    parsed = logs.parse(io.BytesIO(looped("pci.bus_id", "00000000:1{gpu}:00.0").encode()))
    assert parsed.tags["gpus"] == "2"
    assert {one.labels["gpu"] for one in parsed.measurements} == {"00000000:10:00.0", "00000000:11:00.0"}


NO_RESOURCES = "<status>Insufficient Resources</status>"


@pytest.mark.parametrize("name", ["qx-h100", "qx-b200", "qx-gb200", "qx-gb300"])
def test_a_gpu_without_resources_in_its_fabric_does_not_pass(name: str) -> None:
    text = lzma.decompress((REAL / f"nvidia-smi/{name}.xml.xz").read_bytes()).decode()
    verdict = FAIL if "-gb" in name else UNPROVEN
    assert "fabric_failed" not in judged(text)[1]
    for times in (1, 0):
        found, codes = judged(re.sub("<status>Success</status>", NO_RESOURCES, text, count=times))
        assert (found, "fabric_failed" in codes) == (verdict, True), codes


def test_a_table_of_an_hgx_without_resources_in_its_fabric_does_not_pass() -> None:
    healthy, faulty = "Completed, Success", "Completed, Insufficient Resources"
    assert judged(table("fabric.state, fabric.status", healthy, healthy)) == (PASS, set())
    assert judged(table("fabric.state, fabric.status", healthy, faulty)) == (UNPROVEN, {"fabric_failed"})


def test_a_gpu_with_an_index_of_almost_a_billion_is_unproven() -> None:
    text = f"index, uuid, temperature.gpu\n999999999, {UUIDS[0]}, 33\n"
    assert judged(text) == (UNPROVEN, {"gpu_missing"})


def test_a_table_of_all_columns_is_read() -> None:
    more = ", ".join(f"clocks.someNew{at}" for at in range(230))
    values = ", ".join(["7"] * 230)
    text = f"index, uuid, pci.baseClass, temperature.gpu, {more}\n0, {UUIDS[0]}, 0x3, 31, {values}\n"
    assert judged(text) == (PASS, set())


@pytest.mark.parametrize(
    ("gpus", "code"),
    [
        ([(H200, links("26.562", 1))], "nvlink_unclear"),
        ([(H200, links("26.562", 17))] * 8, "nvlink_unclear"),
        ([("NVIDIA A100-SXM4-40GB", links(25, 11))] * 4, "nvlink_unclear"),
        ([(H200, links("26.562", 19))], "nvlink_unclear"),
        ([(H200, UP.replace("\t Link 5: 26.562 GB/s\n", ""))] * 2, "nvlink_unclear"),
        ([(H200, UP + ALL_INACTIVE)], "nvlink_unclear"),
        ([(H200, UP + ALL_INACTIVE.replace("\t NVML: ", ""))], "nvlink_unclear"),
        ([(H200, links("9999", 18))], "impossible_value"),
        ([("NVIDIA B200", links("106", 18))], "impossible_value"),
        ([(H200, UP), ("NVIDIA H100 80GB HBM3", UP)], "gpus_unlike"),
    ],
)
def test_lists_of_links_that_contradict_their_model_are_unproven(
    gpus: list[tuple[str, str]], code: str
) -> None:
    verdict, codes = judged(listed(*gpus))
    assert (verdict, code in codes) == (UNPROVEN, True), codes


def test_a_list_of_links_without_the_first_gpus_is_unproven() -> None:
    text = listed((H200, UP), (H200, UP)).replace("GPU 1:", "GPU 3:").replace("GPU 0:", "GPU 2:")
    assert judged(text) == (UNPROVEN, {"gpu_missing"})


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("NV18", "NV0", "topology_unknown"),
        ("X ", "NV18", "topology_unknown"),
        ("GPU3", "GPU7", "gpu_missing"),
    ],
)
def test_matrices_that_no_driver_prints_are_unproven(old: str, new: str, code: str) -> None:
    text = (REAL / "h200-x4/topo.txt").read_text()
    assert judged(text) == (PASS, set())
    verdict, codes = judged(text.replace(old, new))
    assert (verdict, code in codes) == (UNPROVEN, True), codes


# -- Lines above or below the output --------------------------------------------------------------

CORRUPTED = "WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n"
ANSWERS = {
    "xml": NVIDIA_SMI_XML.decode(),
    "text": NVIDIA_SMI_TEXT.decode(),
    "csv": CSV,
    "nvlink": STATUS,
    "topo": TOPO.decode(),
}
LINES = [
    (CORRUPTED, FAIL, "inforom_corrupted"),
    ("WARNING: infoROM is corrupted\n", FAIL, "inforom_corrupted"),
    ("warning: InfoROM is corrupt at gpu 0008:06:00.0\n", FAIL, "inforom_corrupted"),
    ("WARNING: a thing of drivers to come\n", UNPROVEN, "tool_warning"),
    ("Error: no room\n", UNPROVEN, "tool_warning"),
    ("Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error\n", FAIL, "gpu_lost"),
]


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize(("line", "verdict", "code"), LINES)
@pytest.mark.parametrize("where", ["above", "below"])
def test_a_line_beside_an_answer_is_a_finding(
    name: str, line: str, verdict: Verdict, code: str, where: str
) -> None:
    answer = ANSWERS[name]
    assert judged(answer)[0] is PASS
    found, codes = judged(line + answer if where == "above" else answer + line)
    assert (found, code in codes) == (verdict, True), codes


@pytest.mark.parametrize("tag", ["gpu_temp_tlimit", "fabric", "remapped_rows"])
def test_a_divided_gpu_need_not_have_all_readings_of_the_others(tag: str) -> None:
    lacks_reading = re.sub(f"(?s)<{tag}>.*?</{tag}>", "", XML, count=1)
    assert "gpu_readings_missing" in judged(lacks_reading)[1]
    divided = lacks_reading.replace("<current_mig>Disabled", "<current_mig>Enabled", 1)
    assert "gpu_readings_missing" not in judged(divided)[1]


@pytest.mark.parametrize("name", ["xml", "csv", "topo"])
@pytest.mark.parametrize("line", ["$ nvidia-smi\n", "\n\n", "Wed Nov 25 03:00:00 UTC 2026\n"])
def test_a_prompt_or_a_date_above_the_output_is_ignored(name: str, line: str) -> None:
    assert judged(line + ANSWERS[name]) == (PASS, set())


def test_a_fault_in_a_second_document_is_found() -> None:
    bad = with_value("current_ecc", "Disabled")
    for text in (XML + bad, bad + XML, XML + "<gpu/>", XML + CORRUPTED + bad):
        assert judged(text)[0] in (UNPROVEN, FAIL)


# -- Tables without a header, and other texts -----------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "".join(CSV.splitlines(keepends=True)[1:]),
        "0, NVIDIA H200, 31, 77.49 W\n",
        "GPU-00000000-0000-4000-8000-000000000001, 31\n",
        "31, 77.49 W, 345 MHz\n",
        "0, 0x0000000000000048\n",
        "\n\nTesla V100-SXM2-16GB, 300.00 W, Enabled, [N/A]\n",
        "2026/01/31 12:00:00.000, NVIDIA H200, 143771 MiB, P0, 00000000:00:06.0",
    ],
)
def test_the_finding_about_a_table_names_its_missing_header(text: str) -> None:
    parsed = logs.parse(io.BytesIO(text.encode()))
    found = [one for one in parsed.findings if one.verdict is not None]
    assert (parsed.format, parsed.verdict) == ("nvidia_smi_csv", UNPROVEN)
    assert [one.code for one in found if one.code != "cut_off"] == ["no_header"]
    assert "--format=csv" in found[0].message


@pytest.mark.parametrize(
    "text",
    [
        "0, 1, 2, 3\n",
        "a, b, 31 MiB\n",
        "I tensorflow: physical GPU (device: 0, name: Tesla V100-SXM2-16GB, pci bus id: 0000:06:00.0)\n",
        "size, 12 MiB\n0, 12 MiB\n",
        "loss, 0.5, NVIDIA H200\n",
        "        GPU0    GPU1\nstep 1\n",
        "0 MiB, " * 5000,
        "\n" * 5000,
    ],
)
def test_other_texts_are_no_tables_of_nvidia_smi(text: str) -> None:
    assert judged(text)[0] is UNPROVEN
    assert logs.parse(io.BytesIO(text.encode())).format in ("unknown", "nvidia_smi_topo")


# -- Clock reasons of NVML, and a bound -----------------------------------------------------------


def test_the_clock_reasons_have_the_bits_of_nvml() -> None:
    assert [reason.bit for reason in CLOCK_REASONS] == [1 << at for at in range(9)]
    assert [one.name for one in slowdowns_of(0x1FF)] == [
        *("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"),
    ]
    assert (unknown_bits(0x1FF), unknown_bits(0x3FF)) == (0, 0x200)
    assert [read_mask(text) for text in ("0x48", "0x", "48", "0x1 ", "")] == [0x48, None, None, None, None]


def test_the_number_of_stored_gpus_of_a_table_is_bounded() -> None:
    rows = "".join(f"GPU-{number:032x}, NVIDIA H100, 40\n" for number in range(5000))
    parser = NvidiaSmiCsvParser(Log("nvidia_smi_csv"))
    for at, line in enumerate(f"uuid, name, temperature.gpu\n{rows}".splitlines(), start=1):
        parser.line(at, line)
    assert len(parser.filled) == len(parser.gpus) == MAX_GPUS + 1


# -- One output that several functions read -------------------------------------------------------


@pytest.mark.parametrize(("padding", "times"), [(0, 1), (1 << 20, 3)], ids=["of a node", "too large to keep"])
def test_one_answer_is_parsed_once_and_no_reader_changes_it(
    monkeypatch: pytest.MonkeyPatch, padding: int, times: int
) -> None:
    data = XML.replace("</nvidia_smi_log>", f"<!--{' ' * padding}--></nvidia_smi_log>").encode()
    parsed = []
    read_xml = nvidia_smi._read_xml

    def read_and_keep(document: bytes, above: int) -> nvidia_smi._Element:
        parsed.append(read_xml(document, above))
        return parsed[-1]

    monkeypatch.setattr(nvidia_smi, "_read_xml", read_and_keep)
    nvidia_smi._read_again.cache_clear()
    gpus = nvidia_smi.read_gpus(data)
    assert [texts.gpu for texts in nvidia_smi.read_gpu_texts(data)] == list(gpus)
    assert judged(data) == (PASS, set())
    assert len(parsed) == times
    assert all(tree == read_xml(data, 0) for tree in parsed)
    # Other or unreadable output does not use the kept result.
    other = data.replace(b"GPU-", b"GPU-f", 1)
    assert nvidia_smi.read_gpus(other) != gpus
    for _ in range(2):
        with pytest.raises(ValueError, match="not well-formed"):
            nvidia_smi.read_gpus(data[:-30])


# -- Lines that are missing of one GPU, and unknown values ----------------------------------------

GB200 = lzma.decompress((REAL / "nvidia-smi/qx-gb200.xml.xz").read_bytes()).decode()


@pytest.mark.parametrize(
    "tag",
    [
        *("cliqueId", "clusterUuid", "route_unhealthy", "route_recovery_in_progress", "bandwidth"),
        *("access_timeout_recovery", "incorrect_configuration", "pending_retirement", "pending_blacklist"),
        *("persistence_mode", "performance_state"),
    ],
)
def test_a_line_that_is_missing_of_only_one_gpu_is_unproven(tag: str) -> None:
    assert judged(GB200)[0] is PASS
    before = GB200[: GB200.rindex(f"<{tag}>")]
    after = GB200[len(before) :].partition(f"</{tag}>")[2]
    assert judged(before + after)[0] is UNPROVEN


@pytest.mark.parametrize("text", ["N/A", "True", "0x"])
@pytest.mark.parametrize("tag", ["max_link_width", "max_link_gen"])
def test_a_link_whose_highest_value_is_unknown_is_unproven(tag: str, text: str) -> None:
    damaged = re.sub(f"<{tag}>[^<]*<", f"<{tag}>{text}<", XML)
    assert judged(damaged)[0] is UNPROVEN


# -- Outputs that appear twice, damaged speeds, names of processes, and the text of -q ------------


@pytest.mark.parametrize("tail", ["", "later\n"])
def test_two_matrices_in_one_log_are_unproven(tail: str) -> None:
    good, bad = matrix(*alike(8, "NV18")), with_pair(matrix(*alike(8, "NV18")), 2, 3, "NV17")
    assert judged(good)[0] is PASS
    assert judged(bad)[0] is DEGRADED
    for text in (bad + tail + good, good + tail + bad, good + good):
        assert judged(text)[0] is UNPROVEN
        assert "gpu_twice" in judged(text)[1]


def test_a_column_or_a_row_that_appears_twice_is_found() -> None:
    good = matrix(*alike(2, "NV18"))
    row = next(line for line in good.splitlines(keepends=True) if line.startswith("GPU1"))
    assert judged(good)[0] is PASS
    for text in (good + row, good.replace(row, row.replace("NV18", "SYS") + row)):
        assert judged(text) == (UNPROVEN, {"gpu_twice"})
    text = "\tGPU0\tGPU1\tGPU1\nGPU0\tX\tSYS\tNV18\nGPU1\tNV18\tX\tX\n"
    assert judged(text) == (UNPROVEN, {"gpu_twice"})


@pytest.mark.parametrize("shown", ["26.5.2 GB/s", "26..5 GB/s", "26.562 GB", "26,562 GB/s", "2G.562 GB/s"])
def test_a_damaged_speed_of_a_link_is_not_called_down(shown: str) -> None:
    text = listed((H200, UP.replace("26.562 GB/s", shown, 1)), (H200, UP))
    verdict, found = judged(text)
    assert verdict is not PASS
    assert "damaged_line" in found
    assert "nvlink_down" not in found
    alone = logs.parse(io.BytesIO(listed((H200, UP.replace("26.562 GB/s", shown))).encode()))
    assert alone.verdict is UNPROVEN


TEXT = NVIDIA_SMI_TEXT.decode()
PROCESSES = """\
    Processes
        GPU instance ID                   : N/A
        Process ID                        : 1234
            Type                          : C
            Name                          : {name}
            Used GPU Memory               : 1 MiB
"""


@pytest.mark.parametrize(
    "name",
    [
        "python train.py 'Unknown Error'",
        "sh -c 'echo GPU is lost'",
        "ERR!",
        "==NVSMI LOG==",
        "infoROM is corrupted",
    ],
)
@pytest.mark.parametrize("heading", ["Processes", "Accounted Processes"])
def test_a_process_may_have_any_name(name: str, heading: str) -> None:
    text = TEXT + PROCESSES.format(name=name).replace("Processes", heading)
    assert judged(text) == (PASS, set())
    # Errors outside the list of processes still count.
    assert judged(text + "Unable to determine the device handle for GPU 3B:00.0: Unknown Error\n")[0] is FAIL
    assert judged(text + "GPU 00000000:07:00.0\n    Fan Speed  : Unknown Error\n")[0] is FAIL
    assert judged(TEXT + PROCESSES.format(name=name).replace("Processes", "Others"))[0] is not PASS


def test_a_process_in_a_table_may_have_any_name() -> None:
    head = "pid, process_name, used_gpu_memory [MiB]\n"
    assert "gpu_lost" not in judged(f"index, {head}0, 1234, python 'Unknown Error', 1 MiB\n")[1]
    assert "gpu_lost" in judged(f"index, {head}0, 1234, python, [GPU is lost]\n")[1]


UNCORRECTED = "ecc.errors.uncorrected.volatile"


@pytest.mark.parametrize(
    ("columns", "cells", "verdict", "expected"),
    [
        (("dram",), (1,), DEGRADED, {"ecc_dram_uncorrected"}),
        (("device_memory",), (2,), DEGRADED, {"ecc_dram_uncorrected"}),
        (("dram", "total"), (1, 1), DEGRADED, {"ecc_dram_uncorrected"}),
        (("total", "dram", "device_memory"), (1, 1, 1), DEGRADED, {"ecc_dram_uncorrected"}),
        (("dram", "total"), (1, 2), FAIL, {"ecc_dram_uncorrected", "ecc_uncorrected"}),
        (("dram", "sram"), (1, 1), FAIL, {"ecc_dram_uncorrected", "ecc_uncorrected"}),
        (("sram",), (1,), FAIL, {"ecc_uncorrected"}),
        (("register_file",), (1,), FAIL, {"ecc_uncorrected"}),
        (("total",), (1,), FAIL, {"ecc_uncorrected"}),
        (("sram", "sram"), (1, 0), FAIL, {"ecc_uncorrected"}),
        (("dram", "sram", "total"), (0, 0, 0), PASS, set()),
    ],
)
def test_memory_errors_of_a_table_are_judged_as_in_the_xml(
    columns: tuple[str, ...], cells: tuple[int, ...], verdict: Verdict, expected: set[str]
) -> None:
    head = ", ".join(f"{UNCORRECTED}.{column}" for column in columns)
    assert judged(table(head, ", ".join(map(str, cells)))) == (verdict, expected)


def test_the_finding_about_a_slowdown_of_unknown_age_says_what_to_do() -> None:
    counters = re.search("<clocks_event_reasons_counters_hw_therm_slowdown>(.*?)<", XML)
    assert counters is not None
    text = XML.replace(counters[0], counters[0].replace(counters[1], "61000000 us"), 1)
    parsed = logs.parse(io.BytesIO(text.encode()))
    (found,) = [one for one in parsed.findings if one.verdict]
    assert (parsed.verdict, found.code) == (UNPROVEN, "slowdown_unknown")
    assert "save nvidia-smi -q a day later" in found.message


FAR = "some text of a job\n" * 20_000
"""Text that is longer than a block."""


@pytest.mark.parametrize("above", ["", "$ nvidia-smi -q -x\n", "one\ntwo\n\n", FAR])
def test_findings_in_the_xml_have_the_line_number_of_the_file(above: str) -> None:
    text = above + with_value("current_ecc", "Disabled")
    (found,) = [one for one in logs.parse(io.BytesIO(text.encode())).findings if one.code == "ecc_off"]
    gpus = [at for at, line in enumerate(text.splitlines(), start=1) if "<gpu id=" in line]
    assert found.source is not None
    assert found.source.line == gpus[0]


@pytest.mark.parametrize("above", ["", "$ nvidia-smi -q\n", FAR, FAR + "one\n"])
def test_findings_in_the_text_and_beside_the_xml_have_the_line_number_of_the_file(above: str) -> None:
    text = NVIDIA_SMI_TEXT.decode()
    pending = next(line for line in text.splitlines() if line.strip().startswith("Pending ") and "No" in line)
    beside = "WARNING: something is odd"
    for data, words, code in (
        (text.replace(pending, pending.replace("No", "Yes")), pending.replace("No", "Yes"), "remap_pending"),
        (f"{XML}\n{beside}\n", beside, "tool_warning"),
        (f"{beside}\n{XML}", beside, "tool_warning"),
    ):
        (found,) = [
            one for one in logs.parse(io.BytesIO((above + data).encode())).findings if one.code == code
        ]
        assert found.source is not None
        assert found.source.line == (above + data).splitlines().index(words) + 1


@pytest.mark.parametrize("value", ["b", "b :", ": b", "b : c"])
def test_long_lines_of_the_text_are_read_within_a_second(value: str) -> None:
    line = "    a" + " " * (1900 - len(value)) + value + "\n"
    start = time.process_time()
    nvidia_smi._read_text([(at, line) for at in range(100)])
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Temperature", ("Temperature", "")),
        ("Product Name                          : NVIDIA H200", ("Product Name", "NVIDIA H200")),
        ("Processes :", ("Processes", "")),
        ("GPU 00000000:00:06.0", ("GPU 00000000:00:06.0", "")),
        ("A : b : c", ("A", "b : c")),
        ("A :b", ("A", "b")),
        ("A :  b", ("A", " b")),
        (": b", (": b", "")),
        ("a" * 200, ("a" * 200, "")),
        ("a" * 201 + " : b", None),
        ("\tA : b", None),
        ("", None),
    ],
)
def test_a_line_of_the_text_has_a_name_and_a_value(line: str, expected: tuple[str, str] | None) -> None:
    assert nvidia_smi._name_and_value(line) == expected
