"""Test bench.yml with the run scripts (run.sub) that submitters published for MLPerf Training 5.1.

Each of the six submissions runs on two nodes of the test rack, with its own scripts and a fake training. For
flux1, the config is the test rack's. The test shows that Rackproof starts a published script unchanged, and
judges its log.

The scripts are not in this repository, so only `make proofs UPSTREAM=FOLDER` runs these tests (suite
upstream). FOLDER is a checkout of mlcommons/training_results_v5.1, with benchmarks/flux1 of
LambdaLabsML/Lambda-MLPerf-Training-v51 in Lambda/benchmarks.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rackproof.core.records import Run
from rackproof.logs.run_sub import read_run_sub
from rackproof.store.run_folder import iter_runs
from testrack.images.upstream import SUBMISSIONS, Submission
from testrack.tests.on_rack import CONTROLLER, SERVICES, Command, play

pytestmark = [pytest.mark.rack, pytest.mark.slow]

REMARKS = {
    # The image's table lists a mount of another benchmark. run.sub does not name this mount.
    ("Lambda", "llama31_8b"): {"mount_not_named"},
}
"""Codes of the remarks that the run of a submission must have. Its own scripts cause them."""


@pytest.fixture(scope="module")
def upstream() -> Path:
    """Return the folder of the submissions. Fail without it, because a skip would look like success."""
    given = os.environ.get("UPSTREAM", "")
    if not given:
        pytest.fail("UPSTREAM=FOLDER has to name a checkout of mlcommons/training_results_v5.1")
    return Path(given).resolve()


@pytest.fixture(scope="module")
def upstream_images(root: Path, images: None, upstream: Path) -> None:
    """Build an image of each submission, and push it to the rack's registry."""
    state, programs = root / ".rackproof/rack", root / "testrack/images"
    work = ["--work", str(state / "images/work")] if (state / "images/work").is_dir() else []
    for words in (
        ["build.py", "--out", str(state / "upstream"), "--upstream", str(upstream), *work],
        ["push.py", "--registry", f"{SERVICES}:5000", "--images", str(state / "upstream")],
    ):
        command = [sys.executable, str(programs / words[0]), *words[1:]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def judged(root: Path, results: Path, nodes: list[str], one: Submission) -> tuple[int, str, Run]:
    """Run a submission with bench.yml. Return the playbook's status and output, and the record of the run."""
    given = {
        "benchmark": one.benchmark,
        "bench_results": str(results),
        "bench_images": {one.benchmark: one.image},
        "bench_config": one.config,
        # Each submitter has its own folder, because the table of mounts in the image determines which
        # files are staged.
        "bench_shared": f"/shared/upstream/{one.submitter.lower()}",
        "bench_environment": {"STANDIN_SECONDS": "12"},
        "bench_hang_s": 90,
    }
    done = play(root, "bench.yml", nodes, given=given, timeout=900)
    (run,) = iter_runs(results)
    return done.returncode, done.stdout, run


@pytest.mark.parametrize("one", SUBMISSIONS, ids=lambda one: f"{one.submitter}-{one.benchmark}")
def test_a_published_run_script_ends_in_a_record_that_passes(
    root: Path,
    rack: Command,
    nodes: list[str],
    upstream: Path,
    upstream_images: None,
    tmp_path: Path,
    one: Submission,
) -> None:
    status, output, run = judged(root, tmp_path, nodes, one)
    folder = tmp_path / run.run_id
    log = folder / "logs" / f"{nodes[0]}.log"
    shown = f"{output}\n{log.read_text(errors='replace')[-20000:] if log.is_file() else ''}"
    # Speeds of the rack have no references. This is a reason, but does not change the verdict. There must be
    # no other reason.
    assert run.verdict.value == "pass", shown
    assert [reason for reason in run.reasons if not reason.startswith("unproven, does not count: ")] == [], (
        shown
    )
    assert [finding for finding in run.findings if finding.verdict] == [], shown
    assert status == 0, shown
    # The job ran the published script, not Rackproof's.
    published = upstream / one.folders[-1] / "run.sub"
    assert (folder / "run.sub").read_bytes() == published.read_bytes()
    assert list(folder.glob("config_GB300_*.sh"))
    seen = read_run_sub(log)
    assert seen.ranks == 8, shown
    # Both nodes reported a cleared cache.
    assert seen.caches_cleared == 2
    assert {finding.code for finding in run.findings if finding.verdict is None} >= REMARKS.get(
        (one.submitter, one.benchmark), set()
    )
    text = log.read_text(errors="replace")
    assert re.search(r"^\d+ HCAs found:", text, re.MULTILINE)
    assert re.search(r"mountcheck OK \S+ \d+ files", text)
    # The script's containers have names, so they outlast the script's steps. The script must remove all of
    # them at its end.
    places = "/var/lib/rack /var/lib/rackproof"
    left = rack(nodes[0], f"find {places} -type d -name 'pyxis_*_{seen.job}' -prune").stdout
    assert left.strip() == "", left
    # All of it was one Slurm job.
    assert (
        len(rack(CONTROLLER, f"sacct -n -P -X -S now-1days --name={run.run_id} -o JobIDRaw").stdout.split())
        == 1
    )


def test_a_folder_that_is_short_is_unproven_and_said_once(
    root: Path, rack: Command, nodes: list[str], upstream_images: None, tmp_path: Path
) -> None:
    one = SUBMISSIONS[0]
    data = f"/shared/upstream/{one.submitter.lower()}/data/{one.benchmark}"
    # An earlier test staged the data. bench.yml does not stage it again, so the extra file remains.
    extra = f"{data}/gov_report/left-over.npy"
    assert rack(nodes[0], f"test -d {data}/gov_report && echo x > {extra}").returncode == 0
    try:
        status, output, run = judged(root, tmp_path, nodes, one)
    finally:
        rack(nodes[0], f"rm -f {extra}")
    assert status == 2, output
    assert run.verdict.value == "unproven", output
    assert {finding.code for finding in run.findings if finding.verdict} == {"mount_check"}, run.reasons
    # Both nodes print two reasons, one about the bytes and one about the files. The record has each once.
    assert len([reason for reason in run.reasons if "mismatch" in reason]) == 2, run.reasons
