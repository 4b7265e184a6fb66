#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_reimage_journal, which runs on the controller.

The tasks of role reimage call it before and after each step.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_reimage_journal
short_description: Record the progress of a step of reimage.yml
description:
  - Adds a line to the node's journal and flushes it to the disk. A step does not begin if its start cannot be
    written. The space for its end is reserved before.
options:
  event:
    description: Event to record for the step.
    type: str
    choices: [begun, done, skipped, failed]
    required: true
  step:
    description: The step. The default for V(failed) is the step that runs.
    type: str
    default: ""
  reason:
    description: Reason why the step failed or was skipped.
    type: str
    default: ""
  remarks:
    description: Remarks to report about the node.
    type: list
    elements: str
    default: []
  night:
    description: Folder of a night. The task fails if the node did not pass in that night.
    type: path
  acceptance:
    description: Checks that the night must have besides the health checks, of V(probes) and V(pair).
    type: list
    elements: str
    default: []
extends_documentation_fragment: [rackproof.reimage_run, rackproof.no_diff]
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Record the start of the drain
  rackproof_reimage_journal:
    run: "{{ started.run }}"
    step: drain
    event: begun
"""

RETURN = r"""
state: {description: State of the node., type: str, returned: success}
step: {description: The step that runs or comes next., type: str, returned: success}
"""
