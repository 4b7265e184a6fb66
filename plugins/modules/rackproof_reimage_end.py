#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_reimage_end, which runs on the controller.

The file tasks/end.yml of role reimage calls it.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_reimage_end
short_description: End a run of reimage.yml and report every node
description:
  - Writes the run's record, which enters the history with the newest record of each node's hardware. This is
    the one from before the imaging if the node failed earlier. A node that was not resumed makes the
    verdict a fail.
extends_documentation_fragment: [rackproof.reimage_run, rackproof.no_diff]
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Write the record
  rackproof_reimage_end:
    run: "{{ started.run }}"
  run_once: true
  register: ended
"""

RETURN = r"""
verdict: {description: The worst verdict of the nodes., type: str, returned: success}
gates: {description: Whether the playbook should end non-zero., type: bool, returned: success}
message: {description: A line for each node., type: list, returned: success}
record: {description: "The kind of the record, C(reimaging).", type: str, returned: success}
page: {description: The path of run.json., type: path, returned: success}
"""
