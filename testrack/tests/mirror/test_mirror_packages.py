"""Test the fake packages of the rack's mirror (testrack/mirror/packages.toml).

Their dependencies must be met, no two of a repository may ship the same file, a package must always be built
with the same bytes, and the mirror must have all packages that roles install.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import yaml
from rackmirror import debian, packages, tarballs

MIRROR = Path(__file__).resolve().parents[3] / "testrack/mirror"

SPECS = packages.read(MIRROR / "packages.toml", "amd64")
NAMES = {spec.name for spec in SPECS}
REPOSITORIES = sorted({name for spec in SPECS for name in spec.repositories})
LISTED = (MIRROR / "debian-packages.txt").read_text()
DEBIAN = {name for codename in debian.CODENAMES for name in debian.package_names(LISTED, codename)}
EXACT = re.compile(r"(\S+) \((=|>=) (\S+)\)")


def label(spec: packages.Package) -> str:
    """Return name and version of a package."""
    return f"{spec.name}={spec.version}"


def test_the_packages_that_roles_rely_on_are_there() -> None:
    have = {(spec.name, spec.version, where) for spec in SPECS for where in spec.repositories}
    for version in ("570.172.08-1", "580.95.05-1"):
        for name in ("nvidia-open", "nvidia-driver-cuda", "nvidia-fabricmanager"):
            assert (name, version, "nvidia") in have
    for version in ("0.1.16~bookworm1", "0.1.17~bookworm1"):
        assert ("lambda-stack-cuda", version, "lambda") in have
        assert ("lambda-stack-cuda", version, "unsigned") in have
    for version in ("1.17.9-1", "1.18.0-1"):
        assert ("nvidia-container-toolkit", version, "nvidia-container") in have
    assert {"doca-ofed", "nvidia-docker2", "datacenter-gpu-manager-4-core", "enroot", "enroot+caps"} <= NAMES


@pytest.mark.parametrize("repository", REPOSITORIES)
def test_dependencies_are_met_inside_the_repository_or_by_the_distribution(repository: str) -> None:
    inside = [spec for spec in SPECS if repository in spec.repositories]
    # The packages after DEBIAN are in a node's root file system from the start.
    debians = {*DEBIAN, "debconf", "python3", "util-linux", "coreutils", "debconf-2.0"}
    for spec in inside:
        for relation in (*spec.relations.get("pre-depends", ()), *spec.relations.get("depends", ())):
            found = False
            for one in relation.split(" | "):
                name = one.split(" ")[0]
                exact = EXACT.fullmatch(one)
                if name in NAMES and exact and exact[2] == "=":
                    found |= any(other.name == name and other.version == exact[3] for other in inside)
                elif name in NAMES:
                    found |= any(other.name == name for other in inside)
                else:
                    found |= name in debians
            assert found, f"{label(spec)} needs {relation}"


def test_every_version_of_a_package_declares_itself_in_valid_fields() -> None:
    for spec in SPECS:
        fields = dict(re.findall(r"^([A-Za-z-]+): (.+)$", spec.control(), re.MULTILINE))
        assert {"Package", "Version", "Architecture", "Maintainer", "Description"} <= set(fields)
        assert "(fake)" in fields["Description"]
        assert fields["Architecture"] in ("all", "amd64")
        assert "{" not in spec.control()
        assert "@" not in spec.control().replace("mirror@rack.invalid", "")


@pytest.mark.parametrize(
    ("version", "upstream"),
    [
        ("570.172.08-1", "570.172.08"),
        ("580.95.05-0lambda1", "580.95.05"),
        ("0.1.16~bookworm1", "0.1.16"),
        ("1:4.4.1-1", "4.4.1"),
        ("13.0.1-1", "13.0.1"),
    ],
)
def test_the_upstream_version_is_what_the_program_prints(version: str, upstream: str) -> None:
    spec = packages.Package("x", version, (), "", "all", "", {}, {}, (), {}, "")
    assert spec.upstream == upstream
    assert ":" not in spec.file_name


def shipped(spec: packages.Package) -> set[str]:
    """Return the paths of the files that a package installs."""
    paths = {link.lstrip("/") for link in spec.links}
    paths |= {f"{packages.MODULES}/{name}.json" for name in spec.modules}
    if spec.payload:
        folder = MIRROR / "payload" / spec.payload
        paths |= {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return paths


@pytest.mark.parametrize("repository", REPOSITORIES)
def test_no_two_packages_ship_the_same_file_unless_they_exclude_each_other(repository: str) -> None:
    inside = {spec.name: spec for spec in SPECS if repository in spec.repositories}
    counted = Counter(path for spec in inside.values() for path in shipped(spec))
    assert not [path for path, count in counted.items() if count > 1]


def test_the_two_repositories_of_drivers_exclude_each_other() -> None:
    lambdas = next(spec for spec in SPECS if spec.name == "nvidia-driver")
    clash = [
        spec.name
        for spec in SPECS
        if spec.name != "nvidia-driver" and "nvidia" in spec.repositories and shipped(spec) & shipped(lambdas)
    ]
    assert clash
    assert set(clash) <= set(lambdas.relations["conflicts"])
    # apt replaces a driver by the other one only if the new one declares the conflict, too.
    for spec in SPECS:
        if spec.name in lambdas.relations["conflicts"]:
            assert spec.relations["conflicts"] == spec.relations["replaces"] == ("nvidia-driver",)


def test_every_payload_and_script_is_used() -> None:
    assert {path.name for path in (MIRROR / "payload").iterdir()} == {
        spec.payload for spec in SPECS if spec.payload
    }
    used = {source for spec in SPECS for source in spec.scripts.values()}
    assert {path.name for path in (MIRROR / "scripts").iterdir()} == used


@pytest.mark.parametrize(
    "path",
    sorted(
        path
        for path in [*MIRROR.glob("scripts/*"), *MIRROR.glob("payload/**/*"), *MIRROR.glob("ofed/*")]
        if path.is_file() and path.read_text().startswith(("#!/bin/sh", "#!/bin/bash"))
    ),
    ids=lambda path: path.name,
)
def test_shell_scripts_parse(path: Path) -> None:
    shell = "bash" if path.read_text().startswith("#!/bin/bash") else "sh"
    done = subprocess.run([shell, "-n", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_package_is_the_same_bytes_every_time(tmp_path: Path) -> None:
    spec = next(spec for spec in SPECS if label(spec) == "nvidia-driver=580.95.05-0lambda1")
    first = packages.build(spec, MIRROR, tmp_path / "a", tmp_path / "first", {})
    second = packages.build(spec, MIRROR, tmp_path / "b", tmp_path / "second", {})
    assert first.read_bytes() == second.read_bytes()
    listed = subprocess.run(
        ["dpkg-deb", "--contents", first], capture_output=True, text=True, check=True
    ).stdout
    assert "./usr/bin/nvidia-smi -> /opt/rack/hardware" in listed
    assert "./usr/lib/rack/modules/nvidia-peermem.json" in listed
    assert " root/root " in listed
    control = subprocess.run(
        ["dpkg-deb", "--info", first, "postinst"], capture_output=True, text=True, check=True
    )
    assert '!= "580.95.05"' in control.stdout
    assert "@" not in control.stdout.replace('"$@"', "")


def test_a_plugin_is_compiled_for_each_release_of_the_nodes(tmp_path: Path) -> None:
    (pyxis,) = (spec for spec in SPECS if spec.compiled)
    (tmp_path / "pyxis").mkdir()
    (tmp_path / "pyxis/spank_pyxis.c").write_text('#include "release.h"\nconst char release[] = RELEASE;\n')
    headers = {}
    for codename in debian.CODENAMES:
        headers[codename] = tmp_path / codename
        headers[codename].mkdir()
        (headers[codename] / "release.h").write_text(f'#define RELEASE "it is {codename}"\n')
    for folder in ("payload", "scripts"):
        (tmp_path / folder).symlink_to(MIRROR / folder)
    built = packages.build(pyxis, tmp_path, tmp_path / "work", tmp_path / "out", headers)
    subprocess.run(["dpkg-deb", "--extract", built, tmp_path / "node"], check=True)
    for codename in debian.CODENAMES:
        plugin = tmp_path / "node/usr/lib/rack/pyxis" / codename / "spank_pyxis.so"
        assert f"it is {codename}".encode() in plugin.read_bytes()


def test_the_driver_of_2019_has_no_module_for_peer_memory() -> None:
    modules = {spec.version: spec.modules for spec in SPECS if spec.name == "nvidia-driver"}
    assert "nvidia-peermem" not in modules["418.88-0lambda1"]
    assert "nvidia-peermem" in modules["570.172.08-0lambda1"]


def test_a_wrong_spec_is_named(tmp_path: Path) -> None:
    def read(text: str) -> None:
        (tmp_path / "packages.toml").write_text(text)
        packages.read(tmp_path / "packages.toml", "amd64")

    entry = '[[package]]\nname = "a-b"\nversions = ["1-1"]\nrepositories = ["x"]\nsummary = "s"\n'
    read(entry)
    with pytest.raises(packages.SpecError, match="a-b 1-1 occurs twice"):
        read(entry * 2)
    with pytest.raises(packages.SpecError, match="a-b: unknown key dependss"):
        read(entry + "dependss = []\n")
    with pytest.raises(packages.SpecError, match="a-b: there is no folder payload/none"):
        read(entry + 'payload = "none"\n')
    with pytest.raises(packages.SpecError, match="a-b: `only` names a version that it does not have: 2-1"):
        read(entry + '[package.only."2-1"]\ndepends = []\n')
    with pytest.raises(packages.SpecError, match="A_B 1-1: no valid package name"):
        read(entry.replace("a-b", "A_B"))


def test_tarballs_hold_installer_and_packages_and_have_sums(tmp_path: Path) -> None:
    import hashlib
    import tarfile

    for tarball in tarballs.read(MIRROR / "ofed.toml"):
        inside = [spec for spec in SPECS if tarball.repository in spec.repositories]
        assert {"ofed-scripts", "mlnx-ofed-kernel-dkms", "mlnx-ofed-kernel-utils"} <= {
            one.name for one in inside
        }
        built = [packages.build(spec, MIRROR, tmp_path / "w", tmp_path / "d", {}) for spec in inside]
        for place in ("one", "two"):
            tarballs.make(tarball, "x86_64", MIRROR / "ofed/mlnxofedinstall", built, tmp_path / place)
        name = tarball.name("x86_64")
        flat = tmp_path / "one" / f"{name}.tgz"
        vendors = tmp_path / "one/MLNX_OFED" / f"MLNX_OFED-{tarball.version}" / f"{name}.tgz"
        assert flat.read_bytes() == vendors.read_bytes() == (tmp_path / "two" / f"{name}.tgz").read_bytes()
        line = f"{hashlib.sha256(flat.read_bytes()).hexdigest()}  {name}.tgz"
        assert line in (tmp_path / "one/SHA256SUMS").read_text().splitlines()
        with tarfile.open(flat) as tar:
            names = tar.getnames()
            script = tar.extractfile(f"{name}/mlnxofedinstall")
            assert script is not None
            text = script.read().decode()
        assert tarball.version in text
        assert not re.search(r"@[A-Z_]+@", text)
        assert len([one for one in names if one.endswith(".deb")]) == len(inside)


def role_packages(root: Path) -> dict[str, str]:
    """Return packages that roles install by names in their variables, with the file that contains them."""
    found: dict[str, str] = {}

    def collect(key: str, value: object, where: str) -> None:
        if isinstance(value, dict):
            plain = re.search(r"_(packages|needs)$", key)
            for inner_key, inner in value.items():
                if plain and isinstance(inner, str):
                    found[str(inner_key)] = where
                else:
                    collect(key if plain else str(inner_key), inner, where)
        elif isinstance(value, list) and re.search(r"_(packages|needs)$", key):
            found.update({name: where for name in value if isinstance(name, str)})

    for path in [*root.glob("roles/*/vars/*.yml"), *root.glob("roles/*/defaults/*.yml")]:
        # The test rack's nodes run Debian. An image is made from the distribution's own archive.
        elsewhere = {"bench", "node_image"} & set(path.parts)
        if not re.match(r"ubuntu|default", path.stem) and not elsewhere:
            for key, value in (yaml.safe_load(path.read_text()) or {}).items():
                collect(key, value, str(path.relative_to(root)))
    return {name: where for name, where in found.items() if re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", name)}


def test_what_roles_install_is_in_the_mirror(root: Path) -> None:
    wanted = role_packages(root)
    assert {"docker.io", "slurmctld"} & set(wanted)
    # These come from Docker's own repository, which is an alternative to docker.io.
    elsewhere = {"docker-ce", "docker-ce-cli", "containerd.io"}
    built_on_the_node = {"nvidia-peer-memory", "nvidia-peer-memory-dkms"}
    missing = set(wanted) - set(DEBIAN) - NAMES - elsewhere - built_on_the_node
    assert not {name: wanted[name] for name in missing}, "add them to testrack/mirror/debian-packages.txt"
