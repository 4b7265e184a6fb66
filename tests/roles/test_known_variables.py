"""Test rackproof.core.known_variables, which refuses misspelt variables and wrong values before a job starts.

Ansible ignores a variable that it does not know, so a misspelt limit would have no effect. These tests show
that such a name is refused with the nearest right one, and that names that roles set, or that a site invented
for itself, are accepted. They also show which numbers and empty values are refused.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible.parsing.splitter import parse_kv
from hypothesis import given
from hypothesis import strategies as st

from rackproof.core.known_variables import (
    BOUNDS,
    UnknownVariableError,
    VariableValueError,
    check_bounds,
    check_environment,
    check_given,
    check_misspelt_prefixes,
    check_names,
    check_no_stray_words,
    check_not_empty,
    check_settable,
    host_of_file,
    hosts_to_check,
    known_variables,
    role_prefixes,
    task_results,
)

ROOT = Path(__file__).resolve().parents[2]
KNOWN, PREFIXES, RESULTS = known_variables(ROOT), role_prefixes(ROOT), task_results(ROOT)


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


@pytest.mark.parametrize(
    ("name", "near"),
    [
        # A name, and the variable that the message suggests ("": the name is accepted). First names with one
        # or two wrong letters or other capitals, then names that a site could have chosen for itself.
        ("validat_expect", "validate_expect"),
        ("vlidate_expct", "validate_expect"),
        ("vaildate_drain", "validate_drain"),
        ("bech_sku_gpus", "bench_sku_gpus"),
        ("benhc_sku", "bench_sku"),
        ("benches_sku", ""),
        ("provison_batch", "provision_batch"),
        ("privision_bach", "provision_batch"),
        ("reimge_aceptance", "reimage_acceptance"),
        ("slrum_racks", "slurm_racks"),
        ("storag_mounts", "storage_mounts"),
        ("node_tunning_profile", "node_tuning_profile"),
        ("apt_miror_root", "apt_mirror_root"),
        ("Validate_Expect", "validate_expect"),
        ("BENCH_SKU", "bench_sku"),
        ("benchsku_gpus", "bench_sku_gpus"),
        ("validateExpect", "validate_expect"),
        ("discover_addresses", ""),
        ("netbox_url", ""),
        ("my_bench_sku", ""),
        ("site_storage_mounts", ""),
        ("bunch_of_hosts", ""),
        ("validity_days", ""),
        ("ntp_servers", ""),
        ("rack_position", ""),
        ("slurmd_log", ""),
        ("ansible_host", ""),
        ("storage", ""),
        ("gpu_nodes_expected", ""),
        ("docker_storage_driver", ""),
        ("image_url", ""),
    ],
)
def test_a_misspelt_prefix_is_refused_and_an_operators_own_name_is_accepted(name: str, near: str) -> None:
    if not near:
        check_misspelt_prefixes([name], KNOWN, PREFIXES)
        return
    with pytest.raises(UnknownVariableError, match=rf"{name} \(did you mean {near}\?\)"):
        check_misspelt_prefixes(["ansible_host", "bench_sku", "mine", name], KNOWN, PREFIXES)


@given(name=st.sampled_from(sorted(name for name in KNOWN if name.startswith(PREFIXES))), data=st.data())
def test_a_letter_left_out_of_any_prefix_is_noticed(name: str, data: st.DataObject) -> None:
    prefix = max((one for one in PREFIXES if name.startswith(one)), key=len)
    at = data.draw(st.integers(0, len(prefix) - 2))
    with pytest.raises(UnknownVariableError, match="did you mean"):
        check_misspelt_prefixes([name[:at] + name[at + 1 :]], KNOWN, PREFIXES)


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
        "reimage_started",
        "slurm_sku_cpus",
        "discover_addresses",  # begins with no role's name
        "suite",
        "benchmark",
        "my_own",
        "ansible_host",
    ],
)
def test_variables_of_roles_and_of_no_role_are_accepted(name: str) -> None:
    check_names([name], KNOWN, PREFIXES)


def test_of_many_hosts_one_of_each_set_of_groups_is_checked() -> None:
    hosts = [f"n{number}" for number in range(1000)]
    # Four combinations of groups, each with one host, and n77, which has a file in host_vars.
    groups = {"all": hosts, "odd": hosts[1::2], "third": hosts[::3]}
    asked = hosts_to_check(hosts, groups, {"n77"})
    assert len(asked) == 5
    assert "n77" in asked
    assert hosts_to_check(hosts[:200], groups, set()) == hosts[:200]


@pytest.mark.parametrize(
    ("file", "host"),
    [
        ("n1.yml", "n1"),
        ("n1.yaml", "n1"),
        ("n1.json", "n1"),
        ("n1", "n1"),
        ("n1.yale.edu.yml", "n1.yale.edu"),
        ("n1.yale.edu", "n1.yale.edu"),
        ("n1.york.ac.uk.json", "n1.york.ac.uk"),
    ],
)
def test_a_file_of_host_vars_is_that_of_its_host(file: str, host: str) -> None:
    assert host_of_file(Path("host_vars") / file) == host


def test_the_inventories_of_the_checkout_have_no_unknown_variable() -> None:
    files = [*ROOT.glob("inventory/group_vars/**/*.yml"), *ROOT.glob("molecule/*/vars.yml")]
    files += ROOT.glob("testrack/overlay/*.yml")
    given = {name for path in files for name in yaml.safe_load(path.read_text()) or {}}
    assert len(given) > 50
    check_names(given, KNOWN, PREFIXES)
    check_misspelt_prefixes(given, KNOWN, PREFIXES)


@pytest.mark.playbook
@pytest.mark.parametrize(
    ("playbook", "given", "near"),
    [
        ("bench.yml", "bench_sku_gpu=4", "bench_sku_gpus"),
        ("bench.yml", "sute=probes", "suite"),
        ("bench.yml", "benchmarks=gemm", "benchmark"),
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


@pytest.mark.parametrize(
    "name", ["validate_closed", "bench_recorded", "validate_answers", "reimage_started", "rackproof_node"]
)
def test_a_result_of_a_task_cannot_be_given(name: str) -> None:
    with pytest.raises(UnknownVariableError, match=rf"given with -e.*{name}"):
        check_settable(["bench_sku", "suite", name], RESULTS)


@pytest.mark.parametrize(
    "name",
    ["validate_drain", "bench_repeats", "validate_nodes", "slurm_sku_cpus", "ansible_connection", "mine"],
)
def test_a_documented_or_foreign_variable_can_be_given(name: str) -> None:
    check_settable([name], RESULTS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bench_repeats", -1),
        ("bench_repeats", ""),
        ("bench_repeats", "no"),
        ("bench_repeats", True),
        ("bench_repeats", None),
        ("bench_repeats", [1]),
        ("bench_size_factor", "nan"),
        ("bench_size_factor", float("inf")),
        ("bench_size_factor", -0.5),
        ("validate_probe_share", 0),
        ("validate_max_drain_fraction", 15),
        ("validate_node_timeout_s", "0"),
        ("validate_false_alarms_per_1000_node_nights", 0),
        ("validate_false_alarms_per_1000_node_nights", 101),
        ("reimage_max_concurrent", 0),
        ("provision_batch", ""),
        ("provision_reboot_timeout_s", 10**400),
    ],
)
def test_a_value_that_is_no_number_within_its_bounds_is_refused(name: str, value: object) -> None:
    with pytest.raises(VariableValueError, match=rf"{name} is .*a number from"):
        check_bounds({name: value})


@pytest.mark.parametrize("value", [1, "3", 2.0, "{{ some_number }}"])
def test_a_number_within_its_bounds_is_accepted(value: object) -> None:
    check_bounds({"bench_repeats": value, "ansible_host": "n1"})


def test_every_number_of_the_four_jobs_has_bounds() -> None:
    numbers = set()
    for role in ("bench", "validate", "reimage", "provision", "preflight", "time_limits"):
        specs = yaml.safe_load((ROOT / "roles" / role / "meta/argument_specs.yml").read_text())
        for spec in specs["argument_specs"].values():
            for name, option in (spec.get("options") or {}).items():
                # An option with choices needs no bounds.
                if option.get("type") in ("int", "float") and not option.get("choices"):
                    numbers.add(name)
    # reimage.yml gives this one to the ramdisk of a node that is already drained.
    assert numbers | {"netboot_image_timeout_s"} == set(BOUNDS)


def test_the_defaults_are_within_their_bounds() -> None:
    for path in ROOT.glob("roles/*/defaults/*.yml"):
        check_bounds(yaml.safe_load(path.read_text()) or {})


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_TOKEN"])
def test_a_secret_in_the_plain_environment_is_refused_before_anything_shows_it(name: str) -> None:
    with pytest.raises(
        VariableValueError, match=f"bench_environment: {name}.*bench_secret_environment"
    ) as refused:
        check_environment({"bench_environment": {"A": "1", name: "canary"}})
    assert "canary" not in str(refused.value)
    check_environment({"bench_environment": {"A": "1"}, "bench_secret_environment": {name: "canary"}})
    check_environment({"bench_environment": "{{ from_elsewhere }}"})


@pytest.mark.parametrize("name", ["bench_mlperf06_sources", "bench_mnist_url", "bench_mlcommons_metadata"])
def test_a_login_in_an_address_that_jobs_get_is_refused(name: str) -> None:
    with pytest.raises(VariableValueError, match=f"^{name}: a login or key") as refused:
        check_environment({"bench_sku": "h100", name: "https://ops:canary@mirror.example/x.tar.gz"})
    assert "canary" not in str(refused.value)
    check_environment({name: "https://mirror.example/x.tar.gz", "apt_mirror_root": "https://u:p@mirror"})


@pytest.mark.parametrize(
    ("role", "name", "near"),
    [
        ("bench", "sute", "suite"),
        ("bench", "suites", "suite"),
        ("bench", "benchmarks", "benchmark"),
        ("bench", "benchmrk", "benchmark"),
        ("bench", "bech_suite", "bench_suite"),
        ("validate", "valdate_drain", "validate_drain"),
        ("provision", "provison_batch", "provision_batch"),
    ],
)
def test_a_misspelt_choice_or_variable_is_refused_with_the_near_name(role: str, name: str, near: str) -> None:
    with pytest.raises(UnknownVariableError, match=rf"{name} \(did you mean {near}\?\)"):
        check_given({name: "x"}, ROOT, role)


@pytest.mark.parametrize(
    ("role", "name"),
    [("bench", "suite"), ("bench", "rack_of_ours"), ("bench", "ansible_user"), ("provision", "site")],
)
def test_a_choice_and_a_sites_own_variables_are_accepted(role: str, name: str) -> None:
    check_given({name: "x"}, ROOT, role)


@pytest.mark.parametrize(
    "names",
    [
        ("benchmark", "suite"),
        ("bench_suite", "suite"),
        ("bench_benchmarks", "suite"),
        ("bench_benchmarks", "benchmark"),
    ],
)
def test_choices_that_contradict_each_other_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(VariableValueError, match=f"{names[0]} and {names[1]}, but only one of them"):
        check_given(dict.fromkeys(names, "gemm"), ROOT, "bench")
    check_given({names[0]: "gemm"}, ROOT, "bench")


@pytest.mark.playbook
@pytest.mark.parametrize(
    ("old", "new", "once"),
    [
        # A line of the benchmark, the wrong line in its place, and a part of the message.
        ("summary:", "sumary:", "good.yml:2: sumary: unknown key; did you mean `summary`"),
        ("timeout_s: 60", "timeout_s: soon", "good.yml:7: launch.timeout_s: "),
        ("name: good", "name: other", "good.yml:1: name: is `other`"),
        ("launch:", "launch: [", "not YAML"),
    ],
)
def test_a_mistake_in_a_benchmark_is_shown_once_without_its_causes(
    tmp_path: Path, old: str, new: str, once: str
) -> None:
    text = (
        "name: good\nsummary: one line\nlaunch:\n  with: local\n  runtime: torch\n"
        "  program: probe_gemm.py\n  timeout_s: 60\n"
        "result:\n  format: auto\n  judge:\n    - {metric: wrong_values, equals: 0}\n"
    )
    (tmp_path / "good.yml").write_text(text.replace(old, new, 1))
    given = f"benchmark=good bench_definitions={tmp_path} bench_results={tmp_path}/results"
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "bench.yml", "--check"]
    done = subprocess.run(
        [*command, "-l", "localhost", "-e", given], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    # Ansible shows an error as it happens, and in the result of the task.
    error, result = " ".join(done.stdout.split()).split("fatal: [", 1)
    assert (error.count(once), result.count(once)) == (1, 1), done.stdout
    assert "validation error" not in done.stdout + done.stderr


@pytest.mark.parametrize("value", ["", "  ", None, [], [""], [[]], [None, " "], {}])
@pytest.mark.parametrize(
    "name",
    [
        *("benchmark", "suite", "bench_benchmarks", "bench_suite"),
        *(
            "validate_probes",
            "validate_nodes",
            "validate_paths",
            "validate_probe_python",
            "validate_probe_device",
        ),
        *("reimage_method", "reimage_bmc_protocol", "reimage_known_hosts"),
        *("bench_home", "bench_image", "bench_repeats", "provision_batch"),
    ],
)
def test_an_empty_choice_is_refused_and_does_not_become_the_default(name: str, value: object) -> None:
    with pytest.raises(VariableValueError, match=f"given with -e, but empty: {name}; ") as refused:
        check_not_empty({name: value, "mine": ""}, ROOT)
    assert str(refused.value).count(". ") == 0


@pytest.mark.parametrize(
    ("typed", "ignored"),
    [
        # The value of -e, and the word in it that Ansible ignores ("": none).
        ("benchmark", "benchmark"),
        ("benchmark= gemm", "gemm"),
        ("suite=quick mnist", "mnist"),
        ("benchmark gemm", "benchmark gemm"),
        ("benchmark=gemm suite=quick", ""),
        ("bench_link='two words'", ""),
    ],
)
def test_a_word_of_e_that_ansible_ignores_is_refused(typed: str, ignored: str) -> None:
    given = parse_kv(typed)
    if not ignored:
        check_no_stray_words(given)
        return
    with pytest.raises(VariableValueError, match=f"given with -e, but not as NAME=VALUE: {ignored}; "):
        check_no_stray_words(given)


@pytest.mark.parametrize(
    "typed",
    [
        "reimage_bmc_password=correct horse",
        "benchmark=gemm nightly_smtp_password=correct horse",
        "WANDB_API_KEY=correct horse",
    ],
)
def test_a_word_that_may_belong_to_a_secret_is_not_shown(typed: str) -> None:
    with pytest.raises(
        VariableValueError, match=r"given with -e, but not as NAME=VALUE: \(secret\); "
    ) as caught:
        check_no_stray_words(parse_kv(typed))
    assert "horse" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reimage_bmc_timeout_s", "password=horse"),
        ("bench_repeats", {"api_token": "horse"}),
        ("provision_batch", "ghp_horsehorsehorsehorse"),
    ],
)
def test_a_number_that_seems_to_be_a_secret_is_not_shown(name: str, value: object) -> None:
    with pytest.raises(
        VariableValueError, match=f"{name} has a wrong value: it has to be a number"
    ) as caught:
        check_bounds({name: value})
    assert "horse" not in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"bench_partition": ""},
        {"bench_parameters": {}},
        {"reimage_wipe": []},
        {"validate_hostname": ""},
        {"bench_repeats": 0},
        {"validate_drain": False},
        {"benchmark": "gemm", "bench_sku": ""},
        {"benchmark": ["gemm", ""]},
        {"mine": None},
    ],
)
def test_a_variable_that_may_be_empty_is_accepted_without_a_value(given: dict[str, object]) -> None:
    check_not_empty(given, ROOT)


def test_the_number_of_repeats_may_be_0() -> None:
    # The value 0 requests as many repeats as a result needs.
    check_bounds({"bench_repeats": 0})
