#!/bin/bash
# A fake of the download of the backbone's weights.
DIR_ROOT=${1:-"/home/${USER}"}
echo "fake" > R-50.pkl
mkdir -p $DIR_ROOT/data/mlperf/object_detection/coco2017/models
mv R-50.pkl $DIR_ROOT/data/mlperf/object_detection/coco2017/models
