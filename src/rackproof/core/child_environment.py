"""Give other programs an environment without the secrets of this process.

The code on the controller that starts Slurm's programs, ipmitool, ssh-keygen, ansible-inventory or a playbook
gets the environment from this module. Each function named ``environment_of_…`` is for one kind of program.
The sandbox of MLPerf's tools makes its own environment (:mod:`rackproof.analysis.mlperf.sandbox`).
"""

from __future__ import annotations

import os
from collections.abc import Collection

from rackproof.core.secret_names import secret_variables
from rackproof.core.text import utf8_locale

NIGHTLY_SECRETS = ("RACKPROOF_WEBHOOK_URL", "RACKPROOF_SMTP_USER", "RACKPROOF_SMTP_PASSWORD")
"""Secrets that only ``rackproof nightly`` itself uses. No playbook reads them."""
OWN_SECRETS = (*NIGHTLY_SECRETS, "RACKPROOF_DATABASE_URL", "NGC_API_KEY")
"""Secrets of the environment that Rackproof and its roles read."""
CONTROLLER_SECRETS = (*NIGHTLY_SECRETS, "RACKPROOF_DATABASE_URL", "NETBOX_TOKEN")
"""Secrets that no program on a node gets, even if the node is the controller itself. The modules have the
same list (plugins/module_utils/rackproof_tools.py), and plays empty these variables
(plugins/vars/rackproof.py)."""
SLURM_NEEDS = ("SLURM_",)
"""Parts of names that Slurm's programs need for their configuration and their token (SLURM_JWT)."""
SSH_NEEDS = ("SSH_",)
"""Parts of names that OpenSSH's programs need for an agent, or for a program that asks for a password."""
ANSIBLE_NEEDS = ("ANSIBLE_", "VAULT")
"""Parts of names that Ansible needs to read an inventory that consists of files. A script that prints the
password of Vault may need such a variable."""


def environment_of_tool(*needed: str) -> dict[str, str]:
    """Return an environment for a program that does one thing and needs no secrets but the named ones.

    Args:
        needed: Parts of the names of variables that the program needs even if they look like secrets.
    """
    looks_secret = {*secret_variables(os.environ), *OWN_SECRETS}
    return _without({name for name in looks_secret if not any(part in name for part in needed)})


def environment_of_inventory() -> dict[str, str]:
    """Return an environment for the programs of a site's inventory, which may need secrets of the site."""
    return _without(OWN_SECRETS) | utf8_locale()


def environment_of_written_inventory() -> dict[str, str]:
    """Return an environment for an Ansible program that only reads the files of an inventory."""
    return environment_of_tool(*ANSIBLE_NEEDS) | utf8_locale()


def environment_of_playbook() -> dict[str, str]:
    """Return an environment for a playbook, whose roles and variables may read any other secret."""
    return _without(NIGHTLY_SECRETS) | utf8_locale()


def _without(names: Collection[str]) -> dict[str, str]:
    """Return the environment of this process without the named variables."""
    return {name: value for name, value in os.environ.items() if name not in names}
