#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_provision_plan, which runs on the controller.

The file tasks/plan.yml of role provision calls it.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_provision_plan
short_description: Plan the waves in which nodes are provisioned
description:
  - Divides nodes into waves, so that only a share of each Slurm partition is out of service at a time. A node
    of several partitions counts in each of them. The share includes nodes that are already out of service.
options:
  nodes:
    description: Names of the nodes, in the order of the inventory.
    type: list
    elements: str
    required: true
  partitions:
    description:
      - Result of C(sinfo --noheader --Node --format=%N|%R|%E), or empty if there is no cluster. If the
        command failed, all nodes count as one partition.
    type: dict
    default: {}
  batch:
    description: The most nodes of one wave.
    type: int
    default: 32
  max_drain_fraction:
    description: The largest share of a partition out of service at a time. One node always may be out.
    type: float
    default: 0.25
  canary:
    description: Number of nodes in the first wave, if any node is in service. V(0) means no canary wave.
    type: int
    default: 1
  max_failures:
    description: Number of nodes that may fail before no further wave starts. This module only shows it.
    type: int
    default: 0
attributes:
  check_mode:
    description: Only computes.
    support: full
extends_documentation_fragment: rackproof.no_diff
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Plan the waves
  rackproof_provision_plan:
    nodes: "{{ ansible_play_hosts_all }}"
    partitions: "{{ partitions }}"
  run_once: true
  register: plan
"""

RETURN = r"""
order:
  description: The nodes, wave after wave.
  returned: success
  type: list
  elements: str
sizes:
  description: Number of nodes of each wave, as C(serial) takes them.
  returned: success
  type: list
  elements: int
message:
  description: The waves in words, line by line.
  returned: success
  type: list
  elements: str
"""
