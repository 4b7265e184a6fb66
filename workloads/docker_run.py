#!/usr/bin/env python3
"""Build an image of MLPerf Training 0.6 on this node, stage its data, and run its run.sub in Docker.

    docker_run.py run --id=RUN_ID --spec=JSON     do everything in order, but no finished step again
    docker_run.py image --spec=JSON               only fetch the sources and build the image
    docker_run.py cancel --id=RUN_ID --spec=JSON  end the container, or the Slurm job of several nodes

Begin with :meth:`Docker.everything`, which calls one method for each step. bench.yml starts this program on a
node, under Rackproof's supervisor. The program needs only the standard library of Python 3.8 or newer. It
prints its progress as lines `:::RACKPROOF {JSON}`, and the output of run.sub as it grows. With `together`,
every node builds the image, and run.sub is submitted once to Slurm, as slurm_run.py does.

run.sub ends with the status of its own cleanup, so its output decides. Its container is a child of Docker's
daemon. It is therefore ended by name, even if its run was killed.

Exit status: 0 if run.sub ended well, and 1 if it failed, hung, or was cancelled, or if a signal ended this
program before the training. The others are 5 for data, 6 for sources or image, and 7 for the config or Slurm.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import slurm_run
from bounded_tar import DAMAGE, Member, TooLargeError, members
from limited_download import Limits, open_limited
from slurm_run import (
    EXIT_DATA,
    EXIT_IMAGE,
    EXIT_JOB,
    EXIT_SLURM,
    MARK,
    Refusal,
    Stopped,
    Tail,
    free_gb,
    inherited_environment,
    last_lines,
    locked,
    print_event,
    read_json,
    run_command,
    write_whole,
)

LABEL = "rackproof.ref"
"""Label of an image with the commit of its sources."""
_NO_SECURITY: dict[str, Any] = {"usedforsecurity": False} if sys.version_info >= (3, 9) else {}
EVENT = re.compile(rb":::MLL [0-9.]+ ([a-z_]+): ")
EPOCH = re.compile(rb'"(?:epoch_num|iteration)": *(\d{1,9})')
TREES = {"76c9fa035846370d66c7e107471b8989b5908037": "dacafd23d825023166f58785cb54ed183290daa4"}
"""Names that git gives to the commits' trees. An archive that is made again may have another checksum."""
MOST_ARCHIVE_BYTES, MOST_UNPACKED_BYTES = 2_000_000_000, 8_000_000_000
"""Limits for the archive and its content. A larger archive could fill the disk that all benchmarks share."""
TOP = "/sources"
"""The folder of the sources for a script in the container."""
SHIM = """\
#!/bin/sh
# A replacement of nvidia-docker: docker with NVIDIA's runtime if a container is made.
case "$1" in
  run | create) how=$1; shift
    exec docker "$how" --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES="${NV_GPU:-all}" "$@" ;;
  *) exec docker "$@" ;;
esac
"""
REMEDY = "start provision.yml for this node (role nvidia_container)"


class Tail06(Tail):
    """A copier of a growing file to standard output, which notes the progress of a training of round 0.6."""

    def __init__(self, path: Path, secrets: Mapping[str, str] = {}) -> None:
        super().__init__(path, secrets)
        self.errors: list[str] = []

    def line(self, line: bytes) -> bytes:
        """Read progress from a line, and return the line to print."""
        match = EVENT.search(line)
        if match:
            key, epoch = match[1], EPOCH.search(line)
            if epoch and key in (b"epoch_start", b"eval_start"):
                self.step = f"epoch {int(epoch[1])}"
            if key in (b"init_start", b"run_start", b"run_stop", b"cache_clear"):
                words = {b"init_start": "starting", b"run_start": "training", b"run_stop": "ended"}
                self.phase = words.get(key, "clearing caches")
        elif line.strip():
            self.last = line[:300].decode("utf-8", "replace").strip()
            if self.last.startswith(("ERR:", "Unknown system")):
                self.errors.append(self.last)
        return line.replace(MARK.encode(), b"(quoted) ")


def git_tree(folder: Path) -> str:
    """Return the name that git gives to a folder, which is a SHA-1 over modes, names and contents."""
    entries = []
    for path in folder.iterdir():
        if path.is_symlink():
            mode, name = "120000", git_object("blob", os.fsencode(os.readlink(path)))
        elif path.is_dir():
            mode, name = "40000", git_tree(path)
        else:
            mode = "100755" if path.stat().st_mode & stat.S_IXUSR else "100644"
            name = git_object("blob", path.read_bytes())
        # git sorts a folder as if its name ended with a slash.
        order = os.fsencode(path.name) + (b"/" if mode == "40000" else b"")
        entries.append((order, mode.encode() + b" " + os.fsencode(path.name) + b"\0" + bytes.fromhex(name)))
    return git_object("tree", b"".join(entry for _, entry in sorted(entries)))


def git_object(kind: str, content: bytes) -> str:
    """Return the name that git gives an object."""
    # Use git's own hash. Other sources with the name of sources published years ago cannot be made.
    # Python 3.8 lacks the argument.
    header = f"{kind} {len(content)}\0".encode()
    return hashlib.sha1(header + content, **_NO_SECURITY).hexdigest()  # noqa: S324  # nosec B324


def without_top(members: list[tarfile.TarInfo]) -> list[tarfile.TarInfo]:
    """Return the files, folders and links of an archive, with their names below its single top folder."""
    tops = {member.name.split("/", 1)[0] for member in members}
    if len(tops) == 1 and any("/" in member.name for member in members):
        for member in members:
            member.name = member.name.partition("/")[2]
    return [member for member in members if member.name and not member.isdev()]


class Docker(slurm_run.Work):
    """The work for one benchmark on this node."""

    variable = "bench_data"

    def __init__(self, spec: Mapping[str, Any], run_id: str = "") -> None:
        super().__init__(
            {**spec, "shared": spec["home"], "repository": spec["image"], "tag": spec["ref"]}, run_id
        )
        self.data = Path(spec["data"])
        self.tree = self.shared / "sources" / spec["ref"]
        self.code = self.tree / spec["folder"]
        self.container = f"cont_{run_id}"
        self.note = self.shared / "containers" / self.container
        self.training: subprocess.Popen[bytes] | None = None

    def check_shared(self) -> None:
        """Make sure that the folders are there and can be written."""
        for folder in (self.shared, self.data):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                probe = folder / f".probe-{os.uname().nodename}-{os.getpid()}"
                probe.write_text("")
                probe.unlink()
            except OSError as error:
                raise Refusal(
                    EXIT_DATA,
                    f"{folder} on {os.uname().nodename} cannot be written ({error.strerror}): bench_home, "
                    "bench_data or bench_shared names it",
                ) from error

    # -- sources and image ----------------------------------------------------------------------------

    def sources(self) -> None:
        """Fetch and unpack the sources of the commit, unless they are there."""
        spec, note = self.spec, self.tree / ".rackproof.json"
        with locked(self.shared / "sources" / f".{spec['ref']}.lock", "the sources"):
            known = read_json(note)
            if known.get("url") != spec["sources"] or "tree" not in known:
                draft = self.tree.with_name(f".{spec['ref']}.part")
                shutil.rmtree(str(draft), ignore_errors=True)
                draft.mkdir(parents=True)
                print_event(phase="fetching the sources")
                archive = draft / ".archive"
                known = {"url": spec["sources"], "sha256": self.fetch(archive)}
                self.unpack(archive, draft)
                archive.unlink()
                known["tree"] = self.compared_tree(draft)
                write_whole(draft / note.name, json.dumps(known) + "\n")
                shutil.rmtree(str(self.tree), ignore_errors=True)
                draft.replace(self.tree)
                self.changed = True
        for name in ("Dockerfile", "run.sub"):
            if not (self.code / name).is_file():
                raise Refusal(
                    EXIT_IMAGE,
                    f"{spec['sources']} holds no {spec['folder']}/{name}: see bench_mlperf06_sources",
                )
        self.job_facts.update(
            sources=spec["sources"], ref=spec["ref"], sha256=known["sha256"], tree=known["tree"]
        )
        print_event(**self.job_facts)

    def fetch(self, archive: Path) -> str:
        """Fetch the archive, and return its checksum."""
        url = str(self.spec["sources"])
        digest = hashlib.sha256()
        if not url.startswith(("/", "http://", "https://")):
            raise Refusal(
                EXIT_IMAGE,
                f"{url} is neither an absolute path nor an address that begins with https:// or http://",
            )
        try:
            request = Path(url).as_uri() if url.startswith("/") else url
            limits = replace(Limits(**self.spec.get("download", {})), most_bytes=MOST_ARCHIVE_BYTES)
            # The operator may give a file. Other schemes were refused above.
            with open_limited(request, limits) as answer, archive.open("wb") as out:
                for chunk in iter(lambda: answer.read(1 << 20), b""):
                    digest.update(chunk)
                    out.write(chunk)
                    if out.tell() > MOST_ARCHIVE_BYTES:
                        raise self.too_large(MOST_ARCHIVE_BYTES)
        except (OSError, ValueError) as error:
            raise Refusal(
                EXIT_IMAGE,
                f"{os.uname().nodename} cannot fetch {url}: {getattr(error, 'reason', error)}; put a "
                "copy where the node reaches it, and name it in bench_mlperf06_sources",
            ) from error
        return digest.hexdigest()

    def unpack(self, archive: Path, folder: Path) -> None:
        """Unpack into a folder, without the archive's top folder. No file or link leaves the folder."""
        links: set[PurePosixPath] = set()
        try:
            with tarfile.open(str(archive), tarinfo=Member) as packed:
                for member in without_top([*members(packed, MOST_UNPACKED_BYTES)]):
                    self.check_member(member, links)
                    if member.issym():
                        links.add(PurePosixPath(member.name))
                    # The sources belong to this user, not to the archive's owners, and no file is setuid.
                    member.mode = member.mode & 0o755 | (0o700 if member.isdir() else 0o600)
                    member.uid, member.gid = os.geteuid(), os.getegid()
                    packed.extract(member, str(folder), numeric_owner=True)
        except TooLargeError:
            raise self.too_large(MOST_UNPACKED_BYTES) from None
        except DAMAGE as error:
            raise Refusal(
                EXIT_IMAGE, f"{self.spec['sources']} is not a whole archive (tar.gz): {error}"
            ) from error
        top = folder.resolve()
        for path in links:
            target = Path(os.path.realpath(str(folder / path)))
            if target != top and top not in target.parents:
                raise self.outside(str(path))

    def check_member(self, member: tarfile.TarInfo, links: set[PurePosixPath]) -> None:
        """Refuse a member that would be written outside, or through a symbolic link that came before it.

        Hard links, and symbolic links to absolute paths, are refused, too.
        """
        path = PurePosixPath(member.name)
        leaves = path.is_absolute() or ".." in path.parts
        # The text of a link does not show its target if the path passes another link.
        passes_link = bool(links.intersection([path, *path.parents]))
        leads_away = member.islnk() or (member.issym() and member.linkname.startswith("/"))
        if leaves or passes_link or leads_away:
            raise self.outside(member.name)

    def too_large(self, limit: int) -> Refusal:
        """Return the refusal of an archive that does not end."""
        return Refusal(
            EXIT_IMAGE,
            f"{self.spec['sources']} has more than {limit / 1e9:g} GB, the limit for sources: "
            "see bench_mlperf06_sources",
        )

    def outside(self, name: str) -> Refusal:
        """Return the refusal of an archive with a member that leads outside."""
        return Refusal(EXIT_IMAGE, f"{self.spec['sources']} holds {name!r}, which leads outside")

    def compared_tree(self, folder: Path) -> str:
        """Return git's name of the sources. Refuse sources that differ from the commit."""
        wanted, digest = TREES.get(str(self.spec["ref"])), git_tree(folder)
        if wanted not in (None, digest):
            raise Refusal(
                EXIT_IMAGE,
                f"{self.spec['sources']} is not commit {self.spec['ref']}: it is {digest}, not {wanted}. "
                "The archive was changed, or is of another commit: see bench_mlperf06_sources",
            )
        return digest

    def build(self) -> None:
        """Build the image of the commit, unless it exists."""
        spec = self.spec
        status, out, err = run_command(["docker", "info", "--format", "{{.DockerRootDir}}"])
        if status != 0:
            raise Refusal(
                EXIT_IMAGE, f"Docker does not answer on {os.uname().nodename}: {last_lines(err)}; {REMEDY}"
            )
        lock = self.shared / "images" / f".{self.slug}-{os.uname().nodename}.lock"
        with locked(lock, f"the image {spec['image']}"):
            ref, digest = self.there()
            if ref != spec["ref"]:
                root = Path(out.strip() or "/var/lib/docker")
                if root.is_dir() and free_gb(root) < spec["image_gb"]:
                    raise Refusal(
                        EXIT_IMAGE,
                        f"{root} on {os.uname().nodename} has {free_gb(root):.0f} GB free, the image needs "
                        f"{spec['image_gb']:g} GB: make room (docker system prune)",
                    )
                print_event(phase=f"building {spec['image']}")
                command = ["docker", "build", "--pull", "-t", spec["image"]]
                command += ["--label", f"{LABEL}={spec['ref']}", str(self.code)]
                status, output = self.watch(command, [], f"building {spec['image']}")
                ref, digest = self.there() if status == 0 else ("", "")
                if status != 0 or ref != spec["ref"]:
                    raise Refusal(
                        EXIT_IMAGE,
                        f"docker build of {spec['image']} failed on {os.uname().nodename} ({status}): "
                        f"{output}",
                    )
                self.changed = True
        self.job_facts.update(image=spec["image"], digest=digest)
        print_event(**self.job_facts)

    def ready(self) -> None:
        """Make sure that this node can take part in a job of several nodes."""
        if not shutil.which("nvidia-docker"):
            raise Refusal(
                EXIT_IMAGE,
                f"{os.uname().nodename} has no nvidia-docker, which run.sub calls on each of several nodes: "
                "provision it with nvidia_container_stack: nvidia-docker2",
            )

    def there(self) -> tuple[str, str]:
        """Return commit and id of the present image, or empty texts."""
        form = '{{index .Config.Labels "' + LABEL + '"}} {{.Id}}'
        status, out, _err = run_command(["docker", "image", "inspect", "--format", form, self.spec["image"]])
        words = out.split()
        return (words[0], words[1]) if status == 0 and len(words) == 2 else ("", "")

    def in_container(
        self, script: str, mounts: list[str], name: str, watched: list[Path], phase: str
    ) -> None:
        """Run a staging script, in the image if a mount point is given, or else on this node."""
        mount = mounts[0].rpartition(":")[2]
        scratch = self.shared / f".{name}-{os.getpid()}"
        shutil.rmtree(str(scratch), ignore_errors=True)
        scratch.mkdir(parents=True)
        bash = ["bash", "-euo", "pipefail", "-c", script]
        if mount:
            name = f"stage_{os.uname().nodename}_{os.getpid()}"
            command = ["docker", "run", "--rm", f"--name={name}", f"--volume={self.data}:{mount}"]
            command += [f"--volume={self.tree}:{TOP}:ro", f"--volume={scratch}:/scratch"]
            command += [f"--env=DATA={mount}", f"--env=SOURCES={TOP}", "--workdir=/scratch"]
            command += [self.spec["image"], *bash]
        else:
            places = [f"DATA={self.data}", f"SOURCES={self.tree}"]
            command = ["env", "--chdir", str(scratch), *places, *bash]
        try:
            status, output = self.watch(command, watched, phase)
        finally:
            if mount:
                run_command(["docker", "rm", "-f", name])
            shutil.rmtree(str(scratch), ignore_errors=True)
        if status != 0:
            raise Refusal(EXIT_DATA, f"{phase} failed ({status}) on {os.uname().nodename}: {output}")

    # -- the run --------------------------------------------------------------------------------------

    def choose_config(self) -> Path:
        """Return the system's config file. Without one, run.sub would silently use the config of DGX1."""
        path = self.code / f"config_{self.spec['system']}.sh"
        if not path.is_file():
            names = ", ".join(sorted(config.stem[7:] for config in self.code.glob("config_*.sh"))) or "none"
            raise Refusal(
                EXIT_SLURM,
                f"the sources have no config for {self.spec['system']}, only {names}: see bench_config",
            )
        return path

    def job_environment(self, config: Path) -> dict[str, str]:
        """Return the variables that run.sub is started with."""
        spec = self.spec
        variables = inherited_environment(os.environ)
        variables.update(self.plain)
        variables.update(
            CONT=spec["image"],
            LOGDIR=str(self.folder / "results"),
            PULL="0",
            NEXP="1",
            DGXSYSTEM=spec["system"],
            SEED=str(spec["seed_base"]),
        )
        for name in ("DATADIR", "PREPROC_DATADIR"):
            folder = Path(variables.get(name, "") or self.data)
            if name == "PREPROC_DATADIR" and name in variables:
                folder.mkdir(parents=True, exist_ok=True)
            if not folder.is_dir():
                raise Refusal(EXIT_DATA, f"{name}: {folder} is not there, although it was staged")
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "results").mkdir(exist_ok=True)
        code = self.folder / "code"
        code.mkdir(exist_ok=True)
        for path in (self.code / "run.sub", config):
            shutil.copy2(str(path), str(code / path.name))
        (self.code / "run.sub").chmod(0o755)
        return variables

    def nvidia_docker(self, environment: dict[str, str]) -> None:
        """Give run.sub the command that it calls if only the newer runtime is installed."""
        if shutil.which("nvidia-docker", path=environment.get("PATH")):
            return
        status, out, _err = run_command(["docker", "info", "--format", "{{json .Runtimes}}"])
        if status != 0 or '"nvidia"' not in out:
            raise Refusal(
                EXIT_IMAGE,
                f"Docker on {os.uname().nodename} has no runtime nvidia, and no nvidia-docker: {REMEDY}",
            )
        shim = self.folder / "bin" / "nvidia-docker"
        shim.parent.mkdir(exist_ok=True)
        shim.write_text(SHIM)
        shim.chmod(0o755)
        environment["PATH"] = f"{shim.parent}{os.pathsep}{environment.get('PATH', os.defpath)}"

    def end_left_over(self) -> None:
        """End the containers of runs whose launcher was killed before it ended them."""
        for note in sorted(self.note.parent.glob("cont_*")) if self.note.parent.is_dir() else ():
            if lives(note):
                continue
            print_event(phase=f"ending {note.name}, which an earlier run left")
            if self.remove(note.name):
                note.unlink()

    def train(self) -> int:
        """Start run.sub, and print its output until it ends. Return its exit status."""
        config = self.choose_config()
        environment = self.job_environment(config)
        self.nvidia_docker(environment)
        # run.sub uses this in the names of its container and log.
        environment["DATESTAMP"] = self.run_id
        self.note.parent.mkdir(parents=True, exist_ok=True)
        self.end_left_over()
        write_whole(self.note, f"{os.getpid()}\n")
        shown = {key: environment[key] for key in ("LOGDIR", "PULL", "DGXSYSTEM", "NEXP", "SEED")}
        shown = {**{key: str(value) for key, value in self.spec["environment"].items()}, **shown}
        print_event(
            phase="starting",
            dgxsystem=self.spec["system"],
            config=config.name,
            node=os.uname().nodename,
            command=" ".join([*(f"{key}={value}" for key, value in shown.items()), "./run.sub"]),
        )
        out = self.folder / "run.out"
        tail = Tail06(out, self.secrets)
        self.submitting = True
        try:
            with out.open("wb") as stream:
                self.training = subprocess.Popen(
                    ["./run.sub"],
                    cwd=str(self.code),
                    env={**environment, **self.secrets},
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        finally:
            self.submitting = False
        try:
            return self.attend(tail, self.training)
        finally:
            self.end_training()

    def attend(self, tail: Tail06, training: subprocess.Popen[bytes]) -> int:
        """Print and watch until run.sub ends."""
        grown, last, why = time.monotonic(), "", ""
        hang_s = float(self.spec["hang_s"])
        while training.poll() is None:
            if tail.copy():
                grown = time.monotonic()
            silent = time.monotonic() - grown
            if self.stopping:
                why = "the launcher got a signal to end"
            elif silent > hang_s:
                why = f"no output for {silent:.0f} s"
                hang = {"phase": tail.phase, "step": tail.step, "silent_s": round(silent), "last": tail.last}
                print_event(hang=hang)
            if why:
                print_event(cancel=why)
                self.end_training()
                break
            if tail.phase and tail.phase != last:
                last = tail.phase
                print_event(phase=last)
            time.sleep(0.3)
        while tail.copy():
            pass
        tail.flush()
        status = training.wait()
        print_event(end={"status": status, "errors": tail.errors[:3], "node": os.uname().nodename})
        return 0 if status == 0 and not tail.errors and not why else EXIT_JOB

    def end_training(self) -> None:
        """End the container, and everything that run.sub started, if anything still runs."""
        training = self.training
        if training is None:
            return
        early = training.poll() is None
        gone = self.remove(self.container)
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(training.pid, number)
                training.wait(10)
            except (ProcessLookupError, PermissionError):
                break
            except subprocess.TimeoutExpired:
                continue
        if early:
            # Docker may make the container only then.
            gone = self.remove(self.container)
        if gone and self.note.exists():
            self.note.unlink()

    @staticmethod
    def remove(container: str) -> bool:
        """End a container. Return whether it ended, which is false if Docker does not answer."""
        status, _out, err = run_command(["docker", "rm", "-f", container], timeout=45)
        return status == 0 or "No such container" in err

    def has_work(self) -> bool:
        """Return whether a training or a job exists. After a signal, the loop that follows it ends it."""
        return self.training is not None or super().has_work()

    def everything(self) -> int:
        """Do all steps in order."""
        self.check_shared()
        self.sources()
        self.choose_config()
        self.build()
        self.stage()
        return self.train()


class Together(Docker):
    """The work for one benchmark on several nodes, as one Slurm job."""

    variable = "bench_shared"

    def images(self) -> None:
        """Make every node build the image."""
        hosts = self.spec["hosts"]
        print_event(phase=f"building {self.spec['image']} on {len(hosts)} nodes")
        program = str(Path(self.spec["workloads"]) / Path(__file__).name)
        command = [*self.on_nodes("build"), "python3", program, "image"]
        status, output = self.watch(
            [*command, f"--spec={json.dumps(self.spec)}"], [], f"building on {len(hosts)} nodes"
        )
        if status != 0:
            raise Refusal(EXIT_IMAGE, f"the image could not be built on {', '.join(hosts)}: {output}")
        self.build()

    def on_nodes(self, name: str) -> list[str]:
        """Return the beginning of a job step with one task on each node."""
        hosts = self.spec["hosts"]
        command = ["srun", self.step_name(name), *self.options(), f"--nodelist={','.join(hosts)}"]
        return [*command, f"--nodes={len(hosts)}", f"--ntasks={len(hosts)}", "--ntasks-per-node=1"]

    def job_environment(self, config: Path) -> dict[str, str]:
        """Return the job's variables, with the checked ones of the config that sbatch needs."""
        variables = super().job_environment(config)
        names = ("DGXNNODES", "DGXNGPU", "WALLTIME")
        script = 'source "$1" >&2 && printf "%s\\n" "$DGXNNODES" "$DGXNGPU" "$WALLTIME"'
        status, out, err = run_command(["bash", "-c", script, "bash", str(config)], env=variables)
        values = dict(zip(names, out.splitlines()))  # noqa: B905  (Python 3.8)
        minutes = minutes_of(values.get("WALLTIME", ""))
        if status != 0 or minutes < 1 or not all(values.get(name, "").isdigit() for name in names[:2]):
            raise Refusal(
                EXIT_SLURM, f"{config.name} does not set {', '.join(names)}: {values} {last_lines(err)}"
            )
        if int(values["DGXNNODES"]) != len(self.spec["hosts"]):
            raise Refusal(
                EXIT_SLURM,
                f"{config.name} is for {values['DGXNNODES']} nodes, and -l selects "
                f"{len(self.spec['hosts'])}: select as many, or set bench_config",
            )
        if self.spec["gpus"] and int(values["DGXNGPU"]) != self.spec["gpus"]:
            raise Refusal(
                EXIT_SLURM,
                f"{config.name} is for {values['DGXNGPU']} GPUs a node, these nodes have {self.spec['gpus']}",
            )
        variables.update(values, WALLTIME=str(minutes))
        return variables

    def more_options(self, environment: Mapping[str, str]) -> list[str]:
        """Return the further options of sbatch."""
        return ["--ntasks-per-node", environment["DGXNGPU"]]

    def tail(self, path: Path) -> Tail06:
        """Return the object that copies the job's output."""
        return Tail06(path, self.secrets)

    def follow(self) -> int:
        """Print the job's output until it ends. End its containers, because run.sub leaves them."""
        try:
            status = super().follow()
        finally:
            left = f"cont_{self.job}"
            self.run_step([*self.on_nodes("tidy"), "docker", "rm", "-f", left], timeout=120)
        return status

    def everything(self) -> int:
        """Do all steps in order, or only follow the job if there is one."""
        self.check_shared()
        known = str(read_json(self.folder / "job.json").get("job", "")) or self.find_job()
        if not known:
            self.sources()
            self.choose_config()
            self.images()
            self.stage()
        self.submit()
        return self.follow()


def lives(note: Path) -> bool:
    """Return whether the launcher that wrote a note still runs."""
    try:
        pid = int(note.read_text())
        return Path(__file__).name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return False


def minutes_of(walltime: str) -> int:
    """Return the minutes of a time as Slurm writes it (``90``, ``1:30:00``, ``1-12:00:00``), or 0."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", walltime)
    if not match:
        return 0
    days, first, second, _seconds = (int(part) if part else 0 for part in match.groups())
    # With days or seconds, the first number is hours. Otherwise, it is minutes.
    return days * 1440 + first * 60 + second if match[1] or match[4] else first


def main(words: list[str] | None = None) -> int:
    """Do the step that the command line names, or all steps. Return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("run", "image", "cancel"))
    parser.add_argument("--spec", required=True, help="what to run, as JSON")
    parser.add_argument("--id", default="", help="the run")
    options = parser.parse_args(words)
    spec = json.loads(options.spec)
    if options.what != "image" and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}", options.id):
        parser.error("--id must be the id of a run")
    # minigo reads it as a number of three bytes.
    spec.setdefault(
        "seed_base", int.from_bytes(hashlib.sha256(options.id.encode()).digest()[:3], "big") % 16777215 + 1
    )
    work = (Together if spec["together"] else Docker)(spec, options.id)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, work.stop)
    try:
        if options.what == "run":
            return work.everything()
        if options.what == "cancel":
            run_command(["docker", "rm", "-f", work.container])
            work.job = str(read_json(work.folder / "job.json").get("job", ""))
            if spec["together"]:
                work.job = work.job or work.find_job()
            if work.job:
                work.cancel("asked for")
            return 0
        work.sources()
        work.build()
        if spec["together"]:
            work.ready()
        print(json.dumps({"changed": work.changed}))
    except Refusal as refusal:
        print_event(refused=str(refusal), status=refusal.status)
        print(f"docker_run: {refusal}", file=sys.stderr, flush=True)
        return refusal.status
    except OSError as error:
        print_event(refused=f"{error.filename or work.shared}: {error.strerror or error}", status=EXIT_DATA)
        return EXIT_DATA
    except Stopped:
        print_event(refused="a signal ended the launcher before the training started", status=EXIT_JOB)
        return EXIT_JOB
    return 0


if __name__ == "__main__":
    sys.exit(main())
