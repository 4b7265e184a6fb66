"""Check the variables of a host against the argument specs of several roles, before any of them runs.

The action ``rackproof_role_variables`` calls :func:`role_problems`. Ansible's own check of a role prints the
whole argument spec, ends at the first template that fails, and covers only roles of the running play.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.parsing.dataloader import DataLoader

from rackproof.core.known_variables import nearest, read_yaml
from rackproof.core.secret_names import must_not_be_shown
from rackproof.core.text import sanitize

Spec = Mapping[str, Any]
"""An option of an argument spec, as Ansible's validator takes it."""
_FORMS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "list": "a list, such as [a, b]",
    "dict": "a mapping, such as {name: value}",
    "str": "a text",
}
_WORD = re.compile(r"\b[a-z]\w*_\w+")
"""Pattern of the names in a template that may be variables."""
_UNSUPPORTED = re.compile(r"(\S+)\. Supported parameters include: ([^.]+)")
"""Pattern of Ansible's message about an unknown option, with the option and the known ones."""
_SHOWN_CHARACTERS = 60
"""Largest number of characters of a value in a message."""


def read_specs(roles: Path, names: list[str]) -> dict[str, dict[str, Spec]]:
    """Return the options of each role's entry ``main``, or else of its first entry."""
    specs = {}
    for role in names:
        entries = read_yaml(roles / role / "meta" / "argument_specs.yml")["argument_specs"]
        entry = entries.get("main") or next(iter(entries.values()))
        specs[role] = entry.get("options") or {}
    return specs


def read_defaults(roles: Path, names: list[str], loader: DataLoader) -> dict[str, Any]:
    """Return the defaults and the internal variables of roles, as templates that Ansible trusts."""
    values: dict[str, Any] = {}
    for role in names:
        for folder in ("defaults", "vars"):
            path = roles / role / folder / "main.yml"
            if path.is_file():
                values |= loader.load_from_file(str(path), trusted_as_template=True) or {}
    return values


def role_problems(
    specs: Mapping[str, Mapping[str, Spec]], raw: Mapping[str, Any], evaluate: Callable[[Any], Any]
) -> Iterator[str]:
    """Yield a text about each wrong variable, with its role, its name, what is wrong, and what to write.

    Args:
        specs: The options of each role.
        raw: The variables of the host, before their templates are evaluated.
        evaluate: A function that evaluates the templates of a value, or raises AnsibleError.
    """
    options = {name: option for of_role in specs.values() for name, option in of_role.items()}
    for role, of_role in specs.items():
        for name, option in of_role.items():
            if text := _problem(role, name, option, raw, evaluate, options):
                yield f"roles/{role}: {name} {text}"


def _problem(
    role: str,
    name: str,
    option: Spec,
    raw: Mapping[str, Any],
    evaluate: Callable[[Any], Any],
    options: Mapping[str, Spec],
) -> str:
    """Return what is wrong with one variable, or ""."""
    if name not in raw:
        return "is not set: set it in the inventory" if option.get("required") else ""
    is_hidden = _is_secret(name, option, raw[name])
    try:
        value = evaluate(raw[name])
    except AnsibleError as error:
        if number := _number_for_text(name, raw, options):
            return f"cannot be evaluated: {number}"
        return (
            f"cannot be evaluated{'' if is_hidden else f' ({_last_line(error)})'}: {_correction(name, raw)}"
        )
    checked = ArgumentSpecValidator({name: option}).validate({name: value}, validate_role_argument_spec=True)
    if not checked.error_messages:
        return ""
    is_hidden = is_hidden or _is_secret(name, option, value)
    value_text = "has a wrong value" if is_hidden else f"is {_shown(value)}"
    return _form(role, name, option, value_text, "" if is_hidden else checked.error_messages[0])


def _form(role: str, name: str, option: Spec, shown: str, error: str) -> str:
    """Return the wrong value with what to write instead."""
    kind = option.get("type", "str")
    if choices := option.get("choices"):
        return f"{shown}: write one of {', '.join(map(str, choices))}"
    if not error or error.startswith(f"argument '{name}' is of type"):
        return f"{shown}: write {_FORMS.get(kind, f'a {kind}')}"
    return f"is wrong: {_nested(error)} (roles/{role}/README.md shows its form)"


def _nested(error: str) -> str:
    """Return Ansible's text on a part of a value, or the known name that is nearest to a misspelt one."""
    text = sanitize(error, 200)
    if unsupported := _UNSUPPORTED.search(text):
        near = nearest(unsupported[1].rpartition(".")[2], unsupported[2].split(", "), 0.6)
        return f"nothing reads {unsupported[1]}{f' (did you mean {near}?)' if near else ''}"
    return text


def _is_secret(name: str, option: Spec, value: Any) -> bool:
    """Return whether neither a value nor an error about it may be printed."""
    return bool(option.get("no_log")) or must_not_be_shown(name, value)


def _read_by(name: str, raw: Mapping[str, Any]) -> list[str]:
    """Return the variables that the template of a variable reads."""
    return [one for one in dict.fromkeys(_WORD.findall(str(raw[name]))) if one in raw and one != name]


def _number_for_text(name: str, raw: Mapping[str, Any], options: Mapping[str, Spec]) -> str:
    """Return a text about a number that a template reads and that must be a text, or "" if there is none."""
    for option in _read_by(name, raw):
        is_number = isinstance(raw[option], int | float) and not isinstance(raw[option], bool)
        if is_number and options.get(option, {}).get("type") == "str":
            text = "" if _is_secret(option, options[option], raw[option]) else f', such as "{raw[option]}"'
            return f"it reads {option}, which is a number: write {option} as a text in quotes{text}"
    return ""


def _correction(name: str, raw: Mapping[str, Any]) -> str:
    """Return what to correct in a template that fails: the variable, or one that it reads."""
    variables_read = _read_by(name, raw)[:5]
    return f"correct it{', or what it reads: ' + ', '.join(variables_read) if variables_read else ''}"


def _last_line(error: AnsibleError) -> str:
    """Return the cause of an error, which is in the last line, after the chain of Ansible's own steps."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return sanitize((lines or [""])[-1].removeprefix("Error rendering template: "), 200)


def _shown(value: Any) -> str:
    """Return a value for a message."""
    return sanitize(repr(value), _SHOWN_CHARACTERS)
