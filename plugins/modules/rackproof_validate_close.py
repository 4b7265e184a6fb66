#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_validate_close, which runs on the controller.

Roles provision, reimage and validate call it.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_validate_close
short_description: Close a night of the fleet and return its verdict
description:
  - Stores the actions, writes record and pages, enters the night into the history, and returns the verdict.
options:
  drained:
    description: Result of the loop that drained nodes.
    type: dict
    default: {}
  returned:
    description: Result of the task that resumed nodes.
    type: dict
    default: {}
  resume:
    description: Nodes to resume. A node without a result in O(returned) could not be resumed.
    type: list
    elements: str
    default: []
  list_findings:
    description: Whether check mode prints the findings of nodes that did not pass, because it stores nothing.
    type: bool
    default: false
attributes:
  check_mode:
    description: Returns the verdict, keeps nothing, and removes the temporary folder.
    support: full
extends_documentation_fragment: [rackproof.night, rackproof.no_diff]
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Close the night
  rackproof_validate_close:
    night: "{{ started.night }}"
  run_once: true
  register: closed
"""

RETURN = r"""
verdict:
  description: The worst verdict of all nodes.
  returned: success
  type: str
verdicts:
  description: The verdict of each node.
  returned: success
  type: dict
gates:
  description: Whether the playbook has to end non-zero.
  returned: success
  type: bool
message:
  description: Verdict, changes, findings, actions; line by line.
  returned: success
  type: list
  elements: str
page:
  description: The page; empty in check mode.
  returned: success
  type: str
"""
