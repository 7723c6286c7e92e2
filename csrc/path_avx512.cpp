// The passes for x86-64 with AVX-512.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "bits.h"
#include "half.h"
#include "passes.h"
#include "random.h"

#define HGC_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,f16c,bmi,popcnt")))

namespace hgc {
namespace {

HGC_TARGET HGC_INLINE bool hits(float* residual, const float* x, float threshold, uint64_t* mask) {
  const __m512 limit = _mm512_set1_ps(threshold);
  __m512 sum[4];
  __m512i most = _mm512_setzero_si512();
  *mask = 0;
  for (int i = 0; i < 4; i++) {
    sum[i] = _mm512_loadu_ps(residual + 16 * i);
    if (x) sum[i] = _mm512_add_ps(sum[i], _mm512_loadu_ps(x + 16 * i));
    const __m512 size = _mm512_abs_ps(sum[i]);
    most = _mm512_max_epi32(most, _mm512_castps_si512(size));
    *mask |= uint64_t(_mm512_cmp_ps_mask(size, limit, _CMP_GE_OQ)) << 16 * i;
  }
  if (!x) return true;
  if (_mm512_cmpgt_epi32_mask(most, _mm512_set1_epi32(0x7f7fffff))) return false;
  for (int i = 0; i < 4; i++) _mm512_storeu_ps(residual + 16 * i, sum[i]);
  return true;
}

#include "loops.inl"
#include "passes.inl"
#include "philox_avx2.inl"

HGC_TARGET void widen_half(const uint16_t* x, float* out, size_t n) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16)
    _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i))));
  for (; i < n; i++) out[i] = half_to_float(x[i]);
}

HGC_TARGET void narrow_half(const float* x, uint16_t* out, size_t n) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                        _mm512_cvtps_ph(_mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
  for (; i < n; i++) out[i] = float_to_half(x[i]);
}

HGC_TARGET void flush(float* block, float* out, size_t n, bool large) {
  size_t i = 0;
  const bool stream = large && reinterpret_cast<uintptr_t>(out) % sizeof(__m512) == 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 sum = _mm512_loadu_ps(block + i);
    _mm512_storeu_ps(block + i, _mm512_setzero_ps());
    if (stream)
      _mm512_stream_ps(out + i, sum);
    else
      _mm512_storeu_ps(out + i, sum);
  }
  for (; i < n; i++) {
    out[i] = block[i];
    block[i] = 0;
  }
}

HGC_TARGET void fence() { _mm_sfence(); }

// Up to 16 levels are looked up in a register.
HGC_TARGET void add_levels(const uint8_t* codes, int bits, const float* levels, float scale, float* out,
                           size_t n) {
  float few[16] = {};
  std::memcpy(few, levels, sizeof(float) << std::min(bits, 4));
  const __m512 table = _mm512_loadu_ps(few), factor = _mm512_set1_ps(scale);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)));
    const __m512 level =
        bits <= 4 ? _mm512_permutexvar_ps(code, table) : _mm512_i32gather_ps(code, levels, 4);
    _mm512_storeu_ps(out + i, _mm512_add_ps(_mm512_loadu_ps(out + i), _mm512_mul_ps(factor, level)));
  }
  for (; i < n; i++) out[i] = out[i] + scale * levels[codes[i]];
}

}  // namespace

const Passes avx512_passes = {"avx512",      max_magnitude, widen_half,  widen_bfloat, narrow_half,
                              narrow_bfloat, square_sum,    scale,       multiply_add, collect,
                              flush,         fence,         count_edges, add_levels,   loops};

}  // namespace hgc
#endif
