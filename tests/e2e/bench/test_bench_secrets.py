"""Test that the secrets of a benchmark's job are only in the environment of the job's own processes.

An operator gives them in ``bench_secret_environment``, for example a token for a download. Here, each secret
is a canary, a unique text. The tests run bench.yml and search its output, its files, and all processes of
this machine. A secret in ``bench_environment``, whose values are shown in records, must stop the playbook.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackproof.store.run_folder import iter_runs
from tests.e2e.bench.playing import play_bench, watched_processes
from tests.e2e.bench.test_bench_round06 import HOSTS, inventory
from tests.e2e.canaries import ENVIRONMENT, GIVEN, UNIQUE, VAULT, canary, files_with, watched_files

pytestmark = pytest.mark.playbook
CANARIES = {
    name: canary(name.lower()) for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "PLAIN")
}


def test_a_jobs_secrets_are_in_its_own_processes_alone(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The database of the history does not answer. Messages about that must not have its password.
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    hosts = inventory(root, tmp_path)
    # This is a file of variables, as Ansible Vault gives it to the playbook. It also has the secrets of all
    # other roles.
    vault = tmp_path / "vault.yml"
    vault.write_text(yaml.safe_dump(VAULT | {"bench_secret_environment": CANARIES}))
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    with (
        watched_processes([one.encode() for one in CANARIES.values()]) as found,
        watched_files(UNIQUE, home) as elsewhere,
    ):
        status, output = play_bench(
            root, tmp_path, "-l", HOSTS[0], "-e", "benchmark=gnmt-0.6", "-e", f"@{vault}", "-vvv"
        )
    # Without a history, the run is unproven, so the playbook fails. The job runs as usual.
    assert status == 2, output[-3000:]
    (run,) = iter_runs(tmp_path / "results")
    assert {name: run.environment[name] for name in CANARIES} == dict.fromkeys(CANARIES, "(secret)")
    assert not [line[:200] for line in output.splitlines() if any(one in line.encode() for one in GIVEN)]
    assert files_with(GIVEN, tmp_path, vault, hosts) == []
    assert elsewhere == []
    assert (tmp_path / "results/.spool").is_dir()
    assert any("run.sub" in one for one in found), "the job did not get the secrets"
    assert not [one for one in found if not one.startswith("job ")], "\n".join(sorted(found))


def test_a_user_who_may_become_root_needs_no_login_as_root(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = inventory(root, tmp_path)
    # The tests may run as root, and Ansible would not become the same user.
    monkeypatch.setenv("ANSIBLE_BECOME_ALLOW_SAME_USER", "true")
    # This is a fake sudo, which logs its arguments. No argument may have a secret.
    sudo = tmp_path / "bin/as-root"
    sudo.write_text(
        f'#!/bin/bash\necho "$*" >> {tmp_path}/asked\n'
        'while [ "$1" != root ]; do shift; done; exec "${@:2}"\n'
    )
    sudo.chmod(0o755)
    content: dict[str, Any] = yaml.safe_load(hosts.read_text())
    content["all"]["vars"] = {"ansible_user": "ops", "ansible_become": True, "ansible_become_exe": str(sudo)}
    # Ansible then calls the fake as it calls sudo: sudo -H -S -n -u root.
    content["all"]["vars"]["ansible_become_method"] = "sudo"
    hosts.write_text(yaml.safe_dump(content))
    vault = tmp_path / "vault.yml"
    vault.write_text(
        yaml.safe_dump({"bench_secret_environment": CANARIES, "bench_require_references": False})
    )
    with watched_processes(UNIQUE) as found:
        status, output = play_bench(
            root, tmp_path, "-l", HOSTS[0], "-e", "benchmark=gnmt-0.6", "-e", f"@{vault}", "-vvv"
        )
    assert status == 0, output[-3000:]
    asked = (tmp_path / "asked").read_text()
    assert asked.count("BECOME-SUCCESS") > 3
    assert "canary-" not in asked + output
    assert not [one for one in found if not one.startswith("job ")], "\n".join(sorted(found))


@pytest.mark.parametrize("where", ["literal", "templated"])
@pytest.mark.parametrize("verbose", ["-v", "-vvv"])
def test_secrets_in_the_plain_environment_stop_the_playbook(
    root: Path, tmp_path: Path, where: str, verbose: str
) -> None:
    hosts = inventory(root, tmp_path)
    content: dict[str, Any] = yaml.safe_load(hosts.read_text())
    environment: Any = {"WANDB_API_KEY": "canary-0815", "STANDIN_SECONDS": "0.5"}
    if where == "templated":
        environment = "{{ {'WANDB_API_KEY': 'canary-' ~ '0815'} }}"
    content["all"]["children"]["hyperplane"]["hosts"][HOSTS[0]]["bench_environment"] = environment
    hosts.write_text(yaml.safe_dump(content))
    status, output = play_bench(
        root, tmp_path, "-l", HOSTS[0], "-e", json.dumps({"benchmark": "gnmt-0.6"}), verbose
    )
    assert status == 2
    assert "WANDB_API_KEY: a secret" in output
    assert "bench_secret_environment" in output
    assert "canary-0815" not in output
    assert files_with([b"canary-0815"], tmp_path / "results") == []
