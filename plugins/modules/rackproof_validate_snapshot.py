#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_validate_snapshot, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_validate_snapshot
short_description: Take a snapshot of the health of a node
description:
  - Calls M(rackproof_facts) on the node, compares the answer with the last snapshot, and stores it in the
    night's folder.
  - A node's clock is off only as far as its times do not fit between the moment of the query and the moment
    its answer was here.
options:
  sku:
    description: SKU of the node. Without one the node is unproven.
    type: str
    default: ""
  rack:
    description: Rack that the node is shown in.
    type: str
    default: ""
  expected:
    description: Requirements of the node, as docs/using/validate.md lists them.
    type: dict
    default: {}
  limits:
    description: Bounds that differ from the usual ones.
    type: dict
    default: {}
  accept_identity:
    description:
      - Whether the machine and the GPUs that answer are the node's from now on. Until then a serial number or
        UUID that earlier nights did not have is unproven.
    type: bool
    default: false
  harmless_kernel_lines:
    description:
      - Lines of the kernel's log that are declared harmless, by C(pattern), C(why) and perhaps C(until).
        Used only for lines that no rule covers.
    type: list
    elements: dict
    default: []
  references:
    description: Baselines of the SKU.
    type: list
    elements: dict
    default: []
  tool_timeout_s:
    description: Seconds that each tool on the node may take.
    type: float
    default: 15
  paths:
    description: Paths; the size, free space and mode of their file systems are returned.
    type: list
    elements: str
    default: ["/", "/var"]
attributes:
  check_mode:
    description: Takes the snapshot, and keeps it in the temporary folder of the night.
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
"""
