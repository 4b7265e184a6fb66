"""Find the modules and data files that tests use, from the imports of the tests. suites.py calls this module.

A suite that names only its own test files would stay green after a change of a fixture or a fake. The imports
are read with patterns, because parsing hundreds of files would take longer than some of the fast tests. Words
of a docstring that look like an import add a file too many, which is harmless.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath

TEST_FOLDERS = ("tests/", "testrack/tests/")
IMPORT_ROOTS = ("", "testrack/", "testrack/mirror/")
"""Folders from which tests import, as in `pythonpath` of pyproject.toml."""
SELECTION = ("src/", "tools/proof/")
"""Folders that are left out. The table names the modules of src. The selection of tests is not a part of a
test: an edit of the selection would make all suites stale."""
_FROM = re.compile(r"^[ \t]*from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)", re.MULTILINE)
_IMPORT = re.compile(r"^[ \t]*import[ \t]+([\w.]+(?:[ \t]*,[ \t]*[\w.]+)*)", re.MULTILINE)
_PROGRAM = re.compile(r"[\w/-]+\.py\b")
_DATA = re.compile(r"\breal_logs\b|tests/data\b|parents\[[0-9]\] / \"data\b")
_DATA_FOLDER = "tests/data"
_WORD = re.compile(r"\w+")


def with_helpers(names: Iterable[str], tree: Collection[str], root: Path) -> set[str]:
    """Return test files with the Python files that they import or start, and with the data of their folders.

    Args:
        names: The Python files of the tests, relative to ``root``.
        tree: All files of the checkout, relative to ``root``.
        root: The checkout.
    """
    files = frozenset(tree)
    found: set[str] = set()
    waiting = [name for name in names if name in files]
    while waiting:
        name = waiting.pop()
        if name in found or name.startswith(SELECTION):
            continue
        found.add(name)
        waiting += (path for path in (*_uses(root / name, name), *_beside(name)) if path in files)
    return found | set(_data(found, files, root))


@cache
def _uses(path: Path, name: str) -> frozenset[str]:
    """Return the files that a file may import, and the Python programs in the tests that it may start."""
    text = path.read_text(errors="replace")
    package = PurePosixPath(name).parent.parts
    modules = {word.strip() for match in _IMPORT.finditer(text) for word in match[1].split(",")}
    for dots, module, imported in _FROM.findall(text):
        parts = [*package[: len(package) - len(dots) + 1]] if dots else []
        base = ".".join([*parts, *([module] if module else [])])
        # Each name may be a module of a package.
        modules |= {base, *(f"{base}.{word}" for word in _WORD.findall(imported))}
    programs = {word for word in _PROGRAM.findall(text) if not PurePosixPath(word).name.startswith("test_")}
    beside = {str(PurePosixPath(name).parent / word) for word in programs}
    started = {word for word in programs | beside if word.startswith(TEST_FOLDERS)}
    return frozenset(path for module in modules for path in _paths(module, name)) | started


def _paths(module: str, user: str) -> Iterator[str]:
    """Yield the files that a module may be. Programs also import from their own folder."""
    path = module.replace(".", "/")
    for folder in (*IMPORT_ROOTS, f"{PurePosixPath(user).parent}/"):
        yield f"{folder}{path}.py"
        yield f"{folder}{path}/__init__.py"


def _beside(name: str) -> Iterator[str]:
    """Yield the files that Python and pytest read before a file."""
    for folder in PurePosixPath(name).parents:
        for file in ("__init__.py", "conftest.py"):
            yield str(folder / file)


def _data(found: Collection[str], files: Collection[str], root: Path) -> Iterator[str]:
    """Yield the other files in the folders of tests and helpers, and below them."""
    users = [name for name in found if name.startswith(TEST_FOLDERS) and not name.endswith("__init__.py")]
    # Every folder would be below these two.
    folders = {str(PurePosixPath(name).parent) for name in users} - {"tests", "testrack/tests"}
    if any(_DATA.search((root / name).read_text(errors="replace")) for name in users):
        folders.add(_DATA_FOLDER)
    for name in files:
        is_data = name.startswith(TEST_FOLDERS) and not name.endswith(".py")
        if is_data and any(str(parent) in folders for parent in PurePosixPath(name).parents):
            yield name
