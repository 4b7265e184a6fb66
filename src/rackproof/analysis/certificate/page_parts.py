"""Put a certificate's JSON and signature into its page, and extract them. No I/O.

:mod:`rackproof.cli.evidence` writes pages, and :mod:`rackproof.analysis.certificate.verification` reads them.
The JSON contains the digest of the rest of the page, so that a change of what people read is detected.
"""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

from pydantic import ValidationError

from rackproof.analysis.certificate.models import Certificate, CertificateError
from rackproof.core.text import sanitize
from rackproof.store.sealed_json import SealError, open_sealed, seal_json

# report/templates/certificate.html.j2 contains both elements.
JSON_MARK = '<pre id="certificate-json">'
SIGNATURE_MARK = '<pre id="certificate-signature">'
_END = "</pre>"


class PageParts(NamedTuple):
    """The three parts of a certificate's page. ``shell`` is the page with both elements empty.

    ``signature`` is "" if the certificate is unsigned.
    """

    shell: str
    json: bytes
    signature: str


def dump_certificate(certificate: Certificate) -> bytes:
    """Return the certificate as ASCII JSON with a digest, without characters that HTML must escape."""
    plain = json.dumps(json.loads(certificate.model_dump_json()), indent=1, ensure_ascii=True)
    for letter in "<>&":
        plain = plain.replace(letter, f"\\u{ord(letter):04x}")
    return seal_json(plain.replace("\x7f", "\\u007f") + "\n")


def load_certificate(data: bytes) -> Certificate:
    """Return the certificate that JSON describes.

    Raises:
        CertificateError: The JSON was changed after it was written, or is not a certificate.
    """
    try:
        plain = open_sealed(data)
        json.loads(plain, object_pairs_hook=_unique_keys)
        return Certificate.model_validate_json(plain)
    except SealError as error:
        raise CertificateError(f"the JSON was changed: {error}") from None
    except ValidationError as error:
        first_error = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first_error["loc"]))
        why = sanitize(f"{field}: {first_error['msg']}")
        raise CertificateError(f"the JSON is not a certificate: {why}") from None
    except (ValueError, RecursionError):
        raise CertificateError("the JSON is not a certificate: it is damaged, or has a key twice") from None


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object of JSON without duplicate keys.

    If a key occurs twice, another program could read the value that was not checked.

    Raises:
        ValueError: A key occurs twice.
    """
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key occurs twice")
    return members


def shell_digest(shell: str) -> str:
    """Return the SHA-256 of a page without its JSON and signature, in hexadecimal."""
    return hashlib.sha256(shell.encode()).hexdigest()


def fill_page(parts: PageParts) -> bytes:
    """Return the complete page in UTF-8."""
    page = parts.shell.replace(JSON_MARK, JSON_MARK + parts.json.decode("ascii"))
    return page.replace(SIGNATURE_MARK, SIGNATURE_MARK + parts.signature).encode()


def split_page(page: bytes) -> PageParts:
    """Return the parts of a page.

    Raises:
        CertificateError: The page is not a certificate's.
    """
    try:
        text = page.decode()
    except UnicodeDecodeError:
        raise CertificateError("the page is not UTF-8: it is not a certificate, or was changed") from None
    shell, json_text = _take_out(text, JSON_MARK)
    shell, signature = _take_out(shell, SIGNATURE_MARK)
    if not json_text.isascii():
        raise CertificateError("the JSON in the page was changed: it has letters that are not ASCII")
    return PageParts(shell, json_text.encode("ascii"), signature)


def _take_out(text: str, mark: str) -> tuple[str, str]:
    """Return a page without the content after a mark, and this content.

    Raises:
        CertificateError: The mark is not in the page exactly once, or the content has no end.
    """
    if text.count(mark) != 1:
        raise CertificateError(
            f"the page has {mark!r} {text.count(mark)} times, not once: it is not a certificate's page"
        )
    before, _, after_mark = text.partition(mark)
    inside, end, after = after_mark.partition(_END)
    if not end:
        raise CertificateError("the page is cut off")
    return before + mark + end + after, inside
