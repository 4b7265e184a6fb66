#!/usr/bin/env bash
# A fake of the download and preparation of WMT16.
set -e
mkdir -p "$1"
for language in en de; do echo "fake" > "$1/train.tok.clean.bpe.32000.$language"; done
