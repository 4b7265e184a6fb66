"""Test that times in logs are read alike in every locale (:func:`rackproof.logs._reading.asctime_moment`).

Ansible sets the operator's locale for the programs that it runs. ``strptime`` then expects the names of
months and days in the operator's language, but logs have English ones. These tests read times with the names
of a German locale, and check that no code in src, plugins and workloads depends on such names.
"""

from __future__ import annotations

import ast
import calendar
import io
from pathlib import Path

import pytest

from rackproof.logs import parse
from rackproof.logs._reading import asctime_moment

from .log_samples import NVIDIA_SMI_TEXT

ROOT = Path(__file__).resolve().parents[2]
ENGLISH = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
GERMAN = ("Jan", "Feb", "Mär", "Apr", "Mai", "Jun", "Jul", "Aug", "Sep", "Okt", "Nov", "Dez")


@pytest.fixture
def german(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give strptime the names of a German locale, which need not be installed here."""
    monkeypatch.setattr(calendar, "month_abbr", ["", *GERMAN])
    monkeypatch.setattr(calendar, "day_abbr", ["Mo", "Di", "Mi", "Do", "Fr", "Sa", "So"])
    monkeypatch.setattr("_strptime._TimeRE_cache", __import__("_strptime").TimeRE())
    monkeypatch.setattr("_strptime._regex_cache", {})


@pytest.mark.parametrize("month", range(1, 13))
def test_a_time_of_any_month_is_read(german: None, month: int) -> None:
    name = ENGLISH[month - 1]
    for text in (f"Fri {name}  9 13:04:05 2026", f"{name} 09 13:04:05 2026"):
        moment = asctime_moment(text)
        assert moment is not None
        assert moment.isoformat() == f"2026-{month:02d}-09T13:04:05+00:00"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Fri Dez  9 13:04:05 2026",
        "Feb 30 13:04:05 2026",
        "Dec  9 25:04:05 2026",
        "Dec 9 13:04:05",
        f"Dec 9 13:04:05 {10**20}",
    ],
)
def test_a_text_that_is_no_time_gives_none(text: str) -> None:
    assert asctime_moment(text) is None


@pytest.mark.parametrize(
    ("log", "kind", "ended"),
    [
        (
            "[Wed Dec  9 13:04:05 2026] Linux version 6.8\n[Wed Dec  9 13:04:06 2026] NVRM: loaded\n",
            "xid",
            "2026-12-09T13:04:06+00:00",
        ),
        (
            "2026-12-09T13:04:05 n1 kernel: Linux version 6.8\n2026-12-09T13:04:06 n1 kernel: NVRM: loaded\n",
            "xid",
            "2026-12-09T13:04:06+00:00",
        ),
        (NVIDIA_SMI_TEXT.decode(), "auto", "2026-11-21T08:51:43+00:00"),
    ],
    ids=["dmesg", "journal", "nvidia-smi"],
)
def test_the_end_of_a_log_is_read_in_a_german_locale(german: None, log: str, kind: str, ended: str) -> None:
    assert parse(io.BytesIO(log.encode()), format=kind).tags["ended"] == ended


def test_nothing_reads_or_writes_names_of_months_and_days_by_the_locale() -> None:
    found = []
    for folder in ("src", "plugins", "workloads"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for call in (one for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.Call)):
                if ast.unparse(call.func).rpartition(".")[2] in ("strptime", "strftime"):
                    texts = ast.unparse(call)
                    if any(form in texts for form in ("%a", "%A", "%b", "%B", "%c", "%x", "%X", "%p")):
                        found.append(f"{path.name}: {texts}")
    assert found == []
