"""Test that a program which Rackproof starts gets no secret that it does not need.

Rackproof starts Slurm's tools, ipmitool, ssh-keygen, Ansible and playbooks. core/child_environment.py and the
variable rackproof_environment remove the tokens and passwords of the controller from their environment. These
tests set a canary for each secret, and look for it in each program.
"""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from rackproof.analysis.certificate.signature import sign_bytes
from rackproof.core.child_environment import (
    ANSIBLE_NEEDS,
    CONTROLLER_SECRETS,
    OWN_SECRETS,
    environment_of_inventory,
    environment_of_playbook,
    environment_of_tool,
    environment_of_written_inventory,
)
from rackproof.core.errors import RackproofError
from rackproof.jobs.fleet_status import ask_slurm
from rackproof.jobs.inventory.ansible_source import read_ansible_nodes
from rackproof.jobs.inventory.lint import list_inventory
from rackproof.jobs.inventory.nodes import NETBOX_TOKEN
from rackproof.jobs.inventory.slurm_source import ask_slurm_listing
from rackproof.jobs.reimage.bmc import Access
from rackproof.jobs.reimage.ipmi import open_machine

from ..e2e.canaries import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]
SITE = {NETBOX_TOKEN, "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "BMC_PASSWORD", "https_proxy"}
"""Secrets of the site. The name https_proxy does not look like that of a secret."""
SLURM, SSH, ANSIBLE = {"SLURM_JWT"}, {"SSH_AUTH_SOCK"}, {"ANSIBLE_VAULT_PASSWORD_FILE", "VAULT_PASSWORD"}
ALL = {*ENVIRONMENT, *SITE, *SLURM, *SSH, *ANSIBLE}


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set each secret to a URL with a canary."""
    for name in ALL:
        monkeypatch.setenv(name, f"http://user:canary-{name}@proxy")


def use_ipmi() -> None:
    """Start ipmitool once."""
    with open_machine("n1", Access(address="127.0.0.1", user="ops", password="x", protocol="ipmi")) as one:
        one.read_status()


# `left` has the secrets that the program needs and therefore gets.
@pytest.mark.parametrize(
    ("program", "start", "left"),
    [
        ("scontrol", ask_slurm_listing, SLURM),
        ("sinfo", ask_slurm, SLURM),
        ("ipmitool", use_ipmi, set()),
        ("ansible-inventory", lambda: list_inventory(Path(__file__).parent), ALL - set(OWN_SECRETS)),
        ("ansible-inventory", lambda: read_ansible_nodes(Path(__file__).parent), ANSIBLE),
        ("ssh-keygen", lambda: sign_bytes(b"x", Path("key")), SSH),
    ],
)
def test_a_tool_gets_no_secret_that_it_does_not_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, start: Callable[[], object], left: set[str]
) -> None:
    tool = tmp_path / program
    tool.write_text(f"#!/bin/sh\nenv > {tmp_path}/got\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    # Ansible's programs are those beside this Python.
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with suppress(RackproofError):
        start()
    got = dict(line.partition("=")[::2] for line in (tmp_path / "got").read_text().splitlines())
    assert {name for name in got if "canary-" in got[name]} == left
    assert got["PATH"].startswith(str(tmp_path))


@pytest.mark.parametrize(
    ("environment", "left"),
    [
        (environment_of_tool, set()),
        # The inventory of a site may be a program that needs the site's secrets.
        (environment_of_inventory, ALL - set(OWN_SECRETS)),
        (lambda: environment_of_tool(*ANSIBLE_NEEDS), ANSIBLE),
        (
            environment_of_playbook,
            ALL - {name for name in ENVIRONMENT if "SMTP" in name or "WEBHOOK" in name},
        ),
    ],
)
def test_what_each_kind_of_program_gets(environment: Callable[[], dict[str, str]], left: set[str]) -> None:
    got = environment()
    assert {name for name in got if "canary-" in got[name]} == left
    assert "PATH" in got


def test_the_list_of_own_secrets_is_whole_and_the_nodes_have_the_same() -> None:
    assert set(OWN_SECRETS) == set(ENVIRONMENT)
    module = runpy.run_path(str(ROOT / "plugins/module_utils/rackproof_tools.py"))
    assert {*OWN_SECRETS, NETBOX_TOKEN} - set(module["CONTROLLER_SECRETS"]) == {"NGC_API_KEY"}
    assert set(module["node_environment"]()) >= {"NGC_API_KEY", "HF_TOKEN", "PATH"}


PLAYBOOKS = sorted([*ROOT.glob("*.yml"), *(ROOT / "playbooks").glob("*.yml")])


def test_no_play_gives_its_tasks_secrets_of_the_controller() -> None:
    """Check the environment of plays: each task of a play gets it, also those of roles and handlers."""
    loaded = [(path.name, yaml.safe_load(path.read_text())) for path in PLAYBOOKS]
    plays = [(name, play) for name, plays in loaded for play in plays if "hosts" in play]
    assert len(plays) >= 15
    wanted = "{{ rackproof_environment }}"
    assert [f"{name}: {play['name']}" for name, play in plays if play.get("environment") != wanted] == []


def test_nothing_starts_a_program_without_the_environment_of_its_play() -> None:
    files = [path for place in ("roles", "playbooks", "inventory") for path in (ROOT / place).rglob("*.yml")]
    text = "\n".join(path.read_text() for path in [*files, *PLAYBOOKS])
    assert re.findall(r"builtin[.]raw|^ *(?:- )?raw:|local_action|\\blines'", text, re.M) == []
    # Ansible starts what `pipe` names itself, so each such command removes the secrets.
    piped = re.findall(r"""['"](?:ansible[.]builtin[.])?pipe['"],? *([^ )]*)""", text)
    assert piped == ["bench_pack_command"]
    bench = yaml.safe_load((ROOT / "roles/bench/vars/main.yml").read_text())
    assert all(bench[one].startswith("unset {{ rackproof_environment | join(' ') }}; ") for one in piped)
    code = [*(ROOT / "src").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")]
    low = [path.name for path in code if "_low_level_execute_command(" in path.read_text()]
    assert low == ["action.py"]


@pytest.mark.playbook
def test_what_a_task_starts_gets_no_secret_of_the_controller(tmp_path: Path) -> None:
    module = runpy.run_path(str(ROOT / "plugins/module_utils/rackproof_tools.py"))
    assert set(CONTROLLER_SECRETS) == set(module["CONTROLLER_SECRETS"])
    program = tmp_path / "program.sh"
    program.write_text("#!/bin/sh\nenv\n")
    begin = {"hosts": "n1", "gather_facts": False, "environment": "{{ rackproof_environment }}"}
    started = [
        {"ansible.builtin.command": {"cmd": "env"}},
        {"ansible.builtin.shell": {"cmd": "env"}, "delegate_to": "localhost", "environment": {"OWN": "1"}},
        {"ansible.builtin.script": {"cmd": str(program)}, "delegate_to": "localhost"},
        {"ansible.builtin.command": {"cmd": "env"}, "connection": "local", "become": False},
    ]
    tasks = [{"name": "Show", **task, "register": f"got_{at}"} for at, task in enumerate(started)]
    shown = {"content": "{{ [got_0, got_1, got_2, got_3] | map(attribute='stdout') | list | to_json }}"}
    tasks.append(
        {"name": "Keep", "ansible.builtin.copy": shown | {"dest": f"{tmp_path}/got", "mode": "0600"}}
    )
    (tmp_path / "play.json").write_text(json.dumps([begin | {"tasks": tasks}]))
    hosts = {"n1": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}}
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            *("-i", tmp_path / "hosts.json", tmp_path / "play.json"),
        ],
        env={name: value for name, value in os.environ.items() if "canary-" not in value}
        | dict.fromkeys([*CONTROLLER_SECRETS, "HF_TOKEN"], "canary-1"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    got = json.loads((tmp_path / "got").read_text())
    assert [re.findall("(.*)=canary-1", one) for one in got] == [["HF_TOKEN"]] * len(started)


def started_programs(path: Path) -> list[str]:
    """Return the argument ``env`` of each call in a file that starts another program."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        given = {one.arg: ast.unparse(one.value) for one in node.keywords}
        if (
            ast.unparse(node.func).startswith("subprocess.")
            or {"capture_output", "preexec_fn"} & given.keys()
        ):
            found.append(f"{path.name}:{node.lineno} {given.get('env')}")
    return [one for one in found if "TimeoutExpired" not in one]


def test_every_program_is_started_with_an_environment_of_its_own() -> None:
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")]
    started = [one for path in files for one in started_programs(path)]
    assert len(started) >= 12
    assert [one for one in started if "environment" not in one] == []


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"LC_ALL": "xx_YY.UTF-8"}, {"LC_ALL": "", "LANG": ""}])
@pytest.mark.parametrize(
    "environment", [environment_of_inventory, environment_of_playbook, environment_of_written_inventory]
)
def test_ansible_gets_a_locale_that_it_starts_in(
    environment: Callable[[], dict[str, str]], locale: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ansible ends with an error under a locale that does not exist or is not UTF-8, such as LC_ALL=C."""
    for name, value in locale.items():
        monkeypatch.setenv(name, value)
    assert environment()["LC_ALL"] == "C.UTF-8"
