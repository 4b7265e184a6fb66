#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_bench_report, which runs on the controller.

The file tasks/report.yml of role bench calls it.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_bench_report
short_description: Write the report of a plan and return its verdict
description:
  - Writes a page, Markdown and JUnit XML over all runs of a plan.
  - Runs without a record and nodes that were not reached make the verdict V(unproven).
options:
  plan_id:
    description: The plan.
    type: str
    required: true
  results:
    description: Results folder.
    type: path
    required: true
attributes:
  check_mode:
    description: bench.yml does not call this action in check mode, because there is no run to report.
    support: none
  diff_mode:
    description: There is nothing to show as a difference.
    support: none
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Write the report
  rackproof_bench_report:
    plan_id: "{{ plan.plan_id }}"
    results: results
  run_once: true
  register: report
"""

RETURN = r"""
verdict:
  description: The worst verdict of all runs.
  returned: success
  type: str
gates:
  description: Whether the playbook has to end non-zero.
  returned: success
  type: bool
message:
  description: Verdict and reasons, line by line.
  returned: success
  type: list
  elements: str
rackproof_report_file:
  description: The page.
  returned: success
  type: str
rackproof_report_runs:
  description: All recorded runs of the plan, with those of earlier calls; id to folder.
  returned: success
  type: dict
"""
