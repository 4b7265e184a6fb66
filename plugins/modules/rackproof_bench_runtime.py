#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_bench_runtime, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_bench_runtime
short_description: Find or make the Python environment of a workload on a node
description:
  - Finds the environment by one small command on the node. Where it has to be made, C(make_runtime.py)
    makes it in a job of M(rackproof_job); how much is fetched and when it ends is shown meanwhile.
  - Killing the controller does not touch the job. Started again, this waits for the job and finds its
    runtime.
options:
  name:
    description: Name of the runtime.
    type: str
    required: true
  python:
    description: The node's own interpreter, which runs C(make_runtime.py).
    type: str
    required: true
  workloads:
    description: Folder of the workloads on the node.
    type: str
    required: true
  home:
    description: Folder on the node in which the job has its own.
    type: str
    required: true
  arguments:
    description: Arguments of C(make_runtime.py).
    type: list
    elements: str
    required: true
  every_s:
    description: Seconds between two lines. 0 shows nothing.
    type: float
    default: 10
attributes:
  check_mode:
    description: Makes nothing.
    support: full
  diff_mode:
    description: There is nothing to show as a difference.
    support: none
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Prepare the runtime
  rackproof_bench_runtime:
    name: torch
    python: /usr/bin/python3
    workloads: /var/lib/rackproof/workloads
    home: /var/lib/rackproof
    arguments: [--runtime=/var/lib/rackproof/workloads/torch, --folder=/var/lib/rackproof/runtimes/torch]
  register: runtime
"""

RETURN = r"""
python:
  description: The runtime's interpreter.
  returned: success
  type: str
"""
