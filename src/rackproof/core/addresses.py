"""Recognise loopback addresses, which never leave this machine.

``rackproof adopt --netbox`` (the token of NetBox) and job reimage (the password of a BMC) call
:func:`is_this_machine`. They refuse to send a secret over plain HTTP to any other host. The module does no
I/O.
"""

from __future__ import annotations

import ipaddress


def is_this_machine(host: str) -> bool:
    """Return whether the host of a URL is a loopback address or ``localhost``.

    Other addresses and names of this machine do not count, because a name can resolve to another machine.

    Args:
        host: A host name in lower case, or an IP address without brackets. For "", the result is False.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
