// Included once for each instruction set, inside an anonymous namespace that defines HGC_TARGET and
// hits(residual, x, threshold, mask), which adds x, where it is not null, to kWidth entries and sets a bit of
// the mask for each of them whose magnitude reaches the threshold; or returns false and writes nothing where
// one is not finite. The plain loops are vectorized by the compiler for the target.

HGC_TARGET uint32_t max_magnitude(const float* x, size_t n) {
  uint32_t most = 0;
  for (size_t i = 0; i < n; i++) {
    const uint32_t word = magnitude_bits(x[i]);
    most = word > most ? word : most;
  }
  return most;
}

HGC_TARGET void widen_bfloat(const uint16_t* x, float* out, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const uint32_t word = uint32_t(x[i]) << 16;
    std::memcpy(out + i, &word, 4);
  }
}

HGC_TARGET void narrow_bfloat(const float* x, uint16_t* out, size_t n) {
  for (size_t i = 0; i < n; i++) {
    uint32_t word;
    std::memcpy(&word, x + i, 4);
    const uint32_t rounded = (word + 0x7fff + (word >> 16 & 1)) >> 16;
    out[i] = uint16_t((word & 0x7fffffffu) > 0x7f800000u ? 0x7fc0 : rounded);  // every NaN becomes one
  }
}

HGC_TARGET uint64_t square_sum(const float* x, size_t n, double factor) {
  uint64_t sum = 0;
  for (size_t i = 0; i < n; i++) {
    // Added to 1.5 * 2^52, a double keeps the nearest whole number in its low bits, ties to even.
    const double shifted = double(std::fabs(x[i])) * factor + 0x1.8p52;
    uint64_t word;
    std::memcpy(&word, &shifted, 8);
    const uint64_t term = word & 0x7fffffffu;
    sum += term * term;
  }
  return sum;
}

HGC_TARGET void scale(float* out, float factor, const float* x, size_t n) {
#pragma GCC ivdep  // where out is x, each entry still depends on itself alone
  for (size_t i = 0; i < n; i++) out[i] = factor * x[i];
}

HGC_TARGET void multiply_add(float* out, float factor, const float* a, const float* b, size_t n) {
#pragma GCC ivdep  // where out is one of the others, each entry still depends on itself alone
  for (size_t i = 0; i < n; i++) out[i] = factor * a[i] + b[i];
}

HGC_TARGET void count_edges(const float* __restrict x, size_t n, const float* edges, size_t count,
                            uint32_t* __restrict codes) {
  for (size_t j = 0; j < count; j++) {
    const float edge = edges[j];
    for (size_t i = 0; i < n; i++) codes[i] += std::fabs(x[i]) >= edge ? 2 : 0;
  }
}

// Survivors are few, so most masks hold none to two of them: two are stored whether they are there or not,
// which spares a branch that would be mispredicted.
HGC_TARGET size_t collect(float* residual, const float* x, size_t n, float threshold, uint32_t begin,
                          Candidates* to) {
  size_t i = 0;
  uint32_t* index = to->index + to->count;
  float* value = to->value + to->count;
  const uint32_t* const last = to->index + to->capacity - kWidth;
  for (; i + kWidth <= n; i += kWidth) {
    if (index > last) break;
    constexpr size_t kAhead = 512, kLine = 16;  // entries
    for (size_t j = 0; j < kWidth; j += kLine) {
      __builtin_prefetch(residual + i + kAhead + j, 1);
      if (x) __builtin_prefetch(x + i + kAhead + j);
    }
    uint64_t mask;
    if (!hits(residual + i, x ? x + i : nullptr, threshold, &mask)) break;
    const size_t count = size_t(__builtin_popcountll(mask));
    for (size_t j = 0; j < 2; j++) {
      const size_t at = i + (size_t(__builtin_ctzll(mask | uint64_t(1) << 63)));
      index[j] = begin + uint32_t(at);
      value[j] = residual[at];
      mask &= mask - 1;
    }
    for (size_t j = 2; j < count; j++) {
      const size_t at = i + size_t(__builtin_ctzll(mask));
      index[j] = begin + uint32_t(at);
      value[j] = residual[at];
      mask &= mask - 1;
    }
    index += count;
    value += count;
  }
  if (i + kWidth > n) {
    for (; i < n && index < last + kWidth; i++) {
      const float sum = x ? residual[i] + x[i] : residual[i];
      if (!std::isfinite(sum)) break;
      residual[i] = sum;
      if (std::fabs(sum) >= threshold) {
        *index++ = begin + uint32_t(i);
        *value++ = sum;
      }
    }
  }
  to->count = size_t(index - to->index);
  return i;
}
