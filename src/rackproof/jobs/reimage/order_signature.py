"""The controller's signature of a node's order: made for one boot, by a key that never leaves the controller.

Anyone in that network can replace the files on the host that nodes boot from, and the files sent to nodes.
The ramdisk draws a number when it boots and carries out only an order that was signed together with it, so
that neither a changed order nor an old one is believed (``rackproof-write-image``).
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
"""The beginning of all signed text: no other signature of this key can be taken for one of an order."""
_NONCE = re.compile(r"[0-9a-f]{32}")
_HOW = "make one with `openssl genpkey -algorithm ed25519`, or let playbooks/image.yml make it"


class SignatureError(RackproofError):
    """An order is not signed; the message has the reason."""


def find_signing_problem(path: Path) -> str:
    """Return why orders cannot be signed by a key, or "" if they can."""
    try:
        _read_key(path)
    except SignatureError as error:
        return str(error)
    return ""


def sign_order(order: str, report: str, path: Path) -> str:
    """Return the signature of an order for the boot whose ramdisk asks for it, in base64.

    Args:
        order: The order as it is served.
        report: The ramdisk's boot report, which is anybody's text.
        path: The private key.

    Raises:
        SignatureError: The report asks for no signature, or the key cannot be used.
    """
    message = SIGNED_AS + _read_nonce(report).encode() + b"\n" + order.encode()
    return base64.b64encode(_read_key(path).sign(message)).decode()


def _read_nonce(report: str) -> str:
    try:
        asked = json.loads(report)
    except (ValueError, RecursionError):
        asked = None
    nonce = asked.get("nonce") if isinstance(asked, dict) else None
    if not isinstance(nonce, str) or not _NONCE.fullmatch(nonce):
        raise SignatureError(
            "its ramdisk asks for no signature of its order: it is an old one, or not this site's. Run "
            "playbooks/image.yml and playbooks/netboot.yml; if the node has their ramdisk, find out who else "
            "answers it in the provisioning network"
        )
    return nonce


def _read_key(path: Path) -> Ed25519PrivateKey:
    try:
        if path.stat().st_mode & 0o077:
            raise SignatureError(f"netboot_order_key: others can read {path}: chmod 600, or make another")
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise SignatureError(f"netboot_order_key: {path}: {error.strerror}: {_HOW}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise SignatureError(f"netboot_order_key: {path} is no key without a password: {_HOW}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise SignatureError(f"netboot_order_key: {path} is no Ed25519 key: {_HOW}")
    return key
