"""Test the upload of results to an S3 object store (store/object_store.py).

The tests check the signatures of requests, uploads that continue after an interruption, and errors. The real
store is OpenStack Swift (testrack/swift). Other servers imitate a store that is broken, hostile or slow.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rackproof.jobs.bench.upload import upload_results
from rackproof.store.object_store import Bucket, ObjectStore, ObjectStoreError, sign
from testrack.swift.server import ACCESS_KEY, SECRET_KEY, Swift, running_swift

from ..workloads.test_slow_servers import DrippingServer

KEY = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY}
RUN = "20261125T120000Z-gemm-aaaaaa"
FILES = {
    "logs/n1.log": b"rank 0 done\n" * 100,
    "logs/n2 (again).log": "größer\n".encode(),
    "logs/empty.log": b"",
    "report.html": b"<p>pass</p>",
    "run.json": b'{"verdict": "pass"}',
}


def filled(results: Path, run: str = RUN, files: Mapping[str, bytes] = FILES) -> Path:
    """Write the folder of a run with these files, and return it."""
    for name, data in files.items():
        path = results / run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return results / run


def bucket_at(url: str, source: str = "results:/rack 7/a", key: Mapping[str, str] = KEY) -> Bucket:
    return Bucket.parse(source, url, "us-east-1", [key])


# Signatures, names and keys.


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "signature"),
    [
        # The examples of AWS's own documentation of Signature Version 4 for S3.
        (
            "GET",
            "/test.txt",
            {"range": "bytes=0-9"},
            b"",
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "PUT",
            "/test%24file.text",
            {"date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
            b"Welcome to Amazon S3.",
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
    ],
)
def test_signatures_are_those_of_the_documentation(
    method: str, path: str, headers: dict[str, str], body: bytes, signature: str
) -> None:
    bucket = Bucket(
        "https://examplebucket.s3.amazonaws.com", "", "", "us-east-1",
        "AKIA" + "IOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    )  # fmt: skip
    digest = hashlib.sha256(body).hexdigest()
    made = sign(bucket, method, path, headers, digest, datetime(2013, 5, 24, tzinfo=UTC))
    assert made["authorization"].endswith(f"Signature={signature}")


@pytest.mark.parametrize(
    ("source", "url", "path"),
    [
        ("results", "https://s3.example", "/results/RUN/log.txt"),
        ("results:/rack-7", "https://s3.example/", "/results/rack-7/RUN/log.txt"),
        ("results:/a b/c/", "http://127.0.0.1:9000/s3", "/s3/results/a%20b/c/RUN/log.txt"),
        ("my.results", "", "/my.results/RUN/log.txt"),
    ],
)
def test_a_file_has_its_place_in_the_bucket(source: str, url: str, path: str) -> None:
    bucket = bucket_at(url, source)
    assert bucket.path_of("RUN/log.txt") == path
    assert bucket.url == (url.rstrip("/") or "https://s3.us-east-1.amazonaws.com")


@pytest.mark.parametrize(
    ("source", "url", "keys", "message"),
    [
        ("", "https://s3.example", [KEY], "is not a bucket"),
        ("Results", "https://s3.example", [KEY], "is not a bucket"),
        ("/results", "https://s3.example", [KEY], "is not a bucket"),
        ("results", "s3.example", [KEY], "is not an address"),
        ("results", "ftp://s3.example", [KEY], "is not an address"),
        ("results", "https://", [KEY], "is not an address"),
        ("results", "https://user:secret@s3.example", [KEY], "has a login"),
        ("results", "https://user@s3.example/path", [KEY], "has a login"),
        ("results", "ftp://user:secret@s3.example", [KEY], "has a login"),
        ("results", "user:secret@s3.example", [KEY], "has a login"),
        ("results", "", [], "no key for the bucket results"),
        ("results", "", [KEY | {"bucket": "data"}], "no key for the bucket results"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    source: str, url: str, keys: list[dict[str, str]], message: str
) -> None:
    with pytest.raises(ObjectStoreError, match=message) as raised:
        Bucket.parse(source, url, "us-east-1", keys)
    assert "secret@" not in str(raised.value)


def test_the_buckets_own_key_goes_before_that_for_all() -> None:
    own = {"bucket": "results", "access_key": "own", "secret_key": "x"}
    for keys in ([own, KEY], [KEY, own]):
        assert Bucket.parse("results", "", "r", keys).access_key == "own"
        assert Bucket.parse("data", "", "r", keys).access_key == ACCESS_KEY
    assert SECRET_KEY not in repr(bucket_at("")) + str(bucket_at(""))


# A real store.


@pytest.fixture(scope="module")
def swift(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swift]:
    with running_swift(root, tmp_path_factory.mktemp("swift")) as running:
        running.make_bucket("results")
        yield running


@pytest.mark.slow
def test_a_real_store_holds_what_was_recorded(swift: Swift, tmp_path: Path) -> None:
    run = filled(tmp_path)
    (run / ".run.json.1.ab.tmp").write_bytes(b"draft")
    (run / "latest.log").symlink_to("logs/n1.log")
    store = ObjectStore(bucket_at(swift.url))
    assert store.upload_folder(run) == (5, 5)
    assert store.upload_folder(run) == (5, 0)
    (run / "report.html").write_bytes(b"<p>fail</p>")
    assert store.upload_folder(run) == (5, 1)
    for name, data in FILES.items():
        wanted = b"<p>fail</p>" if name == "report.html" else data
        assert swift.ask("GET", store.bucket.path_of(f"{RUN}/{name}")).content == wanted
    listing = swift.ask("GET", "/results").text
    assert listing.count("<Key>") == 5
    assert "draft" not in listing


@pytest.mark.slow
def test_an_upload_that_was_cut_off_goes_on(
    swift: Swift, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After two files, Swift's proxy is stopped. The upload fails, and the next one sends only the rest."""
    monkeypatch.setattr("rackproof.store.object_store.PAUSES_S", (0.0, 0.0))
    run = filled(tmp_path, "20261125T120000Z-gemm-cut000")
    store = ObjectStore(bucket_at(swift.url))
    whole, put = [], store._put

    def put_two(*file: Any) -> None:
        if len(whole) == 2:
            swift.stop("proxy")
        put(*file)
        whole.append(file)

    monkeypatch.setattr(store, "_put", put_two)
    with pytest.raises(ObjectStoreError, match="no answer"):
        store.upload_folder(run)
    swift.start("proxy")
    assert ObjectStore(bucket_at(swift.url)).upload_folder(run) == (5, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"secret_key": "wrong"}, "403 Forbidden"),
        ({"access_key": "rack:nobody"}, "403 Forbidden"),
        ({"name": "no-such-bucket"}, r"404 .*\(NoSuchBucket\)"),
        ({"region": "eu-west-9"}, "400|403"),
    ],
)
def test_a_real_store_refuses_what_is_wrong(
    swift: Swift, tmp_path: Path, change: dict[str, str], message: str
) -> None:
    with pytest.raises(ObjectStoreError, match=message) as raised:
        ObjectStore(replace(bucket_at(swift.url), **change)).upload_folder(filled(tmp_path))
    assert "wrong" not in str(raised.value)
    assert SECRET_KEY not in str(raised.value)


@pytest.mark.slow
def test_a_file_that_changes_while_it_is_sent_is_not_taken(
    swift: Swift, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = filled(tmp_path, "20261125T120000Z-gemm-change")
    store = ObjectStore(bucket_at(swift.url))
    holds = store._holds

    def then_change(name: str, file: Any) -> bool:
        found = holds(name, file)
        file.path.write_bytes(file.path.read_bytes().swapcase())
        return found

    monkeypatch.setattr(store, "_holds", then_change)
    with pytest.raises(ObjectStoreError, match=r"XAmzContentSHA256Mismatch|BadDigest"):
        store.upload_folder(run)


# Servers that imitate a broken or hostile store. That uploads work is tested with the real one above.

Answer = tuple[int, dict[str, str], bytes]
Held = dict[str, tuple[dict[str, str], bytes]]


@contextmanager
def store_that(behave: Callable[[str, Answer, int], Answer]) -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a store whose right answers a function replaces, and a list of the methods of its
    requests."""
    held: Held = {}
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.command == "PUT":
                digest = self.headers["x-amz-meta-sha256"]
                etag = hashlib.md5(body, usedforsecurity=False).hexdigest()
                held[self.path] = ({"x-amz-meta-sha256": digest, "etag": f'"{etag}"'}, body)
                right: Answer = (200, {}, b"")
            elif self.path in held:
                right = (200, *held[self.path])
            else:
                right = (404, {}, b"<Code>NoSuchKey</Code>")
            asked.append(self.command)
            status, headers, content = behave(self.command, right, asked.count(self.command))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_HEAD = do_PUT = do_GET = answer  # noqa: N815  (http.server's names)

        def log_message(self, *_: Any) -> None:
            """Stay silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def encrypting(_: str, right: Answer, __: int) -> Answer:
    """Answer as a store that encrypts, whose ETags are not the MD5 of the content."""
    status, headers, body = right
    return status, headers | ({"etag": '"' + "0" * 32 + '"'} if "etag" in headers else {}), body


def test_a_store_that_encrypts_is_read_back(tmp_path: Path) -> None:
    with store_that(encrypting) as (url, asked):
        assert ObjectStore(bucket_at(url)).upload_folder(filled(tmp_path)) == (5, 5)
    assert asked.count("GET") == 5


@pytest.mark.parametrize(
    ("behave", "message"),
    [
        # It loses what it took.
        (lambda verb, right, _: (404, {}, b"") if verb == "HEAD" else right, "does not have it"),
        # It cuts what it took.
        (lambda _, right, __: (right[0], right[1], right[2][:5]), "does not have it"),
        # It keeps another digest.
        (
            lambda _, right, __: (right[0], right[1] | {"x-amz-meta-sha256": "0" * 64}, right[2]),
            "does not have it",
        ),
        # It holds other bytes, which its ETag shows.
        (
            lambda verb, right, _: (*encrypting(verb, right, 0)[:2], right[2].swapcase()),
            "with other bytes",
        ),
        (
            lambda verb, right, _: (500, {}, b"<Code>InternalError</Code>") if verb == "PUT" else right,
            r"500 .*\(InternalError\)",
        ),
        (
            lambda verb, right, _: (503, {}, b"<Code>SlowDown</Code>") if verb == "PUT" else right,
            r"503 .*\(SlowDown\)",
        ),
        (lambda *_: (301, {"location": "http://127.0.0.1:1/"}, b""), "301"),
        (lambda *_: (403, {}, b"\x1b[31mgo away"), "403"),
    ],
)  # fmt: skip
def test_a_store_that_answers_wrongly_or_fails_is_named(
    tmp_path: Path, behave: Callable[[str, Answer, int], Answer], message: str
) -> None:
    with store_that(behave) as (url, _), pytest.raises(ObjectStoreError, match=message) as raised:
        ObjectStore(bucket_at(url), sleep=lambda _: None).upload_folder(filled(tmp_path))
    assert "\x1b" not in str(raised.value)


@pytest.mark.parametrize(
    ("at_once", "drip"),
    [
        # These send a byte at a time: a header, or a body, which the answer to HEAD does not have.
        (b"HTTP/1.1 200 OK\r\nX: ", b"0"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 1000000\r\n\r\n", b" "),
        # This sends interim answers without end, as fast as they are read.
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    ],
)
def test_a_store_that_never_finishes_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bytes, drip: bytes
) -> None:
    monkeypatch.setattr("rackproof.store.object_store.FOLDER_S", 0.4)
    run = filled(tmp_path)
    with DrippingServer(at_once, drip) as slow, pytest.raises(ObjectStoreError, match=r"within 0\.\d s"):
        ObjectStore(bucket_at(slow.url)).upload_folder(run)


@pytest.mark.parametrize(
    ("at_once", "message"),
    [
        # These answers cannot be read because of a status, headers, a chunk, a compressed body, or a length.
        (b"HTTP/1.1 9999999999 \x1b[31m\r\n\r\n", "no answer"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", "no answer"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n", "no answer"),
        (b"HTTP/1.1 403 No\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "no answer|403"),
        (b"HTTP/1.1 403 No\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nplain", "403"),
        (b"HTTP/1.1 403 No\r\nContent-Length: -7\r\n\r\n", "no answer|403"),
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_read_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bytes, message: str
) -> None:
    monkeypatch.setattr("rackproof.store.object_store.PAUSES_S", ())
    monkeypatch.setattr(ObjectStore, "_holds", lambda *_: False)
    with DrippingServer(at_once, b"") as server, pytest.raises(ObjectStoreError, match=message) as raised:
        ObjectStore(bucket_at(server.url)).upload_folder(filled(tmp_path))
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("extra", [b"x" * (1 << 26), b"\x1f\x8b" + b"\0" * 3000])
def test_a_copy_that_is_read_back_is_read_to_its_size_alone(tmp_path: Path, extra: bytes) -> None:
    def grown(verb: str, right: Answer, at: int) -> Answer:
        status, headers, body = encrypting(verb, right, at)
        gzip = {"content-encoding": "gzip"} if extra[:1] == b"\x1f" else {}
        return (status, headers | gzip, extra) if verb == "GET" else (status, headers, body)

    with store_that(grown) as (url, _), pytest.raises(ObjectStoreError, match="with other bytes"):
        ObjectStore(bucket_at(url)).upload_folder(filled(tmp_path))


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_store_that_fails_for_a_moment_is_queried_again(tmp_path: Path, status: int) -> None:
    pauses: list[float] = []
    with store_that(lambda _, right, at: (status, {}, b"") if at <= 2 else right) as (url, _):
        assert ObjectStore(bucket_at(url), sleep=pauses.append).upload_folder(filled(tmp_path)) == (5, 5)
    assert pauses == [1.0, 4.0] * 2


def test_the_record_comes_last(tmp_path: Path) -> None:
    """A reader that finds a record finds the logs that it is about."""
    filled(tmp_path)
    outcome = None
    with store_that(lambda verb, right, at: (403, {}, b"") if verb == "PUT" and at == 5 else right) as (
        url,
        asked,
    ):
        given = {"source": "results", "url": url, "region": "us-east-1", "credentials": [KEY]}
        outcome = upload_results(tmp_path, [], **given)  # type: ignore[arg-type]
        assert asked.count("PUT") == 5
    assert not outcome.whole
    assert f"PUT {RUN}/run.json: 403" in outcome.message


def test_what_is_no_run_and_no_plan_stays_here(tmp_path: Path) -> None:
    filled(tmp_path)
    filled(tmp_path, "plan-20261125T120000Z-aaaaaa", {"plan.json": b"{}", "report.md": b"#"})
    filled(tmp_path, ".spool", {"run.json": b"{}"})
    filled(tmp_path, "other", {"notes.txt": b""})
    (tmp_path / "history.sqlite").write_bytes(b"x")
    with store_that(lambda _, right, __: right) as (url, _):
        given = {"source": "results", "url": url, "region": "us-east-1", "credentials": [KEY]}
        outcome = upload_results(tmp_path, [], **given)  # type: ignore[arg-type]
    assert (outcome.whole, outcome.files, outcome.new) == (True, 7, 7)


def test_without_a_store_there_is_a_message_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rackproof.store.object_store.PAUSES_S", (0.0, 0.0))
    filled(tmp_path)
    for url, message in (("http://127.0.0.1:1", "no answer"), ("nowhere", "is not an address")):
        outcome = upload_results(tmp_path, [RUN], source="results", url=url, region="r", credentials=[KEY])
        assert (outcome.whole, outcome.new) == (False, 0)
        assert message in outcome.message
        assert SECRET_KEY not in outcome.message


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://[nonsense]", "https://s3.example:port", "https://s3.example:99999"]
)
def test_an_address_that_cannot_be_read_is_refused(url: str) -> None:
    with pytest.raises(ObjectStoreError, match="is not an address of an object store"):
        bucket_at(url)


@pytest.mark.parametrize(
    "key",
    [{"access_key": "a"}, {"secret_key": "s"}, {"access_key": "a", "secret_key": ""}, {"secret_key": None}],
)
def test_a_key_without_its_id_or_secret_is_refused(key: dict[str, Any]) -> None:
    with pytest.raises(ObjectStoreError, match=r"results.*storage_s3fs_credentials"):
        bucket_at("https://s3.example", key=key)
