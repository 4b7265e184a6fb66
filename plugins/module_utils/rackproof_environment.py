# SPDX-License-Identifier: Apache-2.0
"""Give programs on a node an environment without the controller's secrets (Python 3.8+).

A module on the controller itself (connection local) inherits the environment of the playbook.
"""

from __future__ import annotations

import os

CONTROLLER_SECRETS = (
    "RACKPROOF_WEBHOOK_URL",
    "RACKPROOF_SMTP_USER",
    "RACKPROOF_SMTP_PASSWORD",
    "RACKPROOF_DATABASE_URL",
    "NETBOX_TOKEN",
)
"""Secrets that only programs of the controller use. NGC_API_KEY is not among them, because a file of enroot's
credentials on the node may name that variable."""


def node_environment():
    """Return this process's environment without the controller's secrets."""
    return {name: value for name, value in os.environ.items() if name not in CONTROLLER_SECRETS}
