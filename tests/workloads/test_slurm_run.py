"""Test workloads/slurm_run.py, which runs a published benchmark of several nodes as one Slurm job.

The program pulls the image, stages the data, checks the nodes, submits run.sub, and follows the job. The
tests start it with shell scripts in place of Slurm and enroot, and with a small registry. They show that a
program that was killed finds its job again and repeats nothing, that a secret reaches the job alone, and that
a config or node that would make the job fail is refused before.
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Every case starts processes. Together they take longer than `make check` may.
pytestmark = pytest.mark.slow

IMAGE_CONFIG = b'{"architecture": "amd64", "os": "linux"}'
CONFIG_DIGEST = "sha256:" + hashlib.sha256(IMAGE_CONFIG).hexdigest()
MANIFEST = json.dumps({"schemaVersion": 2, "config": {"digest": CONFIG_DIGEST}, "layers": []}).encode()
DIGEST = "sha256:" + hashlib.sha256(MANIFEST).hexdigest()
RUN = "20260101T000000Z-big-abcdef"
CONFIG = """\
export DGXNNODES={nodes} DGXNGPU=4
export WALLTIME_RUNANDTIME=5
export WALLTIME=$((5 + ${{NEXP:-1}} * (WALLTIME_RUNANDTIME + 5)))
export DGXSYSTEM=$(basename "$(readlink -f "${{BASH_SOURCE[-1]}}")" | sed 's/^config_//;s/\\.sh$//')
"""
# A fake of Slurm that keeps its one job in files: `state` is what squeue prints, and `script` is the job.
FAKE = {
    "sbatch": """\
echo "$@" >> "$FAKE/sbatch.calls"; env -0 > "$FAKE/job.env"
[ -f "$FAKE/refuse" ] && { cat "$FAKE/refuse" >&2; exit 1; }
for word in "$@"; do case "$word" in
  --output=*) out="${word#--output=}";;
  --job-name=*) name="${word#--job-name=}";;
esac; done
echo "$name" > "$FAKE/name"; echo "${FIRST_STATE:-RUNNING}" > "$FAKE/state"
if [ -f "$FAKE/script" ]; then (bash "$FAKE/script" > "$out" 2>&1 < /dev/null;
  [ "$(cat "$FAKE/state")" = RUNNING ] && echo COMPLETED > "$FAKE/state") > /dev/null 2>&1 & fi
echo 4711
""",
    "squeue": """\
[ -f "$FAKE/down" ] && { echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; }
case "$*" in
  *--states=PENDING*) echo 17; echo 4711;;
  *--name=*) case "$*" in *"--name=$(cat "$FAKE/name" 2>/dev/null || echo none)"*) echo 4711;; esac;;
  *) [ -f "$FAKE/state" ] && echo "$(cat "$FAKE/state")|Resources";;
esac
""",
    "sacct": """\
case "$*" in
  *JobIDRaw*) true;;
  *JobID,NodeList*) echo "4711.0|n[1-2]|COMPLETED|0:0|30|1767225600";;
  *) echo -n "$(cat "$FAKE/state")|$(cat "$FAKE/code" 2>/dev/null || echo 0:0)|"
     # As the real one: seconds if they are requested.
     if [ "$SLURM_TIME_FORMAT" = %s ]; then times="1767225600|1767225660";
     else times="2026-01-01T00:00:00|2026-01-01T00:01:00"; fi
     echo "n[1-2]|$times|60|2|$(cat "$FAKE/name" 2>/dev/null)";;
esac
""",
    "scontrol": "echo n1; echo n2\n",
    "scancel": """\
echo "$@" >> "$FAKE/scancel.calls"
case "$1" in --name=*) [ "${1#--name=}" = "$(cat "$FAKE/name" 2>/dev/null)" ] || exit 0;; esac
echo CANCELLED > "$FAKE/state"; echo 0:15 > "$FAKE/code"
""",
    "sinfo": "echo n1; echo n2; echo n3\n",
    # This srun runs its last argument on this machine, with the container's mount point replaced.
    "srun": """\
echo "$@" >> "$FAKE/srun.calls"
case "$*" in
  *--container-image*) ;;
  *--container-*|*--no-container-*)
    echo "srun: error: pyxis: ignoring --container-* options: no --container-image is set" >&2
    exit 1;;
esac
case "$*" in
  *DEVICES*)
    for word in "$@"; do case "$word" in --nodelist=*) nodes="${word#--nodelist=}";; esac; done
    inside="mlx5_0 |rdma_cm uverbs0 |channel0 |nvidia0 nvidia1 |"
    case "$*" in *--container-image*) [ -f "$FAKE/inside" ] && inside="$(cat "$FAKE/inside")";; esac
    [ -f "$FAKE/busy" ] && { cat "$FAKE/busy" >&2; exit 1; }
    env > "$FAKE/devices.env"
    for node in ${nodes//,/ }; do echo "DEVICES|$node|$inside"; done; exit 0;;
  *DOMAIN*)
    for word in "$@"; do case "$word" in --nodelist=*) nodes="${word#--nodelist=}";; esac; done
    for node in ${nodes//,/ }; do
      printed="5f0e7d2c-9a41-4c55-8d1b-3c6a2f90e7b4/32766 |a1b2c3d4e5f6|READY"
      [ -f "$FAKE/domain-$node" ] && printed="$(cat "$FAKE/domain-$node")"
      [ "$printed" = silent ] || echo "DOMAIN|$node|$printed|"
    done
    exit 0;;
  *"--mpi=pmi2"*) exit 0;;
  *"--mpi=pmix"*)
    [ -f "$FAKE/no-mpi" ] && { cat "$FAKE/no-mpi" >&2; exit 1; }
    for word in "$@"; do case "$word" in
      --nodelist=*) nodes="${word#--nodelist=}";;
      --ntasks=*) ranks="${word#--ntasks=}";;
      --ntasks-per-node=*) each="${word#--ntasks-per-node=}";;
    esac; done
    # A file of a node has what its ranks print, else errors; one node's errors end the others' ranks.
    for node in ${nodes//,/ }; do
      [ -f "$FAKE/world-$node.err" ] && { cat "$FAKE/world-$node.err" >&2; exit 1; }
    done
    for node in ${nodes//,/ }; do for _rank in $(seq "$each"); do
      printed="server=yes folder=yes size=$ranks"
      [ -f "$FAKE/world-$node" ] && printed="$(cat "$FAKE/world-$node")"
      [ -f "$FAKE/apart" ] && [ "$ranks" -gt "$each" ] && printed="server=yes folder=yes size=1"
      for pair in $printed; do echo "WORLD|$node|${pair%%=*}|${pair#*=}"; done
    done; done
    exit 0;;
esac
mount=""
while [ $# -gt 0 ]; do case "$1" in
  --container-mounts=*) mount="${1#--container-mounts=}";;
  -*) ;;
  *) break;;
esac; shift; done
[ "$1" = true ] && exit 0
from="${mount#*:}"; to="${mount%%:*}"
last="${@: -1}"
exec bash -euo pipefail -c "${last//$from/$to}"
""",
    "enroot": """\
echo "$@" >> "$FAKE/enroot.calls"
while [ $# -gt 0 ]; do [ "$1" = -o ] && { echo image > "$2"; sleep "${SLOW:-0}"; }; shift; done
""",
}


class Registry:
    """A registry with one image and one key."""

    def __init__(self) -> None:
        self.key, self.asked = "s3cret-key", 0
        self.manifest = MANIFEST
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                outer.asked += 1
                wanted = "Basic " + base64.b64encode(f"$oauthtoken:{outer.key}".encode()).decode()
                if self.headers.get("Authorization") != wanted:
                    self.send_response(401)
                    self.send_header("WWW-Authenticate", 'Basic realm="x"')
                elif "/big/manifests/1" not in self.path:
                    self.send_response(404)
                else:
                    self.send_response(200)
                    self.send_header("Docker-Content-Digest", DIGEST)
                self.end_headers()

            def do_GET(self) -> None:
                answers = {
                    f"/v2/big/manifests/{DIGEST}": outer.manifest,
                    f"/v2/big/blobs/{CONFIG_DIGEST}": IMAGE_CONFIG,
                }
                self.send_response(200 if self.path in answers else 404)
                self.end_headers()
                self.wfile.write(answers.get(self.path, b""))

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.address = f"127.0.0.1:{self.server.server_address[1]}"


class Cluster:
    """A folder with the fake commands, the shared storage, and an image's folder."""

    def __init__(self, root: Path, folder: Path, registry: Registry) -> None:
        self.program = root / "workloads/slurm_run.py"
        self.fake, self.shared, self.image = folder / "fake", folder / "shared", folder / "image"
        self.registry = registry
        for one in (self.fake / "bin", self.shared, self.image):
            one.mkdir(parents=True)
        for name, text in FAKE.items():
            path = self.fake / "bin" / name
            path.write_text(f"#!/bin/bash\n{text}")
            path.chmod(0o755)
        for name, nodes in (
            ("GB300_2x4x1xtp1pp1cp1", 2),
            ("GB300_2x4x1xtp1pp1cp1_fp4", 2),
            ("GB300_18x4x1", 18),
        ):
            (self.image / f"config_{name}.sh").write_text(CONFIG.format(nodes=nodes))
        (self.image / "config_common.sh").write_text("true\n")
        (self.image / "run.sub").write_text("#!/bin/bash\n")
        (self.fake / "credentials").write_text(
            f"machine {registry.address} login $oauthtoken password {registry.key}\n"
        )
        self.spec: dict[str, Any] = {
            "benchmark": "big",
            "shared": str(self.shared),
            "hosts": ["n1", "n2"],
            "registry": registry.address,
            "registry_scheme": "http",
            "repository": "big",
            "tag": "1",
            "architecture": "amd64",
            "folder": str(self.image),
            "image": "registry",
            "image_gb": 0,
            "system": "GB300",
            "gpus": 4,
            "precision": "",
            "config": "",
            "stage": [
                {
                    "creates": "set",
                    "mount": "/data",
                    "run": "mkdir -p /data/set; echo x > /data/set/a",
                    "size_gb": 0,
                }
            ],
            "environment": {"DATADIR": str(self.shared / "data/big/set")},
            "partition": "batch",
            "account": "",
            "reservation": "",
            "hang_s": 60,
            "queue_s": 600,
        }
        self.ends_well = (
            'echo \'RUNANDTIME_START 1700000000\'; echo \':::MLLOG {"key": "x", "metadata": {"step": 7}}\''
        )
        self.script(self.ends_well)

    def script(self, text: str) -> None:
        """Write the script that the job runs."""
        (self.fake / "script").write_text(text)

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Start the program with the fakes first on its path."""
        command = [sys.executable, str(self.program), *(words or ("run",)), f"--id={RUN}"]
        return subprocess.Popen(
            [*command, f"--spec={json.dumps(self.spec)}"],
            env={
                **os.environ,
                "PATH": f"{self.fake / 'bin'}:{os.environ['PATH']}",
                "FAKE": str(self.fake),
                "RACKPROOF_CREDENTIALS": str(self.fake / "credentials"),
                "RACKPROOF_SLURM_POLL_S": "0.2",
                "NGC_API_KEY": self.registry.key,
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __call__(self, *words: str, **environment: str) -> tuple[int, str]:
        """Run the program. Return its exit status and output."""
        process = self.start(*words, **environment)
        output, _ = process.communicate(timeout=300)
        return process.returncode, output

    def calls(self, name: str) -> list[str]:
        """Return the arguments of each call of a fake."""
        path = self.fake / f"{name}.calls"
        return path.read_text().splitlines() if path.is_file() else []

    def job_environment(self) -> dict[str, str]:
        """Return the environment that sbatch was given."""
        text = (self.fake / "job.env").read_text()
        return dict(item.split("=", 1) for item in text.split("\0") if "=" in item)


@pytest.fixture
def registry() -> Iterator[Registry]:
    serving = Registry()
    yield serving
    serving.server.shutdown()
    serving.server.server_close()


@pytest.fixture
def cluster(root: Path, tmp_path: Path, registry: Registry) -> Cluster:
    return Cluster(root, tmp_path, registry)


def printed_value(output: str, key: str) -> Any:
    """Return the last value that the program printed under a key."""
    found = None
    for line in output.splitlines():
        if line.startswith(":::RACKPROOF "):
            found = json.loads(line.removeprefix(":::RACKPROOF ")).get(key, found)
    return found


def test_without_accounts_the_controller_knows_the_job(cluster: Cluster) -> None:
    (cluster.fake / "bin/sacct").write_text("#!/bin/bash\necho disabled >&2; exit 1\n")
    scontrol = """\
if [ "$2" = hostnames ]; then echo n1; echo n2; exit; fi
[ "$SLURM_TIME_FORMAT" = %s ] || exit 1
echo "JobId=4711 JobName=$(cat "$FAKE/name") JobState=$(cat "$FAKE/state") ExitCode=0:0" \\
  "StartTime=1767225600 EndTime=1767225660 NodeList=n[1-2] NumNodes=2"
"""
    (cluster.fake / "bin/scontrol").write_text(f"#!/bin/bash\n{scontrol}")
    status, output = cluster()
    assert status == 0, output
    end = printed_value(output, "end")
    assert (end["state"], end["name"], end["node_count"], end["start"], end["end"]) == (
        "COMPLETED",
        RUN,
        "2",
        "1767225600",
        "1767225660",
    )


def until(condition: Any, seconds: float = 300) -> None:
    """Wait until a condition is true. Fail after that many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_run_pulls_stages_submits_and_prints_the_jobs_output(cluster: Cluster) -> None:
    status, output = cluster()
    assert status == 0, output
    assert printed_value(output, "digest") == DIGEST
    assert ':::MLLOG {"key": "x"' in output
    end = printed_value(output, "end")
    assert (end["state"], end["exit_code"], end["nodes"]) == ("COMPLETED", "0:0", ["n1", "n2"])
    assert (end["name"], end["node_count"]) == (RUN, "2")
    assert (end["start"], end["end"]) == ("1767225600", "1767225660")
    (call,) = cluster.calls("sbatch")
    assert f"--job-name={RUN} -N 2 -t 15 " in call
    assert "--nodelist=n1,n2" in call
    assert "--partition=batch" in call
    # The job, and each step before it, has whole nodes.
    steps = [one for one in cluster.calls("srun") if "--ntasks-per-node=1" in one]
    assert {one.split()[0].split("=")[1].partition("-")[0] for one in steps} == {
        "pull",
        "configs",
        "stage",
        "mpi",
        "devices",
        "domain",
    }
    assert all(" --exclusive --mem=0 " in one for one in (call, *steps))
    job = cluster.job_environment()
    assert job["CONT"] == f"{cluster.registry.address}#big:{DIGEST}"
    assert job["DGXSYSTEM"] == "GB300_2x4x1xtp1pp1cp1"
    assert job["LOGDIR"] == str(cluster.shared / "runs" / RUN / "results")
    assert int(job["SEED_BASE"]) > 0
    configs = next((cluster.shared / "configs").glob("big-*"))
    assert (configs / "config_GB300_18x4x1.sh").stat().st_mode & 0o777 == 0o664
    assert (configs / "run.sub").stat().st_mode & 0o777 == 0o775
    code = cluster.shared / "runs" / RUN / "code"
    assert {path.name for path in code.iterdir()} == {
        "run.sub",
        "config_common.sh",
        "config_GB300_2x4x1xtp1pp1cp1.sh",
    }


@pytest.mark.parametrize("names", ["HF_TOKEN", "WANDB_API_KEY,HF_TOKEN", "HF_TOKEN,NOT_SET"])
def test_secrets_that_the_operator_meant_for_the_job_reach_it_and_nothing_else(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary-meant")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-of-the-shell")
    monkeypatch.setenv("RACKPROOF_SECRET_NAMES", names)
    # A file gives the secrets to the job, because Slurm keeps what sbatch is given.
    cluster.script(f"SLURM_JOB_ID=1 bash -c 'env -0 > {cluster.fake}/inside'\n" + cluster.ends_well)
    status, output = cluster()
    assert status == 0, output
    assert "canary" not in (cluster.fake / "job.env").read_text()
    job = dict(
        item.split("=", 1) for item in (cluster.fake / "inside").read_text().split("\0") if "=" in item
    )
    assert job["HF_TOKEN"] == "canary-meant"
    assert "AWS_SECRET_ACCESS_KEY" not in job
    assert "RACKPROOF_SECRET_NAMES" not in job
    assert "canary" not in output
    files = [path for path in cluster.shared.rglob("*") if path.is_file()]
    assert [path for path in files if b"canary" in path.read_bytes()] == []


@pytest.mark.parametrize(
    ("scheme", "realm"),
    [
        ("https", "http://auth.example/token"),
        ("https", "file:///etc/shadow"),
        ("http", "ftp://auth.example/token"),
        ("https", ""),
        ("https", "HTTP://auth.example"),
        ("http", "//auth.example"),
    ],
)
def test_a_registry_sends_its_key_nowhere_less_safe_than_itself(
    root: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, realm: str
) -> None:
    monkeypatch.syspath_prepend(root / "workloads")
    slurm_run = importlib.import_module("slurm_run")
    challenge = f'Bearer realm="{realm}",service="registry",scope="repository:x:pull"'
    with pytest.raises(ValueError, match="no key is sent there"):
        slurm_run.fetch_token(challenge, "Basic made-up", scheme, slurm_run.Limits())


def test_the_key_of_the_registry_is_in_no_file_call_or_output(cluster: Cluster) -> None:
    status, output = cluster()
    assert status == 0, output
    key = cluster.registry.key
    assert key not in output
    assert key not in (cluster.fake / "job.env").read_text()
    written = [path for path in cluster.shared.rglob("*") if path.is_file()]
    assert written
    assert not [path for path in written if key.encode() in path.read_bytes()]
    assert not [call for name in FAKE for call in cluster.calls(name) if key in call]


def test_a_second_run_pulls_copies_and_stages_nothing(cluster: Cluster) -> None:
    assert cluster()[0] == 0

    def steps() -> int:
        named = [call.split()[0] for call in cluster.calls("srun") if call.startswith("--job-name=")]
        # These steps check the nodes again before each job.
        looks = ("--job-name=mpi", "--job-name=devices", "--job-name=domain")
        return sum(not name.startswith(looks) for name in named)

    before = steps()
    (cluster.shared / "runs" / RUN / "job.json").unlink()
    (cluster.fake / "name").unlink()
    status, output = cluster()
    assert status == 0, output
    assert steps() == before
    assert len(cluster.calls("sbatch")) == 2


def test_what_is_missing_is_staged_again(cluster: Cluster) -> None:
    assert cluster("stage")[0] == 0
    (cluster.shared / "data/big/set/a").write_text("")
    status, output = cluster("stage")
    assert status == 0, output
    assert "has another size" in output
    assert (cluster.shared / "data/big/set/a").read_text() == "x\n"


@pytest.mark.parametrize(
    ("later", "named"),
    [
        ("mkdir -p /data/set; echo y > /data/set/a", "./a (1 of 1 files)"),
        ("mkdir -p /data/set; echo x > /data/set/a; echo z > /data/set/b", "./b (1 of 2 files)"),
        ("mkdir -p /data/set; rm -f /data/set/a; echo x > '/data/set/a b'", "./a, ./a b (2 of 2 files)"),
    ],
    ids=["other content", "one more", "another name"],
)
def test_data_that_comes_with_other_content_than_the_first_time_is_refused(
    cluster: Cluster, later: str, named: str
) -> None:
    # The step is the same, but what it fetches differs.
    source = cluster.shared / "source.sh"
    data = cluster.shared / "data/big"
    step = {"creates": "set", "mount": "/data", "run": f"bash {source}", "size_gb": 0, "recorded": True}
    cluster.spec["stage"] = [step]

    def bring(script: str) -> tuple[int, str]:
        source.write_text(script.replace("/data", str(data)))
        (data / ".staged-set.json").unlink(missing_ok=True)
        return cluster("stage")

    status, output = bring(
        "mkdir -p /data/set/.cache; echo x > /data/set/a; date +%N > /data/set/.cache/note"
    )
    assert (status, "checksums of 1 files recorded, trusted on first use" in output) == (0, True), output
    status, output = bring(
        "mkdir -p /data/set/.cache; echo x > /data/set/a; date +%N > /data/set/.cache/note"
    )
    assert (status, "1 files have the checksums of the first time" in output) == (0, True), output
    status, output = bring(later)
    assert status != 0
    assert "came with other content than the first time" in output
    assert named in output
    # The same command again does not accept the data. The operator accepts it by removing the record.
    assert cluster("stage")[0] != 0
    (data / ".content-set.json").unlink()
    assert cluster("stage")[0] == 0


@pytest.mark.parametrize("known_by", ["file", "name"])
def test_a_job_that_is_there_is_followed_and_no_second_one_submitted(cluster: Cluster, known_by: str) -> None:
    cluster.script("for i in 1 2 3 4 5 6 7 8; do echo line $i; sleep 0.5; done")
    process = cluster.start()
    until(lambda: cluster.calls("sbatch"))
    until(lambda: (cluster.shared / "runs" / RUN / "job.json").is_file())
    process.kill()
    process.communicate()
    if known_by == "name":
        # As if it had been killed between the submission and writing down the job's number.
        (cluster.shared / "runs" / RUN / "job.json").unlink()
    status, output = cluster()
    assert status == 0, output
    assert len(cluster.calls("sbatch")) == 1
    assert "line 1\n" in output
    assert "line 8\n" in output


def test_two_at_once_submit_one_job(cluster: Cluster) -> None:
    cluster.script("sleep 2")
    both = [cluster.start(), cluster.start()]
    assert [one.wait(300) for one in both] == [0, 0]
    for one in both:
        one.communicate()
    assert len(cluster.calls("sbatch")) == 1


def test_a_hang_cancels_the_job_and_says_on_which_step(cluster: Cluster) -> None:
    cluster.spec["hang_s"] = 1
    cluster.script('echo \':::MLLOG {"key": "x", "metadata": {"step": 41}}\'; echo n2 waits; sleep 30')
    status, output = cluster()
    assert status == 1
    assert printed_value(output, "hang")["step"] == "step 41"
    assert printed_value(output, "hang")["last"] == "n2 waits"
    assert cluster.calls("scancel") == ["4711"]


def test_on_a_signal_to_end_it_cancels_the_job(cluster: Cluster) -> None:
    cluster.script("sleep 30")
    process = cluster.start()
    until(lambda: (cluster.shared / "runs" / RUN / "job.json").is_file())
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert cluster.calls("scancel") == ["4711"]
    assert printed_value(output, "end")["state"] == "CANCELLED"


@pytest.mark.parametrize("ends", ["later", "unseen"])
def test_on_a_node_that_shuts_down_the_job_goes_on_and_the_next_follows_it(
    cluster: Cluster, ends: str
) -> None:
    systemctl = cluster.fake / "bin/systemctl"
    systemctl.write_text("#!/bin/sh\necho stopping\n")
    systemctl.chmod(0o755)
    cluster.script("echo line 1; sleep 4; echo line 2")
    process = cluster.start("run", "--plan=plan-1")
    until(lambda: (cluster.shared / "runs" / RUN / "job.json").is_file())
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert cluster.calls("scancel") == []
    assert printed_value(output, "end") is None
    if ends == "unseen":
        until(lambda: (cluster.fake / "state").read_text() == "COMPLETED\n")
    status, output = cluster("run", "--plan=plan-1")
    assert status == 0, output
    assert len(cluster.calls("sbatch")) == 1
    assert output.count("line 1\n") == output.count("line 2\n") == 1
    # The second log has all that the record needs, although the first one is lost.
    assert printed_value(output, "digest") == DIGEST
    assert printed_value(output, "config") == "config_GB300_2x4x1xtp1pp1cp1.sh"
    assert printed_value(output, "end")["state"] == "COMPLETED"


def test_a_slurm_that_does_not_answer_is_waited_for_and_gets_no_second_job(cluster: Cluster) -> None:
    (cluster.fake / "down").write_text("")
    status, output = cluster(RACKPROOF_SLURM_ANSWERS_S="1")
    assert status == 7
    assert "Unable to contact slurm controller" in printed_value(output, "refused")
    assert cluster.calls("sbatch") == []
    # The node submitted a job before it restarted. Its shared storage is missing, so only the name is known.
    (cluster.fake / "name").write_text(RUN)
    (cluster.fake / "state").write_text("COMPLETED\n")
    process = cluster.start()
    time.sleep(1)
    (cluster.fake / "down").unlink()
    process.communicate(timeout=300)
    assert process.returncode == 0
    assert cluster.calls("sbatch") == []


def test_a_job_that_never_starts_is_given_up(cluster: Cluster) -> None:
    cluster.spec["queue_s"] = 1
    (cluster.fake / "script").unlink()
    status, output = cluster(FIRST_STATE="PENDING")
    assert status == 7
    assert "pending (Resources)" in output
    assert '"queue": "2 of 2"' in output
    assert cluster.calls("scancel") == ["4711"]


def test_a_failed_job_is_no_success(cluster: Cluster) -> None:
    cluster.script('echo FAILED > "$FAKE/state"; echo 2:0 > "$FAKE/code"')
    status, output = cluster()
    assert status == 1
    assert printed_value(output, "end")["exit_code"] == "2:0"


def test_what_a_checker_quotes_is_no_event(cluster: Cluster) -> None:
    cluster.script(
        "echo ':::MLLOG {\"a\": 1}'; echo 'RUNANDTIME_STOP 1700000000'; echo 'failed: :::MLLOG {\"a\": 1}'"
    )
    output = cluster()[1]
    assert output.count(":::MLLOG") == 1
    assert "failed: (quoted) MLLOG" in output


def test_no_fitting_config_lists_those_there_are(cluster: Cluster) -> None:
    cluster.spec["hosts"] = ["n1", "n2", "n3"]
    status, output = cluster()
    assert status == 7
    assert "no config for 3 nodes of 4 GPUs (GB300)" in printed_value(output, "refused")
    assert "config_GB300_18x4x1.sh" in printed_value(output, "refused")
    assert cluster.calls("sbatch") == []


@pytest.mark.parametrize(
    ("changes", "system"),
    [
        ({"precision": "fp4"}, "GB300_2x4x1xtp1pp1cp1_fp4"),
        ({"config": "config_GB300_2x4x1xtp1pp1cp1_fp4.sh"}, "GB300_2x4x1xtp1pp1cp1_fp4"),
    ],
)
def test_precision_and_operator_choose_the_config(
    cluster: Cluster, changes: dict[str, str], system: str
) -> None:
    cluster.spec.update(changes)
    assert cluster()[0] == 0
    assert cluster.job_environment()["DGXSYSTEM"] == system


PUBLISHED = (
    "GB300_32x4x288xtp2pp8cp2_cg",
    "GB300_32x4x288xtp2pp8cp2_cg_fp4",
    "GB300_2x4x2xtp1pp1cp1_8b_fp4",
    "GB300_18x4x1xtp1pp1cp2_8b",
)
"""Configs of an image that also has a larger model: those of llama31_8b have its size in their names."""


@pytest.mark.parametrize(("nodes", "chosen"), [(2, "GB300_2x4x2xtp1pp1cp1_8b_fp4"), (32, "")])
def test_a_config_of_a_larger_model_in_the_same_image_is_not_chosen(
    cluster: Cluster, nodes: int, chosen: str
) -> None:
    for path in cluster.image.glob("config_*.sh"):
        path.unlink()
    for name in PUBLISHED:
        (cluster.image / f"config_{name}.sh").write_text(CONFIG.format(nodes=nodes))
    for name in ("common", "common_8b", "mounts"):
        (cluster.image / f"config_{name}.sh").write_text("true\n")
    cluster.spec["hosts"] = [f"n{number}" for number in range(1, nodes + 1)]
    status, output = cluster()
    if chosen:
        assert cluster.job_environment()["DGXSYSTEM"] == chosen
        code = cluster.shared / "runs" / RUN / "code"
        shared = {"config_common.sh", "config_common_8b.sh", "config_mounts.sh"}
        assert {path.name for path in code.iterdir()} == {"run.sub", f"config_{chosen}.sh", *shared}
        return
    assert status == 7
    assert "no config for 32 nodes" in printed_value(output, "refused")
    assert "config_mounts" not in printed_value(output, "refused")
    assert cluster.calls("sbatch") == []


@pytest.mark.parametrize(("stated", "asked"), [(8, "--gpus-per-node=4"), (4, ""), (0, "")])
def test_a_script_published_for_nodes_of_other_gpus_gets_those_of_these(
    cluster: Cluster, stated: int, asked: str
) -> None:
    line = f"#SBATCH --gpus-per-node={stated}\n" if stated else "##SBATCH --gpus-per-node=8\n"
    (cluster.image / "run.sub").write_text(f"#!/bin/bash\n{line}")
    assert cluster()[0] == 0
    (call,) = cluster.calls("sbatch")
    assert [word for word in call.split() if word.startswith("--gpus")] == ([asked] if asked else [])


def test_variables_that_a_script_writes_down_keep_no_secret(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary-meant")
    monkeypatch.setenv("RACKPROOF_SECRET_NAMES", "HF_TOKEN")
    results = cluster.shared / "runs" / RUN / "results"
    # As llama31_8b's run.sub and run_and_time.sh do.
    written = f"SLURM_JOB_ID=1 bash -c 'env > {results}/25_env.log; env > {results}/container-env-1.log'\n"
    cluster.script(written + cluster.ends_well)
    status, output = cluster()
    assert status == 0, output
    for name in ("25_env.log", "container-env-1.log"):
        text = (results / name).read_text()
        assert "HF_TOKEN=(secret)" in text
        assert "canary" not in text


def test_a_config_for_fewer_nodes_excludes_all_hosts_that_are_not_limited(cluster: Cluster) -> None:
    (cluster.image / "config_GB300_1x4x1.sh").write_text(CONFIG.format(nodes=1))
    cluster.spec["config"] = "config_GB300_1x4x1.sh"
    assert cluster()[0] == 0
    (call,) = cluster.calls("sbatch")
    assert "-N 1 " in call
    assert "--exclude=n3" in call
    assert "--nodelist" not in call


def test_nothing_is_staged_for_a_config_that_breaks_a_rule(cluster: Cluster) -> None:
    rule = {"rule": "max_steps == 8", "left": "MAX_STEPS", "comparison": "==", "right": 8.0}
    cluster.spec |= {"ruleset": "5.1.0", "rules": [rule]}
    cluster.spec["environment"]["MAX_STEPS"] = "4"
    status, output = cluster()
    assert status == 7, output
    assert "max_steps == 8, and it has MAX_STEPS=4" in printed_value(output, "refused")
    assert not [call for call in cluster.calls("srun") if "--job-name=stage" in call]
    assert not cluster.calls("sbatch")


def test_a_config_cannot_change_the_variables_of_the_run(cluster: Cluster) -> None:
    with (cluster.image / "config_GB300_2x4x1xtp1pp1cp1.sh").open("a") as stream:
        stream.write("export NEXP=10 LOGDIR=./results CONT=other SEED_BASE=1\n")
    status, output = cluster()
    assert status == 0, output
    job = cluster.job_environment()
    assert (job["NEXP"], job["LOGDIR"]) == ("1", str(cluster.shared / "runs" / RUN / "results"))
    assert job["CONT"] != "other"
    assert job["SEED_BASE"] == str(printed_value(output, "seed_base")) != "1"


# Errors of Slurm: PMIx's library is missing, Slurm was built without PMIx, or a node cannot start a rank.
NO_LIBRARY = """\
{who}: error:  mpi/pmix_v4: init: (null) [0]: mpi_pmix.c:195: pmi/pmix: can not load PMIx library
{who}: error: Couldn't load specified plugin name for mpi/pmix: Plugin init() callback failed
{who}: error: MPI: Cannot create context for mpi/pmix
{who}: error: MPI: Unable to load any plugin
{who}: error: Invalid MPI type 'pmix', --mpi=list for acceptable types
"""
NO_PLUGIN = """\
srun: error: Couldn't find the specified plugin name for mpi/pmix looking at all files
srun: error: cannot find mpi plugin for mpi/pmix
srun: error: MPI: Cannot create context for mpi/pmix
srun: error: Invalid MPI type 'pmix', --mpi=list for acceptable types
"""
NO_LAUNCH = """\
srun: error: Task launch for StepId=80.0 failed on node n2: Unspecified error
srun: error: Application launch failed: Unspecified error
srun: Job step aborted
"""
# The error of pyxis 0.21 and enroot 4.0.1 if a hook of enroot fails on a node.
NO_CONTAINER = """\
slurmstepd: error: pyxis: container start failed with error code: 1
slurmstepd: error: pyxis: printing enroot log file:
slurmstepd: error: pyxis:     enroot-mount: failed to mount: /sys/class/infiniband_verbs: No such file
slurmstepd: error: pyxis:     [ERROR] /etc/enroot/hooks.d/99-mellanox.sh exited with return code 1
slurmstepd: error: pyxis: couldn't start container
slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1
slurmstepd: error: Failed to invoke spank plugin stack
srun: error: n2: task 0: Exited with exit code 1
"""
ABORTED = "*** An error occurred in MPI_Init\nsrun: error: n2: task 1: Exited with exit code 1\n"


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        # A file of the fake srun, what it prints from it, and parts of the message.
        # An error of srun on the submitting node.
        (
            "no-mpi",
            NO_LIBRARY.format(who="srun"),
            [os.uname().nodename + ":", "libpmix", "slurm_mpi_packages"],
        ),
        ("no-mpi", NO_PLUGIN, [os.uname().nodename + ":", "no such plugin", "built with PMIx"]),
        # An error of one node. Each node is tested alone, so that the message names that one.
        (
            "world-n2.err",
            NO_LIBRARY.format(who="slurmstepd-n2"),
            ["n2: Slurm's plugin", "slurm_mpi_packages"],
        ),
        ("world-n1.err", NO_LIBRARY.format(who="slurmstepd"), ["n1: Slurm's plugin", "slurm_mpi_packages"]),
        # The error of Slurm 22.05 if a node lost the library after its slurmd started.
        ("world-n2.err", NO_LAUNCH, ["n2: slurmd there", "libpmix", "slurm_mpi_packages"]),
        (
            "world-n2.err",
            "slurmstepd: error: execve(): python3: No such file\n",
            ["n2: no rank started in the"],
        ),
        (
            "world-n2.err",
            NO_CONTAINER,
            ["n2: no rank started in the", "99-mellanox.sh exited", "infiniband_verbs: No such"],
        ),
        ("world-n2", "server=no folder=no", ["n2: Slurm gives a rank no PMIx server", "PMIX_MCA_"]),
        (
            "world-n1",
            "server=yes folder=no size=1",
            ["n1: a container lacks", "50-slurm-pmi.sh", "enroot_pyxis"],
        ),
        (
            "world-n2",
            "server=yes folder=yes library=no",
            ["n2: the image has neither Open MPI", "bench_images"],
        ),
        (
            "world-n2",
            "server=yes folder=yes size=1",
            ["n2: a rank has a world size of 1, not 2", "PMIX_MCA_"],
        ),
        ("world-n1", "server=yes folder=yes size=0", ["n1: a rank has a world size of 0, not 2"]),
        ("world-n2", "server=yes folder=yes", ["n2: a rank has a world size of none, not 2"]),
        ("apart", "", ["ranks meet on each of n1, n2, but not across nodes", "at all ports"]),
    ],
)
def test_ranks_that_would_not_meet_are_no_job(
    cluster: Cluster, file: str, text: str, words: list[str]
) -> None:
    (cluster.fake / file).write_text(text)
    status, output = cluster()
    assert (status, cluster.calls("sbatch")) == (7, [])
    refused = printed_value(output, "refused")
    for word in ("--mpi=pmix", "SLURM_MPI_TYPE", *words):
        assert word in refused
    sound = {"n1", "n2"} - {word[:2] for word in words if word.startswith(("n1:", "n2:"))}
    assert file == "apart" or not any(f"{node}:" in refused for node in sound)


@pytest.mark.parametrize("hosts", [["n1", "n2"], ["n1"], ["n2", "n1", "n3"]])
def test_at_least_two_ranks_meet_in_the_image_of_the_job_and_once_for_a_plan(
    cluster: Cluster, hosts: list[str]
) -> None:
    (cluster.image / f"config_GB300_{len(hosts)}x4x1.sh").write_text(CONFIG.format(nodes=len(hosts)))
    cluster.spec.update(hosts=hosts, config=f"config_GB300_{len(hosts)}x4x1.sh")
    for _ in range(2):
        assert cluster("run", "--plan=p1")[0] == 0
        (cluster.shared / "runs" / RUN / "job.json").unlink()
        (cluster.fake / "name").unlink()
    (call,) = [call for call in cluster.calls("srun") if "--mpi=pmix" in call]
    ranks = max(2, len(hosts))
    assert f"--nodelist={','.join(hosts)} --nodes={len(hosts)} --ntasks={ranks} " in call
    assert "--container-image=" in call
    assert "--exclusive --mem=0" in call


UUID = "5f0e7d2c-9a41-4c55-8d1b-3c6a2f90e7b4"
NO_UUID = "00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    ("node", "printed", "words"),
    [
        # A node, what the script prints of its domain (domain and clique, digest of IMEX's list, IMEX's
        # state), and a part of the message. The other nodes print the same sound values.
        (
            "n2",
            f"{UUID}/1 |a1b2c3d4e5f6|READY",
            f"n2: its NVLink domain is {UUID}/1, the others' {UUID}/32766",
        ),
        (
            "n2",
            "6f0e7d2c-9a41-4c55-8d1b-3c6a2f90e7b4/32766 |a1b2c3d4e5f6|READY",
            "n2: its NVLink domain is 6f0e",
        ),
        ("n1", f"{NO_UUID}/0 |a1b2c3d4e5f6|READY", "n1: its GPUs are in no NVLink domain (0000"),
        ("n1", f"{UUID}/0 |a1b2c3d4e5f6|READY", "n1: its GPUs are in no NVLink domain"),
        ("n2", "N/A/N/A |a1b2c3d4e5f6|READY", "n2: its GPUs are in no NVLink domain"),
        ("n2", "|a1b2c3d4e5f6|READY", "n2: its GPUs are in no NVLink domain (nothing reported)"),
        ("n2", f"{UUID}/1 {UUID}/2 |a1b2c3d4e5f6|READY", "n2: its GPUs are in no NVLink domain"),
        (
            "n2",
            f"{UUID}/32766 |ffffffffffff|READY",
            "nodes_config.cfg differs from the others'; provision.yml (role imex",
        ),
        ("n1", f"{UUID}/32766 ||READY", "n1: /etc/nvidia-imex/nodes_config.cfg is not there"),
        ("n2", f"{UUID}/32766 |a1b2c3d4e5f6|", "n2: nvidia-imex is not running"),
        ("n2", f"{UUID}/32766 |a1b2c3d4e5f6|INITIALIZING", "n2: nvidia-imex is INITIALIZING"),
        ("n1", "silent", "n1: its NVLink domain is not known"),
    ],
)
def test_nodes_that_are_no_nvlink_domain_are_no_job(
    cluster: Cluster, node: str, printed: str, words: str
) -> None:
    # A third node is in the domain of the first.
    (cluster.image / "config_GB300_3x4x1.sh").write_text(CONFIG.format(nodes=3))
    cluster.spec.update(hosts=["n1", "n2", "n3"], config="config_GB300_3x4x1.sh")
    (cluster.fake / f"domain-{node}").write_text(printed)
    status, output = cluster()
    assert (status, cluster.calls("sbatch")) == (7, [])
    assert words in printed_value(output, "refused")
    assert "n3:" not in printed_value(output, "refused")


@pytest.mark.parametrize(
    ("system", "hosts"), [("H100", ["n1", "n2"]), ("B200", ["n1", "n2"]), ("GB300", ["n1"])]
)
def test_an_nvlink_domain_is_asked_of_several_nodes_of_an_nvl72_alone(
    cluster: Cluster, system: str, hosts: list[str]
) -> None:
    (cluster.image / "config_one.sh").write_text(CONFIG.format(nodes=len(hosts)))
    cluster.spec.update(system=system, hosts=hosts, config="config_one.sh")
    (cluster.fake / "domain-n1").write_text(f"{NO_UUID}/0 ||")
    status, output = cluster()
    assert status == 0, output
    assert not [call for call in cluster.calls("srun") if "--job-name=domain" in call]


def test_busy_nodes_are_not_asked_whether_ranks_meet(cluster: Cluster) -> None:
    (cluster.fake / "no-mpi").write_text(
        "srun: error: Unable to allocate resources: Requested nodes are busy\n"
    )
    status, output = cluster()
    assert status == 0
    assert "the meeting of ranks was not tested" in output


def test_another_kind_of_mpi_is_tried_as_the_operator_names_it(cluster: Cluster) -> None:
    cluster.spec["environment"]["SLURM_MPI_TYPE"] = "pmi2"
    assert cluster()[0] == 0
    (call,) = [call for call in cluster.calls("srun") if "--mpi=pmi" in call]
    assert "--mpi=pmi2" in call
    assert call.endswith(" true")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        # What `: "${WALLTIME:=?WALLTIME not set}"` of llama31_8b's run.sub would set.
        ("unset WALLTIME", "WALLTIME is '', which is not a number"),
        ("export WALLTIME='?WALLTIME not set'", "WALLTIME is '?WALLTIME not set', which is not a number"),
        ("unset DGXNGPU", "DGXNGPU is ''"),
        ("export DGXNGPU=8", "is for 8 GPUs a node, these nodes have 4"),
        ("export DGXNNODES=18", "is for 18 nodes, and -l selects 2"),
        ("export DATADIR=/elsewhere", "sets DATADIR to '/elsewhere'"),
        ("return 3", "cannot be sourced"),
    ],
)
def test_a_config_that_run_sub_would_stumble_over_is_refused(
    cluster: Cluster, line: str, message: str
) -> None:
    with (cluster.image / "config_GB300_2x4x1xtp1pp1cp1.sh").open("a") as stream:
        stream.write(line + "\n")
    status, output = cluster()
    assert status == 7, output
    assert message in printed_value(output, "refused")
    assert cluster.calls("sbatch") == []


@pytest.mark.parametrize(
    ("inside", "words"),
    [
        (
            "|rdma_cm uverbs0 |channel0 |nvidia0 nvidia1 |",
            "n1: a container lacks the network adapters mlx5_0 (and on 1 more",
        ),
        ("mlx5_0 ||channel0 |nvidia0 nvidia1 |", "the adapters' device files rdma_cm, uverbs0"),
        ("mlx5_0 |rdma_cm uverbs0 ||nvidia0 nvidia1 |", "the IMEX channels channel0"),
        ("mlx5_0 |rdma_cm uverbs0 |channel0 |nvidia0 |", "the GPUs nvidia1"),
        ("", "n1, n2: the devices of a container there are not known"),
    ],
)
def test_a_container_without_the_nodes_devices_is_no_job(cluster: Cluster, inside: str, words: str) -> None:
    (cluster.fake / "inside").write_text(inside)
    status, output = cluster()
    assert (status, cluster.calls("sbatch")) == (7, [])
    assert words in printed_value(output, "refused")


@pytest.mark.parametrize("cards", ["mlx5_core", "mlx4_core", "ib_core", ""])
def test_adapters_are_asked_for_where_enroot_has_a_hook_for_them(
    cluster: Cluster, tmp_path: Path, cards: str
) -> None:
    if cards:
        (tmp_path / f"sys/bus/pci/drivers/{cards}/0000:01:00.0/infiniband_verbs/uverbs0").mkdir(parents=True)
    status, output = cluster(RACKPROOF_SYSTEM_ROOT=str(tmp_path))
    assert status == 0, output
    wanted = "all" if cards.startswith("mlx") else None
    assert cluster.job_environment().get("MELLANOX_VISIBLE_DEVICES") == wanted
    looked = (cluster.fake / "devices.env").read_text()
    assert ("MELLANOX_VISIBLE_DEVICES=all" in looked) == (wanted == "all")


def test_the_operators_choice_of_adapters_is_used(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    cluster.spec["environment"]["MELLANOX_VISIBLE_DEVICES"] = "0,1"
    assert cluster(RACKPROOF_SYSTEM_ROOT=str(tmp_path))[0] == 0
    assert cluster.job_environment()["MELLANOX_VISIBLE_DEVICES"] == "0,1"


def test_busy_nodes_are_not_waited_for_and_the_operator_reads_it(cluster: Cluster) -> None:
    (cluster.fake / "busy").write_text("srun: error: Unable to allocate resources: Requested nodes are busy")
    status, output = cluster()
    assert status == 0, output
    assert "the devices of containers were not checked" in output


def test_the_folder_8b_itself_is_no_datadir(cluster: Cluster) -> None:
    (cluster.shared / "data/8b").mkdir(parents=True)
    cluster.spec["environment"] = {"DATADIR": str(cluster.shared / "data/8b")}
    status, output = cluster()
    assert status == 7
    assert "names the folder 8b itself" in printed_value(output, "refused")


def test_a_data_folder_that_is_not_there_is_refused(cluster: Cluster) -> None:
    cluster.spec["environment"] = {"DATAROOT": str(cluster.shared / "data/none")}
    status, output = cluster()
    assert status == 5
    assert "is not there" in printed_value(output, "refused")


@pytest.mark.parametrize(
    ("key", "tag", "message"),
    [
        ("wrong", "1", "refuses the key in"),
        ("", "1", "has none"),
        ("s3cret-key", "2", "is not in the registry"),
    ],
)
def test_an_answer_of_the_registry_other_than_success_is_explained(
    cluster: Cluster, key: str, tag: str, message: str
) -> None:
    text = f"machine {cluster.registry.address} login $oauthtoken password {key}\n" if key else ""
    (cluster.fake / "credentials").write_text(text)
    cluster.spec["tag"] = tag
    status, output = cluster()
    assert status == 6
    assert message in printed_value(output, "refused")
    assert "ngc_api_key" in output or tag == "2"


def test_an_image_is_imported_once_to_shared_storage(cluster: Cluster) -> None:
    cluster.spec["image"] = "squashfs"
    assert cluster("pull")[0] == 0
    status, output = cluster("pull")
    assert status == 0
    assert json.loads(output.splitlines()[-1]) == {"changed": False}
    (call,) = cluster.calls("enroot")
    # enroot accepts a digest in the place of a tag, and refuses `@`.
    assert call.endswith(f" docker://{cluster.registry.address}#big:{DIGEST}")
    (image,) = (cluster.shared / "images").glob("*.sqsh")
    assert DIGEST[7:19] in image.name
    assert printed_value(output, "cont") == str(image)
    image.write_text("cut off")
    status, output = cluster("pull")
    assert (status, image.read_text()) == (0, "image\n")
    assert "has changed since its import" in output


def test_an_import_that_was_killed_is_made_whole_by_the_next(cluster: Cluster) -> None:
    cluster.spec["image"] = "squashfs"
    process = cluster.start("pull", SLOW="20")
    until(lambda: list((cluster.shared / "images").glob(".*.part")))
    process.kill()
    process.wait()
    assert not list((cluster.shared / "images").glob("*.sqsh"))
    assert cluster("run")[0] == 0
    assert len(cluster.calls("enroot")) == 2
    assert not list((cluster.shared / "images").glob(".*.part"))
    assert cluster.job_environment()["CONT"].endswith(".sqsh")


def test_two_racks_on_one_storage_import_once(cluster: Cluster) -> None:
    cluster.spec["image"] = "squashfs"
    both = [cluster.start("pull", SLOW="2") for _ in range(2)]
    assert [one.wait(300) for one in both] == [0, 0]
    for one in both:
        one.communicate()
    assert len(cluster.calls("enroot")) == 1


def test_a_tag_is_resolved_once_for_all_repeats(cluster: Cluster) -> None:
    for _repeat in range(2):
        status, output = cluster("pull", "--plan=plan-1")
        assert (status, printed_value(output, "digest")) == (0, DIGEST)
    asked = cluster.registry.asked
    # If the registry fails, or its tag moves, nothing changes for a plan in progress.
    cluster.registry.key = "changed"
    assert cluster("pull", "--plan=plan-1")[0] == 0
    assert cluster.registry.asked == asked
    assert cluster("pull", "--plan=plan-2")[0] == 6


@pytest.mark.parametrize("tag", ["1", DIGEST, f"1@{DIGEST}"], ids=["resolved", "digest", "tag and digest"])
@pytest.mark.parametrize("image", ["registry", "squashfs"])
def test_an_image_that_is_not_the_digest_s_is_not_pulled(cluster: Cluster, tag: str, image: str) -> None:
    cluster.spec.update(tag=tag, image=image)
    cluster.registry.manifest = MANIFEST + b" "
    status, output = cluster("pull")
    assert status == 6
    assert "It was replaced" in output
    assert not (cluster.fake / "enroot.calls").exists()
    assert not (cluster.fake / "srun.calls").exists()
    cluster.registry.manifest = MANIFEST
    status, output = cluster("pull")
    assert (status, printed_value(output, "digest")) == (0, DIGEST), output
    assert cluster.registry.asked == (2 if tag == "1" else 0)


@pytest.mark.parametrize("image", ["registry", "squashfs"])
@pytest.mark.parametrize("what", ["run", "pull"])
def test_an_image_for_other_processors_is_not_pulled(cluster: Cluster, image: str, what: str) -> None:
    cluster.spec.update(architecture="arm64", image=image)
    status, output = cluster(what)
    assert status == 6, output
    refused = printed_value(output, "refused")
    assert "/big:1 is for amd64, and n1 is arm64 (2 nodes): name one for arm64 with bench_images" in refused
    assert not (cluster.fake / "enroot.calls").exists()
    assert not (cluster.fake / "srun.calls").exists()
    assert cluster.calls("sbatch") == []


@pytest.mark.parametrize("tag", ["1@sha256:0123", "1@md5:0123", f"{DIGEST}@1"])
def test_an_incomplete_pin_is_refused(cluster: Cluster, tag: str) -> None:
    cluster.spec["tag"] = tag
    status, output = cluster("pull")
    assert (status, cluster.registry.asked) == (6, 0)
    assert "is not a tag with a digest" in output


def test_a_digest_needs_no_registry(cluster: Cluster) -> None:
    cluster.spec["tag"] = DIGEST
    status, output = cluster("pull")
    assert (status, printed_value(output, "digest"), cluster.registry.asked) == (0, DIGEST, 0)


@pytest.mark.parametrize(("what", "status"), [("stage", 5), ("image", 6)])
def test_too_little_space_is_reported_before_anything_is_fetched(
    cluster: Cluster, what: str, status: int
) -> None:
    cluster.spec["image"] = "squashfs"
    if what == "stage":
        cluster.spec["stage"][0]["size_gb"] = 1e9
    else:
        cluster.spec["image_gb"] = 1e9
    found, output = cluster()
    assert found == status
    assert "GB free" in printed_value(output, "refused")
    assert not (cluster.shared / "data/big/set").exists()


def test_the_output_of_a_script_that_failed_is_reported(cluster: Cluster) -> None:
    cluster.spec["stage"][0]["run"] = "echo no such bucket >&2; exit 9"
    status, output = cluster()
    assert status == 5
    assert "failed (9)" in printed_value(output, "refused")
    assert "no such bucket" in printed_value(output, "refused")


def test_a_script_that_leaves_nothing_is_no_success(cluster: Cluster) -> None:
    cluster.spec["stage"][0]["run"] = "true"
    status, output = cluster()
    assert status == 5
    assert "is empty" in printed_value(output, "refused")


def test_what_sbatch_says_reaches_the_operator(cluster: Cluster) -> None:
    (cluster.fake / "refuse").write_text("sbatch: error: invalid account or account/partition combination\n")
    status, output = cluster()
    assert status == 7
    assert "invalid account" in printed_value(output, "refused")


@pytest.mark.parametrize("before", ["", "lmod"])
def test_a_secret_reaches_the_job_by_a_file_that_it_takes_away(
    cluster: Cluster, tmp_path: Path, before: str
) -> None:
    values = {"HF_TOKEN": "canary-of-hf 'quoted' $HOME", "PEM": "canary-line-one\ncanary-line-two"}
    cluster.spec["environment"] |= dict.fromkeys(values, "(secret)")
    seen, secrets = tmp_path / "seen", cluster.shared / "runs" / RUN / ".secrets"
    # As slurmd does, the job starts the script alone, with the environment that sbatch had.
    inner = tmp_path / "run.sub"
    inner.write_text(
        f'#!/bin/bash\nenv -0 > {seen}\necho "it prints $HF_TOKEN"; echo "$PEM"\n'
        'echo \':::MLLOG {"key": "x", "metadata": {"step": 7}}\'\n'
    )
    inner.chmod(0o755)
    cluster.script(f"stat -c %a {secrets} > {tmp_path}/mode; SLURM_JOB_ID=1 {inner}\n")
    earlier = tmp_path / "lmod.sh"
    earlier.write_text("export OF_LMOD=1\n")
    environment = {"BASH_ENV": str(earlier)} if before else {}
    status, output = cluster(RACKPROOF_SECRET_NAMES="HF_TOKEN,PEM", **values, **environment)
    assert status == 0, output
    job = dict(item.split("=", 1) for item in seen.read_text().split("\0") if "=" in item)
    assert {name: job[name] for name in values} == values
    assert (job.get("BASH_ENV"), job.get("OF_LMOD")) == ((str(earlier), "1") if before else (None, None))
    assert (tmp_path / "mode").read_text().strip() == "600"
    assert not secrets.exists()
    assert "it prints (secret)" in output
    # No secret is in what sbatch is given, which Slurm keeps, or in a file or line of Rackproof.
    assert "canary" not in (cluster.fake / "job.env").read_text()
    assert "canary" not in output
    for path in cluster.shared.rglob("*"):
        if path.is_file() and path.name != "slurm.out":
            assert "canary" not in path.read_text(), path


@pytest.mark.parametrize("how", ["refused", "cancelled", "never read"])
def test_no_secret_stays_where_the_job_did_not_take_it(cluster: Cluster, how: str) -> None:
    cluster.spec["environment"]["WANDB_API_KEY"] = "(secret)"
    given = {"RACKPROOF_SECRET_NAMES": "WANDB_API_KEY", "WANDB_API_KEY": "canary-of-wandb"}
    secrets = cluster.shared / "runs" / RUN / ".secrets"
    if how == "refused":
        (cluster.fake / "refuse").write_text("sbatch: error: invalid account\n")
        assert cluster(**given)[0] == 7
    elif how == "cancelled":
        cluster.script("sleep 60")
        process = cluster.start(**given)
        until(lambda: (cluster.fake / "job.env").exists() and secrets.exists())
        until(lambda: (cluster.shared / "runs" / RUN / "job.json").exists())
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=300)[0].count("canary") == 0
    else:
        assert cluster(**given)[0] == 0
    assert not secrets.exists()
