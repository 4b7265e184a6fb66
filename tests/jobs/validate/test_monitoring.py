"""Test the Prometheus alert rules and the Grafana dashboard of role nightly.

A nightly writes metrics (``prometheus_metrics``). The tests check that the rules and panels use only metrics,
labels and verdicts that a nightly writes, that promtool accepts the files, and the number of drained nodes.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from rackproof.core.records import Verdict
from rackproof.jobs.validate.nightly import NightlyOutcome, prometheus_metrics
from rackproof.store.audit_log import AuditEntry
from rackproof.store.night_store import NightRecord, NodeNight, SlurmState
from rackproof.store.probe_results import ProbeNight

FILES = Path(__file__).resolve().parents[3] / "roles/nightly/files"
ALERTS, DASHBOARD = FILES / "rackproof-alerts.yml", FILES / "rackproof-dashboard.json"
NAME = re.compile(r"\brackproof_\w+")


@pytest.fixture
def written() -> dict[str, set[str]]:
    """Return the labels of each metric that a night with a bad node writes."""
    now = datetime.now(UTC)
    nodes = (
        NodeNight(node="n1", rack="r1", verdict=Verdict.FAIL),
        NodeNight(node="n2", rack="r1", verdict=Verdict.PASS),
    )
    night = NightRecord(
        night_id="20261122T000000Z-health-000000", started=now, ended=now, verdict=Verdict.FAIL, nodes=nodes
    )
    text = prometheus_metrics(NightlyOutcome(2, night, ()), 12.0, ProbeNight(asked=10, spent=4)).decode()
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name = NAME.match(line)
            assert name, line
            found.setdefault(name[0], set()).update(re.findall(r'(\w+)="', line))
    return found


# Reasons of drains by a night and by a person, and the times of acts before and during the night.
OURS, OTHERS = "rackproof-night: xid_79", "bad fan, ticket 7"
EARLIER, TONIGHT = timedelta(hours=-9), timedelta(minutes=1)


@pytest.mark.parametrize(
    ("acts", "drained"),
    [
        ([], 1),
        # The limited night covers n1 and n2.
        ([("n8", "drain", OURS, EARLIER), ("n9", "drain", OURS, EARLIER)], 3),
        ([("n8", "drain", OURS, EARLIER), ("n8", "resume", "", EARLIER)], 1),
        ([("n8", "drain", OTHERS, EARLIER)], 1),
        # For the nodes of the night, Slurm's answer counts, and not the earlier acts.
        ([("n1", "drain", OURS, EARLIER), ("n2", "drain", OURS, EARLIER)], 1),
        ([("n2", "drain", OURS, TONIGHT)], 2),
        ([("n1", "resume", "", TONIGHT)], 0),
    ],
)
def test_drained_nodes_are_those_of_the_fleet_after_the_night(
    acts: list[tuple[str, Literal["drain", "resume"], str, timedelta]], drained: int
) -> None:
    now = datetime.now(UTC)
    nodes = tuple(
        NodeNight(node=name, verdict=Verdict.PASS, slurm=SlurmState(known=True, drained_by=by))
        for name, by in (("n1", "ours"), ("n2", "none"))
    )
    night = NightRecord(
        night_id="20261122T000000Z-health-000000", started=now, ended=now, verdict=Verdict.PASS, nodes=nodes
    )
    log = [
        AuditEntry(
            moment=now + at, act=act, node=node, reason=why, actor="a", host="h", playbook="validate.yml"
        )
        for node, act, why, at in acts
    ]
    text = prometheus_metrics(NightlyOutcome(0, night, ()), 1.0, None, log).decode()
    assert f"\nrackproof_nodes_drained {float(drained)}\n" in text


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    assert group["name"] == "rackproof"
    return list(group["rules"])


def test_every_rule_asks_for_what_a_night_writes(written: dict[str, set[str]]) -> None:
    for rule in rules():
        asked = set(NAME.findall(rule["expr"]))
        assert asked, rule["alert"]
        assert asked <= set(written), rule["alert"]
        for name, labels in re.findall(r"(rackproof_\w+)\{([^}]*)\}", rule["expr"]):
            assert set(re.findall(r"(\w+)=", labels)) <= written[name], rule["alert"]
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) > 4


def test_every_verdict_that_a_rule_names_exists() -> None:
    named = {
        one
        for rule in rules()
        for one in re.findall(r'verdict="(\w+)"', rule["expr"] + str(rule["annotations"]))
    }
    assert named
    assert named <= {one.value for one in Verdict}


def test_every_panel_shows_what_a_night_writes(written: dict[str, set[str]]) -> None:
    board = json.loads(DASHBOARD.read_text())
    assert {"title", "uid", "panels", "schemaVersion", "templating"} <= set(board)
    shown: set[str] = set()
    for panel in board["panels"]:
        (target,) = panel["targets"]
        asked = set(NAME.findall(target["expr"]))
        assert asked
        assert asked <= set(written), panel["title"]
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            assert all(label in written[name] for name in asked), panel["title"]
        shown |= asked
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
    assert shown >= set(written) - {"rackproof_nodes_measured"}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_no_two_panels_share_a_place_on_the_dashboard() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")
def test_promtool_takes_the_rules_and_the_metrics(tmp_path: Path) -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", ALERTS], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = prometheus_metrics(NightlyOutcome(1, None, ()), 1.0)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
