#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_validate_judge, which runs on the controller.

The file tasks/judge.yml of role validate calls it.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_validate_judge
short_description: Judge a night of the fleet and list the nodes to drain and to resume
description:
  - Judges health and the measurements of the last 24 hours, writes the night's record, and returns the nodes
    to drain and to resume. It drains and resumes no node itself.
options:
  checkout:
    description: The checkout. The parameters in its C(benchmarks/) decide which references of the SKU apply.
    type: path
    required: true
  snapshots:
    description: Results of M(rackproof_validate_snapshot) by node. A failed result has the reason.
    type: dict
    required: true
  slurm:
    description: Result of M(rackproof_slurm_node) about the nodes, or empty without Slurm.
    type: dict
    default: {}
  partitions:
    description: Result of the command C(sinfo) with node, partition and reason.
    type: dict
    default: {}
  share:
    description:
      - Largest share of a partition that may be drained, and of the fleet that may show one finding before
        the tool or the fabric is suspected.
    type: float
    default: 0.15
  false_alarms:
    description: Allowed false alarms per 1,000 healthy node-nights in comparisons with fleet and past.
    type: float
    default: 0.1
  return_hours:
    description: Smallest number of hours between two nights that count as passes of a drained node.
    type: float
    default: 12
  drain:
    description: Whether draining is allowed.
    type: bool
    default: false
  resume:
    description: Whether resuming is allowed.
    type: bool
    default: false
  require_measurements:
    description: Whether a node without a measurement in the last 24 hours is unproven.
    type: bool
    default: false
  require_references:
    description: Whether a measurement without a reference is unproven.
    type: bool
    default: true
  probed:
    description: Result of M(rackproof_validate_probe). If it failed and stored nothing, no node is proven.
    type: dict
    default: {}
  link:
    description: Web address of the results folder, for the reasons in Slurm.
    type: str
    default: ""
attributes:
  check_mode:
    description: Judges, and writes the record to the temporary folder of the night.
    support: full
extends_documentation_fragment: [rackproof.night, rackproof.no_diff]
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Judge the night
  rackproof_validate_judge:
    night: "{{ started.night }}"
    checkout: "{{ playbook_dir }}/.."
    snapshots: {node01: {msg: 4 GPUs}}
  run_once: true
  register: judged
"""

RETURN = r"""
drain:
  description: Nodes to drain, each with C(node) and C(reason).
  returned: success
  type: list
  elements: dict
resume:
  description: Nodes to resume.
  returned: success
  type: list
  elements: str
health:
  description:
    - By node C(verdict) and C(gates) of its health checks alone, and in words C(reasons) that gate and
      C(remarks) that do not.
  returned: success
  type: dict
message:
  description: Planned actions, line by line.
  returned: success
  type: list
  elements: str
"""
