"""Test the comparison of a system description with what was seen (:mod:`rackproof.analysis.agreement`).

The description of an MLPerf submission states processors, framework, memory and operating system. Nodes and
logs show the same values in other spellings. These tests check that usual spellings of one value agree, that
another value fails, and that a value which cannot be compared is unproven.
"""

from __future__ import annotations

import pytest

from rackproof.analysis.agreement import doubt_of

LSCPU = "Intel(R) Xeon(R) Platinum 8480C"
AGREE, FAIL, UNPROVEN = "", "fail", "unproven"


@pytest.mark.parametrize(
    ("described", "seen", "verdict"),
    [
        ("Intel Xeon Platinum 8480C", LSCPU, AGREE),
        ("Intel® Xeon® Platinum 8480C Processor", LSCPU, AGREE),
        ("Intel Xeon 8480C", LSCPU, AGREE),
        ("NVIDIA Grace CPU", "Neoverse-V2", AGREE),
        ("NVIDIA Grace CPU Superchip, 72 cores", "Neoverse-V2", AGREE),
        ("Neoverse-V2", "Neoverse-V2", AGREE),
        ("NVIDIA Vera CPU", "Neoverse-V2", FAIL),
        ("NVIDIA Grace CPU", "Neoverse-N1", FAIL),
        ("INTEL XEON PLATINUM 8480C", "Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz", AGREE),
        ("Intel Xeon E5-2698 v4", "Intel(R) Xeon(R) CPU E5-2698 v4 @ 2.20GHz", AGREE),
        ("Intel Xeon Platinum 8480C 56-Core", "Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz", AGREE),
        ("AMD EPYC 9654", "AMD EPYC 9654 96-Core Processor", AGREE),
        ("AMD EPYC(TM) 9654 Processor", "AMD EPYC 9654 96-Core Processor", AGREE),
        ("8480C", LSCPU, AGREE),
        (LSCPU, LSCPU, AGREE),
        ("Intel Xeon Platinum 8470C", LSCPU, FAIL),
        ("Intel Xeon Platinum 8480+", LSCPU, FAIL),
        ("Intel Xeon Gold 8480C", LSCPU, FAIL),
        ("Intel Xeon E5-2698 v3", "Intel(R) Xeon(R) CPU E5-2698 v4 @ 2.20GHz", FAIL),
        ("AMD EPYC 9654", LSCPU, FAIL),
        ("80", LSCPU, FAIL),
        (" ", LSCPU, UNPROVEN),
        (LSCPU, "CPU", UNPROVEN),
    ],
)
def test_processor_names_agree_or_not(described: str, seen: str, verdict: str) -> None:
    assert found("host_processor_model_name", described, seen) == verdict


@pytest.mark.parametrize(
    ("described", "seen", "verdict"),
    [
        ("PyTorch", "PyTorch NVIDIA Release 25.04", AGREE),
        ("PyTorch 25.04", "pytorch  25.04-py3", AGREE),
        ("PyTorch 25", "PyTorch 25.04", AGREE),
        ("PyTorch", "pytorch2.1", AGREE),
        ("PyTorch", " ", UNPROVEN),
        ("PyTorch", "-", UNPROVEN),
        ("PyTorch", "T", FAIL),
        ("PyTorch", "py", FAIL),
        ("PyTorch 2", "PyTorch 25.04", FAIL),
        ("PyTorch 2.1", "PyTorch 1.2", FAIL),
        ("TensorFlow", "PyTorch", FAIL),
        ("飞桨", "飞桨 2.6", AGREE),
    ],
)
def test_names_of_frameworks_agree_or_not(described: str, seen: str, verdict: str) -> None:
    assert found("framework", described, seen) == verdict


@pytest.mark.parametrize(
    ("described", "seen", "verdict"),
    [
        ("2 TB", "2.0 TB", AGREE),
        ("32x 64GB", "2.0 TB", AGREE),
        ("32 x 64 GB DDR5", "2.2 TB", AGREE),
        ("64GB x 32", "2.0 TB", AGREE),
        ("32\u00d764GiB", "2.2 TB", AGREE),
        ("2 TB (32x 64GB)", "2.0 TB", AGREE),
        ("2 TB x86", "2.0 TB", AGREE),
        ("16x 64GB", "2.0 TB", FAIL),
        ("32 x DDR5-4800 64 GB", "2.0 TB", UNPROVEN),
        ("32 DIMMs of 64 GB", "2.0 TB", UNPROVEN),
        ("64 GB modules, 32 modules", "2.0 TB", UNPROVEN),
        ("DDR4 G.Skill 512 GB", "512 GB", AGREE),
        ("DDR5 K4 512 GB", "512 GB", AGREE),
        ("64 GB", "2.0 TB", FAIL),
        ("32x 64GB", "64 GB", FAIL),
        ("64GB x 16", "2.0 TB", FAIL),
        ("much", "2.0 TB", UNPROVEN),
    ],
)
def test_memory_sizes_of_hosts_agree_or_not(described: str, seen: str, verdict: str) -> None:
    assert found("host_memory_capacity", described, seen) == verdict


def test_the_memory_of_accelerators_is_compared_for_one() -> None:
    assert found("accelerator_memory_capacity", "8x 80GB", "81559 MiB") == AGREE


@pytest.mark.parametrize(
    ("described", "seen", "verdict"),
    [
        ("Ubuntu 22.04", "Ubuntu 22.04.5 LTS", AGREE),
        ("Ubuntu 22.04", "Ubuntu 24.04", FAIL),
        ("Ubuntu 22.04", " ", UNPROVEN),
        ("Ubuntu", "Ubuntu 24.04", AGREE),
    ],
)
def test_names_of_operating_systems_agree_or_not(described: str, seen: str, verdict: str) -> None:
    assert found("operating_system", described, seen) == verdict


@pytest.mark.parametrize(
    ("described", "seen", "verdict"),
    [
        ("NVIDIA H100 PCIe Gen5 x16", "NVIDIA H100 PCIe", AGREE),
        ("NVIDIA H100 (sm90)", "NVIDIA H100 80GB HBM3", AGREE),
        ("NVIDIA H100 (GH100)", "NVIDIA H100 80GB HBM3", AGREE),
        ("NVIDIA RTX 4090", "NVIDIA GeForce RTX 4090", AGREE),
        ("Quadro RTX 8000", "NVIDIA RTX 8000", AGREE),
        ("NVIDIA RTX 4080", "NVIDIA GeForce RTX 4090", FAIL),
        ("NVIDIA RTX 4090 Ti", "NVIDIA GeForce RTX 4090", FAIL),
        ("NVIDIA GH200", "NVIDIA H100 80GB HBM3", FAIL),
        ("NVIDIA GB200", "NVIDIA B200", FAIL),
        ("NVIDIA H100 and B200", "NVIDIA H100 80GB HBM3", FAIL),
    ],
)
def test_names_of_accelerators_agree_or_not(described: str, seen: str, verdict: str) -> None:
    assert found("accelerator_model_name", described, seen) == verdict


@pytest.mark.parametrize(
    ("described", "verdict"),
    [("2", AGREE), ("2.0", AGREE), (" 2 ", AGREE), ("3", FAIL), ("2 nodes", UNPROVEN), ("two", UNPROVEN)],
)
def test_numbers_agree_differ_or_are_no_numbers(described: str, verdict: str) -> None:
    assert found("number_of_nodes", described, "2") == verdict


def found(key: str, described: str, seen: str) -> str:
    """Return the verdict of a disagreement, or "" if two values agree."""
    doubt = doubt_of(key, described, seen)
    return doubt.verdict.value if doubt and doubt.verdict else ""
