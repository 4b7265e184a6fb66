#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_reimage_record, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_reimage_record
short_description: Keep what a node is, and compare it with what it was
description:
  - Calls C(rackproof_facts) on the node. Fails where it is another machine than the inventory says, where it
    lacks parts that it had, or where it still runs the system that was to be replaced.
options:
  run:
    description: The run, as C(rackproof_reimage_begin) returned it.
    type: dict
    required: true
  which:
    description:
      - V(before) keeps what the node is before its new image, V(booted) asks only whether it was booted anew,
        V(after) keeps what it is then and compares.
    type: str
    choices: [before, booted, after]
    required: true
  answers:
    description: Whether the node can be asked. Otherwise its last night's look is what it was before.
    type: bool
    default: true
  sku:
    description: Node model as the inventory expects it.
    type: str
    default: ""
  serial:
    description: Serial number that the inventory gives the node; empty is not said.
    type: str
    default: ""
  gpus:
    description: GPUs that the model has; 0 is not said. Asked of V(after).
    type: int
    default: 0
  tool_timeout_s:
    description: Seconds that each tool on the node may take.
    type: float
    default: 20
attributes:
  check_mode:
    description: Writes in check mode, too; reimage.yml ends before it.
    support: none
  diff_mode:
    description: There is nothing to show as a difference.
    support: none
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Keep what the node is
  rackproof_reimage_record:
    run: "{{ begun.run }}"
    which: before
    serial: "{{ reimage_serial | default('') }}"
"""

RETURN = r"""
remarks: {description: "What is to be reported, such as a swapped GPU.", type: list, returned: success}
"""
