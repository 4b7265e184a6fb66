"""Test that each role which restarts a service also finds a restart that an earlier playbook did not reach.

A playbook that fails between the change of a file and the restart of the service leaves the old content in
use. The next one finds the file as wanted, so only the service's start shows what is missing.
"""

from __future__ import annotations

from pathlib import Path

OTHER_WAYS = {
    "node_tuning": "node_tuning_unapplied",
    "nightly": "daemon_reload: true",
}
"""Text of roles that make up for a lost restart in another way."""


def test_a_role_that_restarts_a_service_finds_services_with_old_files(root: Path) -> None:
    found = {}
    for role in sorted((root / "roles").iterdir()):
        text = "".join(
            path.read_text() for path in sorted(role.glob("*/**/*.yml")) if "meta" not in path.parts
        )
        if "restarted" in text:
            found[role.name] = OTHER_WAYS.get(role.name, "units_outdated(") in text
    assert found == dict.fromkeys(found, True)
    assert {"imex", "netboot", "nvidia_container", "ofed", "peer_memory", "slurm", "storage"} <= set(found)
    assert set(OTHER_WAYS) <= set(found)
