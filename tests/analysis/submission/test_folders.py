"""Test that a submission is written as a whole or not at all, and never into a foreign folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rackproof.analysis.submission import SubmissionError, build_submission
from rackproof.analysis.submission.description import SystemFile
from rackproof.analysis.submission.models import CopiedFile
from rackproof.analysis.submission.packaging import (
    MANIFEST,
    draft_beside,
    manifest_of,
    put_in_place,
    refuse_strangers,
    write_draft,
)
from rackproof.core.records import Verdict

from .corpus import all_runs, make_run


def tree(folder: Path) -> dict[str, bytes]:
    """Return the content of each file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_package(folder: Path, text: str = "one") -> Path:
    """Write a package as the command would."""
    write_draft({"Org/results/a.txt": text.encode()}, folder)
    write_draft({MANIFEST: manifest_of(folder, {"ruleset": "5.1.0"})}, folder)
    return folder


def _foreign_file(out: Path) -> None:
    out.mkdir()
    (out / "thesis.tex").write_text("mine")


def _manifest_of(text: str) -> Callable[[Path], None]:
    """Return a function that writes a manifest with this text."""

    def write(out: Path) -> None:
        out.mkdir()
        (out / MANIFEST).write_text(text)

    return write


def _foreign_manifest(out: Path) -> None:
    out.mkdir()
    (out / MANIFEST).write_text("[]")


def _edited(out: Path) -> None:
    (write_package(out) / "Org/results/a.txt").write_text("edited")


def _added(out: Path) -> None:
    (write_package(out) / "Org/README.md").write_text("added")


def _removed(out: Path) -> None:
    (write_package(out) / "Org/results/a.txt").unlink()


def _linked(out: Path) -> None:
    (write_package(out) / "Org/link").symlink_to("/")


def _a_file(out: Path) -> None:
    out.write_text("mine")


def _a_link(out: Path) -> None:
    out.symlink_to(out.parent)


STRANGERS = {
    "a foreign folder": (_foreign_file, "is not a submission that Rackproof wrote"),
    **{
        f"a manifest {text[:20]}": (_manifest_of(text), "is not a submission that Rackproof wrote")
        for text in ('{"files": ["a"]}', '{"files": [["a", "b", "c"]]}', '{"files": 5}', "[" * 100_000)
    },
    "a manifest of something else": (_foreign_manifest, "is not a submission that Rackproof wrote"),
    "an edited file": (_edited, r"was changed after Rackproof wrote it \(Org/results/a.txt\)"),
    "an added file": (_added, r"was changed after Rackproof wrote it \(Org/README.md\)"),
    "a removed file": (_removed, r"was changed after Rackproof wrote it \(Org/results/a.txt\)"),
    "a link": (_linked, "was changed after Rackproof wrote it"),
    "a file": (_a_file, "is not a folder"),
    "a link to a folder": (_a_link, "is not a folder"),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_what_rackproof_did_not_write_stays(name: str, tmp_path: Path, system: SystemFile) -> None:
    make, message = STRANGERS[name]
    results, out = tmp_path / "results", tmp_path / "place" / "out"
    out.parent.mkdir()
    make_run(results, 0)
    make(out)
    before = tree(out.parent) if not out.is_symlink() else {}
    with pytest.raises(SubmissionError, match=message) as caught:
        build_submission(all_runs(results), system, out)
    assert "--out" in str(caught.value)
    with pytest.raises(SubmissionError, match=message):
        put_in_place(write_package(draft_beside(out), "new"), out)
    if not out.is_symlink():
        kept = {key: value for key, value in tree(out.parent).items() if not key.startswith(".out.")}
        assert kept == before


def test_a_package_is_replaced_as_a_whole(tmp_path: Path) -> None:
    out = write_package(tmp_path / "out", "old")
    draft = write_package(draft_beside(out), "new")
    refuse_strangers(out)
    put_in_place(draft, out)
    assert (out / "Org/results/a.txt").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_cannot_be_replaced_stays(tmp_path: Path) -> None:
    out = write_package(tmp_path / "out", "old")
    with pytest.raises(SubmissionError, match="cannot put the package at"):
        put_in_place(tmp_path / ".gone.draft", out)
    assert (out / "Org/results/a.txt").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    put_in_place(write_package(draft_beside(tmp_path / "out")), tmp_path / "out")
    assert (tmp_path / "out" / MANIFEST).is_file()


def test_a_log_that_changes_while_it_is_copied(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("other bytes")
    with pytest.raises(SubmissionError, match="changed while it was copied; try again"):
        write_draft({"Org/a": CopiedFile(log, "0" * 64)}, tmp_path / "draft")


def test_a_folder_of_a_run_is_no_place(tmp_path: Path, system: SystemFile) -> None:
    run = make_run(tmp_path / "results", 0)
    with pytest.raises(SubmissionError, match="in the folder of a run"):
        build_submission(
            all_runs(tmp_path / "results"), system, tmp_path / "results" / run.run_id / "package"
        )


def test_no_runs_and_a_run_named_twice(tmp_path: Path, system: SystemFile) -> None:
    make_run(tmp_path, 0)
    with pytest.raises(SubmissionError, match="no runs were chosen"):
        build_submission([], system, tmp_path / "out")
    with pytest.raises(SubmissionError, match="is named more than once"):
        build_submission([*all_runs(tmp_path), *all_runs(tmp_path)], system, tmp_path / "out")
    with pytest.raises(ValueError, match=r"unknown ruleset '5.2.0'; known: .*6.1.0"):
        build_submission(all_runs(tmp_path), system, tmp_path / "out", ruleset="5.2.0")


def test_a_full_disk_leaves_no_package(
    results: Path, system_file: Callable[..., Path], tmp_path: Path
) -> None:
    """The limit on the size of files makes the write of a log fail, as a full disk would."""
    place = tmp_path / "place"
    place.mkdir()
    program = f"""
import pathlib, resource, sys
from rackproof.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
main(["submission", "--latest", "10", "--benchmark", "llama2_70b_lora", "--results", {str(results)!r},
      "--system", {str(system_file())!r}, "--out", {str(place / "out")!r}])
"""
    # With -B, Python writes no compiled modules. The limit would cut them off, and later imports would fail.
    done = subprocess.run(
        [sys.executable, "-B", "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1, done.stdout
    assert "no package was written: cannot write" in done.stderr
    assert "the disk is full" in done.stderr
    assert "Free space there" in done.stderr
    assert list(place.iterdir()) == []


@pytest.mark.slow
def test_killed_at_any_moment_leaves_no_half_package(
    results: Path, system_file: Callable[..., Path], tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    command = [
        sys.executable,
        "-m",
        "rackproof.cli.main",
        "submission",
        "--latest",
        "10",
        "--results",
        results,
    ]
    command += ["--benchmark", "llama2_70b_lora", "--system", system_file(), "--out", place / "out"]
    for _ in range(2):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        until = time.monotonic() + 300
        while not list(place.glob(".out.*.draft/*")) and time.monotonic() < until:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert list(place.glob(".out.*.draft/*"))
        assert not (place / "out").exists()
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    assert json.loads((place / "out" / MANIFEST).read_text())["ruleset"] == "5.1.0"


@pytest.mark.slow
def test_the_same_again_replaces_and_a_failure_leaves_the_former(
    results: Path, system: SystemFile, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert build_submission(all_runs(results), system, out).verdict is Verdict.PASS
    first = tree(out)
    assert build_submission(all_runs(results), system, out).verdict is Verdict.PASS
    assert tree(out) == first
    assert build_submission(all_runs(results)[:9], system, out).verdict is Verdict.UNPROVEN
    assert tree(out) == first


@pytest.mark.slow
def test_nothing_is_written_into_the_results(results: Path, system: SystemFile, tmp_path: Path) -> None:
    before = tree(results)
    build_submission(all_runs(results), system, tmp_path / "out")
    assert tree(results) == before
