"""Test which playbooks a certificate advises for its unproven requirements, and on which nodes.

A node with one GPU cannot run an all-reduce. The advice then says that the requirement needs more GPUs, and
names no playbook that would end without a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rackproof.analysis.certificate.measuring import NIGHT, advise_measuring
from rackproof.analysis.certificate.models import Answer, Catalogue, Certificate, Requirement
from rackproof.core.definitions import load_definitions
from rackproof.core.records import Gpu, Node, Verdict
from rackproof.logs import FORMATS

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
ROWS = (
    Requirement(id="health", text="The node is healthy.", max_age_days=7, night=True),
    Requirement(
        id="gemm", text="Products are right.", max_age_days=7, benchmarks=("gemm",), metrics=("gemm_best",)
    ),
    Requirement(id="reduce", text="All-reduce is fast.", max_age_days=7, benchmarks=("all-reduce",)),
    Requirement(
        id="peers", text="Copies are fast.", max_age_days=7, benchmarks=("peer-bandwidth",), night=True
    ),
    Requirement(
        id="both", text="Collectives are fast.", max_age_days=7, benchmarks=("all-reduce", "collectives")
    ),
    Requirement(
        id="lag", text="All GPUs are alike.", max_age_days=7, benchmarks=("soak",), metrics=("soak_lag",)
    ),
    Requirement(id="own", text="The site's own one.", max_age_days=7, benchmarks=("own-benchmark",)),
    Requirement(id="rest", text="Something else.", unmeasured="all of it"),
)
DEFINITIONS = {
    name: loaded.definition
    for name, loaded in load_definitions(
        BENCHMARKS,
        log_formats=FORMATS,
        names=["gemm", "all-reduce", "peer-bandwidth", "collectives", "soak"],
    ).items()
}


def certificate(gpus: Mapping[str, int | None], proven: str = "") -> Certificate:
    """Return a certificate of nodes with so many GPUs (None: unknown), whose other rows are unproven."""
    now = datetime(2026, 11, 29, tzinfo=UTC)
    nodes = [
        Node(name=name, gpus=tuple(Gpu(index=slot, uuid=f"GPU-{name}-{slot}") for slot in range(count)))
        for name, count in gpus.items()
        if count is not None
    ]
    return Certificate(
        made=now,
        made_by="ops",
        rackproof_version="1",
        verdict=Verdict.UNPROVEN,
        asked=tuple(gpus),
        nodes=tuple(nodes),
        catalogue=Catalogue(name="c", title="c", requirements=ROWS),
        answers=tuple(
            Answer(id=row.id, verdict=Verdict.PASS if row.id == proven else Verdict.UNPROVEN) for row in ROWS
        ),
    )


def advice(
    gpus: Mapping[str, int | None], proven: str = ""
) -> tuple[dict[tuple[str, int | None], str], dict[tuple[str, int | None], str]]:
    """Return nodes and requirements by what measures them, and by what needs more GPUs."""
    possible, impossible = (
        {(" ".join(one.names), one.gpus): f"{' '.join(one.nodes)}: {' '.join(one.ids)}" for one in measurings}
        for measurings in advise_measuring(certificate(gpus, proven), DEFINITIONS)
    )
    return possible, impossible


def test_one_gpu_is_not_sent_to_a_benchmark_of_several() -> None:
    possible, impossible = advice({"n1": 1})
    assert possible == {
        (NIGHT, None): "n1: health",
        ("gemm", None): "n1: gemm",
        ("own-benchmark", None): "n1: own",
    }
    assert impossible == {
        ("all-reduce", 1): "n1: reduce",
        ("peer-bandwidth", 1): "n1: peers",
        ("all-reduce collectives", 1): "n1: both",
        # The benchmark runs on one GPU, but does not judge this metric there.
        ("soak_lag", 1): "n1: lag",
    }


@pytest.mark.parametrize("gpus", [2, 4, 8, None])
def test_several_or_unknown_gpus_can_run_all(gpus: int | None) -> None:
    possible, impossible = advice({"n1": gpus}, proven="gemm")
    assert possible == {
        (NIGHT, None): "n1: health peers",
        ("all-reduce", None): "n1: reduce both",
        ("peer-bandwidth", None): "n1: peers",
        ("collectives", None): "n1: both",
        ("soak", None): "n1: lag",
        ("own-benchmark", None): "n1: own",
    }
    assert impossible == {}


def test_each_node_gets_what_it_can_run() -> None:
    possible, impossible = advice({"n1": 1, "n2": 8, "n3": 1})
    assert possible[(NIGHT, None)] == "n1 n3 n2: health peers"
    assert possible[("all-reduce", None)] == "n2: reduce both"
    assert impossible[("all-reduce", 1)] == "n1 n3: reduce"


@pytest.mark.parametrize("gpus", [3, 6, 16])
def test_a_number_of_gpus_that_a_benchmark_does_not_sweep_is_given_to_it(gpus: int) -> None:
    # collectives runs on 2, 4 and 8 GPUs, but a certificate needs a run on all GPUs of the node.
    possible, impossible = advice({"n1": gpus})
    assert possible[("collectives", gpus)] == "n1: both"
    assert possible[("all-reduce", None)] == "n1: reduce both"
    assert impossible == {}
