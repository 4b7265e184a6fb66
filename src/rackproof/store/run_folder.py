"""Read and write the results folder, which contains a folder with a ``run.json`` for each run.

Every job writes its record through this module. Reports, history and commands read records here.
``results/RUN_ID/run.json`` is the only authoritative record of a run. History and reports can be made again
from this file. A record is therefore written completely or not at all. The error about a damaged record names
the file and the field.

Begin with :func:`write_run`, :func:`read_run` and :func:`iter_runs`. Modules that write other files of the
results folder use :func:`read_file` and :func:`write_file`.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, from_json

from rackproof.core.errors import RackproofError
from rackproof.core.records import SCHEMA_VERSION, Finding, Run, Verdict, worst
from rackproof.store.sealed_json import SealError, has_digest, open_sealed, seal_json

RECORD_NAME = "run.json"
"""File of a run's record in the run's folder."""
RECORD_LIMIT_BYTES = 256 * 2**20
"""Largest size of a ``run.json`` that is read. Logs and long curves do not belong in a record."""

_SLUG_LIMIT = 60
"""Longest name of a benchmark in a run id, in characters."""
_ERRORS_SHOWN = 3
"""Largest number of damaged fields that the message about a record names."""
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Pattern of a byte that is not UTF-8, in the form in which Python decodes it from a command line."""


class ResultsError(RackproofError):
    """A results folder or a record that cannot be used. The message gives the remedy."""


def new_run_id(benchmark: str, *, now: datetime | None = None) -> str:
    """Return a new run id from UTC time, benchmark and a random suffix: ``20260131T020000Z-gemm-0a1b2c``.

    Ids sort by time, to the second, and can be used as a file name. Two ids of the same second may be equal
    by chance. A caller that makes hundreds of them at once must compare them.

    Args:
        benchmark: The name of the benchmark. Letters become lower case, and each sequence of characters other
            than ASCII letters, digits, dots and underscores becomes one ``-``.
        now: The time to use, with a time zone. The default is the current time.
    """
    moment = (now or datetime.now(UTC)).astimezone(UTC)
    slug = re.sub(r"[^a-z0-9._]+", "-", benchmark.lower())[:_SLUG_LIMIT].strip("-.") or "run"
    return f"{moment:%Y%m%dT%H%M%SZ}-{slug}-{secrets.token_hex(3)}"


def stamp_of(run_id: str) -> datetime | None:
    """Return the time that :func:`new_run_id` wrote into an id, or ``None`` for any other id."""
    try:
        return datetime.strptime(run_id[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None


def slug_of(run_id: str) -> str:
    """Return the part of a run's id between its time and its random suffix, which names the benchmark."""
    return run_id.partition("-")[2].rpartition("-")[0]


def dump_run(run: Run) -> bytes:
    """Return the text of ``run.json`` with its digest at the beginning.

    The text is UTF-8, indented, and ends with a line feed. If a command line or an environment contains bytes
    that are not UTF-8, U+FFFD replaces them, because JSON cannot represent them.
    """
    try:
        text = run.model_dump_json(indent=2)
    except PydanticSerializationError:
        text = Run.model_validate(_without_surrogates(run.model_dump())).model_dump_json(indent=2)
    return seal_json(text + "\n")


def load_run(data: bytes, name: str) -> Run:
    """Return the run in the content of a ``run.json``. A run whose record has no digest is at best unproven.

    Args:
        data: The bytes of the record.
        name: The name of the record in an error, usually its path.

    Raises:
        ResultsError: The data is damaged, made by a newer Rackproof, or not a record. The message names the
            field.
    """
    text, loaded, is_sealed = _open_record(data, name)
    # Check the version before the schema. Otherwise, a newer record would be called damaged.
    _check_version(loaded, name)
    run = _parsed_run(text, name)
    if "verdict" not in loaded:
        # A missing verdict would be read as "unproven", whatever the result of the run.
        raise ResultsError(f"{name} is damaged: verdict: is missing. Restore it from a backup.")
    if problem := _part_worse_than_verdict(run):
        raise ResultsError(f"{name} is damaged: {problem}. Restore it from a backup.")
    return run if is_sealed else _unproven(run)


def _open_record(data: bytes, name: str) -> tuple[bytes, dict[str, Any], bool]:
    """Return a record's text without its digest, its JSON object, and whether it had a digest.

    Raises:
        ResultsError: The record was changed, is not whole JSON, or is no JSON object.
    """
    try:
        loaded = from_json(data)
        sealed = has_digest(data)
        data = open_sealed(data) if sealed else data
    except SealError:
        raise ResultsError(
            f"{name} was changed after it was written: its digest does not match. Restore it from a backup, "
            "or move its folder out of the results folder and run it again."
        ) from None
    except ValueError as error:
        raise ResultsError(
            f"{name} is damaged: it is not whole JSON ({error}). Restore it from a backup, or move its "
            "folder out of the results folder."
        ) from None
    if not isinstance(loaded, dict):
        raise ResultsError(f"{name} is not the record of a run: it holds no JSON object.")
    return data, loaded, sealed


def _check_version(loaded: Mapping[str, Any], name: str) -> None:
    """Refuse a record of a newer Rackproof."""
    version = loaded.get("schema_version", SCHEMA_VERSION)
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise ResultsError(
            f"{name} was written by a newer Rackproof (record version {version}, this one reads up to "
            f"{SCHEMA_VERSION}). Use that Rackproof or a later one."
        )


def _parsed_run(text: bytes, name: str) -> Run:
    """Return the run in a record's text, or refuse a damaged record with the names of its fields."""
    try:
        # Parse the bytes again, because JSON mode reads "NaN", dates and tuples as they were written.
        return Run.model_validate_json(text)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        errors_text = "; ".join(
            f"{'.'.join(map(_printable, problem['loc'])) or 'record'}: {_printable(problem['msg'])}"
            for problem in problems[:_ERRORS_SHOWN]
        )
        more = f" (and {len(problems) - _ERRORS_SHOWN} more)" if len(problems) > _ERRORS_SHOWN else ""
        raise ResultsError(f"{name} is damaged: {errors_text}{more}") from None


def _unproven(run: Run) -> Run:
    """Return a run as at best unproven, because no digest in its record shows whether it was changed."""
    reason = "its record has no digest: an earlier version wrote it, or it was changed. Run it again"
    missing = Finding(code="no_digest", verdict=Verdict.UNPROVEN, message=reason)
    verdict = worst([run.verdict, Verdict.UNPROVEN])
    return run.model_copy(update={"verdict": verdict, "findings": (*run.findings, missing)})


def _part_worse_than_verdict(run: Run) -> str:
    """Return the first part of a record that is worse than its verdict, or "".

    The check finds a changed verdict even in records of earlier versions, which lack a digest.
    """
    parts = [(f"the judgement of {item.metric}", item.verdict) for item in run.judgements if item.gating]
    parts += [(f"the finding {item.code}", item.verdict) for item in run.findings if item.verdict]
    for name, verdict in parts:
        if worst([verdict, run.verdict]) is not run.verdict:
            return f"verdict: is {run.verdict.value}, but {name} is {verdict.value}"
    return ""


def write_run(run: Run, folder: Path) -> Path:
    """Write ``folder/run.json`` completely or not at all, and return its path.

    The folder (``results/RUN_ID``) is created if it is missing. An existing record is replaced in one
    step, so that a reader gets the old or the new one, even after a crash.

    Raises:
        ResultsError: The folder is not writable (the message names folder and owner), the disk is full, or
            another file-system error occurred.
    """
    path = folder / RECORD_NAME
    write_file(path, dump_run(run))
    return path


def read_run(path: Path) -> Run:
    """Return the run stored in a run folder or in a ``run.json``.

    Raises:
        ResultsError: The record is missing, unreadable, damaged or too new. The message names file and field.
    """
    file = path / RECORD_NAME if path.is_dir() else path
    try:
        data = read_file(file, RECORD_LIMIT_BYTES)
    except FileNotFoundError:
        raise ResultsError(f"no run here: {file} does not exist") from None
    except OSError as error:
        raise ResultsError(f"cannot read {file}: {error.strerror}{_owner_note(file)}") from None
    return load_run(data, str(file))


def run_folders(results: Path) -> Iterator[Path]:
    """Yield the run folders of a results folder, sorted by name. Names that Rackproof gives sort by time.

    Links (such as ``latest``) and hidden folders are not runs. A results folder that does not exist contains
    no runs.

    Raises:
        ResultsError: The results folder exists but cannot be listed.
    """
    try:
        entries = sorted(entry for entry in results.iterdir() if not entry.name.startswith("."))
    except FileNotFoundError:
        return
    except OSError as error:
        raise ResultsError(
            f"cannot list the results in {results}: {error.strerror}{_owner_note(results)}"
        ) from None
    for entry in entries:
        if not entry.is_symlink() and (entry / RECORD_NAME).is_file():
            yield entry


def iter_runs(results: Path, *, on_error: Callable[[ResultsError], None] | None = None) -> Iterator[Run]:
    """Yield every run of a results folder, in the order of :func:`run_folders`.

    Args:
        results: The results folder.
        on_error: A function that is called with the error about a damaged record, which is then skipped. If
            it is None, the first damaged record raises its error.

    Raises:
        ResultsError: A record is damaged and there is no ``on_error``, or the folder cannot be listed.
    """
    yield from (run for run, _ in iter_runs_with_folders(results, on_error=on_error))


def iter_runs_with_folders(
    results: Path, *, on_error: Callable[[ResultsError], None] | None = None
) -> Iterator[tuple[Run, Path]]:
    """Yield every run of a results folder with its folder, whose name may differ from the run's id.

    The arguments and errors are those of :func:`iter_runs`.
    """
    for folder in run_folders(results):
        try:
            run = read_run(folder)
        except ResultsError as error:
            if on_error is None:
                raise
            on_error(error)
            continue
        yield run, folder


def read_file(path: Path, limit: int) -> bytes:
    """Return the bytes of a regular file of at most ``limit`` bytes.

    Raises:
        OSError: The file cannot be read, is larger, or is not a regular file.
    """
    # Opening a pipe would wait for a writer, possibly forever.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:
        state = os.fstat(stream.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file", str(path))
        if state.st_size > limit:
            raise OSError(errno.EFBIG, f"it has {state.st_size} bytes, more than {limit}", str(path))
        return stream.read(limit)


def write_file(path: Path, data: bytes) -> None:
    """Write a file completely or not at all.

    The data goes to a temporary file beside it, which is flushed to the disk and then renamed. Missing
    folders are created. After a failure, no temporary file remains.

    Raises:
        ResultsError: The path is a device or folder or not writable (the message names folder and owner), the
            disk is full, or another file-system error occurred.
    """
    folder = path.parent
    # Write the draft beside the target, because a rename is atomic only within one file system.
    draft = folder / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            # A rename would replace a device by a file, for every user of this machine.
            raise ResultsError(f"{path} is there and is not a file: name another one")
        try:
            with open(draft, "xb") as stream:
                stream.write(data)
                stream.flush()
                # Flush before the rename, so that after a power failure the name does not refer to an
                # empty file.
                os.fsync(stream.fileno())
            os.replace(draft, path)
        except BaseException:
            # Remove the draft after an interrupt, too.
            draft.unlink(missing_ok=True)
            raise
        _flush_folder(folder)
    except OSError as error:
        raise ResultsError(_explain(error, path)) from None


def _flush_folder(folder: Path) -> None:
    """Make a rename in ``folder`` survive a power failure."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems cannot flush a folder. The file itself is already safe.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def _explain(error: OSError, path: Path) -> str:
    """Describe the error that prevented writing ``path``, and the remedy."""
    folder = path.parent
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        cause = "the quota is used up" if error.errno == errno.EDQUOT else "the disk is full"
        return (
            f"cannot write {path}: {cause} ({error.strerror}). Free space there, or name another "
            "folder; nothing half-written was left."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        why = "it is on a read-only file system" if error.errno == errno.EROFS else "not permitted"
        return (
            f"cannot write {path}: {why}{_owner_note(folder)}. Give this user the right to write there, or "
            "name another folder."
        )
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return f"cannot write {path}: there is a file where a folder is needed ({error.filename})."
    return f"cannot write {path}: {error.strerror or error}{_owner_note(folder)}"


def why_unwritable(folder: Path) -> str:
    """Return why this user can neither create nor write a folder, or "" if the user can."""
    place = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    if not place.is_dir():
        return f"cannot write {folder}: {place} is a file"
    if os.access(place, os.W_OK | os.X_OK):
        return ""
    return f"cannot write {folder}: not permitted{_owner_note(place)}"


def _owner_note(path: Path) -> str:
    """Return a note on why the user may not use ``path`` or its nearest existing parent, or "".

    The note gives the owner, or the mode if the user is the owner but has no right to write.
    """
    for place in (path, *path.parents):
        try:
            facts = place.stat()
        except OSError:
            continue
        if facts.st_uid == os.geteuid():
            mode = stat.S_IMODE(facts.st_mode)
            return "" if mode & stat.S_IWUSR else f" ({place} is your own, but its mode is {mode:o})"
        return f" ({place} belongs to {_user(facts.st_uid)}, this is {_user(os.geteuid())})"
    return ""


def _user(number: int) -> str:
    """Return the name of a user, or the number if there is no name."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _printable(part: object) -> str:
    """Return a part of a damaged record as short text that is safe for a terminal."""
    return "".join(sign if sign.isprintable() else "?" for sign in str(part))[:200]


def _without_surrogates(value: Any) -> Any:
    """Return data in which U+FFFD replaces bytes that were not UTF-8."""
    if isinstance(value, str):
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_without_surrogates(item) for item in value)
    return value
