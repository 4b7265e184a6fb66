"""Test that the drawings in docs/pictures are up to date, and that a page shows each picture.

tools/make-pictures makes the drawings.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree


def test_the_drawings_are_those_that_the_tool_makes(root: Path) -> None:
    made = runpy.run_path(str(root / "tools/make-pictures"))["drawings"]()
    kept = {path.name: path.read_text() for path in (root / "docs/pictures").glob("*.svg")}
    assert made == kept, "run tools/make-pictures"
    assert all(ElementTree.fromstring(text).tag.endswith("svg") for text in kept.values())


def test_every_picture_is_shown_and_every_shown_picture_exists(root: Path) -> None:
    pages = [root / "README.md", *root.glob("docs/**/*.md")]
    shown = {
        (page.parent / link).resolve()
        for page in pages
        for link in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text())
    }
    assert shown == {path.resolve() for path in (root / "docs/pictures").iterdir()}
