"""Test the parser of nccl-tests (:mod:`rackproof.logs.nccl_tests`), for its tables and its JSON.

nccl-tests measures collectives, which are operations of all GPUs such as all_reduce, and compares their
results with the right ones. These tests check that a table gets the name of its own collective, that several
tables of a file are judged one by one, also with a launcher's labels before their lines, and that an output
with a missing part or a contradiction does not pass.
"""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rackproof import logs
from rackproof.core.records import ParsedLog, Verdict
from rackproof.logs._launchers import rank_of_label, split_label
from tests.logs.log_samples import NCCL, nccl_json

PASS, FAIL, UNPROVEN = Verdict.PASS, Verdict.FAIL, Verdict.UNPROVEN

BODY = NCCL[NCCL.index(b"# nThread") :]
"""A table that does not name its collective. On two GPUs, all_reduce and reduce have the same factor."""


def read(data: bytes, name: str = "") -> ParsedLog:
    return logs.parse(io.BytesIO(data), name=name)


def names(parsed: ParsedLog) -> set[str]:
    """Return the collectives for which a log has a bus bandwidth."""
    return {one.name.removesuffix("_busbw") for one in parsed.measurements if one.name.endswith("_busbw")}


def codes(parsed: ParsedLog) -> set[str]:
    """Return the codes of a log's findings that have a verdict."""
    return {one.code for one in parsed.findings if one.verdict}


def table(redop: str = "sum", root: str = "-1", ratio: float = 1.75, ranks: int = 8, wrong: str = "0") -> str:
    """Return a table as versions 2.13 to 2.17 print it, which does not name its collective.

    ``ratio`` is the bus bandwidth divided by the algorithm bandwidth. It depends on the collective.
    """
    devices = "".join(
        f"#  Rank {rank:2d} Group  0 Pid   9000 on        n01 device {rank:2d} [0x{rank:02x}] NVIDIA H200\n"
        for rank in range(ranks)
    )
    rows = "".join(
        f"{size:12d}  {size // 4:12d}  {'float':>8s}  {redop:>6s}  {root:>6s}"
        + f"  {size / 1e3 / algbw:7.1f}  {algbw:6.2f}  {algbw * ratio:6.2f}  {wrong:>5s}" * 2
        + "\n"
        for size, algbw in ((1 << 20, 10.49), (1 << 30, 201.33))
    )
    return (
        f"# nThread 1 nGpus {ranks} minBytes 1048576 maxBytes 1073741824 step: 1024(factor) warmup iters: 5 "
        "iters: 20 agg iters: 1 validation: 1 graph: 0\n#\n# Using devices\n" + devices + "#\n"
        "#                                                              out-of-place              in-place\n"
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   "
        "algbw   busbw #wrong\n"
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  "
        "(GB/s)  (GB/s)\n" + rows + "# Out of bounds values : 0 OK\n"
        f"# Avg bus bandwidth    : {105.91 * ratio:.6g}\n#\n"
    )


# The ratio on eight ranks is 2 * 7 / 8 for all_reduce, 7 / 8 for all_gather and reduce_scatter, and 1 for
# broadcast and reduce.
ALL_REDUCE = table()
ALL_GATHER = table("none", ratio=0.875)
REDUCE_SCATTER = table(ratio=0.875)
BROADCAST = table("none", "0", ratio=1.0)
REDUCE = table("sum", "0", ratio=1.0)


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("nccl_allreduce.log", "all_reduce"),
        ("results/reduce/nccl_all_reduce.txt", "all_reduce"),
        ("reduce_2026/AllReduce-n01.out", "all_reduce"),
        ("gather/ncclAllReduce.log", "all_reduce"),
        ("all-reduce.8gpus.log", "all_reduce"),
        ("scatter/all reduce.log", "all_reduce"),
        ("prereduced.log", "all_reduce"),  # the name states no collective, so the table's factor decides
        ("broadcast.log", "all_reduce"),  # a name that the table contradicts does not count
        ("runs/all_gather/job-7.out", "all_reduce"),
        ("all_reduce_and_all_gather.log", "all_reduce"),
    ],
)
def test_the_name_of_a_file_states_its_collective(name: str, collective: str) -> None:
    parsed = read(ALL_REDUCE.encode(), name)
    assert (parsed.verdict, names(parsed)) == (PASS, {collective})
    assert parsed.tags["collective"] == collective


# Table, name of its file, and collective. It is called "collective" if table and name do not show which one
# it is.
@pytest.mark.parametrize(
    ("data", "name", "collective"),
    [
        (ALL_GATHER, "nccl-allgather.txt", "all_gather"),
        (ALL_GATHER, "all_gather/reduce.log", "collective"),
        (ALL_GATHER, "gather/x.log", "collective"),
        (table("none", ratio=0.875), "all_reduce/alltoall.txt", "alltoall"),
        (table("none", ratio=0.875), "all2all.txt", "alltoall"),
        (table("none", ratio=0.875), "nccl_all_to_all_n4.log", "alltoall"),
        (REDUCE_SCATTER, "nccl_reducescatter.log", "reduce_scatter"),
        (REDUCE_SCATTER, "all_reduce.log", "reduce_scatter"),
        (BROADCAST, "bcast.log", "broadcast"),
        (BROADCAST, "all_gather.log", "collective"),
        (REDUCE, "x.log", "reduce"),
        (table("none", ratio=1.0), "SendRecv.log", "sendrecv"),
        (table(ratio=1.0, ranks=2), "x.log", "all_reduce"),
        (table("sum", "0", ratio=1.0, ranks=2), "all_reduce.log", "reduce"),
    ],
)
def test_no_table_gets_the_name_of_another_collective(data: str, name: str, collective: str) -> None:
    parsed = read(data.encode(), name)
    assert (parsed.verdict, names(parsed)) == (PASS, {collective})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Lines that NVIDIA's programs print.
        (
            "".join(
                f"# Collective test starting: {program}_perf\n{data}"
                f"# Collective test concluded: {program}_perf\n"
                for program, data in (("all_reduce", ALL_REDUCE), ("sendrecv", table("none", ratio=1.0)))
            ),
            {"all_reduce", "sendrecv"},
        ),
        # Commands that a shell with `set -x` or a script prints.
        (f"+ ./all_gather_perf\n{ALL_GATHER}+ ./alltoall_perf\n{ALL_GATHER}", {"all_gather", "alltoall"}),
        (f"== broadcast_perf\n{BROADCAST}== reduce_perf\n{REDUCE}", {"broadcast", "reduce"}),
        ("".join((f"$ reduce_scatter_perf\n{REDUCE_SCATTER}", f"$ all_reduce_perf\n{ALL_REDUCE}")),
         {"reduce_scatter", "all_reduce"}),
        # One command or none is named, so the tables show the collective.
        (f"+ bash -c 'all_reduce_perf; reduce_scatter_perf'\n{ALL_REDUCE}{REDUCE_SCATTER}",
         {"all_reduce", "reduce_scatter"}),
        (f"+ all_reduce_perf -b 1M\n{ALL_REDUCE}{ALL_REDUCE}", {"all_reduce"}),
        (f"+ all_reduce_perf -b 1M\n{ALL_REDUCE}{ALL_GATHER}", {"all_reduce", "collective"}),
        (f"{ALL_REDUCE}{REDUCE_SCATTER}{REDUCE}", {"all_reduce", "reduce_scatter", "reduce"}),
    ],
)  # fmt: skip
def test_several_collectives_in_one_file_are_distinguished(text: str, expected: set[str]) -> None:
    parsed = read(text.encode(), "nccl.log")
    assert (parsed.format, parsed.verdict) == ("nccl_tests", PASS), codes(parsed)
    assert names(parsed) == expected


@pytest.mark.parametrize("ranks", range(1, 8))
@pytest.mark.parametrize(
    "head", ["", "+ all_reduce_perf -b 1M\n", "# Collective test starting: all_reduce_perf\n"]
)
def test_a_list_of_devices_that_lost_ranks_is_unproven(ranks: int, head: str) -> None:
    parsed = read((head + table(ranks=ranks)).encode(), "all_reduce.log")
    assert (parsed.verdict, "busbw_contradicts" in codes(parsed)) == (UNPROVEN, True)


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_a_single_rank_has_the_ratios_of_its_collectives(ratio: float) -> None:
    parsed = read(table("none", "0", ratio=ratio, ranks=1).encode(), "x.log")
    assert "busbw_contradicts" not in codes(parsed)


def test_each_table_of_a_file_must_end_and_have_rows() -> None:
    cut = ALL_GATHER[: ALL_GATHER.index("# Out of")]
    empty = "".join(line for line in ALL_GATHER.splitlines(True) if not line.lstrip()[:1].isdigit())
    assert codes(read((cut + ALL_REDUCE).encode())) == {"cut_off"}
    # A stray end does not replace a missing one.
    stray = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 185.343\n"
    assert read((ALL_REDUCE + stray + cut).encode()).verdict is UNPROVEN
    assert codes(read((ALL_REDUCE + empty).encode())) == {"no_rows"}
    mixed = f"+ all_gather_perf\n{cut}{BODY.decode()}{stray}"
    named = mixed.replace("+ all_gather", "# Collective test starting: all_gather")
    assert "mixed_tables" in codes(read(named.encode()))


@pytest.mark.parametrize("label", ["", "0: ", "[1,0]<stdout>:"])
@pytest.mark.parametrize(
    "cut",
    [
        "# Avg bus bandwidth    : 185.343\n#\n",
        " 185.343\n#\n",
        "3\n#\n",
        "\n#\n",
    ],
)
def test_a_table_whose_average_is_cut_off_is_unproven(label: str, cut: str) -> None:
    # Only the line of the average shows (with FAILED) that the average is below the minimum of `-C`.
    whole = labelled(ALL_REDUCE, label)
    assert read(whole.encode()).verdict is PASS
    damaged = labelled(ALL_REDUCE.removesuffix(cut), label)
    assert len(damaged) < len(whole)
    parsed = read(damaged.encode())
    assert (parsed.verdict, codes(parsed)) == (UNPROVEN, {"cut_off"})
    if label:
        # Of the tables of two processes, one is cut off.
        other = labelled(ALL_REDUCE, label.replace("0", "1"))
        assert codes(read((damaged + "\n" + other).encode())) <= {"cut_off"}
        if cut.startswith("# Avg"):
            assert read((damaged + other).encode()).verdict is UNPROVEN


@pytest.mark.parametrize(
    "sizes",
    [
        (8, 64, 4096),  # Even correct bandwidths of so small sizes may be 0.00.
        (8, 1 << 19),
        (1 << 20, 1 << 30),
    ],
)
@pytest.mark.parametrize("figures", ["0.00    0.00", "3.12    0.00"])
def test_a_table_without_any_bandwidth_is_unproven(sizes: tuple[int, ...], figures: str) -> None:
    # One GPU exchanges no data. Issues 71, 249 and 294 of nccl-tests have such tables.
    rows = "".join(
        f"{size:12d}  {size // 4:12d}     float     sum      -1" + f"   12.90    {figures}      0" * 2 + "\n"
        for size in sizes
    )
    lines = ALL_REDUCE.splitlines(True)
    text = "".join(one for one in lines if not one.lstrip()[:1].isdigit()).replace("# Out", rows + "# Out")
    text = text.replace("maxBytes 1073741824", f"maxBytes {sizes[-1]}").replace(": 185.343", ": 0")
    parsed = read(text.encode(), "all_reduce.log")
    assert (parsed.verdict, "no_bandwidth" in codes(parsed)) == (UNPROVEN, True)


OLD = """\
# nThread 1 nGpus 2 minBytes 524288 maxBytes 524288 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid   3442 on       n01 device  0 [0x07] A100-SXM4-40GB
#   Rank  1 Pid   3442 on       n01 device  1 [0x0a] A100-SXM4-40GB
#
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
      524288        131072   float     sum    35.20   14.89   14.89  ERR_1    34.05   15.40   15.40  ERR_2
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 15.14
#
"""
"""A table of a version before 2.13, whose column ``error`` has the largest deviation."""


# Type, largest deviations out of place and in place, and verdict. Rounding makes deviations of about 1e-6 in
# float, 1e-13 in double, and 4e-3 in half. It makes none in integers.
@pytest.mark.parametrize(
    ("dtype", "errors", "verdict"),
    [
        ("float", ("5e-07", "5e-07"), PASS),
        ("float", ("0e+00", "1e-06"), PASS),
        ("float", ("2e-06", "0e+00"), PASS),
        ("half", ("4e-03", "1e-03"), PASS),
        ("bfloat16", ("8e-03", "0e+00"), PASS),
        ("double", ("4e-13", "0e+00"), PASS),
        ("int32", ("0e+00", "0e+00"), PASS),
        ("float", ("  N/A", "  N/A"), UNPROVEN),
        ("float", ("1e-03", "0e+00"), FAIL),
        ("half", ("0e+00", "2e+01"), FAIL),
        ("double", ("1e-07", "1e-07"), FAIL),
        ("int32", ("1e+00", "0e+00"), FAIL),
        ("float", ("  nan", "0e+00"), FAIL),  # The program itself counts nan as right.
        ("float", ("  inf", "0e+00"), FAIL),
        ("float", ("5e-0x", "0e+00"), UNPROVEN),
    ],
)
def test_rounding_in_the_old_error_column_is_no_wrong_value(
    dtype: str, errors: tuple[str, str], verdict: Verdict
) -> None:
    text = OLD.replace("ERR_1", errors[0]).replace("ERR_2", errors[1]).replace("   float", f"   {dtype}")
    values = 524288 // {"half": 2, "bfloat16": 2, "double": 8, "int64": 8}.get(dtype, 524288 // 131072)
    text = text.replace("131072", f"{values}")
    parsed = read(text.encode())
    assert parsed.verdict is verdict, codes(parsed)
    if verdict is PASS and "N/A" not in errors[0]:
        assert [one.value for one in parsed.measurements if one.name == "wrong_values"] == [0]


def labelled(text: str, label: str) -> str:
    """Return a text with a launcher's label before each line."""
    return "".join(label + line for line in text.splitlines(True))


LABELS = [
    "0: ",
    " 0: ",
    "  12: ",
    "[1,0]<stdout>:",
    "[1,12]<stdout>: ",
    "[prterun-n01-4711@1,0]<stdout>: ",
    "Mon Nov 23 04:34:18 2026[1,0]<stdout>:",
    "[0] ",
    "[default0]:",
    "[n01:0] ",
    "n01: ",
    "gpu-node-7.cluster.local: ",
    "2026-11-23T04:34:18.123456789Z ",
    "2026-11-23 04:34:18 ",
    "2026-11-23T04:34:18Z [pod/nccl-launcher-x2x/main] ",
    "nccl-1  | ",
    "    ",
    "\t",
]
"""Labels that launchers such as srun, mpirun, torchrun and kubectl put before a line."""


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize(
    "data", [NCCL.decode(), ALL_REDUCE, OLD.replace("ERR_1", "5e-07").replace("ERR_2", "0e+00")]
)
def test_a_launchers_labels_hide_no_line(label: str, data: str) -> None:
    parsed, plain = read(labelled(data, label).encode()), read(data.encode())
    assert (parsed.format, parsed.verdict) == ("nccl_tests", PASS), codes(parsed)
    assert [(one.name, one.value, one.labels) for one in parsed.measurements] == [
        (one.name, one.value, one.labels) for one in plain.measurements
    ]
    assert parsed.tags == plain.tags


@pytest.mark.parametrize("label", LABELS[:8])
@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("201.33  352.33      0", "201.33  352.33      4", "wrong_values"),
        ("values : 0 OK", "values : 3 FAILED", "wrong_values"),
        ("# Avg bus bandwidth    : 185.343", "# Avg bus bandwidth    : 18.2 FAILED", "below_minimum"),
        ("201.33", "", "damaged_line"),
        ("# Out of bounds values", "", "cut_off"),
        ("# Out of", "n01: Test NCCL failure common.cu:958 'unhandled cuda error'\n# Out of", "nccl_error"),
    ],
)
def test_a_launchers_labels_hide_no_fault(label: str, old: str, new: str, code: str) -> None:
    damaged = ALL_REDUCE.replace(old, new)
    assert damaged != ALL_REDUCE
    for data in (damaged, labelled(damaged, label)):
        parsed = read(data.encode())
        assert parsed.verdict is not PASS
        assert code in codes(parsed)


def test_mixed_tables_of_several_processes_are_read() -> None:
    chance = random.Random(7)
    tables = {"0: ": ALL_REDUCE, "1: ": ALL_GATHER, "2: ": REDUCE, "13: ": ALL_REDUCE}
    waiting = {label: labelled(text, label).splitlines(True) for label, text in tables.items()}
    lines = []
    while waiting:
        label = chance.choice(list(waiting))
        lines.append(waiting[label].pop(0))
        if not waiting[label]:
            del waiting[label]
    parsed = read("".join(lines).encode())
    assert parsed.verdict is PASS, codes(parsed)
    ranks = {
        rank: {one.name for one in parsed.measurements if one.source.rank == rank and "busbw" in one.name}
        for rank in (0, 1, 2, 13)
    }
    assert ranks == {
        0: {"all_reduce_busbw"},
        1: {"collective_busbw"},
        2: {"reduce_busbw"},
        13: {"all_reduce_busbw"},
    }
    # A table without an end is found, although the others have one.
    without_end = [line for line in lines if not line.startswith("2: # Out of")]
    assert codes(read("".join(without_end).encode())) == {"cut_off"}


def test_the_factor_of_a_collective_depends_on_the_size_of_a_group() -> None:
    text = table(ratio=1.5).replace("Rank  4 Group  0", "Rank  4 Group  1")
    assert names(read(text.encode(), "all_reduce.log")) == {"all_reduce"}


@pytest.mark.parametrize(
    "begun", [ALL_REDUCE.partition("#       size")[0], ALL_REDUCE.partition("\n")[0] + "\n"]
)
def test_a_test_that_began_without_a_table_is_unproven(begun: str) -> None:
    for text in (begun + ALL_REDUCE, ALL_REDUCE + begun):
        parsed = read(text.encode())
        assert (parsed.verdict, "cut_off" in codes(parsed)) == (UNPROVEN, True)


@pytest.mark.parametrize("time", ["nan", "-nan", "inf"])
def test_a_row_without_a_possible_time_is_damaged(time: str) -> None:
    parsed = read(ALL_REDUCE.replace(f"{100.0:7.1f}", f"{time:>7s}", 1).encode())
    assert (parsed.verdict, "damaged_line" in codes(parsed)) == (UNPROVEN, True)


@pytest.mark.parametrize("time", ["0.00", "0.0", "-1.0"])
def test_a_row_that_took_no_time_is_impossible(time: str) -> None:
    parsed = read(ALL_REDUCE.replace(f"{100.0:7.1f}", f"{time:>7s}", 1).encode())
    assert (parsed.verdict, "impossible_value" in codes(parsed)) == (UNPROVEN, True)


def one_place(text: str) -> str:
    """Return a table without its out-of-place figures, as rccl-tests prints it with ``-O 0``."""
    figures = re.compile(
        r"( {2,}[0-9.]+ +[0-9.]+ +[0-9.]+ +\d+| +time +algbw +busbw #wrong)\1?$", re.MULTILINE
    )
    return figures.sub(r"\1", text)


def test_a_table_with_only_in_place_figures_is_read() -> None:
    parsed = read(one_place(ALL_REDUCE).encode())
    assert parsed.verdict is PASS, codes(parsed)
    assert parsed.measurement("all_reduce_busbw", size_bytes="1048576", place="in_place") is not None
    assert parsed.measurement("all_reduce_busbw", size_bytes="1048576", place="out_of_place") is None
    assert read(one_place(table(wrong="3")).encode()).verdict is FAIL


def test_a_replayed_trace_has_no_figures_out_of_place() -> None:
    row = next(line for line in ALL_REDUCE.splitlines(True) if line.startswith("     1048576"))
    figures = f"  {100.0:7.1f}  {10.49:6.2f}  {18.36:6.2f}  {'0':>5s}"
    text = ALL_REDUCE.replace(row, row.replace(figures, " " * 32, 1).rstrip("\n") + "  2026-11-23 04:34:18\n")
    text = text.replace(": 185.343", ": 241.004")  # the average of the three remaining figures
    parsed = read(text.encode())
    assert parsed.verdict is PASS, codes(parsed)
    assert parsed.measurement("all_reduce_busbw", size_bytes="1048576", place="in_place") is not None
    assert parsed.measurement("all_reduce_busbw", size_bytes="1048576", place="out_of_place") is None


@pytest.mark.parametrize(
    ("changes", "verdict", "expected"),
    [
        ({}, PASS, {"all_reduce"}),
        ({"args": ["/opt/alltoallv_perf"]}, PASS, {"alltoallv"}),
        ({"args": ["./a.out"]}, PASS, {"all_reduce"}),
        ({"average_bus_bandwidth": {"bandwidth": 3.0, "okay": "false"}}, FAIL, {"all_reduce"}),
        ({"average_bus_bandwidth": {"bandwidth": 305.0, "okay": "unchecked"}}, PASS, {"all_reduce"}),
        ({"average_bus_bandwidth": {"bandwidth": 3.0, "okay": "unchecked"}}, UNPROVEN, {"all_reduce"}),
    ],
)
def test_json_has_its_verdict_and_collective(
    changes: dict[str, Any], verdict: Verdict, expected: set[str]
) -> None:
    assert json.loads(nccl_json())
    parsed = read(nccl_json(**changes))
    assert (parsed.verdict, names(parsed)) == (verdict, expected)


@pytest.mark.parametrize(
    ("sizes", "growth", "verdict"),
    [
        ((8, 16, 32), {"step_factor": 2}, PASS),
        ((8, 16, 32) * 2, {"step_factor": 2}, PASS),
        ((8, 32), {"step_factor": 2}, UNPROVEN),
        ((16, 32), {"step_factor": 2}, UNPROVEN),
        ((8, 16, 24), {"step_bytes": 8}, PASS),
        ((8, 24), {"step_bytes": 8}, UNPROVEN),
    ],
)
def test_json_with_a_missing_size_is_unproven(
    sizes: tuple[int, ...], growth: dict[str, int], verdict: Verdict
) -> None:
    # The largest size is smaller than requested if the memory was too small for it.
    row = json.loads(nccl_json())["results"][0]
    rows = []
    for size in sizes:
        place = {"time": size * 10.0, "alg_bw": 0.0001, "bus_bw": 0.0001, "nwrong": 0.0}
        rows.append({**row, "size": size, "count": size // 4, "out_of_place": place, "in_place": place})
    config = {**json.loads(nccl_json())["config"], "minimum_bytes": 8, "maximum_bytes": 64, **growth}
    average = {"bandwidth": 0.0001, "okay": "unchecked"}
    parsed = read(nccl_json(results=rows, config=config, average_bus_bandwidth=average))
    assert (parsed.verdict, "rows_missing" in codes(parsed)) == (verdict, verdict is UNPROVEN)


def changed_json(change: Callable[[dict[str, Any]], object]) -> bytes:
    document = json.loads(nccl_json())
    change(document)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("change", "verdict", "code"),
    [
        (lambda root: root.pop("config"), UNPROVEN, "devices_contradict"),
        (lambda root: root["config"].pop("devices"), UNPROVEN, "devices_contradict"),
        (lambda root: root["config"].update(devices=[]), UNPROVEN, "devices_contradict"),
        (lambda root: root["config"]["devices"][2].pop("device_info"), UNPROVEN, "damaged_json"),
        (lambda root: root["config"]["devices"].__setitem__(1, "H200"), UNPROVEN, "damaged_json"),
        (lambda root: root["config"].pop("maximum_bytes"), UNPROVEN, "rows_missing"),
        (lambda root: root["config"].update(minimum_bytes=8), UNPROVEN, "rows_missing"),
        (lambda root: root["config"].pop("validation"), UNPROVEN, "not_checked"),
        (lambda root: root["config"].update(validation=0), UNPROVEN, "not_checked"),
        (lambda root: root.pop("average_bus_bandwidth"), UNPROVEN, "average_contradicts"),
        (lambda root: root["average_bus_bandwidth"].update(bandwidth="x"), UNPROVEN, "average_contradicts"),
        (lambda root: root["average_bus_bandwidth"].pop("okay"), UNPROVEN, "damaged_json"),
        (lambda root: root["average_bus_bandwidth"].update(okay="maybe"), UNPROVEN, "damaged_json"),
        (lambda root: root["results"][0]["in_place"].pop("time"), UNPROVEN, "damaged_json"),
        (lambda root: root["results"][0]["in_place"].update(time="nan"), UNPROVEN, "damaged_json"),
        (lambda root: root["results"][0]["in_place"].pop("nwrong"), UNPROVEN, "damaged_json"),
        (lambda root: root["results"][0]["out_of_place"].update(nwrong=None), UNPROVEN, "not_checked"),
        (lambda root: root["results"][0].pop("in_place"), UNPROVEN, "damaged_json"),
        (lambda root: root["results"][0].pop("out_of_place"), UNPROVEN, "damaged_json"),
        (lambda root: root["results"][0].pop("count"), UNPROVEN, "damaged_json"),
        (lambda root: root["results"][0].pop("type"), UNPROVEN, "damaged_json"),
        (lambda root: root["results"][0].update(count=250_000), UNPROVEN, "busbw_contradicts"),
        (lambda root: root["results"][0].update(type="double"), UNPROVEN, "busbw_contradicts"),
        # Some collectives are never checked in place.
        (lambda root: root["results"][0]["in_place"].update(nwrong=None), PASS, ""),
        (lambda root: root["results"][0].update(type="float8_new"), PASS, ""),
        (lambda root: root["average_bus_bandwidth"].update(okay="true"), PASS, ""),
    ],
)
def test_json_with_a_missing_or_wrong_value_is_unproven(
    change: Callable[[dict[str, Any]], object], verdict: Verdict, code: str
) -> None:
    parsed = read(changed_json(change))
    assert (parsed.verdict, code in codes(parsed) | {""}) == (verdict, True), codes(parsed)


def test_the_misspelled_average_of_the_first_json_version_is_read() -> None:
    data = nccl_json().replace(b"bandwidth", b"bandwidith")
    assert (read(data).verdict, codes(read(data))) == (PASS, set())
    assert read(data.replace(b"305.0", b"400.0")).verdict is UNPROVEN
    assert read(data.replace(b"unchecked", b"false")).verdict is FAIL


def test_json_of_a_replayed_trace_has_no_figures_out_of_place() -> None:
    parsed = read(
        nccl_json(
            results=[{**json.loads(nccl_json())["results"][0], "out_of_place": None}],
            average_bus_bandwidth={"bandwidth": 310.0, "okay": "unchecked"},
        )
    )
    assert parsed.verdict is PASS, codes(parsed)


# Bus bandwidths in GB/s. The NVLinks of an H200 have 450 GB/s in each direction.
@pytest.mark.parametrize("speed", [7500.0, 700.0])
def test_json_with_a_speed_beyond_the_gpus_links_is_unproven(speed: float) -> None:
    place = {"time": 2e6 / 1e3 / (speed / 1.5), "alg_bw": speed / 1.5, "bus_bw": speed, "nwrong": 0.0}
    rows = [{**json.loads(nccl_json())["results"][0], "in_place": place, "out_of_place": place}]
    average = {"bandwidth": speed, "okay": "unchecked"}
    parsed = read(nccl_json(results=rows, average_bus_bandwidth=average))
    assert (parsed.verdict, codes(parsed)) == (UNPROVEN, {"impossible_value"})


@pytest.mark.parametrize("padding", [0, 100_000])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"nwrong": 0.0', b'"nwrong": 7, "nwrong": 0.0'),
        (b'"bus_bw": 300.0', b'"bus_bw": 3.0, "bus_bw": 300.0'),
        (b'"out_of_bounds"', b'"out_of_bounds": {"count": 3, "okay": "false"}, "out_of_bounds"'),
    ],
)
def test_json_with_a_repeated_key_is_unproven(old: bytes, new: bytes, padding: int) -> None:
    data = nccl_json(env=["x" * padding])
    assert read(data).verdict is PASS
    parsed = read(data.replace(old, new, 1))
    assert (parsed.verdict, codes(parsed) >= {"damaged_json"}) == (UNPROVEN, True)


@pytest.mark.parametrize(
    ("count", "wrong", "verdict", "code"),
    [
        (2000, 0.0, PASS, ""),
        (2001, 0.0, UNPROVEN, "too_many_rows"),
        (2001, 9.0, FAIL, "wrong_values"),
    ],
)
def test_no_result_of_json_is_ignored(count: int, wrong: float, verdict: Verdict, code: str) -> None:
    row = json.loads(nccl_json())["results"][0]
    last = {**row, "in_place": {**row["in_place"], "nwrong": wrong}}
    parsed = read(nccl_json(results=[*[row] * (count - 1), last]))
    assert (parsed.verdict, code in codes(parsed) | {""}) == (verdict, True), codes(parsed)


def test_no_row_of_a_table_is_ignored() -> None:
    parsed = read((ALL_REDUCE * 1001).encode(), "all_reduce.log")
    assert (parsed.verdict, codes(parsed)) == (UNPROVEN, {"too_many_rows"})


def test_a_table_whose_average_is_no_number_is_unproven() -> None:
    parsed = read(ALL_REDUCE.replace(": 185.343", ": 185.3x3").encode(), "all_reduce.log")
    assert (parsed.verdict, codes(parsed)) == (UNPROVEN, {"average_contradicts"})


@pytest.mark.parametrize("field", ["time", "cpu_time"])
def test_json_with_a_time_of_zero_is_unproven(field: str) -> None:
    rows = json.loads(nccl_json())["results"]
    place = {key: value for key, value in rows[-1]["in_place"].items() if key != "time"}
    rows[-1]["in_place"] = {**place, field: 0.0}
    assert "impossible_value" in codes(read(nccl_json(results=rows)))


# PCIe addresses and device numbers of two ranks on one host, and whether they are the same GPU.
@pytest.mark.parametrize(
    ("places", "numbers", "found"),
    [
        (("0000:1b:00", "0000:1b:00"), (0, 0), True),
        (("0000:1b:00", "0000:1b:00"), (0, 1), True),
        (("0000:1b:00", "0001:1b:00"), (0, 0), False),
        (("1b:00", "1b:00"), (0, 0), True),
        # Two GPUs of one host may differ only by the domain, which is missing here.
        (("1b:00", "1b:00"), (0, 1), False),
        (("0x1b", "0x1b"), (0, 0), True),
        (("0x1b", "0x1b"), (0, 1), False),
        (("0x1b", "0x43"), (0, 0), False),
    ],
)
def test_json_with_two_ranks_on_one_gpu_is_unproven(
    places: tuple[str, str], numbers: tuple[int, int], found: bool
) -> None:
    config = json.loads(nccl_json())["config"]
    devices = [
        {
            "rank": rank,
            "pid": rank,
            "hostname": "n01",
            "device": numbers[rank],
            "device_hex": place,
            "device_info": "H200",
        }
        for rank, place in enumerate(places)
    ]
    parsed = read(nccl_json(config={**config, "devices": devices}))
    assert ("devices_contradict" in codes(parsed)) is found


# Line, its label, the rest of the line, and the rank in the label.
@pytest.mark.parametrize(
    ("text", "label", "rest", "rank"),
    [
        ("  7: # size", "7:", "# size", 7),
        ("[1,3]<stdout>:# size", "[1,3]<stdout>:", "# size", 3),
        ("Mon Nov 23 04:34:18 2026[1,3]<stderr>: x", "[1,3]<stderr>:", "x", 3),
        ("[prterun-n01-7@1,3]<stdout>: # size", "[prterun-n01-7@1,3]<stdout>:", "# size", 3),
        ("x<stdout>: # size", "x<stdout>:", "# size", None),
        ("y-1<stderr>: # size", "y-1<stderr>:", "# size", None),
        ("Mon Nov 23 04:34:18 2026 x<stdout>:# size", "x<stdout>:", "# size", None),
        ("Mon Nov 23 04:34:18 2026<stdout>:# size", "", "# size", None),
        ("2026-11-23T04:34:18<stdout>:# size", "", "# size", None),
        ("[2] # size", "[2]", "# size", 2),
        ("n01: # size", "n01:", "# size", None),
        ("2026-11-23T04:34:18Z # size", "", "# size", None),
        ("# size", "", "# size", None),
        ("  1048576  262144  float", "", "  1048576  262144  float", None),
    ],
)
def test_the_label_and_rank_of_a_line_are_read(text: str, label: str, rest: str, rank: int | None) -> None:
    assert split_label(text) == (label, rest)
    assert rank_of_label(label) == rank


REAL = Path(__file__).resolve().parents[1] / "data/real/nccl"


def parse_real(name: str, *changes: tuple[str, str]) -> ParsedLog:
    text = (REAL / name).read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return logs.parse(io.BytesIO(text.encode()), name=name)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("b200-8gpu-all_reduce.txt", "406.30", "812.60"),
        ("b200-8gpu-all_reduce.txt", "389.23", "417.00"),
        ("b200-8gpu-all_reduce.txt", "406.30", "232.17"),
        ("b200-8gpu-all_reduce.txt", "222.42", "111.21"),
    ],
)
def test_a_busbw_that_does_not_follow_from_its_algbw_is_unproven(name: str, old: str, new: str) -> None:
    assert parse_real(name).verdict is Verdict.PASS
    found = parse_real(name, (old, new))
    assert found.verdict is Verdict.UNPROVEN
    assert "busbw_contradicts" in {one.code for one in found.findings}


@pytest.mark.parametrize(
    ("count", "verdict"), [(0, Verdict.PASS), (1, Verdict.UNPROVEN), (2, Verdict.UNPROVEN), (3, Verdict.PASS)]
)
def test_results_that_were_checked_only_in_some_rows_are_unproven(count: int, verdict: Verdict) -> None:
    text = (REAL / "b200-8gpu-all_reduce.txt").read_text().replace(" validation: 1", "")
    (row,) = [line for line in text.splitlines() if line.lstrip().startswith("40160460")]
    rows = [row] * 3  # the same size, measured three times
    # Some rows have the N/A of a program without checks (-c 0) out of place.
    rows = [
        one.replace(" 389.23      0", " 389.23    N/A") if at < count else one for at, one in enumerate(rows)
    ]
    found = logs.parse(io.BytesIO(text.replace(row, "\n".join(rows)).encode()), name="all_reduce.txt")
    assert found.verdict is verdict
    assert ("not_checked" in {one.code for one in found.findings}) == (count > 0)


def config_of(ranks: list[int], *, threads: int = 1, gpus: int = 1) -> dict[str, Any]:
    """Return the config of a test with ``-t THREADS -g GPUS`` that lists GPUs with these ranks."""
    devices = [{"rank": rank, "device_info": "H200"} for rank in ranks]
    config = json.loads(nccl_json())["config"]
    return {**config, "nthreads": threads, "ngpus": gpus, "devices": devices}


@pytest.mark.parametrize(
    ("ranks", "threads", "gpus"),
    [([0], 1, 4), ([0], 2, 2), ([0, 2], 1, 2), ([0, 2], 2, 1), ([0, 1, 2, 3], 1, 1), ([0, 1, 2, 3], 1, 4)],
)
def test_json_lists_the_first_gpu_of_each_process(ranks: list[int], threads: int, gpus: int) -> None:
    parsed = read(nccl_json(config=config_of(ranks, threads=threads, gpus=gpus)))
    assert parsed.verdict is PASS, codes(parsed)


@pytest.mark.parametrize(
    ("ranks", "gpus"), [([0], 8), ([0], 1), ([0, 4], 2), ([2], 2), ([0, 2, 2], 2), ([0, 1, 2], 4)]
)
def test_json_that_lists_too_few_processes_is_unproven(ranks: list[int], gpus: int) -> None:
    assert read(nccl_json(config=config_of(ranks, gpus=gpus))).verdict is UNPROVEN
