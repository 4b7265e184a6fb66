"""Test the apt sources, keys, preferences and proxy settings that role apt_mirror writes.

The role lets a node install packages from the vendors' repositories, or from one mirror of the site. The
tests render its files for each operating system, with a mirror and without. A key that a node fetches must
have a fingerprint of 40 digits, because apt would otherwise trust a replaced key.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

from .conftest import SYSTEMS, Renderer, node

ROLE = "apt_mirror"
BY_OS = "version"
ALL = ["os", "lambda", "nvidia", "nvidia-container", "doca", "docker", "enroot"]
SOURCES = "/etc/apt/sources.list.d/rackproof.sources"
CUDA = "https://developer.download.nvidia.com/compute/cuda/repos"
DOCA = "https://linux.mellanox.com/public/repo/doca/latest-3.2-LTS"
# Fingerprints of NVIDIA's keys. Debian 13 uses the new one.
OLD_KEY = "EB693B3035CD5710E231E123A4B469963BF863CC"
NEW_KEY = "02182E60104FCDC26EAE1B8597A5D4CB8793F200"

pytestmark = pytest.mark.playbook


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of the mirror's public key."""
    path = tmp_path_factory.mktemp("key") / "mirror.asc"
    path.write_text("-----BEGIN PGP PUBLIC KEY BLOCK-----\n")
    return path


@pytest.fixture(scope="module")
def rendered(render: Renderer, key: Path) -> dict[str, dict[str, Any]]:
    """Return the role's variables of each case, by its name."""
    mirror = {"apt_mirror_root": "http://mirror.example", "apt_mirror_key_file": str(key)}
    cases: dict[str, dict[str, Any]] = {
        f"{system}-{architecture}": {
            "rackproof_node": node(system, architecture),
            "apt_mirror_repositories": ALL,
        }
        for system in SYSTEMS
        for architecture in ("amd64", "arm64")
    }
    # The checksums of files on the node. A file with None is absent, or a link that leads nowhere.
    files = {
        "/etc/apt/sources.list": "a",
        "/etc/apt/sources.list.d/debian.sources": "b",
        "/etc/apt/sources.list.d/cuda-debian12-x86_64.list": "c",
        "/etc/apt/sources.list.d/gone.list": None,
        SOURCES: "d",
    }
    cases |= {
        "mirror": {"rackproof_node": node(files=files), **mirror},
        **{f"mirror-{system}": {"rackproof_node": node(system), **mirror} for system in SYSTEMS},
        "vendors": {"rackproof_node": node(files=files)},
        "kept": {"rackproof_node": node(files=files), **mirror, "apt_mirror_exclusive": False},
        "own": {
            "rackproof_node": node("ubuntu-24.04"),
            **mirror,
            "apt_mirror_key_fingerprint": "F" * 40,
            "apt_mirror_repositories": ["os", "nvidia", "own"],
            "apt_mirror_overrides": {
                "os": {"suites": ["noble", "noble-updates"], "components": ["main", "universe"]},
                "nvidia": {"uri": "http://mirror.example/cuda/ubuntu2404/x86_64/", "suites": ["/"]},
                "own": {"uri": "http://other.example", "key_file": str(key)},
            },
        },
        # Each fetched key has a fingerprint.
        "proven": {
            "rackproof_node": node("ubuntu-24.04"),
            "apt_mirror_repositories": [*ALL, "own"],
            "apt_mirror_overrides": {
                "doca": {"fingerprint": "A" * 40},
                "own": {
                    "uri": "http://other.example",
                    "key_url": "http://k.example/k",
                    "fingerprint": "b" * 40,
                },
            },
        },
        # The fingerprint is removed, absent, too short, or one digit too long. A key of a file needs none.
        "unproven": {
            "rackproof_node": node("ubuntu-24.04"),
            "apt_mirror_repositories": [*ALL, "none", "short", "long", "from_file"],
            "apt_mirror_overrides": {
                "docker": {"fingerprint": ""},
                "none": {"uri": "http://other.example", "key_url": "http://other.example/key"},
                "short": {
                    "uri": "http://o.example",
                    "key_url": "http://o.example/key",
                    "fingerprint": "0EBFCD88",
                },
                "long": {
                    "uri": "http://o.example",
                    "key_url": "http://o.example/key",
                    "fingerprint": "F" * 41,
                },
                "from_file": {"uri": "http://o.example", "key_file": str(key)},
            },
        },
        "mirror-unproven": {
            "rackproof_node": node(),
            **mirror,
            "apt_mirror_repositories": ["os", "own"],
            "apt_mirror_overrides": {"own": {"uri": "http://o.example", "key_url": "http://o.example/key"}},
        },
        "proxy": {
            "rackproof_node": node(),
            "apt_mirror_proxy": "http://proxy.example:3128",
            "apt_mirror_no_proxy": ["mirror.example"],
            "apt_mirror_unattended_upgrades": True,
        },
    }
    wanted = [
        "apt_mirror_files",
        "apt_mirror_stale",
        "apt_mirror_fetched",
        "apt_mirror_unproven",
        "apt_mirror_others",
    ]
    return render(cases, wanted)


def stanzas(text: str) -> dict[str, dict[str, str]]:
    """Return the stanzas of a deb822 file by the name in the comment before each."""
    found = {}
    for block in text.split("\n\n")[1:]:
        name, *lines = block.strip().splitlines()
        found[name.removeprefix("# ")] = dict(line.split(": ", 1) for line in lines)
    return found


@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_vendors_repositories(rendered: dict[str, dict[str, Any]], system: str, architecture: str) -> None:
    found = stanzas(rendered[f"{system}-{architecture}"]["apt_mirror_files"][SOURCES])
    name, _, version = system.partition("-")
    ubuntu = name == "ubuntu"
    # enroot has no repository, and without a mirror the system's own sources are not replaced.
    assert list(found) == (["lambda"] if ubuntu else []) + ["nvidia", "nvidia-container", "doca", "docker"]
    cuda = f"{name}{version.replace('.', '')}/" + ("x86_64/" if architecture == "amd64" else "sbsa/")
    assert found["nvidia"] == {
        "Types": "deb",
        "URIs": f"{CUDA}/{cuda}",
        "Suites": "/",
        "Architectures": architecture,
        "Signed-By": "/etc/apt/keyrings/rackproof-nvidia.asc "
        + (NEW_KEY if system == "debian-13" else OLD_KEY),
    }
    assert found["nvidia-container"]["URIs"] == (
        f"https://nvidia.github.io/libnvidia-container/stable/deb/{architecture}/"
    )
    doca = f"{DOCA}/{name}{version}/" + ("x86_64/" if architecture == "amd64" else "arm64-sbsa/")
    assert found["doca"]["URIs"] == doca
    assert found["doca"]["Signed-By"] == "/etc/apt/keyrings/rackproof-doca.gpg"
    assert found["docker"] == {
        "Types": "deb",
        "URIs": f"https://download.docker.com/linux/{name}",
        "Suites": SYSTEMS[system],
        "Components": "stable",
        "Architectures": architecture,
        "Signed-By": "/etc/apt/keyrings/rackproof-docker.asc 9DC858229FC7DD38854AE2D88D81803C0EBFCD88",
    }
    if ubuntu:
        assert found["lambda"]["URIs"] == "http://archive.lambdalabs.com/ubuntu"
        assert found["lambda"]["Suites"] == SYSTEMS[system]
        assert found["lambda"]["Components"] == "main"


@pytest.mark.parametrize("system", SYSTEMS)
def test_keys_that_a_node_fetches(rendered: dict[str, dict[str, Any]], system: str) -> None:
    fetched = {
        one["key"]: one["value"]["key_url"] for one in rendered[f"{system}-amd64"]["apt_mirror_fetched"]
    }
    name, _, version = system.partition("-")
    file = "8793F200.pub" if system == "debian-13" else "3bf863cc.pub"
    assert fetched["nvidia"] == f"{CUDA}/{name}{version.replace('.', '')}/x86_64/{file}"
    assert all(url.startswith("https://") for url in fetched.values())
    assert ("lambda" in fetched) == (name == "ubuntu")


@pytest.mark.parametrize(
    ("case", "unproven"),
    [
        ("proven", set()),
        ("mirror", set()),
        ("own", set()),
        ("unproven", {"doca", "docker", "none", "short", "long"}),
        ("mirror-unproven", {"own"}),
    ],
)
def test_a_fetched_key_needs_a_fingerprint_of_40_digits(
    rendered: dict[str, dict[str, Any]], case: str, unproven: set[str]
) -> None:
    found = rendered[case]
    assert {one["key"] for one in found["apt_mirror_unproven"]} == unproven
    # apt refuses packages that another key signed, because Signed-By names the fingerprint.
    signed = stanzas(found["apt_mirror_files"][SOURCES])
    for one in found["apt_mirror_fetched"]:
        if one["key"] not in unproven:
            assert re.search(r" [0-9A-Fa-f]{40}$", signed[one["key"]]["Signed-By"])


def test_everything_comes_from_the_mirror(rendered: dict[str, dict[str, Any]], key: Path) -> None:
    files = rendered["mirror"]["apt_mirror_files"]
    found = stanzas(files[SOURCES])
    assert list(found) == ["os", "lambda", "nvidia", "nvidia-container", "enroot"]
    for name, stanza in found.items():
        assert stanza == {
            "Types": "deb",
            "URIs": "http://mirror.example/" + ("debian" if name == "os" else name),
            "Suites": "bookworm" if name == "os" else "stable",
            "Components": "main",
            "Architectures": "amd64",
            "Signed-By": "/etc/apt/keyrings/rackproof-mirror.asc",
        }
    assert rendered["mirror"]["apt_mirror_fetched"] == []
    assert files["/etc/apt/keyrings/rackproof-mirror.asc"] == key.read_text()


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_node_takes_its_own_release_from_the_mirror(
    rendered: dict[str, dict[str, Any]], system: str
) -> None:
    found = stanzas(rendered[f"mirror-{system}"]["apt_mirror_files"][SOURCES])
    assert found.pop("os") | {"Signed-By": ""} == {
        "Types": "deb",
        "URIs": f"http://mirror.example/{system.partition('-')[0]}",
        "Suites": SYSTEMS[system],
        "Components": "main",
        "Architectures": "amd64",
        "Signed-By": "",
    }
    assert {stanza["Suites"] for stanza in found.values()} == {"stable"}


def test_a_mirror_of_its_own_layout(rendered: dict[str, dict[str, Any]], key: Path) -> None:
    files = rendered["own"]["apt_mirror_files"]
    found = stanzas(files[SOURCES])
    assert found["os"]["URIs"] == "http://mirror.example/ubuntu"
    assert found["os"]["Suites"] == "noble noble-updates"
    assert found["os"]["Components"] == "main universe"
    assert found["os"]["Signed-By"] == "/etc/apt/keyrings/rackproof-mirror.asc " + "F" * 40
    assert found["nvidia"]["URIs"] == "http://mirror.example/cuda/ubuntu2404/x86_64/"
    assert "Components" not in found["nvidia"]
    assert found["own"]["Signed-By"] == "/etc/apt/keyrings/rackproof-own.asc"
    assert files["/etc/apt/keyrings/rackproof-own.asc"] == key.read_text()


def test_other_sources_are_switched_off(rendered: dict[str, dict[str, Any]]) -> None:
    folder = "/etc/apt/sources.list.d"
    assert sorted(rendered["mirror"]["apt_mirror_others"]) == [
        "/etc/apt/sources.list",
        f"{folder}/cuda-debian12-x86_64.list",
        f"{folder}/debian.sources",
    ]
    # apt fails if one repository is listed twice with different keys. The system's own sources are kept.
    assert rendered["vendors"]["apt_mirror_others"] == [f"{folder}/cuda-debian12-x86_64.list"]
    assert rendered["kept"]["apt_mirror_others"] == []


def test_proxy_and_unattended_upgrades(rendered: dict[str, dict[str, Any]]) -> None:
    text = rendered["proxy"]["apt_mirror_files"]["/etc/apt/apt.conf.d/95rackproof"]
    assert 'Acquire::https::Proxy "http://proxy.example:3128";' in text
    assert 'Acquire::http::Proxy::mirror.example "DIRECT";' in text
    assert "Periodic" not in text
    off = rendered["mirror"]["apt_mirror_files"]["/etc/apt/apt.conf.d/95rackproof"]
    assert 'APT::Periodic::Unattended-Upgrade "0";' in off
    assert "Proxy" not in off


def test_lambda_has_priority_on_ubuntu(rendered: dict[str, dict[str, Any]]) -> None:
    text = rendered["ubuntu-22.04-amd64"]["apt_mirror_files"]["/etc/apt/preferences.d/rackproof"]
    assert "Pin: origin archive.lambdalabs.com\nPin-Priority: 700" in text
    assert "Pin: origin developer.download.nvidia.com\nPin-Priority: 600" in text
    assert "Pin:" not in rendered["mirror"]["apt_mirror_files"]["/etc/apt/preferences.d/rackproof"]


def test_a_node_that_is_up_to_date_is_not_changed(
    rendered: dict[str, dict[str, Any]], root: Path, key: Path, tmp_path: Path
) -> None:
    files = rendered["mirror"]["apt_mirror_files"]
    sums = {path: hashlib.sha256(text.encode()).hexdigest() for path, text in files.items()}
    variables = {
        "apt_mirror_root": "http://mirror.example",
        "apt_mirror_key_file": str(key),
        "rackproof_node": node(files=sums),
    }
    again = Renderer(root, tmp_path, ROLE, BY_OS)(
        {"same": variables, "drifted": {**variables, "rackproof_node": node(files={**sums, SOURCES: "x"})}},
        ["apt_mirror_stale"],
    )
    assert again["same"]["apt_mirror_stale"] == []
    assert [one["path"] for one in again["drifted"]["apt_mirror_stale"]] == [SOURCES]
