"""Remove the label that a launcher puts before each line of a program's output.

A launcher is a program that starts processes, such as srun, mpirun, torchrun or kubectl. With ``srun
--label``, ``mpirun --tag-output`` and similar options, it names the process in front of each line::

     3: GPU 0: OK
    [1,3]<stdout>:GPU 0: OK

The parsers of gpu_burn, nccl-tests, nvbandwidth, perftest, HPL and STREAM call :func:`split_label`, because
their patterns match from the start of a line. :func:`rank_of_label` returns the rank for findings. The module
does no I/O.
"""

from __future__ import annotations

import re

_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?Z| ?[+-]\d\d:?\d\d)?[ \t]"
"""Pattern of a time as ``kubectl logs --timestamps``, ``docker logs -t`` and ``ts`` write it."""
_STREAM = r"[^<>\n]{0,200}<std(?:out|err|diag)>: ?"
"""Pattern of Open MPI's label: ``[1,0]<stdout>:``, ``[prterun-n01-7@1,0]<stdout>: ``, sometimes
with a date before it."""
_RANK = r"[ \t]*\d{1,6}: "
"""Pattern of the label of ``srun --label``; the numbers are right-aligned."""
_BRACKETS = r"[ \t]*\[[A-Za-z0-9_.,:/@ -]{1,120}\]:?(?: |(?=#))"
"""Pattern of the labels of MPICH and Intel MPI (``[0] ``), torchrun (``[default0]:``), and ``kubectl logs
--prefix``. No space is needed before ``#``, with which lines of nccl-tests begin."""
_HOST = r"[A-Za-z][A-Za-z0-9_.-]{0,120}: "
"""Pattern of the label of ``pdsh`` and ``clush``: ``n07: ``."""
_COMPOSE = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,120} {1,40}\| "
"""Pattern of the label of ``docker compose``: ``trainer-1  | ``."""
_LABELS = (
    re.compile(_STREAM),
    re.compile(_RANK),
    re.compile(_BRACKETS),
    re.compile(_HOST),
    re.compile(_COMPOSE),
)
_LEADING_TIME = re.compile(_TIME)
_END_OF_TIME = re.compile(r"(?:\d{4}|\S*\d\d:\d\d\S*)<std")
"""Pattern of the last word of a label with a time and no process: ``Mon Nov 23 04:34:18 2026<stdout>:``."""
_LABEL_NUMBER = re.compile(r"(\d{1,6})\D*$")
"""Pattern of the last number in Open MPI's label, which is the rank: 3 in ``[1,3]``."""


def split_label(text: str) -> tuple[str, str]:
    """Return a launcher's label ("" if there is none), and the line as the program wrote it.

    A time before the label is also removed. It is not part of the label, because callers compare labels.
    """
    if match := _LEADING_TIME.match(text):
        text = text[match.end() :]
    for pattern in _LABELS:
        if match := pattern.match(text):
            label = match[0]
            if pattern is _LABELS[0]:
                label = _process_of(label)
            return label.strip(), text[match.end() :]
    return "", text


def _process_of(label: str) -> str:
    """Return the part of Open MPI's label that names the process, or "" if it is only a time.

    A date before that part differs from line to line.
    """
    process = label[label.rfind("[") :] if "[" in label else label.split()[-1]
    return "" if _END_OF_TIME.match(process) else process


def rank_of_label(label: str) -> int | None:
    """Return the rank in a label: 3 for ``3:``, ``[3]`` or ``[1,3]<stdout>:``, None for a host's label."""
    if label.endswith(":") and label[:-1].isdecimal():
        return int(label[:-1])
    if label.startswith("[") and "<std" in label:
        match = _LABEL_NUMBER.search(label[: label.find("<std")])
        return int(match[1]) if match else None
    inside = label.strip("[]: ")
    return int(inside) if label.startswith("[") and inside.isdecimal() and len(inside) <= 6 else None
