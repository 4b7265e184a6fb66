#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_bench_runtime, which runs on the controller.

The files tasks/run_single_node.yml and tasks/prepare.yml of role bench call it.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_bench_runtime
short_description: Find or make the Python environment of a workload on a node
description:
  - Finds the environment with one small command on the node. If there is none, C(make_runtime.py) makes it in
    a job of M(rackproof_job). Meanwhile the fetched amount and the expected end are shown.
  - The death of the controller does not affect the job. If the playbook is started again, it waits for that
    job and uses its environment.
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
    description: Folder on the node in which the job's folder is made.
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
  timeout_s:
    description: Seconds that the making of the environment may take, with all downloads.
    type: float
    default: 21600
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
