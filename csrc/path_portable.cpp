// The passes for any machine: plain loops, which the compiler vectorizes for SSE2 or NEON.
#include <cmath>
#include <cstring>

#include "bits.h"
#include "half.h"
#include "passes.h"
#include "random.h"

#define HGC_TARGET

namespace hgc {
namespace {

HGC_INLINE bool hits(float* residual, const float* x, float threshold, uint64_t* mask) {
  if (x) {
    float sum[64];
    int32_t most = 0;
    for (int i = 0; i < 64; i++) sum[i] = residual[i] + x[i];
    for (int i = 0; i < 64; i++) {
      const int32_t size = int32_t(magnitude_bits(sum[i]));
      most = size > most ? size : most;
    }
    if (most >= 0x7f800000) return false;
    std::memcpy(residual, sum, sizeof sum);
  }
  *mask = 0;
  for (int i = 0; i < 64; i += 16) {
    uint32_t any = 0;
    for (int j = i; j < i + 16; j++) any |= uint32_t(std::fabs(residual[j]) >= threshold);
    if (any)
      for (int j = i; j < i + 16; j++) *mask |= uint64_t(std::fabs(residual[j]) >= threshold) << j;
  }
  return true;
}

// Four blocks side by side fill the registers that every machine has.
void words(const hgc_draw& draw, uint32_t block, size_t n, uint32_t* words) {
  constexpr uint32_t kBlocks = 4;
  for (size_t at = 0; at < n; at += 4 * kBlocks) {
    uint32_t c[4][kBlocks];
    for (uint32_t i = 0; i < kBlocks; i++) {
      c[0][i] = block + uint32_t(at / 4) + i;
      c[1][i] = draw.step;
      c[2][i] = draw.stream;
      c[3][i] = draw.rank;
    }
    uint32_t k0 = draw.key[0], k1 = draw.key[1];
    for (int round = 0; round < kPhiloxRounds; round++) {
      for (uint32_t i = 0; i < kBlocks; i++) {
        const uint64_t p0 = uint64_t(c[0][i]) * kPhiloxMultiplier[0];
        const uint64_t p1 = uint64_t(c[2][i]) * kPhiloxMultiplier[1];
        c[0][i] = uint32_t(p1 >> 32) ^ c[1][i] ^ k0;
        c[1][i] = uint32_t(p1);
        c[2][i] = uint32_t(p0 >> 32) ^ c[3][i] ^ k1;
        c[3][i] = uint32_t(p0);
      }
      k0 += kPhiloxWeyl[0];
      k1 += kPhiloxWeyl[1];
    }
    for (uint32_t i = 0; i < kBlocks; i++)
      for (uint32_t lane = 0; lane < 4; lane++) words[at + 4 * i + lane] = c[lane][i];
  }
}

#include "loops.inl"
#include "passes.inl"

void widen_half(const uint16_t* x, float* out, size_t n) {
  for (size_t i = 0; i < n; i++) out[i] = half_to_float(x[i]);
}

void narrow_half(const float* x, uint16_t* out, size_t n) {
  for (size_t i = 0; i < n; i++) out[i] = float_to_half(x[i]);
}

void flush(float* block, float* out, size_t n, bool) {
  std::memcpy(out, block, n * sizeof(float));
  std::memset(block, 0, n * sizeof(float));
}

void fence() {}

void add_levels(const uint8_t* codes, int, const float* levels, float scale, float* out, size_t n) {
  for (size_t i = 0; i < n; i++) out[i] = out[i] + scale * levels[codes[i]];
}

}  // namespace

const Passes portable_passes = {"portable",    max_magnitude, widen_half,  widen_bfloat, narrow_half,
                                narrow_bfloat, square_sum,    scale,       multiply_add, collect,
                                flush,         fence,         count_edges, add_levels,   loops};

}  // namespace hgc
