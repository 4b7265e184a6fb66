"""Test catalogues of requirements (:mod:`rackproof.analysis.certificate.catalogue`).

A certificate answers the requirements of a catalogue, which is shipped with Rackproof or a user's own file.
These tests check that the shipped catalogues name only benchmarks, metrics and codes that exist, and that a
wrong file is refused with a message that names the mistake.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from rackproof.analysis.certificate.catalogue import catalogue_names, is_night_code, load_catalogue
from rackproof.analysis.certificate.expectations import lacking_expectations
from rackproof.analysis.certificate.models import CertificateError
from rackproof.core.definitions import load_definitions
from rackproof.logs import FORMATS
from rackproof.nodes.snapshot import build_snapshot
from tests.fuzz.samples import healthy_answer


@pytest.mark.parametrize("name", catalogue_names())
def test_a_shipped_catalogue_names_only_what_exists(name: str, root: Path) -> None:
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
        assert [code for code in row.codes if not is_night_code(code)] == []
        assert set(row.reads) <= tools, row.id


@pytest.mark.parametrize(
    ("catalogue", "row", "lacking"),
    [
        ("acceptance", "network", "ports, port_gbps"),
        ("acceptance", "nvlink", "nvlinks, fabric"),
        ("clustermax-health", "passive-link-flaps", "ports, port_gbps"),
        ("clustermax-health", "passive-gpu-lost", "gpus"),
        ("nvidia-ai-clouds", "SDN18", "services"),
        ("nvidia-ai-clouds", "BOOT04", "mounts"),
    ],
)
def test_a_shipped_row_needs_expectations_in_the_inventory(catalogue: str, row: str, lacking: str) -> None:
    (codes,) = [found.codes for found in load_catalogue(catalogue).requirements if found.id == row]
    assert lacking_expectations(codes, {}).endswith(f": {lacking} in validate_expect")


@pytest.mark.parametrize(
    ("pattern", "known"),
    [
        ("xid_*", True),
        ("xid_79", True),
        ("xid_7*", True),
        ("service_nvidia_imex", True),
        ("*_lost", True),
        ("xidd_*", False),
        ("no_such_code", False),
        ("wrong_values", False),
    ],
)
def test_a_pattern_is_known_if_a_night_gives_such_a_code(pattern: str, known: bool) -> None:
    assert is_night_code(pattern) is known


def test_nvidias_requirements_are_complete_and_only_fully_measured_ones_can_pass() -> None:
    """Version 2.3 has 128 identifiers. A new row without ``unmeasured`` needs a reason here."""
    counts = {"BM": 1, "CNP": 10, "BOOT": 4, "SDN": 10, "K8S": 29, "SEC": 26, "BFX": 3, "DIR": 4, "HSS": 19}
    counts |= {"DMS": 5, "STG": 6, "NET": 6, "CAP": 5}
    rows = load_catalogue("nvidia-ai-clouds").requirements
    published = [row for row in rows if row.area != "Tests of nodes"]
    assert Counter(re.findall(r"^K8S|^[A-Z]+", row.id)[0] for row in published) == counts
    assert {row.id for row in rows if not row.unmeasured} == {"BMAAS09", "BMAAS11", "BMAAS12"}
    assert all(row.area for row in rows)


def test_the_page_of_certificates_lists_what_is_measured_of_nvidias_requirements(root: Path) -> None:
    text = (root / "docs/using/evidence.md").read_text()
    table = text.partition("### NVIDIA's requirements")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `(\w+)` \| (whole|part) \|", table, re.MULTILINE)
    rows = load_catalogue("nvidia-ai-clouds").requirements
    measured = [(row.id, "part" if row.unmeasured else "whole") for row in rows if row.is_measured]
    assert named == measured
    assert f"{len(rows)} requirements" in table


def test_no_shipped_catalogue_passes_without_benchmarks() -> None:
    """docs/using/evidence.md says so, and names the suites."""
    for name in catalogue_names():
        assert any(row.benchmarks and not row.night for row in load_catalogue(name).requirements), name


def test_the_example_of_a_contract_means_what_it_says(root: Path, tmp_path: Path) -> None:
    """XID 79 is a GPU that fell off the bus, and XID 95 is an error of its memory."""
    path = tmp_path / "contract.yml"
    path.write_text(
        (root / "docs/using/evidence.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    )
    (row,) = [row for row in load_catalogue(str(path)).requirements if "off the bus" in row.text]
    assert [row.names_code(code) for code in ("xid_79", "gpu_lost", "xid_95")] == [True, True, False]


ROW_LINE = "text: long enough, max_age_days: 1, night: true"
ROW = "id: x\n  text: long enough\n  max_age_days: 1\n  night: true"


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
        # YAML keeps the last of two equal keys, so a requirement would be lost.
        (
            f"name: a\ntitle: b\nrequirements:\n- {ROW}\nrequirements:\n- {ROW}",
            "8: requirements: written twice",
        ),
        ("name: a\nname: b", "2: name: written twice"),
        (f"name: a\ntitle: b\nrequirements:\n- {ROW}\n  night: false", "night: written twice"),
        ("&a [*a]", "contains itself"),
        *(
            (f"name: a\ntitle: {value}", "is not YAML")
            for value in (
                "!!bool x",
                "!!int ''",
                "!!float ''",
                "!!timestamp x",
                f"!!float {'59:' * 400}59.0",
                "!!binary é",
            )
        ),
        (
            "name: a\ntitle: b\nrequirements:\n"
            "- {id: x, text: long enough, max_age_days: 1, night: true, codes: ['xidd_*'], reads: [gpus]}",
            "x: no night gives the code xidd_.*; perhaps xid_",
        ),
    ],
)
def test_a_catalogue_that_cannot_be_used_is_refused(tmp_path: Path, text: str, wrong: str) -> None:
    path = tmp_path / "mine.yml"
    path.write_text(text)
    with pytest.raises(CertificateError, match=wrong):
        load_catalogue(str(path))


@pytest.mark.parametrize(
    ("rows", "errors"),
    [
        (["{id: x}"], ["requirements.0.text: Field required"]),
        (["{id: x, text: long enough}"], ["requirements.0: a requirement names benchmarks"]),
        (["{id: x, text: long enough, nights: true}"], ["requirements.0.nights: Extra inputs"]),
        (
            ["{id: x, text: short}", f"{{{ROW_LINE}, id: y}}", f"{{{ROW_LINE}, id: '?'}}"],
            ["requirements.0.text: String should", "requirements.2.id: String should"],
        ),
    ],
)
def test_a_mistake_in_a_row_is_one_error(tmp_path: Path, rows: list[str], errors: list[str]) -> None:
    path = tmp_path / "own.yml"
    path.write_text("name: a\ntitle: b\nrequirements:\n" + "".join(f"- {row}\n" for row in rows))
    with pytest.raises(CertificateError) as raised:
        load_catalogue(str(path))
    found = str(raised.value).removeprefix(f"{path}: ").split("; ")
    assert len(found) == len(errors), found
    assert all(one.startswith(error) for one, error in zip(found, errors, strict=True)), found


def test_a_catalogue_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.yml"
    with path.open("wb") as stream:
        stream.truncate(60 << 20)
    with pytest.raises(CertificateError, match=r"cannot read the catalogue .*more than"):
        load_catalogue(str(path))


def test_each_shipped_catalogue_is_named_in_the_documentation(root: Path) -> None:
    for page in ("docs/using/cli.md", "docs/using/evidence.md"):
        text = (root / page).read_text()
        assert [name for name in catalogue_names() if f"`{name}`" not in text] == [], page


def test_the_error_about_an_unknown_catalogue_lists_the_known_ones() -> None:
    with pytest.raises(CertificateError, match="acceptance, clustermax-health"):
        load_catalogue("no-such-catalogue")
