# SPDX-License-Identifier: Apache-2.0
"""Define the documentation of options that several modules share.

ansible-doc adds a fragment of this file to each module that extends the fragment.
"""

from __future__ import annotations


class ModuleDocFragment:
    """The fragments by name, as ansible-doc finds them.

    With ``extends_documentation_fragment: rackproof.bmc``, a module gets the fragment BMC. If both
    describe an option, the module's own text is used.
    """

    NO_DIFF = r"""
attributes:
  diff_mode:
    description: The module has no difference to show.
    support: none
"""

    # ansible-doc adds no fragment to suboptions, so only modules with these options at the top extend BMC.
    BMC = r"""
options:
  protocol:
    description: Protocol of the BMC.
    type: str
    choices: [redfish, ipmi]
    default: redfish
  user:
    description: Account on the BMC. Keep it in Vault.
    type: str
    default: ""
  password:
    description: Password of the account. It is a secret, so keep it in Vault.
    type: str
    default: ""
    no_log: true
  ca_file:
    description: File with the certificates to trust. The default is those that this machine trusts.
    type: path
  fingerprint:
    description:
      - SHA-256 of the BMC's certificate, as hexadecimal digits with or without colons. All other
        certificates are then refused, whichever authority signed them. Only Redfish uses this option.
    type: str
    default: ""
  cipher_suite:
    description: Cipher suite for IPMI. V(3) is for older BMCs, and is weaker (SHA-1).
    type: int
    choices: [17, 3]
    default: 17
  call_timeout_s:
    description:
      - Seconds that the BMC may take for an answer. The limits of a long answer, of a session and of all
        settings are longer, and grow with this time.
    type: float
    default: 20
requirements:
  - the Python package sushy on the controller, or for IPMI the program ipmitool
"""

    REIMAGE_RUN = r"""
options:
  run:
    description: The run that M(rackproof_reimage_begin) returned.
    type: dict
    required: true
attributes:
  check_mode:
    description: The action also writes in check mode. reimage.yml ends before this action.
    support: none
"""

    NIGHT = r"""
options:
  night:
    description: The night that M(rackproof_validate_begin) returned.
    type: dict
    required: true
"""

    MEASURING = r"""
options:
  checkout:
    description: Folder of the checkout, which has C(workloads/) and C(benchmarks/).
    type: path
    required: true
  python:
    description: Python on the nodes that has PyTorch and mlperf-logging.
    type: str
    required: true
  device:
    description: Device to measure. V(cpu) is for nodes without GPUs.
    type: str
    default: gpu
  pair_s:
    description: Largest time for the job of a pair, in seconds.
    type: int
    default: 180
  srun:
    description: More options for C(srun), such as an account or a reservation.
    type: list
    elements: str
    default: []
  partitions:
    description: Result of the command C(sinfo) that lists node, partition and reason.
    type: dict
    default: {}
"""
