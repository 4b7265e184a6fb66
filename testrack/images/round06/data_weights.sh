#!/bin/bash
# A fake of maskrcnn's download_weights.sh, which downloads the weights of the backbone ResNet-50 (R-50.pkl).
# pack.py gives it that name. $1 is the folder above data/. As in the original, errors are ignored.
DIR_ROOT=${1:-"/home/${USER}"}
echo "fake" > R-50.pkl
mkdir -p $DIR_ROOT/data/mlperf/object_detection/coco2017/models
mv R-50.pkl $DIR_ROOT/data/mlperf/object_detection/coco2017/models
