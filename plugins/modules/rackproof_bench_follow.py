#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_bench_follow, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_bench_follow
short_description: Follow a job until it ends and show its progress live
description:
  - Follows a job that M(rackproof_job) started until it ends. While it runs, shows run, node, phase, epoch,
    step, loss, accuracy against target, throughput, elapsed time and the expected end.
  - Interrupting it, or killing the controller, does not touch the job. Started again, it follows on.
  - A job that ended badly is not a failure of this task; judging the result comes later. A job that cannot
    be found is one, and so is one that does not end.
options:
  id:
    description: Run id, as given to M(rackproof_job).
    type: str
    required: true
  folder:
    description: The job's folder on the node, as given to M(rackproof_job).
    type: str
    required: true
  format:
    description: Log format to read progress from; C(auto) recognises it.
    type: str
    default: auto
  every_s:
    description: Seconds between two lines. A new epoch or phase is shown sooner. 0 shows nothing.
    type: float
    default: 10
  expected_s:
    description: Duration of earlier jobs like this, for the expected end while the log does not show it.
    type: float
  deadline_s:
    description:
      - Following gives up when the job has not ended so long after its own limit and grace. The limit is
        enforced on the node, so this is met only when the supervisor cannot do its work.
    type: float
    default: 120
    aliases: [deadline]
  patience_s:
    description: Longest time without an answer of a node before following gives up.
    type: float
    default: 900
attributes:
  check_mode:
    description: Follows nothing and changes nothing.
    support: full
  diff_mode:
    description: There is nothing to show as a difference.
    support: none
  action:
    description: This is an action plugin; it costs the node one small shell command every few seconds.
    support: full
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Follow the training
  rackproof_bench_follow:
    id: mnist-lenet-20260101-120000
    folder: /var/lib/rackproof/runs/mnist-lenet-20260101-120000
    format: mllog
    expected_s: 95
  register: followed

- name: Stop here if it did not end well
  ansible.builtin.assert:
    that: followed.job.succeeded
    fail_msg: "{{ followed.job.message }}"
"""

RETURN = r"""
job:
  description: Final state of the job, as M(rackproof_job) returns it.
  returned: success
  type: dict
log_bytes:
  description: Size of the log.
  returned: success
  type: int
progress:
  description: The last progress seen (phase, epoch, step, loss, accuracy, throughput …), null where unknown.
  returned: success
  type: dict
progress_lines:
  description: Number of lines shown.
  returned: success
  type: int
polls:
  description: Number of polls of the node.
  returned: success
  type: int
elapsed_s:
  description: Seconds this task followed the job.
  returned: success
  type: float
"""
