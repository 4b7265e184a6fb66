"""Provide the tests of the fakes with the folder of the fakes, and with a function that compares outputs."""

from __future__ import annotations

import re
from pathlib import Path

FAKES = Path(__file__).resolve().parents[3] / "testrack" / "fakes"


def shape(text: str) -> str:
    """Return a text in which numbers, dates and UUIDs are replaced, so that two outputs can be compared."""
    text = re.sub(r"GPU-[0-9a-f-]+", "GPU-", text)
    text = re.sub(r"0x[0-9A-Fa-f]+", lambda found: "0x" + "9" * (len(found[0]) - 2), text)
    text = re.sub(r"[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.\d", "BUS", text)
    text = re.sub(
        r"\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun) (Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b", "DATE", text
    )
    return re.sub(r"\d+", "9", text)
