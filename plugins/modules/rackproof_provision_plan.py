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
      - Registered result of the task that runs C(sinfo --noheader --Node --format=%N|%R|%E). A result without
        C(stdout) means that there is no cluster.
      - If the task failed, or its host was unreachable, all nodes count as one partition in service.
    type: dict
    default: {}
  batch:
    description: Largest number of nodes in one wave.
    type: int
    default: 32
  max_drain_fraction:
    description:
      - Largest share of a partition that may be out of service at a time. If nodes that are already out use
        it up, a wave still takes one node.
    type: float
    default: 0.25
  canary:
    description:
      - Largest number of nodes in the first wave (canary). V(0) means no canary wave. There is none, either,
        if no node is in service.
    type: int
    default: 1
  max_failures:
    description: Number of nodes that may fail. If more fail, no further wave starts. The plan only shows it.
    type: int
    default: 0
attributes:
  check_mode:
    description: The action changes nothing, so check mode is the same.
    support: full
extends_documentation_fragment: rackproof.no_diff
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Ask Slurm for the partitions of the nodes
  ansible.builtin.command: sinfo --noheader --Node --format=%N|%R|%E
  delegate_to: "{{ groups['slurm_controllers'] | first }}"
  run_once: true
  changed_when: false
  register: partitions

- name: Plan the waves
  rackproof_provision_plan:
    nodes: "{{ ansible_play_hosts_all }}"
    partitions: "{{ partitions }}"
  run_once: true
  register: plan
"""

RETURN = r"""
order:
  description: The nodes in the order of their waves, and of the inventory within a wave.
  returned: success
  type: list
  elements: str
sizes:
  description: Number of nodes in each wave, for C(serial) of the play.
  returned: success
  type: list
  elements: int
message:
  description: One line of text for each wave, with remarks about Slurm and failures.
  returned: success
  type: list
  elements: str
"""
