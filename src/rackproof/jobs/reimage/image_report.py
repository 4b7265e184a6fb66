"""Read the boot report of a node that got an image, check it, and return its host keys.

Role reimage calls :func:`read_image_report` through the filter ``image_report`` before its first ssh
connection to the new system. The ramdisk that wrote the image sends the report to the boot host::

    {"status": "written", "disk": "/dev/nvme0n1", "disk_serial": "S6XN", "seconds": 31.2,
     "host_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5..."]}

Another machine that has the report's secret address could insert its own host key. A report therefore does
not count if the boot host recorded a conflict, or if another node has the same keys.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rackproof.core.records import Record
from rackproof.core.text import sanitize

MAX_KEYS = 8
MAX_KEY_CHARS = 16 * 1024
"""A report with more host keys, or with a longer text as a key, is refused."""
_KEY = re.compile(r"[a-z0-9@.-]+ [A-Za-z0-9+/]+=*")
"""Pattern of a host key: its type and its Base64, such as ``ssh-ed25519 AAAAC3Nz...``, without a comment."""
_LATE = (
    "has its order and did not report the result in time. See its console through the BMC: was its power "
    "cut, is the image server up? Its disk does not boot; it is safe to start again"
)
_NOT_BELIEVED = (
    "its boot report is not trusted and no host key was written: find out which other host sends in the "
    "provisioning network (journalctl -u rackproof-netboot-reports on the host that it boots from), then run "
    "reimage.yml again"
)


class ImageReport(Record):
    """A node's report on its image. A ``problem`` ends the node's re-imaging. ``seconds`` is 0 if unknown."""

    problem: str = ""
    disk: str = ""
    seconds: float = 0
    host_keys: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def read_image_report(
    text: str, alarms: str, known_hosts: str, name: str, others: Sequence[str] = ()
) -> ImageReport:
    """Return the verified contents of a boot report. No I/O.

    Args:
        text: The report, or "" if there is none.
        alarms: The boot host's records about it, one per line, such as ``conflict second boot report, from
            10.0.0.9: not trusted``. The kind ``refused`` is only a remark, and any other kind is a conflict.
        known_hosts: The text of the file that gets its keys.
        name: The name of the node in that file, such as ``node17`` or ``[node17]:2222``.
        others: The reports of nodes that got an image at the same time. Their keys are not known yet.
    """
    # splitlines() also splits at other characters. A message could then imitate another alarm.
    lines = [line.partition(" ") for line in alarms.split("\n") if line]
    conflicts = [sanitize(message, 300) for kind, _, message in lines if kind != "refused"]
    remarks = tuple(f"alarm: {sanitize(message, 250)}" for kind, _, message in lines if kind == "refused")
    if conflicts:
        return ImageReport(problem=f"alarm: {'; '.join(conflicts[:3])}: {_NOT_BELIEVED}", remarks=remarks)
    believed = _read_believed(text, known_hosts, name)
    if not believed.problem and _keys_of(others).intersection(believed.host_keys):
        problem = f"alarm: reports the host key of another node that got an image now: {_NOT_BELIEVED}"
        believed = ImageReport(problem=problem)
    return believed.model_copy(update={"remarks": remarks})


def _read_believed(text: str, known_hosts: str, name: str) -> ImageReport:
    """Return the contents of a report, or the problem that it states, or the reason why it is not trusted."""
    report = _parse(text)
    status = report.get("status")
    if status in ("refused", "failed"):
        reason = report.get("reason")
        return ImageReport(
            problem=f"{status}: {sanitize(reason, 1000) if isinstance(reason, str) else 'no reason'}"
        )
    if status != "written":
        return ImageReport(problem=_LATE)
    keys = report.get("host_keys", [])
    if problem := find_key_problem(keys, known_hosts, name):
        return ImageReport(problem=f"{problem}: {_NOT_BELIEVED}")
    if not keys:
        # The role removes the old keys, and could not connect without new ones.
        return ImageReport(problem=f"reports no host key: {_NOT_BELIEVED}")
    disk = f"{_short(report.get('disk'))} ({_short(report.get('disk_serial')) or 'no serial number'})"
    seconds = report.get("seconds")
    # A report is text from a node. An invalid time must not end the playbook.
    duration_s = float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < 1e9 else 0.0
    return ImageReport(disk=disk, seconds=duration_s, host_keys=tuple(keys))


def _parse(text: str) -> dict[str, Any]:
    """Return a report's JSON, or an empty mapping if it is malformed."""
    try:
        report = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) else {}


def _keys_of(texts: Iterable[str]) -> set[str]:
    """Return all texts in place of host keys in reports, even in reports that are otherwise invalid."""
    listed = (_parse(text).get("host_keys") for text in texts)
    return {key for keys in listed if isinstance(keys, list) for key in keys if isinstance(key, str)}


def _short(value: object) -> str:
    """Return a text of a report on one short line, or ""."""
    return sanitize(value, 100).strip() if isinstance(value, str) else ""


def find_key_problem(keys: Any, known_hosts: str, name: str) -> str:
    """Return the reason why host keys of a report are not written, or "" if there is no reason. No I/O."""
    if not isinstance(keys, list) or len(keys) > MAX_KEYS or not all(map(_is_key, keys)):
        return "reports invalid host keys"
    kinds = [key.split()[0] for key in keys]
    if len(set(kinds)) < len(kinds):
        return f"alarm: reports a second host key of one kind ({', '.join(kinds)})"
    owner = _other_owner(keys, known_hosts, name)
    return f"alarm: reports the host key of {owner}" if owner else ""


def _is_key(key: object) -> bool:
    """Return whether a text is a key of the type that its first word states."""
    if not isinstance(key, str) or len(key) > MAX_KEY_CHARS or not _KEY.fullmatch(key):
        return False
    kind, encoded = key.split()
    try:
        blob = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        return False
    # Several texts in Base64 decode to one key. Only the canonical text is accepted, because the keys of
    # other hosts are compared as texts.
    is_canonical = base64.b64encode(blob).decode() == encoded
    return (
        is_canonical
        and blob.startswith(len(kind).to_bytes(4, "big") + kind.encode())
        and len(blob) > len(kind) + 4
    )


def _other_owner(keys: Sequence[str], known_hosts: str, name: str) -> str:
    """Return another host with one of these keys, or "".

    Such a report imitates another host, or the image contains host keys.
    """
    for names, key in _entries(known_hosts):
        if key in keys and not _matches(names, name):
            return sanitize(names, 100)
    return ""


def _entries(known_hosts: str) -> Iterator[tuple[str, str]]:
    """Yield names and key of each known_hosts line: ``NAMES TYPE BASE64``, perhaps after ``@revoked``."""
    for line in known_hosts.splitlines():
        words = [word for word in line.split() if not word.startswith("@")]
        if len(words) > 2:
            yield words[0], f"{words[1]} {words[2]}"


def _matches(names: str, name: str) -> bool:
    """Return whether an entry's names (``NAME,NAME``, or ``|1|SALT|DIGEST`` of one name) include a name."""
    if not names.startswith("|1|"):
        return name in names.split(",")
    salt, _, digest = names[3:].partition("|")
    try:
        # The format prescribes this hash. No security depends on it.
        digest_of_name = hmac.digest(base64.b64decode(salt), name.encode(), hashlib.sha1)
        return hmac.compare_digest(digest_of_name, base64.b64decode(digest))
    except ValueError:
        return False
