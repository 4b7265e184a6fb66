"""Test the static checks: secrets in the tree or its history, security rules, and shell scripts.

The tests also check rules that no linter has: no role reads a fact as a variable, and no test measures the
time of a busy machine.
"""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

SECRETS = re.compile(
    rb"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----\s*[A-Za-z0-9+/]{32}"
    rb"|\bAKIA[0-9A-Z]{16}\b"
    rb"|\bgh[pousr]_[A-Za-z0-9]{36}\b|\bgithub_pat_\w{60,}"
    rb"|\bglpat-[\w-]{20}|\bnvapi-[\w-]{40,}|\bpypi-AgEI[\w-]{50,}"
    rb"|\bxox[abprs]-\d{6,}-[\w-]{16,}|hooks\.slack\.com/services/T\w{8,}/B\w{8,}/\w{20,}"
    rb"|\$ANSIBLE_VAULT;1\.[12];AES256\s+[0-9a-f]{64}"
)
"""Pattern of secrets that can be recognized by their form: keys of SSH, TLS, clouds, forges, NGC, package
indexes and chats, and Ansible vaults."""


def git(root: Path, *words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, check=True).stdout


def test_no_secret_in_the_tree(root: Path) -> None:
    found = {}
    for name in git(root, "ls-files", "-z").decode().split("\0"):
        path = root / name
        if name and path.is_file() and not path.is_symlink() and SECRETS.search(path.read_bytes()):
            found[name] = True
    assert not found


@pytest.mark.slow
def test_no_secret_in_the_history(root: Path) -> None:
    """A secret that was removed from the tree is still in every clone."""
    with subprocess.Popen(
        ["git", "log", "--all", "-p", "--unified=0", "--no-ext-diff", "--no-textconv", "--format=%H"],
        cwd=root,
        stdout=subprocess.PIPE,
    ) as log:
        assert log.stdout
        commit, keys, before = b"", [], b""
        for line in log.stdout:
            if re.fullmatch(rb"[0-9a-f]{40}\n", line):
                commit = line.strip()
            # The first line of a private key counts only together with its second line.
            if SECRETS.search(before + line.removeprefix(b"+")):
                keys.append(commit.decode())
            before = line.removeprefix(b"+")
    assert log.returncode == 0
    assert not keys


@pytest.mark.parametrize(
    "secret",
    [
        "AKIA" + "CANARY0" * 2 + "00",
        "ghp_" + "canary" * 6,
        "-----BEGIN OPENSSH PRIVATE" + " KEY-----\n" + "canary" * 8,
        "nvapi-" + "canary" * 10,
        "$ANSIBLE_VAULT;1.1;AES256\n" + "c0ffee00" * 8,
    ],
)
def test_a_secret_is_found(secret: str) -> None:
    assert SECRETS.search(f"key: {secret}\n".encode())


@pytest.mark.parametrize(
    ("place", "text", "rule"),
    [
        ("roles/netboot/files/rackproof-write-image", "import os\nos.system(input())\n", "S605"),
        ("plugins/modules/rackproof_job.py", "import tempfile\ntempfile.mktemp()\n", "S306"),
        ("workloads/slurm_run.py", "import urllib.request\nurllib.request.urlopen(input())\n", "S310"),
        ("tools/make-docs", "import subprocess\nsubprocess.run(input(), shell=True)\n", "S602"),
        ("testrack/rack.py", "import pickle\npickle.loads(input())\n", "S301"),
    ],
)
def test_security_rules_hold_everywhere(root: Path, place: str, text: str, rule: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--output-format=concise", "--stdin-filename", place, "-"],
        cwd=root, input=text, capture_output=True, text=True,
    )  # fmt: skip
    assert f" {rule} " in done.stdout


@pytest.mark.parametrize(
    ("text", "code"),
    [("cd $1\nrm -rf x\n", "SC2164"), ('rm -rf "$1/"*\n', "SC2115"), ("x=`ls`; echo $y\n", "SC2154")],
)
def test_a_faulty_shell_script_is_refused(text: str, code: str, tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text(f"#!/bin/bash\n{text}")
    program = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([program, "--severity=warning", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert code in done.stdout


@pytest.mark.parametrize("address", ["file:///etc/hostname", "ftp://127.0.0.1/x", "data:,x", ""])
def test_programs_on_nodes_fetch_from_the_web_alone(root: Path, address: str) -> None:
    """Refuse other addresses, because urllib could open a file of the node as root."""
    writer = runpy.run_path(str(root / "roles/netboot/files/rackproof-write-image"))
    with pytest.raises(writer["WriteError"]):
        writer["fetch"](address, pause=0)
    assert writer["report"](address, {}) is False


FACT_AS_VARIABLE = re.compile(
    r"(?<!ansible_facts\.)(?<!ansible\.builtin\.)\b"
    r"(?:getent_(?:passwd|group|shadow|hosts)|ansible_(?:distribution|hostname|architecture|kernel|mounts)\w*)\b"
)


def files_below(root: Path, *folders: str) -> list[Path]:
    """Return the files below some folders of the checkout, in order."""
    return [path for folder in folders for path in sorted((root / folder).rglob("*")) if path.is_file()]


def lines_with(pattern: re.Pattern[str], root: Path, paths: Iterable[Path]) -> list[str]:
    """Return file and text of each line in which a pattern occurs."""
    return [
        f"{path.relative_to(root)}: {line.strip()}"
        for path in paths
        for line in path.read_text().splitlines()
        if pattern.search(line)
    ]


def test_no_role_reads_a_fact_as_a_variable(root: Path) -> None:
    """ansible.cfg keeps facts from becoming variables, which a node could replace."""
    paths = files_below(root, "roles", "playbooks", "molecule")
    found = lines_with(FACT_AS_VARIABLE, root, (path for path in paths if path.suffix in (".yml", ".j2")))
    assert not found, "write ansible_facts.NAME"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("x: \"{{ getent_passwd['u'] }}\"", True),
        ('x: "{{ ansible_distribution_release }}"', True),
        ("x: \"{{ ansible_facts.getent_passwd['u'] }}\"", False),
        ('x: "{{ ansible_facts.distribution }}"', False),
    ],
)
def test_facts_are_found(line: str, found: bool) -> None:
    assert bool(FACT_AS_VARIABLE.search(line)) is found


MEASURED_TIME = re.compile(
    r"assert .*\btime\.(?:monotonic|perf_counter|time)\(\) - \w+ <"
    r"|\.(?:wait|communicate)\((?:timeout=)?[1-9]\d?\)"
    r"|^(?!.*\burlopen\().*[ ,]timeout=[1-9]\d?(?=[,)]|$)"
    r"|\btime\.monotonic\(\) \+ [1-9]\d?$"
)


def test_no_test_outside_the_playbooks_measures_the_machine(root: Path) -> None:
    """A busy machine is ten times slower, so a test waits for an event, and pytest's own limit ends it."""
    paths = (path for path in files_below(root, "tests", "testrack/tests") if path.suffix == ".py")
    elsewhere = {"e2e", "perf", "test_static_checks.py"}
    found = lines_with(MEASURED_TIME, root, (path for path in paths if not elsewhere & set(path.parts)))
    assert not found, "let it wait for an event; a limit that has to end something needs no such line"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("    assert time.monotonic() - begin < 5", True),
        ("    assert 0.4 < time.monotonic() - begin < 5", True),
        ("    child.communicate(timeout=20)", True),
        ("    assert half.wait(10) != 0", True),
        ("        timeout=60,", True),
        ("    done = subprocess.run(command, capture_output=True, timeout=20)", True),
        ("    deadline = time.monotonic() + 15", True),
        ("    assert time.monotonic() - begin > 0.4", False),
        ("    child.communicate(timeout=300)", False),
        ("    deadline = time.monotonic() + 300", False),
    ],
)
def test_a_measured_time_is_found(line: str, found: bool) -> None:
    assert bool(MEASURED_TIME.search(line)) is found
