"""Test bench.yml with the fake benchmarks of MLPerf Training 5.1 on two nodes of the test rack.

A training runs in Slurm jobs by a run script (run.sub), with a container on each node. Slurm, pyxis and the
registry are real, and the training imitates a real log in some seconds. The tests show that clean runs pass,
that each fault of a training gets the right verdict and a reason that names it, that a killed playbook
continues its job and never starts a second one, and that impossible requests are refused before a job is
queued. testrack/images/README.md lists the faults.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rackproof.core.hostlist import compress_hostlist
from rackproof.core.records import Run
from rackproof.store.run_folder import iter_runs
from testrack.tests.on_rack import CONTROLLER, SERVICES, Command, start

pytestmark = [pytest.mark.rack, pytest.mark.slow]

SYSTEM = """\
---
system: gb300_n2
submitter: Example Org
division: closed
status: "Research, Development, or Internal (RDI)"
system_name: Example_GB300_n2
host_storage_type: ""
host_storage_capacity: ""
host_networking: ""
host_networking_topology: ""
host_memory_configuration: ""
accelerator_host_interconnect: ""
accelerator_memory_configuration: ""
accelerator_interconnect: ""
cooling: ""
"""
"""The description of the rack that only an operator can give."""


class Rack:
    """Two idle nodes of the rack's Slurm cluster, and a results folder.

    A call runs bench.yml with a benchmark there, and returns its status and output. ``fault`` is a fault of
    the fake training, which takes 12 seconds.
    """

    def __init__(self, root: Path, results: Path, nodes: list[str], ssh: Command) -> None:
        self.root, self.results, self.nodes, self.ssh = root, results, nodes, ssh

    def start(self, benchmark: str, *words: str, fault: str = "", **variables: Any) -> subprocess.Popen[str]:
        environment = {"STANDIN_SECONDS": "12"}
        environment.update({"STANDIN_FAULT": fault} if fault else {})
        given = {
            "benchmark": benchmark,
            "bench_results": str(self.results),
            "bench_environment": environment,
            "bench_hang_s": 30,
            **variables,
        }
        return start(self.root, "bench.yml", self.nodes, *words, given=given)

    def __call__(self, benchmark: str, *words: str, fault: str = "", **variables: Any) -> tuple[int, str]:
        process = self.start(benchmark, *words, fault=fault, **variables)
        output, _ = process.communicate(timeout=600)
        return process.returncode, output

    def runs(self) -> list[Run]:
        return list(iter_runs(self.results))

    def jobs(self, run_id: str) -> list[str]:
        """Return the numbers of all Slurm jobs of a run, from Slurm's accounting."""
        said = self.ssh(CONTROLLER, f"sacct -n -P -X -S now-1days --name={run_id} -o JobIDRaw").stdout
        return said.split()


@pytest.fixture
def cluster(root: Path, tmp_path: Path, rack: Command, nodes: list[str]) -> Rack:
    return Rack(root, tmp_path / "results", nodes, rack)


@pytest.mark.parametrize("name", ["llama2_70b_lora", "llama31_8b", "flux1"])
def test_a_clean_run_passes_and_is_whole(cluster: Rack, name: str) -> None:
    status, output = cluster(name)
    assert status == 0, output
    (run,) = cluster.runs()
    assert (run.verdict.value, run.launcher) == ("pass", "slurm")
    assert [node.name for node in run.nodes] == cluster.nodes
    assert re.fullmatch("sha256:[0-9a-f]{64}", run.container_digest)
    assert run.seeds
    folder = cluster.results / run.run_id
    assert (folder / "run.sub").is_file()
    assert list(folder.glob("config_GB300_*.sh"))
    key = (cluster.root / ".rackproof/rack/ngc_key").read_text().strip()
    assert not [path for path in folder.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]


# The verdict and the reason are patterns. A fault without the name of a node is on the last node.
@pytest.mark.parametrize(
    ("fault", "verdict", "words"),
    [
        pytest.param("slow-node", "fail", "{last} is slow", marks=pytest.mark.proof),
        ("rank-killed", "fail", "{last}: task 1"),
        ("nan", "fail", "not a number|NaN"),
        pytest.param("hang", "fail", "hung at .*{last}", marks=pytest.mark.proof),
        pytest.param("oom-exit-0", "fail", "on {last} ran out of memory", marks=pytest.mark.proof),
        pytest.param("no-run-stop", "unproven|fail", "run_stop", marks=pytest.mark.proof),
        pytest.param("too-fast", "unproven", "too fast to be true", marks=pytest.mark.proof),
        ("wrong-nodes", "unproven", "{last} took no part"),
        pytest.param(
            "cache-not-cleared", "unproven", "page cache was cleared on 1 of 2 nodes", marks=pytest.mark.proof
        ),
        pytest.param("bad-nccl", "fail", "NCCL preflight", marks=pytest.mark.proof),
        pytest.param("slow-nccl", "fail", "nccl_preflight_busbw", marks=pytest.mark.proof),
    ],
)
def test_a_fault_is_never_a_pass_and_the_reasons_name_it(
    cluster: Rack, fault: str, verdict: str, words: str
) -> None:
    status, output = cluster("llama2_70b_lora", fault=fault)
    assert status == 2, output
    (run,) = cluster.runs()
    assert re.fullmatch(verdict, run.verdict.value), run.reasons
    assert re.search(words.format(last=cluster.nodes[-1]), " ".join(run.reasons)), run.reasons


# The playbook is killed as soon as this pattern is in its output: a task of the role, or the first progress
# of the training.
@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("TASK .bench : Choose the benchmarks", marks=pytest.mark.proof),
        pytest.param("TASK .bench : Gather the facts", marks=pytest.mark.proof),
        pytest.param("TASK .bench : Plan the runs", marks=pytest.mark.proof),
        pytest.param("TASK .bench : Start the job", marks=pytest.mark.proof),
        pytest.param("TASK .bench : Follow the job", marks=pytest.mark.proof),
        "training",
        pytest.param("TASK .bench : Record the run", marks=pytest.mark.proof),
        pytest.param("TASK .bench : Write the report", marks=pytest.mark.proof),
    ],
)
def test_a_killed_playbook_goes_on_with_its_one_job(cluster: Rack, moment: str) -> None:
    process = cluster.start("llama2_70b_lora")
    assert process.stdout is not None
    deadline = time.monotonic() + 300
    for line in process.stdout:
        if re.search(moment, line):
            break
        assert time.monotonic() < deadline
    else:
        pytest.fail(f"the playbook ended without {moment}, so that it was not killed")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    # Ansible's workers outlive the playbook, and may finish the plan. Then the same command makes a new plan.
    time.sleep(3)
    whole = len(list(cluster.results.glob("plan-*/report.html")))
    status, output = cluster("llama2_70b_lora")
    assert status == 0, output
    assert len(cluster.runs()) == 1 + whole
    for run in cluster.runs():
        assert len(cluster.jobs(run.run_id)) == 1
        assert run.verdict.value == "pass", run.reasons


@pytest.mark.parametrize(
    ("what", "status", "verdict"),
    [
        ("killed", 0, "pass"),
        # The rebooted node is part of the job, so the job ends and the run fails.
        pytest.param("rebooted", 2, "fail", marks=pytest.mark.proof),
    ],
)
def test_a_job_whose_node_lost_sight_of_it_is_found_again(
    cluster: Rack, what: str, status: int, verdict: str
) -> None:
    lead = cluster.nodes[0]
    process = cluster.start("llama2_70b_lora")
    assert process.stdout is not None
    deadline = time.monotonic() + 300
    for line in process.stdout:
        if "training" in line:
            break
        assert time.monotonic() < deadline
    (plan,) = cluster.results.glob("plan-*/plan.json")
    run_id = json.loads(plan.read_text())["runs"][0]["run_id"]
    state = f"/var/lib/rackproof/runs/{run_id}/state.json"
    kill = f'kill -9 $(python3 -c \'import json; print(json.load(open("{state}"))["supervisor_pid"])\')'
    cluster.ssh(lead, kill if what == "killed" else "systemctl reboot")
    output, _ = process.communicate(timeout=600)
    assert process.returncode == status, output
    assert "Find the job that is no longer followed" in output
    (run,) = cluster.runs()
    assert (run.run_id, run.verdict.value) == (run_id, verdict), run.reasons
    assert len(cluster.jobs(run_id)) == 1
    assert re.fullmatch("sha256:[0-9a-f]{64}", run.container_digest)
    log = (cluster.results / run_id / "logs" / f"{lead}.log").read_text()
    assert '"end": ' in log
    assert log.count("\nEXPERIMENT_START 1") == 1
    if what == "rebooted":
        assert "Slurm job" in " ".join(run.reasons)


def test_nothing_is_pulled_or_staged_twice(cluster: Rack) -> None:
    assert cluster("llama2_70b_lora")[0] == 0
    began = time.monotonic()
    status, output = cluster("llama2_70b_lora")
    took = time.monotonic() - began
    assert status == 0, output
    newest = max(cluster.runs(), key=lambda run: run.run_id)
    log = (cluster.results / newest.run_id / "logs" / f"{cluster.nodes[0]}.log").read_text()
    assert "staging" not in log
    assert "pulling" not in log
    assert "importing" not in log
    end = json.loads(re.findall(r'^:::RACKPROOF (\{"end".*)$', log, re.MULTILINE)[-1])["end"]
    print(f"the job took {end['elapsed_s']} s, the playbook {took:.0f} s")


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_ten_clean_repeats_make_a_package_that_the_official_checker_accepts(cluster: Rack) -> None:
    # With 0, bench.yml makes as many repeats as a result needs, here ten. They take 70 s, because a
    # submission with a result that eight GB300 cannot reach at their peak speed is refused.
    environment = {"STANDIN_SECONDS": "70", "STANDIN_ACCELERATOR": "NVIDIA GB300"}
    process = cluster.start("llama2_70b_lora", bench_repeats=0, bench_environment=environment)
    output, _ = process.communicate(timeout=1500)
    assert process.returncode == 0, output
    runs = cluster.runs()
    assert [run.verdict.value for run in runs] == ["pass"] * 10
    assert len({run.seeds for run in runs}) == 10
    assert len({run.container_digest for run in runs}) == 1
    (cluster.results / "system.yml").write_text(SYSTEM)
    package = cluster.results / "package"
    done = subprocess.run(
        [
            *(Path(sys.executable).with_name("rackproof"), "submission", "--latest", "10"),
            *("--benchmark", "llama2_70b_lora", "--system", cluster.results / "system.yml"),
            *("--ruleset", "5.1.0"),
            *("--out", package, "--results", cluster.results),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    logs = package / "Example_Org" / "results" / "gb300_n2" / "llama2_70b_lora"
    assert sorted(path.name for path in logs.glob("result_*.txt")) == [f"result_{i}.txt" for i in range(10)]


def test_a_dry_run_touches_nothing(cluster: Rack) -> None:
    looked = "find /shared /var/lib/rackproof -newer /run/before -not -path '*/slurm*' 2> /dev/null"
    assert cluster.ssh(cluster.nodes[0], "touch /run/before").returncode == 0
    status, output = cluster("llama31_8b", "--check")
    assert status == 0, output
    assert "sbatch -N 2 --nodelist=" + compress_hostlist(cluster.nodes) in output
    assert "llama31_8b-amd:20251008 is sha256:" in output
    assert not cluster.results.exists()
    assert cluster.ssh(cluster.nodes[0], looked).stdout == ""


def test_a_dry_run_lists_all_that_the_rack_lacks(cluster: Rack) -> None:
    node = cluster.nodes[1]
    lacks = {
        "bench_images": {"llama31_8b": "nvdlfwea/mlperftv51/llama31_8b-arm:20250922"},
        "bench_shared": "/not-mounted/rackproof",
        "bench_size_factor": 1000,
    }
    cluster.ssh(CONTROLLER, f"scontrol update nodename={node} state=drain reason='bad fan, ticket 7'")
    try:
        status, output = cluster("llama31_8b", "--check", **lacks)
    finally:
        cluster.ssh(CONTROLLER, f"scontrol update nodename={node} state=resume")
    assert status == 2, output
    listed = " ".join(output.split("Solve these problems before the runs can be made:")[-1].split())
    for words in (
        "/not-mounted/rackproof is not on",
        "llama31_8b-arm:20250922 is for arm64",
        "llama31_8b still needs",
        f"{node} is drained in Slurm (bad fan, ticket 7)",
    ):
        assert words in listed, listed
    status, output = cluster("gpt_oss_20b", "--check")
    assert status == 2, output
    assert "gpt_oss_20b:latest is not in the registry" in output
    assert not cluster.results.exists()


# A config whose global batch size has no reference convergence point, so that no score could be computed.
BIG = "config_GB300_2x4x32xtp1pp1cp1_big.sh"


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        (
            "llama2_70b_lora",
            {"bench_config": BIG},
            f"{BIG} asks for a global batch size of 256, and MLCommons has reference convergence points for "
            "8, 16, 32, 128: .*Choose a smaller one with bench_config",
        ),
        (
            "flux1",
            {"bench_environment": {"VAL_CHECK_INTERVAL": "131072"}},
            "evaluation_frequency == 262144, and it has VAL_CHECK_INTERVAL=131072.*correct bench_environment",
        ),
        (
            "flux1",
            {"bench_environment": {"LEARNING_RATE": "-0.1"}},
            "opt_base_learning_rate >= 0, and it has LEARNING_RATE=-0.1.*correct bench_environment",
        ),
        (
            "llama31_8b",
            {"bench_environment": {"SEED": "7"}},
            "it has SEED=7 for every run: leave it out",
        ),
    ],
    ids=["batch", "evaluation-interval", "learning-rate", "seed"],
)
def test_a_config_that_could_not_be_scored_is_refused_before_a_job_is_queued(
    cluster: Rack, name: str, given: dict[str, Any], words: str
) -> None:
    status, output = cluster(name, **given)
    assert status == 2, output
    (run,) = cluster.runs()
    assert run.verdict.value == "unproven"
    assert re.search(words, " ".join(run.reasons)), run.reasons
    # One job copied the configs out of the image. No job staged data, or started the training.
    assert cluster.jobs(run.run_id) == []
    named = cluster.ssh(CONTROLLER, "sacct -n -P -X -S now-1days -o JobName").stdout.split()
    steps = {job.removesuffix(f"-{run.run_id}") for job in named if job.endswith(run.run_id)}
    assert steps <= {"configs"}
    assert cluster.ssh(CONTROLLER, "squeue --noheader").stdout == ""


def test_each_report_names_the_test_rack_and_the_shipped_values_pass_nothing_on_it(
    cluster: Rack, tmp_path: Path
) -> None:
    status, output = cluster("llama2_70b_lora")
    assert status == 0, output
    (marked,) = cluster.runs()
    assert (marked.verdict.value, marked.description.split(":")[0]) == ("pass", "test rack")
    reports = [*cluster.results.glob("*/run.json"), *cluster.results.glob("*/report.*")]
    assert len(reports) == 7
    assert [path for path in reports if "test rack" not in path.read_text()] == []

    shipped = tmp_path / "inventory"
    shutil.copytree(cluster.root / "inventory", shipped, ignore=shutil.ignore_patterns("test-rack.yml"))
    status, output = cluster("llama2_70b_lora", "-i", str(shipped))
    assert status == 2, output
    (run,) = [one for one in cluster.runs() if one.run_id != marked.run_id]
    assert (run.verdict.value, run.description) == ("unproven", "")
    assert "nvcr.io" in " ".join(run.reasons)
    assert cluster.jobs(run.run_id) == []


def test_a_preflight_is_judged_by_the_reference_of_its_ranks_size_and_type(cluster: Rack) -> None:
    """The preflight measures NCCL's bandwidth. A reference is of one number of ranks, size and type.

    The fake's largest size is 62 MiB, with type half, on eight ranks. The references require a bandwidth that
    the fake never reaches.
    """
    case = {"ranks": "8", "size_bytes": "65011712", "dtype": "half"}
    others = [
        {**case, "ranks": "72"},
        {**case, "size_bytes": "1073741824"},
        {**case, "dtype": "float"},
    ]
    bounds = {"metric": "nccl_preflight_busbw", "low": -0.2, "warn": -0.1, "high": 0.4, "unit": "GB/s"}
    references = [{**bounds, "labels": labels, "value": 3110, "source": "another case"} for labels in others]
    status, output = cluster("llama2_70b_lora", bench_sku_references=references)
    assert status == 0, output
    references.append({**bounds, "labels": case, "value": 3110, "source": "its own case"})
    status, output = cluster("llama2_70b_lora", bench_sku_references=references)
    assert status == 2, output
    without, judged = (
        next(one for one in run.judgements if one.metric == "nccl_preflight_busbw")
        for run in sorted(cluster.runs(), key=lambda run: run.run_id)
    )
    assert case.items() <= judged.labels.items()
    # Without its own reference, the bandwidth is unproven. The references of other cases do not count.
    assert (without.verdict.value, without.reference) == ("unproven", None)
    assert judged.verdict.value == "fail"
    assert judged.reference is not None
    assert judged.reference.source == "its own case"


def test_an_image_for_other_processors_is_refused_and_no_node_starts_it(cluster: Rack) -> None:
    image = "nvdlfwea/mlperftv51/llama31_8b-arm:20250922"
    status, output = cluster("llama31_8b", bench_images={"llama31_8b": image})
    assert status == 2, output
    (run,) = cluster.runs()
    assert run.verdict.value == "unproven"
    assert any("is for arm64, and" in reason and "bench_images" in reason for reason in run.reasons)
    assert cluster.jobs(run.run_id) == []
    # Without bench.yml, the node refuses the image as a real kernel does.
    done = cluster.ssh(
        CONTROLLER,
        f"srun -w {cluster.nodes[0]} --container-image={SERVICES}:5000#{image} true",
    )
    assert done.returncode != 0
    assert "Exec format error" in done.stdout + done.stderr


def test_a_container_has_a_nodes_devices_where_they_are_asked_for(cluster: Rack) -> None:
    node, image = cluster.nodes[0], "nvdlfwea/mlperftv51/llama31_8b-amd:20251008"
    command = f"srun -w {node} --container-image={SERVICES}:5000#{image} sh -c 'ls /dev /dev/infiniband'"
    alone = cluster.ssh(CONTROLLER, command).stdout.split()
    assert {"nvidia0", "nvidia3", "null"} <= set(alone)
    assert not [name for name in alone if name.startswith("uverbs")]
    asked = cluster.ssh(CONTROLLER, f"MELLANOX_VISIBLE_DEVICES=all {command}").stdout.split()
    assert len([name for name in asked if name.startswith("uverbs")]) == 4
    nothing = cluster.ssh(CONTROLLER, f"NVIDIA_VISIBLE_DEVICES=void {command}").stdout.split()
    assert not [name for name in nothing if name.startswith("nvidia")]


def test_a_helper_with_slurms_defaults_would_not_have_a_nodes_memory_nor_its_cores(cluster: Rack) -> None:
    """A job with too little memory is killed. The job that stages data therefore has the whole node.

    The program needs 400 MiB. By default, a job has one processor and its share of the node's memory. With
    ``--exclusive --mem=0``, it has all 144 processors and all memory.
    """
    fill = f"srun -w {cluster.nodes[0]} {{}} python3 -c 'print(len(bytes(1) * (400 << 20)))'"
    small = cluster.ssh(CONTROLLER, fill.format("--mem=100M"))
    assert small.returncode != 0
    assert re.search("oom|out of memory|killed", small.stdout + small.stderr, re.IGNORECASE), small.stderr
    whole = cluster.ssh(CONTROLLER, fill.format("--exclusive --mem=0"))
    assert whole.stdout.split() == [str(400 << 20)], whole.stderr
    seen = "squeue -h -j $SLURM_JOB_ID -o %C,%m"
    default, exclusive = (
        cluster.ssh(CONTROLLER, f"srun -w {cluster.nodes[0]} {words} sh -c '{seen}'").stdout.split()
        for words in ("", "--exclusive --mem=0")
    )
    assert default == ["1,6111M"]
    assert exclusive[0].startswith("144,")


def test_a_job_that_would_run_without_its_adapters_is_not_submitted(cluster: Rack) -> None:
    environment = {"STANDIN_SECONDS": "12", "MELLANOX_VISIBLE_DEVICES": "none"}
    status, output = cluster("llama31_8b", bench_environment=environment)
    assert status == 2, output
    (run,) = cluster.runs()
    assert run.verdict.value == "unproven"
    assert any("a container lacks the adapters' device files" in reason for reason in run.reasons)
    assert cluster.jobs(run.run_id) == []


def test_ranks_in_an_image_are_one_world_by_real_pmix(cluster: Rack) -> None:
    image = f"{SERVICES}:5000#nvdlfwea/mlperftv51/llama31_8b-amd:20251008"
    words = 'echo "$PMIX_RANK of $SLURM_NTASKS $PMIX_MCA_gds $(ls -d "$PMIX_SERVER_TMPDIR")"'
    command = f"srun -N 2 -w {','.join(cluster.nodes)} --mpi=pmix --container-image={image} sh -c '{words}'"
    # srun runs on a node, because Slurm's PMIx plugin needs libpmix, which the controller lacks.
    done = cluster.ssh(cluster.nodes[0], command)
    said = done.stdout + done.stderr
    assert sorted(re.findall(r"(\d) of 2 hash /var/lib/slurm/slurmd/pmix\.\S+", said)) == ["0", "1"], said


LIST = "/etc/nvidia-imex/nodes_config.cfg"
"""File with the addresses of the nodes that share GPU memory by IMEX. It is the same on each of them."""
# Commands that break and mend the second node, and a pattern for the reason.
LACKING = [
    (
        "mv /usr/lib/x86_64-linux-gnu/pmix2/lib/libpmix.so /root/",
        "mv /root/libpmix.so /usr/lib/x86_64-linux-gnu/pmix2/lib/",
        "{node}: .*libpmix.*slurm_mpi_packages",
    ),
    (
        f"cp {LIST} /root/ && echo 10.9.9.9 >> {LIST}",
        f"mv /root/nodes_config.cfg {LIST}",
        "{node}: .*cfg differs",
    ),
    (
        'sed -i.kept -E \'s/("cluster_uuid": *")[0-9a-f]{8}/\\1deadbeef/\' /var/lib/rack/hardware.json',
        "mv /var/lib/rack/hardware.json.kept /var/lib/rack/hardware.json",
        "{node}: its NVLink domain is deadbeef",
    ),
]


@pytest.mark.parametrize(("lose", "mend", "words"), LACKING)
def test_a_node_on_which_ranks_would_not_meet_is_named_before_a_job_is_queued(
    cluster: Rack, lose: str, mend: str, words: str
) -> None:
    # The first node submits.
    node = cluster.nodes[1]
    assert cluster.ssh(node, lose).returncode == 0
    try:
        status, output = cluster("llama31_8b")
    finally:
        assert cluster.ssh(node, mend).returncode == 0
    assert status == 2, output
    (run,) = cluster.runs()
    assert run.verdict.value == "unproven"
    reasons = " ".join(run.reasons)
    assert re.search(words.format(node=node), reasons), reasons
    assert f"{cluster.nodes[0]}:" not in reasons
    assert cluster.jobs(run.run_id) == []
