"""Test that no role takes the text ``false`` for true.

An operator types `-e nightly_drain=false`, which is a text, and a text that is not empty is true in Jinja.
So each use of a variable of type bool has the filter `bool`, unless a module's option of type bool gets the
value.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import yaml
from jinja2 import nodes

from tests.roles.test_variables import BARE, ENVIRONMENT, ROLES, ROOT, options_of, yaml_files

# Jinja reads the regular expressions in task files, whose backslashes Python would warn about.
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence")
BOOLEANS = {name for role in ROLES for name, option in options_of(role).items() if option["type"] == "bool"}


@cache
def bool_options(module: str) -> frozenset[str]:
    """Return the options of type bool of one of Rackproof's modules. Ansible converts their values."""
    path = ROOT / "plugins/modules" / f"{module}.py"
    if not path.is_file():
        return frozenset()
    documentation = path.read_text().partition('DOCUMENTATION = r"""')[2].partition('"""')[0]
    options = yaml.safe_load(documentation).get("options", {})
    return frozenset(name for name, option in options.items() if option["type"] == "bool")


def unconverted(node: nodes.Node) -> Iterator[str]:
    """Yield the boolean variables that an expression reads without the filter ``bool``."""
    if isinstance(node, nodes.Filter) and node.name == "bool":
        inner = node.node
        if isinstance(inner, nodes.Filter) and inner.name == "default":
            inner = inner.node
        if isinstance(inner, nodes.Name):
            return
    if isinstance(node, nodes.Name) and node.name in BOOLEANS:
        yield node.name
    for child in node.iter_child_nodes():
        yield from unconverted(child)


def used_as_text(value: Any, key: str = "", options: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the boolean variables that a YAML value reads without a conversion.

    ``options`` has the keys of the value whose values Ansible converts.
    """
    if isinstance(value, dict):
        for name, entry in value.items():
            handed = name in options and isinstance(entry, str) and entry.strip("{} ") in BOOLEANS
            if not handed:
                yield from used_as_text(entry, str(name), bool_options(str(name)))
    elif isinstance(value, list):
        for entry in value:
            yield from used_as_text(entry, key)
    elif isinstance(value, str) and ("{{" in value or "{%" in value or key in BARE):
        bare = key in BARE and "{{" not in value
        yield from unconverted(ENVIRONMENT.parse(f"{{{{ {value} }}}}" if bare else value))


def test_the_text_false_is_never_true() -> None:
    found: list[str] = []
    for path in (*yaml_files(), *sorted(ROOT.glob("roles/*/defaults/main.yml"))):
        names = used_as_text(yaml.safe_load(path.read_text()))
        found += [f"{path.relative_to(ROOT)}: {name}" for name in names]
    for path in sorted(ROOT.glob("roles/*/templates/**/*")):
        if path.is_file():
            names = unconverted(ENVIRONMENT.parse(path.read_text()))
            found += [f"{path.relative_to(ROOT)}: {name}" for name in names]
    assert len(BOOLEANS) > 20
    assert found == [], "add `| bool`"


@pytest.mark.parametrize(
    ("task", "count"),
    [
        ({"when": "nightly_drain"}, 1),
        ({"when": ["not nightly_drain and x"]}, 1),
        ({"when": ["nightly_drain | bool", "nightly_drain | default(false) | bool"]}, 0),
        ({"when": "(nightly_drain or x) | bool"}, 1),
        ({"vars": {"x": "{{ ['--drain'] if nightly_drain else [] }}"}}, 1),
        ({"rackproof_validate_judge": {"drain": "{{ nightly_drain }}"}}, 0),
        ({"rackproof_validate_judge": {"night": "{{ nightly_drain }}"}}, 1),
        ({"ansible.builtin.debug": {"msg": "{{ nightly_drain }}"}}, 1),
    ],
)
def test_a_use_without_the_filter_is_found(task: dict[str, Any], count: int) -> None:
    assert list(used_as_text([task])) == ["nightly_drain"] * count
