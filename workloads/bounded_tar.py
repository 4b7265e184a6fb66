"""Read tar archives from untrusted sources with limits for memory, size and number of members.

Programs that stage data or sources open archives with :class:`Member`. Without it, ``tarfile`` reads a long
name or a PAX header of any size into memory, and loops without end over some damaged headers.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator
from typing import Any

try:
    from lzma import LZMAError
except ImportError:  # Such a Python reads no .xz.
    LZMAError = tarfile.ReadError  # type: ignore[assignment,misc]

MEMBER_BYTES = 1 << 15
"""Bytes that each member counts in addition to its size, so that the number of members is limited, too."""
MOST_HEADER_BYTES = 1 << 20
"""Largest size of a long name or a PAX header. A path has at most 4096 bytes."""
MOST_GLOBAL_KEYS = 100
"""Largest number of PAX keys that apply to all later members."""
_HEADERS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
"""Types of the headers whose content ``tarfile`` keeps in memory."""


DAMAGE = (tarfile.TarError, EOFError, LZMAError, OSError, zlib.error)
"""The errors of an archive that is cut off or damaged, and of the disk."""


class TooLargeError(tarfile.TarError):
    """An archive that unpacks to more than is allowed."""


class Member(tarfile.TarInfo):
    """A member of an archive. Headers that only damaged or malicious archives have raise an error."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        if self.type in _HEADERS and self.size > MOST_HEADER_BYTES:
            raise tarfile.ReadError(f"a header has {self.size} bytes")
        if self.size < 0:
            raise tarfile.ReadError("a member has a negative size")
        try:
            found = super()._proc_member(archive)  # type: ignore[misc]
        except RecursionError:
            raise tarfile.ReadError("a member has too many headers") from None
        if found.size < 0 or len(archive.pax_headers) > MOST_GLOBAL_KEYS:
            raise tarfile.ReadError("a member has a negative size, or too many keys")
        # tarfile has applied these headers already, and would keep them in memory with every member.
        found.pax_headers = {}
        return found

    def _refuse_sparse(self, *_: Any) -> Any:
        raise tarfile.ReadError("a member is a sparse file")

    # The map of a sparse file can make tarfile read for ever, and the file can state any size.
    _proc_sparse = _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


def members(archive: tarfile.TarFile, most_bytes: int) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an archive.

    Raises:
        TooLargeError: Their sizes, and :data:`MEMBER_BYTES` for each, exceed ``most_bytes``.
    """
    size = 0
    for member in archive:
        size += member.size + MEMBER_BYTES
        if size > most_bytes:
            raise TooLargeError(f"it unpacks to more than {most_bytes:,} bytes")
        yield member
