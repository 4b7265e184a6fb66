"""What is known of a run besides its logs: the nodes that took part, and the end of its job."""

from __future__ import annotations

from typing import Any

from rackproof.core.records import Finding, Measurement, Node, Record


class Evidence(Record):
    """What is known of a run besides its logs."""

    nodes: tuple[Node, ...] = ()
    job: dict[str, Any] = {}  # noqa: RUF012  (pydantic copies defaults)
    """State of the job as its supervisor wrote it; empty where no job was started."""
    findings: tuple[Finding, ...] = ()
    """What the nodes' facts say against them."""
    could_not_start: str = ""
    """Why no job was started, or why it was not followed to its end, in words for the operator."""
    command: tuple[str, ...] = ()
    description: str = ""
    storage: str = ""
    network: str = ""
    notes: str = ""
    measurements: tuple[Measurement, ...] = ()
    """What the logs show beside their events: phases, the preflight's bandwidth."""
    container_digest: str = ""
