"""Test ``rackproof.jobs.inventory.folder`` and ``inventory_files``, which write an adopted inventory.

``rackproof adopt`` makes an inventory of an existing cluster: hosts.yml with groups for racks, partitions and
SKUs (node models), and group_vars. If it is called again, changes by hand remain, and conflicts are reported.
The tests check the groups and variables, and a second adoption after changes by hand or in the cluster.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from rackproof.jobs.inventory.folder import (
    InventoryChange,
    add_missing_nodes,
    check_folder,
    lint_change,
    plan_change,
    skeleton_groups,
    write_change,
)
from rackproof.jobs.inventory.inventory_files import build_cluster, render_files
from rackproof.jobs.inventory.nodes import AdoptedNode, AdoptError, GpuHint
from rackproof.jobs.inventory.sku_guess import guess_sku, read_shipped_skus
from rackproof.jobs.validate.errors import ValidateError
from rackproof.jobs.validate.inventory import parse_node_expectation

ROOT = Path(__file__).parents[3]
SHIPPED = read_shipped_skus(ROOT)


def node(name: str, kind: str = "h100", count: int = 8, **more: object) -> AdoptedNode:
    """Return a node with GPUs of this kind. The first letter of its name is its rack."""
    hints = (GpuHint(where="Gres", text=kind),) if kind else ()
    about = {"source": "test", "rack": name[0], "gpu_count": count, "gpu_count_from": "Gres", "hints": hints}
    return AdoptedNode.model_validate({"name": name, **about, **more})


def rendered(*nodes: AdoptedNode, controller: str = "", address: str = "") -> dict[str, str]:
    """Return the texts of an inventory's files by path."""
    skus = {one.name: guess_sku(one, SHIPPED) for one in nodes}
    cluster = build_cluster(nodes, skus, controller, controller_address=address)
    return render_files(cluster, SHIPPED, (ROOT / "inventory/group_vars/all.yml").read_text(), "1.2.3")


def adopt(folder: Path, *nodes: AdoptedNode, controller: str = "") -> InventoryChange:
    """Write an inventory of these nodes, as ``rackproof adopt`` does, and return the change."""
    change = plan_change(folder, rendered(*nodes, controller=controller))
    write_change(folder, change, nodes)
    return change


def groups(folder: Path) -> dict[str, object]:
    """Return the groups in hosts.yml."""
    return yaml.safe_load((folder / "hosts.yml").read_text())["all"]["children"]


def test_nodes_are_grouped_by_rack_partition_and_sku(tmp_path: Path) -> None:
    adopt(
        tmp_path,
        node("a1", partitions=("train",)),
        node("a2", partitions=("train", "debug")),
        node("b1", "h100", 2, address="10.0.0.3", variables={"ansible_port": 22}),
        node("b2", "tesla", 4, sizes={"cpus": 64}),
        node("c1", "", 0, in_slurm=True),
        controller="ctl",
    )
    found = groups(tmp_path)
    # Slurm states the host names of its nodes. Those of the other nodes are unknown, so they are not checked.
    unchecked = {"validate_hostname": ""}
    assert found["a"] == {"hosts": {"a1": unchecked, "a2": unchecked}}
    about = {"ansible_host": "10.0.0.3", "ansible_port": 22}
    assert found["b"] == {"hosts": {"b1": unchecked | about, "b2": unchecked}}
    assert found["c"] == {"hosts": {"c1": None}}
    assert found["partition_train"] == {"children": {"a": None}}
    assert found["partition_debug"] == {"hosts": {"a2": None}}
    assert found["sku_h100"] == {"children": {"sku_h100_x2": None, "a": None}}
    assert found["sku_h100_x2"] == {"hosts": {"b1": None}}
    assert found["sku_tesla_x4"] == {"hosts": {"b2": None}}
    # A node without GPUs is in the group of its rack, but not in gpu_nodes.
    assert list(found["gpu_nodes"]["children"]) == ["sku_h100", "sku_tesla_x4", "new-nodes"]
    assert found["slurm_controller"] == {"hosts": {"ctl": None}}
    files = {path.name for path in (tmp_path / "group_vars").iterdir()}
    assert files == {"all.yml", "sku_h100.yml", "sku_h100_x2.yml", "sku_tesla_x4.yml"}
    assert yaml.safe_load((tmp_path / "group_vars/all.yml").read_text())["slurm_racks"] == ["c"]


def test_host_names_are_checked_if_a_source_states_them(tmp_path: Path) -> None:
    adopt(tmp_path / "slurm", node("a1", in_slurm=True), node("a2", in_slurm=True, hostname="host2"))
    assert groups(tmp_path / "slurm")["a"] == {"hosts": {"a1": None, "a2": {"validate_hostname": "host2"}}}
    assert "validate_hostname" not in (tmp_path / "slurm/group_vars/all.yml").read_text()
    adopt(tmp_path / "table", node("a1"), node("a2", hostname="host2"))
    assert groups(tmp_path / "table")["a"] == {"hosts": {"a1": None, "a2": {"validate_hostname": "host2"}}}
    about = yaml.safe_load((tmp_path / "table/group_vars/all.yml").read_text())
    assert about["validate_hostname"] == ""


@pytest.mark.parametrize(
    ("counts", "line"),
    [
        ((4, 4), "bench_sku_gpus: 4"),
        ((4, None), "bench_sku_gpus: 4"),
        ((None, 4), "bench_sku_gpus: 4"),
        ((4, 8), "# bench_sku_gpus: 4 to 8: its nodes differ"),
        ((8, 4, None, 6), "# bench_sku_gpus: 4 to 8: its nodes differ"),
        ((None, None), "# bench_sku_gpus: NUMBER     # GPUs of a node"),
    ],
)
def test_a_skeleton_has_a_number_of_gpus_only_if_its_nodes_agree(
    tmp_path: Path, counts: tuple[int | None, ...], line: str
) -> None:
    adopt(
        tmp_path,
        *(node(f"a{place}", "", 0, sku="foo", gpu_count=count) for place, count in enumerate(counts)),
    )
    lines = (tmp_path / "group_vars/sku_foo.yml").read_text().splitlines()
    assert [text for text in lines if "bench_sku_gpus" in text] == [line]


def test_a_shipped_sku_is_copied_unchanged(tmp_path: Path) -> None:
    adopt(tmp_path, node("a1"))
    mine = yaml.safe_load((tmp_path / "group_vars/sku_h100.yml").read_text())
    assert mine == yaml.safe_load((ROOT / "inventory/group_vars/sku_h100.yml").read_text())


def test_a_skeleton_has_facts_and_no_bounds(tmp_path: Path) -> None:
    adopt(tmp_path, node("a1", "tesla", 4, sizes={"cpus": 64}), node("a2", "tesla", 4, sizes={"cpus": 96}))
    text = (tmp_path / "group_vars/sku_tesla_x4.yml").read_text()
    values = yaml.safe_load(text)
    assert values == {
        "bench_sku": "tesla-x4",
        "bench_sku_gpus": 4,
        "bench_sku_references": [],
        "validate_expect": {"skeleton": True},
    }
    assert "UNPROVEN" in text
    assert "64 to 96: its nodes differ" in text
    # If a person uncomments a value without filling it in, it fits no GPU.
    used = yaml.safe_load(re.sub(r"(?m)^( *)# (\w+: \w+ +#)", r"\1\2", text))
    assert used["bench_sku_gpu_name"] == "NAME"
    expected = used["validate_expect"]
    assert list(expected) == [
        *("skeleton", "nvlinks", "fabric", "power_limit_w", "ports", "port_gbps", "port_layer")
    ]
    for name in ("nvlinks", "power_limit_w", "ports", "port_gbps"):
        with pytest.raises(ValidateError, match=name):
            parse_node_expectation("a1", {name: expected[name]})


def test_a_sku_is_a_skeleton_until_its_file_is_complete(tmp_path: Path) -> None:
    nodes = [node("a1", "tesla", 4), node("b1")]
    assert skeleton_groups(tmp_path, plan_change(tmp_path, rendered(*nodes))) == {"sku_tesla_x4"}
    adopt(tmp_path, *nodes)
    file = tmp_path / "group_vars/sku_tesla_x4.yml"
    skeleton = file.read_text()
    for text, is_skeleton in (
        (skeleton, True),
        (skeleton.replace("  skeleton: true\n", "  nvlinks: 0\n"), False),
        (skeleton.replace("skeleton: true", "skeleton: false"), False),
        (skeleton.replace("skeleton: true", "skeleton: '{{ x }}'"), True),
        ("a: !vault x\n", True),
        ("", True),
    ):
        file.write_text(text)
        again = plan_change(tmp_path, rendered(*nodes))
        assert bool(skeleton_groups(tmp_path, again)) is is_skeleton, text
    file.unlink()
    assert skeleton_groups(tmp_path, plan_change(tmp_path, rendered(*nodes))) == {"sku_tesla_x4"}


def test_a_controller_without_gpus_is_no_node(tmp_path: Path) -> None:
    about = {"address": "10.0.0.9", "variables": {"ansible_user": "ops"}}
    adopt(tmp_path / "out", node("a1"), node("ctl", "", 0, **about), controller="ctl")
    found = groups(tmp_path / "out")
    assert "c" not in found
    own = {"ansible_host": "10.0.0.9", "ansible_user": "ops"}
    assert found["slurm_controller"] == {"hosts": {"ctl": own}}
    # With GPUs, or if their number is unknown, or if Slurm runs jobs there, it is a node.
    for name, host in (
        ("gpus", node("ctl")),
        ("unknown", node("ctl", "", gpu_count=None)),
        ("slurm", node("ctl", "", 0, in_slurm=True)),
    ):
        adopt(tmp_path / name, node("a1"), host, controller="ctl")
        assert "ctl" in str(groups(tmp_path / name)["c"]), name
        assert groups(tmp_path / name)["slurm_controller"] == {"hosts": {"ctl": None}}


@pytest.mark.parametrize(
    "rack", ["all", "gpu_nodes", "a1", "sku_x", "partition_x", "7", "", "{{ x }}", "a b\nc:"]
)
def test_a_rack_of_any_name_is_a_group_of_its_own(tmp_path: Path, rack: str) -> None:
    adopt(tmp_path, node("a1", rack=rack), node("yes", rack="no"))
    (group,) = [
        name for name, about in groups(tmp_path).items() if "a1" in ((about or {}).get("hosts") or {})
    ]
    assert group not in ("all", "gpu_nodes", "a1")
    assert "{" not in str(group)
    assert groups(tmp_path)["sku_h100"] == {"children": {group: None, "no": None}}


def test_a_second_adoption_changes_nothing(tmp_path: Path) -> None:
    adopt(tmp_path, node("a1"))
    again = plan_change(tmp_path, rendered(node("a1")))
    assert (again.files, again.diff, again.remarks) == ({}, "", ())


def test_changes_by_hand_survive_a_new_node(tmp_path: Path) -> None:
    adopt(tmp_path, node("a1"), node("b1"))
    hosts = tmp_path / "hosts.yml"
    hosts.write_text(
        hosts.read_text().replace("        a1:\n", "        a1: {ansible_host: 10.9.9.9}  # moved\n")
    )
    about = tmp_path / "group_vars/sku_h100.yml"
    about.write_text(about.read_text() + "validate_hostname: ''\n")
    (tmp_path / "group_vars/mine.yml").write_text("x: 1\n")
    change = plan_change(tmp_path, rendered(node("a1"), node("b1"), node("b2")))
    assert set(change.files) == {"hosts.yml"}
    assert "+        b2:" in change.diff
    # Nothing was written yet.
    assert "b2" not in hosts.read_text()
    write_change(tmp_path, change, [node("a1"), node("b1"), node("b2")])
    text = hosts.read_text()
    assert "a1: {ansible_host: 10.9.9.9}  # moved" in text
    assert "b2:" in text
    assert about.read_text().endswith("validate_hostname: ''\n")
    assert (tmp_path / "group_vars/mine.yml").exists()


def test_a_line_that_a_person_and_the_sources_changed_stays_and_is_reported(tmp_path: Path) -> None:
    adopt(tmp_path, node("a1", address="10.0.0.1"))
    hosts = tmp_path / "hosts.yml"
    hosts.write_text(hosts.read_text().replace("10.0.0.1", "10.0.0.9"))
    change = plan_change(tmp_path, rendered(node("a1", address="10.0.0.2")))
    assert change.files == {}
    assert "yours stays (a1: {ansible_host: 10.0.0.9})" in change.remarks[0]
    assert "10.0.0.2" in change.remarks[0]


def test_a_file_that_was_removed_by_hand_is_not_written_again(tmp_path: Path) -> None:
    adopt(tmp_path, node("a1"), node("b1", "tesla", 4))
    (tmp_path / "group_vars/sku_tesla_x4.yml").unlink()
    change = plan_change(tmp_path, rendered(node("a1"), node("b1", "tesla", 4)))
    assert change.files == {}
    assert "removed by hand" in change.remarks[0]


def test_a_file_that_no_node_needs_any_more_is_reported(tmp_path: Path) -> None:
    adopt(tmp_path, node("a1", "tesla", 4))
    change = plan_change(tmp_path, rendered(node("a1")))
    assert any("sku_tesla_x4.yml any more: remove it" in one for one in change.remarks)
    assert (tmp_path / "group_vars/sku_tesla_x4.yml").exists()


def test_nodes_that_no_source_names_stay_until_they_are_removed(tmp_path: Path) -> None:
    adopt(tmp_path, node("a1"), node("a2"))
    nodes, remarks = add_missing_nodes(tmp_path, [node("a1")], remove=False)
    assert [one.name for one in nodes] == ["a1", "a2"]
    assert "a2" in remarks[0]
    assert "--remove-missing" in remarks[0]
    nodes, remarks = add_missing_nodes(tmp_path, [node("a1")], remove=True)
    assert [one.name for one in nodes] == ["a1"]
    assert "removed, because" in remarks[0]
    (tmp_path / ".adopted/nodes.json").write_text("{")
    with pytest.raises(AdoptError, match="is damaged"):
        add_missing_nodes(tmp_path, [node("a1")], remove=False)


@pytest.mark.parametrize(
    ("excluded", "named", "remove", "names", "remarks"),
    [
        (
            ["login*"],
            ("n1",),
            False,
            ["n1", "n2"],
            ["leaves them out: login1", "names n2 any more"],
        ),
        (["login*"], ("n1", "n2"), False, ["n1", "n2"], ["removed, because --exclude leaves them out"]),
        (["login*", "n2"], ("n1",), False, ["n1"], ["removed, because --exclude leaves them out: login1,n2"]),
        (["login*"], ("n1",), True, ["n1"], ["leaves them out: login1", "no source names them: n2"]),
        (["m*"], ("n1", "n2"), False, ["login1", "n1", "n2"], ["no source names login1 any more"]),
        ([], ("login1", "n1", "n2"), False, ["login1", "n1", "n2"], []),
    ],
)
def test_a_node_that_is_excluded_now_does_not_stay(
    tmp_path: Path,
    excluded: list[str],
    named: tuple[str, ...],
    remove: bool,
    names: list[str],
    remarks: list[str],
) -> None:
    adopt(tmp_path, node("login1"), node("n1"), node("n2"))
    found, said = add_missing_nodes(
        tmp_path, [node(name) for name in named], remove=remove, excluded=excluded
    )
    assert [one.name for one in found] == names
    assert len(said) == len(remarks)
    assert all(part in text for part, text in zip(remarks, said, strict=True)), said


def test_a_folder_with_an_inventory_of_another_program_is_refused(tmp_path: Path) -> None:
    assert not check_folder(tmp_path / "new")
    assert not check_folder(tmp_path)
    (tmp_path / "hosts.yml").write_text("all: {}\n")
    with pytest.raises(AdoptError, match="did not write"):
        check_folder(tmp_path)
    with pytest.raises(AdoptError, match="did not write"):
        check_folder(ROOT / "inventory")


def test_an_interrupted_write_is_finished(tmp_path: Path) -> None:
    change = plan_change(tmp_path, rendered(node("a1")))
    (tmp_path / ".adopted").mkdir()
    (tmp_path / "hosts.yml").write_text(change.files["hosts.yml"])
    assert check_folder(tmp_path)
    again = plan_change(tmp_path, rendered(node("a1")))
    assert set(again.files) == set(change.files) - {"hosts.yml"}
    assert again.remarks == ()


def test_slurms_controller_on_this_machine_is_reached_without_ssh(tmp_path: Path) -> None:
    files = rendered(node("a1"), controller="localhost", address="192.0.2.9")
    groups_of_file = yaml.safe_load(files["hosts.yml"])["all"]["children"]
    assert groups_of_file["slurm_controller"]["hosts"] == {
        "localhost": {
            "ansible_connection": "local",
            "ansible_python_interpreter": "{{ ansible_playbook_python }}",
        }
    }


@pytest.mark.parametrize(
    ("rack", "names"), [("7", ("rack-7",)), ("7", ("rack-7", "rack-7-2")), ("gpu_nodes", ("rack-gpu_nodes",))]
)
def test_no_rack_has_the_name_of_a_host(tmp_path: Path, rack: str, names: tuple[str, ...]) -> None:
    adopt(tmp_path, *(node(name, rack=rack) for name in names))
    hosted = [
        name for name, group in groups(tmp_path).items() if isinstance(group, dict) and group.get("hosts")
    ]
    assert hosted
    assert not set(groups(tmp_path)) & set(names)


def test_partitions_with_one_group_name_list_each_node_once(tmp_path: Path) -> None:
    # n2 is in no partition, so that the group lists its hosts.
    adopt(tmp_path, node("n1", partitions=("a.b", "a-b", "a b")), node("n2"))
    assert (tmp_path / "hosts.yml").read_text().count("\n    partition_a-b:") == 1
    assert groups(tmp_path)["partition_a-b"] == {"hosts": {"n1": None}}
    assert (tmp_path / "hosts.yml").read_text().partition("partition_a-b:")[2].count("        n1:") == 1


@pytest.mark.parametrize("name", [".#hosts.yml", "group_vars/.#all.yml", "lost"])
def test_a_broken_link_does_not_stop_a_change(tmp_path: Path, name: str) -> None:
    adopt(tmp_path, node("n1"))
    (tmp_path / name).symlink_to("ada@desk.4711:1764000000")
    change = plan_change(tmp_path, rendered(node("n1"), node("n2")))
    assert all(name not in mistake.where for mistake in lint_change(tmp_path, change, ROOT))


@pytest.mark.parametrize("name", ["pipe", "group_vars/pipe", "host_vars/n1/pipe"])
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (os.mkfifo, "it is a pipe; correct it"),
        # A socket cannot be opened.
        (
            lambda path: socket.socket(socket.AF_UNIX).bind(str(path)),
            "No such device or address;",
        ),
    ],
)
def test_a_file_that_cannot_be_copied_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, make: Callable[[Path], object], text: str
) -> None:
    adopt(tmp_path, node("n1"))
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    # The path of a socket may have only 100 characters.
    monkeypatch.chdir(path.parent)
    make(Path(path.name))
    change = plan_change(tmp_path, rendered(node("n1"), node("n2")))
    with pytest.raises(AdoptError) as refused:
        lint_change(tmp_path, change, ROOT)
    assert str(refused.value).startswith(f"{path} cannot be read: ")
    assert text in str(refused.value)
    assert "Errno" not in str(refused.value)


@pytest.mark.parametrize("part", [".adopted", ".adopted/group_vars", "group_vars"])
@pytest.mark.parametrize("target", ["other", "nothing"])
def test_a_link_in_the_folder_is_never_written_through(tmp_path: Path, part: str, target: str) -> None:
    folder = tmp_path / "cluster"
    adopt(folder, node("a1"))
    shutil.move(folder / part, tmp_path / "other")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "other").rglob("*")}
    (folder / part).symlink_to(tmp_path / target)
    with pytest.raises(AdoptError, match=f"{re.escape(part)} is a symbolic link"):
        check_folder(folder)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "other").rglob("*")} == before


def test_a_link_to_the_whole_folder_is_followed(tmp_path: Path) -> None:
    adopt(tmp_path / "real", node("a1"))
    (tmp_path / "cluster").symlink_to(tmp_path / "real")
    assert check_folder(tmp_path / "cluster")
