"""Allow only one playbook at a time on a host, within one results folder.

Two playbooks on the same nodes would slow each other down and spoil both results. bench.yml and reimage.yml
claim their hosts in the results folder, reimage.yml also in its subfolder ``.reimages``, and validate.yml
only in ``.nights``. A night and a benchmark therefore do not exclude each other here. A night measures only
nodes that are idle in Slurm, and nodes that nights keep drained. The input is the hosts and the process id of
the playbook.

A claim lasts until the playbook's process ends, so a killed playbook leaves no claim behind. Begin with
:func:`claim_hosts`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from rackproof.core.errors import RackproofError
from rackproof.store.plain_file import hold_lock
from rackproof.store.run_folder import ResultsError, read_file, write_file

CLAIMS = ".claims.json"
"""File of the claims in the results folder, a JSON object. By host, it has the id of the playbook's process
(``pid``), the start of this process in clock ticks since boot (``start_ticks``), the time of the claim in UTC
(``since``), and the action on the host as a participle (``doing``). Claims of older versions have no
``doing``."""
_LARGEST_BYTES = 64 * 2**20
"""Largest size in bytes of a file of claims that is read."""


class HostClaimedError(RackproofError):
    """A host that another playbook is using. The message gives the playbook and the remedy."""


def claim_hosts(results: Path, hosts: Iterable[str], owner_pid: int, doing: str = "benchmarked") -> None:
    """Claim hosts for a playbook's process until it ends.

    Args:
        results: The folder of the claims. Claims in another folder are independent.
        hosts: The hosts.
        owner_pid: The process id of the owner.
        doing: The action of the owner as a participle (``benchmarked``), for the message that other playbooks
            get about a host that it claimed.

    Raises:
        HostClaimedError: Another living process claimed one of the hosts.
        ResultsError: The results folder cannot be written, or its claims cannot be read.
    """
    try:
        results.mkdir(parents=True, exist_ok=True)
        with hold_lock(results / ".claims.lock"):
            path = results / CLAIMS
            claims = {name: kept for name, kept in _read(path).items() if _alive(kept)}
            for host in hosts:
                claim = claims.get(host)
                if claim and claim["pid"] != owner_pid:
                    since = claim.get("since", "some time")
                    raise HostClaimedError(
                        f"{host} is {_use(claim)} by another playbook (pid {claim['pid']}, since {since})"
                        "; wait for it, or end it and start again: its work is kept. If that process is no "
                        f"playbook, remove {path}"
                    )
                claims[host] = {
                    "pid": owner_pid,
                    "start_ticks": start_ticks(owner_pid),
                    "since": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%SZ}",
                    "doing": doing,
                }
            # Readers take no lock, and find either the old or the new claims, never a mixture.
            write_file(path, json.dumps(claims, indent=1).encode())
            _give_to_owner(path)
    except OSError as error:
        raise ResultsError(
            f"results folder {results} cannot be written ({error.strerror}: {error.filename}); "
            "give another with -e bench_results=FOLDER or change its owner"
        ) from error


def _use(claim: dict[str, object]) -> str:
    """Return the owner's use of a host, such as ``being benchmarked``, or ``in use`` if it is unknown."""
    doing = claim.get("doing")
    return f"being {doing}" if isinstance(doing, str) and doing else "in use"


def claimed_hosts(results: Path) -> frozenset[str]:
    """Return the hosts that running processes claimed in a folder.

    Raises:
        ResultsError: The claims cannot be read.
    """
    return frozenset(host for host, claim in _read(results / CLAIMS).items() if _alive(claim))


def start_ticks(pid: int) -> int | None:
    """Return the start of a process in clock ticks since boot, or None if there is no running process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # "1234 (command) S 1 …". The command may itself contain blanks and brackets. After the last bracket, the
    # first field is the state, and the twentieth is the start.
    fields = stat.rpartition(")")[2].split()
    # A zombie already ended, and only waits until its parent reads its status.
    return None if fields[0] in "ZX" else int(fields[19])


def _alive(claim: dict[str, object]) -> bool:
    """Return whether the process of a claim is still running."""
    pid = claim.get("pid")
    if not isinstance(pid, int):
        return False
    started = start_ticks(pid)
    # Process ids are reused. A process with another start time is another process.
    return started is not None and started == claim.get("start_ticks")


def _give_to_owner(path: Path) -> None:
    """Give a file that root wrote to the owner of its folder, who must be able to read it later."""
    if os.geteuid() != 0:
        return
    folder, file = path.parent.stat(), path.stat(follow_symlinks=False)
    if (folder.st_uid, folder.st_gid) != (file.st_uid, file.st_gid):
        # NFS with root_squash, CIFS, vfat and user namespaces refuse it.
        with suppress(OSError):
            os.chown(path, folder.st_uid, folder.st_gid, follow_symlinks=False)


def _read(path: Path) -> dict[str, dict[str, object]]:
    """Return the claims of a file by host. A missing file, and one that is not JSON, has none.

    Raises:
        ResultsError: The file cannot be read.
    """
    try:
        claims = json.loads(read_file(path, _LARGEST_BYTES))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    except OSError as error:
        raise ResultsError(
            f"{path} cannot be read ({error.strerror}), so it is not known which hosts other playbooks use; "
            "when no playbook runs, remove it"
        ) from None
    if not isinstance(claims, dict):
        return {}
    return {host: claim for host, claim in claims.items() if isinstance(claim, dict)}
