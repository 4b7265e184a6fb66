#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_bench_follow, which runs on the controller.

The files tasks/follow.yml, tasks/run_multi_node.yml and tasks/stage_imagenet.yml of role bench call it.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_bench_follow
short_description: Follow a job until it ends and show its progress live
description:
  - Follows a job that M(rackproof_job) started until it ends. While it runs, shows run, node, phase, epoch,
    step, loss, accuracy against target, throughput, elapsed time and the expected end.
  - An interruption, or the death of the controller, does not affect the job. If the playbook is started
    again, it continues to follow the job.
  - This task does not fail if a job ended badly, because the result is judged later. It fails if a job cannot
    be found, or does not end.
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
    description: Format of the log that shows the progress. C(auto) recognises it.
    type: str
    default: auto
  every_s:
    description: Seconds between two lines. A new epoch or phase is shown sooner. 0 shows nothing.
    type: float
    default: 10
  expected_s:
    description: Duration of earlier jobs like this, for the expected end until the log shows it.
    type: float
  limit_s:
    description:
      - The job's time limit plus its grace in seconds (C(timeout_s) and C(grace_s) of M(rackproof_job)).
      - By default, the node's record of the job is believed.
    type: float
  deadline_s:
    description:
      - Seconds after the job's own limit and grace at which this task gives up. The supervisor enforces the
        job's limit on the node, so this happens only if the supervisor cannot work.
    type: float
    default: 120
    aliases: [deadline]
  patience_s:
    description: Seconds without an answer of the node after which this task gives up.
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
    description: This is an action plugin. It costs the node one small shell command every few seconds.
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
