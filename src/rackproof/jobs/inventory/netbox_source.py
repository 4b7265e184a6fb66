"""Read devices from a NetBox through its REST API, page by page and without redirects.

``rackproof adopt --netbox`` calls :func:`read_token` and :func:`read_netbox_nodes`. The answers have the
forms of NetBox 3.7 and 4.6. A list has the keys ``count``, ``next``, ``previous`` and ``results``. A device
in a list is::

    {"id": 7, "name": "n07", "role": {"slug": "gpu-node"}, "device_type": {"model": "DGX H100"},
     "rack": {"id": 3, "name": "A1"}, "primary_ip": {"address": "10.0.0.7/24"}, ...}

The token is sent as ``Authorization: Token …``, and a token of version 2 (``nbt_…``) as ``Bearer``.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import stat
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from rackproof.core.addresses import is_this_machine
from rackproof.core.text import amount, sanitize, shell_word
from rackproof.core.untrusted import as_int, as_mapping, list_at, mapping_at, text_at
from rackproof.jobs.inventory.csv_source import COLUMNS, stated_gpu_count
from rackproof.jobs.inventory.nodes import (
    BY_NAME,
    NETBOX_TOKEN,
    AdoptedNode,
    AdoptedSource,
    AdoptError,
    GpuHint,
    name_problem,
    variable_fits,
)
from rackproof.jobs.inventory.sku_guess import model_of_text
from rackproof.jobs.inventory.slurm_source import rack_of_name

_DEVICES = "/api/dcim/devices/"
_PAGE = 200
"""Largest number of devices that one request fetches."""
_MOST_PAGE_BYTES = 32 << 20
_MOST_DEVICES = 100_000
"""Largest number of bytes of one page, and largest number of devices that the filters choose."""
_TIMEOUT_S = 30.0
"""Seconds for which NetBox may be silent."""
_MOST_PAGE_S = 120.0
"""Seconds that a whole page may take, so that a server that sends single bytes cannot delay the command for
long."""
# The name of a filter, such as ``role`` or ``site_id__n``.
_FILTER = re.compile(r"[a-z][A-Za-z0-9_]{0,60}")
_NARROWING = frozenset(
    {"status", "site", "site_group", "region", "location", "rack", "tenant", "tenant_group"}
)
"""Filters that do not choose a kind of devices. A site contains switches and power strips as well."""
_KINDS = frozenset(
    {"role", "device_role", "device_type", "model", "manufacturer", "id", "serial", "asset_tag"}
)
"""Filters that choose a kind of devices, or a single device."""
_NO_VALUE = "rackproof-no-such-value"
"""Value with which a filter chooses no device, unless NetBox ignores the filter."""
_EQUIPMENT = re.compile(
    r"(?<![a-z])(?:switch(?:es)?|leaf|spine|router|firewall|pdu|ups|cdu|cooling|storage|filer|nas|dpu|patch|"
    r"console|kvm|power[ _-]?(?:shelf|shelves|strip|supply|distribution))(?![a-z])",
    re.I,
)
"""Pattern of words in the roles and device types of devices that are no nodes. An NVL72 has a ``GB300 NVL72
NVLink Switch Tray``, and ``AFF A30`` is a storage system."""


def read_token(path: Path | None, environment: Mapping[str, str]) -> str:
    """Return NetBox's token from the environment, or from a file that only its owner can read.

    Args:
        path: The file, or None to read the variable :data:`NETBOX_TOKEN`.
        environment: The environment.

    Raises:
        AdoptError: There is no token or a malformed one, the file cannot be read or is no regular file, or
            its mode gives other users any permission.
    """
    if path is None:
        text, origin = environment.get(NETBOX_TOKEN, ""), NETBOX_TOKEN
    else:
        origin = str(path)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as stream:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
                    raise AdoptError(
                        f"{path} holds a token that others may read: chmod 600 {shell_word(str(path))}"
                    )
                text = stream.read(4096).decode("ascii", "replace")
        except OSError as error:
            raise AdoptError(f"{path} cannot be read: {error.strerror or error}") from None
    token = text.strip()
    if not re.fullmatch(r"[!-~]{8,1000}", token):
        raise AdoptError(
            f"{origin} holds no token of NetBox: set {NETBOX_TOKEN}, or name a file of mode 0600 with "
            "--netbox-token-file"
        )
    return token


def read_netbox_nodes(url: str, token: str, filters: Sequence[str]) -> AdoptedSource:
    """Return the devices of a NetBox that can be nodes, with remarks about the others.

    Args:
        url: The address of NetBox, such as ``https://netbox.example.org``.
        token: A token that may read devices.
        filters: NetBox's own filters for devices, such as ``role=gpu-node``.

    Raises:
        AdoptError: The address or a filter is unusable, or two nodes have the same name. NetBox does not
            answer, refuses, redirects, answers in another form, sends the token back, or never ends.
    """
    pairs = _read_filters(filters)
    netbox = _Netbox(url, token)
    netbox.refuse_ignored_filters(pairs)
    chosen, left_out = _choose(netbox.devices(pairs), [name for name, _ in pairs])
    fitting = [device for device in chosen if not name_problem(_name(device))]
    # Only nodes need different names. Two sites may each contain a switch leaf-1.
    _refuse_doubled_names(fitting)
    remarks = [*_misnamed_remarks(chosen), *_left_out(left_out), *_status_remarks(fitting)]
    racks = _rack_names(fitting)
    nodes = [_node(_name(device), device, racks.get(_rack_id(device), ""), remarks) for device in fitting]
    return AdoptedSource(nodes=tuple(nodes), remarks=tuple(remarks))


def _name(device: Mapping[str, Any]) -> str:
    """Return the name of a device, or ""."""
    return text_at(device, "name").strip()


def _field(filter_name: str) -> str:
    """Return the field that a filter compares, such as ``site`` for ``site_id__n``."""
    return filter_name.partition("__")[0].removesuffix("_id")


def _states_kind(filter_name: str) -> bool:
    """Return whether a filter states the kind of devices. ``role__n`` excludes a kind, and states none."""
    return _field(filter_name) in _KINDS and not filter_name.partition("__")[2].startswith("n")


def _narrows(filter_name: str) -> bool:
    """Return whether a filter only chooses a place, a tenant or a status, or that a field has a value."""
    field = _field(filter_name)
    return field in _NARROWING or field.startswith("has_")


def _read_filters(filters: Sequence[str]) -> list[tuple[str, str]]:
    """Return the operator's filters as names and values.

    Raises:
        AdoptError: A filter is not of the form NAME=VALUE, or is one that this module sets itself.
    """
    pairs = []
    for text in filters:
        name, bar, value = text.partition("=")
        if not bar or not value or not _FILTER.fullmatch(name) or name in ("limit", "offset", "ordering"):
            raise AdoptError(
                f"--netbox-filter {sanitize(text, 80)}: it has the form NAME=VALUE, such as role=gpu-node"
            )
        pairs.append((name, value))
    return pairs


class _WrongRequestError(AdoptError):
    """A request that NetBox refuses as wrong (400)."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A handler that follows no redirect, because the token would go to the other server."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Netbox:
    """A client of one NetBox. The token is sent to no other server.

    Args:
        url: The address of NetBox, with or without ``/api``.
        token: The token.

    Raises:
        AdoptError: The address is unusable, or is plain HTTP to another machine.
    """

    def __init__(self, url: str, token: str) -> None:
        try:
            parts = urlsplit(url)
            has_form = parts.scheme in ("https", "http") and parts.hostname
        except ValueError:
            has_form = None
        if not has_form or "@" in parts.netloc or parts.query:
            # The part before an @ is a login.
            shown_url = url.rpartition("@")[2].partition("?")[0]
            raise AdoptError(
                f"--netbox {sanitize(shown_url, 100)}: it is an address such as "
                "https://netbox.example.org, without a login or a question mark"
            )
        if parts.scheme == "http" and not is_this_machine(parts.hostname or ""):
            raise AdoptError(
                f"NetBox at {sanitize(url, 100)} would be queried by plain HTTP, so others on the network "
                "can read the token: use https://"
            )
        path = parts.path.rstrip("/").removesuffix("/api")
        self._url = f"{parts.scheme}://{parts.netloc}{path}"
        kind = "Bearer" if token.startswith("nbt_") else "Token"
        self._token = token
        self._headers = {"Authorization": f"{kind} {token}", "Accept": "application/json"}
        # For plain HTTP, a proxy of the environment could read the token. For HTTPS, it only passes
        # bytes on.
        proxies = [urllib.request.ProxyHandler({})] if parts.scheme == "http" else []
        self._open = urllib.request.build_opener(_NoRedirect(), *proxies).open
        self._shown = sanitize(f"NetBox at {self._url}", 120)

    def devices(self, filters: Sequence[tuple[str, str]]) -> list[Mapping[str, Any]]:
        """Return all devices that filters choose, page by page.

        Args:
            filters: The names and values of NetBox's filters.

        Raises:
            AdoptError: NetBox does not list all of these devices, lists one twice, or lists too many.
        """
        by_id: dict[Any, Mapping[str, Any]] = {}
        while True:
            query = urlencode(
                [*filters, ("limit", _PAGE), ("offset", len(by_id)), ("exclude", "config_context")]
            )
            page = self._get(f"{self._url}{_DEVICES}?{query}")
            results, count = page.get("results"), page.get("count")
            if not isinstance(results, list) or not isinstance(count, int):
                raise AdoptError(
                    f"{self._shown} answers with JSON that is not a list of devices: is it a NetBox?"
                )
            if count > _MOST_DEVICES:
                raise AdoptError(f"{self._shown} has {count:,} devices: choose some with --netbox-filter")
            for result in results:
                device_id = as_mapping(result).get("id")
                if not isinstance(device_id, int | str) or device_id in by_id:
                    # A repeated page would never end. A device that moved would be missing on another
                    # page.
                    raise AdoptError(
                        f"{self._shown} lists a device twice or none at all: its pages never end, or devices "
                        "changed meanwhile; try again"
                    )
                by_id[device_id] = result
            # Count pages here, so that no answer determines the address of the next page.
            if page.get("next") is None:
                break
            if not results or len(by_id) > count:
                raise AdoptError(
                    f"{self._shown} has {count:,} devices by its own count, and its pages never end"
                )
        if len(by_id) < count:
            raise AdoptError(f"{self._shown} lists {len(by_id):,} of {count:,} devices: try again")
        return list(by_id.values())

    def refuse_ignored_filters(self, filters: Sequence[tuple[str, str]]) -> None:
        """Refuse filters that NetBox ignores, because it then lists all devices.

        Args:
            filters: The names and values of NetBox's filters.

        Raises:
            AdoptError: NetBox ignores a filter, or refuses the filter's value.
        """
        total = self._count([]) if filters else 0
        if not total:
            return  # Another message gives the reason: no NetBox, or a token that may read nothing.
        for name, value in filters:
            if self._count([(name, value)]) == total and self._ignores(name, total):
                raise AdoptError(
                    f"{self._shown} lists all of its {total:,} devices for --netbox-filter "
                    f"{sanitize(f'{name}={value}', 80)}: it does not know this filter, or the filter chooses "
                    "every device; correct it or leave it out"
                )

    def _ignores(self, name: str, total: int) -> bool:
        """Return whether NetBox lists all ``total`` devices for a filter with a value that does not exist."""
        try:
            return self._count([(name, _NO_VALUE)]) == total
        except _WrongRequestError:
            return False

    def _count(self, filters: Sequence[tuple[str, str]]) -> int:
        """Return the number of devices that filters choose, or 0 if NetBox states none."""
        query = urlencode([*filters, ("limit", 1), ("brief", 1)])
        return as_int(self._get(f"{self._url}{_DEVICES}?{query}").get("count")) or 0

    def _get(self, url: str) -> Mapping[str, Any]:
        """Return one page of NetBox's answer.

        Raises:
            AdoptError: NetBox does not answer with a page. A :class:`_WrongRequestError` means status 400.
        """
        request = urllib.request.Request(url, headers=self._headers)  # noqa: S310  (the scheme was checked)
        try:
            with self._open(request, timeout=_TIMEOUT_S) as response:
                data = self._read_whole(response)
        except urllib.error.HTTPError as error:
            kind = _WrongRequestError if error.code == 400 else AdoptError
            raise kind(f"{self._shown} {self._refusal(error)}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            hint = (
                "; SSL_CERT_FILE names the certificate of your CA" if isinstance(reason, ssl.SSLError) else ""
            )
            # The reason may quote a line of the server.
            self._refuse_token_in(str(reason))
            raise AdoptError(f"{self._shown} does not answer: {sanitize(reason, 200)}{hint}") from None
        try:
            page = as_mapping(json.loads(data))
            # Both texts are compared as json.dumps writes them, because NetBox may escape characters of the
            # token in another way.
            self._refuse_token_in(json.dumps(page))
        except (ValueError, RecursionError):
            raise AdoptError(
                f"{self._shown} does not answer with JSON: is it the address of a NetBox?"
            ) from None
        return page

    def _refuse_token_in(self, text: str) -> None:
        """Refuse an answer that contains the token, because parts of it are shown and written into files."""
        if json.dumps(self._token)[1:-1].lower() in text.lower() or self._token.lower() in text.lower():
            raise AdoptError(
                f"{self._shown} sends the token back in its answer: revoke it, and make a new one"
            )

    def _refusal(self, error: urllib.error.HTTPError) -> str:
        """Describe an error status of NetBox, with the remedy."""
        if 300 <= error.code < 400:
            location = error.headers.get("Location") or ""
            self._refuse_token_in(location)
            try:
                target = urlsplit(location)
            except ValueError:
                return "redirects to no address"
            where = sanitize(f"{target.scheme}://{target.hostname}" if target.hostname else target.path, 100)
            return f"redirects to {where}: the token is not sent there; if that is right, name that address"
        if error.code in (401, 403):
            return (
                f"refuses the token ({error.code}{self._stated_reason(error)}): check that it exists, is "
                "valid and may read devices"
            )
        if error.code == 400:
            return f"refuses the request (400{self._stated_reason(error)}): correct --netbox-filter"
        return f"answers with status {error.code}"

    def _stated_reason(self, error: urllib.error.HTTPError) -> str:
        """Return NetBox's own reason, such as ``Token expired``, or "" if it states none."""
        try:
            content = as_mapping(json.loads(error.read1(4096)))
        except (OSError, http.client.HTTPException, ValueError, RecursionError):
            return ""
        # A wrong filter gets {"role": ["Select a valid choice. …"]}.
        parts = [
            part for value in content.values() for part in (value if isinstance(value, list) else [value])
        ]
        text = " ".join(part for part in parts if isinstance(part, str))
        self._refuse_token_in(text)
        return f", {sanitize(text, 160)}" if text else ""

    def _read_whole(self, response: Any) -> bytes:
        """Return the bytes of a page.

        Raises:
            AdoptError: The page is too large, takes too long, or is cut off.
        """
        parts: list[bytes] = []
        size, end = 0, time.monotonic() + _MOST_PAGE_S
        while part := response.read1(1 << 16):
            parts.append(part)
            size += len(part)
            if size > _MOST_PAGE_BYTES or time.monotonic() > end:
                raise AdoptError(
                    f"{self._shown} sends a page that does not end within {_MOST_PAGE_BYTES >> 20} MiB and "
                    f"{_MOST_PAGE_S:.0f} s"
                )
        if response.length:
            raise AdoptError(f"{self._shown} sends a page that is cut off: try again")
        return b"".join(parts)


def _refuse_doubled_names(devices: Sequence[Mapping[str, Any]]) -> None:
    """Refuse two devices with the same name, because a node is identified by its name."""
    counts = Counter(_name(device) for device in devices)
    if doubled := sorted(name for name, count in counts.items() if count > 1):
        raise AdoptError(
            f"NetBox has {counts[doubled[0]]} devices called {sanitize(doubled[0], 80)}"
            f"{f' and {len(doubled) - 1} more such names' if len(doubled) > 1 else ''}: choose a site with "
            "--netbox-filter site=NAME"
        )


def _choose(
    devices: Sequence[Mapping[str, Any]], filters: Sequence[str]
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the devices that can be nodes, and the others.

    A NetBox lists switches and power strips as well. If a filter states the kind of devices, every device can
    be a node. Without such a filter, network, power and storage equipment cannot. Any other device can be one
    if it states a GPU, if another device of its role does, or if a filter compares something other than a
    place, tenant or status, such as a tag.

    Args:
        devices: The devices.
        filters: The names of the operator's filters.
    """
    if any(map(_states_kind, filters)):
        return list(devices), []
    is_chosen = not all(map(_narrows, filters))
    roles = {_role(device) for device in devices if _is_gpu_node(device)} - {""}
    fits = [
        _is_gpu_node(device) or ((is_chosen or _role(device) in roles) and not _is_equipment(device))
        for device in devices
    ]
    return (
        [device for device, is_node in zip(devices, fits, strict=True) if is_node],
        [device for device, is_node in zip(devices, fits, strict=True) if not is_node],
    )


def _is_gpu_node(device: Mapping[str, Any]) -> bool:
    """Return whether a device states a GPU model and is not network, power or storage equipment."""
    return _names_gpu(device) and not _is_equipment(device)


def _names_gpu(device: Mapping[str, Any]) -> bool:
    """Return whether a device states a GPU model."""
    return any(model_of_text(hint.text) for hint in _hints(device))


def _is_equipment(device: Mapping[str, Any]) -> bool:
    """Return whether the type or role of a device is network, power or storage equipment."""
    return any(_EQUIPMENT.search(text) for text in (_type(device), _role(device)))


def _type(device: Mapping[str, Any]) -> str:
    """Return the model in a device's type, or ""."""
    return text_at(mapping_at(device, "device_type"), "model")


def _role(device: Mapping[str, Any]) -> str:
    """Return the role of a device, or ""."""
    # Before NetBox 3.6, the role is called device_role.
    role = mapping_at(device, "role") or mapping_at(device, "device_role")
    return text_at(role, "slug") or text_at(role, "name")


def _misnamed_remarks(devices: Collection[Mapping[str, Any]]) -> list[str]:
    """Return a remark for each reason why names of devices cannot be names of hosts."""
    unnamed = sum(not _name(device) for device in devices)
    remarks = [f"left out: {_counted_devices(unnamed)} of NetBox without a name"] if unnamed else []
    names: dict[str, list[str]] = {}
    for name in filter(None, map(_name, devices)):
        if problem := name_problem(name):
            names.setdefault(problem, []).append(name)
    for problem, misnamed in names.items():
        names_text = ", ".join(repr(sanitize(name, 80)) for name in misnamed[:5])
        more = f" and {len(misnamed) - 5} more" if len(misnamed) > 5 else ""
        remarks.append(
            f"left out: {_counted_devices(len(misnamed))} of NetBox: {problem} ({names_text}{more})"
        )
    return remarks


def _counted_devices(count: int) -> str:
    return amount(count, "device")


def _left_out(devices: Collection[Mapping[str, Any]]) -> list[str]:
    """Return remarks about the devices that were left out, with their types and roles."""
    with_gpu = [device for device in devices if _names_gpu(device)]
    without_gpu = [device for device in devices if not _names_gpu(device)]
    remarks = []
    if with_gpu:
        remarks.append(
            f"left out: {_counted_devices(len(with_gpu))} of NetBox with a GPU's name whose type or role is "
            f"network, power or storage equipment: {_kinds(with_gpu)}; --netbox-filter role=NAME takes all "
            "of a role"
        )
    if without_gpu:
        remarks.append(
            f"left out: {_counted_devices(len(without_gpu))} of NetBox that name no GPU, nor have the role "
            f"of one that does: {_kinds(without_gpu)}; --netbox-filter role=NAME takes all of a role"
        )
    return remarks


def _kinds(devices: Collection[Mapping[str, Any]]) -> str:
    """Return the types and roles of devices with their numbers: ``4 x SN5600 (leaf)``."""
    kinds = Counter(f"{_type(device) or 'no type'} ({_role(device) or 'no role'})" for device in devices)
    kinds_text = ", ".join(f"{count} x {sanitize(kind, 60)}" for kind, count in kinds.most_common(6))
    return f"{kinds_text} and {len(kinds) - 6} more kinds" if len(kinds) > 6 else kinds_text


def _status_remarks(devices: Collection[Mapping[str, Any]]) -> list[str]:
    """Return one remark about all nodes whose status is not active, because hundreds may be only planned."""
    states = Counter(text_at(mapping_at(device, "status"), "value") for device in devices)
    idle = {state: count for state, count in states.most_common() if state not in ("", "active")}
    if not idle:
        return []
    counts = ", ".join(f"{count} {sanitize(state, 40)}" for state, count in list(idle.items())[:8])
    return [
        f"{sum(idle.values())} nodes are not active in NetBox: {counts}; --netbox-filter status=active "
        "leaves them out"
    ]


def _rack_id(device: Mapping[str, Any]) -> tuple[str, object]:
    """Return the identity of a device's rack: its site, and its id or, in an answer without id, its name."""
    rack = mapping_at(device, "rack")
    return _slug_at(device, "site"), as_int(rack.get("id")) or text_at(rack, "name")


def _rack_names(devices: Collection[Mapping[str, Any]]) -> dict[tuple[str, object], str]:
    """Return a name for each rack, by :func:`_rack_id`.

    Two sites may each contain a rack A01, and so may two halls of one site. Where necessary, the name
    therefore also has the site, the hall (NetBox's location) or the rack's id.
    """
    places = {
        _rack_id(device): (_slug_at(device, "site"), _slug_at(device, "location"), _rack_text(device))
        for device in devices
        if _rack_text(device)
    }
    has_sites = len({_slug_at(device, "site") for device in devices}) > 1
    in_site = Counter((site, name) for site, _, name in places.values())
    in_hall = Counter(places.values())
    names = {}
    for rack, (site, hall, name) in places.items():
        words = [
            site if has_sites else "",
            hall if in_site[site, name] > 1 else "",
            name,
            str(rack[1]) if in_hall[site, hall, name] > 1 else "",
        ]
        names[rack] = sanitize("-".join(filter(None, words)), 120)
    return names


def _rack_text(device: Mapping[str, Any]) -> str:
    """Return the name of a device's rack in NetBox, or ""."""
    rack = mapping_at(device, "rack")
    return text_at(rack, "name") or text_at(rack, "display")


def _hints(device: Mapping[str, Any]) -> list[GpuHint]:
    """Return the texts of a device that may state its GPU model: custom fields, type and tags."""
    fields = mapping_at(device, "custom_fields")
    hints = [
        GpuHint(where=f"custom field {name}", text=sanitize(value, 200))
        for name, value in fields.items()
        if isinstance(value, str) and value.strip() and name.lower() in (*COLUMNS["gpu"], *COLUMNS["type"])
    ]
    kind = _type(device)
    hints += [GpuHint(where="device type", text=sanitize(kind, 200))] if kind else []
    tags = [text_at(tag, "name") for tag in list_at(device, "tags")]
    return [*hints, *(GpuHint(where="tag", text=sanitize(tag, 100)) for tag in tags if tag)]


def _slug_at(device: Mapping[str, Any], key: str) -> str:
    """Return the slug of an object that the device refers to, or ""."""
    return text_at(mapping_at(device, key), "slug")


def _node(name: str, device: Mapping[str, Any], rack: str, remarks: list[str]) -> AdoptedNode:
    """Return a device as a node. For each value that does not fit, a remark is added to ``remarks``."""
    variables = _fitting_variables(name, device, remarks)
    return AdoptedNode(
        name=name,
        source="NetBox",
        address=str(variables.pop("ansible_host", "")),
        rack=rack or rack_of_name(name),
        rack_from="NetBox's rack" if rack else BY_NAME,
        gpu_count=stated_gpu_count(mapping_at(device, "custom_fields")),
        gpu_count_from="custom field of GPUs",
        hints=tuple(_hints(device)),
        variables=variables,
    )


def _fitting_variables(
    name: str, device: Mapping[str, Any], remarks: list[str]
) -> dict[str, str | int | bool]:
    """Return address, serial number and BMC address of a device as variables.

    For each text that cannot be the value of its variable, a remark is added to ``remarks``.
    """
    variables = {
        "ansible_host": _address(device, "primary_ip"),
        "reimage_serial": text_at(device, "serial").strip(),
        "reimage_bmc_address": _address(device, "oob_ip"),
    }
    fitting: dict[str, str | int | bool] = {}
    for variable, text in variables.items():
        if text and variable_fits(variable, text):
            fitting[variable] = text
        elif text:
            remarks.append(f"{name}: {sanitize(text, 60)!r} is not taken: it cannot be its {variable}")
    return fitting


def _address(device: Mapping[str, Any], field: str) -> str:
    """Return an address without its prefix: ``10.0.0.7/24`` is 10.0.0.7."""
    return text_at(mapping_at(device, field), "address").partition("/")[0].strip()
