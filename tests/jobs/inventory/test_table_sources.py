"""Test the sources of ``rackproof adopt`` that are files: CSV, Slurm and Ansible inventories.

The modules are ``csv_source``, ``slurm_source`` and ``ansible_source`` of ``rackproof.jobs.inventory``. Each
returns nodes with addresses, racks, GPUs and some variables. The tests check good files, spreadsheets with
other headings, and broken or hostile files. For a broken file, the error must be one sentence. No password or
template of a file may reach the inventory.
"""

from __future__ import annotations

import csv
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rackproof.core.errors import RackproofError
from rackproof.jobs.inventory import read_file
from rackproof.jobs.inventory.ansible_source import read_ansible_nodes
from rackproof.jobs.inventory.csv_source import read_csv_nodes
from rackproof.jobs.inventory.nodes import (
    AdoptedNode,
    AdoptedSource,
    AdoptError,
    GpuHint,
    alias_remarks,
    differing_gpu_remarks,
    join_sources,
    select_nodes,
)
from rackproof.jobs.inventory.slurm_source import ask_slurm_listing, rack_of_name, read_slurm_files


def written(tmp_path: Path, content: str | bytes, name: str = "nodes.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("text", ["name\nn1\n", 'name,x\nn1,"open\n', "name\n" + "x" * 200_000 + "\n"])
def test_reading_a_table_does_not_change_the_field_limit_of_the_module_csv(tmp_path: Path, text: str) -> None:
    before = csv.field_size_limit()
    with suppress(AdoptError):
        read_csv_nodes(written(tmp_path, text))
    assert csv.field_size_limit() == before


def test_a_table_is_read(tmp_path: Path) -> None:
    text = (
        "\ufeffInstance Name;Private IP;SSH Port;Type;GPU count;Rack;password\r\n"
        "gpu-01;10.0.0.1;2222;8xH100;8;a1;s3cret\r\n"
        "\r\n"
        '"gpu-02";10.0.0.2;;"8xH100";8;;x\r\n'
    )
    found = read_csv_nodes(written(tmp_path, text))
    first, second = found.nodes
    assert (first.name, first.address, first.gpu_count, first.rack) == ("gpu-01", "10.0.0.1", 8, "a1")
    assert first.variables == {"ansible_port": 2222}
    assert first.hints[0].text == "8xH100"
    assert second.rack == "gpu"
    assert "password" in found.remarks[0]
    assert "s3cret" not in found.model_dump_json()


def test_the_table_of_a_cloud_is_read_as_it_is_exported(tmp_path: Path) -> None:
    text = (
        "Instance ID,Name,Instance Type,Public IPv4,Private IPv4\n"
        "i-1,train-1,p5.48xlarge,203.0.113.1,192.0.2.1\n"
        "i-2,train-2,p5.48xlarge,,192.0.2.2\n"
    )
    first, second = read_csv_nodes(written(tmp_path, text)).nodes
    # The best heading is used, not the first: Name before Instance ID, and the private address.
    assert (first.name, first.address, second.address) == ("train-1", "192.0.2.1", "192.0.2.2")


def test_a_table_of_a_german_excel_is_read(tmp_path: Path) -> None:
    text = (
        "\ufeffsep=;\r\nHostname;IP-Adresse;Seriennummer;GPU-Modell;Anzahl GPUs;MAC;BMC-IP;Bemerkung\r\n"
        'n1;10.0.0.1;S1;NVIDIA H100;8;aa-bb-cc-dd-ee-ff;10.9.0.1;"zwei\nZeilen; ""so"""\r\n;;;;;;;\r\n'
    )
    found = read_csv_nodes(written(tmp_path, text))
    (node,) = found.nodes
    assert (node.address, node.gpu_count, node.hints[0].text) == ("10.0.0.1", 8, "NVIDIA H100")
    assert node.variables == {"reimage_serial": "S1", "reimage_bmc_address": "10.9.0.1"}
    assert found.remarks[0].endswith("not read: MAC, Bemerkung")


def test_a_line_may_describe_many_nodes(tmp_path: Path) -> None:
    found = read_csv_nodes(written(tmp_path, 'name,gpu,gpus\n"n[001-128]",h100,8\n'))
    assert [found.nodes[at].name for at in (0, 127)] == ["n001", "n128"]
    assert len(found.nodes) == 128


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no column has the nodes' names"),
        ("rack,gpus\na,8\n", "no column has the nodes' names"),
        ("name\n{{ lookup('pipe'|'id') }}\n", r":2: .* cannot be a host"),
        ("name\n$(reboot)\n", "cannot be a host"),
        ("name\n../../etc/passwd\n", "cannot be a host"),
        ("name\nn1\nn2\nn1\n", r":4: n1 is in line 2 already"),
        ('name\n"n[1-3],n2"\n', "n2 is in line 2 already"),
        ("name\nall\n", "has a group of this name"),
        ("name\n-n1\n", "cannot be a host"),
        ("name,ip\n,10.0.0.1\n", "has no name"),
        ("name,ip\nn1,10.0.0.999.1/{{\n", "neither an address nor a name"),
        ('name,ip\n"n[1-2]",10.0.0.1\n', "2 nodes cannot share an address"),
        # ssh would take these for 8.0.0.2, 10.0.0.0 and 10.0.0.1.
        ("name,ip\nn1,010.000.000.002\n", "neither an address nor a name"),
        ("name,ip\nn1,10.0\n", "neither an address nor a name"),
        ("name,ip\nn1,0x0A000001\n", "neither an address nor a name"),
        ("name,ip\nn1,300.1.1.1\n", "neither an address nor a name"),
        ("name,gpus\nn1,eight\n", "'eight' is not a number of GPUs"),
        ("name,gpus\nn1,-8\n", "is not a number of GPUs"),
        # The largest number that an inventory may state is 1,024.
        *(
            (f"name,gpus\nn1,{count}\n", r"is not a number of GPUs \(up to 1,024\)")
            for count in (1025, 5000, 9999)
        ),
        ("name,port\nn1,99999\n", "cannot be its ansible_port"),
        ("name,user\nn1,root;id\n", "cannot be its ansible_user"),
        ("name,serial\nn1,{{7*7}}\n", "cannot be its reimage_serial"),
        ("name,sku\nn1,h100 x\n", "is not a SKU"),
        ("name,os_hostname\nn1,{{x}}\n", "is not a host's name"),
        ("name\nn[1-9\n", "a bracket has no partner"),
        ("name\nn[1-99999999]\n", "not a range of up to 10,000"),
        ('name\n"n[1-200][1-200]"\n', "more than 10,000 hosts"),
        ('name,x\nn1,"open\n', "it is not CSV"),
        ("name\n" + "x" * 200_000 + "\n", "it is not CSV"),
        ("name\nn1\0\n", "NUL"),
        (b"name\nn1\nm\xfcller\n", r"nodes.csv:3: it is not text in UTF-8"),
        ("".join(["name\n", *(f"n{at}\n" for at in range(10_001))]), "more than 10,000 nodes"),
    ],
)
def test_the_error_about_a_broken_table_is_one_sentence(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    with pytest.raises(AdoptError, match=message) as caught:
        read_csv_nodes(written(tmp_path, content))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_path_that_is_no_file_or_a_large_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "absent", Path("/dev/zero")):
        with pytest.raises(AdoptError):
            read_csv_nodes(path)
    monkeypatch.setattr(read_file, "MOST_BYTES", 1 << 20)
    with pytest.raises(AdoptError, match="more than 1 MiB"):
        read_csv_nodes(written(tmp_path, "name\n" + "n\n" * (1 << 20)))


def ansible(tmp_path: Path, hosts: dict[str, Any], **groups: list[str]) -> Path:
    """Write the JSON of ``ansible-inventory --list`` with these hosts' variables and groups."""
    listed = {"_meta": {"hostvars": hosts}} | {name: {"hosts": names} for name, names in groups.items()}
    return written(tmp_path, json.dumps(listed), "inventory.json")


def test_an_inventory_is_read_without_its_secrets_and_templates(tmp_path: Path) -> None:
    hosts = {
        "n1": {
            "ansible_host": "10.0.0.1",
            "ansible_port": 22,
            "ansible_user": "ops",
            "ansible_become": True,
            "ansible_password": "s3cret",
            "gpus": 8,
        },
        "n2": {"ansible_host": "{{ lookup('pipe', 'id') }}", "ansible_ssh_common_args": "-o ProxyCommand=x"},
        "web1": {},
    }
    path = ansible(tmp_path, hosts, h100=["n1", "n2"], rack_07=["n1"], web=["web1"], all=["n1", "n2", "web1"])
    found = read_ansible_nodes(path)
    n1, n2, web = found.nodes
    assert n1.address == "10.0.0.1"
    assert n1.variables == {"ansible_port": 22, "ansible_user": "ops", "ansible_become": True}
    assert (n1.rack, n1.gpu_count) == ("rack_07", 8)
    assert (n2.address, n2.variables) == ("", {})
    assert web.gpu_count == 0
    assert "s3cret" not in found.model_dump_json()
    assert "lookup" not in found.model_dump_json()
    for variable in ("ansible_password", "ansible_host", "ansible_ssh_common_args"):
        assert variable in found.remarks[0]


def test_a_host_in_a_group_of_gpus_may_have_gpus(tmp_path: Path) -> None:
    hosts: dict[str, Any] = {"n1": {"gpu": "H100"}, **{name: {} for name in ("n2", "n3", "n4", "n5")}}
    path = ansible(tmp_path, hosts, gpu=["n1", "n2"], gpu_nodes=["n3"], no_gpu=["n4"], web=["n5"])
    found = read_ansible_nodes(path)
    assert [node.gpu_count for node in found.nodes] == [None, None, None, 0, 0]


def test_the_shipped_inventory_is_adopted(root: Path) -> None:
    found = read_ansible_nodes(root / "inventory/hosts.yml")
    # The checkout's own plugin sets variables rackproof_* for each host, which must not cause a remark.
    assert "rackproof_" not in " ".join(found.remarks)
    nodes = [node for node in found.nodes if node.sku]
    assert len(nodes) == 18
    assert {node.sku for node in nodes} == {"sku_gb300"}
    assert found.controller == "gb300-r01-ctl"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 200_000, "is not JSON"),
        ("[]", "it has no _meta"),
        ('{"all": {}}', "it has no _meta"),
        ('{"_meta": {"hostvars": {}}}', "has no hosts"),
        ('{"_meta": {"hostvars": []}, "a": {"hosts": ["n1"]}}', "hostvars is not a mapping"),
        ('{"_meta": {}, "a": {"hosts": {"n1": {}}}}', "hosts of a is not a list of names"),
        ('{"_meta": {}, "a": {"children": [7]}}', "children of a is not a list of names"),
        (b'{"_meta": "\xff"}', "not text in UTF-8"),
    ],
)
def test_the_error_about_a_broken_inventory_is_one_sentence(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    with pytest.raises(AdoptError, match=message) as caught:
        read_ansible_nodes(written(tmp_path, content, "inventory.json"))
    assert "\n" not in str(caught.value)


def test_an_inventory_that_ansible_cannot_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", written(tmp_path, "all: {hosts: [", "hosts.yml")):
        with pytest.raises(RackproofError):
            read_ansible_nodes(path)


def test_an_encrypted_inventory_names_the_variable_of_the_password(tmp_path: Path) -> None:
    hosts = written(tmp_path, "all: {hosts: {n1: }}\n", "hosts.yml")
    (tmp_path / "group_vars").mkdir()
    written(tmp_path / "group_vars", "$ANSIBLE_VAULT;1.1;AES256\n3636\n", "all.yml")
    with pytest.raises(RackproofError, match=r"no vault secrets found.* ANSIBLE_VAULT_PASSWORD_FILE"):
        read_ansible_nodes(hosts)


def test_hosts_with_impossible_names_are_left_out_and_named(tmp_path: Path) -> None:
    path = ansible(tmp_path, {"n1": {}, "{{ x }}": {}}, all=["n1", "{{ x }}"])
    found = read_ansible_nodes(path)
    assert [node.name for node in found.nodes] == ["n1"]
    assert "left out: host '{{ x }}'" in found.remarks[0]


def test_slurms_files_are_read_together(tmp_path: Path) -> None:
    conf = written(
        tmp_path,
        "SlurmctldHost=ctl\nNodeName=n[1-2] NodeAddr=10.0.0.[1-2] NodeHostname=host[1-2] Gres=gpu:h100:8\n"
        "NodeName={{x}} Gres=gpu:h100:8\nNodeName=n3 NodeAddr=$(id) Gres=gpu:8\n"
        "PartitionName=p Nodes=n[1-2]\n",
        "slurm.conf",
    )
    topology = written(tmp_path, "SwitchName=leaf7 Nodes=n[1-2]\n", "topology.conf")
    main = written(tmp_path, "Include conf.d/slurm.conf\nInclude other.conf\n", "main.conf")
    cut = written(tmp_path, "NodeName=n4 Arch=x86_64\n   CPUTot=4\n", "cut.txt")
    found = read_slurm_files([conf, topology, main])
    assert any("not read: Include other.conf;" in one for one in found.remarks)
    assert read_slurm_files([cut]).nodes[0].gpu_count is None
    n1, _, n3 = found.nodes
    assert (n1.address, n1.hostname, n1.rack, n1.gpu_count) == ("10.0.0.1", "host1", "leaf7", 8)
    assert (n3.address, n3.rack) == ("", "n")
    assert found.controller == "ctl"
    assert any("{{x}}" in one for one in found.remarks)
    assert any("$(id)" in one for one in found.remarks)


def test_slurm_is_queried_with_the_scontrol_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AdoptError, match=r"this machine \(.+\) has no scontrol, squeue, sinfo"):
        ask_slurm_listing()
    (tmp_path / "sinfo").write_text("#!/bin/sh\n")
    (tmp_path / "sinfo").chmod(0o755)
    tool = tmp_path / "scontrol"
    tool.write_text('#!/bin/sh\n[ "$2" = node ] || exit 1\necho "NodeName=n1 Gres=gpu:h100:8 State=IDLE"\n')
    tool.chmod(0o755)
    found = ask_slurm_listing()
    assert [node.name for node in found.nodes] == ["n1"]
    # Nights will query Slurm on this machine, too. They need more programs than scontrol.
    assert found.controller == "localhost"
    assert any("has no squeue, which" in remark for remark in found.remarks)
    tool.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(AdoptError, match="lists no nodes"):
        ask_slurm_listing()


@pytest.mark.parametrize(
    ("name", "rack"),
    [
        ("gb300-r01-n03", "gb300-r01"),
        ("rack12-node4", "rack12"),
        ("dc1-rack-07-gpu-3.example.org", "dc1-rack-07"),
        ("gpu-a001", "gpu-a"),
        ("n1", "n"),
        ("007", "nodes"),
    ],
)
def test_a_rack_is_guessed_by_the_name(name: str, rack: str) -> None:
    assert rack_of_name(name) == rack


def source(*nodes: AdoptedNode) -> AdoptedSource:
    return AdoptedSource(nodes=nodes)


def test_two_sources_describe_a_node_together() -> None:
    slurm = AdoptedNode(
        name="n1", source="Slurm", rack="guess", rack_from="its name", gpu_count=8, in_slurm=True
    )
    table = AdoptedNode(
        name="n1", source="CSV", address="10.0.0.1", rack="a1", variables={"ansible_port": 22}
    )
    (node,) = join_sources([source(slurm), source(table)])
    assert (node.address, node.gpu_count, node.in_slurm) == ("10.0.0.1", 8, True)
    # A rack that a source states is better than one that a name suggests.
    assert node.rack == "a1"


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ((), "no node is left"),
        (
            (AdoptedNode(name="N1", source="x"), AdoptedNode(name="n1", source="x")),
            "only in upper and lower case",
        ),
        (
            (
                AdoptedNode(name="n1", source="x", address="10.0.0.1"),
                AdoptedNode(name="n2", source="x", address="10.0.0.1"),
            ),
            r"n1 and n2 have the same address \(10.0.0.1\)",
        ),
        *(
            (
                (
                    AdoptedNode(name="n1", source="x", address=one),
                    AdoptedNode(name="n2", source="x", address=two),
                ),
                said,
            )
            for one, two, said in (
                ("2001:db8::1", "2001:0DB8:0:0::1", "same address"),
                ("10.0.0.1", "::ffff:10.0.0.1", "same address"),
                ("n2", "", "same address"),
            )
        ),
        (
            tuple(
                AdoptedNode(name=name, source="x", variables={"reimage_serial": "S1"}) for name in ("a", "b")
            ),
            "same serial number",
        ),
    ],
)
def test_nodes_that_make_no_valid_inventory_are_refused(nodes: tuple[AdoptedNode, ...], message: str) -> None:
    with pytest.raises(AdoptError, match=message):
        join_sources([source(*nodes)])


def test_nodes_are_left_out_by_pattern() -> None:
    nodes = [AdoptedNode(name=name, source="x") for name in ("login1", "n1")]
    assert [node.name for node in select_nodes(nodes, ["login*"])] == ["n1"]


@pytest.mark.parametrize("text", ["blocks: []\n", "[]\n", "ClusterName=x\nSlurmUser=slurm\n"])
def test_a_file_of_slurm_without_a_known_line_is_reported(tmp_path: Path, text: str) -> None:
    conf = written(tmp_path, "NodeName=n1 Gres=gpu:h100:8\n", "slurm.conf")
    other = written(tmp_path, text, "topology.yaml")
    assert any(f"{other}: it has no line" in one for one in read_slurm_files([conf, other]).remarks)


@pytest.mark.parametrize(
    ("line", "controller", "address"),
    [
        ("SlurmctldHost=ctl(10.0.0.1)", "ctl", "10.0.0.1"),
        ("SlurmctldHost=ctl(ctl)", "ctl", ""),
        ("SlurmctldHost=ctl({{x}})", "ctl", ""),
        ("SlurmctldHost=localhost", "", ""),
    ],
)
def test_the_host_of_slurmctld_has_its_address(
    tmp_path: Path, line: str, controller: str, address: str
) -> None:
    conf = written(tmp_path, f"{line}\nNodeName=n1 InstanceType=p5.48xlarge\n", "slurm.conf")
    found = read_slurm_files([conf])
    assert (found.controller, found.controller_address) == (controller, address)
    assert found.nodes[0].hints == (GpuHint(where="InstanceType", text="p5.48xlarge"),)


@pytest.mark.parametrize(
    "heading",
    [
        "Server Name,Host IP,No. of GPUs,GPU Model,Rack ID,iDRAC IP,Serial No.",
        "FQDN,IP Address,# GPUs,GPU Type,Rack Location,ILO IP,S/N",
        "Nodename,IPAddress,GPU Qty,Accelerator,Rack No,IPMI,Service Tag",
        "\ufeffMachine,ip addr,Number of GPUs,gpu,rack,BMC IP,SN",
    ],
)
@pytest.mark.parametrize("above", ["", "Hall 2\r\n\r\n", "Servers,,,,,,\r\nas of May,,,,,,\r\n", "sep=,\r\n"])
def test_the_headings_of_spreadsheets_are_known(tmp_path: Path, heading: str, above: str) -> None:
    rows = "gpu-1,10.0.0.1/24,8.0,H100,A1,10.1.0.1,AB1\r\ngpu-2,10.0.0.2,8,H100,A1,N/A,-\r\nTotal,,16,,,,\r\n"
    text = heading[:1] * heading.startswith("\ufeff") + above + f"{heading.lstrip(chr(0xFEFF))}\r\n{rows}"
    found = read_csv_nodes(written(tmp_path, text))
    first, second = found.nodes
    assert (first.name, first.address, first.gpu_count, first.rack) == ("gpu-1", "10.0.0.1", 8, "A1")
    assert first.variables == {"reimage_serial": "AB1", "reimage_bmc_address": "10.1.0.1"}
    assert (second.address, second.variables) == ("10.0.0.2", {})
    assert found.remarks == (
        f"{tmp_path}/nodes.csv: lines that are not read, because they are sums of others: "
        f"{text.count(chr(10))}",
    )


def test_an_error_below_a_title_has_the_line_number_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(AdoptError, match=r"nodes\.csv:4: "):
        read_csv_nodes(written(tmp_path, "Hall 2\n\nname,gpus\nn1,many\n"))


@pytest.mark.parametrize("word", ["N/A", "-", "none", "TBD", "?"])
def test_a_word_that_means_no_value_is_read_as_no_value(tmp_path: Path, word: str) -> None:
    text = f"name,ip,serial,bmc,rack,gpus\nn1,{word},{word},{word},{word},{word}\nn2,{word},{word},{word},,\n"
    first, _ = read_csv_nodes(written(tmp_path, text)).nodes
    assert (first.address, first.variables, first.rack, first.gpu_count) == ("", {}, "n", None)


@pytest.mark.parametrize(
    "text",
    [
        "Server, list\nname,ip,gpus\nn1,10.0.0.1,8\n",
        "name\nname;gpus\nn1;8\n",
        "Server,name\nname,gpus\nn1,8\n",
        "name,gpus\nn1,8\n",
    ],
)
def test_the_line_with_the_most_headings_is_the_heading(tmp_path: Path, text: str) -> None:
    first = read_csv_nodes(written(tmp_path, text)).nodes[0]
    assert (first.name, first.gpu_count) == ("n1", 8)


def test_the_first_of_two_lines_with_as_many_headings_is_the_heading(tmp_path: Path) -> None:
    (node,) = read_csv_nodes(written(tmp_path, "name,rack\nserver,rack\n")).nodes
    assert (node.name, node.rack) == ("server", "rack")


@pytest.mark.parametrize("word", ["-", "none", "N/A", "unknown"])
def test_a_word_for_an_empty_cell_states_no_gpu_and_no_type(tmp_path: Path, word: str) -> None:
    (node,) = read_csv_nodes(written(tmp_path, f"name,gpu,type\nn1,{word},{word}\n")).nodes
    assert node.hints == ()


@pytest.mark.parametrize(
    ("cell", "partitions"),
    [("gpu gpu", ("gpu",)), ("gpu;", ("gpu",)), (";", ()), ("|gpu, big,", ("gpu", "big")), ("", ())],
)
def test_a_cell_names_each_partition_once(tmp_path: Path, cell: str, partitions: tuple[str, ...]) -> None:
    path = written(tmp_path, f'name,partition\nn1,"{cell}"\n')
    assert read_csv_nodes(path).nodes[0].partitions == partitions


@pytest.mark.parametrize(("rack", "read"), [(12, "12"), (0, "0"), ("12", "12"), (True, "n")])
def test_the_rack_of_an_inventory_may_be_a_number(tmp_path: Path, rack: object, read: str) -> None:
    assert read_ansible_nodes(ansible(tmp_path, {"n1": {"rack": rack}}, all=["n1"])).nodes[0].rack == read


# Each entry is the name, host name, address and port of a node.
@pytest.mark.parametrize(
    ("nodes", "named"),
    [
        ([("vm-1", "", "", 0), ("vm-1.example.org", "", "", 0)], "vm-1,vm-1.example.org"),
        ([("VM-1.example.org", "", "", 0), ("vm-1", "", "", 0)], "VM-1.example.org,vm-1"),
        ([("n1", "host7", "", 0), ("host7", "", "", 0)], "host7,n1"),
        ([("n1", "host7", "", 0), ("host7.example.org", "", "", 0)], "host7.example.org,n1"),
        ([("n1", "", "vm-1.example.org", 0), ("vm-1", "", "", 0)], "n1,vm-1"),
        ([("n1", "host7", "", 0), ("n2", "host7", "", 0)], "n[1-2]"),
        ([("n1.a.example", "", "", 0), ("n1.b.example", "", "", 0)], ""),
        ([("n1", "n1", "n1.example.org", 0), ("n2", "n2.example.org", "10.0.0.2", 0)], ""),
        ([("n1", "", "gate.example.org", 2201), ("n2", "", "gate.example.org", 2202)], ""),
        ([("n1", "", "10.0.0.1", 0), ("n2", "", "10.0.0.2", 0)], ""),
    ],
)
def test_nodes_that_may_be_one_machine_are_named(nodes: list[tuple[str, str, str, int]], named: str) -> None:
    adopted = [
        AdoptedNode(
            name=name,
            source="x",
            hostname=hostname,
            address=address,
            variables={"ansible_port": port} if port else {},
        )
        for name, hostname, address, port in nodes
    ]
    remarks = alias_remarks(adopted)
    assert len(remarks) == bool(named)
    assert all(remark.startswith(f"some of {named} may be one machine") for remark in remarks)


# Each list has the number of GPUs of n1 in each source, and None if a source does not state it.
@pytest.mark.parametrize(
    ("counts", "named"),
    [
        ([8, 4], "source0 8 and source1 4"),
        ([0, 8], "source0 0 and source1 8"),
        ([None, 8, 4], "source1 8 and source2 4"),
        ([8, 8, None], ""),
        ([None, None], ""),
        ([8], ""),
    ],
)
def test_sources_that_differ_about_gpus_are_named(counts: list[int | None], named: str) -> None:
    sources = [
        AdoptedSource(nodes=(AdoptedNode(name="n1", source=f"source{number}", gpu_count=count),))
        for number, count in enumerate(counts)
    ]
    remarks = differing_gpu_remarks(sources)
    assert len(remarks) == bool(named)
    assert all(f"of n1 ({named}): the first source counts" in remark for remark in remarks)
