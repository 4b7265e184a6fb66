"""Recognise addresses of this machine, to which a secret may travel unencrypted. No I/O."""

from __future__ import annotations

import ipaddress


def is_this_machine(host: str) -> bool:
    """Return whether a host of a URL is this machine, so that nothing sent to it leaves it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
