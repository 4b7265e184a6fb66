"""Recognise the addresses of this machine. No I/O.

``rackproof adopt --netbox`` and job reimage call :func:`is_this_machine`, because a secret may travel
unencrypted only within this machine.
"""

from __future__ import annotations

import ipaddress


def is_this_machine(host: str) -> bool:
    """Return whether the host of a URL is a loopback address or ``localhost``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
