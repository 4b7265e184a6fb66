#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_reimage_record, which runs on the controller.

The files record.yml, first_boot.yml and validate.yml in tasks/steps of role reimage call it.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_reimage_record
short_description: Record a node's hardware, and compare it with the earlier record
description:
  - Calls C(rackproof_facts) on the node, if O(answers) is true.
  - With V(before) and V(after), fails if the node's serial number is not O(serial). An unknown serial number
    is only a remark.
  - With V(booted), fails if the node still runs the system that was to be replaced, or does not state its
    boot id. If the boot id from before is unknown, because the node did not answer then, this is only a
    remark. The boot report and the host keys of the new system are its proof.
  - With V(after), also fails if the node lacks parts that it had, if it has another number of GPUs than
    O(gpus), or if BIOS settings or firmware are wrong or not known.
options:
  which:
    description:
      - V(before) stores the node's hardware before its new image, unless the run already has such a record.
        V(booted) only checks that the node was rebooted. V(after) stores the hardware after the new image and
        compares it with the earlier record.
    type: str
    choices: [before, booted, after]
    required: true
  answers:
    description:
      - Whether to query the node. The caller sets it to false after the node did not answer. With V(before),
        the node's last night is then its earlier state.
    type: bool
    default: true
  sku:
    description: Node model as the inventory expects it.
    type: str
    default: ""
  serial:
    description: Serial number of the node in the inventory. Empty disables the check.
    type: str
    default: ""
  gpus:
    description: Number of GPUs of the model, for V(after). 0 disables the check.
    type: int
    default: 0
  expect:
    description:
      - Required BIOS settings and firmware, as the BMC reports them. C(bios) has the values of settings.
        C(firmware) has versions, by id or name of the firmware. A difference fails V(after), and is a remark
        otherwise.
    type: dict
    default: {}
  bmc:
    description: The node's BMC, which reports BIOS settings and firmware. Not queried if it has no address.
    type: dict
    suboptions:
      address:
        description: Address of the BMC. https is used unless the address names another scheme.
        type: str
        default: ""
      protocol:
        description: Protocol of the BMC. V(ipmi) reports neither BIOS settings nor firmware.
        type: str
        choices: [redfish, ipmi]
        default: redfish
      user:
        description: Account of the BMC, from Vault.
        type: str
        default: ""
      password:
        description: Password of the account, from Vault.
        type: str
        default: ""
        no_log: true
      ca_file:
        description: File of certificates to trust. Empty means those that this machine trusts.
        type: str
        default: ""
      fingerprint:
        description: SHA-256 of the BMC's certificate. If it is set, no other certificate is accepted.
        type: str
        default: ""
      system:
        description: Id of the node among the systems that the BMC lists. Required if there are several.
        type: str
        default: ""
      call_timeout_s:
        description: Seconds that the BMC may take for an answer.
        type: float
        default: 20
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
