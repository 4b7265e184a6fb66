#!/usr/bin/env python3
"""Make, or find, the Python environment that a workload runs in. Standard library only, Python 3.8+.

A runtime is a folder beside this program: requirements.txt (pinned, complete: nothing is resolved) and
runtime.json (oldest and newest Python, modules that must import). An interpreter that the operator
names is used as it is, once it has shown that it can import them. Otherwise a virtual environment is
made; a marker with the requirements' checksum makes a second call a matter of milliseconds, and a
half-made environment is made again.

Prints one line of JSON at the end: {"changed": bool, "python": PATH}.
"""

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys

MARKER = "rackproof-runtime.sha256"


def stop(message):
    """End with a message for the operator."""
    sys.exit(f"make_runtime: {message}")


def version_of(python):
    """Return (major, minor) of an interpreter, or None where it does not run."""
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
    """Return the newest interpreter within the bounds, the one running this program preferred.

    Every name is looked for on PATH; an interpreter without `venv` and `ensurepip` is passed over.
    """
    minors = range(newest[1], oldest[1] - 1, -1)
    unusable = []
    for name in [sys.executable, *(f"python3.{minor}" for minor in minors), "python3"]:
        path = shutil.which(name) if name else None
        version = version_of(path) if path else None
        if version is None or not oldest <= version <= newest:
            continue
        try:
            subprocess.run(
                [path, "-c", "import venv, ensurepip"], capture_output=True, timeout=60, check=True
            )
        except (OSError, subprocess.SubprocessError):
            unusable.append(path)
            continue
        return path
    wanted = f"Python {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"
    if unusable:
        version = version_of(unusable[0])
        stop(f"{unusable[0]} cannot make environments; install python{version[0]}.{version[1]}-venv")
    return stop(f"no interpreter fits: {wanted} is needed; install one, or name one that has the packages")


def check_modules(python, modules, check="import {}"):
    """End with a message unless the interpreter has every module."""
    for module in modules:
        done = subprocess.run(
            [python, "-c", check.format(module)], capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            stop(f"{python} cannot import {module} ({last}); install it, or leave the interpreter unnamed")


def install(python, folder, requirements, checksum):
    """Make the virtual environment anew. Steps after the first show on standard error."""
    shutil.rmtree(folder, ignore_errors=True)
    print(f"making {folder} with {python}", file=sys.stderr)
    subprocess.run([python, "-m", "venv", folder], check=True)
    subprocess.run(
        [
            os.path.join(folder, "bin", "python"), "-m", "pip", "install", "--quiet", "--no-deps",
            "--disable-pip-version-check", "--no-input", "--requirement", requirements,
        ],
        check=True, stdout=sys.stderr,
    )  # fmt: skip
    with open(os.path.join(folder, MARKER), "w", encoding="ascii") as marker:
        marker.write(checksum)


def main():
    """Find or make the environment and print where its interpreter is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runtime", required=True, help="folder with requirements.txt and runtime.json")
    parser.add_argument("--folder", required=True, help="where the environment is or will be")
    parser.add_argument("--python", default="", help="an existing interpreter to use as it is")
    options = parser.parse_args()
    with open(os.path.join(options.runtime, "runtime.json"), encoding="utf-8") as stream:
        needs = json.load(stream)
    modules = needs["imports"]
    if options.python:
        if version_of(options.python) is None:
            stop(f"{options.python}: not a Python interpreter that runs")
        # Finding takes milliseconds where importing PyTorch takes seconds, before every run.
        check_modules(
            options.python, modules, "import importlib.util as u; assert u.find_spec('{}'), 'not found'"
        )
        print(json.dumps({"changed": False, "python": options.python}))
        return
    requirements = os.path.join(options.runtime, "requirements.txt")
    with open(requirements, "rb") as stream:
        checksum = hashlib.sha256(stream.read()).hexdigest()
    try:
        os.makedirs(options.folder, exist_ok=True)
        lock = open(options.folder.rstrip("/") + ".lock", "w", encoding="ascii")  # noqa: SIM115  (see below)
    except OSError as error:
        stop(f"{options.folder}: {error.strerror}; choose another bench_home, or change its owner")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = os.path.join(options.folder, "bin", "python")
        marker = os.path.join(options.folder, MARKER)
        made = False
        if os.path.exists(marker):
            with open(marker, encoding="ascii") as stream:
                made = stream.read() == checksum and version_of(python) is not None
        if not made:
            interpreter = find_interpreter(parse_version(needs["oldest"]), parse_version(needs["newest"]))
            try:
                install(interpreter, options.folder, requirements, checksum)
            except (OSError, subprocess.SubprocessError) as error:
                stop(f"{options.folder} could not be made ({error}); see the lines above, then start again")
            check_modules(python, modules)
        print(json.dumps({"changed": not made, "python": python}))


if __name__ == "__main__":
    main()
