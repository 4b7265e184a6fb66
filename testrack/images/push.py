#!/usr/bin/env python3
"""Push the missing layers of the images to the test rack's registry, as user $oauthtoken.

    push.py --registry gb300-r01-svc:5000 --images .rackproof/rack/images [--key-file .rackproof/rack/ngc_key]

rack.py starts this program. The key is read from its file and sent in requests, and is in no command line and
no message.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import sys
import time
import urllib.parse
from pathlib import Path
from typing import Any

from oci import MANIFEST, Layout, read_index

USER = "$oauthtoken"
KEY_FILE = Path(__file__).resolve().parents[2] / ".rackproof/rack/ngc_key"
# The services' host starts the registry a few seconds after its own start. A busy machine takes longer.
START_S = 120.0


class PushError(Exception):
    """There are no images, or the registry does not answer or refuses one. The message gives the reason."""


class Registry:
    """A client of a registry without TLS."""

    def __init__(self, address: str, key: str) -> None:
        self.address = address
        token = base64.b64encode(f"{USER}:{key}".encode()).decode()
        self.headers = {"Authorization": f"Basic {token}"}

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        timeout: float = 60,
    ) -> tuple[int, dict[str, str], bytes]:
        """Send one request. Return status, headers and body.

        Raises:
            PushError: The registry does not answer, or refuses the key.
        """
        connection = http.client.HTTPConnection(self.address, timeout=timeout)
        try:
            connection.request(method, path, body, {**self.headers, **(headers or {})})
            answer = connection.getresponse()
            data = answer.read()
        except OSError as error:
            raise PushError(
                f"the registry {self.address} does not answer: {error}; try `make rack-status`"
            ) from error
        finally:
            connection.close()
        if answer.status == 401:
            raise PushError(
                f"401 Unauthorized: {self.address} has no user {USER} with the key in the key file"
            )
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, data

    def wait_until_started(self, timeout_s: float = START_S) -> None:
        """Return when the registry accepts a connection.

        Raises:
            PushError: The registry accepts no connection in time, or fails in another way.
        """
        end = time.monotonic() + timeout_s
        while not self._accepts(last_try=time.monotonic() >= end):
            time.sleep(0.2)

    def _accepts(self, *, last_try: bool) -> bool:
        """Return False for a refused connection, except on the last try. Every other error is raised."""
        try:
            self.ask("GET", "/v2/")
        except PushError as error:
            if last_try or not isinstance(error.__cause__, ConnectionRefusedError):
                raise
            return False
        return True

    def has(self, repository: str, digest: str) -> bool:
        """Return whether a blob is in a repository."""
        return self.ask("HEAD", f"/v2/{repository}/blobs/{digest}")[0] == 200

    def tagged(self, repository: str, tag: str) -> str:
        """Return the digest of a tag, or ""."""
        status, headers, _body = self.ask(
            "HEAD", f"/v2/{repository}/manifests/{tag}", headers={"Accept": MANIFEST}
        )
        return headers.get("docker-content-digest", "") if status == 200 else ""

    def put_blob(self, repository: str, digest: str, path: Path, elsewhere: str) -> str:
        """Upload a blob to a repository, or mount it from the repository ``elsewhere``.

        Return ``there``, ``shared`` (mounted) or ``pushed``.
        """
        if self.has(repository, digest):
            return "there"
        query = {"mount": digest, "from": elsewhere} if elsewhere else {}
        status, headers, body = self.ask(
            "POST", f"/v2/{repository}/blobs/uploads/?{urllib.parse.urlencode(query)}", b""
        )
        if status == 201:
            return "shared"
        if status != 202:
            raise PushError(f"{repository}: upload refused ({status}): {body[:300].decode(errors='replace')}")
        place = urllib.parse.urlsplit(headers["location"])
        target = f"{place.path}?{place.query + '&' if place.query else ''}digest={digest}"
        size = path.stat().st_size
        sent = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        with path.open("rb") as stream:
            status, _headers, body = self.ask("PUT", target, stream, sent, timeout=300)
        if status != 201:
            raise PushError(
                f"{repository}: {digest} refused ({status}): {body[:300].decode(errors='replace')}"
            )
        return "pushed"

    def put_manifest(self, repository: str, tag: str, data: bytes) -> str:
        """Give a manifest its tag. Return the digest under which the registry stores it."""
        status, headers, body = self.ask(
            "PUT", f"/v2/{repository}/manifests/{tag}", data, {"Content-Type": MANIFEST}
        )
        if status != 201:
            raise PushError(f"{repository}:{tag} refused ({status}): {body[:300].decode(errors='replace')}")
        return headers.get("docker-content-digest", "")


def push(registry: Registry, folder: Path) -> int:
    """Push all images of a layout. Return the number of those that the registry did not have."""
    index = read_index(folder)
    if not index:
        raise PushError(f"{folder} holds no images; run build.py --out {folder} first")
    layout, elsewhere, pushed = Layout(folder), "", 0
    for name, entry in index.items():
        repository, tag = name.rsplit(":", 1)
        if registry.tagged(repository, tag) == entry["digest"]:
            print(f"{name}: there")
        else:
            data = layout.path(entry["digest"]).read_bytes()
            manifest = json.loads(data)
            ways = [
                registry.put_blob(repository, blob["digest"], layout.path(blob["digest"]), elsewhere)
                for blob in (*manifest["layers"], manifest["config"])
            ]
            if registry.put_manifest(repository, tag, data) != entry["digest"]:
                raise PushError(f"{name}: the registry keeps it under another digest than {entry['digest']}")
            pushed += 1
            print(f"{name}: {entry['digest']} (blobs: {', '.join(ways)})", flush=True)
        elsewhere = repository
    return pushed


def main() -> int:
    """Push the missing layers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--registry", required=True, help="HOST:PORT")
    parser.add_argument("--images", type=Path, required=True, help="the folder that build.py filled")
    parser.add_argument("--key-file", type=Path, default=KEY_FILE)
    arguments = parser.parse_args()
    began = time.monotonic()
    try:
        key = arguments.key_file.read_text().strip()
        registry = Registry(arguments.registry, key)
        registry.wait_until_started()
        pushed = push(registry, arguments.images)
    except (PushError, OSError) as error:
        print(f"push: {error}", file=sys.stderr)
        return 1
    print(f"push: {pushed} images pushed to {arguments.registry}, {time.monotonic() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
