"""Test the programs in the mirror's fake packages: nvidia-ctk, the container runtime, and enroot.

The programs are fakes of NVIDIA's, but really configure Docker, add devices to containers, and start images.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

PAYLOAD = Path(__file__).resolve().parents[3] / "testrack/mirror/payload"


def load(path: str, name: str) -> ModuleType:
    """Import a program whose file name does not end in .py."""
    loader = importlib.machinery.SourceFileLoader(name, str(PAYLOAD / path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


DIGEST = "sha256:" + "ab" * 32


@pytest.fixture
def toolkit(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the fake NVIDIA Container Toolkit as a module, on a node with two GPUs."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    module = load("nvidia-container-toolkit-base/usr/lib/rack/nvidia-container", "nvidia_container")
    nodes = [{"index": n, "uuid": f"GPU-{n}{n}", "node": f"/dev/nvidia{n}"} for n in range(2)]
    monkeypatch.setattr(module, "gpus", lambda: nodes)
    monkeypatch.setattr(module, "common_nodes", lambda: ["/dev/nvidiactl"])
    monkeypatch.setattr(module, "mounts", lambda: {"/opt/rack": "/opt/rack"})
    return module


@pytest.fixture
def enroot(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the fake enroot as a module."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    return load("enroot/usr/bin/enroot", "enroot")


def test_cdi_is_the_same_in_yaml_and_json(toolkit: ModuleType, tmp_path: Path) -> None:
    for name in ("gpu.yaml", "gpu.json"):
        assert toolkit.ctk(["cdi", "generate", f"--output={tmp_path / name}"]) == 0
    spec = yaml.safe_load((tmp_path / "gpu.yaml").read_text())
    assert spec == json.loads((tmp_path / "gpu.json").read_text())
    assert [one["name"] for one in spec["devices"]] == ["0", "GPU-00", "1", "GPU-11", "all"]
    assert spec["devices"][-1]["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/nvidia0"},
        {"path": "/dev/nvidia1"},
    ]


def test_cdi_goes_to_standard_output_alone(toolkit: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert toolkit.ctk(["--quiet", "cdi", "generate"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["kind"] == "nvidia.com/gpu"


def test_docker_gets_the_runtime_and_keeps_what_it_had(toolkit: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "daemon.json"
    path.write_text('{"log-driver": "json-file", "runtimes": {"other": {"path": "x"}}}')
    words = ["runtime", "configure", "--runtime=docker", "--config", str(path)]
    assert toolkit.ctk(words) == 0
    first = path.read_text()
    config = json.loads(first)
    assert config["log-driver"] == "json-file"
    assert set(config["runtimes"]) == {"nvidia", "other"}
    assert "default-runtime" not in config
    assert toolkit.ctk(words) == 0
    assert path.read_text() == first
    assert toolkit.ctk([*words, "--set-as-default", "--cdi.enabled"]) == 0
    assert json.loads(path.read_text())["default-runtime"] == "nvidia"
    assert json.loads(path.read_text())["features"] == {"cdi": True}


def test_a_damaged_daemon_json_is_left_alone(
    toolkit: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "daemon.json"
    path.write_text("{")
    assert toolkit.ctk(["runtime", "configure", "--runtime=docker", f"--config={path}"]) == 1
    assert str(path) in capsys.readouterr().err
    assert path.read_text() == "{"


def test_containerd_gets_the_runtime_once(toolkit: ModuleType) -> None:
    import tomllib

    once = toolkit.containerd_config('version = 2\n[plugins."x"]\na = 1\n', "nvidia", False)
    assert toolkit.containerd_config(once, "nvidia", False) == once
    runtimes = tomllib.loads(once)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]
    assert runtimes["nvidia"]["options"]["BinaryName"] == "/usr/bin/nvidia-container-runtime"


@pytest.mark.parametrize(
    ("value", "nodes"),
    [
        ("all", ["/dev/nvidia0", "/dev/nvidia1"]),
        ("1", ["/dev/nvidia1"]),
        ("GPU-00", ["/dev/nvidia0"]),
        ("nvidia.com/gpu=1", ["/dev/nvidia1"]),
        ("void", None),
        ("none", None),
        ("", None),
    ],
)
def test_a_container_gets_the_gpus_that_it_asks_for(
    toolkit: ModuleType, value: str, nodes: list[str] | None
) -> None:
    chosen = toolkit.wanted(["PATH=/bin", f"NVIDIA_VISIBLE_DEVICES={value}"])
    assert (None if chosen is None else [gpu["node"] for gpu in chosen]) == nodes


def test_a_gpu_that_is_not_there_is_an_error_docker_can_read(toolkit: ModuleType, tmp_path: Path) -> None:
    bundle = {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=7"]}}
    (tmp_path / "config.json").write_text(json.dumps(bundle))
    words = ["--log", str(tmp_path / "log.json"), "create", "--bundle", str(tmp_path), "name"]
    assert toolkit.runtime(words) == 1
    assert "7: unknown device" in json.loads((tmp_path / "log.json").read_text())["msg"]


def test_devices_and_mounts_go_into_the_specification(
    toolkit: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Node:
        st_rdev = os.makedev(195, 0)

    monkeypatch.setattr(toolkit.os, "stat", lambda _path: Node())
    hook = {"path": "/usr/bin/nvidia-container-runtime-hook"}
    spec: dict[str, Any] = {
        "process": {"env": ["NVIDIA_VISIBLE_DEVICES=1"]},
        "hooks": {"prestart": [hook, {"path": "/other"}]},
    }
    assert toolkit.inject(spec)
    assert [device["path"] for device in spec["linux"]["devices"]] == ["/dev/nvidiactl", "/dev/nvidia1"]
    assert all(rule["allow"] for rule in spec["linux"]["resources"]["devices"])
    assert [mount["destination"] for mount in spec["mounts"]] == ["/opt/rack"]
    assert spec["hooks"]["prestart"] == [{"path": "/other"}]
    assert not toolkit.inject({"process": {"env": []}})


@pytest.mark.parametrize(
    ("uri", "parsed"),
    [
        ("docker://nvcr.io#nvidia/cuda:13.0", (None, "nvcr.io", "nvidia/cuda:13.0")),
        ("docker://nvcr.io/nvidia/cuda:13.0", (None, "nvcr.io", "nvidia/cuda:13.0")),
        ("docker://svc:5000#a/b", (None, "svc:5000", "a/b:latest")),
        ("docker://$oauthtoken@nvcr.io#a/b:1", ("$oauthtoken", "nvcr.io", "a/b:1")),
        # A digest in enroot's form, and in the form for skopeo.
        (f"docker://svc:5000#a/b:{DIGEST}", (None, "svc:5000", f"a/b@{DIGEST}")),
        ("docker://ubuntu", (None, "registry-1.docker.io", "library/ubuntu:latest")),
    ],
)
def test_image_references(enroot: ModuleType, uri: str, parsed: tuple[str | None, str, str]) -> None:
    assert enroot.parse(uri) == parsed


@pytest.mark.parametrize("uri", ["docker://a#b#c", f"docker://svc:5000#a@{DIGEST}"])
def test_a_wrong_image_reference_is_reported(enroot: ModuleType, uri: str) -> None:
    with pytest.raises(enroot.EnrootError, match="Invalid image reference"):
        enroot.parse(uri)


def test_credentials_are_found_as_in_netrc(
    enroot: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "from the environment")
    (tmp_path / ".credentials").write_text(
        "# machine svc login no password no\n"
        "machine svc login $oauthtoken password s3cr$t\n"
        "machine nvcr.io login $oauthtoken password $MY_KEY\n"
    )
    config = {"ENROOT_CONFIG_PATH": str(tmp_path)}
    assert enroot.credentials("svc:5000", None, config)[:2] == ("$oauthtoken", "s3cr$t")
    assert enroot.credentials("nvcr.io", "$oauthtoken", config)[1] == "from the environment"
    assert enroot.credentials("nvcr.io", "somebody", config) is None
    assert enroot.credentials("other", None, config) is None
    assert enroot.credentials("svc", None, {"ENROOT_CONFIG_PATH": str(tmp_path / "none")}) is None


def test_links_of_an_image_stay_inside(enroot: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    (tmp_path / "up").symlink_to("../../../etc")
    assert enroot.inside(str(tmp_path), "/var/run/x") == f"{tmp_path}/run/x"
    assert enroot.inside(str(tmp_path), "/up/passwd") == f"{tmp_path}/etc/passwd"
    assert enroot.inside(str(tmp_path), "/../../a") == f"{tmp_path}/a"
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(enroot.EnrootError, match="too many links"):
        enroot.inside(str(tmp_path), "/loop")


@pytest.mark.parametrize(
    ("image", "machine", "runs"),
    [
        ("amd64", "x86_64", True),
        ("arm64", "aarch64", True),
        ("arm64", "x86_64", False),
        ("amd64", "aarch64", False),
        ("", "x86_64", False),
        # This image was unpacked before the fake stored the architecture.
        (None, "x86_64", True),
    ],
)
def test_an_image_of_other_processors_does_not_start(
    enroot: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    image: str | None,
    machine: str,
    runs: bool,
) -> None:
    monkeypatch.setattr(enroot.os, "uname", lambda: type("Uname", (), {"machine": machine})())
    (tmp_path / "etc").mkdir()
    if image is not None:
        (tmp_path / "etc/rack-architecture").write_text(image)
    if runs:
        enroot.executable(str(tmp_path))
        return
    with pytest.raises(enroot.EnrootError, match="Exec format error"):
        enroot.executable(str(tmp_path))


def test_the_fake_of_pyxis_raises_errors_that_enroot_has(enroot: ModuleType) -> None:
    text = (PAYLOAD / "pyxis/usr/lib/rack/pyxis-container").read_text()
    named = set(re.findall(r"enroot\.(\w+)", text))
    assert {"EnrootError", "executable"} <= named
    assert [name for name in named if not hasattr(enroot, name)] == []


def test_what_the_image_says_is_kept_for_the_start(enroot: ModuleType, tmp_path: Path) -> None:
    enroot.describe(
        str(tmp_path), {"Env": ["PATH=/bin", "A=b c"], "WorkingDir": "/work dir", "Entrypoint": ["/entry"]}
    )
    assert enroot.environment(str(tmp_path)) == {"PATH": "/bin", "A": "b c"}
    assert "cd '/work dir' || exit 1" in (tmp_path / "etc/rc").read_text()
    assert (tmp_path / "work dir").is_dir()
    assert (tmp_path / "usr/bin/nvidia-smi").exists()
