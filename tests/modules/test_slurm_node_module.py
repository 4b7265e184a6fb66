"""Test the module rackproof_slurm_node, which drains and resumes nodes on the Slurm controller.

A drain is Rackproof's own if its reason begins with the module's prefix. The tests show that the module never
lifts a drain of another owner or replaces its reason, that it waits for jobs and for slurmd, and that each
wait ends. scontrol and squeue are fakes with lines of real clusters.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from .conftest import Modules

# Each case starts processes. All of them together are too slow for `make check`.
pytestmark = pytest.mark.slow

# Lines of real clusters' `scontrol --oneliner show node` (names and numbers changed), by name of the node.
LINES = {
    line.split()[0].partition("=")[2]: line
    for line in Path(__file__).with_name("scontrol-show-node.txt").read_text().splitlines()
}

# The program of the fakes. It keeps the nodes in a file, so a later call sees a change.
SLURM = r"""#!{python}
import json, os, sys
path = os.environ["FAKE_SLURM"]
world = json.load(open(path))
world["calls"].append(sys.argv)
argv = sys.argv[1:]
rc = 0
if os.path.basename(sys.argv[0]) == "squeue":
    jobs = world["jobs"].pop(0) if len(world["jobs"]) > 1 else world["jobs"][0]
    print("\n".join(jobs))
elif argv == ["ping"]:
    if world.get("late"):
        json.dump(world, open(path, "w"))
        import time; time.sleep(60)
    answer = world.get("ping") or "scontrol: fatal: Could not establish a configuration source"
    rc = 0 if "UP" in answer else 1
    print(answer, file=sys.stderr if "fatal" in answer else sys.stdout)
elif "show" in argv:
    if world.get("down"):
        print("slurm_load_node error: Unable to contact slurm controller (connect failure)", file=sys.stderr)
        rc = 1
    elif world.get("hang"):
        import time; json.dump(world, open(path, "w")); time.sleep(60)
    else:
        print("\n".join(world["lines"].values()))
        for name, states in world.get("then", {}).items():
            head, _, tail = world["lines"][name].partition(" State=")
            state = states.pop(0) if states else tail.partition(" ")[0]
            world["lines"][name] = head + " State=" + state + " " + tail.partition(" ")[2]
else:
    values = dict(one.split("=", 1) for one in argv[1:])
    for name in values["NodeName"].split(","):
        line = world["lines"][name]
        head, _, tail = line.partition(" State=")
        state, _, rest = tail.partition(" ")
        rest = rest.partition(" Reason=")[0]
        if values["State"] == "DRAIN":
            state += "+DRAIN"
            rest += " Reason=" + values["Reason"] + " [root@2026-01-05T10:00:00]"
        elif values["State"] == "RESUME":
            state = "IDLE"
        world["lines"][name] = head + " State=" + state + " " + rest
json.dump(world, open(path, "w"))
sys.exit(rc)
"""


class Slurm:
    """A cluster of some nodes of LINES. A call runs the module for nodes.

    squeue prints one list of ``jobs`` after the other, and repeats the last one.
    """

    def __init__(self, modules: Modules, folder: Path) -> None:
        self.modules = modules
        self.file = folder / "world.json"
        self.world: dict[str, Any] = {"lines": {}, "jobs": [[]], "calls": []}
        for name in ("scontrol", "squeue"):
            (folder / name).write_text(SLURM.replace("{python}", sys.executable))
            (folder / name).chmod(0o755)

    def has(self, *names: str, jobs: list[list[str]] | None = None, **world: Any) -> Slurm:
        """Set the nodes, the jobs, and further parts of the fakes' file. Return the cluster."""
        self.world |= {"lines": {name: LINES[name] for name in names}, "jobs": jobs or [[]], **world}
        self.file.write_text(json.dumps(self.world))
        return self

    def __call__(self, *nodes: str, **options: Any) -> dict[str, Any]:
        options.setdefault("poll_s", 0.05)
        return self.modules("rackproof_slurm_node", nodes=list(nodes), **options)

    def updates(self) -> list[list[str]]:
        """Return the arguments of each `scontrol update`, in order."""
        return [one[1:] for one in json.loads(self.file.read_text())["calls"] if "update" in one]


@pytest.fixture
def slurm(modules: Modules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Return a cluster without nodes. Its fakes are the first programs in PATH."""
    cluster = Slurm(modules, tmp_path)
    (tmp_path / "slurm.conf").write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("FAKE_SLURM", str(cluster.file))
    return cluster


@pytest.mark.parametrize(
    ("name", "state", "drained_by", "reason", "responding", "in_service"),
    [
        ("idle", "IDLE", "none", "", True, True),
        ("mixed", "MIXED+DRAIN", "other", "deep power-off required for PSU", True, False),
        ("gone", "DOWN*+DRAIN", "other", "Not responding", False, False),
        ("rebooting", "DOWN+DRAIN+REBOOT_ISSUED", "other", "Reboot ASAP", False, False),
        (
            "invalid",
            "IDLE+DRAIN+INVALID_REG",
            "other",
            "gres/gpu count reported lower than configured (0 < 1)",
            True,
            False,
        ),
        ("silent", "DOWN*", "none", "Not responding", False, False),
        ("broken", "DOWN", "other", "dead PSU", True, False),
        ("ours", "IDLE+DRAIN", "ours", "rackproof: being provisioned", True, False),
        ("tricky", "IDLE+DRAIN", "other", "not rackproof: State=IDLE Reason=rackproof: x", True, False),
        ("unmarked", "DOWN+DRAIN+NOT_RESPONDING", "ours", "rackproof: being provisioned", False, False),
    ],
)
def test_each_state_of_a_node_is_reported(
    slurm: Slurm, name: str, state: str, drained_by: str, reason: str, responding: bool, in_service: bool
) -> None:
    result = slurm.has(*LINES)(name)
    assert result["changed"] is False
    node = result["nodes"][name]
    assert node["state_before"] == node["state_after"] == state
    assert (node["drained_by"], node["reason"]) == (drained_by, reason)
    assert (node["responding"], node["in_service"], node["known"]) == (responding, in_service, True)
    assert slurm.updates() == []


# Beginnings of Slurm's own reasons, in reasons of operators. Each of the latter is another owner's.
OF_OPERATORS = [
    "Low voltage on PSU 2: ticket 12",
    "none of the fans turn",
    "gres/gpu board is being replaced",
    "Duplicate serial number",
    "Not responding to the BMC either",
    "Low RealMemory after a DIMM failed",
]
OF_SLURM = [
    "Not responding",
    "Low CPUs",
    "Low socket*core*thread count, Low CPUs",
    "Low RealMemory",
    "Low RealMemory (reported:2051556 < 100.00% of configured:2063763)",
    "gres/gpu count reported lower than configured (7 < 8)",
    "gres/gpu:h100 count too low (7 < 8)",
    "NO NETWORK ADDRESS FOUND",
    "none",
]


@pytest.mark.parametrize(
    ("reason", "drained_by"),
    [*((reason, "other") for reason in OF_OPERATORS), *((reason, "none") for reason in OF_SLURM)],
)
def test_a_node_that_an_operator_set_down_is_not_ours(slurm: Slurm, reason: str, drained_by: str) -> None:
    slurm.has("broken")
    slurm.world["lines"]["broken"] = LINES["broken"].replace("dead PSU", reason)
    slurm.file.write_text(json.dumps(slurm.world))
    result = slurm("broken", state="drained", reason="x")
    assert result["nodes"]["broken"]["drained_by"] == ("other" if drained_by == "other" else "ours")
    kept = reason if drained_by == "other" else "rackproof: x"
    assert slurm.updates() == [["update", "NodeName=broken", "State=DRAIN", f"Reason={kept}"]]
    assert result["diff"]["after"] == "broken DOWN+DRAIN\n"


@pytest.mark.parametrize(
    "after",
    [
        " ReservationName=maint",
        " Comment=ticket 12 [a@b] x",
        " Extra=rack 1 ReservationName=maint",
        " InstanceId=i-1 InstanceType=p5 ",
        " TLSCertTokenSet=Yes TLSCertLastRenewal=2026-01-31T02:00:00",
        " Topology=default:s1 Parameters=x",
        "  ",
    ],
)
def test_fields_after_the_reason_are_not_part_of_it(slurm: Slurm, after: str) -> None:
    user = "slurm@2026-01-31T02:00:00"
    silent = LINES["silent"].partition(" Reason=")[0] + " Reason=Node unexpectedly rebooted"
    slurm.has("silent")
    # Without the user, the names of known fields end the reason. With it, those of later releases do as well.
    lines = {"a": silent + after, "b": f"{silent} [{user}]{after}", "c": f"{silent} [{user}] New=1{after}"}
    slurm.world["lines"] = {name: line.replace("=silent", f"={name}", 1) for name, line in lines.items()}
    slurm.file.write_text(json.dumps(slurm.world))
    nodes = slurm(*lines)["nodes"]
    assert {node["reason"] for node in nodes.values()} == {"Node unexpectedly rebooted"}
    assert [node["set_by"] for node in nodes.values()] == ["", user, user]
    assert {node["drained_by"] for node in nodes.values()} == {"none"}


# The states that consecutive readings give, the time limit, and the reported state. "*" means that
# Slurm waits for the node's answer. DOWN* and a reboot are not waited for.
@pytest.mark.parametrize(
    ("states", "timeout_s", "state"),
    [
        (["IDLE*", "IDLE*", "IDLE"], 20, "IDLE"),
        (["IDLE*", "IDLE*", "DOWN*"], 20, "DOWN*"),
        (["IDLE*"], 1, "IDLE*"),
        (["DOWN*", "IDLE"], 20, "DOWN*"),
        (["IDLE+REBOOT_ISSUED+NOT_RESPONDING", "IDLE"], 20, "IDLE+REBOOT_ISSUED+NOT_RESPONDING"),
    ],
)
def test_a_node_that_slurm_waits_for_is_waited_for(
    slurm: Slurm, states: list[str], timeout_s: int, state: str
) -> None:
    slurm.has("idle", then={"idle": states})("idle")
    assert slurm("idle", timeout_s=timeout_s)["nodes"]["idle"]["state_after"] == state


def test_a_node_that_slurm_does_not_know_is_no_error(slurm: Slurm) -> None:
    result = slurm.has("idle")("idle", "new", state="drained")
    assert result["nodes"]["new"]["known"] is False
    assert result["nodes"]["new"]["state_after"] == "unknown"
    assert [update[1] for update in slurm.updates()] == ["NodeName=idle"]


def test_without_a_cluster_every_node_is_unknown(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "absent.conf"))
    result = slurm.has("idle")("idle", state="drained")
    assert result["cluster"] is False
    assert result["changed"] is False
    assert result["nodes"]["idle"]["state_after"] == "unknown"


# What `scontrol ping` prints without a source of a configuration, and if slurmctld does not serve it.
UNKNOWN_HOST = """scontrol: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host
scontrol: error: fetch_config: DNS SRV lookup failed
scontrol: error: _establish_config_source: failed to fetch config
scontrol: fatal: Could not establish a configuration source"""
NOT_SERVED = """scontrol: error: _fetch_child: failed to fetch remote configs: Unable to contact controller
scontrol: error: _establish_config_source: failed to fetch config
scontrol: fatal: Could not establish a configuration source"""
DOWN = "Slurmctld(primary) at ctl is DOWN"


@pytest.mark.parametrize(
    ("ping", "is_there"),
    [
        ("Slurmctld(primary) at ctl is UP", True),
        (f"{DOWN}\nSlurmctld(backup) at ctl2 is UP", True),
        (UNKNOWN_HOST, False),
        ("", False),
    ],
)
def test_a_cluster_whose_configuration_lies_elsewhere_is_found(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, ping: str, is_there: bool
) -> None:
    # Slurm may have no configuration file on its host, or another path for it. It then answers a ping.
    monkeypatch.delenv("SLURM_CONF")
    result = slurm.has("idle", ping=ping)("idle")
    assert result["cluster"] is is_there
    assert result["nodes"]["idle"]["known"] is is_there


@pytest.mark.parametrize(
    "world",
    [
        {"ping": DOWN},
        {"ping": f"{DOWN}\nSlurmctld(backup) at ctl2 is DOWN"},
        {"ping": NOT_SERVED},
        {"ping": "scontrol: fatal: Unable to process configuration file"},
        {"late": True},
    ],
)
@pytest.mark.parametrize("conf", ["", "absent.conf"])
def test_a_cluster_whose_slurmctld_is_down_is_no_absent_cluster(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, world: dict[str, Any], conf: str
) -> None:
    # Its nodes may run jobs, so they must be neither imaged nor given new drivers.
    monkeypatch.setenv("SLURM_CONF", conf and str(tmp_path / conf))
    result = slurm.has("idle", down=True, **world)("idle", state="drained", command_timeout_s=1)
    assert result["failed"] is True
    assert "Is slurmctld running there?" in result["msg"]


@pytest.mark.parametrize(
    ("programs", "missing"),
    [
        (["scontrol"], "squeue, sinfo"),
        (["squeue"], "scontrol, sinfo"),
        (["scontrol", "squeue"], "sinfo"),
        ([], "scontrol, squeue, sinfo"),
    ],
)
def test_all_missing_programs_are_named_at_once(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: list[str], missing: str
) -> None:
    # A host may have only some of Slurm's client programs. Its slurmctld is then not to blame.
    # Programs of this machine would count as well.
    if any((Path(folder) / "scontrol").exists() for folder in ("/usr/bin", "/bin", "/usr/local/bin")):
        pytest.skip("this machine has Slurm")
    for name in {"scontrol", "squeue"} - set(programs):
        (tmp_path / name).unlink()
    result = slurm.has("idle")("idle", programs=["scontrol", "squeue", "sinfo"])
    assert result["failed"] is True
    assert result["msg"].startswith(f"{missing}: not installed on {os.uname().nodename}")
    assert "slurmctld running" not in result["msg"]


@pytest.mark.parametrize(
    ("name", "namespace", "runs"),
    [
        ("slurmctld", "own", True),
        ("slurmd", "own", True),
        ("sackd", "own", True),
        ("slurmctld", "container", False),
        ("slurmstepd", "own", False),
        ("", "own", False),
    ],
)
def test_a_daemon_of_slurm_is_a_part_of_a_cluster(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, namespace: str, runs: bool
) -> None:
    # The programs may lie in a folder that is not searched, such as /opt/slurm/bin.
    import ansible.module_utils

    ansible.module_utils.__path__.append(str(root / "plugins" / "module_utils"))
    node = types.ModuleType("node")
    exec((root / "plugins/modules/rackproof_slurm_node.py").read_text(), node.__dict__)  # noqa: S102
    for pid, comm, space in (("self", "python", "own"), ("12", "sleep", "own"), ("13", name, namespace)):
        (tmp_path / pid / "ns").mkdir(parents=True)
        (tmp_path / pid / "comm").write_text(f"{comm}\n")
        (tmp_path / pid / "ns/pid").symlink_to(space)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    node.__dict__.update(PROC=str(tmp_path), EXTRA_PATH=(), CONFIGURATIONS=())
    assert node.__dict__["runs_slurm"]() is runs
    refused = pytest.raises(node.__dict__["MissingProgramError"]) if runs else contextlib.nullcontext()
    with refused:
        node.__dict__["refuse_missing_programs"](["scontrol", "squeue"])


def test_a_missing_squeue_is_not_blamed_on_slurmctld(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "squeue").unlink()
    result = slurm.has("idle")("idle")
    assert result["msg"].startswith("squeue: not installed on ")
    assert "slurmctld running" not in result["msg"]


def test_drains_nodes_that_are_not_drained(slurm: Slurm) -> None:
    result = slurm.has(*LINES)(*LINES, state="drained", reason="new\nkernel")
    assert result["changed"] is True
    assert slurm.updates() == [
        ["update", "NodeName=idle,silent", "State=DRAIN", "Reason=rackproof: new kernel"],
        # A node that is only down would be up again as soon as its slurmd registers. So it is drained, with
        # the reason that it had.
        ["update", "NodeName=broken", "State=DRAIN", "Reason=dead PSU"],
    ]
    assert result["nodes"]["broken"]["state_after"] == "DOWN+DRAIN"
    assert result["nodes"]["idle"]["state_after"] == "IDLE+DRAIN"
    assert result["nodes"]["idle"]["drained_by"] == "ours"
    assert result["nodes"]["silent"]["state_after"] == "DOWN*+DRAIN"
    assert {name for name, node in result["nodes"].items() if node["drained_by"] == "other"} == {
        "mixed",
        "gone",
        "rebooting",
        "invalid",
        "broken",
        "tricky",
    }
    again = slurm(*LINES, state="drained")
    assert again["changed"] is False
    assert again["nodes"]["idle"]["reason"] == "rackproof: new kernel"


def test_another_reason_is_given_only_to_drains_of_ours_and_only_where_that_is_asked_for(
    slurm: Slurm,
) -> None:
    slurm.has(*LINES)
    asked = {"state": "drained", "reason": "health: XID 79"}
    assert slurm("ours", "mixed", **asked)["changed"] is False
    predicted = slurm("ours", "mixed", "idle", **asked, replace_reason=True, check=True)
    assert predicted["nodes"]["ours"]["reason"] == "rackproof: health: XID 79"
    assert slurm.updates() == []
    result = slurm("ours", "mixed", "idle", **asked, replace_reason=True)
    assert slurm.updates() == [
        ["update", "NodeName=ours,idle", "State=DRAIN", "Reason=rackproof: health: XID 79"]
    ]
    assert result["nodes"]["ours"]["reason"] == "rackproof: health: XID 79"
    assert result["nodes"]["mixed"]["drained_by"] == "other"
    assert slurm("ours", "mixed", "idle", **asked, replace_reason=True)["changed"] is False


def test_returns_only_what_is_ours(slurm: Slurm) -> None:
    result = slurm.has(*LINES)(*LINES, state="returned", strict=False)
    assert slurm.updates() == [["update", "NodeName=ours", "State=RESUME"]]
    assert result["nodes"]["ours"]["state_after"] == "IDLE"
    assert result["nodes"]["ours"]["in_service"] is True
    for name in ("mixed", "gone", "rebooting", "invalid", "broken", "tricky"):
        assert result["nodes"][name]["drained_by"] == "other"
    assert slurm("ours", state="returned")["changed"] is False


def test_a_node_that_does_not_answer_stays_drained(slurm: Slurm) -> None:
    result = slurm.has("unmarked")("unmarked", state="returned", timeout_s=1)
    assert result["failed"] is True
    assert "unmarked is DOWN+DRAIN+NOT_RESPONDING" in result["msg"]
    assert "journalctl -u slurmd" in result["msg"]
    assert result["nodes"]["unmarked"]["drained_by"] == "ours"
    assert slurm.updates() == []


def test_waits_until_jobs_have_ended(slurm: Slurm) -> None:
    jobs = [["12 idle", "13_[2-4] other[01-03,7]"]] * 3 + [["13 other[01-03,7]"]]
    result = slurm.has("idle", jobs=jobs)("idle", state="drained", timeout_s=20)
    assert result["nodes"]["idle"]["jobs"] == []
    assert result["waiting"] == []


def test_a_wait_for_jobs_is_bounded_and_names_them(slurm: Slurm) -> None:
    jobs = [["12_1 a[1-2],idle", "14 b[08-10]-x"]]
    result = slurm.has("idle", jobs=jobs)("idle", state="drained", timeout_s=1)
    assert result["failed"] is True
    assert "idle runs 12_1" in result["msg"]
    assert "stay drained" in result["msg"]
    assert result["nodes"]["idle"]["drained_by"] == "ours"
    calm = slurm("idle", state="drained", timeout_s=0, strict=False)
    assert calm["waiting"] == ["idle"]
    assert "failed" not in calm


# A job's nodes as squeue prints them, and one of them.
@pytest.mark.parametrize(
    ("expression", "node"),
    [
        ("n1", "n1"),
        ("n[01-03]", "n02"),
        ("n[08-11]", "n10"),
        ("a,n[1,3-4]", "n4"),
        ("r[1-2]-n[09-10]", "r2-n10"),
        ("n[1-2].rack", "n2.rack"),
    ],
)
def test_host_lists(slurm: Slurm, expression: str, node: str) -> None:
    slurm.has("idle", jobs=[[f"7 {expression}"]])
    slurm.world["lines"] = {node: LINES["idle"].replace("idle", node)}
    slurm.file.write_text(json.dumps(slurm.world))
    assert slurm(node)["nodes"][node]["jobs"] == ["7"]


def test_registered_waits_and_names_those_that_do_not_answer(slurm: Slurm) -> None:
    result = slurm.has("idle", "silent", "ours")(
        "idle", "silent", "ours", "new", state="registered", timeout_s=1
    )
    assert result["waiting"] == ["silent", "new"]
    assert "failed" not in result


@pytest.mark.parametrize(
    ("state", "name", "after", "changed"),
    [
        ("drained", "idle", "IDLE+DRAIN", True),
        ("drained", "broken", "DOWN+DRAIN", True),
        ("drained", "mixed", "MIXED+DRAIN", False),
        ("returned", "ours", "IDLE", True),
        ("returned", "mixed", "MIXED+DRAIN", False),
        ("returned", "idle", "IDLE", False),
    ],
)
def test_check_mode_says_what_would_be(
    slurm: Slurm, state: str, name: str, after: str, changed: bool
) -> None:
    result = slurm.has(*LINES, jobs=[[f"5 {name}"]])(name, state=state, check=True, timeout_s=600)
    assert result["changed"] is changed
    assert result["nodes"][name]["state_after"] == after
    assert slurm.updates() == []


@pytest.mark.parametrize(
    ("world", "said"),
    [({"down": True}, "Unable to contact slurm controller"), ({"hang": True}, "did not answer within 1 s")],
)
def test_a_controller_that_does_not_answer(slurm: Slurm, world: dict[str, bool], said: str) -> None:
    result = slurm.has("idle", **world)("idle", state="drained", command_timeout_s=1)
    assert result["failed"] is True
    assert said in result["msg"]
    assert "systemctl status slurmctld" in result["msg"]


@pytest.mark.parametrize(
    "options",
    [
        {"nodes": ["a b"]},
        {"nodes": ["-x"]},
        {"nodes": ["n[1-2]"]},
        {"nodes": ["n01\n"]},
        {"prefix": " "},
        {"timeout_s": -1},
    ],
)
def test_arguments_that_make_no_sense(modules: Modules, slurm: Slurm, options: dict[str, Any]) -> None:
    result = modules("rackproof_slurm_node", **{"nodes": ["a"], **options})
    assert result["failed"] is True
