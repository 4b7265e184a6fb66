"""Read the argument specs of actions from the documentation that ``ansible-doc`` shows.

:mod:`rackproof_ansible.action` calls :func:`read_argument_spec`. By Ansible's convention, a module of the
same name has an action's documentation, and the action's code has its argument spec. Here, the documentation
is the only declaration of an option.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

# The rest of an option's documentation (its description) is for readers.
_SPEC_KEYS = ("type", "elements", "required", "default", "choices", "aliases", "no_log")


@functools.cache
def read_argument_spec(plugins: Path, name: str) -> dict[str, dict[str, Any]]:
    """Return the argument spec of an action.

    Files are read, not imported. They are found by their place beside the action, not by Ansible's loaders.
    An ``ansible.cfg`` with only the folder of actions therefore works, too.

    Args:
        plugins: The folder with ``modules/`` and ``doc_fragments/``.
        name: The name of the action, and of the module that documents it.

    Raises:
        FileNotFoundError: The module, or the file of a fragment to which it refers, does not exist.
        ValueError: The module lacks DOCUMENTATION, or a fragment's file lacks the variable of the fragment.
    """
    documentation = _read_yaml(plugins / "modules" / f"{name}.py", "DOCUMENTATION")
    options: dict[str, Any] = dict(documentation.get("options") or {})
    fragments = documentation.get("extends_documentation_fragment") or []
    for fragment in [fragments] if isinstance(fragments, str) else fragments:
        file, _, section = fragment.partition(".")
        shared = _read_yaml(plugins / "doc_fragments" / f"{file}.py", section.upper() or "DOCUMENTATION")
        # As in ansible-doc, the module's own text overrides its fragments.
        options = {**(shared.get("options") or {}), **options}
    return _to_spec(options)


def _read_yaml(path: Path, variable: str) -> Mapping[str, Any]:
    """Return the YAML that a file assigns to a variable of its own or of a class.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file has no such variable with a mapping.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and _assigns(node, variable):
            document = yaml.safe_load(ast.literal_eval(node.value))
            if isinstance(document, Mapping):
                return document
    raise ValueError(f"{path} has no {variable}")


def _assigns(node: ast.Assign, variable: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == variable for target in node.targets)


def _to_spec(options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return documented options as an argument spec. No I/O."""
    spec = {}
    for name, option in options.items():
        spec[name] = {key: option[key] for key in _SPEC_KEYS if key in option}
        if "suboptions" in option:
            spec[name]["options"] = _to_spec(option["suboptions"])
    return spec
