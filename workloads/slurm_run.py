#!/usr/bin/env python3
"""Run a benchmark as one Slurm job from a node of the cluster.

    slurm_run.py run --id=RUN_ID --spec=JSON      pull, copy configs, stage, submit and follow
    slurm_run.py pull|configs|stage --spec=JSON   do one of these steps (configs pulls the image first)
    slurm_run.py check --spec=JSON                print the reasons to refuse a run, and change nothing
    slurm_run.py cancel --id=RUN_ID --spec=JSON   end the job

A benchmark's image contains MLPerf's script run.sub and its config files (config_*.sh). This program copies
them out of the image, and submits run.sub with sbatch, with the variables of one config file.

Begin with :meth:`Work.everything`, which calls one method of :class:`Work` for each step. Finished steps are
not repeated. With --plan=PLAN_ID, all runs of a plan use the image to which the tag pointed in the first run.

bench.yml starts this program on one node, under Rackproof's supervisor. The program needs only Python 3.8 or
newer, and the files beside it that it imports. It prints its progress as lines `:::RACKPROOF {JSON}`, and the
job's own output as it grows. The run's folder on shared storage contains the number of the job. If the
program is started again, it finds that job and does not submit a second one. The registry's key is read from
the files of ``credentials``, and sent only to the registry and to the server that the registry names for its
tokens.

Exit status: 0 if the job completed, and 1 if it failed, hung, or was cancelled, or if this program had to end
before the job. The others are 5 for data, 6 for the image, and 7 for the config or Slurm. ``check`` ends with
0 even if it finds reasons to refuse a run.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import fnmatch
import hashlib
import http.client
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from limited_download import Limits, open_limited
from lock_file import open_lock

EXIT_JOB, EXIT_DATA, EXIT_IMAGE, EXIT_SLURM = 1, 5, 6, 7
MARK = ":::RACKPROOF "
POLL_S = float(os.environ.get("RACKPROOF_SLURM_POLL_S", "3"))
"""Seconds between two queries of Slurm."""
SAY_S = 30.0
"""Seconds between two lines that state the same."""
SLURM_ANSWERS_S = float(os.environ.get("RACKPROOF_SLURM_ANSWERS_S", "300"))
"""Longest wait for Slurm to answer whether the job of this run exists."""
MOST_SILENCE_S = 900.0
"""Seconds without an answer of Slurm after which a job is no longer followed."""
CHECKER_S = 600.0
"""Least time without output, after the training, after which a job counts as hung."""
QUIET_AFTER_END_S = 20.0
"""The longest wait for the end of a job's output, because shared file systems show the last lines late."""
CREDENTIALS = ("/etc/enroot/.credentials", "/root/.config/enroot/.credentials", "/root/.docker/config.json")
MANIFESTS = (
    "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, "
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
)
MANIFEST_BYTES, TOKEN_BYTES = 16 << 20, 1 << 20
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Names of architectures. The keys are the kernel's, the values the registries'."""
PENDING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESIZING")
RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "SIGNALING", "STOPPED")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
SECRET = re.compile(r"(?i)(API_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL)")
SECRET_NAMES = "RACKPROOF_SECRET_NAMES"  # noqa: S105  (the name of a variable)
"""Environment variable with the names of the secrets that the operator meant for the job, with commas."""
SHORT_SECRET = 7
"""The length up to which a secret is not hidden in the output, because so short a text occurs anywhere."""
HIDDEN = "(secret)"
"""The replacement for a secret's value in plans and logs."""
MARKERS = re.compile(
    rb"^(?:\+* *echo )?(?:')?(PROLOG_START|NCCL_TEST_START|NCCL_TEST_STOP|PROLOG_STOP|EXPERIMENT_START|"
    rb"RUNANDTIME_START|RUNANDTIME_STOP|EXPERIMENT_STOP)\b"
)
PHASES = {
    b"PROLOG_START": "prolog",
    b"NCCL_TEST_START": "NCCL preflight",
    b"NCCL_TEST_STOP": "prolog",
    b"PROLOG_STOP": "prolog",
    b"EXPERIMENT_START": "clearing caches",
    b"RUNANDTIME_START": "starting",
    b"RUNANDTIME_STOP": "checking",
    b"EXPERIMENT_STOP": "ended",
}
NO_JOB = "down|drain|fail|maint|unknown|power|reboot|inval|future|blocked"
"""The beginnings of the states of a node that takes no job."""
FORGOTTEN = "FORGOTTEN"
"""The state of a job that neither Slurm's controller nor its accounts list. It ended some time ago."""
FORGOTTEN_S = 60.0
"""Seconds for which a job must be unknown until it counts as ended."""
WHOLE_NODE = ("--exclusive", "--mem=0")
"""Options that request all cores, GPUs and memory of a node. Slurm gives a job no more than it requests."""
OWN_JOBS = f"--user={os.geteuid()}"
"""The option that selects only jobs of this user, because any user can give a job the same name."""
SYSTEM = Path(os.environ.get("RACKPROOF_SYSTEM_ROOT", "/"))
DEVICES = """\
names() { ls "$1" 2> /dev/null | grep -E "$2" | sort | tr '\\n' ' '; }
if command -v ibv_devinfo > /dev/null 2>&1; then
  adapters="$(ibv_devinfo --list 2> /dev/null | sed -n 's/^[[:space:]][[:space:]]*//p' | sort | tr '\\n' ' ')"
else
  adapters="$(names /sys/class/infiniband .)"
fi
printf 'DEVICES|%s|%s|%s|%s|%s|\\n' "$SLURMD_NODENAME" "$adapters" \\
  "$(names /dev/infiniband '^(uverbs[0-9]+|rdma_cm)$')" \\
  "$(names /dev/nvidia-caps-imex-channels .)" "$(names /dev '^nvidia[0-9]+$')"
"""
"""A shell script that prints the devices of a node, or of a container on it.

The devices are network adapters, their device files, IMEX channels, and GPUs.
"""
CONTENT = """\
cd {folder}
find . -type f ! -path '*/.*/*' -print0 | xargs -0 -r -n 8 -P 8 sha256sum > {listing}
"""
"""A shell script that writes the checksums of a staged step's files.

It skips hidden folders, because the tools that fetched the files keep their notes there.
"""
WORLD = """\
import ctypes, os, sys
def tell(*words):
    print("|".join(["WORLD", os.environ.get("SLURMD_NODENAME", ""), *map(str, words)]), flush=True)
def load(*names):
    for name in names:
        try:
            return ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
        except OSError:
            pass
def mpi_size(mpi):
    size, world = ctypes.c_int(0), ctypes.byref(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world"))
    mpi.MPI_Init(None, None)
    mpi.MPI_Comm_size(world, ctypes.byref(size))
    mpi.MPI_Barrier(world)
    mpi.MPI_Finalize()
    return size.value
class Process(ctypes.Structure):
    _fields_ = [("space", ctypes.c_char * 256), ("rank", ctypes.c_uint32)]
class Value(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_uint16), ("number", ctypes.c_uint64)]
def pmix_size(pmix):
    own, value, none = Process(), ctypes.POINTER(Value)(), ctypes.c_size_t(0)
    status = pmix.PMIx_Init(ctypes.byref(own), None, none)
    everyone = Process(own.space, 0xFFFFFFFE)
    key = ctypes.c_char_p(b"pmix.job.size")
    status = status or pmix.PMIx_Get(ctypes.byref(everyone), key, None, none, ctypes.byref(value))
    size = 0 if status else value.contents.number & 0xFFFFFFFF
    status = status or pmix.PMIx_Fence(ctypes.byref(everyone), ctypes.c_size_t(1), None, none)
    if status:
        sys.exit("PMIx answers %d" % status)
    pmix.PMIx_Finalize(None, none)
    return size
folder = os.environ.get("PMIX_SERVER_TMPDIR", "")
tell("server", "yes" if os.environ.get("PMIX_NAMESPACE") else "no")
tell("folder", "yes" if folder and os.path.isdir(folder) else "no")
mpi = load("libmpi.so", "libmpi.so.40", "/usr/local/mpi/lib/libmpi.so", "/opt/hpcx/ompi/lib/libmpi.so")
if mpi is not None and not hasattr(mpi, "ompi_mpi_comm_world"):
    mpi = None
pmix = None if mpi else load("libpmix.so.2", "libpmix.so")
if mpi or pmix:
    tell("size", mpi_size(mpi) if mpi else pmix_size(pmix))
else:
    tell("library", "no")
"""
"""A Python program that runs as a rank in a container and prints how it sees the other ranks.

It prints whether the rank has a PMIx server, and how many ranks its world has. It counts them with the Open
MPI of the image, as the programs of run.sub do. In an image without Open MPI it uses libpmix.
"""
BY_HOOK = (
    "enroot's hook 50-slurm-pmi.sh brings it: provision.yml (role enroot_pyxis) puts it into its hooks.d"
)
FABRIC = "nvidia-smi -q there, and the fabric manager of the NVLink switches"
BY_IMEX = "provision.yml (role imex) writes the same on all nodes of a domain"
BY_SLURMD = "provision.yml (role slurm: slurm_slurmd_environment) gives slurmd the variables PMIX_MCA_*"
CONTAINER_ERROR = re.compile(r"pyxis: .*(\[ERROR\]|enroot-\w+: )")
"""A line in which pyxis repeats an error of enroot, of its hooks, or of its helpers."""
NO_PLUGIN = (
    (
        r"can ?not load PMIx library",
        "Slurm's plugin for PMIx cannot load its library (libpmix); provision.yml (role slurm: "
        "slurm_mpi_packages) installs it",
    ),
    (
        r"specified plugin name|annot find mpi plugin|Invalid MPI type",
        "its Slurm has no such plugin: install a Slurm that was built with PMIx (srun --mpi=list shows it)",
    ),
    # A node's slurmd writes the missing parts of its plugin only to its own log.
    (
        r"failed on node {host}: Unspecified error",
        "slurmd there could not start a rank, and its own log says why; where Slurm's plugin for PMIx lacks "
        "its library (libpmix), provision.yml (role slurm: slurm_mpi_packages) installs it",
    ),
)
"""Patterns of Slurm's output when it cannot start ranks by a kind of MPI, each with cause and remedy."""
DOMAIN = """\
groups="$(nvidia-smi -q 2> /dev/null |
  awk '/CliqueId/ { clique = $NF } /ClusterUUID/ { print $NF "/" clique }' | sort -u | tr '\\n' ' ')"
list="$(sha256sum < /etc/nvidia-imex/nodes_config.cfg 2> /dev/null | cut -c 1-12)"
printf 'DOMAIN|%s|%s|%s|%s|\\n' "$SLURMD_NODENAME" "$groups" "$list" \\
  "$(timeout 20 nvidia-imex-ctl -q 2> /dev/null | head -n 1)"
"""
"""A shell script that prints what decides whether a node is in an NVLink domain.

It prints the cluster UUID and clique of the GPUs, a digest of IMEX's list of nodes, and the state of IMEX.
"""
BY_MELLANOX = "enroot's hook 99-mellanox.sh brings them where the job has MELLANOX_VISIBLE_DEVICES=all"
DEVICE_KINDS = (
    ("network adapters", BY_MELLANOX),
    ("adapters' device files", BY_MELLANOX),
    (
        "IMEX channels",
        "enroot's hook 98-nvidia.sh brings them where NVIDIA_DRIVER_CAPABILITIES has compute or all",
    ),
    ("GPUs", "enroot's hook 98-nvidia.sh brings them where NVIDIA_VISIBLE_DEVICES is all"),
)
SHARED_CONFIG = re.compile(r"config_(common|mounts)")
"""The pattern of files that configs and run.sub source, and that are not configs themselves."""
SCRIPT_GPUS = re.compile(r"(?m)^#SBATCH +--gpus-per-node=(\d{1,3})\s*$")
STEP = re.compile(rb'"step": *(\d{1,12})')
SAMPLES = re.compile(rb'"samples_count": *(\d{1,15})')


def inherited_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a job may inherit.

    These exclude secrets, and the variables of a Slurm job in which this program runs.
    """
    return {
        key: value
        for key, value in environment.items()
        if not SECRET.search(key) and not key.startswith(("SLURM_", "SBATCH_"))
    }


class Refusal(Exception):  # noqa: N818  (as in the other workloads)
    """A request that cannot be fulfilled. The text gives its subject, the cause, and the remedy."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Stopped(Exception):  # noqa: N818
    """A signal to end this program."""


class Leaving(Exception):  # noqa: N818
    """A shutdown of the node. Another launcher will follow the job."""


def print_event(**fields: Any) -> None:
    """Print a line of progress, which Rackproof reads."""
    print(MARK + json.dumps(fields), flush=True)


def run_command(
    command: list[str], timeout: float = 60, env: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Run a short command and return its exit status, output and error output."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            env=None if env is None else dict(env),
            check=False,
        )
    except FileNotFoundError:
        return 127, "", f"{command[0]}: no such program; was the node provisioned (provision.yml)?"
    except subprocess.TimeoutExpired:
        return 124, "", f"{command[0]}: no answer in {timeout:.0f} s"
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def accounts_error(status: int, error: str) -> str:
    """Return sacct's error if accounts exist and do not answer, or "" if they answer or the site has none."""
    has_none = status in (0, 127) or "accounting storage is disabled" in error.lower()
    return "" if has_none else last_lines(error) or f"sacct ended with status {status}"


def last_lines(text: str, count: int = 4) -> str:
    """Return the end of a program's output, on one line.

    If a container did not start, the output ends with general errors of Slurm. The lines of enroot's own
    log, which pyxis prints before them, state the cause and come first.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines[:-count] if CONTAINER_ERROR.search(line)]
    return " | ".join(list(dict.fromkeys(causes))[-2:] + lines[-count:])[-1500:]


def free_gb(folder: Path) -> float:
    """Return the free space of a file system in GB."""
    return shutil.disk_usage(str(folder)).free / 1e9


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold a lock on shared storage. While waiting for it, print which process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_lock(path) as stream:
        reported_s = 0.0
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - reported_s > SAY_S:
                    stream.seek(0)
                    reported_s = time.monotonic()
                    print_event(phase=f"waiting for {what}", held_by=stream.read(200).strip())
                time.sleep(0.5)
        stream.truncate(0)
        stream.write(f"{os.uname().nodename} pid {os.getpid()}\n")
        stream.flush()
        yield


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a file that this program wrote, or {} if it is missing or cut off."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


@dataclass
class Watch:
    """The state of following a job between two polls. Times are of the monotonic clock.

    Attributes:
        began: The start of following the job.
        grown: The time at which the output last grew.
        asked: The time of the last query of Slurm.
        shown: The phase that was printed last, at the time ``shown_at``.
        silent: The time since which the job's state is unknown, or 0.
        state: The job's state in the last answer.
        started: Whether the job was seen running.
        cancelled: Whether the job was cancelled.
        hung: Why the job was cancelled, for the record: its wait in the queue, or its silence.
    """

    began: float
    grown: float = field(init=False)
    asked: float = field(init=False)
    shown: str = ""
    shown_at: float = 0.0
    silent: float = 0.0
    state: str = ""
    started: bool = False
    cancelled: bool = False
    hung: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Treat the start as the last growth of the output and the last query of Slurm."""
        self.grown = self.asked = self.began


def docker_authorisation(text: str, names: set[str]) -> str | None:
    """Return the Authorization header for a registry from Docker's configuration, or None.

    Args:
        text: The JSON file.
        names: The registry, with and without its port.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    auths = document.get("auths") if isinstance(document, dict) else None
    for machine, entry in auths.items() if isinstance(auths, dict) else ():
        key = entry.get("auth") if isinstance(entry, dict) else None
        # The key becomes a header. An error about a wrong character would show it.
        is_key = isinstance(key, str) and re.fullmatch(r"[\x21-\x7e]+", key)
        if is_key and re.sub(r"^https?://|/.*$", "", machine) in names:
            return f"Basic {key}"
    return None


def netrc_authorisation(text: str, names: set[str]) -> str | None:
    """Return the Authorization header for a registry from a netrc file, the format that enroot uses."""
    fields = re.sub(r"(?m)^\s*#.*$", "", text).split()
    entries: list[dict[str, str]] = []
    for key, value in zip(fields, fields[1:]):  # noqa: B905, RUF007  (Python 3.8)
        if key == "machine":
            entries.append({"machine": value})
        elif key in ("login", "password") and entries:
            entries[-1].setdefault(key, value)
    for entry in entries:
        if entry["machine"] in names:
            pair = f"{entry.get('login', '')}:{os.path.expandvars(entry.get('password', ''))}"
            return "Basic " + base64.b64encode(pair.encode()).decode()
    return None


class SafeRedirects(urllib.request.HTTPRedirectHandler):
    """A handler that follows a registry's redirects to its stores, but never from https to plain HTTP."""

    def redirect_request(  # noqa: D102  (urllib's own parameters)
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        # Over HTTP, any machine on the way could replace the digest of a tag.
        if req.full_url.startswith("https://") and not newurl.startswith("https://"):
            raise ValueError(f"it redirects to {newurl[:200]!r}, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fetch_token(challenge: str, header: str | None, scheme: str, limits: Limits) -> str:
    """Fetch the token that a registry requires, from the server that its challenge names.

    Raises:
        ValueError: The connection to that server is less safe than to the registry, or it sends no token.
    """
    parts = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = parts.pop("realm", "")
    if not realm.startswith(("https://", f"{scheme}://")):
        raise ValueError(f"its server for tokens is {realm[:200]!r}: no key is sent there")
    request = urllib.request.Request(f"{realm}?{urllib.parse.urlencode(parts)}")  # noqa: S310  (checked above)
    if header:
        request.add_unredirected_header("Authorization", header)
    with open_limited(request, limits, SafeRedirects()) as answer:
        token_answer = json.loads(answer.read(TOKEN_BYTES))
    token = (
        (token_answer.get("token") or token_answer.get("access_token"))
        if isinstance(token_answer, dict)
        else None
    )
    # The token becomes a header, so it may contain no space or control character.
    if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
        raise ValueError(f"{realm[:200]} sends no token")
    return token


def digest_of_bytes(data: bytes) -> str:
    """Return the digest of bytes, in the notation of registries."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def image_architectures(manifest: bytes, read_config: Callable[[str], bytes]) -> list[str]:
    """Return the architectures of an image, from its manifest or list of manifests.

    Args:
        manifest: The registry's answer for the image's digest.
        read_config: A function that returns the image's configuration by its digest, unused for a list.

    Raises:
        ValueError: The manifest names no architecture, or the configuration's digest is another.
    """
    document = json.loads(manifest)
    listed = document.get("manifests") if isinstance(document, dict) else None
    if listed is None:
        digest = document["config"]["digest"]
        text = read_config(digest)
        if digest_of_bytes(text) != digest:
            raise ValueError(f"the content that the registry has under {digest} has another digest")
        platforms = [json.loads(text)]
    else:
        # In addition to images, a list may contain signatures and similar entries, whose platform is unknown.
        platforms = [entry.get("platform") or {} for entry in listed]
    named = {str(one.get("architecture", "")) for one in platforms if one.get("os", "linux") == "linux"}
    architectures = sorted(named - {"", "unknown"})
    if not architectures:
        raise ValueError("it names no architecture")
    return architectures


def is_newer(path: Path, moment: float) -> bool:
    """Return whether a file exists, and was written after a moment in Unix seconds."""
    try:
        return path.stat().st_mtime > moment
    except OSError:
        return False


def has_mellanox() -> bool:
    """Return whether adapters for enroot's hook are in this node.

    Without any, a request for them hides the node's other adapters, or keeps containers from starting.
    """
    if any(SYSTEM.glob("sys/bus/pci/drivers/mlx?_core/*/infiniband_verbs/*")):
        return True
    return any(SYSTEM.glob("sys/class/infiniband/mlx*"))


def read_devices(text: str) -> dict[str, list[set[str]]]:
    """Return each node's devices of each kind, from the output of DEVICES there."""
    devices = {}
    for line in text.splitlines():
        _label, mark, rest = line.partition("DEVICES|")
        cells = rest.split("|")
        if mark and len(cells) == 6 and cells[0]:
            devices[cells[0]] = [set(cell.split()) for cell in cells[1:5]]
    return devices


def devices_lacking(hosts: list[str], nodes: str, containers: str) -> list[str]:
    """Return a sentence for each kind of device that a node has and a container on it lacks.

    Args:
        hosts: The queried nodes.
        nodes: The output of DEVICES on them.
        containers: Its output in the container on each.
    """
    outside, inside = read_devices(nodes), read_devices(containers)
    silent = [host for host in hosts if host not in outside or host not in inside]
    if silent:
        return [f"{', '.join(silent)}: the devices of a container there are not known"]
    reasons = []
    for number, (kind, remedy) in enumerate(DEVICE_KINDS):
        lacking = {host: outside[host][number] - inside[host][number] for host in hosts}
        lacking = {host: names for host, names in lacking.items() if names}
        if lacking:
            first = next(iter(lacking))
            listed = ", ".join(sorted(lacking[first]))
            more = f" (and on {len(lacking) - 1} more nodes)" if len(lacking) > 1 else ""
            reasons.append(f"{first}: a container lacks the {kind} {listed}{more}; {remedy}")
    return reasons


def read_world(text: str) -> dict[str, dict[str, list[str]]]:
    """Return the ranks' output of WORLD, by node and key."""
    worlds: dict[str, dict[str, list[str]]] = {}
    for line in text.splitlines():
        _label, mark, rest = line.partition("WORLD|")
        cells = rest.strip().split("|")
        if mark and len(cells) == 3:
            worlds.setdefault(cells[0], {}).setdefault(cells[1], []).append(cells[2])
    return worlds


def plugin_reason(host: str, error: str) -> str:
    """Return why Slurm on a host cannot start ranks, or "" if its output shows no known reason."""
    for pattern, text in NO_PLUGIN:
        if re.search(pattern.replace("{host}", re.escape(host)), error):
            return f"{host}: {text}"
    return ""


def world_reason(host: str, ranks: int, text: str, error: str) -> str:
    """Return the reason why the ranks on a host do not form one world of that size, with the remedy, or "".

    Args:
        host: The node to judge.
        ranks: The number of ranks on all nodes.
        text: The output of the ranks.
        error: The error output of srun and the ranks.
    """
    world, error_text = read_world(text).get(host, {}), last_lines(error, 3)
    started, sizes = world.get("server", []), world.get("size", [])
    if not started:
        return plugin_reason(host, error) or f"{host}: no rank started in the image: {error_text}"
    if "no" in started:
        return f"{host}: Slurm gives a rank no PMIx server ({error_text or 'no error'}); {BY_SLURMD}"
    if "library" in world:
        return f"{host}: the image has neither Open MPI nor libpmix, by which ranks meet: see bench_images"
    if len(sizes) == len(started) and set(sizes) == {str(ranks)}:
        return ""
    if "no" in world.get("folder", []):
        # A missing folder is not a fault by itself, because ranks connected without it.
        return f"{host}: a container lacks the folder of the PMIx server; {BY_HOOK}"
    known = ", ".join(sorted(set(sizes))) or "none"
    return (
        f"{host}: a rank has a world size of {known}, not {ranks} ({error_text or 'no error'}); {BY_SLURMD}"
    )


def read_domains(text: str) -> dict[str, tuple[str, str, str]]:
    """Parse the output of DOMAIN on all nodes.

    Return the groups of GPUs, the digest of IMEX's list, and the state of IMEX, by node.
    """
    domains = {}
    for line in text.splitlines():
        _label, mark, rest = line.partition("DOMAIN|")
        cells = [cell.strip() for cell in rest.split("|")]
        if mark and len(cells) == 5:
            domains[cells[0]] = (cells[1], cells[2], cells[3])
    return domains


def most_common(values: list[str]) -> str:
    """Return the most frequent value, or "" without values. Of several, return the first."""
    return max(values, key=values.count) if values else ""


def domain_reasons(hosts: list[str], text: str) -> list[str]:
    """Return why the nodes are not an NVLink domain, with the remedy, or nothing if they are one.

    Args:
        hosts: The nodes of the job, all of an NVL72.
        text: The output of DOMAIN on them.
    """
    domains = read_domains(text)
    domain = most_common(
        [domains[host][0] for host in hosts if host in domains and is_domain(domains[host][0])]
    )
    listed = most_common([domains[host][1] for host in hosts if host in domains and domains[host][1]])
    reasons = []
    for host in hosts:
        if host not in domains:
            reasons.append(f"{host}: its NVLink domain is not known")
            continue
        groups, digest, state = domains[host]
        of_host = (membership_reason(groups, domain), imex_reason(digest, listed, state))
        reasons += [f"{host}: {text}" for text in of_host if text]
    return reasons


def membership_reason(groups: str, domain: str) -> str:
    """Return the reason why a node's GPUs are not in the domain of the others, with the remedy, or ""."""
    if not is_domain(groups):
        return f"its GPUs are in no NVLink domain ({groups or 'nothing reported'}); see {FABRIC}"
    if groups != domain:
        return f"its NVLink domain is {groups}, the others' {domain}; select nodes of one domain with -l"
    return ""


def imex_reason(digest: str, listed: str, state: str) -> str:
    """Return why IMEX of a node does not serve the domain, with the remedy, or "" if it does.

    Args:
        digest: The digest of the node's list of nodes.
        listed: The digest of the other nodes' lists.
        state: The state that IMEX reports.
    """
    if not digest:
        return f"/etc/nvidia-imex/nodes_config.cfg is not there; {BY_IMEX}"
    if digest != listed:
        return f"/etc/nvidia-imex/nodes_config.cfg differs from the others'; {BY_IMEX}"
    if state != "READY":
        return f"nvidia-imex is {state or 'not running'}; see systemctl status nvidia-imex"
    return ""


def existing_parent(folder: Path) -> Path:
    """Return a folder, or the nearest folder above it that exists."""
    while not folder.exists():
        folder = folder.parent
    return folder


def node_reasons(hosts: Sequence[str], listed: str, reservation: str = "") -> list[str]:
    """Return a text on the nodes that Slurm does not list, and one on each node that takes no job.

    Args:
        hosts: The nodes of the job.
        listed: The output of sinfo, with lines NODE|STATE|REASON.
        reservation: The reservation of the job, which may use nodes that are reserved.
    """
    states = {}
    for line in listed.splitlines():
        name, state, why = [*line.split("|", 2), "", ""][:3]
        states[name.strip()] = (state.strip().lower(), why.strip())
    refused = NO_JOB if reservation else f"{NO_JOB}|resv|reserved"
    unknown = [host for host in hosts if host not in states]
    reasons = [f"{', '.join(unknown)}: Slurm has no such node (provision.yml adds it)"] if unknown else []
    for host in hosts:
        marked, why = states.get(host, ("", ""))
        state = marked.rstrip("*~#!%$@^-")
        because = f" ({why})" if why not in ("", "none") else ""
        if re.match(refused, state):
            reasons.append(f"{host} is {state} in Slurm{because}: a job on it would wait")
        elif "*" in marked:
            reasons.append(f"{host} does not answer Slurm{because}: a job on it would wait")
    return reasons


def is_domain(groups: str) -> bool:
    """Return whether all GPUs of a node are in one NVLink domain.

    Their cluster UUID and clique are then the same, and neither is 0.
    """
    cluster, _, clique = groups.partition("/")
    return len(groups.split()) == 1 and all(re.search(r"[1-9a-f]", part) for part in (cluster, clique))


def global_batch_size(variables: Mapping[str, str]) -> int | None:
    """Return the batch size over all GPUs that a published config requests, or None if it cannot be read.

    flux1 states it as BATCHSIZE. The language models state the size of one data-parallel group as MINIBS.
    """
    parts = [
        [variables.get("TENSOR_MODEL_PARALLEL") or variables.get("TP") or "1"],
        [variables.get("PIPELINE_MODEL_PARALLEL") or variables.get("PP") or "1"],
        [variables.get("CONTEXT_PARALLEL") or variables.get("CP") or "1"],
    ]
    try:
        if variables.get("BATCHSIZE"):
            size = int(variables["BATCHSIZE"])
        else:
            gpus = int(variables["DGXNNODES"]) * int(variables["DGXNGPU"])
            for (part,) in parts:
                gpus //= int(part)
            size = gpus * int(variables["MINIBS"])
    except (LookupError, ValueError, ZeroDivisionError):
        return None
    return size if size > 0 else None


def config_value(tree: Any, variables: Mapping[str, str]) -> float | None:
    """Compute one side of a rule from the variables of a config.

    Return None if a variable is not a number.
    """
    if isinstance(tree, str):
        try:
            return float(variables.get(tree, ""))
        except ValueError:
            return None
    if not isinstance(tree, list):
        return float(tree)
    left, right = config_value(tree[1], variables), config_value(tree[2], variables)
    if left is None or right is None:
        return None
    return {"-": left - right, "+": left + right, "*": left * right}[tree[0]]


def variables_of(tree: Any) -> list[str]:
    """Return the variables that a side of a rule names."""
    if isinstance(tree, list):
        return variables_of(tree[1]) + variables_of(tree[2])
    return [tree] if isinstance(tree, str) else []


def keeps_rule(rule: Mapping[str, Any], variables: Mapping[str, str]) -> bool | None:
    """Return whether a config keeps a rule, or None if a variable of the rule is not a number or not set."""
    left, right = (config_value(rule[side], variables) for side in ("left", "right"))
    if left is None or right is None:
        return None
    near = math.isclose(left, right, rel_tol=1e-9)
    comparisons = {
        "==": near,
        "<": left < right and not near,
        "<=": left < right or near,
        ">": left > right and not near,
        ">=": left > right or near,
    }
    return comparisons[rule["comparison"]]


def broken_rules(
    rules: Sequence[Mapping[str, Any]], variables: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Return the rules that a config breaks, and the rules with variables that only the log shows."""
    broken, unknown = [], []
    for rule in rules:
        is_met = keeps_rule(rule, variables)
        names = dict.fromkeys([*variables_of(rule["left"]), *variables_of(rule["right"])])
        if is_met is None:
            unknown.append(
                f"{rule['rule']} ({', '.join(name for name in names if not variables.get(name))} is not set)"
            )
        elif not is_met:
            values = ", ".join(f"{name}={variables[name]}" for name in names)
            broken.append(f"{rule['rule']}, and it has {values}")
    return broken, unknown


class Work:
    """The work for a benchmark on a set of hosts: check, pull, copy configs, stage, submit, and follow."""

    variable = "bench_shared"
    """The inventory variable that names the data's storage, for messages."""

    def __init__(self, spec: Mapping[str, Any], run_id: str = "", plan_id: str = "") -> None:
        self.spec, self.run_id, self.plan_id = spec, run_id, plan_id
        self.plain = {key: value for key, value in spec["environment"].items() if value != HIDDEN}
        # Remove secrets from the environment, because only the job needs them.
        named = os.environ.pop(SECRET_NAMES, "").split(",")
        self.secrets = {key: os.environ.pop(key) for key in named if key in os.environ}
        self.shared = Path(spec["shared"])
        self.architecture = spec.get("architecture") or ARCHITECTURES.get(
            os.uname().machine, os.uname().machine
        )
        # A name may stand for an image of each architecture.
        name = f"{spec['repository']}_{spec['tag']}_{self.architecture}"
        self.slug = re.sub(r"[^A-Za-z0-9._-]+", "+", name)
        self.data = self.shared / "data" / spec["benchmark"]
        self.folder = self.shared / "runs" / run_id
        self.child: subprocess.Popen[bytes] | None = None
        self.image: dict[str, Any] = {}
        self.job_facts: dict[str, Any] = {}
        """The facts of image and job for the record. They are also stored in the run's folder for a later
        launcher that follows the same job.
        """
        self.job = ""
        self.changed = False
        self.stopping = False
        self.submitting = False
        """True while a job or training is being started, of which nothing is known yet."""

    # -- what a dry run reads -----------------------------------------------------------------------

    def check(self) -> list[str]:
        """Return every reason to refuse a run that can be found without changing anything."""
        reasons: list[str] = []
        steps = (
            self.check_storage, self.check_image, self.check_room, self.check_slurm, self.check_known_config
        )  # fmt: skip
        for examine in steps:
            try:
                reasons += examine()
            except Refusal as refusal:
                reasons.append(str(refusal))
        return reasons

    def check_storage(self) -> list[str]:
        """Return why the shared folder cannot be used."""
        place = existing_parent(self.shared)
        # If only the root folder exists, the shared storage is probably not mounted.
        if place != self.shared and place == Path("/"):
            return [
                f"{self.shared} is not on {os.uname().nodename}, nor is a folder above it: is the shared "
                f"storage mounted? {self.variable} names the folder"
            ]
        if not os.access(str(place), os.W_OK):
            return [f"{place} on {os.uname().nodename} cannot be written: {self.variable} is below it"]
        return []

    def check_image(self) -> list[str]:
        """Query the registry for the image and its architecture, with the key that a job would use."""
        spec = self.spec
        if not spec["repository"]:
            return []
        digest = self.digest()
        self.prove_image(digest)
        self.image = {"digest": digest, "cont": ""}
        print_event(
            phase=f"{spec['registry']}/{spec['repository']}:{spec['tag']} is {digest} for {self.architecture}"
        )
        return []

    def check_room(self) -> list[str]:
        """Return the reason if the file system lacks room for the missing image and data."""
        wanted = []
        digest = str(self.image.get("digest", ""))
        target = self.shared / "images" / f"{self.slug}_{digest[7:19]}.sqsh"
        if self.spec["image"] == "squashfs" and not self.is_imported(target):
            wanted.append(("the image", float(self.spec.get("image_gb", 0))))
        missing = [step for step in self.spec["stage"] if not self.is_staged(step)]
        wanted += [(step["creates"], max(0.0, self.missing_gb(step))) for step in missing]
        name = self.spec["benchmark"]
        if not wanted:
            print_event(phase=f"{name}: image and data are there")
            return []
        place = existing_parent(self.shared)
        need, have = sum(size for _part, size in wanted), free_gb(place)
        listed = ", ".join(f"{part} {size:g} GB" for part, size in wanted)
        print_event(phase=f"{name}: not there yet: {listed}; {have:.0f} GB are free")
        if have >= need:
            return []
        return [
            f"{place} has {have:.0f} GB free, and {name} still needs {need:.0f} GB ({listed}): make room, "
            f"or set {self.variable} to another file system"
        ]

    def check_slurm(self) -> list[str]:
        """Return what Slurm lacks on this node, and which of the job's nodes cannot take a job."""
        host, hosts = os.uname().nodename, self.spec["hosts"]
        lacking = [name for name in ("sbatch", "srun", "sinfo") if not shutil.which(name)]
        if lacking:
            return [f"{host} has no {', '.join(lacking)}: provision.yml installs Slurm"]
        reasons = []
        _status, text, _errors = run_command(["srun", "--help"])
        if "--container-image" not in text:
            reasons.append(f"{host}: srun has no --container-image: pyxis is missing (role enroot_pyxis)")
        kind = self.plain.get("SLURM_MPI_TYPE") or "pmix"
        _status, text, errors = run_command(["srun", "--mpi=list"])
        if not re.search(rf"(?m)^\s*{re.escape(kind)}\b", text + errors):
            reasons.append(f"{host}: srun --mpi=list has no {kind} (slurm_mpi_packages of role slurm)")
        status, text, errors = run_command(
            ["sinfo", "--noheader", "-N", "-n", ",".join(hosts), "-o", "%N|%T|%E"]
        )
        if status:
            return [*reasons, f"{host}: sinfo does not answer: {last_lines(errors)}"]
        return [*reasons, *node_reasons(hosts, text, self.spec.get("reservation", ""))]

    def check_known_config(self) -> list[str]:
        """Check the config, if it was already copied out of this image.

        Raises:
            Refusal: The config does not fit the nodes, or breaks a rule.
        """
        if not any(self.configs_folder().glob("config_*.sh")):
            name = self.spec["benchmark"]
            print_event(
                phase=f"{name}: config, batch size and rules are read once its image is there, before the job"
            )
            return []
        config = self.choose_config()
        variables = self.source_config(config)
        self.check_batch(config, variables)
        self.check_rules(config, variables)
        return []

    # -- the shared storage, the registry, the image ------------------------------------------------

    def check_shared(self) -> None:
        """Make sure that the shared folder is there and can be written."""
        try:
            self.shared.mkdir(parents=True, exist_ok=True)
            probe = self.shared / f".probe-{os.uname().nodename}-{os.getpid()}"
            probe.write_text("")
            probe.unlink()
        except OSError as error:
            raise Refusal(
                EXIT_DATA,
                f"{self.shared} on {os.uname().nodename} cannot be written ({error.strerror}): is the shared "
                "storage mounted? bench_shared names the folder",
            ) from error

    def image_file(self) -> Path:
        """Return the path of the note with digest and place of the image that was pulled last."""
        return self.shared / "images" / f"{self.slug}.json"

    def credentials(self) -> tuple[str | None, str]:
        """Return the Authorization header for the registry, and the file it comes from."""
        registry = self.spec["registry"]
        names = {registry, registry.partition(":")[0]}
        extra = os.environ.get("RACKPROOF_CREDENTIALS", "")
        for name in (extra, *CREDENTIALS):
            try:
                text = Path(name).read_text() if name else ""
            except (OSError, ValueError):
                continue
            read = docker_authorisation if name.endswith(".json") else netrc_authorisation
            header = read(text, names)
            if header:
                return header, name
        return None, ""

    def ask_registry(self, method: str, reference: str, kind: str = "manifests") -> tuple[str, bytes]:
        """Query the registry for a tag or digest.

        Returns:
            The digest that the registry states, and the manifest or blob, which is empty for HEAD.
        """
        spec = self.spec
        header, source = self.credentials()
        limits = Limits(**spec.get("download", {}), most_bytes=MANIFEST_BYTES)
        image = f"{spec['registry']}/{spec['repository']}:{spec['tag']}"
        url = f"{spec['registry_scheme']}://{spec['registry']}/v2/{spec['repository']}/{kind}/{reference}"
        remedy = (
            "put the key into Vault as ngc_api_key or into the environment variable NGC_API_KEY, and start "
            "provision.yml for these nodes; an NGC key also needs the right to this repository"
        )

        def ask(authorisation: str | None) -> tuple[str, bytes]:
            # The scheme is the inventory's.
            request = urllib.request.Request(url, method=method, headers={"Accept": MANIFESTS})  # noqa: S310
            if authorisation:
                request.add_unredirected_header("Authorization", authorisation)
            with open_limited(request, limits, SafeRedirects()) as answer:
                return answer.headers.get("Docker-Content-Digest", ""), answer.read(MANIFEST_BYTES)

        try:
            try:
                return ask(header)
            except urllib.error.HTTPError as error:
                challenge = error.headers.get("WWW-Authenticate", "")
                if error.code != 401 or not challenge.lower().startswith("bearer"):
                    raise
                asking = urllib.parse.urlsplit(error.url or url).netloc
                if asking != spec["registry"]:
                    raise ValueError(
                        f"it redirects to {asking[:200]!r}, which requires a key: no key is sent there"
                    ) from None
                return ask(f"Bearer {fetch_token(challenge, header, spec['registry_scheme'], limits)}")
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                why = f"refuses the key in {source}" if source else "requires a key, and this node has none"
                text = f"{spec['registry']} {why} ({error.code}) for {image}: {remedy}"
                raise Refusal(EXIT_IMAGE, text) from None
            if error.code == 404:
                raise Refusal(
                    EXIT_IMAGE,
                    f"{image} is not in the registry: see bench_registry, bench_images and bench_image_tags "
                    "(or the key has no right to it)",
                ) from None
            raise Refusal(EXIT_IMAGE, f"{image}: the registry answers {error.code} {error.reason}") from None
        except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
            raise Refusal(
                EXIT_IMAGE,
                f"{url} cannot be reached from {os.uname().nodename}: {getattr(error, 'reason', error)}",
            ) from error

    def resolve(self) -> str:
        """Return the digest that the tag names today."""
        digest, _manifest = self.ask_registry("HEAD", str(self.spec["tag"]))
        if not DIGEST.fullmatch(digest):
            spec = self.spec
            image = f"{spec['registry']}/{spec['repository']}:{spec['tag']}"
            raise Refusal(EXIT_IMAGE, f"{image}: the registry names no digest")
        return digest

    def prove_image(self, digest: str) -> None:
        """Refuse an image with a manifest of another digest, or for another architecture.

        enroot does not check this. It compares only the digests of the parts that a manifest names, and only
        warns about another architecture.
        """
        _named, manifest = self.ask_registry("GET", digest)
        actual = digest_of_bytes(manifest)
        if actual != digest:
            image = f"{self.spec['registry']}/{self.spec['repository']}"
            raise Refusal(
                EXIT_IMAGE,
                f"{image}: the manifest that the registry has under {digest} has the digest {actual}. It was "
                "replaced there or on the way. Nothing was pulled. Ask the registry's operator",
            )
        self.check_architecture(manifest)

    def check_architecture(self, manifest: bytes) -> None:
        """Refuse an image that the nodes cannot run."""
        spec, hosts = self.spec, self.spec["hosts"]
        image = f"{spec['registry']}/{spec['repository']}:{spec['tag']}"
        remedy = (
            f"name one for {self.architecture} with bench_images: {{{spec['benchmark']}: REPOSITORY:TAG}}. "
            "Nothing was pulled"
        )
        try:
            architectures = image_architectures(
                manifest, lambda digest: self.ask_registry("GET", digest, kind="blobs")[1]
            )
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise Refusal(
                EXIT_IMAGE, f"{image}: its architecture cannot be read ({error!r}): {remedy}"
            ) from error
        if self.architecture not in architectures:
            raise Refusal(
                EXIT_IMAGE,
                f"{image} is for {', '.join(architectures)}, and {hosts[0]} is {self.architecture} "
                f"({len(hosts)} nodes): {remedy}",
            )

    def uri(self, digest: str) -> str:
        """Return the image in enroot's notation, which puts a digest in place of the tag and refuses `@`."""
        return f"{self.spec['registry']}#{self.spec['repository']}:{digest}"

    def known_image(self) -> dict[str, Any]:
        """Return digest and place of the image.

        The image is the one that this process pulled, or else the one that was pulled last.
        """
        return self.image or read_json(self.image_file())

    def cont(self) -> str:
        """Return the value for `--container-image`."""
        return str(self.known_image().get("cont", ""))

    def digest(self) -> str:
        """Return the image's digest.

        The operator's digest comes first, then the one that an earlier run of this plan found. Otherwise
        query the registry.
        """
        tag = str(self.spec["tag"])
        pinned = tag.rpartition("@")[2]
        if DIGEST.fullmatch(pinned):
            return pinned
        if "@" in tag:
            raise Refusal(
                EXIT_IMAGE, f"{tag} is not a tag with a digest: bench_image_tags has TAG@sha256:HEX"
            )
        note = self.shared / "images" / "plans" / f"{self.plan_id}_{self.slug}.json"
        known_digest = str(read_json(note).get("digest", "")) if self.plan_id else ""
        if not DIGEST.fullmatch(known_digest):
            known_digest = self.resolve()
            if self.plan_id:
                note.parent.mkdir(exist_ok=True)
                write_whole(note, json.dumps({"digest": known_digest}) + "\n")
        return known_digest

    def pull(self) -> None:
        """Store the image for the job, on shared storage or on each node."""
        self.check_shared()
        (self.shared / "images").mkdir(exist_ok=True)
        with locked(self.shared / "images" / f".{self.slug}.lock", f"the image {self.slug}"):
            digest = self.digest()
            if self.spec["image"] == "squashfs":
                target = self.shared / "images" / f"{self.slug}_{digest[7:19]}.sqsh"
                if not self.is_imported(target):
                    self.import_image(digest, target)
                cont = str(target)
            else:
                cont = self.uri(digest)
                self.pull_on_nodes(digest, cont)
            self.image = {"digest": digest, "cont": cont, "tag": self.spec["tag"]}
            if read_json(self.image_file()) != self.image:
                write_whole(self.image_file(), json.dumps(self.image) + "\n")
                self.changed = True
        self.job_facts.update(
            image=f"{self.spec['registry']}/{self.spec['repository']}", digest=digest, cont=cont
        )
        print_event(**self.job_facts)

    @staticmethod
    def is_imported(target: Path) -> bool:
        """Return whether an imported image is there, at its full size."""
        try:
            size = target.stat().st_size
        except OSError:
            return False
        if read_json(target.with_suffix(".json")).get("bytes") == size:
            return True
        print_event(phase=f"{target} has changed since its import: importing it again")
        return False

    def import_image(self, digest: str, target: Path) -> None:
        """Import the image to shared storage, once."""
        need = self.spec["image_gb"]
        if free_gb(target.parent) < need:
            raise Refusal(
                EXIT_IMAGE,
                f"{target.parent} has {free_gb(target.parent):.0f} GB free, the image needs {need:g} GB: "
                "make room, or set bench_shared to another file system",
            )
        self.prove_image(digest)
        # enroot keeps the fetched layers, so only the unfinished file is written again.
        draft = target.with_name(f".{target.name}.part")
        if draft.exists():
            draft.unlink()
        print_event(phase=f"importing {self.slug}")
        command = ["enroot", "import", "-o", str(draft), f"docker://{self.uri(digest)}"]
        status, output = self.watch(command, [draft], f"importing {self.slug}")
        if status != 0 or not draft.is_file():
            raise Refusal(EXIT_IMAGE, f"enroot import of {self.uri(digest)} failed ({status}): {output}")
        write_whole(
            target.with_suffix(".json"), json.dumps({"digest": digest, "bytes": draft.stat().st_size}) + "\n"
        )
        draft.replace(target)
        self.changed = True

    def pull_on_nodes(self, digest: str, cont: str) -> None:
        """Unpack the image once on every node, before anything is timed."""
        note = self.shared / "images" / f"{self.slug}_{digest[7:19]}.nodes"
        note.mkdir(exist_ok=True)
        started = self.boot_times()
        lacking = [host for host in self.spec["hosts"] if not is_newer(note / host, started.get(host, 0.0))]
        if not lacking:
            return
        self.prove_image(digest)
        print_event(phase=f"pulling on {len(lacking)} nodes")
        command = [*self.srun(lacking, f"pull-{self.slug}"[:60]), *self.image_options(cont), "true"]
        status, output = self.watch(command, [], f"pulling on {len(lacking)} nodes")
        if status != 0:
            raise Refusal(EXIT_IMAGE, f"{cont} could not be pulled on {', '.join(lacking)}: {output}")
        for host in lacking:
            (note / host).write_text("")
        self.changed = True

    def boot_times(self) -> dict[str, float]:
        """Return when each node of the run booted, in Unix seconds. Nodes without a known time are left out.

        A node that was imaged again lost its images, and it booted since.
        """
        command = ["scontrol", "show", "node", ",".join(self.spec["hosts"]), "-o"]
        status, out, _err = run_command(command, env=self.times_in_seconds())
        found = re.findall(r"(?m)^NodeName=(\S+) .*?\bBootTime=(\d{1,12})\b", out)
        return {name: float(seconds) for name, seconds in found} if status == 0 else {}

    # -- steps that run in the container ------------------------------------------------------------

    def options(self) -> list[str]:
        """Return the options of srun and sbatch for partition, account and reservation, if they are set."""
        names = ("partition", "account", "reservation")
        return [f"--{name}={self.spec[name]}" for name in names if self.spec[name]]

    def srun(self, hosts: list[str], name: str, mpi: str = "none", each: int = 1) -> list[str]:
        """Return the beginning of a command for a job step with this number of tasks on each host."""
        return [
            "srun",
            self.step_name(name),
            *self.options(),
            f"--nodelist={','.join(hosts)}",
            f"--nodes={len(hosts)}",
            f"--ntasks={len(hosts) * each}",
            f"--ntasks-per-node={each}",
            # By default a step gets one core and its share of memory, which are too few to download 70B.
            *WHOLE_NODE,
            # Without this option, SLURM_MPI_TYPE, which is meant for run.sub, would affect these steps too.
            f"--mpi={mpi}",
        ]

    def step_name(self, name: str) -> str:
        """Return the option that names a step's job uniquely."""
        return f"--job-name={name}-{self.run_id}" if self.run_id else f"--job-name={name}"

    def run_step(self, command: list[str], **how: Any) -> tuple[int, str, str]:
        """Run a command of srun as :func:`run_command` does. If it does not end well, cancel its job."""
        try:
            status, out, err = run_command(command, **how)
        except BaseException:
            # A signal to end kills srun, which then releases nothing.
            self.cancel_step(command)
            raise
        if status != 0:
            self.cancel_step(command)
        return status, out, err

    def cancel_step(self, command: Sequence[str]) -> None:
        """Cancel the job of a failed command of srun.

        srun cannot release an allocation while its prolog is not over in Slurm's view. Such a job, without a
        time limit, would hold its nodes until a person cancels it.
        """
        names = [word.partition("=")[2] for word in command if word.startswith("--job-name=")]
        if command[0] == "srun" and self.run_id and names:
            run_command(["scancel", f"--name={names[0]}", OWN_JOBS])

    def image_options(self, cont: str = "") -> list[str]:
        """Return the options of a step in the image. Without an image, pyxis refuses all of them."""
        return ["--no-container-mount-home", f"--container-image={cont or self.cont()}"]

    def in_container(
        self, script: str, mounts: list[str], name: str, watched: list[Path], phase: str
    ) -> None:
        """Run a script for bash in the container on this node."""
        host = self.spec["hosts"][0] if os.uname().nodename not in self.spec["hosts"] else os.uname().nodename
        command = self.srun([host], name)
        command += [
            *self.image_options(),
            f"--container-mounts={','.join(mounts)}",
            "--container-writable",
            "--container-remap-root",
            *("bash", "-euo", "pipefail", "-c", script),
        ]
        status, output = self.watch(command, watched, phase)
        if status != 0:
            raise Refusal(EXIT_DATA, f"{phase} failed ({status}) on {host}: {output}")

    def watch(self, command: list[str], watched: list[Path], phase: str) -> tuple[int, str]:
        """Run a long command and print the size of its result while it runs.

        Returns:
            The exit status, and the end of the output.
        """
        began = reported_s = time.monotonic()
        with open(os.devnull) as nothing:
            log = self.shared / f".step-{os.uname().nodename}-{os.getpid()}.log"
            with log.open("wb") as out:
                self.child = subprocess.Popen(command, stdin=nothing, stdout=out, stderr=subprocess.STDOUT)
                try:
                    while self.child.poll() is None:
                        time.sleep(0.3)
                        if time.monotonic() - reported_s > SAY_S / 3:
                            reported_s = time.monotonic()
                            size = sum(tree_size(folder) for folder in watched) / 1e9
                            text = f"{phase}: {reported_s - began:.0f} s" + (
                                f", {size:.2f} GB there" if watched else ""
                            )
                            print_event(
                                phase=text, said=last_lines(log.read_text(errors="replace")[-2000:], 1)[:200]
                            )
                finally:
                    self.end_child()
                    if self.child.returncode != 0:
                        self.cancel_step(command)
            output = last_lines(log.read_text(errors="replace")[-8000:])
            log.unlink()
        return self.child.returncode, output

    def end_child(self) -> None:
        """End the running step, if any."""
        child = self.child
        if child is None or child.poll() is not None:
            return
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def configs_folder(self) -> Path:
        """Return the folder of the config files of this image."""
        digest = str(self.known_image().get("digest", "sha256:unknown"))
        return self.shared / "configs" / f"{self.spec['benchmark']}-{digest[7:19]}"

    def configs(self) -> None:
        """Copy config_*.sh and run.sub out of the image, with the modes that the guide gives them."""
        folder = self.configs_folder()
        with locked(self.shared / "configs" / f".{folder.name}.lock", "the config files"):
            if (folder / "run.sub").is_file():
                return
            draft = folder.with_name(f".{folder.name}.part")
            shutil.rmtree(str(draft), ignore_errors=True)
            draft.mkdir(parents=True)
            source = self.spec["folder"]
            script = (
                f"cp {source}/config_*.sh /mounted/ && chmod 664 /mounted/config_*.sh\n"
                f"cp {source}/run.sub /mounted/ && chmod 775 /mounted/run.sub"
            )
            self.in_container(script, [f"{draft}:/mounted"], "configs", [], "copying the config files")
            draft.replace(folder)
            self.changed = True

    def stage(self) -> None:
        """Stage the missing data, one step after the other."""
        self.check_shared()
        self.data.mkdir(parents=True, exist_ok=True)
        steps = self.spec["stage"]
        with locked(self.data / ".rackproof.lock", f"the data of {self.spec['benchmark']}"):
            for number, step in enumerate(steps, 1):
                if not self.is_staged(step):
                    self.stage_step(step, f"staging {step['creates']} ({number} of {len(steps)})")
                    self.changed = True

    def stage_step(self, step: Mapping[str, Any], title: str) -> None:
        """Run the script of a step in the image, and note the files that it made."""
        target = self.data / step["creates"]
        self.check_room_for(step)
        print_event(phase=title)
        self.in_container(step["run"], [f"{self.data}:{step['mount']}"], "stage", [target], title)
        files = inventory_of(target)
        if not files or not sum(files.values()):
            raise Refusal(EXIT_DATA, f"{title}: the script ended well, yet {target} is empty")
        if step.get("recorded"):
            self.compare_content(step)
        note = {"run": digest_of(step["run"]), "files": files}
        write_whole(self.staging_note(step), json.dumps(note) + "\n")

    def missing_gb(self, step: Mapping[str, Any]) -> float:
        """Return the size of a step without the files that an interrupted attempt left."""
        return float(step["size_gb"]) - tree_size(self.data / step["creates"]) / 1e9

    def check_room_for(self, step: Mapping[str, Any]) -> None:
        """Refuse a step that does not fit on the file system."""
        need, have = self.missing_gb(step), free_gb(self.data)
        if have < need:
            raise Refusal(
                EXIT_DATA,
                f"{self.data} has {have:.0f} GB free, {step['creates']} needs {need:.0f} GB more: "
                f"make room, or set {self.variable} to another file system",
            )

    def staging_note(self, step: Mapping[str, Any]) -> Path:
        """Return the file that lists the files of a staged step."""
        return self.data / f".staged-{re.sub(r'[^A-Za-z0-9._-]+', '+', step['creates'])}.json"

    def compare_content(self, step: Mapping[str, Any]) -> None:
        """Refuse data that differs from this step's first download.

        The first download records the checksums. A source without a pinned digest is therefore trusted on
        first use. A later replacement is found, but not content that was wrong from the start.
        """
        key = re.sub(r"[^A-Za-z0-9._-]+", "+", step["creates"])
        listing, record = self.data / f".content-{key}.new", self.data / f".content-{key}.json"
        listing.unlink(missing_ok=True)
        script = CONTENT.format(
            folder=shlex.quote(f"{step['mount']}/{step['creates']}"),
            listing=shlex.quote(f"{step['mount']}/{listing.name}"),
        )
        title = f"reading {step['creates']} for its checksums"
        self.in_container(script, [f"{self.data}:{step['mount']}"], "stage", [listing], title)
        sums = read_checksums(listing.read_text(errors="replace"))
        listing.unlink()
        known = read_json(record)
        if known.get("run") != digest_of(step["run"]) or not isinstance(known.get("sha256"), dict):
            write_whole(record, json.dumps({"run": digest_of(step["run"]), "sha256": sums}, indent=1) + "\n")
            print_event(
                phase=f"{step['creates']}: checksums of {len(sums)} files recorded, trusted on first use"
            )
            return
        before = known["sha256"]
        changed = sorted(name for name in {*sums, *before} if sums.get(name) != before.get(name))
        if changed:
            raise Refusal(
                EXIT_DATA,
                f"{step['creates']} came with other content than the first time: {', '.join(changed[:5])} "
                f"({len(changed)} of {len({*sums, *before})} files). Find out what changed at its source; if "
                f"it is to be trusted, remove {record}",
            )
        print_event(phase=f"{step['creates']}: {len(sums)} files have the checksums of the first time")

    def is_staged(self, step: Mapping[str, Any]) -> bool:
        """Return whether all files of a step are there and have their sizes."""
        known, target = read_json(self.staging_note(step)), self.data / step["creates"]
        files = known.get("files")
        if not isinstance(files, dict) or not files or known.get("run") != digest_of(step["run"]):
            return False
        for name, size in files.items():
            try:
                size_on_disk = (target / name if name else target).stat().st_size
            except OSError:
                size_on_disk = -1
            if size_on_disk != size:
                print_event(phase=f"{target / name} is missing or has another size: staging it again")
                return False
        return True

    # -- the job --------------------------------------------------------------------------------------

    def choose_config(self) -> Path:
        """Return the config file for these nodes."""
        folder, named = self.configs_folder(), self.spec["config"]
        configs = sorted(
            path.name for path in folder.glob("config_*.sh") if not SHARED_CONFIG.match(path.name)
        )
        if named and named not in configs:
            raise Refusal(
                EXIT_SLURM, f"bench_config: {named} is not in the image; there are {', '.join(configs)}"
            )
        if named:
            return folder / named
        chosen = self.fitting_configs(configs)
        if len(chosen) != 1:
            self.refuse_configs(chosen, configs)
        return folder / chosen[0]

    def fitting_configs(self, configs: list[str]) -> list[str]:
        """Return the configs of this system for the number of nodes and GPUs, in the requested precision."""
        spec = self.spec
        fits = re.compile(
            rf"config_{re.escape(spec['system'])}_0*{len(spec['hosts'])}x0*{spec['gpus']}x[^_]*"
            r"(_8b)?(_[a-z0-9]+)?\.sh"
        )
        # An image may contain configs of a larger model, too, whose names lack the mark of the smaller one.
        marked = any("_8b" in name for name in configs)
        found_by = {name: fits.fullmatch(name) for name in configs}
        matching = {name: found for name, found in found_by.items() if found and bool(found[1]) is marked}
        wanted = f"_{spec['precision']}" if spec["precision"] else None
        chosen = [name for name, found in matching.items() if found[2] == wanted]
        # If the image contains no config without a precision, one of the others is meant.
        return list(matching) if not chosen and not spec["precision"] else chosen

    def refuse_configs(self, chosen: list[str], configs: list[str]) -> None:
        """Refuse the run, because no config fits or several do."""
        spec = self.spec
        kind = f" in {spec['precision']}" if spec["precision"] else ""
        what = f"{len(spec['hosts'])} nodes of {spec['gpus']} GPUs ({spec['system']}){kind}"
        problem = f"several configs fit {what}" if chosen else f"no config for {what}"
        raise Refusal(
            EXIT_SLURM,
            f"{problem}: there are {', '.join(chosen or configs)}. Set bench_config, or select other nodes "
            "with -l",
        )

    def job_environment(self, config: Path) -> dict[str, str]:
        """Source the config in a clean environment, check the result, and return the job's variables."""
        variables = self.source_config(config)
        self.check_environment(config, variables)
        self.check_batch(config, variables)
        self.check_rules(config, variables)
        kind = variables.get("SLURM_MPI_TYPE") or "pmix"
        self.once_for_plan(lambda: self.check_mpi(kind, variables), "mpi", kind)
        self.once_for_plan(lambda: self.check_devices(variables), "devices")
        self.check_domain()
        return variables

    def source_config(self, config: Path) -> dict[str, str]:
        """Return the variables that a config sets in a clean environment."""
        spec, folder = self.spec, self.folder
        base = inherited_environment(os.environ)
        for name in ("WALLTIME", "DGXNNODES", "DGXNGPU", "DGXSYSTEM", "DATESTAMP"):
            base.pop(name, None)
        if has_mellanox():
            # Containers get a /dev of their own, with adapters only if these are requested.
            base.setdefault("MELLANOX_VISIBLE_DEVICES", "all")
        base.update(self.plain)
        # A job runs one trial (NEXP). In a second trial, run.sub would overwrite its checker's report, and
        # each repeat is judged before the next begins.
        inherited = {
            "CONT": self.cont(),
            "LOGDIR": str(folder / "results"),
            "SEED_BASE": str(spec["seed_base"]),
            "NEXP": "1",
        }
        base.update(inherited)
        status, out, err = run_command(
            ["bash", "-c", 'source "$1" >&2 && env -0', "bash", str(config)], env=base, timeout=60
        )
        if status != 0:
            raise Refusal(EXIT_SLURM, f"{config.name} cannot be sourced ({status}): {last_lines(err)}")
        variables = dict(item.split("=", 1) for item in out.split("\0") if "=" in item)
        variables.update(inherited)
        # The original takes it from the name of the outermost sourced file, which may be another one here.
        variables["DGXSYSTEM"] = re.sub(r"^config_|\.sh$", "", config.name)
        return variables

    def once_for_plan(self, check: Callable[[], bool], folder: str, *names: str) -> None:
        """Make a check on the nodes, unless a run of this plan has made it before, on whichever nodes.

        Args:
            check: The check. It returns False if the nodes were busy, so that the next run makes it.
            folder: The folder on shared storage for the files that note which checks were made.
            names: Texts that distinguish this check from others in the folder, besides plan and image.
        """
        mark = self.shared / folder / "_".join([self.plan_id, self.configs_folder().name, *names])
        if self.plan_id and mark.is_file():
            return
        if check() and self.plan_id:
            mark.parent.mkdir(exist_ok=True)
            mark.write_text("")

    @staticmethod
    def nodes_are_busy(status: int, err: str, left_out: str) -> bool:
        """Return whether Slurm had no room for a step, and print what is left out because of it."""
        if status == 0 or not re.search(r"Unable to allocate|unavailable|no answer", err):
            return False
        print_event(phase=f"{left_out}: {last_lines(err, 1)}")
        return True

    def check_mpi(self, kind: str, environment: Mapping[str, str]) -> bool:
        """Refuse a job if its ranks would not connect, because each would run alone or die at the start.

        Only ranks in the image show this. Slurm also lists a plugin without its library. A container may lack
        files that a hook of enroot should bring. If the nodes are busy, the check is left out, and the job's
        own output shows the fault.

        Returns:
            Whether the check was made.
        """
        reasons = self.meeting_reasons(kind, environment)
        if reasons:
            raise Refusal(
                EXIT_SLURM,
                f"run.sub starts its ranks with srun --mpi={kind}: {'; '.join(reasons)}. For another "
                "kind, set bench_environment: {SLURM_MPI_TYPE: ...}",
            )
        return reasons is not None

    def meeting_reasons(self, kind: str, environment: Mapping[str, str]) -> list[str] | None:
        """Return the reasons why ranks on the job's nodes do not connect, or None if the nodes were busy."""
        hosts = self.spec["hosts"]
        together = self.try_ranks(hosts, kind, environment)
        if not together or len(hosts) == 1:
            return together
        # A node that lacks something ends the ranks of all nodes, so each node is tested by itself.
        alone = [self.try_ranks([host], kind, environment) for host in hosts]
        found = list(dict.fromkeys(line for lines in alone for line in lines or ()))
        if found or None in alone:
            return found or together
        return [
            f"ranks meet on each of {', '.join(hosts)}, but not across nodes ({together[0]}): check "
            "that these nodes reach each other at all ports"
        ]

    def try_ranks(self, hosts: list[str], kind: str, environment: Mapping[str, str]) -> list[str] | None:
        """Start two ranks in the image on one node, or one on each of several.

        Returns: The reasons why they do not connect, or None if the nodes were busy.
        """
        each = 2 if len(hosts) == 1 else 1
        by_pmix = kind.startswith("pmix")
        program = ["python3", "-c", WORLD] if by_pmix else ["true"]
        options = ["--immediate=60", "--time=3", *self.image_options()]
        command = [*self.srun(hosts, "mpi", kind, each), *options, *program]
        status, out, err = self.run_step(command, timeout=900, env=environment)
        if self.nodes_are_busy(status, err, "the meeting of ranks was not tested"):
            return None
        # srun itself loads the plugin, too, before any node does.
        srun_errors = "\n".join(line for line in err.splitlines() if line.startswith("srun: error:"))
        reason = plugin_reason(os.uname().nodename, srun_errors) if not read_world(out) else ""
        if reason:
            return [reason]
        by_host = [world_reason(host, each * len(hosts), out, err) for host in hosts] if by_pmix else []
        reasons = [text for text in by_host if text]
        if status != 0 and not reasons:
            return [f"ranks on {', '.join(hosts)} ended with {status}: {last_lines(err, 3)}"]
        return reasons

    def check_devices(self, environment: Mapping[str, str]) -> bool:
        """Refuse a job if its containers lack adapters, IMEX channels or GPUs of the nodes.

        Without them a job still runs, but over slower connections. If the nodes are busy, the check is left
        out, and the job's own NCCL preflight shows the fault.

        Returns:
            Whether the check was made.
        """
        hosts = self.spec["hosts"]
        said = []
        for where in ([], self.image_options()):
            command = [*self.srun(hosts, "devices"), "--immediate=60", *where, "sh", "-c", DEVICES]
            status, out, err = self.run_step(command, timeout=900, env=environment)
            if self.nodes_are_busy(status, err, "the devices of containers were not checked"):
                return False
            if status != 0:
                where_ = f"{len(hosts)} nodes from {hosts[0]} on"
                raise Refusal(EXIT_SLURM, f"a step on {where_} failed ({status}): {last_lines(err)}")
            said.append(out)
        reasons = devices_lacking(hosts, *said)
        if reasons:
            raise Refusal(EXIT_SLURM, "; ".join(reasons))
        return True

    def check_domain(self) -> None:
        """Refuse a job on nodes of an NVL72 that form no NVLink domain, since it would use network cards."""
        hosts = self.spec["hosts"]
        if len(hosts) < 2 or not str(self.spec["system"]).startswith(("GB200", "GB300")):
            return
        command = [*self.srun(hosts, "domain"), "--immediate=60", "bash", "-c", DOMAIN]
        status, out, err = self.run_step(command, timeout=900)
        if self.nodes_are_busy(status, err, "the NVLink domain of the nodes was not checked"):
            return
        reasons = domain_reasons(hosts, out)
        if reasons:
            raise Refusal(EXIT_SLURM, "; ".join(reasons))

    def check_environment(self, config: Path, settings: Mapping[str, str]) -> None:
        """Refuse settings that run.sub would accept silently, and that would make it fail later."""
        where = config.name
        numbers: dict[str, int] = {}
        for name in ("DGXNNODES", "DGXNGPU", "WALLTIME", "WALLTIME_RUNANDTIME"):
            text = settings.get(name, "")
            if not re.fullmatch(r"\d{1,6}", text) or int(text) < 1:
                raise Refusal(
                    EXIT_SLURM,
                    f"{where}: {name} is {text!r}, which is not a number, and run.sub does not check it: use "
                    "another config (bench_config) or tag (bench_image_tags)",
                )
            numbers[name] = int(text)
        nodes = len(self.spec["hosts"])
        if numbers["DGXNNODES"] > nodes:
            raise Refusal(
                EXIT_SLURM,
                f"{where} is for {numbers['DGXNNODES']} nodes, and -l selects {nodes}: select more, or set "
                "bench_config",
            )
        if self.spec["gpus"] and numbers["DGXNGPU"] != self.spec["gpus"]:
            raise Refusal(
                EXIT_SLURM,
                f"{where} is for {numbers['DGXNGPU']} GPUs a node, these nodes have {self.spec['gpus']}",
            )
        if settings.get("DATADIR", "").rstrip("/").endswith("/8b"):
            raise Refusal(
                EXIT_SLURM, "DATADIR names the folder 8b itself: it has to name the folder that contains 8b"
            )
        for name, value in self.spec["environment"].items():
            # Only the variables of folders are checked, because a config may override any other variable.
            if name in ("DATADIR", "DATAROOT", "MODEL"):
                if settings.get(name) != value:
                    raise Refusal(
                        EXIT_SLURM, f"{where} sets {name} to {settings.get(name)!r}; it has to be {value}"
                    )
                if not Path(value).is_dir():
                    raise Refusal(EXIT_DATA, f"{name}: {value} is not there, although it was staged")

    def check_batch(self, config: Path, variables: Mapping[str, str]) -> None:
        """Refuse a batch size above all those with reference convergence points, and list these sizes."""
        known, size = self.spec.get("reference_batches") or [], global_batch_size(variables)
        if not known:
            return
        points = f"reference convergence points for {', '.join(map(str, known))}"
        if size is None:
            print_event(
                phase=f"{config.name}: its global batch size is known when the job runs; there are {points}"
            )
        elif size > max(known):
            raise Refusal(
                EXIT_SLURM,
                f"{config.name} asks for a global batch size of {size}, and MLCommons has {points}: its "
                "result could not be scored. Choose a smaller one with bench_config, or fewer nodes with -l",
            )
        elif size < min(known):
            print_event(
                phase=f"{config.name}: global batch size {size}; valid if it converges no faster: {points}"
            )
        else:
            print_event(phase=f"{config.name}: global batch size {size}; {points}")

    def check_rules(self, config: Path, env: Mapping[str, str]) -> None:
        """Refuse a config that breaks a rule of its round, before the job starts."""
        ruleset, rules = self.spec.get("ruleset", ""), self.spec.get("rules") or []
        broken, unknown = broken_rules(rules, env)
        if ruleset and env.get("SEED"):
            broken.append(
                f"runs of different seeds, and it has SEED={env['SEED']} for every run: leave it out, each "
                "run gets its own"
            )
        if broken:
            raise Refusal(
                EXIT_SLURM,
                f"{config.name} breaks rules of MLPerf {ruleset}, closed division: {'; '.join(broken)}. "
                "Its result could not be scored: correct bench_environment, or choose another config with "
                "bench_config",
            )
        if rules:
            later = f"; known when the job runs: {'; '.join(unknown)}" if unknown else ""
            print_event(
                phase=f"{config.name}: keeps {len(rules) - len(unknown)} rules of MLPerf {ruleset}{later}"
            )

    def submit(self) -> None:
        """Find the job of this run, or submit exactly one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / ".lock", f"run {self.run_id}"):
            self.job = str(read_json(self.folder / "job.json").get("job", "")) or self.find_job()
            if self.job:
                # The node that submitted the job may be gone, so the facts come from the run's folder.
                self.job_facts = read_json(self.folder / "asked.json")
                phase = f"job {self.job} of this run exists: following it"
            else:
                self.submit_new()
                phase = f"submitted as job {self.job}"
            write_whole(self.folder / "job.json", json.dumps({"job": self.job}) + "\n")
        print_event(**{**self.job_facts, "phase": phase, "job": self.job})

    def submit_new(self) -> None:
        """Submit the job with the config for these nodes, and note what was requested."""
        config = self.choose_config()
        environment = self.job_environment(config)
        self.keep_scripts(config)
        command = self.sbatch_command(config, environment)
        self.job_facts.update(
            config=config.name,
            nodes=int(environment["DGXNNODES"]),
            walltime_min=int(environment["WALLTIME"]),
            seed_base=self.spec["seed_base"],
            dgxsystem=environment["DGXSYSTEM"],
            command=" ".join(command),
        )
        write_whole(self.folder / "asked.json", json.dumps(self.job_facts) + "\n")
        self.submitting = True
        try:
            self.call_sbatch(command, environment)
        finally:
            self.submitting = False
            if not self.job:
                self.forget_secrets()

    def call_sbatch(self, command: list[str], environment: Mapping[str, str]) -> None:
        """Call sbatch, and note the number of the job.

        Raises:
            Refusal: There is no job.
            Stopped: There is no job, because a signal to end also ended sbatch.
        """
        status, out, err = run_command(command, env=self.with_secrets(environment), timeout=120)
        number = re.match(r"\s*(\d+)", out)
        if status == 0 and number:
            self.job = number[1]
            return
        # The answer may be lost, or sbatch killed, and the job there all the same.
        self.job = self.find_job() if status <= 0 or status == 124 else ""
        if self.job:
            return
        if self.stopping:
            raise Stopped
        raise Refusal(EXIT_SLURM, f"sbatch refused ({status}): {last_lines(err or out)}")

    def keep_scripts(self, config: Path) -> None:
        """Copy run.sub and the configs that the job uses into the run's folder."""
        (self.folder / "results").mkdir(exist_ok=True)
        code = self.folder / "code"
        code.mkdir(exist_ok=True)
        shared = [path for path in config.parent.glob("*.sh") if SHARED_CONFIG.match(path.name)]
        for path in (config.parent / "run.sub", config, *shared):
            shutil.copy2(str(path), str(code / path.name))

    def sbatch_command(self, config: Path, environment: Mapping[str, str]) -> list[str]:
        """Return the command that submits the job."""
        script, hosts = config.parent / "run.sub", self.spec["hosts"]
        if int(environment["DGXNNODES"]) == len(hosts):
            nodes = [f"--nodelist={','.join(hosts)}"]
        else:
            excluded = [node for node in self.all_nodes() if node not in hosts]
            nodes = [f"--exclude={','.join(excluded)}"] if excluded else []
        return [
            "sbatch",
            "--parsable",
            f"--job-name={self.run_id}",
            "-N",
            str(int(environment["DGXNNODES"])),
            "-t",
            environment["WALLTIME"],
            f"--output={self.folder}/slurm.out",
            f"--error={self.folder}/slurm.out",
            f"--chdir={config.parent}",
            "--export=ALL",
            "--no-requeue",
            # Some published run.sub files lack one or both of these options.
            *WHOLE_NODE,
            *self.options(),
            *self.script_options(script, environment),
            *self.more_options(environment),
            *nodes,
            str(script),
        ]

    @staticmethod
    def script_options(script: Path, environment: Mapping[str, str]) -> list[str]:
        """Return the options that replace those which a published run.sub has for its submitter's system.

        A line of run.sub for sbatch states its submitter's number of GPUs, which no other kind of node fits.
        """
        try:
            stated = SCRIPT_GPUS.findall(script.read_text(errors="replace"))
        except OSError:
            return []
        if set(stated) <= {environment["DGXNGPU"]}:
            return []
        gpus = environment["DGXNGPU"]
        print_event(phase=f"run.sub asks for nodes of {stated[-1]} GPUs: {gpus} are requested instead")
        return [f"--gpus-per-node={gpus}"]

    def more_options(self, _environment: Mapping[str, str]) -> list[str]:
        """Return the further options of sbatch."""
        return []

    @property
    def secrets_file(self) -> Path:
        """Return the file that gives a job its secret variables."""
        return self.folder / ".secrets"

    def with_secrets(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables for sbatch, and write the secret ones to a file that only the user can read.

        Slurm stores the variables of a job in its spool and, if a site configures it, in its accounts. Bash
        therefore reads the secrets from the file that BASH_ENV names, before it runs the job's script. The
        file removes itself.
        """
        if not self.secrets:
            return dict(environment)
        before, path = environment.get("BASH_ENV", ""), shlex.quote(str(self.secrets_file))
        lines = [f"export {name}={shlex.quote(value)}" for name, value in self.secrets.items()]
        # Some sites wrap sbatch in shell scripts, so the file takes effect only within a job.
        lines = ['if [ -n "${SLURM_JOB_ID:-}" ]; then', *lines, f"rm -f -- {path}", "unset BASH_ENV"]
        if before:
            lines += [f"export BASH_ENV={shlex.quote(before)}", '[ ! -r "$BASH_ENV" ] || . "$BASH_ENV"']
        self.forget_secrets()
        descriptor = os.open(str(self.secrets_file), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write("\n".join([*lines, "fi", ""]))
        return {**environment, "BASH_ENV": str(self.secrets_file)}

    def forget_secrets(self) -> None:
        """Remove the file of a job's secrets, if the job did not remove it."""
        if self.secrets_file.exists():
            self.secrets_file.unlink()

    def hide_in_environments(self) -> None:
        """Replace the values of secrets in the lists of variables that a published run.sub writes."""
        values = [value for value in self.secrets.values() if len(value) > SHORT_SECRET]
        for path in (self.folder / "results").glob("*env*.log") if values else ():
            try:
                text = path.read_bytes()
                for value in sorted(values, key=len, reverse=True):
                    text = text.replace(value.encode(), HIDDEN.encode())
                write_whole(path, text.decode("utf-8", "replace"))
            except OSError as error:
                print_event(phase=f"{path} may hold secrets: {error.strerror}")

    def find_job(self) -> str:
        """Return the number of this user's job with this run's name, or "" if there is none.

        On a node that just booted, Slurm may not answer at first. Wait for its answer, because no answer does
        not mean that there is no job.
        """
        began = reported_s = time.monotonic()
        while True:
            selection = [f"--name={self.run_id}", OWN_JOBS]
            queue = ["squeue", "--noheader", "--states=all", *selection, "--format=%i"]
            status, out, err = run_command(queue)
            if status == 0:
                break
            if status == 127 or time.monotonic() - began > SLURM_ANSWERS_S:
                host = os.uname().nodename
                raise Refusal(
                    EXIT_SLURM,
                    f"Slurm does not answer on {host} ({last_lines(err, 2)}): see scontrol ping and "
                    "systemctl status munge there, then start the same command again",
                )
            if time.monotonic() - reported_s > SAY_S:
                reported_s = time.monotonic()
                print_event(phase=f"waiting for Slurm to answer: {last_lines(err, 1)}")
            time.sleep(POLL_S)
        job_ids = out.split() or self.jobs_of_accounts(selection)
        return job_ids[0] if job_ids and job_ids[0].isdigit() else ""

    def jobs_of_accounts(self, selection: list[str]) -> list[str]:
        """Return the numbers of ended jobs, which leave the queue after some minutes.

        Only accounts list them, which some sites lack. If the accounts do not answer, and an earlier launcher
        of this run called sbatch, wait for their answer, because a second job could be submitted otherwise.

        Raises:
            Refusal: The accounts do not answer.
        """
        command = ["sacct", "-n", "-P", "-X", "-S", "now-7days", *selection, "-o", "JobIDRaw"]
        began = reported_s = time.monotonic()
        while True:
            status, out, err = run_command(command)
            if not accounts_error(status, err) or not (self.folder / "asked.json").exists():
                return out.split()
            if time.monotonic() - began > SLURM_ANSWERS_S:
                raise Refusal(
                    EXIT_SLURM,
                    f"Slurm's accounts do not answer on {os.uname().nodename} ({last_lines(err, 2)}), so it "
                    f"is not known whether run {self.run_id} has a job: see slurmdbd, then start the same "
                    "command again",
                )
            if time.monotonic() - reported_s > SAY_S:
                reported_s = time.monotonic()
                print_event(phase=f"waiting for Slurm's accounts to answer: {last_lines(err, 1)}")
            time.sleep(POLL_S)

    def all_nodes(self) -> list[str]:
        """Return the names of all nodes of the cluster."""
        status, out, err = run_command(["sinfo", "--noheader", "-N", "-o", "%N"])
        if status != 0:
            raise Refusal(EXIT_SLURM, f"sinfo does not answer: {last_lines(err)}")
        return sorted(set(out.split()))

    def state(self) -> tuple[str, str]:
        """Return the state of the job and the reason why it waits.

        If Slurm does not answer, the state is "" and the second text is its error. If Slurm answers and does
        not list the job, the state is :data:`FORGOTTEN`.
        """
        status, out, err = run_command(
            ["squeue", "--noheader", "--states=all", f"--jobs={self.job}", "--format=%T|%r"]
        )
        if status == 0 and out.strip():
            state, _, reason = out.strip().splitlines()[0].partition("|")
            return state, reason
        if status != 0 and "Invalid job id" not in err:
            return "", last_lines(err)
        ended, error = self.ask_accounts()
        state = (ended or self.remembered()).get("state", "")
        return state or ("" if error else FORGOTTEN), error

    def accounted(self) -> dict[str, str]:
        """Return how the job ended, from accounting or the controller's memory."""
        return self.ask_accounts()[0] or self.remembered()

    def ask_accounts(self) -> tuple[dict[str, str], str]:
        """Return how the job ended, from accounting, and the error if the accounts do not answer."""
        fields = "State,ExitCode,NodeList,Start,End,ElapsedRaw,NNodes,JobName"
        names = ("state", "exit_code", "nodes", "start", "end", "elapsed_s", "node_count", "name")
        command = ["sacct", "-n", "-P", "-X", "-j", self.job, "-o", fields]
        status, out, err = run_command(command, env=self.times_in_seconds())
        if status == 0 and out.strip():
            parts = out.strip().splitlines()[0].split("|")
            if len(parts) >= 6:
                values = dict(zip(names, parts))  # noqa: B905  (Python 3.8)
                values["state"] = values["state"].split()[0] if values["state"] else ""
                return values, ""
        return {}, accounts_error(status, err)

    @staticmethod
    def times_in_seconds() -> dict[str, str]:
        """Return the environment in which Slurm's programs print times in seconds.

        Dates state no time zone. A log's times are compared with these times later.
        """
        return {**os.environ, "SLURM_TIME_FORMAT": "%s"}

    def remembered(self) -> dict[str, str]:
        """Return how the job ended, from the controller's memory."""
        command = ["scontrol", "show", "job", self.job, "-o"]
        status, out, _err = run_command(command, env=self.times_in_seconds())
        words = dict(word.split("=", 1) for word in out.split() if "=" in word) if status == 0 else {}
        return {
            "state": words.get("JobState", ""),
            "exit_code": words.get("ExitCode", ""),
            "nodes": words.get("NodeList", ""),
            "start": words.get("StartTime", ""),
            "end": words.get("EndTime", ""),
            "node_count": words.get("NumNodes", ""),
            "name": words.get("JobName", ""),
        }

    def steps(self) -> list[dict[str, Any]]:
        """Return the steps of the job, each with its nodes, state and exit code."""
        fields = "JobID,NodeList,State,ExitCode,ElapsedRaw,Start"
        status, out, _err = run_command(
            ["sacct", "-n", "-P", "-j", self.job, "-o", fields], env=self.times_in_seconds()
        )
        job_steps = []
        for line in out.splitlines() if status == 0 else ():
            parts = line.split("|")
            if len(parts) == 6 and re.fullmatch(r"\d+\.\d+", parts[0]):
                seconds = int(parts[4]) if parts[4].isdigit() else 0
                job_steps.append(
                    {
                        "step": parts[0].partition(".")[2],
                        "nodes": parts[1],
                        "state": parts[2].split()[0] if parts[2] else "",
                        "exit_code": parts[3],
                        "elapsed_s": seconds,
                        "start": int(parts[5]) if parts[5].isdigit() else None,
                    }
                )
        return job_steps

    def queue_place(self) -> str:
        """Return the job's place in the queue as "2 of 5", or "" if it is not in the queue."""
        options = [f"--partition={self.spec['partition']}"] if self.spec["partition"] else []
        status, out, _err = run_command(
            ["squeue", "--noheader", "--states=PENDING", "--sort=-p", "--format=%i", *options]
        )
        waiting = out.split()
        return (
            f"{waiting.index(self.job) + 1} of {len(waiting)}" if status == 0 and self.job in waiting else ""
        )

    def follow(self) -> int:
        """Print the job's output as it grows, until the job ends. Return the exit status."""
        tail = self.tail(self.folder / "slurm.out")
        watch = Watch(began=time.monotonic())
        while True:
            self.cancel_if_stopping(watch)
            if tail.copy():
                watch.grown = time.monotonic()
            now = time.monotonic()
            # After the output's last line, only Slurm's state is missing, so query it more often.
            every_s = min(POLL_S, 0.5) if tail.phase == "ended" else POLL_S
            if (now - watch.asked >= every_s or not watch.state) and self.poll(watch, now):
                return self.conclude(tail, watch.state, watch.hung)
            if tail.phase and tail.phase != watch.shown and watch.started:
                watch.shown = tail.phase
                print_event(phase=tail.phase)
            self.cancel_if_silent(watch, tail, now)
            time.sleep(0.5)

    def cancel_if_stopping(self, watch: Watch) -> None:
        """Cancel the job once if this program got a signal to end.

        Raises:
            Leaving: The node shuts down and the run is in a plan, so another launcher will follow the job.
        """
        if not self.stopping or watch.cancelled:
            return
        if self.plan_id and going_down():
            raise Leaving
        watch.cancelled = True
        self.cancel("the launcher got a signal to end")

    def poll(self, watch: Watch, now: float) -> bool:
        """Query Slurm for the job's state and print changes. Return whether the job ended."""
        watch.asked = now
        watch.state, reason = self.state()
        if watch.state in ("", FORGOTTEN):
            watch.silent = watch.silent or now
            self.check_patience(watch.state, now - watch.silent, reason)
            return False
        watch.silent = 0.0
        if watch.state in PENDING:
            self.wait_in_queue(watch, now, reason)
        elif watch.state not in RUNNING:
            return True
        elif not watch.started:
            watch.started, watch.grown = True, now
            print_event(phase="running", waited_s=round(now - watch.began))
        return False

    def check_patience(self, state: str, silent_s: float, reason: str) -> None:
        """Refuse to follow the job if its state has not been known for too long.

        Args:
            state: "" if Slurm does not answer, or :data:`FORGOTTEN`.
            silent_s: The seconds since the state was known.
            reason: Slurm's error.
        """
        if state == FORGOTTEN and silent_s > FORGOTTEN_S:
            self.forget_secrets()
            self.hide_in_environments()
            raise Refusal(
                EXIT_SLURM,
                f"job {self.job} ended while no launcher followed it, and Slurm no longer knows how: its "
                "controller forgets jobs (MinJobAge), and no accounts list it. Its output is in "
                f"{self.folder}/slurm.out. Measure again",
            )
        if not state and silent_s > MOST_SILENCE_S:
            raise Refusal(
                EXIT_SLURM,
                f"Slurm has not answered for {MOST_SILENCE_S / 60:.0f} min; "
                f"job {self.job} was left: {reason}",
            )

    def wait_in_queue(self, watch: Watch, now: float, reason: str) -> None:
        """Print the job's place in the queue, and cancel the job if it does not start in time."""
        watch.grown = now
        phase = f"pending ({reason or 'no reason given'})"
        if phase != watch.shown or now - watch.shown_at > SAY_S:
            watch.shown, watch.shown_at = phase, now
            print_event(phase=phase, queue=self.queue_place(), waited_s=round(now - watch.began))
        if now - watch.began > self.spec["queue_s"] and not watch.cancelled:
            watch.cancelled = True
            self.cancel(f"did not start in {self.spec['queue_s']} s: {reason}")
            watch.hung = {"queue": True, "reason": reason}

    def cancel_if_silent(self, watch: Watch, tail: Tail, now: float) -> None:
        """Cancel a running job if its output did not grow for too long."""
        hang_s = float(self.spec["hang_s"])
        # After the training, a checker reads the log, perhaps for minutes, and prints nothing.
        patience_s = max(hang_s, CHECKER_S) if tail.over else hang_s
        silent_s = now - watch.grown
        if not watch.started or watch.cancelled or silent_s <= patience_s:
            return
        watch.cancelled = True
        watch.hung = {"phase": tail.phase, "step": tail.step, "silent_s": round(silent_s), "last": tail.last}
        print_event(hang=watch.hung)
        self.cancel(f"no output for {silent_s:.0f} s in phase {tail.phase or 'start'}")

    def tail(self, path: Path) -> Tail:
        """Return the object that copies the job's output."""
        return Tail(path, self.secrets)

    def conclude(self, tail: Tail, state: str, hung: Mapping[str, Any]) -> int:
        """Copy the rest of the output, print how the job ended, and return the exit status."""
        self.forget_secrets()
        self.hide_in_environments()
        deadline = time.monotonic() + QUIET_AFTER_END_S
        accounting: dict[str, str] = {}
        while time.monotonic() < deadline:
            tail.copy()
            accounting = self.accounted()
            if accounting.get("state") not in ("", *PENDING, *RUNNING) and accounting.get("end") not in (
                "",
                "Unknown",
                None,
            ):
                break
            time.sleep(0.5)
        quiet = time.monotonic()
        while time.monotonic() < deadline and time.monotonic() - quiet < (0 if tail.phase == "ended" else 1):
            if tail.copy():
                quiet = time.monotonic()
            time.sleep(0.2)
        tail.flush()
        _status, out, _err = run_command(["scontrol", "show", "hostnames", accounting.get("nodes", "")])
        end: dict[str, Any] = {
            "job": self.job,
            **accounting,
            "state": accounting.get("state") or state,
            "nodes": out.split(),
        }
        end["steps"] = self.steps()
        print_event(end=end)
        if hung.get("queue"):
            return EXIT_SLURM
        succeeded = end["state"] == "COMPLETED" and end.get("exit_code", "0:0") in ("", "0:0")
        return 0 if succeeded and not hung else EXIT_JOB

    def cancel(self, why: str) -> None:
        """End the job."""
        print_event(cancel=why, job=self.job)
        status, _out, err = run_command(["scancel", self.job])
        if status != 0:
            print_event(phase=f"scancel {self.job} failed ({status}): {last_lines(err)}")

    def stop(self, _signal: int, _frame: Any) -> None:
        """Handle a signal. Without work to end, end at once. Otherwise, the loop that follows it ends it.

        While the work is being started, the signal waits, because a job of unknown number could remain. A
        second signal does not interrupt the end that the first one began.

        Raises:
            Stopped: There is no job yet, and none is being submitted.
        """
        first, self.stopping = not self.stopping, True
        if first and not self.submitting and not self.has_work():
            raise Stopped

    def has_work(self) -> bool:
        """Return whether a job exists, which :meth:`follow` cancels after a signal."""
        return bool(self.job)

    def everything(self) -> int:
        """Do all steps in order, or only follow the job if there is one."""
        known = str(read_json(self.folder / "job.json").get("job", "")) or self.find_job()
        if not known:
            self.pull()
            self.configs()
            # The check comes before hours of downloads, which would be in vain for a job that is refused.
            self.check_known_config()
            self.stage()
        self.submit()
        return self.follow()


def going_down() -> bool:
    """Return whether this node is shutting down."""
    return run_command(["systemctl", "is-system-running"], timeout=5)[1].strip() == "stopping"


class Tail:
    """A copier of a growing file to standard output, which notes the progress of the training."""

    def __init__(self, path: Path, secrets: Mapping[str, str] = {}) -> None:
        self.path = path
        # Longer secrets are replaced first, so that a secret within another one leaves no part of it visible.
        lines = (line for value in secrets.values() for line in value.splitlines())
        parts = [line.encode() for line in lines if len(line) > SHORT_SECRET]
        self.secrets = sorted(parts, key=len, reverse=True)
        self.offset = 0
        self.rest = b""
        self.phase = ""
        self.step = ""
        self.over = False
        self.last = ""

    def copy(self) -> bool:
        """Copy new output, and return whether there was any."""
        try:
            with self.path.open("rb") as stream:
                stream.seek(self.offset)
                data = stream.read(4 << 20)
        except OSError:
            return False
        if not data:
            return False
        self.offset += len(data)
        lines = (self.rest + data).split(b"\n")
        self.rest = lines.pop()
        if len(self.rest) > (1 << 20):
            lines.append(self.rest)
            self.rest = b""
        self.put(b"".join(self.line(self.hide(line)) + b"\n" for line in lines))
        return True

    def flush(self) -> None:
        """Copy the last line if its newline is missing."""
        if self.rest:
            self.put(self.line(self.hide(self.rest)) + b"\n")
            self.rest = b""

    def hide(self, line: bytes) -> bytes:
        """Return a line without the secrets that the job was given."""
        for secret in self.secrets:
            line = line.replace(secret, HIDDEN.encode())
        return line

    @staticmethod
    def put(data: bytes) -> None:
        """Print bytes as they are."""
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def line(self, line: bytes) -> bytes:
        """Note phase and step from a line, and return the text to print for it.

        A line of the job is changed if it could count as the launcher's, or as an event after the training.
        """
        self.note(line)
        if self.over:
            line = line.replace(b":::MLLOG", b"(quoted) MLLOG")
        return line.replace(MARK.encode(), b"(quoted) ")

    def note(self, line: bytes) -> None:
        """Note phase and step from a line."""
        marker = MARKERS.match(line)
        if marker:
            self.phase = PHASES[marker[1]]
            # From here on, the output is a checker's, which quotes the training's events.
            self.over = self.over or marker[1] == b"RUNANDTIME_STOP"
        elif b":::MLLOG" in line:
            if self.over:
                return
            step, samples = STEP.search(line), SAMPLES.search(line)
            if step or samples:
                words = [f"step {int(step[1])}"] if step else []
                self.step = ", ".join([*words, *([f"{int(samples[1])} samples"] if samples else [])])
            if b'"run_start"' in line:
                self.phase = "training"
        elif line.strip():
            self.last = line[:300].decode("utf-8", "replace").strip()


def tree_size(folder: Path) -> int:
    """Return the bytes below a folder, or of a file."""
    total = 0
    if folder.is_file():
        return folder.stat().st_size
    for top, _folders, names in os.walk(str(folder)):
        for name in names:
            try:
                total += os.lstat(os.path.join(top, name)).st_size
            except OSError:
                continue
    return total


def inventory_of(target: Path) -> dict[str, int]:
    """Return the sizes of the files below a folder by relative path. The path of a single file is "".

    A file STANDIN_FAULT, with which the test rack injects a fault, is left out.
    """
    if target.is_file():
        return {"": target.stat().st_size}
    return {
        str(path.relative_to(target)): path.stat().st_size
        for path in sorted(target.rglob("*"))
        if path.is_file() and not fnmatch.fnmatch(path.name, "STANDIN_FAULT*")
    }


def read_checksums(listing: str) -> dict[str, str]:
    """Return the checksums that ``sha256sum`` printed, by file. Escapes in names are kept."""
    found = {}
    for line in listing.splitlines():
        digest, _, name = line.lstrip("\\").partition("  ")
        found[name] = digest
    return found


def digest_of(text: str) -> str:
    """Return a short digest of a script."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_options(words: list[str] | None) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("run", "check", "pull", "configs", "stage", "cancel"))
    given = os.environ.get("RACKPROOF_SPEC")
    parser.add_argument("--spec", default=given, required=given is None, help="what to run, as JSON")
    parser.add_argument("--id", default="", help="the run")
    parser.add_argument("--plan", default="", help="the plan that the run belongs to")
    options = parser.parse_args(words)
    options.spec = json.loads(options.spec)
    named = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")
    if options.what in ("run", "cancel") and not named.fullmatch(options.id):
        parser.error("--id must be the id of a run")
    if options.plan and not named.fullmatch(options.plan):
        parser.error("--plan must be the id of a plan")
    return options


def main(words: list[str] | None = None) -> int:
    """Do the step that the command line names, or all steps. Return the exit status."""
    options = read_options(words)
    spec = options.spec
    spec.setdefault(
        "seed_base", int.from_bytes(hashlib.sha256(options.id.encode()).digest()[:4], "big") % 1000000000 + 1
    )
    work = Work(spec, options.id, options.plan)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, work.stop)
    try:
        if options.what == "run":
            return work.everything()
        if options.what == "cancel":
            work.job = str(read_json(work.folder / "job.json").get("job", "")) or work.find_job()
            if work.job:
                work.cancel("asked for")
            return 0
        if options.what == "configs":
            work.pull()
        lacking = getattr(work, options.what)()
        print(json.dumps({"lacking": lacking} if options.what == "check" else {"changed": work.changed}))
    except Refusal as refusal:
        print_event(refused=str(refusal), status=refusal.status)
        print(f"slurm_run: {refusal}", file=sys.stderr, flush=True)
        return refusal.status
    except OSError as error:
        print_event(
            refused=f"{error.filename or 'the shared storage'}: {error.strerror or error}", status=EXIT_DATA
        )
        return EXIT_DATA
    except Leaving:
        print_event(
            phase=f"{os.uname().nodename} shuts down: job {work.job} goes on, and another launcher follows it"
        )
        return EXIT_JOB
    except Stopped:
        print_event(refused="a signal ended the launcher before the job was submitted", status=EXIT_JOB)
        return EXIT_JOB
    return 0


if __name__ == "__main__":
    sys.exit(main())
