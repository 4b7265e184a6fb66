"""Read a text file for ``rackproof adopt``, such as a list of nodes or a file that adopt wrote earlier.

The sources that read files, and ``folder``, call :func:`read_text`, which accepts only UTF-8 text of limited
size (:data:`MOST_BYTES`).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from rackproof.jobs.inventory.nodes import MOST_BYTES, AdoptError


def read_text(path: Path) -> str:
    """Return a file's text, without a byte order mark.

    Raises:
        AdoptError: The file cannot be read, is too large, is no regular file, or is no text in UTF-8 without
            NUL characters.
    """
    try:
        # Without O_NONBLOCK, opening a FIFO would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise AdoptError(f"{path} is not a file")
            data = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise AdoptError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(data) > MOST_BYTES:
        raise AdoptError(f"{path} has more than {MOST_BYTES >> 20} MiB: no list of nodes is that long")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise AdoptError(
            f"{path}:{line}: it is not text in UTF-8; convert it (iconv -f LATIN1 -t UTF-8)"
        ) from None
    if "\0" in text:
        raise AdoptError(f"{path} has NUL characters: it is not text")
    return text
