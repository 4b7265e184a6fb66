"""Test that provision.yml, validate.yml and reimage.yml show and store no secret.

A canary is a unique text in the place of a secret (tests/e2e/canaries.py). Every secret of Vault and of the
environment has one. The tests then search the output, the results, all changed files of this machine, and
the arguments and environments of all processes. Further tests show that every secret option of a role has a
canary, so that a new secret cannot be forgotten here.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from rackproof.core.secret_names import secret_variables
from tests.e2e.bench.playing import watched_processes
from tests.e2e.canaries import ENVIRONMENT, GIVEN, UNIQUE, VAULT, files_with, watched_files

if TYPE_CHECKING:
    from .conftest import Rack

pytestmark = pytest.mark.playbook
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "words",
    [
        ("provision.yml", "-l", "n01,n02"),
        ("validate.yml", "-e", "validate_probe_gpu_minutes=44"),
        ("reimage.yml", "-e", "reimage_method=rack", "-e", "reimage_canary=0", "-l", "n01,gone"),
    ],
    ids=["provision", "validate", "reimage"],
)
def test_no_job_shows_or_keeps_a_secret(
    rack: Rack, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    vault = rack.folder / "vault.yml"
    vault.write_text(yaml.safe_dump(VAULT))
    # The callback stores acts, records and pages below the folder that is searched.
    home = rack.folder / "home"
    for name, value in {
        **ENVIRONMENT,
        "RACKPROOF_RESULTS": str(rack.results),
        "HOME": str(home),
    }.items():
        monkeypatch.setenv(name, value)
    # One node fails, because Ansible shows the most about a failed task.
    rack.mark("gone", "no-image")
    with watched_processes(UNIQUE) as found, watched_files(UNIQUE, home) as elsewhere:
        done = rack.play(*words, "-e", f"@{vault}", "-vvv")
    output = done.stdout + done.stderr
    assert "PLAY RECAP" in output, output[-3000:]
    shown = [line[:200] for line in output.splitlines() if any(one.decode() in line for one in GIVEN)]
    assert shown == []
    assert files_with(GIVEN, rack.folder, vault) == []
    assert elsewhere == []
    assert not [one for one in found if one.startswith("argv ")]
    assert list(rack.results.glob("*/run.json"))


def test_a_secret_from_vault_is_in_no_processs_environment(rack: Rack) -> None:
    vault = rack.folder / "vault.yml"
    vault.write_text(yaml.safe_dump(VAULT))
    with watched_processes(UNIQUE) as found:
        done = rack.play("validate.yml", "-l", "n01,gone", "-e", f"@{vault}")
    assert "PLAY RECAP" in done.stdout
    assert found == set()


def options_of(spec: dict[str, Any], above: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the spec of each option of a role. A suboption has the name OPTION.NAME."""
    for name, option in (spec.get("options") or {}).items():
        yield above + name, option
        yield from options_of(option, f"{above}{name}.")


def role_options() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the options of all roles, as :func:`options_of` does."""
    for path in sorted(ROOT.glob("roles/*/meta/argument_specs.yml")):
        for spec in yaml.safe_load(path.read_text())["argument_specs"].values():
            yield from options_of(spec)


def secret_options() -> dict[str, dict[str, Any]]:
    """Return the secret options of all roles."""
    return {name: option for name, option in role_options() if option.get("no_log") and "." not in name}


@pytest.mark.parametrize(
    "value", ["canary-0815", {"a": "canary-0815"}, ["canary-0815"], [{"a": "canary-0815"}]]
)
def test_the_refusal_of_a_secret_of_another_type_does_not_show_it(tmp_path: Path, value: object) -> None:
    tasks = [
        {
            "name": f"Check {name}",
            "ansible.builtin.validate_argument_spec": {"argument_spec": {name: option}},
            "ignore_errors": True,
        }
        for name, option in secret_options().items()
    ]
    play = [{"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": tasks}]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(play))
    given = dict.fromkeys(secret_options(), value)
    (tmp_path / "vault.yml").write_text(yaml.safe_dump(given))
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            "-vvv",
            tmp_path / "play.yml",
            "-e",
            f"@{tmp_path}/vault.yml",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line[:300] for line in (done.stdout + done.stderr).splitlines() if "canary-0815" in line] == []


def test_there_is_a_canary_in_every_secret_that_roles_take() -> None:
    # The default of the exception is made of ngc_api_key, which has a canary.
    assert set(secret_options()) - set(VAULT) <= {"enroot_pyxis_api_key"}
    for name, option in role_options():
        above, _, within = name.partition(".")
        assert not (within and option.get("no_log")) or within in str(VAULT[above]), name


NO_SECRETS = {
    "apt_mirror_key_file": "a public key",
    "apt_mirror_key_fingerprint": "of a public key",
    "enroot_pyxis_credentials_group": "a group",
    "netboot_order_key": "a path",
    "node_image_order_key": "a path",
    "node_image_secure_boot_key": "a path",
    "netboot_entry.token": "made for one boot, in the addresses that are requested by plain HTTP",
    "netboot_discover.token": "made for one boot",
}
"""Options that are not secret although their names look so, each with the reason."""


def test_an_option_whose_name_says_secret_is_one() -> None:
    named = {
        name: option for name, option in role_options() if secret_variables({name.rpartition(".")[2]: "x"})
    }
    shown = {name for name, option in named.items() if not option.get("no_log")}
    inside = {name for name in shown if secret_options().get(name.partition(".")[0])}
    assert shown - inside == set(NO_SECRETS)


def test_there_is_a_canary_in_every_secret_of_the_environment() -> None:
    texts = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    texts += [path.read_text() for path in (ROOT / "roles").rglob("*.yml")]
    read = re.compile(r"""["'](NGC_API_KEY|RACKPROOF_[A-Z_]*(?:URL|USER|PASSWORD|KEY|SECRET|TOKEN))["']""")
    found = {name for text in texts for name in read.findall(text)}
    assert len(found) >= 5
    assert found <= set(ENVIRONMENT)
