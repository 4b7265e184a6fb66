#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_reimage_begin, which runs on the controller.

The file tasks/begin.yml of role reimage calls it.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_reimage_begin
short_description: Begin a run of reimage.yml
description:
  - Claims the nodes while this playbook runs, so that no second playbook uses them. Reads the progress of
    each node from its journal, and returns the remaining steps and their order.
  - A node with a damaged journal is left out with a remedy. The other nodes continue.
options:
  results:
    description: Results folder.
    type: path
    required: true
  nodes:
    description: The requested nodes, each with the list of its racks.
    type: dict
    required: true
  method:
    description: Method of imaging; C(rackproof.jobs.reimage.tasks.METHODS) lists the methods.
    type: str
    required: true
  partitions:
    description:
      - Result of C(sinfo --noheader --Node --format=%N|%R|%E). Nodes that it does not list are taken to share
        one partition.
    type: dict
    default: {}
  at_once:
    description: The most nodes that are out of service at a time.
    type: int
    default: 8
  per_rack:
    description: The most nodes of one rack that are out at a time.
    type: int
    default: 4
  per_partition:
    description: The most nodes of one Slurm partition that are out at a time.
    type: int
    default: 4
  canary:
    description:
      - The most nodes in the first wave. With 0, or if Slurm shows all nodes out of service, there is no
        such wave.
    type: int
    default: 1
  max_failures:
    description: Number of nodes that may fail. If more fail, no further wave starts.
    type: int
    default: 0
  limits:
    description: Seconds that a step may take, by its name. Only values that differ from the defaults.
    type: dict
    default: {}
  images:
    description:
      - Digest of the image that each node will get, by node, or empty if it gets none. A node that got
        another image in an unfinished run is imaged again.
    type: dict
    default: {}
  again:
    description: Whether every node starts at the first step, regardless of its journal.
    type: bool
    default: false
  expect:
    description:
      - Required BIOS settings and firmware by node, in the form of M(rackproof_reimage_record). A typing
        error in them is reported here.
    type: dict
    default: {}
attributes:
  check_mode:
    description: Claims nothing, writes nothing, returns the planned steps.
    support: full
extends_documentation_fragment: rackproof.no_diff
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Begin
  rackproof_reimage_begin:
    results: results
    nodes: {gb300-r01-n01: [gb300-rack], gb300-r01-n02: [gb300-rack]}
    method: rack
  run_once: true
  register: started
"""

RETURN = r"""
run:
  description: The run, for the tasks that follow.
  returned: success
  type: dict
  contains:
    run_id: {description: Its id., type: str, returned: always}
    folder: {description: Its folder., type: str, returned: always}
    results: {description: The results folder., type: str, returned: always}
    prefix: {description: Beginning of the reasons of its drains., type: str, returned: always}
    waves: {description: Lists of nodes that are out of service together., type: list, returned: always}
    todo: {description: Remaining steps, by node., type: dict, returned: always}
    refused: {description: Reason why a node is left out, by node., type: dict, returned: always}
order: {description: The nodes in the order in which they are taken., type: list, returned: success}
sizes: {description: Number of nodes in each wave., type: list, returned: success}
message: {description: The plan in words., type: list, returned: success}
"""
