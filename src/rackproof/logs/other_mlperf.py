"""Recognize logs of MLPerf HPC and MLPerf Inference, which the rules of MLPerf Training do not cover.

:func:`rackproof.logs.parse` uses the parsers and :func:`named_by_suite`. HPC logs the same events as Training
(``:::MLLOG``) for other benchmarks with other rules. LoadGen, the load generator of Inference, writes
``mlperf_log_summary.txt`` (``Scenario : Offline``) and ``mlperf_log_detail.txt``. The second file has no
MLLOG events before round 1.0.
"""

from __future__ import annotations

import re
from typing import ClassVar

from rackproof.core.records import Finding, ParsedLog, Source, Verdict, worst
from rackproof.logs._reading import LogParser
from rackproof.logs.mllog import MllogParser

HPC_BENCHMARKS = frozenset({"cosmoflow", "deepcam", "oc20", "openfold"})
"""Benchmarks of MLPerf HPC, rounds 0.7 to 3.0, named as in its logs."""
_LOADGEN = (b"MLPerf Results Summary", b'"loadgen_version"', b": LoadgenVersionInfo:", b'"qsl_idx"')
"""Texts of LoadGen: in summaries, events, the details before 1.0, and the JSON of an accuracy run."""
_OLD_ACCURACY = b"No warnings encountered during test."
"""Beginning of the summary of an accuracy run before 1.0."""
_HEAD_BYTES = 4096
"""Number of bytes from the start of a log, or of one of its blocks, in which these texts are searched."""
_FACT = re.compile(r"^(SUT name|Scenario|Mode|Result is)\s*: (.{1,100})$")
_FACTS = {"SUT name": "system", "Scenario": "scenario", "Mode": "mode", "Result is": "result"}
"""Tag of each fact. SUT is the system under test."""


class MlperfHpcParser(MllogParser):
    """The parser of HPC's events if this format is requested by name. It judges the end of the run."""

    format: ClassVar[str] = "mlperf_hpc"
    description: ClassVar[str] = "MLPerf HPC: recognized; only `rackproof score DIR --usage hpc` judges it"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Return False, because the events look like Training's. :func:`named_by_suite` identifies them."""
        return False


class MlperfInferenceParser(LogParser):
    """A parser that identifies the log, and reads facts about the run from its summary."""

    format: ClassVar[str] = "mlperf_inference"
    description: ClassVar[str] = "MLPerf Inference (LoadGen): recognized, but not judged"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Return whether LoadGen wrote the bytes."""
        head = head[:_HEAD_BYTES]
        return any(text in head for text in _LOADGEN) or head.lstrip().startswith(_OLD_ACCURACY)

    def line(self, at: int, text: str) -> None:
        """Read a fact of the summary."""
        if match := _FACT.match(text):
            self.log.tag(_FACTS[match[1]], match[2])

    def finish(self) -> ParsedLog:
        """Return an unproven log with its facts and a finding that names its suite, without measurements."""
        message = (
            "a log of MLPerf Inference (LoadGen), of which nothing is judged here: "
            "use the submission checker of mlcommons/inference"
        )
        self.log.find("other_suite", message, Verdict.UNPROVEN)
        self.log.marks_as_findings(None)
        return self.log.parsed(self.format, Verdict.UNPROVEN, [])


def named_by_suite(log: ParsedLog) -> ParsedLog:
    """Return a log of Training unchanged. A log of HPC is at best unproven, because it has other rules."""
    benchmark = log.tags.get("submission_benchmark", "")
    if benchmark not in HPC_BENCHMARKS:
        return log
    message = (
        f"a log of MLPerf HPC ({benchmark}), not of MLPerf Training: "
        "score it with `rackproof score DIR --usage hpc` and the --ruleset of its round"
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
