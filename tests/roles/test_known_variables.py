"""A misspelt variable of the inventory is refused; those that roles know, set or register are not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rackproof_ansible.known_variables import (
    UnknownVariableError,
    check_names,
    hosts_to_check,
    known_variables,
    role_prefixes,
)

ROOT = Path(__file__).resolve().parents[2]
KNOWN, PREFIXES = known_variables(ROOT), role_prefixes(ROOT)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("bench_sku_gpu", "bench_sku_gpus"),
        ("validate_expects", "validate_expect"),
        ("validate_drian", "validate_drain"),
        ("reimage_aceptance", "reimage_acceptance"),
        ("provision_bach", "provision_batch"),
        ("slurm_rack", "slurm_racks"),
        ("bench_require_reference", "bench_require_references"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_near_name(name: str, near: str) -> None:
    with pytest.raises(UnknownVariableError, match=rf"{name} \(did you mean {near}\?\)"):
        check_names(["ansible_host", "bench_sku", name], KNOWN, PREFIXES)


@pytest.mark.parametrize("name", ["bench_xyzzy", "netboot_qqq", "storage_of_my_own_things"])
def test_a_name_that_is_like_no_other_is_refused_too(name: str) -> None:
    with pytest.raises(UnknownVariableError, match=name):
        check_names([name], KNOWN, PREFIXES)


@pytest.mark.parametrize(
    "name",
    [
        "bench_sku_gpus",
        "bench_sku_gpu_name",
        "bench_facts",
        "bench_run",
        "validate_snapshot",
        "reimage_begun",
        "slurm_sku_cpus",
        "discover_addresses",  # no role's prefix
        "suite",
        "benchmark",
        "my_own",
        "ansible_host",
    ],
)
def test_what_roles_know_or_register_and_what_is_not_theirs_is_taken(name: str) -> None:
    check_names([name], KNOWN, PREFIXES)


def test_of_many_hosts_one_of_each_set_of_groups_is_asked() -> None:
    hosts = [f"n{number}" for number in range(1000)]
    groups = {"all": hosts, "odd": hosts[1::2], "third": hosts[::3]}
    asked = hosts_to_check(hosts, groups, {"n77"})
    assert len(asked) == 5
    assert "n77" in asked
    assert hosts_to_check(hosts[:200], groups, set()) == hosts[:200]


def test_the_inventories_of_the_checkout_have_no_unknown_variable() -> None:
    files = [*ROOT.glob("inventory/group_vars/*.yml"), *ROOT.glob("molecule/*/vars.yml")]
    given = {name for path in files for name in yaml.safe_load(path.read_text()) or {}}
    assert len(given) > 50
    check_names(given, KNOWN, PREFIXES)


@pytest.mark.parametrize(
    ("playbook", "given", "near"),
    [
        ("bench.yml", "bench_sku_gpu=4", "bench_sku_gpus"),
        ("validate.yml", "validate_drian=true", "validate_drain"),
        ("provision.yml", "slurm_rack=[]", "slurm_racks"),
        ("reimage.yml", "reimage_aceptance=[]", "reimage_acceptance"),
    ],
)
def test_the_playbooks_refuse_a_misspelt_variable_before_they_reach_a_node(
    playbook: str, given: str, near: str
) -> None:
    command = [str(Path(sys.executable).parent / "ansible-playbook"), playbook, "--check"]
    done = subprocess.run(
        [*command, "-l", "gb300-r01-n01", "-e", given], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert f"did you mean {near}?" in " ".join(done.stdout.split())
    assert "unreachable=1" not in done.stdout
