#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_bench_upload, which runs on the controller.

The file tasks/upload.yml of role bench calls it.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_bench_upload
short_description: Put recorded results into an object store (S3)
description:
  - Uploads the files of runs and plans to a bucket and compares their digests. It skips a file that is
    already there, so that an interrupted upload continues where it ended.
  - Changes no verdict and never fails. An incomplete upload is a warning, and RV(whole) is false.
options:
  results:
    description: Results folder.
    type: path
    required: true
  folders:
    description: Names of folders in the results folder. The default is all that have a run or a plan.
    type: list
    elements: str
    default: []
  source:
    description: The bucket, as V(BUCKET) or V(BUCKET:/PREFIX).
    type: str
    required: true
  url:
    description: Address of the store, such as V(https://s3.example), or empty for AWS.
    type: str
    default: ""
  region:
    description: Region that requests are signed for.
    type: str
    default: us-east-1
  credentials:
    description:
      - Keys from Vault, each with C(access_key) and C(secret_key). C(bucket) limits a key to one bucket.
    type: list
    elements: dict
    default: []
    no_log: true
attributes:
  check_mode:
    description: Skipped, since nothing was recorded.
    support: none
extends_documentation_fragment: [rackproof.no_diff]
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Put a run into the object store
  rackproof_bench_upload:
    results: results
    folders: ["{{ run_id }}"]
    source: rackproof-results:/rack-7
    url: https://s3.example
    credentials: "{{ storage_s3fs_credentials }}"
  no_log: true
  register: uploaded
"""

RETURN = r"""
whole:
  description: Whether every file is in the store.
  returned: always
  type: bool
message:
  description: State of the upload, or the reason why it failed.
  returned: always
  type: str
files:
  description: Number of these folders' files in the store.
  returned: always
  type: int
new:
  description: Number of files uploaded now.
  returned: always
  type: int
"""
