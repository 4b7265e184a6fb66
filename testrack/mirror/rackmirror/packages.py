"""Build the mirror's fake packages for build.py.

:func:`read` checks packages.toml. :func:`build` makes a package with dpkg-deb, always with the same bytes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

# All files of all packages get this time, so that the same specs give the same bytes.
EPOCH = 1_735_689_600
MODULES = "usr/lib/rack/modules"
RELATIONS = ("pre-depends", "depends", "recommends", "provides", "conflicts", "breaks", "replaces")
SCRIPTS = ("preinst", "postinst", "prerm", "postrm", "config", "templates", "conffiles", "triggers")
MULTIARCH = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}
NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")
VERSION = re.compile(r"(?:\d+:)?\d[A-Za-z0-9.+~-]*")


class SpecError(Exception):
    """An entry of packages.toml that cannot be built. The message names the package."""


@dataclass(frozen=True)
class Package:
    """One version of one fake package.

    Attributes:
        repositories: The names of the repositories that have the package.
        relations: The texts of each relation of :data:`RELATIONS`.
        links: The targets of symbolic links by their paths.
        folders: The paths of empty folders.
        modules: The kernel modules for the fake modprobe, each with the modules that it needs.
        payload: The folder below payload/ whose files are copied, or "".
        words: The texts that replace @WORDS@ in files and scripts.
        scripts: The files below scripts/, by the name of the maintainer script.
        compiled: The sources of libraries by their paths.
    """

    name: str
    version: str
    repositories: tuple[str, ...]
    summary: str
    architecture: str
    section: str
    relations: dict[str, tuple[str, ...]]
    links: dict[str, str]
    folders: tuple[str, ...]
    modules: dict[str, list[str]]
    payload: str
    words: dict[str, str] = field(default_factory=dict)
    scripts: dict[str, str] = field(default_factory=dict)
    compiled: dict[str, str] = field(default_factory=dict)

    @property
    def upstream(self) -> str:
        """Return the version that the package's programs print, without epoch and packaging revision."""
        return re.sub(r"^\d+:|[-~][^-]*$", "", self.version)

    @property
    def file_name(self) -> str:
        """Return the name that dpkg gives the package's file, which is without the epoch."""
        return f"{self.name}_{self.version.partition(':')[2] or self.version}_{self.architecture}.deb"

    def control(self) -> str:
        """Return the text of the package's control file."""
        fields = {
            "Package": self.name,
            "Version": self.version,
            "Architecture": self.architecture,
            "Maintainer": "Test rack <mirror@rack.invalid>",
            "Section": self.section,
            "Priority": "optional",
            **{name.title(): ", ".join(values) for name, values in self.relations.items()},
            "Description": f"{self.summary} (fake)\n It stands for the vendor's package of this name on a"
            " test rack without such hardware;\n it holds nothing of the vendor's.",
        }
        return "".join(f"{name}: {value}\n" for name, value in fields.items())


def read(path: Path, architecture: str) -> list[Package]:
    """Return the packages of packages.toml, one for each version.

    Packages get the architecture, unless theirs is ``all``.
    """
    entries = tomllib.loads(path.read_text())["package"]
    found = [
        _package(entry, version, architecture, path.parent)
        for entry in entries
        for version in entry["versions"]
    ]
    seen = set()
    for package in found:
        if (package.name, package.version) in seen:
            raise SpecError(f"{package.name} {package.version} occurs twice in {path.name}")
        seen.add((package.name, package.version))
    return found


_KEYS = {
    *(
        "name",
        "versions",
        "repositories",
        "summary",
        "architecture",
        "section",
        "links",
        "modules",
        "payload",
    ),
    *("scripts", "only", "folders", "words", "compiled"),
    *RELATIONS,
}


def _package(entry: dict, version: str, architecture: str, folder: Path) -> Package:
    """Check an entry of packages.toml, and return the package in this version.

    Raises:
        SpecError: The entry is invalid.
    """
    name = entry["name"]
    unknown = {*entry, *entry.get("only", {}).get(version, {})} - _KEYS
    if unknown:
        raise SpecError(f"{name}: unknown key {', '.join(sorted(unknown))}")
    if not NAME.fullmatch(name) or not VERSION.fullmatch(version):
        raise SpecError(f"{name} {version}: no valid package name or version")
    stray = set(entry.get("only", {})) - set(entry["versions"])
    if stray:
        raise SpecError(f"{name}: `only` names a version that it does not have: {', '.join(sorted(stray))}")
    only = entry.get("only", {}).get(version, {})
    payload = entry.get("payload", "")
    if payload and not (folder / "payload" / payload).is_dir():
        raise SpecError(f"{name}: there is no folder payload/{payload}")
    for script, source in entry.get("scripts", {}).items():
        if script not in SCRIPTS or not (folder / "scripts" / source).is_file():
            raise SpecError(
                f"{name}: {script} = {source}: no maintainer script, or no such file under scripts/"
            )
    relations = {
        relation: tuple(
            text.replace("{version}", version) for text in [*entry.get(relation, ()), *only.get(relation, ())]
        )
        for relation in RELATIONS
    }
    return Package(
        name=name,
        version=version,
        repositories=tuple(only.get("repositories") or entry["repositories"]),
        summary=entry["summary"],
        architecture="all" if entry.get("architecture") == "all" else architecture,
        section=entry.get("section", "admin"),
        relations={relation: values for relation, values in relations.items() if values},
        links=entry.get("links", {}),
        folders=tuple(entry.get("folders", ())),
        modules={**entry.get("modules", {}), **only.get("modules", {})},
        payload=payload,
        words={**entry.get("words", {}), **only.get("words", {})},
        scripts=entry.get("scripts", {}),
        compiled={
            path.replace("{multiarch}", MULTIARCH.get(architecture, architecture)): source
            for path, source in entry.get("compiled", {}).items()
        },
    )


def build(package: Package, sources: Path, work: Path, out: Path, headers: Mapping[str, Path]) -> Path:
    """Build the package into the folder out, from the files below sources. Return the package's file.

    ``headers`` gives the folder of headers by codename of a release. A program is compiled for each release.
    """
    tree = work / f"{package.name}_{package.version}"
    shutil.rmtree(tree, ignore_errors=True)
    control = tree / "DEBIAN"
    control.mkdir(parents=True)
    control.chmod(0o755)
    if package.payload:
        _copy(sources / "payload" / package.payload, tree, package)
    version = package.words.get("MODULE_VERSION", package.upstream)
    for module, needs in package.modules.items():
        path = tree / MODULES / f"{module}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"version": version, "depends": needs}) + "\n")
    for folder in package.folders:
        (tree / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for link, target in package.links.items():
        path = tree / link.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    for library, source in package.compiled.items():
        for codename, folder in headers.items():
            path = tree / library.lstrip("/").replace("{codename}", codename)
            _compile(sources / source, path, folder)
    for script, source in package.scripts.items():
        (control / script).write_text(_fill((sources / "scripts" / source).read_text(), package))
        (control / script).chmod(0o644 if script in {"templates", "conffiles", "triggers"} else 0o755)
    (control / "control").write_text(package.control())
    for path in [tree, *tree.rglob("*")]:
        if not path.is_symlink():
            # The modes in the package do not depend on the umask of the builder.
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
            os.utime(path, (EPOCH, EPOCH))
        else:
            os.utime(path, (EPOCH, EPOCH), follow_symlinks=False)
    out.mkdir(parents=True, exist_ok=True)
    made = out / package.file_name
    done = subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z6", "--build", tree, made],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)},
    )
    if done.returncode:
        raise SpecError(f"{package.name} {package.version}: {done.stderr.strip()}")
    shutil.rmtree(tree)
    return made


def _compile(source: Path, library: Path, headers: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Wno-unused-parameter", f"-I{headers}"]
    # The library must not contain the path of its folder, because its bytes would depend on it.
    command += [
        f"-ffile-prefix-map={source.parent}=.",
        "-Wl,--build-id=none",
        "-o",
        str(library),
        str(source),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SpecError(f"{source.name} does not compile: {done.stderr.strip()}")


def _copy(source: Path, tree: Path, package: Package) -> None:
    for path in sorted(source.rglob("*")):
        target = tree / path.relative_to(source)
        if path.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(_fill(path.read_text(), package))
            target.chmod(path.stat().st_mode & 0o777)


def _fill(text: str, package: Package) -> str:
    """Replace words such as @VERSION@ in a file or script of the package."""
    words = {
        "@PACKAGE@": package.name,
        "@VERSION@": package.version,
        "@UPSTREAM@": package.upstream,
        "@MULTIARCH@": MULTIARCH.get(package.architecture, package.architecture),
    }
    words |= {f"@{word}@": value for word, value in package.words.items()}
    for word, value in words.items():
        text = text.replace(word, value)
    return text
