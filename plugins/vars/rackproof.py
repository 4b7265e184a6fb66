"""Set the variables that every host gets: its facts of ``rackproof_facts``, and the environment of its tasks.

Facts of other modules do not become variables.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.inventory.group import Group
from ansible.plugins.vars import BaseVarsPlugin
from ansible.template import trust_as_template

try:
    import rackproof_ansible  # noqa: F401
except ImportError:
    # The callback rackproof usually adds this path, but a listing of hosts loads no callback.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from rackproof.core.child_environment import CONTROLLER_SECRETS

DOCUMENTATION = """
    name: rackproof
    version_added: "0.1.0"
    short_description: Set the variables rackproof_node and rackproof_environment
    description:
      - Gives every host the variable C(rackproof_node), which is the fact of that name.
      - >-
        ansible.cfg keeps other facts from becoming variables (C(inject_facts_as_vars)). Otherwise, a node
        could replace variables of the inventory, even C(inventory_hostname).
      - >-
        Each play sets C(rackproof_environment) as its C(environment). This variable empties the controller's
        secrets. Otherwise, a task on the controller would pass the secrets on to the programs that it starts.
    author: Rackproof
"""


class VarsModule(BaseVarsPlugin):
    """The variables of every host, as DOCUMENTATION describes them."""

    def get_vars(self, loader: Any, path: str, entities: Any, cache: bool = True) -> dict[str, Any]:
        """Return the variables for the group of all hosts. Every other place has precedence over it."""
        listed = entities if isinstance(entities, list) else [entities]
        if any(isinstance(entity, Group) and entity.name == "all" for entity in listed):
            return {
                "rackproof_node": trust_as_template("{{ ansible_facts.rackproof_node }}"),
                "rackproof_environment": dict.fromkeys(CONTROLLER_SECRETS, ""),
            }
        return {}
