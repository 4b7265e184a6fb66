"""Test ``rackproof.jobs.inventory.netbox_source``, which reads the nodes of a cluster from NetBox.

NetBox is a database of the devices in a data center. ``rackproof adopt --netbox`` reads its device list page
by page. The tests use a fake with 300 nodes, and the stored answers of real versions. They check which
devices are nodes, the racks and variables, and the filters. For a wrong or hostile server, the error must be
one sentence, and the token must never be shown or sent elsewhere.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rackproof.jobs.inventory import netbox_source
from rackproof.jobs.inventory.inventory_files import build_cluster
from rackproof.jobs.inventory.netbox_source import _choose, read_netbox_nodes, read_token
from rackproof.jobs.inventory.nodes import AdoptedNode, AdoptError
from rackproof.jobs.inventory.sku_guess import SkuGuess, guess_sku, read_shipped_skus

from ..reimage.test_bmc_hostile import certificate
from .fake_netbox import TOKEN, FakeNetbox, device

# Fields of a network switch, which is not a node.
SWITCH = {"device_type": {"model": "QFX5130"}, "role": {"name": "Leaf", "slug": "leaf"}}


@pytest.fixture
def netbox() -> Iterator[FakeNetbox]:
    with FakeNetbox([device(number) for number in range(1, 301)], most=70) as fake:
        yield fake


def page(*devices: Any, count: Any = None, following: Any = None) -> tuple[int, dict[str, str], Any]:
    """Return an answer with one page of devices: status, headers and body."""
    count = len(devices) if count is None else count
    return 200, {}, {"count": count, "next": following, "previous": None, "results": list(devices)}


def test_all_pages_are_read(netbox: FakeNetbox) -> None:
    found = read_netbox_nodes(f"{netbox.url}/api/", TOKEN, [])
    assert len(found.nodes) == 300
    assert len({node.name for node in found.nodes}) == 300
    assert [query["offset"] for _, query, _ in netbox.heard] == [["0"], ["70"], ["140"], ["210"], ["280"]]
    node = found.nodes[0]
    assert (node.name, node.address, node.rack) == ("gpu-001", "10.1.0.2", "A01")
    assert node.variables == {"reimage_serial": "S000001"}
    assert node.hints[0].text == "DGX H100"


def test_a_device_that_is_no_node_is_left_out_and_reported(netbox: FakeNetbox) -> None:
    netbox.devices += [device(400 + at, f"leaf-{at}", **SWITCH) for at in range(3)]
    # This device names no GPU, but has the role of devices that do, so it is a node.
    netbox.devices += [device(500, "new-1", device_type={"model": "XE9680"})]
    netbox.devices += [device(501, ""), device(502, "")]
    found = read_netbox_nodes(netbox.url, TOKEN, [])
    assert {node.name for node in found.nodes} == {f"gpu-{at:03}" for at in range(1, 301)} | {"new-1"}
    assert any("3 devices" in one and "3 x QFX5130 (leaf)" in one for one in found.remarks)
    assert any("2 devices of NetBox without a name" in one for one in found.remarks)


def test_a_filter_selects_nodes_and_an_invalid_one_is_refused(netbox: FakeNetbox) -> None:
    netbox.devices += [device(400, "leaf-1", **SWITCH)]
    found = read_netbox_nodes(netbox.url, TOKEN, ["role=leaf"])
    assert [node.name for node in found.nodes] == ["leaf-1"]
    with pytest.raises(AdoptError, match=r"refuses the request \(400, Select a valid choice\. green is not"):
        read_netbox_nodes(netbox.url, TOKEN, ["role=green"])
    for wrong in ("role", "role=", "limit=1", "a b=c"):
        with pytest.raises(AdoptError, match="NAME=VALUE"):
            read_netbox_nodes(netbox.url, TOKEN, [wrong])


def test_a_filter_that_netbox_ignores_is_refused(netbox: FakeNetbox) -> None:
    """A misspelt filter would make each switch and each power strip a node."""
    netbox.devices += [device(400, "leaf-1", **SWITCH)]
    for wrong in ("rol=gpu-node", "colour=red"):
        with pytest.raises(AdoptError, match=f"lists all of its 301 devices for --netbox-filter {wrong}"):
            read_netbox_nodes(netbox.url, TOKEN, [wrong])
    # NetBox knows this filter, although it selects every node.
    assert len(read_netbox_nodes(netbox.url, TOKEN, ["status=active"]).nodes) == 300


def test_a_filter_of_a_place_or_a_status_makes_no_switch_a_node(netbox: FakeNetbox) -> None:
    netbox.devices += [device(400, "leaf-1", **SWITCH), device(401, "old", status={"value": "offline"})]
    for narrowing in (["site=berlin"], ["status=active"], ["site=berlin", "status=active"]):
        found = read_netbox_nodes(netbox.url, TOKEN, narrowing)
        assert "leaf-1" not in {node.name for node in found.nodes}
        assert any("1 x QFX5130 (leaf)" in one for one in found.remarks)


# Filters, and which of a GPU node, a server without a stated GPU and a switch they make a node.
@pytest.mark.parametrize(
    ("filters", "nodes"),
    [
        ([], {"gpu-1"}),
        (["site"], {"gpu-1"}),
        (["status", "has_primary_ip"], {"gpu-1"}),
        (["tag"], {"gpu-1", "server"}),
        (["q"], {"gpu-1", "server"}),
        (["name__ic", "site_id"], {"gpu-1", "server"}),
        (["cluster"], {"gpu-1", "server"}),
        (["platform_id"], {"gpu-1", "server"}),
        # What a filter excludes states no kind.
        (["role__n"], {"gpu-1", "server"}),
        (["role"], {"gpu-1", "server", "leaf-1"}),
        (["device_type_id", "tag"], {"gpu-1", "server", "leaf-1"}),
        (["manufacturer"], {"gpu-1", "server", "leaf-1"}),
    ],
)
def test_only_a_filter_of_a_kind_makes_a_switch_a_node(filters: list[str], nodes: set[str]) -> None:
    server = {"device_type": {"model": "XE9680"}, "role": {"slug": "server"}}
    devices = [device(1, "gpu-1"), device(2, "server", **server), device(3, "leaf-1", **SWITCH)]
    chosen, left_out = _choose(devices, filters)
    assert {one["name"] for one in chosen} == nodes
    assert len(chosen) + len(left_out) == len(devices)


@pytest.mark.parametrize(
    ("model", "role"),
    [
        ("GB300 NVL72 NVLink Switch Tray", "nvlink-switch"),
        ("GB300 NVL72 NVLink Switch Tray", "server"),
        ("GB300 NVL72 Power Shelf", "rack-parts"),
        ("AFF A30", "storage"),
        ("AFF A800", "storage-arrays"),
    ],
)
def test_equipment_with_a_gpus_name_is_no_node(netbox: FakeNetbox, model: str, role: str) -> None:
    netbox.devices += [device(400, "tray", device_type={"model": model}, role={"slug": role})]
    found = read_netbox_nodes(netbox.url, TOKEN, [])
    assert len(found.nodes) == 300
    assert any(f"1 x {model} ({role})" in one and "equipment" in one for one in found.remarks)


@pytest.mark.parametrize(
    "model", ["PowerEdge XE9680 8x H100", "Power System AC922 4x V100", "HGX H100 8-GPU NVSwitch", "DGX H100"]
)
def test_a_server_is_not_taken_for_equipment(netbox: FakeNetbox, model: str) -> None:
    netbox.devices += [device(400, "server", device_type={"model": model}, role={"slug": "other"})]
    assert len(read_netbox_nodes(netbox.url, TOKEN, []).nodes) == 301


def test_switches_may_have_equal_names(netbox: FakeNetbox) -> None:
    netbox.devices += [device(400, "leaf-1", **SWITCH), device(401, "leaf-1", **SWITCH)]
    assert len(read_netbox_nodes(netbox.url, TOKEN, []).nodes) == 300


def test_many_nodes_that_are_not_active_get_one_remark(netbox: FakeNetbox) -> None:
    netbox.devices += [device(400 + at, f"new-{at}", status={"value": "planned"}) for at in range(40)]
    netbox.devices += [device(500, "broken", status={"value": "failed"})]
    found = read_netbox_nodes(netbox.url, TOKEN, [])
    assert [one.partition(";")[0] for one in found.remarks if "active" in one] == [
        "41 nodes are not active in NetBox: 40 planned, 1 failed"
    ]


def test_a_number_of_gpus_may_be_a_text(netbox: FakeNetbox) -> None:
    netbox.devices = [device(1, custom_fields={"GPUs": "8"}), device(2, custom_fields={"gpus": "eight"})]
    found = read_netbox_nodes(netbox.url, TOKEN, [])
    assert [node.gpu_count for node in found.nodes] == [8, None]


@pytest.mark.parametrize("release", ["3.7.8", "4.6.8"])
def test_the_answers_of_a_real_netbox_are_read(netbox: FakeNetbox, root: Path, release: str) -> None:
    """The expected names, racks and SKUs are the ones that were entered into that NetBox."""
    netbox.devices = json.loads(
        (root / f"tests/data/real/netbox/devices-{release}.json").read_text(encoding="utf-8")
    )
    found = read_netbox_nodes(netbox.url, TOKEN, [])
    shipped = read_shipped_skus(root)
    nodes = {node.name: (node.rack, guess_sku(node, shipped).group) for node in found.nodes}
    # The NetBox 3.7.8 had more of the nodes, among them one in a rack A01 of the other hall.
    hall = "halle-1-" if "dgx-b033" in nodes else ""
    assert nodes == {
        "b200-001": ("berlin-B01", "sku_b200"),
        "dgx-b001": (f"berlin-{hall}A01", "sku_h100"),
        "dgx-b002": (f"berlin-{hall}A01", "sku_h100"),
        "dgx-b900.example.org": ("dgx-b", "sku_h100"),
        "gb300-r1-n01": ("zuerich-sued-NVL 01", "sku_gb300"),
        "giga-001": ("zuerich-sued-R 12 / Süd", "sku_h100"),
        "giga-005": ("zuerich-sued-R 12 / Sød", "sku_h100"),
        "hpe-001": ("zuerich-sued-halle-2-C01", "sku_h200"),
        "l40s-1": ("zuerich-sued-D01", "sku_l40s_x4"),
        "nvl-1": ("zuerich-sued-D02", "sku_h100_nvl_x8"),
        "smc-001": ("zuerich-sued-halle-1-C01", "sku_h200"),
        "smcb-001": ("zuerich-sued-halle-2-A01", "sku_b200"),
        "smi-1": ("berlin-M01", "sku_poweredge_xe9680_unknown"),
        "st-failed-1": ("berlin-S01", "sku_h100"),
        "st-planned-1": ("berlin-S01", "sku_h100"),
        "xe-001": ("zuerich-sued-halle-1-A01", "sku_h100"),
    } | (
        {
            "dgx-b033": ("berlin-halle-2-A01", "sku_h100"),
            "xe-021": ("zuerich-sued-A03", "sku_h200"),
        }
        if release == "3.7.8"
        else {}
    )
    about = {node.name: node for node in found.nodes}
    assert about["dgx-b002"].address == "2001:db8::2"
    assert about["dgx-b001"].variables == {"reimage_serial": "SN000001", "reimage_bmc_address": "10.99.0.2"}
    remarks = " ".join(found.remarks)
    for part in (
        "1 device of NetBox without a name",
        "gpu-müller",
        "2 x AFF A30",
        "2 nodes are not active in NetBox",
    ):
        assert part in remarks


def test_racks_with_one_name_in_two_halls_are_two_racks(netbox: FakeNetbox) -> None:
    racks = [{"id": 7, "name": "A01"}, {"id": 8, "name": "A01"}, {"id": 9, "name": "A02"}]
    halls: list[dict[str, str] | None] = [{"slug": "hall-1"}, {"slug": "hall-2"}, {"slug": "hall-2"}]
    both = zip(racks, halls, strict=True)
    netbox.devices = [device(at, rack=rack, location=hall) for at, (rack, hall) in enumerate(both, 1)]
    names = [node.rack for node in read_netbox_nodes(netbox.url, TOKEN, []).nodes]
    assert names == ["hall-1-A01", "hall-2-A01", "A02"]
    # Without a location, NetBox allows two racks with the same name.
    netbox.devices = [device(at, rack=rack) for at, rack in enumerate(racks, 1)]
    names = [node.rack for node in read_netbox_nodes(netbox.url, TOKEN, []).nodes]
    assert names == ["A01-7", "A01-8", "A02"]


def test_racks_that_differ_in_letters_a_group_cannot_have_are_two_groups() -> None:
    racks = {"n1": "R 12 / Süd", "n2": "R 12 / Sød", "n3": "R 12 / Süd", "n4": "北", "n5": "南"}
    nodes = [AdoptedNode(name=name, source="NetBox", rack=rack) for name, rack in racks.items()]
    guesses = {name: SkuGuess(group="", why="") for name in racks}
    assert build_cluster(nodes, guesses, "").racks == {
        "R-12-S-d": ("n2",),
        "R-12-S-d-2": ("n1", "n3"),
        "unnamed": ("n4",),
        "unnamed-2": ("n5",),
    }


def test_racks_with_one_name_at_two_sites_are_two_racks(netbox: FakeNetbox) -> None:
    netbox.devices = [device(1), device(2, site={"name": "Kiel", "slug": "kiel"})]
    assert [node.rack for node in read_netbox_nodes(netbox.url, TOKEN, []).nodes] == [
        "berlin-A01",
        "kiel-A01",
    ]


def test_impossible_values_are_left_out(netbox: FakeNetbox) -> None:
    netbox.devices = [
        device(1, "{{ lookup('pipe', 'id') }}"),
        device(
            2,
            serial="{{ 7*7 }}",
            primary_ip={"address": "$(id)/24"},
            oob_ip={"address": "10.9.0.1/24"},
            rack={"name": "{{ 1 }}\nall:"},
            custom_fields={"gpu_count": 4, "gpu_model": "H100 PCIe", "password": "s3cret"},
        ),
        device(
            3, status={"value": "offline"}, rack=None, tags=[{"name": "h200"}], serial=None, device_type=7
        ),
    ]
    found = read_netbox_nodes(netbox.url, TOKEN, [])
    assert [node.name for node in found.nodes] == ["gpu-002", "gpu-003"]
    second = found.nodes[0]
    assert (second.address, second.gpu_count) == ("", 4)
    assert second.variables == {"reimage_bmc_address": "10.9.0.1"}
    assert second.hints[0].text == "H100 PCIe"
    assert "\n" not in second.rack
    said = " ".join(found.remarks)
    assert "lookup" in said
    assert "offline" in said
    assert "s3cret" not in found.model_dump_json()


def test_two_devices_of_one_name_are_refused(netbox: FakeNetbox) -> None:
    netbox.devices = [device(1, "n1"), device(2, "n1"), device(3, "n2"), device(4, "n2")]
    with pytest.raises(AdoptError, match=r"2 devices called n1 and 1 more such names: .*site=NAME"):
        read_netbox_nodes(netbox.url, TOKEN, [])


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (
            [(302, {"Location": "https://evil.example.org/api/"}, b"")],
            r"redirects to https://evil.example.org:",
        ),
        ([(301, {"Location": "/login/"}, b"")], "redirects to /login/"),
        ([(403, {}, {"detail": "Token expired"})], r"refuses the token \(403, Token expired\)"),
        ([(403, {}, b"[" * 4096)], r"refuses the token \(403\)"),
        ([(401, {}, {"detail": "no"})], "refuses the token"),
        ([(500, {}, b"oops")], "answers with status 500"),
        ([(200, {}, b"<html>")], "does not answer with JSON"),
        ([(200, {}, b"\xff\xfe")], "does not answer with JSON"),
        ([(200, {}, b"[" * 100_000)], "does not answer with JSON"),
        ([(200, {}, b"")], "does not answer with JSON"),
        ([(200, {}, [1, 2])], "not a list of devices"),
        ([(200, {}, {"count": "many", "results": []})], "not a list of devices"),
        ([page(count=10**9)], "choose some with --netbox-filter"),
        # The pages never end: the same page again, an empty one, or always a new one.
        ([page(device(1), count=5, following="x")], "twice or none at all"),
        ([page(count=5, following="x")], "pages never end"),
        ([page(device(at), count=2, following="x") for at in range(9)], "pages never end"),
        ([page(device(1), count=9)], "lists 1 of 9 devices"),
        ([page("text", 7)], "twice or none at all"),
        ([page({"name": "n1"})], "twice or none at all"),
        ([(200, {"Content-Length": "99"}, b"{}")], "cut off"),
    ],
)
def test_the_error_about_a_wrong_netbox_is_one_sentence(
    netbox: FakeNetbox, answers: list[Any], message: str
) -> None:
    netbox.answers = answers
    with pytest.raises(AdoptError, match=message) as caught:
        read_netbox_nodes(netbox.url, TOKEN, [])
    assert TOKEN not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_page_is_requested_from_another_host(netbox: FakeNetbox) -> None:
    with FakeNetbox([]) as other:
        netbox.answers = [
            page(device(1), count=2, following=f"{other.url}/api/dcim/devices/?offset=1"),
            page(device(2), count=2),
        ]
        assert len(read_netbox_nodes(netbox.url, TOKEN, []).nodes) == 2
        netbox.answers = [(307, {"Location": f"{other.url}/api/dcim/devices/"}, b"")]
        with pytest.raises(AdoptError, match="the token is not sent there"):
            read_netbox_nodes(netbox.url, TOKEN, [])
        assert other.heard == []


def test_a_page_that_does_not_end_is_cut(netbox: FakeNetbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netbox_source, "_MOST_PAGE_BYTES", 1 << 20)
    netbox.answers = [(200, {}, b" " * (3 << 20))]
    with pytest.raises(AdoptError, match="does not end within 1 MiB"):
        read_netbox_nodes(netbox.url, TOKEN, [])


def test_the_token_is_sent_only_encrypted_and_to_a_trusted_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AdoptError, match="others on the network can read the token"):
        read_netbox_nodes("http://netbox.example.org", TOKEN, [])
    pair, _ = certificate(tmp_path, "netbox")
    fake = FakeNetbox([device(1)])
    fake.secure(pair)
    with fake:
        with pytest.raises(AdoptError, match="SSL_CERT_FILE"):
            read_netbox_nodes(fake.url, TOKEN, [])
        assert fake.heard == []
        monkeypatch.setenv("SSL_CERT_FILE", str(pair))
        assert [node.name for node in read_netbox_nodes(fake.url, TOKEN, []).nodes] == ["gpu-001"]


@pytest.mark.parametrize(
    "url",
    [
        "netbox.example.org",
        "ftp://netbox",
        "https://",
        "https://me:secret@netbox",
        "file:///etc/passwd",
        "https://n/?x=1",
        "https://n/?token=secret",
        "https://:secret@netbox",
        "me:secret@netbox",
        "https://[secret@",
        "https://[n",
    ],
)
def test_the_refusal_of_a_wrong_address_does_not_show_its_login(url: str) -> None:
    with pytest.raises(AdoptError, match="it is an address such as") as caught:
        read_netbox_nodes(url, TOKEN, [])
    assert "secret" not in str(caught.value)


# The body of an answer that sends the token back.
BACK = {"description": TOKEN}


@pytest.mark.parametrize(
    "answer",
    [
        page(device(1, f"gpu-{TOKEN}")),
        page(device(1, serial=TOKEN.upper())),
        page(device(1, rack={"name": TOKEN})),
        page(device(1, custom_fields={"gpu_model": f"H100 {TOKEN}"})),
        page(device(1, tags=[{"name": TOKEN}])),
        (200, {}, json.dumps(page(device(1, TOKEN))[2]).replace("0", "\\u0030").encode()),
        (302, {"Location": f"https://{TOKEN}.example.org/"}, b""),
        (302, {"Location": f"/login/?next={TOKEN}"}, b""),
        (403, {}, BACK),
        (500, {}, BACK),
        (200, {}, f"<html>{TOKEN}".encode()),
    ],
)
def test_a_token_that_is_sent_back_gets_nowhere(netbox: FakeNetbox, answer: Any) -> None:
    netbox.answers = [answer]
    with pytest.raises(AdoptError) as caught:
        read_netbox_nodes(netbox.url, TOKEN, [])
    assert TOKEN.lower() not in str(caught.value).lower()
    assert caught.value.__cause__ is None


def test_a_token_in_a_line_that_is_no_answer_is_not_shown() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(f"{TOKEN}\r\n\r\n".encode())

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(AdoptError, match="sends the token back") as caught:
            read_netbox_nodes(f"http://127.0.0.1:{server.getsockname()[1]}", TOKEN, [])
    assert TOKEN not in str(caught.value)


def test_a_netbox_that_does_not_listen_is_reported(netbox: FakeNetbox) -> None:
    with pytest.raises(AdoptError, match="does not answer"):
        read_netbox_nodes("http://127.0.0.1:1", TOKEN, [])


def test_a_token_of_version_2_is_sent_as_a_bearer_token(netbox: FakeNetbox) -> None:
    with pytest.raises(AdoptError, match="refuses the token"):
        read_netbox_nodes(netbox.url, "nbt_abc.def", [])
    assert netbox.heard[0][2] == "Bearer nbt_abc.def"


def test_the_token_is_read_from_the_environment_or_a_private_file(tmp_path: Path) -> None:
    assert read_token(None, {"NETBOX_TOKEN": TOKEN}) == TOKEN
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    assert read_token(path, {}) == TOKEN
    path.chmod(0o640)
    with pytest.raises(AdoptError, match="others may read: chmod 600"):
        read_token(path, {})
    path.chmod(0o600)
    for text in ("", "short", "two words here", "a\nb\nccccccccc", "x" * 5000, "naïve-token"):
        path.write_text(text)
        with pytest.raises(AdoptError, match="holds no token") as caught:
            read_token(path, {})
        assert "naïve" not in str(caught.value)
    os.mkfifo(tmp_path / "pipe", 0o600)
    for wrong in (tmp_path / "absent", tmp_path, tmp_path / "pipe"):
        with pytest.raises(AdoptError):
            read_token(wrong, {})
    with pytest.raises(AdoptError, match="set NETBOX_TOKEN"):
        read_token(None, {})
