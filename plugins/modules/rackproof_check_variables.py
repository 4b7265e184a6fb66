#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_check_variables, which runs on the controller.

Roles bench, provision, reimage and validate call it.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_check_variables
short_description: Refuse variables that only look like those of Rackproof's roles
description:
  - A variable of the inventory or of C(-e) may begin with a role's name although no role has it. This is a
    typing error, which could disable a check. The task then fails and suggests a variable.
  - The task also fails if C(-e) sets a variable that the roles compute themselves, such as a verdict, or if
    C(-e) sets a variable to an empty value although it needs one.
  - Variables with bounds, such as time limits, must be numbers within these bounds. Templates are not
    checked.
  - C(bench_environment) must have no variable that looks like a secret.
  - If hosts are reached by ssh, this machine must have an ssh client.
  - With more than 200 hosts, the task checks one host of each set of groups, and every host with a file in
    C(host_vars).
options:
  hosts:
    description: The hosts whose variables are checked.
    type: list
    elements: str
    required: true
attributes:
  check_mode:
    description: Checks the same.
    support: full
  diff_mode:
    description: There is nothing to show as a difference.
    support: none
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Refuse misspelt variables
  rackproof_check_variables:
    hosts: "{{ ansible_play_hosts_all }}"
  run_once: true
"""

RETURN = r"""
checked:
  description: Number of names checked.
  returned: success
  type: int
"""
