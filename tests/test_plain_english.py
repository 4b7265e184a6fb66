"""Words that docs/inside/words.md gives up stand nowhere that an operator or a contributor reads."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
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


CODE_FOLDERS = ("src", "plugins", "workloads", "testrack")
# A docstring that begins so is no sentence; `say` and `tell` are for persons.
NO_BEGIN = re.compile(r"(Of|By|Say|Says|Tell|Tells|Hear)\b")
# A parameter may be called `begun`; its entry in a docstring begins with its name.
ARGUMENT = re.compile(r"(?m)^\s*\w+: ")


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring: of modules, classes, functions, and names below their value."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for one in body if isinstance(body, list) else []:
            if (
                isinstance(one, ast.Expr)
                and isinstance(one.value, ast.Constant)
                and isinstance(one.value.value, str)
            ):
                yield one.lineno, one.value.value


def comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def given_up_in_code(text: str) -> set[int]:
    """Return the lines of docstrings and comments with a word that was given up, or a beginning that is."""
    described = list(docstrings(ast.parse(text)))
    found = {line for line, words in described if NO_BEGIN.match(words.strip())}
    for line, words in (*described, *comments(text)):
        plain = ARGUMENT.sub("", re.sub(r"`+[^`]*`+", "", words))
        found |= {line for _ in GIVEN_UP.finditer(plain)}
    return found


@pytest.mark.parametrize("folder", CODE_FOLDERS)
def test_no_docstring_and_no_comment_has_one(root: Path, folder: str) -> None:
    found = [
        f"{path.relative_to(root)}:{line}"
        for path in sorted((root / folder).rglob("*.py"))
        for line in sorted(given_up_in_code(path.read_text()))
    ]
    assert not found


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('"""Nobody reads this."""\n', {1}),
        ('def f():\n    """Return what was told."""\n', {2}),
        ("x = 1  # made anew\n", {1}),
        ('x = 1\n"""Of one report; the host takes no more."""\n', {2}),
        ('def f():\n    """Say why."""\n', {2}),
        ('def f(begun):\n    """Return it.\n\n    Args:\n        begun: The night.\n    """\n', set()),
        ('def f():\n    """Return ``begun``."""\n    return "told"\n', set()),
        ('"""Often read."""\n', set()),
    ],
)
def test_they_are_found_in_code(text: str, lines: set[int]) -> None:
    assert given_up_in_code(text) == lines
