"""Relate codes of a requirement to what the inventory must state, so that a night can report them. No I/O.

A night compares a node with ``validate_expect`` of the inventory. If the inventory states no number of ports,
no night misses a port, and a missing finding proves nothing. :mod:`.answering` calls
:func:`lacking_expectations`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from rackproof.nodes.health_checks import code_name
from rackproof.nodes.health_subjects import service_units


class _Needed(NamedTuple):
    """A key of ``validate_expect``, its meaning in words, and the codes that a night reports only with it."""

    key: str
    what: str
    codes: tuple[str, ...]


_NEEDED = (
    _Needed("gpus", "how many GPUs the node needs", ("gpus_missing", "gpu_missing")),
    _Needed("nvlinks", "how many NVLinks of a GPU must be up", ("nvlink_missing", "nvlink_down")),
    _Needed("fabric", "whether the GPUs form an NVLink fabric", ("fabric_failed", "fabric_incomplete")),
    _Needed("ports", "how many ports the node needs", ("ports_missing", "port_missing", "port_down")),
    _Needed("port_gbps", "the rate of its ports", ("port_slow",)),
    _Needed("mounts", "which mounts must exist", ("mount_missing", "mount_differs")),
    _Needed("memory_bytes", "how much memory the node needs", ("memory",)),
    _Needed("hostname", "the node's own name", ("hostname_differs",)),
)
"""Expectations with codes of their own. Expectations of services and versions are in :data:`_NAMED`."""
_NAMED = (
    _Needed("services", "which services must run", ("service_",)),
    _Needed("versions", "which versions the node needs", ("version_",)),
)
"""Expectations that name things. Each name has its own code, which begins with the code here."""
WITHOUT_OWN_CODES = (
    *("gpu_name", "pcie_width", "card_pcie_width", "power_limit_w", "gpu_readings"),
    *("nvlink_domain", "mig", "slurm", "skeleton"),
    *("port_layer", "port_devices", "other_ports", "other_port_gbps"),
)
"""Other keys of ``validate_expect``. If a key is not set, a default of Rackproof, the driver or the part
applies."""


def lacking_expectations(codes: Sequence[str], expected: Mapping[str, Any]) -> str:
    """Return what the inventory must state about a node for these codes, and does not state, or "".

    Args:
        codes: The codes of a requirement, which may be patterns.
        expected: The expectations of the node (``validate_expect``), as its snapshot has them.
    """
    lacking = [*_lacking(codes, expected), *_lacking_names(codes, expected)]
    if not lacking:
        return ""
    what = " and ".join(needed.what for needed in lacking)
    keys = ", ".join(needed.key for needed in lacking)
    return f"the inventory does not state {what}: {keys} in validate_expect"


def _lacking(codes: Sequence[str], expected: Mapping[str, Any]) -> Iterator[_Needed]:
    """Yield the expectations that are not stated, although a night needs them to report one of the codes."""
    for needed in _NEEDED:
        is_needed = any(fnmatchcase(code, pattern) for code in needed.codes for pattern in codes)
        if is_needed and not _is_stated(needed.key, expected.get(needed.key)):
            yield needed


def _is_stated(key: str, value: Any) -> bool:
    """Return whether a value states something. No number is less than 0, so 0 states nothing."""
    # A node without NVSwitches has no fabric, so False states something.
    if key == "fabric":
        return value not in (None, "")
    return bool(value.strip("0. ") if isinstance(value, str) else value)


def _lacking_names(codes: Sequence[str], expected: Mapping[str, Any]) -> Iterator[_Needed]:
    """Yield services or versions if a required code or pattern matches no name that the inventory states."""
    for needed in _NAMED:
        (prefix,) = needed.codes
        patterns = [code for code in codes if code.startswith(prefix) or fnmatchcase(f"{prefix}x", code)]
        stated = [f"{prefix}{name}" for name in _stated_names(needed.key, expected.get(needed.key))]
        if not all(any(fnmatchcase(code, pattern) for code in stated) for pattern in patterns):
            yield needed


def _stated_names(key: str, value: Any) -> Iterator[str]:
    """Yield the names of required services or versions in the spelling of their codes."""
    if key == "versions":
        yield from map(code_name, value if isinstance(value, Mapping) else ())
        return
    for service in value if isinstance(value, list | tuple) else ():
        # A service with ? may be absent, so it is not required.
        if isinstance(service, str) and not service.endswith("?"):
            yield code_name(service_units(service)[0].removesuffix(".service"))
