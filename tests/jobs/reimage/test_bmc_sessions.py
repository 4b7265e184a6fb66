"""Test that each session with a BMC is closed, also after an error (``rackproof.jobs.reimage.redfish``).

Redfish opens a session at the login. A BMC allows only a few, so sessions that stay open would lock the
operator out. The tests end the work with the BMC in many ways: by success, exceptions, wrong answers and
limits. A session that cannot be closed must become a remark.
"""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from rackproof.jobs.reimage import redfish_http
from rackproof.jobs.reimage.bmc import Access, BmcError
from rackproof.jobs.reimage.redfish import list_systems, open_machine, read_settings

from .fake_redfish import ROOT, FakeRedfish

SESSIONS = f"{ROOT}/SessionService/Sessions"
BODIES: dict[str, object] = {
    "body list": ["x"],
    "body number": 5,
    "body elsewhere": "http://127.0.0.2:1/Sessions/1",
    "body system": f"{ROOT}/Systems/1",
}
"""Bodies of the answer that have no valid place of a session."""


class SessionBmc(FakeRedfish):
    """A BMC with sessions.

    ``count`` is the number of opened sessions, and ``tokens`` has the tokens of the open ones by path.
    ``how`` changes where the answer to a login names the session, whether the answer can be read, and whether
    a session can be closed.
    """

    def __init__(self) -> None:
        super().__init__({"Id": "1", "SerialNumber": "SN-1", "bios": {"A": "B"}}, firmware={"BMC": "1.0"})
        self.resources[f"{ROOT}/SessionService"] = {
            "Id": "S",
            "Name": "S",
            "Sessions": {"@odata.id": SESSIONS},
        }
        self.tokens: dict[str, str] = {}
        self.count, self.how = 0, ""
        self.deleted: list[str] = []
        self.refuse_once = ""
        self.login = lambda: None

    def post(self, request: BaseHTTPRequestHandler) -> None:
        request.rfile.read(int(request.headers.get("Content-Length", 0)))
        self.login()
        self.count += 1
        path, token = f"{SESSIONS}/{self.count}", f"token-{self.count}"
        self.tokens[path] = token
        request.send_response(201)
        request.send_header("X-Auth-Token", token)
        if not self.how.startswith("body"):
            request.send_header("Location", self.address + path if self.how == "absolute" else path)
        request.end_headers()
        try:
            for _ in range(300 if self.how == "drips" else 0):
                request.wfile.write(b" ")
                request.wfile.flush()
                time.sleep(0.05)
            place = path if self.how == "body" else BODIES.get(self.how)
            body = b"{}" if place is None else json.dumps({"@odata.id": place}).encode()
            request.wfile.write(b"[" * 100_000 if self.how.endswith("deep") else body)
        except OSError:
            return

    def delete(self, request: BaseHTTPRequestHandler) -> None:
        self.deleted.append(request.path)
        fits = self.tokens.get(request.path) == request.headers.get("X-Auth-Token")
        if self.how == "kept":
            request.send_error(405)
            return
        if fits:
            del self.tokens[request.path]
        request.send_response(204 if fits else 401)
        request.end_headers()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        if self.refuse_once and request.path.endswith(self.refuse_once):
            self.refuse_once = ""
            request.send_error(401)
            return
        if request.headers.get("X-Auth-Token") in self.tokens.values():
            del request.headers["Authorization"]
            request.headers["Authorization"] = "Basic " + base64.b64encode(b"ops:secret").decode()
        super().answer(request)


@pytest.fixture
def bmc() -> Iterator[SessionBmc]:
    made = SessionBmc()
    yield made
    made.close()


def access_of(bmc: SessionBmc) -> Access:
    return Access(address=bmc.address, user="ops", password="secret")


def reads(bmc: SessionBmc) -> None:
    with open_machine("n1", access_of(bmc)) as machine:
        assert machine.read_status().serial == "SN-1"


def lists(bmc: SessionBmc) -> None:
    assert len(list_systems("n1", access_of(bmc))) == 1


def settings(bmc: SessionBmc) -> None:
    found = read_settings("n1", access_of(bmc), 30)
    assert (found.bios, found.bios_error, found.firmware_error) == ({"A": "B"}, "", "")


def absolute(bmc: SessionBmc) -> None:
    bmc.how = "absolute"
    reads(bmc)


def renewed(bmc: SessionBmc) -> None:
    # The BMC refuses a session that it still has: sushy opens another one, and forgets the first.
    bmc.refuse_once = "/Systems/1"
    reads(bmc)
    assert bmc.count == 2


@pytest.mark.parametrize("act", [reads, lists, settings, absolute, renewed])
def test_a_session_is_closed_after_a_success(bmc: SessionBmc, act: Callable[[SessionBmc], None]) -> None:
    act(bmc)
    assert bmc.count
    assert bmc.tokens == {}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError, BmcError, GeneratorExit])
def test_a_session_is_closed_after_an_exception(bmc: SessionBmc, error: type[BaseException]) -> None:
    def fail() -> None:
        with open_machine("n1", access_of(bmc)):
            assert len(bmc.tokens) == 1
            raise error("made up")

    with pytest.raises(BmcError if issubclass(error, ValueError) else error):
        fail()
    assert bmc.tokens == {}


@pytest.mark.parametrize(
    "changed", [{"Boot": "Pxe"}, {"Manufacturer": 5}, {"Name": None, "PowerState": []}, None, [], "text"]
)
def test_a_session_is_closed_after_an_answer_of_wrong_type(bmc: SessionBmc, changed: object) -> None:
    path = f"{ROOT}/Systems/1"
    bmc.resources[path] = bmc.resources[path] | changed if isinstance(changed, dict) else changed
    with contextlib.suppress(BmcError):
        reads(bmc)
    assert bmc.count
    assert bmc.tokens == {}


@pytest.mark.parametrize("how", ["absent", "empty", "other"])
def test_a_session_is_closed_after_a_refusal(bmc: SessionBmc, how: str) -> None:
    systems = f"{ROOT}/Systems"
    if how == "absent":
        bmc.fault = "/Systems/1"
    else:
        members = [] if how == "empty" else [f"{systems}/1", f"{systems}/1"]
        bmc.resources[systems]["Members"] = [{"@odata.id": one} for one in members]
    with pytest.raises(BmcError):
        reads(bmc)
    assert bmc.count
    assert bmc.tokens == {}


@pytest.mark.parametrize(("limit", "value"), [("left_s", 0.5), ("left_bytes", 100)])
def test_a_session_is_closed_after_a_limit(
    bmc: SessionBmc, limit: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters, limit_answers = [], redfish_http.limit_answers
    monkeypatch.setattr(
        redfish_http, "limit_answers", lambda *how: adapters.append(limit_answers(*how)) or adapters[0]
    )

    def ask_for_ever() -> None:
        with open_machine("n1", access_of(bmc)) as machine:
            # The login has the usual limits, because a busy machine takes seconds for it.
            setattr(adapters[0], limit, value)
            if limit == "left_s":
                bmc.fault = "drips"
            while True:
                machine.power()

    with pytest.raises(BmcError, match="does not end"):
        ask_for_ever()
    assert bmc.count
    assert bmc.tokens == {}


@pytest.mark.parametrize("how", ["drips", "deep"])
def test_a_session_is_closed_if_the_answer_to_its_login_cannot_be_read(
    bmc: SessionBmc, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bmc.how = how
    if how == "drips":
        # The limit begins with the login, because a busy machine takes seconds for the answer before it.
        bmc.login = lambda: monkeypatch.setattr(redfish_http, "MOST_ANSWER_S", 0.0)
    with contextlib.suppress(BmcError):
        reads(bmc)
    assert bmc.count
    assert bmc.tokens == {}


@pytest.mark.parametrize(
    ("how", "left"),
    [("", 0), ("absolute", 0), ("body", 0)]
    + [(how, 1) for how in ("body absent", "body deep", "kept", *BODIES)],
)
def test_a_session_that_cannot_be_closed_becomes_a_remark(bmc: SessionBmc, how: str, left: int) -> None:
    bmc.how = how
    access = access_of(bmc)
    with contextlib.suppress(BmcError), open_machine("n1", access) as machine:
        machine.power()
    assert bmc.count == 1
    assert len(bmc.tokens) == left
    assert len(access.remarks) == left
    for remark in access.remarks:
        assert remark.startswith(f"n1: 1 sessions with its BMC at {bmc.address} could not be closed")
        assert "token" not in remark
    # Only sessions are deleted, whatever path the BMC names.
    assert [one for one in bmc.deleted if not one.startswith(SESSIONS)] == []


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("bmc1", "https://bmc1"),
        ("bmc1:8443", "https://bmc1:8443"),
        ("https://bmc1", "https://bmc1"),
        ("HTTPS://bmc1", "HTTPS://bmc1"),
        ("Http://127.0.0.1:8000", "Http://127.0.0.1:8000"),
        ("http.example", "https://http.example"),
    ],
)
def test_an_address_without_a_scheme_gets_https(address: str, url: str) -> None:
    assert redfish_http.redfish_url(address) == url


@pytest.mark.parametrize("scheme", ["http", "HTTP", "Http"])
def test_plain_http_is_refused_however_it_is_written(scheme: str) -> None:
    access = Access(address=f"{scheme}://192.0.2.1", user="u")
    with pytest.raises(BmcError, match="plain HTTP"):
        redfish_http.refuse_plain_http("n1", access)
