"""Test that docstrings, comments, tasks and pages use the words of docs/inside/words.md.

The tests find words that were given up, docstrings that do not begin as they should, constructions that are
not English, and lines of pages that are too long. Each rule has a test with wrong and right texts.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.test_structure import python_programs

GIVEN_UP = re.compile(r"\b(nobody|somebody|everybody|told|begun|anew)\b", re.IGNORECASE)
TASK_NAME = re.compile(r"^\s*(?:- )?name: (.+)$", re.MULTILINE)


def pages(root: Path) -> list[Path]:
    """Return the pages for people, without words.md, which lists the words that are given up."""
    found = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("roles/*/README.md")]
    return [page for page in found if page.name not in ("words.md", "CHANGELOG.md")]


def sentences(page: Path) -> str:
    """Return a page without its code, in which names have to stay as they are."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)


def test_no_page_has_a_word_that_was_given_up(root: Path) -> None:
    found = {
        f"{page.relative_to(root)}: {match[0]}"
        for page in pages(root)
        for match in GIVEN_UP.finditer(sentences(page))
    }
    assert not found


@pytest.mark.parametrize("folder", ["roles", "playbooks"])
def test_no_name_of_a_task_has_a_word_that_was_given_up(root: Path, folder: str) -> None:
    names = [
        f"{path.relative_to(root)}: {name}"
        for path in sorted((root / folder).rglob("*.yml"))
        for name in TASK_NAME.findall(path.read_text())
        if GIVEN_UP.search(name)
    ]
    assert not names


def test_given_up_words_are_found_outside_of_code() -> None:
    text = "Nobody was told `anew`.\n```\nbegun\n```\n"
    assert GIVEN_UP.findall(re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)) == ["Nobody", "told"]


LONGEST_LINE = 100
LONGEST_CELL = 150
GENERATED = re.compile(r"<!-- (?:generated|proven)\b.*?<!-- end.*? -->", re.DOTALL)
# The target of a link and a path do not count for the length of a line.
TARGET = re.compile(r"(?<=\])\([^)\s]*\)|`[^`\s]*/[^`\s]*`")


def too_long(text: str) -> Iterator[tuple[int, int]]:
    """Yield line and length of each line or table cell of a page that is too long to read at a glance."""
    text = GENERATED.sub(lambda part: "\n" * part[0].count("\n"), text)
    for number, line in enumerate(text.splitlines(), start=1):
        is_row = line.lstrip().startswith("|")
        parts = re.split(r"(?<!\\)\|", line) if is_row else [line]
        longest = max(len(TARGET.sub("", part).strip() if is_row else TARGET.sub("", part)) for part in parts)
        if longest > (LONGEST_CELL if is_row else LONGEST_LINE):
            yield number, longest


def test_lines_and_cells_of_pages_are_short(root: Path) -> None:
    found = [
        f"{name}:{line}: {length}"
        for page in pages(root)
        # The READMEs of roles are generated as a whole.
        if not (name := str(page.relative_to(root))).startswith("roles/")
        for line, length in too_long(page.read_text())
    ]
    assert not found


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a" * 101, [1]),
        ("a" * 100, []),
        (f"| {'a' * 150} | b |\n| {'a' * 151} |", [2]),
        (f"[{'a' * 90}]({'b' * 90}), `c/{'d' * 90}`", []),
        (f"<!-- generated: x -->\n{'a' * 101}\n<!-- end -->\n{'a' * 101}", [4]),
    ],
)
def test_long_lines_are_found(text: str, lines: list[int]) -> None:
    assert [line for line, _ in too_long(text)] == lines


def uneven_rows(text: str) -> Iterator[int]:
    """Yield the line of each row of a table that has more or fewer columns than the table's heading."""
    columns = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.lstrip().startswith("|"):
            columns = 0
            continue
        cells = len(re.findall(r"(?<!\\)\|", line))
        columns = columns or cells
        if cells != columns:
            yield number


def test_rows_of_tables_have_the_columns_of_their_heading(root: Path) -> None:
    found = [
        f"{page.relative_to(root)}:{line}"
        for page in pages(root)
        for line in uneven_rows(
            re.sub(r"```.*?```", lambda part: "\n" * part[0].count("\n"), page.read_text(), flags=re.DOTALL)
        )
    ]
    assert not found


def test_uneven_rows_are_found() -> None:
    assert list(uneven_rows("| a | b |\n| - | - |\n| 1 | 2 | | 3 | 4 |\ntext\n| a |\n| `x\\|y` |\n")) == [3]


def programs(root: Path, folder: str) -> list[Path]:
    """Return the Python files of a folder, also programs without an extension."""
    named = sorted((root / folder).rglob("*.py"))
    return [*named, *(path for path in python_programs(root) if path.is_relative_to(root / folder))]


CODE_FOLDERS = ("src", "plugins", "roles", "workloads", "testrack", "tools", "tests")
# A docstring that begins so is not a sentence; `say` and `tell` are for persons.
NO_BEGIN = re.compile(r"(Of|By|Say|Says|Tell|Tells|Hear)\b")
# Nor is one that begins with a question word: "Return whether …", or a noun.
QUESTION = re.compile(r"(What|Which|Whether|Whose|Who|How|Where|When|Why)\b")
# The docstring of a function begins with a verb in the imperative.
NO_VERB = re.compile(
    r"(The|An?|Its|Their|Our|Each|Every|Both|All|Any|None|One|Two|It|This|That|These|For|As|At|In|On|To|From)\b"
    r"|[a-z]|\w+(?<!s)s\b"
)
# Translated too closely: "None where it is unknown" (if), "the address is none" (is invalid).
FOREIGN = re.compile(
    r"\b(None|empty|nothing)`* where (there|it|they|nothing|none|no)\b|(?<!\bthere )\b(is|are) none[.;]"
)
# "No I/O." marks a function without side effects.
OLD_MARK = re.compile(r"\bPure\.")
# A parameter may be called `begun`; its entry in a docstring begins with its name.
ARGUMENT = re.compile(r"(?m)^\s*\w+: ")


class Docstring(NamedTuple):
    """A docstring with its line, and the name of the function that it describes, or ""."""

    line: int
    words: str
    function: str


@cache
def docstrings(text: str) -> tuple[Docstring, ...]:
    """Return each docstring: of modules, classes, functions, and names below their value.

    The result is cached, because four tests read the docstrings of all programs. The syntax trees would take
    too much memory.
    """
    found = []
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        function = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ""
        for at, one in enumerate(body if isinstance(body, list) else []):
            if (
                isinstance(one, ast.Expr)
                and isinstance(one.value, ast.Constant)
                and isinstance(one.value.value, str)
            ):
                found.append(Docstring(one.lineno, one.value.value, function if at == 0 else ""))
    return tuple(found)


def comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def given_up_in_code(text: str) -> set[int]:
    """Return the lines of docstrings and comments that have a given-up word, beginning or mark."""
    described = [(one.line, one.words) for one in docstrings(text)]
    found = {line for line, words in described if NO_BEGIN.match(words.strip()) or OLD_MARK.search(words)}
    for line, words in (*described, *comments(text)):
        plain = ARGUMENT.sub("", re.sub(r"`+[^`]*`+", "", words))
        found |= {line for _ in GIVEN_UP.finditer(plain)}
    return found


def questions(text: str) -> set[int]:
    """Return the lines of docstrings that begin with a question word."""
    return {one.line for one in docstrings(text) if QUESTION.match(one.words.strip())}


def verbless(text: str) -> set[int]:
    """Return the lines of functions' docstrings that do not begin with a verb in the imperative."""
    return {
        one.line
        for one in docstrings(text)
        if one.function and not one.function.startswith("test_")
        if NO_VERB.match(inspect.cleandoc(one.words).lstrip("`"))
    }


def foreign(text: str) -> set[int]:
    """Return the lines of docstrings with a construction that English does not have."""
    return {one.line for one in docstrings(text) if FOREIGN.search(" ".join(one.words.split()))}


@pytest.mark.parametrize("wrong_lines", [questions, verbless, foreign])
def test_docstrings_are_sentences(root: Path, wrong_lines: Callable[[str], set[int]]) -> None:
    found = [
        f"{path.relative_to(root)}:{line}"
        for folder in CODE_FOLDERS
        for path in programs(root, folder)
        for line in sorted(wrong_lines(path.read_text()))
    ]
    assert not found


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('"""What a run needs."""\n', {1}),
        ('def f():\n    """Whether it is."""\n', {2}),
        ('x = 1\n"""How many."""\n', {2}),
        ('"""Return what a run needs."""\n', set()),
        ('"""Whatever happens, it ends."""\n', set()),
    ],
)
def test_question_words_are_found(text: str, lines: set[int]) -> None:
    assert questions(text) == lines


@pytest.mark.parametrize(
    ("words", "is_wrong"),
    [
        ("The newest record.", True),
        ("GPUs by their node.", True),
        ("Returns the newest record.", True),
        ("minigo proves its end.", True),
        ("Return the newest record.", False),
        ("Pass a message on.", False),
        ("Process a line.", False),
    ],
)
def test_functions_without_a_verb_are_found(words: str, is_wrong: bool) -> None:
    assert bool(verbless(f'def f():\n    """{words}"""\n')) is is_wrong
    assert not verbless(f'class C:\n    """{words}"""\n')


@pytest.mark.parametrize(
    ("words", "is_wrong"),
    [
        ("Return the node, None where there is none.", True),
        ("Return the reason, empty where nothing is wrong.", True),
        ("Raise it: the address is none.", True),
        ("Return the numbers; those that are none; and those that are.", True),
        ("Return the node, or None if there is none.", False),
        ("Return the state; it is none, ours or other.", False),
        ("Return a column that has None where a row lacks it.", False),
    ],
)
def test_foreign_constructions_are_found(words: str, is_wrong: bool) -> None:
    assert bool(foreign(f'"""{words}"""\n')) is is_wrong


@pytest.mark.parametrize("folder", CODE_FOLDERS)
def test_no_docstring_and_no_comment_has_a_word_that_was_given_up(root: Path, folder: str) -> None:
    found = [
        f"{path.relative_to(root)}:{line}"
        for path in programs(root, folder)
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
        ('def f():\n    """Return one. Pure."""\n', {2}),
    ],
)
def test_given_up_words_are_found_in_docstrings_and_comments(text: str, lines: set[int]) -> None:
    assert given_up_in_code(text) == lines


HEADED = ("molecule/*/*.yml", "roles/*/meta/main.yml", "roles/*/vars/*.yml")


def test_yaml_files_begin_with_their_purpose(root: Path) -> None:
    found = [
        str(path.relative_to(root))
        for pattern in HEADED
        for path in sorted(root.glob(pattern))
        if not path.read_text().startswith("---\n#")
    ]
    assert not found
