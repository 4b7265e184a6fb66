#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_validate_begin, which runs on the controller.

The file tasks/begin.yml of role validate calls it.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_validate_begin
short_description: Begin a night of the fleet
description:
  - Claims the nodes while the playbook runs, so that no second night uses them, and makes the night's folder
    in the results folder.
options:
  results:
    description: Results folder.
    type: path
    required: true
  nodes:
    description: The requested nodes.
    type: list
    elements: str
    required: true
attributes:
  check_mode:
    description: Claims nothing. The night's files are in a temporary folder.
    support: full
extends_documentation_fragment: rackproof.no_diff
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Begin the night
  rackproof_validate_begin:
    results: results
    nodes: "{{ ansible_play_hosts_all }}"
  run_once: true
  register: started
"""

RETURN = r"""
night:
  description: The night, for the tasks that follow.
  returned: success
  type: dict
  contains:
    night_id: {description: Its id., type: str, returned: always}
    folder: {description: Its folder., type: str, returned: always}
    results: {description: The results folder., type: str, returned: always}
    prefix: {description: Beginning of the reasons of its drains., type: str, returned: always}
    inventory: {description: Inventories that the playbook read., type: list, elements: str, returned: always}
"""
