"""Test ``rackproof.jobs.reimage.order_signature``, with which the controller signs the order of a node.

The ramdisk on a node draws a random number (nonce) at each boot and reports it. The signature covers the
order and this number, so that an old order cannot be replayed. The tests check the signature, that nothing is
signed without a valid number, and that a key that cannot be used, or that others can read, is reported.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from rackproof.jobs.reimage.order_signature import (
    SIGNED_AS,
    SignatureError,
    find_signing_problem,
    sign_order,
)

from .test_write_image import load

NONCE = "0123456789abcdef" * 2
ASKED = json.dumps({"status": "asked", "node": "n1", "nonce": NONCE})


def write_key(
    path: Path, key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey, secret: bytes = b""
) -> None:
    hidden = serialization.BestAvailableEncryption(secret) if secret else serialization.NoEncryption()
    path.touch(0o600)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden))


@pytest.fixture
def key(tmp_path: Path) -> Path:
    write_key(tmp_path / "key.pem", ed25519.Ed25519PrivateKey.generate())
    return tmp_path / "key.pem"


def test_the_signature_covers_the_order_and_the_random_number_of_the_boot(key: Path) -> None:
    assert load().SIGNED_AS == SIGNED_AS
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    assert isinstance(private, ed25519.Ed25519PrivateKey)
    signature = base64.b64decode(sign_order('{"a": "ü"}', ASKED, key))
    private.public_key().verify(signature, SIGNED_AS + NONCE.encode() + b"\n" + '{"a": "ü"}'.encode())
    assert find_signing_problem(key) == ""


@pytest.mark.parametrize(
    "report",
    [
        "",
        "{",
        "[]",
        "[" * 100000,
        '{"status": "begun", "node": "n1"}',
        json.dumps({"nonce": NONCE[:-1]}),
        json.dumps({"nonce": NONCE + "\n"}),
        json.dumps({"nonce": NONCE + "0"}),
        json.dumps({"nonce": NONCE.upper()}),
        json.dumps({"nonce": [NONCE]}),
        json.dumps({"nonce": 5}),
    ],
)
def test_nothing_is_signed_without_a_valid_request_of_the_ramdisk(key: Path, report: str) -> None:
    with pytest.raises(SignatureError, match="its ramdisk requests no signature"):
        sign_order("{}", report, key)


@pytest.mark.parametrize(
    "broken", ["missing", "empty", "readable", "group", "password", "other kind", "public"]
)
def test_a_key_that_cannot_be_used_is_reported_with_the_reason(key: Path, broken: str) -> None:
    why = "is not a key without a password"
    if broken == "missing":
        key.unlink()
        why = "No such file"
    elif broken == "empty":
        key.write_bytes(b"")
    elif broken in ("readable", "group"):
        key.chmod(0o644 if broken == "readable" else 0o640)
        why = "others can read"
    elif broken == "password":
        write_key(key, ed25519.Ed25519PrivateKey.generate(), b"canary-password")
    elif broken == "public":
        public = ed25519.Ed25519PrivateKey.generate().public_key()
        pem, kind = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        key.write_bytes(public.public_bytes(pem, kind))
    else:
        write_key(key, ec.generate_private_key(ec.SECP256R1()))
        why = "is not an Ed25519 key"
    assert why in find_signing_problem(key)
    with pytest.raises(SignatureError, match=why):
        sign_order("{}", ASKED, key)
