#!/bin/sh
# Usage: horovod-wheel.sh VENV CACHE
# Print the path of a Horovod 0.28.1 wheel for the frameworks in VENV. It is built from the unchanged source
# distribution once, and kept in CACHE under a key made of everything that goes into it.
set -eu

python=$1/bin/python
cache=$2
here=$(cd "$(dirname "$0")" && pwd)
horovod=0.28.1

key=$({
  "$python" -c 'import platform, sysconfig; print(sysconfig.get_platform(), platform.python_version())'
  "$python" -m pip freeze | grep -iE '^(torch|tensorflow|numpy|cffi)'
  g++ --version; cmake --version; mpicxx --version; mpirun --version
  cat "$here/hvd-cxx" "$0"
} 2>&1 | sha256sum | cut -c1-16)
wheels=$cache/horovod-$horovod-$key
if ! ls "$wheels"/horovod-*.whl >/dev/null 2>&1; then
  echo "Building Horovod $horovod (some minutes, once; log in $wheels.log)" >&2
  mkdir -p "$cache"
  building=$(mktemp -d "$wheels.XXXXXX")
  # One compiler takes about 1 GB: as many at once as there are cores, and no more. pip's own cache would give
  # back a wheel that was built for another torch or TensorFlow.
  CXX=$here/hvd-cxx MAKEFLAGS=-j$(nproc) HOROVOD_WITHOUT_MXNET=1 \
  HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_TENSORFLOW=1 \
    "$python" -m pip wheel -q --no-cache-dir --no-deps --no-build-isolation --no-binary horovod "horovod==$horovod" \
    -w "$building" >"$wheels.log" 2>&1 || { tail -40 "$wheels.log" >&2; rm -rf "$building"; exit 1; }
  rm -rf "$wheels"
  mv "$building" "$wheels"
fi
ls "$wheels"/horovod-*.whl
