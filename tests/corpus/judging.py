"""Judge a case of the corpus as bench.yml and validate.yml do, with the functions that their plugins call.

README.md in this folder explains cases and their keys.
"""

from __future__ import annotations

import json
import lzma
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from rackproof.core.records import Measurement, Run, Verdict
from rackproof.jobs.bench import tasks as bench_tasks
from rackproof.jobs.bench.record import job_seal
from rackproof.jobs.validate import judge, probes
from rackproof.jobs.validate import tasks as validate_tasks
from rackproof.nodes.answer_seal import sealed_answer
from rackproof.store.night_store import NightContext, NightRecord, read_night, read_snapshot
from rackproof.store.probe_results import ProbeNight, write_probes
from tests.jobs.bench.log_states import stated_log

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).resolve().parent
CASE_FILE = "case.yml"
_RUN_ID = re.compile(r'"key": "run_id", "value": "([A-Za-z0-9._-]{1,120})"')
_GPU_TOOLS = {"nvidia-smi.xml": "nvidia_smi_xml"}
_HEALTH_TOOLS = {
    "nvlink-status.txt": "nvlink_status",
    "nvlink-errors.txt": "nvlink_errors",
    "kernel-log.txt": "kernel_log",
}
"""Files of a ``machine.yml``, and the names of their tools in the answer of a node."""


class Expected(BaseModel):
    """The expected verdict of a case, with its codes."""

    model_config = ConfigDict(extra="forbid")

    verdict: Verdict
    codes: tuple[str, ...] = ()


class Case(BaseModel):
    """The content of a ``case.yml``. A path that begins with tests/ is relative to the checkout."""

    model_config = ConfigDict(extra="forbid")

    what: str = Field(min_length=10)
    source: str = Field(min_length=5)
    kind: Literal["run", "night"]
    healthy: bool
    expected: Expected
    not_seen: str = ""
    assumed: str = ""
    why: str = ""
    sku: tuple[str, ...] = ()
    variables: dict[str, Any] = {}
    nodes: dict[str, str] = {}
    benchmark: str = ""
    definitions: str = "benchmarks"
    result: dict[str, Any] = {}
    parameters: dict[str, Any] = {}
    logs: dict[str, str] = {}
    job: dict[str, Any] = {}
    slurm: dict[str, Any] = {}
    measured: str = ""


@dataclass(frozen=True)
class Judged:
    """The verdict of a case, the codes of all findings against it, and the reasons in words."""

    verdict: Verdict
    codes: tuple[str, ...]
    reasons: tuple[str, ...]


def case_names() -> list[str]:
    """Return the names of all cases, in order."""
    return sorted(path.parent.name for path in (CORPUS / "cases").glob(f"*/{CASE_FILE}"))


def load_yaml(path: Path) -> Any:
    """Return the content of one of the project's own YAML files, which libyaml reads ten times faster."""
    return yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506


def read_case(name: str) -> Case:
    """Return a case.

    Raises:
        ValidationError: Its file has an unknown key or a wrong value.
    """
    return Case.model_validate(load_yaml(CORPUS / "cases" / name / CASE_FILE))


def judge_case(name: str, results: Path) -> Judged:
    """Judge a case in a separate results folder.

    Args:
        name: The name of the case.
        results: An empty folder.
    """
    case = read_case(name)
    variables = sku_variables(case.sku) | case.variables
    if case.kind == "run":
        return _judge_run(name, case, variables, results)
    return _judge_night(name, case, variables, results)


def sku_variables(names: Sequence[str]) -> dict[str, Any]:
    """Return the variables of SKUs as the inventory has them. A later SKU's replace an earlier one's."""
    variables: dict[str, Any] = {}
    for name in names:
        path = ROOT / f"inventory/group_vars/sku_{name}.yml"
        variables |= load_yaml(path)
    return variables


def read_text(folder: Path, path: str) -> str:
    """Return a file's text, unpacked if the file is compressed. Line ends stay as they are."""
    base = ROOT if path.startswith(("tests/", "docs/")) else folder
    plain, packed = base / path, base / f"{path}.xz"
    raw = plain.read_bytes() if plain.exists() else lzma.decompress(packed.read_bytes())
    return raw.decode("utf-8", "surrogateescape")


def machine_answer(name: str) -> dict[str, Any]:
    """Return a machine's answer with its keys ``health`` and ``record``, as ``rackproof_facts`` returns it.

    If only the output of single tools is stored, disk, clock and services are those of a healthy node.
    """
    folder = CORPUS / "machines" / name
    if (folder / "answer.json.xz").exists():
        answer: dict[str, Any] = json.loads(read_text(folder, "answer.json"))
        return answer
    about: dict[str, Any] = load_yaml(folder / "machine.yml")
    inside = {key: read_text(folder, path) for key, path in about.get("files", {}).items()}
    absent = {"status": "absent", "rc": None, "stdout": "", "stderr": "", "seconds": 0.0}
    gpu_tools = {
        name: _tool_answer(inside[key]) if key in inside else absent for key, name in _GPU_TOOLS.items()
    }
    health_tools = {name: _tool_answer(inside[key]) for key, name in _HEALTH_TOOLS.items() if key in inside}
    facts = {
        "boot_id": "boot-1",
        "machine": about.get("machine", ""),
        "tools": gpu_tools,
        "files": {"mountinfo": "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"},
        "memlock_bytes": -1,
        "shm_bytes": 64 << 30,
    }
    systemd = {"failed_units": "", "units": "", "clock": "NTPSynchronized=yes\n"}
    health_tools |= {name: _tool_answer(text) for name, text in systemd.items()}
    epoch = datetime.fromisoformat(about["taken"]).timestamp()
    health = {"begin": epoch, "epoch": epoch, "booted": epoch - 86_400, "tools": health_tools}
    health["disk"] = {
        "/": {
            "total_bytes": 1000,
            "free_bytes": 500,
            "total_inodes": 1000,
            "free_inodes": 500,
            "read_only": False,
        }
    }
    return {"record": facts, "health": {"facts": facts, "node": {}, "health": health}}


def _tool_answer(text: str) -> dict[str, Any]:
    """Return a tool's output in the form of a node's answer."""
    return {"status": "ok", "rc": 0, "stdout": text, "stderr": "", "seconds": 0.5}


def _judge_run(name: str, case: Case, variables: Mapping[str, Any], results: Path) -> Judged:
    """Plan, record and judge a run."""
    facts = {
        node: machine_answer(machine)["record"] if machine else {} for node, machine in case.nodes.items()
    }
    sku, gpus = variables.get("bench_sku", ""), int(variables.get("bench_sku_gpus", 0))
    references = variables.get("bench_sku_references", [])
    definitions = results / "definitions"
    write_definition(case, definitions)
    choice = bench_tasks.select_benchmarks(
        definitions,
        results,
        suite="",
        benchmarks=[case.benchmark],
        parameters=case.parameters,
        sku_references=references,
        hosts=list(case.nodes),
        owner_pid=None,
    )
    site = {
        "sku": sku,
        "sku_gpus": gpus,
        "sku_gpu_name": variables.get("bench_sku_gpu_name", ""),
        "shared": "/s",
    }
    site |= {"environment": variables.get("bench_environment", {})}
    outcome = bench_tasks.plan_runs(
        choice,
        hosts=list(case.nodes),
        answered={
            node: bench_tasks.NodeAnswer(
                facts=raw, variables=_definition_variables(sku), pythons={}, slurm=site
            )
            for node, raw in facts.items()
        },
        resume=False,
        dry_run=False,
    )
    (planned,) = outcome.plan.runs
    for node, path in case.logs.items():
        _write_log(results / planned.run_id / "logs" / f"{node}.log", name, path, planned.run_id, case.slurm)
    recorded = bench_tasks.record_run(
        results,
        outcome.plan.plan_id,
        planned.run_id,
        facts=facts,
        sku=sku,
        sku_gpus=gpus,
        sku_references=references,
        required=bench_tasks.Requirements(bool(variables.get("bench_require_references", True))),
        job=_job_state(case.job, planned.run_id, results / planned.run_id / "logs" / f"{planned.lead}.log"),
        failure="",
        command=[],
        texts={},
    )
    run = recorded.run
    return Judged(run.verdict, _codes_of_run(run), run.reasons)


def write_definition(case: Case, folder: Path) -> None:
    """Write the definition of a case's benchmark into a new folder, with the case's own ``result`` keys."""
    definition = load_yaml(ROOT / case.definitions / f"{case.benchmark}.yml")
    definition["result"] |= case.result
    folder.mkdir(parents=True)
    (folder / f"{case.benchmark}.yml").write_text(yaml.safe_dump(definition, sort_keys=False))


def _definition_variables(sku: str) -> dict[str, Any]:
    """Return the variables that definitions may name, as role bench sets them."""
    defaults = load_yaml(ROOT / "roles/bench/defaults/main.yml")
    plain = {
        name: value
        for name, value in defaults.items()
        if type(value) in (str, int) and "{{" not in str(value)
    }
    return {
        **plain,
        "bench_mlcommons_fetch": "fetch",
        "bench_home": "/b",
        "bench_workloads": "/b/workloads",
        "bench_data": "/b/data",
        "bench_imagenet": "/b/data/imagenet",
        "bench_imagenet_archives": "/b/data/imagenet/archives",
        "bench_sku": sku,
    }


def _write_log(path: Path, name: str, kept: str, run_id: str, slurm: Mapping[str, Any]) -> None:
    """Write a log of a case into its run, with the id of the planned run and with Slurm's record."""
    text = read_text(CORPUS / "cases" / name, kept)
    if stated := _RUN_ID.search(text):
        text = text.replace(stated[1], run_id)
    if slurm:
        text += f":::RACKPROOF {json.dumps({'end': {**slurm, 'name': slurm.get('name', run_id)}})}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))


_IDLE_MACHINE = {
    "cpus": 8,
    "seconds": 60.0,
    "disturbed_s": 0.0,
    "others_s": 0.0,
    "stolen_s": 0.0,
    "names": [],
    "begin": None,
    "end": None,
}
"""The machine use that a supervisor states on a machine without other programs."""


def _job_state(job: Mapping[str, Any], run_id: str, log: Path) -> dict[str, Any]:
    """Return a job's sealed state, as its supervisor writes it. A case overrides values of a good end."""
    state = {
        "id": run_id,
        "phase": "ended",
        "ended_by": "itself",
        "exit_status": 0,
        "signal": None,
        "elapsed_s": _IDLE_MACHINE["seconds"],
        "succeeded": job.get("exit_status", 0) == 0,
        **stated_log(log),
        "machine": _IDLE_MACHINE,
        **{key: value.isoformat() if isinstance(value, datetime) else value for key, value in job.items()},
    }
    return {**state, "seal": job_seal(state)}


def _codes_of_run(run: Run) -> tuple[str, ...]:
    """Return the codes of all findings against a run. The code of a measurement is its name and verdict."""
    bad = {one.code for one in run.findings if one.verdict is not None and one.verdict is not Verdict.PASS}
    bad |= {
        f"{one.metric}:{one.verdict.value}"
        for one in run.judgements
        if one.gating and one.verdict is not Verdict.PASS
    }
    return tuple(sorted(bad))


def _judge_night(name: str, case: Case, variables: Mapping[str, Any], results: Path) -> Judged:
    """Store the snapshots of a night, judge the night and close it."""
    night = validate_tasks.begin_night(results, list(case.nodes), owner_pid=os.getpid())
    expected = {
        "gpus": variables.get("bench_sku_gpus", 0),
        "gpu_name": variables.get("bench_sku_gpu_name", ""),
        "slurm": False,
        **variables.get("validate_expect", {}),
    }
    for node, machine in case.nodes.items():
        gathered = machine_answer(machine)["health"]
        begin, epoch = gathered["health"]["begin"], gathered["health"]["epoch"]
        validate_tasks.store_snapshot(
            night,
            node,
            sealed_answer({key: value for key, value in gathered.items() if key != "seal"}),
            asked=begin - 0.1,
            answered=epoch + 0.1,
            sku=variables.get("bench_sku", ""),
            expected=expected,
            limits=variables.get("validate_limits", {}),
            references=variables.get("bench_sku_references", []),
        )
    if case.measured:
        _keep_measured(json.loads(read_text(CORPUS / "cases" / name, case.measured)), night, results)
    judge.judge_fleet(
        night,
        asked=dict.fromkeys(case.nodes, ""),
        benchmarks=ROOT / "benchmarks",
        being_imaged={},
        policy=judge.night_policy(require_references=bool(variables.get("bench_require_references", True))),
    )
    summary = validate_tasks.close_night(night, did={})
    record = read_night(Path(night.folder))
    return Judged(summary.verdict, _codes_of_night(record), _reasons_of_night(record))


def _keep_measured(measured: Mapping[str, Any], night: NightContext, results: Path) -> None:
    """Store the measurements of a night, as the night itself stored them."""
    folder = Path(night.folder)
    probed = ProbeNight.model_validate(measured["probes"])
    about = {
        node: kept.about for node in probed.measured if (kept := read_snapshot(folder, node)) is not None
    }
    numbers = [Measurement.model_validate(one) for one in measured["numbers"]]
    probes.keep_numbers(results, probed, numbers, about)
    write_probes(folder, probed)


def _codes_of_night(night: NightRecord) -> tuple[str, ...]:
    """Return the codes of all findings against a night's nodes, and of the reasons for their verdicts."""
    found = {one.code for node in night.nodes for one in node.findings if one.verdict is not Verdict.PASS}
    return tuple(sorted(found | {one.code for node in night.nodes for one in node.reasons}))


def _reasons_of_night(night: NightRecord) -> tuple[str, ...]:
    return tuple(f"{one.code}: {one.evidence}" for node in night.nodes for one in node.findings)
