"""The partitions of a cluster as Slurm lists them. Pure."""

from __future__ import annotations


def read_partitions(listed: str) -> dict[str, dict[str, str]]:
    """Return the partitions: node to the reason why it is out of service, ``none`` where it is in service.

    Args:
        listed: What ``sinfo --noheader --Node --format=%N|%R|%E`` prints.
    """
    partitions: dict[str, dict[str, str]] = {}
    for line in listed.splitlines():
        node, bar, rest = line.strip().partition("|")
        partition, _, reason = rest.partition("|")
        if bar and node and partition:
            partitions.setdefault(partition, {})[node] = reason.strip()
    return partitions
