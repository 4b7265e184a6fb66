"""Test provision.yml on two nodes of the test rack, from bare containers to nodes of a Slurm cluster.

The tests show that each fault (no mirror, a wrong key, a missing version, a dead node, a failed reboot) ends
with a message that names the node, the cause and the remedy, and that the next run finishes the work. They
also show that a second run changes nothing, and that secrets are only in the files that need them.

The order matters. Each test continues with the state that the one before left: bare, partly provisioned,
provisioned, and provisioned with another driver.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testrack.tests.on_rack import CONTROLLER, SERVICES, Command, Done, changes, play, start, state_in_slurm
from tests.e2e.bench.playing import watched_processes

pytestmark = [pytest.mark.rack, pytest.mark.slow]
FIRST, SECOND = "gb300-r01-n01", "gb300-r01-n02"
MIRROR = SERVICES
LIMIT_S = 900
"""Time limit of one run of the playbook."""
LAST_YEAR = ("-e", "lambda_stack_driver_version=570.172.08")
"""Option with an older driver, which both nodes have until the last test installs the inventory's driver."""


@pytest.fixture(scope="module")
def provision(root: Path) -> Command:
    """Return a function that runs provision.yml to its end, on nodes with commas between them."""

    return lambda limit, *words, **environment: play(
        root, "provision.yml", limit.split(","), *words, timeout=LIMIT_S, **environment
    )


def until(process: subprocess.Popen[str], words: str) -> str:
    """Read the output of a playbook until a line has some words. Return the output up to that line."""
    said = ""
    assert process.stdout is not None
    for line in process.stdout:
        said += line
        if words in line:
            return said
    raise AssertionError(f"never said {words!r}:\n{said}")


def attention(done: Done, node: str) -> str:
    """Return the messages about a node in the summary at the end of the output."""
    assert "NODES ***" in done.stdout, done.stdout
    summary = done.stdout.split("NODES ***", 1)[1]
    lines = summary.split(f"\n{node}: ", 1)[1].split("\ngb300-")[0]
    return " ".join(line.split("ATTENTION", 1)[1] for line in lines.split("\n") if "ATTENTION" in line)


@pytest.fixture(scope="module", autouse=True)
def bare(rack: Command, driver: Command) -> None:
    """Start with two bare nodes."""
    done = driver("renew", FIRST, SECOND)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def mirror(driver: Command) -> Iterator[Callable[[str], None]]:
    """Yield a function that cuts the first node off from the mirror ("stop"), or reconnects it ("start").

    On that node, the mirror's name then leads to an address where nothing listens. Connections are refused,
    as by a mirror that is down.
    """

    def switch(verb: str) -> None:
        words = {
            "stop": f"s/^[0-9.]+(.{MIRROR})$/127.0.0.1\\1/",
            "start": f"s/^127[0-9.]+(.{MIRROR})$/{address}\\1/",
        }
        edit = f"sed -E '{words[verb]}' /etc/hosts > /tmp/hosts && cat /tmp/hosts > /etc/hosts"
        assert driver("exec", FIRST, "--", "sh", "-c", edit).returncode == 0

    address = driver("exec", FIRST, "--", "getent", "hosts", MIRROR).stdout.split()[0]
    yield switch
    switch("start")
    assert driver("exec", FIRST, "--", "getent", "hosts", MIRROR).stdout.split()[0] == address


def test_check_mode_on_a_bare_node_changes_nothing_and_predicts(rack: Command, provision: Command) -> None:
    # Only files of root's home, logs and temporary files may change.
    made = "find / -xdev -newer /run/before -type f"
    made += "".join(
        f" -not -path '/{one}/*'" for one in ("proc", "root", "tmp", "var/lib/systemd", "var/log", "var/tmp")
    )
    assert rack(FIRST, "touch /run/before").returncode == 0
    before = rack(FIRST, "dpkg-query -W | sha256sum").stdout
    # Two nodes, because a task that runs once must give its result to each node.
    done = provision(f"{FIRST},{SECOND}", "--check", "--diff")
    assert done.returncode == 0, done.stdout
    predicted = {
        line.strip()
        for line in done.stdout.split("NODES ***", 1)[1].split("\n")
        if line.startswith("    ") and "ATTENTION" not in line
    }
    assert {name.split(" : ")[0] for name in predicted} >= {
        "apt_mirror", "node_tuning", "lambda_stack", "ofed", "nvidia_container", "enroot_pyxis", "slurm",
    }  # fmt: skip
    assert rack(FIRST, "dpkg-query -W | sha256sum").stdout == before
    assert rack(FIRST, made).stdout == ""
    assert rack(FIRST, "ls /etc/apt/sources.list.d /etc/docker /etc/slurm 2>&1").stdout.count("\n") <= 3


def test_mirror_that_goes_down_in_mid_run(
    root: Path, provision: Command, mirror: Callable[[str], None]
) -> None:
    process = start(root, "provision.yml", [FIRST])
    said = until(process, "TASK [node_tuning : Install the system packages of benchmarks")
    mirror("stop")
    said += process.communicate(timeout=LIMIT_S)[0]
    done = Done([], process.returncode, said, "")
    assert done.returncode == 2
    reason = attention(done, FIRST)
    assert FIRST in reason
    assert re.search(r"mirror|could not be fetched|cannot be reached", reason), reason


def test_controller_killed_in_mid_run_and_started_again(
    root: Path, rack: Command, provision: Command
) -> None:
    process = start(root, "provision.yml", [FIRST, SECOND], *LAST_YEAR)
    until(process, "TASK [lambda_stack : Install the driver and hold it]")
    time.sleep(2)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    done = provision(f"{FIRST},{SECOND}", *LAST_YEAR)
    assert done.returncode == 0, done.stdout
    for node in (FIRST, SECOND):
        assert rack(node, "dpkg --audit").stdout == ""
    said = rack(FIRST, "srun -N2 --gpus-per-node=4 nvidia-smi -L").stdout
    assert len(set(re.findall(r"UUID: (GPU-\S+)\)", said))) == 8


def test_second_run_changes_nothing_and_check_mode_neither(provision: Command) -> None:
    done = provision(f"{FIRST},{SECOND}", *LAST_YEAR)
    assert done.returncode == 0, done.stdout
    assert [changes(done, node) for node in (FIRST, SECOND)] == [0, 0]
    done = provision(f"{FIRST},{SECOND}", *LAST_YEAR, "--check", "--diff")
    assert done.returncode == 0, done.stdout
    assert [changes(done, node) for node in (FIRST, SECOND)] == [0, 0]


def test_wrong_key_for_the_registry(root: Path, provision: Command) -> None:
    done = provision(FIRST, *LAST_YEAR, NGC_API_KEY="wrong-key-of-a-test")
    assert done.returncode == 2
    reason = attention(done, FIRST)
    assert FIRST in reason
    assert "NGC_API_KEY" in reason or "ngc_api_key" in reason
    assert "wrong-key-of-a-test" not in done.stdout
    key = (root / ".rackproof/rack/ngc_key").read_text().strip()
    done = provision(FIRST, *LAST_YEAR)
    assert done.returncode == 0, done.stdout
    assert key not in done.stdout


def test_secrets_of_roles_are_in_the_files_that_need_them_alone(
    root: Path, tmp_path: Path, rack: Command, provision: Command
) -> None:
    key = (root / ".rackproof/rack/ngc_key").read_text().strip()
    munge = rack(CONTROLLER, "base64 --wrap=0 /etc/munge/munge.key").stdout
    # Ansible Vault, too, gives a playbook a separate file with secrets.
    vault = tmp_path / "vault.json"
    vault.write_text(
        json.dumps(
            {
                "ngc_api_key": key,
                "storage_mounts": [{"path": "/mnt/canary", "kind": "s3fs", "source": "rackproof"}],
                "storage_s3fs_url": f"http://{SERVICES}:9000",
                "storage_s3fs_credentials": [{"access_key": "rack", "secret_key": "canary-s3-0815"}],
                "storage_s3fs_cache_keep_free_mb": 100,
            }
        )
    )
    encoded = base64.b64encode(f"$oauthtoken:{key}".encode()).decode()
    secrets = [key, encoded, munge[:100], "canary-s3-0815"]
    # These files are removed first, so that each role has to write its file again.
    holders = ["/etc/enroot/.credentials", "/etc/passwd-s3fs", "/root/.docker/config.json"]
    rack(SECOND, f"rm -f /etc/munge/munge.key {' '.join(holders)}")
    with watched_processes([secret.encode() for secret in secrets]) as found:
        done = provision(SECOND, *LAST_YEAR, "-e", f"@{vault}", "-vvv")
    assert done.returncode == 0, done.stdout[-3000:]
    assert not [line[:200] for line in done.stdout.splitlines() if any(one in line for one in secrets)]
    assert sorted(found) == []
    words = " ".join(f"-e '{secret}'" for secret in secrets)
    listed = rack(
        SECOND, f"grep -rlsF {words} /etc /home /opt /root /run /srv /tmp /var; true"
    ).stdout.split()
    assert sorted(listed) == holders
    modes = rack(SECOND, f"stat -c %a /etc/munge/munge.key {' '.join(holders)}").stdout.split()
    assert modes[0] == "400"
    assert all(mode.endswith("0") for mode in modes)
    # find and grep continue if another playbook removes its files meanwhile.
    patterns = [option for secret in secrets for option in ("-e", secret)]
    new_files = ["find", str(Path.home() / ".ansible"), "-type", "f", "-newer", str(vault)]
    kept = subprocess.run(
        [*new_files, "-exec", "grep", "-lsF", *patterns, "{}", "+"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert kept.stdout == ""
    rack(SECOND, "systemctl disable --now mnt-canary.mount; rm -f /etc/systemd/system/mnt-canary.*")


def test_repository_without_a_signature(provision: Command) -> None:
    done = provision(
        SECOND,
        *LAST_YEAR, "-e", '{"apt_mirror_repositories": [os, unsigned], "slurm_controller_roles": []}',
    )  # fmt: skip
    assert done.returncode == 2
    reason = attention(done, SECOND)
    assert SECOND in reason
    assert "unsigned" in reason
    assert re.search(r"sign", reason)


def test_version_that_the_mirror_does_not_have(rack: Command, provision: Command) -> None:
    done = provision(SECOND, "-e", "lambda_stack_driver_version=999.1.2")
    assert done.returncode == 2
    reason = attention(done, SECOND)
    assert SECOND in reason
    assert "999.1.2" in reason
    assert "580.95.05" in reason, "the message has to list the versions of the mirror"
    assert "lambda_stack_driver_version" in reason
    assert state_in_slurm(rack, SECOND).startswith("idle"), "apt was asked before the node was drained"


def test_dead_node_does_not_stop_the_others(rack: Command, provision: Command, driver: Command) -> None:
    assert driver("fault", FIRST, "dead-sshd").returncode == 0
    try:
        done = provision(f"{FIRST},{SECOND}", *LAST_YEAR)
    finally:
        driver("fault", FIRST, "dead-sshd", "--off")
    assert done.returncode == 2
    assert f"{FIRST} cannot be reached" in attention(done, FIRST)
    assert changes(done, SECOND) >= 0
    assert state_in_slurm(rack, SECOND).startswith("idle"), "its own drain is lifted once it is proven"


def test_a_drain_of_another_user_is_never_lifted(rack: Command, provision: Command) -> None:
    rack(CONTROLLER, f"scontrol update nodename={SECOND} state=drain reason='bad fan, ticket 7'")
    try:
        done = provision(SECOND, *LAST_YEAR)
        assert done.returncode == 0, done.stdout
        assert state_in_slurm(rack, SECOND) == "drained bad fan, ticket 7"
    finally:
        rack(CONTROLLER, f"scontrol update nodename={SECOND} state=resume")


def test_node_that_does_not_return_from_its_reboot(
    rack: Command, provision: Command, driver: Command
) -> None:
    """A new driver needs a reboot, after which sshd does not start."""
    assert rack(SECOND, "systemctl mask ssh").returncode == 0
    done = provision(SECOND, "-e", "provision_reboot_timeout_s=10")
    assert done.returncode == 2
    reason = attention(done, SECOND)
    assert re.search(r"reboot", reason, re.IGNORECASE), reason
    assert SECOND in done.stdout
    assert "drain" in state_in_slurm(rack, SECOND) or "down" in state_in_slurm(rack, SECOND)
    assert driver("exec", SECOND, "--", "systemctl", "unmask", "ssh").returncode == 0
    assert driver("exec", SECOND, "--", "systemctl", "start", "ssh").returncode == 0
    done = provision(SECOND)
    assert done.returncode == 0, done.stdout
    assert rack(SECOND, "modinfo -F version nvidia").stdout.strip() == "580.95.05"
    assert rack(SECOND, "nvidia-smi -L").stdout.count("UUID: ") == 4
    assert state_in_slurm(rack, SECOND).startswith("idle")
