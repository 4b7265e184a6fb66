"""Summarize a run of ``provision.yml`` with its changes and open problems by node.

The callback (``rackproof_ansible.playbook_summary``) prints the text of :func:`provision_summary` at the end
of the playbook.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rackproof.core.hostlist import compress_hostlist
from rackproof.core.same_reason import general_reason
from rackproof.core.text import sanitize

MAX_ATTENTION = 600
"""Largest number of characters of a remark that are shown. An error message of apt can be longer."""


def provision_summary(
    changed: Mapping[str, Iterable[str]], attention: Mapping[str, Iterable[str]], predicted: bool = False
) -> str:
    """Return the summary of a playbook.

    Args:
        changed: The names of the tasks that changed something, by node. The list of an unchanged node is
            empty.
        attention: The remarks by node.
        predicted: Whether the playbook ran in check mode.

    Returns:
        A paragraph for each group of nodes with the same outcome, the largest group first.
    """
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for node in sorted(changed.keys() | attention.keys()):
        # Remove the node's name from its remarks. Otherwise, a hundred nodes with the same problem would
        # need a hundred lines.
        remarks = tuple(
            general_reason(sanitize(text, limit=MAX_ATTENTION), node) for text in attention.get(node, ())
        )
        groups.setdefault((tuple(changed.get(node, ())), remarks), []).append(node)
    lines = []
    for (tasks, remarks), nodes in sorted(groups.items(), key=lambda entry: (-len(entry[1]), entry[1])):
        count = f" ({len(nodes)} nodes)" if len(nodes) > 1 else ""
        verb = "would change" if predicted else "changed"
        did = f"{len(tasks)} {verb}" if tasks else f"nothing {verb}"
        lines.append(f"{compress_hostlist(nodes)}{count}: {did}")
        lines += [f"    {sanitize(task)}" for task in tasks]
        if len(nodes) == 1:
            remarks = tuple(sanitize(text, limit=MAX_ATTENTION) for text in attention.get(nodes[0], ()))
        lines += [f"    ATTENTION {remark}" for remark in remarks]
    return "\n".join(lines)
