#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_reimage_discover, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_reimage_discover
short_description: Find out which BMC is which node's
description:
  - Asks BMCs who they are, matches what they say with C(reimage_serial) of the inventory, and writes the host
    variables of the nodes that it found into an inventory file. Nodes that are in that file and were not
    found stay as they are.
  - Every address is accounted for. One that was named and does not answer is a problem; in a range it is a
    remark.
  - By IPMI a BMC tells no MAC addresses.
options:
  addresses:
    description: BMCs to ask, each as C(reimage_bmc_address) has it, or C(FIRST-LAST), or a network.
    type: list
    elements: str
    required: true
  nodes:
    description: Nodes of the inventory that they may be.
    type: list
    elements: str
    required: true
  file:
    description: Inventory file that is written.
    type: path
    required: true
  parallel:
    description: The most BMCs that are asked at a time.
    type: int
    default: 32
  timeout_s:
    description: Seconds that a BMC may take.
    type: float
    default: 60
attributes:
  check_mode:
    description: Asks, and writes nothing.
    support: full
extends_documentation_fragment: [rackproof.bmc, rackproof.no_diff]
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Ask the BMCs of a new rack
  rackproof_reimage_discover:
    addresses: [10.0.0.11-10.0.0.28]
    nodes: "{{ groups['gpu_nodes'] }}"
    file: "{{ inventory_dir }}/discovered.yml"
    user: "{{ reimage_bmc_user }}"
    password: "{{ reimage_bmc_password }}"
  register: discovered
"""

RETURN = r"""
gates: {description: "Whether a BMC has no node, or none was matched.", type: bool, returned: success}
nodes: {description: The host variables of each node that was matched., type: dict, returned: success}
matched: {description: The same in words., type: list, returned: success}
remarks: {description: What is to be seen to and holds nobody up., type: list, returned: success}
problems: {description: Why a BMC that was asked has no node., type: list, returned: success}
"""
