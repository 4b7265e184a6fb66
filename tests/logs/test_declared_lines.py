"""Test an operator's declarations of harmless kernel lines (:mod:`rackproof.logs.declared_lines`).

An operator may declare harmless a line of the kernel log that no rule of Rackproof recognizes, with a
pattern, a reason, and perhaps a last day. These tests check which declarations are refused, that a
declaration never hides a known fault, and that ``rackproof parse`` and a night apply it alike.
"""

from __future__ import annotations

import io
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rackproof import logs
from rackproof.cli.main import main
from rackproof.core.records import ParsedLog, Verdict
from rackproof.jobs.validate.errors import ValidateError
from rackproof.jobs.validate.tasks import store_snapshot
from rackproof.logs.declared_lines import DeclaredLines, DeclaredLinesError, read_declared
from rackproof.nodes.kernel_log import read_kernel_log
from rackproof.nodes.snapshot import build_snapshot
from rackproof.store.night_store import NightContext

TODAY = date(2026, 11, 25)
UNKNOWN = "ahci 0000:00:17.0: controller can't do SNTF, error 17"
"""A line that no rule recognizes, and that counts as an error unless its level is lower."""
PATTERN = r"ahci \S+: controller can't do SNTF"
KNOWN = [
    "NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.",
    "EDAC MC0: 1 UE memory read error on DIMM0",
    "mce: [Hardware Error]: Machine check events logged",
    "blk_update_request: I/O error, dev nvme0n1, sector 17",
    "mlx5_core 0000:3b:00.0: health compromised - reached miss count",
    "Kernel panic - not syncing: Fatal exception",
]
"""Lines of known faults."""


def declared(*entries: Any) -> DeclaredLines:
    """Return declarations as they are read on the day ``TODAY``."""
    return read_declared(list(entries), TODAY, "the variable")


def entry(pattern: str = PATTERN, **more: Any) -> dict[str, Any]:
    """Return one entry of an operator's list."""
    return {"pattern": pattern, "why": "the controller lacks it", **more}


def parsed(line: str, lines: DeclaredLines | None = None) -> ParsedLog:
    """Return the parsed kernel log that ends with this line."""
    log = f"[    1.000000] x: a line\n[    2.000000] {line}\n"
    return logs.parse(io.BytesIO(log.encode()), format="xid", declared=lines)


def test_parse_and_a_night_read_an_unknown_error_alike() -> None:
    alike = [
        UNKNOWN,
        "nvme nvme0: frozen state error detected",
        "x: a line",
        "systemd[1]: Failed to start x",
        *KNOWN,
    ]
    for line in alike:
        night = read_kernel_log(f"[    2.000000] {line}\n", 0.0, {})
        found = parsed(line)
        codes = {one.code for one in found.findings if one.verdict}
        assert codes == {event.code for event in night.hardware} | {f"xid_{one.xid}" for one in night.xids}, (
            line
        )
        assert (found.verdict is Verdict.PASS) == (not codes)


@pytest.mark.parametrize(
    ("prefix", "is_error"),
    [
        ("[    2.000000] ", True),
        ("kern  :err   : [    2.000000] ", True),
        ("kern  :info  : [    2.000000] ", False),
        ("<3>[    2.000000] ", True),
        ("<6>[    2.000000] ", False),
        ("[Wed Nov 25 03:44:15 2026] ", True),
        ("Nov 25 03:44:15 n1 kernel: ", True),
        ("2026-11-25T03:44:15+0000 n1 kernel: ", True),
        ("1795578255.123456 n1 kernel: ", True),
    ],
)
def test_the_kernels_levels_and_times_are_read(prefix: str, is_error: bool) -> None:
    log = f"{prefix}{UNKNOWN}\n".encode()
    found = logs.parse(io.BytesIO(log), format="xid", declared=declared())
    assert found.verdict is (Verdict.UNPROVEN if is_error else Verdict.PASS)
    harmless = logs.parse(io.BytesIO(log), format="xid", declared=declared(entry()))
    assert harmless.verdict is Verdict.PASS


def test_a_declared_line_is_a_remark_with_its_reason() -> None:
    found = parsed(UNKNOWN, declared(entry(until="2026-12-31")))
    assert found.verdict is Verdict.PASS
    (remark,) = found.findings
    assert (remark.code, remark.verdict) == ("declared_harmless", None)
    assert "the controller lacks it" in remark.message
    assert "2026-12-31" in remark.message


def test_a_night_keeps_each_declared_line_once() -> None:
    log = f"[    2.000000] {UNKNOWN}\n[    3.000000] {UNKNOWN}\n"
    found = read_kernel_log(log, 0.0, {}, None, declared(entry()))
    assert found.hardware == ()
    assert len(found.declared) == 1
    assert found.declared[0].startswith(UNKNOWN)
    assert "the controller lacks it" in found.declared[0]


@pytest.mark.parametrize("line", KNOWN)
def test_a_known_fault_counts_whatever_is_declared(line: str) -> None:
    import re

    lines = declared(entry(re.escape(line)))
    for found in (parsed(line, lines).verdict, parsed(line).verdict):
        assert found in (Verdict.FAIL, Verdict.DEGRADED)
    night = read_kernel_log(f"[    2.000000] {line}\n", 0.0, {}, None, lines)
    assert (night.hardware or night.xids) and not night.declared  # noqa: PT018


@pytest.mark.parametrize("until", ["2026-11-24", date(2020, 1, 1), "2026-01-31"])
def test_after_the_last_day_of_its_declaration_a_line_counts_again(until: object) -> None:
    found = parsed(UNKNOWN, declared(entry(until=until)))
    assert found.verdict is Verdict.UNPROVEN
    assert "which is past" in found.findings[0].message
    assert parsed(UNKNOWN, declared(entry(until=until), entry(until=TODAY))).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"pattern": PATTERN}, "a list of"),
        ("ahci", "a list of"),
        (None, "a list of"),
        ([PATTERN], "has to have pattern and why"),
        ([{"pattern": PATTERN}], "has to have pattern and why"),
        ([entry(reason="x")], "has to have pattern and why"),
        ([{"pattern": PATTERN, "why": " "}], "why must give"),
        ([{"pattern": 17, "why": "known"}], "pattern has to be a text"),
        ([entry("x" * 301)], "pattern has to be a text"),
        ([entry(until="soon")], "until has to be a date"),
        ([entry(until=True)], "until has to be a date"),
        ([entry("ahci (controller")], "is not a regular expression"),
        ([entry("ahci controller[")], "is not a regular expression"),
        ([entry("*ahci controller")], "is not a regular expression"),
        ([entry(), entry("")], "entry 2"),
        ([entry("(?:ahci controller)?")], "matches an empty text and therefore every line"),
        ([entry(".*")], "matches an empty text and therefore every line"),
        ([entry("ahci controller|")], "matches an empty text and therefore every line"),
        ([entry(".+")], "requires only 0 letters or digits"),
        ([entry(".*error.*")], "requires only 5 letters or digits"),
        ([entry(r"\S+ [a-z]+: error")], "requires only 5 letters or digits"),
        ([entry("ahci controller|nvme")], "requires only 4 letters or digits"),
        ([entry("ahci (?=controller)")], "is not a regular expression of RE2"),
        # Optional parts, sets of characters, and repetitions that may be zero require no character.
        ([entry(r"(?i:con)(?P<word>trol)?(?:ler|l[er]{2}(?:ab)*)")], "requires only 4 letters or digits"),
        (
            [entry(r"a{3}b{0,3}c?d??e*?f+?(ghij){0}\x41\pL[[:alpha:]k]\Qmnop\E{,}")],
            "requires only 2 letters or digits",
        ),
        ([entry()] * 201, "at most 200"),
    ],
)
def test_an_unusable_declaration_is_refused_with_its_place(raw: object, message: str) -> None:
    with pytest.raises(DeclaredLinesError, match="the variable") as caught:
        read_declared(raw, TODAY, "the variable")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("(?:a+)+ controller", "aaa controller"),
        ("(?:a|aa)+ controller", "aaa controller"),
        (".*.*.* controller", "ahci: controller"),
        ("(?:(?:con)(?:trol|ball)|a+ controll)er", "controler"),
        (r"a+ [^]]\(?controller\)?", "aa x(controller)"),
    ],
)
def test_a_pattern_with_nested_repetitions_can_be_declared(pattern: str, line: str) -> None:
    lines = declared(entry(pattern))
    assert lines.declaration(line) is not None
    for text in ("a" * 100_000, "ab" * 50_000, "\0\udcff" * 2000, "é" * 600):
        assert lines.declaration(text) is None


def test_a_message_that_is_not_utf_8_can_be_declared() -> None:
    lines = declared(entry("disk .{4} of the rack"))
    assert lines.declaration("disk a\udcffé\0 of the rack") is not None


def test_parse_reads_declarations_from_a_file(tmp_path: Path) -> None:
    log, harmless = tmp_path / "dmesg.txt", tmp_path / "harmless.yml"
    log.write_text(f"[    2.000000] EDAC MC0: 1 CE memory read error on DIMM0\n[    2.100000] {UNKNOWN}\n")
    said = r"'ahci \S+: controller can''t do SNTF', why: it lacks it"
    # The file, and the exit status: 0 if the unknown line is declared, 3 if it is unproven, and 1 if the file
    # cannot be used.
    for text, status in (
        (f"- {{pattern: {said}}}", 0),
        (f"validate_harmless_kernel_lines:\n- {{pattern: {said}, until: 2099-01-31}}", 0),
        (f"- {{pattern: {said}, until: 2020-01-31}}", 3),
        ("[]", 3),
        ("- {pattern: '.*', why: noise}", 1),
        ("- [", 1),
    ):
        harmless.write_text(text)
        done = CliRunner().invoke(main, ["parse", str(log), "--harmless", str(harmless)])
        assert (done.exit_code, "harmless.yml" in done.output) == (status, status == 1), (text, done.output)
    assert CliRunner().invoke(main, ["parse", str(log), "--harmless", str(tmp_path / "gone")]).exit_code == 1


def test_a_night_stores_declared_lines_and_refuses_an_unusable_declaration(tmp_path: Path) -> None:
    line = "nvme nvme0: frozen state error detected"  # The errors of this driver have no level.
    log = {"status": "ok", "stdout": f"1795578255.1 n1 kernel: {line}\n"}
    answer = {"health": {"tools": {"kernel_log": log}}}
    for lines, events, kept in (((), 1, 0), ([entry("nvme nvme0: frozen")], 0, 1)):
        seen = build_snapshot("n1", answer, declared=read_declared(lines, TODAY, "x"))
        assert (len(seen.hardware_events), len(seen.declared_lines)) == (events, kept)
    night = NightContext(night_id="x", folder=str(tmp_path), results=str(tmp_path))
    with pytest.raises(
        ValidateError, match=r"validate_harmless_kernel_lines of n1, entry 1: .*therefore every line"
    ):
        store_snapshot(night, "n1", {}, asked=1, answered=2, sku="", harmless_kernel_lines=[entry(".*")])
