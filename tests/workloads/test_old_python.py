"""Test that the programs which a node's own Python starts need nothing newer than Python 3.8.

A definition without `launch.runtime` runs on the interpreter of Ansible's modules, which is Python 3.8 on
Ubuntu 20.04. A program that does not start there ends with status 1, so that a healthy node would fail. One
test reads the sources, and needs no such interpreter. Others import and start the programs with the oldest
interpreter that is installed.
"""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rackproof.core.definitions import load_definitions
from rackproof.logs import FORMATS

ROOT = Path(__file__).parents[2]
WORKLOADS = ROOT / "workloads"
PROGRAMS = (
    "docker_run",
    "make_runtime",
    "mpirun_tf_cnn",
    "perftest_pair",
    "rendezvous",
    "run_command",
    "slurm_run",
    "stage_imagenet",
    "stage_mnist",
    "stage_tf_cnn",
    "state_gpus",
)
"""The programs that start on a node's own Python, or on another node by ssh (state_gpus)."""
OLDEST = sorted(
    Path.home().glob(".pyenv/versions/3.[89].*/bin/python3"),
    key=lambda path: [int(number) for number in path.parts[-3].split(".")],
)[:1] or [Path(sys.executable)]
"""The oldest interpreter from 3.8 on, or the one of this test."""
GENERIC = {"list", "dict", "tuple", "set", "frozenset", "type", "Popen", "CompletedProcess", "deque"}
NEW_ARGUMENTS = {"strict", "usedforsecurity", "kw_only", "slots", "cancel_futures"}
"""Names of arguments that Python 3.8 does not have. No function of these programs has one of these names."""
NEW_NAMES = {
    "removeprefix",
    "removesuffix",
    "pairwise",
    "is_relative_to",
    "hardlink_to",
    "with_stem",
    "bit_count",
    "randbytes",
    "zoneinfo",
    "tomllib",
    "to_thread",
    "UTC",
    "batched",
    "lcm",
}
SEARCHED = {
    "functools": {"cache"},
    "typing": {"TypeAlias", "ParamSpec", "Self", "Annotated", "assert_never", "override", "NotRequired"},
    "enum": {"StrEnum"},
}


def imported(name: str, known: set[str] | None = None) -> set[str]:
    """Return a program and the files of workloads/ that it imports, also through others."""
    names = set() if known is None else known
    names.add(name)
    for found in re.findall(r"(?m)^\s*(?:import|from) (\w+)", (WORKLOADS / f"{name}.py").read_text()):
        if (WORKLOADS / f"{found}.py").is_file() and found not in names:
            imported(found, names)
    return names


def annotations(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the annotations, and the blocks that only a type checker reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef) and node.returns:
            yield node.returns
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from node.body


def too_new(source: str) -> list[str]:
    """Return the parts of a program that Python 3.8 cannot read or evaluate, each with its line."""
    try:
        tree = ast.parse(source, feature_version=(3, 8))
    except SyntaxError as error:
        return [f"{error.lineno}: {error.msg}"]
    postponed = any(
        isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in ast.walk(tree)
    )
    unread = {id(part) for top in annotations(tree) for part in ast.walk(top)} if postponed else set()
    abstract = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "collections.abc"
        for alias in node.names
    }
    evaluated = [node for node in ast.walk(tree) if id(node) not in unread and hasattr(node, "lineno")]
    return [
        f"{node.lineno}: {ast.unparse(node)[:80]}"
        for node in evaluated
        if is_generic(node, abstract | GENERIC) or is_new_name(node) or is_union(node)
    ]


def is_generic(node: ast.AST, names: set[str]) -> bool:
    """Return whether a node subscripts a class of the standard library, as in list[int]."""
    if not isinstance(node, ast.Subscript):
        return False
    value = node.value
    return (value.id if isinstance(value, ast.Name) else getattr(value, "attr", "")) in names


def is_new_name(node: ast.AST) -> bool:
    """Return whether a node uses an argument, function or module that Python 3.8 does not have."""
    if isinstance(node, ast.ImportFrom):
        names = {alias.name for alias in node.names}
        return bool(names & (NEW_NAMES | SEARCHED.get(str(node.module), set())))
    if isinstance(node, ast.Import):
        return bool({alias.name for alias in node.names} & NEW_NAMES)
    if isinstance(node, ast.Attribute):
        module = node.value.id if isinstance(node.value, ast.Name) else ""
        return node.attr in NEW_NAMES | SEARCHED.get(module, set())
    return isinstance(node, ast.keyword) and node.arg in NEW_ARGUMENTS


def is_union(node: ast.AST) -> bool:
    """Return whether a node joins types or dicts by |, as in int | None or dict(a=1) | {}."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.BitOr):
        return False
    sides = (node.left, node.right)
    return any(
        isinstance(side, ast.Dict | ast.DictComp)
        or (isinstance(side, ast.Constant) and side.value is None)
        or (isinstance(side, ast.Name) and side.id in {"str", "int", "float", "bytes", "bool", *GENERIC})
        or (isinstance(side, ast.Call) and ast.unparse(side.func) == "dict")
        for side in sides
    )


def test_the_list_has_each_program_that_runs_without_a_runtime() -> None:
    loaded = load_definitions(ROOT / "benchmarks", log_formats=FORMATS).values()
    launches = [one.definition.launch for one in loaded]
    stages = [stage for one in loaded for stage in one.definition.stage]
    started = {launch.program for launch in launches if launch.program and not launch.runtime}
    # tf-cnn-cpu and the MNIST of MXNet stage with the runtime's interpreter, which is newer.
    staged = {stage.program for stage in stages if stage.program} - {"stage_pictures.py"}
    assert {f"{name}.py" for name in PROGRAMS} >= started | staged
    roles = "".join(path.read_text() for path in (ROOT / "roles").rglob("*.yml"))
    in_roles = set(re.findall(r"workloads ~ '/(\w+)\.py'", roles))
    assert in_roles <= set(PROGRAMS)


@pytest.mark.parametrize("name", sorted(set().union(*map(imported, PROGRAMS))))
def test_no_program_of_a_node_needs_more_than_python_3_8(name: str) -> None:
    assert too_new((WORKLOADS / f"{name}.py").read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "Ask = Callable[[list[str], float], str]",
        "Pair = tuple[int, int]",
        "class Windows(Sequence[int]): pass",
        "Number = int | None",
        "values = dict(a=1) | {'b': 2}",
        "zip([1], [2], strict=True)",
        "hashlib.sha1(b'', usedforsecurity=False)",
        "itertools.pairwise([1, 2])",
        "from itertools import pairwise",
        "'text'.removeprefix('t')",
        "@functools.cache\ndef function(): pass",
        "subprocess.Popen[bytes]",
        "match 1:\n    case 1: pass",
    ],
)
def test_the_check_finds_what_python_3_8_cannot_do(line: str) -> None:
    head = "from __future__ import annotations\nfrom collections.abc import Callable, Sequence\n"
    assert too_new(head + line)


def test_the_check_allows_annotations_and_numbers() -> None:
    head = "from __future__ import annotations\nfrom collections.abc import Callable\n"
    body = "x: list[int] = []\ndef f(a: int | None) -> dict[str, Callable[[], int]]:\n    return 1 | 2\n"
    checked = "if TYPE_CHECKING:\n    Ask = Callable[[list[str]], str]\n"
    assert too_new(head + body + checked) == []


@pytest.mark.parametrize("python", OLDEST, ids=lambda path: path.parts[-3])
class TestOldestInterpreter:
    def test_each_program_compiles_and_imports(self, python: Path) -> None:
        code = f"import sys; sys.path.insert(0, {str(WORKLOADS)!r}); import {', '.join(PROGRAMS)}"
        ended = subprocess.run([python, "-B", "-c", code], capture_output=True, text=True, check=False)
        assert ended.stderr == ""

    def test_a_command_of_the_node_runs(self, python: Path) -> None:
        words = [python, "-B", WORKLOADS / "run_command.py", "echo", "Triad: 12"]
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.endswith("Triad: 12\n")

    @pytest.mark.parametrize("content", [b"", b"text\n", bytes(1000)], ids=["empty", "text", "zeros"])
    def test_git_names_the_sources(self, python: Path, content: bytes) -> None:
        code = (
            f"import sys; sys.path.insert(0, {str(WORKLOADS)!r}); import docker_run; "
            f"print(docker_run.git_object('blob', {content!r}))"
        )
        ended = subprocess.run([python, "-B", "-c", code], capture_output=True, text=True, check=False)
        wanted = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        assert (ended.stdout.strip(), ended.stderr) == (wanted, "")
