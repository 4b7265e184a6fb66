#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_check_variables, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_check_variables
short_description: Refuse variables that only look like those of Rackproof's roles
description:
  - A variable of the inventory, or one given with C(-e), whose name begins with a role's name and that no
    role has is a typing error, which would leave a check undone. The task fails and names the variable
    that may be meant.
  - So does one given with C(-e) that the roles themselves find out, such as a verdict, or that is empty where
    a value is needed.
  - Numbers must be numbers, and within the bounds that the playbooks support.
  - Where hosts are reached by ssh, this machine must have an ssh client.
  - With more than 200 hosts, one of each set of groups is checked, and those with a file in C(host_vars).
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
