#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_bench_select, which runs on the controller.

The file tasks/select.yml of role bench calls it.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_bench_select
short_description: Choose benchmarks, check the request, and claim the hosts
description:
  - Loads and validates all benchmark definitions, so that a mistake is found before anything is touched.
  - Claims the hosts while this playbook runs. A second playbook on the same hosts fails here.
options:
  definitions:
    description: Folder of the benchmark definitions.
    type: path
    required: true
  results:
    description: Results folder. It is made if necessary, and must be writable.
    type: path
    required: true
  suite:
    description: Suite to run. Ignored if O(benchmarks) are set.
    type: str
    default: ""
  benchmarks:
    description: Benchmarks to run by name, each with its own matrix.
    type: list
    elements: str
    default: []
  parameters:
    description: Values of parameters in place of those of the matrix, each a single value or a list.
    type: dict
    default: {}
  sku_references:
    description: References of the SKU. They are checked here so that a typing error is found early.
    type: list
    elements: dict
    default: []
  hosts:
    description: The hosts that C(--limit) selects.
    type: list
    elements: str
    required: true
attributes:
  check_mode:
    description: Checks the request and shows it, but claims and stores nothing.
    support: full
  diff_mode:
    description: There is nothing to show as a difference.
    support: none
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Choose the quick suite
  rackproof_bench_select:
    definitions: benchmarks
    results: results
    suite: quick
    hosts: "{{ ansible_play_hosts_all }}"
  run_once: true
  register: choice
"""

RETURN = r"""
choice:
  description: The checked request; input of M(rackproof_bench_plan).
  returned: success
  type: dict
"""
