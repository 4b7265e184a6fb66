"""Name the change of the inventory, or the command that accepts changed parts, for a finding. No I/O.

Most findings with such advice say that the inventory is incomplete or wrong, so no playbook that changes the
node can cure them. :mod:`rackproof.jobs.validate.explain` shows the text of :func:`inventory_advice` in place
of another command.
"""

from __future__ import annotations

from collections.abc import Mapping

from rackproof.core.text import sanitize
from rackproof.nodes.health_subjects import HealthFinding

_EXPECTATIONS = "docs/using/validate.md, Expectations of a node"
_ADVICE: Mapping[str, str] = {
    "sku_skeleton": "complete {group_vars}, then remove `skeleton: true` there (docs/using/adopt.md, "
    "complete its skeleton)",
    "sku_unknown": "put {node} into the group of its SKU in the inventory (docs/using/validate.md, "
    "Which SKU)",
    "sku_differs": "put {node} into the group of its SKU in the inventory, or correct bench_sku_gpu_name in "
    "{group_vars} (docs/using/validate.md, Which SKU)",
    "sku_gpus_exceeded": "put {node} into the group of its SKU in the inventory, or correct bench_sku_gpus "
    "in {group_vars} (docs/using/validate.md, Which SKU)",
    "sku_gpus_unknown": f"set bench_sku_gpus in {{group_vars}} ({_EXPECTATIONS})",
    "sku_model_unknown": f"set bench_sku_gpu_name in {{group_vars}} ({_EXPECTATIONS})",
    "hostname_differs": "correct the address of {node} in the inventory (ansible_host), or, if it is the "
    "right machine, set validate_hostname to its own host name (docs/using/validate.md, Identity)",
    "node_twice": "correct the address of {node} in the inventory (ansible_host), or at the name server "
    "(docs/using/validate.md, Identity)",
    "slurm_node_unknown": "add {node} to slurm.conf, or, if that is intended, set `slurm: false` in its "
    f"validate_expect ({_EXPECTATIONS})",
    "nvlink_inactive": f"set `nvlinks` in validate_expect in {{group_vars}} ({_EXPECTATIONS})",
}
"""The change of the inventory that ends a finding, by the code of the finding."""
_IDENTITY_CODES = ("gpu_new", "gpu_replaced", "machine_changed", "parts_moved")
"""The codes of findings on changed parts, which an operator can accept."""


def inventory_advice(node: str, sku: str, finding: HealthFinding) -> str:
    """Return the change of the inventory, or the command that accepts parts, or "" for other findings.

    Args:
        node: The name in the inventory.
        sku: The node's SKU, or "" if the inventory has none.
        finding: The finding.
    """
    if finding.code in _IDENTITY_CODES and finding.action == "configure":
        # provision.yml reads this variable, too, but stores no night with the accepted parts.
        return f"ansible-playbook validate.yml -l {node} -e validate_accept_identity=true"
    name = sanitize(sku, 60)
    group_vars = f"the group_vars of SKU {name}" if name else "the group_vars of its SKU"
    return _ADVICE.get(finding.code, "").format(node=node, group_vars=group_vars)
