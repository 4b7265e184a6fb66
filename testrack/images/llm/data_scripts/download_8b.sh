#!/bin/bash
# Downloads data set and tokenizer into ${DATADIR}/8b, in the layout that run.sub mounts.
#   MLC_DOWNLOADS: where MLCommons' downloader and the .uri files are; on the test rack its services' host.
set -e
: "${DATADIR:?DATADIR not set}"
: "${MLC_DOWNLOADS:=http://gb300-r01-svc/mlcommons}"
mkdir -p "${DATADIR}/8b"
cd "${DATADIR}"
downloader="$(mktemp)"
curl -fsS -o "${downloader}" "${MLC_DOWNLOADS}/mlc-r2-downloader.sh"
bash "${downloader}" -d 8b "${MLC_DOWNLOADS}/metadata/llama-3-1-8b-preprocessed-c4-dataset.uri"
bash "${downloader}" -d 8b/tokenizer "${MLC_DOWNLOADS}/metadata/llama-3-1-8b-tokenizer.uri"
rm -f "${downloader}"
