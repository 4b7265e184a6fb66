"""Limit the HTTP connection to a BMC, which may be an impostor.

:mod:`rackproof.jobs.reimage.redfish` calls :func:`refuse_plain_http` before it connects, and
:func:`limit_answers` with the session of sushy. Answers are limited in size, and certificates are checked or
pinned. The library requests is installed only together with sushy, so it is imported inside functions.
"""

from __future__ import annotations

import hashlib
import json
import re
import ssl
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

from rackproof.core.addresses import is_this_machine
from rackproof.core.text import sanitize
from rackproof.core.time_limits import answer_within
from rackproof.core.untrusted import as_mapping
from rackproof.jobs.reimage.bmc import Access, BmcError

MOST_ANSWER_BYTES = 16 << 20
"""Largest size of an answer. The list of all firmware of a rack's switch has 2 MB."""
MOST_ANSWER_S = 60.0
"""Longest time for an answer, times :attr:`Access.patience`."""
MOST_SESSION_BYTES = 64 << 20
"""Largest size of all answers of one session together, because sushy keeps them in memory."""
MOST_SESSION_S = 300.0
"""Longest time for all answers of a session, times the patience. Time between requests does not count."""
MOST_CLOSING_S = 20.0
"""Longest time for closing all sessions, in addition to the time of the session."""
MOST_MEMBERS = 256
"""Largest number of systems, and of interfaces of one system, that are read."""
_MOST_CLOSING_BYTES = 1 << 20
"""Largest size of all answers to the closing of sessions together."""
_HTTPS_PORT = 443
_ENDED = (401, 404, 410)
"""Statuses with which a BMC answers if it no longer has a session."""


def refuse_plain_http(node: str, access: Access) -> None:
    """Refuse an address that is malformed, or that would get the password unencrypted.

    Raises:
        BmcError: The address is malformed, or it uses plain HTTP and is not on this machine.
    """
    try:
        parts = urlsplit(access.address)
        # A malformed port is an error only when it is read.
        _origin(redfish_url(access.address))
    except ValueError as error:
        raise BmcError(
            f"{node}: its BMC's address {access.display_address!r} is malformed ({sanitize(error, 100)}): "
            "correct reimage_bmc_address, such as 10.0.0.11, https://bmc1:8443 or [fd00::11]"
        ) from None
    if parts.scheme == "http" and not is_this_machine(parts.hostname or ""):
        raise BmcError(
            f"{node}: its BMC at {access.display_address} would be queried by plain HTTP, so others on the "
            "network can read the password: use https://, or a tunnel (ssh -L) and http://127.0.0.1"
        )


def limit_answers(session: Any, access: Access) -> Any:
    """Limit a requests session to answers of limited size, and to the pinned certificate.

    Returns:
        The adapter, which records the opened sessions for :func:`close_sessions`.
    """
    adapter = _adapter(access, _origin(redfish_url(access.address)))
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return adapter


@dataclass
class _OpenedSession:
    """A session that the BMC opened.

    ``url`` is empty if the BMC's answer does not state the session's URL.
    """

    token: str
    url: str = ""


def close_sessions(session: Any, adapter: Any) -> int:
    """Close every session that the BMC opened, even if the time or size for answers is used up.

    A BMC allows few sessions, and refuses a login while all of them are open. sushy closes only the session
    that it opened last. If it could not read the answer, or if the answer lacks a Location, it closes none.
    A session that cannot be closed expires.

    Returns:
        The number of sessions that could not be closed.
    """
    adapter.left_s, adapter.left_bytes = MOST_CLOSING_S, _MOST_CLOSING_BYTES
    return sum(not _close_session(session, adapter, opened) for opened in reversed(adapter.opened))


def _close_session(session: Any, adapter: Any, opened: _OpenedSession) -> bool:
    """Close one session, and return whether it is closed."""
    if not opened.url or adapter.left_s <= 0:
        return False
    try:
        answer = session.delete(
            opened.url,
            headers={"X-Auth-Token": opened.token},
            timeout=adapter.left_s,
            allow_redirects=False,
        )
    except Exception:
        # A hostile answer may cause other errors than the errors of requests.
        return False
    return bool(answer.ok or answer.status_code in _ENDED)


def _place_in_body(content: bytes) -> str:
    """Return the path of a session in an answer, or "" if there is none. No I/O.

    A body is ``{"@odata.id": "/redfish/v1/SessionService/Sessions/7", ...}``.
    """
    try:
        path = as_mapping(json.loads(content)).get("@odata.id")
    except (ValueError, RecursionError):
        return ""
    # Without this check, an answer could make this module delete something else on the BMC.
    return path if isinstance(path, str) and "/Sessions/" in path else ""


def redfish_url(address: str) -> str:
    """Return the address of a BMC in sushy's form, with https unless it gives another scheme."""
    return address if re.match(r"https?://", address, re.IGNORECASE) else f"https://{address}"


def _origin(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port of an address, which a redirect must not change."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port


def _adapter(access: Access, origin: tuple[str, str, int | None]) -> Any:
    """Return an adapter of requests that limits answers and pins the certificate."""
    from requests.adapters import HTTPAdapter
    from requests.exceptions import RequestException

    answer_s = MOST_ANSWER_S * access.patience

    class BoundedAdapter(HTTPAdapter):
        """An adapter that reads an answer completely within limits.

        The time limit of requests is only for the time between two bytes. ``left_s`` and ``left_bytes`` are
        what remains for the session, and ``opened`` lists the sessions that the BMC opened.
        """

        def __init__(self) -> None:
            self.left_s, self.left_bytes = MOST_SESSION_S * access.patience, MOST_SESSION_BYTES
            self.opened: list[_OpenedSession] = []
            super().__init__()

        def init_poolmanager(self, *args: Any, **options: Any) -> None:
            if access.fingerprint:
                options["assert_fingerprint"] = access.fingerprint
            super().init_poolmanager(*args, **options)

        def send(self, request: Any, *args: Any, **options: Any) -> Any:
            """Send a request only to the BMC, within the time that is left.

            Raises:
                RequestException: The BMC redirects elsewhere, or gives no answer in time.
            """
            # The token of the session would be sent to the target of a redirect.
            if _origin(request.url) != origin:
                raise RequestException("it redirects to another address")
            begin = time.monotonic()
            try:
                # Use a thread, because requests does not limit the time of headers that never end.
                return answer_within(
                    min(answer_s, self.left_s), lambda: self._send_whole(request, *args, **options)
                )
            except TimeoutError:
                # sushy does not repeat a request after a plain error of this class.
                raise RequestException(_endless(access)) from None
            finally:
                self.left_s = max(0.0, self.left_s - (time.monotonic() - begin))

        def _send_whole(self, request: Any, *args: Any, **options: Any) -> Any:
            """Send a request, note a session that it opens, and read the answer up to the limit of bytes."""
            options["stream"] = True
            response = super().send(request, *args, **options)
            token, path = (response.headers.get(name) for name in ("X-Auth-Token", "Location"))
            opened = _OpenedSession(token or "", urljoin(request.url, path) if path else "")
            if request.method == "POST" and token:
                # Record it before the rest of the answer is read, which may fail.
                self.opened.append(opened)
            response._content = _read_whole(response, min(MOST_ANSWER_BYTES, self.left_bytes), access)
            self.left_bytes -= len(response._content)
            if not opened.url and (path := _place_in_body(response._content)):
                opened.url = urljoin(request.url, path)
            return response

    return BoundedAdapter()


def _endless(access: Access) -> str:
    """Return the text about an answer that is too long or too slow."""
    answer_s, session_s = MOST_ANSWER_S * access.patience, MOST_SESSION_S * access.patience
    return (
        f"its answer does not end within {MOST_ANSWER_BYTES >> 20} MiB and {answer_s:.0f} s, or all "
        f"answers within {MOST_SESSION_BYTES >> 20} MiB and {session_s:.0f} s (reimage_bmc_timeout_s)"
    )


def _read_whole(response: Any, limit: int, access: Access) -> bytes:
    """Return an answer's bytes.

    Raises:
        RequestException: The answer has more than ``limit`` bytes, or takes too long.
    """
    from requests.exceptions import RequestException

    parts: list[bytes] = []
    size, end = 0, time.monotonic() + MOST_ANSWER_S * access.patience
    # Do not use read(), which would wait for a whole part from a BMC that sends a byte every ten seconds.
    while part := response.raw.read1(65536, decode_content=True):
        parts.append(part)
        size += len(part)
        if size > limit or time.monotonic() > end:
            response.raw.close()
            raise RequestException(_endless(access))
    response.raw.release_conn()
    return b"".join(parts)


def read_fingerprint(access: Access) -> str:
    """Return the SHA-256 of a BMC's certificate as pairs with colons, or "" if it cannot be read."""
    parts = urlsplit(redfish_url(access.address))
    try:
        # The connection is not trusted. Its certificate is only shown.
        address = (parts.hostname or "", parts.port or _HTTPS_PORT)
        # The inner limit applies between two bytes.
        certificate = answer_within(20, lambda: ssl.get_server_certificate(address, timeout=10))
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).digest().hex(":")
    except (OSError, ValueError):
        return ""
