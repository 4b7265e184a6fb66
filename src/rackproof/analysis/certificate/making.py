"""Make a certificate from a results folder, for the command in :mod:`rackproof.cli.evidence`.

The command then signs the certificate, and writes its page.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rackproof import __version__
from rackproof.analysis.certificate.answering import answer_catalogue, whole_verdict
from rackproof.analysis.certificate.gathering import Gathered
from rackproof.analysis.certificate.models import Catalogue, Certificate
from rackproof.store.history.repository import Store


def make_certificate(
    results: Path,
    store: Store,
    catalogue: Catalogue,
    asked: Sequence[str],
    *,
    now: datetime,
    command: Sequence[str] = (),
) -> Certificate:
    """Return the certificate of some nodes for a catalogue.

    Args:
        results: The results folder.
        store: The history of the results folder.
        catalogue: The requirements.
        asked: Names of the nodes.
        now: The time of the answers.
        command: The command that makes the certificate.

    Raises:
        ResultsError: The results folder cannot be listed.
        HistoryError: The history cannot be read.
    """
    gathered = Gathered(results, store, catalogue, asked, now)
    answers = answer_catalogue(catalogue.requirements, asked, gathered.nodes, gathered.evidence, now)
    return Certificate(
        made=now,
        made_by=f"{getpass.getuser()}@{socket.gethostname()}",
        command=tuple(command),
        rackproof_version=__version__,
        verdict=whole_verdict(answers),
        asked=tuple(asked),
        nodes=gathered.nodes,
        catalogue=catalogue,
        answers=answers,
        evidence=gathered.evidence,
    )
