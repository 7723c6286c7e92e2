// Where a payload's sections begin, and its header: core/wire.py and core/elias_fano.py.
#pragma once

#include "bits.h"
#include "hgc.h"

namespace hgc {

struct Layout {
  int64_t n, k;
  int32_t method, value_kind, bits;
  bool all;  // every entry is there, without positions
  int32_t scale_count, low_bits;
  int64_t high_bits;                           // length of the high-bit vector
  int64_t at_scales, at_high, at_fields, end;  // byte offsets

  explicit Layout(const hgc_format& format)
      : n(format.n), k(format.k), method(format.method), value_kind(format.value_kind), bits(format.bits) {
    all = k == n && (value_kind == HGC_VALUE_FLOAT32 || value_kind == HGC_VALUE_BFLOAT16);
    scale_count = value_kind == HGC_VALUE_GEOMETRIC ? 2 : value_kind == HGC_VALUE_SIGN_MEAN ? 1 : 0;
    low_bits = all || k == 0 ? 0 : bit_length(uint64_t(n / k)) - 1;
    high_bits = all || k == 0 ? 0 : k + ((n + (int64_t(1) << low_bits) - 1) >> low_bits);
    at_scales = kHeaderBytes;
    at_high = at_scales + 4 * scale_count;
    at_fields = at_high + whole_words(high_bits);
    end = at_fields + whole_words(k * width());
  }

  int32_t width() const { return low_bits + bits; }

  void write_header(uint8_t* to) const {
    const uint8_t head[8] = {
        'H', 'G', 'C', 1, uint8_t(method), uint8_t(all ? 0 : 1), uint8_t(value_kind), uint8_t(bits)};
    const uint32_t sizes[2] = {uint32_t(n), uint32_t(k)};
    std::memcpy(to, head, 8);
    std::memcpy(to + 8, sizes, 8);
  }

  // Whether `bytes` bytes begin with a payload of this version, whose format is then known.
  static bool read_header(const uint8_t* from, int64_t bytes, hgc_format* format) {
    if (bytes < kHeaderBytes || std::memcmp(from, "HGC\1", 4) != 0) return false;
    uint32_t sizes[2];
    std::memcpy(sizes, from + 8, 8);
    *format = {sizes[0], sizes[1], from[4], from[6], from[7]};
    const int bits = format->bits;
    const bool known = format->value_kind == HGC_VALUE_FLOAT32     ? bits == 32
                       : format->value_kind == HGC_VALUE_BFLOAT16  ? bits == 16
                       : format->value_kind == HGC_VALUE_SIGN_MEAN ? bits == 1
                       : format->value_kind == HGC_VALUE_GEOMETRIC ? bits >= 2 && bits <= 8
                                                                   : false;
    if (!known || format->method > 22 || format->n > INT32_MAX || format->k > format->n ||
        (format->k == 0) != (format->n == 0))
      return false;
    const Layout layout(*format);
    return from[5] == (layout.all ? 0 : 1) && layout.end <= bytes;
  }

 private:
  static constexpr int64_t kHeaderBytes = 16;
  static int64_t whole_words(int64_t bit_count) { return (bit_count + 31) / 32 * 4; }
};

}  // namespace hgc
