"""Test the driver of the test rack (testrack/driver) without a rack.

The tests cover the hosts of the inventory, the plan of missing hosts, lines for /etc/hosts and ssh, open
connections, claims on the rack, and the cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import rack as program
from driver import cache, claim, overlay
from driver.claim import connected_addresses
from driver.console import Console
from driver.layout import (
    BLOCK_BEGIN,
    Found,
    Host,
    RackError,
    expand,
    foreign_hosts,
    group_hosts,
    hosts_lines,
    plan,
    read_layout,
    ssh_config,
    with_block,
)
from driver.nodes import Nodes

INVENTORY = """---
# a comment
all:
  children:
    gb300-rack:
      hosts:
        a[01:03]:
        # another
        b1:  # the odd one
          ansible_host: 10.0.0.1
        "c[1:2]":
      vars:
        x: 1
    sku_gb300:
      children:
        gb300-rack:
    slurm_controller:
      hosts:
        head:
"""


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("n1", ["n1"]),
        ("r01-n[01:03]", ["r01-n01", "r01-n02", "r01-n03"]),
        ("n[9:11]x", ["n9x", "n10x", "n11x"]),
        ("n[008:010]", ["n008", "n009", "n010"]),
        ("n[5:5]", ["n5"]),
    ],
)
def test_a_range_is_expanded_as_ansible_does(pattern: str, names: list[str]) -> None:
    assert expand(pattern) == names


@pytest.mark.parametrize("pattern", ["n[a:c]", "n[3:1]", "n[1:2", "n[01:3:2]"])
def test_a_range_that_is_not_read_is_an_error(pattern: str) -> None:
    with pytest.raises(RackError, match="inventory"):
        expand(pattern)


def test_only_a_groups_own_hosts_are_read() -> None:
    assert group_hosts(INVENTORY, "gb300-rack") == ["a01", "a02", "a03", "b1", "c1", "c2"]
    assert group_hosts(INVENTORY, "slurm_controller") == ["head"]
    assert group_hosts(INVENTORY, "sku_gb300") == []
    assert group_hosts(INVENTORY, "absent") == []


def test_the_shipped_inventory_gives_the_rack_of_the_documents(root: Path) -> None:
    layout = read_layout((root / "inventory/hosts.yml").read_text())
    assert [host.name for host in layout.nodes] == [f"gb300-r01-n{number:02d}" for number in range(1, 19)]
    assert (layout.nodes[0].address, layout.nodes[-1].address) == ("198.18.77.11", "198.18.77.28")
    assert (layout.controller.name, layout.controller.address) == ("gb300-r01-ctl", "198.18.77.5")
    assert (layout.services.name, layout.services.address) == ("gb300-r01-svc", "198.18.77.6")
    addresses = [host.address for host in layout.everyone]
    assert len(addresses) == len(set(addresses)) == 22


@pytest.mark.parametrize(
    ("inventory", "words"),
    [
        ("all: {}\n", "names no host under gb300-rack"),
        (INVENTORY.replace("head:", "head[1:2]:"), "one host under slurm_controller, not 2"),
        (INVENTORY.replace("a[01:03]", "a[01:40]"), "room for 30"),
    ],
)
def test_an_inventory_that_is_no_rack_gives_the_reason(inventory: str, words: str) -> None:
    with pytest.raises(RackError, match=words):
        read_layout(inventory)


@pytest.mark.parametrize("number", [0, 7, -1])
def test_a_number_of_nodes_that_there_is_not(number: int) -> None:
    with pytest.raises(RackError, match=f"NODES={number}: .* 1 to 6 nodes"):
        read_layout(INVENTORY).wanted(number)


def test_a_small_rack_has_its_servers_and_what_else_is_asked_for() -> None:
    layout = read_layout(INVENTORY)
    assert [host.name for host in layout.wanted(1, ["h100"])] == [
        "head",
        layout.services.name,
        "a01",
        "h100-r01-n01",
    ]
    assert len(layout.wanted(None)) == 8
    with pytest.raises(RackError, match="--also dgx1"):
        layout.wanted(None, ["dgx1"])
    with pytest.raises(RackError, match="a99: no host of the rack"):
        layout.host("a99")


def host(name: str) -> Host:
    """Return a GB300 node with this name."""
    return Host(name, "198.18.77.99", "node", "gb300")


def test_the_plan_does_what_is_missing_and_no_more() -> None:
    states = {
        "runs": "running",
        "boots": "restarting",
        "stopped": "exited",
        "frozen": "paused",
        "half": "created",
        "broken": "dead",
        "other": "running",
        "off": "exited",
    }
    found = {name: Found(name, state) for name, state in states.items()}
    wanted = [host(name) for name in ("runs", "boots", "stopped", "frozen", "half", "broken", "off", "new")]
    todo = plan(wanted, found, silent={"off"})
    assert [one.name for one in todo.create] == ["new"]
    assert [one.name for one in todo.recreate] == ["half", "broken"]
    assert [one.name for one in todo.start] == ["stopped", "frozen"]
    assert [one.name for one in todo.keep] == ["runs", "boots", "off"]
    assert todo.beyond == ["other"]
    assert not todo.complete
    assert plan([host("runs"), host("boots")], found).complete


BEFORE = "127.0.0.1 localhost\n\n# mine\n10.0.0.1 me\n"
LINES = ["198.18.77.11\tn1", "198.18.77.12\tn2"]


def test_the_block_comes_and_goes_without_a_trace() -> None:
    with_rack = with_block(BEFORE, LINES)
    assert with_rack.startswith(BEFORE)
    assert [line for line in with_rack.splitlines() if line.startswith("198")] == LINES
    assert with_block(with_rack, LINES) == with_rack
    assert with_block(with_rack, []) == BEFORE
    assert with_block(BEFORE, []) == BEFORE


def test_what_stands_behind_the_block_stays() -> None:
    text = with_block(BEFORE, LINES) + "10.0.0.2 later\n"
    assert with_block(text, []) == BEFORE + "10.0.0.2 later\n"
    assert with_block(text, LINES[:1]).count(BLOCK_BEGIN) == 1


def test_a_file_without_a_last_newline_gets_one() -> None:
    assert with_block("127.0.0.1 localhost", []) == "127.0.0.1 localhost\n"


def test_a_block_without_an_end_is_not_guessed_at() -> None:
    with pytest.raises(RackError, match="remove the rack's block by hand"):
        with_block(f"{BEFORE}{BLOCK_BEGIN}\n198.18.77.11\tn1\n10.0.0.2 mine\n", [])


def test_lines_and_ssh_configuration_name_every_host() -> None:
    hosts = read_layout(INVENTORY).wanted(2)
    assert hosts_lines(hosts)[0] == "198.18.77.5\thead"
    text = ssh_config(hosts, "/a b/100%/key", "/k/known")
    assert "Host head gb300-r01-svc a01 a02\n" in text
    assert 'IdentityFile "/a b/100%%/key"' in text
    assert "StrictHostKeyChecking yes" in text


def test_another_checkouts_rack_is_distinguished_from_ones_own() -> None:
    mine = {name: Found(name, "running", "i", "/mine") for name in ("n01", "n02")}
    assert foreign_hosts(mine, "/mine") == []
    assert foreign_hosts({"n01": Found("n01", "exited")}, "/mine") == [], (
        "the host has no home, because an older checkout made it"
    )
    other = Found("n03", "exited", "i", "/its")
    assert foreign_hosts(mine | {"n03": other}, "/mine") == [other]


TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid
   0: 0100007F:0CEA 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0
   1: 014D12C6:9C40 0B4D12C6:0016 01 00000000:00000000 02:000A7214 00000000     0
   2: 014D12C6:9C41 0C4D12C6:0016 06 00000000:00000000 03:00000F2A 00000000     0
   3: 0200000A:9C42 0D00000A:0016 01 00000000:00000000 02:000A7214 00000000     0
   4: damaged
"""


# Addresses to search for in TCP, and those with an established connection (state 01).
@pytest.mark.parametrize(
    ("addresses", "open_to"),
    [
        (["198.18.77.11"], ["198.18.77.11"]),
        (["198.18.77.12"], []),  # closed, and waiting
        (["127.0.0.1", "192.0.2.1"], []),
        (["10.0.0.13", "198.18.77.11", "192.0.2.1"], ["10.0.0.13", "198.18.77.11"]),
        ([], []),
    ],
)
def test_open_connections_are_read_from_the_kernels_table(addresses: list[str], open_to: list[str]) -> None:
    assert connected_addresses(TCP, addresses) == open_to


def test_a_claim_is_seen_by_others_and_ends_with_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "LOCKS", tmp_path)
    assert claim.read_user() == (0, "")
    program = (
        "import sys, time; from pathlib import Path\n"
        "sys.path.insert(0, 'testrack'); from driver import claim, console\n"
        f"claim.LOCKS = Path({str(tmp_path)!r})\n"
        "with claim.claim(Path('/its'), console.Console(claim.LOCKS / 'timings')):\n"
        "    print('claimed', flush=True); time.sleep(600)"
    )
    folder = Path(__file__).resolve().parents[3]
    with subprocess.Popen([sys.executable, "-c", program], cwd=folder, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"claimed\n"
        assert claim.read_user() == (other.pid, "/its")
        with pytest.raises(RackError, match=f"process {other.pid} runs a gate or suite of /its"):
            claim.refuse_if_claimed()
        monkeypatch.setenv(claim.USER_VARIABLE, str(other.pid))
        claim.refuse_if_claimed()
        other.kill()
    assert claim.read_user() == (0, "")


def test_folders_of_the_cache_are_bounded_and_begin_as_a_copy(tmp_path: Path) -> None:
    for number, key in enumerate(("a", "b", "c", "a")):
        with cache.folder_for(tmp_path, "mirror", key) as folder:
            os.utime(folder, (number, number))
            assert folder == tmp_path / f"mirror-{key}"
            assert (folder / "first").exists() == (number > 0)
            (folder / "first").touch()
            os.utime(folder, (number, number))
    assert sorted(one.name for one in tmp_path.glob("mirror-*")) == ["mirror-a", "mirror-c"]
    with cache.folder_for(tmp_path, "mirror", "d", copied=False) as folder:
        assert list(folder.iterdir()) == []


def test_a_name_leads_to_the_cache_whatever_was_there(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").touch()
    for _ in range(2):
        cache.link(tmp_path / "old", tmp_path / "kept")
        assert (tmp_path / "old").resolve() == tmp_path / "kept"


def test_a_rack_of_a_checkout_that_is_gone_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(read_layout(INVENTORY), tmp_path, Console(tmp_path / "timings.json"))
    host = nodes.layout.everyone[0]
    monkeypatch.setattr(nodes, "present", lambda: [host])
    with pytest.raises(RackError, match=rf"(?s){host.name} exists, but its key .*rack\.py down"):
        nodes.publish()


def checkout(folder: Path) -> Path:
    """Make a checkout with the test rack's values and their link, as ``make rack`` does."""
    (folder / "testrack/overlay").mkdir(parents=True)
    (folder / "testrack/overlay/gb300-rack.yml").write_text("bench_test_rack: true\n")
    (folder / "inventory/group_vars/gb300-rack").mkdir(parents=True)
    return folder


@pytest.mark.parametrize("left", ["file", "dangling", "other"])
def test_values_that_an_earlier_rack_left_are_replaced(left: str, tmp_path: Path) -> None:
    home = checkout(tmp_path / "a")
    path = overlay.place(home)
    if left == "file":
        path.write_text("bench_test_rack: false\n")
    else:
        path.symlink_to("nowhere" if left == "dangling" else checkout(tmp_path / "b") / "testrack")
    assert overlay.lay(home)
    assert path.read_text() == "bench_test_rack: true\n"
    assert not overlay.lay(home)


def test_the_values_of_a_removed_rack_leave_its_checkout(tmp_path: Path) -> None:
    """Otherwise that checkout would judge a real rack by the test rack's values."""
    a, b = checkout(tmp_path / "a"), checkout(tmp_path / "b")
    overlay.lay(a)
    overlay.place(b).write_text("an operator's own file\n")
    homes = [f"{folder}/.rackproof/rack" for folder in (a, a, b)]
    assert overlay.take_away_left([*homes, ""]) == [overlay.place(a)]
    assert overlay.place(b).read_text() == "an operator's own file\n"


def test_a_services_host_of_an_older_mirror_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "STATE", tmp_path)
    present, older = tmp_path / "mirror-b", tmp_path / "mirror-a"
    present.mkdir()
    (tmp_path / "mirror").symlink_to(present)
    driver = program.Rack("bookworm")
    served = {"gb300-r01-svc": str(older)}
    monkeypatch.setattr(Nodes, "mirror_of", staticmethod(lambda host: served[host.name]))
    found = {name: Found(name, "running") for name in ("gb300-r01-svc", "gb300-r01-n01")}
    assert [host.name for host in driver._outdated_services(found)] == ["gb300-r01-svc"]
    served["gb300-r01-svc"] = str(present)
    assert driver._outdated_services(found) == []
    assert driver._outdated_services({}) == []
