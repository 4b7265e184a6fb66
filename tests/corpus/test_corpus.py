"""Test that every case of the corpus gets its right verdict (tests/corpus/README.md).

A case is a real run or night, with the truth about its machine. The first test judges each case as
the playbooks would, and checks its verdict and codes. The others check that each exception states
its reason, and that the corpus has healthy and faulty cases of both kinds.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from rackproof.core.records import Verdict
from tests.corpus import judging

NAMES = judging.case_names()


@pytest.fixture(autouse=True)
def no_flushing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not flush files to the disk, because that takes longer than the judging."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.mark.parametrize("name", NAMES)
def test_a_case_is_judged_right(name: str, tmp_path: Path) -> None:
    case, judged = judging.read_case(name), judging.judge_case(name, tmp_path)
    assert judged.verdict is case.expected.verdict, judged.reasons
    assert judged.codes == tuple(sorted(case.expected.codes)), judged.reasons


def test_a_case_says_why_where_its_verdict_is_not_what_its_machine_is() -> None:
    """A healthy case passes, an unhealthy one does not. Each exception states its reason."""
    for name in NAMES:
        case = judging.read_case(name)
        passes = case.expected.verdict is Verdict.PASS
        if case.healthy:
            assert passes or case.why, f"{name}: a healthy case that does not pass needs the key why"
            assert not case.not_seen, name
        else:
            assert not passes or case.not_seen, (
                f"{name}: an unhealthy case that passes needs the key not_seen"
            )


def test_the_file_of_a_case_names_the_page_that_describes_its_keys() -> None:
    comment = "---\n# tests/corpus/README.md describes the keys.\n"
    texts = {name: (judging.CORPUS / "cases" / name / judging.CASE_FILE).read_text() for name in NAMES}
    assert [name for name, text in texts.items() if not text.startswith(comment)] == []


def test_the_table_in_the_readme_lists_the_cases_whose_fault_is_not_seen() -> None:
    section = (judging.CORPUS / "README.md").read_text().partition("## Not seen")[2]
    listed = {line.split("`")[1] for line in section.splitlines() if line.startswith("| `")}
    assert listed == {name for name in NAMES if judging.read_case(name).not_seen}


def test_no_kept_machine_is_without_a_case() -> None:
    used = {machine for name in NAMES for machine in judging.read_case(name).nodes.values()}
    assert used == {path.name for path in (judging.CORPUS / "machines").iterdir()}


# Serial numbers with which publishers and this project replaced the real ones.
REPLACED = re.compile(r"0*|N/A|16500000000\d\d")


def test_no_kept_answer_has_the_serial_number_of_a_real_gpu() -> None:
    found = {
        machine.name: re.findall(r"<serial>([^<]*)", str(judging.machine_answer(machine.name)))
        for machine in (judging.CORPUS / "machines").iterdir()
        # The serial numbers of the test rack's nodes are made up.
        if not machine.name.startswith("rack-")
    }
    assert any(found.values())
    assert {name for name, ones in found.items() if not all(map(REPLACED.fullmatch, ones))} == set()


def test_the_corpus_has_healthy_and_faulty_cases_of_both_kinds() -> None:
    """If cases are removed, this test fails. Each kind must have healthy and faulty cases."""
    cases = [judging.read_case(name) for name in NAMES]
    assert len(cases) >= 100
    for kind in ("run", "night"):
        for healthy in (True, False):
            assert sum(case.kind == kind and case.healthy is healthy for case in cases) >= 10, (kind, healthy)
