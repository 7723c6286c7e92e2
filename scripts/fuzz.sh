#!/bin/sh
# Usage: fuzz.sh [SECONDS]
# Decode mutations of the committed payloads under libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer, for
# 600 seconds by default. Exits non-zero where something is found; the input is then kept in the current folder.
set -eu

seconds=${1:-600}
here=$PWD
cd "$(dirname "$0")/.."
cxx=${CLANGXX:-clang++}
python=${PYTHON:-.venv/bin/python}
command -v "$cxx" >/dev/null || {
  echo "fuzz.sh needs clang++ with its sanitizers: apt-get install clang (or name another one in CLANGXX)" >&2
  exit 1
}
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

"$cxx" -std=c++17 -O1 -g -fno-omit-frame-pointer -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
  -ffp-contract=off -fno-math-errno -Wno-unknown-pragmas -Icsrc csrc/*.cpp tests/kernels/fuzz_decode.cpp \
  -o "$build/fuzz" -pthread

mkdir "$build/corpus"
"$python" - "$build/corpus" <<'END'
import json
import sys
from pathlib import Path

for path in sorted(Path("tests/core/golden").glob("*.json")):
    for number, step in enumerate(json.loads(path.read_text())["steps"]):
        Path(sys.argv[1], f"{path.stem}-{number}").write_bytes(bytes.fromhex(step["payload"]))
END
"$build/fuzz" -max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
  -artifact_prefix="$here/" "$build/corpus"
