#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_bench_plan, which runs on the controller.

The file tasks/plan.yml of role bench calls it.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_bench_plan
short_description: Plan the runs, or continue the interrupted plan
description:
  - Plans one run for every point of the chosen benchmarks on every node, or on every set of nodes that a
    benchmark uses together.
  - Stores the plan in the results folder.
  - If the same request is made again while runs are missing, it continues the stored plan.
  - Reads the facts C(bench_facts), C(bench_variables), C(bench_interpreters), C(bench_slurm) and
    C(bench_experiment) of every host, which role bench sets. Hosts without facts count as not reached. They
    make the runs of their rack unproven.
  - In check mode the plan is shown but not stored. A rack's runs then include hosts that did not answer.
    Their data come from the inventory.
options:
  choice:
    description: C(choice) as M(rackproof_bench_select) returned it.
    type: dict
    required: true
  hosts:
    description: All requested hosts.
    type: list
    elements: str
    required: true
  sku_references:
    description: References of the SKU, C(bench_sku_references). A run is shown with those that judge it.
    type: list
    elements: dict
    default: []
  resume:
    description: Whether to continue an interrupted plan.
    type: bool
    default: true
attributes:
  check_mode:
    description: Checks and shows the plan, but stores nothing.
    support: full
  diff_mode:
    description: There is no difference to show.
    support: none
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Plan the runs
  rackproof_bench_plan:
    choice: "{{ choice.choice }}"
    hosts: "{{ ansible_play_hosts_all }}"
  run_once: true
  register: plan
"""

RETURN = r"""
plan_id:
  description: Name of the plan's folder in the results folder.
  returned: success
  type: str
resumed:
  description: Whether an interrupted plan is continued.
  returned: success
  type: bool
runs:
  description: Runs still to be made, by inventory host.
  returned: success
  type: dict
mounts:
  description: Mounts that the role storage makes for these runs, by inventory host.
  returned: success
  type: dict
runtimes:
  description: Runtimes of the runs that nodes start together, by inventory host.
  returned: success
  type: dict
lacking:
  description: List of the problems to solve before the runs can be made, each problem once.
  returned: success
  type: list
  elements: str
workers:
  description: Hosts that need the workloads to make the runs.
  returned: success
  type: list
  elements: str
"""
