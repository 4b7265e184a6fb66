#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin rackproof_bench_upload, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_bench_upload
short_description: Put recorded results into an object store (S3)
description:
  - Puts the files of runs and plans into a bucket and compares their digests. A file that is there already is
    not put there again, so an upload that was interrupted goes on where it ended.
  - Changes no verdict and never fails. An upload that is not whole is a warning, and RV(whole) is false.
options:
  results:
    description: Results folder.
    type: path
    required: true
  folders:
    description: Names of folders in it; by default all that hold a run or a plan.
    type: list
    elements: str
    default: []
  source:
    description: The bucket, as V(BUCKET) or V(BUCKET:/PREFIX).
    type: str
    required: true
  url:
    description: The store, as in V(https://s3.example); empty for that of AWS.
    type: str
    default: ""
  region:
    description: Region that requests are signed for.
    type: str
    default: us-east-1
  credentials:
    description:
      - Keys, each with C(access_key), C(secret_key) and, where it is for one bucket, C(bucket). From Vault.
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
