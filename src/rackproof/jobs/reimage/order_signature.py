"""Sign a node's order for one boot, with a key that never leaves the controller.

The roles netboot and reimage call :func:`find_signing_problem` and :func:`sign_order` through the filters
``order_key_problem`` and ``order_signature``.

An order names a machine, an image, and the disk to write. Any machine in the boot network could send a node
another order. When the ramdisk boots, it draws a random number (nonce). It executes only an order that was
signed together with this number. A changed or old order is therefore refused (``rackproof-write-image``).
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from rackproof.core.errors import RackproofError

SIGNED_AS = b"rackproof order\n"
"""Prefix of all signed texts. No other signature of this key can therefore be used for an order."""
_NONCE = re.compile(r"[0-9a-f]{32}")
"""Pattern of the ramdisk's random number: 16 bytes in hexadecimal digits."""
_HOW = "make one with `openssl genpkey -algorithm ed25519`, or let playbooks/image.yml make it"


class SignatureError(RackproofError):
    """A reason why an order is not signed."""


def find_signing_problem(path: Path) -> str:
    """Return the reason why orders cannot be signed with a key, or "" if they can."""
    try:
        _read_key(path)
    except SignatureError as error:
        return str(error)
    return ""


def sign_order(order: str, report: str, path: Path) -> str:
    """Return the base64 signature of an order for the boot whose ramdisk requests it.

    Args:
        order: The order in the form in which it is served.
        report: The ramdisk's boot report, which may be any text. A valid one is JSON with the key ``nonce``.
        path: The path of the private key.

    Raises:
        SignatureError: The report does not request a signature, or the key cannot be used.
    """
    message = SIGNED_AS + _read_nonce(report).encode() + b"\n" + order.encode()
    return base64.b64encode(_read_key(path).sign(message)).decode()


def _read_nonce(report: str) -> str:
    """Return the random number that a ramdisk requires in the signature of its order.

    Raises:
        SignatureError: The report states no such number.
    """
    try:
        report_fields = json.loads(report)
    except (ValueError, RecursionError):
        report_fields = None
    nonce = report_fields.get("nonce") if isinstance(report_fields, dict) else None
    if not isinstance(nonce, str) or not _NONCE.fullmatch(nonce):
        raise SignatureError(
            "its ramdisk requests no signature of its order: it is an old one, or not this site's. Run "
            "playbooks/image.yml and playbooks/netboot.yml; if the node has their ramdisk, find out which "
            "other host answers it in the provisioning network"
        )
    return nonce


def _read_key(path: Path) -> Ed25519PrivateKey:
    """Return the private key.

    Raises:
        SignatureError: Other users can access the file, or it contains no Ed25519 key without a password.
    """
    try:
        if path.stat().st_mode & 0o077:
            raise SignatureError(f"netboot_order_key: others can read {path}: chmod 600, or make another")
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise SignatureError(f"netboot_order_key: {path}: {error.strerror}: {_HOW}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise SignatureError(f"netboot_order_key: {path} is not a key without a password: {_HOW}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise SignatureError(f"netboot_order_key: {path} is not an Ed25519 key: {_HOW}")
    return key
