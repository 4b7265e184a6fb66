"""Read the published run scripts of MLPerf Training 5.1, which replace the fake scripts in images.

    build.py --upstream FOLDER --out .rackproof/rack/upstream

build.py makes the images. FOLDER contains SUBMITTER/benchmarks/..., like the root of a checkout of
mlcommons/training_results_v5.1. None of its files is in this repository. The images get run.sub,
run_and_time.sh, every config_*.sh and the tables of mounts from a submission. The parts that need GPUs remain
fakes: the training itself, and tools of NVIDIA's images. The tables get the sizes of the fake data.
"""

from __future__ import annotations

import csv
import io
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = (
    "run.sub",
    "run_and_time.sh",
    "config_*.sh",
    "expected-mounts.csv",
    "expected-mounts-8b.csv",
    "cont-mount-info.json",
)
Files = dict[str, tuple[bytes, int]]
"""The content and mode of each file, by its name."""
Sizes = Mapping[str, Mapping[str, int]]
"""The size of each file in a mount, by the mount's key in the tables."""

_NVIDIA = {
    "llama2_70b_lora": "NVIDIA/benchmarks/llama2_70b_lora/implementations/nemo",
    "llama31_8b": "NVIDIA/benchmarks/llama31_8b/implementations/nemo",
    "flux1": "NVIDIA/benchmarks/flux1/implementations/theia_ngpu16_ngc25.09_nemo",
}
FLUX1_SITE_CONFIG = "config_GB300_02x04x64.sh"
"""A config of our own for two nodes. The published configs of flux1 are for four nodes and more."""
_FLUX1_SITE_TEXT = b"""\
# This config belongs to the test rack. It has the published settings for two nodes.
export BATCHSIZE=512
source $(dirname ${BASH_SOURCE[0]})/config_common.sh
source $(dirname ${BASH_SOURCE[0]})/config_common_gbs_${BATCHSIZE}.sh
export MBS=64
export FP8_RECIPE="mxfp8"
export DGXNNODES=2
export DGXNGPU=4
export WALLTIME_RUNANDTIME=180
export WALLTIME=$((5 + ${NEXP:-1} * ($WALLTIME_RUNANDTIME + 5)))
"""


class UpstreamError(Exception):
    """The error if a folder of a submission, or its run.sub, is missing. The message names it."""


@dataclass(frozen=True)
class Submission:
    """One benchmark as one submitter published it."""

    submitter: str
    benchmark: str
    folders: tuple[str, ...]
    """Paths below FOLDER. Files of later paths replace files of earlier paths.

    Lambda ran NVIDIA's images with changes, and published only the changes.
    """
    config: str
    """The config that starts a run on two nodes with four GPUs each."""
    note: str = ""
    """The place where the submission was published, if it is not the round's repository."""

    @property
    def image(self) -> str:
        """Return the repository and tag of the image."""
        return f"rack/upstream/{self.benchmark}:{self.submitter.lower()}"


SUBMISSIONS = (
    Submission(
        "NVIDIA",
        "llama2_70b_lora",
        (_NVIDIA["llama2_70b_lora"],),
        "config_GB300_2x4x1xtp1pp1cp1_fp4.sh",
    ),
    Submission("NVIDIA", "llama31_8b", (_NVIDIA["llama31_8b"],), "config_GB300_2x4x2xtp1pp1cp1_8b_fp4.sh"),
    Submission("NVIDIA", "flux1", (_NVIDIA["flux1"],), FLUX1_SITE_CONFIG),
    Submission(
        "Lambda",
        "llama2_70b_lora",
        (_NVIDIA["llama2_70b_lora"], "Lambda/benchmarks/llama2_70b_lora/implementations/gb300_1007"),
        "config_GB300_2x4x1xtp1pp1cp1.sh",
    ),
    Submission(
        "Lambda",
        "llama31_8b",
        (_NVIDIA["llama31_8b"], "Lambda/benchmarks/llama31_8b/implementations/gb300_0922"),
        "config_GB300_2x4x2xtp1pp1cp1_8b_fp4.sh",
    ),
    Submission(
        "Lambda",
        "flux1",
        (_NVIDIA["flux1"], "Lambda/benchmarks/flux1/implementations/b200_1104"),
        FLUX1_SITE_CONFIG,
        "Lambda published it beside the round: benchmarks/flux1 of LambdaLabsML/Lambda-MLPerf-Training-v51",
    ),
)


def scripts(upstream: Path, submission: Submission) -> Files:
    """Return the published files of a submission, and our config for flux1, by name with their modes.

    Raises:
        UpstreamError: A folder or run.sub is missing.
    """
    found: Files = {}
    for name in submission.folders:
        folder = upstream / name
        if not folder.is_dir():
            more = f" ({submission.note})" if submission.note else ""
            raise UpstreamError(f"{folder} is not there{more}")
        for pattern in SCRIPTS:
            for path in sorted(folder.glob(pattern)):
                # Some published scripts are not executable, such as Lambda's run_and_time.sh.
                found[path.name] = (path.read_bytes(), 0o755 if path.name.startswith("run") else 0o644)
    if "run.sub" not in found:
        raise UpstreamError(f"{upstream / submission.folders[-1]} has no run.sub")
    if submission.benchmark == "flux1":
        found[FLUX1_SITE_CONFIG] = (_FLUX1_SITE_TEXT, 0o644)
    return found


def files(upstream: Path, submission: Submission, sizes: Sizes) -> Files:
    """Return the files that replace the fake ones in an image. Tables of mounts get the fake sizes."""
    found = scripts(upstream, submission)
    for name, (content, mode) in found.items():
        if name.endswith(".csv"):
            found[name] = (table_of_fakes(content.decode(), sizes).encode(), mode)
    return found


def table_of_fakes(published: str, sizes: Sizes) -> str:
    """Return a table of mounts with the sizes of the fake data.

    If a mount has rows of files, and the fake data contain all these files by name, only they count.
    Otherwise, all fake files of the mount count. One row has the totals, and rows of subfolders are left out.
    Rows of mounts without fake data do not change.
    """
    rows = list(csv.DictReader(io.StringIO(published)))
    keys = dict.fromkeys(row["key"] for row in rows)
    lines = [",".join(rows[0])]
    for key in keys:
        own = [row for row in rows if row["key"] == key]
        if key not in sizes:
            lines += [",".join(row.values()) for row in own]
            continue
        named = {row["relative_path"] for row in own if row["type"] == "file"}
        counted = named if named and named <= set(sizes[key]) else set(sizes[key])
        lines += [f"{key},file,{name},1,{sizes[key][name]}" for name in sorted(counted)]
        lines.append(f"{key},dir,.,{len(counted)},{sum(sizes[key][name] for name in counted)}")
    return "\n".join([*lines, ""])


def fake_sizes() -> dict[str, dict[str, int]]:
    """Return the size of each file of the fake data, by mount. This needs NumPy."""
    sys.path.insert(0, str(HERE / "common"))
    from fake_ngc import data, flux_data

    def lengths(content: Mapping[str, bytes], prefix: str = "") -> dict[str, int]:
        return {f"{prefix}{name}": len(one) for name, one in content.items()}

    def downloaded(name: str, content: Mapping[str, bytes]) -> dict[str, bytes]:
        return {**content, f"{name}.md5": data.checksums(dict(content))}

    c4 = downloaded("llama-3-1-8b-preprocessed-c4-dataset", data.c4())
    tokenizer = downloaded("llama-3-1-8b-tokenizer", data.tokenizer())
    with tempfile.TemporaryDirectory() as scratch:
        flux_data.lay_out(Path(scratch))
        energon = {
            str(path.relative_to(scratch)): path.stat().st_size for path in _counted_files(Path(scratch))
        }
    return {
        "DATADIR": lengths(data.gov_report()),
        "MODEL": lengths(data.llama2_model()),
        "PREPROC_DATA": {**lengths(c4), **lengths(tokenizer, "tokenizer/")},
        "TOKENIZER": lengths(tokenizer),
        "DATAROOT": energon,
    }


def _counted_files(folder: Path) -> Iterable[Path]:
    """Yield the files that the check of mounts counts. Names that begin with a dot do not count."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path
