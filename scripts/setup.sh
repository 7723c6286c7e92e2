#!/bin/sh
# Usage: setup.sh VENV CACHE
# Create VENV with the pinned frameworks, Horovod 0.28.1 and this package (editable). Horovod's wheel is
# built once and kept in CACHE under a key made of everything that goes into it.
set -eu

venv=$1
cache=$2
here=$(cd "$(dirname "$0")" && pwd)
horovod=0.28.1

PYTHON=${PYTHON:-python3} sh "$here/system.sh"
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
venv=$(cd "$venv" && pwd)
export PATH="$venv/bin:$PATH" PIP_DISABLE_PIP_VERSION_CHECK=1
python=$venv/bin/python

echo "Installing Python packages into .venv"
"$python" -m pip install -qq -r "$here/requirements.txt"
"$python" -m pip install -qq --no-deps tf-keras==2.21.0

key=$({
  "$python" -c 'import platform, sysconfig; print(sysconfig.get_platform(), platform.python_version())'
  "$python" -m pip freeze | grep -iE '^(torch|tensorflow|numpy|cffi)'
  g++ --version; cmake --version; mpicxx --version; mpirun --version
  cat "$here/hvd-cxx" "$here/setup.sh"
} 2>&1 | sha256sum | cut -c1-16)
wheels=$cache/horovod-$horovod-$key
if ! ls "$wheels"/horovod-*.whl >/dev/null 2>&1; then
  echo "Building Horovod $horovod (some minutes, once; log in $wheels.log)"
  mkdir -p "$cache"
  rm -rf "$wheels.part"
  # One compiler takes about 1 GB: as many at once as there are cores, and no more.
  CXX=$here/hvd-cxx MAKEFLAGS=-j$(nproc) HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITHOUT_GPU=1 \
  HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_TENSORFLOW=1 \
    "$python" -m pip wheel -q --no-deps --no-build-isolation --no-binary horovod "horovod==$horovod" \
    -w "$wheels.part" >"$wheels.log" 2>&1 || { tail -40 "$wheels.log" >&2; exit 1; }
  rm -rf "$wheels"
  mv "$wheels.part" "$wheels"
fi
"$python" -m pip install -qq --no-deps --force-reinstall "$wheels"/horovod-*.whl
"$python" -m pip install -qq --no-deps --no-build-isolation -e "$here/.."
touch "$venv/.ready"
