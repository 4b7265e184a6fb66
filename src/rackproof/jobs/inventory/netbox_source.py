"""Read devices from a NetBox through its REST API, page by page and without redirects.

``rackproof adopt --netbox`` calls :func:`read_netbox_nodes`. The forms are from NetBox's documentation
of 3.5 to 4.6. A list is ``{"count", "next", "previous", "results"}``. The token is sent as
``Authorization: Token …``, and a token of version 2 (``nbt_…``) as ``Bearer``.
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
from rackproof.core.text import sanitize
from rackproof.core.untrusted import as_mapping, list_at, mapping_at, text_at
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
"""One request asks for this many devices."""
_MOST_PAGE_BYTES = 32 << 20
_MOST_DEVICES = 100_000
_TIMEOUT_S = 30.0
"""NetBox may be silent for this long."""
_MOST_PAGE_S = 120.0
"""A whole page may take this long, so that a server that sends single bytes does not hold the command."""
_FILTER = re.compile(r"[a-z][a-z0-9_]{0,60}")


def read_token(path: Path | None, environment: Mapping[str, str]) -> str:
    """Return NetBox's token from the environment, or from a file that only its owner can read.

    Raises:
        AdoptError: There is no token, or other users can read the file.
    """
    if path is None:
        text, place = environment.get(NETBOX_TOKEN, ""), NETBOX_TOKEN
    else:
        place = str(path)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as stream:
                about = os.fstat(descriptor)
                if not stat.S_ISREG(about.st_mode) or about.st_mode & 0o077:
                    raise AdoptError(f"{path} holds a token that others may read: chmod 600 {path}")
                text = stream.read(4096).decode("ascii", "replace")
        except OSError as error:
            raise AdoptError(f"{path} cannot be read: {error.strerror or error}") from None
    token = text.strip()
    if not re.fullmatch(r"[!-~]{8,1000}", token):
        raise AdoptError(
            f"{place} holds no token of NetBox: set {NETBOX_TOKEN}, or name a file of mode 0600 with "
            "--netbox-token-file"
        )
    return token


def read_netbox_nodes(url: str, token: str, filters: Sequence[str]) -> AdoptedSource:
    """Return the devices of a NetBox that can be nodes, and the reasons why others are left out.

    Args:
        url: The address of NetBox, such as ``https://netbox.example.org``.
        token: A token that may read devices.
        filters: NetBox's own filters for devices, such as ``role=gpu-node``.

    Raises:
        AdoptError: NetBox does not answer, refuses, redirects, answers in another form, or never ends.
    """
    devices = _Netbox(url, token).devices(_read_filters(filters))
    known = [one for one in devices if text_at(one, "name").strip()]
    remarks = []
    if len(known) < len(devices):
        remarks.append(f"left out: {len(devices) - len(known)} devices of NetBox without a name")
    _refuse_doubled_names(known)
    chosen, others = _choose(known, keep_all=bool(filters))
    if others:
        remarks.append(_left_out(others))
    sites = {_site(device) for device in chosen}
    nodes = []
    for device in chosen:
        name = text_at(device, "name").strip()
        if problem := name_problem(name):
            remarks.append(f"left out: device {sanitize(name, 80)!r} of NetBox: {problem}")
        else:
            # Two sites may each have a rack A01.
            nodes.append(_node(name, device, _site(device) if len(sites) > 1 else "", remarks))
    return AdoptedSource(nodes=tuple(nodes), remarks=tuple(remarks))


def _read_filters(filters: Sequence[str]) -> list[tuple[str, str]]:
    """Return the operator's filters as names and values."""
    found = []
    for text in filters:
        name, bar, value = text.partition("=")
        if not bar or not value or not _FILTER.fullmatch(name) or name in ("limit", "offset", "ordering"):
            raise AdoptError(
                f"--netbox-filter {sanitize(text, 80)}: it has the form NAME=VALUE, such as role=gpu-node"
            )
        found.append((name, value))
    return found


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follow no redirect, because the token would go to the other server."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Netbox:
    """Query one NetBox. Its token is sent to no other server."""

    def __init__(self, url: str, token: str) -> None:
        try:
            parts = urlsplit(url)
            has_form = parts.scheme in ("https", "http") and parts.hostname
        except ValueError:
            has_form = None
        if not has_form or "@" in parts.netloc or parts.query:
            # The part before an @ is a login.
            shown = url.rpartition("@")[2].partition("?")[0]
            raise AdoptError(
                f"--netbox {sanitize(shown, 100)}: it is an address such as "
                "https://netbox.example.org, without a login or a question mark"
            )
        if parts.scheme == "http" and not is_this_machine(parts.hostname or ""):
            raise AdoptError(
                f"NetBox at {sanitize(url, 100)} would be queried by plain HTTP, by which everybody on the "
                "way reads the token: use https://"
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
        """Return all devices.

        Raises:
            AdoptError: NetBox does not list all devices, or lists too many.
        """
        found: dict[Any, Mapping[str, Any]] = {}
        while True:
            query = urlencode(
                [*filters, ("limit", _PAGE), ("offset", len(found)), ("exclude", "config_context")]
            )
            page = self._get(f"{self._url}{_DEVICES}?{query}")
            results, count = page.get("results"), page.get("count")
            if not isinstance(results, list) or not isinstance(count, int):
                raise AdoptError(
                    f"{self._shown} answers with JSON that is not a list of devices: is it a NetBox?"
                )
            if count > _MOST_DEVICES:
                raise AdoptError(f"{self._shown} has {count:,} devices: choose some with --netbox-filter")
            for one in results:
                if not isinstance(one, Mapping) or one.get("id") in found or one.get("id") is None:
                    # A repeated page would never end. A device that moved would be missing on another
                    # page.
                    raise AdoptError(
                        f"{self._shown} lists a device twice or none at all: its pages never end, or devices "
                        "changed meanwhile; try again"
                    )
                found[one["id"]] = one
            # Count pages here, so that no answer decides on the address of the next page.
            if page.get("next") is None:
                break
            if not results or len(found) > count:
                raise AdoptError(
                    f"{self._shown} has {count:,} devices by its own count, and its pages never end"
                )
        if len(found) < count:
            raise AdoptError(f"{self._shown} lists {len(found):,} of {count:,} devices: try again")
        return list(found.values())

    def _get(self, url: str) -> Mapping[str, Any]:
        """Return one page of NetBox's answer."""
        request = urllib.request.Request(url, headers=self._headers)  # noqa: S310  (the scheme was checked)
        try:
            with self._open(request, timeout=_TIMEOUT_S) as answer:
                data = self._read_whole(answer)
        except urllib.error.HTTPError as error:
            raise AdoptError(f"{self._shown} {self._refusal(error)}") from None
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
            # In this form, no text of the page is escaped in a way that the token is not.
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
            return f"refuses the token ({error.code}): it has to exist, be valid and may read devices"
        if error.code == 400:
            return "refuses the request (400): is there such a filter? (--netbox-filter)"
        return f"answers with status {error.code}"

    def _read_whole(self, answer: Any) -> bytes:
        """Return the bytes of a page, with limits for its size and time."""
        parts: list[bytes] = []
        size, end = 0, time.monotonic() + _MOST_PAGE_S
        while part := answer.read1(1 << 16):
            parts.append(part)
            size += len(part)
            if size > _MOST_PAGE_BYTES or time.monotonic() > end:
                raise AdoptError(
                    f"{self._shown} sends a page that does not end within {_MOST_PAGE_BYTES >> 20} MiB and "
                    f"{_MOST_PAGE_S:.0f} s"
                )
        if answer.length:
            raise AdoptError(f"{self._shown} sends a page that is cut off: try again")
        return b"".join(parts)


def _refuse_doubled_names(devices: Sequence[Mapping[str, Any]]) -> None:
    """Refuse two devices with the same name, because a node is identified by its name."""
    counts = Counter(text_at(one, "name").strip() for one in devices)
    if doubled := sorted(name for name, count in counts.items() if count > 1):
        raise AdoptError(
            f"NetBox has {counts[doubled[0]]} devices called {sanitize(doubled[0], 80)}"
            f"{f' and {len(doubled) - 1} more such names' if len(doubled) > 1 else ''}: choose a site with "
            "--netbox-filter site=NAME"
        )


def _choose(
    devices: Sequence[Mapping[str, Any]], *, keep_all: bool
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the devices that can be nodes, and the others.

    A NetBox has switches and power strips as well. Without a filter, a device can be a node if it states
    a GPU, or if it has the role of a device that does.
    """
    if keep_all:
        return list(devices), []
    roles = {_role(one) for one in devices if _names_gpu(one)} - {""}
    chosen = [one for one in devices if _names_gpu(one) or _role(one) in roles]
    return chosen, [one for one in devices if not (_names_gpu(one) or _role(one) in roles)]


def _names_gpu(device: Mapping[str, Any]) -> bool:
    """Return whether a device states a GPU model."""
    return any(model_of_text(hint.text) for hint in _hints(device))


def _role(device: Mapping[str, Any]) -> str:
    """Return the role of a device, or ""."""
    # Before NetBox 3.6, the role is called device_role.
    role = mapping_at(device, "role") or mapping_at(device, "device_role")
    return text_at(role, "slug") or text_at(role, "name")


def _left_out(devices: Collection[Mapping[str, Any]]) -> str:
    """Return the remark about the devices that were left out, by type and role."""
    kinds = Counter(
        f"{text_at(mapping_at(one, 'device_type'), 'model') or 'no type'} ({_role(one) or 'no role'})"
        for one in devices
    )
    shown = ", ".join(f"{count} x {sanitize(kind, 60)}" for kind, count in kinds.most_common(6))
    more = f" and {len(kinds) - 6} more kinds" if len(kinds) > 6 else ""
    return (
        f"left out: {len(devices)} devices of NetBox that name no GPU, nor have the role of one that does: "
        f"{shown}{more}; --netbox-filter role=NAME takes all of a role"
    )


def _hints(device: Mapping[str, Any]) -> list[GpuHint]:
    """Return the texts of a device that may state its GPU model: custom fields, type and tags."""
    fields = mapping_at(device, "custom_fields")
    found = [
        GpuHint(where=f"custom field {name}", text=sanitize(value, 200))
        for name, value in fields.items()
        if isinstance(value, str) and value.strip() and name.lower() in (*COLUMNS["gpu"], *COLUMNS["type"])
    ]
    kind = text_at(mapping_at(device, "device_type"), "model")
    found += [GpuHint(where="device type", text=sanitize(kind, 200))] if kind else []
    tags = [text_at(tag, "name") for tag in list_at(device, "tags")]
    return [*found, *(GpuHint(where="tag", text=sanitize(tag, 100)) for tag in tags if tag)]


def _site(device: Mapping[str, Any]) -> str:
    """Return the site of a device, or ""."""
    return text_at(mapping_at(device, "site"), "slug")


def _node(name: str, device: Mapping[str, Any], site: str, remarks: list[str]) -> AdoptedNode:
    """Return a device as a node. Values that do not fit become remarks."""
    variables = _fitting_variables(name, device, remarks)
    rack = mapping_at(device, "rack")
    place = text_at(rack, "name") or text_at(rack, "display")
    state = text_at(mapping_at(device, "status"), "value")
    if state not in ("", "active"):
        remarks.append(
            f"{name}: NetBox has it as {sanitize(state, 40)}; --netbox-filter status=active leaves it out"
        )
    return AdoptedNode(
        name=name,
        source="NetBox",
        address=str(variables.pop("ansible_host", "")),
        rack=sanitize("-".join(filter(None, (site, place))), 120) if place else rack_of_name(name),
        rack_from="NetBox's rack" if place else BY_NAME,
        gpu_count=stated_gpu_count(mapping_at(device, "custom_fields")),
        gpu_count_from="custom field of GPUs",
        hints=tuple(_hints(device)),
        variables=variables,
    )


def _fitting_variables(
    name: str, device: Mapping[str, Any], remarks: list[str]
) -> dict[str, str | int | bool]:
    """Return address, serial number and BMC of a device. A text that cannot be one becomes a remark."""
    given = {
        "ansible_host": _address(device, "primary_ip"),
        "reimage_serial": text_at(device, "serial").strip(),
        "reimage_bmc_address": _address(device, "oob_ip"),
    }
    fitting: dict[str, str | int | bool] = {}
    for variable, text in given.items():
        if text and variable_fits(variable, text):
            fitting[variable] = text
        elif text:
            remarks.append(f"{name}: {sanitize(text, 60)!r} is not taken: it cannot be its {variable}")
    return fitting


def _address(device: Mapping[str, Any], field: str) -> str:
    """Return an address without its prefix: ``10.0.0.7/24`` is 10.0.0.7."""
    return text_at(mapping_at(device, field), "address").partition("/")[0].strip()
