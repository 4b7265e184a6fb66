"""Test that a hostile server at a BMC's address gets no password, and does not delay other nodes.

``rackproof.jobs.reimage.redfish_http`` limits the size and the time of answers, checks certificates, and
follows no redirect. The tests answer with wrong certificates, endless or slow answers, deep JSON, wrong types
and redirects. Each must become an error about this one BMC.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import ssl
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rackproof.jobs.reimage import redfish, redfish_http
from rackproof.jobs.reimage.bmc import Access, BmcError, BmcSilentError, read_power_status
from rackproof.jobs.reimage.tasks import list_systems, open_machine

from .fake_redfish import ROOT, FakeRedfish

PASSWORD = "made-up-password"


def read(address: str, **changed: Any) -> None:
    """Read the power of node n1 through the BMC at an address."""
    access = Access(**({"address": address, "user": "ops", "password": PASSWORD} | changed))
    read_power_status(partial(open_machine, "n1", access))


def certificate(folder: Path, name: str) -> tuple[Path, str]:
    """Return a self-signed certificate with its key, and its SHA-256."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path, made.fingerprint(hashes.SHA256()).hex(":")


class Tls:
    """A BMC with a certificate that it signed itself. ``heard`` has the headers of each request."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.heard = folder, []
        self.bmc = FakeRedfish({"Id": "1", "SerialNumber": "SN-1"})
        answer = self.bmc.answer

        def heard(request: BaseHTTPRequestHandler) -> None:
            self.heard.append(str(request.headers))
            answer(request)

        self.bmc.answer = heard  # type: ignore[method-assign]
        self.file, self.fingerprint = certificate(folder, "bmc")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.file)
        self.bmc.server.socket = context.wrap_socket(self.bmc.server.socket, server_side=True)
        self.address = self.bmc.address.replace("http:", "https:")


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[Tls]:
    made = Tls(tmp_path)
    yield made
    made.bmc.close()


def test_the_fingerprint_of_an_untrusted_certificate_is_shown_and_no_password_is_sent(tls: Tls) -> None:
    with pytest.raises(BmcError, match=f"is not trusted.*{tls.fingerprint}.*reimage_bmc_fingerprint"):
        read(tls.address)
    assert tls.heard == []


def test_a_pinned_certificate_is_accepted_from_any_issuer(tls: Tls) -> None:
    with pytest.raises(BmcError, match="refuses the login"):
        read(tls.address, fingerprint=tls.fingerprint)
    for written in (tls.fingerprint.upper(), tls.fingerprint.replace(":", "")):
        read(tls.address, fingerprint=written, password="secret")
    read(tls.address, verify=str(tls.file), password="secret")


@pytest.mark.parametrize("change", ["other", "short", "nonsense"])
def test_a_certificate_other_than_the_pinned_one_is_refused(tls: Tls, tmp_path: Path, change: str) -> None:
    pinned = {
        "other": certificate(tmp_path, "other")[1],
        "short": tls.fingerprint[:29],
        "nonsense": "yes",
    }[change]
    with pytest.raises(BmcError, match=r"n1: the certificate of its BMC at .* is not the pinned one"):
        # It is refused even if an authority signed it.
        read(tls.address, fingerprint=pinned, verify=str(tls.file))
    assert tls.heard == []


@pytest.mark.parametrize(
    "address",
    ["http://192.0.2.9", "http://bmc17:8000/redfish/v1", "http://[fd00::11]", "http://127.0.0.1.example"],
)
def test_no_password_is_sent_by_plain_http(address: str) -> None:
    with pytest.raises(BmcError, match="by plain HTTP, so others on the network can read the password"):
        read(address)


class Hostile(BaseHTTPRequestHandler):
    """A server with a fault. The class attribute ``how`` names the method that answers."""

    how = ""
    elsewhere = ""
    text = b""

    def do_GET(self) -> None:
        self.send_response(302 if Hostile.how == "redirect" else 200)
        self.send_header("Content-Type", "application/json")
        getattr(self, f"_{Hostile.how}")()

    def _redirect(self) -> None:
        self.send_header("Location", Hostile.elsewhere)
        self.end_headers()

    def _endless(self) -> None:
        self.end_headers()
        self._send(b" " * 65536)

    def _long(self) -> None:
        self.send_header("Content-Length", str(1 << 40))
        self.end_headers()
        self._send(b" " * 65536)

    def _chunks(self) -> None:
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._send(b"10000\r\n" + b" " * 65536 + b"\r\n")

    def _drips(self) -> None:
        self.end_headers()
        self._send(b" ", pause_s=0.1)

    # Nothing of send_response() is sent before end_headers().
    def _status_drips(self) -> None:
        self._send(b"H", pause_s=0.1)

    def _header_drips(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Name: ")
        self._send(b"a", pause_s=0.1)

    def _continues(self) -> None:
        self._send(b"HTTP/1.1 100 Continue\r\n\r\n", pause_s=0.01)

    def _gzip(self) -> None:
        self.send_header("Content-Encoding", "gzip")
        self._text()

    def _text(self) -> None:
        self.end_headers()
        self.wfile.write(Hostile.text)

    def _send(self, part: bytes, pause_s: float = 0) -> None:
        try:
            for _ in range(10_000):
                self.wfile.write(part)
                self.wfile.flush()
                time.sleep(pause_s)
        except OSError:
            pass

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def hostile() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hostile)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit an answer to 1 s. The usual limit is longer, because a busy machine is slow."""
    monkeypatch.setattr(redfish_http, "MOST_ANSWER_S", 1.0)


@pytest.mark.usefixtures("short_limit")
@pytest.mark.parametrize(
    "how", [*("endless", "long", "chunks", "drips"), *("status_drips", "header_drips", "continues")]
)
def test_an_answer_that_does_not_end_is_cut_off(
    hostile: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hostile, "how", how)
    with pytest.raises(BmcError, match=r"n1: its BMC at .* was not trusted: .*does not end within 16 MiB"):
        read(hostile)


# The limit of an answer grows with the time for a call (reimage_bmc_timeout_s), if that is above the default.
@pytest.mark.usefixtures("short_limit")
@pytest.mark.parametrize(("call_s", "answer_s"), [(5, 1), (20, 1), (60, 3)])
def test_a_slow_bmc_may_be_given_more_time_for_all_its_answers(
    hostile: str, call_s: float, answer_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hostile, "how", "drips")
    access = Access.from_options({"address": hostile, "call_timeout_s": call_s})
    begin = time.monotonic()
    with pytest.raises(BmcError, match=f"within 16 MiB and {answer_s} s, .*reimage_bmc_timeout_s"):
        list_systems("n1", access)
    assert time.monotonic() - begin >= answer_s


def root_with(**changed: Any) -> bytes:
    """Return the root resource of Redfish with changed keys."""
    about = {"Id": "R", "Name": "R", "RedfishVersion": "1.6.0", "Systems": {"@odata.id": f"{ROOT}/"}}
    return json.dumps(about | {"Links": {"Sessions": {"@odata.id": f"{ROOT}/S"}}} | changed).encode()


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("text", b"[" * 200_000 + b"]" * 200_000),
        ("text", b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        ("text", b"[1, 2]"),
        ("text", b"7"),
        ("text", b"null"),
        ("text", root_with(Systems=[5])),
        ("text", root_with(Links=7)),
        ("text", root_with(Members="abc")),
        ("text", root_with(Members=[1, 2])),
        ("gzip", b"this is not packed"),
    ],
    ids=["deep", "deep_objects", "list", "number", "null", "systems", "links", "text", "numbers", "gzip"],
)
def test_an_answer_that_the_library_cannot_read_is_an_error_of_this_bmc(
    hostile: str, how: str, text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hostile, "how", how)
    monkeypatch.setattr(Hostile, "text", text)
    with pytest.raises(BmcError, match=r"n1: the answer of its BMC at .* cannot be read: "):
        read(hostile)


@pytest.mark.parametrize(
    ("name", "system"),
    [
        ("boot", {"Boot": "Pxe"}),
        ("maker", {"Manufacturer": 5}),
        ("links", {"EthernetInterfaces": {"@odata.id": 5}}),
    ],
)
def test_a_system_with_wrong_types_is_an_error_of_this_bmc(name: str, system: dict[str, Any]) -> None:
    bmc = FakeRedfish({"Id": "1", "SerialNumber": "SN-1"} | system)
    try:
        with pytest.raises(BmcError, match=r"10\.0\.0\.1: the answer of its BMC at .* cannot be read: "):
            list_systems("10.0.0.1", Access(address=bmc.address, user="ops", password="secret"))
    finally:
        bmc.close()


def test_a_bmc_that_lists_too_many_systems_is_refused(hostile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hostile, "how", "text")
    listed = [{"@odata.id": f"{ROOT}/Systems/{number}"} for number in range(redfish_http.MOST_MEMBERS + 1)]
    monkeypatch.setattr(Hostile, "text", root_with(Members=listed))
    with pytest.raises(BmcError, match="n1: its BMC lists 257 systems or interfaces, more than 256"):
        read(hostile)


@pytest.mark.parametrize(("limit", "value"), [("MOST_SESSION_BYTES", 300), ("MOST_SESSION_S", 0.0)])
def test_all_answers_of_a_session_together_have_limits(
    limit: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redfish_http, limit, value)
    bmc = FakeRedfish({"Id": "1", "SerialNumber": "SN-1"})
    try:
        with pytest.raises(BmcError, match=r"n1: its BMC at .* was not trusted: .*all answers within"):
            read(bmc.address)
    finally:
        bmc.close()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_bmc_that_redirects_elsewhere_is_not_followed(
    hostile: str, tls: Tls, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hostile, "how", "redirect")
    monkeypatch.setattr(Hostile, "elsewhere", tls.address.replace("https", scheme) + ROOT + "/")
    with pytest.raises(BmcError, match="redirects to another address"):
        read(hostile)
    assert tls.heard == []


@pytest.mark.parametrize(
    "address", ["bmc1:99999", "bmc1:abc", "[bmc1", "https://bmc1:-1", "http://127.0.0.1:abc"]
)
def test_a_malformed_address_names_the_variable(address: str) -> None:
    access = Access(address, "admin", "secret")
    with pytest.raises(BmcError, match=r"n1: its BMC's address .* is malformed .*reimage_bmc_address"):
        redfish.list_systems("n1", access)


@pytest.mark.parametrize(
    ("host", "reason", "silent"),
    [
        (
            "ssl-bmc.example",
            "Unable to connect to https://ssl-bmc.example/redfish/v1/: Connection refused",
            True,
        ),
        ("certificate.example", "host='certificate.example', port=443: timed out", True),
        ("FINGERPRINT", "https://fingerprint:443/: Connection refused", True),
        (
            "ssl-bmc.example",
            "host='ssl-bmc.example' (Caused by SSLError(SSLCertVerificationError(1)))",
            False,
        ),
        ("s", "host='s' (Caused by SSLError(1))", False),
    ],
)
def test_the_name_of_a_bmc_is_not_taken_for_a_certificate_error(
    monkeypatch: pytest.MonkeyPatch, host: str, reason: str, silent: bool
) -> None:
    monkeypatch.setattr(redfish_http, "read_fingerprint", lambda access: "")
    error = redfish._unreachable("n1", Access(host), reason)
    assert isinstance(error, BmcSilentError) == silent
    assert ("is not trusted" in str(error)) != silent
