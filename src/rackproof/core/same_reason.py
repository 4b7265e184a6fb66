"""Rewrite the reasons of failures, so that nodes with the same reason can be shown on one line.

Reasons of different nodes often differ only in the node's name or address. Begin with :func:`general_reason`,
which replaces the name and removes the address. The summary of provision.yml, the messages of nights, the
live lines of commands, and the callback ``rackproof_events`` use its result as the key of a group of nodes.
The module also has the operator's next step after an error of ssh (:func:`unreachable_step`). The module does
no I/O.
"""

from __future__ import annotations

import re

from rackproof.core.hostlist import compress_hostlist

THE_NODE = "the node"
"""Text in place of a node's name in a general reason."""
# Matches the words that Ansible puts before a message of ssh.
_WRAPPINGS = re.compile(r"(?:Task failed: |Failed to connect to the host via ssh: )+")
# Matches the address in "connect to host 10.0.0.7 port 22", which is not the node's name in the inventory.
_SSH_PLACE = re.compile(
    r"(?<=Could not resolve hostname) \S+(?=:)"
    r"|(?<=connect to host) \S+(?= port)"
    r"|(?<=Connection closed by) \S+(?= port)"
    r"|(?<=Connection reset by) \S+(?= port)"
    r"|(?<=Connection to) \S+(?= port)"
    # The lengths are limited, because a long text without blanks would take minutes.
    r"|\S{1,255}@[^\s@]{1,255}?(?=: Permission denied)"
)
_NEXT_STEPS = (
    (
        "Could not resolve hostname",
        "put the name into DNS or /etc/hosts of this machine, or set ansible_host in the inventory",
    ),
    ("Permission denied", "check ansible_user and the key that this user's ssh offers"),
    (
        "Host key verification failed",
        "compare the host key with that of the node's console, then correct known_hosts",
    ),
    ("Connection refused", "check that sshd runs there, and ansible_port"),
    ("No route to host", "check power, cable and address"),
    ("timed out", "check power, cable, address and firewall"),
)
"""Words in a message of ssh, and the operator's next step. The first pair that matches counts."""


def plain_reason(text: str) -> str:
    """Return a reason without the words that Ansible puts before ssh's own."""
    return _WRAPPINGS.sub("", text).strip()


def general_reason(text: str, node: str) -> str:
    """Return a reason with "the node" in place of the node's name, and without the address in ssh's messages.

    Nodes with equal results have the same reason.

    Args:
        text: The reason, perhaps with the words that Ansible puts before it, which are removed.
        node: The name of the node in the inventory. If it is empty, no name is replaced.
    """
    general = _SSH_PLACE.sub("", plain_reason(text))
    # "n1" is not replaced in "n1-bmc" or "n1.example", which are other names.
    return re.sub(rf"(?<![\w.-]){re.escape(node)}(?![\w-]|\.\w)", THE_NODE, general) if node else general


def unreachable_step(text: str) -> str:
    """Return the operator's next step if ssh cannot reach a node, or "" if no step fits the reason."""
    return next((step for words, step in _NEXT_STEPS if words in text), "")


def named_nodes(nodes: list[str]) -> str:
    """Return nodes for the beginning of a line, as one name or as a host list with the number of nodes."""
    return nodes[0] if len(nodes) == 1 else f"{compress_hostlist(nodes)} ({len(nodes)} nodes)"
