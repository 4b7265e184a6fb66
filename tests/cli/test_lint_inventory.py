"""Test ``rackproof lint-inventory``, which finds mistakes of an inventory before a job starts.

Ansible lists the inventory, and lint_inventory checks it. The tests change one thing of a sound inventory
with two nodes: an address, a name, a variable, a type, a group or a file. They also show that a pipe or
device does not hold up the command.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from rackproof.cli.lint_inventory import VALUE_CHECKS
from rackproof.jobs.inventory import lint
from rackproof.jobs.inventory.lint import Inventory, fits_kind, lint_inventory, read_inventory
from rackproof.nodes.slurm_listing import MOST_NODES

ROOT = Path(__file__).parents[2]
GOOD: dict[str, Any] = {"n1": {"ansible_host": "10.0.0.1"}, "n2": {"ansible_host": "10.0.0.2"}}


def inventory(
    hosts: dict[str, Any] | None = None, files: tuple[str, ...] = ("all", "rack"), **groups: tuple[str, ...]
) -> Inventory:
    """Return the inventory of two nodes of one rack and SKU, with changes of hosts, files and groups."""
    made = {name: {**GOOD.get(name, {}), **(hosts or {}).get(name, {})} for name in {**GOOD, **(hosts or {})}}
    usual = {name: tuple(GOOD) for name in ("rack", "sku_h200", "gpu_nodes")}
    return Inventory(hosts=made, groups={**usual, **groups}, files={name: Path(name) for name in files})


@pytest.mark.parametrize(
    "good",
    [
        inventory(),
        inventory(
            {
                "n1": {"ansible_host": "gw", "ansible_port": 22},
                "n2": {"ansible_host": "gw", "ansible_port": 23},
            }
        ),
        inventory({"n1": {"bench_repeats": "3"}, "n2": {"bench_resume": "no", "my_own": 7}}),
        inventory({"n1": {"bench_repeats": "{{ other }}"}}),
        inventory({"n1": {"ansible_port": "22", "ansible_user": "u", "ansible_ssh_pass": "{{ vault }}"}}),
        inventory({"n1": {"ansible_winrm_scheme": "http", "ansible_my_own": 1}}),
        inventory(sku_h200_x2=("n1",)),  # a slice is also in the group of its machine's SKU
        inventory({"n1": {"slurm_racks": ["rack"]}}, sku_b200=(), unused=()),
        inventory({"2001:db8::1": {}, "::2": {}, "n3:22": {}, "n4.example.org": {}}),
        inventory(sku_h200=("n1",), **{"new-nodes": ("n2",)}),
    ],
)
def test_a_sound_inventory_has_no_mistakes(good: Inventory) -> None:
    assert lint_inventory(good, ROOT) == []


@pytest.mark.parametrize(
    ("bad", "where", "what"),
    [
        (
            inventory({"n2": {"ansible_host": "10.0.0.1"}}),
            "n1, n2",
            "the same address (ansible_host: 10.0.0.1)",
        ),
        (
            inventory({"n2": {"ansible_host": "10.0.0.1", "ansible_port": 22}}),
            "n1, n2",
            "the same address (ansible_host: 10.0.0.1)",
        ),
        (
            inventory({"n1": {"ansible_host": "n3"}, "n3": {}}),
            "n1, n3",
            "the same address (ansible_host: n3)",
        ),
        (inventory({"N7": {}, "n7": {}}), "N7, n7", "the same address"),
        (inventory({"N1": {"ansible_host": "10.0.0.3"}}), "N1, n1", "differ only in case"),
        (
            inventory({"n1": {"ansible_host": "10.0.0.999"}}),
            "n1",
            "'10.0.0.999': an address has four numbers",
        ),
        (inventory({"10.0.300.1": {}}), "10.0.300.1", "ansible_host is '10.0.300.1'"),
        (
            inventory({"n1": {"reimage_bmc_address": "10.1.0.256"}}),
            "n1",
            "reimage_bmc_address is '10.1.0.256'",
        ),
        (inventory({"n 7": {}}), "'n 7'", "no name of a host"),
        (inventory({"../n7": {}}), "'../n7'", "no name of a host"),
        (inventory({"n7\n": {}}), "'n7'", "no name of a host"),
        (inventory({"x:y": {}}), "'x:y'", "no name of a host"),
        (inventory({"n1:gpu:3": {}}), "'n1:gpu:3'", "no name of a host"),
        (inventory({"1:2:3:4": {}}), "'1:2:3:4'", "no name of a host"),
        (inventory({"rack": {}}), "rack", "the name of a host and of a group"),
        (
            inventory({"n1": {"reimage_serial": "S7"}, "n2": {"reimage_serial": "s7"}}),
            "n1, n2",
            "same serial",
        ),
        (
            inventory({"n1": {"reimage_bmc_address": "b"}, "n2": {"reimage_bmc_address": "b"}}),
            "n1, n2",
            "the same BMC address",
        ),
        (inventory({"n1": {"bench_repeets": 3}}), "n1", "did you mean bench_repeats?"),
        (
            inventory({"n1": {"provison_batch": 3}, "n2": {"provison_batch": 3}}),
            "n1 and 1 more",
            "provision_batch",
        ),
        (inventory({"n2": {"validate_nothing_like_it": 3}}), "n2", "validate_nothing_like_it"),
        (
            inventory({"n1": {"bench_resume": "perhaps"}}),
            "n1",
            "bench_resume is 'perhaps': its type has to be bool",
        ),
        (inventory({"n1": {"bench_parameters": "x=1"}}), "n1", "its type has to be dict"),
        (inventory({"n1": {"bench_sku_references": {"a": 1}}}), "n1", "its type has to be list"),
        (inventory({"n1": {"bench_repeats": -4}}), "n1", "a number from 0 to 1000"),
        (inventory(files=("all", "rakc")), "rakc", "there is no group rakc (did you mean rack?)"),
        (inventory(files=("sku_h2000",)), "sku_h2000", "did you mean sku_h200?"),
        (inventory(files=("elsewhere",)), "elsewhere", "nothing reads this file"),
        (inventory(sku_h200=("n1",)), "n2", "no SKU"),
        (inventory(sku_b200=("n2",)), "n2", "of several SKUs (sku_b200, sku_h200)"),
        (inventory({"n1": {"slurm_racks": ["rcak"]}}), "rcak", "slurm_racks names it"),
        (Inventory(hosts={}, groups={"all": (), "ungrouped": ()}, files={}), "all", "no host is in"),
        (Inventory(hosts={}, groups={"all": (), "rack": ()}, files={}), "all", "no host is in"),
        (Inventory(hosts={}, groups={"gpu_nodes": ()}, files={}), "all", "no host is in"),
        (inventory(gpu_nodes=()), "rack, sku_h200", "no host is in the group gpu_nodes"),
        (
            inventory({"n1": {"ansible_hots": "a"}}),
            "n1",
            "no variable ansible_hots (did you mean ansible_host?)",
        ),
        (inventory({"n1": {"ansible_prot": 22}}), "n1", "did you mean ansible_port?"),
        (inventory({"n1": {"ansible_port": "abc"}}), "n1", "ansible_port is 'abc': its type has to be int"),
    ],
)
def test_a_mistake_is_named_with_its_place(bad: Inventory, where: str, what: str) -> None:
    found = lint_inventory(bad, ROOT)
    assert any(one.where == where and what in one.what for one in found), found


SECRET = "S3cretPw111"


@pytest.mark.parametrize(
    ("variables", "what"),
    [
        (
            {"bench_secret_environment": f"WANDB_API_KEY={SECRET}"},
            "bench_secret_environment has a wrong value",
        ),
        ({"bench_secret_environment": [SECRET]}, "bench_secret_environment has a wrong value"),
        ({"storage_s3fs_credentials": f"AKIA:{SECRET}"}, "storage_s3fs_credentials has a wrong value"),
        ({"bench_results_credentials": {"a": SECRET}}, "bench_results_credentials has a wrong value"),
        ({"bench_environment": f"WANDB_API_KEY={SECRET}"}, "bench_environment has a wrong value"),
        ({"bench_repeats": f"https://user:{SECRET}@host"}, "bench_repeats has a wrong value"),
        ({"reimage_bmc_timeout_s": {"password": SECRET}}, "reimage_bmc_timeout_s has a wrong value"),
        ({"validate_expect": f"token {SECRET}"}, "validate_expect has a wrong value"),
        ({"ansible_port": f"-o PasswordAuth={SECRET}"}, "ansible_port has a wrong value"),
    ],
)
def test_a_mistake_shows_no_secret(variables: dict[str, Any], what: str) -> None:
    found = lint_inventory(inventory({"n1": variables}), ROOT, VALUE_CHECKS)
    assert any(one.where == "n1" and what in one.what for one in found), found
    assert SECRET not in repr(found)


def test_each_variable_whose_argument_spec_has_no_log_is_hidden() -> None:
    """The argument specs are the list of secrets. A name that does not sound like one is hidden, too."""
    hidden = [name for name, option in lint.argument_options(ROOT).items() if option.get("no_log")]
    assert len(hidden) > 5
    wrong = dict.fromkeys(hidden, "plain words")
    # A text fits the type of most secrets, so each gets another type here.
    kinds = dict.fromkeys(hidden, "int")
    mistakes = list(lint._wrong_kinds(inventory({"n1": wrong}), kinds, set(hidden)))
    assert len(mistakes) == len(hidden)
    assert "plain words" not in repr(mistakes)


def reference(**changes: Any) -> dict[str, Any]:
    """Return the variables of a node with a reference for gemm, with changes of its keys."""
    sound = {"metric": "gemm_best", "value": 700, "unit": "TFLOP/s", "low": -0.07, "source": "data sheet"}
    return {"bench_sku_references": [sound | changes]}


@pytest.mark.parametrize(
    ("variables", "what"),
    [
        ({"validate_expect": {"nvlnks": 18}}, "validate_expect of n1: unknown nvlnks"),
        ({"validate_expect": {"ports": "eight"}}, "ports: 'eight' is not a whole number"),
        ({"validate_expect": {"gpus": -8}}, "gpus: '-8' is not a whole number"),
        ({"validate_expect": {"services": "slurmd"}}, "services: 'slurmd' is not a list"),
        ({"validate_expect": {"mounts": ["data"]}}, "mounts: 'data' is not an absolute path"),
        ({"validate_expect": {"mig": 1, "gpu_name": "{{ name }}"}}, "mig: 1 is neither true nor false"),
        ({"validate_limits": {"temprature": 90}}, "validate_limits of n1: temprature: 90"),
        ({"validate_limits": {"gpu_c": "hot"}}, "gpu_c: 'hot'"),
        ({"validate_limits": {"clock_s": -1}}, "clock_s: -1"),
        (
            {"bench_sku_references": [{"metrik": "gemm_best"}]},
            "bench_sku_references of n1: entry 1: reference.m",
        ),
        ({"bench_sku_references": ["gemm_best"]}, "entry 1: a reference is a mapping"),
        (reference(low=-7), "low, high and warn are fractions"),
        (reference(value="abc"), "reference.value: Value error, a reference must be a finite number"),
        (reference(lwo=-0.07), "reference.lwo: Extra inputs are not permitted"),
        (reference(unit=None), "reference.unit: "),
    ],
)
def test_a_nested_value_that_a_job_refuses_is_named_once(variables: dict[str, Any], what: str) -> None:
    found = lint_inventory(inventory({"n1": variables, "n2": variables}), ROOT, VALUE_CHECKS)
    assert [(one.where, what in one.what) for one in found] == [("n1 and 1 more", True)], found


@pytest.mark.parametrize(
    "variables",
    [
        {"validate_expect": {"gpus": 8, "ports": "{{ count }}", "services": ["slurmd"], "mig": False}},
        {"validate_expect": {"mounts": ["{{ data }}"], "versions": {"driver": "580.95", "cuda": 13}}},
        {"validate_expect": "{{ other }}"},
        {"validate_expect": {"ports": "{% if b %}8{% else %}4{% endif %}"}},
        {"validate_limits": {"gpu_c": 90, "disk_free": 0.1, "clock_s": "{{ other }}"}},
        reference(labels={"dtype": "bf16"}, parameters={"gpus": 8}),
        reference(value="{{ other }}"),
        {"bench_sku_references": []},
    ],
)
def test_a_nested_value_that_the_jobs_use_is_no_mistake(variables: dict[str, Any]) -> None:
    assert lint_inventory(inventory({"n1": variables}), ROOT, VALUE_CHECKS) == []


@pytest.mark.parametrize(
    ("value", "kind", "fits"),
    [
        (True, "bool", True),
        ("off", "bool", True),
        (1, "int", True),
        ("12", "int", True),
        ("1.5", "float", True),
        (1, "float", True),
        ([], "list", True),
        ("{{ x }}", "dict", True),
        ({}, "str", True),  # Ansible itself reports a value that is not text
        (True, "int", False),
        ("1" * 400, "int", False),
        ("-" + "1" * 400, "int", False),
        ("1" * 5000, "int", False),
        ("many", "int", False),
        ("1.5", "int", False),
        ({}, "list", False),
        ("a,b", "list", False),
        (3, "dict", False),
        (2, "bool", False),
    ],
)
def test_a_value_fits_its_type_or_not(value: object, kind: str, fits: bool) -> None:
    assert fits_kind(value, kind) == fits


def test_groups_have_the_hosts_of_their_children_also_in_a_circle() -> None:
    listed = {
        "_meta": {"hostvars": {"n1": {"a": 1}}},
        "all": {"children": ["outer"]},
        "outer": {"children": ["inner", "outer"]},
        "inner": {"hosts": ["n1"], "children": ["outer", "empty"]},
    }
    read = read_inventory(listed, {})
    assert read.groups["all"] == read.groups["outer"] == ("n1",)
    assert read.groups["empty"] == ()
    assert read.hosts == {"n1": {"a": 1}}


def test_layers_and_chains_of_groups_are_read_at_once() -> None:
    layers: dict[str, Any] = {}
    for layer in range(40):
        for side in "ab":
            layers[f"{side}{layer}"] = {"children": [f"a{layer + 1}", f"b{layer + 1}"]}
    chain = {f"c{number}": {"children": [f"c{number + 1}"]} for number in range(1500)}
    read = read_inventory({**layers, **chain, "b40": {"hosts": ["n1"]}, "c1500": {"hosts": ["n2"]}}, {})
    assert read.groups["a0"] == read.groups["b39"] == ("n1",)
    assert read.groups["a40"] == ()
    assert read.groups["c0"] == ("n2",)


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("all.json", "all"),
        ("rack.yml", "rack"),
        ("rack.yaml", "rack"),
        ("rack.yard.yml", "rack.yard"),
        ("rack", "rack"),
        ("a.years", "a.years"),
    ],
)
def test_a_file_of_variables_is_for_the_group_of_its_name(tmp_path: Path, name: str, group: str) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / name).touch()
    assert list(lint._variable_files(tmp_path)) == [group]


@pytest.mark.parametrize(
    "name",
    [".gitkeep", ".rack.yml.swp", "README.md", "all.yml~", "rack.yml.orig", "a.bak", "notes.txt"],
)
def test_a_file_that_is_for_no_group_is_no_mistake(tmp_path: Path, name: str) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / name).touch()
    assert lint._variable_files(tmp_path) == {}


# Keys of a mapping, and those of them that are named as duplicates.
@pytest.mark.parametrize(
    ("text", "doubled"),
    [
        ('{1: x, "1": y}', []),
        ('{true: x, "true": y}', []),
        ('{null: x, "null": y}', []),
        ("{\"1\": x, '1': y}", ["1"]),
        ("{1: x, 1: y}", ["1"]),
        ('{a: x, "a": y}', ["a"]),
        ("{true: x, true: y, 1.5: x, 1.5: y}", ["true", "1.5"]),
    ],
)
def test_only_keys_that_ansible_reads_as_one_are_duplicates(
    tmp_path: Path, text: str, doubled: list[str]
) -> None:
    (tmp_path / "hosts.yml").write_text(text)
    found = [mistake.what.split(" is in line ")[0] for mistake in lint._yaml_mistakes(tmp_path)]
    assert found == doubled


@pytest.mark.parametrize(
    "wrong",
    [
        {"bench_sku_gpus": 2000, "validate_resume_hours": 9999},
        {"bench_sku_gpus": 2000, "validate_resume_hours": 9999, "bench_repeats": -1},
        {"bench_repeats": -1},
    ],
)
def test_each_number_beyond_its_bounds_is_a_mistake(wrong: dict[str, Any]) -> None:
    mistakes = lint_inventory(inventory({"n1": wrong}), ROOT)
    assert {mistake.what.split(" is ")[0] for mistake in mistakes} == set(wrong)


@pytest.mark.parametrize("text", ["a: " + "[" * 1500, "{a: " * 1500, "- " * 1500 + "a"])
def test_values_nested_too_deep_are_a_mistake(tmp_path: Path, text: str) -> None:
    (tmp_path / "hosts.yml").write_text(text)
    _, mistakes = lint.list_inventory(tmp_path)
    assert "it is not YAML" in mistakes[0].what


def write(folder: Path, hosts: str, **files: str) -> Path:
    """Write an inventory with files of group_vars. Return its folder."""
    folder.mkdir()
    (folder / "hosts.yml").write_text(hosts)
    (folder / "group_vars").mkdir()
    for name, text in files.items():
        (folder / "group_vars" / f"{name}.yml").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("hosts", "files", "status", "words"),
    [
        (yaml.safe_dump({"all": {"hosts": {"n1": None}}}), {"all": "bench_repeats: 2\n"}, 0, "0 mistakes"),
        ("all: {hosts: {n1: {ansible_host: a}, n2: {ansible_host: a}}}\n", {}, 2, "the same address"),
        ("all: {hosts: {n1: }}\n", {"all": "a: 1\nb: 2\na: 3\n"}, 2, "all.yml:3: a is in line 1"),
        ("all: {hosts: {n1: }}\n", {"all": "a: [1\nb: 2\n"}, 2, "all.yml:2: it is not YAML"),
        ("all: [n1\n", {}, 2, "hosts.yml:2: it is not YAML"),
        ("all: {hosts: {n1: }}\n", {"all": "validate_expect: {nvlnks: 18}\n"}, 2, "unknown nvlnks"),
        ("all: {hosts: {n1: , n1: }}\n", {}, 2, "hosts.yml:1: n1 is in line 1"),
        ("all: {hosts: {n1: }, extra: 3}\n", {}, 2, "Skipping key (extra) in group (all)"),
    ],
)
def test_the_command_reports_the_mistakes_of_files(
    tmp_path: Path,
    run: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
    hosts: str,
    files: dict[str, str],
    status: int,
    words: str,
) -> None:
    folder = write(tmp_path / "inventory", hosts, **files)
    monkeypatch.chdir(tmp_path)
    done = run("lint-inventory", "-i", folder)
    assert done.exit_code == status, done.output
    assert words in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("files", "unread"),
    [
        (("group_vars/all.yaml", "group_vars/all.yml"), "group_vars/all.yaml: Ansible reads all.yml"),
        (("group_vars/all.json", "group_vars/all.yaml"), "group_vars/all.json: Ansible reads all.yaml"),
        (("group_vars/all", "group_vars/all.yml"), "group_vars/all.yml: Ansible reads all beside"),
        (("group_vars/all/a.yml", "group_vars/all.yml"), "group_vars/all.yml: Ansible reads all beside"),
        (("host_vars/n1.yaml", "host_vars/n1.yml"), "host_vars/n1.yaml: Ansible reads n1.yml"),
        (("host_vars/n1.x.yml", "host_vars/n1.yml"), ""),
        (("group_vars/all/a.yml", "group_vars/all/a.yaml"), ""),
        (("group_vars/all.yml", "group_vars/all.yml.bak"), ""),
    ],
)
def test_a_file_that_ansible_does_not_read_is_named(
    tmp_path: Path, files: tuple[str, ...], unread: str
) -> None:
    folder = write(tmp_path / "inventory", yaml.safe_dump({"all": {"hosts": {"n1": None}}}))
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{Path(name).suffix[1:] or 'plain'}_of_{Path(name).parent.name}: 1\n")
    listed, mistakes = lint.list_inventory(folder)
    assert [f"{one.where}: {one.what}".split("/inventory/")[1].startswith(unread) for one in mistakes] == (
        [True] if unread else []
    )
    # Both files of a folder are read, and one file of any other two.
    assert len([name for name in listed.hosts["n1"] if "_of_" in name]) == (
        2 if "all/a.yaml" in files[1] else 1
    )


def test_the_shipped_inventory_has_no_mistakes(run: Callable[..., Result]) -> None:
    done = run("lint-inventory", "--checkout", ROOT, "-i", ROOT / "inventory", "--json")
    assert json.loads(done.stdout) == []
    assert run("lint-inventory", "-i", "/nonexistent").exit_code == 1


def test_the_inventory_is_the_one_that_ansible_would_read(
    tmp_path: Path, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(("inventory", "configured", "named"), 1):
        hosts = {f"n{index}": None for index in range(number)}
        write(tmp_path / name, yaml.safe_dump({"all": {"hosts": hosts}}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANSIBLE_INVENTORY", raising=False)
    assert "inventory: 1 host, " in run("lint-inventory").output
    (tmp_path / "ansible.cfg").write_text("[defaults]\ninventory = configured  ; the cluster\n")
    assert "configured: 2 hosts, " in run("lint-inventory").output
    monkeypatch.setenv("ANSIBLE_INVENTORY", str(tmp_path / "named"))
    assert f"{tmp_path / 'named'}: 3 hosts, " in run("lint-inventory").output
    assert "inventory: 1 host, " in run("lint-inventory", "--inventory", "inventory").output

    monkeypatch.setenv("ANSIBLE_INVENTORY", "named,configured")
    several = run("lint-inventory")
    assert several.exit_code == 1
    assert "names several inventories: name one with -i" in several.output
    monkeypatch.delenv("ANSIBLE_INVENTORY")
    (tmp_path / "ansible.cfg").write_text("inventory = configured")  # Ansible refuses it, too.
    assert "Error reading config file" in run("lint-inventory").output


def test_ansible_has_time_for_the_largest_inventory_on_a_busy_machine() -> None:
    """ansible-inventory took 8.3 s for 992 hosts. A busy machine may take four times as long."""
    assert MOST_NODES * 8.3 / 992 * 4 < lint._LIST_S


def test_another_inventory_beside_a_file_is_not_read(
    tmp_path: Path, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "inventory", yaml.safe_dump({"all": {"hosts": {"n1": None}}}))
    (folder / "other.yml").write_text("all: [n1\n")
    monkeypatch.chdir(tmp_path)
    alone = run("lint-inventory", "-i", folder / "hosts.yml")
    assert (alone.exit_code, "other.yml" in alone.output) == (0, False), alone.output
    assert "other.yml:2: it is not YAML" in run("lint-inventory", "-i", folder).output
    (folder / "host_vars").mkdir()
    (folder / "host_vars/n1.yaml").write_text("a: 1\na: 2\n")
    assert "n1.yaml:2: a is in line 1" in run("lint-inventory", "-i", folder / "hosts.yml").output


@pytest.mark.parametrize("name", ["pipe", "inventory", "/dev/zero"])
def test_a_pipe_or_a_device_is_refused_before_anything_reads_it(
    name: str, tmp_path: Path, run: Callable[..., Result]
) -> None:
    (tmp_path / "inventory/group_vars").mkdir(parents=True)
    for pipe in ("pipe", "inventory/group_vars/all"):
        os.mkfifo(tmp_path / pipe)
    done = run("lint-inventory", "-i", tmp_path / name, "--checkout", ROOT)
    assert done.exit_code == 1
    assert "is a pipe or a device: write the inventory to a file" in done.stderr


# Files for which ansible-inventory 2.19 waits without end, and files that it finds empty or does not read.
@pytest.mark.parametrize(
    ("name", "target", "is_refused"),
    [
        ("host_vars/n1.yml", "pipe", True),
        ("host_vars/n1", "/dev/zero", True),
        ("pipe.yml", "pipe", True),
        ("more/pipe", "pipe", True),
        ("host_vars/n1.yml", "/dev/null", False),
        ("null", "/dev/null", False),
        ("host_vars/n1/pipe.yml", "pipe", False),
        ("old.bak", "pipe", False),
        (".git/pipe", "pipe", False),
        ("vars_plugins/pipe", "pipe", False),
        ("old.bak/pipe", "pipe", False),
        ("more/host_vars/n1.yml", "pipe", False),
    ],
)
@pytest.mark.parametrize("by_file", [False, True])
def test_only_a_pipe_or_a_device_that_ansible_waits_for_is_refused(
    name: str, target: str, is_refused: bool, by_file: bool, tmp_path: Path
) -> None:
    folder = write(tmp_path / "inventory", yaml.safe_dump({"all": {"hosts": {"n1": None}}}))
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    if target == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to(target)
    # If a file is named, Ansible reads only the variables beside it.
    expected = is_refused and (not by_file or name.startswith("host_vars"))
    assert (lint._endless_file(folder / "hosts.yml" if by_file else folder) is not None) == expected


def test_a_link_to_the_inventorys_own_folder_does_not_loop(tmp_path: Path) -> None:
    folder = write(tmp_path / "inventory", "all: {}")
    (folder / "again").symlink_to(folder)
    assert lint._endless_file(folder) is None
