"""Test ``rackproof.jobs.reimage.tasks``, which begins, continues and ends a run of reimage.yml.

The run has a folder with the journal of each node and its hardware before and after. The tests kill runs,
damage files, swap machines, and start again. The next run must continue where each node stood, refuse nodes
whose state is unknown, never take a node of another run, and resume only a node that passed its checks.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rackproof.cli.main import main
from rackproof.core.records import Verdict
from rackproof.jobs.reimage import hardware, run_files, tasks
from rackproof.jobs.reimage.acceptance import check_night_verdict
from rackproof.jobs.reimage.hardware import record_hardware
from rackproof.jobs.reimage.lifecycle import STEPS, Step
from rackproof.jobs.reimage.run_files import ReimageContext, ReimageError
from rackproof.jobs.reimage.tasks import begin_run, end_run, write_step
from rackproof.nodes.health_subjects import HealthFinding
from rackproof.store import host_claims
from rackproof.store.night_store import NightRecord, NodeNight, write_night
from rackproof.store.run_folder import read_run

NODES = {"n1": ["r1"], "n2": ["r1"], "n3": ["r2"]}


@pytest.fixture(autouse=True)
def _no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RACKPROOF_DATABASE_URL", raising=False)


def started(results: Path, nodes: dict[str, list[str]] | None = None, **options: Any) -> ReimageContext:
    """Begin a run that belongs to this process. With ``owner_pid=None``, it is a dry run."""
    given = {"method": "rack", "owner_pid": os.getpid()} | options
    return begin_run(results, nodes or NODES, **given)


def work(run: ReimageContext, node: str, *steps: Step) -> None:
    """Begin and end steps of a node."""
    for step in steps:
        write_step(run, node, "begun", step)
        write_step(run, node, "done", step)


def facts(serial: str = "S1", uuids: tuple[str, ...] = ("a", "b")) -> dict[str, Any]:
    """Return the raw facts of a node with these GPUs."""
    xml = "".join(
        f'<gpu id="00000000:0{i}:00.0"><product_name>GB300</product_name><uuid>GPU-{uuid}</uuid>'
        f"<minor_number>{i}</minor_number></gpu>"
        for i, uuid in enumerate(uuids)
    )
    smi = f"<nvidia_smi_log><driver_version>580</driver_version>{xml}</nvidia_smi_log>"
    return {
        "dmi": {"product_serial": serial},
        "tools": {"nvidia_smi_xml": {"status": "ok", "stdout": smi}},
        "boot_id": "one",
    }


def test_an_assumption_of_the_plan_is_in_its_message(tmp_path: Path) -> None:
    said = "Slurm's partitions are not known"
    assert started(tmp_path, {"n1": ["r1"]}, remark=said).message[-1] == said


def listed(**reasons: str) -> str:
    """Return the answer of sinfo about nodes with these reasons, with "none" for those in service."""
    return "".join(f"{node}|batch|{reason}\n" for node, reason in reasons.items())


def test_the_first_wave_tries_the_image_on_one_node(tmp_path: Path) -> None:
    dry = {"owner_pid": None, "members": listed(n1="none", n2="none", n3="none")}
    run = started(tmp_path, **dry)
    assert run.waves == (("n1",), ("n2", "n3"))
    assert "no further wave starts if more than 0 nodes fail (reimage_max_failures)" in run.message
    assert started(tmp_path, **dry, canary=0).waves == (("n1", "n2", "n3"),)
    # A bad image is tried again on the node that it spoiled, and not on one in service.
    dry["members"] = listed(n1="none", n2="bob: bad fan", n3="rackproof-reimage: gets a new image")
    assert started(tmp_path, **dry).waves == (("n3",), ("n1", "n2"))
    dry["members"] = listed(n1="bob: new", n2="bob: new", n3="Not responding")
    assert started(tmp_path, **dry).waves == (("n1", "n2", "n3"),)
    # Slurm did not answer, or does not list the nodes: they may be in service.
    assert started(tmp_path, owner_pid=None, members="").waves[0] == ("n1",)
    with pytest.raises(ReimageError, match="reimage_max_failures: at least 0, not -1"):
        started(tmp_path, max_failures=-1)


def test_a_node_that_was_not_started_is_as_it_was_and_is_neither_failed_nor_unfinished(
    tmp_path: Path,
) -> None:
    interrupted = started(tmp_path, {"n2": ["r1"]})
    work(interrupted, "n2", *STEPS[:3])
    before = tasks.unfinished_imaging(tmp_path, NODES)
    assert list(before) == ["n2"]
    run = started(tmp_path)
    write_step(run, "n1", "begun", Step.DRAIN)
    write_step(run, "n1", "failed", reason="the image is bad")
    ended = end_run(run)
    assert (ended.verdict, ended.gates) == (Verdict.FAIL, True)
    assert "n1: failed at drain" in ended.message[0]
    unchanged = ("n2: not started, and as it was before", "n3: not started, and as it was before")
    assert ended.message[1:3] == unchanged
    assert "1 node failed, so no further wave started (reimage_max_failures)" in ended.message[3]
    assert ended.message[3].endswith("ansible-playbook reimage.yml -l n1,n2,n3")
    reasons = read_run(Path(run.folder)).reasons
    assert reasons[1:] == unchanged
    # The earlier attempt counts again, and no night waits for the end of an imaging that never began.
    after = tasks.unfinished_imaging(tmp_path, NODES)
    assert after["n2"].partition(" (")[0] == before["n2"].partition(" (")[0] == "waits to begin with image"
    assert "n3" not in after
    assert not list(Path(run.folder, "journal").glob(".n[23]*"))


def test_a_refused_node_is_none_of_those_that_ended_the_waves(tmp_path: Path) -> None:
    earlier = started(tmp_path, {"n1": ["r1"]})
    run_files.journal_path(Path(earlier.folder), "n1").write_bytes(b"0 nothing\n")
    run = started(tmp_path)
    assert list(run.refused) == ["n1"]
    assert "no further wave started" not in " ".join(end_run(run).message)
    run = started(tmp_path)
    write_step(run, "n2", "begun", Step.DRAIN)
    write_step(run, "n2", "failed", reason="the image is bad")
    last = end_run(run).message[-1]
    assert last.startswith("1 node failed, so no further wave started (reimage_max_failures)")
    assert last.endswith("ansible-playbook reimage.yml -l n2,n3")


def test_a_run_of_which_nothing_was_started_is_unproven(tmp_path: Path) -> None:
    ended = end_run(started(tmp_path, {"n1": ["r1"]}))
    assert (ended.verdict, ended.gates) == (Verdict.UNPROVEN, True)
    assert ended.message == ("n1: not started, and as it was before",)


def test_a_lost_journal_does_not_prove_that_a_node_was_not_started(tmp_path: Path) -> None:
    run = started(tmp_path, {"n1": ["r1"]})
    run_files.journal_path(Path(run.folder), "n1").unlink()
    assert end_run(run).verdict is Verdict.FAIL


def test_a_node_that_passes_all_steps_returns_and_is_recorded(tmp_path: Path) -> None:
    run = started(tmp_path, {"n1": ["r1"]})
    assert run.todo == {"n1": STEPS}
    assert record_hardware(run, "n1", "before", facts(), serial="s1") == ()
    work(run, "n1", *STEPS[:6])
    remarks = record_hardware(run, "n1", "after", facts(uuids=("a", "x")), expected_gpus=2)
    assert [one.split(" ", 3)[3] for one in remarks] == ["swapped: was GPU-b, is GPU-x"]
    write_step(run, "n1", "begun", Step.VALIDATE)
    write_step(run, "n1", "done", Step.VALIDATE, remarks=remarks)
    work(run, "n1", Step.RETURN)
    ended = end_run(run)
    assert (ended.verdict, ended.gates, ended.history) == (Verdict.PASS, False, "")
    assert "n1: returned to service (GPU 1" in ended.message[0]
    kept = read_run(Path(run.folder))
    assert kept.benchmark == "reimage"
    assert [gpu.uuid for node in kept.nodes for gpu in node.gpus] == ["GPU-a", "GPU-x"]
    (status,) = tasks.read_progress(tmp_path)
    assert status.progress.state == "returned"
    assert not list(Path(run.folder, "journal").glob(".*.reserve"))


@pytest.mark.parametrize("last", STEPS)
def test_the_next_run_continues_where_a_killed_run_stopped(tmp_path: Path, last: Step) -> None:
    run = started(tmp_path)
    record_hardware(run, "n1", "before", facts(serial="first"))
    work(run, "n1", *STEPS[: STEPS.index(last)])
    write_step(run, "n1", "begun", last)
    found = {one.node: one for one in tasks.read_progress(tmp_path)}
    assert found["n1"].progress.state == "running"
    assert found["n2"].progress.state == "waiting"
    # The run is killed, and its claims on hosts end with the process.
    (tmp_path / run_files.CLAIMS / host_claims.CLAIMS).unlink()
    now = datetime.now(UTC)
    (mine,) = tasks.read_progress(tmp_path, ["n1"], now)
    # A name that can be no file was never imaged.
    for name in ("a/b", "", ".hidden", "x" * 300, "a\0b"):
        assert tasks.read_progress(tmp_path, [name, "n1"], now) == [mine]
        assert tasks.unfinished_imaging(tmp_path, [name]) == {}
    assert (mine.progress.state, mine.progress.step) == ("interrupted", last)
    assert mine.next_command == "ansible-playbook reimage.yml -l n1"

    second = started(tmp_path)
    assert second.run_id > run.run_id
    assert second.todo["n1"][0] is Step.DRAIN
    assert second.todo["n2"] == STEPS
    taken = hardware.read_record(Path(second.folder), "before", "n1")
    if STEPS.index(last) > STEPS.index(Step.RECORD):
        # The record of the hardware before is the first attempt's.
        assert Step.RECORD not in second.todo["n1"]
        assert taken is not None
        assert taken.serial == "first"
    else:
        assert taken is None
    work(second, "n1", *second.todo["n1"])
    assert tasks.read_progress(tmp_path, ["n1"])[0].progress.state == "returned"


def test_another_method_and_reimage_again_start_from_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = started(tmp_path)
    record_hardware(run, "n1", "before", facts())
    work(run, "n1", *STEPS[:5])
    second = started(tmp_path)
    assert second.todo["n1"] == (Step.DRAIN, Step.PROVISION, Step.VALIDATE, Step.RETURN)
    # The id of the old boot is taken over, too. The first boot of the new image must have another one.
    with pytest.raises(ReimageError, match="n1 still runs the system that was to be replaced"):
        hardware.check_first_boot(second, "n1", facts())
    assert hardware.check_first_boot(second, "n1", facts() | {"boot_id": "two"}) == ()
    (said_,) = hardware.check_first_boot(second, "n2", facts())
    assert "it is not known if it has booted since" in said_
    # A node that does not state its boot is refused, whether the old boot is known or not.
    for node in ("n1", "n2"):
        with pytest.raises(ReimageError, match=f"{node} does not state which boot this is"):
            hardware.check_first_boot(second, node, facts() | {"boot_id": ""})
    write_step(second, "n1", "begun", Step.DRAIN)
    path = hardware.boot_id_path(Path(second.folder), "n1")
    path.unlink()
    path.mkdir()
    with pytest.raises(ReimageError, match="cannot read "):
        hardware.check_first_boot(second, "n1", facts())
    assert f"cannot read {path}" in started(tmp_path, owner_pid=None).refused["n1"]
    path.rmdir()
    # Another method starts from the first step, but the record of the hardware before remains.
    monkeypatch.setattr(tasks, "METHODS", ("rack", "another"))
    other = started(tmp_path, method="another")
    assert other.todo["n1"] == STEPS
    record_hardware(other, "n1", "before", facts(serial="changed"))
    kept = hardware.read_record(Path(other.folder), "before", "n1")
    assert kept is not None
    assert kept.serial == "S1"
    anew = started(tmp_path, again=True)
    assert anew.todo["n1"] == STEPS
    assert hardware.read_record(Path(anew.folder), "before", "n1") is None


def test_a_node_that_got_another_image_and_did_not_return_is_imaged_again(tmp_path: Path) -> None:
    old, new = {"n1": "sha256:old", "n2": "sha256:old"}, {"n1": "sha256:new", "n2": "sha256:old"}
    first = started(tmp_path, images=old)
    for name in old:
        work(first, name, *STEPS[:5])
    second = started(tmp_path, images=new)
    assert second.todo["n1"] == STEPS
    assert second.todo["n2"] == (Step.DRAIN, *STEPS[5:])
    # If the image is not known, the node is imaged again, too.
    work(second, "n2", Step.DRAIN)
    assert started(tmp_path).todo["n2"] == STEPS


def test_an_unknown_method_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for method in ("kickstart", "Image", ""):
        with pytest.raises(ReimageError, match="is unknown; there are image, autoinstall, rack"):
            started(tmp_path, method=method)
    assert list(tmp_path.iterdir()) == []


def test_two_runs_never_take_the_same_node(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        started(tmp_path, {"n1": ["r1"]}, owner_pid=process.pid)
        with pytest.raises(
            ReimageError, match=rf"n1 is being re-imaged by another playbook \(pid {process.pid}"
        ):
            started(tmp_path)
        assert len(run_files.run_folders(tmp_path)) == 1
        started(tmp_path, {"n2": ["r1"]})
        # A benchmark cannot take a node that is being imaged.
        with pytest.raises(host_claims.HostClaimedError, match="n1 is being re-imaged by another playbook"):
            host_claims.claim_hosts(tmp_path, ["n1"], os.getppid())
    finally:
        process.kill()
        process.communicate()


def test_a_dry_run_stores_nothing(tmp_path: Path) -> None:
    run = started(tmp_path, owner_pid=None, at_once=2)
    assert run.message[0] == "3 nodes in 2 waves, at most 2 at a time"
    assert list(tmp_path.iterdir()) == []


def test_nodes_without_a_known_partition_count_as_one_partition(tmp_path: Path) -> None:
    listed = "n1|a|none\nn2|b|none\nn3|b|none"
    assert started(tmp_path, owner_pid=None, canary=0, per_partition=1, members=listed).waves == (
        ("n1", "n2"),
        ("n3",),
    )
    assert len(started(tmp_path, owner_pid=None, canary=0, per_partition=1).waves) == 3


def test_a_damaged_journal_leaves_its_node_out_and_the_others_go_on(tmp_path: Path) -> None:
    run = started(tmp_path)
    path = run_files.journal_path(Path(run.folder), "n2")
    path.write_bytes(b"0 nothing\n" + path.read_bytes())
    second = started(tmp_path)
    assert set(second.todo) == {"n1", "n3"}
    assert "the step of the node is not known" in second.refused["n2"]
    for name in second.todo:
        work(second, name, *STEPS)
    ended = end_run(second)
    assert ended.verdict is Verdict.FAIL
    assert any(one.startswith("n2: failed; whether it is drained, see sinfo -R: ") for one in ended.message)
    assert {one.node: one.progress.state for one in tasks.read_progress(tmp_path)}["n2"] == "failed"


def test_the_command_after_a_damaged_journal_or_run_starts_from_the_first_step_despite_an_older_run(
    tmp_path: Path,
) -> None:
    first = started(tmp_path, {"n1": ["r1"]})
    work(first, "n1", *STEPS[:5])
    second = started(tmp_path, {"n1": ["r1"]}, again=True)
    work(second, "n1", *STEPS[:2])
    write_step(second, "n1", "begun", Step.BOOT)
    path = run_files.journal_path(Path(second.folder), "n1")
    kept = path.read_bytes()
    path.write_bytes(b"0 nothing\n" + kept)
    # If an operator moved the damaged journal away, the older one would count, which lacks the newer attempt.
    path.rename(tmp_path / "aside")
    assert started(tmp_path, {"n1": ["r1"]}, owner_pid=None).todo == {"n1": (STEPS[0], *STEPS[5:])}
    (tmp_path / "aside").rename(path)
    for _ in range(2):
        refused = started(tmp_path, {"n1": ["r1"]}, owner_pid=None).refused["n1"]
        assert "start" in refused
        assert "with -e reimage_again=true" in refused
        assert "move" not in refused
        assert started(tmp_path, {"n1": ["r1"]}, owner_pid=None, again=True).todo == {"n1": STEPS}
        path.write_bytes(kept)
        Path(second.folder, run_files.RUN_FILE).write_text("{")


def test_the_message_about_a_failed_node_has_the_reason_and_the_next_command(tmp_path: Path) -> None:
    run = started(tmp_path, {"n1": ["r1"]})
    work(run, "n1", Step.DRAIN)
    write_step(run, "n1", "begun", Step.RECORD)
    write_step(run, "n1", "failed", reason="no \x1b[31manswer")
    ended = end_run(run)
    assert ended.gates
    assert ended.message == (
        "n1: failed at record and stays drained: no answer. Next: ansible-playbook reimage.yml -l n1",
    )


def test_a_step_that_did_not_begin_cannot_be_done(tmp_path: Path) -> None:
    run = started(tmp_path)
    with pytest.raises(ReimageError, match="n1: return cannot be done, it was not started"):
        write_step(run, "n1", "done", Step.RETURN)


def test_a_step_that_took_too_long_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = started(tmp_path, {"n1": ["r1"]}, limits_s={"drain": 60})
    write_step(run, "n1", "begun", Step.DRAIN)

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(UTC) + timedelta(minutes=2)

    monkeypatch.setattr(tasks, "datetime", Later)
    stands = write_step(run, "n1", "done", Step.DRAIN)
    assert stands.remarks == ("drain took 2 min 00 s, its limit is 1 min 00 s",)


@pytest.mark.parametrize("serial", ["OTHER", "S10"])
def test_another_machine_stops_before_anything_is_written(tmp_path: Path, serial: str) -> None:
    run = started(tmp_path)
    with pytest.raises(
        ReimageError, match=rf"n1 is another machine: .* S1, the inventory has {serial}. Nothing was written"
    ):
        record_hardware(run, "n1", "before", facts(), serial=serial)
    assert hardware.read_record(Path(run.folder), "before", "n1") is None


def test_another_machine_after_its_image_is_not_reported_as_unwritten(tmp_path: Path) -> None:
    run = started(tmp_path)
    with pytest.raises(ReimageError, match="n1 is another machine") as refused:
        record_hardware(run, "n1", "after", facts(), serial="OTHER")
    assert "Nothing was written" not in str(refused.value)
    assert "Its image was written" in str(refused.value)


def test_the_hardware_of_a_node_without_an_answer_and_without_a_night_is_not_known(tmp_path: Path) -> None:
    run = started(tmp_path)
    assert record_hardware(run, "n1", "before", None, serial="S1") == (
        "the node did not answer and no night has a record of it: its hardware is not known",
        "its serial number is not known, the inventory has S1",
    )
    with pytest.raises(ReimageError, match="its hardware is not known"):
        record_hardware(run, "n1", "after", None)


def test_lost_hardware_and_too_few_gpus_stop_the_node(tmp_path: Path) -> None:
    run = started(tmp_path)
    with pytest.raises(ReimageError, match="n2 lists 1 GPU, SKU gb300 has 2"):
        record_hardware(run, "n2", "after", facts(uuids=("a",)), sku="gb300", expected_gpus=2)
    record_hardware(run, "n1", "before", facts())
    with pytest.raises(ReimageError, match=r"n1 has changed: GPU 1 \(.*\) missing: was GPU-b"):
        record_hardware(run, "n1", "after", facts(uuids=("a",)), expected_gpus=2)


def night(folder: Path, verdict: Verdict, *names: str) -> Path:
    now = datetime.now(UTC)
    finding = HealthFinding(node="n1", code="xid", verdict=verdict, evidence="XID 79", action="rma")
    write_night(
        folder,
        NightRecord(
            night_id="20261122T020000Z-health-abcdef",
            started=now,
            ended=now,
            verdict=verdict,
            nodes=tuple(
                NodeNight(node=name, verdict=verdict, findings=() if verdict is Verdict.PASS else (finding,))
                for name in names
            ),
        ),
    )
    return folder


def test_a_node_is_proven_only_by_a_night_in_which_it_passed_or_was_degraded(tmp_path: Path) -> None:
    assert check_night_verdict(night(tmp_path / "a", Verdict.PASS, "n1"), "n1") == ()
    assert check_night_verdict(night(tmp_path / "b", Verdict.DEGRADED, "n1"), "n1") == ("degraded: XID 79",)
    see = f"See `rackproof explain --results {tmp_path} n1`"
    for verdict in (Verdict.FAIL, Verdict.UNPROVEN):
        with pytest.raises(ReimageError, match=f"n1 is {verdict.value}: XID 79. {re.escape(see)}"):
            check_night_verdict(night(tmp_path / verdict.value, verdict, "n1"), "n1")
    with pytest.raises(ReimageError, match="has no snapshot of it"):
        check_night_verdict(night(tmp_path / "c", Verdict.PASS, "n2"), "n1")
    with pytest.raises(ReimageError, match="was not proven"):
        check_night_verdict(tmp_path / "nowhere", "n1")


def test_the_stored_request_is_json(tmp_path: Path) -> None:
    run = started(tmp_path, limits_s={"boot": 7})
    kept = json.loads((Path(run.folder) / run_files.RUN_FILE).read_text())
    assert kept["limits_s"]["boot"] == 7
    assert kept["nodes"] == ["n1", "n2", "n3"]


def status_output(results: Path, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["reimage", "status", "--results", str(results), *words])
    return done.exit_code, done.output


def test_the_command_status_shows_unfinished_nodes_and_the_next_command(tmp_path: Path) -> None:
    assert status_output(tmp_path) == (0, f"no node was ever imaged from {tmp_path}\n")
    run = started(tmp_path)
    work(run, "n1", *STEPS)
    work(run, "n2", Step.DRAIN)
    write_step(run, "n2", "failed", reason="its jobs do not end")
    (tmp_path / run_files.CLAIMS / host_claims.CLAIMS).unlink()
    status, text = status_output(tmp_path)
    assert status == 0
    assert "n1" not in text
    assert "failed at record" in text
    assert "its jobs do not end" in text
    # The run began nothing on n3, which is as it was.
    assert "n3" not in text
    assert "next: ansible-playbook reimage.yml -l n2\n" in text
    assert "returned to service" in status_output(tmp_path, "--all")[1]
    assert "n9: never imaged from here" in status_output(tmp_path, "n1", "n9")[1]
    found = json.loads(status_output(tmp_path, "--json")[1])
    assert [(one["node"], one["progress"]["state"]) for one in found] == [
        ("n1", "returned"),
        ("n2", "failed"),
    ]


def test_a_night_gets_the_nodes_that_are_still_being_imaged(tmp_path: Path) -> None:
    run = started(tmp_path)
    work(run, "n1", *STEPS)
    write_step(run, "n2", "begun", Step.DRAIN)
    assert set(tasks.unfinished_imaging(tmp_path, ["n1", "n2", "n9"])) == {"n2"}


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 9000, b'{"name": 1}'])
def test_an_interrupted_run_with_a_damaged_record_leaves_its_node_out(tmp_path: Path, content: bytes) -> None:
    first = started(tmp_path)
    for name in NODES:
        record_hardware(first, name, "before", facts())
        work(first, name, *STEPS[:3])
    record = Path(first.folder, "before/n1.json")
    record.write_bytes(content)
    second = started(tmp_path)
    assert set(second.todo) == {"n2", "n3"}
    assert f"cannot read {record}" in second.refused["n1"]
    assert second.refused["n1"].endswith("-e reimage_again=true")
    assert Path(second.folder, "before/n2.json").exists()


def test_a_record_that_cannot_be_copied_is_an_error_and_a_missing_one_is_not(tmp_path: Path) -> None:
    hardware.copy_from_run(tmp_path / "none", tmp_path / "new", "n1")
    assert not (tmp_path / "new").exists()
    (tmp_path / "old/before/n1.json").mkdir(parents=True)
    with pytest.raises(ReimageError, match="cannot read"):
        hardware.copy_from_run(tmp_path / "old", tmp_path / "new", "n1")


@pytest.mark.parametrize("damage", [b"", b"0 nothing\n"], ids=["journal whole", "journal damaged"])
def test_a_run_whose_request_was_deleted_is_still_unfinished(tmp_path: Path, damage: bytes) -> None:
    run = started(tmp_path)
    write_step(run, "n1", "begun", Step.DRAIN)
    work(run, "n2", *STEPS)
    path = run_files.journal_path(Path(run.folder), "n1")
    path.write_bytes(damage + path.read_bytes())
    Path(run.folder, run_files.RUN_FILE).unlink()
    (tmp_path / run_files.CLAIMS / host_claims.CLAIMS).unlink()
    assert set(tasks.unfinished_imaging(tmp_path, NODES)) == {"n1"}
    again = started(tmp_path)
    assert "-e reimage_again=true" in again.refused["n1"]
    assert again.todo == {"n2": STEPS, "n3": STEPS}
    assert started(tmp_path, owner_pid=None, again=True).todo == dict.fromkeys(NODES, STEPS)


@pytest.mark.parametrize("has_request", [True, False])
def test_a_killed_run_began_nothing_on_nodes_without_a_step(tmp_path: Path, has_request: bool) -> None:
    earlier = started(tmp_path, {"n2": ["r1"]})
    work(earlier, "n2", *STEPS[:2])
    run = started(tmp_path)
    assert set(tasks.unfinished_imaging(tmp_path, NODES)) == set(NODES)
    (tmp_path / run_files.CLAIMS / host_claims.CLAIMS).unlink()
    if not has_request:
        Path(run.folder, run_files.RUN_FILE).unlink()
    # On n2, the earlier run is unfinished.
    (left,) = tasks.read_progress(tmp_path, NODES)
    assert (left.node, left.run_id, left.progress.step) == ("n2", earlier.run_id, Step.BOOT)
    # Each new run continues with the steps and the record of the earlier one.
    for _ in range(2):
        assert started(tmp_path).todo == {"n1": STEPS, "n2": (Step.DRAIN, *STEPS[2:]), "n3": STEPS}


@pytest.mark.parametrize(("which", "content"), [("after", b"{"), ("after", b""), ("before", b"[]")])
def test_a_damaged_record_of_one_node_does_not_lose_the_run(
    tmp_path: Path, which: str, content: bytes
) -> None:
    run = started(tmp_path)
    for name in NODES:
        record_hardware(run, name, which, facts())
        work(run, name, *STEPS)
    Path(run.folder, which, "n2.json").write_bytes(content)
    ended = end_run(run)
    assert ended.verdict is Verdict.PASS
    record = read_run(Path(run.folder))
    assert [node.name for node in record.nodes] == ["n1", "n3"]
    (finding,) = record.findings
    assert finding.message.startswith("n2: cannot read ")
    assert "n2: returned to service (cannot read " in ended.message[1]


def test_the_command_after_a_damaged_journal_starts_from_the_first_step(tmp_path: Path) -> None:
    run = started(tmp_path, {"n1": ["r1"]})
    path = run_files.journal_path(Path(run.folder), "n1")
    path.write_bytes(b"0 nothing\n" + path.read_bytes())
    (status,) = tasks.read_progress(tmp_path)
    assert status.text == "failed"
    assert status.next_command == "ansible-playbook reimage.yml -l n1 -e reimage_again=true"
    (line,) = end_run(run).message
    assert "stays drained" not in line
    assert line.endswith("first step. Next: ansible-playbook reimage.yml -l n1 -e reimage_again=true")
