#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_reimage_record, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_reimage_record
short_description: Record a node's hardware, and compare it with the earlier record
description:
  - Calls C(rackproof_facts) on the node, if it answers.
  - Fails if the node is another machine than the inventory's.
  - With V(booted), fails if the node still runs the system that was to be replaced.
  - With V(after), also fails if the node lacks parts that it had, or if BIOS settings or firmware are wrong
    or not known.
options:
  which:
    description:
      - V(before) stores the node's hardware before its new image, V(booted) checks only whether it was
        rebooted, V(after) stores the hardware afterwards and compares.
    type: str
    choices: [before, booted, after]
    required: true
  answers:
    description: True if the node answers. Otherwise its last night's snapshot is its earlier state.
    type: bool
    default: true
  sku:
    description: Node model as the inventory expects it.
    type: str
    default: ""
  serial:
    description: Serial number that the inventory gives the node; empty disables the check.
    type: str
    default: ""
  gpus:
    description: GPUs that the model has; 0 disables the check. For V(after).
    type: int
    default: 0
  expect:
    description:
      - Required BIOS settings and firmware, as the BMC reports them. C(bios) has settings with their values,
        C(firmware) pieces by id or name with their versions. Counts for V(after); before, it is a remark.
    type: dict
    default: {}
  bmc:
    description: The node's BMC, which reports BIOS settings and firmware. Not queried if it has no address.
    type: dict
    suboptions:
      address:
        description: Its address, https unless it begins otherwise.
        type: str
        default: ""
      protocol:
        description: Protocol of the BMC. V(ipmi) reports neither.
        type: str
        choices: [redfish, ipmi]
        default: redfish
      user:
        description: Account. From Vault.
        type: str
        default: ""
      password:
        description: Its password. A secret, from Vault.
        type: str
        default: ""
        no_log: true
      ca_file:
        description: Certificates to trust; empty are those that this machine trusts.
        type: str
        default: ""
      fingerprint:
        description: SHA-256 of the BMC's certificate, the only one that is taken then.
        type: str
        default: ""
      system:
        description: Id of the node among the systems that the BMC lists; needed where there are several.
        type: str
        default: ""
  tool_timeout_s:
    description: Seconds that each tool on the node may take.
    type: float
    default: 20
extends_documentation_fragment: [rackproof.reimage_run, rackproof.no_diff]
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Store the node's hardware
  rackproof_reimage_record:
    run: "{{ started.run }}"
    which: before
    serial: "{{ reimage_serial | default('') }}"
    expect: "{{ reimage_expect | default({}) }}"
    bmc:
      address: "{{ reimage_bmc_address }}"
      user: "{{ reimage_bmc_user }}"
      password: "{{ reimage_bmc_password }}"
"""

RETURN = r"""
remarks: {description: "Remarks, such as a swapped GPU.", type: list, returned: success}
"""
