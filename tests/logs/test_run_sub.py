"""Test what the output of a Slurm job shows about its run (:mod:`rackproof.logs.run_sub`).

The run script of an MLPerf training prints more than events: its nodes, cleared page caches, a preflight of
nccl-tests before the training, slow nodes, and Slurm's record of the job. Job bench makes findings from them.
Most tests change one place in a good output of three nodes with four GPUs each. Others test the checks by
MLPerf's rules (:mod:`rackproof.jobs.bench.mlperf_checks`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rackproof.analysis.mlperf.score import FolderScore, RunScore
from rackproof.core.definitions import load_definition
from rackproof.core.records import Finding, Measurement, Verdict
from rackproof.jobs.bench import mlperf_checks
from rackproof.jobs.bench.planning import PlannedRun
from rackproof.jobs.bench.required_evidence import SlurmJob, slurm_lacks
from rackproof.logs import FORMATS, run_sub

NODES = ("n1", "n2", "n3")
# Slurm's record of the job. Times are Unix times in seconds.
END: dict[str, Any] = {
    "job": "7",
    "name": "r",
    "state": "COMPLETED",
    "exit_code": "0:0",
    "nodes": ["n1", "n2", "n3"],
    "node_count": "3",
    "start": "1699999990",
    "end": "1700000190",
    "steps": [
        {
            "step": "0",
            "nodes": "n1",
            "state": "COMPLETED",
            "exit_code": "0:0",
            "elapsed_s": 1,
            "start": 1700000017,
        },
        {
            "step": "1",
            "nodes": "n[1-3]",
            "state": "COMPLETED",
            "exit_code": "0:0",
            "elapsed_s": 60,
            "start": 1700000020,
        },
        {
            "step": "2",
            "nodes": "n1",
            "state": "COMPLETED",
            "exit_code": "0:0",
            "elapsed_s": 99,
            "start": 1700000081,
        },
    ],
}
DEVICES = "".join(
    f"#  Rank {rank:2} Group  0 Pid {4000 + rank} on n{rank // 4 + 1} device {rank % 4} "
    f"[0x{1 + rank % 4}b] NVIDIA GB300\n"
    for rank in range(12)
)
SIZES = "# nThread 1 nGpus 1 minBytes 1073741824 maxBytes 1073741824 step: 2(factor) validation: 1 graph: 0\n"
TABLE = f"""\
{SIZES}{DEVICES}\
#       size         count    type   redop    root   time   algbw   busbw #wrong   time   algbw   busbw #wrong
  1073741824     536870912    half     sum     -1 2591.3  414.36  759.67      0   2565.6  418.51  767.27    0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 763.470
"""
GOOD = f"""\
:::RACKPROOF {{"image": "r/x", "digest": "sha256:ab"}}
+ echo 'PROLOG_START 1700000000'
PROLOG_START 1700000000
NCCL_TEST = 1
NCCL_TEST_START 1700000005
{TABLE}NCCL_TEST_STOP 1700000015
PROLOG_STOP 1700000016
EXPERIMENT_START 1700000016
+ echo ':::DLPAL x 7 3 elsewhere[1-3]'
:::DLPAL image#x 7 3 n[1-3] 'unknown' GB300_3x4x1
+ srun bash -c 'echo -n Clearing cache on && hostname && sync && sudo /sbin/sysctl vm.drop_caches=3'
Clearing cache on n1
Clearing cache on n2
Clearing cache on n3
vm.drop_caches = 3
vm.drop_caches = 3
vm.drop_caches = 3
RUNANDTIME_START 1700000020
0: All distributed processes registered. Starting with 12 processes
0: :::MLLOG {{"key": "eval_accuracy", "value": 0.92, "metadata": {{"samples_count": 3072}}}}
RUNANDTIME_STOP 1700000080
:::RACKPROOF {json.dumps({"end": END})}
"""


def read(tmp_path: Path, text: str) -> run_sub.RunSubOutput:
    path = tmp_path / "lead.log"
    path.write_text(text)
    return run_sub.read_run_sub(path)


def all_findings(output: run_sub.RunSubOutput) -> list[Finding]:
    """Return the findings against a run on three nodes, and those on missing evidence."""
    script = run_sub.RunScript()
    run = PlannedRun.model_construct(launcher="slurm", nodes=NODES)
    lacks = slurm_lacks(SlurmJob(run, script, output))
    return [*run_sub.run_sub_findings(output, NODES, 4, script=script), *lacks]


def gating(tmp_path: Path, text: str) -> dict[str, str]:
    """Return the messages of the findings with a verdict, by code."""
    found = all_findings(read(tmp_path, text))
    return {one.code: one.message for one in found if one.verdict is not None}


def with_end(**changes: Any) -> str:
    """Return the good output with changes of Slurm's record."""
    return GOOD.replace(json.dumps({"end": END}), json.dumps({"end": {**END, **changes}}))


def test_a_good_run_has_no_finding(tmp_path: Path) -> None:
    log = read(tmp_path, GOOD)
    assert all_findings(log) == []
    assert log.node_list == NODES
    assert log.samples == 3072
    assert log.phases == {"prolog": 16, "nccl_preflight": 10, "caches": 4, "run_and_time": 60}
    values = {one.name: one.value for one in run_sub.run_sub_measurements(log, "x")}
    assert values["nccl_preflight_busbw"] == 759.67


def test_an_error_of_every_node_about_one_folder_is_judged_once(tmp_path: Path) -> None:
    lines = [
        "Error: /preproc_data is incorrect. It has 12 files.",
        "Error: /tokenizer is incorrect. No file.",
    ]
    log = read(tmp_path, GOOD.replace("NCCL_TEST = 1", "\n".join([*lines * 18, "NCCL_TEST = 1"])))
    found = [one for one in run_sub.run_sub_findings(log, NODES, 4) if one.code == "mount_check"]
    assert [one.message.partition("failed: ")[2] for one in found] == lines


def test_the_messages_of_round_51s_mount_check_are_found(tmp_path: Path) -> None:
    # mlperf-common prints these lines on every node. A missing key is a mistake in the script, not the data.
    lines = [
        "mountcheck OK /data 200672375 bytes",
        "mountcheck WARNING /preproc_data num bytes mismatch! expected=85066550988 actual=85066475279",
        "mountcheck WARNING /preproc_data num files mismatch! expected=14 actual=7",
        "mountcheck WARNING missing key:path mapping in --mounts_to_verify for key='LOAD_CHECKPOINT_405B'",
        "mountcheck WARNING dir /ckpt does not exist!",
    ]
    log = read(tmp_path, GOOD.replace("NCCL_TEST = 1", "\n".join([*lines * 18, "NCCL_TEST = 1"])))
    found = run_sub.run_sub_findings(log, NODES, 4)
    assert [(one.code, one.verdict and one.verdict.value) for one in found] == [
        *[("mount_check", "unproven")] * 3,
        ("mount_not_named", None),
    ]
    assert [one.message.partition("failed: ")[2] for one in found[:3]] == [
        lines[number].removeprefix("mountcheck WARNING ") for number in (1, 2, 4)
    ]


def table(kind: str, sizes: tuple[int, ...], ranks: int, width: int) -> str:
    """Return a table of nccl-tests as a published script's command prints it."""
    devices = "".join(
        f"#  Rank {rank:2} Group  0 Pid 4000 on n{rank // 4 + 1} device {rank % 4:2} [0x1b] NVIDIA GB300\n"
        for rank in range(ranks)
    )
    rows = "".join(
        f"{size:12} {size // width:12} {kind:>7}     sum     -1 1000.0  400.00  {700 + at}.00      0"
        f"   1000.0  400.00  {690 + at}.00      0\n"
        for at, size in enumerate(sizes)
    )
    heading, _row, *end = TABLE.removeprefix(SIZES + DEVICES).splitlines(keepends=True)
    return "".join([devices, heading, rows, *end])


MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "value", "labels"),
    [
        # As in the scripts of llama2_70b_lora (-b 62M -e 62M -d half), llama31_8b (-b 16M -e 4G -f 2), flux1.
        (table("half", (62 * MIB,), 72, 2), 690, {"size_bytes": "65011712", "dtype": "half", "ranks": "72"}),
        (
            table("float", tuple(16 * MIB << at for at in range(9)), 72, 4),
            698,
            {"size_bytes": "4294967296", "dtype": "float", "ranks": "72"},
        ),
        (
            table("half", tuple(128 * MIB << at for at in range(5)), 8, 2),
            694,
            {"size_bytes": "2147483648", "dtype": "half", "ranks": "8"},
        ),
        # Without the list of devices the number of ranks is unknown.
        (table("half", (62 * MIB,), 0, 2), 690, {"size_bytes": "65011712", "dtype": "half"}),
    ],
)
def test_the_preflights_bandwidth_has_labels_for_ranks_size_and_type(
    tmp_path: Path, text: str, value: float, labels: dict[str, str]
) -> None:
    log = read(tmp_path, GOOD.replace(TABLE, text))
    (found,) = [one for one in run_sub.run_sub_measurements(log, "x") if one.name == "nccl_preflight_busbw"]
    assert (found.value, found.labels) == (value, labels)


# Text of the good output, its replacement, and code and words of the finding.
@pytest.mark.parametrize(
    ("old", "new", "code", "words"),
    [
        ("vm.drop_caches = 3\nRUN", "RUN", "cache_not_cleared", "cleared on 2 of 3 nodes"),
        (
            "vm.drop_caches = 3\nRUN",
            'sysctl: permission denied on key "vm.drop_caches", ignoring\nRUN',
            "cache_not_cleared",
            "permission denied",
        ),
        ("Starting with 12", "Starting with 8", "wrong_ranks", "8 ranks trained, 3 nodes"),
        ("7 3 n[1-3]", "7 3 n[1-2],m9", "wrong_nodes", "n3 took no part, m9 was not requested"),
        ("759.67      0", "759.67    128", "nccl_preflight", "NCCL preflight"),
        (
            "# Out of bounds values : 0 OK",
            "# Out of bounds values : 4 FAILED",
            "nccl_preflight",
            "out of bounds",
        ),
        (TABLE, "srun: error: Invalid MPI type\n", "nccl_preflight", "printed no result"),
        (
            "0: All dist",
            "slurmstepd: error:  mpi/pmix_v4: init: (null) [0]: mpi_pmix.c:193: pmi/pmix: can not load PMIx "
            "library\n0: All dist",
            "no_mpi",
            "SLURM_MPI_TYPE",
        ),
        (
            "0: All dist",
            "0:   Rank=2 Node=n3 Score=0.40\n0: All dist",
            "slow_node",
            "n3 is slow and holds up the others",
        ),
        *(
            (
                "0: All dist",
                f"0:   Rank=2 Node=n3 Score={score}\n0: All dist",
                "not_checked",
                "relative performance of n3 is no number",
            )
            for score in ("0.4.0", "nan", "", "-0.2", "0,4", "0.4x", "9" * 400)
        ),
        (
            "0: All dist",
            "".join(f"0: Rank=2 Node=n3 Score={score}\n" for score in ("0.x", "0.4.", "x")) + "0: All dist",
            "slow_node",
            "n3 is slow and holds up the others: relative performance 0.4",
        ),
        (
            "RUNANDTIME_STOP",
            "srun: error: n2: task 5: Killed\nRUNANDTIME_STOP",
            "task_died",
            "n2: task 5: Killed",
        ),
        (
            "RUNANDTIME_STOP",
            "9: [rank9]: torch.OutOfMemoryError: CUDA out of memory.\nRUNANDTIME_STOP",
            "out_of_memory",
            "rank 9 on n3 ran out of memory",
        ),
        ("NCCL_TEST = 1", "Error: /data is incorrect. It is not there.", "mount_check", "/data is incorrect"),
    ],
)
def test_each_fault_in_the_output_is_found(tmp_path: Path, old: str, new: str, code: str, words: str) -> None:
    assert old in GOOD
    assert words in gating(tmp_path, GOOD.replace(old, new))[code]


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"state": "TIMEOUT"}, "slurm_state", "ended as TIMEOUT"),
        ({"exit_code": "1:0"}, "slurm_state", "COMPLETED 1:0"),
        ({"nodes": ["n1", "n2"]}, "wrong_nodes", "by Slurm: n3 took no part"),
        (
            {"steps": [{"step": "1", "nodes": "n[1-2]", "elapsed_s": 60, "start": 1700000020}]},
            "wrong_nodes",
            "by the training's step: n3 took no part",
        ),
    ],
)
def test_a_fault_in_slurms_record_is_found(
    tmp_path: Path, changes: dict[str, Any], code: str, words: str
) -> None:
    assert words in gating(tmp_path, with_end(**changes))[code]


def test_a_hang_is_a_failure_with_its_step(tmp_path: Path) -> None:
    text = GOOD + ':::RACKPROOF {"hang": {"step": "step 41", "phase": "training", "silent_s": 900}}\n'
    assert gating(tmp_path, text)["hung_at_step"].startswith("hung at step 41 (phase training)")


def test_a_refused_run_has_only_the_reason_of_the_refusal(tmp_path: Path) -> None:
    text = ':::RACKPROOF {"refused": "no config for 3 nodes", "status": 7}\n'
    assert gating(tmp_path, text) == {"refused": "no config for 3 nodes"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":::RACKPROOF [1]\n:::RACKPROOF {broken\n",
        ':::RACKPROOF {"end": 3, "hang": [1], "digest": {}}\nRUNANDTIME_START 1700000000\n',
        ":::DLPAL a b 3 n[9999999999-3],[,]-\nRUNANDTIME_START 1700000000\n",
        GOOD[: len(GOOD) // 2] + "\udcff\x00",
    ],
)
def test_hostile_text_does_not_pass_and_raises_no_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lead.log"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    found = all_findings(run_sub.read_run_sub(path))
    assert any(one.verdict is not None and one.verdict.gates for one in found)


def speed(value: float, prolog: float) -> list[Measurement]:
    """Return the measurements of a run: samples per second, and seconds of its prolog."""
    return [
        Measurement(name="samples_per_second", value=value, unit="samples/s"),
        Measurement(name="phase_time", value=prolog, unit="s", labels={"phase": "prolog"}),
    ]


def test_a_slow_repeat_is_named_with_its_phase() -> None:
    before = [speed(100, 10), speed(102, 11), speed(99, 10)]
    assert run_sub.repeat_findings(speed(98, 10), before) == []
    (found,) = run_sub.repeat_findings(speed(80, 70), before)
    assert found.verdict is Verdict.DEGRADED
    assert "80 samples/s, those before it 100; the phase prolog took 60 s more" in found.message
    assert run_sub.repeat_findings(speed(80, 70), before[:1]) == []
    (remark,) = run_sub.repeat_findings(speed(93, 10), before)
    assert remark.verdict is None


def planned(root: Path, **changes: Any) -> PlannedRun:
    """Return a planned run of llama2_70b_lora on 18 nodes with four GPUs each."""
    path = root / "benchmarks/llama2_70b_lora.yml"
    values: dict[str, Any] = {
        "run_id": "r",
        "benchmark": "llama2_70b_lora",
        "lead": "n1",
        "nodes": [f"n{index}" for index in range(18)],
        "parameters": {},
        "runtime": "",
        "program": "slurm_run.py",
        "arguments": (),
        "environment": {},
        "timeout_s": 1,
        "hang_s": 1,
        "launcher": "slurm",
        "sku": "gb300",
        "sku_gpus": 4,
        "result": load_definition(path, log_formats=FORMATS).definition.result,
        "definition_path": str(path),
        "definition_sha256": "",
    }
    return PlannedRun.model_validate({**values, **changes})


def test_published_results_of_the_same_size_are_references(root: Path) -> None:
    time = Measurement(name="time_to_train", value=1.3, unit="min")
    (reference,) = mlperf_checks.published_references(planned(root), time)
    assert 1.2 < reference.value < 1.3
    assert "MLPerf Training 5.1" in reference.source
    (rate,) = mlperf_checks.published_references(
        planned(root), Measurement(name="samples_per_second", value=5, unit="x")
    )
    assert rate.unit == "samples/s"
    assert mlperf_checks.published_references(planned(root, nodes=["n1", "n2", "n3"]), time) == []
    assert (
        mlperf_checks.published_references(planned(root), Measurement(name="epochs", value=1, unit="")) == []
    )


def test_convergence_that_is_too_fast_is_unproven(root: Path) -> None:
    # Samples until the target, and global batch size.
    assert mlperf_checks.check_convergence(planned(root), 3072, 8) == []
    assert mlperf_checks.check_convergence(planned(root), 2688, 8) == []  # the reference's own fastest
    (found,) = mlperf_checks.check_convergence(planned(root), 1536, 8)
    assert (found.code, found.verdict) == ("converged_too_fast", Verdict.UNPROVEN)
    assert mlperf_checks.check_convergence(planned(root), 1536, None) == []
    for samples, batch in ((None, 8), (1536, None), (None, None), (1536, 1e6)):
        (unknown,) = mlperf_checks.convergence_input_findings(planned(root), samples, batch)
        assert (unknown.code, unknown.verdict) == ("convergence_unknown", Verdict.UNPROVEN)
    assert mlperf_checks.convergence_input_findings(planned(root), 1536, 8) == []
    assert (
        mlperf_checks.convergence_input_findings(planned(root, benchmark="none_published"), None, None) == []
    )
    # Between two of the reference's batch sizes, and beyond all of them.
    between = mlperf_checks.reference_samples("llama31_8b", "5.1.0", 36)
    assert between is not None
    assert 179404 < between < 226713
    assert mlperf_checks.reference_samples("llama31_8b", "5.1.0", 100000) is None
    assert mlperf_checks.reference_samples("../x", "5.1.0", 8) is None


def test_a_log_that_the_compliance_checker_refuses_fails() -> None:
    def score(**run: Any) -> FolderScore:
        return FolderScore(folder="x", usage="training", ruleset="5.1.0", runs=(RunScore(file="r", **run),))

    good = {"sha256": "", "minutes": 1.0, "status": "success", "compliant": True}
    assert mlperf_checks.compliance_findings(score(**good), "5.1.0") == []
    (bad,) = mlperf_checks.compliance_findings(
        score(**{**good, "compliant": False, "messages": ("no seed",)}), "5.1.0"
    )
    assert (bad.verdict, "no seed" in bad.message) == (Verdict.FAIL, True)
    (unknown,) = mlperf_checks.compliance_findings(score(**{**good, "compliant": None}), "5.1.0")
    assert unknown.verdict is Verdict.UNPROVEN
    nothing = FolderScore(folder="x", usage="training", ruleset="5.1.0")
    assert mlperf_checks.compliance_findings(nothing, "5.1.0")[0].verdict is Verdict.UNPROVEN


def test_repeats_are_scored_if_there_are_enough(root: Path, tmp_path: Path) -> None:
    few = [planned(root, run_id=f"r{index}") for index in range(3)]
    verdict, words = mlperf_checks.score_repeats(few, tmp_path)
    assert verdict is None
    assert "3 repeats; a publishable result needs 10" in words
    # Ten runs whose logs show nothing have no score.
    all_ten = [planned(root, run_id=f"r{index}") for index in range(10)]
    for one in all_ten:
        (tmp_path / one.run_id / "logs").mkdir(parents=True)
        (tmp_path / one.run_id / "logs/n1.log").write_text("nothing\n")
    verdict, words = mlperf_checks.score_repeats(all_ten, tmp_path)
    assert verdict in (Verdict.UNPROVEN, Verdict.FAIL)
    assert words.startswith("no score by the rules 5.1.0")


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (Verdict.PASS, "10.45 min by the rules 5.1.0, 10 repeats"),
        (Verdict.DEGRADED, "10.45 min by the rules 5.1.0, 10 repeats: XID 31"),
        (Verdict.UNPROVEN, "no score by the rules 5.1.0: no reason given"),
    ],
)
def test_a_degraded_score_has_its_reason(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: Verdict, words: str
) -> None:
    findings = (
        Finding(code="note", verdict=None, message="a remark"),
        Finding(code="gpu_xid", verdict=Verdict.DEGRADED, message="XID 31"),
    )
    score = FolderScore(
        folder="x", usage="training", ruleset="5.1.0", minutes=10.45, verdict=verdict, findings=findings
    )
    monkeypatch.setattr(mlperf_checks, "score_folder", lambda folder, **options: score)
    repeats = [planned(root, run_id=f"r{index}") for index in range(10)]
    assert mlperf_checks.score_repeats(repeats, tmp_path) == (verdict, words)


def test_a_node_of_normal_speed_is_no_finding(tmp_path: Path) -> None:
    for score in ("0.97", "1.02", "0.97,", "1"):
        line = f"0: Rank=2 Node=n3 Score={score}\n0: All dist"
        assert gating(tmp_path, GOOD.replace("0: All dist", line)) == {}


def test_the_number_of_stored_lines_is_bounded() -> None:
    reader = run_sub.RunSubReader()
    for at in range(12_000):
        for text in (
            "RUNANDTIME_START 1700000020",
            f"srun: error: n{at}: task {at}: Killed",
            f"[rank{at}]: torch.OutOfMemoryError: CUDA out of memory.",
            f"Rank={at} Node=n{at} Score=0.{at % 7}",
            f"mpi/pmix_v4: {at}: can not load PMIx",
            f"RUNANDTIME_STOP 17000{at:05}",
        ):
            reader.line(at, text.encode())
        reader._times.pop("RUNANDTIME_STOP", None)
        reader._in_training = True
    assert len(reader._task_deaths) == run_sub.MAX_KEPT
    assert len(reader._mpi_errors) == run_sub.MAX_KEPT
    assert len(reader._slow_nodes) == len(reader._out_of_memory_ranks) == run_sub.MAX_NODES
    output = reader.result()
    assert (output.task_deaths[0], output.out_of_memory_ranks[0]) == ("n0: task 0: Killed", 0)


def test_empty_lines_of_the_preflight_are_bounded() -> None:
    reader = run_sub.RunSubReader()
    reader._in_preflight = True
    reader._preflight_size = run_sub.MAX_NCCL - 5
    for _ in range(20):
        reader.line(1, b"\n")
    assert len(reader._preflight_lines) == 5


@pytest.mark.parametrize("label", ["", "0: ", " 0: "])
def test_the_places_of_a_labelled_preflight_are_compared(tmp_path: Path, label: str) -> None:
    labelled = "".join(f"{label}{line}\n" for line in TABLE.splitlines())
    assert gating(tmp_path, GOOD.replace(TABLE, labelled)) == {}
    moved = labelled.replace("on n3", "on n2")
    assert "n2 has 8 ranks" in gating(tmp_path, GOOD.replace(TABLE, moved))["wrong_ranks"]
