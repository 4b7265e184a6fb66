#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_reimage_bmc, which runs on the controller.

The file tasks/by_image.yml of role reimage calls it.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_reimage_bmc
short_description: Control power and boot of a node through its BMC (Redfish, IPMI)
description:
  - Queries the BMC. With O(boot) it sets the node's boot device and reads the setting back. With O(power) it
    switches the node on or off and waits for the result.
  - With Redfish, the certificate of the BMC is checked. IPMI has no certificates, and its passwords have at
    most 20 characters.
options:
  address:
    description:
      - Address of the BMC. With Redfish, https is used unless the address names another scheme. With IPMI,
        the address names the port, unless that is 623.
    type: str
    required: true
  system:
    description: Id of the node among the systems that the BMC lists. Required if there are several.
    type: str
    default: ""
  uefi:
    description:
      - Only with IPMI, whether the node uses UEFI when it boots over the network. Redfish does not change
        this setting.
    type: bool
    default: true
  boot:
    description: V(pxe) boots over the network once, at the next boot. V(disk) cancels that.
    type: str
    choices: [pxe, disk]
  power:
    description: Wanted power state. V(cycle) switches off and on again. It is applied after O(boot).
    type: str
    choices: ["on", "off", cycle]
  timeout_s:
    description: Seconds that switching off may take, and also switching on.
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

- name: Query a BMC without Redfish
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
    boot_enabled: {description: 'Once, Continuous or Disabled.', type: str, returned: always}
    serial: {description: Serial number of the machine; may be empty., type: str, returned: always}
"""
