#!/usr/bin/env bash
# shellcheck disable=SC2154,SC2164 # the original has these faults, too
# A fake of the download of COCO 2017: the same names, a few bytes each. As the original it looks at no error.
# shellcheck disable=SC2164,SC2154
DIR_ROOT=${1:-"/home/${USER}"}
mkdir -p "$DIR_ROOT/data/mlperf/object_detection/coco2017"
cd "$DIR_ROOT/data/mlperf/object_detection/coco2017"
python3 - <<'PYTHON'
import pathlib, zipfile
for name, members in {
    "train2017": ["train2017/000000000009.jpg"],
    "val2017": ["val2017/000000000139.jpg"],
    "annotations_trainval2017": ["annotations/instances_train2017.json", "annotations/instances_val2017.json"],
}.items():
    with zipfile.ZipFile(f"{name}.zip", "w") as packed:
        for member in members:
            packed.writestr(member, f"fake of {member}\n")
        packed.extractall()
PYTHON
cd $dir
