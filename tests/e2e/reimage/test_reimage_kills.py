"""Test that reimage.yml, killed in a step or with a full disk, resumes no node without an acceptance.

The playbook writes the start and end of each step into the node's journal. The tests kill it with all its
processes in each step, and fill the file system of the results before and during a run. A drained node stays
drained until it has passed the acceptance. The command continues the node when it is given again, and writes
no finished image a second time.
"""

from __future__ import annotations

import functools
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rackproof.jobs.reimage import run_files, tasks
from rackproof.jobs.reimage.lifecycle import STEPS, NodeProgress, Step
from rackproof.store import host_claims

if TYPE_CHECKING:
    from .conftest import Rack

pytestmark = pytest.mark.playbook
DRAIN_REASON = "rackproof-reimage: gets a new image"


def read_node_progress(results: Path) -> NodeProgress | None:
    """Return the progress of n01 from its newest journal, or None if it has none yet."""
    found = tasks.read_progress(results, ["n01"])
    return found[0].progress if found else None


# The method `rack` has no step BOOT. test_reimage_by_image kills the method `image` in that step.
RACK_STEPS = tuple(step for step in STEPS if step is not Step.BOOT)


def allowed_steps(step: Step) -> tuple[Step, ...]:
    """Return the steps in which a journal may be if its run was killed in this step.

    The playbook may have ended the step before the signal reached it, and may have started the next one.
    Between RECORD and IMAGE, the journal is in BOOT until it notes that this step is skipped.
    """
    last = RACK_STEPS[RACK_STEPS.index(step) :][:2][-1]
    return STEPS[STEPS.index(step) : STEPS.index(last) + 1]


def test_a_run_killed_in_any_step_continues_and_resumes_only_an_accepted_node(rack: Rack) -> None:
    """Each run continues the previous one, and is killed one step later. The last run is not killed."""
    results = rack.results

    def is_inside(step: Step, attempt: int, images: int) -> bool:
        """Return whether this attempt, which began after a number of images, is in the step."""
        now = read_node_progress(results)
        if now is None or (now.state, now.step, now.attempt) != ("running", step, attempt):
            return False
        # In DRAIN, wait until the node is drained while its job still runs. In IMAGE, wait until the image is
        # being written. In other steps, the start of the step is enough.
        if step is Step.IMAGE:
            return len(rack.renewed) > images
        return step is not Step.DRAIN or bool(rack.drained())

    # A job on the node makes the first step wait.
    rack.fleet.set_slurm(jobs={"n01": "77"})
    for number, step in enumerate(RACK_STEPS, 1):
        words = ("-e", '{"reimage_limits": {"drain": 60}}') if step is Step.DRAIN else ()
        rack.mark("n01", "hold-image", on=step is Step.IMAGE)
        images = len(rack.renewed)
        rack.killed_when(functools.partial(is_inside, step, number, images), "-l", "n01", *words)
        assert not host_claims.claimed_hosts(results / run_files.CLAIMS), step
        now = read_node_progress(results)
        assert now is not None
        assert (now.state, now.attempt) == ("interrupted", number), step
        assert now.step in allowed_steps(step), step
        if step is Step.RETURN:
            # The node may already be resumed, but then it passed validation in this attempt.
            assert Step.VALIDATE in now.done
        else:
            assert rack.drained() == {"n01": DRAIN_REASON}, step
        # The run that is killed in IMAGE starts an image, and the next run writes it again. The run that is
        # killed in RECORD may have started one, too.
        started = {Step.RECORD: (0, 1), Step.IMAGE: (1,), Step.FIRST_BOOT: (1,)}.get(step, (0,))
        assert len(rack.renewed) - images in started, step
        rack.fleet.set_slurm(jobs={})

    done = rack.reimage("-l", "n01")
    assert done.returncode == 0, done.stdout + done.stderr
    now = read_node_progress(results)
    assert now is not None
    assert (now.state, now.attempt) == ("returned", len(RACK_STEPS) + 1)
    assert rack.drained() == {}
    # The interrupted image was written again, the finished one was not.
    assert len(rack.renewed) == images
    # The record of the hardware from before the first image was kept for the comparison.
    assert (run_files.run_folders(results)[0] / "before/n01.json").exists()


@pytest.fixture
def small(rack: Rack) -> Iterator[Path]:
    """Return a results folder on a separate file system of 2 MiB."""
    place = rack.folder / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a separate file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(folder: Path) -> Path:
    """Use up all free space. Return the file that uses it."""
    path = folder / "filler"
    with path.open("ab", buffering=0) as stream:
        for size in (65536, 4096, 512):
            try:
                while True:
                    stream.write(bytes(size))
            except OSError:
                continue
    return path


def test_with_a_full_disk_no_node_is_touched(rack: Rack, small: Path) -> None:
    fill(small)
    done = rack.reimage("-l", "n01", "-e", f"reimage_results={small}")
    assert done.returncode != 0
    assert "No space left" in done.stdout or "the disk is full" in done.stdout, done.stdout
    assert rack.drained() == {}
    assert rack.renewed == []


def test_a_disk_that_fills_up_in_a_step_leaves_the_node_drained_and_a_failed_entry(
    rack: Rack, small: Path
) -> None:
    rack.mark("n01", "hold")
    rack.mark("n01", "broken")
    argv, options = rack.command(
        "reimage.yml", "-e", "reimage_method=rack", "-l", "n01", "-e", f"reimage_results={small}"
    )
    process = subprocess.Popen(argv, **options, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    end = time.monotonic() + 100
    while (now := read_node_progress(small)) is None or (now.state, now.step) != ("running", Step.PROVISION):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.1)
    filler = fill(small)
    rack.mark("n01", "hold", on=False)
    said = process.communicate(timeout=200)[0]
    assert process.returncode != 0
    # The journal reserved the space for this entry before the step started.
    path = run_files.journal_path(run_files.run_folders(small)[0], "n01")
    last = run_files.read_journal(path)[-1]
    assert (last.event, last.step) == ("failed", Step.PROVISION), said
    assert "Mount the storage" in last.reason
    assert rack.drained() == {"n01": DRAIN_REASON}
    # A second attempt on the full disk changes nothing. With free space, it continues.
    done = rack.reimage("-l", "n01", "-e", f"reimage_results={small}")
    assert done.returncode != 0
    assert rack.drained() == {"n01": DRAIN_REASON}
    filler.unlink()
    rack.mark("n01", "broken", on=False)
    done = rack.reimage("-l", "n01", "-e", f"reimage_results={small}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert rack.drained() == {}
    assert rack.renewed == ["n01"]
