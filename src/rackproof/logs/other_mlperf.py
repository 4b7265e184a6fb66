"""Logs of MLPerf's other suites: named as what they are, and not judged by the rules of Training.

HPC logs the same events as Training (``:::MLLOG``) of other benchmarks, by other rules. LoadGen of Inference
writes ``mlperf_log_summary.txt`` and ``mlperf_log_detail.txt``, before round 1.0 without MLLOG events.
"""

from __future__ import annotations

import re
from typing import ClassVar

from rackproof.core.records import Finding, ParsedLog, Source, Verdict, worst
from rackproof.logs._reading import LogParser
from rackproof.logs.mllog import TOKEN, MllogParser

HPC_BENCHMARKS = frozenset({"cosmoflow", "deepcam", "oc20", "openfold"})
"""Benchmarks of MLPerf HPC, rounds 0.7 to 3.0, as its logs name them."""
_HPC_EVENT = re.compile(
    rb'"key": ?"submission_benchmark", ?"value": ?"(?:' + "|".join(sorted(HPC_BENCHMARKS)).encode() + rb')"'
)
_LOADGEN = re.compile(
    rb"MLPerf Results Summary|\A\s*No warnings encountered during test\."
    rb'|:::MLLOG \{[^\n]{0,20}"key": ?"(?:loadgen_version|requested_scenario|effective_scenario)"'
    rb'|"pid": \d{1,10}, "tid": \d{1,10}, "ts": \d{1,20}ns : |"seq_id" ?: ?\d{1,12}, "qsl_idx" ?:'
)
"""Summaries (of an accuracy run before 1.0 without title), events, details before 1.0, accuracy's JSON."""
_HEAD_BYTES = 1 << 14
"""A pattern takes as long over a whole block as reading its events does."""
_FACT = re.compile(r"^(SUT name|Scenario|Mode|Result is)\s*: (.{1,100})$")
_FACTS = {"SUT name": "system", "Scenario": "scenario", "Mode": "mode", "Result is": "result"}


class MlperfHpcParser(MllogParser):
    """Reads the events; where this format is asked for by name, its end is judged."""

    format: ClassVar[str] = "mlperf_hpc"
    description: ClassVar[str] = "MLPerf HPC: named, and judged by `rackproof score --usage hpc` alone"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Whether the bytes name a benchmark of HPC."""
        return TOKEN in head and _HPC_EVENT.search(head, 0, _HEAD_BYTES) is not None


class MlperfInferenceParser(LogParser):
    """Names the log, and takes from its summary what it was of."""

    format: ClassVar[str] = "mlperf_inference"
    description: ClassVar[str] = "MLPerf Inference (LoadGen): named, and not judged"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Whether LoadGen wrote the bytes."""
        return _LOADGEN.search(head, 0, _HEAD_BYTES) is not None

    def line(self, at: int, text: str) -> None:
        """Take a fact of the summary."""
        if found := _FACT.match(text):
            self.log.tag(_FACTS[found[1]], found[2])

    def finish(self) -> ParsedLog:
        """Say which suite this is of."""
        message = (
            "a log of MLPerf Inference (LoadGen), of which nothing is judged here: "
            "use the submission checker of mlcommons/inference"
        )
        self.log.find("other_suite", message, Verdict.UNPROVEN)
        self.log.marks_as_findings(None)
        return self.log.parsed(self.format, Verdict.UNPROVEN, [])


def named_by_suite(log: ParsedLog) -> ParsedLog:
    """Return a log as what it is: events of HPC are no proof by Training's rules."""
    benchmark = log.tags.get("submission_benchmark", "")
    if benchmark not in HPC_BENCHMARKS:
        return log
    message = (
        f"a log of MLPerf HPC ({benchmark}), not of MLPerf Training: "
        "score it with `rackproof score --usage hpc` and the --ruleset of its round"
    )
    source = Source(file=log.file or None)
    finding = Finding(code="other_suite", message=message, verdict=Verdict.UNPROVEN, source=source)
    return log.model_copy(
        update={
            "format": MlperfHpcParser.format,
            "findings": (*log.findings, finding),
            "verdict": worst([log.verdict, Verdict.UNPROVEN]),
        }
    )
