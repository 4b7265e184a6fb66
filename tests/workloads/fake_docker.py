#!/usr/bin/env python3
"""A fake of Docker for test_docker_run.py: images are folders, and containers are processes of this machine.

Its state is the folder FAKE_DOCKER. The file ``down`` there makes each command fail, ``build-fails`` makes a
build fail, and ``calls`` and ``removed`` list what was called and removed. Mounts become links below
STANDIN_ROOT, where the fake sources look for them. In the environment, and in the words of a command with
--workdir, mount points are replaced by these links.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

STATE = Path(os.environ["FAKE_DOCKER"])


def slug(image: str) -> str:
    """Return the folder name of an image."""
    return image.replace("/", "+").replace(":", "+")


def split(words: list[str], with_value: set[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the options as name and value, and the remaining words."""
    options = []
    while words and words[0].startswith("-"):
        name, equals, value = words.pop(0).partition("=")
        if not equals and name in with_value:
            value = words.pop(0)
        options.append((name, value))
    return options, words


def build(words: list[str]) -> int:
    """Copy the folder with the Dockerfile as an image, with its one label."""
    options, rest = split(words, {"-t", "--label"})
    given = dict(options)
    if (STATE / "build-fails").exists():
        print("Step 3/9 : RUN pip install\nno space left on device", file=sys.stderr)
        return 1
    target = STATE / "images" / slug(given["-t"])
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(rest[0], target)
    (target / ".labels").write_text(json.dumps(dict([given["--label"].split("=", 1)])))
    return 0


def image(words: list[str]) -> int:
    """Print the label rackproof.ref of an image, and its id."""
    _options, rest = split(words[1:], {"--format"})
    labels = STATE / "images" / slug(rest[0]) / ".labels"
    if not labels.exists():
        print("No such image", file=sys.stderr)
        return 1
    print(json.loads(labels.read_text()).get("rackproof.ref", ""), "sha256:" + "cd" * 32)
    return 0


def run(words: list[str]) -> int:
    """Link the mounts, and run a command as a container that is removed when the command ends."""
    options, (name, *command) = split(
        words, {"-v", "-e", "--env", "--name", "--workdir", "--runtime", "--volume"}
    )
    given = dict(options)
    container = STATE / "containers" / given.get("--name", f"unnamed-{os.getpid()}")
    root = container / "root"
    root.mkdir(parents=True)
    for key, value in options:
        if key in ("-v", "--volume"):
            source, target = value.split(":")[:2]
            (root / target.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            (root / target.lstrip("/")).symlink_to(source)
    (container / "image").write_text(slug(name))
    status = execute(container, options, command, given.get("--workdir", ""))
    shutil.rmtree(container, ignore_errors=True)
    return status


def execute(container: Path, options: list[tuple[str, str]], command: list[str], workdir: str = "") -> int:
    """Run a command in a container. Return its exit status."""
    store, root = STATE / "images" / (container / "image").read_text(), container / "root"
    environment = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    environment |= {"STANDIN_ROOT": str(root), "PYTHONPATH": str(store)}
    inside = [f"/{path.name}" for path in root.iterdir() if path.is_symlink()]
    inside += [f"/{path.relative_to(root)}" for path in root.glob("home/*")]

    def outside(text: str) -> str:
        """Return a text with the mount points of the container replaced by their links."""
        for place in inside:
            text = re.sub(rf"(?<![\w/}}.\"]){place}\b", f"{root}{place}", text)
        return text

    for key, value in options:
        if key in ("-e", "--env"):
            name, _, text = value.partition("=")
            environment[name] = outside(text)
    if workdir:
        command = [outside(word) for word in command]
    process = subprocess.Popen(
        command,
        cwd=outside(workdir) or store,
        env=environment,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
    )
    (container / f"pid-{process.pid}").write_text("")
    return process.wait()


def remove(words: list[str]) -> int:
    """Kill the processes of containers, and remove the containers."""
    _options, names = split(words, set())
    for name in names:
        container = STATE / "containers" / name
        with (STATE / "removed").open("a") as stream:
            stream.write(f"{name}\n")
        for note in container.glob("pid-*"):
            with suppress(ProcessLookupError):
                os.killpg(int(note.name[4:]), signal.SIGKILL)
        shutil.rmtree(container, ignore_errors=True)
    return 0


def main() -> int:
    what, *words = sys.argv[1:]
    with (STATE / "calls").open("a") as stream:
        stream.write(" ".join(sys.argv[1:]).replace("\n", " ")[:300] + "\n")
    if (STATE / "down").exists():
        print("Cannot connect to the Docker daemon", file=sys.stderr)
        return 1
    if what == "info":
        print('{"nvidia":{},"runc":{}}' if "Runtimes" in words[-1] else STATE)
        return 0
    if what == "exec":
        options, (name, *command) = split(words, {"-e"})
        container = STATE / "containers" / name
        if not (container / "image").exists():
            print(f"No such container: {name}", file=sys.stderr)
            return 1
        return execute(container, options, command)
    return {"build": build, "image": image, "run": run, "rm": remove}[what](words)


if __name__ == "__main__":
    sys.exit(main())
