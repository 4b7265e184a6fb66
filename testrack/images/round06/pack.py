#!/usr/bin/env python3
"""Pack fake sources of MLPerf Training 0.6, with the paths of the round's own sources, into one archive.

    pack.py --base IMAGE --out FOLDER [--gpus 4]

The archive is FOLDER/COMMIT.tar.gz. The program prints the commit, which is computed from the content, as
with the real sources. Pass both to bench.yml as bench_mlperf06_ref and bench_mlperf06_sources.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from models import MODELS, Model  # noqa: E402  (beside this file)

SYSTEMS = {
    "DGX1": 1,
    "DGX2": 1,
    "LambdaHyperplaneBasic": 1,
    "LambdaHyperplane16": 1,
    "2xLambdaHyperplaneBasic": 2,
    "DGX1_multi": 2,
}
"""The number of nodes of each system that gets a config."""
REPEATS = {"gnmt": 10, "transformer": 10, "minigo": 10}
"""The number of runs (NEXP) of models for which it is not 5."""
SCRIPTS = {
    "ssd": {"download_dataset.sh": "coco"},
    "maskrcnn": {"../download_weights.sh": "weights"},
    "gnmt": {"../download_dataset.sh": "wmt16"},
    "transformer": {
        "data_preparation/run_preprocessing.sh": "wmt17",
        "data_preparation/run_conversion.sh": "convert",
    },
}
"""The scripts that stage a model's data, by model. The value X means that a script is the file data_X.sh."""


def files(base: str, gpus: int, systems: dict[str, int]) -> dict[str, tuple[str, int]]:
    """Return the text and mode of each packed file by its path."""
    found: dict[str, tuple[str, int]] = {}
    for model in MODELS.values():
        top = f"NVIDIA/benchmarks/{model.folder}"
        for name, mode in (("run.sub", 0o755), ("run_and_time.sh", 0o755), ("Dockerfile", 0o644)):
            found[f"{top}/{name}"] = (filled(f"{name}.in", model, BASE=base), mode)
        for name in ("training.py", "models.py"):
            found[f"{top}/{name}"] = ((HERE / name).read_text(), 0o644)
        for system, nodes in systems.items():
            text = filled("config.sh.in", model, NODES=str(nodes), GPUS=str(gpus))
            found[f"{top}/config_{system}.sh"] = (text, 0o644)
        for name, what in SCRIPTS.get(model.name, {}).items():
            path = str(Path(top) / name).replace("pytorch/../", "")
            found[path] = ((HERE / f"data_{what}.sh").read_text(), 0o755)
    return found


def filled(name: str, model: Model, **more: str) -> str:
    """Return a template in which the words between @ are replaced."""
    words = {"NAME": model.name, "IMAGE": model.image, "RESULT": result(model), **more}
    words["NEXP"] = str(REPEATS.get(model.name, 5))
    text = (HERE / name).read_text()
    for key, value in words.items():
        text = text.replace(f"@{key}@", value)
    return text


def result(model: Model) -> str:
    """Return the beginning of the RESULT line, whose fields differ between the models."""
    return {"minigo": model.result, "transformer": f"{model.result},1"}.get(model.name, f"{model.result},")


def pack(folder: Path, base: str, gpus: int = 4, systems: dict[str, int] | None = None) -> tuple[str, Path]:
    """Write the archive, and return its commit and path."""
    found = files(base, gpus, systems or SYSTEMS)
    commit = hashlib.sha1(
        "".join(f"{path}\0{mode}\0{text}\0" for path, (text, mode) in sorted(found.items())).encode(),
        usedforsecurity=False,
    ).hexdigest()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, (text, mode) in sorted(found.items()):
            entry = tarfile.TarInfo(f"training_results_v0.6-{commit}/{path}")
            entry.size, entry.mode = len(text.encode()), mode
            archive.addfile(entry, io.BytesIO(text.encode()))
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{commit}.tar.gz"
    target.write_bytes(gzip.compress(packed.getvalue(), mtime=0))
    return commit, target


def main() -> int:
    """Pack, and print commit and path."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base", required=True, help="image with bash and python3 to build on")
    parser.add_argument("--out", type=Path, required=True, help="folder for the archive")
    parser.add_argument("--gpus", type=int, default=4, help="GPUs of a node, for Slurm")
    options = parser.parse_args()
    commit, target = pack(options.out, options.base, options.gpus)
    print(commit, target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
