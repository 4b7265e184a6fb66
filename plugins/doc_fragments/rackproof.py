# SPDX-License-Identifier: Apache-2.0
"""Define options that several modules document in the same way.

ansible-doc adds them to each module that extends this fragment.
"""

from __future__ import annotations


class ModuleDocFragment:
    """Hold the fragments.

    ``extends_documentation_fragment: rackproof.bmc`` adds BMC. The module's own text has precedence.
    """

    NO_DIFF = r"""
attributes:
  diff_mode:
    description: There is nothing to show as a difference.
    support: none
"""

    # This is only for options of the module itself, because fragments do not apply to suboptions.
    BMC = r"""
options:
  protocol:
    description: Protocol of the BMC.
    type: str
    choices: [redfish, ipmi]
    default: redfish
  user:
    description: Account on the BMC. From Vault.
    type: str
    default: ""
  password:
    description: Its password. A secret, from Vault.
    type: str
    default: ""
    no_log: true
  ca_file:
    description: Certificates to trust; by default those that this machine trusts.
    type: path
  fingerprint:
    description:
      - SHA-256 of the BMC's certificate, as hexadecimal digits with or without colons. Then no other is
        taken, whichever authority signed it. Redfish's.
    type: str
    default: ""
  cipher_suite:
    description: Cipher suite of IPMI; V(3) is of older BMCs and weaker (SHA-1).
    type: int
    choices: [17, 3]
    default: 17
requirements:
  - the Python package sushy on the controller, or for IPMI the program ipmitool
"""

    REIMAGE_RUN = r"""
options:
  run:
    description: The run, as M(rackproof_reimage_begin) returned it.
    type: dict
    required: true
attributes:
  check_mode:
    description: Writes in check mode, too; reimage.yml ends before it.
    support: none
"""

    NIGHT = r"""
options:
  night:
    description: The night, as M(rackproof_validate_begin) returned it.
    type: dict
    required: true
"""

    MEASURING = r"""
options:
  checkout:
    description: The checkout, for its C(workloads/) and C(benchmarks/).
    type: path
    required: true
  python:
    description: Interpreter on the nodes that holds PyTorch and mlperf-logging.
    type: str
    required: true
  device:
    description: V(gpu), or V(cpu) for nodes without one.
    type: str
    default: gpu
  pair_s:
    description: Seconds that a pair may take.
    type: int
    default: 180
  srun:
    description: More options for C(srun), such as an account or a reservation.
    type: list
    elements: str
    default: []
  partitions:
    description: Result of the command C(sinfo) with node, partition and reason.
    type: dict
    default: {}
"""
