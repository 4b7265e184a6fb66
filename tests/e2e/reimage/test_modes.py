"""Test the modes of the files that provision.yml, validate.yml and reimage.yml keep on the controller.

Records, journals and pages may show a site's nodes and faults. Each playbook runs with three umasks. The
files and folders in the results folder must never be readable for other users, or writable for the group, and
files must not be executable.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .conftest import Rack

pytestmark = pytest.mark.playbook
# Each playbook with its arguments. With a budget of 44 GPU-minutes, the night also measures.
JOBS = {
    "validate": ("validate.yml", "-e", "validate_probe_gpu_minutes=44", "-l", "n01,n02"),
    "provision": ("provision.yml", "-l", "n01"),
    "reimage": ("reimage.yml", "-e", "reimage_method=rack", "-l", "n01"),
}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("job", JOBS)
def test_other_users_cannot_read_the_results_of_a_playbook(
    rack: Rack, job: str, umask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The callback stores here, too: the acts, and the record and page of a provisioning.
    monkeypatch.setenv("RACKPROOF_RESULTS", str(rack.results))
    before = os.umask(umask)
    try:
        done = rack.play(*JOBS[job])
    finally:
        os.umask(before)
    assert "PLAY RECAP" in done.stdout, done.stdout[-3000:] + done.stderr
    kept = [rack.results, *rack.results.rglob("*")]
    names = {path.name for path in kept}
    assert names >= {"run.json" if job == "provision" else "night.json", "history.sqlite"}, names
    assert [
        f"{path.relative_to(rack.results)} {path.stat().st_mode & 0o777:o}"
        for path in kept
        if not path.is_symlink() and path.stat().st_mode & (0o027 if path.is_dir() else 0o137)
    ] == []
