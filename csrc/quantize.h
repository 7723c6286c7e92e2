// Values to codes and back: core/quantize.py, operation for operation.
#pragma once

#include <cmath>

#include "bits.h"
#include "hgc.h"
#include "select.h"
#include "sums.h"

namespace hgc {

// Codes of one kind for values that lie between its scales, which stand in the payload.
class Quantizer {
 public:
  Quantizer(int kind, int bits) : kind_(kind), bits_(bits) {}

  // The scales of all the lists' values, of these extremes.
  void fit(const Candidates* lists, size_t list_count, Extremes reach) {
    size_t count = 0;
    for (size_t l = 0; l < list_count; l++) count += lists[l].count;
    scales_[0] = scales_[1] = 0;
    if (count == 0) return;
    const float lo = bits_float(reach.least), hi = bits_float(reach.most);
    if (kind_ == HGC_VALUE_SIGN_MEAN) {
      const FixedPoint fixed(hi, 62 - bit_length(count));
      int64_t sum = 0;
      for (size_t l = 0; l < list_count; l++)
        for (size_t i = 0; i < lists[l].count; i++)
          sum += std::llrint(std::fabs(double(lists[l].value[i])) * fixed.factor);
      scales_[0] = float(std::ldexp(double(sum), fixed.shift) / double(count));
    } else if (kind_ == HGC_VALUE_GEOMETRIC) {
      const double cap = double(lo) * std::ldexp(1.0, 2 << (bits_ - 1));
      scales_[0] = lo;
      scales_[1] = float(std::min(double(hi), cap));
    }
    use(scales_);
  }

  // Prepare the codes of these scales.
  void use(const float* scales) {
    if (kind_ == HGC_VALUE_SIGN_MEAN) {
      value_[0] = scales[0];
      value_[1] = -scales[0];
    } else if (kind_ == HGC_VALUE_GEOMETRIC) {
      const int last = 1 << bits_;
      double node[257];
      node[0] = scales[0];
      node[last] = scales[1];
      for (int step = last; step > 1; step /= 2)
        for (int i = step / 2; i < last; i += step)
          node[i] = std::sqrt(node[i - step / 2] * node[i + step / 2]);
      for (int i = 0; i < last / 2; i++) {
        edge_[i] = float(node[2 * i]);
        value_[2 * i] = float(node[2 * i + 1]);
        value_[2 * i + 1] = -value_[2 * i];
      }
    }
  }

  const float* scales() const { return scales_; }

  // Multiply what codes stand for.
  void multiply(float factor) {
    factor_ = factor;
    const int codes = kind_ == HGC_VALUE_SIGN_MEAN ? 2 : kind_ == HGC_VALUE_GEOMETRIC ? 1 << bits_ : 0;
    for (int i = 0; i < codes; i++) value_[i] *= factor;
  }

  void encode(const Passes& passes, const float* values, size_t count, uint32_t* codes) const {
    switch (kind_) {
      case HGC_VALUE_FLOAT32:
        for (size_t i = 0; i < count; i++) codes[i] = float_bits(values[i]);
        break;
      case HGC_VALUE_BFLOAT16:
        for (size_t i = 0; i < count; i++) {
          const uint32_t word = float_bits(values[i]), rounded = (word + 0x7fff + (word >> 16 & 1)) >> 16;
          codes[i] = rounded - ((rounded & 0x7fff) == 0x7f80);
        }
        break;
      case HGC_VALUE_SIGN_MEAN:
        for (size_t i = 0; i < count; i++) codes[i] = float_bits(values[i]) >> 31;
        break;
      default:
        encode_geometric(passes, values, count, codes);
    }
  }

  float decode(uint32_t code) const {
    if (kind_ == HGC_VALUE_FLOAT32) return bits_float(code) * factor_;
    if (kind_ == HGC_VALUE_BFLOAT16) return bits_float(code << 16) * factor_;
    return value_[code];
  }

  // residual[index i] = value i - what its code stands for.
  void subtract(const float* values, const uint32_t* codes, const uint32_t* index, size_t count,
                float* residual) const {
    for (size_t i = 0; i < count; i++) residual[index[i]] = values[i] - decode(codes[i]);
  }

  // The value of each code, or null where codes are too many for a table.
  const float* table() const { return kind_ >= HGC_VALUE_SIGN_MEAN ? value_ : nullptr; }

  // Whether a code stands for a finite value.
  bool finite(uint32_t code) const {
    if (kind_ == HGC_VALUE_FLOAT32) return (code & 0x7fffffffu) < 0x7f800000u;
    if (kind_ == HGC_VALUE_BFLOAT16) return (code & 0x7fffu) < 0x7f80u;
    return true;
  }

 private:
  // A level is the number of inner edges that are not above the magnitude: counted over few, bisected over
  // many.
  void encode_geometric(const Passes& passes, const float* values, size_t count, uint32_t* codes) const {
    const int levels = 1 << (bits_ - 1);
    if (levels <= 16) {
      for (size_t i = 0; i < count; i++) codes[i] = float_bits(values[i]) >> 31;
      passes.count_edges(values, count, edge_ + 1, size_t(levels) - 1, codes);
      return;
    }
    for (size_t i = 0; i < count; i++) {
      const float magnitude = std::fabs(values[i]);
      uint32_t level = 0;
      for (uint32_t step = uint32_t(levels) / 2; step; step /= 2)
        level += magnitude >= edge_[level + step] ? step : 0;
      codes[i] = level << 1 | float_bits(values[i]) >> 31;
    }
  }

  int kind_, bits_;
  float factor_ = 1, scales_[2] = {};
  float edge_[128] = {};   // of level i: where its interval begins
  float value_[256] = {};  // of each code
};

}  // namespace hgc
