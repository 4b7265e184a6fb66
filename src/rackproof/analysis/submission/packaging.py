"""Write the files of a package for :mod:`.building`, completely or not at all.

:func:`lay_out` lists the files, :func:`write_draft` writes them into a draft beside the output folder,
:func:`manifest_of` lists what was written, and :func:`put_in_place` renames the draft. Begin with
:func:`lay_out`.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from rackproof import __version__
from rackproof.analysis.submission.description import SystemFile
from rackproof.analysis.submission.models import ChosenRun, CopiedFile, Files, Issue, SubmissionError
from rackproof.analysis.submission.runs import LARGEST_FILE_BYTES
from rackproof.core.records import Run, Verdict
from rackproof.core.text import amount, sanitize, whole_number
from rackproof.store.run_folder import RECORD_NAME, ResultsError, write_file

MANIFEST = "rackproof-submission.json"
"""Name of the manifest beside the submitter's folder, which lists the runs in the package, and the SHA-256 of
each file that Rackproof wrote."""

# Files in a run's folder that serve to repeat it, such as configuration, run scripts and code.
_CODE = ("config_*.sh", "*.sub", "*.sh", "*.py", "*.patch", "Dockerfile*", "requirements*.txt")
# Git hosts and the repository checker of the rules refuse spaces and leading dots.
_GIT_FRIENDLY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*(?:/[A-Za-z0-9_][A-Za-z0-9._+-]*)*")


def code_files(chosen_run: ChosenRun) -> dict[str, CopiedFile]:
    """Return the configuration and scripts in a run's folder and its subfolders, by their relative path.

    Files of other kinds than :data:`_CODE`, the run's logs, links, hidden files, and files that are too large
    for a repository of the round or have a path that is not valid there are left out.

    Raises:
        OSError: A file cannot be read.
    """
    logs = {log.path for log in chosen_run.run.logs}
    files = {}
    for folder, subfolders, names in os.walk(chosen_run.folder):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in sorted(names):
            path = Path(folder, name)
            relative = path.relative_to(chosen_run.folder).as_posix()
            if relative not in logs and _is_code(path, relative):
                with path.open("rb") as stream:
                    files[relative] = CopiedFile(path, hashlib.file_digest(stream, "sha256").hexdigest())
    return files


def _is_code(path: Path, relative: str) -> bool:
    """Return whether a file is configuration or a script that is valid in a git repository of the round."""
    if not any(fnmatch.fnmatchcase(path.name, pattern) for pattern in _CODE):
        return False
    if not _GIT_FRIENDLY.fullmatch(relative):
        return False
    # A link could point to any file of the site.
    return path.is_file() and not path.is_symlink() and path.stat().st_size <= LARGEST_FILE_BYTES


def lay_out(
    system: SystemFile,
    description: Mapping[str, Any],
    groups: Mapping[str, Sequence[ChosenRun]],
    *,
    ruleset: str,
) -> tuple[Files, list[Issue]]:
    """Return the files of the package, and issues about the code in it.

    ``scaling.json``, which the official checker writes, and the manifest are added later.

    Args:
        system: The operator's statements about the system, with the names of the folders.
        description: The system description.
        groups: The runs of each benchmark, in the order of ``result_<i>.txt``.
        ruleset: The ruleset of the round.

    Raises:
        OSError: A code file in a run's folder cannot be read.
    """
    top = system.submitter_folder
    text = json.dumps(description, indent=4, ensure_ascii=True) + "\n"
    files: Files = {f"{top}/systems/{system.system}.json": text.encode()}
    issues: list[Issue] = []
    for benchmark, chosen in groups.items():
        for index, run in enumerate(chosen):
            files[f"{top}/{result_path(system, benchmark, index)}"] = CopiedFile(run.path, run.log.sha256)
        code, problems = _common_code(chosen)
        issues += problems
        folder = f"{top}/benchmarks/{benchmark}/implementations/{system.implementation}"
        files |= {f"{folder}/{name}": file for name, file in code.items()}
        readme = implementation_readme(benchmark, chosen, tuple(code), ruleset=ruleset)
        files[f"{folder}/README.md"] = readme.encode()
    return files, issues


def result_path(system: SystemFile, benchmark: str, index: int) -> str:
    """Return the path of a result log below the submitter's folder."""
    return f"results/{system.system}/{benchmark}/result_{index}.txt"


def _common_code(chosen: Sequence[ChosenRun]) -> tuple[dict[str, CopiedFile], list[Issue]]:
    """Return all code files of a benchmark's runs, and an issue for each that differs between runs.

    If there are none, the only issue is a remark about this.
    """
    code: dict[str, CopiedFile] = {}
    owner: dict[str, ChosenRun] = {}
    issues = []
    for run in chosen:
        for name, file in code_files(run).items():
            if name not in code:
                code[name], owner[name] = file, run
            elif file.sha256 != code[name].sha256:
                issues.append(
                    Issue(
                        code="code_differs",
                        verdict=Verdict.FAIL,
                        run=run.run.run_id,
                        file=name,
                        message=f"differs from the same file of run {owner[name].run.run_id}",
                        remedy="choose runs made with one configuration",
                    )
                )
    if not code:
        issues.append(
            Issue(
                code="no_code",
                message=f"the run folders of {chosen[0].benchmark} hold no configuration or scripts",
                remedy="copy the code that ran into the implementation's folder before you hand it in: "
                "the rules require all that reproduces the result",
            )
        )
    return code, issues


def implementation_readme(
    benchmark: str, chosen: Sequence[ChosenRun], code: Sequence[str], *, ruleset: str
) -> str:
    """Return the README of an implementation, which describes its runs from their records.

    The environment of the runs is left out, because it contains paths and accounts of the site.
    """
    lines = [f"# {benchmark}, MLPerf Training {ruleset}", ""]
    for title, value_of in _README_FACTS:
        lines += [f"- {title}: {value}" for value in _values(value_of(run.run) for run in chosen)]
    seeds = _seeds(chosen)
    if seeds:
        lines.append(f"- Seeds of result_0 … result_{len(chosen) - 1}: {', '.join(map(str, seeds))}")
    commands = _values(" ".join(run.run.command) for run in chosen)
    lines += _section("Command", [f"    {command}" for command in commands])
    lines += _section("Files", [f"- `{name}`" for name in sorted(code)])
    lines += ["", f"Written by Rackproof {__version__} from the records of {amount(len(chosen), 'run')}.", ""]
    return "\n".join(lines)


def _section(title: str, lines: Sequence[str]) -> list[str]:
    """Return a section of the README. If it would be empty, return an empty list."""
    return ["", f"## {title}", "", *lines] if lines else []


def _container(run: Run) -> str:
    return f"{run.container} {run.container_digest}"


def _dataset(run: Run) -> str:
    return run.dataset.name if run.dataset else ""


def _parameters(run: Run) -> str:
    return ", ".join(f"{key} {value}" for key, value in run.parameters.items())


_README_FACTS: tuple[tuple[str, Callable[[Run], str]], ...] = (
    ("Container", _container),
    ("Started with", attrgetter("launcher")),
    ("Data set", _dataset),
    ("Configuration", attrgetter("configuration")),
    ("Parameters", _parameters),
)


def _seeds(chosen: Sequence[ChosenRun]) -> list[int]:
    """Return the seeds of all runs in order, from their records or else from their logs.

    A run may have several seeds or none.
    """
    seeds: list[int] = []
    for run in chosen:
        stated = whole_number(run.stated.get("seed", ""))
        seeds += run.run.seeds or (() if stated is None else (stated,))
    return seeds


def _values(texts: Any) -> list[str]:
    """Return the distinct texts that are not empty. Backticks, which are Markdown, become apostrophes."""
    return [text for text in dict.fromkeys(sanitize(text, 1000).replace("`", "'") for text in texts) if text]


def write_draft(files: Files, draft: Path) -> None:
    """Write files of a package into its draft, whose folders are created.

    Raises:
        SubmissionError: The disk is full, the folder is not writable, or a file to copy is unreadable or
            changed.
    """
    for name, content in files.items():
        data = _read(content) if isinstance(content, CopiedFile) else content
        try:
            write_file(draft / name, data)
        except ResultsError as error:
            raise SubmissionError(f"no package was written: {error}") from None


def _read(file: CopiedFile) -> bytes:
    """Return a file's content, if it has the checksum of the copy.

    Raises:
        SubmissionError: The file cannot be read, or its content changed.
    """
    try:
        data = file.path.read_bytes()
    except OSError as error:
        raise SubmissionError(f"no package was written: cannot read {file.path}: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise SubmissionError(f"no package was written: {file.path} changed while it was copied; try again")
    return data


def manifest_of(draft: Path, facts: Mapping[str, Any]) -> bytes:
    """Return the manifest of a written package, with facts about it and the SHA-256 of every file."""
    return (json.dumps({**facts, "files": _hashes(draft)}, indent=2) + "\n").encode()


def _hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a package but the manifest, by its relative path."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / MANIFEST
    }


def refuse_strangers(out: Path) -> None:
    """Check that an output folder is absent, empty, or an unchanged package of Rackproof.

    Raises:
        SubmissionError: The path is not a folder, has no manifest, or a file in it was added, changed or
            removed. The message names the first such file.
    """
    if not os.path.lexists(out):
        return
    if out.is_symlink() or not out.is_dir():
        raise SubmissionError(f"{out} is not a folder; name another one with --out")
    if not any(out.iterdir()):
        return
    change = _change_since(out)
    if change:
        raise SubmissionError(
            f"{out} was changed after Rackproof wrote it ({change}), so it stays as it is; "
            "move it away, or name another folder with --out"
        )


def _change_since(out: Path) -> str:
    """Return the first file of a package that differs from its manifest, or ``a link in it``.

    The result is "" if the package is unchanged.

    Raises:
        SubmissionError: The folder contains no manifest, so Rackproof did not write it.
    """
    try:
        recorded = dict(json.loads((out / MANIFEST).read_bytes())["files"])
        hashes = _hashes(out)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise SubmissionError(
            f"{out} is not a submission that Rackproof wrote (it has no {MANIFEST}), so it stays as it is; "
            "name another folder with --out"
        ) from None
    changed: list[str] = [
        name for name in sorted({*recorded, *hashes}) if recorded.get(name) != hashes.get(name)
    ]
    if changed:
        return changed[0]
    # The hashes follow links, so a link to the same content would be accepted as the file.
    return "a link in it" if any(path.is_symlink() for path in out.rglob("*")) else ""


def draft_beside(out: Path) -> Path:
    """Return a path on the same file system as ``out``, so that a rename puts the package there."""
    return out.parent / f".{out.name}.{os.getpid()}.{secrets.token_hex(4)}.draft"


def put_in_place(draft: Path, out: Path) -> None:
    """Rename a complete draft to ``out``. An earlier package by Rackproof is replaced.

    Raises:
        SubmissionError: ``out`` has contents other than an unchanged package of Rackproof, or cannot be
            replaced. The old contents remain.
    """
    # Check again, because the checks of a package take minutes, and a file may be added meanwhile.
    refuse_strangers(out)
    former = draft.with_suffix(".former")
    try:
        if out.exists():
            os.rename(out, former)
        try:
            os.rename(draft, out)
        except OSError:
            with contextlib.suppress(OSError):
                os.rename(former, out)
            raise
    except OSError as error:
        raise SubmissionError(
            f"cannot put the package at {out}: {error.strerror}; name another folder with --out"
        ) from None
    shutil.rmtree(former, ignore_errors=True)


def is_run_folder(path: Path) -> bool:
    """Return whether a path is, or is inside, a run's folder, which must not contain a package."""
    return any((folder / RECORD_NAME).is_file() for folder in (path, *path.parents))
