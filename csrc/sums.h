// Sums that come out the same in any order: core/sums.py.
#pragma once

#include <cmath>

namespace hgc {

// Fixed-point terms of an order-independent sum: |v| as multiples of 2^shift, none above 2^bits.
struct FixedPoint {
  int shift;
  double factor;

  FixedPoint(float largest, int bits) {
    int exponent = 0;
    std::frexp(double(largest), &exponent);
    shift = exponent - bits;
    factor = std::ldexp(1.0, -shift);
  }
};

}  // namespace hgc
