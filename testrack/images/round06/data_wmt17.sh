#!/bin/bash
# A fake of the preparation of WMT17.
set -e
mkdir -p "${1:?}/data/mlperf/translation/examples/translation/wmt14_en_de/utf8"
echo "fake" > "$1/data/mlperf/translation/examples/translation/wmt14_en_de/train.txt"
