"""Test workloads/slurm_run.py against a registry, token server or image store that an attacker controls.

The program asks the registry for an image's digest, with the site's key. The tests show that key and token go
to no other server, and that an answer that is damaged, huge or of another image refuses the run.
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

KEY = "made-up-registry-key"
MANIFEST = json.dumps({"manifests": [{"platform": {"architecture": "amd64"}}]}).encode()
DIGEST = "sha256:" + hashlib.sha256(MANIFEST).hexdigest()
# JSON that is nested too deeply to be read.
DEEP = b"[" * 100_000 + b"]" * 100_000


class Server:
    """A server that gives each path its prepared answer, and keeps the Authorization header of requests."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.keys: list[tuple[str, str]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                outer.keys.append((path, self.headers.get("Authorization", "")))
                status, headers, body = outer.answers.get(path, (404, {}, b""))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def do_HEAD(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.address = f"127.0.0.1:{self.server.server_port}"
        self.url = f"http://{self.address}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    """Return two servers: the registry, and another one."""
    both = Server(), Server()
    yield both
    for one in both:
        one.close()


@pytest.fixture
def work(
    slurm_run: ModuleType, servers: tuple[Server, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Return the program's work on an image of the first server, with a key for it."""
    registry = servers[0].address
    (tmp_path / "netrc").write_text(f"machine {registry} login $oauthtoken password {KEY}\n")
    monkeypatch.setenv("RACKPROOF_CREDENTIALS", str(tmp_path / "netrc"))
    spec = {"registry": registry, "registry_scheme": "http", "repository": "big", "tag": "1", "hosts": ["n1"]}
    return slurm_run.Work(
        spec | {"benchmark": "big", "shared": str(tmp_path), "environment": {}, "architecture": "amd64"}
    )


def challenge(realm: str) -> tuple[int, dict[str, str], bytes]:
    """Return an answer that sends the client to another address for a token."""
    return 401, {"WWW-Authenticate": f'Bearer realm="{realm}",service="x"'}, b""


# The path of the image's manifest.
PLACE = f"/v2/big/manifests/{DIGEST}"


def test_a_server_to_which_a_registry_redirects_gets_no_key(
    work: Any, slurm_run: ModuleType, servers: tuple[Server, Server]
) -> None:
    registry, elsewhere = servers
    registry.answers[PLACE] = (307, {"Location": f"{elsewhere.url}/store"}, b"")
    elsewhere.answers["/store"] = challenge(f"{elsewhere.url}/token")
    elsewhere.answers["/token"] = (200, {}, b'{"token": "t"}')
    with pytest.raises(slurm_run.Refusal, match=r"redirects to .* requires a key: no key is sent there"):
        work.prove_image(DIGEST)
    # Neither the registry's key nor a token went there.
    assert elsewhere.keys == [("/store", "")]


def test_a_store_gets_neither_key_nor_token(work: Any, servers: tuple[Server, Server]) -> None:
    registry, elsewhere = servers
    registry.answers[PLACE] = (307, {"Location": f"{elsewhere.url}/store"}, b"")
    elsewhere.answers["/store"] = (200, {}, MANIFEST)
    work.prove_image(DIGEST)
    assert elsewhere.keys == [("/store", "")]
    assert registry.keys == [(PLACE, "Basic " + base64.b64encode(f"$oauthtoken:{KEY}".encode()).decode())]


@pytest.mark.parametrize(
    "target", ["http://store.example/x", "ftp://store.example/x", "HTTP://store.example"]
)
def test_a_redirect_from_https_to_another_scheme_is_not_followed(slurm_run: ModuleType, target: str) -> None:
    request = urllib.request.Request("https://registry.example/v2/big/manifests/1")
    with pytest.raises(ValueError, match="not followed"):
        slurm_run.SafeRedirects().redirect_request(request, None, 307, "", {}, target)


@pytest.mark.parametrize(
    "token",
    [
        b"[]", b"7", b"null", b'"text"', b"{}", b'{"token": 5}', b'{"token": ["t"]}', b'{"token": ""}', DEEP,
        b'{"token": "t\\r\\nX-Evil: 1"}', b'{"token": "t t"}', b'{"token": "\\u00e9"}', b"\xff",
        b'{"token": "' + b"t" * (2 << 20) + b'"}',
    ],
    ids=[
        *("list", "number", "null", "text", "none", "number_in_it", "list_in_it", "empty", "deep"),
        *("header", "blank", "letter", "bytes", "huge"),
    ],
)  # fmt: skip
def test_an_invalid_token_is_a_refusal(
    work: Any, slurm_run: ModuleType, servers: tuple[Server, Server], token: bytes
) -> None:
    registry, other = servers
    registry.answers[PLACE] = challenge(f"{other.url}/token")
    other.answers["/token"] = (200, {}, token)
    with pytest.raises(slurm_run.Refusal, match="cannot be reached from"):
        work.prove_image(DIGEST)
    assert len(registry.keys) == 1


@pytest.mark.parametrize(
    ("body", "length"),
    [(MANIFEST[:-1], len(MANIFEST)), (MANIFEST + b" " * (17 << 20), 0), (MANIFEST + b" ", 0), (b"", 0)],
    ids=["cut", "huge", "changed", "empty"],
)
def test_a_manifest_with_another_digest_is_refused(
    work: Any, slurm_run: ModuleType, servers: tuple[Server, Server], body: bytes, length: int
) -> None:
    servers[0].answers[PLACE] = (200, {"Content-Length": str(length)} if length else {}, body)
    with pytest.raises(slurm_run.Refusal, match="It was replaced"):
        work.prove_image(DIGEST)


def test_a_manifest_that_is_nested_too_deeply_is_a_refusal(
    work: Any, slurm_run: ModuleType, servers: tuple[Server, Server]
) -> None:
    digest = slurm_run.digest_of_bytes(DEEP)
    servers[0].answers[f"/v2/big/manifests/{digest}"] = (200, {}, DEEP)
    with pytest.raises(slurm_run.Refusal, match="its architecture cannot be read"):
        work.prove_image(digest)


@pytest.mark.parametrize(
    "named",
    ["", "latest", "sha256:xyz", DIGEST[:-1], DIGEST + "0", DIGEST.upper(), f"{DIGEST},{DIGEST}", "../x"],
)
def test_a_tag_without_a_digest_is_a_refusal(
    work: Any, slurm_run: ModuleType, servers: tuple[Server, Server], named: str
) -> None:
    servers[0].answers["/v2/big/manifests/1"] = (200, {"Docker-Content-Digest": named}, b"")
    with pytest.raises(slurm_run.Refusal, match="names no digest"):
        work.resolve()


@pytest.mark.parametrize(
    ("text", "header"),
    [
        # The text of Docker's configuration, and the key that is read from it.
        ('{"auths": {"nvcr.io": {"auth": "a2V5"}}}', "Basic a2V5"),
        ('{"auths": {"https://nvcr.io/v1/": {"auth": "a2V5"}}}', "Basic a2V5"),
        ('{"auths": {"other": null, "nvcr.io": {"auth": "a2V5"}}}', "Basic a2V5"),
        ('{"auths": null}', None),
        ('{"auths": []}', None),
        ('{"auths": "nvcr.io"}', None),
        ('{"auths": {"nvcr.io": null}}', None),
        ('{"auths": {"nvcr.io": "a2V5"}}', None),
        ('{"auths": {"nvcr.io": {"auth": 7}}}', None),
        ('{"auths": {"nvcr.io": {"auth": "a2V5\\nx"}}}', None),
        ('{"auths": {"nvcr.io": {}}}', None),
        ('{"credsStore": "desktop"}', None),
        ("[]", None),
        ("null", None),
        ("", None),
        ("[" * 100000, None),
    ],
)
def test_any_configuration_of_docker_is_read(slurm_run: ModuleType, text: str, header: str | None) -> None:
    assert slurm_run.docker_authorisation(text, {"nvcr.io", "nvcr.io:443"}) == header


def test_a_file_of_keys_that_is_no_text_is_passed_over(
    work: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe")
    monkeypatch.setenv("RACKPROOF_CREDENTIALS", str(tmp_path / "config.json"))
    assert work.credentials()[1] != str(tmp_path / "config.json")
