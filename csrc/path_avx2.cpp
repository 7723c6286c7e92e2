// The passes for x86-64 with AVX2.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "bits.h"
#include "half.h"
#include "passes.h"
#include "random.h"

#define HGC_TARGET __attribute__((target("avx2,f16c,bmi,popcnt")))

namespace hgc {
namespace {

HGC_TARGET HGC_INLINE bool hits(float* residual, const float* x, float threshold, uint64_t* mask) {
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  const __m256 limit = _mm256_set1_ps(threshold);
  __m256 sum[8];
  __m256i most = _mm256_setzero_si256();
  *mask = 0;
  for (int i = 0; i < 8; i++) {
    sum[i] = _mm256_loadu_ps(residual + 8 * i);
    if (x) sum[i] = _mm256_add_ps(sum[i], _mm256_loadu_ps(x + 8 * i));
    const __m256 size = _mm256_and_ps(sum[i], magnitude);
    most = _mm256_max_epi32(most, _mm256_castps_si256(size));
    *mask |= uint64_t(uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(size, limit, _CMP_GE_OQ)))) << 8 * i;
  }
  if (!x) return true;
  const __m256i infinite = _mm256_cmpgt_epi32(most, _mm256_set1_epi32(0x7f7fffff));
  if (!_mm256_testz_si256(infinite, infinite)) return false;
  for (int i = 0; i < 8; i++) _mm256_storeu_ps(residual + 8 * i, sum[i]);
  return true;
}

#include "loops.inl"
#include "passes.inl"
#include "philox_avx2.inl"

HGC_TARGET void widen_half(const uint16_t* x, float* out, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
  for (; i < n; i++) out[i] = half_to_float(x[i]);
}

HGC_TARGET void narrow_half(const float* x, uint16_t* out, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
  for (; i < n; i++) out[i] = float_to_half(x[i]);
}

HGC_TARGET void flush(float* block, float* out, size_t n, bool large) {
  size_t i = 0;
  const bool stream = large && reinterpret_cast<uintptr_t>(out) % sizeof(__m256) == 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 sum = _mm256_loadu_ps(block + i);
    _mm256_storeu_ps(block + i, _mm256_setzero_ps());
    if (stream)
      _mm256_stream_ps(out + i, sum);
    else
      _mm256_storeu_ps(out + i, sum);
  }
  for (; i < n; i++) {
    out[i] = block[i];
    block[i] = 0;
  }
}

HGC_TARGET void fence() { _mm_sfence(); }

// Up to 16 levels are looked up in registers.
HGC_TARGET void add_levels(const uint8_t* codes, int bits, const float* levels, float scale, float* out,
                           size_t n) {
  float low[8] = {}, high[8] = {};
  std::memcpy(low, levels, sizeof(float) << std::min(bits, 3));
  if (bits == 4) std::memcpy(high, levels + 8, sizeof high);
  const __m256 first = _mm256_loadu_ps(low), second = _mm256_loadu_ps(high), factor = _mm256_set1_ps(scale);
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + i)));
    __m256 level;
    if (bits <= 4) {
      const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(code, 28));  // bit 3 of the code as the sign
      level = _mm256_blendv_ps(_mm256_permutevar8x32_ps(first, code), _mm256_permutevar8x32_ps(second, code),
                               upper);
    } else {
      level = _mm256_i32gather_ps(levels, code, 4);
    }
    _mm256_storeu_ps(out + i, _mm256_add_ps(_mm256_loadu_ps(out + i), _mm256_mul_ps(factor, level)));
  }
  for (; i < n; i++) out[i] = out[i] + scale * levels[codes[i]];
}

}  // namespace

const Passes avx2_passes = {"avx2",        max_magnitude, widen_half,  widen_bfloat, narrow_half,
                            narrow_bfloat, square_sum,    scale,       multiply_add, collect,
                            flush,         fence,         count_edges, add_levels,   loops};

}  // namespace hgc
#endif
