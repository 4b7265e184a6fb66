"""Test that each reason, variable, option and file on the page docs/using/drained.md exists.

The page helps an operator whose node is drained. Its table must have every reason that roles and jobs write.
test_docs_names.py uses the functions of this file for all pages.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from ansible.cli.playbook import PlaybookCLI

from rackproof.cli.main import main
from rackproof.core.finding_codes import find_code
from rackproof.core.records import Verdict
from rackproof.jobs.reimage import lifecycle
from rackproof.jobs.validate.explain import build_explanation
from rackproof.jobs.validate.messages import drain_reason
from rackproof.nodes.slurm_states import drain_owner
from rackproof.store.night_store import DRAIN_PREFIX, NightRecord, NodeNight, SlurmState

PAGE = "docs/using/drained.md"
VARIABLE = re.compile(r"\b(?:validate|nightly|bench|provision|reimage)_\w+")
MODULE = "rackproof_slurm_node"
# Placeholders in the place of a command's last argument. They are no finding codes.
PLACEHOLDERS = frozenset({"NODE", "CODE", "RACK"})


def tasks_of(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every task of a file of tasks, those of blocks as well."""
    for task in value if isinstance(value, list) else []:
        if isinstance(task, dict):
            yield task
            for part in ("block", "rescue", "always"):
                yield from tasks_of(task.get(part))


def reasons_of_drains(root: Path) -> set[str]:
    """Return the reasons of all drains of the roles, without prefix, up to the first template."""
    reasons = set()
    for path in sorted(root.glob("roles/*/tasks/**/*.yml")):
        for task in tasks_of(yaml.safe_load(path.read_text())):
            asked = task.get(MODULE) or {}
            if asked.get("state") == "drained":
                reasons.add(asked["reason"].partition("{{")[0].strip())
    return reasons


def commands_of(text: str, program: str) -> Iterator[list[str]]:
    """Yield the arguments of each command of a program in code blocks and in inline code."""
    text = text.replace("\\\n", " ")
    for command in re.findall(r"(?m)^ {4,}(\S.*)$", text) + re.findall(r"`([^`\n]+)`", text):
        if not command.removeprefix("$ ").startswith(f"{program} "):
            continue
        words = shlex.split(command.removeprefix("$ "), comments=True)
        if len(words) > 1:
            yield words[1:]


@cache
def options_of_ansible_playbook() -> frozenset[str]:
    """Return all options of ansible-playbook."""
    cli = PlaybookCLI(["ansible-playbook"])
    cli.init_parser()
    return frozenset(cli.parser._option_string_actions)


def problem_of_command(words: list[str]) -> str:
    """Return the words of a command of ``rackproof`` that do not exist, or ""."""
    command: click.Command = main
    with click.Context(main) as context:
        while isinstance(command, click.Group):
            if not words:
                return "a command is missing"
            if words in (["--help"], ["COMMAND", "--help"]):
                return ""
            if words[0].startswith("-") and command.name == "reimage":
                words = ["run", *words]
            # `rackproof evidence NODE` is short for `rackproof evidence make NODE`.
            if command.name == "evidence" and words[0] not in command.commands:
                words = ["make", *words]
            found = command.get_command(context, words[0])
            if found is None:
                return f"no command {words[0]}"
            command, words = found, words[1:]
    known = {name for parameter in command.params for name in parameter.opts}
    if command.context_settings.get("ignore_unknown_options"):
        known |= options_of_ansible_playbook()
    lacking = [word for word in words if word.startswith("-") and word.split("=")[0] not in known]
    return f"no option {lacking[0].split('=')[0]}" if lacking else ""


def variables_of_roles(root: Path) -> set[str]:
    """Return the variables that the roles' argument specs list."""
    names = set()
    for path in root.glob("roles/*/meta/argument_specs.yml"):
        for spec in yaml.safe_load(path.read_text())["argument_specs"].values():
            names |= set(spec.get("options") or {})
    return names


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / PAGE).read_text()


def test_the_table_has_every_reason_that_the_code_writes(root: Path, page: str) -> None:
    shown = re.findall(r"(?m)^\| `(rackproof[\w-]*:) ([^`]*)`", page)
    default = yaml.safe_load(
        (root / f"plugins/modules/{MODULE}.py").read_text().split('DOCUMENTATION = r"""')[1].split('"""')[0]
    )["options"]["prefix"]["default"]
    assert {prefix for prefix, _ in shown} == {DRAIN_PREFIX, lifecycle.PREFIX, default}
    assert all(drain_owner(f"{prefix} x") != "another owner" for prefix, _ in shown)
    for reason in reasons_of_drains(root) - {""}:
        assert any(text.startswith(reason) for _, text in shown), reason


def test_the_reasons_of_drains_are_found(root: Path) -> None:
    assert {"provisioning", "health:", "gets a new image"} <= reasons_of_drains(root)


def test_the_variables_on_the_page_exist(root: Path, page: str) -> None:
    named = set(VARIABLE.findall(page))
    assert {"validate_resume_hours", "nightly_limit", "bench_sku_references"} <= named
    assert named <= variables_of_roles(root)


def test_the_commands_on_the_page_exist(root: Path, page: str) -> None:
    rackproof = list(commands_of(page, "rackproof"))
    assert {"explain", "reimage", "audit", "status"} == {words[0] for words in rackproof}
    assert not [problem for words in rackproof if (problem := problem_of_command(words))]
    assert "`--results " in page
    assert not problem_of_command(["explain", "NODE", "--results"])
    codes = [words[1] for words in rackproof if words[0] == "explain" and words[1] not in PLACEHOLDERS]
    assert any(find_code(one) for one in codes)
    playbooks = [words[0] for words in commands_of(page, "ansible-playbook")]
    assert len(playbooks) >= 5
    assert all((root / name).is_file() for name in playbooks)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("override n1", "no command override"),
        ("reimage resume n1", "no command resume"),
        ("reimage", "a command is missing"),
        ("explain n1 --until=2030", "no option --until"),
        ("explain n1 --results=x", ""),
        ("bench -l n1 -e suite=x --check", ""),
        ("reimage -l n1", ""),
        ("evidence n1 --out=x --sign=k", ""),
        ("evidence n1 --sing=k", "no option --sing"),
        ("evidence verify x --catalogue=y", "no option --catalogue"),
        ("stop --of n1", "no option --of"),
    ],
)
def test_a_command_or_option_that_does_not_exist_is_found(command: str, problem: str) -> None:
    assert problem_of_command(command.split()) == problem


# The owner of the drain in Slurm, its reason, and whether `rackproof explain` names the page.
@pytest.mark.parametrize(
    ("drained_by", "reason", "leads"),
    [
        ("ours", "rackproof-night: pcie_width GPU 2", True),
        ("other", "rackproof: health: x", True),
        ("other", "rackproof-reimage: gets a new image", True),
        ("other", "Kill task failed", True),
        ("none", "", False),
    ],
)
def test_the_reason_of_a_drain_leads_to_the_page(drained_by: str, reason: str, leads: bool) -> None:
    slurm = SlurmState(known=True, state="IDLE", drained_by=drained_by, reason=reason)
    one = NodeNight(node="n01", verdict=Verdict.FAIL, why="pcie_width GPU 2", slurm=slurm)
    # The command names the results folder, because an operator may read Slurm's reason in any folder.
    assert drain_reason(one, "night", Path("results"), "").endswith(
        f"; rackproof explain --results {shlex.quote(str(Path('results').resolve()))} n01"
    )
    at = datetime(2026, 1, 2, tzinfo=UTC)
    night = NightRecord(night_id="night", started=at, ended=at, verdict=Verdict.FAIL, nodes=(one,))
    assert any(PAGE in line for line in build_explanation([(night, one)]).service) is leads
