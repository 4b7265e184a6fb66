"""Find each place in the source that gives a code to a finding.

A finding has a code, such as `ecc_off`, which an operator looks up with `rackproof explain`.
test_finding_codes.py compares the codes found here with the registry, src/rackproof/core/finding_codes.csv.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
_METHODS = ("finding", "find", "mark", "issue")
"""Methods that take a code, of the classes for health checks, for logs, and for runs of a submission."""
_REGISTRY = SOURCE / "rackproof/core/finding_codes.py"


@dataclass(frozen=True)
class Site:
    """A place that gives a code. ``codes`` is empty if ``expression`` is computed."""

    file: str
    line: int
    expression: str
    codes: tuple[str, ...]
    call: ast.Call

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.expression}"


@cache
def code_sites() -> tuple[Site, ...]:
    """Return every place in ``src`` that gives a code to a finding, issue, remark or row of evidence."""
    return tuple(_sites(_trees()))


@cache
def _trees() -> dict[Path, ast.Module]:
    """Return the syntax tree of each module of the package, without the module that reads the registry."""
    paths = sorted(path for path in SOURCE.rglob("*.py") if path != _REGISTRY)
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def _sites(trees: dict[Path, ast.Module]) -> Iterator[Site]:
    takers = dict(_classes(trees.values()))
    for path, tree in trees.items():
        constants = _constants(tree)
        own = takers | dict(_functions(tree))
        methods = {name: own.pop(name, 0) for name in _METHODS}
        for scope, call in _calls(tree):
            given = _given(call, own, methods)
            if given is None or _is_forwarded(given, scope):
                continue
            codes = tuple(_literals(given, constants))
            yield Site(path.relative_to(SOURCE).as_posix(), given.lineno, ast.unparse(given), codes, call)


def _classes(trees: Iterable[ast.Module]) -> Iterator[tuple[str, int]]:
    """Yield each class with a text field ``code``, and the position of this field."""
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
                names = [ast.unparse(one.target) for one in fields]
                if "code" in names and "str" in ast.unparse(fields[names.index("code")].annotation):
                    yield node.name, names.index("code")


def _functions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield each function that makes a finding and has a parameter ``code``, and this parameter's position.

    ``self`` of a method does not count.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and "Finding" in _returned(node):
            names = [one.arg for one in (*node.args.posonlyargs, *node.args.args) if one.arg != "self"]
            if "code" in names:
                yield node.name, names.index("code")


def _returned(node: ast.FunctionDef) -> str:
    """Return the annotation of a function's result, or Finding for None: the function stores the finding."""
    returned = ast.unparse(node.returns) if node.returns else ""
    return "Finding" if returned == "None" else returned


def _constants(tree: ast.Module) -> dict[str, str]:
    """Return the texts that a module assigns to names at its top level, by name."""
    return {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def _calls(node: ast.AST, reach: frozenset[str] = frozenset()) -> Iterator[tuple[frozenset[str], ast.Call]]:
    """Yield each call with the names of all parameters of the functions around it."""
    if isinstance(node, ast.FunctionDef):
        reach = reach | {one.arg for one in (*node.args.args, *node.args.kwonlyargs)}
    if isinstance(node, ast.Call):
        yield reach, node
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, reach)


def _given(call: ast.Call, takers: dict[str, int], methods: dict[str, int]) -> ast.expr | None:
    """Return the expression of a call's code, or None if the call takes no code."""
    function = call.func
    if isinstance(function, ast.Name):
        if function.id not in takers:
            return None
        at = takers[function.id]
    elif isinstance(function, ast.Attribute) and _is_taker(function, call):
        at = methods[function.attr]
    else:
        return None
    named = [one.value for one in call.keywords if one.arg == "code"]
    return named[0] if named else call.args[at] if len(call.args) > at else None


def _is_taker(function: ast.Attribute, call: ast.Call) -> bool:
    """Return whether a method takes a code. Methods ``find`` of other objects than logs do not."""
    owner = ast.unparse(function.value)
    if function.attr in ("find", "mark"):
        return len(call.args) > 1 and (owner == "self" or owner.endswith("log"))
    return function.attr in ("finding", "issue")


def _is_forwarded(given: ast.expr, reach: frozenset[str]) -> bool:
    """Return whether a code comes from the caller, or from a row or finding that has it already."""
    if isinstance(given, ast.Attribute):
        return given.attr == "code"
    return isinstance(given, ast.Name) and given.id == "code" and "code" in reach


def _literals(given: ast.expr, constants: dict[str, str]) -> Iterator[str]:
    """Yield the codes that an expression names. Yield none for a computed expression."""
    if isinstance(given, ast.Constant) and isinstance(given.value, str):
        yield given.value
    elif isinstance(given, ast.Name) and given.id in constants:
        yield constants[given.id]
    elif isinstance(given, ast.IfExp):
        yield from _literals(given.body, constants)
        yield from _literals(given.orelse, constants)


def check_sites() -> Iterator[tuple[str, str]]:
    """Yield the place and the check of each reason of a night whose check is a literal or a constant."""
    for path, tree in _trees().items():
        constants = _constants(tree)
        for _, call in _calls(tree):
            if isinstance(call.func, ast.Name) and call.func.id == "NightReason":
                (check,) = (one.value for one in call.keywords if one.arg == "check")
                for code in _literals(check, constants):
                    yield f"{path.relative_to(SOURCE).as_posix()}:{call.lineno}", code
