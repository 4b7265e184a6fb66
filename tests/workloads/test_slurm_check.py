"""Test that ``slurm_run.py check`` reports all reasons to refuse a run at once, and changes nothing.

A plan in check mode (``bench.yml --check``) starts it. It checks the shared storage, the image, free space,
Slurm's MPI plugin and pyxis, whether the nodes take jobs, and the config if it was copied before.
"""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

# The digest of the image, and a line of ``srun --help`` that shows that Slurm has pyxis.
DIGEST = "sha256:" + "a" * 64
HELP = "  --container-image=[USER@]\n"


@pytest.fixture
def slurm_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return workloads/slurm_run.py as a module."""
    monkeypatch.syspath_prepend(str(root / "workloads"))
    return importlib.import_module("slurm_run")


def work_of(slurm_run: ModuleType, shared: Path, **changes: Any) -> Any:
    """Return the program's Work for two nodes, with some keys of its spec replaced."""
    spec = {"repository": "a/b", "tag": "1", "registry": "svc", "shared": str(shared), "benchmark": "big"}
    spec |= {"environment": {}, "hosts": ["n1", "n2"], "image": "squashfs", "image_gb": 1, "stage": []}
    return slurm_run.Work({**spec, **changes})


def fake_slurm(
    slurm_run: ModuleType, monkeypatch: pytest.MonkeyPatch, nodes: str, options: str, mpi_types: str
) -> None:
    """Fake Slurm's list of nodes, srun's options and MPI types, and a registry that has the image."""

    def run(command: list[str], **_: Any) -> tuple[int, str, str]:
        known = {"--help": options, "--mpi=list": mpi_types}
        return 0, nodes if command[0] == "sinfo" else known[command[1]], ""

    monkeypatch.setattr(slurm_run, "run_command", run)
    monkeypatch.setattr(slurm_run.shutil, "which", lambda name: name)
    monkeypatch.setattr(slurm_run.Work, "digest", lambda self: DIGEST)
    monkeypatch.setattr(slurm_run.Work, "prove_image", lambda self, digest: None)


def test_a_run_whose_image_can_be_pulled_is_not_refused(
    slurm_run: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_slurm(
        slurm_run, monkeypatch, "n1|idle|none\nn2|mixed|none\n", HELP, "MPI plugin types are...\n\tpmix\n"
    )
    assert work_of(slurm_run, tmp_path).check() == []
    said = capsys.readouterr().out
    assert "not there yet: the image 1 GB" in said
    assert list(tmp_path.iterdir()) == []


def test_all_reasons_to_refuse_a_run_are_reported_at_once(
    slurm_run: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_slurm(slurm_run, monkeypatch, "n1|drained*|bad fan\n", "", "\tpmi2\n")

    def refuse(self: Any, digest: str) -> None:
        raise slurm_run.Refusal(6, "the image is for arm64")

    monkeypatch.setattr(slurm_run.Work, "prove_image", refuse)
    stage = [{"creates": "model", "size_gb": 1e9, "mount": "/d", "run": "x"}]
    found = " / ".join(work_of(slurm_run, tmp_path, stage=stage).check())
    for words in (
        "the image is for arm64",
        "big still needs 1000000001 GB (the image 1 GB, model 1e+09 GB)",
        "pyxis is missing",
        "srun --mpi=list has no pmix",
        "n2: Slurm has no such node",
        "n1 is drained in Slurm (bad fan)",
    ):
        assert words in found


@pytest.mark.parametrize(
    ("state", "reported"),
    [
        # A state as sinfo prints it, with its suffix, and whether the check reports the node.
        ("idle", False),
        ("allocated", False),
        ("mixed-", False),
        ("reserved", False),
        ("idle~", False),
        ("completing", False),
        ("draining@", True),
        ("DOWN*", True),
        ("fail", True),
        ("maint", True),
        ("unknown", True),
        ("inval", True),
        ("future", True),
        ("blocked", True),
        ("idle*", True),
        ("mixed*", True),
        ("allocated*", True),
    ],
)
def test_a_node_that_takes_no_job_is_reported(slurm_run: ModuleType, state: str, reported: bool) -> None:
    # The job has a reservation, which may use reserved nodes.
    reasons = slurm_run.node_reasons(["n1"], f"n1|{state}|why\n", "maintenance")
    assert bool(reasons) is reported
    assert all("n1" in line and "(why): a job on it would wait" in line for line in reasons)


@pytest.mark.parametrize(
    ("reservation", "reported"),
    [("", ["n1 is reserved in Slurm: a job on it would wait"]), ("benchmarks", [])],
)
def test_a_reserved_node_needs_a_reservation(
    slurm_run: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    reservation: str,
    reported: list[str],
) -> None:
    nodes = "n1|reserved|none\nn2|idle|none\n"
    fake_slurm(slurm_run, monkeypatch, nodes, HELP, "MPI plugin types are...\n\tpmix\n")
    assert work_of(slurm_run, tmp_path, reservation=reservation).check_slurm() == reported


@pytest.mark.parametrize(
    ("boots", "pulled_on"),
    [
        # What scontrol prints of the nodes, and the nodes on which the image is pulled again.
        ("NodeName=n1 Arch=x86_64 BootTime=1000 x=1\nNodeName=n2 Arch=x86_64 BootTime=1000 x=1\n", ""),
        ("NodeName=n1 Arch=x86_64 BootTime=3000 x=1\nNodeName=n2 Arch=x86_64 BootTime=1000 x=1\n", "n1"),
        ("NodeName=n1 Arch=x86_64 BootTime=3000 x=1\nNodeName=n2 Arch=x86_64 BootTime=3000 x=1\n", "n1,n2"),
        ("NodeName=n1 Arch=x86_64 BootTime=None x=1\nNodeName=n2 Arch=x86_64 x=1\n", ""),
        ("Node n1 not found\n", ""),
        ("", ""),
    ],
)
def test_an_image_is_pulled_again_on_a_node_that_booted_since(
    slurm_run: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, boots: str, pulled_on: str
) -> None:
    work = work_of(slurm_run, tmp_path, partition="", account="", reservation="")
    note = tmp_path / "images" / f"{work.slug}_{DIGEST[7:19]}.nodes"
    note.mkdir(parents=True)
    for host in ("n1", "n2"):
        (note / host).write_text("")
        os.utime(note / host, (2000, 2000))
    calls: list[list[str]] = []

    def watch(self: Any, command: list[str], _watched: list[Path], _phase: str) -> tuple[int, str]:
        calls.append(command)
        return 0, ""

    monkeypatch.setattr(slurm_run, "run_command", lambda command, **_: (0, boots, ""))
    monkeypatch.setattr(slurm_run.Work, "watch", watch)
    monkeypatch.setattr(slurm_run.Work, "prove_image", lambda self, digest: None)
    work.pull_on_nodes(DIGEST, "svc#a/b:1")
    assert [f"--nodelist={pulled_on}" in call for call in calls] == ([True] if pulled_on else [])
    work.pull_on_nodes(DIGEST, "svc#a/b:1")
    assert len(calls) == (1 if pulled_on else 0)


def test_a_folder_of_which_only_the_root_exists_is_not_mounted(slurm_run: ModuleType, tmp_path: Path) -> None:
    (line,) = work_of(slurm_run, Path("/rackproof-is-not-mounted/here")).check_storage()
    assert "is the shared storage mounted? bench_shared names the folder" in line
    assert work_of(slurm_run, tmp_path / "not" / "yet").check_storage() == []


def test_the_spec_may_come_from_the_environment(
    slurm_run: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RACKPROOF_SPEC", json.dumps({"a": 1}))
    assert slurm_run.read_options(["check"]).spec == {"a": 1}
    monkeypatch.delenv("RACKPROOF_SPEC")
    with pytest.raises(SystemExit):
        slurm_run.read_options(["check"])
