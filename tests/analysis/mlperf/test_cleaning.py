"""Test the copy of a log that MLPerf's tool reads (:mod:`rackproof.analysis.mlperf.cleaning`).

The tool crashes on some lines, takes long on others, and opens files whose paths contain text of the log. The
copy therefore contains only checked events, one per line. These tests check which events the tool reads from
it if the log is damaged, mixed with other text, or hostile.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlperf_logging.compliance_checker import mlp_parser

from rackproof.analysis.mlperf import cleaning
from rackproof.analysis.mlperf.cleaning import CleanedLog, clean_log, safe_text

GOOD = ':::MLLOG {"time_ms": 1, "key": "a", "value": null, "metadata": {}}'
OTHER = ':::MLLOG {"time_ms": 2, "key": "b", "value": 3, "metadata": {}}'
GOOD_06 = ':::MLL 1.5 a: {"value": null, "metadata": {}}'


def cleaned(tmp_path: Path, content: bytes, ruleset: str = "5.1.0") -> tuple[CleanedLog, list[str], int]:
    """Clean bytes. Return the report, the keys that the tool reads from the copy, and its error count."""
    source, copy = tmp_path / "log", tmp_path / "copy"
    source.write_bytes(content)
    report = clean_log(source, copy, ruleset=ruleset)
    events, errors = mlp_parser.parse_file(str(copy), ruleset=ruleset)
    return report, [event.key for event in events], len(errors)


# Log, keys that the tool reads from the copy, number of damaged events, and codes of the findings.
@pytest.mark.parametrize(
    ("text", "keys", "damaged", "codes"),
    [
        (GOOD, ["a"], 0, []),
        (f"{GOOD}\r\n{OTHER}\r\n", ["a", "b"], 0, []),
        (f"step 1\rstep 2\r{GOOD}\r{OTHER}", ["a", "b"], 0, []),
        (f" 0: {GOOD}", ["a"], 0, []),
        (f"[1,0]<stdout>:{GOOD}", ["a"], 0, []),
        (f"\x1b[31m{GOOD}\x1b[0m", ["a"], 0, []),
        (f"half a line{GOOD}{OTHER}", ["a", "b"], 0, []),
        (f"{GOOD} 3: step 7", ["a"], 0, ["glued_line"]),
        (f'{GOOD[:30]} 1: {OTHER}"', ["b"], 0, ["half_line", "glued_line"]),
        (GOOD[:40], [], 1, ["damaged_line"]),
        (":::MLLOG ", [], 1, ["damaged_line"]),
        (":::MLLOG 5", [], 1, ["damaged_line"]),
        (":::MLLOG []", [], 1, ["damaged_line"]),
        (':::MLLOG {"key": "a"}', [], 1, ["damaged_line"]),
        (GOOD.replace('"a"', "7"), [], 1, ["damaged_line"]),
        *(
            (GOOD.replace('"a"', key), [], 1, ["damaged_line"])
            for key in ('"a\0"', '"a\\u0000"', '"\\u0007a"')
        ),
        (GOOD.replace(": 1,", ": null,"), [], 1, ["damaged_line"]),
        (GOOD.replace(": 1,", ": NaN,"), [], 1, ["damaged_line"]),
        (GOOD.replace(": 1,", f": {'9' * 400},"), [], 1, ["damaged_line"]),
        *(
            (GOOD.replace(": 1,", f": {time},"), [], 1, ["damaged_line"])
            for time in ("-1", "1.7e308", "-1.7e308", "4102444800001")
        ),
        *(
            (GOOD.replace("null", "[" * depth + "]" * depth), [], 1, ["damaged_line"])
            for depth in (60, 600, 985)
        ),
        (GOOD.replace("null", f'[{"[" * 600}{"]" * 600}, "{"x" * 9000}"]'), [], 1, ["damaged_line"]),
        (GOOD.replace("null", "[" * 40 + "]" * 40), ["a"], 0, []),
        (GOOD.replace("null", "nullLambda"), [], 1, ["damaged_line"]),
        (GOOD.replace('"', "'"), [], 1, ["damaged_line"]),
        (f":::MLLOG {'[' * 5000}", [], 1, ["damaged_line"]),
        ("", [], 0, []),
        ("nothing to see", [], 0, []),
    ],
)
def test_the_copy_has_the_valid_events_of_later_rounds(
    tmp_path: Path, text: str, keys: list[str], damaged: int, codes: list[str]
) -> None:
    report, found, errors = cleaned(tmp_path, text.encode())
    assert found == keys
    assert report.damaged == errors == damaged
    assert report.events == len(keys)
    assert [finding.code for finding in report.findings] == codes


@pytest.mark.parametrize(
    ("text", "keys", "damaged"),
    [
        (GOOD_06, ["a"], 0),
        (f"[1,0]<stdout>:{GOOD_06}", ["a"], 0),
        (f"{GOOD_06}{GOOD_06.replace(' a:', ' b:')} tail", ["a", "b"], 0),
        (":::MLL now a: {}", [], 1),
        (":::MLL 1.5 a: {'value': 1}", [], 1),
        (f":::MLL {'9' * 400} a: {{}}", [], 1),
        (":::MLL 4102444801 a: {}", [], 1),
        (f':::MLL 1.5 a: {{"value": {"[" * 600}{"]" * 600}}}', [], 1),
        (GOOD, [], 1),
    ],
)
def test_the_copy_has_the_valid_events_of_round_0_6(
    tmp_path: Path, text: str, keys: list[str], damaged: int
) -> None:
    report, found, errors = cleaned(tmp_path, text.encode(), "0.6.0")
    assert found == keys
    assert report.damaged == errors == damaged


@pytest.mark.parametrize("value", ["../../../tmp/evil", "/tmp/evil", "a\\u0000b"])
@pytest.mark.parametrize("key", ["submission_division", "submission_benchmark", "opt_name"])
def test_no_text_of_a_log_becomes_a_path(tmp_path: Path, key: str, value: str) -> None:
    text = f':::MLLOG {{"time_ms": 1, "key": "{key}", "value": "{value}", "metadata": {{}}}}'
    report, found, _ = cleaned(tmp_path, text.encode())
    assert found == []
    assert "not a plain name" in report.findings[0].message


def test_findings_name_the_line_and_their_number_is_bounded(tmp_path: Path) -> None:
    report, _, _ = cleaned(tmp_path, b"one\ntwo\r\n" + b":::MLLOG {\n" * 500)
    assert report.findings[0].source.line == 3
    assert report.lines[:2] == [3, 4]
    assert report.damaged == 500
    assert len(report.findings) == 20


def test_long_events_are_shortened_or_count_as_damaged(tmp_path: Path) -> None:
    padded = GOOD.replace("{}}", '{"note": "' + "x" * 200_000 + '"}}')
    listed = OTHER.replace("3", str(list(range(50_000))))
    wide = OTHER.replace("3", json.dumps({f"key{number}": 0 for number in range(20_000)}))
    report, found, errors = cleaned(tmp_path, f"{padded}\n{listed}\n{wide}\n".encode())
    # The tool's time grows with the square of a line's length. The first line would take it 15 s.
    assert max(map(len, (tmp_path / "copy").read_text().splitlines())) < cleaning._LONG_EVENT
    assert found == ["a", "b"]
    assert errors == report.damaged == 1
    assert "characters" in report.findings[0].message


@pytest.mark.parametrize("shift", range(-3, 12, 3))
def test_a_line_of_many_megabytes_is_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shift: int
) -> None:
    monkeypatch.setattr(cleaning, "_MAX_LINE", 1024)
    filler = "x" * (1024 - 9 + shift)
    report, found, _ = cleaned(tmp_path, f"{filler}{GOOD}{filler * 3}{OTHER}\n{GOOD}\n".encode())
    assert found == ["a", "b", "a"]
    assert report.lines == [1, 1, 2]


def test_the_digest_depends_on_the_events_alone(tmp_path: Path) -> None:
    first, _, _ = cleaned(tmp_path, f"noise\n0: {GOOD}\n".encode())
    second, _, _ = cleaned(tmp_path, f"{GOOD}\r\nmore noise".encode())
    third, _, _ = cleaned(tmp_path, f"{OTHER}\n".encode())
    assert first.digest == second.digest != third.digest
    assert first.sha256 != second.sha256


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.sampled_from(
                [b":::MLLOG ", b":::MLL", GOOD.encode(), GOOD_06.encode(), b"\r", b"\n", b"{", b'"']
            ),
        ),
        max_size=12,
    ),
    st.sampled_from(["0.6.0", "0.7.0", "5.1.0"]),
)
@settings(max_examples=300, deadline=None)
def test_the_tool_survives_any_bytes(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], rules: str
) -> None:
    folder = tmp_path_factory.mktemp("any")
    report, found, errors = cleaned(folder, b"".join(parts), rules)
    assert report.events == len(found)
    assert report.damaged == errors


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mb\x07c\n\td", "abc d"),
        ("caf\xc3\xa9", "café"),
        ("\ud800 and \u202e", "and"),
        ("x" * 400, "x" * 299 + "…"),
    ],
)
def test_text_of_a_log_is_made_harmless(text: str, shown: str) -> None:
    assert safe_text(text) == shown
