"""Make small fake data sets of llama31_8b and flux1 in the layout of MLCommons' storage, for a web server.

    http://HOST/mlcommons/mlc-r2-downloader.sh
    http://HOST/mlcommons/metadata/NAME.uri        the address of the data set NAME, relative to this file
    http://HOST/mlcommons/data/NAME/NAME.md5       the list of its files with their checksums
    http://HOST/mlcommons/data/NAME/PATH           one of its files

build.py calls :func:`write`. Making the data needs NumPy, which the host's Python may lack. :func:`write`
therefore runs this file as a program, with the running Python if it has NumPy, or else with the Python of
.venv.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
DATASETS = {
    "llama-3-1-8b-preprocessed-c4-dataset": "c4",
    "llama-3-1-8b-tokenizer": "tokenizer",
    "flux-1-cc12m-preprocessed": "cc12m",
    "flux-1-coco-preprocessed": "coco",
    "flux-1-empty-encodings": "empty_encodings",
}
"""The function of fake_ngc/data.py that makes each data set, by the name of the data set."""
TIMEOUT_S = 300


def write(folder: Path) -> None:
    """Write the files, unless an earlier call wrote them with the same programs.

    Raises:
        OSError: No Python has NumPy, the files cannot be made, or making them takes too long.
    """
    stamp = folder / ".made-from"
    sources = [HERE / "common/fake_ngc/data.py", HERE / "r2/mlc-r2-downloader.sh", Path(__file__)]
    made_from = "".join(path.read_text() for path in sources)
    if stamp.is_file() and stamp.read_text() == made_from:
        return
    python = next(
        (one for one in (sys.executable, str(HERE.parents[1] / ".venv/bin/python")) if _has_numpy(one)), None
    )
    if python is None:
        raise OSError("no Python with NumPy was found. Run `make venv`")
    environment = {**os.environ, "PYTHONPATH": str(HERE / "common")}
    command = [python, __file__, str(folder)]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"the downloads were not made within {TIMEOUT_S} s") from error
    if done.returncode != 0:
        raise OSError(f"the downloads cannot be made: {done.stderr.strip()[-1500:]}")
    stamp.write_text(made_from)


def _has_numpy(python: str) -> bool:
    return (
        os.path.exists(python)
        and subprocess.run([python, "-c", "import numpy"], capture_output=True, check=False).returncode == 0
    )


def _make(folder: Path) -> None:
    """Write the data sets, their metadata and the downloader into a folder."""
    from fake_ngc import data

    for name, maker in DATASETS.items():
        files = getattr(data, maker)()
        files[f"{name}.md5"] = data.checksums(files)
        for path, content in files.items():
            target = folder / "data" / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        metadata = folder / f"metadata/{name}.uri"
        metadata.parent.mkdir(parents=True, exist_ok=True)
        metadata.write_text(f"../data/{name}\n")
    (folder / "mlc-r2-downloader.sh").write_text((HERE / "r2/mlc-r2-downloader.sh").read_text())


if __name__ == "__main__":
    _make(Path(sys.argv[1]))
