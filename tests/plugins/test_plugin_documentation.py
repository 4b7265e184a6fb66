"""Test that each plugin of plugins/ has a page in ansible-doc, and that the page agrees with the plugin.

The options of a page must be those that the code checks, its examples must be tasks that use the plugin, and
secrets must have ``no_log``. Options of an action are only declared on its page, in the module of its name.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackproof_ansible.argument_spec import read_argument_spec

ROOT = Path(__file__).resolve().parent.parent.parent
PLUGINS = ROOT / "plugins"
FILES = {
    "module": sorted(PLUGINS.glob("modules/*.py")),
    "filter": sorted(PLUGINS.glob("filter/*.yml")),
    "callback": sorted(PLUGINS.glob("callback/*.py")),
}
EVERY = [(kind, path.stem) for kind, paths in FILES.items() for path in paths]
ACTIONS = [path.stem for path in sorted(PLUGINS.glob("action/*.py"))]
pytestmark = pytest.mark.playbook


@pytest.fixture(scope="module")
def shown() -> dict[tuple[str, str], dict[str, Any]]:
    """Return the pages of ansible-doc by type and name of the plugin."""
    documents = {}
    for kind, paths in FILES.items():
        done = subprocess.run(
            [
                Path(sys.executable).with_name("ansible-doc"),
                "-t",
                kind,
                "--json",
                *(one.stem for one in paths),
            ],
            cwd=ROOT,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert "WARNING" not in done.stderr, done.stderr
        documents |= {(kind, name): document for name, document in json.loads(done.stdout).items()}
    return documents


def literal(node: ast.expr) -> Any:
    """Return the value of an argument spec. It must be a literal, without names."""
    expression = compile(ast.Expression(node), "<spec>", "eval")
    assert not expression.co_names
    return eval(expression, {"__builtins__": {}})  # noqa: S307  (names were refused above)


def validated(path: Path) -> dict[str, dict[str, Any]]:
    """Return the argument spec that a module checks its arguments against."""
    tree = ast.parse(path.read_text())
    constants = {
        ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)
    }
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = getattr(call.func, "attr", None) or getattr(call.func, "id", None)
        if name == "AnsibleModule":
            (spec,) = (one.value for one in call.keywords if one.arg == "argument_spec")
            return literal(constants[spec.id] if isinstance(spec, ast.Name) else spec)
    raise AssertionError(f"{path} checks no arguments")


def essence(option: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of an option that are both in the documentation and in the argument spec."""
    return {
        "type": option.get("type", "str"),
        "required": bool(option.get("required", False)),
        "default": option.get("default"),
        "choices": sorted(option.get("choices") or []),
        "elements": option.get("elements"),
        "aliases": sorted(option.get("aliases") or []),
    }


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_every_plugin_is_described(
    shown: dict[tuple[str, str], dict[str, Any]], kind: str, name: str
) -> None:
    doc = shown[kind, name]["doc"]
    assert Path(doc["filename"]).resolve().parent == PLUGINS / (kind + "s" if kind == "module" else kind)
    assert doc["short_description"]
    assert not doc["short_description"].endswith(".")
    assert doc["description"]
    for option, says in doc["options"].items():
        assert says["description"], option
    if kind == "module":
        assert {"check_mode", "diff_mode"} <= set(doc["attributes"])
    if kind != "callback":
        assert shown[kind, name]["return"]
    assert f"| `{name}` |" in (ROOT / "docs" / "extending" / "plugins.md").read_text()


@pytest.mark.parametrize(("kind", "name"), [one for one in EVERY if one[0] != "callback"])
def test_every_example_is_a_task_that_uses_it(
    shown: dict[tuple[str, str], dict[str, Any]], kind: str, name: str
) -> None:
    text = shown[kind, name]["examples"]
    tasks = yaml.safe_load(text)
    assert isinstance(tasks, list)
    assert tasks
    options = shown[kind, name]["doc"]["options"]
    for task in tasks:
        assert task["name"]
        if kind == "module" and name in task:
            assert set(task[name]) <= set(options)
            assert {key for key, option in options.items() if option.get("required")} <= set(task[name])
    used = any(name in task for task in tasks) if kind == "module" else name in text
    assert used


@pytest.mark.parametrize("name", [path.stem for path in FILES["module"]])
def test_what_a_module_documents_is_what_is_checked(
    shown: dict[tuple[str, str], dict[str, Any]], name: str
) -> None:
    checked = (
        read_argument_spec(PLUGINS, name)
        if name in ACTIONS
        else validated(PLUGINS / "modules" / f"{name}.py")
    )
    documented = {key: essence(option) for key, option in shown["module", name]["doc"]["options"].items()}
    assert documented == {key: essence(option) for key, option in checked.items()}


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_leaves_its_options_to_its_documentation(name: str) -> None:
    tree = ast.parse((PLUGINS / "action" / f"{name}.py").read_text())
    (action,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    assert action.name == "ActionModule"
    module = f"rackproof_ansible.{name.removeprefix('rackproof_')}"
    bases = {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module in ("rackproof_ansible.action", module)
        for alias in node.names
    }
    assert {ast.unparse(base) for base in action.bases} <= bases
    methods = {node.name for node in action.body if isinstance(node, ast.FunctionDef)}
    assert "run" not in methods
    assert "validate_argument_spec" not in ast.unparse(tree)
    assert read_argument_spec(PLUGINS, name)


def test_secrets_are_declared_where_options_are() -> None:
    record = read_argument_spec(PLUGINS, "rackproof_reimage_record")
    assert record["bmc"]["options"]["password"]["no_log"] is True
    for name in ("rackproof_reimage_bmc", "rackproof_reimage_discover"):
        assert read_argument_spec(PLUGINS, name)["password"]["no_log"] is True


def test_an_action_without_documentation_has_no_argument_spec(tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "doc_fragments").mkdir()
    module = tmp_path / "modules" / "bare.py"
    module.write_text("DOCUMENTATION = ''\n")
    with pytest.raises(ValueError, match=r"bare\.py has no DOCUMENTATION"):
        read_argument_spec(tmp_path, "bare")
    (tmp_path / "doc_fragments" / "shared.py").write_text("class ModuleDocFragment:\n    A = 'options: {}'\n")
    module.write_text("DOCUMENTATION = 'extends_documentation_fragment: shared.b'\n")
    with pytest.raises(ValueError, match=r"shared\.py has no B"):
        read_argument_spec(tmp_path, "bare")


@pytest.mark.parametrize("name", ACTIONS)
def test_every_action_has_a_module_that_only_documents_it(name: str) -> None:
    tree = ast.parse((PLUGINS / "modules" / f"{name}.py").read_text())
    assert {target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets} == {
        "DOCUMENTATION",
        "EXAMPLES",
        "RETURN",
    }
    assert not [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]


def test_filters_take_what_they_document(shown: dict[tuple[str, str], dict[str, Any]]) -> None:
    spec = importlib.util.spec_from_file_location("rackproof_filters", PLUGINS / "filter" / "rackproof.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    filters = module.FilterModule().filters()
    assert set(filters) == {path.stem for path in FILES["filter"]}
    for name, function in filters.items():
        doc = shown["filter", name]["doc"]
        _, *parameters = inspect.signature(function).parameters.values()
        documented = {key: option for key, option in doc["options"].items() if key != "_input"}
        assert [one.name for one in parameters] == [
            key.strip() for key in doc.get("positional", "").split(",") if key.strip()
        ]
        assert {one.name for one in parameters} == set(documented), name
        for one in parameters:
            required = one.default is inspect.Parameter.empty
            assert required == documented[one.name].get("required", False), f"{name}: {one.name}"
            assert (None if required else one.default) == documented[one.name].get("default")


def test_options_that_are_read_are_those_documented(
    shown: dict[tuple[str, str], dict[str, Any]],
) -> None:
    for path in FILES["callback"]:
        read = {
            literal(call.args[0])
            for call in ast.walk(ast.parse(path.read_text()))
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "get_option"
        }
        (text,) = re.findall(r'^DOCUMENTATION = """(.*?)"""', path.read_text(), re.DOTALL | re.MULTILINE)
        own = yaml.safe_load(text)
        documented = set(shown["callback", path.stem]["doc"]["options"])
        # Options of Ansible's fragments are read by its own callback, and may be read here, too.
        assert documented == read or own.get("extends_documentation_fragment")
        assert set(own.get("options", ())) <= read <= documented
