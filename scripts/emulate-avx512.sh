#!/bin/sh
# Usage: emulate-avx512.sh [pytest arguments]
# Run the kernels' tests with the AVX-512 passes on a machine without AVX-512: SIMDe computes what each of their
# intrinsics does in plain C. Needs an x86-64 machine with AVX2 and SIMDe's headers.
set -eu

cd "$(dirname "$0")/.."
cxx=${CXX:-g++}
python=${PYTHON:-.venv/bin/python}
echo '#include <simde/x86/avx512.h>' | "$cxx" -x c++ -fsyntax-only - 2>/dev/null || {
  echo "emulate-avx512.sh needs SIMDe's headers: apt-get install libsimde-dev" >&2
  exit 1
}
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
flags="-fPIC -std=c++17 -O2 -ffp-contract=off -fno-math-errno -fvisibility=hidden -Wno-maybe-uninitialized -Wno-psabi"

# In place of the compiler's header: no intrinsic of its own is used, and no instruction beyond the baseline's.
mkdir "$build/emulated"
cat >"$build/emulated/immintrin.h" <<'END'
#define SIMDE_NO_NATIVE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>

#include <cassert>
#include <cstddef>

#include "half.h"

// What some versions of SIMDe lack.
#ifndef _mm512_cvtph_ps
static inline __m512 _mm512_cvtph_ps(__m256i halves) {
  uint16_t from[16];
  float to[16];
  std::memcpy(from, &halves, sizeof from);
  for (int i = 0; i < 16; i++) to[i] = hgc::half_to_float(from[i]);
  return _mm512_loadu_ps(to);
}
#endif
#ifndef _mm512_cvtps_ph
static inline __m256i _mm512_cvtps_ph(__m512 floats, int) {
  float from[16];
  uint16_t to[16];
  _mm512_storeu_ps(from, floats);
  for (int i = 0; i < 16; i++) to[i] = hgc::float_to_half(from[i]);
  __m256i halves;
  std::memcpy(&halves, to, sizeof halves);
  return halves;
}
#endif
#ifndef _mm512_cvtepu8_epi32
static inline __m512i _mm512_cvtepu8_epi32(__m128i bytes) {
  uint8_t from[16];
  int32_t to[16];
  std::memcpy(from, &bytes, sizeof from);
  for (int i = 0; i < 16; i++) to[i] = from[i];
  return _mm512_loadu_si512(to);
}
#endif
#ifndef _mm512_i32gather_ps
static inline __m512 _mm512_i32gather_ps(__m512i places, const void *from, int scale) {
  int32_t place[16];
  float to[16];
  std::memcpy(place, &places, sizeof place);
  for (int i = 0; i < 16; i++)
    std::memcpy(to + i, static_cast<const char *>(from) + ptrdiff_t(place[i]) * scale, sizeof(float));
  return _mm512_loadu_ps(to);
}
#endif
#ifndef _mm512_stream_ps
static inline void _mm512_stream_ps(float *to, __m512 floats) {
  assert(reinterpret_cast<uintptr_t>(to) % 64 == 0);  // as the instruction demands
  _mm512_storeu_ps(to, floats);
}
#endif
END
sed 's/^#define HGC_TARGET .*/#define HGC_TARGET/' csrc/path_avx512.cpp >"$build/path_avx512.cpp"

for source in csrc/*.cpp; do
  name=$(basename "$source" .cpp)
  # shellcheck disable=SC2086  # a list of words on purpose
  case $name in
    path_avx512) "$cxx" $flags -I"$build/emulated" -Icsrc -c "$build/path_avx512.cpp" -o "$build/$name.o" ;;
    dispatch) "$cxx" $flags '-D__builtin_cpu_supports(feature)=1' -c "$source" -o "$build/$name.o" ;;
    *) "$cxx" $flags -c "$source" -o "$build/$name.o" ;;
  esac
done
"$cxx" -shared "$build"/*.o -o "$build/hgc.so" -pthread
HGC_LIBRARY="$build/hgc.so" "$python" - <<'END'
from hgc_horovod.kernels.native import NativeKernels

assert NativeKernels().path == "avx512", NativeKernels().path
END
HGC_LIBRARY="$build/hgc.so" "$python" -m pytest -p no:cacheprovider tests/kernels "$@"
