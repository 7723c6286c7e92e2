#!/bin/sh
# Usage: sanitize.sh [address|thread] [pytest arguments]
# Run the kernels' tests on a build with AddressSanitizer and UndefinedBehaviorSanitizer, or ThreadSanitizer. Exits
# non-zero where one of them finds something, which ends Python at once. CXX must be GCC; PYTHON is .venv's otherwise.
set -eu

kind=address
case ${1:-} in address | thread)
  kind=$1
  shift
  ;;
esac
cd "$(dirname "$0")/.."
cxx=${CXX:-g++}
python=${PYTHON:-.venv/bin/python}
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

if [ $kind = address ]; then
  flags="-fsanitize=address,undefined -fno-sanitize-recover=all"
  runtimes="libasan.so libubsan.so"
else
  flags="-fsanitize=thread"
  runtimes="libtsan.so"
fi
# The flags of setup.py that decide what is computed, and what a report needs to name lines. The plain warning of
# GCC about intrinsics that start from nothing is setup.py's, too.
# shellcheck disable=SC2086  # lists of words on purpose
"$cxx" -shared -fPIC -std=c++17 -O1 -g -fno-omit-frame-pointer $flags -ffp-contract=off -fno-math-errno \
  -fvisibility=hidden -Wno-maybe-uninitialized csrc/*.cpp -o "$build/hgc.so" -pthread

# Python itself is not built with sanitizers, so that their runtimes must be there before it; the C++ library, too,
# because they wrap its exceptions.
preload=
for name in $runtimes libstdc++.so.6; do
  preload="$preload $("$cxx" -print-file-name="$name")"
done
LD_PRELOAD=${preload# } \
  ASAN_OPTIONS=detect_leaks=0:abort_on_error=0 \
  UBSAN_OPTIONS=print_stacktrace=1 \
  TSAN_OPTIONS=halt_on_error=1:exitcode=66 \
  HGC_LIBRARY="$build/hgc.so" \
  PYTHONMALLOC=malloc \
  "$python" -m pytest -p no:cacheprovider --capture=sys tests/kernels "$@" # a report is not pytest's to capture
