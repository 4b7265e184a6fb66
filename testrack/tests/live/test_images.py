"""Test that the registry of a running test rack has the fake images, and refuses access without a login."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from testrack.tests.on_rack import Command

pytestmark = [pytest.mark.rack, pytest.mark.slow]
REGISTRY = "gb300-r01-svc:5000"
NAMES = (
    "nvdlfwea/mlperftv51/llama2_70b_lora-amd:20251008",
    "nvdlfwea/mlperftv51/llama31_8b-amd:20251008",
    "nvdlfwea/mlperftv51/flux1-amd:20251007",
    "nvdlfwea/mlperftv51/llama2_70b_lora-arm:20250930",
    "nvdlfwea/mlperftv51/llama31_8b-arm:20250922",
)


def manifest(name: str, headers: dict[str, str]) -> bytes:
    """Return an image's manifest from the registry."""
    repository, tag = name.rsplit(":", 1)
    request = urllib.request.Request(f"http://{REGISTRY}/v2/{repository}/manifests/{tag}", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())


def test_the_registry_has_the_images_for_those_with_a_login(rack: Command, root: Path) -> None:
    programs, kept = root / "testrack/images", root / ".rackproof/rack"
    images = str(kept / "images")
    subprocess.run([sys.executable, str(programs / "build.py"), "--out", images], check=True)
    push = [sys.executable, str(programs / "push.py"), "--registry", REGISTRY, "--images", images]
    subprocess.run(push, check=True)
    again = subprocess.run(push, check=True, capture_output=True, text=True)
    assert "0 images pushed" in again.stdout
    with pytest.raises(urllib.error.HTTPError) as refused:
        manifest(NAMES[0], {})
    assert refused.value.code == 401
    key = (kept / "ngc_key").read_text().strip()
    token = base64.b64encode(f"$oauthtoken:{key}".encode()).decode()
    accept = "application/vnd.oci.image.manifest.v1+json"
    layers = [
        [layer["digest"] for layer in json.loads(body)["layers"]]
        for body in (manifest(name, {"Authorization": f"Basic {token}", "Accept": accept}) for name in NAMES)
    ]
    assert all(one[:2] == layers[0][:2] for one in layers)
    assert len({one[2] for one in layers}) == 3
