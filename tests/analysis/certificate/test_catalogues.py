"""Shipped catalogues ask for what is measured; a user's own file is read or refused in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from rackproof.analysis.certificate.catalogue import catalogue_names, load_catalogue
from rackproof.analysis.certificate.models import CertificateError
from rackproof.core.definitions import load_definitions
from rackproof.core.finding_codes import find_code, registry
from rackproof.logs import FORMATS
from rackproof.nodes.snapshot import build_snapshot
from tests.fuzz.samples import healthy_answer


def known_code(pattern: str) -> bool:
    """Return whether a pattern of a catalogue means a code of nights."""
    names = [code for code in registry() if code == pattern or code.startswith(pattern.rstrip("*"))]
    entry = find_code(pattern)
    return any("night" in registry()[name].jobs for name in names) or bool(entry and "night" in entry.jobs)


@pytest.mark.parametrize("name", catalogue_names())
def test_a_shipped_catalogue_names_what_exists(name: str, root: Path) -> None:
    definitions = load_definitions(root / "benchmarks", log_formats=FORMATS)
    tools = set(build_snapshot("n1", healthy_answer(0)).tools) | {"gpus", "ports", "disk"}
    for row in load_catalogue(name).requirements:
        assert set(row.benchmarks) <= definitions.keys()
        judged = {
            rule.metric
            for benchmark in row.benchmarks
            for rule in definitions[benchmark].definition.result.judge
        }
        assert set(row.metrics) <= judged, row.id
        assert [code for code in row.codes if not known_code(code)] == []
        assert set(row.reads) <= tools, row.id


def test_a_code_that_does_not_exist_is_found() -> None:
    assert known_code("xid_*")
    assert not known_code("no_such_code")
    assert not known_code("wrong_values")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("name: a", "title: Field required"),
        ("name: a\ntitle: b\nrequirements: []", "requirements: Tuple should have at least 1"),
        ("- [", "is not YAML"),
        (
            "name: a\ntitle: b\nrequirements:\n- {id: x, text: long enough, max_age_days: 1}",
            "names benchmarks",
        ),
        (
            "name: a\ntitle: b\nrequirements:\n"
            "- &row {id: x, text: long enough, max_age_days: 1, night: true}\n- *row",
            "the same id",
        ),
        ("a: " + "{b: " * 3000, "is not YAML"),
        ("\x00", "is not YAML"),
    ],
)
def test_a_catalogue_that_cannot_be_used_is_refused(tmp_path: Path, text: str, wrong: str) -> None:
    path = tmp_path / "mine.yml"
    path.write_text(text)
    with pytest.raises(CertificateError, match=wrong):
        load_catalogue(str(path))


def test_an_unknown_catalogue_names_those_there_are() -> None:
    with pytest.raises(CertificateError, match="acceptance, clustermax-health"):
        load_catalogue("no-such-catalogue")
