#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_reimage_begin, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_reimage_begin
short_description: Begin a run of reimage.yml
description:
  - Claims the nodes against a second playbook, for as long as this one runs, reads from their journals where
    each node is, and returns the remaining steps and their order.
  - A node whose journal is damaged is left out, with what to do; the others go on.
options:
  results:
    description: Results folder.
    type: path
    required: true
  nodes:
    description: The nodes requested, each with the list of racks that it is in.
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
  limits:
    description: Seconds that a step may take, by its name; those that differ from the defaults.
    type: dict
    default: {}
  images:
    description:
      - By node the digest of the image that it is to get, empty where there is none. A node that got another
        one in a run that did not finish is imaged again.
    type: dict
    default: {}
  again:
    description: Whether every node begins again, whatever its journal has.
    type: bool
    default: false
  expect:
    description:
      - By node the required BIOS settings and firmware, in the form of C(rackproof_reimage_record). A typing
        error in it is reported here.
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
    prefix: {description: How its drains' reasons begin., type: str, returned: always}
    waves: {description: Nodes that are out at the same time., type: list, returned: always}
    todo: {description: By node the steps that are left., type: dict, returned: always}
    refused: {description: By node why it is left out., type: dict, returned: always}
order: {description: The nodes in the order in which they are taken., type: list, returned: success}
sizes: {description: How many are taken at a time., type: list, returned: success}
message: {description: The plan in words., type: list, returned: success}
"""
