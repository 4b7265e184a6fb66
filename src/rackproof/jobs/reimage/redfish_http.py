"""Access a BMC, which may be an impostor, through HTTP.

Answers are limited in size, and certificates are checked or pinned. requests is imported in functions,
like sushy, with which it is installed.
"""

from __future__ import annotations

import hashlib
import re
import ssl
import time
from typing import Any
from urllib.parse import urlsplit

from rackproof.core.addresses import is_this_machine
from rackproof.jobs.reimage.bmc import Access, BmcError

MOST_ANSWER_BYTES = 16 << 20
"""Largest size of an answer. The list of all firmware of a rack's switch has 2 MB."""
MOST_ANSWER_S = 60.0
_HTTPS_PORT = 443


def refuse_plain_http(node: str, access: Access) -> None:
    """Refuse an address to which the password would be sent unencrypted.

    Raises:
        BmcError: The address uses plain HTTP and is not on this machine.
    """
    parts = urlsplit(access.address)
    if parts.scheme == "http" and not is_this_machine(parts.hostname or ""):
        raise BmcError(
            f"{node}: its BMC at {access.display_address} would be queried by plain HTTP, by which everybody "
            "on the way reads the password: use https://, or a tunnel (ssh -L) and http://127.0.0.1"
        )


def limit_answers(session: Any, access: Access) -> None:
    """Limit a requests session to answers of limited size, and to the pinned certificate."""
    adapter = _adapter(access.fingerprint, _origin(redfish_url(access.address)))
    session.mount("http://", adapter)
    session.mount("https://", adapter)


def redfish_url(address: str) -> str:
    """Return the address of a BMC in sushy's form, with https unless it gives another scheme."""
    return address if re.match(r"https?://", address) else f"https://{address}"


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port


def _adapter(fingerprint: str, origin: tuple[str, str, int | None]) -> Any:
    from requests.adapters import HTTPAdapter
    from requests.exceptions import RequestException

    class BoundedAdapter(HTTPAdapter):
        """Read an answer completely within limits.

        The time limit of requests is only for the time between two bytes.
        """

        def init_poolmanager(self, *args: Any, **options: Any) -> None:
            if fingerprint:
                options["assert_fingerprint"] = fingerprint
            super().init_poolmanager(*args, **options)

        def send(self, request: Any, *args: Any, **options: Any) -> Any:
            # The token of the session would be sent to the target of a redirect.
            if _origin(request.url) != origin:
                raise RequestException("it redirects to another address")
            options["stream"] = True
            response = super().send(request, *args, **options)
            response._content = _read_whole(response)
            return response

    return BoundedAdapter()


def _read_whole(response: Any) -> bytes:
    from requests.exceptions import RequestException

    parts: list[bytes] = []
    size, end = 0, time.monotonic() + MOST_ANSWER_S
    # Not read(): it would wait for all of a part from a BMC that sends a byte every ten seconds.
    while part := response.raw.read1(65536, decode_content=True):
        parts.append(part)
        size += len(part)
        if size > MOST_ANSWER_BYTES or time.monotonic() > end:
            response.raw.close()
            # sushy does not repeat a request after a plain error of this class.
            raise RequestException(
                f"its answer does not end within {MOST_ANSWER_BYTES >> 20} MiB and {MOST_ANSWER_S:.0f} s"
            )
    response.raw.release_conn()
    return b"".join(parts)


def read_fingerprint(access: Access) -> str:
    """Return the SHA-256 of a BMC's certificate as pairs with colons, or ""."""
    parts = urlsplit(redfish_url(access.address))
    try:
        # This connection is not trusted. Its certificate is only shown.
        shown = ssl.get_server_certificate((parts.hostname or "", parts.port or _HTTPS_PORT), timeout=10)
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(shown)).digest().hex(":")
    except (OSError, ValueError):
        return ""
