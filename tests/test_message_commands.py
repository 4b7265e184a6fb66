"""Test that each command which a message advises can be typed as it is.

The tests search the strings of all programs, roles and playbooks for commands of rackproof and
ansible-playbook, and parse them. Values of a message count as NAME.
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
COMMAND = re.compile(
    r"(?:^|(?<!`)`(?!`)|[:;] +|\b(?:run|then|next) )((?:rackproof|ansible-playbook) [^`\n;]+)", re.MULTILINE
)
PROSE_AFTER = re.compile(r" \(.*| again\b.*|: .*|\.$|[\"']$|,.*")
PLACEHOLDER = "NAME"


def texts(path: Path) -> Iterator[str]:
    """Yield the strings of a program, with placeholders for values, or a whole YAML file."""
    if path.suffix != ".py":
        yield re.sub(r"\{\{.*?\}\}", PLACEHOLDER, path.read_text(), flags=re.DOTALL)
        return
    tree = ast.parse(path.read_text())
    # Parts of an f-string are strings, too, and no whole ones.
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
    """Return the part of a command that does not exist or is missing, or "" for a right command."""
    program, *words = shlex.split(command, comments=True)
    if words[:1] == ["--debug"]:  # before any command
        return missing_argument(["history", *words[2:]])
    if program == "rackproof":
        return problem_of_command(words) or missing_argument(words)
    playbook, *options = words
    if not playbook.startswith("-") and not (root / playbook).is_file():
        return f"no playbook {playbook}"
    lacking = [word for word in options if word.startswith("-") and word not in options_of_ansible_playbook()]
    return f"no option {lacking[0]}" if lacking else ""


def missing_argument(words: list[str]) -> str:
    """Return the required arguments that the command lacks. Run nothing."""
    if len(words) == 1:  # names the command, as in "listed by `rackproof history`"
        return ""
    try:
        with main.make_context("rackproof", list(words)) as context:
            _, command, rest = main.resolve_command(context, words)
            assert command is not None
            command.make_context(words[0], rest, parent=context)
    except (click.MissingParameter, click.NoSuchOption) as error:
        return str(error)
    except (click.UsageError, click.exceptions.Exit):
        pass  # a placeholder is not a file, no number
    return ""


def test_what_messages_advise_can_be_typed(root: Path) -> None:
    found = advised(root)
    assert {"rackproof explain NAME", "ansible-playbook validate.yml -l NAME"} <= found
    assert len(found) > 30
    assert not {command: why for command in sorted(found) if (why := problem(root, command))}


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("Idle? then `rackproof accept PLAN`.", ["rackproof accept PLAN"]),
        ("next: ansible-playbook reimage.yml -l n1,n2", ["ansible-playbook reimage.yml -l n1"]),
        ("See ``rackproof bench``; rackproof explain n1", ["rackproof explain n1"]),
        ("Name them: rackproof stop -l x (or -l y).", ["rackproof stop -l x"]),
        ("the package rackproof says", []),
    ],
)
def test_a_command_in_a_message_is_found(text: str, commands: list[str]) -> None:
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
