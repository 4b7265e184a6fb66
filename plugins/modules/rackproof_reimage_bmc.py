#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_reimage_bmc, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_reimage_bmc
short_description: Control power and boot of a node through its BMC (Redfish, IPMI)
description:
  - Queries the BMC, and if O(boot) or O(power) is given sets the node's boot device and switches the node on
    or off. The setting is read back, and the module waits for the switch.
  - By Redfish the certificate of the BMC is checked. IPMI has none; its passwords are 20 characters at most.
options:
  address:
    description:
      - Address of the BMC. By Redfish https unless it begins otherwise; by IPMI with the port where that is
        not 623.
    type: str
    required: true
  system:
    description: Id of the node among the systems that the BMC lists; needed where there are several.
    type: str
    default: ""
  uefi:
    description:
      - By IPMI, whether the boot over the network is one by UEFI. Redfish leaves that as the node is set up.
    type: bool
    default: true
  boot:
    description: V(pxe) boots over the network the next time only, V(disk) takes that back.
    type: str
    choices: [pxe, disk]
  power:
    description: Wanted power state; V(cycle) is off and on again. Applied after O(boot).
    type: str
    choices: ["on", "off", cycle]
  timeout_s:
    description: Seconds that each of off and on may take.
    type: float
    default: 120
attributes:
  check_mode:
    description: Reads and changes nothing.
    support: partial
extends_documentation_fragment: [rackproof.bmc, rackproof.no_diff]
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Boot the node over the network
  rackproof_reimage_bmc:
    address: "{{ reimage_bmc_address }}"
    user: "{{ reimage_bmc_user }}"
    password: "{{ reimage_bmc_password }}"
    boot: pxe
    power: cycle

- name: Ask a BMC without Redfish
  rackproof_reimage_bmc:
    address: "{{ reimage_bmc_address }}"
    protocol: ipmi
    user: "{{ reimage_bmc_user }}"
    password: "{{ reimage_bmc_password }}"
"""

RETURN = r"""
bmc:
  description: Final report of the BMC.
  returned: success
  type: dict
  contains:
    power: {description: State of the node., type: str, returned: always}
    boot: {description: Device of the next boot., type: str, returned: always}
    boot_enabled: {description: Whether that holds (Once/Continuous/Disabled)., type: str, returned: always}
    serial: {description: Serial number of the machine; may be empty., type: str, returned: always}
"""
