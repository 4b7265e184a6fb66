"""Test that blank lines at the start of a log cost :func:`rackproof.logs.parse` little, and hide no format.

A log may begin with very many blank lines, and the patterns that recognize formats take long at each of them.
These tests check that such lines are shortened before the patterns see them, that a format below them is
found, and that findings still have the line numbers of the file.
"""

from __future__ import annotations

import io

import pytest

import rackproof.logs
from rackproof.logs import parse

SMI = b"index, name, temperature.gpu\n0, NVIDIA H100 80GB HBM3, 35\n"


@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b" \n", b"\t \t\n"])
def test_many_blank_lines_are_shortened_before_the_search(
    blank: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def record(head: bytes) -> str | None:
        sizes.append(len(head))
        return None

    monkeypatch.setattr(rackproof.logs, "detect", record)
    log = parse(io.BytesIO(blank * (1 << 20)))
    assert log.format == "unknown"
    assert sizes
    # At most 16 blank lines in a row are searched.
    assert max(sizes) < 200


# 17 is the smallest number of blank lines that is shortened.
@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b" \n", b"\t \t\n"])
@pytest.mark.parametrize("count", [1, 16, 17, 50_000])
def test_a_format_after_blank_lines_is_found_and_lines_keep_their_numbers(blank: bytes, count: int) -> None:
    log = parse(io.BytesIO(blank * count + SMI))
    assert log.format == "nvidia_smi_csv"
    lines = {one.source.line for one in log.measurements if one.source is not None}
    assert lines == {count + 2}
