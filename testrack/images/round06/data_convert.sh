#!/bin/bash
# A fake of the conversion of WMT17 to what the training reads.
set -e
cd "${1:?}/data/mlperf/translation/examples/translation/wmt14_en_de"
cp train.txt utf8/train.en-de.bin
