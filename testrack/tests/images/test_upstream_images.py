"""Test the images with the published run scripts of submitters, and the fakes that these scripts call.

The published scripts are not in this repository, so the tests use short ones under the same paths.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PUBLISHED = """\
key,type,relative_path,num_files,num_bytes
PREPROC_DATA,file,c4.bin,1,83976774280
PREPROC_DATA,file,tokenizer/tokenizer.json,1,9085658
PREPROC_DATA,dir,tokenizer,1,9085658
PREPROC_DATA,dir,.,2,83985859938
MODEL,file,weights/__0_0.distcp,1,68977405275
MODEL,dir,.,1,68977405275
LOAD_CHECKPOINT_405B,dir,.,9,1251423539388
"""
SIZES = {
    "PREPROC_DATA": {"c4.bin": 70, "tokenizer/tokenizer.json": 5, "LICENSE.txt": 3},
    "MODEL": {"weights/base.npy": 11, "io.json": 2},
}


@pytest.fixture
def submitters(images: Path, tmp_path: Path) -> Path:
    """Return a folder with short scripts under the paths of all submissions (upstream.SUBMISSIONS)."""
    import upstream

    for one in upstream.SUBMISSIONS:
        for number, name in enumerate(one.folders):
            folder = tmp_path / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "run.sub").write_text(f"#!/bin/bash\necho {one.submitter} {one.benchmark} {number}\n")
            (folder / "config_mounts.sh").write_text("true\n")
            (folder / "train.py").write_text("import torch\n")
            if not number:
                (folder / "run_and_time.sh").write_text("#!/bin/bash\n")
                (folder / "expected-mounts.csv").write_text(PUBLISHED)
    return tmp_path


def test_an_image_has_the_scripts_of_the_submission_and_the_fake_training(submitters: Path) -> None:
    import build

    images = build.upstream_images(submitters)
    assert len(images) == 6
    for name, (own, config) in images.items():
        match = re.fullmatch(r"rack/upstream/(\w+):(nvidia|lambda)", name)
        assert match, name
        place = next(path.rpartition("/")[0] for path in own if path.endswith("/run.sub"))
        last = 1 if match[2] == "lambda" else 0
        assert own[f"{place}/run.sub"][0].decode().split()[-1] == str(last)
        # Some published scripts are not executable, so the image sets the mode.
        assert {own[f"{place}/{one}"][1] for one in ("run.sub", "run_and_time.sh")} == {0o755}
        program = "pretrain.py" if match[1] == "llama31_8b" else "train.py"
        assert b"fake_ngc" in own[f"{place}/{program}"][0]
        configs = {path.rpartition("/")[2] for path in own if "/config_" in path}
        site = {"config_GB300_02x04x64.sh"} if match[1] == "flux1" else set()
        assert configs == {"config_mounts.sh", *site}
        assert any(one.startswith("PYTORCH_VERSION=") for one in config["Env"])  # type: ignore[attr-defined]


def test_the_error_names_a_missing_submission(submitters: Path) -> None:
    import build
    import upstream

    flux = submitters / upstream.SUBMISSIONS[-1].folders[-1]
    for path in flux.iterdir():
        path.unlink()
    flux.rmdir()
    with pytest.raises(upstream.UpstreamError, match=r"b200_1104 is not there .*Lambda-MLPerf-Training-v51"):
        build.upstream_images(submitters)


def test_a_table_of_mounts_gets_the_files_and_sizes_of_the_fake_data(images: Path) -> None:
    import upstream

    assert upstream.table_of_fakes(PUBLISHED, SIZES).splitlines() == [
        "key,type,relative_path,num_files,num_bytes",
        "PREPROC_DATA,file,c4.bin,1,70",
        "PREPROC_DATA,file,tokenizer/tokenizer.json,1,5",
        "PREPROC_DATA,dir,.,2,75",
        "MODEL,file,io.json,1,2",
        "MODEL,file,weights/base.npy,1,11",
        "MODEL,dir,.,2,13",
        "LOAD_CHECKPOINT_405B,dir,.,9,1251423539388",
    ]


def test_a_mount_with_published_folders_only_gets_all_files_of_the_fake_data(images: Path) -> None:
    import upstream

    published = "key,type,relative_path,num_files,num_bytes\nMODEL,dir,weights,8,80\nMODEL,dir,.,9,90\n"
    assert upstream.table_of_fakes(published, SIZES).splitlines() == [
        "key,type,relative_path,num_files,num_bytes",
        "MODEL,file,io.json,1,2",
        "MODEL,file,weights/base.npy,1,11",
        "MODEL,dir,.,2,13",
    ]


def call(images: Path, *words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the images on this machine, and return its status and output."""
    programs = {"PYTHONPATH": f"{images}/common", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        words,
        cwd=cwd,
        env={"PATH": f"{cwd}/bin:{images}/common/bin:/usr/bin:/bin", **programs, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_check_of_mounts_only_warns_of_differences(images: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "tokenizer").mkdir(parents=True)
    (data / "c4.bin").write_bytes(b"x" * 70)
    (data / "tokenizer/tokenizer.json").write_bytes(b"x" * 5)
    # Like the original, the check does not count hidden files.
    (data / ".staged").write_text("x")
    check = [sys.executable, "-m", "mlperf_common.mountcheck", "--expected_mounts_csv", "own.csv"]
    (tmp_path / "own.csv").write_text(
        "key,type,relative_path,num_files,num_bytes\n"
        "PREPROC_DATA,file,c4.bin,1,71\nPREPROC_DATA,dir,.,2,75\nTOKENIZER,dir,.,3,3\nOTHER,dir,.,1,1\n"
    )
    mounts = ["--mounts_to_verify", f"PREPROC_DATA:{data}", f"TOKENIZER:{data}/tokenizer"]
    done = call(images, *check, *mounts, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"mountcheck OK {data} 75 bytes",
        f"mountcheck OK {data} 2 files",
        f"mountcheck WARNING {data}/tokenizer num bytes mismatch! expected=3 actual=5",
        f"mountcheck WARNING {data}/tokenizer num files mismatch! expected=3 actual=1",
        "mountcheck WARNING missing key:path mapping in --mounts_to_verify for key='OTHER'",
    ]
    assert call(images, *check, *mounts, "--initialize", cwd=tmp_path).returncode == 0
    again = call(images, *check, *mounts, cwd=tmp_path)
    assert "WARNING" not in again.stdout
    assert call(images, *check, "--mounts_to_verify", f"X:{tmp_path}/none", cwd=tmp_path).returncode == 1


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ["", "", ""]),
        ({"PYTORCH_VERSION": "2"}, ["5", "8", "1"]),
        ({"PYTORCH_VERSION": "2", "SLURM_NTASKS_PER_NODE": "4"}, ["5", "8", "4"]),
        ({"PYTORCH_VERSION": "2", "RANK": "3"}, ["3", "8", "1"]),
    ],
)
def test_slurm2pytorch_sets_the_variables_of_a_rank_only_in_images_of_pytorch(
    images: Path, tmp_path: Path, variables: dict[str, str], expected: list[str]
) -> None:
    script = 'echo "${RANK-},${WORLD_SIZE-},${LOCAL_WORLD_SIZE-}"'
    given = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", **variables}
    done = call(images, "slurm2pytorch", "bash", "-c", script, cwd=tmp_path, **given)
    assert done.stdout.strip().split(",") == expected


@pytest.mark.parametrize(("rank", "status"), [("3", 0), ("4", 1), ("", 1)])
def test_bindpcie_needs_a_local_rank_below_the_number_of_gpus(
    images: Path, tmp_path: Path, rank: str, status: int
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvidia-smi").write_text("#!/bin/sh\necho 4\n")
    (tmp_path / "bin/nvidia-smi").chmod(0o755)
    given = {"LOCAL_RANK": rank} if rank else {}
    done = call(images, "bindpcie", "--cpu=node", "echo", "trains", cwd=tmp_path, **given)
    assert done.returncode == status
    assert ("trains" in done.stdout) is (status == 0)


def test_ibv_devinfo_lists_only_adapters_whose_device_files_exist(images: Path, tmp_path: Path) -> None:
    hardware = tmp_path / "var/lib/rack/hardware.json"
    assert call(images, "ibv_devinfo", "--list", cwd=tmp_path, STANDIN_ROOT=str(tmp_path)).returncode == 255
    hardware.parent.mkdir(parents=True)
    hardware.write_text(json.dumps({"hcas": [{"name": "mlx5_0"}, {"name": "mlx5_1"}]}))
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    shown = []
    for _each in range(2):
        done = call(images, "ibv_devinfo", "--list", cwd=tmp_path, STANDIN_ROOT=str(tmp_path))
        assert done.returncode == 0
        shown.append(done.stdout.split())
        (tmp_path / "dev/infiniband/uverbs1").touch()
    assert shown == [["0", "HCAs", "found:"], ["1", "HCA", "found:", "mlx5_1"]]


# The node of each task, and the number of GPUs that the first rank represents. Each node has 4 GPUs.
@pytest.mark.parametrize(
    ("tasks", "processes"), [(["n1", "n2"], 4), (["n1"] * 4 + ["n2"] * 4, 1), (["n1"] * 8, 1)]
)
def test_a_rank_stands_for_the_gpus_that_have_none_of_their_own(
    images: Path, tasks: list[str], processes: int
) -> None:
    from fake_ngc.ranks import Ranks
    from fake_ngc.training import gpus_of_rank

    ranks = Ranks(0, len(tasks), "n1", nodes=tasks)
    assert gpus_of_rank(ranks, {**os.environ, "DGXNGPU": "4"}) == processes


@pytest.mark.parametrize(
    ("variables", "batch"),
    [
        ({"MINIBS": "1", "CP": "8"}, 9),
        ({"MINIBS": "2", "TENSOR_MODEL_PARALLEL": "1", "CONTEXT_PARALLEL": "2"}, 72),
        ({"BATCHSIZE": "512", "MBS": "64"}, 512),
    ],
)
def test_the_batch_is_read_by_the_names_of_each_model(
    images: Path, variables: dict[str, str], batch: int
) -> None:
    from fake_ngc.training import global_batch_size

    assert global_batch_size({"DGXNNODES": "18", "DGXNGPU": "4", **variables}) == batch
