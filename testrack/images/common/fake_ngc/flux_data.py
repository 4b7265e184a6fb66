"""Convert flux1's saved data set to a webdataset, and write energon's description of the webdataset.

The image of flux1 and energon.py use the single steps. calibrate.py, upstream.py and tests use
:func:`lay_out`.
"""

from __future__ import annotations

import io
import json
import sqlite3
import tarfile
import uuid
from pathlib import Path

import numpy as np

from fake_ngc import data
from fake_ngc.data import CENTRES, PIXELS


def to_webdataset(shards: list[np.ndarray], folder: Path, names: list[str]) -> None:
    """Write one tar per shard, with several pictures in each member. A tar appears when it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard, name in zip(shards, names, strict=True):
        draft = folder / f"{name}.tar.partial"
        with tarfile.open(draft, "w") as archive:
            for number, part in enumerate(np.array_split(shard, 16)):
                buffer = io.BytesIO()
                np.save(buffer, part, allow_pickle=False)
                info = tarfile.TarInfo(f"{number:06d}.latents.npy")
                info.size = len(buffer.getvalue())
                archive.addfile(info, io.BytesIO(buffer.getvalue()))
        draft.replace(folder / f"{name}.tar")


def read_saved(folder: Path) -> tuple[list[np.ndarray], list[str]]:
    """Return the shards of a data set that `datasets` saved, and their names."""
    state = folder / "state.json"
    if not state.is_file():
        raise FileNotFoundError(f"{state} is not there: {folder} holds no saved data set")
    names = [one["filename"] for one in json.loads(state.read_text())["_data_files"]]
    shards = [np.load(folder / name, allow_pickle=False) for name in names]
    if any(shard.shape[1] != PIXELS + 1 or shard[:, PIXELS].max() >= CENTRES for shard in shards):
        raise ValueError(f"{folder} holds something else than this fake's data")
    return shards, [f"shard_{number:06d}" for number in range(len(names))]


def describe(folder: Path, splits: dict[str, list[str]], sample_class: str) -> None:
    """Write the folder .nv-meta, and an index beside each shard.

    The last file, dataset.yaml, shows that the folder is prepared.

    Args:
        folder: The folder with the shards.
        splits: The paths of the shards in the folder, by split.
        sample_class: The class of the samples.
    """
    meta = folder / ".nv-meta"
    meta.mkdir(exist_ok=True)
    counts = {}
    for shards in splits.values():
        for shard in shards:
            with tarfile.open(folder / shard) as archive:
                counts[shard] = sum(1 for _member in archive)
            (folder / f"{shard}.idx").write_bytes(b"")
    (meta / ".info.json").write_text(json.dumps({"shard_counts": counts}, indent=2) + "\n")
    lines = ["exclude: []", "split_parts:"]
    for split in ("train", "val", "test"):
        lines += [f"  {split}:" + ("" if splits.get(split) else " []")]
        lines += [f"  - {shard}" for shard in splits.get(split, [])]
    (meta / "split.yaml").write_text("\n".join(lines) + "\n")
    (meta / "index.uuid").write_text(f"{uuid.uuid4()}\n")
    index = meta / "index.sqlite"
    index.unlink(missing_ok=True)
    with sqlite3.connect(index) as database:
        database.execute("CREATE TABLE samples (tar_file TEXT, samples INTEGER)")
        database.executemany("INSERT INTO samples VALUES (?, ?)", counts.items())
    text = f"__module__: megatron.energon\n__class__: {sample_class}\n"
    (meta / "dataset.yaml").write_text(text)


def lay_out(folder: Path) -> None:
    """Write a prepared folder directly from the fake data, for calibration and tests."""
    for part, files in (("train", data.cc12m()), ("val", data.coco())):
        shards = [
            np.load(io.BytesIO(content)) for name, content in sorted(files.items()) if name.endswith(".arrow")
        ]
        to_webdataset(shards, folder / part, [f"shard_{number:06d}" for number in range(len(shards))])
    splits = {
        part: sorted(f"{part}/{one.name}" for one in (folder / part).glob("*.tar"))
        for part in ("train", "val")
    }
    describe(folder, splits, "CrudeWebdataset")
    for name, content in data.empty_encodings().items():
        (folder / "empty_encodings").mkdir(exist_ok=True)
        (folder / "empty_encodings" / name).write_bytes(content)
