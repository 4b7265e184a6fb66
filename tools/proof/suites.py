"""Read the table of test suites (suites.toml), and find out which suites passed with the present files.

`python -m tools.proof` runs the suites with this module, and conftest.py selects a suite's tests with it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import grimp
import yaml

from tools.proof.helpers import TEST_FOLDERS, with_helpers

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("suites.toml")
RECORDS = ROOT / ".rackproof" / "suites"
FAST = "fast"
"""Name of the suite with all tests that no entry of the table selects. `make test` runs it together with lint
and the suite four-jobs."""
COMMON = ("conftest.py", "constraints.txt", "pyproject.toml", "tools/make-venv")
"""Files on which every suite depends."""
PACKAGES = ("rackproof", "rackproof_ansible")
"""The packages whose imports are followed."""
RACK_FIXTURES = "testrack/tests/rack_fixtures.py"
"""A plugin of pytest, which conftest.py names and no test imports."""
READ_TRIES = 10
"""Number of times that git tries to read the checkout."""


@dataclass(frozen=True)
class Suite:
    """An entry of the table, whose keys suites.toml explains."""

    name: str
    proves: str
    run: tuple[str, ...]
    minutes: float
    files: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    rack: int = 0
    fresh: bool = False
    needs: str = ""
    only_named: bool = False

    @property
    def lacking(self) -> str:
        """Return the program that this machine lacks for the suite, or ""."""
        return "" if not self.needs or shutil.which(self.needs) else self.needs


def read_table(text: str | None = None) -> dict[str, Suite]:
    """Return the suites by name, in the order of the table.

    Raises:
        TypeError: An entry lacks a key, or contains an unknown one.
    """
    entries = tomllib.loads(TABLE.read_text() if text is None else text)
    return {name: Suite(name=name, **_tuples(entry)) for name, entry in entries.items()}


def _tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry with tuples in place of lists."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}


def suite_of(path: str, marks: Collection[str], table: Mapping[str, Suite]) -> str:
    """Return the name of the first suite that has a test's file or one of its marks, or :data:`FAST`."""
    for suite in table.values():
        if any(fnmatch(path, pattern) for pattern in suite.files) or set(suite.marks) & set(marks):
            return suite.name
    return FAST


def files_with_tests(suite: Suite, root: Path = ROOT) -> list[str]:
    """Return the test files of a suite, or [] if marks select its tests."""
    tests = (name for name in working_tree(root) if fnmatch(Path(name).name, "test_*.py"))
    return [
        name for name in tests if not suite.marks and any(fnmatch(name, pattern) for pattern in suite.files)
    ]


# Inputs of a suite


@cache
def working_tree(root: Path) -> tuple[str, ...]:
    """Return the files of the checkout that git tracks or does not ignore, as paths relative to it."""
    process = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    names = {name for name in process.stdout.decode(errors="surrogateescape").split("\0") if name}
    return tuple(sorted(name for name in names if (root / name).is_file()))


@cache
def _graph(root: Path) -> grimp.ImportGraph:
    # root is only a key of the cache. grimp reads the installed packages, which must come from this checkout.
    del root
    return grimp.build_graph(*PACKAGES, cache_dir=None)


def modules_of(suite: Suite, root: Path) -> set[str]:
    """Return the modules on which a suite depends: those of its entry, and all that these import."""
    graph = _graph(root)
    modules: set[str] = set()
    for name in suite.modules:
        for module in {name} | graph.find_descendants(name):
            modules |= {module} | graph.find_upstream_modules(module)
    return {module for module in modules if not _below(module, suite.without)}


def _below(module: str, packages: Iterable[str]) -> bool:
    """Return whether a module is one of the packages, or in one of them."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def input_files(suite: Suite, root: Path = ROOT) -> list[str]:
    """Return the files that a suite depends on, relative to the checkout."""
    modules, tree = modules_of(suite, root) if suite.modules else set(), working_tree(root)
    named = {name for name in tree if _is_input(name, suite, modules, root)}
    tests = [name for name in named if name.endswith(".py") and name.startswith(TEST_FOLDERS)]
    if tests and suite.rack:
        tests.append(RACK_FIXTURES)
    return sorted(named | with_helpers(tests, tree, root))


def _is_input(name: str, suite: Suite, modules: set[str], root: Path) -> bool:
    """Return whether a suite's result depends on a file."""
    if name in COMMON or any(name == path or name.startswith(f"{path}/") for path in suite.paths):
        return True
    if name.startswith("src/"):
        return _module_name(name, root) in modules
    if not name.startswith(TEST_FOLDERS):
        return False
    return any(fnmatch(name, pattern) for pattern in suite.files) or _has_mark(root / name, suite.marks)


def _module_name(name: str, root: Path) -> str:
    """Return the module of a Python file, or the package that contains another file."""
    path = Path(name)
    if path.suffix != ".py" or path.stem == "__init__":
        path = path.parent
        while not (root / path / "__init__.py").is_file() and len(path.parts) > 1:
            path = path.parent
    return ".".join(path.with_suffix("").parts[1:])


def _has_mark(path: Path, marks: Collection[str]) -> bool:
    """Return whether a test file contains any of the marks. A file without tests counts for all marks."""
    if path.suffix != ".py" or not marks:
        return False
    return not path.name.startswith("test_") or any(f"mark.{mark}" in path.read_text() for mark in marks)


def digest_inputs(suite: Suite, root: Path = ROOT) -> str:
    """Return the SHA-256 of a suite's entry in the table, and of its input files without their words."""
    state = hashlib.sha256(repr(suite).encode())
    for name in input_files(suite, root):
        state.update(f"\n{name}\n".encode(errors="surrogateescape"))
        state.update(digest_without_words(name, (root / name).read_bytes()))
    return state.hexdigest()


@cache
def digest_without_words(name: str, content: bytes) -> bytes:
    """Return the SHA-256 of a file. In Python and YAML files, comments and docstrings do not count.

    A change of such words therefore makes no suite stale. The fast tests check all that shows a
    docstring: the help of the commands, the schema and docs/. A file that cannot be parsed counts with all
    its bytes.
    """
    # A first line such as `#!/usr/bin/env python3` or `#cloud-config` is a comment that has an effect.
    first = re.match(rb"#[^#\s].*", content)
    beginning = first[0] + b"\n" if first else b""
    try:
        if name.endswith(".py"):
            content = beginning + ast.dump(_WithoutDocstrings().visit(ast.parse(content))).encode()
        elif name.endswith((".yml", ".yaml")):
            content = beginning + "\n".join(_tokens(content)).encode(errors="surrogatepass")
    except (SyntaxError, ValueError, yaml.YAMLError):
        pass
    return hashlib.sha256(content).digest()


class _WithoutDocstrings(ast.NodeTransformer):
    """A transformer that removes each statement that is only a string."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        """Return the statement, or None to remove it."""
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else node


def _tokens(text: bytes) -> Iterable[str]:
    """Yield the kind and the value of each token of a YAML file, which has no token for a comment."""
    for token in yaml.scan(text, Loader=yaml.CSafeLoader):
        yield repr((type(token).__name__, getattr(token, "value", ""), getattr(token, "style", "")))


def tree_hash(root: Path = ROOT) -> str:
    """Return git's hash of the tree as it would be committed now, with untracked files."""
    records = root / ".rackproof" / "suites"
    records.mkdir(parents=True, exist_ok=True)
    # Each call has an index of its own, because two suites of one checkout can begin at the same moment.
    with tempfile.TemporaryDirectory(dir=records, prefix=".index-") as folder:
        options: dict[str, Any] = {"cwd": root, "capture_output": True, "text": True}
        options["env"] = os.environ | {"GIT_INDEX_FILE": f"{folder}/index"}
        # git fails if a file of a running test vanishes while git reads the checkout. The next try does
        # not see that file.
        for _ in range(READ_TRIES):
            process = subprocess.run(["git", "add", "--all"], **options)
            if process.returncode == 0:
                break
        else:
            raise OSError(f"git cannot read the files of {root}: {process.stderr.strip()}")
        process = subprocess.run(["git", "write-tree"], check=True, **options)
    return str(process.stdout).strip()


# Records


def read_record(name: str, records: Path = RECORDS) -> dict[str, Any]:
    """Return the record of a suite's last run, or {} if there is no readable one."""
    try:
        record = json.loads((records / f"{name}.json").read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def write_record(name: str, record: Mapping[str, Any], records: Path = RECORDS) -> None:
    """Store the record of a suite's run, completely or not at all."""
    records.mkdir(parents=True, exist_ok=True)
    draft = records / f".{name}.new"
    draft.write_text(json.dumps(record, indent=1) + "\n")
    draft.replace(records / f"{name}.json")


def state_of(suite: Suite, root: Path = ROOT, records: Path = RECORDS) -> str:
    """Return a suite's state.

    The state is "green" (the last run passed with the present inputs), "stale" (it passed with other inputs),
    "red" (it failed), "never", or "needs PROGRAM" (it never ran, and this machine lacks the program).
    """
    record = read_record(suite.name, records)
    if not record:
        return f"needs {suite.lacking}" if suite.lacking else "never"
    if record.get("result") != "green":
        return "red"
    return "green" if record.get("inputs") == digest_inputs(suite, root) else "stale"
