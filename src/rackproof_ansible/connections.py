"""Check that this machine has the programs with which Ansible reaches the nodes.

The action ``rackproof_check_variables`` calls :func:`check_ssh_client`, before a job contacts a node. Without
an ssh client, Ansible would report every node as unreachable, as if the nodes were at fault.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any

from rackproof.core.errors import RackproofError
from rackproof.core.text import sanitize


def check_ssh_client(hosts: Mapping[str, Mapping[str, Any]], connection: str) -> None:
    """Check that there is an ssh client if a host needs one.

    A program that ANSIBLE_SSH_EXECUTABLE or the variable ``ansible_ssh_executable`` of a host names is not
    checked.

    Args:
        hosts: The variables of each host as written, by the name of the host. Templates are not evaluated.
        connection: The kind of connection for hosts without ``ansible_connection``, such as ``ssh``, from
            the command line or Ansible's configuration.

    Raises:
        RackproofError: There is no client. The message names a host and the package to install.
    """
    if shutil.which("ssh") or os.environ.get("ANSIBLE_SSH_EXECUTABLE"):
        return
    for host, variables in hosts.items():
        kind = str(variables.get("ansible_connection", connection))
        if kind in ("ssh", "smart") and not variables.get("ansible_ssh_executable"):
            raise RackproofError(
                f"{sanitize(host, 100)} is reached by ssh, and this machine has no ssh client: install "
                "openssh-client (apt-get install openssh-client), then start the same command again"
            )
