#!/usr/bin/env python3
"""Build the images that fake NVIDIA's on the test rack, as an OCI layout, with the downloads.

    build.py --out .rackproof/rack/images
    build.py --out .rackproof/rack/upstream --upstream FOLDER    with published run scripts (upstream.py)

rack.py starts this program. Parts that are up to date are not built again, so a second call takes a moment.
README.md lists the contents of the images.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import configs
import downloads
import upstream
from oci import Layer, Layout, read_index, tar_of

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
MMDEBSTRAP = "/usr/bin/mmdebstrap"
RELEASE, PYTHON = "bookworm", "3.11"
PACKAGES = ("python3", "python3-numpy", "python3-yaml", "curl", "ca-certificates", "libpmix2")
LOGGING = CHECKOUT / "workloads/torch/requirements-no-deps.txt"
# A benchmark's container does not need these files, which are most of the size of Debian's packages.
LEFT_OUT = (
    *("./usr/share/perl/", "./usr/lib/x86_64-linux-gnu/perl/", "./usr/lib/x86_64-linux-gnu/libperl"),
    *("./usr/share/doc/", "./usr/share/man/", "./usr/share/locale/", "./usr/share/zoneinfo/"),
    *("./usr/lib/x86_64-linux-gnu/gconv/", "./usr/lib/python3.11/pydoc_data"),
    *("./var/lib/apt/", "./var/cache/", "./var/log/", "./usr/lib/python3/dist-packages/numpy/f2py/"),
    *("./usr/lib/python3.11/ensurepip/", "./usr/lib/python3.11/idlelib/", "./usr/lib/python3.11/lib2to3/"),
)
# The keys are REPOSITORY:TAG of NVIDIA's images. The values are the folder in the image and the benchmark.
# Images for arm64 state their architecture, but contain the programs of the other images. No node of the rack
# may run them.
IMAGES = {
    "nvdlfwea/mlperftv51/llama2_70b_lora-arm:20250930": ("ft-llm", "llama2_70b_lora"),
    "nvdlfwea/mlperftv51/llama31_8b-arm:20250922": ("llm", "llama31_8b"),
    "nvdlfwea/mlperftv51/llama2_70b_lora-amd:20251008": ("ft-llm", "llama2_70b_lora"),
    "nvdlfwea/mlperftv51/llama31_8b-amd:20251008": ("llm", "llama31_8b"),
    "nvdlfwea/mlperftv51/flux1-amd:20251007": ("flux", "flux1"),
}
# The mount points of run.sub are in the image, because a container's root may be read-only.
MOUNT_POINTS = {
    "llama2_70b_lora": ("data", "ckpt", "results", "mounted"),
    "llama31_8b": ("preproc_data", "npy_index", "workspace/llm/nemo_tokenizer", "results", "mounted"),
    "flux1": ("dataset/energon", "results", "mounted"),
}
# The three run scripts differ in these values.
RUN_SUB = {
    "llama2_70b_lora": {
        "REQUIRED": ': "${DATADIR:?DATADIR not set}"\n: "${MODEL:?MODEL not set}"',
        "DATA": "${DATADIR}",
        "MOUNTS": "${DATADIR}:/data:ro,${MODEL}:/ckpt:ro",
        "NCCL": "-b 62M -e 62M -d half",
        "COUNT": "",
        "VERIFY": '"${DATADIR}/train.npy" "${MODEL}/weights"',
        "WIDE": "",
        "MAKE": "",
    },
    "llama31_8b": {
        # The original contains this mistake. := with a question mark sets a wrong value where :? would fail.
        "REQUIRED": ': "${WALLTIME:=?WALLTIME not set}"\n: "${DATADIR:?DATADIR not set}"',
        "DATA": "${DATADIR}",
        "MOUNTS": "${_logfile_base}_npy_index:/npy_index,"
        "${DATADIR}/8b/tokenizer:/workspace/llm/nemo_tokenizer:ro,${DATADIR}/8b:/preproc_data:ro",
        "NCCL": "-b 16M -e 4G -f 2",
        # Like the original's table, this counts the files below a folder.
        "COUNT": '    found="$(find "${DATADIR}/8b" -type f | wc -l)"\n'
        '    [ "${found}" -eq 7 ] || echo "Error: ${DATADIR}/8b is incorrect. It has ${found} files."\n',
        "VERIFY": '"${DATADIR}/8b/c4-train.en_6_text_document.bin" "${DATADIR}/8b/tokenizer"',
        "WIDE": "-w",
        "MAKE": 'mkdir -p "${_logfile_base}_npy_index"\n',
    },
    "flux1": {
        "REQUIRED": ': "${DGXNGPU:?DGXNGPU not set}"\n: "${DATAROOT:?DATAROOT not set}"',
        "DATA": "${DATAROOT}",
        "MOUNTS": "${DATAROOT}:/dataset/energon",
        "NCCL": "-b 128M -e 2G -d half -G 1 -f 2",
        "COUNT": "",
        "VERIFY": '"${DATAROOT}/train" "${DATAROOT}/empty_encodings"',
        "WIDE": "-w",
        "MAKE": "",
    },
}


class BuildError(Exception):
    """A reason why the images cannot be built."""


def digest(*parts: object) -> str:
    """Return a short name for these inputs."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def run(command: list[str], timeout: float) -> None:
    """Run a command. If it fails, its output is part of the error."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"`{command[0]}`: {error}") from error
    if done.returncode != 0:
        raise BuildError(f"`{' '.join(command)}` failed ({done.returncode}): {done.stderr.strip()[-1500:]}")


def fetch_debian(path: Path) -> None:
    """Make a tar of Debian with the packages that the images need."""
    command = [MMDEBSTRAP, "--quiet", "--variant=essential", f"--include={','.join(PACKAGES)}"]
    command += ['--aptopt=Acquire::Languages "none"', RELEASE, str(path)]
    mirror = os.environ.get("RACK_DEBIAN_MIRROR")
    run([*command, *([mirror] if mirror else [])], timeout=900)


def fetch_logging(folder: Path) -> None:
    """Install mlperf-logging into a folder, in the pinned version."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    command += ["--require-hashes", "--only-binary=:all:", "--requirement", str(LOGGING)]
    run([*command, "--target", str(folder)], timeout=300)


def copy_needed(source: tarfile.TarFile, target: tarfile.TarFile) -> None:
    """Copy the members that are needed, with the same time in every build."""
    for member in source:
        unneeded = "/__pycache__/" in member.name or "/tests/" in member.name
        if member.name.startswith(LEFT_OUT) or unneeded or member.ischr() or member.isblk():
            continue
        member.mtime = 0
        target.addfile(member, source.extractfile(member) if member.isreg() else None)


def add_logging(folder: Path, target: tarfile.TarFile) -> None:
    """Add mlperf-logging's files."""
    packages = "usr/local/lib/python3.11/dist-packages"
    for file in sorted(folder.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            info = tarfile.TarInfo(f"./{packages}/{file.relative_to(folder)}")
            info.size, info.mode = file.stat().st_size, 0o644
            target.addfile(info, io.BytesIO(file.read_bytes()))


def root_tar(folder: Path) -> Path:
    """Return a tar, made once, of Debian's packages and mlperf-logging without unused files."""
    key = digest(
        RELEASE, PACKAGES, LEFT_OUT, LOGGING.read_text(), os.environ.get("RACK_DEBIAN_MIRROR", ""), 1
    )
    path = folder / f"base-{key}.tar"
    if path.is_file():
        return path
    print(f"making {path.name}: Debian {RELEASE}, mlperf-logging (90 s)", flush=True)
    if not os.path.exists(MMDEBSTRAP):
        raise BuildError(f"{MMDEBSTRAP} is missing: apt-get install mmdebstrap")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        full, vendored, draft = (Path(scratch) / name for name in ("full.tar", "pip", "base.tar"))
        fetch_debian(full)
        fetch_logging(vendored)
        with tarfile.open(full) as source, tarfile.open(draft, "w", format=tarfile.PAX_FORMAT) as target:
            copy_needed(source, target)
            add_logging(vendored, target)
        draft.replace(path)
    for other in folder.glob("base-*"):
        if not other.name.startswith(path.stem):
            other.unlink()
    return path


def base_layer(layout: Layout, folder: Path) -> Layer:
    """Return the layer of Debian and mlperf-logging that all images share, compressed once."""
    tar = root_tar(folder)
    note = tar.with_suffix(".json")
    if note.is_file():
        layer = Layer(**json.loads(note.read_text()))
        if layout.path(layer.digest).is_file():
            return layer
    layer = layout.layer(tar.read_bytes())
    note.write_text(json.dumps(vars(layer)) + "\n")
    return layer


def files_of(folder: Path, target: str) -> dict[str, tuple[bytes, int]]:
    """Return the files of a folder with their names in the image."""
    return {
        f"{target}/{path.relative_to(folder)}": (
            path.read_bytes(),
            0o755 if path.stat().st_mode & 0o100 else 0o644,
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def common_files() -> dict[str, tuple[bytes, int]]:
    """Return the files that all images share beyond Debian's packages and mlperf-logging."""
    return {
        **files_of(HERE / "common/fake_ngc", "usr/local/lib/python3.11/dist-packages/fake_ngc"),
        **files_of(HERE / "common/mlperf_common", "usr/local/lib/python3.11/dist-packages/mlperf_common"),
        **files_of(HERE / "common/bin", "usr/local/bin"),
        **files_of(HERE / "common/packages", "opt/fake_ngc/packages"),
        "usr/local/bin/python": (b"-> /usr/bin/python3", 0o777),
        "etc/hostname": (b"\n", 0o644),
    }


def run_sub(benchmark: str, folder: str) -> str:
    """Return a benchmark's run script."""
    text = (HERE / "run.sub.in").read_text()
    for name, value in {**RUN_SUB[benchmark], "NAME": benchmark, "WORKDIR": f"/workspace/{folder}"}.items():
        text = text.replace(f"@{name}@", value)
    return text


def own_files(folder: str, benchmark: str) -> dict[str, tuple[bytes, int]]:
    """Return one image's own files."""
    place = f"workspace/{folder}"
    found = files_of(HERE / folder, place)
    found[f"{place}/run.sub"] = (run_sub(benchmark, folder).encode(), 0o755)
    for point in MOUNT_POINTS[benchmark]:
        found[f"{point}/"] = (b"", 0o755)
    for name, text in configs.files(benchmark).items():
        found[f"{place}/{name}"] = (text.encode(), 0o644)
    return found


def architecture_of(name: str) -> str:
    """Return the architecture that an image states in its configuration, from its name."""
    return "arm64" if name.partition(":")[0].endswith("-arm") else "amd64"


def image_config(folder: str, own: dict[str, tuple[bytes, int]], *more: str) -> dict[str, object]:
    """Return an image's configuration, with further variables."""
    return {
        "Env": [
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG=C.UTF-8",
            "PYTHONDONTWRITEBYTECODE=1",
            # NVIDIA's images set this, because enroot gives a container GPUs only if its image or job
            # requests them.
            "NVIDIA_VISIBLE_DEVICES=all",
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video",
            f"GIT_COMMIT_ID={digest([(path, sha) for path, (sha, _mode) in own.items()])}",
            "LAUNCHER_GIT_COMMIT_ID=",
            *more,
        ],
        "WorkingDir": f"/workspace/{folder}",
        "Cmd": ["/bin/bash"],
        "Labels": {"rackproof.fake": "true"},
    }


Image = tuple[dict[str, tuple[bytes, int]], dict[str, object]]


def own_images() -> dict[str, Image]:
    """Return the files and configuration of each of our own images, by the image's name."""
    made = {}
    for name, (folder, benchmark) in IMAGES.items():
        own = own_files(folder, benchmark)
        made[name] = (own, image_config(folder, own))
    return made


def upstream_images(root: Path) -> dict[str, Image]:
    """Return the files and configuration of each image with published scripts, by the image's name."""
    sizes, made = upstream.fake_sizes(), {}
    for one in upstream.SUBMISSIONS:
        folder = next(place for place, benchmark in IMAGES.values() if benchmark == one.benchmark)
        own, published = own_files(folder, one.benchmark), upstream.files(root, one, sizes)
        # Our configs are left out, so that the published ones are chosen.
        own = {path: entry for path, entry in own.items() if "/config_" not in path}
        own |= {f"workspace/{folder}/{name}": entry for name, entry in published.items()}
        # NVIDIA's images inherit this from PyTorch's. slurm2pytorch and a hook of enroot need it.
        made[one.image] = (own, image_config(folder, own, "PYTORCH_VERSION=2.9.0a0+fake"))
    return made


def build(out: Path, published: Path | None = None, work: Path | None = None) -> None:
    """Bring the layout up to date.

    Args:
        out: The layout.
        published: The folder of submitters whose scripts the images get, or None for our own images.
        work: The folder for Debian's packages. None means a folder in the layout.
    """
    began = time.monotonic()
    layout = Layout(out)
    shared = [base_layer(layout, work or out / "work"), layout.layer(tar_of(common_files()))]
    before = read_index(out)
    images = upstream_images(published) if published else own_images()
    for name, (own, config) in images.items():
        made = layout.image(name, [*shared, layout.layer(tar_of(own))], config, architecture_of(name))
        if before.get(name, {}).get("digest") != made:
            print(f"{name}: {made}", flush=True)
    layout.close()
    if not published:
        downloads.write(out / "downloads")
    size = sum(path.stat().st_size for path in layout.blobs.iterdir()) / 1e6
    print(f"images: {len(images)} in {out}, {size:.0f} MB in all, {time.monotonic() - began:.1f} s")


def main() -> int:
    """Build outdated images, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--out", type=Path, required=True, help="the OCI layout; it also contains the kept parts"
    )
    parser.add_argument(
        "--upstream", type=Path, help="the folder of submitters whose run scripts are to be used"
    )
    parser.add_argument("--work", type=Path, help="folder for Debian's packages (default: OUT/work)")
    arguments = parser.parse_args()
    try:
        build(arguments.out.resolve(), arguments.upstream, arguments.work)
    except (BuildError, upstream.UpstreamError, OSError) as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
