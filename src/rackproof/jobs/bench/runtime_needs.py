"""Find the programs, libraries and interpreters that a node lacks for runs.

A runtime is a pinned environment of Python under workloads/. Its runtime.json states its needs::

    {"oldest": "3.10", "newest": "3.11", "imports": ["numpy"], "libraries": {"libgomp.so.1": "libgomp1"}}

Task ``select`` of bench.yml calls :func:`read_needs`. Task ``plan`` calls all four functions, with the
answers of the nodes. :func:`program_obstacle` and :func:`interpreter_obstacle` return why a run is unproven.
:func:`describe_lacking` returns the other lacking parts for the text of the plan, with the packages that
contain them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rackproof.core.text import sanitize
from rackproof.core.untrusted import mapping_at, text_at


@dataclass(frozen=True)
class RuntimeNeeds:
    """The needs of a runtime from the node's system.

    Attributes:
        oldest, newest: The limits of the interpreter's version. Both are allowed: (3, 10) is Python 3.10.
        libraries: The name of each shared library, with the package of Debian and Ubuntu that contains
            it.
        imports: Modules that an interpreter must find.
    """

    oldest: tuple[int, int]
    newest: tuple[int, int]
    libraries: Mapping[str, str] = field(default_factory=dict)
    imports: Sequence[str] = ()


def read_needs(workloads: Path, names: Iterable[str]) -> dict[str, RuntimeNeeds]:
    """Return the needs of runtimes by name. Runtimes without a readable runtime.json are left out."""
    needs = {}
    for name in names:
        try:
            content = json.loads((workloads / name / "runtime.json").read_text())
            needs[name] = RuntimeNeeds(
                _version(content["oldest"]),
                _version(content["newest"]),
                dict(content.get("libraries", {})),
                tuple(content.get("imports", ())),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return needs


def _version(text: str) -> tuple[int, int]:
    """Return the first two numbers of a version such as ``3.10`` or ``3.10.4``.

    Raises:
        ValueError: The text has another form.
    """
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def describe_lacking(node: str, runtime: str, needs: RuntimeNeeds, facts: Mapping[str, Any]) -> list[str]:
    """Return a line about a missing Python and a line about missing libraries, or nothing. No I/O.

    Needs about which the node gave no answer are left out.

    Args:
        node: The name of the node.
        runtime: The name of the runtime.
        needs: The requirements of the runtime.
        facts: The node's raw answer. ``loadable`` states whether each library was found, and
            ``interpreters`` lists versions of Python, such as ``3.10``.
    """
    lines = []
    interpreters = facts.get("interpreters")
    versions = f"{'.'.join(map(str, needs.oldest))} to {'.'.join(map(str, needs.newest))}"
    if isinstance(interpreters, list) and not any(_fits(interpreter, needs) for interpreter in interpreters):
        has = sanitize(", ".join(map(str, interpreters)), 100) or "none"
        lines.append(
            f"  {node}: {runtime} needs Python {versions}, and has {has}: install one with venv, or name an "
            "interpreter in bench_pythons"
        )
    packages = packages_of_lacking_libraries(needs, facts)
    if packages:
        lines.append(
            f"  {node}: {runtime} needs libraries that are not there: {_install_advice(needs, facts)}"
        )
    return lines


def _install_advice(needs: RuntimeNeeds, facts: Mapping[str, Any]) -> str:
    """Return the command that installs the lacking libraries, with dnf, zypper or else apt-get."""
    release = text_at(mapping_at(facts, "files"), "os_release")
    if family := re.search(r"^ID(?:_LIKE)?=.*\b(rhel|fedora|suse)\b", release, re.MULTILINE):
        # dnf and zypper find a package by the library's name.
        tool = "zypper" if family[1] == "suse" else "dnf"
        loadable = mapping_at(facts, "loadable")
        lacking = sorted(library for library in needs.libraries if loadable.get(library) is False)
        return f"type: sudo {tool} install " + " ".join(f"'{library}()(64bit)'" for library in lacking)
    packages = " ".join(packages_of_lacking_libraries(needs, facts))
    return f"as root a run installs them, otherwise type: sudo apt-get install {packages}"


def packages_of_lacking_libraries(needs: RuntimeNeeds, facts: Mapping[str, Any]) -> Sequence[str]:
    """Return the packages whose libraries are not on the node. No I/O."""
    loadable = mapping_at(facts, "loadable")
    return sorted(package for library, package in needs.libraries.items() if loadable.get(library) is False)


def _fits(version: object, needs: RuntimeNeeds) -> bool:
    """Return whether a version of Python is within the limits of a runtime."""
    try:
        return needs.oldest <= _version(str(version)) <= needs.newest
    except ValueError:
        return False


def interpreter_obstacle(runtime: str, path: str, facts: Mapping[str, Any]) -> str:
    """Return why a runtime cannot use a configured interpreter, or "" if no reason is known. No I/O.

    Args:
        runtime: The runtime's name.
        path: The interpreter in ``bench_pythons``.
        facts: The node's raw answer. ``pythons`` has, by runtime, the status of the interpreter (``ok`` or
            ``absent``), and whether it finds each module.
    """
    answer = mapping_at(mapping_at(facts, "pythons"), runtime)
    status, entry = answer.get("status"), f"bench_pythons names {sanitize(path, 200)} for {runtime}"
    if status == "absent":
        return f"{entry}, which does not exist: correct the path, or leave it out to have one made"
    imports = mapping_at(mapping_at(answer, "said"), "imports")
    lacking = sorted(sanitize(name, 60) for name, is_there in imports.items() if is_there is False)
    if status == "ok" and lacking:
        return (
            f"{entry}, which has no {' and no '.join(lacking)}: install that there, or leave the entry out "
            "and an environment is made"
        )
    return ""


def program_obstacle(program: str, facts: Mapping[str, Any]) -> str:
    """Return why a node cannot start a definition's program, or "" if no reason is known. No I/O.

    ``programs`` in the facts states whether each program was found.
    """
    if mapping_at(facts, "programs").get(program) is False:
        name = sanitize(program, 200)
        return (
            f"{name} is not there: install it, or give its full path in the parameter `program` or, without "
            "one, in `launch.command`"
        )
    return ""
