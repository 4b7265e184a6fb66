#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_reimage_hear, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_reimage_hear
short_description: Hear which machines tell who they are
description:
  - Waits on the host that nodes boot from for machines that tell who they are (role netboot, entry point
    C(discover)), and says who has and who is left. Matches them with C(reimage_serial) of the inventory, and
    writes C(reimage_mac) of the nodes that it found into an inventory file. What else stands there stays.
  - What machines tell is not trusted. At most 1024 are read, of each 64 KiB.
options:
  folder:
    description: Where they tell, on that host.
    type: path
    required: true
  nodes:
    description: >-
      Nodes of the inventory that they may be. Those with C(reimage_serial) and no C(reimage_mac) are awaited.
    type: list
    elements: str
    required: true
  macs:
    description: MAC addresses that are awaited in their place.
    type: list
    elements: str
    default: []
  file:
    description: Inventory file on the controller that is written.
    type: path
    required: true
  seconds:
    description: How long to wait at most.
    type: int
    required: true
attributes:
  check_mode:
    description: Hears nobody, and writes nothing.
    support: partial
extends_documentation_fragment: rackproof.no_diff
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Hear who they are
  rackproof_reimage_hear:
    folder: "{{ netboot_discover_told }}"
    nodes: "{{ groups['gpu_nodes'] }}"
    file: "{{ inventory_dir }}/discovered.yml"
    seconds: 900
  delegate_to: boothost
  register: discovered
"""

RETURN = r"""
gates: {description: "Whether a machine has no node, or none was matched.", type: bool, returned: success}
nodes: {description: The host variables of each node that was matched., type: dict, returned: success}
matched: {description: The same in words., type: list, returned: success}
hardware: {description: Disks and network interfaces of each of them., type: list, returned: success}
remarks: {description: What is to be seen to and holds nobody up., type: list, returned: success}
problems: {description: Why a machine that told has no node., type: list, returned: success}
"""
