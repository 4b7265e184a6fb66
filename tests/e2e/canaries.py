"""Provide a canary for every secret of a playbook, from Vault and from the environment, and search for them.

A canary is a unique text in the place of a secret. The tests of secrets (test_no_secret_shown.py and
test_bench_secrets.py) run a playbook with these canaries. They then search its output, its files and the
files that changed on this machine meanwhile.
"""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARK = f"{os.getpid()}-{secrets.token_hex(4)}"
"""Part of every canary. It differs between test processes, whose files are in the same places."""
PLACES = ("/etc", "/var", "/tmp", "/run", "/dev/shm", "/home", "/root", "/opt", "/srv", "/usr/local")
"""Places that a run may write, besides its home, the checkout and the folder of temporary files."""
PASSED_OVER = (".cache", ".git", ".pyenv", ".venv", "pytest-of-*")
"""Folders of other programs and tests. The test's own folder is searched as a whole."""
MOST_BYTES = 64 << 20
"""Larger files are not searched."""


def canary(name: str) -> str:
    """Return the canary that replaces the secret with this name."""
    return f"canary-{name}-{MARK}"


def files_with(values: list[bytes], folder: Path, *allowed: Path) -> list[str]:
    """Return the files below a folder that have one of the values."""
    return sorted(
        str(path)
        for path in folder.rglob("*")
        if path.is_file() and path not in allowed and any(value in path.read_bytes() for value in values)
    )


def changed_files(since: float) -> Iterator[Path]:
    """Yield the files of this machine that changed since a time, outside of the folders of tests."""
    places = {*PLACES, str(ROOT), str(Path("~root").expanduser()), tempfile.gettempdir()}
    passed_over = [word for name in PASSED_OVER for word in ("-o", "-name", name)][1:]
    found = subprocess.run(
        ["find", *sorted(filter(os.path.isdir, places)), "-xdev", "(", *passed_over, ")", "-prune", "-o",
         "-type", "f", "-newerct", f"@{since:.3f}", "-size", f"-{MOST_BYTES}c", "-print0"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    yield from (Path(os.fsdecode(name)) for name in found.stdout.split(b"\0") if name)


def changed_files_with(values: list[bytes], since: float) -> list[str]:
    """Return the files of :func:`changed_files` with one of the values. No other test's file may have one."""
    found = []
    for path in changed_files(since):
        try:
            content = path.read_bytes()
        except OSError:
            # Another program may have removed its file meanwhile.
            continue
        found += [str(path)] if any(value in content for value in values) else []
    return found


@contextmanager
def watched_files(values: list[bytes], home: Path) -> Iterator[list[str]]:
    """Make an empty home. Yield a list, and add the changed files with a value to it when the context ends.

    The list then also has the modules that Ansible left in the home.

    Args:
        values: Texts that no other test's files have.
        home: The folder to make, which the caller searches together with its own.
    """
    home.mkdir()
    begin = time.time() - 0.1
    found: list[str] = []
    yield found
    found += changed_files_with(values, begin)
    # Ansible compresses a module with its arguments, so a search does not find a value in it.
    found += sorted(str(path) for path in (home / ".ansible/tmp").glob("*"))


# Secrets in variables of roles. A test fails if a secret option of a role is not here.
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
UNIQUE = [MARK.encode(), str(VAULT["slurm_munge_key"])[:40].encode()]
"""Texts that no process and no file of this machine may have, and that other tests do not use."""
GIVEN = [*UNIQUE, b"canary-"]
"""Texts that no file, line or argument of the test itself may have."""
# Secrets in the environment of the playbook. All programs that it starts inherit the environment.
ENVIRONMENT = {
    "RACKPROOF_DATABASE_URL": f"postgresql://rack:{canary('database')}@127.0.0.1:1/history",
    "RACKPROOF_WEBHOOK_URL": f"https://hooks.example/{canary('webhook')}",
    "RACKPROOF_SMTP_PASSWORD": canary("mail"),
    "RACKPROOF_SMTP_USER": canary("sender"),
    "NGC_API_KEY": canary("registry"),
}
