"""Test that the output of the fake nvidia-smi has the form of the real tool's output.

The real output is in tests/data/real, and in the folder ``real`` for a machine with two H200. Values that
differ between two machines of one model are not compared.
"""

from __future__ import annotations

import importlib.util
import io
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

from rackproof.core.records import Verdict
from rackproof.logs import parse, read_gpus
from rackproof.logs.gpu_use import read_gpu_state
from rackproof.nodes.facts import findings_from_facts, node_from_facts
from testrack.tests.fakes.fake_paths import shape

CAPTURES = {
    "h100": "nvidia-smi/qx-h100.xml",
    "b200": "nvidia-smi/qx-b200.xml",
    "gb300": "nvidia-smi/qx-gb300.xml",
    "h200": "h200-x4/nvidia-smi-q.xml",
}
# Values that differ between two machines of one model, or from one moment to the next.
VARIES = re.compile(
    r"timestamp|serial|uuid|pdi|minor_number|board_id|module_id|guid|latest|virtualization_mode|pci/pci_(bus|device|"
    r"domain|bus_id)$|_util$|replay_counter|counters/.*sw_power_cap$|temp/?$|gpu_temp$|gpu_temp_tlimit|memory_temp$|"
    r"_power_draw$|slot_number|tray_index|clusterUuid|persistence_mode|attached_gpus|fb_memory_usage/(used|free)|"
    r"bar1_memory_usage/(used|free)|addressing_mode|clocks/(graphics|sm)_clock|pci_sub_system_id"
)


def leaves(element: ElementTree.Element, path: str = "") -> list[tuple[str, str]]:
    """Return the path and text of every element in order, without the long list of supported clocks."""
    found: list[tuple[str, str]] = []
    for child in element:
        inner = f"{path}/{child.tag}"
        if child.tag != "supported_graphics_clock":
            found.append((inner, (child.text or "").strip()))
            found += leaves(child, inner)
    return found


@pytest.mark.parametrize("sku", CAPTURES)
def test_xml_has_the_elements_and_the_values_of_a_real_gpu_of_that_model(
    sku: str, real_logs: Path, make: Callable
) -> None:
    theirs = ElementTree.parse(real_logs / CAPTURES[sku]).getroot()
    version = theirs.findtext("driver_version")
    ours = ElementTree.fromstring(make(sku, version).ok("nvidia-smi -q -x"))
    assert [child.tag for child in ours if child.tag != "gpu"] == [
        child.tag for child in theirs if child.tag != "gpu"
    ]
    mine, real = leaves(ours.find("gpu")), leaves(theirs.find("gpu"))
    assert [path for path, _text in mine] == [path for path, _text in real]
    different = [
        (path, text, other)
        for (path, text), (_path, other) in zip(mine, real, strict=True)
        if text != other and not VARIES.search(path)
    ]
    assert different == []
    graphics = ".//supported_graphics_clock"
    clocks = {clock.text for clock in theirs.find("gpu").iterfind(graphics)}
    assert {clock.text for clock in ours.find("gpu").iterfind(graphics)} == clocks


def test_xml_of_an_older_driver_has_the_elements_of_its_time(real_logs: Path, make: Callable) -> None:
    theirs = ElementTree.parse(real_logs / "nvidia-smi/qx-a100.xml").getroot()
    ours = ElementTree.fromstring(make("h100", theirs.findtext("driver_version")).ok("nvidia-smi -q -x"))
    mine, real = ({path for path, _ in leaves(one.find("gpu"))} for one in (ours, theirs))
    # An A100 reports its temperature limits, and an H100 its distance to them.
    assert {path for path in mine ^ real if "threshold" not in path} == set()


def test_xml_is_laid_out_line_by_line_as_the_real_one(real_logs: Path, make: Callable) -> None:
    """Some tools search the XML line by line."""

    def lines(text: str) -> list[str]:
        first = text[: text.index("</gpu>")]
        kept = [line for line in first.splitlines() if "supported_graphics_clock" not in line]
        return [re.sub(r">[^<>]*<", "><", re.sub(r'id="[^"]*"', "id", line)) for line in kept]

    theirs = (real_logs / CAPTURES["gb300"]).read_text()
    version = re.search(r"<driver_version>([^<]+)", theirs)[1]
    ours = make("gb300", version).ok("nvidia-smi -q -x")
    assert lines(ours) == lines(theirs)
    assert ours.endswith("\t</gpu>\n\n</nvidia_smi_log>\n")
    assert theirs.endswith("\t</gpu>\n\n</nvidia_smi_log>\n")


def test_q_has_the_lines_of_the_real_one(real: Path, make: Callable) -> None:
    def labels(text: str) -> list[str]:
        first = text[text.index("GPU 0000") : text.index("EGM ")]
        return [line.partition(" : ")[0].rstrip() for line in first.splitlines()[1:]]

    theirs = (real / "nvidia-smi-q.txt").read_text()
    node = make("h200", "580.159.04")
    assert labels(node.ok("nvidia-smi -q")) == labels(theirs)
    begin = node.ok("nvidia-smi -q").splitlines()[:9]
    assert [shape(line) for line in begin] == [shape(line) for line in theirs.splitlines()[:9]]
    whole = labels(theirs)
    for section in ("ECC", "TEMPERATURE", "CLOCK", "ROW_REMAPPER", "PERFORMANCE", "MEMORY"):
        part = labels(node.ok(f"nvidia-smi -q -i 3 -d {section}") + "EGM ")[:-1]
        first = whole.index(part[0])
        assert part == whole[first : first + len(part)], section


def squeezed(line: str) -> str:
    """Return the shape of a line, with one space for each group of spaces."""
    return re.sub(" +", " ", shape(line))


def test_the_plain_table_is_the_real_one(real: Path, make: Callable) -> None:
    ours = make("h200", "580.159.04").ok("nvidia-smi").splitlines()
    theirs = (real / "nvidia-smi.txt").read_text().splitlines()
    ours = ours[: 8 + 4 * 2] + ours[8 + 4 * 8 :]  # two GPUs of eight
    assert [squeezed(line) for line in ours[1:]] == [squeezed(line) for line in theirs[1:]]
    assert [len(line) for line in ours] == [len(line) for line in theirs]
    assert ours[-8:] == theirs[-8:]


def test_every_field_of_a_query_is_there_with_its_unit(real: Path, make: Callable) -> None:
    header, *rows = (real / "nvidia-smi-query-all.csv").read_text().splitlines()
    node = make("h200", "580.159.04")
    fields = [name.split(" [")[0] for name in header.split(", ")]
    ours = node.ok(f"nvidia-smi --query-gpu={','.join(fields)} --format=csv -i 0").splitlines()
    assert ours[0] == header
    mine, theirs = ours[1].split(", "), rows[0].split(", ")
    assert len(mine) == len(theirs)
    same = dict(zip(fields, zip(mine, theirs, strict=True), strict=True))
    different = {name: pair for name, pair in same.items() if shape(pair[0]) != shape(pair[1])}
    # The capture comes from a virtual machine, which has other PCI addresses and another power limit.
    assert set(different) <= {
        "pci.bus",
        "pci.device",
        "power.draw",
        "power.draw.average",
        "power.draw.instant",
    }
    bare = node.ok(f"nvidia-smi --query-gpu={','.join(fields)} --format=csv,noheader,nounits -i 0")
    (nounits, _) = (real / "nvidia-smi-query-all-nounits.csv").read_text().splitlines()
    units = [
        name
        for name, one, other in zip(fields, bare.strip().split(", "), nounits.split(", "), strict=True)
        if shape(one) != shape(other)
    ]
    assert set(units) <= set(different)


def test_the_captured_query_gives_the_same_header_and_shapes(real_logs: Path, make: Callable) -> None:
    header, *rows = (real_logs / "h200-x4/nvidia-smi-query.csv").read_text().splitlines()
    fields = ",".join(name.split(" [")[0] for name in header.split(", "))
    ours = make("h200", "580.159.04").ok(f"nvidia-smi --query-gpu={fields} --format=csv").splitlines()
    assert ours[0] == header
    assert shape(ours[1]) == shape(rows[0])


@pytest.mark.parametrize(
    ("alias", "header"),
    [
        ("gpu_name", "name"),
        ("gpu_uuid", "uuid"),
        ("clocks.sm", "clocks.current.sm [MHz]"),
        ("clocks_throttle_reasons.active", "clocks_event_reasons.active"),
        ("retired_pages.sbe", "retired_pages.single_bit_ecc.count"),
        ("gpu.power.draw.instant", "power.draw.instant [W]"),
    ],
)
def test_other_names_of_a_field_give_its_own(alias: str, header: str, make: Callable) -> None:
    assert make("h100").ok(f"nvidia-smi --query-gpu={alias} --format=csv").splitlines()[0] == header


def test_nvlink_and_topology(real_logs: Path, real: Path, make: Callable) -> None:
    node = make("h200", "580.159.04")
    theirs = (real_logs / "h200-x4/nvlink-status.txt").read_text().splitlines()
    assert [shape(line) for line in node.ok("nvidia-smi nvlink --status -i 0").splitlines()] == [
        shape(line) for line in theirs[:19]
    ]
    for option, file in (("-e", "nvlink-e.txt"), ("-R", "nvlink-R.txt")):
        lines = (real / file).read_text().splitlines()
        ours = node.ok(f"nvidia-smi nvlink {option}").splitlines()[: len(lines)]
        assert [shape(line) for line in ours] == [shape(line) for line in lines]
    topo, captured = node.ok("nvidia-smi topo -m"), (real_logs / "h200-x4/topo.txt").read_text()
    cards = "".join(f"\tNIC{index}" for index in range(8))
    assert topo.splitlines()[0].startswith("\t\x1b[4mGPU0\tGPU1\t")
    assert f"\tGPU7{cards}\tCPU Affinity" in topo.splitlines()[0]
    assert topo.splitlines()[0].endswith("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m")
    assert captured[captured.index("Legend:") :].strip() in topo
    assert re.fullmatch(
        r"GPU0\t X (\tNV18){7}\tPXB(\tNODE){3}(\tSYS){4}\t[\d,-]+\t0\t\tN/A", topo.splitlines()[1]
    )


def test_list_has_the_real_form(node: Callable) -> None:
    lines = node.ok("nvidia-smi -L").splitlines()
    assert len(lines) == 4
    form = (
        r"GPU (\d): NVIDIA GB300 \(UUID: (GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\)"
    )
    assert [re.fullmatch(form, line)[1] for line in lines] == list("0123")
    assert len({re.fullmatch(form, line)[2] for line in lines}) == 4


@pytest.mark.parametrize(
    ("arguments", "rc", "said"),
    [
        # The options, and the exit status and output of the real tool with driver 580.159.04.
        ("--foo", 255, "ERROR: Option --foo is not recognized. Please run 'nvidia-smi -h'.\n\n"),
        ("foo", 255, "ERROR: Option foo is not recognized. Please run 'nvidia-smi -h'.\n\n"),
        ("-pm", 255, "ERROR: Option -pm is missing its value. Please run 'nvidia-smi -h' for help.\n\n"),
        (
            "-L -i 0",
            2,
            "ERROR: Option -i is not valid for this command. Please run 'nvidia-smi -h' for help.\n\n",
        ),
        ("-q -d FOO", 2, "Failed to parse --display/-d flags\n"),
        ("--query-gpu=foo --format=csv", 2, 'Field "foo" is not a valid field to query.\n\n'),
        ("--query-gpu=name --format=foo", 2, "Format modifier is not recognized.\n"),
        ("-i 7", 6, "No devices were found\n"),
        ("-i 7 --query-gpu=name --format=csv", 6, "No devices were found\n"),
        ("-pm 7", 2, "Invalid persistence mode: 7\nTerminating early due to previous errors.\n"),
        ("nvlink --foo", 2, 'Option "--foo" is not recognized.\n'),
        ("topo --foo", 2, 'Option "--foo" is not recognized.\n'),
        ("mig --foo", 2, 'Option "--foo" is not recognized.\n'),
        ("mig -lgi", 0, "No MIG-enabled devices found.\n"),
        ("-B", 0, "No excluded devices found.\n"),
        (
            "--version",
            0,
            "NVIDIA-SMI version  : 580.159.04\nNVML version        : 580.159\n"
            "DRIVER version      : 580.159.04\nCUDA Version        : 13.0\n",
        ),
        (
            "--query-compute-apps=pid,name,used_memory,gpu_uuid --format=csv",
            0,
            "pid, process_name, used_gpu_memory [MiB], gpu_uuid\n",
        ),
        ("--query-compute-apps=pid --format=csv,noheader", 0, ""),
        (
            "-x",
            2,
            "Invalid combination of input arguments. Specify -q/--query and -x/--xml-format to run an XML "
            "query.  Please run 'nvidia-smi -h' for help.\n\n",
        ),
    ],
)
def test_errors_are_the_real_ones(arguments: str, rc: int, said: str, bare: Callable) -> None:
    answer = bare.init().drive("580.159.04")(f"nvidia-smi {arguments}")
    assert (answer.rc, answer.out) == (rc, said)


def test_persistence_mode_is_set_and_reported(bare: Callable) -> None:
    node = bare.init().drive()
    assert "Enabled persistence mode for GPU 00000008:06:00.0.\n" in node.ok("nvidia-smi -pm 1")
    assert "Persistence mode is already Enabled for GPU 00000008:06:00.0.\n" in node.ok("nvidia-smi -pm 1")
    query = "nvidia-smi --query-gpu=persistence_mode --format=csv,noheader"
    assert node.ok(query).split() == ["Enabled"] * 4
    node.ok("hardware --boot")
    assert node.ok(query).split() == ["Disabled"] * 4


def test_persistence_mode_is_set_for_one_gpu(bare: Callable) -> None:
    node = bare.init().drive()
    node.ok("nvidia-smi -pm 1 -i 2")
    query = "nvidia-smi --query-gpu=persistence_mode --format=csv,noheader"
    assert node.ok(query).split() == ["Disabled", "Disabled", "Enabled", "Disabled"]


def test_rows_of_remapped_memory(make: Callable) -> None:
    """The output has the real tool's form, with the number of memory banks of the SKU."""
    fields = "gpu_bus_id,remapped_rows.correctable,remapped_rows.pending,remapped_rows.histogram.max"
    out = make("h200").ok(f"nvidia-smi --query-remapped-rows={fields} --format=csv").splitlines()
    assert out[0] == fields.replace(",", ", ")
    assert out[1] == "00000000:1B:00.0, 0, No, 3072"


# Each case: a SKU, its number of GPUs, and the memory of each GPU in GiB.
@pytest.mark.parametrize(
    ("sku", "count", "gib"), [("gb300", 4, 278), ("b200", 8, 179), ("h100", 8, 80), ("h200", 8, 140)]
)
def test_the_projects_own_readers_find_a_healthy_node(
    sku: str, count: int, gib: int, make: Callable, kernel_files: bool
) -> None:
    node = make(sku)

    def ok(out: str) -> dict:
        return {"status": "ok", "rc": 0, "stdout": out, "stderr": "", "truncated": False}

    xml = node.ok("nvidia-smi -q -x")
    raw = {
        "files": {"nvidia_driver": (node.root / "proc/driver/nvidia/version").read_text()},
        "dmi": {path.name: path.read_text() for path in (node.root / "sys/class/dmi/id").iterdir()},
        "tools": {"nvidia_smi_xml": ok(xml), "fabricmanager": ok(node.ok("nv-fabricmanager --version"))},
        "infiniband": {"mlx5_0": {"fw_ver": node.state["hcas"][0]["firmware"], "ports": {}}},
    }
    record = node_from_facts("n1", raw, sku=sku)
    assert len(record.gpus) == count
    assert {round(gpu.memory_bytes / 2**30) for gpu in record.gpus} == {gib}
    assert record.software["driver"] == record.software["fabricmanager"] == "580.95.05"
    assert record.serial == node.state["machine"]["product_serial"]
    assert findings_from_facts("n1", raw, expected_gpus=count) == ()
    for format_name, out in (
        ("nvidia_smi_xml", xml),
        (
            "nvidia_smi_csv",
            node.ok("nvidia-smi --query-gpu=index,uuid,name,power.draw,clocks.sm --format=csv"),
        ),
        ("nvlink_status", node.ok("nvidia-smi nvlink --status")),
        ("nvidia_smi_topo", node.ok("nvidia-smi topo -m")),
    ):
        parsed = parse(io.BytesIO(out.encode()), format=format_name, name="fake")
        assert (parsed.verdict, [one.code for one in parsed.findings]) == (Verdict.PASS, []), format_name
        assert parsed.measurements


def test_gpus_keep_their_names_between_tools(node: Callable) -> None:
    """Different tools show the same UUIDs and bus ids for the GPUs."""
    listed = re.findall(r"UUID: (\S+)\)", node.ok("nvidia-smi -L"))
    gpus = read_gpus(node.ok("nvidia-smi -q -x").encode())
    assert [gpu.uuid for gpu in gpus] == listed
    assert re.findall(r"Device UUID: (\S+)", node.ok("dcgmi discovery -l")) == listed
    slots = [line.split()[0] for line in node.ok("lspci -D -d 10de:").splitlines()]
    assert [f"0000{slot}".upper() for slot in slots] == [gpu.bus_id.upper() for gpu in gpus]


@pytest.mark.parametrize("sku", ["h100", "h200", "gb300"])
def test_the_probes_read_an_idle_gpu_of_the_rack(sku: str, root: Path, make: Callable) -> None:
    """Both queries of the probes have an answer, in which no other program uses a GPU."""
    spec = importlib.util.spec_from_file_location("gpu_state", root / "workloads/gpu_state.py")
    gpu_state = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gpu_state)
    node = make(sku)
    uuids = node.ok("nvidia-smi --query-gpu=uuid --format=csv,noheader").split()
    states = gpu_state.read_states(
        uuids, lambda options, seconds: node.ok(["nvidia-smi", *options]), lambda _: None
    )
    assert [state["gpu"] for state in states] == uuids
    for state in states:
        assert all(value is not None for value in state.values())
        read = read_gpu_state({"moment": "begin", **state})
        assert (read.missing, read.shared, read.slowdowns) == ((), (), ())
    # The fake accepts the last field under the names of both driver generations.
    assert (
        len(
            {node.ok(["nvidia-smi", *query, "-i", "0"]).rpartition(",")[2] for query in gpu_state.GPU_QUERIES}
        )
        == 1
    )
