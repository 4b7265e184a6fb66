"""Upload folders of results to an S3 object store.

Job bench calls :meth:`ObjectStore.upload_folder` with the folders of recorded runs. The bucket and its
keys come from the inventory.

A file counts as present if an object with its name, size and SHA-256 is in the store. Such a file is not sent
again. The SHA-256 of a body is signed (``x-amz-content-sha256``), so the store refuses a body that was
changed on the way. After an upload, the stored object is compared by its MD5. If the store encrypts objects,
the MD5 differs, and the object is read back.

A store may be broken or hostile. All requests for a folder together therefore have a time limit, and only a
limited number of bytes of an answer is read. A failure raises :class:`ObjectStoreError`.

Only the extra ``ansible`` installs requests, so it is imported in the functions that use it.
"""

from __future__ import annotations

import hashlib
import hmac
import mimetypes
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from rackproof.core.errors import RackproofError
from rackproof.core.text import sanitize
from rackproof.core.time_limits import answer_within
from rackproof.store.run_folder import RECORD_NAME

MOST_BYTES = 5 << 30
"""Largest number of bytes that S3 accepts in one piece."""
CONNECT_S, ANSWER_S = 5.0, 300.0
"""Largest number of seconds to connect, and between two bytes of an answer."""
FOLDER_S, LEAST_BYTES_S = 600.0, 100_000
"""Time limit for the upload of a folder without its bytes, in seconds, and the lowest allowed rate of the
bytes, in bytes per second. The time of the bytes at this rate is added to the limit."""
PAUSES_S = (1.0, 4.0)
"""Seconds between the attempts of a request that got no answer, status 429 or 5xx."""
DIGEST = "x-amz-meta-sha256"
"""Header with which the store keeps and returns the SHA-256 of an object."""
_NOTHING = hashlib.sha256(b"").hexdigest()
"""SHA-256 of the empty body, which is signed in a request without a body."""
_CODE = re.compile(rb"<Code>([A-Za-z0-9]{1,60})</Code>")
"""Pattern of the code in an error of S3: ``<Error><Code>AccessDenied</Code>…``."""
_CHUNK = 1 << 20
"""Largest number of bytes that are read at once."""
_MOST_ERROR_BYTES = 4096
"""Largest number of bytes that are read of an answer that is not an object."""


class ObjectStoreError(RackproofError):
    """A failed upload, or a bucket that cannot be used. The message gives the cause."""


def _is_address(url: str) -> bool:
    """Return whether a text is a URL of HTTP or HTTPS with a host."""
    try:
        address = urlsplit(url)
        # The port raises an error if it is no number.
        return address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:
        return False


@dataclass(frozen=True)
class Bucket:
    """The destination of results.

    Attributes:
        url: The URL of the store, such as ``https://s3.example``. Its path, if any, comes before the
            name of the bucket.
        name: The name of the bucket.
        prefix: The prefix of names in the bucket, without slashes at the ends.
        region: The region for which requests are signed.
        access_key: The id of the key.
        secret_key: The secret of the key.
    """

    url: str
    name: str
    prefix: str
    region: str
    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)

    @classmethod
    def parse(cls, source: str, url: str, region: str, credentials: Sequence[Mapping[str, Any]]) -> Bucket:
        """Return the bucket of a source, which is ``BUCKET`` or ``BUCKET:/PREFIX`` as in role storage.

        Args:
            source: The bucket and the prefix.
            url: The URL of the store. Empty means AWS in the region.
            region: The name of the region.
            credentials: The keys, with ``access_key``, ``secret_key`` and, for a key that is limited to
                one bucket, ``bucket``.

        Raises:
            ObjectStoreError: The name or the URL is invalid, or there is no complete key for the bucket.
        """
        name, _, prefix = source.partition(":")
        url = url or f"https://s3.{region}.amazonaws.com"
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,62}", name):
            raise ObjectStoreError(f"{source!r} is not a bucket: it is BUCKET or BUCKET:/PREFIX")
        # The URL is in messages and in the signed header Host. A password must not be shown.
        if "@" in url:
            raise ObjectStoreError(
                f"the address of the object store of bucket {name} has a login: remove it, and state the key "
                "in storage_s3fs_credentials, out of Vault"
            )
        if not _is_address(url):
            raise ObjectStoreError(
                f"{url!r} is not an address of an object store: it begins with https:// or http://"
            )
        by_bucket = {str(credential.get("bucket") or ""): credential for credential in credentials}
        key = by_bucket.get(name) or by_bucket.get("")
        if key is None:
            raise ObjectStoreError(
                f"no key for the bucket {name}: storage_s3fs_credentials, out of Vault, has none"
            )
        if lacking := [part for part in ("access_key", "secret_key") if not key.get(part)]:
            raise ObjectStoreError(
                f"the key for the bucket {name} lacks {' and '.join(lacking)}: add it to "
                "storage_s3fs_credentials, out of Vault"
            )
        return cls(
            url.rstrip("/"), name, prefix.strip("/"), region, str(key["access_key"]), str(key["secret_key"])
        )

    def path_of(self, name: str) -> str:
        """Return the path of a file in a URL, percent-encoded, from the file's name below the prefix."""
        parts = (urlsplit(self.url).path.strip("/"), self.name, self.prefix, name)
        return "/" + quote("/".join(filter(None, parts)), safe="/-_.~")

    def __str__(self) -> str:
        """Return the bucket as text for an operator."""
        return f"{self.url}/{self.name}" + (f"/{self.prefix}" if self.prefix else "")


def sign(
    bucket: Bucket, method: str, path: str, headers: Mapping[str, str], digest: str, now: datetime
) -> dict[str, str]:
    """Return the headers of a request with its signature (AWS Signature Version 4).

    The function does no I/O.

    Args:
        bucket: The bucket, with its key.
        method: The HTTP method, such as ``PUT``.
        path: The encoded path.
        headers: The other headers, with names in lower case, which are signed too.
        digest: The SHA-256 of the body.
        now: The current time in UTC.
    """
    stamp = f"{now:%Y%m%dT%H%M%SZ}"
    address = urlsplit(bucket.url)
    signed = dict(headers) | {"host": address.netloc, "x-amz-content-sha256": digest, "x-amz-date": stamp}
    names = ";".join(sorted(signed))
    lines = [f"{name}:{signed[name].strip()}" for name in sorted(signed)]
    request = "\n".join([method, path, "", *lines, "", names, digest])
    scope = f"{stamp[:8]}/{bucket.region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = b"AWS4" + bucket.secret_key.encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    header = f"Credential={bucket.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    del signed["host"]
    return signed | {"authorization": f"AWS4-HMAC-SHA256 {header}"}


@dataclass(frozen=True)
class LocalFile:
    """A file of a folder, with its digests for requests."""

    path: Path
    size: int
    sha256: str
    md5: str

    @classmethod
    def read(cls, path: Path) -> LocalFile:
        """Return a file with its digests.

        Raises:
            ObjectStoreError: The file cannot be read, or is too large.
        """
        sha256, md5, size = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0
        try:
            with path.open("rb") as stream:
                while part := stream.read(_CHUNK):
                    sha256.update(part)
                    md5.update(part)
                    size += len(part)
        except OSError as error:
            raise ObjectStoreError(f"{path}: {error.strerror}") from error
        if size > MOST_BYTES:
            raise ObjectStoreError(f"{path} has {size} bytes: S3 takes {MOST_BYTES} in one piece")
        return cls(path, size, sha256.hexdigest(), md5.hexdigest())


@dataclass(frozen=True)
class StoreAnswer:
    """An answer of a store.

    Attributes:
        status: The HTTP status, or 0 if the store gave no readable answer.
        headers: The headers.
        sha256: The SHA-256 of the part of the body that was read.
        text: The status and S3's error code, or the reason for no answer, as text for an operator.
    """

    status: int
    headers: Mapping[str, str]
    sha256: str
    text: str


class ObjectStore:
    """A bucket of an object store, with a connection.

    Args:
        bucket: The bucket to use.
        sleep: A function that waits a number of seconds between attempts.
    """

    def __init__(self, bucket: Bucket, sleep: Callable[[float], None] = time.sleep) -> None:
        import requests

        self.bucket, self._sleep = bucket, sleep
        self._session = requests.Session()
        # Without this, requests would replace the signature with a login from .netrc.
        self._session.auth = lambda request: request

    def upload_folder(self, folder: Path) -> tuple[int, int]:
        """Upload a folder under its name. Return the number of files, and how many of them were sent.

        The record is uploaded last, so its presence in the store proves that the whole run is there.

        Raises:
            ObjectStoreError: The store is unreachable, refuses, is too slow, or does not have the sent
                objects.
        """
        paths = sorted(_files(folder), key=lambda path: (path.name == RECORD_NAME, path))
        try:
            limit_s = FOLDER_S + sum(path.stat().st_size for path in paths) / LEAST_BYTES_S
        except OSError as error:
            raise ObjectStoreError(f"{folder}: {error.strerror}") from error
        try:
            return answer_within(limit_s, lambda: self._upload_files(folder, paths))
        except TimeoutError:
            raise ObjectStoreError(
                f"{self.bucket}: {folder.name} was not uploaded within {limit_s:.1f} s: is it overloaded?"
            ) from None

    def _upload_files(self, folder: Path, paths: Sequence[Path]) -> tuple[int, int]:
        """Upload the files that are not in the bucket. Return the number of files, and of those sent."""
        new = 0
        for path in paths:
            name = f"{folder.name}/{path.relative_to(folder).as_posix()}"
            file = LocalFile.read(path)
            if not self._holds(name, file):
                self._put(name, file)
                new += 1
        return len(paths), new

    def _holds(self, name: str, file: LocalFile) -> bool:
        """Return whether the store has this file under the name."""
        reply = self._request("HEAD", name, file)
        return reply is not None and _is_same(reply, file)

    def _put(self, name: str, file: LocalFile) -> None:
        """Upload a file, and check that it is in the store.

        Raises:
            ObjectStoreError: The store lacks the object, or stored other bytes.
        """
        self._request("PUT", name, file)
        reply = self._request("HEAD", name, file)
        if reply is None or not _is_same(reply, file):
            raise ObjectStoreError(f"{self.bucket} accepted {name}, but does not have it")
        if reply.headers.get("etag", "").strip('"') != file.md5:
            copy = self._request("GET", name, file)
            if copy is None or copy.sha256 != file.sha256:
                raise ObjectStoreError(f"{self.bucket} has {name} with other bytes than were sent")

    def _request(self, method: str, name: str, file: LocalFile) -> StoreAnswer | None:
        """Send a request about a file, and repeat it if the store does not answer or is busy.

        Return the answer. Return None if HEAD or GET finds no object.

        Raises:
            ObjectStoreError: The store is unreachable, or refuses.
        """
        for pause in (*PAUSES_S, None):
            reply = self._request_once(method, name, file)
            if 200 <= reply.status < 300:
                return reply
            if reply.status == 404 and method != "PUT":
                return None
            if pause is None or reply.status not in (0, 429, *range(500, 600)):
                break
            self._sleep(pause)
        raise ObjectStoreError(f"{self.bucket}: {method} {name}: {reply.text}")

    def _request_once(self, method: str, name: str, file: LocalFile) -> StoreAnswer:
        """Send a request once. Return the answer, whose status is 0 if the store gave no readable one."""
        from requests.exceptions import RequestException
        from urllib3.exceptions import HTTPError

        path = self.bucket.path_of(name)
        is_sent = method == "PUT"
        digest = file.sha256 if is_sent else _NOTHING
        headers = {DIGEST: digest} if is_sent else {}
        headers = sign(self.bucket, method, path, headers, digest, datetime.now(UTC))
        # The stored bytes are compared as they come, and a small answer must not unpack to a large one.
        headers["accept-encoding"] = "identity"
        if is_sent:
            headers["content-type"] = mimetypes.guess_type(name)[0] or "application/octet-stream"
        address = urlsplit(self.bucket.url)
        try:
            with (
                file.path.open("rb") if is_sent else open(os.devnull, "rb") as body,
                self._session.request(
                    method,
                    f"{address.scheme}://{address.netloc}{path}",
                    headers=headers,
                    # An empty file as a stream would be sent in chunks, which S3 does not accept.
                    data=body if is_sent and file.size else None,
                    timeout=(CONNECT_S, ANSWER_S),
                    allow_redirects=False,
                    stream=True,
                ) as response,
            ):
                is_copy = method == "GET" and response.status_code < 300
                # One byte more shows that a copy is too long.
                sha256, code = _read_body(response.raw, file.size + 1 if is_copy else _MOST_ERROR_BYTES)
        except (RequestException, HTTPError, OSError) as error:
            return StoreAnswer(0, {}, "", f"no answer ({sanitize(error, 200)})")
        text = f"{response.status_code} {sanitize(response.reason or '', 60)}" + (
            f" ({code})" if code else ""
        )
        return StoreAnswer(response.status_code, response.headers, sha256, text)


def _read_body(stream: Any, limit: int) -> tuple[str, str]:
    """Return the SHA-256 of the first ``limit`` bytes of an answer, and S3's error code in them, or ""."""
    digest, begin, left_bytes = hashlib.sha256(), b"", limit
    while left_bytes and (part := stream.read(min(left_bytes, _CHUNK), decode_content=False)):
        digest.update(part)
        begin, left_bytes = begin or part, left_bytes - len(part)
    code = _CODE.search(begin)
    return digest.hexdigest(), code[1].decode() if code else ""


def _is_same(reply: StoreAnswer, file: LocalFile) -> bool:
    """Return whether an answer to HEAD states the SHA-256 and the size of a file."""
    stated = (reply.headers.get(DIGEST), reply.headers.get("content-length"))
    return stated == (file.sha256, str(file.size))


def _files(folder: Path) -> Iterator[Path]:
    """Yield the regular files below a folder, without links and hidden files (drafts)."""
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(root, name)
            if not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield path
