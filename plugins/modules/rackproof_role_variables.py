#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_role_variables, which runs on the controller.

The files tasks/check.yml and tasks/variables.yml of role provision call it.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_role_variables
short_description: Check a host's variables of several roles at once
description:
  - The variables of each role must fit its argument spec, and their templates must be evaluable. Roles that
    run in a later play are checked with their defaults, too.
  - The task fails with one message that names the host, each role and variable, what is wrong, and what to
    write. It does not print the value of a variable that looks like a secret.
options:
  roles:
    description: Names of the roles whose main entry is checked. The only entry counts if there is no main.
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
- name: Check the variables of the roles
  rackproof_role_variables:
    roles: [storage, slurm]
"""

RETURN = r"""
msg:
  description: The wrong variables of the host.
  returned: failure
  type: str
"""
