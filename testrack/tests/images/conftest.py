"""Provide the tests with the builders of the fake images, and with a cluster on which their jobs run.

The cluster is a folder with fakes of Slurm's programs. Its jobs run on this machine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testrack.tests.images.images_job import IMAGES, PROGRAMS, SRUN, Cluster


@pytest.fixture(scope="session")
def images() -> Iterator[Path]:
    """Make the builders importable, and yield their folder."""
    added = [str(IMAGES), str(IMAGES / "common")]
    sys.path[:0] = added
    yield IMAGES
    for one in added:
        sys.path.remove(one)


@pytest.fixture(scope="session")
def cluster(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Return a cluster with staged data for all three benchmarks."""
    from fake_ngc import data, flux_data

    folder = tmp_path_factory.mktemp("cluster")
    programs = {**PROGRAMS, "srun": f"#!{sys.executable}\n{SRUN}"}
    programs |= {"python3": f'#!/bin/bash\nexec {sys.executable} "$@"\n'}
    (folder / "bin").mkdir()
    for name, text in programs.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    staged = folder / "staged"
    parts = {"gov_report": data.gov_report(), "model": data.llama2_model(), "8b": data.c4()}
    parts["8b/tokenizer"] = data.tokenizer()
    for part, files in parts.items():
        for name, content in files.items():
            path = staged / part / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    flux_data.lay_out(staged / "energon")
    return Cluster(
        folder,
        staged,
        {
            "llama2_70b_lora": {"DATADIR": f"{staged}/gov_report", "MODEL": f"{staged}/model"},
            "llama31_8b": {"DATADIR": str(staged)},
            "flux1": {"DATAROOT": f"{staged}/energon"},
        },
    )
