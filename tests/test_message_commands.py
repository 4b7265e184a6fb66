"""Test that each command which a message advises can be typed as the message has it.

One test searches the strings of all programs, roles and playbooks for commands of rackproof and
ansible-playbook. Each command must exist and have its required arguments, each option must exist, and so must
each playbook. The commands are parsed and not run. A value that a message inserts is replaced by NAME. The
other tests check the search and the parser themselves.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from rackproof.cli.main import main

from .test_docs_commands import options_of_ansible_playbook, problem_of_command

FOLDERS = ("src", "plugins", "roles", "playbooks", "tools", "workloads")
"""Folders of the checkout whose files contain messages."""
COMMAND = re.compile(
    r"(?:^|(?<!`)`(?!`)|[:;] +|\b(?:run|then|next) )((?:rackproof|ansible-playbook) [^`\n;]+)", re.MULTILINE
)
"""Pattern of a command in a message, at a place where a message advises one: at the beginning of a line,
after a single backquote, a colon, a semicolon, or a word such as ``run``. Two backquotes mark code in
documentation."""
PROSE_AFTER = re.compile(r" \(.*| again\b.*|: .*|\.$|[\"']$|,.*")
"""Pattern of the rest of the sentence after a command."""
PLACEHOLDER = "NAME"
"""Text in place of a value that a message inserts."""


def texts(path: Path) -> Iterator[str]:
    """Yield the strings of a Python file, or the whole text of another file, with placeholders for values."""
    if path.suffix != ".py":
        yield re.sub(r"\{\{.*?\}\}", PLACEHOLDER, path.read_text(), flags=re.DOTALL)
        return
    tree = ast.parse(path.read_text())
    # The parts of an f-string are strings in the tree, too, but only the whole f-string is a message.
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else PLACEHOLDER for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


def commands_in(text: str) -> list[str]:
    """Return the commands that a text advises."""
    return [PROSE_AFTER.sub("", found).strip().rstrip(".") for found in COMMAND.findall(text)]


@cache
def advised(root: Path) -> frozenset[str]:
    """Return all commands that messages of the checkout advise."""
    files = [
        path
        for folder in FOLDERS
        for path in (root / folder).rglob("*")
        if path.suffix in (".py", ".yml", ".j2")
    ]
    return frozenset(command for path in files for text in texts(path) for command in commands_in(text))


def problem(root: Path, command: str) -> str:
    """Return a text about a missing or unknown part of a command, or "" for a right command."""
    program, *words = shlex.split(command, comments=True)
    # The message `rackproof --debug …` has a placeholder for the command. Check it with the command history.
    if words[:1] == ["--debug"]:
        return missing_argument(["history", *words[2:]])
    if program == "rackproof":
        return problem_of_command(words) or missing_argument(words)
    playbook, *options = words
    if not playbook.startswith("-") and not (root / playbook).is_file():
        return f"no playbook {playbook}"
    lacking = [word for word in options if word.startswith("-") and word not in options_of_ansible_playbook()]
    return f"no option {lacking[0]}" if lacking else ""


def missing_argument(words: list[str]) -> str:
    """Return an error about a required argument or an option of a command of rackproof, or "".

    A command without arguments is right, because a text may only name it ("listed by `rackproof history`").
    """
    if len(words) == 1:
        return ""
    try:
        with main.make_context("rackproof", list(words)) as context:
            _, command, rest = main.resolve_command(context, words)
            assert command is not None
            command.make_context(words[0], rest, parent=context)
    except (click.MissingParameter, click.NoSuchOption) as error:
        return str(error)
    except (click.UsageError, click.exceptions.Exit):
        pass  # A placeholder is neither a file nor a number, so such an error does not count.
    return ""


def test_each_command_that_a_message_advises_can_be_typed(root: Path) -> None:
    found = advised(root)
    assert {"rackproof explain NAME", "ansible-playbook validate.yml -l NAME"} <= found
    assert len(found) > 30
    assert not {command: why for command in sorted(found) if (why := problem(root, command))}


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("If the machine was idle, run `rackproof accept PLAN`.", ["rackproof accept PLAN"]),
        ("next: ansible-playbook reimage.yml -l n1,n2", ["ansible-playbook reimage.yml -l n1"]),
        ("See ``rackproof bench``; rackproof explain n1", ["rackproof explain n1"]),
        ("Name them: rackproof stop -l x (or -l y).", ["rackproof stop -l x"]),
        ("the package rackproof says", []),
    ],
)
def test_the_commands_in_a_text_are_found(text: str, commands: list[str]) -> None:
    assert commands_in(text) == commands


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("rackproof explane n1", "no command explane"),
        ("rackproof accept --all x", "no option --all"),
        ("ansible-playbook benches.yml", "no playbook benches.yml"),
        ("ansible-playbook bench.yml --lim x", "no option --lim"),
    ],
)
def test_a_command_that_cannot_run_is_found(root: Path, command: str, why: str) -> None:
    assert problem(root, command) == why
