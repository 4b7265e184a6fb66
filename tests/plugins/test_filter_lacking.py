"""Test the filters ``packages_lacking`` and ``files_lacking`` against equivalent expressions in Jinja.

A role changes a node only if a package or file differs from the wanted state, which these filters decide.
Each filter is compared with a second, independent implementation in Jinja, for every case of the tables.
Missing input must fail, and never look like a node without differences. This also holds for the filter
``units_outdated`` (its function is tested in tests/nodes/test_files.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from rackproof.nodes.files import lacking_files
from rackproof.nodes.packages import lacking_packages

# Pairs of expressions that are true if the node differs: the one in Jinja (BEFORE) and the one with the
# filter (NOW).
HELD_BEFORE = """(wanted.keys() | zip(wanted.values()) | map('join', ' ')
  | difference(node.packages | dict2items | selectattr('value.held') | map(attribute='key')
  | zip(node.packages | dict2items | selectattr('value.held') | map(attribute='value.version'))
  | map('join', ' '))) | length > 0"""
HELD_NOW = "wanted | packages_lacking(node.packages, exact=true) | length > 0"
PATTERN_BEFORE = """lookup('ansible.builtin.template', folder ~ '/unmet.j2') is search('unmet')"""
PATTERN_NOW = "wanted | packages_lacking(node.packages) | length > 0"
UNMET = r"""{%- for name, version in wanted.items() -%}
{%- set there = node.packages[name] | default({'version': '', 'held': false}) -%}
{%- set pattern = '^' ~ (version | string | default('?*', true) | regex_escape | replace('\\*', '.*')
  | replace('\\?', '.')) ~ '$' -%}
{%- if not there.held or there.version is not match(pattern) -%}unmet{%- endif -%}
{%- endfor -%}
"""
SLURM_BEFORE = r"""wanted | dict2items | rejectattr('key', 'in', (node.packages | dict2items
  | rejectattr('key', 'match', 'slurm') + node.packages | dict2items | selectattr('key', 'match', 'slurm')
  | selectattr('value.version', 'match', wanted.slurmd | regex_escape | replace('\*', '.*') ~ '$'))
  | map(attribute='key')) | length > 0"""
SLURM_NOW = "wanted | packages_lacking(node.packages, hold=false) | length > 0"
LEGACY_BEFORE = """wanted | list | map('extract', node.packages) | selectattr('version', 'defined')
  | selectattr('version', 'eq', wanted.values() | first) | length != wanted | length"""
LEGACY_NOW = "wanted | packages_lacking(node.packages, hold=false, exact=true) | length > 0"
PACKAGE_PAIRS = {
    "held": (HELD_BEFORE, HELD_NOW),
    "pattern": (PATTERN_BEFORE, PATTERN_NOW),
    "slurm": (SLURM_BEFORE, SLURM_NOW),
    "legacy": (LEGACY_BEFORE, LEGACY_NOW),
}
SUMS_BEFORE = """wanted | map(attribute='path')
  | zip(wanted | map(attribute='content') | map('hash', 'sha256')) | map('join', ' ')
  | difference(node.files.keys() | zip(node.files.values()) | map('join', ' ')) | length > 0"""
SUMS_NOW = "wanted | files_lacking(node) | length > 0"
MODES_BEFORE = """(wanted | map(attribute='path')
  | zip(wanted | map(attribute='content') | map('hash', 'sha256')) | map('join', ' ')
  | difference(node.files.keys() | zip(node.files.values()) | map('join', ' '))
  + (wanted | map(attribute='path') | zip(wanted | map(attribute='mode')) | map('join', ' ')
  | product(['0:0']) | map('join', ' ')
  | difference(node.modes.keys() | zip(node.modes.values()) | map('join', ' ')))) | length > 0"""
MODES_NOW = "wanted | files_lacking(node, modes=true) | length > 0"
FILE_PAIRS = {"sums": (SUMS_BEFORE, SUMS_NOW), "modes": (MODES_BEFORE, MODES_NOW)}


def package(version: Any, held: bool = True) -> dict[str, Any]:
    """Return the entry of a package in the facts."""
    return {"version": version, "held": held}


# By name: what is wanted and what the node has.
PACKAGES: dict[str, tuple[Any, Any]] = {
    "as wanted": ({"slurmd": "23.11.4-1"}, {"slurmd": package("23.11.4-1")}),
    "several": (
        {"slurmd": "23.11.4-1", "slurm-client": "23.11.4-1"},
        {"slurmd": package("23.11.4-1"), "slurm-client": package("23.11.4-1"), "munge": package("1")},
    ),
    "one of several is old": (
        {"slurmd": "23.11.4-1", "slurm-client": "23.11.4-1"},
        {"slurmd": package("23.11.4-1"), "slurm-client": package("23.02.1-1")},
    ),
    "absent": ({"slurmd": "23.11.4-1"}, {"munge": package("1")}),
    "nothing installed": ({"slurmd": "23.11.4-1"}, {}),
    "not held": ({"slurmd": "23.11.4-1"}, {"slurmd": package("23.11.4-1", held=False)}),
    "other version": ({"slurmd": "23.11.4-1"}, {"slurmd": package("23.11.4-2")}),
    "longer version": ({"slurmd": "23.11.4-1"}, {"slurmd": package("23.11.4-1ubuntu1")}),
    "dots are dots": ({"slurmd": "23.11.4-1"}, {"slurmd": package("23x11x4-1")}),
    "epoch on the node": ({"slurmd": "23.11.4-1"}, {"slurmd": package("1:23.11.4-1")}),
    "epoch in the pin": ({"slurmd": "1:23.11.4-1"}, {"slurmd": package("23.11.4-1")}),
    "epoch in both": ({"slurmd": "1:23.11.4-1"}, {"slurmd": package("1:23.11.4-1")}),
    "open epoch": ({"slurmd": "*:23.11.4-*"}, {"slurmd": package("1:23.11.4-1")}),
    "pattern": ({"slurmd": "23.11*"}, {"slurmd": package("23.11.4-1+b1~x")}),
    "pattern of another version": ({"slurmd": "23.11*"}, {"slurmd": package("24.05.1-1")}),
    "pattern, not held": ({"slurmd": "23.11*"}, {"slurmd": package("23.11.4-1", held=False)}),
    "no version on the node": ({"slurmd": "23.11*"}, {"slurmd": package("")}),
    "another package's version": ({"slurmd": "2"}, {"slurmd": package("1"), "munge": package("2")}),
}
# Cases without a wanted version. Only two of the four pairs get them, because the packages of the others
# always have a version.
ANY: dict[str, tuple[Any, Any]] = {
    "any version": ({"linux-headers": ""}, {"linux-headers": package("1")}),
    "any version, not held": ({"linux-headers": ""}, {"linux-headers": package("1", held=False)}),
    "any version, absent": ({"linux-headers": ""}, {}),
}
TEXT = "[enroot]\nä = 1\n"
SUM = sha256(TEXT.encode()).hexdigest()
FILE = {"path": "/etc/a.conf", "content": TEXT, "mode": "0644"}
OTHER = {"path": "/etc/b.conf", "content": "", "mode": "0755"}
ROOTS = {"/etc/a.conf": "0644 0:0"}
# By name: what is wanted, the node's checksums and its modes.
FILES: dict[str, tuple[Any, Any, Any]] = {
    "as wanted": ([FILE], {"/etc/a.conf": SUM}, ROOTS),
    "nothing wanted": ([], {}, {}),
    "never asked for": ([FILE], {}, {}),
    "absent": ([FILE], {"/etc/a.conf": None}, {}),
    # The facts have no checksum of a directory or of a file that is too large.
    "directory": ([FILE], {"/etc/a.conf": None}, {"/etc/a.conf": "0755 0:0"}),
    "no checksum": ([FILE], {"/etc/a.conf": ""}, ROOTS),
    "other content": ([FILE], {"/etc/a.conf": "0" * 64}, ROOTS),
    "another file's content": ([FILE], {"/etc/a.conf": None, "/etc/b.conf": SUM}, ROOTS),
    "other mode": ([FILE], {"/etc/a.conf": SUM}, {"/etc/a.conf": "0600 0:0"}),
    "set-user-ID": ([FILE], {"/etc/a.conf": SUM}, {"/etc/a.conf": "4644 0:0"}),
    "other owner": ([FILE], {"/etc/a.conf": SUM}, {"/etc/a.conf": "0644 1000:0"}),
    "other group": ([FILE], {"/etc/a.conf": SUM}, {"/etc/a.conf": "0644 0:1000"}),
    "no mode known": ([FILE], {"/etc/a.conf": SUM}, {}),
    "two, one lacks": ([FILE, OTHER], {"/etc/a.conf": SUM, "/etc/b.conf": "x"}, ROOTS),
    "an empty file": ([OTHER], {"/etc/b.conf": sha256().hexdigest()}, {"/etc/b.conf": "0755 0:0"}),
    "an empty file, absent": ([OTHER], {"/etc/b.conf": None}, {}),
}
# By pair, the variables of its two expressions in each case.
CASES: dict[str, dict[str, dict[str, Any]]] = {
    pair: {
        name: {"wanted": wanted, "node": {"packages": installed}}
        for name, (wanted, installed) in (PACKAGES | (ANY if pair in ("held", "pattern") else {})).items()
    }
    for pair in PACKAGE_PAIRS
} | {
    pair: {
        name: {"wanted": files, "node": {"files": sums, "modes": modes}}
        for name, (files, sums, modes) in FILES.items()
    }
    for pair in FILE_PAIRS
}
# Expressions with missing or wrong input. Each must fail.
NODE = "{'files': {}, 'modes': {}}"
ENTRY = "{'path': '/a', 'content': 'x'}"
WRONG = [
    "{'a': ''} | packages_lacking(nowhere)",
    "{'a': ''} | packages_lacking({}.packages)",
    "{'a': ''} | packages_lacking(none)",
    "none | packages_lacking({})",
    "nowhere | packages_lacking({})",
    "[] | packages_lacking({})",
    f"nowhere | files_lacking({NODE})",
    f"none | files_lacking({NODE})",
    f"{{}} | files_lacking({NODE})",
    f"['/a'] | files_lacking({NODE})",
    f"[{{'path': '/a'}}] | files_lacking({NODE})",
    f"[{{'path': '/a', 'content': none}}] | files_lacking({NODE})",
    f"[{{'path': '/a', 'content': nowhere}}] | files_lacking({NODE})",
    f"[{ENTRY}] | files_lacking({NODE}, modes=true)",
    "[] | files_lacking(nowhere)",
    "[] | files_lacking(none)",
    "[] | files_lacking({})",
    "[] | files_lacking({'files': none})",
    "[] | files_lacking({'files': {}}, modes=true)",
    "{} | units_outdated(nowhere)",
    "{} | units_outdated({'unit_starts': {}})",
    "{} | units_outdated({'unit_starts': {}, 'changed_at': none})",
    "[] | units_outdated({'unit_starts': {}, 'changed_at': {}})",
    "{'a.service': '/a'} | units_outdated({'unit_starts': {}, 'changed_at': {}})",
]
pytestmark = pytest.mark.playbook


@pytest.fixture(scope="module")
def results(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return the results of a playbook's tasks: a loop over each pair's cases, and each wrong expression."""
    folder = tmp_path_factory.mktemp("lacking")
    (folder / "unmet.j2").write_text(UNMET)
    tasks: dict[str, dict[str, Any]] = {
        pair: {
            "ansible.builtin.debug": {"msg": [f"{{{{ {before} }}}}", f"{{{{ {now} }}}}"]},
            "vars": {"wanted": "{{ item.wanted }}", "node": "{{ item.node }}", "folder": str(folder)},
            "loop": list(CASES[pair].values()),
        }
        for pair, (before, now) in (PACKAGE_PAIRS | FILE_PAIRS).items()
    }
    for wrong in WRONG:
        tasks[wrong] = {"ansible.builtin.debug": {"msg": f"{{{{ {wrong} }}}}"}}
    for number, task in enumerate(tasks.values()):
        task |= {"name": f"Case {number}", "ignore_errors": True, "register": f"case_{number}"}
    every = ", ".join(f"case_{number}" for number in range(len(tasks)))
    keep = {"content": "{{ [" + every + "] | to_json }}", "dest": str(folder / "results"), "mode": "0600"}
    play = {
        "name": "Filters",
        "hosts": "localhost",
        "gather_facts": False,
        "vars": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable},
        "tasks": [*tasks.values(), {"name": "Keep", "ansible.builtin.copy": keep}],
    }
    playbook = folder / "playbook.yml"
    playbook.write_text(json.dumps([play]))
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", "localhost,", playbook],
        cwd=root,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    return dict(zip(tasks, json.loads((folder / "results").read_text()), strict=True))


@pytest.mark.parametrize("pair", CASES)
def test_the_filter_decides_as_the_expression_before_it(
    results: dict[str, dict[str, Any]], pair: str
) -> None:
    decisions = {
        name: result["msg"] for name, result in zip(CASES[pair], results[pair]["results"], strict=True)
    }
    assert all(isinstance(now, bool) for _, now in decisions.values()), decisions
    assert {name: now for name, (_, now) in decisions.items()} == {
        name: before for name, (before, _) in decisions.items()
    }
    assert {now for _, now in decisions.values()} == {True, False}


@pytest.mark.parametrize("expression", WRONG)
def test_missing_input_fails(results: dict[str, dict[str, Any]], expression: str) -> None:
    assert results[expression].get("failed"), results[expression]


def test_bytes_that_are_not_utf_8_are_hashed_as_they_were() -> None:
    file = {"path": "/etc/a.conf", "content": "a\udcff"}
    assert lacking_files([file], {"/etc/a.conf": sha256(b"a\xff").hexdigest()}) == []
    assert lacking_files([file], {"/etc/a.conf": sha256(b"a").hexdigest()}) == [file]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("installed", [{}, {"a": {}}, {"a": {"version": "", "held": True}}])
def test_a_package_without_a_version_is_never_as_wanted(installed: dict[str, Any], exact: bool) -> None:
    assert lacking_packages({"a": ""}, installed, hold=False, exact=exact) == ["a"]
