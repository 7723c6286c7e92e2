// IEEE half precision to float32 and back, in integer arithmetic where the machine has no instruction for it.
#pragma once

#include "bits.h"

namespace hgc {

inline float half_to_float(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000) << 16, magnitude = half & 0x7fff;
  if (magnitude >= 0x7c00) return bits_float(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);  // infinity, NaN
  // With its bits shifted into place the value is 2^112 too small; the product is exact, denormals included.
  return bits_float(sign | float_bits(bits_float(magnitude << 13) * 0x1p112f));
}

// To nearest, ties to even; what is too large becomes an infinity.
inline uint16_t float_to_half(float value) {
  const uint32_t word = float_bits(value), magnitude = word & 0x7fffffff;
  const uint16_t sign = uint16_t(word >> 16 & 0x8000);
  if (magnitude > 0x7f800000) return sign | 0x7e00 | uint16_t(magnitude >> 13 & 0x1ff);  // NaN
  if (magnitude >= 0x477ff000) return sign | 0x7c00;
  if (magnitude < 0x38800000)  // a half denormal: the sum's low bits are the value in steps of 2^-24
    return sign | uint16_t(float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000);
  return sign | uint16_t((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

}  // namespace hgc
