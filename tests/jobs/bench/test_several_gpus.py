"""Test the rules of the shipped benchmarks that use several GPUs (benchmarks/collectives.yml and others).

A rule compares a measurement of each GPU or pair with a bound. The tests judge the log of a healthy machine
with four GPUs, and then the same log with one fault. A wrong value must fail the run, and a missing
measurement must make it unproven. The reason must name the GPU or the measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rackproof.core.definitions import LoadedDefinition, load_definition
from rackproof.core.judging import judge_run
from rackproof.core.records import Measurement, Node, ParsedLog, Verdict
from rackproof.jobs.bench import planning
from rackproof.jobs.bench.log_checks import log_findings
from rackproof.logs import FORMATS

from .test_log_checks import ENDED, NODE, STARTED, UUIDS

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv")
PATHS = ("fp8", "bf16", "fp16", "tf32", "fp32", "fp64", "special", "atomics")
PAIRS = [(one, other) for one in UUIDS for other in UUIDS if one != other]


def of_gpus(name: str, value: float, unit: str = "1", **labels: str) -> list[Measurement]:
    """Return the same measurement of each of the four GPUs."""
    return [
        Measurement(name=name, value=value, unit=unit, labels={"gpu": uuid, "rank": str(rank), **labels})
        for rank, uuid in enumerate(UUIDS)
    ]


def good(asked: str) -> list[Measurement]:
    """Return the measurements of a benchmark on a healthy machine."""
    if asked == "gpu-agreement":
        names = ("unstable_values", "odd_products", "disputed_products")
        found = [one for name in names for dtype in ("fp32", "bf16") for one in of_gpus(name, 0, dtype=dtype)]
        return found + of_gpus("compared_with", 3, "GPUs")
    if asked == "llm":
        found = [*of_gpus("loss_repeat_differs", 0), *of_gpus("loss_odd_steps", 0), *of_gpus("mfu", 0.5)]
        found += of_gpus("tokens_per_second_per_gpu", 60_000, "tokens/s", compile="on")
        figures = {"loss_fall": 3.1, "step_time_deviation": 0.007}
        return [*found, *(Measurement(name=name, value=one, unit="1") for name, one in figures.items())]
    if asked == "peer-bandwidth":
        return [
            Measurement(name=name, value=value, unit=unit, labels={"from": one, "to": other})
            for one, other in PAIRS
            for name, value, unit in (("peer_copy", 390, "GB/s"), ("wrong_values", 0, "1"))
        ]
    if asked == "sdc":
        found = [one for path in (*PATHS, "memory") for name in ("wrong_words", "lost_blocks")
                 for one in of_gpus(name, 0, path=path)]  # fmt: skip
        for path in PATHS:
            found += of_gpus("odd_answers", 0, path=path) + of_gpus("fewest_launches", 5000, path=path)
        copies = [
            Measurement(name="wrong_copied_words", value=0, unit="1", labels={"from": one, "to": other})
            for one, other in PAIRS
        ]
        return [*found, *copies, *of_gpus("memory_share", 0.93), *of_gpus("untested_paths", 0)]
    found = of_gpus("compute_lag", 0.004, "fraction")
    found.append(Measurement(name="points_left_out", value=0, unit="1"))
    for name in COLLECTIVES if asked == "collectives" else COLLECTIVES[:1]:
        found += of_gpus("wrong_values", 0, collective=name)
        found += [
            Measurement(name=f"{name}_busbw", value=200, unit="GB/s", labels={"size_bytes": str(size << 20)})
            for size in (8, 32, 128, 512, 1024)
        ]
    return found


def changed(found: Sequence[Measurement], at: dict[str, str], value: float | None) -> list[Measurement]:
    """Return measurements with another value for this name and labels. None leaves them out."""
    labels = {key: text for key, text in at.items() if key != "name"}
    hit = [one for one in found if one.name == at["name"] and labels.items() <= one.labels.items()]
    assert hit
    rest = [one for one in found if one not in hit]
    return rest if value is None else [*rest, *(one.model_copy(update={"value": value}) for one in hit)]


def verdict(
    root: Path, asked: str, found: Sequence[Measurement], require: bool = False
) -> tuple[Verdict, str]:
    """Return the verdict of a benchmark's rules on these measurements, and its reasons."""
    loaded: LoadedDefinition = load_definition(root / f"benchmarks/{asked}.yml", log_formats=FORMATS)
    parameters = {**loaded.definition.parameters, "gpus": 4}
    tags = {"software.gpus": ",".join(UUIDS)}
    tags |= {f"gpu_state.{moment}.{uuid}": "idle" for moment in ("begin", "end") for uuid in UUIDS}
    log = ParsedLog(
        format="mllog",
        measurements=tuple(found),
        first_event_s=STARTED + 1,
        last_event_s=ENDED - 1,
        verdict=Verdict.PASS,
        tags=tags,
    )
    plan = planning.make_plan([loaded], {"n1": NODE}, {"n1": {}})
    planned = next(run for run in plan.runs if run.parameters.get("gpus") in (4, "all"))
    log = log.model_copy(update={"tags": {**tags, "run_id": planned.run_id}})
    nodes: list[Node] = [NODE]
    findings = log_findings(
        planned,
        {"id": planned.run_id},
        datetime.fromtimestamp(STARTED, UTC),
        datetime.fromtimestamp(ENDED, UTC),
        [log],
        nodes,
    )
    outcome = judge_run(
        loaded.definition.result.judge,
        [log],
        findings,
        lambda measurement: (),
        parameters=parameters,
        require_references=require,
    )
    return outcome.verdict, " ".join(outcome.reasons)


@pytest.mark.parametrize(
    "asked", ["collectives", "straggler", "gpu-agreement", "llm", "peer-bandwidth", "sdc"]
)
def test_a_healthy_machine_passes(root: Path, asked: str) -> None:
    assert verdict(root, asked, good(asked))[0] is Verdict.PASS


# `at` selects measurements of the healthy log, and `value` replaces theirs (None removes them). Bounds in
# benchmarks/: a lag of at most 0.04, at least 4603 launches of each path, and at least 0.8 of the memory.
@pytest.mark.parametrize(
    ("asked", "at", "value", "expected", "named"),
    [
        (
            "collectives",
            {"name": "wrong_values", "collective": "alltoall", "gpu": UUIDS[2]},
            1,
            "fail",
            UUIDS[2],
        ),
        (
            "collectives",
            {"name": "wrong_values", "collective": "broadcast"},
            None,
            "unproven",
            "wrong_values",
        ),
        (
            "collectives",
            {"name": "wrong_values", "collective": "sendrecv", "gpu": UUIDS[0]},
            None,
            "unproven",
            "3 of the 4",
        ),
        ("collectives", {"name": "reduce_scatter_busbw"}, None, "unproven", "reduce_scatter_busbw"),
        ("collectives", {"name": "points_left_out"}, 1, "unproven", "points_left_out"),
        ("collectives", {"name": "points_left_out"}, None, "unproven", "points_left_out"),
        ("collectives", {"name": "compute_lag", "gpu": UUIDS[1]}, 0.055, "fail", UUIDS[1]),
        ("collectives", {"name": "compute_lag", "gpu": UUIDS[1]}, float("nan"), "unproven", UUIDS[1]),
        ("straggler", {"name": "compute_lag", "gpu": UUIDS[3]}, 0.041, "fail", UUIDS[3]),
        ("straggler", {"name": "compute_lag", "gpu": UUIDS[3]}, None, "unproven", "3 of the 4"),
        ("straggler", {"name": "wrong_values", "gpu": UUIDS[0]}, 9, "fail", UUIDS[0]),
        ("gpu-agreement", {"name": "odd_products", "gpu": UUIDS[2], "dtype": "bf16"}, 1, "fail", UUIDS[2]),
        ("gpu-agreement", {"name": "disputed_products", "dtype": "fp32"}, 2, "fail", UUIDS[0]),
        ("gpu-agreement", {"name": "unstable_values", "gpu": UUIDS[1]}, 1, "fail", UUIDS[1]),
        ("gpu-agreement", {"name": "compared_with", "gpu": UUIDS[1]}, 0, "fail", UUIDS[1]),
        ("gpu-agreement", {"name": "compared_with"}, None, "unproven", "compared_with"),
        ("gpu-agreement", {"name": "unstable_values", "gpu": UUIDS[1]}, None, "unproven", "3 of the 4"),
        ("sdc", {"name": "wrong_words", "gpu": UUIDS[2], "path": "bf16"}, 1, "fail", UUIDS[2]),
        ("sdc", {"name": "wrong_words", "gpu": UUIDS[2], "path": "memory"}, 1, "fail", "path=memory"),
        ("sdc", {"name": "odd_answers", "gpu": UUIDS[1], "path": "special"}, 1, "fail", "path=special"),
        ("sdc", {"name": "untested_paths"}, None, "unproven", "untested_paths"),
        ("sdc", {"name": "odd_answers", "path": "special"}, None, "unproven", "path=special"),
        ("sdc", {"name": "odd_answers", "gpu": UUIDS[1], "path": "fp64"}, None, "unproven", "3 of the 4"),
        ("sdc", {"name": "fewest_launches", "gpu": UUIDS[0], "path": "tf32"}, 4000, "unproven", UUIDS[0]),
        ("sdc", {"name": "memory_share", "gpu": UUIDS[1]}, 0.5, "unproven", UUIDS[1]),
        ("sdc", {"name": "untested_paths", "gpu": UUIDS[1]}, 1, "unproven", UUIDS[1]),
        ("sdc", {"name": "fewest_launches", "path": "tf32"}, None, "unproven", "path=tf32"),
        ("sdc", {"name": "lost_blocks", "gpu": UUIDS[3], "path": "fp8"}, 2, "fail", UUIDS[3]),
        ("sdc", {"name": "wrong_copied_words", "from": UUIDS[1]}, None, "unproven", "9 of 12"),
        ("sdc", {"name": "wrong_copied_words", "from": UUIDS[1], "to": UUIDS[3]}, 7, "fail", UUIDS[3]),
        ("llm", {"name": "loss_repeat_differs", "gpu": UUIDS[2]}, 1, "fail", UUIDS[2]),
        ("llm", {"name": "loss_repeat_differs", "gpu": UUIDS[2]}, None, "unproven", "3 of the 4"),
        ("llm", {"name": "loss_odd_steps", "gpu": UUIDS[1]}, 7, "fail", UUIDS[1]),
        ("llm", {"name": "loss_fall"}, 0, "fail", "loss_fall"),
        ("llm", {"name": "loss_fall"}, None, "unproven", "loss_fall"),
        ("llm", {"name": "mfu", "gpu": UUIDS[0]}, 1.02, "fail", UUIDS[0]),
        ("llm", {"name": "tokens_per_second_per_gpu", "gpu": UUIDS[3]}, None, "unproven", "3 of the 4"),
        ("peer-bandwidth", {"name": "wrong_values", "from": UUIDS[1], "to": UUIDS[3]}, 1, "fail", UUIDS[3]),
        (
            "peer-bandwidth",
            {"name": "peer_copy", "from": UUIDS[3], "to": UUIDS[0]},
            None,
            "unproven",
            "11 of 12",
        ),
    ],
)
def test_a_fault_decides_the_verdict_and_is_named(
    root: Path, asked: str, at: dict[str, str], value: float | None, expected: str, named: str
) -> None:
    found, said = verdict(root, asked, changed(good(asked), at, value))
    assert found.value == expected, said
    assert named in said


def test_copies_of_only_some_pairs_at_once_prove_nothing(root: Path) -> None:
    for name in ("peer_copy_both_ways", "peer_copy_all_at_once"):
        copies = [
            Measurement(name=name, value=390, unit="GB/s", labels={"from": one, "to": other})
            for one, other in PAIRS
        ]
        assert verdict(root, "peer-bandwidth", [*good("peer-bandwidth"), *copies])[0] is Verdict.PASS
        assert verdict(root, "peer-bandwidth", [*good("peer-bandwidth"), *copies[1:]])[0] is Verdict.UNPROVEN


def test_where_references_are_required_speeds_need_them(root: Path) -> None:
    for asked in ("collectives", "llm"):
        assert verdict(root, asked, good(asked), require=True)[0] is Verdict.UNPROVEN
    for asked in ("straggler", "gpu-agreement"):
        assert verdict(root, asked, good(asked), require=True)[0] is Verdict.PASS
