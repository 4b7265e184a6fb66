"""Split off the text that launchers write before the lines of the programs that they start.

The parsers of gpu_burn, nccl-tests, nvbandwidth and perftest recognize a table at the start of its lines.
``srun --label``, ``mpirun --tag-output`` and similar options put a label in front, and mix the lines of
several processes. No I/O.
"""

from __future__ import annotations

import re

_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?Z| ?[+-]\d\d:?\d\d)?[ \t]"
"""Pattern of a time as written by ``kubectl logs --timestamps``, ``docker logs -t``, ``ts``."""
_STREAM = r"[^<>\n]{0,200}<std(?:out|err|diag)>: ?"
"""Pattern of Open MPI's label: ``[1,0]<stdout>:``, ``[prterun-n01-7@1,0]<stdout>: ``, sometimes
with a date before it."""
_RANK = r"[ \t]*\d{1,6}: "
"""Pattern of the label of ``srun --label``; the numbers are right-aligned."""
_BRACKETS = r"[ \t]*\[[A-Za-z0-9_.,:/@ -]{1,120}\]:?(?: |(?=#))"
"""Pattern of labels of MPICH and Intel MPI (``[0] ``), torchrun (``[default0]:``), ``kubectl logs
--prefix``."""
_HOST = r"[A-Za-z][A-Za-z0-9_.-]{0,120}: "
"""Pattern of the label of ``pdsh`` and ``clush``."""
_COMPOSE = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,120} {1,40}\| "
"""Pattern of the label of ``docker compose``."""
_LABELS = (
    re.compile(_STREAM),
    re.compile(_RANK),
    re.compile(_BRACKETS),
    re.compile(_HOST),
    re.compile(_COMPOSE),
)
_LEADING_TIME = re.compile(_TIME)
_LABEL_NUMBER = re.compile(r"(\d{1,6})\D*$")


def split_label(text: str) -> tuple[str, str]:
    """Return a launcher's label ("" if there is none), and the line as the program wrote it.

    A time before the label is also removed, and is not part of the label because it differs from
    line to line.
    """
    if match := _LEADING_TIME.match(text):
        text = text[match.end() :]
    for pattern in _LABELS:
        if match := pattern.match(text):
            label = match[0]
            if pattern is _LABELS[0]:
                # A date before the part that names the process differs from line to line.
                label = label[label.rfind("[") :]
            return label.strip(), text[match.end() :]
    return "", text


def rank_of_label(label: str) -> int | None:
    """Return the rank in a label, or None."""
    if label.endswith(":") and label[:-1].isdigit():
        return int(label[:-1])
    if "<std" in label:
        match = _LABEL_NUMBER.search(label[: label.find("<std")])
        return int(match[1]) if match else None
    inside = label.strip("[]: ")
    return int(inside) if label.startswith("[") and inside.isdigit() and len(inside) <= 6 else None
