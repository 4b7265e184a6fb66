"""Check the driver and the GPUs of a provisioned node, and containers that use the GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

ROLE = Path(__file__).resolve().parents[2] / "roles/lambda_stack"
DEFAULT_DRIVER = yaml.safe_load((ROLE / "vars/main.yml").read_text())["lambda_stack_default_driver_version"]


@pytest.fixture
def driver(host: Any, expected: Any) -> str:
    """Return the driver's version that nvidia-smi prints. Skip the test if the role installs no driver."""
    if expected("lambda_stack_flavour") == "none":
        pytest.skip("the image brings its driver")
    version = host.check_output("nvidia-smi --query-gpu=driver_version --format=csv,noheader").split("\n")
    assert len(set(version)) == 1
    return str(version[0])


def test_every_gpu_answers(host: Any, expected: Any, driver: str) -> None:
    listed = host.check_output("nvidia-smi -L").split("\n")
    assert len(listed) == expected("bench_sku_gpus")
    assert len({line.split("UUID: ")[1] for line in listed}) == len(listed)


def test_driver_is_the_pinned_one_and_held(host: Any, expected: Any, driver: str) -> None:
    if expected("lambda_stack_flavour") == "lambda_stack":
        assert host.package("lambda-stack-cuda").version.startswith(expected("lambda_stack_version"))
    else:
        assert driver.startswith(expected("lambda_stack_driver_version") or DEFAULT_DRIVER)
    held = host.check_output("apt-mark showhold").split()
    assert any(name.startswith(("nvidia", "lambda-stack")) for name in held), held


def test_module_and_userland_are_of_one_version(host: Any, driver: str) -> None:
    assert host.check_output("modinfo -F version nvidia") == driver


def test_persistence_mode_is_on(host: Any, driver: str) -> None:
    modes = host.check_output("nvidia-smi --query-gpu=persistence_mode --format=csv,noheader").split()
    assert set(modes) == {"Enabled"}


def test_no_kernel_came_with_the_driver(host: Any) -> None:
    if not host.file("/var/lib/rack").exists:
        pytest.skip("a real node has a kernel package")
    assert host.run("dpkg-query -W 'linux-image-*'").stdout.strip() == ""


def test_a_container_sees_the_gpus(host: Any, expected: Any, driver: str) -> None:
    if expected("nvidia_container_docker") == "none":
        pytest.skip("the scenario has no Docker")
    assert host.service("docker").is_running
    listed = host.check_output(
        "docker run --rm --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=all %s nvidia-smi -L",
        expected("nvidia_container_check_image"),
    )
    assert listed.count("UUID: ") == expected("bench_sku_gpus")


def test_cdi_names_every_gpu(host: Any, expected: Any, driver: str) -> None:
    if expected("nvidia_container_stack") != "toolkit":
        pytest.skip("the stack of 2019 has no CDI")
    listed = host.check_output("nvidia-ctk cdi list").split()
    for index in range(expected("bench_sku_gpus")):
        assert f"nvidia.com/gpu={index}" in listed


def test_docker_is_configured(host: Any, expected: Any) -> None:
    if expected("nvidia_container_docker") == "none":
        pytest.skip("the scenario has no Docker")
    settings = json.loads(host.file("/etc/docker/daemon.json").content_string)
    assert settings["live-restore"] is expected("nvidia_container_live_restore")
    assert settings["log-opts"] == expected("nvidia_container_log_options")
    for user in expected("nvidia_container_users"):
        assert "docker" in host.user(user).groups
