"""Test that each variable of a role has an argument spec and, if not required, a default.

An operator finds a variable only in the generated README of its role, which lists defaults and specs. The
tests also show that expressions are short, that time limits in tasks and modules are variables, and that the
examples of READMEs are right.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from jinja2 import nodes

# Jinja reads the regular expressions in task files, whose backslashes Python would warn about.
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence")
ROOT = Path(__file__).resolve().parents[2]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
PREFIXES = tuple(f"{role}_" for role in (*ROLES, "discover"))
# Keys of a task whose values are expressions without braces.
BARE = ("when", "that", "until", "failed_when", "changed_when")
# Variables that are set outside of the roles, or that an operator types. This list may only shrink.
WITHOUT_A_SPEC: set[str] = set()
# Expressions with more than three filters, by file. Move logic into a filter instead of raising a number.
LONG_EXPRESSIONS: dict[str, int] = {
    "playbooks/bench.yml": 1,
    "roles/apt_mirror/tasks/main.yml": 1,
    "roles/netboot/vars/discover.yml": 2,
    "roles/netboot/vars/entry.yml": 2,
    "roles/netboot/vars/main.yml": 1,
    "roles/node_tuning/tasks/main.yml": 1,
    "roles/provision/tasks/resume.yml": 1,
    "roles/reimage/tasks/begin.yml": 1,
    "roles/reimage/tasks/discover_by_boot.yml": 2,
    "roles/reimage/tasks/failure.yml": 1,
    "roles/reimage/tasks/steps/drain.yml": 2,
    "roles/reimage/tasks/steps/validate.yml": 1,
    "roles/reimage/vars/main.yml": 1,
}
ENVIRONMENT = jinja2.Environment(extensions=["jinja2.ext.do"])  # noqa: S701  (not HTML)


def yaml_files() -> list[Path]:
    """Return the YAML files of playbooks, and those of the tasks, handlers and vars of roles."""
    paths = [*ROOT.glob("playbooks/*.yml")]
    for folder in ("tasks", "handlers", "vars"):
        paths += ROOT.glob(f"roles/*/{folder}/**/*.yml")
    return sorted(paths)


def expressions(value: Any, bare: bool = False) -> Iterator[str]:
    """Yield the Jinja in a YAML value, with braces."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from expressions(entry, bare=key in BARE)
    elif isinstance(value, list):
        for entry in value:
            yield from expressions(entry, bare)
    elif isinstance(value, str):
        if "{{" in value or "{%" in value:
            yield value
        elif bare:
            yield f"{{{{ {value} }}}}"


def mappings(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every mapping in a YAML value."""
    if isinstance(value, dict):
        yield value
        for entry in value.values():
            yield from mappings(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from mappings(entry)


def defined_in(value: Any) -> set[str]:
    """Return the names that tasks define: registered, facts, loop variables and vars."""
    names: set[str] = set()
    for mapping in mappings(value):
        names |= {str(mapping[key]) for key in ("register", "loop_var", "index_var") if key in mapping}
        for key in ("vars", "ansible.builtin.set_fact"):
            if isinstance(mapping.get(key), dict):
                names |= set(mapping[key])
        if isinstance(included := mapping.get("ansible.builtin.include_vars"), dict):
            names.add(included.get("name", ""))
    return names


def names_used(source: str) -> set[str]:
    """Return the names that Jinja reads."""
    tree = ENVIRONMENT.parse(source)
    return {name.name for name in tree.find_all(nodes.Name) if name.ctx == "load"}


def filters_in_longest_output(source: str) -> int:
    """Return how many filters the densest expression of a source has."""
    outputs = ENVIRONMENT.parse(source).find_all(nodes.Output)
    counts = [
        len(list(part.find_all(nodes.Filter))) + isinstance(part, nodes.Filter)
        for output in outputs
        for part in output.nodes
    ]
    return max(counts, default=0)


def documented() -> set[str]:
    """Return the variables that have an argument spec, and also a default unless they are required."""
    names: set[str] = set()
    for role in ROLES:
        defaults = yaml.safe_load((ROOT / "roles" / role / "defaults/main.yml").read_text()) or {}
        specs = yaml.safe_load((ROOT / "roles" / role / "meta/argument_specs.yml").read_text())
        options = {name for spec in specs["argument_specs"].values() for name in spec.get("options", {})}
        required = {
            name
            for spec in specs["argument_specs"].values()
            for name, option in spec.get("options", {}).items()
            if option.get("required")
        }
        names |= (set(defaults) & options) | required
    return names


def test_every_variable_has_a_spec_and_a_default_or_is_required() -> None:
    known = documented()
    used: dict[str, str] = {}
    for path in yaml_files():
        content = yaml.safe_load(path.read_text())
        known |= defined_in(content)
        if path.parent.name == "vars":
            known |= set(content or {})
        for source in expressions(content):
            used |= dict.fromkeys(names_used(source), str(path.relative_to(ROOT)))
    for path in sorted(ROOT.glob("roles/*/templates/**/*")):
        if path.is_file():
            used |= dict.fromkeys(names_used(path.read_text()), str(path.relative_to(ROOT)))
    assert len(used) > 100
    missing = {name: path for name, path in used.items() if name.startswith(PREFIXES) and name not in known}
    assert missing.keys() == WITHOUT_A_SPEC, missing


def test_expressions_stay_short() -> None:
    long: dict[str, int] = {}
    for path in yaml_files():
        content = yaml.safe_load(path.read_text())
        count = sum(filters_in_longest_output(source) > 3 for source in expressions(content))
        if count:
            long[str(path.relative_to(ROOT))] = count
    more = {path: count for path, count in long.items() if count > LONG_EXPRESSIONS.get(path, 0)}
    assert not more, "move the logic into a filter (plugins/filter)"
    assert long == LONG_EXPRESSIONS, "fewer than listed: lower the list"


# Time limits that are numbers in a task, with the reason. A busy site must be able to raise all others.
FIXED_LIMITS = {
    "roles/bench/tasks/stage_imagenet.yml: timeout_s: 604800": "a week, by which the job ends itself",
    "roles/validate/tasks/slurm.yml: timeout_s: 100": "a multiple of slurmctld's own ping",
    "roles/validate/tasks/drain_and_resume.yml: timeout_s: 60": "a drain or resume that is late is a remark",
}
LIMIT = re.compile(
    r"^ *((?:lock_)?timeout(?:_s)?: \d+)|\[(timeout, \"?\d+)|(Lock::Timeout=\d+)|\['(timeout', '?\d+)", re.M
)


def test_time_limits_of_tools_are_variables() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {one[one.lastindex]}"
        for path in yaml_files()
        for one in LIMIT.finditer(path.read_text())
    }
    assert found == set(FIXED_LIMITS)


# Constants in modules on nodes that limit a call, with the reason.
FIXED_IN_MODULES = {
    "rackproof_job.py: 5": "systemctl answers at once; a late answer only leaves out a remark",
}


def test_time_limits_in_modules_are_options() -> None:
    # A constant would end a call on a slow node, and no variable of a role could raise it.
    found = set()
    for path in sorted((ROOT / "plugins").glob("module*/*.py")):
        tree = ast.parse(path.read_text())
        constants = {
            target.id
            for one in tree.body
            if isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant)
            for target in one.targets
            if isinstance(target, ast.Name)
        }
        for call in (one for one in ast.walk(tree) if isinstance(one, ast.Call)):
            for word in call.keywords:
                fixed = isinstance(word.value, ast.Constant) or ast.unparse(word.value) in constants
                if word.arg in ("timeout", "timeout_s") and fixed:
                    found.add(f"{path.name}: {ast.unparse(word.value)}")
            if ast.unparse(call.func) == "ask" and {ast.unparse(one) for one in call.args} & constants:
                found.add(f"{path.name}: {ast.unparse(call)[:60]}")
    assert found == set(FIXED_IN_MODULES)


def test_provisioning_sets_every_time_limit_of_its_modules() -> None:
    for play in yaml.safe_load((ROOT / "playbooks/provision.yml").read_text()):
        for module, given in play["module_defaults"].items():
            source = (ROOT / f"plugins/modules/{module}.py").read_text()
            documentation = source.partition('DOCUMENTATION = r"""')[2].partition('"""')[0]
            options = {
                name for name in yaml.safe_load(documentation)["options"] if name.endswith("timeout_s")
            }
            assert set(given) == options != set(), module
            assert all(value.startswith("{{ provision_") for value in given.values())


def options_of(role: str) -> dict[str, dict[str, Any]]:
    """Return the options of all entry points of a role, by name."""
    specs = yaml.safe_load((ROOT / "roles" / role / "meta/argument_specs.yml").read_text())["argument_specs"]
    return {name: option for spec in specs.values() for name, option in spec.get("options", {}).items()}


TYPES: dict[str, type | tuple[type, ...]] = {
    "bool": bool,
    "dict": dict,
    "float": (int, float),
    "int": int,
    "list": list,
    "path": str,
    "raw": object,
    "str": str,
}


def is_value_of(option: dict[str, Any], value: object) -> bool:
    """Return whether an option takes a value, by its type and its choices."""
    return isinstance(value, TYPES[option["type"]]) and value in (option.get("choices") or [value])


def wrong_examples(role: str, readme: str) -> list[str]:
    """Return the variables of a README's examples that the role lacks, or that have a wrong value."""
    options = options_of(role)
    given = [
        (name, value)
        for example in re.findall(r"```yaml\n(.*?)```", readme, re.DOTALL)
        for name, value in yaml.safe_load(example).items()
        if name.startswith(f"{role}_")
    ]
    return [name for name, value in given if name not in options or not is_value_of(options[name], value)]


@pytest.mark.parametrize("role", ROLES)
def test_examples_of_a_role_set_its_variables(role: str) -> None:
    assert wrong_examples(role, (ROOT / "roles" / role / "README.md").read_text()) == []


@pytest.mark.parametrize("line", ["ofed_flavor: doca", "ofed_flavour: [doca]", "ofed_flavour: doka"])
def test_wrong_examples_are_found(line: str) -> None:
    assert wrong_examples("ofed", f"```yaml\n{line}\n```\n") == [line.partition(":")[0]]
