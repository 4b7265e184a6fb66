"""Blank lines of a log are not searched for formats one by one, and hide no format that follows them."""

from __future__ import annotations

import io

import pytest

import rackproof.logs
from rackproof.logs import parse

SMI = b"index, name, temperature.gpu\n0, NVIDIA H100 80GB HBM3, 35\n"


@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b" \n", b"\t \t\n"])
def test_a_log_of_blank_lines_is_searched_as_a_few(blank: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def record(head: bytes) -> str | None:
        sizes.append(len(head))
        return None

    monkeypatch.setattr(rackproof.logs, "detect", record)
    log = parse(io.BytesIO(blank * (1 << 20)))
    assert log.format == "unknown"
    assert sizes
    assert max(sizes) < 200


@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b" \n", b"\t \t\n"])
@pytest.mark.parametrize("count", [1, 16, 17, 50_000])
def test_a_format_after_blank_lines_is_found_with_its_line(blank: bytes, count: int) -> None:
    log = parse(io.BytesIO(blank * count + SMI))
    assert log.format == "nvidia_smi_csv"
    lines = {one.source.line for one in log.measurements if one.source is not None}
    assert lines == {count + 2}
