"""Test that a playbook fails if its command line leaves out tasks or hosts.

The code is in ``rackproof_ansible.asked_hosts``. With a mistake in ``-l``, ``--tags`` or ``--start-at-task``,
Ansible may do nothing and end with status 0. An operator could take that for a success. The filter
``refuse_partial_runs`` in each play's ``hosts`` refuses such a command line, and the callback fails a
playbook that did nothing to a requested host. The first tests call the functions with an inventory's groups;
those with the mark ``playbook`` run real playbooks.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.executor.stats import AggregateStats

from rackproof_ansible.asked_hosts import (
    PartialRunError,
    check_hosts,
    check_tasks,
    hosts_left_out,
    hosts_to_do,
)

ROOT = Path(__file__).resolve().parents[2]
GROUPS = {
    "all": ["n1", "n2", "n3", "login", "lonely", "ctl", "localhost"],
    "ungrouped": ["lonely"],
    "gpu_nodes": ["n1", "n2", "n3"],
    "rack": ["n1", "n2"],
    "mixed": ["n3", "ctl"],
    "new-nodes": [],
    "slurm_login": ["login"],
}
PROVISION, REIMAGE, BENCH = "gpu_nodes:slurm_login", "gpu_nodes", "all"
"""The hosts of three playbooks, as patterns of Ansible."""


# The limit (-l) contains only hosts of the playbook, directly or after its exclusions. None is no limit.
@pytest.mark.parametrize(
    ("pattern", "limit", "hosts"),
    [
        (REIMAGE, "n1", ["n1"]),
        (REIMAGE, "n2,n1", ["n1", "n2"]),
        (REIMAGE, "rack:!n1", ["n2"]),
        (REIMAGE, "mixed:&gpu_nodes", ["n3"]),
        (REIMAGE, "n?", ["n1", "n2", "n3"]),
        (REIMAGE, "~n[12]", ["n1", "n2"]),
        (REIMAGE, "rack[1]", ["n2"]),
        (REIMAGE, "rack:!new-nodes", ["n1", "n2"]),
        (REIMAGE, "all", ["n1", "n2", "n3"]),
        (REIMAGE, "all:!n3", ["n1", "n2"]),
        (REIMAGE, "!n3", ["n1", "n2"]),
        (REIMAGE, None, ["n1", "n2", "n3"]),
        (PROVISION, "n1,login", ["n1", "login"]),
        (BENCH, "lonely,localhost", ["lonely", "localhost"]),
        ("localhost", "localhost", ["localhost"]),
        ("localhost", None, ["localhost"]),
    ],
)
def test_hosts_that_a_playbook_is_for_are_done(pattern: str, limit: str | None, hosts: list[str]) -> None:
    assert hosts_to_do(pattern, GROUPS, limit) == hosts


# The limit has a host of another playbook, an unknown name, an empty group or no name, or excludes all hosts.
@pytest.mark.parametrize(
    ("pattern", "limit", "named"),
    [
        (REIMAGE, "localhost", "localhost is not in gpu_nodes"),
        (PROVISION, "localhost", "localhost is not in gpu_nodes or slurm_login"),
        (REIMAGE, "n1,lonely", "lonely is not in gpu_nodes"),
        (REIMAGE, "n1,login", "login is not in gpu_nodes"),
        (PROVISION, "rack,localhost", "localhost is not in"),
        (REIMAGE, "mixed", "ctl is not in gpu_nodes"),
        (REIMAGE, "lo*", "localhost, login, lonely are not in gpu_nodes"),
        (REIMAGE, "n1,b", "b is neither a host nor a group"),
        (BENCH, "n1,b", "b is neither a host nor a group"),
        (BENCH, "n1,n[01:03]", "n[01:03] is neither a host nor a group"),
        (BENCH, "n1,n9*", "n9* is neither a host nor a group"),
        (REIMAGE, "rack:!n11", "n11 is neither a host nor a group"),
        (REIMAGE, "rack:&rakc", "rakc is neither a host nor a group"),
        (REIMAGE, "n1,new-nodes", "new-nodes is a group without hosts"),
        (REIMAGE, "new-nodes", "new-nodes is a group without hosts"),
        (REIMAGE, "", "names no host, and would not limit anything"),
        (BENCH, ",", "names no host, and would not limit anything"),
        (PROVISION, " , ,", "names no host, and would not limit anything"),
        ("netboot", "n1", "n1 is not in netboot"),
        ("localhost", "n1", "n1 is not in localhost"),
        (BENCH, "all:!all", "leaves no host of all"),
        (REIMAGE, "rack:!rack", "leaves no host of gpu_nodes"),
        (REIMAGE, "rack:&new-nodes", "leaves no host of gpu_nodes"),
    ],
)
def test_a_host_that_nothing_would_be_done_for_is_named(pattern: str, limit: str, named: str) -> None:
    with pytest.raises(PartialRunError, match=re.escape(named)):
        hosts_to_do(pattern, GROUPS, limit)


@pytest.mark.parametrize(
    "groups",
    [{}, {"all": [], "ungrouped": []}, {"all": ["a"], "ungrouped": ["a"]}, {"all": ["a"], "gpu_nodes": []}],
)
def test_an_inventory_without_a_node_is_refused(groups: dict[str, list[str]]) -> None:
    with pytest.raises(PartialRunError, match="no host in gpu_nodes"):
        hosts_to_do(REIMAGE, groups, None)


def test_a_file_of_hosts_names_each_of_its_lines(tmp_path: Path) -> None:
    limit = tmp_path / "hosts"
    limit.write_text("n1\n\nn2\n")
    assert hosts_to_do(REIMAGE, GROUPS, f"@{limit}") == ["n1", "n2"]
    for lines, named in (
        ("n1\nb\n", "b is neither a host"),
        ("", "names no host"),
        ("\n\n", "names no host"),
        ("n1,n2\n", "n1,n2 is neither a host"),
        ("n1\nctl\n", "ctl is not in"),
    ):
        limit.write_text(lines)
        with pytest.raises(PartialRunError, match=re.escape(named)):
            hosts_to_do(REIMAGE, GROUPS, f"@{limit}")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tags": ["x"]}, "--tags x"),
        ({"tags": ["always"]}, "--tags always"),
        ({"tags": ["untagged"]}, "--tags untagged"),
        ({"tags": ["all"], "skip_tags": ["always"]}, "--skip-tags always"),
        ({"skip_tags": ["x", "untagged"]}, "--skip-tags untagged"),
        ({"skip_tags": ["all"]}, "--skip-tags all"),
        ({"start_at_task": "End with the verdict"}, "--start-at-task End with the verdict"),
        ({"start_at_task": "nothing"}, "--start-at-task nothing"),
        ({"step": True}, "--step"),
    ],
)
def test_tasks_that_are_left_out_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(PartialRunError, match=f"^{re.escape(named)} leaves out tasks"):
        check_tasks(options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tags": ("all",), "skip_tags": ()},
        {"tags": ["all", "x"]},
        # Molecule gives these tags to every playbook. No task of Rackproof has them.
        {"tags": ["all"], "skip_tags": ["molecule-notest", "notest"]},
        {"check": True, "diff": True, "start_at_task": None, "step": None},
    ],
)
def test_what_leaves_nothing_out_is_let_through(options: dict[str, Any]) -> None:
    check_tasks(options)


@pytest.mark.parametrize("listing", ["listhosts", "listtasks", "listtags", "syntax"])
def test_a_listing_does_nothing_and_is_let_through(listing: str) -> None:
    check_hosts(REIMAGE, GROUPS, {"tags": ["x"], "subset": "localhost", listing: True})


@pytest.mark.parametrize("path", sorted(ROOT.glob("playbooks/*.yml")), ids=lambda path: path.stem)
def test_every_playbook_refuses_to_be_left_out(path: Path) -> None:
    first, *_ = yaml.safe_load(path.read_text())
    assert "| refuse_partial_runs(groups) }}" in first["hosts"]


@pytest.mark.parametrize("done", ["ok", "failures", "dark", "rescued", "ignored"])
def test_a_host_on_which_all_was_skipped_is_left_out(done: str) -> None:
    stats = AggregateStats()
    for name in ("processed", "skipped", done):
        stats.increment(name, "n1")
    for name in ("processed", "skipped"):
        stats.increment(name, "n2")
    assert hosts_left_out(["n1", "n2", "n3"], stats) == ["n2", "n3"]


def _tagged(value: Any) -> bool:
    """Return whether a part of a YAML file has the key ``tags``."""
    if isinstance(value, dict):
        return "tags" in value or any(_tagged(one) for one in value.values())
    return isinstance(value, list) and any(_tagged(one) for one in value)


def test_no_task_has_a_tag_to_be_skipped_by() -> None:
    # Because no task has a tag, other tags than Ansible's own are allowed in --skip-tags.
    paths = [
        *ROOT.glob("playbooks/*.yml"),
        *ROOT.glob("roles/*/tasks/**/*.yml"),
        *ROOT.glob("roles/*/handlers/*.yml"),
    ]
    assert len(paths) > 50
    assert [path for path in paths if _tagged(yaml.safe_load(path.read_text()))] == []


# n1 is the only node. ctl and lonely are in no group.
INVENTORY = {
    "all": {
        "hosts": {"ctl": None, "lonely": None, "localhost": {"ansible_connection": "local"}},
        "children": {
            "gpu_nodes": {
                "children": {"new-nodes": None, "rack": {"hosts": {"n1": {"ansible_connection": "local"}}}}
            }
        },
    }
}
PLAYBOOKS = ("provision.yml", "reimage.yml", "validate.yml", "bench.yml")


def play(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a playbook with the folder's inventory, which is INVENTORY unless the test wrote one."""
    inventory = folder / "hosts.yml"
    if not inventory.exists():
        inventory.write_text(yaml.safe_dump(INVENTORY))
    return subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", inventory, *words],
        cwd=ROOT,
        env=os.environ | {"ANSIBLE_NOCOLOR": "1", "COLUMNS": "400"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.playbook
@pytest.mark.parametrize(
    ("playbook", "words"),
    [
        ("provision.yml", ("-l", "n1", "--tags", "x")),
        ("reimage.yml", ("-l", "n1", "--tags", "always")),
        ("validate.yml", ("-l", "n1", "--tags", "x")),
        ("bench.yml", ("-l", "n1", "--tags", "untagged")),
        ("provision.yml", ("-l", "n1", "--skip-tags", "always")),
        ("validate.yml", ("-l", "n1", "--skip-tags", "all")),
        ("provision.yml", ("-l", "n1", "--start-at-task", "Fail if a node failed")),
        ("reimage.yml", ("-l", "n1", "--start-at-task", "End the rnu")),
        ("validate.yml", ("-l", "n1", "--start-at-task", "End with the verdict")),
        ("bench.yml", ("-l", "n1", "--start-at-task", "End with*")),
        ("provision.yml", ("-l", "n1,b")),
        ("reimage.yml", ("-l", "n1,new-nodes")),
        ("validate.yml", ("-l", "n1,b")),
        ("bench.yml", ("-l", "n1,b*")),
        ("reimage.yml", ("-l", "new-nodes")),
        ("reimage.yml", ("-l", "")),
        ("provision.yml", ("-l", ",")),
        ("playbooks/netboot.yml", ()),
        ("playbooks/nightly.yml", ("-l", "localhost", "--tags", "x")),
        ("playbooks/image.yml", ("-l", "n1")),
        ("playbooks/stage-imagenet.yml", ("-l", "n1", "--tags", "x")),
    ],
)
def test_a_playbook_that_would_do_nothing_does_not_end_well(
    playbook: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    done = play(tmp_path, playbook, *words)
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    assert "TASK [" not in said
    if words[2:]:
        assert f"{words[-2]} {words[-1]} leaves out tasks" in said
    elif words and words[1] in ("", ","):
        assert "names no host, and would not limit anything" in said
    elif words and "," in words[1]:
        assert f"{words[1].partition(',')[2]} is " in said


@pytest.mark.playbook
@pytest.mark.parametrize(
    ("playbook", "limit", "named"),
    [
        ("provision.yml", "localhost", "localhost"),
        ("reimage.yml", "localhost", "localhost"),
        ("provision.yml", "n1,lonely", "lonely"),
        ("reimage.yml", "rack,ctl", "ctl"),
        ("validate.yml", "n1,lonely", "lonely"),
        ("validate.yml", "n1,localhost", "localhost"),
    ],
)
def test_a_host_that_a_playbook_is_not_for_is_not_dropped(
    playbook: str, limit: str, named: str, tmp_path: Path
) -> None:
    done = play(tmp_path, playbook, "-l", limit)
    assert done.returncode != 0
    assert f"{named} is not in gpu_nodes" in done.stdout + done.stderr


@pytest.mark.playbook
@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_an_empty_inventory_is_no_success(playbook: str, tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": {"gpu_nodes": {}}}}))
    for words in ((), ("-l", "localhost")):
        done = play(tmp_path, playbook, *words)
        assert done.returncode != 0, done.stdout + done.stderr


@pytest.mark.playbook
@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_listings_and_the_syntax_check_work(playbook: str, tmp_path: Path) -> None:
    for words in (("--list-tasks", "--tags", "x"), ("--syntax-check",)):
        done = play(tmp_path, playbook, *words)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.playbook
@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"ANSIBLE_RUN_TAGS": "x"}, "--tags x"),
        ({"ANSIBLE_SKIP_TAGS": "always"}, "--skip-tags always"),
        # Without the callback, only the table is missing. The refusal is the same.
        (
            {
                "ANSIBLE_CALLBACK_PLUGINS": "/nonexistent",
                "ANSIBLE_RUN_TAGS": "x",
            },
            "--tags x",
        ),
    ],
    ids=["tags", "skip-tags", "no callback"],
)
def test_an_environment_or_configuration_of_ones_own_changes_nothing(
    environment: dict[str, str], named: str, tmp_path: Path
) -> None:
    done = play(tmp_path, "validate.yml", "-l", "n1", **environment)
    assert done.returncode != 0
    assert f"{named} leaves out tasks" in done.stderr


# A play that serves one host after the other, and stops after the first host that fails.
STOPS = """
- name: Do one node after the other
  hosts: "{{ 'all' | refuse_partial_runs(groups) }}"
  gather_facts: false
  serial: 1
  tasks:
    - name: Do it
      ansible.builtin.debug:
        msg: done
      failed_when: inventory_hostname in broken
"""


@pytest.mark.playbook
@pytest.mark.parametrize(("broken", "left_out"), [("[]", ""), ("[a2]", "a[3-4]"), ("[a4]", "")])
def test_hosts_that_no_task_reached_are_named(broken: str, left_out: str, tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("all: {hosts: {'a[1:4]': {ansible_connection: local}}}")
    (tmp_path / "stops.yml").write_text(STOPS)
    done = play(tmp_path, str(tmp_path / "stops.yml"), "-l", "a*", "-e", f"{{broken: {broken}}}")
    assert done.returncode == (0 if broken == "[]" else 2), done.stdout + done.stderr
    assert (f"{left_out}: requested" in done.stdout) == bool(left_out)


# A play whose only task, because of run_once, does something to only one of the hosts.
ENDS = """
- name: Do nothing to most
  hosts: "{{ 'all' | refuse_partial_runs(groups) }}"
  gather_facts: false
  tasks:
    - name: Do it to one
      ansible.builtin.debug:
        msg: done
      run_once: true
"""


@pytest.mark.playbook
@pytest.mark.parametrize("shown", ["true", "false", "runner"])
def test_a_playbook_that_did_nothing_to_a_host_does_not_end_well(shown: str, tmp_path: Path) -> None:
    # The callback fails the playbook with and without its table. ansible-runner sets another path for
    # callbacks. Ansible then finds the callback beside the playbook.
    (tmp_path / "hosts.yml").write_text("all: {hosts: {'a[1:4]': {ansible_connection: local}}}")
    (tmp_path / "ends.yml").write_text(ENDS)
    (tmp_path / "callback_plugins").symlink_to(ROOT / "playbooks/callback_plugins")
    runner = {"ANSIBLE_CALLBACK_PLUGINS": "/nonexistent"} if shown == "runner" else {}
    shown = shown.replace("runner", "true")
    done = play(tmp_path, str(tmp_path / "ends.yml"), "-l", "a*", RACKPROOF_TABLE=shown, **runner)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "a[2-4]: requested, but nothing was done there" in done.stdout


@pytest.mark.parametrize("name", ["n1\u200b", "n\u00ad1", "\u202en1", "n1\u00a0", "n1\x07"])
def test_a_host_s_name_has_characters_that_can_be_seen(name: str) -> None:
    with pytest.raises(PartialRunError, match="invisible characters") as caught:
        hosts_to_do("gpu_nodes", {"all": ["n1", name], "gpu_nodes": ["n1", name]}, None)
    assert str(caught.value).isprintable()


BREAKS = """
- name: Break the view
  hosts: "{{ 'all' | refuse_partial_runs(groups) }}"
  gather_facts: false
  tasks:
    - name: Do it
      ansible.builtin.debug:
        msg: done
      failed_when: broken
"""
# The callback rackproof, whose search for hosts that were left out raises an exception.
BREAKING_CALLBACK = """
import rackproof_ansible.playbook_summary
import rackproof_ansible.asked_hosts
def broken(*given, **named):
    raise ZeroDivisionError("it broke")
rackproof_ansible.asked_hosts.hosts_left_out = broken
exec(compile(open({path!r}).read(), {path!r}, "exec"))
"""


@pytest.mark.playbook
@pytest.mark.parametrize("failing", [False, True])
def test_a_guard_that_breaks_makes_no_success(failing: bool, tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("all: {hosts: {a1: {ansible_connection: local}}}")
    (tmp_path / "breaks.yml").write_text(BREAKS)
    folder = tmp_path / "broken_callback"
    folder.mkdir()
    real = ROOT / "plugins/callback/rackproof.py"
    text = BREAKING_CALLBACK.format(path=str(real))
    (folder / "rackproof.py").write_text(real.read_text().split("from __future__")[0] + text)
    # ansible.cfg also requires this callback, and Ansible searches only this folder here.
    shutil.copy(real.with_name("rackproof_output.py"), folder)
    done = play(
        tmp_path,
        str(tmp_path / "breaks.yml"),
        "-e",
        f"{{broken: {failing}}}",
        ANSIBLE_CALLBACK_PLUGINS=str(folder),
        PYTHONPATH=str(ROOT / "src"),
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "unknown" in done.stdout + done.stderr
