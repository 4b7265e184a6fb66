"""Test the records of MLPerf trainings through Slurm (``rackproof.jobs.bench.record`` and ``mlperf_checks``).

The evidence of such a run is the log of MLPerf's script run.sub, and Slurm's own record of the job. The tests
begin with a published log of 18 nodes with 72 GPUs, which passes. They then remove or change one thing:
markers, nodes, ranks (processes, one for each GPU), the clearing of caches, or the NCCL preflight, which is
an all-reduce before the training. Without this evidence, a run is unproven, and a contradiction always
counts.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackproof.core.definitions import load_definition
from rackproof.core.judging import SkuReference, parse_sku_reference
from rackproof.core.records import Node, Run
from rackproof.jobs.bench import mlperf_checks, planning, record
from rackproof.jobs.bench.launch_slurm import Site
from rackproof.jobs.bench.required_evidence import Evidence, SlurmJob, slurm_lacks
from rackproof.logs import FORMATS, run_sub
from tests.jobs.bench.log_states import stated_log

NODES = [f"node{number:02}" for number in range(1, 19)]
YEAR_S = 365 * 86400
LOGS = "tests/data/real/mlperf-5.1/lambda-gb300-n18/{}/result_1.txt.xz"
# The published logs lack some lines of run.sub. These texts replace them: the shell's trace of the clearing
# of caches, and the NCCL preflight with the head, the ranks and the table of nccl-tests.
TRACE = """\
+ srun --ntasks-per-node=1 bash -c '
                 host=$(hostname)
                 sudo /sbin/sysctl vm.drop_caches=3
            '
"""
ASKED = "# nThread 1 nGpus 1 minBytes 1073741824 maxBytes 1073741824 step: 2(factor) validation: 1\n"
RANKS = "".join(
    f"#  Rank {rank} Group  0 Pid {4000 + rank} on {node} device {gpu} [0x{1 + gpu}b] NVIDIA GB300\n"
    for rank, (node, gpu) in enumerate((node, gpu) for node in NODES for gpu in range(4))
)
TABLE = (
    "#       size         count    type   redop    root   time   algbw   busbw #wrong   "
    "time   algbw   busbw #wrong\n"
    "  1073741824     536870912    half     sum     -1 2787.6  385.18  759.67      0   "
    "2760.0  389.04  767.27    0\n"
)
DRAFT = """\
:::RACKPROOF {{"image": "r/x", "digest": "sha256:{digest}"}}
PROLOG_START {start}
NCCL_TEST = 1
NCCL_TEST_START {start}
{table}# Out of bounds values : 0 OK
# Avg bus bandwidth    : 763.470
NCCL_TEST_STOP {start}
PROLOG_STOP {start}
EXPERIMENT_START {start}
"""


@pytest.fixture(autouse=True)
def compliant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace MLCommons' checker, which takes seconds, except in slow tests."""
    if "slow" not in request.keywords:
        monkeypatch.setattr(mlperf_checks, "check_compliance", lambda planned, path: [])


class SlurmRun:
    """A run on a rack of 18 nodes: its plan, its log, and Slurm's record, all of which a test may change."""

    def __init__(self, root: Path, folder: Path, benchmark: str = "llama2_70b_lora", **site: Any) -> None:
        path = root / f"benchmarks/{benchmark}.yml"
        self.results = folder / "results"
        variables = {
            "bench_home": "/home",
            "bench_workloads": "/w",
            "bench_mlcommons_fetch": "curl -o d.sh http://m/d.sh",
            "bench_mlcommons_metadata": "http://m",
        }
        cluster = Site.model_validate(
            {"shared": "/s", "sku": "gb300", "sku_gpus": 4, "published_references": False, **site}
        )
        plan = planning.make_plan(
            [load_definition(path, log_formats=FORMATS)],
            {name: Node(name=name, software={"machine": "aarch64"}) for name in NODES},
            dict.fromkeys(NODES, variables),
            sites=dict.fromkeys(NODES, cluster),
        )
        self.planned = plan.runs[0]
        real = lzma.decompress((root / LOGS.format(benchmark)).read_bytes()).decode()
        (begun,) = re.findall(r"^RUNANDTIME_START (\d+)$", real, re.MULTILINE)
        (ended,) = re.findall(r"^RUNANDTIME_STOP (\d+)$", real, re.MULTILINE)
        (self.number,) = re.findall(r"^:::DLPAL \S+ (\d+)", real, re.MULTILINE)
        self.start_s, self.end_s = int(begun) - 100, int(ended) + 20
        # The published copies of the logs lack the clearing of caches and the number of processes.
        cleared = TRACE + "".join(f"Clearing cache on {name}\nvm.drop_caches = 3\n" for name in NODES)
        real = real.replace(f"+ echo 'RUNANDTIME_START {begun}'", f"{cleared}+ true")
        marker, ranks = f"RUNANDTIME_START {begun}\n", "0: All registered. Starting with 72 processes\n"
        real = real.replace(marker, marker + ranks)
        self.log = DRAFT.format(start=int(begun) - 60, digest="ab" * 32, table=ASKED + RANKS + TABLE) + real
        self.end: dict[str, Any] = {
            "job": self.number,
            "name": self.planned.run_id,
            "state": "COMPLETED",
            "exit_code": "0:0",
            "nodes": list(NODES),
            "node_count": "18",
            "start": str(self.start_s),
            "end": str(self.end_s),
            "elapsed_s": str(self.end_s - self.start_s),
            "steps": [
                {
                    "step": "7",
                    "nodes": "node[01-18]",
                    "state": "COMPLETED",
                    "exit_code": "0:0",
                    "elapsed_s": int(ended) - int(begun),
                    "start": int(begun) + 1,
                }
            ],
        }
        self.job = {
            "id": self.planned.run_id,
            "phase": "ended",
            "ended_by": "itself",
            "exit_status": 0,
            "signal": None,
            "succeeded": True,
            "started": self.start_s - 30,
            "ended": self.end_s + 5,
        }

    def with_result(self, **changes: Any) -> None:
        """Change ``result`` of the definition, which states how the log is read and judged."""
        result = self.planned.result.model_copy(update=changes)
        self.planned = self.planned.model_copy(update={"result": result})

    def without(self, pattern: str) -> None:
        """Remove the lines of the log that match a pattern."""
        kept = [line for line in self.log.splitlines(keepends=True) if not re.search(pattern, line)]
        assert len(kept) < self.log.count("\n"), f"no line has {pattern}"
        self.log = "".join(kept)

    def replace(self, old: str, new: str) -> None:
        """Replace a part of the log."""
        assert old in self.log
        self.log = self.log.replace(old, new)

    def record(self, references: list[SkuReference] | None = None) -> Run:
        """Record the run."""
        folder = self.results / self.planned.run_id
        path = folder / f"logs/{self.planned.lead}.log"
        path.parent.mkdir(parents=True)
        report = f":::RACKPROOF {json.dumps({'end': self.end})}\n" if self.end else ""
        path.write_text(self.log + report)
        nodes = tuple(Node(name=name) for name in NODES)
        job = {**stated_log(path), **self.job}
        done = record.write_record(
            self.planned,
            Evidence(nodes=nodes, job={"seal": record.job_seal(job), **job}),
            folder,
            require_references=False,
            sku_references=references or [],
        )
        return done.run


@pytest.fixture
def run(root: Path, tmp_path: Path) -> SlurmRun:
    return SlurmRun(root, tmp_path)


def gating(run: Run) -> set[str]:
    """Return the codes of the findings that count against a run."""
    return {finding.code for finding in run.findings if finding.verdict is not None}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama2_70b_lora", "llama31_8b"])
def test_a_real_log_on_the_nodes_that_were_asked_for_passes(root: Path, tmp_path: Path, name: str) -> None:
    recorded = SlurmRun(root, tmp_path, name).record()
    assert recorded.verdict == "pass", recorded.reasons
    assert gating(recorded) == set()


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        (r"^RUNANDTIME_START", "no_start_marker"),
        (r"^RUNANDTIME_ST", "no_start_marker"),
        (r"(PROLOG|EXPERIMENT|NCCL_TEST|RUNANDTIME)_ST", "no_start_marker"),
        (r"RUNANDTIME_STOP", "no_start_marker"),
        (r"^:::DLPAL", "nodes_unknown"),
        (r"Starting with 72|^ *\d+: (?!:::)", "wrong_ranks"),
        (r"vm\.drop_caches|Clearing cache", "cache_not_cleared"),
        (r"vm\.drop_caches", "cache_not_cleared"),
        (r"NCCL_TEST", "nccl_preflight"),
        (r"^NCCL_TEST_START", "nccl_preflight"),
        (r"^NCCL_TEST_STOP", "nccl_preflight"),
        (r"^ +1073741824 ", "nccl_preflight"),
        (r'"key": "seed"', "no_seed"),
        (r'"key": "submission_', "no_submission_events"),
        (r'"key": "submission_platform"', "no_submission_events"),
        (r'"key": "global_batch_size"', "convergence_unknown"),
        (r'"key": "eval_accuracy"', "convergence_unknown"),
    ],
)
def test_a_log_that_lacks_what_a_check_needs_is_unproven(run: SlurmRun, pattern: str, code: str) -> None:
    run.without(pattern)
    recorded = run.record()
    assert recorded.verdict in ("unproven", "fail"), recorded.reasons
    assert code in gating(recorded), recorded.findings


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # The clock goes back. The markers change places. One log has two trainings. A second stop follows.
        (r"RUNANDTIME_STOP (\d+)", "RUNANDTIME_STOP 1000000000"),
        (r"(?s)(RUNANDTIME_)START( \d+.*RUNANDTIME_)STOP", r"\1STOP\2START"),
        (
            r"RUNANDTIME_STOP (\d+)",
            r"RUNANDTIME_STOP \1\nRUNANDTIME_START 2000000000\nRUNANDTIME_STOP 2000009999",
        ),
        (r"RUNANDTIME_STOP (\d+)", r"RUNANDTIME_STOP \1\nRUNANDTIME_STOP 2000009999"),
    ],
)
def test_markers_that_contradict_each_other_prove_nothing(run: SlurmRun, old: str, new: str) -> None:
    run.log = re.sub(old, new, run.log, count=1)
    recorded = run.record()
    assert recorded.verdict in ("unproven", "fail"), recorded.reasons
    assert "markers_contradict" in gating(recorded), recorded.findings


def test_without_labels_and_number_the_ranks_are_not_known(run: SlurmRun) -> None:
    run.without("Starting with 72")
    run.log = re.sub(r"(?m)^ *\d+: ", "", run.log)
    assert "ranks_unknown" in gating(run.record())


def test_a_cache_cleared_during_the_training_was_not_cleared_before_it(run: SlurmRun) -> None:
    run.without(r"vm\.drop_caches|Clearing cache")
    run.replace("RUNANDTIME_STOP", "vm.drop_caches = 3\n" * 18 + "RUNANDTIME_STOP")
    assert "cache_not_cleared" in gating(run.record())


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"nodes": NODES[:2]}, "wrong_nodes", "node03 took no part"),
        ({"nodes": []}, "nodes_unknown", "does not show on which nodes"),
        ({"nodes": None}, "nodes_unknown", "does not show on which nodes"),
        ({"nodes": [*NODES, "node19"]}, "wrong_nodes", "node19 was not requested"),
        ({"node_count": "2"}, "wrong_nodes", "had 2 nodes by Slurm"),
        ({"state": "FAILED"}, "slurm_state", "ended as FAILED"),
        ({"state": ""}, "slurm_state", "does not show how"),
        ({"state": None}, "slurm_state", "does not show how"),
        ({"exit_code": "1:0"}, "slurm_state", "COMPLETED 1:0"),
        ({"exit_code": ""}, "slurm_state", "exit status"),
        ({"name": "20250101T000000Z-another-abcdef"}, "another_job", "its name is 20250101"),
        ({"job": "173"}, "another_job", "is of Slurm job 174, not of 173"),
        ({"job": ""}, "another_job", "does not show the job's number"),
        ({"start": "Unknown"}, "slurm_times", "does not show when"),
        ({"end": None}, "slurm_times", "does not show when"),
        ({"start": True}, "slurm_times", "does not show when"),
        (
            {"steps": [{"nodes": "node[01-02]", "elapsed_s": 480, "start": 1759851754}]},
            "wrong_nodes",
            "node03 took no part",
        ),
    ],
)
@pytest.mark.parametrize("marked", [True, False], ids=["marked", "unmarked"])
def test_slurms_own_record_counts_with_and_without_markers(
    run: SlurmRun, change: dict[str, Any], code: str, words: str, marked: bool
) -> None:
    if not marked:
        run.without("RUNANDTIME_ST")
    run.end.update(change)
    recorded = run.record()
    assert recorded.verdict in ("unproven", "fail")
    assert code in gating(recorded), recorded.findings
    assert words in " ".join(finding.message for finding in recorded.findings)


@pytest.mark.parametrize(
    ("state", "exit_code"),
    [
        *(("FAILED", "1:0"), ("NODE_FAIL", "0:0"), ("OUT_OF_MEMORY", "0:125"), ("CANCELLED", "0:9")),
        *(("TIMEOUT", "0:0"), ("COMPLETED", "0:15"), ("", "7:0")),
    ],
)
def test_a_training_whose_step_ended_badly_is_unproven_in_a_job_that_ended_well(
    run: SlurmRun, state: str, exit_code: str
) -> None:
    run.end["steps"] = [{**run.end["steps"][0], "state": state, "exit_code": exit_code}]
    recorded = run.record()
    assert recorded.verdict == "unproven"
    assert gating(recorded) == {"slurm_state"}


@pytest.mark.parametrize(("elapsed_s", "passes"), [(1, False), (3, False), (60, False), (7200, True)])
def test_a_step_that_is_shorter_than_its_training_is_unproven(
    run: SlurmRun, elapsed_s: int, passes: bool
) -> None:
    run.end["steps"] = [{**run.end["steps"][0], "state": "COMPLETED", "elapsed_s": elapsed_s}]
    assert gating(run.record()) == (set() if passes else {"slurm_times"})


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", ""])
def test_accounting_may_know_the_end_of_the_training_later_than_of_its_job(run: SlurmRun, state: str) -> None:
    run.end["steps"] = [
        {**run.end["steps"][0], "state": state},
        # Slurm ends a monitor that ran beside the training.
        {"step": "3", "nodes": "node01", "state": "CANCELLED", "exit_code": "0:15", "elapsed_s": 5},
    ]
    assert run.record().verdict == "pass"


def test_a_job_that_slurm_started_again_after_a_lost_node_is_unproven(run: SlurmRun) -> None:
    first = run.log[: len(run.log) // 2]
    run.log = first + run.log
    assert run.record().verdict in ("unproven", "fail")


def test_no_record_of_slurm_at_all_is_unproven(run: SlurmRun) -> None:
    run.end = {}
    recorded = run.record()
    assert (recorded.verdict, "no_end" in gating(recorded)) == ("unproven", True)


@pytest.mark.parametrize("shift_s", [YEAR_S, 10 * 86400, 3600, -3600, -YEAR_S])
def test_a_log_of_another_time_than_its_slurm_job_is_unproven(run: SlurmRun, shift_s: int) -> None:
    # The times of Slurm's job and of its follower differ from those of the log's events and markers.
    for name in ("start", "end"):
        run.end[name] = str(int(run.end[name]) + shift_s)
    run.job.update(started=run.job["started"] + shift_s, ended=run.job["ended"] + shift_s)
    recorded = run.record()
    assert recorded.verdict == "unproven"
    assert "log_of_another_time" in gating(recorded)
    assert "by Slurm" in " ".join(finding.message for finding in recorded.findings)


def test_a_whole_log_of_an_earlier_run_is_unproven(run: SlurmRun) -> None:
    run.end["name"] = "20251007T120000Z-llama2_70b_lora-0a0a0a"
    run.job.update(started=run.job["started"] + YEAR_S, ended=run.job["ended"] + YEAR_S)
    assert {"another_job", "log_of_another_time"} <= gating(run.record())


def test_a_job_that_ended_before_it_began_is_unproven(run: SlurmRun) -> None:
    run.end.update(start=run.end["end"], end=run.end["start"])
    assert "slurm_times" in gating(run.record())


@pytest.mark.parametrize("moment", ["{:%Y-%m-%dT%H:%M:%S}", "{:%Y-%m-%dT%H:%M:%S+00:00}"])
def test_times_in_words_are_compared_as_well_as_their_zone_allows(run: SlurmRun, moment: str) -> None:
    for name in ("start", "end"):
        run.end[name] = moment.format(datetime.fromtimestamp(int(run.end[name]), UTC))
    assert run.record().verdict == "pass"
    earlier = datetime(2024, 1, 1, tzinfo=UTC)
    run.end.update(start=moment.format(earlier), end=moment.format(earlier))
    run.planned = run.planned.model_copy(update={"run_id": f"{run.planned.run_id}0"})
    run.job["id"] = run.end["name"] = run.planned.run_id
    assert "log_of_another_time" in gating(run.record())


def test_a_job_that_began_before_it_was_followed_again_passes(run: SlurmRun) -> None:
    # The first follower was lost with its node. Slurm's record names the run.
    run.job["started"] = run.end_s - 10
    recorded = run.record()
    assert recorded.verdict == "pass", recorded.reasons


@pytest.mark.parametrize("ranks", [1, 18, 36, 71, 144])
def test_fewer_or_more_processes_than_gpus_are_unproven(run: SlurmRun, ranks: int) -> None:
    run.replace("Starting with 72", f"Starting with {ranks}")
    assert "wrong_ranks" in gating(run.record())


def test_a_benchmark_with_one_process_a_node_says_so(run: SlurmRun) -> None:
    run.replace("Starting with 72", "Starting with 18")
    run.with_result(processes="node")
    assert "wrong_ranks" not in gating(run.record())


@pytest.mark.parametrize(
    ("lacks", "pattern"),
    [
        ("start_marker", "RUNANDTIME_ST"),
        ("node_list", ":::DLPAL"),
        ("ranks", r"Starting with 72|^ *\d+: (?!:::)"),
        ("cache_clearing", r"vm\.drop_caches|Clearing cache"),
        ("nccl_preflight", "NCCL_TEST"),
        ("seed", '"key": "seed"'),
        ("submission_events", '"key": "submission_'),
    ],
)
def test_what_a_script_does_not_print_by_design_is_declared(run: SlurmRun, lacks: str, pattern: str) -> None:
    run.without(pattern)
    if lacks == "ranks":
        run.log = re.sub(r"(?m)^ *\d+: ", "", run.log)
    run.with_result(lacks=(lacks,))
    # The file of the definition lacks the declaration, so it counts as changed. No declaration excuses a log
    # of MLPerf 5.1 without a seed, because all published logs have one.
    others = {"course_incomplete"} if lacks == "seed" else set()
    found = gating(run.record())
    assert others <= found <= {"definition_changed"} | others


def test_what_contradicts_counts_although_its_absence_would_not(run: SlurmRun) -> None:
    run.with_result(lacks=mlperf_checks.EVERYTHING)
    run.replace("18 node[01-18]", "2 node[01-02]")
    run.replace("759.67      0", "759.67    128")
    run.log = run.log.replace("vm.drop_caches = 3\n", "", 1)
    assert {"wrong_nodes", "nccl_preflight", "cache_not_cleared"} <= gating(run.record())


def test_a_log_of_another_benchmark_is_unproven(run: SlurmRun) -> None:
    run.replace(
        '"submission_benchmark", "value": "llama2_70b_lora"', '"submission_benchmark", "value": "flux1"'
    )
    assert "another_benchmark" in gating(run.record())


@pytest.mark.parametrize(
    ("benchmark_name", "row"),
    [
        ("llama2_70b_lora", "    65011712      32505856    half"),
        ("llama2_70b_lora", "  1073741824     536870912    half"),
        ("llama31_8b", "  4294967296    1073741824   float"),
        ("llama31_8b", "  1073741824     268435456   float"),
    ],
)
def test_a_size_that_the_script_does_not_print_is_asked_for_by_no_reference_of_the_sku(
    root: Path, tmp_path: Path, benchmark_name: str, row: str
) -> None:
    shipped = yaml.safe_load((root / "inventory/group_vars/sku_gb300.yml").read_text())
    references = [parse_sku_reference(one) for one in shipped["bench_sku_references"]]
    run = SlurmRun(root, tmp_path, benchmark_name)
    size = int(row.split()[0])
    run.replace("minBytes 1073741824 maxBytes 1073741824", f"minBytes {size} maxBytes {size}")
    run.replace("  1073741824     536870912    half", row)
    run.replace("2787.6", f"{size / 385.18e3:.1f}")
    run.replace("2760.0", f"{size / 389.04e3:.1f}")
    recorded = run.record(references)
    assert recorded.verdict == "pass", recorded.reasons


def test_a_preflight_that_the_operator_switched_off_needs_no_reference(root: Path, tmp_path: Path) -> None:
    reference = parse_sku_reference(
        {"metric": "nccl_preflight_busbw", "value": 760, "unit": "GB/s", "low": -0.07, "source": "x"}
    )
    off = SlurmRun(root, tmp_path / "off", environment={"NCCL_TEST": "0"})
    off.without("NCCL_TEST_|1073741824|# Out|# Avg")
    off.replace("NCCL_TEST = 1", "NCCL_TEST = 0")
    recorded = off.record([reference])
    assert recorded.verdict == "pass", recorded.reasons
    # A log alone does not show that the operator switched the preflight off.
    by_config = SlurmRun(root, tmp_path / "config")
    by_config.log = off.log
    recorded = by_config.record([reference])
    assert recorded.verdict == "unproven"
    assert {"nccl_preflight"} <= gating(recorded)
    # The plan has no preflight, but the log states one, so its table is missing.
    odd = SlurmRun(root, tmp_path / "odd", environment={"NCCL_TEST": "0"})
    odd.without("NCCL_TEST_|1073741824|# Out|# Avg")
    assert "nccl_preflight" in gating(odd.record())


@pytest.mark.parametrize(("gpus", "passes"), [(8, False), (71, False), (72, True), (144, False)])
def test_a_preflight_that_names_its_gpus_names_all_of_them(run: SlurmRun, gpus: int, passes: bool) -> None:
    ranks = [
        f"#  Rank {rank} Group 0 Pid 4 on {NODES[rank // 4 % 18]} device {rank % 4} [0x1b] NVIDIA GB300\n"
        for rank in range(gpus)
    ]
    run.replace(RANKS, "".join(ranks))
    assert ("nccl_preflight" not in gating(run.record())) == passes


def test_a_death_counts_where_the_marker_is_missing(run: SlurmRun) -> None:
    run.without("RUNANDTIME_START")
    run.replace("+ echo 'RUNANDTIME_STOP", "srun: error: node02: task 5: Killed\n+ echo 'RUNANDTIME_STOP")
    assert "task_died" in gating(run.record())


def test_a_job_that_ended_before_its_training_shows_the_cause_and_no_more(run: SlurmRun) -> None:
    run.log = DRAFT.format(start=run.start_s, digest="ab" * 32, table=ASKED + RANKS + TABLE)
    run.end.update(state="FAILED", exit_code="1:0", steps=[])
    recorded = run.record()
    assert "slurm_state" in gating(recorded)
    assert not {"ranks_unknown", "cache_not_cleared", "no_seed"} & gating(recorded)


OWN = """\
name: own
summary: Trains with a run script of its own
container: {images: {amd64: "a/b:1", arm64: "a/b:1"}, folder: /workspace}
configs: {systems: {gb300: GB300}}
launch: {with: slurm}
result: {format: mllog, judge: [{metric: eval_accuracy, at_least: 0.9}]}
"""


def own_run(root: Path, folder: Path) -> SlurmRun:
    """Return a run of an operator's own workload through Slurm, whose script prints no markers."""
    run = SlurmRun(root, folder)
    path = folder / "own.yml"
    path.write_text(OWN)
    plan = planning.make_plan(
        [load_definition(path, log_formats=FORMATS)],
        {name: Node(name=name) for name in NODES},
        {name: {} for name in NODES},
        sites=dict.fromkeys(NODES, Site(shared="/s", sku="gb300", sku_gpus=4)),
    )
    run.planned = plan.runs[0]
    run.job["id"] = run.end["name"] = run.planned.run_id
    event = '{{"time_ms": {}, "event_type": "{}", "key": "{}", "value": {}, "metadata": {}}}'
    moments = [(run.start_s + at) * 1000 for at in (10, 20, 30)]
    run.log = "".join(
        f":::MLLOG {event.format(moment, *rest)}\n"
        for moment, rest in zip(
            moments,
            [
                ("INTERVAL_START", "run_start", "null", "{}"),
                ("POINT_IN_TIME", "eval_accuracy", "0.95", "{}"),
                ("INTERVAL_END", "run_stop", "null", '{"status": "success"}'),
            ],
            strict=True,
        )
    )
    return run


def test_an_own_workload_needs_none_of_what_mlperfs_scripts_print(root: Path, tmp_path: Path) -> None:
    recorded = own_run(root, tmp_path).record()
    assert (recorded.verdict, gating(recorded)) == ("pass", set()), recorded.reasons


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"nodes": NODES[:2]}, "wrong_nodes"),
        ({"state": "TIMEOUT"}, "slurm_state"),
        ({"name": "another"}, "another_job"),
        ({"start": "1600000000", "end": "1600000100"}, "log_of_another_time"),
    ],
)
def test_slurms_record_counts_for_an_own_workload_too(
    root: Path, tmp_path: Path, change: dict[str, Any], code: str
) -> None:
    run = own_run(root, tmp_path)
    run.end.update(change)
    assert code in gating(run.record())


def test_every_name_that_a_definition_may_lack_is_known() -> None:
    field = run_sub.RunScript(lacks=mlperf_checks.EVERYTHING)
    assert run_sub.preflight_findings(run_sub.RunSubOutput(), field)[0].verdict is None


# Damages to a log: too few nodes, too few processes, wrong values in the preflight, uncleared caches.
LINES: list[Callable[[str], str]] = [
    lambda log: log.replace(" 18 node[01-18]", " 2 node[01-02]"),
    lambda log: log.replace("Starting with 72", "Starting with 8"),
    lambda log: log.replace("759.67      0", "759.67    128"),
    lambda log: log.replace("vm.drop_caches = 3\n", "", 5),
]


@pytest.mark.parametrize("damage", range(len(LINES)))
@pytest.mark.parametrize("also", ["^RUNANDTIME_START", "RUNANDTIME_ST", "_ST(ART|OP) "])
def test_removing_markers_makes_no_bad_run_better(run: SlurmRun, damage: int, also: str) -> None:
    run.log = LINES[damage](run.log)
    run.without(also)
    assert run.record().verdict in ("unproven", "fail")


def placed(hosts: list[str]) -> str:
    """Return the lines with which nccl-tests names the host and the device of each rank."""
    return "".join(
        f"#  Rank {rank:2} Group  0 Pid {4000 + rank} on {host} device {rank % 4:2} [0x1b] NVIDIA GB300\n"
        for rank, host in enumerate(hosts)
    )


def training_step(run: SlurmRun, nodes: str) -> dict[str, Any]:
    """Return the step that trained, as Slurm reports it, on other nodes."""
    return {**run.end["steps"][0], "nodes": nodes}


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        ([NODES[0]] * 72, "node01 has 72 ranks"),
        ([host for host in NODES[:9] for _ in range(8)], "node01 has 8 ranks"),
        ([host for host in [NODES[0], NODES[0], *NODES[2:]] for _ in range(4)], "node02 has none"),
        ([host for host in [*NODES[:17], "node19"] for _ in range(4)], "node19 was not requested"),
        ([NODES[0], *NODES[:17] * 4, *NODES[17:] * 3], "node01 has 5 ranks"),
    ],
    ids=["all on one node", "half of the nodes", "one node twice", "a foreign node", "one rank moved"],
)
def test_ranks_of_the_preflight_that_sit_elsewhere_are_unproven(
    run: SlurmRun, hosts: list[str], words: str
) -> None:
    run.replace(RANKS, placed(hosts))
    recorded = run.record()
    assert (recorded.verdict, gating(recorded)) == ("unproven", {"wrong_ranks"})
    assert words in " ".join(recorded.reasons)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ("node01", "node02 took no part"),
        ("node[01-17],node19", "node19 was not requested"),
        ("node[01-09]", "node10 took no part"),
        ("", "node01 took no part"),
    ],
)
def test_ranks_of_the_training_that_sit_elsewhere_are_unproven(run: SlurmRun, nodes: str, words: str) -> None:
    run.end["steps"] = [training_step(run, nodes)]
    recorded = run.record()
    assert (recorded.verdict, gating(recorded)) == ("unproven", {"wrong_nodes"})
    assert words in " ".join(recorded.reasons)


@pytest.mark.parametrize("name", ["{}", "{}.cluster.example", "10-0-0-{}"])
def test_ranks_in_their_places_pass_whatever_the_hosts_call_themselves(run: SlurmRun, name: str) -> None:
    hosts = [name.format(node).partition(".")[0] for node in NODES for _ in range(4)]
    run.replace(RANKS, placed(hosts))
    assert gating(run.record()) == set()


def test_a_published_log_of_eight_nodes_has_its_ranks_in_their_places() -> None:
    # One of Google's stable_diffusion runs on 8 times 8 H200s: the order of its hosts is Slurm's own.
    hosts = [f"a3u5702-a3ultranodeset-{number}" for number in (7, 14, 5, 6, 12, 10, 11, 13)]
    ranks = [host for host in hosts for _ in range(8)]
    assert run_sub._placement_findings(ranks, sorted(hosts), 8) == []
    (found,) = run_sub._placement_findings([*ranks[:-1], hosts[0]], sorted(hosts), 8)
    assert found.code == "wrong_ranks"


# A pattern of lines that are removed, with the finding of the table of required evidence that results.
LACKS = [
    ("RUNANDTIME_STOP", "no_start_marker", "does not show run.sub's training whole"),
    (":::DLPAL", "nodes_unknown", "does not show on which nodes it ran"),
    (r"vm\.drop_caches|Clearing cache", "cache_not_cleared", "no sign in the log"),
    ("NCCL_TEST_STOP", "nccl_preflight", "does not show the NCCL preflight whole"),
]


@pytest.mark.parametrize(("pattern", "code", "words"), LACKS)
def test_what_lacks_is_found_by_its_row_and_not_by_a_check(
    run: SlurmRun, pattern: str, code: str, words: str
) -> None:
    run.without(pattern)
    reader = run_sub.RunSubReader()
    for number, line in enumerate(run.log.encode().splitlines(keepends=True), 1):
        reader.line(number, line)
    output = reader.result().model_copy(update={"launcher_report": {"end": run.end}})
    script = mlperf_checks.run_script(run.planned)
    checks = run_sub.run_sub_findings(output, NODES, 4, run_id=run.planned.run_id, script=script)
    (lack,) = slurm_lacks(SlurmJob(run.planned, script, output))
    assert [one.code for one in checks if one.verdict] == []
    assert (lack.code, lack.verdict) == (code, "unproven")
    assert words in lack.message


def test_what_ended_a_job_comes_before_what_lacks_because_of_it(run: SlurmRun) -> None:
    run.without("RUNANDTIME_ST|Starting with 72")
    run.log += (
        "slurmstepd: error: Couldn't find the specified plugin name for mpi/pmix looking at all files\n"
    )
    run.end = {}
    recorded = run.record()
    codes = [one.code for one in recorded.findings if one.verdict]
    assert codes[:2] == ["no_mpi", "no_end"]
    assert "ranks_unknown" not in codes
