"""Test rules about the source tree: imports between packages, names, roles and generated files.

docs/inside/architecture.md describes the folders of the package and the order of their imports.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml

from rackproof.core.records import Verdict

PYTHON_LINE = re.compile(rb"#!.*python")
NAMES_DEFINED_TWICE = frozenset(
    {
        "Part",
        "list_systems",
        "moment_of",
        "number",
        "open_machine",
        "read_settings",
        "run_folders",
        "select_benchmarks",
    }
)
"""Names that two modules define for good reasons."""


@cache
def imports(path: Path) -> set[str]:
    """Return the top-level packages that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.split(".")[0])
    return found


def python_programs(root: Path) -> list[Path]:
    """Return the tracked programs in Python that have no extension."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout
    paths = [root / name for name in listed.decode().split("\0") if name and not Path(name).suffix]
    return [
        path
        for path in paths
        if path.is_file() and not path.is_symlink() and PYTHON_LINE.match(path.read_bytes()[:80])
    ]


def public_names(root: Path) -> dict[str, list[str]]:
    """Return the public functions and classes of the package's modules, with where each is defined."""
    found: dict[str, list[str]] = {}
    for path in sorted((root / "src").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(path.relative_to(root / "src")))
    return found


def test_nothing_runs_backwards_between_the_rooms(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, root / "tools/structure"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_a_public_name_is_defined_once(root: Path) -> None:
    """A second definition of a name makes every search for it ambiguous. The exceptions may only shrink."""
    twice = {name: places for name, places in public_names(root).items() if len(places) > 1}
    assert set(twice) <= NAMES_DEFINED_TWICE, {
        name: places for name, places in twice.items() if name not in NAMES_DEFINED_TWICE
    }
    assert set(twice) == NAMES_DEFINED_TWICE, (
        "remove from NAMES_DEFINED_TWICE the names that are defined only once"
    )


def test_no_function_of_the_product_is_complex(root: Path) -> None:
    """ruff's limit holds for every program. In the package and its plugins no function is over 10."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ruff", "check", "--no-cache"),
            *("--select", "C901", "--output-format", "json"),
            *("--config", "lint.mccabe.max-complexity=10", root / "src", root / "plugins"),
        ],
        capture_output=True,
        check=False,
    )
    complex_ones = [
        f"{Path(found['filename']).name}:{found['location']['row']} {found['message']}"
        for found in json.loads(done.stdout)
    ]
    assert complex_ones == []


def test_every_python_program_is_linted(root: Path) -> None:
    """ruff reads a program without an extension only if pyproject.toml names it."""
    config = tomllib.loads((root / "pyproject.toml").read_text())
    linted = set(config["tool"]["ruff"]["extend-include"])
    assert {str(path.relative_to(root)) for path in python_programs(root)} == linted


def test_every_python_program_starts_without_docstrings(root: Path) -> None:
    """With PYTHONOPTIMIZE=2 there is no docstring, so a program's first line may be taken only of a text."""
    no_text = re.compile(r"__doc__[.\[]|__doc__ or \"\"\)\.splitlines\(\)\[")
    modules = [
        path for folder in ("workloads", "testrack", "tools") for path in (root / folder).rglob("*.py")
    ]
    assert modules
    assert not [path for path in (*python_programs(root), *modules) if no_text.search(path.read_text())]


def test_the_package_never_imports_ansible(root: Path) -> None:
    paths = list((root / "src" / "rackproof").rglob("*.py"))
    assert paths
    assert not [path for path in paths if imports(path) & {"ansible", "ansible_runner", "molecule"}]
    # It does not import Ansible through rackproof_ansible either.
    assert not [path for path in paths if "rackproof_ansible" in imports(path)]


def test_only_plugins_and_their_package_import_ansible(root: Path) -> None:
    allowed = [root / part for part in ("plugins", "src/rackproof_ansible", "tests", "testrack/tests")]
    folders = ("src", "plugins", "roles", "molecule", "testrack", "tests", "tools", "workloads")
    paths = [path for folder in folders for path in (root / folder).rglob("*.py")]
    importers = [path for path in paths if "ansible" in imports(path)]
    assert importers
    assert not [path for path in importers if not any(path.is_relative_to(part) for part in allowed)]


def test_programs_on_nodes_use_only_the_standard_library(root: Path) -> None:
    for path in [*(root / "plugins/modules").glob("*.py"), *(root / "plugins/module_utils").glob("*.py")]:
        assert imports(path) <= {*sys.stdlib_module_names, "ansible"}, path
    own = {"bounded_tar", "limited_download", "lock_file", "slurm_run"}
    for name in ("make_runtime", "stage_mnist", "stage_tf_cnn", "docker_run", *own):
        assert imports(root / "workloads" / f"{name}.py") <= {*sys.stdlib_module_names, *own}, name
    for path in (root / "workloads").glob("*.py"):
        assert "rackproof" not in imports(path), path


ROLES = sorted(
    path.name for path in (Path(__file__).resolve().parents[1] / "roles").iterdir() if path.is_dir()
)


@pytest.mark.parametrize("role", ROLES)
def test_argument_specs_and_defaults_are_equal(root: Path, role: str) -> None:
    """A spec's default sets nothing, and a key that only one of them has is a typing error."""
    folder = root / "roles" / role
    defaults = yaml.safe_load((folder / "defaults/main.yml").read_text())
    spec: dict[str, object] = {}
    for entry in yaml.safe_load((folder / "meta/argument_specs.yml").read_text())["argument_specs"].values():
        spec |= {
            name: option.get("default")
            for name, option in entry.get("options", {}).items()
            if not option.get("required")
        }
    assert spec == defaults


@pytest.mark.parametrize("role", ROLES)
def test_every_role_has_all_files(root: Path, role: str) -> None:
    folder = root / "roles" / role
    assert {"meta/argument_specs.yml", "meta/main.yml", "defaults/main.yml", "README.md"} <= {
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
    }


def test_generated_documents_are_up_to_date(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, root / "tools/make-docs", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_readme_is_short_and_links_of_pages_lead_somewhere(root: Path) -> None:
    text = (root / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    for document in [root / "README.md", *(root / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name}: {target}"


DOCUMENTED_NAME = re.compile(r"`((?:core|logs|nodes|store|analysis|report|jobs)\.[a-z_.]+)`")


def test_names_of_the_package_in_documents_exist(root: Path) -> None:
    """A page that names a removed module misleads its reader."""
    missing = []
    for document in sorted((root / "docs").rglob("*.md")):
        for name in DOCUMENTED_NAME.findall(document.read_text()):
            if name.endswith((".md", ".py", ".json", ".html", ".xml")):
                continue
            module, _, attribute = f"rackproof.{name}".rpartition(".")
            try:
                found = importlib.util.find_spec(f"rackproof.{name}") is not None
            except ModuleNotFoundError:
                found = False
            if not found and not hasattr(importlib.import_module(module), attribute):
                missing.append(f"{document.name}: {name}")
    assert not missing


def test_versions_are_only_in_constraints(root: Path) -> None:
    pinned = {line.split("==")[0].lower() for line in (root / "constraints.txt").read_text().splitlines()}
    project = (root / "pyproject.toml").read_text()
    assert {"pydantic", "sqlalchemy", "ansible-core", "ruff"} <= pinned
    assert "==" not in project


def test_the_readme_names_every_playbook_at_the_root(root: Path) -> None:
    readme = (root / "README.md").read_text()
    playbooks = {path.name for path in root.glob("*.yml") if "import_playbook" in path.read_text()}
    assert playbooks >= {"bench.yml", "provision.yml", "reimage.yml", "validate.yml"}
    assert not [name for name in playbooks if name not in readme]


def test_no_tracked_file_has_the_path_of_this_checkout(root: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout
    here = os.fsencode(root) + b"/"
    for name in listed.decode().split("\0"):
        path = root / name
        if name and path.is_file() and not path.is_symlink():
            assert here not in path.read_bytes(), name


def test_compact_results_are_complete(root: Path) -> None:
    runs = []
    for path in (root / "docs/results").glob("h?00-x[0-9].json"):
        record = json.loads(path.read_text())
        runs += record["runs"]
        for run in record["runs"]:
            values = [entry for entry in run["measured"] if "worst" in entry]
            assert run["verdict"] in list(Verdict)
            assert all(position < len(record["nodes"]) for position in run["nodes"])
            if not values:
                assert run["verdict"] == Verdict.UNPROVEN, run["run_id"]
                continue
            assert run["software"] < len(record["software"])
            judged = [entry for entry in values if "reference" in entry]
            assert judged, run["run_id"]
            assert all(entry["verdict"] in list(Verdict) for entry in judged)
            assert all(entry["reference"] < len(record["references"]) for entry in judged)
            assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in run["logs"].values()), run["run_id"]
            assert run["logs"], run["run_id"]
    assert runs
    assert len({run["run_id"] for run in runs}) == len(runs)


def test_the_walks_name_existing_files_and_their_number(root: Path) -> None:
    section = (root / "docs/inside/architecture.md").read_text().split("## Four walks")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 4
    for walk, count, listed in rows:
        files = re.findall(r"`([^`]+)`", listed)
        missing = [
            name
            for name in files
            if not any((root / up / name).is_file() for up in ("", "src", "src/rackproof"))
        ]
        assert (walk, missing) == (walk, [])
        assert (walk, len(set(files))) == (walk, int(count))
