"""Test playbooks/nightly.yml on a machine with a real systemd, the Slurm controller of the test rack.

The playbook runs role nightly, which installs a timer of systemd. At the set time, the timer starts
``rackproof nightly``, which runs validate.yml. The test shows that the timer is enabled and active, that the
service which restarts an interrupted night after a reboot is enabled, that a second run and check mode change
nothing, and that a changed unit file is restored. No night is started, because the program is replaced and
the set time is in 2099.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from testrack.tests.on_rack import CONTROLLER, Command, Done, changes, play

pytestmark = [pytest.mark.rack, pytest.mark.slow]
GIVEN = {
    # The playbook is for localhost. Here, that name leads to the rack's Slurm controller, which has a
    # systemd.
    "ansible_connection": "ssh",
    "ansible_host": CONTROLLER,
    "ansible_python_interpreter": "/usr/bin/python3",
    # A program that accepts all arguments and does nothing, in place of rackproof.
    "nightly_program": "/bin/true",
    "nightly_checkout": "/root",
    # A time that does not come while the test runs.
    "nightly_time": "2099-01-01 00:00:00",
    "nightly_mail_to": ["ops@example.org"],
    "nightly_smtp_password": "canary-smtp-0815",
    "nightly_alerts_file": "/etc/rackproof/alerts.yml",
}
"""Variables of the playbook, by name."""
UNITS = "rackproof-nightly.timer rackproof-nightly-again.service"
"""Units of systemd that the playbook enables: the timer, and the service that restarts an interrupted night
after a reboot."""


@pytest.fixture
def nightly(root: Path, rack: Command) -> Iterator[Command]:
    """Yield a function that runs the playbook with options. Afterwards, remove what the playbook made."""
    yield lambda *words: play(root, "playbooks/nightly.yml", ["localhost"], *words, given=GIVEN)
    rack(
        CONTROLLER,
        f"systemctl disable --now {UNITS}; rm -rf /etc/rackproof /etc/systemd/system/rackproof-nightly*; "
        "systemctl daemon-reload",
    )


def changed(done: Done) -> int:
    """Return the number of tasks that changed something. Fail if the playbook failed."""
    assert done.returncode == 0, done.stdout
    return changes(done, "localhost")


def test_only_a_changed_unit_file_makes_a_second_run_change_something(
    nightly: Command, rack: Command
) -> None:
    assert changed(nightly()) > 3
    assert changed(nightly()) == 0
    assert changed(nightly("--check")) == 0
    state = rack(CONTROLLER, f"systemctl is-enabled {UNITS}; systemctl is-active rackproof-nightly.timer")
    assert state.stdout.split() == ["enabled", "enabled", "active"]
    # A changed unit file is restored. The second change is the restart that follows.
    rack(CONTROLLER, "echo >> /etc/systemd/system/rackproof-nightly.timer")
    assert changed(nightly()) == 2
    assert changed(nightly()) == 0
