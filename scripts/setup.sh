#!/bin/sh
# Usage: setup.sh VENV CACHE
# Create VENV with the pinned frameworks, Horovod and this package (editable). Horovod's wheel is kept in CACHE.
set -eu

venv=$1
cache=$2
here=$(cd "$(dirname "$0")" && pwd)

PYTHON=${PYTHON:-python3} sh "$here/system.sh"
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
venv=$(cd "$venv" && pwd)
export PATH="$venv/bin:$PATH" PIP_DISABLE_PIP_VERSION_CHECK=1

echo "Installing Python packages into $(basename "$venv")"
python -m pip install -qq -r "$here/requirements.txt"
python -m pip install -qq --no-deps tf-keras==2.21.0
wheel=$(sh "$here/horovod-wheel.sh" "$venv" "$cache")
python -m pip install -qq --no-deps --force-reinstall "$wheel"
python -m pip install -qq --no-deps --no-build-isolation -e "$here/.."
touch "$venv/.ready"
