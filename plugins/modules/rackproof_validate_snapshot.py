#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_validate_snapshot, which runs on the controller.

The file tasks/snapshot.yml of role validate calls it.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_validate_snapshot
short_description: Take a snapshot of the health of a node
description:
  - Calls M(rackproof_facts) on the node, compares the answer with the last snapshot, and stores it in the
    night's folder.
  - The clock of a node is correct if its times lie between the query and the arrival of the answer. Its
    offset is the distance to that interval.
options:
  sku:
    description: SKU of the node. A node without a SKU is unproven.
    type: str
    default: ""
  rack:
    description: Rack of the node on the night's page.
    type: str
    default: ""
  expected:
    description: Requirements of the node. docs/using/validate.md lists them.
    type: dict
    default: {}
  limits:
    description: Bounds that differ from the defaults.
    type: dict
    default: {}
  accept_identity:
    description:
      - Whether to accept the machine and GPUs that answer as the node's from now on. Otherwise, a serial
        number or UUID that earlier nights did not have is unproven.
    type: bool
    default: false
  harmless_kernel_lines:
    description:
      - Harmless lines of the kernel's log, each with C(pattern), C(why) and optionally C(until). They apply
        only to lines that no rule covers.
    type: list
    elements: dict
    default: []
  references:
    description: References of the SKU.
    type: list
    elements: dict
    default: []
  tool_timeout_s:
    description: Seconds that each tool on the node may take.
    type: float
    default: 15
  settle_timeout_s:
    description: Seconds that the node's NVLink fabric and ports have to become ready.
    type: float
    default: 0
  settle_after:
    description:
      - Whether O(settle_timeout_s) begins when the node boots, or now, because the driver's units were
        perhaps started just now.
    choices: [boot, now]
    type: str
    default: boot
  paths:
    description: Paths whose file systems are examined for size, free space, inodes, and being read-only.
    type: list
    elements: str
    default: ["/", "/var"]
attributes:
  check_mode:
    description: Takes the snapshot, and stores it in the temporary folder of the night.
    support: full
extends_documentation_fragment: [rackproof.night, rackproof.no_diff]
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Take a snapshot of the node
  rackproof_validate_snapshot:
    night: "{{ started.night }}"
    sku: "{{ bench_sku }}"
    expected: {gpus: 4, nvlinks: 18}
  register: snapshot
"""

RETURN = r"""
msg:
  description: Short summary of the answers.
  returned: success
  type: str
  sample: 4 GPUs, 4 ports, 0 XIDs
waited:
  description: Whether the node was not ready at once. The message then says what the action waited for.
  returned: success
  type: bool
"""
