"""Test that every name on the pages for people exists.

A name is a path, link, test, command, make target, variable or finding code in a page's code. The function of
each kind returns the names of a text that do not exist.
"""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

from rackproof.core.finding_codes import find_code
from rackproof.core.known_variables import known_variables, role_prefixes
from tests.test_docs_commands import PLACEHOLDERS, commands_of, problem_of_command
from tests.test_plain_english import pages

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*pages(ROOT), ROOT / "docs/inside/words.md"]
CODE = re.compile(r"`([^`\n]+)`")
BLOCK_LINE = re.compile(r"(?m)^ {4,}(\S.*)$")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"(?m)^#+ (.+)$")
PATH_END = ".,;:)"
PLACEHOLDER = re.compile(r"<[^>]*>|\{[^}]*\}|[A-Z]{2,}(?:_[A-Z]+)*|…|\.\.\.")
# Where paths without a folder of the checkout may begin: the pages name files of the package without src/.
BASES = ("", "src/", "src/rackproof/", "inventory/", "inventory/group_vars/")
# Paths of examples, which a reader or a reader's playbook makes, and paths of other projects.
MADE_BY_READERS = frozenset(
    {
        "benchmarks/sysbench.yml",
        "benchmarks/scratch-disk.yml",
        "workloads/scratch_disk.py",
        "inventory/discovered.yml",
        "inventory/host_vars/NODE.yml",
        "inventory/group_vars/gb300-rack/test-rack.yml",
        "benchmarks/llama2_70b_lora/implementations/gb300_n18",
    }
)
# Names that begin like a role's variables, but are a placeholder in definitions and a program.
NO_VARIABLES = frozenset({"storage_folder", "ofed_info"})
MOST_WORDS_OF_MAKE = 3
"""A line that begins with make and has more words is a sentence."""


@cache
def tracked() -> frozenset[str]:
    """Return every tracked file and folder of the checkout."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    files = [name for name in listed.decode().split("\0") if name]
    return frozenset(files) | {str(parent) for name in files for parent in Path(name).parents}


@cache
def first_folders() -> frozenset[str]:
    """Return the folders of the checkout, and rackproof_ansible, with which a path of a page may begin."""
    return frozenset(name.split("/")[0] for name in tracked() if "/" in name) | {"rackproof_ansible"}


@cache
def rooms() -> frozenset[str]:
    """Return the rooms of the package. Folders of results, too, are called ``logs/`` and ``nodes/``."""
    return frozenset(path.name for path in (ROOT / "src/rackproof").iterdir() if path.is_dir())


def names_a_path(word: str) -> bool:
    """Return whether a word begins like a path of the checkout or of the package."""
    first, _, rest = word.partition("/")
    if not rest or word[-1] in "=|":
        return False
    return first in first_folders() or (first in rooms() and Path(word).suffix in ("", ".py"))


def alternatives(path: str) -> Iterator[str]:
    """Yield the paths that a path with a choice in braces means."""
    match = re.search(r"\{([^{}]*,[^{}]*)\}", path)
    if match is None:
        yield path
        return
    for choice in match[1].split(","):
        yield from alternatives(path[: match.start()] + choice.strip() + path[match.end() :])


def is_tracked(path: str) -> bool:
    """Return whether a path of a page, in which words in capitals stand for any name, is in the checkout."""
    pattern = PLACEHOLDER.sub("*", path).rstrip("/")
    if "*" not in pattern:
        return any(base + pattern + end in tracked() for base in BASES for end in ("", ".py"))
    return any(fnmatchcase(name, base + pattern) for base in BASES for name in tracked())


def words_of_code(text: str) -> list[str]:
    """Return the words of all inline code and of all blocks of code."""
    return [word for code in (*CODE.findall(text), *BLOCK_LINE.findall(text)) for word in code.split()]


def paths_of(text: str) -> set[str]:
    """Return the paths of the checkout in the code of a page."""
    words = {word.split("::")[0].strip("'\"").lstrip("@").rstrip(PATH_END) for word in words_of_code(text)}
    return {path for word in words if names_a_path(word) for path in alternatives(word)}


def missing_paths(text: str) -> set[str]:
    """Return the paths that a page names and the checkout does not have."""
    return {
        path for path in paths_of(text) if not is_tracked(path) and path.rstrip("/") not in MADE_BY_READERS
    }


def test_no_shipped_file_counts_as_one_that_readers_make() -> None:
    assert {path for path in MADE_BY_READERS if is_tracked(path)} == set(), (
        "give the page's example another name"
    )


def anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    text = re.sub(r"\]\([^)]*\)", "", heading).lower().strip()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def broken_links(page: Path, text: str) -> set[str]:
    """Return the links of a page whose file or heading does not exist."""
    broken = set()
    for target, part in LINK.findall(re.sub(CODE, "", text)):
        path = (page.parent / target).resolve() if target else page
        if not path.exists():
            broken.add(target)
        elif part and path.suffix == ".md" and part not in map(anchor, HEADING.findall(path.read_text())):
            broken.add(f"{target}#{part}")
    return broken


def missing_tests(text: str) -> set[str]:
    """Return the tests that a page names and that no file defines."""
    named = {word.rstrip(PATH_END) for word in words_of_code(text) if "::" in word and "test_" in word}
    lacking = set()
    for name in named:
        path, *parts = name.split("::")
        source = ROOT / path
        if not source.is_file() or any(f" {part}" not in source.read_text() for part in parts):
            lacking.add(name)
    return lacking


def missing_names(text: str) -> set[str]:
    """Return dotted names of the package, such as ``core.text.sanitize``, that no module of it defines."""
    lacking = set()
    for name in {name for code in CODE.findall(text) for name in re.findall(r"(?:\w+\.)+\w+", code)}:
        parts = name.removeprefix("rackproof.").split(".")
        modules = [ROOT / "src/rackproof" / Path(*parts[:count]) for count in range(1, len(parts) + 1)]
        if not modules[0].is_dir() or "." not in name:
            continue
        known = [path for path in modules[1:] if path.is_dir() or path.with_suffix(".py").is_file()]
        rest = parts[1 + len(known) :]
        last = known[-1] if known else modules[0]
        source = last / "__init__.py" if last.is_dir() else last.with_suffix(".py")
        if source.is_file() and all(re.search(rf"\b{part}\b", source.read_text()) for part in rest):
            continue
        if rest or not known:
            lacking.add(name)
    return lacking


def missing_targets(text: str) -> set[str]:
    """Return the make targets that a page names and the Makefile does not have."""
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    named = {
        word
        for words in commands_of(text, "make")
        for command in [list(itertools.takewhile(lambda word: word != "&&", words))]
        if len(command) <= MOST_WORDS_OF_MAKE
        for word in command
        if re.fullmatch(r"[a-z][a-z-]*", word)
    }
    return named - targets


def missing_commands(text: str) -> set[str]:
    """Return the commands, options and playbooks that a page names and that do not exist."""
    problems = set()
    for words in commands_of(text, "rackproof"):
        if words[0] == "ALL=(root)":  # a user of that name in a file of sudo
            continue
        if problem := problem_of_command(words):
            problems.add(f"rackproof {' '.join(words)}: {problem}")
    for words in commands_of(text, "ansible-playbook"):
        if words[0].endswith(".yml") and not is_tracked(words[0]):
            problems.add(words[0])
    return problems


@cache
def groups_of_inventory() -> frozenset[str]:
    """Return the names of groups that the inventory defines."""
    return frozenset(re.findall(r"(?m)^ *(\w+):", (ROOT / "inventory/hosts.yml").read_text()))


def missing_variables(text: str) -> set[str]:
    """Return the names in the code of a page that have a role's prefix and are no variable of a role."""
    named = {
        name
        for code in (*CODE.findall(text), *BLOCK_LINE.findall(text))
        for name in re.findall(r"(?<![\w./-])[a-z]+_[a-z0-9_]+(?![\w(/]|\.[a-z])", code)
        if name.startswith(role_prefixes(ROOT))
    }
    others = {path.stem for path in (ROOT / "plugins/filter").glob("*.yml")} | groups_of_inventory()
    left = named - known_variables(ROOT) - NO_VARIABLES - others
    return {name for name in left if find_code(name) is None and not name.endswith("_")}


def missing_codes(text: str) -> set[str]:
    """Return arguments of ``rackproof explain`` in small letters that are neither a code nor a node."""
    named = {words[1] for words in commands_of(text, "rackproof") if words[0] == "explain"}
    return {
        name for name in named - PLACEHOLDERS if re.fullmatch(r"[a-z_:]+", name) and find_code(name) is None
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_names_on_a_page_exist(page: Path) -> None:
    text = page.read_text()
    assert not missing_paths(text)
    assert not broken_links(page, text)
    assert not missing_tests(text)
    assert not missing_names(text)
    assert not missing_targets(text)
    assert not missing_commands(text)
    assert not missing_variables(text)
    assert not missing_codes(text)


@pytest.mark.parametrize(
    ("find", "text", "lacking"),
    [
        (missing_paths, "see `src/rackproof/peer_memory.py`", {"src/rackproof/peer_memory.py"}),
        (missing_paths, "`roles/{bench,provisions}/tasks/`", {"roles/provisions/tasks/"}),
        (missing_paths, "`jobs/bench/following.py` `core/text`", {"jobs/bench/following.py"}),
        (missing_paths, "    python tests/perf/no_such.py --pairs 3", {"tests/perf/no_such.py"}),
        (missing_paths, "`roles/*/tasks/main.yml`, `roles/ROLE/taskz/`", {"roles/ROLE/taskz/"}),
        (missing_names, "`core.text.sanitise`, `core.text.sanitize`", {"core.text.sanitise"}),
        (missing_names, "`nodes.snapshots.build_snapshot`", {"nodes.snapshots.build_snapshot"}),
        (missing_names, "`jobs.validate.judge.judge_fleet`, `core.records.Finding`, `run.json`", set()),
        (missing_tests, "`tests/test_skips.py::test_no_such`", {"tests/test_skips.py::test_no_such"}),
        (missing_tests, "`tests/no_such.py::test_x`", {"tests/no_such.py::test_x"}),
        (missing_tests, "`tests/test_docs_names.py::test_the_names_on_a_page_exist`", set()),
        (missing_targets, "`make racks`", {"racks"}),
        (missing_targets, "    make rak NODES=6 && ansible-playbook x.yml", {"rak"}),
        (missing_targets, "`make check`, `make`\n    make a sentence of a list go on", set()),
        (missing_commands, "    rackproof reed x", {"rackproof reed x: no command reed"}),
        (missing_commands, "    $ rackproof parse x --jsn", {"rackproof parse x --jsn: no option --jsn"}),
        (missing_commands, "`ansible-playbook prove.yml -l NODE`", {"prove.yml"}),
        (missing_variables, "`validate_retrun=true`", {"validate_retrun"}),
        (missing_variables, "    ansible-playbook x -e bench_gpu=1", {"bench_gpu"}),
        (missing_variables, "`slurm_login`, `preflight_remarks`, `slurm_down`, `apt_mirror_root`", set()),
        (missing_codes, "`rackproof explain pcie_widht`", {"pcie_widht"}),
        (missing_codes, "    rackproof explain ecc       # why", {"ecc"}),
        (missing_codes, "`rackproof explain pcie_width` `rackproof explain NODE`", set()),
    ],
)  # fmt: skip
def test_a_name_that_does_not_exist_is_found(
    find: Callable[[str], set[str]], text: str, lacking: set[str]
) -> None:
    assert find(text) == lacking


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("[x](docs/using/no.md)", {"docs/using/no.md"}),
        ("[x](CONTRIBUTING.md#no-such-heading)", {"CONTRIBUTING.md#no-such-heading"}),
        (
            "[x](docs/using/drained.md#wrong-drain), [y](https://example.org/z), [z](docs/using)",
            set(),
        ),
    ],
)
def test_a_link_that_leads_nowhere_is_found(text: str, broken: set[str]) -> None:
    assert broken_links(ROOT / "README.md", text) == broken
