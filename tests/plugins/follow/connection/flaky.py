"""Provide a connection plugin for tests: a local connection that is lost while a file exists."""

from __future__ import annotations

import os
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection.local import Connection as Local

DOCUMENTATION = r"""
name: flaky
short_description: A local connection that is lost while a file exists
description: For tests. The file is named by the environment variable FLAKY_WHILE.
author: Rackproof developers
extends_documentation_fragment: [connection_pipelining]
"""


class Connection(Local):
    """A connection to this machine that fails while the file in FLAKY_WHILE exists."""

    transport = "local"

    def exec_command(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command, or raise the error of a lost connection."""
        if os.path.exists(os.environ["FLAKY_WHILE"]):
            raise AnsibleConnectionFailure("the cable \x1b[31mis\x1b[0m out")
        return super().exec_command(*args, **kwargs)
