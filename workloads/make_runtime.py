#!/usr/bin/env python3
"""Make, or find, the Python environment that a workload runs in.

    make_runtime.py --runtime FOLDER --folder ENVIRONMENT [--python INTERPRETER] [--found]

bench.yml (rackproof_bench_runtime) and playbooks/stage-imagenet.yml start this program on a node, and
`make runtimes` starts it on this machine. It needs only the standard library of Python 3.8 or newer. A
runtime is a folder next to this program:

    requirements.txt          the packages, pinned with hashes
    requirements-cuda.txt     optional: CUDA's libraries, if the packages need them (torch)
    requirements-no-deps.txt  optional: packages that are installed last, without their dependencies
    runtime.json              the oldest and newest Python; the modules that it must be able to import;
                              minimum_bytes of free disk, and cuda_bytes in addition with CUDA's libraries;
                              libraries of the system, each with its package of Debian and Ubuntu

An interpreter that the operator names is used as it is, if it finds the modules. The modules are not
imported, because importing PyTorch takes seconds. Without such an interpreter, a virtual environment is made,
with a marker that contains the checksum of the requirements. A second call then takes milliseconds, and an
incomplete environment is made again. With --found, nothing is made. The exit status is then 3 if the
environment is missing or outdated.

The last line of output is JSON: {"changed": bool, "python": PATH}. pip shows no progress without a terminal.
While it works, lines `:::RACKPROOF {JSON}` therefore state the present and the final size of the environment.
After any other failure, the exit status is not 0, and a line on standard error states why.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from lock_file import open_lock

MARKER = "rackproof-runtime.sha256"
CUDA = "requirements-cuda.txt"
REQUIREMENTS = ("requirements.txt", CUDA, "requirements-no-deps.txt")
"""The files of requirements in their order. The first one must exist."""
CONFIGURATION = "pyvenv.cfg"
"""The file that venv writes before all others, and that every virtual environment has."""
REPORT_S = 2.0
"""Seconds between two reports of the environment's size."""
LOCK_WAIT_S = 600.0
"""Longest wait in seconds for the locks of another apt."""
LOCK_POLL_S = 2.0
NOT_MADE = 3
"""Exit status of --found if the environment is missing or outdated."""
NO_NETWORK = (
    "connection", "name resolution", "timed out", "timeout", "unreachable", "proxy", "sslerror",
)  # fmt: skip
"""Texts in pip's output, in lower case. Each shows that pip could not reach a package index."""


def stop(message):
    """End with a message for the operator."""
    sys.exit(f"make_runtime: {message}")


def version_of(python):
    """Return (major, minor) of an interpreter, or None if it does not run."""
    try:
        answer = subprocess.run(
            [python, "-c", "import sys; print(*sys.version_info[:2])"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        major, minor = answer.split()
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def parse_version(text):
    """Return '3.11' as (3, 11)."""
    major, minor = text.split(".")
    return int(major), int(minor)


def find_interpreter(oldest, newest):
    """Return this program's interpreter if it is within the bounds, or else the newest one that is.

    Every name is searched on PATH. An interpreter without `venv` or `ensurepip` is skipped. If none is left,
    the program ends with a message.
    """
    minors = range(newest[1], oldest[1] - 1, -1)
    unusable = {}
    for name in [sys.executable, *(f"python3.{minor}" for minor in minors), "python3"]:
        path = shutil.which(name) if name else None
        version = version_of(path) if path else None
        if path is None or version is None or not oldest <= version <= newest or path in unusable:
            continue
        try:
            subprocess.run(
                [path, "-c", "import venv, ensurepip"], capture_output=True, timeout=60, check=True
            )
        except (OSError, subprocess.SubprocessError):
            unusable[path] = f"python{version[0]}.{version[1]}-venv"
            print(f"passing over {path}: it has no venv (package {unusable[path]})")
            continue
        return path
    for path, package in unusable.items():
        stop(f"{path} cannot make environments: install {package}, or name an interpreter in bench_pythons")
    wanted = f"Python {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"
    return stop(
        f"no interpreter fits: {wanted} is needed; install one with venv, "
        "or name one that has the packages in bench_pythons"
    )


def check_modules(python, modules, check="import {}"):
    """End with a message unless the interpreter can import every module, or passes another check of it."""
    for module in modules:
        try:
            process = subprocess.run(
                [python, "-c", check.format(module)], capture_output=True, text=True, timeout=300, check=False
            )
        except (OSError, subprocess.SubprocessError) as error:
            stop(f"{python} could not be checked for {module}: {error}")
        if process.returncode:
            last = (process.stderr.strip().splitlines() or ["no message"])[-1]
            if "cannot open shared object file" in last:
                stop(f"{python} cannot import {module} ({last}); install that library, then start again")
            stop(f"{python} cannot import {module} ({last}); install it, or choose another one")


def loads(library):
    """Return whether a shared library loads, in a separate process, which may crash."""
    command = [sys.executable, "-c", f"import ctypes; ctypes.CDLL({library!r})"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def provide_libraries(libraries, runtime):
    """Install missing system packages as root, or end with the command to run.

    This happens before anything is downloaded.

    Args:
        libraries: The package of each library.
        runtime: The runtime's name for messages.
    """
    lacking = sorted(package for library, package in libraries.items() if not loads(library))
    if not lacking:
        return
    why = ""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        why = install_packages(lacking, libraries)
        if why is None:
            return
    stop(
        f"{runtime} needs libraries that this system lacks{why and f' (apt-get: {why})'}: "
        f"type: sudo {install_command(libraries, lacking)}, then start again"
    )


def install_packages(packages, libraries):
    """Install packages by apt-get. Return None if all libraries load, or else apt's last error or ""."""
    print(f"installing {' '.join(packages)}", flush=True)
    install, why = ["install", "-y", "-q", "--no-install-recommends", *packages], ""
    # On a fresh machine, the lists of packages are missing.
    for step in (install, ["-q", "update"], install):
        why = run_apt(step)
        if step is install and all(loads(library) for library in libraries):
            return None
    return why


def install_command(libraries, packages):
    """Return the command that installs the missing libraries on this system."""
    if shutil.which("apt-get") or not shutil.which("dnf"):
        return f"apt-get install {' '.join(packages)}"
    # dnf finds a package by the library's name.
    absent = sorted(library for library in libraries if not loads(library))
    return "dnf install " + " ".join(f"'{library}()(64bit)'" for library in absent)


def run_apt(arguments):
    """Run apt-get. Return the last line of its errors, or "" if it succeeded.

    A new machine updates itself. apt waits for dpkg's lock, and this function for the lock of the lists.
    """
    command = ["apt-get", "-o", f"DPkg::Lock::Timeout={LOCK_WAIT_S:.0f}", *arguments]
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        process = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
        )  # fmt: skip
        if process.returncode == 0:
            return ""
        if "Could not get lock" not in process.stderr or time.monotonic() > deadline:
            return (process.stderr.strip().splitlines() or [f"status {process.returncode}"])[-1][:300]
        print("waiting for another apt", flush=True)
        time.sleep(LOCK_POLL_S)


def checksum_of(runtime):
    """Return one checksum over the files of requirements, and the paths of existing ones."""
    checksum, paths = hashlib.sha256(), []
    for name in REQUIREMENTS:
        path = os.path.join(runtime, name)
        try:
            with open(path, "rb") as stream:
                content = stream.read()
        except FileNotFoundError:
            if paths:
                continue
            raise
        # With the lengths, the checksum also changes if a line moves from one file to the next.
        checksum.update(b"%d %s\n%s" % (len(content), name.encode(), content))
        paths.append(path)
    return checksum.hexdigest(), paths


def clear(folder, minimum_bytes):
    """Remove the folder of an environment.

    End with a message if it contains something else, or if the disk has too little space for a new one.
    """
    os.makedirs(folder, exist_ok=True)
    if not any(os.path.exists(os.path.join(folder, name)) for name in (CONFIGURATION, MARKER)):
        # venv makes empty folders before its first file, so a killed run may leave only these.
        strange = next((name for _, _, names in os.walk(folder) for name in sorted(names)), None)
        if strange:
            stop(
                f"{folder} holds {strange} and no {CONFIGURATION}, so it is not a virtual environment; "
                "choose another bench_home"
            )
    remove(folder)
    check_free(folder, minimum_bytes)


def remove(folder):
    """Remove an environment.

    The marker goes first, so that the rest of an environment whose removal is killed does not count as whole.
    The configuration goes last, so that the rest is still known as an environment.

    Raises:
        OSError: A file cannot be removed.
    """
    for name in sorted(os.listdir(folder), key=lambda name: (name != MARKER, name == CONFIGURATION)):
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.remove(path)
    os.rmdir(folder)


def check_free(folder, minimum_bytes, purpose="", instead=""):
    """End with a message unless the next step fits on the disk of a folder."""
    free = shutil.disk_usage(os.path.dirname(folder)).free
    if free < minimum_bytes:
        stop(
            f"{folder}: {free / 1e9:.1f} GB free, at least {minimum_bytes / 1e9:.1f} GB needed{purpose}; "
            f"make room, or choose another bench_home{instead}"
        )


def explain(status, message, folder, runtime):
    """Return why pip failed, and the remedy.

    Args:
        status: pip's exit status, negative if a signal ended pip.
        message: The whole output of pip.
        folder: The folder of the environment.
        runtime: The name of the runtime.
    """
    errors = [line for line in message.splitlines() if line.startswith("ERROR:")]
    last = (errors or message.strip().splitlines() or ["no message"])[-1][:300].replace("ERROR: ", "")
    instead = f"name an interpreter that has the packages: bench_pythons={{{runtime}: /path/to/python}}"
    lower = message.lower()
    if status < 0:
        return f"pip was ended by signal {-status}; see whether the node has enough memory"
    if "no space left" in lower or "disk quota exceeded" in lower:
        free = shutil.disk_usage(os.path.dirname(folder)).free
        return (
            f"the disk of {folder} became full ({free / 1e9:.1f} GB free; with CUDA's libraries a runtime "
            f"takes about 7 GB); make room, choose another bench_home, or {instead}"
        )
    if "do not match the hashes" in lower:
        return f"the package index has another file than the pinned one, perhaps a replaced one ({last})"
    if any(word in lower for word in NO_NETWORK):
        return f"pip reaches no package index ({last}); give the node one (PIP_INDEX_URL), or {instead}"
    return (
        f"pip could not install the runtime ({last}); use an index that has it (PIP_INDEX_URL), or {instead}"
    )


def size_of(folder):
    """Return the bytes of all files in a folder. Files that are removed meanwhile are left out."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except OSError:
                continue
    return total


def run_pip(argv, folder, whole_bytes, content, environment):
    """Run pip, and report how large the environment is. Return pip's exit status and output.

    Args:
        argv: The command line.
        folder: The folder of the environment. pip also stores its downloads there.
        whole_bytes: The approximate size of the complete environment, or 0 if unknown.
        content: The name of the packages for the reports, such as the runtime's.
        environment: The environment variables of pip's process.
    """
    with tempfile.TemporaryFile() as output:
        pip = subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        before = 0
        try:
            while pip.poll() is None:
                size = size_of(folder)
                if size > before:
                    before = size
                    report = {"phase": f"fetching {content}", "bytes": size, "of_bytes": whole_bytes}
                    print(f":::RACKPROOF {json.dumps(report)}", flush=True)
                until = time.monotonic() + REPORT_S
                while pip.poll() is None and time.monotonic() < until:
                    time.sleep(0.1)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
        output.seek(0)
        return pip.returncode, output.read().decode("utf-8", "replace")


def install(python, folder, requirements, runtime, needs):
    """Make the virtual environment.

    The caller removed an earlier one, and removes this one after a failure.

    Args:
        python: The interpreter to make the environment with.
        folder: The absolute path of its folder.
        requirements: The files of requirements.
        runtime: The runtime's name for messages.
        needs: The content of runtime.json, with minimum_bytes, and cuda_bytes for CUDA's libraries.
    """
    cuda_bytes, whole_bytes = needs.get("cuda_bytes", 0), needs.get("minimum_bytes", 0)
    print(f"making {folder} with {python}", flush=True)
    subprocess.run([python, "-m", "venv", folder], check=True)
    # pip unpacks here and not in /tmp, which is small and in memory on many nodes.
    scratch = os.path.join(folder, "tmp")
    os.mkdir(scratch)
    pip = [os.path.join(folder, "bin", "python"), "-m", "pip"]
    for path in requirements:
        content = runtime
        if (
            path.endswith(CUDA)
            and subprocess.run([*pip, "check"], capture_output=True, check=False).returncode == 0
        ):
            continue
        if path.endswith(CUDA):
            # Only now is it known which build was installed. A build for the CPU needs no such libraries.
            check_free(
                folder,
                cuda_bytes,
                " for CUDA's libraries",
                ", or a package index that has a build for the CPU",
            )
            whole_bytes = size_of(folder) + cuda_bytes
            content = f"CUDA's libraries of {runtime}"
        status, output = run_pip(
            [
                *pip, "install", "--quiet", "--disable-pip-version-check", "--no-input",
                # Install only wheels, because the build tools of a source package would be fetched
                # without a hash.
                "--require-hashes", "--only-binary=:all:", "--no-deps", "--requirement", path,
            ],
            folder, whole_bytes, content, {**os.environ, "TMPDIR": scratch},
        )  # fmt: skip
        print(output, end="", flush=True)
        if status:
            stop(explain(status, output, folder, runtime))
    shutil.rmtree(scratch)


def make(folder, needs, requirements, checksum, runtime):
    """Make the environment again, and mark it after its modules could be imported.

    After a failure, the environment is removed, so that a disk that it filled has space again.
    """
    interpreter = find_interpreter(parse_version(needs["oldest"]), parse_version(needs["newest"]))
    provide_libraries(needs.get("libraries", {}), runtime)
    clear(folder, needs.get("minimum_bytes", 0))
    try:
        install(interpreter, folder, requirements, runtime, needs)
        check_modules(os.path.join(folder, "bin", "python"), needs["imports"])
        with open(os.path.join(folder, MARKER), "w", encoding="ascii") as marker:
            marker.write(checksum)
    except BaseException:
        with contextlib.suppress(OSError):
            remove(folder)
        raise


def made_before(folder, checksum):
    """Return whether the environment exists, is complete for these requirements, and runs."""
    try:
        with open(os.path.join(folder, MARKER), encoding="ascii") as stream:
            same = stream.read() == checksum
    except (OSError, UnicodeDecodeError):
        return False
    return same and version_of(os.path.join(folder, "bin", "python")) is not None


def main():
    """Find or make the environment, and print the path of its interpreter."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runtime", required=True, help="folder with requirements.txt and runtime.json")
    parser.add_argument("--folder", required=True, help="folder of the environment")
    parser.add_argument("--python", default="", help="an existing interpreter to use as it is")
    parser.add_argument(
        "--found", action="store_true", help=f"make nothing, and exit with {NOT_MADE} if there is none"
    )
    options = parser.parse_args()
    with open(os.path.join(options.runtime, "runtime.json"), encoding="utf-8") as stream:
        needs = json.load(stream)
    modules = needs["imports"]
    if options.python:
        if version_of(options.python) is None:
            stop(f"{options.python}: not a Python interpreter that runs")
        # The modules are only searched for, because an import of PyTorch would add seconds to every run.
        found = "import importlib.util as u, sys; u.find_spec('{}') or sys.exit('not found')"
        check_modules(options.python, modules, found)
        print(json.dumps({"changed": False, "python": options.python}))
        return
    folder = os.path.abspath(options.folder)
    checksum, requirements = checksum_of(options.runtime)
    if options.found:
        if not made_before(folder, checksum):
            sys.exit(NOT_MADE)
        print(json.dumps({"changed": False, "python": os.path.join(folder, "bin", "python")}))
        return
    try:
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        with open_lock(folder + ".lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            changed = not made_before(folder, checksum)
            if changed:
                make(folder, needs, requirements, checksum, os.path.basename(options.runtime.rstrip("/")))
    except OSError as error:
        stop(f"{error.filename or folder}: {error.strerror}; choose another bench_home, or change its owner")
    except subprocess.CalledProcessError as error:
        stop(f"{folder} could not be made ({error})")
    print(json.dumps({"changed": changed, "python": os.path.join(folder, "bin", "python")}))


if __name__ == "__main__":
    main()
