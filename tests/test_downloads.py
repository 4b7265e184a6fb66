"""Test that everything which is fetched is verified by a hash or a key, and is listed as such.

docs/inside/downloads.md lists each download with what proves it. These tests search all shipped files for
downloads, compare them with the table, and check that packages have hashes and that no branch is fetched.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rackproof.core.records import Run
from rackproof.report.view import container_text

CONTROLLER = "constraints.txt"
"""The file of requirements of the controller."""
LOCKS = (
    CONTROLLER,
    "testrack/svc/requirements.txt",
    "testrack/swift/requirements.txt",
    "workloads/imagenet/requirements.txt",
    "workloads/mxnet/requirements.txt",
    "workloads/tensorflow/requirements.txt",
    "workloads/torch/requirements-cuda.txt",
    "workloads/torch/requirements-no-deps.txt",
    "workloads/torch/requirements.txt",
)
"""All files of requirements with versions and hashes."""


def locked(text: str) -> dict[str, list[str]]:
    """Return the hashes of every requirement of a file, by the requirement without them."""
    lines = re.sub(r"(?m)^#.*\n", "", text).replace("\\\n", " ").splitlines()
    return {
        line.split(" --hash")[0].strip(): re.findall(r"--hash=(\S+)", line) for line in lines if line.strip()
    }


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_has_a_version_and_the_hashes_of_its_files(root: Path, name: str) -> None:
    found = locked((root / name).read_text())
    assert found
    for requirement, hashes in found.items():
        assert re.match(r"[a-z0-9-]+==[0-9a-z.]+($| ;)", requirement), requirement
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes), requirement


def test_all_files_of_requirements_are_locked(root: Path) -> None:
    there = {str(path.relative_to(root)) for path in root.glob("[tw]*/*/requirements*.txt")} | {CONTROLLER}
    assert there == set(LOCKS)
    renewing = (root / "tools/renew-constraints").read_text()
    for name in LOCKS:
        assert Path(name).name in renewing


def test_what_a_package_needs_is_locked_with_it(root: Path) -> None:
    names = {Requirement(one).name for one in locked((root / CONTROLLER).read_text())}
    # The project itself is built with setuptools.
    assert "setuptools" in names
    missing = set()
    for installed in importlib.metadata.distributions():
        if canonicalize_name(installed.name) in names:
            for needed in map(Requirement, installed.requires or ()):
                if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                    missing |= (
                        {(installed.name, needed.name)}
                        if canonicalize_name(needed.name) not in names
                        else set()
                    )
    assert not missing


@pytest.mark.parametrize(
    "name", ["tools/make-venv", "execution-environment.yml", "workloads/make_runtime.py"]
)
def test_each_installation_compares_hashes_and_builds_nothing_from_sources(root: Path, name: str) -> None:
    text = (root / name).read_text()
    assert "--require-hashes" in text
    assert "--only-binary=:all:" in text
    assert re.search(r"--no-deps|--no-index", text)


TABLE = "docs/inside/downloads.md"
ELSEWHERE = ("docs/", "tests/", "testrack/tests/", "molecule/")
"""Folders whose files are not searched, because no site runs them."""
MODULES = {
    "apt_key", "apt_repository", "bower", "composer", "deb822_repository", "dnf", "docker_image", "flatpak",
    "docker_image_pull", "gem", "get_url", "git", "hg", "maven_artifact", "npm", "pip", "podman_image",
    "rpm_key", "snap", "subversion", "yum", "yum_repository", "zypper",
}  # fmt: skip
"""Modules whose purpose is to fetch."""
SOMETIMES = {"uri": "dest", "apt": "deb", "unarchive": "src"}
"""Modules that fetch if they have this argument (uri), or if it is an address (apt, unarchive)."""
WORD = r"""['"]?,?\s+['"]?"""
"""The text between two words of a command line, or of a list of its arguments."""
COMMANDS = {
    "curl": rf"\b(?:curl|wget|aria2c|axel){WORD}(?:-|\$|https?:|\{{\{{)",
    "pip": rf"\b(?:pip3?|pipx|uv)(?:{WORD}--[\w-]+)*{WORD}(?:install|download|wheel|sync|compile|pip|add)\b",
    "image": rf"\b(?:docker|podman|nerdctl|ctr|enroot|skopeo|crane|apptainer){WORD}(?:image{WORD})?"
    r"(?:build|compose|copy|create|import|load|pull|run)\b|--container-image|^\s*FROM\s+\S+|\bbase_image:",
    "git": rf"""\bgit{WORD}(?:-C{WORD}\S+{WORD})?(?:clone|fetch|pull|submodule)\b""",
    "python": r"\burlopen\(|\bopen_limited\(|\burlretrieve\(|\bHTTPS?Connection\(|"
    r"\brequests\.(?:get|post|request|Session)\b|"
    r"\bsnapshot_download\(|\bhf_hub_download\(|\bload_dataset\(",
    "other": rf"\b(?:npm|gem|cargo|snap|ansible-galaxy|go|conda|rclone|huggingface-cli){WORD}"
    rf"(?:add|ci|collection|copy|download|get|install|sync)\b|(?:debootstrap|mmdebstrap){WORD}-|\baws\s+s3\b|\brsync://",
    "script": r"\bdownload_\w+\.(?:sh|py)\b|\bbash\s+\"\$downloader\"",
}
"""A pattern of each kind of download by a command or a Python function."""
MOVING = re.compile(r"https?://[^\s'\"]*/(?:main|master|trunk|HEAD|latest|refs/heads/[^\s'\"]*)/[^\s'\"]*")
"""An address whose content changes, because it names a branch or the latest version."""


def tasks(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key and value of a YAML document."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield str(key), value
            yield from tasks(value)
    elif isinstance(node, list):
        for value in node:
            yield from tasks(value)


def mappings(node: Any) -> Iterator[dict[str, Any]]:
    """Yield every mapping of a YAML document."""
    if isinstance(node, dict):
        yield node
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from mappings(value)


def of_modules(text: str) -> Iterator[str]:
    """Yield the module of each task of a YAML text that downloads something."""
    for key, value in tasks(yaml.safe_load(text)):
        name = key.rpartition(".")[2]
        if (
            name in MODULES
            and value
            and isinstance(value, (dict, str))
            and (key == name or key.count(".") > 1)
        ):
            yield name
        argument = SOMETIMES.get(name)
        if argument and isinstance(value, dict) and argument in value:
            address = str(value[argument])
            if name == "uri" or "://" in address:
                yield name


def downloads(name: str, text: str) -> Counter[str]:
    """Return the number of downloads of each kind in a file."""
    found: Counter[str] = Counter()
    if name.endswith((".yml", ".yaml")):
        found.update(of_modules(text))
    for line in text.splitlines():
        code = re.sub(r"^\s*#.*|\s#\s.*", "", line)
        found.update(kind for kind, pattern in COMMANDS.items() if re.search(pattern, code))
    return found


@pytest.fixture(scope="module")
def tree(root: Path) -> dict[str, str]:
    """Return the text of each shipped file by its name."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    texts = {}
    for name in listed.split("\0"):
        if name and not name.startswith(ELSEWHERE) and not name.endswith((".md", ".j2.html")):
            if (root / name).is_dir():
                # This is a link to a folder, whose files are listed by their own names.
                continue
            try:
                texts[name] = (root / name).read_text()
            except UnicodeDecodeError:
                continue
    return texts


@pytest.fixture(scope="module")
def table(root: Path) -> dict[str, tuple[Counter[str], str, str]]:
    """Return the rows of the table by their file: number of downloads of each kind, source, and proof."""
    rows = {}
    for line in (root / TABLE).read_text().splitlines():
        if line.startswith("| `"):
            names, kinds, source, proof = (cell.strip() for cell in line.strip("|").split(" | "))
            counted = Counter(
                {kind: int(count or 1) for kind, count in re.findall(r"(\w+)(?: (\d+))?", kinds)}
            )
            rows.update(dict.fromkeys(re.findall("`([^`]+)`", names), (counted, source, proof)))
    return rows


def unlisted(
    tree: Mapping[str, str], table: Mapping[str, tuple[Counter[str], str, str]]
) -> dict[str, Counter[str]]:
    """Return the downloads of files that the table does not have, or has in other numbers."""
    found = {name: downloads(name, text) for name, text in tree.items()}
    return {
        name: kinds
        for name, kinds in found.items()
        if kinds and not any(fnmatch(name, row) for row in table if "*" in row)
        if name not in table or table[name][0] != kinds
    }


def test_every_download_is_in_the_table_with_its_proof(
    tree: dict[str, str], table: dict[str, tuple[Counter[str], str, str]]
) -> None:
    assert unlisted(tree, table) == {}
    assert [row for row in table if "*" not in row and not downloads(row, tree.get(row, ""))] == []
    for row, (_kinds, source, proof) in table.items():
        assert source, row
        assert re.match(
            r"(sha256|signature|digest|commit|no download|loopback|\*\*unproven\*\*): [\w`]", proof
        ), row


TASK = "- name: Fetch\n  ansible.builtin.{}"


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("roles/x/tasks/main.yml", TASK.format("get_url: {url: 'https://h.example/x', dest: /x}"), "get_url"),
        ("roles/x/tasks/main.yml", TASK.format("uri: {url: 'https://h.example/x', dest: /x}"), "uri"),
        (
            "roles/x/tasks/main.yml",
            TASK.format("unarchive: {src: 'https://h.example/x.tgz', dest: /x}"),
            "unarchive",
        ),
        ("roles/x/tasks/main.yml", TASK.format("apt_key: {url: 'https://h.example/key'}"), "apt_key"),
        ("roles/x/tasks/main.yml", TASK.format("apt: {deb: 'https://h.example/x.deb'}"), "apt"),
        ("roles/x/tasks/main.yml", TASK.format("git: {repo: 'https://h.example/x', dest: /x}"), "git"),
        ("roles/x/tasks/main.yml", TASK.format("pip: {name: x}"), "pip"),
        (
            "roles/x/tasks/main.yml",
            "- block:\n    - community.docker.docker_image_pull: {name: x}",
            "docker_image_pull",
        ),
        ("roles/x/tasks/main.yml", TASK.format("command: {argv: [docker, pull, x]}"), "image"),
        ("roles/x/tasks/main.yml", TASK.format("command: enroot import docker://x"), "image"),
        ("roles/x/tasks/main.yml", TASK.format("shell: wget -q https://h.example/x | sh"), "curl"),
        ("roles/x/templates/x.sh.j2", "curl {{ address }} -o x", "curl"),
        ("roles/x/files/x", "import urllib.request\nurllib.request.urlopen(address)", "python"),
        ("plugins/modules/x.py", "urllib.request.urlretrieve(address, path)", "python"),
        ("workloads/x.py", "run([python, '-m', 'pip', '--quiet', 'install', 'x'])", "pip"),
        ("workloads/x.py", "requests.get(address)", "python"),
        ("workloads/x.py", "datasets.load_dataset('x')", "python"),
        ("benchmarks/x.yml", "run: |\n  git clone https://h.example/x", "git"),
        ("benchmarks/x.yml", "run: bash download_dataset.sh", "script"),
        ("tools/x", "npm install x", "other"),
        ("x/Dockerfile", "FROM x:latest", "image"),
        # These are more downloads than the table lists for this file.
        ("workloads/stage_mnist.py", "urlopen(a)\nurlopen(b)", "python"),
    ],
)
def test_a_new_download_is_found(
    table: dict[str, tuple[Counter[str], str, str]], name: str, text: str, kind: str
) -> None:
    found = unlisted({name: text}, table)
    assert found[name][kind] > 0


def test_nothing_is_fetched_from_a_branch(tree: dict[str, str]) -> None:
    assert {name: found for name, text in tree.items() if (found := MOVING.findall(text))} == {}
    for branch in ("main", "master", "refs/heads/x", "latest"):
        assert MOVING.search(f"https://raw.example/o/r/{branch}/x.sh")


def stages(root: Path) -> list[tuple[str, str]]:
    """Return every staging script of the shipped benchmarks that fetches a script."""
    found = []
    fetch = yaml.safe_load((root / "roles/bench/vars/main.yml").read_text())["bench_mlcommons_fetch"]
    for path in sorted((root / "benchmarks").glob("*.yml")):
        for number, stage in enumerate(yaml.safe_load(path.read_text()).get("stage", ())):
            script = stage.get("run", "").replace("{{ bench_mlcommons_fetch }}", fetch)
            if "curl" in script:
                found.append((f"{path.stem}-{number}", script))
    return found


@pytest.mark.parametrize(("name", "script"), stages(Path(__file__).parents[1]))
def test_a_script_that_is_not_the_pinned_one_is_not_started(name: str, script: str, tmp_path: Path) -> None:
    programs = {
        "curl": 'while [ "$1" != -o ]; do shift; done; echo "touch started" > "$2"; touch fetched',
    }
    (tmp_path / "bin").mkdir()
    for program, text in programs.items():
        (tmp_path / "bin" / program).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / program).chmod(0o755)
    script = script.replace("{{ bench_mlcommons_downloader_sha256 }}", "5" * 64)
    script = re.sub(r"{{.*?}}", "http://m", re.sub(r"(?m)^cd /\w+$", "", script))
    environment = {
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "DATA": str(tmp_path),
        "TMPDIR": str(tmp_path),
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (tmp_path / "fetched").exists(), done.stderr
    assert done.returncode != 0
    assert "FAILED" in done.stdout + done.stderr
    assert not list(tmp_path.rglob("started"))


@pytest.mark.parametrize(
    ("container", "pinned"),
    [
        ("registry.example/big:25.01", False),
        ("image:tag at 0123456789", False),
        (f"registry.example/big:25.01@sha256:{'a' * 64}", True),
        (f"registry.example/big:sha256:{'a' * 64}", True),
        ("", True),
    ],
)
def test_a_report_states_that_an_image_without_a_digest_is_not_pinned(container: str, pinned: bool) -> None:
    text = container_text(Run.model_construct(container=container, container_digest=""))
    assert ("image not pinned" in text) is not pinned


GUARD = r"ansible\.builtin\.match\('(sha256:[^']+)'\)|'match', '(\^sha256:[^']+)'"
"""The pattern by which a role refuses a checksum that is not a digest."""


# A SHA-256 has 64 hexadecimal digits. One more or less, another algorithm, or an address is refused.
@pytest.mark.parametrize("role", ["netboot", "nvidia_container", "ofed"])
@pytest.mark.parametrize(
    ("checksum", "taken"),
    [
        (f"sha256:{'0a' * 32}", True),
        ("", False),
        ("sha256:", False),
        ("sha256:http://mirror.example/SHA256SUMS", False),
        (f"sha256:http://mirror.example/{'0a' * 32}", False),
        (f"sha256:{'0a' * 31}", False),
        (f"sha256:{'0a' * 33}", False),
        (f"md5:{'0a' * 16}", False),
        (f"sha256:{'0a' * 32} http://mirror.example/SHA256SUMS", False),
    ],
)
def test_a_role_takes_digests_and_no_addresses_for_checksums(
    root: Path, role: str, checksum: str, taken: bool
) -> None:
    # A list of checksums at an address, often of the same mirror, would prove nothing in addition.
    guards = []
    for path in sorted((root / "roles" / role).rglob("*.yml")):
        guards += [one or other for one, other in re.findall(GUARD, path.read_text())]
    assert guards
    assert all(bool(re.match(guard, checksum)) is taken for guard in guards)


def test_only_known_roles_use_get_url(root: Path) -> None:
    roles = {
        path.parts[-3] for path in (root / "roles").glob("*/tasks/*.yml") if "get_url" in path.read_text()
    }
    assert roles == {"apt_mirror", "enroot_pyxis", "netboot", "nvidia_container", "ofed"}


def test_every_download_of_a_role_has_a_timeout(tree: dict[str, str]) -> None:
    found = {
        (name, str(task.get("name"))): task.get("timeout")
        for name, text in tree.items()
        if name.startswith(("roles/", "playbooks/")) and "builtin.get_url:" in text and name.endswith(".yml")
        for task in mappings(yaml.safe_load(text))
        if "ansible.builtin.get_url" in task
    }
    assert len(found) >= 6
    assert [one for one, limit in found.items() if not limit] == []
