#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_reimage_discover, which runs on the controller.

The files tasks/discover_by_bmc.yml and tasks/discover_by_boot.yml of role reimage call it.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_reimage_discover
short_description: Find the machine of each node
description:
  - Matches machines with C(reimage_serial) of the inventory, and writes the host variables of the nodes that
    it found into an inventory file. Nodes that are in that file and were not found stay as they are.
  - With O(by=bmc) it queries BMCs for their machines. A single address that does not answer is a problem.
    An address of a range that does not answer is a remark. It writes C(reimage_bmc_address), and
    C(reimage_mac) if the BMC shows which interface boots. With IPMI, a BMC lists no MAC addresses.
  - With O(by=boot) it waits on the boot host for the reports of unknown machines (role netboot, entry point
    C(discover)), shows each report, and writes C(reimage_mac). Reports are untrusted input. At most 1024
    are read, and at most 64 KiB of each.
options:
  by:
    description: V(bmc) queries BMCs. V(boot) collects the reports of machines that booted over the network.
    type: str
    choices: [bmc, boot]
    default: bmc
  nodes:
    description: >-
      Nodes of the inventory to find. With O(by=boot), the task waits for those with C(reimage_serial) and no
      C(reimage_mac).
    type: list
    elements: str
    required: true
  file:
    description: Inventory file on the controller to write.
    type: path
    required: true
  addresses:
    description: >-
      The BMCs to query, required with O(by=bmc). Each is an address as in C(reimage_bmc_address), a range
      C(FIRST-LAST), or a network.
    type: list
    elements: str
  parallel:
    description: With O(by=bmc), the largest number of BMCs that are queried at a time.
    type: int
    default: 32
  timeout_s:
    description: With O(by=bmc), seconds that a BMC may take for all answers together.
    type: float
    default: 60
  folder:
    description: Folder on the boot host with the machines' reports. Required with O(by=boot).
    type: path
  macs:
    description: With O(by=boot), MAC addresses to wait for in place of O(nodes).
    type: list
    elements: str
    default: []
  seconds:
    description: Longest time to wait, in seconds. Required with O(by=boot).
    type: int
attributes:
  check_mode:
    description: With O(by=bmc), queries BMCs and writes nothing. With O(by=boot), the task is skipped.
    support: partial
extends_documentation_fragment: [rackproof.bmc, rackproof.no_diff]
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Query the BMCs of a new rack
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
gates: {description: "Whether there is a problem, or no node was matched.", type: bool, returned: success}
nodes: {description: The host variables of each matched node., type: dict, returned: success}
matched: {description: A line about each matched node., type: list, returned: success}
hardware:
  description: Lines about the disks and network interfaces of each matched node.
  type: list
  returned: with O(by=boot)
remarks: {description: Remarks that block nothing., type: list, returned: success}
problems:
  description: Why an address gave no answer, or why a machine or report fits no node or several.
  type: list
  returned: success
"""
