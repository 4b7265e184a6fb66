#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_reimage_discover, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_reimage_discover
short_description: Find the machine of each node
description:
  - Matches machines with C(reimage_serial) of the inventory, and writes the host variables of the nodes that
    it found into an inventory file. Nodes that are in that file and were not found stay as they are.
  - By V(bmc) it queries the identity of BMCs. Every address is accounted for. One that was given and does not
    answer is a problem; in a range it is a remark. By IPMI a BMC lists no MAC addresses.
  - By V(boot) it waits on the host that nodes boot from for the reports of unknown machines (role netboot,
    entry point C(discover)), shows each as it comes, and writes C(reimage_mac). Reports are not trusted. At
    most 1024 are read, of each 64 KiB.
options:
  by:
    description: V(bmc) queries BMCs, V(boot) collects the reports of machines that booted over the network.
    type: str
    choices: [bmc, boot]
    default: bmc
  nodes:
    description: >-
      Nodes of the inventory that they may be. By V(boot), those with C(reimage_serial) and no C(reimage_mac)
      are awaited.
    type: list
    elements: str
    required: true
  file:
    description: Inventory file on the controller that is written.
    type: path
    required: true
  addresses:
    description: >-
      By V(bmc), and required there, the BMCs to query, each as C(reimage_bmc_address) has it, or
      C(FIRST-LAST), or a network.
    type: list
    elements: str
  parallel:
    description: By V(bmc), the largest number of BMCs that are queried at a time.
    type: int
    default: 32
  timeout_s:
    description: By V(bmc), seconds that a BMC may take.
    type: float
    default: 60
  folder:
    description: By V(boot), and required there, the folder on the host in which machines leave their reports.
    type: path
  macs:
    description: By V(boot), MAC addresses that are awaited in place of the nodes.
    type: list
    elements: str
    default: []
  seconds:
    description: By V(boot), and required there, how long to wait at most.
    type: int
attributes:
  check_mode:
    description: By V(bmc) queries, and writes nothing; by V(boot) it is skipped.
    support: partial
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

- name: Collect boot reports from unknown machines
  rackproof_reimage_discover:
    by: boot
    folder: "{{ netboot_discover_boot_reports }}"
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
hardware:
  description: Disks and network interfaces of each of them.
  type: list
  returned: by V(boot)
remarks: {description: Remarks that block nothing., type: list, returned: success}
problems: {description: Why a machine that answered or reported has no node., type: list, returned: success}
"""
