"""Read the expectations of nodes from the inventory's variables, and check them. No I/O.

The jobs' modules call :func:`parse_node_expectation` and :func:`parse_limits` when they store, measure or
judge a node, and ``rackproof lint-inventory`` calls them before. The night's measurements and probes use
:func:`references_by_sku`. The variables are, for example::

    validate_expect: {gpus: 8, ports: 8, services: [slurmd], mounts: [/data], versions: {driver: "580.95"}}
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from rackproof.core.definitions import Parameters
from rackproof.core.judging import SkuReference, SkuReferenceError
from rackproof.jobs.validate.errors import ValidateError
from rackproof.nodes.health_subjects import Expectation, ExpectedMount, Limits
from rackproof.nodes.night_evidence import GPU_READINGS
from rackproof.store.night_store import (
    StoredSnapshot,
)
from rackproof.store.probe_results import BENCHMARK as PROBES


def parse_node_expectation(node: str, values: Mapping[str, Any]) -> Expectation:
    """Return the requirements of a node from ``validate_expect``.

    Raises:
        ValidateError: A key is unknown, or a value is of another type or out of its range.
    """
    names = {field.name for field in fields(Expectation)}
    if unknown := sorted(map(str, set(values) - names)):
        raise ValidateError(
            f"validate_expect of {node}: unknown {', '.join(unknown)}; there are {', '.join(sorted(names))}"
        )
    try:
        expected = Expectation(**{name: _expected_value(name, value) for name, value in values.items()})
        _check_port_names(expected)
    except (TypeError, ValueError) as error:
        raise ValidateError(f"validate_expect of {node}: {error}; docs/using/validate.md shows it") from error
    return expected


def _check_port_names(expected: Expectation) -> None:
    """Check the keys that separate compute ports from others.

    Raises:
        ValueError: The layer is unknown, or other ports are stated although each port is a compute port.
    """
    if expected.port_layer.lower() not in ("", "infiniband", "ethernet"):
        raise ValueError(f"port_layer: {expected.port_layer!r:.60} is neither InfiniBand nor Ethernet")
    is_named = expected.port_layer or expected.port_devices
    if (expected.other_ports or expected.other_port_gbps) and not is_named:
        raise ValueError("other_ports and other_port_gbps need port_layer or port_devices")


_SWITCHES = frozenset(field.name for field in fields(Expectation) if isinstance(field.default, bool))
"""Names of the expectations with a boolean value."""
_TEXTS = frozenset(field.name for field in fields(Expectation) if isinstance(field.default, str))
"""Names of the expectations with a text."""


_FRACTIONS = ("port_gbps", "other_port_gbps", "power_limit_w")
"""Expectations that may be fractions."""


def _expected_value(name: str, value: Any) -> Any:
    """Return a value of ``validate_expect`` in the form that its check needs.

    Raises:
        TypeError, ValueError: The value is of another type.
    """
    if name == "versions":
        if not isinstance(value, Mapping):
            raise TypeError(f"versions: {value!r:.60} is no mapping of names and versions")
        return {_text(name, key): _text(name, version) for key, version in value.items()}
    if name == "mounts":
        return _expected_mounts(value)
    if name in ("services", "gpu_readings", "port_devices"):
        return _expected_names(name, value)
    if name in _TEXTS:
        if not isinstance(value, str):
            raise TypeError(f"{name}: {value!r:.60} is not text")
        return _text(name, value)
    if name in _SWITCHES:
        if not isinstance(value, bool):
            raise TypeError(f"{name}: {value!r:.60} is neither true nor false")
        return value
    return _amount(name, value, whole=name not in _FRACTIONS)


def _expected_names(name: str, value: Any) -> tuple[str, ...]:
    """Return the names of services or of readings of a GPU."""
    if not isinstance(value, list | tuple):
        raise TypeError(f"{name}: {value!r:.60} is not a list")
    names = tuple(_text(name, item) for item in value)
    if name == "gpu_readings" and (unknown := sorted(set(names) - set(GPU_READINGS))):
        raise ValueError(f"{name}: unknown {', '.join(unknown)}; there are {', '.join(GPU_READINGS)}")
    return names


_MOUNT_KEYS = ("path", "fstype", "source", "options")
"""Keys of a mapping in ``mounts``."""
_FSTYPES = {"nfs": "nfs", "s3fs": "fuse.s3fs"}
"""The kernel's file system type for a ``kind`` of role storage. Entries of other kinds may have any type."""


def _expected_mounts(values: Any) -> tuple[str | ExpectedMount, ...]:
    """Return the expected mounts.

    Each value is a path, a mapping of path, fstype, source and options, or an entry of role storage (with
    ``kind``). A path remains a text, and any other value becomes an :class:`ExpectedMount`. Entries of the
    kind ``folder`` are no mounts, and are left out.

    Raises:
        TypeError, ValueError: The list, or a value in it, is unusable.
    """
    if not isinstance(values, list | tuple):
        raise TypeError(f"mounts: {values!r:.60} is not a list")
    mounts: list[str | ExpectedMount] = []
    for value in values:
        if isinstance(value, str):
            mounts.append(_expected_mount({"path": value}).path)
        elif not isinstance(value, Mapping):
            raise TypeError(f"mounts: {value!r:.60} is neither a path nor a mapping")
        elif "kind" not in value:
            mounts.append(_expected_mount(value))
        elif value["kind"] != "folder":
            mounts.append(_expected_mount(_mount_of_storage(value)))
    return tuple(mounts)


def _mount_of_storage(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of role storage as an expected mount."""
    # The kernel's table of mounts has options other than ``ro``, and the sources of buckets and labelled
    # disks, in another form than the inventory, so these are not compared.
    options = [option for option in value.get("options") or () if option == "ro"]
    mount = {"path": value.get("path"), "fstype": _FSTYPES.get(str(value["kind"]), ""), "options": options}
    return mount | ({"source": value.get("source") or ""} if value["kind"] == "nfs" else {})


def _expected_mount(value: Mapping[str, Any]) -> ExpectedMount:
    """Return one expected mount.

    Raises:
        ValueError: A key is unknown, the path is not absolute, or a text is unusable.
    """
    if unknown := sorted(set(map(str, value)) - set(_MOUNT_KEYS)):
        raise ValueError(f"mounts: unknown {', '.join(unknown)}; there are {', '.join(_MOUNT_KEYS)}")
    path, options = value.get("path"), value.get("options") or ()
    if not isinstance(path, str) or not path.startswith("/"):
        raise ValueError(f"mounts: {path!r:.60} is not an absolute path")
    if isinstance(options, str):
        options = options.split(",")
    if not isinstance(options, list | tuple):
        raise TypeError(f"mounts: options of {path!r:.60}: {options!r:.60} is not a list")
    return ExpectedMount(
        path=_text("mounts", path.rstrip("/") or "/"),
        fstype=_text("mounts", value.get("fstype") or ""),
        source=_text("mounts", value.get("source") or ""),
        options=tuple(_text("mounts", option) for option in options),
    )


def _text(name: str, value: Any) -> str:
    """Return a value as text for a finding.

    Raises:
        ValueError: The value is too long, or contains invalid characters.
    """
    text = str(value)
    if len(text) > 1000 or re.search("[\ud800-\udfff]", text):
        raise ValueError(f"{name}: {text!r:.60} is not text of up to 1000 characters")
    return text


def _amount(name: str, value: Any, *, whole: bool) -> float:
    """Return a number of 0 or more, which may be given as text in decimal digits.

    Raises:
        ValueError: The value is not such a number.
    """
    # Python would read "8_00" as 800, and no number is less than NaN. Neither must disable a check.
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(
        r"[0-9]{1,15}" if whole else r"[0-9]{1,15}([.][0-9]{1,15})?", text
    ):
        raise ValueError(f"{name}: {text!r:.60} is not a {'whole ' if whole else ''}number of 0 or more")
    return int(text) if whole else float(text)


_SHARES = ("disk_free", "inodes_free", "memory_share")
"""Limits that are shares, and no percentages."""
_ABOVE_ZERO = ("tool_seconds", "clock_s", "gpu_c", "memory_c")
"""Limits that every node would exceed at 0. Other limits are switched off by 0, or allow nothing."""


def parse_limits(node: str, values: Mapping[str, float]) -> Limits:
    """Return the limits that apply to a node.

    Raises:
        ValidateError: A key is unknown, or a value is not a finite number of 0 or more, or is one that
            every node or none would pass.
    """
    names = {field.name for field in fields(Limits)}
    for name, value in values.items():
        # YAML's yes is True, which equals 1 in Python but was not meant as a limit.
        if name not in names or isinstance(value, bool) or not _is_limit(value):
            raise ValidateError(
                f"validate_limits of {node}: {name}: {value!r}; numbers for {', '.join(sorted(names))}"
            )
        if name in _SHARES and value > 1:
            raise ValidateError(f"validate_limits of {node}: {name}: {value!r}; a share from 0 to 1")
        if name in _ABOVE_ZERO and value == 0:
            raise ValidateError(f"validate_limits of {node}: {name}: 0 fails every node; a number above 0")
    return Limits(**values)  # type: ignore[arg-type]  # names and numbers were checked above


def _is_limit(value: object) -> bool:
    """Return whether a value can be a limit. A limit of NaN or below 0 would never or always be exceeded."""
    # A whole number may have more digits than a float can hold.
    return isinstance(value, int | float) and 0 <= value <= sys.float_info.max


def references_by_sku(
    snapshots: Mapping[str, StoredSnapshot], points: Mapping[str, Parameters]
) -> dict[str, list[SkuReference]]:
    """Return the references of each SKU, as the inventory gave them for the night's snapshots.

    A night stores the numbers of all its programs under one benchmark name (``probes``) and without
    parameters. So a reference that applies to a program's benchmark and parameters is also returned for that
    name. If nodes of a SKU have different references, the references of the last node count.

    Args:
        snapshots: The night's snapshots.
        points: The parameters of the night's programs, by benchmark, without the number of GPUs.

    Raises:
        ValidateError: A reference is invalid.
    """
    gpus: dict[str, int] = {}
    for stored in snapshots.values():
        sku = stored.snapshot.sku
        gpus[sku] = max(gpus.get(sku, 0), len(stored.snapshot.gpus))
    try:
        return {
            stored.snapshot.sku: _with_program_references(
                stored.sku_references(), points, gpus[stored.snapshot.sku]
            )
            for stored in snapshots.values()
        }
    except SkuReferenceError as error:
        raise ValidateError(str(error)) from error


def _with_program_references(
    references: Sequence[SkuReference], points: Mapping[str, Parameters], gpus: int
) -> list[SkuReference]:
    """Return references, and a copy for nights of each that applies to a night's program but not to nights.

    ``gpus`` is the largest number of GPUs of the SKU's nodes.
    """
    of_programs = [
        reference.model_copy(update={"benchmark": PROBES, "parameters": {}})
        for reference in references
        if not reference.applies(PROBES, {})
        and any(reference.applies(name, {**point, "gpus": gpus}) for name, point in points.items())
    ]
    return [*references, *of_programs]
