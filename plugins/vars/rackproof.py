"""Make the facts of ``rackproof_facts`` variables of a node.

Facts of other modules do not become variables.
"""

from __future__ import annotations

from typing import Any

from ansible.inventory.group import Group
from ansible.plugins.vars import BaseVarsPlugin
from ansible.template import trust_as_template

DOCUMENTATION = """
    name: rackproof
    version_added: "0.1.0"
    short_description: Set the variable rackproof_node
    description:
      - Gives every host the variable C(rackproof_node), which is the fact of that name.
      - ansible.cfg keeps facts from becoming variables (C(inject_facts_as_vars)).
      - A node could else replace variables of the inventory, C(inventory_hostname) too.
    author: Rackproof
"""


class VarsModule(BaseVarsPlugin):
    """Documented above."""

    def get_vars(self, loader: Any, path: str, entities: Any, cache: bool = True) -> dict[str, Any]:
        """Return the variable for the group of all hosts, which every other place overrides."""
        some = entities if isinstance(entities, list) else [entities]
        if any(isinstance(one, Group) and one.name == "all" for one in some):
            return {"rackproof_node": trust_as_template("{{ ansible_facts.rackproof_node }}")}
        return {}
