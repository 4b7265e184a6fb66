"""Canaries in every secret: no file, line or process of provisioning, a night or a re-imaging has one."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.e2e.bench.test_bench_secrets import files_with, watched_processes

if TYPE_CHECKING:
    from .conftest import Rack

pytestmark = pytest.mark.playbook
ROOT = Path(__file__).resolve().parents[3]


def canary(name: str) -> str:
    return f"canary-{name}-0815"


VAULT = {
    "ngc_api_key": canary("ngc"),
    "reimage_bmc_user": "ops",
    "reimage_bmc_password": canary("bmc"),
    "slurm_munge_key": base64.b64encode(canary("munge").encode() * 40).decode(),
    "storage_s3fs_credentials": [{"access_key": canary("access"), "secret_key": canary("s3")}],
    "bench_results_credentials": [{"access_key": canary("results"), "secret_key": canary("key")}],
    "bench_secret_environment": {"HF_TOKEN": canary("hf"), "WANDB_API_KEY": canary("wandb")},
    "nightly_webhook_url": f"https://hooks.example/{canary('hook')}",
    "nightly_smtp_password": canary("smtp"),
    "nightly_smtp_user": canary("user"),
    "nightly_database_url": f"postgresql://rack:{canary('nightly')}@127.0.0.1:1/history",
}
# From the environment of whoever starts the playbook, which all that it starts has.
ENVIRONMENT = {
    "RACKPROOF_DATABASE_URL": f"postgresql://rack:{canary('database')}@127.0.0.1:1/history",
    "RACKPROOF_WEBHOOK_URL": f"https://hooks.example/{canary('webhook')}",
    "RACKPROOF_SMTP_PASSWORD": canary("mail"),
    "NGC_API_KEY": canary("registry"),
}


@pytest.mark.parametrize(
    "words",
    [
        ("provision.yml", "-l", "n01,n02"),
        ("validate.yml", "-e", "validate_probe_gpu_minutes=30"),
        ("reimage.yml", "-e", "reimage_method=rack", "-l", "n01,gone"),
    ],
    ids=["provision", "validate", "reimage"],
)
def test_no_job_shows_or_keeps_a_secret(
    rack: Rack, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    vault = rack.folder / "vault.yml"
    vault.write_text(yaml.safe_dump(VAULT))
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    # One node that fails, too: failures show the most.
    rack.say("gone", "no-image")
    given = [b"canary-", str(VAULT["slurm_munge_key"])[:40].encode()]
    with watched_processes(given) as found:
        done = rack.play(*words, "-e", f"@{vault}", "-vvv")
    output = done.stdout + done.stderr
    assert "PLAY RECAP" in output, output[-3000:]
    shown = [line[:200] for line in output.splitlines() if any(one.decode() in line for one in given)]
    assert shown == []
    assert files_with(given, rack.folder, vault) == []
    assert not [one for one in found if one.startswith("argv ")]
    assert rack.results.exists() or words[0] == "provision.yml"


def test_a_secret_from_vault_is_in_no_processs_environment(rack: Rack) -> None:
    vault = rack.folder / "vault.yml"
    vault.write_text(yaml.safe_dump(VAULT))
    with watched_processes([b"canary-", str(VAULT["slurm_munge_key"])[:40].encode()]) as found:
        done = rack.play("validate.yml", "-l", "n01,gone", "-e", f"@{vault}")
    assert "PLAY RECAP" in done.stdout
    assert found == set()


def secret_options() -> dict[str, dict[str, dict[str, object]]]:
    """Return the secret options of each role, by their names."""
    found = {}
    for path in ROOT.glob("roles/*/meta/argument_specs.yml"):
        for spec in yaml.safe_load(path.read_text())["argument_specs"].values():
            options = {name: one for name, one in (spec.get("options") or {}).items() if one.get("no_log")}
            if options:
                found[path.parts[-3]] = options
    return found


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
        for options in secret_options().values()
        for name, option in options.items()
    ]
    play = [{"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": tasks}]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(play))
    given = {name: value for options in secret_options().values() for name in options}
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
    secret = {name for options in secret_options().values() for name in options}
    # What these are made of by default is planted.
    assert secret - set(VAULT) <= {"enroot_pyxis_api_key"}
