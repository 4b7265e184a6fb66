"""Test the mirror's apt and git repositories with the real apt-get and git, and its list of packages."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rackmirror import debian, packages, repositories, sources

# Every case starts processes. Together, they take longer than `make check` may.
pytestmark = pytest.mark.slow

MIRROR = Path(__file__).resolve().parents[3] / "testrack/mirror"

Apt = Callable[..., subprocess.CompletedProcess[str]]
# Packages that count as installed: those of a bare node, and a dependency of the fakes.
INSTALLED = ("debconf", "python3", "docker.io")


@pytest.fixture(scope="module")
def tools() -> None:
    """Skip the test, or fail in CI, if a program of the tests is missing."""
    missing = [tool for tool in ("apt-ftparchive", "apt-get", "gpg", "git") if not shutil.which(tool)]
    if missing:
        message = f"{' and '.join(missing)} not here: apt-get install apt-utils gnupg git"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)


@pytest.fixture(scope="module")
def tree(tools: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with repositories: signed, unsigned, signed by another key, altered after signing."""
    folder = tmp_path_factory.mktemp("mirror")
    key = repositories.SigningKey(folder / "gnupg")
    (folder / "mirror.asc").write_bytes(key.ensure())
    stranger = repositories.SigningKey(folder / "stranger")
    stranger.ensure()
    specs = [spec for spec in packages.read(MIRROR / "packages.toml", "amd64") if not spec.compiled]
    for spec in specs:
        packages.build(spec, MIRROR, folder / "work", folder / "built", {})
    signers = {"nvidia": key, "lambda": key, "doca": key, "nvidia-container": key, "stranger": stranger}
    for name in (*signers, "unsigned", "altered"):
        pool = folder / name / "pool"
        pool.mkdir(parents=True)
        source = {"stranger": "lambda", "altered": "lambda"}.get(name, name)
        for spec in specs:
            if source in spec.repositories:
                (pool / spec.file_name).hardlink_to(folder / "built" / spec.file_name)
        release = repositories.index(folder / name, name, pool, "amd64", "stable", "stable")
        if name != "unsigned":
            signers.get(name, key).sign(release)
    for altered in ("InRelease", "Release"):
        path = folder / "altered/dists/stable" / altered
        path.write_text(path.read_text().replace("Label: altered", "Label: Altered"))
    return folder


@pytest.fixture
def apt(tree: Path, tmp_path: Path) -> Apt:
    """Return a function that runs apt-get with the named repositories, as on a bare node.

    It does not change this machine.
    """
    for name in ("state/lists/partial", "cache/archives/partial", "preferences.d"):
        (tmp_path / name).mkdir(parents=True)
    status = tmp_path / "status"
    status.write_text(
        "".join(
            f"Package: {name}\nStatus: install ok installed\nArchitecture: amd64\nVersion: 99\n"
            f"Maintainer: x\nDescription: x\n\n"
            for name in INSTALLED
        )
    )

    def run(
        *words: str, use: tuple[str, ...] = ("nvidia",), pin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "sources.list").write_text(
            "".join(
                f"deb [arch=amd64 signed-by={tree}/mirror.asc] file:{tree}/{one} stable main\n" for one in use
            )
        )
        (tmp_path / "preferences.d/test").write_text(pin)
        options = {
            "Dir::State": tmp_path / "state",
            "Dir::State::status": status,
            "Dir::Cache": tmp_path / "cache",
            "Dir::Etc::sourcelist": tmp_path / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": tmp_path / "preferences.d",
            "APT::Architecture": "amd64",
            "APT::Sandbox::User": "root",
            "Debug::NoLocking": "true",
        }
        words_ = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
        command = ["apt-get", *words_, "-y", "-q", "--no-install-recommends", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    return run


def installs(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return the versions of the packages of a simulated installation, by name."""
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("Inst ")]
    return {words[1]: next(word for word in words if word.startswith("(")).lstrip("(") for words in lines}


def test_apt_accepts_what_the_rack_signed(apt: Apt) -> None:
    done = apt("update", use=("nvidia", "lambda", "doca", "nvidia-container"))
    assert done.returncode == 0, done.stderr
    assert "W:" not in done.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [("unsigned", "is not signed"), ("stranger", "NO_PUBKEY"), ("altered", "BADSIG")],
)
def test_apt_refuses_what_the_rack_did_not_sign(apt: Apt, name: str, words: str) -> None:
    done = apt("update", use=(name,))
    assert done.returncode == 100
    assert words in done.stderr
    assert "Unable to locate" in apt("install", "--simulate", "lambda-stack-cuda", use=(name,)).stderr


def test_the_newest_driver_pulls_in_a_kernel_and_the_one_before_does_not(apt: Apt) -> None:
    apt("update")
    assert "linux-image-6.1.0-99-amd64" in installs(apt("install", "--simulate", "nvidia-open"))
    pin = "Package: nvidia-*\nPin: version 580.95.05-1\nPin-Priority: 1001\n"
    found = installs(apt("install", "--simulate", "nvidia-open", pin=pin))
    assert set(found) == {
        "nvidia-open",
        "nvidia-driver-cuda",
        "nvidia-kernel-open-dkms",
        "nvidia-persistenced",
    }
    assert set(found.values()) == {"580.95.05-1"}


def test_an_older_driver_needs_its_parts_named_or_pinned(apt: Apt) -> None:
    apt("update")
    done = apt("install", "--simulate", "nvidia-open=570.172.08-1")
    assert done.returncode == 100
    assert (
        "nvidia-driver-cuda (= 570.172.08-1) but 580.95.06-1 is to be installed" in done.stdout + done.stderr
    )


def test_a_missing_version_is_reported(apt: Apt) -> None:
    apt("update")
    done = apt("install", "--simulate", "nvidia-open=1.2.3")
    assert "Version '1.2.3' for 'nvidia-open' was not found" in done.stderr


def test_lambda_stack_brings_its_own_driver_and_removes_the_vendors(apt: Apt) -> None:
    use = ("lambda", "nvidia")
    apt("update", use=use)
    found = installs(apt("install", "--simulate", "lambda-stack-cuda", use=use))
    assert found["nvidia-driver"] == "580.95.05-0lambda1"
    both = apt("install", "--simulate", "lambda-stack-cuda", "nvidia-driver-cuda", use=use)
    assert both.returncode == 100


def test_doca_and_the_toolkit_resolve(apt: Apt) -> None:
    use = ("doca", "nvidia-container")
    apt("update", use=use)
    found = installs(apt("install", "--simulate", "doca-ofed", use=use))
    assert {"ofed-scripts", "mlnx-ofed-kernel-dkms", "rdma-core", "infiniband-diags"} <= set(found)
    found = installs(apt("install", "--simulate", "nvidia-docker2", use=use))
    assert found["nvidia-container-toolkit"] == "1.18.0-1"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Serve a folder as plain files, as nginx does. Yield its address and the folder."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:
            """Log nothing."""

    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", tmp_path
        server.shutdown()
        thread.join()


def test_the_source_of_nv_peer_memory_is_cloned_from_plain_files(
    tools: None, served: tuple[str, Path]
) -> None:
    url, folder = served
    commits = {
        sources.publish(MIRROR / "nv_peer_memory", "1.0-8", folder / name / "nv_peer_memory.git")
        for name in ("git", "again")
    }
    assert len(commits) == 1, "each build of a mirror makes the same commit"
    clone = folder / "clone"
    command = ["git", "clone", "--quiet", "--branch", "1.0-8", f"{url}/git/nv_peer_memory.git", str(clone)]
    environment = {**os.environ, "no_proxy": "127.0.0.1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert (clone / "debian/rules").stat().st_mode & 0o100
    head = subprocess.run(
        ["git", "-C", clone, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    assert {head.stdout.strip()} == commits


def test_the_closure_depends_on_the_names_and_on_what_nodes_have() -> None:
    one = debian.fingerprint(["a", "b"], "status")
    assert one == debian.fingerprint(["b", "a"], "status")
    assert len({one, debian.fingerprint(["a"], "status"), debian.fingerprint(["a", "b"], "other")}) == 3


def test_a_missing_root_file_system_is_reported(tmp_path: Path) -> None:
    with pytest.raises(debian.DebianError, match="make rack"):
        debian.read_rootfs(tmp_path / "none.tar")
    (tmp_path / "empty").mkdir()
    subprocess.run(["tar", "-C", tmp_path, "-cf", tmp_path / "some.tar", "empty"], check=True)
    with pytest.raises(debian.DebianError, match="not a root file system of Debian"):
        debian.read_rootfs(tmp_path / "some.tar")


def test_the_list_of_packages_is_read_without_its_comments() -> None:
    text = "# head\n\nslurmd  # why\n munge\ndocker-cli [trixie]  # of its own there\n"
    assert debian.package_names(text, "bookworm") == ["slurmd", "munge"]
    assert debian.package_names(text, "trixie") == ["slurmd", "munge", "docker-cli"]
