"""Test how workloads/slurm_run.py finds the processors for which an image was built.

It reads the manifest that a registry has of the image. An image for other processors than the nodes' (amd64,
arm64) is refused before it is pulled. The tests use manifests of single images, lists of manifests, and
damaged manifests.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def single(config: Any) -> tuple[bytes, dict[str, bytes]]:
    """Return the manifest of one image, and the blobs of its registry."""
    text = json.dumps(config).encode()
    digest = "sha256:" + hashlib.sha256(text).hexdigest()
    return json.dumps({"schemaVersion": 2, "config": {"digest": digest}, "layers": []}).encode(), {
        digest: text
    }


def listed(*platforms: Any) -> tuple[bytes, dict[str, bytes]]:
    """Return a list of manifests with these platforms. No blob is requested from its registry."""
    return json.dumps({"manifests": [{"digest": "x", "platform": one} for one in platforms]}).encode(), {}


@pytest.mark.parametrize(
    ("registry", "found"),
    [
        (single({"architecture": "arm64", "os": "linux"}), ["arm64"]),
        (single({"architecture": "amd64", "os": "linux", "config": {}}), ["amd64"]),
        (single({"architecture": "arm64", "os": "linux", "variant": "v8"}), ["arm64"]),
        (single({"architecture": "amd64"}), ["amd64"]),
        (listed({"architecture": "amd64", "os": "linux"}), ["amd64"]),
        (
            listed({"architecture": "arm64", "os": "linux"}, {"architecture": "amd64", "os": "linux"}),
            ["amd64", "arm64"],
        ),
        # The next two lists also have an attestation of BuildKit, or an image for another operating system.
        (
            listed({"architecture": "arm64", "os": "linux"}, {"architecture": "unknown", "os": "unknown"}),
            ["arm64"],
        ),
        (
            listed({"architecture": "amd64", "os": "windows"}, {"architecture": "arm64", "os": "linux"}),
            ["arm64"],
        ),
        (listed({"architecture": "ppc64le", "os": "linux"}), ["ppc64le"]),
    ],
)
def test_the_architectures_of_an_image_are_read(
    slurm_run: ModuleType, registry: tuple[bytes, dict[str, bytes]], found: list[str]
) -> None:
    manifest, blobs = registry
    assert slurm_run.image_architectures(manifest, blobs.__getitem__) == found


@pytest.mark.parametrize(
    "registry",
    [
        single({"os": "linux"}),
        single({"architecture": "", "os": "linux"}),
        single({"architecture": "amd64", "os": "windows"}),
        single([]),
        (single({"architecture": "arm64"})[0], {}),
        (single({"architecture": "arm64"})[0], dict.fromkeys(single({"architecture": "arm64"})[1], b"{}")),
        listed(),
        listed(None),
        listed({"architecture": "unknown", "os": "unknown"}),
        (b"", {}),
        (b"[]", {}),
        (b"{}", {}),
        (b'{"manifests": 7}', {}),
        (b'{"manifests": [3]}', {}),
        (b'{"schemaVersion": 1, "architecture": "amd64"}', {}),
        (b"\xff\xfe", {}),
    ],
)
def test_an_image_whose_architecture_cannot_be_read_is_refused(
    slurm_run: ModuleType,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    registry: tuple[bytes, dict[str, bytes]],
) -> None:
    manifest, blobs = registry
    with pytest.raises((ValueError, LookupError, TypeError, AttributeError)):
        slurm_run.image_architectures(manifest, blobs.__getitem__)
    work = _work(slurm_run, "arm64")
    monkeypatch.setattr(work, "ask_registry", lambda _method, digest, **_kind: ("", blobs[digest]))
    with pytest.raises(slurm_run.Refusal, match=r"svc/a/b:1: its architecture .* read .* bench_images"):
        work.check_architecture(manifest)


@pytest.mark.parametrize(
    ("wanted", "there", "words"),
    [
        ("arm64", "amd64", "is for amd64, and n1 is arm64 (2 nodes)"),
        ("amd64", "arm64", "is for arm64, and n1 is amd64 (2 nodes)"),
        ("arm64", "arm", "is for arm, and n1 is arm64"),
        ("riscv64", "amd64", "is for amd64, and n1 is riscv64"),
    ],
)
def test_the_refusal_of_another_architecture_names_node_and_remedy(
    slurm_run: ModuleType, monkeypatch: pytest.MonkeyPatch, wanted: str, there: str, words: str
) -> None:
    manifest, blobs = single({"architecture": there, "os": "linux"})
    work = _work(slurm_run, wanted)
    monkeypatch.setattr(work, "ask_registry", lambda _method, digest, **_kind: ("", blobs[digest]))
    with pytest.raises(slurm_run.Refusal) as refused:
        work.check_architecture(manifest)
    assert words in str(refused.value)
    assert f"name one for {wanted} with bench_images: {{big: REPOSITORY:TAG}}" in str(refused.value)


def test_each_architecture_of_an_image_has_its_own_file(slurm_run: ModuleType) -> None:
    assert len({_work(slurm_run, one).slug for one in ("amd64", "arm64")}) == 2


def _work(slurm_run: ModuleType, architecture: str) -> Any:
    """Return the program's work on an image for two nodes of an architecture."""
    spec = {"registry": "svc", "repository": "a/b", "tag": "1", "benchmark": "big", "shared": "/none"}
    return slurm_run.Work({**spec, "hosts": ["n1", "n2"], "environment": {}, "architecture": architecture})
