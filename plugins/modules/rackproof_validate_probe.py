#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_validate_probe, which runs on the controller.

Roles reimage and validate call it.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_validate_probe
short_description: Measure idle nodes and pairs of nodes with Slurm jobs, within a night's GPU-minutes
description:
  - With O(drained=false), the task runs on the host of Slurm's controller, as a user who may start jobs with
    C(srun). The jobs are called C(rackproof-night) and contain their programs. A job starts at once or not at
    all. Slurm's time limit ends the jobs even if this machine dies.
  - The task measures every idle node by itself, and then pairs of nodes. Over the nights, every two nodes of
    a rack are paired. A node that fails gets good partners, and the remaining suspects are tested in halves.
  - Writes the numbers as a run of benchmark C(probes) and everything else beside the night, for
    M(rackproof_validate_judge).
  - With O(drained=true), the task measures its own host without Slurm, because Slurm gives a drained node no
    job. Use this only for nodes that a drain by a night or by reimage.yml keeps free.
options:
  night:
    description: The night that M(rackproof_validate_begin) returned. It is required without O(hosts).
    type: dict
  hosts:
    description:
      - With hosts, the action measures nothing. It checks the options, and fails if O(minutes) is too small
        for a job on any of these hosts.
    type: list
    elements: str
    default: []
  minutes:
    description:
      - GPU-minutes that may be spent. A node without GPU counts as one GPU. A job starts only if its longest
        duration still fits.
    type: float
    required: true
  share:
    description: Largest share of a partition that is measured at once. One node is always allowed.
    type: float
    default: 0.25
  probes:
    description:
      - Measurements to make, of V(gemm), V(memory), V(host-device), V(peer), V(all-reduce), V(training-step),
        V(fabric) (the pairs), and the optional tests V(sdc), V(soak), V(llm). Empty means all except these
        three.
      - Each night runs a part of the optional tests. Tests that a node had longest ago come first, and
        suspect nodes get theirs sooner. With O(drained=true), all named tests run.
    type: list
    elements: str
    default: []
  node_s:
    description: Seconds that the job of a node may take. V(sdc), V(soak) and V(llm) add 180, 900 and 600.
    type: int
    default: 600
  slurm:
    description: Result of M(rackproof_slurm_node) about the nodes, or empty without Slurm.
    type: dict
    default: {}
  drained:
    description: >-
      Whether the task's host itself is measured, which a drain by a night or by reimage.yml keeps free.
    type: bool
    default: false
attributes:
  check_mode:
    description: Checks the options only if O(hosts) is given, and measures nothing.
    support: full
extends_documentation_fragment: [rackproof.measuring, rackproof.no_diff]
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Measure idle nodes
  rackproof_validate_probe:
    night: "{{ started.night }}"
    checkout: "{{ playbook_dir }}/.."
    minutes: 240
    python: /opt/torch/bin/python
    slurm: "{{ slurm }}"
    partitions: "{{ partitions }}"
  delegate_to: "{{ slurm_controller_host }}"
  run_once: true
"""

RETURN = r"""
message:
  description: Short summary of the measured and the omitted parts.
  returned: success
  type: list
  elements: str
"""
