"""Test the parser of perftest's output (:mod:`rackproof.logs.perftest`).

perftest measures RDMA transfers between network cards (``ib_write_bw``, ``ib_read_lat`` and related
programs). These tests check that:

- each column becomes the right measurement, with the options of perftest that add or remove columns
- all tables and devices of a file count, and each table must end
- a table or JSON that is incomplete, damaged, impossible or contradicts itself does not pass
- an error of perftest, and a port that is not active, fail the log
- each queue pair needs its addresses.
"""

from __future__ import annotations

import io
import re

import pytest

from rackproof import logs
from rackproof.core.records import ParsedLog, Verdict
from tests.logs.log_samples import PERFTEST

PASS, FAIL, UNPROVEN = Verdict.PASS, Verdict.FAIL, Verdict.UNPROVEN
# The line above and below each part of perftest's output.
RULE = "-" * 87 + "\n"
BW = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
LAT = (
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"
    "   99% percentile[usec]   99.9% percentile[usec] "
)
LAT_D = " #bytes        #iterations       t_avg[usec]    tps average"
"""Headers of the tables of bandwidth, of latency, and of latency measured for a time (``-D``)."""


def printed(title: str, header: str, *rows: str, device: str = "mlx5_0") -> str:
    """Return the output of one process of perftest.

    Args:
        title: The name of the test.
        header: The line with the names of the columns.
        rows: The rows of the table.
        device: The name of the network card.
    """
    return (
        RULE + f"                    {title}\n Dual-port       : OFF\t\tDevice         : {device}\n"
        " Number of qps   : 1\t\tTransport type : IB\n Connection type : RC\t\tUsing SRQ      : OFF\n"
        " PCIe relax order: ON\t\tLock-free      : OFF\n ibv_wr* API     : ON\n CQ Moderation   : 100\n"
        " Mtu             : 4096[B]\n Link type       : IB\n rdma_cm QPs\t : OFF\n"
        + RULE
        + " local address: LID "
        "0xd06 QPN 0x095e PSN 0xbd024b RKey 0x080258 VAddr 0x007fe62504b000\n remote address: LID 0xd06 QPN "
        f"0x095f PSN 0x3c9e82 RKey 0x080359 VAddr 0x007f9fc479c000\n{RULE}{header}\n"
        + "".join(f" {row}\n" for row in rows)
        + RULE
    )


def read(text: str) -> ParsedLog:
    """Return the parsed log."""
    return logs.parse(io.BytesIO(text.encode()))


def codes(parsed: ParsedLog) -> set[str]:
    """Return the codes of a log's findings that have a verdict."""
    return {one.code for one in parsed.findings if one.verdict}


def figures(parsed: ParsedLog) -> dict[str, float]:
    """Return the measurements of a log by name."""
    return {one.name: one.value for one in parsed.measurements}


# The name of ib_write_bw's test in its output.
WRITE = "RDMA_Write BW Test"


@pytest.mark.parametrize(
    ("title", "header", "row", "expected"),
    [
        # -D: the peak is 0.00, which is no measurement.
        (WRITE, BW, "65536      18851400         0.00               329.46   \t\t     0.628399",
         {"ib_write_bw": 329.46, "ib_write_bw_message_rate": 0.628399}),
        ("RDMA_Read BW Test", BW, "8388608    147180           0.00               329.20 \t\t     0.004906",
         {"ib_read_bw": 329.2, "ib_read_bw_message_rate": 0.004906}),
        # -b: both directions, without and with a peak.
        ("RDMA_Write Bidirectional BW Test", BW, "65536      5000   0.00     748.70    1.428000",
         {"ib_write_bw": 748.7, "ib_write_bw_message_rate": 1.428}),
        ("Send Bidirectional BW Test", BW, "65536      5000   750.10   748.70    1.428000",
         {"ib_send_bw": 748.7, "ib_send_bw_peak": 750.1, "ib_send_bw_message_rate": 1.428}),
        ("RDMA_Write Post List BW Test", BW, "65536 5000 395.10 394.20 0.751895",
         {"ib_write_bw": 394.2, "ib_write_bw_peak": 395.1, "ib_write_bw_message_rate": 0.751895}),
        # --cpu_util: the heading of old and of new versions.
        (WRITE, BW + "    CPU_Util[%%]", "65536 5000 395.10 394.20 0.751895 \t    3.21",
         {"ib_write_bw": 394.2, "ib_write_bw_peak": 395.1, "ib_write_bw_message_rate": 0.751895,
          "ib_write_bw_cpu_utilisation": 3.21}),
        (WRITE, BW + "    CPU_Util[%]", "65536 5000 0.00 394.20 0.751895 \t    0.00",
         {"ib_write_bw": 394.2, "ib_write_bw_message_rate": 0.751895, "ib_write_bw_cpu_utilisation": 0.0}),
        # Two ports, and the service level.
        (WRITE, BW + "   BW Port1[Gb/sec]   MsgRate Port1[Mpps]   BW Port2[Gb/sec]   MsgRate Port2[Mpps]",
         "65536 5000 395.10 394.20 0.751895 200.10 0.3 194.10 0.4",
         {"ib_write_bw": 394.2, "ib_write_bw_peak": 395.1, "ib_write_bw_message_rate": 0.751895,
          "ib_write_bw_port1": 200.1, "ib_write_bw_port1_message_rate": 0.3, "ib_write_bw_port2": 194.1,
          "ib_write_bw_port2_message_rate": 0.4}),
        (WRITE, BW.replace("#iterations", "#sl      #iterations"), "65536 3 5000 395.10 394.20 0.751895",
         {"ib_write_bw": 394.2, "ib_write_bw_peak": 395.1, "ib_write_bw_message_rate": 0.751895}),
        # Latencies.
        ("RDMA_Write Latency Test", LAT, "2 1000 1.85 6.20 1.89 1.90 0.06 2.05 5.90",
         {"ib_write_lat": 1.90, "ib_write_lat_min": 1.85, "ib_write_lat_max": 6.2,
          "ib_write_lat_typical": 1.89,
          "ib_write_lat_stdev": 0.06, "ib_write_lat_p99": 2.05, "ib_write_lat_p99_9": 5.9}),
        ("RDMA_Read Latency Test", LAT + "    CPU_Util[%]", "2 1000 1.85 6.20 1.89 1.90 0.00 2.05 5.90  0.40",
         {"ib_read_lat": 1.90, "ib_read_lat_min": 1.85, "ib_read_lat_max": 6.2, "ib_read_lat_typical": 1.89,
          "ib_read_lat_stdev": 0.0, "ib_read_lat_p99": 2.05, "ib_read_lat_p99_9": 5.9,
          "ib_read_lat_cpu_utilisation": 0.4}),
        ("Send Latency Test", LAT_D, "2 2651190 1.88 265119.00",
         {"ib_send_lat": 1.88, "ib_send_lat_rate": 265119.0}),
        ("Atomic FETCH_AND_ADD Latency Test", LAT_D, "8 2651190 2.88 265119.00",
         {"ib_atomic_lat": 2.88, "ib_atomic_lat_rate": 265119.0}),
    ],
)  # fmt: skip
def test_each_column_becomes_the_measurement_of_its_header(
    title: str, header: str, row: str, expected: dict[str, float]
) -> None:
    for text in (
        printed(title, header, row),
        "\n".join(f"0: {line}" for line in printed(title, header, row).splitlines()) + "\n",
    ):
        parsed = read(text)
        assert (parsed.format, parsed.verdict) == ("ib_write_bw", PASS), codes(parsed)
        assert figures(parsed) == expected
        assert {one.labels["size_bytes"] for one in parsed.measurements} == {row.split()[0]}
        assert {one.labels.get("bidirectional") for one in parsed.measurements} == {
            "yes" if "Bidirectional" in title else None
        }


def test_latencies_are_in_microseconds_and_lower_ones_are_better() -> None:
    parsed = read(printed("RDMA_Write Latency Test", LAT, "2 1000 1.85 6.20 1.89 1.90 0.06 2.05 5.90"))
    assert {one.unit for one in parsed.measurements} == {"us"}
    assert {one.direction and one.direction.value for one in parsed.measurements} == {"lower"}


@pytest.mark.parametrize(
    ("header", "row", "code"),
    [
        (BW, "65536 5000 0.00 0.00 0.000000", "impossible_value"),  # -D without any transfer
        (BW, "65536 5000 395.10 -394.20 0.751895", "impossible_value"),
        (BW, "65536 5000 nan 394.20 0.751895", "impossible_value"),
        (BW, "65536 5000 inf 394.20 0.751895", "impossible_value"),
        # One column is missing, and it is not known which.
        (BW, "65536 5000 394.20 0.751895", "damaged_line"),
        (BW + "    CPU_Util[%]", "65536 5000 395.10 394.20 0.751895", "damaged_line"),
        (BW, "65536 5000 395.10 394.20 0.751895 3.2", "damaged_line"),
        (BW, "65536 5000 395.10 394.20 0.7x", "impossible_value"),
        (LAT, "2 1000 1.85 6.20 1.89 0.00 0.06 2.05 5.90", "impossible_value"),
        (LAT, "2 1000 1.85 6.20 1.89 nan 0.06 2.05 5.90", "impossible_value"),
        (LAT, "2 1000 1.85 6.20 1.89 1.90", "damaged_line"),
        (LAT_D, "2 1000 0.00 0.00", "impossible_value"),
    ],
)
def test_a_row_with_impossible_values_or_other_columns_does_not_pass(
    header: str, row: str, code: str
) -> None:
    title = WRITE if header.startswith(BW) else "RDMA_Write Latency Test"
    good = {BW: "2 5000 5.10 4.20 0.751895", LAT: "4 1000 1.85 6.20 1.89 1.90 0.06 2.05 5.90"}.get(
        header, "4 1000 1.9 9.0"
    )
    parsed = read(printed(title, header, good, row))
    assert parsed.verdict is not PASS
    assert code in codes(parsed)


def row_of(gbit: float, size: int = 65536) -> str:
    """Return a row with consistent values: bytes, iterations, peak and average (Gbit/s), message rate."""
    return f"{size} 5000 {gbit * 1.002:.2f} {gbit:.2f} {gbit * 1e3 / 8 / size:.6f}"


ROW = row_of(394.2)


def test_every_table_of_a_file_must_end() -> None:
    """Check that the line of hyphens above a table does not end the table of an earlier, killed test."""
    whole, slow = printed(WRITE, BW, ROW), printed(WRITE, BW, row_of(12))
    killed = slow[: slow.rindex(RULE)]
    assert read(whole + slow).verdict is PASS
    assert read(slow + "\n" + whole).verdict is PASS
    for text in (killed, whole + killed, killed + whole, killed + "* Waiting for client *\n" + whole):
        assert codes(read(text)) == {"cut_off"}
    assert figures(read(whole + slow))["ib_write_bw"] == 12.0
    # The mixed lines of the client and the server of one test.
    both = [line for pair in zip(whole.splitlines(True), slow.splitlines(True), strict=True) for line in pair]
    assert read("".join(both)).verdict is PASS
    assert codes(read("".join(both[:-1]))) == {"cut_off"}


def test_measurements_of_one_size_differ_by_test_and_direction() -> None:
    bidirectional = printed("RDMA_Write Bidirectional BW Test", BW, row_of(748))
    latency = printed("RDMA_Write Latency Test", LAT, "65536 1000 1.85 6.20 1.89 1.90 0.06 2.05 5.90")
    read_bw = printed("RDMA_Read BW Test", BW, row_of(380))
    parsed = read(printed(WRITE, BW, ROW) + bidirectional + latency + read_bw)
    assert parsed.verdict is PASS, codes(parsed)
    assert {(one.name, one.labels.get("bidirectional"), one.value) for one in parsed.measurements} >= {
        ("ib_write_bw", None, 394.2),
        ("ib_write_bw", "yes", 748.0),
        ("ib_write_lat", None, 1.9),
        ("ib_read_bw", None, 380.0),
    }


def test_measurements_of_several_devices_have_the_device_as_a_label() -> None:
    slow = row_of(197)
    parsed = read(
        "".join(printed(WRITE, BW, row, device=name) for name, row in (("mlx5_0", ROW), ("mlx5_7", slow)))
    )
    speeds = {one.labels["device"]: one.value for one in parsed.measurements if one.name == "ib_write_bw"}
    assert speeds == {"mlx5_0": 394.2, "mlx5_7": 197.0}
    alone = read(printed(WRITE, BW, ROW, device="mlx5_7"))
    assert all(one.labels == {"size_bytes": "65536"} for one in alone.measurements)


def test_a_table_with_more_than_1000_rows_has_a_finding() -> None:
    rows = [row_of(4.2, size) for size in range(1, 1001)]
    parsed = read(printed(WRITE, BW, *rows))
    assert parsed.verdict is PASS
    assert sum(one.name == "ib_write_bw" for one in parsed.measurements) == 1000
    assert codes(read(printed(WRITE, BW, *rows, row_of(4.2, 1001)))) == {"too_many_rows"}


@pytest.mark.parametrize(
    "words",
    [
        "Error: BW result is below bw limit",
        " Failed to complete run_iter_bw function successfully",
        "Test exited with Error",
        " Couldn't connect to n02:18515",
    ],
)
def test_a_log_with_an_error_of_perftest_fails(words: str) -> None:
    whole = printed(WRITE, BW, ROW)
    assert read(whole + words + "\n").verdict is FAIL
    assert read(words + "\n" + whole).verdict is FAIL


# JSON as linux-rdma/perftest prints it (REPORT_FMT_LAT_JSON in src/perftest_parameters.h).
LAT_JSON = """{
"test_info": {
"test": "RDMA_Write_Latency_Test",
"Dual_port": "OFF",
"Device": "mlx5_0",
"Data_ex_method": "Ethernet"
},
"results": {
"MsgSize": 2,
"n_iterations": 1000,
"t_min": 1.85,
"t_max": 6.20,
"t_typical": 1.89,
"t_avg": 1.90,
"t_stdev": 0.06,
"percentile_99": 2.05
}
}
"""


@pytest.mark.parametrize(
    ("test", "name"),
    [
        ("RDMA_Write_Latency_Test", "ib_write_lat"),
        ("RDMA_Read_Latency_Test", "ib_read_lat"),
        ("Send_Latency_Test", "ib_send_lat"),
        ("Atomic_FETCH_AND_ADD_Latency_Test", "ib_atomic_lat"),
    ],
)
def test_the_json_of_a_latency_is_read(test: str, name: str) -> None:
    parsed = read(LAT_JSON.replace("RDMA_Write_Latency_Test", test))
    assert (parsed.format, parsed.verdict) == ("ib_write_bw", PASS), codes(parsed)
    assert figures(parsed)[name] == 1.9
    assert figures(parsed)[f"{name}_max"] == 6.2


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ('"t_avg": 1.90', '"t_avg": 0.00', "impossible_value"),
        ('"t_avg": 1.90', '"t_avg": nan', "damaged_json"),
        ('"t_max": 6.20', '"t_max": -1', "impossible_value"),
        ('"MsgSize": 2,', "", "damaged_json"),
        ("}\n}\n", "}\n", "damaged_json"),
        ("RDMA_Write", "Other", "damaged_json"),
        # The JSON states no unit: 48000 MiB/s are 402 Gbit/s, and 48000 Gbit/s are impossible.
        ('"t_avg": 1.90', '"BW_average": 394.20', "unit_unknown"),
    ],
)
def test_json_that_is_damaged_or_impossible_is_unproven(old: str, new: str, code: str) -> None:
    assert old in LAT_JSON
    parsed = read(LAT_JSON.replace(old, new))
    assert (parsed.format, parsed.verdict) == ("ib_write_bw", UNPROVEN)
    assert code in codes(parsed)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ('"t_min": 1.85', '"t_min": 9.00', "figures_contradict"),
        ('"t_max": 6.20', '"t_max": 1.00', "figures_contradict"),
        ('"t_typical": 1.89', '"t_typical": 7.00', "figures_contradict"),
        ('"percentile_99": 2.05', '"percentile_99": 8.05', "figures_contradict"),
        ('"percentile_99": 2.05', '"percentile_99": 2.05,\n"percentile_99.9": 2.01', "figures_contradict"),
        ('"n_iterations": 1000', '"n_iterations": 0', "impossible_value"),
        ('"n_iterations": 1000', '"n_iterations": 4', "impossible_value"),
        ('"n_iterations": 1000', '"n_iterations": "nan"', "impossible_value"),
        ('"n_iterations": 1000,', "", "impossible_value"),
        ('"t_min": 1.85', '"t_min": 0', "impossible_value"),
        ('"t_min": 1.85,', "", "damaged_json"),
        ('"t_max": 6.20,', "", "damaged_json"),
        ('"t_typical": 1.89,', "", "damaged_json"),
        ('"t_avg": 1.90', '"t_avg": 90.1, "t_avg": 1.90', "damaged_json"),
        ('"MsgSize": 2', '"MsgSize": -2', "damaged_json"),
        ('"MsgSize": 2', f'"MsgSize": "{"9" * 5000}"', "damaged_json"),
    ],
)
def test_a_latency_in_json_is_judged_like_one_in_a_table(old: str, new: str, code: str) -> None:
    assert old in LAT_JSON
    parsed = read(LAT_JSON.replace(old, new))
    assert (parsed.verdict, code in codes(parsed)) == (UNPROVEN, True), codes(parsed)


def test_the_json_of_a_latency_for_a_time_has_only_the_average() -> None:
    begin, end = LAT_JSON.index('"t_min"'), LAT_JSON.index("}\n}")
    parsed = read(LAT_JSON[:begin] + '"t_avg": 1.90,\n"tps_average": 265119.00\n' + LAT_JSON[end:])
    assert (parsed.verdict, figures(parsed)) == (PASS, {"ib_write_lat": 1.9})


@pytest.mark.parametrize(
    ("row", "digits", "is_damaged"),
    [
        # A size has at most 15 digits. A number of iterations may have more.
        ("{} 5000 395.10 394.20 0.751895", 16, True),
        ("{} 5000 395.10 394.20 0.751895", 5000, True),
        ("65536 {} 395.10 394.20 0.751895", 16, False),
        ("65536 {} 395.10 394.20 0.751895", 5000, True),
    ],
    ids=["size of 16", "size of 5000", "iterations of 16", "iterations of 5000"],
)
def test_a_row_whose_size_or_iterations_have_too_many_digits_is_damaged(
    row: str, digits: int, is_damaged: bool
) -> None:
    for header, text in ((BW, row), (LAT_D, " ".join(row.split()[:2]) + " 1.9 9.0")):
        title = WRITE if header == BW else "Send Latency Test"
        good = ROW if header == BW else "2 1000 1.9 9.0"
        parsed = read(printed(title, header, good, text.format("9" * digits)))
        assert ("damaged_line" in codes(parsed)) is is_damaged
        assert parsed.verdict is UNPROVEN or not is_damaged


@pytest.mark.parametrize(
    # The column, counted from 0, that is removed from header and row.
    ("title", "header", "row", "column"),
    [
        (WRITE, BW, ROW, 4),
        (WRITE, BW, ROW, 2),
        ("RDMA_Write Latency Test", LAT, "2 1000 1.85 6.20 1.89 1.90 0.06 2.05 5.90", 2),
        ("RDMA_Write Latency Test", LAT, "2 1000 1.85 6.20 1.89 1.90 0.06 2.05 5.90", 3),
        ("Send Latency Test", LAT_D, "2 2651190 1.88 265119.00", 3),
    ],
)
def test_a_table_without_a_column_is_unproven(title: str, header: str, row: str, column: int) -> None:
    assert read(printed(title, header, row)).verdict is PASS
    names, values = re.split(r"\s{2,}|(?<=#bytes) ", header.strip()), row.split()
    assert len(names) == len(values)
    del names[column], values[column]
    parsed = read(printed(title, " " + "   ".join(names), "  ".join(values)))
    assert (parsed.verdict, codes(parsed)) == (UNPROVEN, {"damaged_line"})


def test_a_table_without_its_heading_is_unproven() -> None:
    whole = printed(WRITE, BW, ROW)
    table = whole[whole.index(" #bytes") :]
    for text in (table, whole + table, table + whole):
        assert (read(text).verdict, "no_heading" in codes(read(text))) == (UNPROVEN, True)
    latency = printed("Send Latency Test", LAT_D, "2 2651190 1.88 265119.00")
    assert codes(read(latency[latency.index(" #bytes") :])) == {"no_heading"}


# A row without contradictions.
SOUND = "8388608    5000             24056.74            24056.72           0.003007"


# Size in bytes, iterations, peak and mean in MB/s, and millions of messages per second. perftest makes at
# least five iterations.
@pytest.mark.parametrize(
    ("row", "found"),
    [
        (SOUND, set()),
        (SOUND.replace("5000", "5   "), set()),
        # Too slow for a rate to be shown in six digits.
        ("8388608    5000             3.20            3.20           0.000000", set()),
        (SOUND.replace("5000", "1   "), {"impossible_value"}),
        (SOUND.replace("5000", "4   "), {"impossible_value"}),
        (SOUND.replace("5000", "0   "), {"impossible_value"}),
        (SOUND.replace("0.003007", "0.000000"), {"figures_contradict"}),
        (SOUND.replace("0.003007", "0.001500"), {"figures_contradict"}),
        (SOUND.replace("0.003007", "0.030070"), {"figures_contradict"}),
        (SOUND.replace("24056.74", "20000.00"), {"figures_contradict"}),
        (SOUND.replace("24056.72", "12028.00"), {"figures_contradict"}),
    ],
)
def test_a_row_whose_values_contradict_each_other_is_unproven(row: str, found: set[str]) -> None:
    parsed = read(printed(WRITE, BW.replace("Gb/sec", "MB/sec"), row))
    assert (codes(parsed), parsed.verdict) == (found, UNPROVEN if found else PASS)


@pytest.mark.parametrize(
    ("state", "verdict"), [("Down", FAIL), ("Initialize", FAIL), ("Armed", FAIL), ("Active", PASS)]
)
def test_a_port_that_is_not_active_is_a_failure(state: str, verdict: Verdict) -> None:
    """Check the line with the state of a port. perftest prints the line only if the port is not active."""
    table = PERFTEST.decode()
    assert read(table).verdict is PASS
    assert read(f"{table} Port number 1 state is {state}\n").verdict is verdict


def test_a_log_of_a_test_that_got_no_message_fails() -> None:
    table = PERFTEST.decode()
    found = read(table.replace("#bytes", " Did not get Message for 120 Seconds\n#bytes", 1))
    assert (found.verdict, codes(found)) == (FAIL, {"tool_error"})


# The lines with the addresses of a queue pair on both sides.
LOCAL, REMOTE = (
    next(line for line in printed(WRITE, BW, ROW).splitlines(True) if line.startswith(f" {side} address"))
    for side in ("local", "remote")
)


@pytest.mark.parametrize(
    ("title", "queue_pairs", "addresses", "verdict"),
    [
        (WRITE, "1", LOCAL + REMOTE, PASS),
        (WRITE, "4", 4 * LOCAL + 4 * REMOTE, PASS),
        # A test that sends without a connection has no remote address, and one of raw Ethernet has none.
        ("Send BW Test", "4", 4 * LOCAL, PASS),
        ("Send BW Test", "1", "", PASS),
        (WRITE, "1024", LOCAL + REMOTE, UNPROVEN),
        (WRITE, "4", LOCAL + 4 * REMOTE, UNPROVEN),
        (WRITE, "1", LOCAL, UNPROVEN),
        (WRITE, "1", REMOTE, UNPROVEN),
        (WRITE, "1", "", UNPROVEN),
        ("RDMA_Read BW Test", "2", LOCAL + REMOTE, UNPROVEN),
        (WRITE, "many", LOCAL + REMOTE, UNPROVEN),
    ],
)
def test_a_queue_pair_without_an_address_on_each_side_is_unproven(
    title: str, queue_pairs: str, addresses: str, verdict: Verdict
) -> None:
    text = printed(title, BW, ROW).replace("qps   : 1", f"qps   : {queue_pairs}")
    parsed = read(text.replace(LOCAL + REMOTE, addresses))
    assert (parsed.verdict, codes(parsed)) == (verdict, set() if verdict is PASS else {"figures_contradict"})
    labelled = "".join(f"0: {line}" for line in text.replace(LOCAL + REMOTE, addresses).splitlines(True))
    assert read(labelled).verdict is verdict
