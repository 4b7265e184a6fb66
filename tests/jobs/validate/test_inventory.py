"""Test ``rackproof.jobs.validate.inventory``, which reads validate_expect and validate_limits of a node.

These variables state the GPUs, ports and services that a node must have, and limits of health checks. The
tests check that a wrong name, type or number is refused, because it would turn off a check by mistake.
"""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackproof.jobs.validate.errors import ValidateError
from rackproof.jobs.validate.inventory import parse_limits, parse_node_expectation
from rackproof.nodes.health_subjects import Expectation, Limits


def test_what_is_expected_is_taken_as_it_is_written() -> None:
    values = {"gpus": "8", "port_gbps": 400, "power_limit_w": 700.5, "mounts": ["/shared"], "fabric": True}
    assert parse_node_expectation("n1", values) == Expectation(
        gpus=8, port_gbps=400.0, power_limit_w=700.5, mounts=("/shared",), fabric=True
    )


@pytest.mark.parametrize(
    "values",
    [
        {"gpu": 8},
        {"gpus": "8_00"},
        {"gpus": -1},
        {"gpus": 7.5},
        {"gpus": True},
        {"gpus": None},
        {"gpus": "\u0663"},
        {"port_gbps": float("nan")},
        {"port_gbps": float("inf")},
        {"power_limit_w": -700},
        {"power_limit_w": "1e3"},
        {"mounts": "/shared"},
        {"versions": ["580"]},
        {"gpu_readings": ["ecc", "eec"]},
        {"gpu_readings": "ecc"},
        {"fabric": "yes"},
    ],
)
def test_what_cannot_be_expected_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidateError, match="validate_expect of n1"):
        parse_node_expectation("n1", values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"services": None}, "services: None is not a list"),
        ({"services": {"a": 1}}, "services: {'a': 1} is not a list"),
        ({"services": 5}, "services: 5 is not a list"),
        ({"gpu_readings": {"ecc": True}}, "gpu_readings: {'ecc': True} is not a list"),
        ({"versions": ["x"]}, "versions: ['x'] is no mapping of names and versions"),
        ({"versions": None}, "versions: None is no mapping"),
        ({"versions": "580"}, "versions: '580' is no mapping"),
        ({"mounts": None}, "mounts: None is not a list"),
        ({"mounts": [{"path": "/a", "options": 5}]}, "mounts: options of '/a': 5 is not a list"),
        ({"mounts": [{"path": "/a", "options": {"ro": 1}}]}, "options of '/a': {'ro': 1} is not a list"),
        ({"port_layer": "ib"}, "port_layer: 'ib' is neither InfiniBand nor Ethernet"),
        ({"port_devices": "mlx5_0"}, "port_devices: 'mlx5_0' is not a list"),
        ({"ports": 4, "other_ports": 2}, "other_ports and other_port_gbps need port_layer or port_devices"),
        ({1: 2}, "unknown 1; there are"),
    ],
)
def test_a_value_of_a_wrong_type_is_named_with_its_key(values: dict[Any, Any], words: str) -> None:
    with pytest.raises(ValidateError, match=f"^validate_expect of n1: .*{re.escape(words)}"):
        parse_node_expectation("n1", values)


def test_a_limit_that_is_not_set_keeps_its_default() -> None:
    assert parse_limits("n1", {"memlock_bytes": 8}) == replace(Limits(), memlock_bytes=8)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -1, True, "5", None, 10**400, -(10**400), 10**309]
)
def test_a_limit_that_nothing_could_pass_or_everything_is_refused(value: Any) -> None:
    with pytest.raises(ValidateError, match="validate_limits of n1"):
        parse_limits("n1", {"clock_s": value})


@pytest.mark.parametrize("name", ["disk_free", "inodes_free", "memory_share"])
def test_a_share_is_no_percentage(name: str) -> None:
    for value in (5, 1.01, 95):
        with pytest.raises(ValidateError, match=f"{name}: .* a share from 0 to 1"):
            parse_limits("n1", {name: value})
    for value in (0, 0.05, 1):
        assert getattr(parse_limits("n1", {name: value}), name) == value


@pytest.mark.parametrize("name", ["tool_seconds", "clock_s", "gpu_c", "memory_c"])
def test_a_limit_that_fails_every_node_is_refused(name: str) -> None:
    for value in (0, 0.0):
        with pytest.raises(ValidateError, match=f"{name}: 0 fails every node"):
            parse_limits("n1", {name: value})
    assert getattr(parse_limits("n1", {name: 0.5}), name) == 0.5


@pytest.mark.parametrize("name", ["memlock_bytes", "shm_bytes", "foreign_memory_bytes", "pcie_replays"])
def test_other_limits_may_be_0(name: str) -> None:
    assert getattr(parse_limits("n1", {name: 0}), name) == 0


@pytest.mark.parametrize("name", ["fabric", "mig", "nvlink_domain", "slurm"])
def test_a_switch_is_true_or_false(name: str) -> None:
    for value in (True, False):
        assert getattr(parse_node_expectation("n1", {name: value}), name) is value
    for wrong in ("yes", 1, None, "true"):
        with pytest.raises(ValidateError, match="neither true nor false"):
            parse_node_expectation("n1", {name: wrong})


def test_what_the_shipped_inventory_expects_can_be_read(root: Path) -> None:
    read = {
        path.stem: yaml.safe_load(path.read_text()) for path in root.glob("inventory/group_vars/sku_*.yml")
    }
    expected = {
        name: values["validate_expect"] for name, values in read.items() if "validate_expect" in values
    }
    assert len(expected) > 5
    for name, values in expected.items():
        assert parse_node_expectation(name, values)


def test_the_example_of_the_page_has_each_expectation_and_can_be_read(root: Path) -> None:
    page = (root / "docs/using/validate.md").read_text()
    block = page.partition("    validate_expect:\n")[2].partition("\n\n")[0]
    example = yaml.safe_load(block)
    # The roles set the other three from variables of their own.
    assert example.keys() | {"gpus", "gpu_name", "hostname"} == {field.name for field in fields(Expectation)}
    assert parse_node_expectation("n1", example)


@pytest.mark.parametrize(
    "name", [field.name for field in fields(Expectation) if isinstance(field.default, str)]
)
def test_a_text_is_not_read_as_a_number(name: str) -> None:
    text = "InfiniBand" if name == "port_layer" else "performance"
    assert getattr(parse_node_expectation("n1", {name: text}), name) == text
    with pytest.raises(ValidateError, match="is not text"):
        parse_node_expectation("n1", {name: 7})
