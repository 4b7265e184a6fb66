#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_bench_record, which runs on the controller.

The file tasks/run.yml of role bench calls it.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_bench_record
short_description: Fetch, parse, judge and store one run
description:
  - Fetches the log of a job, parses and judges it, and enters the run into the history.
  - Writes RV(rackproof_run.folder) with record, raw log and report.
  - This task does not fail because of a bad verdict. The playbook fails at its end, after all runs.
  - With O(failed_task), records a run that could not be made as V(unproven), with the reason.
options:
  plan_id:
    description: Id of the plan.
    type: str
    required: true
  run_id:
    description: Id of the run.
    type: str
    required: true
  results:
    description: Results folder.
    type: path
    required: true
  facts:
    description: Raw facts of M(rackproof_facts) by node name, for the nodes that took part.
    type: dict
    default: {}
  sku:
    description: SKU of the node that leads the run. The plan has the SKUs of the other nodes.
    type: str
    default: ""
  sku_gpus:
    description:
      - Number of GPUs that the node that leads the run must have. Fewer are a failure. 0 means that the
        number is not known.
    type: int
    default: 0
  sku_references:
    description: References of the SKU.
    type: list
    elements: dict
    default: []
  require_references:
    description: Whether a measurement without a reference is unproven.
    type: bool
    default: true
  require_idle:
    description: Whether a speed is unproven if other processes used one of its nodes during the measurement.
    type: bool
    default: true
  description:
    description: Purpose of the run, in words.
    type: str
    default: ""
  notes:
    description: Notes that are stored with the record.
    type: str
    default: ""
  storage:
    description: Kind of storage the data was read from.
    type: str
    default: ""
  network:
    description: Network mode.
    type: str
    default: ""
  log:
    description: Path of the log on the node.
    type: str
    default: ""
  code:
    description:
      - Folder on the node with the config and the run script of a job on a cluster. A copy is kept with the
        record.
    type: str
    default: ""
  job:
    description: State of the job as M(rackproof_bench_follow) returns it.
    type: dict
    default: {}
  points:
    description: Results of M(rackproof_bench_setup) by node, after it removed the setup of the run.
    type: dict
    default: {}
  jobs:
    description: Final state of each node's part of the job, by node, without the first node.
    type: dict
    default: {}
  argv:
    description: Command line of the job.
    type: list
    elements: str
    default: []
  failed_task:
    description: Name of the task that failed before a job ended.
    type: str
    default: ""
  failed_result:
    description: Result of that task.
    type: dict
    default: {}
attributes:
  check_mode:
    description: bench.yml does not call this action in check mode, because there is no run to record.
    support: none
  diff_mode:
    description: There is nothing to show as a difference.
    support: none
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Record the run
  rackproof_bench_record:
    plan_id: "{{ plan.plan_id }}"
    run_id: "{{ run.run_id }}"
    results: results
    facts: "{{ {inventory_hostname: facts} }}"
    job: "{{ followed.job }}"
    log: /var/lib/rackproof/runs/{{ run.run_id }}/log.txt
"""

RETURN = r"""
given_up:
  description: Results whose repeats can no longer become valid, by name, with the reason.
  returned: success
  type: dict
rackproof_run:
  description: The recorded run in short; the callback P(rackproof#callback) collects these.
  returned: success
  type: dict
  contains:
    run_id: {description: The run., type: str, returned: always}
    verdict: {description: 'One of pass, degraded, fail, unproven.', type: str, returned: always}
    reasons: {description: Reasons of a verdict other than pass., type: list, elements: str, returned: always}
    folder: {description: Folder with the record., type: str, returned: always}
    report: {description: The page., type: str, returned: always}
    nodes: {description: The requested nodes., type: list, elements: str, returned: always}
"""
