#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_reimage_acceptance, which runs on the controller.

The file tasks/steps/validate.yml of role reimage calls it.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_reimage_acceptance
short_description: Run an all-reduce of a drained node with a known-good partner
description:
  - Slurm gives a drained node no job, so its half of the pair runs by ssh, with a time limit on the node.
    The partner's half is a Slurm job on the partner alone, called C(rackproof-night). The job starts at once
    or not at all, and Slurm's time limit ends it. The node stays drained.
  - There are three parts, one after the other. V(begin) on the node starts its half and returns at once.
    V(partner) on the host of Slurm's controller runs the other half. V(end) on the node stores the result
    beside the night.
options:
  part:
    description: Action to take.
    type: str
    choices: [begin, partner, end]
    required: true
  night:
    description: The night, as M(rackproof_validate_begin) returned it, with a snapshot of the node.
    type: dict
    required: true
  gpus:
    description: GPUs of the partner.
    type: int
    default: 0
  started:
    description: Result of the part V(begin).
    type: dict
    default: {}
  partner:
    description: Result of the part V(partner).
    type: dict
    default: {}
attributes:
  check_mode:
    description: Also runs in check mode, but reimage.yml ends before this task.
    support: none
extends_documentation_fragment: [rackproof.measuring, rackproof.no_diff]
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Start the node's half of the pair
  rackproof_reimage_acceptance:
    part: begin
    night: "{{ started.night }}"
    checkout: "{{ playbook_dir }}/.."
    python: /opt/torch/bin/python
  register: half
"""

RETURN = r"""
folder:
  description: Place where the node's half runs; empty if the node is already known to be bad.
  returned: part is begin
  type: str
partner: {description: Name of the partner; empty if none started., type: str, returned: part is partner}
text: {description: Why no partner started, or how its half ended., type: str, returned: part is partner}
message: {description: Result of the pair., type: str, returned: part is not partner}
"""
