#!/bin/bash
# Install the contents of the image: image.sh SOURCES SHA256. The Dockerfile in this folder runs this script.
# TensorFlow and Horovod that the base image has already are used.
set -euo pipefail
sources=$1 sha256=$2
here=$(dirname "$0")
python=$(command -v python3 || true)
if [ -z "$python" ] || ! "$python" -c 'import tensorflow' 2>/dev/null; then
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
    ca-certificates cmake g++ libopenmpi-dev make openmpi-bin python3-dev python3-venv
  python3 -m venv /opt/tf
  python=/opt/tf/bin/python
  "$python" -m pip install --no-input --require-hashes --only-binary=:all: --no-deps -r "$here/requirements.txt"
fi
if ! "$python" -c 'import horovod.tensorflow' 2>/dev/null; then
  # No index has a wheel of Horovod, so it is built here, with the TensorFlow and Open MPI of the image.
  export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_MPI=1 HOROVOD_WITHOUT_GLOO=1
  export HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1
  "$python" -m pip install --no-input --require-hashes --no-deps --no-build-isolation -r "$here/horovod.txt"
fi
"$python" "$here/stage_tf_cnn.py" --source "$sources" --folder /opt/tf_cnn_benchmarks --sha256 "$sha256"
printf '#!/bin/sh\nexec %s /opt/tf_cnn_benchmarks/scripts/tf_cnn_benchmarks/tf_cnn_benchmarks.py "$@"\n' "$python" \
  >/usr/local/bin/tf_cnn_benchmarks
chmod 755 /usr/local/bin/tf_cnn_benchmarks
