"""Words that docs/inside/words.md gives up stand nowhere that an operator reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

GIVEN_UP = re.compile(r"\b(nobody|somebody|everybody|told|begun|anew)\b", re.IGNORECASE)
TASK_NAME = re.compile(r"^\s*(?:- )?name: (.+)$", re.MULTILINE)


def pages(root: Path) -> list[Path]:
    """Return the pages for people; words.md names the words that it gives up."""
    found = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("roles/*/README.md")]
    return [page for page in found if page.name not in ("words.md", "CHANGELOG.md")]


def sentences(page: Path) -> str:
    """Return a page without code, whose names are what they are."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)


def test_no_page_has_a_word_that_was_given_up(root: Path) -> None:
    found = {
        f"{page.relative_to(root)}: {match[0]}"
        for page in pages(root)
        for match in GIVEN_UP.finditer(sentences(page))
    }
    assert not found


@pytest.mark.parametrize("folder", ["roles", "playbooks"])
def test_no_task_is_called_by_one(root: Path, folder: str) -> None:
    names = [
        f"{path.relative_to(root)}: {name}"
        for path in sorted((root / folder).rglob("*.yml"))
        for name in TASK_NAME.findall(path.read_text())
        if GIVEN_UP.search(name)
    ]
    assert not names


def test_the_words_are_found_where_they_stand() -> None:
    text = "Nobody was told `anew`.\n```\nbegun\n```\n"
    assert GIVEN_UP.findall(re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)) == ["Nobody", "told"]
