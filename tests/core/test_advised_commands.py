"""Test that a command in a message reads the results folder that the message is about.

Messages advise commands such as `rackproof accept PLAN`. Without --results, a command reads the usual folder.
If a message is about another folder, core/advised_commands.py adds --results and a quoted path.
"""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rackproof.cli.main import COMMANDS
from rackproof.core.advised_commands import (
    READERS,
    add_inventory,
    add_inventory_everywhere,
    add_results,
)
from rackproof.core.text import sanitize, shell_command


def _readers(name: str, command: click.Command) -> Iterator[str]:
    """Yield the names of a command and its subcommands that take ``--results``."""
    if isinstance(command, click.Group):
        for below, one in command.commands.items():
            yield from _readers(f"{name} {below}", one)
    elif any("--results" in one.opts for one in command.params):
        yield name


def test_every_command_with_a_results_folder_is_listed() -> None:
    found = []
    for name, one in COMMANDS.items():
        module, _, function = one.location.partition(":")
        found += _readers(name, getattr(importlib.import_module(module), function))
    assert sorted(READERS) == sorted(found)


# Each row has a text of a message, and the same text with the folder /r/x. Only a command that takes
# --results gets it: not a playbook run (bench), a word of a sentence, or a path with the name in it.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`rackproof accept plan-1`", "`rackproof accept --results /r/x plan-1`"),
        ("`rackproof history` lists them", "`rackproof history --results /r/x` lists them"),
        ("type rackproof reimage status", "type rackproof reimage status --results /r/x"),
        (
            "`rackproof explain n1` or `rackproof status`",
            "`rackproof explain --results /r/x n1` or `rackproof status --results /r/x`",
        ),
        ("rackproof accept --results /r/x plan-1", "rackproof accept --results /r/x plan-1"),
        ("rackproof bench -l localhost", "rackproof bench -l localhost"),
        ("rackproof reports nothing", "rackproof reports nothing"),
        ("it is no rackproof report.", "it is no rackproof report."),
        ("/r/rackproof report.html is a folder", "/r/rackproof report.html is a folder"),
        ("/rackproof history.sqlite is damaged", "/rackproof history.sqlite is damaged"),
    ],
)
def test_a_command_names_another_results_folder(
    text: str, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RACKPROOF_RESULTS", raising=False)
    assert add_results(text, Path("/r/x")) == expected
    assert add_results(text, tmp_path / "results") == text
    monkeypatch.setenv("RACKPROOF_RESULTS", "/r/x")
    assert add_results(text, Path("/r/x")) == text


# Each row has a text of a message, and the same text with the inventory /i.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ansible-playbook validate.yml -l n1", "ansible-playbook validate.yml -i /i -l n1"),
        (
            "ssh n1 true; then: ansible-playbook provision.yml -l n1  # x",
            "ssh n1 true; then: ansible-playbook provision.yml -i /i -l n1  # x",
        ),
        ("`rackproof validate -l RACK` makes a night", "`rackproof validate -i /i -l RACK` makes a night"),
        ("ansible-playbook bench.yml -i /j -l n1", "ansible-playbook bench.yml -i /j -l n1"),
        ("rackproof reimage status", "rackproof reimage status"),
        ("ssh n1 nvidia-smi --gpu-reset -i GPU", "ssh n1 nvidia-smi --gpu-reset -i GPU"),
        ("run ansible-playbook site.yml", "run ansible-playbook site.yml"),
    ],
)
def test_a_playbook_names_another_inventory(
    text: str, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANSIBLE_INVENTORY", raising=False)
    assert add_inventory(text, ("/i",)) == add_inventory_everywhere(text, ("/i",)) == expected
    # Nights of earlier versions have no inventory.
    assert add_inventory(text, ()) == add_inventory_everywhere(text, ()) == text
    # On this terminal, the variable already names it. Where a page is read, the variable may be absent.
    monkeypatch.setenv("ANSIBLE_INVENTORY", "/i")
    assert add_inventory(text, ("/i",)) == text
    assert add_inventory_everywhere(text, ("/i",)) == expected
    # A playbook reads ansible.cfg of its folder, except where the variable names another inventory.
    (tmp_path / "ansible.cfg").write_text("[defaults]\ninventory = /i\n")
    assert add_inventory_everywhere(text, ("/i",)) == text
    monkeypatch.setenv("ANSIBLE_INVENTORY", "/other")
    assert add_inventory(text, ("/i",)) == expected


def test_an_inventory_below_the_folder_is_short_and_several_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANSIBLE_INVENTORY", raising=False)
    names = (str(tmp_path / "my cluster"), "/more", "n1,")
    expected = "ansible-playbook validate.yml -i 'my cluster' -i /more -i n1,"
    assert add_inventory("ansible-playbook validate.yml", names) == expected


def test_a_folder_with_a_space_can_be_typed() -> None:
    assert add_results("rackproof status", Path("/my results")) == "rackproof status --results '/my results'"


@pytest.mark.parametrize(
    "name", ["a\nb", "\x1b[31mred\x1b[0m", "bidi\u202e", "it's\t\\n", "\udcff", "plain", "my runs", ""]
)
def test_a_command_is_one_line_and_names_the_same_file(name: str) -> None:
    line = shell_command(["printf", "%s", name])
    assert line.isprintable()
    assert line == sanitize(line)
    shown = subprocess.run(["bash", "-c", line], capture_output=True, check=True).stdout
    assert shown == name.encode("utf-8", "surrogateescape")


# NUL and half of a surrogate pair are in no file name, so U+FFFD replaces them. \udc80 to \udcff are bytes of
# a name that are not UTF-8, and stay these bytes.
@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("\ud800", "'\ufffd'"),
        ("a\udfff b", "'a\ufffd b'"),
        ("\0", "'\ufffd'"),
        ("a\0\n", r"$'a\357\277\275\012'"),
        ("\udcff1", r"$'\3771'"),
        ("\ud83d\ude00", "'\ufffd\ufffd'"),
    ],
)
def test_characters_that_no_file_name_can_have_are_replaced(name: str, word: str) -> None:
    assert shell_command([name]) == word
    expected = "".join("\ufffd" if one in "\0\ud800\udfff\ud83d\ude00" else one for one in name)
    shown = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True).stdout
    assert shown == expected.encode("utf-8", "surrogateescape")


def test_a_folder_with_a_line_end_does_not_break_the_advice() -> None:
    assert add_results("rackproof status", Path("/a\nb")) == r"rackproof status --results $'/a\012b'"
