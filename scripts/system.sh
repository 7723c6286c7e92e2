#!/bin/sh
# Make sure that the machine has what Horovod is built and launched with: a C++17 compiler, CMake, Open MPI
# and Python's headers and venv module. As root on Debian or Ubuntu what is missing is installed; elsewhere
# it is listed in one message.
set -eu

python=${PYTHON:-python3}
missing=
need() { # need PACKAGE COMMAND...: PACKAGE provides what COMMAND checks for
  package=$1; shift
  "$@" >/dev/null 2>&1 || missing="$missing $package"
}
need g++ command -v g++
need cmake command -v cmake
need make command -v make
need openmpi-bin command -v mpirun
need libopenmpi-dev command -v mpicxx
need python3-venv "$python" -c 'import ensurepip, venv'
need python3-dev "$python" -c 'import os, sysconfig; os.stat(sysconfig.get_paths()["include"] + "/Python.h")'
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing:$missing"
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq update
  # shellcheck disable=SC2086  # a list of packages on purpose
  apt-get -qq install -y --no-install-recommends $missing >/dev/null
else
  echo "Please install these first (Debian's names; any C++17 compiler and any Open MPI will do):$missing" >&2
  exit 1
fi
