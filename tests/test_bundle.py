"""Test the bundle, which is one file that installs Rackproof on machines without network.

tools/make-bundle makes it from a checkout, wheels, packages and images, with a manifest of all files.
tools/install-bundle compares every file before it runs anything. A file that was altered, is missing or is
not in the manifest is named, and so is another Python or machine.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
Install = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def program(root: Path) -> ModuleType:
    """Return tools/make-bundle as a module."""
    loader = SourceFileLoader("make_bundle", str(root / "tools" / "make-bundle"))
    spec = importlib.util.spec_from_loader("make_bundle", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture
def bundle(root: Path, tmp_path: Path, program: ModuleType) -> Path:
    """Return an unpacked bundle of few files, whose Makefile prints with which variables it was started."""
    folder = tmp_path / "a site's bundle"
    texts = {
        "Makefile": "venv: ; @echo made with $$RACKPROOF_PYTHON: $$PIP_NO_INDEX $$PIP_FIND_LINKS\n",
        "tools/install-bundle": (root / "tools/install-bundle").read_text(),
        "inventory/hosts.yml": "all: {}\n",
        "bundle/wheels/one-1.0-py3-none-any.txt": "a wheel",
        "bundle/mirror/os/dists/stable/Release": "Origin: x",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "link").symlink_to("inventory")
    write_manifest(folder, program)
    return folder


def write_manifest(folder: Path, program: ModuleType, **changed: Any) -> None:
    """Write the manifest of a folder, with some entries replaced."""
    names = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    )
    project = {"version": "0.1.0", "license": "Apache-2.0"}
    files = [
        program.describe(folder / name, name, project, "c" * 40)
        for name in names
        if name != "bundle/manifest.json"
    ]
    manifest = {
        "commit": "c" * 40,
        "python": PYTHON,
        "machine": platform.machine(),
        "glibc": "2.17",
        "lacks": ["container images"],
        "files": files,
    }
    (folder / "bundle/manifest.json").write_text(json.dumps(manifest | changed))


@pytest.fixture
def install(bundle: Path) -> Install:
    """Return a function that runs tools/install-bundle of the unpacked bundle."""

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PIP_FIND_LINKS": "/elsewhere"}
        return subprocess.run(
            [sys.executable, bundle / "tools/install-bundle", *words],
            env=kept | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_a_whole_bundle_is_installed_from_its_own_wheels(bundle: Path, install: Install) -> None:
    done = install()
    assert done.returncode == 0, done.stderr
    wheels = (bundle / "bundle/wheels").as_uri()
    assert done.stdout.splitlines() == [
        "install-bundle: 6 files are as the manifest of commit cccccccccccc lists them",
        "install-bundle: not in it: container images",
        f"made with python{PYTHON}: 1 {wheels}",
    ]
    # make and an activated shell read these settings later.
    asked = '. .rackproof/bundle.env && echo "$PIP_NO_INDEX $PIP_FIND_LINKS"'
    shell = subprocess.run(["sh", "-c", asked], cwd=bundle, capture_output=True, text=True, check=True)
    assert shell.stdout == f"1 {wheels}\n"


@pytest.mark.parametrize("names", [("PYTHONPATH",), ("PYTHONHOME",), ("PYTHONPATH", "PYTHONHOME")])
def test_pip_of_a_bundle_finds_no_packages_of_the_caller(
    bundle: Path, install: Install, program: ModuleType, names: tuple[str, ...]
) -> None:
    """pip leaves out packages that it finds in the caller's folders, and .venv would lack them later."""
    (bundle / "Makefile").write_text("venv: ; @echo made with $$PYTHONPATH$$PYTHONHOME.\n")
    write_manifest(bundle, program)
    # The folder of the running Python is the only home with which it starts.
    values = {"PYTHONPATH": "/elsewhere", "PYTHONHOME": sys.base_prefix}
    done = install(**{name: values[name] for name in names})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "made with ."


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Let the test's processes write files that every user may write, unless they prevent it."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_no_other_user_can_write_what_is_installed(bundle: Path, open_umask: None, install: Install) -> None:
    assert install().returncode == 0
    made = bundle / ".rackproof"
    assert [path.stat().st_mode & 0o777 for path in (made, made / "bundle.env")] == [0o755, 0o644]


def test_no_other_user_can_write_a_bundle(
    program: ModuleType, tmp_path: Path, open_umask: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(tree: Path, *_: object) -> dict[str, Any]:
        (tree / "bundle").mkdir()
        (tree / "file").write_text("x")
        return {"lacks": []}

    monkeypatch.setattr(program, "fill", fill)
    monkeypatch.setattr(program, "git", lambda *words: f"{'c' * 40} 0" if words[0] == "show" else "")
    monkeypatch.setattr(sys, "argv", ["make-bundle", str(tmp_path / "dist")])
    program.main()
    made = [tmp_path / "dist", *(tmp_path / "dist").iterdir()]
    assert [path.stat().st_mode & 0o777 for path in made] == [0o755, 0o644, 0o644]


def alter(path: Path) -> None:
    """Change one bit of a file, so that its size stays the same."""
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


def relink(path: Path) -> None:
    """Replace a file or link by a link to /etc."""
    path.unlink()
    path.symlink_to("/etc")


WHEEL = "bundle/wheels/one-1.0-py3-none-any.txt"
# A file of the bundle, a damage, and the words of the refusal.
DAMAGES: list[tuple[str, Callable[[Path], Any], str]] = [
    (WHEEL, alter, f"{WHEEL} was altered"),
    (WHEEL, lambda path: path.write_text("a whee"), f"{WHEEL} was altered"),
    (WHEEL, Path.unlink, f"{WHEEL} is missing"),
    (WHEEL, relink, f"{WHEEL} is another link or file than in the manifest"),
    ("bundle/wheels/one-2.0-py3-none-any.whl", Path.touch, "one-2.0-py3-none-any.whl is not in the manifest"),
    ("bundle/mirror/os/dists/stable/Release", alter, "Release was altered"),
    ("inventory/hosts.yml", alter, "inventory/hosts.yml was altered"),
    ("inventory/hosts.yml", Path.unlink, "inventory/hosts.yml is missing"),
    ("link", relink, "link is another link or file than in the manifest"),
    ("usercustomize.py", Path.touch, "usercustomize.py is not in the manifest"),
    (".venv", lambda path: path.symlink_to("/usr"), ".venv is not in the manifest"),
    ("red\x1b[31m\udcff", Path.touch, r"'red\x1b[31m\udcff is not in the manifest'"),
    ("bundle/manifest.json", lambda path: path.write_text("{"), "bundle/manifest.json is damaged"),
    ("bundle/manifest.json", lambda path: path.write_text("7"), "bundle/manifest.json is damaged"),
    ("bundle/manifest.json", lambda path: path.write_text("{}"), "bundle/manifest.json is damaged"),
    ("bundle/manifest.json", Path.unlink, "has no bundle/manifest.json"),
]


@pytest.mark.parametrize(("name", "damage", "words"), DAMAGES)
def test_a_file_that_is_not_as_in_the_manifest_is_refused_by_its_name(
    bundle: Path, install: Install, name: str, damage: Callable[[Path], Any], words: str
) -> None:
    damage(bundle / name)
    done = install()
    assert done.returncode == 1
    assert words in done.stderr
    assert "made with" not in done.stdout
    assert not (bundle / ".rackproof").exists()


ENTRY = {"path": "a", "size": 1, "sha256": "0" * 64}


# Texts are whole manifests. A mapping replaces entries of a good one, and None is no value of any key.
@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "{",
            "null",
            "7",
            "[]",
            '"files"',
            "{}",
            "\xff",
            "[" * 200_000,
            '{"files": NaN}',
            '{"a": 1, "a": 1}',
        ),
        *({key: None} for key in ("commit", "files", "glibc", "lacks", "machine", "python")),
        *({"commit": value} for value in (7, [], "", "\x1b[2J" + "c" * 40)),
        *({"glibc": value} for value in (2.17, [2, 17], "", "new", "2.x")),
        *({"python": value} for value in (3.11, [], "../../bin/sh", "3\n")),
        *({"machine": value} for value in (7, ["x86_64"], "")),
        *({"lacks": value} for value in (7, "images", {"a": 1}, [7], ["\x1b[2J"])),
        *({"files": value} for value in (7, "abc", {"link": "x"}, ["link"], [7], [None], [[]])),
        *(
            {"files": [ENTRY | change]}
            for change in ({"path": 7}, {"path": None}, {"path": ""}, {"path": "/a"})
        ),
        *({"files": [ENTRY | change]} for change in ({"path": "../a"}, {"path": "a/./b"}, {"path": "a\0b"})),
        *(
            {"files": [ENTRY | change]}
            for change in ({"size": "1"}, {"size": True}, {"sha256": 7}, {"link": 7})
        ),
        {"files": [{"path": "a", "sha256": "0" * 64}]},
        {"files": [{"path": "a", "size": 1}]},
        {"files": [{"size": 1, "sha256": "0" * 64}]},
        {"files": [ENTRY, ENTRY]},
    ],
    ids=lambda text: repr(text)[:60],
)
def test_an_invalid_manifest_is_refused_in_one_sentence(
    bundle: Path, install: Install, program: ModuleType, text: str | dict[str, Any]
) -> None:
    if isinstance(text, dict):
        write_manifest(bundle, program, **text)
    else:
        (bundle / "bundle/manifest.json").write_text(text, encoding="latin-1")
    done = install()
    assert done.returncode == 1
    assert done.stderr.startswith("install-bundle: bundle/manifest.json is damaged: copy the bundle again")
    assert done.stderr.count("\n") == 1
    assert not (bundle / ".rackproof").exists()


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to nothing"])
def test_a_folder_a_pipe_or_a_broken_link_as_manifest_is_refused(
    bundle: Path, install: Install, kind: str
) -> None:
    path = bundle / "bundle/manifest.json"
    path.unlink()
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "link to nothing": lambda: path.symlink_to("x")}[
        kind
    ]()
    done = install()
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "name", ["argparse.py", "json/__init__.py", "pathlib.py", "subprocess.py", "encodings.py"]
)
@pytest.mark.parametrize("safe_path", ["", "1"])
def test_nothing_of_the_folder_is_imported_before_it_is_verified(
    bundle: Path, install: Install, tmp_path: Path, name: str, safe_path: str
) -> None:
    mark = tmp_path / "ran"
    path = bundle / "tools" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"open({str(mark)!r}, 'w')\n")
    done = install(PYTHONSAFEPATH=safe_path)
    assert not mark.exists()
    assert done.returncode == 1
    assert f"tools/{name} is not in the manifest" in done.stderr


def test_of_many_strange_files_twenty_are_named_and_the_others_counted(
    bundle: Path, install: Install
) -> None:
    for number in range(30):
        (bundle / f"strange-{number}").touch()
    done = install()
    assert done.stderr.count("is not in the manifest") == 20
    assert "... and 10 more" in done.stderr


def test_a_site_edits_its_inventory_and_installs_again(bundle: Path, install: Install) -> None:
    assert install().returncode == 0
    (bundle / "inventory/hosts.yml").write_text("all: {hosts: {n01: }}\n")
    assert install().returncode == 0
    (bundle / "results").mkdir()
    (bundle / "results/run.json").touch()
    done = install("--verify-only")
    assert done.returncode == 1
    assert "inventory/hosts.yml was altered" in done.stderr
    assert "is not in the manifest" not in done.stderr
    # Wheels are compared each time.
    alter(bundle / WHEEL)
    assert f"{WHEEL} was altered" in install().stderr


def test_a_bundle_unpacked_over_another_is_verified_as_a_whole(
    bundle: Path, install: Install, program: ModuleType
) -> None:
    assert install().returncode == 0
    (bundle / "bundle/wheels/two.txt").touch()
    write_manifest(bundle, program)
    (bundle / "inventory/hosts.yml").write_text("all: {hosts: {n01: }}\n")
    done = install()
    assert "inventory/hosts.yml was altered" in done.stderr


def test_only_verifying_installs_nothing(bundle: Path, install: Install) -> None:
    done = install("--verify-only")
    assert done.returncode == 0
    assert "made with" not in done.stdout
    assert not (bundle / ".rackproof").exists()


@pytest.mark.parametrize(
    ("changed", "environment", "words"),
    [
        (
            {"python": "3.99"},
            {},
            f"this bundle is for Python 3.99, and python3 is {PYTHON}: install python3.99 with its venv",
        ),
        ({}, {"RACKPROOF_PYTHON": "absent"}, f"is for Python {PYTHON}, and there is none"),
        ({"machine": "aarch64x"}, {}, f"for aarch64x, and this machine is {platform.machine()}"),
        ({"glibc": "99.1"}, {}, "need glibc 99.1, and this system has"),
    ],
)
def test_another_machine_is_refused_in_one_sentence(
    bundle: Path,
    install: Install,
    program: ModuleType,
    changed: dict[str, str],
    environment: dict[str, str],
    words: str,
) -> None:
    write_manifest(bundle, program, **changed)
    done = install(**environment)
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_make_venv_of_a_bundle_verifies_it_first(root: Path, bundle: Path) -> None:
    (bundle / "tools/make-venv").write_text((root / "tools/make-venv").read_text())
    done = subprocess.run(
        ["bash", bundle / "tools/make-venv", ".venv"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert not (bundle / ".venv").exists()


def wheel(folder: Path, name: str, metadata: str) -> Path:
    """Make a wheel that has only metadata."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Name: {name}\nVersion: 1.0\n{metadata}\n")
    return path


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ("License-Expression: MIT", "MIT"),
        ("License: long\nClassifier: License :: OSI Approved :: BSD License", "BSD License"),
        ("License: Apache 2.0", "Apache 2.0"),
        ("", None),
    ],
)
def test_the_manifest_has_a_wheels_version_and_licence(
    program: ModuleType, tmp_path: Path, metadata: str, licence: str | None
) -> None:
    path = wheel(tmp_path, "one", metadata)
    found = program.describe(path, "bundle/wheels/" + path.name, {}, "")
    assert (found["version"], found.get("licence")) == ("1.0", licence)
    assert found["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_cuda_is_fetched_for_a_build_that_needs_it(program: ModuleType, tmp_path: Path) -> None:
    wheel(tmp_path, "other", "Requires-Dist: nvidia-nothing")
    wheel(tmp_path, "torch", "Requires-Dist: sympy")
    assert not program.needs_cuda(tmp_path)
    wheel(
        tmp_path, "torch", "Requires-Dist: sympy\nRequires-Dist: nvidia-cublas==13; sys_platform == 'linux'"
    )
    assert program.needs_cuda(tmp_path)


def test_the_glibc_of_the_wheels_is_the_newest_that_one_of_them_needs(
    program: ModuleType, tmp_path: Path
) -> None:
    assert program.needed_glibc(tmp_path) == "2.17"
    for tag in (
        "manylinux2014_x86_64.manylinux_2_17_x86_64",
        "manylinux_2_34_x86_64",
        "manylinux_2_9_x86_64",
    ):
        (tmp_path / f"one-1.0-cp311-cp311-{tag}.whl").touch()
    (tmp_path / "two-1.0-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_39_x86_64.whl").touch()
    assert program.needed_glibc(tmp_path) == "2.34"


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    """Return a package mirror with one repository of one package."""
    folder = tmp_path / "mirror"
    lists = folder / "lambda/dists/stable/main/binary-amd64"
    lists.mkdir(parents=True)
    (folder / "lambda/pool").mkdir()
    (folder / "lambda/dists/stable/Release").write_text("Suite: stable\n")
    (folder / "lambda/pool/one_1.0_amd64.deb").write_text("package")
    (lists / "Packages").write_text("Package: one\nFilename: pool/one_1.0_amd64.deb\nSize: 7\n")
    return folder


def test_a_mirror_is_taken_whole(program: ModuleType, mirror: Path, tmp_path: Path) -> None:
    assert program.add_mirror(mirror, tmp_path / "taken") == ["lambda"]
    assert (tmp_path / "taken/lambda/pool/one_1.0_amd64.deb").read_text() == "package"
    found = program.describe(
        mirror / "lambda/pool/one_1.0_amd64.deb", "bundle/mirror/lambda/pool/one", {}, ""
    )
    assert (found["source"], found["version"]) == ("mirror, lambda", "1.0")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            lambda mirror: (mirror / "lambda/pool/one_1.0_amd64.deb").unlink(),
            "one_1.0_amd64.deb: the list of",
        ),
        (lambda mirror: (mirror / "lambda/pool/one_1.0_amd64.deb").write_text("pack"), "of another size"),
        (lambda mirror: (mirror / "lambda/dists/stable/Release").unlink(), "has no repository"),
        (lambda mirror: (mirror / "key").symlink_to("/etc/passwd"), "key leads out of"),
        (lambda mirror: (mirror / "key").symlink_to("../../x"), "key leads out of"),
    ],
)
def test_a_mirror_that_a_site_could_not_use_is_refused(
    program: ModuleType, mirror: Path, tmp_path: Path, damage: Callable[[Path], Any], words: str
) -> None:
    damage(mirror)
    with pytest.raises(SystemExit, match=words):
        program.add_mirror(mirror, tmp_path / "taken")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Return an OCI layout with one image. Its index, manifest, config and layer are blobs."""
    folder = tmp_path / "images"
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)

    def blob(content: bytes) -> dict[str, str]:
        name = hashlib.sha256(content).hexdigest()
        (blobs / name).write_bytes(content)
        return {"digest": f"sha256:{name}"}

    manifest = {"config": blob(b"{}"), "layers": [blob(b"layer")]}
    image = blob(json.dumps({"manifests": [blob(json.dumps(manifest).encode())]}).encode())
    image |= {"annotations": {"org.opencontainers.image.ref.name": "llm:1"}}  # type: ignore[dict-item]
    (folder / "index.json").write_text(json.dumps({"manifests": [image]}))
    (folder / "oci-layout").write_text("{}")
    return folder


def test_images_are_taken_by_their_digests(program: ModuleType, images: Path, tmp_path: Path) -> None:
    (images / "work").mkdir()
    names = program.add_images(images, tmp_path / "taken")
    assert list(names) == ["llm:1"]
    assert names["llm:1"].startswith("sha256:")
    assert sorted(path.name for path in (tmp_path / "taken").iterdir()) == [
        "blobs",
        "index.json",
        "oci-layout",
    ]


@pytest.mark.parametrize("damage", [alter, Path.unlink])
@pytest.mark.parametrize("number", range(4))
def test_an_image_with_a_damaged_blob_is_refused(
    program: ModuleType, images: Path, tmp_path: Path, damage: Callable[[Path], Any], number: int
) -> None:
    damage(sorted((images / "blobs/sha256").iterdir())[number])
    with pytest.raises(SystemExit, match="image llm:1: its blob sha256:"):
        program.add_images(images, tmp_path / "taken")


def test_a_folder_without_images_is_refused(program: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is no OCI layout"):
        program.add_images(tmp_path, tmp_path / "taken")
