// Included once for each instruction set, inside an anonymous namespace that defines HGC_TARGET, and words()
// for it. Every operation is core/passes.py's, in its order; integers are signed where both would do, since
// not every instruction set converts or compares unsigned ones.

HGC_TARGET void words(const hgc_draw& draw, uint32_t block, size_t n, uint32_t* words);

HGC_TARGET int64_t abs_sum(const float* x, size_t n, double factor, int bits) {
  int64_t sum = 0;
  if (bits > 52) {
    for (size_t i = 0; i < n; i++) sum += std::llrint(double(std::fabs(x[i])) * factor);
    return sum;
  }
  for (size_t i = 0; i < n; i++) {
    // Added to 2^52, a double keeps the nearest whole number in its low bits, ties to even.
    const double shifted = double(std::fabs(x[i])) * factor + 0x1p52;
    int64_t word;
    std::memcpy(&word, &shifted, 8);
    sum += word - 0x4330000000000000;
  }
  return sum;
}

HGC_TARGET size_t between(const float* __restrict x, size_t n, float above, float below,
                          float* __restrict out) {
  uint32_t count = 0;
  for (size_t i = 0; i < n; i++) {
    const uint32_t in = uint32_t(x[i] > above) & uint32_t(x[i] < below);
    out[i] = bits_float(float_bits(x[i]) & (0 - in));
    count += in;
  }
  return count;
}

HGC_TARGET void bins(const float* __restrict x, size_t n, int32_t first, uint8_t* __restrict bins) {
  for (size_t i = 0; i < n; i++) {
    const int32_t bin = int32_t(magnitude_bits(x[i]) >> 22) - first;
    bins[i] = uint8_t(bin < 0 ? 0 : bin > 63 ? 63 : bin);
  }
}

HGC_TARGET void signs(const float* __restrict x, size_t n, uint8_t* __restrict codes) {
  for (size_t i = 0; i < n; i++) codes[i] = x[i] < 0;
}

// A level of 0 has no sign.
HGC_INLINE uint8_t signed_level(uint32_t level, float x) {
  return uint8_t(level << 1 | (uint32_t(x < 0) & uint32_t(level > 0)));
}

HGC_TARGET void round_levels(const float* __restrict x, size_t n, float scale, float top,
                             const uint32_t* __restrict words, uint8_t* __restrict codes) {
  for (size_t i = 0; i < n; i++) {
    const float scaled = std::fabs(x[i]) / scale * top, place = scaled < top ? scaled : top;
    const int32_t down = int32_t(place), chance = int32_t((place - float(down)) * 0x1p31f);
    const int32_t level = down + int32_t(int32_t(words[i] >> 1) < chance);
    codes[i] = signed_level(uint32_t(level), x[i]);
  }
}

// Edges are counted where they are few, and else bisected.
HGC_TARGET void nearest_levels(const float* __restrict x, size_t n, float scale, const float* edges,
                               int count, uint8_t* __restrict codes) {
  constexpr size_t kAtOnce = 512;
  float ratio[kAtOnce];
  int32_t level[kAtOnce];
  for (size_t at = 0; at < n; at += kAtOnce) {
    const size_t end = n - at < kAtOnce ? n - at : kAtOnce;
    for (size_t i = 0; i < end; i++) {
      ratio[i] = std::fabs(x[at + i]) / scale;
      level[i] = 0;
    }
    if (count <= 16) {
      for (int j = 0; j < count; j++)
        for (size_t i = 0; i < end; i++) level[i] += ratio[i] >= edges[j] ? 1 : 0;
    } else {
      for (int step = (kMostEdges + 1) / 2; step; step /= 2)
        for (size_t i = 0; i < end; i++) level[i] += ratio[i] >= edges[level[i] + step - 1] ? step : 0;
    }
    for (size_t i = 0; i < end; i++) codes[at + i] = signed_level(uint32_t(level[i]), x[at + i]);
  }
}

HGC_TARGET void round_powers(const float* __restrict x, size_t n, const uint32_t* __restrict words,
                             uint16_t* __restrict codes) {
  for (size_t i = 0; i < n; i++) {
    const uint32_t word = float_bits(x[i]);
    const int32_t up = int32_t(words[i] >> 9) < int32_t(word & 0x7fffff);
    const int32_t above = int32_t(word >> 23 & 0xff) + up, exponent = above < 254 ? above : 254;
    codes[i] = uint16_t(uint32_t(exponent) << 1 | (word >> 31 & uint32_t(exponent > 0)));
  }
}

HGC_TARGET void mark_at_least(const float* __restrict x, size_t n, float limit, uint8_t* __restrict marks) {
  for (size_t i = 0; i < n; i++) {
    const float size = std::fabs(x[i]);
    marks[i] = uint8_t(uint32_t(size >= limit) & uint32_t(size > 0));
  }
}

HGC_TARGET void mark_lucky(const float* __restrict x, size_t n, float factor,
                           const uint32_t* __restrict words, uint8_t* __restrict marks) {
  constexpr float kBelow = 0x1.fffffep-1f;  // the largest chance that is not sure
  for (size_t i = 0; i < n; i++) {
    const float chance = std::fabs(x[i]) * factor, unsure = chance < kBelow ? chance : kBelow;
    const uint32_t drawn = int32_t(words[i] >> 1) < int32_t(unsure * 0x1p31f);
    marks[i] = uint8_t(drawn | uint32_t(chance >= 1));
  }
}

HGC_INLINE float at_most_largest(float x) { return x < kLargest ? x : kLargest; }

HGC_TARGET void moments(const float* x, size_t n, float decay, float rest, const float* mean,
                        const float* square, float* new_mean, float* new_square) {
#pragma GCC ivdep  // where what is new is what was, each entry still depends on itself alone
  for (size_t i = 0; i < n; i++) {
    const float first = at_most_largest(decay * mean[i] + rest * x[i]);
    const float second = decay * square[i] + rest * at_most_largest(x[i] * x[i]);
    new_mean[i] = first > -kLargest ? first : -kLargest;
    new_square[i] = at_most_largest(second);
  }
}

HGC_TARGET void spread(const float* __restrict mean, const float* __restrict square, size_t n,
                       float* __restrict out) {
  for (size_t i = 0; i < n; i++) out[i] = square[i] - at_most_largest(mean[i] * mean[i]);
}

HGC_TARGET void add_powers(const uint32_t* __restrict codes, size_t n, float factor, float* __restrict out) {
  for (size_t i = 0; i < n; i++) out[i] += factor * bits_float(codes[i] >> 1 << 23 | codes[i] << 31);
}

constexpr Loops loops = {words,        abs_sum,        between,      bins,          signs,
                         round_levels, nearest_levels, round_powers, mark_at_least, mark_lucky,
                         moments,      spread,         add_powers};
