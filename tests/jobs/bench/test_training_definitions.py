"""Test the shipped definitions of MLPerf Training: llama2_70b_lora, llama31_8b, flux1 and gpt_oss_20b.

A definition gives MLPerf's script run.sub its folders in environment variables, and has the shell commands
that download and prepare the data (staging). The tests check both. They run the staging of llama31_8b with a
fake downloader, because its container counts the files in its folders.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rackproof.core.definitions import load_definition
from rackproof.jobs.bench import launch_slurm
from rackproof.jobs.bench.launch_slurm import Site
from rackproof.logs import FORMATS

VARIABLES = {
    "bench_mlcommons_fetch": 'downloader="$(mktemp)"; curl -fsSL -o "$downloader" http://m/d.sh',
    "bench_mlcommons_metadata": "http://m/metadata",
}
DATA = "/shared/data"


def job_inputs(root: Path, name: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the job's variables, and the shell command of each step of staging."""
    loaded = load_definition(root / "benchmarks" / f"{name}.yml", log_formats=FORMATS)
    site = Site(shared="/shared", sku="gb300", sku_gpus=4)
    specification = launch_slurm.slurm_specification(loaded, site, ["n1"], VARIABLES)
    steps = specification["stage"]
    assert isinstance(steps, list)
    return launch_slurm.slurm_environment(loaded, site, VARIABLES), {
        step["creates"]: step["run"] for step in steps
    }


def test_llama2_gets_data_and_model(root: Path) -> None:
    environment, stage = job_inputs(root, "llama2_70b_lora")
    own = f"{DATA}/llama2_70b_lora"
    assert environment == {"DATADIR": f"{own}/gov_report", "MODEL": f"{own}/model"}
    assert list(stage) == ["gov_report", "model"]


def test_llama31_gets_the_folder_that_holds_8b_with_the_tokenizer_in_it(root: Path) -> None:
    environment, stage = job_inputs(root, "llama31_8b")
    assert environment == {"DATADIR": f"{DATA}/llama31_8b"}
    assert list(stage) == ["8b"]
    assert "-d 8b http://m/metadata/" in stage["8b"]
    assert "-d 8b/tokenizer http://m/metadata/" in stage["8b"]


# Files of llama31_8b: the ones that its container counts, others that may lie beside them, and the weights
# of the model, which are deleted.
WANTED = (
    "c4-train.en_6_text_document.bin",
    "c4-train.en_6_text_document.idx",
    "c4-validation-91205-samples.en_text_document.bin",
    "c4-validation-91205-samples.en_text_document.idx",
    "tokenizer/special_tokens_map.json",
    "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
)
NOTICES = ("LICENSE.txt", "NOTICE.txt", "llama-3-1-8b-preprocessed-c4-dataset.md5", "tokenizer/LICENSE")
NOTICES += ("tokenizer/README.md", "tokenizer/config.json", "tokenizer/a name with blanks")
WEIGHTS = ("tokenizer/model-00001-of-00004.safetensors", "tokenizer/model.safetensors.index.json")
WEIGHTS += ("tokenizer/original/consolidated.00.pth",)


# `table` names the files that the image's list requires, if it has a list. `beside` are the files that are
# moved into a second folder, or None if the staging fails, because a file is missing.
@pytest.mark.parametrize(
    ("table", "downloaded", "beside"),
    [
        ((), WANTED + NOTICES + WEIGHTS, NOTICES),
        ((), WANTED + NOTICES, NOTICES),
        ((), WANTED + WEIGHTS, ()),
        ((), WANTED, ()),
        ((), WANTED[:-1] + NOTICES, None),
        ((), WANTED[1:] + WEIGHTS, None),
        ((), (*WANTED, "c4-train.en_6_text_document.bin.part"), ("c4-train.en_6_text_document.bin.part",)),
        ((), (), None),
        # The lists of images have seven files, or also licences and checksums.
        (WANTED, WANTED + NOTICES + WEIGHTS, NOTICES),
        (WANTED + NOTICES[:5], WANTED + NOTICES + WEIGHTS, NOTICES[5:]),
        (WANTED + NOTICES[:5], WANTED + WEIGHTS, None),
    ],
)
def test_llama31_keeps_the_files_that_the_check_of_its_mounts_counts(
    root: Path,
    tmp_path: Path,
    table: tuple[str, ...],
    downloaded: tuple[str, ...],
    beside: tuple[str, ...] | None,
) -> None:
    rows = [f"PREPROC_DATA,file,{name},1,7" for name in table]
    if table:
        lines = ["key,type,relative_path,num_files,num_bytes", "TOKENIZER,file,tokenizer.json,1,7", *rows]
        (tmp_path / "expected-mounts-8b.csv").write_text("\n".join([*lines, "PREPROC_DATA,dir,.,7,49", ""]))
    _environment, stage = job_inputs(root, "llama31_8b")
    data, programs = tmp_path / "data", tmp_path / "bin"
    data.mkdir()
    programs.mkdir()
    # The fake downloader makes its files in its folder. It runs twice, as after an interrupted attempt.
    lines = [f"mkdir -p '8b/{Path(name).parent}'; echo x > '8b/{name}'" for name in downloaded]
    (programs / "downloader").write_text("\n".join(["mkdir -p 8b/tokenizer", *lines]))
    for name, text in (("curl", f'cp {programs}/downloader "$3"'), ("sha256sum", "cat > /dev/null")):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    for _attempt in range(2):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", stage["8b"].replace("/data", str(data))],
            cwd=tmp_path,
            env={"PATH": f"{programs}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode == 0) is (beside is not None), done.stderr
    if beside is None:
        assert "8b has not the files that the check of its mounts counts" in done.stderr
        return
    files = {str(path.relative_to(data)) for path in data.glob("8b*/**/*") if path.is_file()}
    assert files == {f"8b/{name}" for name in table or WANTED} | {f"8b-beside/{name}" for name in beside}


def test_flux_gets_dataroot_and_energon_its_answers(root: Path) -> None:
    environment, stage = job_inputs(root, "flux1")
    # The benchmark's documentation names DATADIR, but its run.sub does not read that variable.
    assert environment == {"DATAROOT": f"{DATA}/flux1/energon"}
    assert list(stage)[-4:] == ["energon/train", "energon/val", "energon/.nv-meta", "energon/empty_encodings"]
    assert "printf 'y\\ny\\n11\\n' | energon prepare" in stage["energon/.nv-meta"]
    for split, source in (("train", "cc12m"), ("val", "coco")):
        assert f"rm -rf /dataset/energon/{split}" in stage[f"energon/{split}"], "half a shard is not a shard"
        assert f"--input_path /dataset/{source}_preprocessed" in stage[f"energon/{split}"]


@pytest.mark.parametrize("name", ["llama2_70b_lora", "llama31_8b", "flux1", "gpt_oss_20b"])
def test_nothing_that_a_run_sets_comes_from_a_definition(root: Path, name: str) -> None:
    environment, _stage = job_inputs(root, name)
    ours = {"CONT", "LOGDIR", "NEXP", "SEED", "SEED_BASE", "DGXSYSTEM", "DGXNNODES", "WALLTIME", "DATESTAMP"}
    assert not ours & environment.keys()
