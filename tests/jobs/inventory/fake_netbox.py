"""Imitate a NetBox on this machine, which returns pages of devices to a client with its token.

The answers are those of NetBox 3.7 and 4.6. The tests of ``rackproof adopt --netbox`` start the fake. A test
may also give it wrong answers.
"""

from __future__ import annotations

import json
import secrets
import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = f"0123456789abcdef{secrets.token_hex(12)}"
"""The token that the fake accepts. Each process has its own, so that a search finds only its own."""


def device(number: int, name: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a device as /api/dcim/devices/ lists one, without keys that the fake does not need."""
    name = f"gpu-{number:03}" if name is None else name
    about: dict[str, Any] = {
        "id": number,
        "url": f"http://netbox/api/dcim/devices/{number}/",
        "display": name,
        "name": name,
        "device_type": {
            "id": 1,
            "display": "DGX H100",
            "manufacturer": {"id": 1, "name": "NVIDIA", "slug": "nvidia"},
            "model": "DGX H100",
            "slug": "dgx-h100",
        },
        "role": {"id": 1, "display": "GPU node", "name": "GPU node", "slug": "gpu-node"},
        "serial": f"S{number:06}",
        "site": {"id": 1, "name": "Berlin", "slug": "berlin"},
        "rack": {
            "id": number // 8 + 1,
            "display": f"A{number // 8 + 1:02}",
            "name": f"A{number // 8 + 1:02}",
        },
        "status": {"value": "active", "label": "Active"},
        "primary_ip": {"id": number, "address": f"10.1.{number // 250}.{number % 250 + 1}/16", "family": 4},
        "oob_ip": None,
        "tags": [],
        "custom_fields": {},
    }
    return about | more


class FakeNetbox:
    """A fake NetBox with devices. ``heard`` has the path, query and Authorization of each request.

    Args:
        devices: The devices of the NetBox.
        most: The most devices in a page (NetBox's MAX_PAGE_SIZE).
    """

    def __init__(self, devices: list[dict[str, Any]], most: int = 1000) -> None:
        self.devices, self.most = devices, most
        self.heard: list[tuple[str, Mapping[str, list[str]], str]] = []
        self.answers: list[Any] = []
        """Answers that replace the fake's own: (status, headers, body as bytes or as a value).

        The last one is given again and again.
        """
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = parse_qs(parts.query)
                fake.heard.append((parts.path, query, self.headers.get("Authorization", "")))
                status, headers, body = fake.answer(parts.path, query, self.headers.get("Authorization", ""))
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if "Content-Length" not in headers:
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                try:
                    self.wfile.write(data)
                except OSError:
                    # The client closed the connection, because it read enough.
                    return

            def log_message(self, *_: object) -> None:
                """Keep quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.scheme = "http"

    def secure(self, certificate: Path) -> None:
        """Use TLS from now on, with a file that has a certificate and its key."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.scheme = "https"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FakeNetbox:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(
        self, path: str, query: Mapping[str, list[str]], token: str
    ) -> tuple[int, dict[str, str], Any]:
        if self.answers:
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if token != f"Token {TOKEN}":
            return 403, {}, {"detail": "Invalid token"}
        if path != "/api/dcim/devices/":
            return 404, {}, {"detail": "Not found."}
        found = self.devices
        for name, values in query.items():
            # NetBox ignores a filter that it does not know.
            if name in ("role", "site", "status"):
                if not any(self._value(one, name) in values for one in self.devices):
                    reason = f"Select a valid choice. {values[0]} is not one of the available choices."
                    return 400, {}, {name: [reason]}
                found = [one for one in found if self._value(one, name) in values]
            elif name == "name":
                found = [one for one in found if one["name"] in values]
        limit = min(int(query.get("limit", ["50"])[0]), self.most)
        offset = int(query.get("offset", ["0"])[0])
        more = offset + limit < len(found)
        following = f"{self.url}{path}?limit={limit}&offset={offset + limit}" if more else None
        page = {
            "count": len(found),
            "next": following,
            "previous": None,
            "results": found[offset : offset + limit],
        }
        return 200, {"Content-Type": "application/json"}, page

    @staticmethod
    def _value(one: Mapping[str, Any], name: str) -> str:
        return str(one[name].get("slug", one[name].get("value")))
