// What one step adds to the residual: the gradient, scaled and clipped, with weight decay and momentum
// (core/feedback.py).
#pragma once

#include <cmath>

#include "bits.h"
#include "hgc.h"
#include "parallel.h"
#include "passes.h"
#include "sums.h"

namespace hgc {

constexpr size_t kSample = 64;  // entries that tell whether a gradient dwarfs what is kept
constexpr double kDwarfing = 256;
constexpr size_t kBlock = 2048;  // entries that are prepared at once: they stay in the first-level cache

class Update {
 public:
  Update(hgc_step& step, size_t n) : step_(step), passes_(passes_of(step.path)), n_(n) {
    step.multiplier = float(step.factor);
  }

  const Passes& passes() const { return passes_; }

  // The gradient of [at, at + count) with scaling, clipping and weight decay: its own memory, or `scratch`.
  const float* gradient(size_t at, size_t count, float* scratch) const {
    const float* x = widened(step_.gradient, step_.gradient_dtype, at, count, scratch);
    if (step_.multiplier != 1) {
      passes_.scale(scratch, step_.multiplier, x, count);
      x = scratch;
    }
    if (step_.weight) {
      float spare[kBlock];
      const float* weight = widened(step_.weight, step_.weight_dtype, at, count, spare);
      passes_.multiply_add(scratch, step_.weight_decay, weight, x, count);
      x = scratch;
    }
    return x;
  }

  // What is added to the residual for a gradient x, in `scratch` or x's memory; the velocity goes to `next`.
  const float* accumulated(const float* x, size_t at, size_t count, float* scratch, float* next) const {
    if (!step_.velocity) return x;
    passes_.multiply_add(next, step_.momentum, step_.velocity + at, x, count);
    if (!step_.nesterov) return next;
    passes_.multiply_add(scratch, step_.momentum, next, x, count);
    return scratch;
  }

  void store_velocity(size_t at, size_t count, const float* next) const {
    if (step_.velocity) std::copy_n(next, count, step_.velocity + at);
  }

  // Take the step back at [begin, end), entry by entry to float32 rounding, as the reference does. Up to
  // `added` it has reached the residual, up to `moved` the velocity. What cannot become finite was not
  // written, and stays.
  void take_back(size_t begin, size_t end, size_t added, size_t moved) const {
    float scratch[kBlock];
    for (size_t at = begin; at < end; at += kBlock) {
      const float* block = gradient(at, std::min(kBlock, end - at), scratch);
      for (size_t i = at; i < std::min(end, at + kBlock); i++) {
        const float x = block[i - at], m = step_.momentum;
        float velocity = 0, sum = x;
        if (step_.velocity) {
          velocity = i < moved ? step_.velocity[i] : m * step_.velocity[i] + x;
          sum = step_.nesterov ? x + m * velocity : velocity;
        }
        const float total = !step_.keep ? sum : i < added ? step_.residual[i] : step_.residual[i] + sum;
        if (!std::isfinite(total)) continue;
        if (step_.keep) step_.residual[i] = total - sum;
        if (step_.velocity) step_.velocity[i] = (velocity - x) / m;
      }
    }
  }

  // Whether the gradient is so much larger than what is kept that adding and subtracting it would round that
  // away. A sample is enough: a step that explodes is large nearly everywhere.
  bool dwarfs() const {
    const size_t count = std::min(n_, kSample);
    double kept = 0, largest = 0;
    for (size_t i = 0; i < count; i++) {
      const size_t at = i * (n_ / count);
      if (step_.keep) kept = std::max(kept, std::fabs(double(step_.residual[at])));
      if (step_.velocity) kept = std::max(kept, std::fabs(double(step_.velocity[at])));
    }
    for (size_t i = 0; i < count; i++) {
      float scratch;
      const double x = *widened(step_.gradient, step_.gradient_dtype, i * (n_ / count), 1, &scratch);
      if (!std::isfinite(x)) return kept > 0;
      largest = std::max(largest, std::fabs(x));
    }
    return kept > 0 && largest * step_.factor > kDwarfing * kept;
  }

  // Set the multiplier where there is a clip: core/feedback.py's, with core/sums.py's sum of squares. False
  // where the gradient holds a NaN or an infinity.
  bool clip() {
    if (!(step_.clip > 0)) return true;
    const float most = largest();
    if (std::isinf(most)) return false;
    const FixedPoint fixed(most, (62 - bit_length(n_)) / 2);
    const uint64_t sum = reduce<uint64_t>(
        [&](const float* x, size_t count) { return passes_.square_sum(x, count, fixed.factor); },
        [](uint64_t a, uint64_t b) { return a + b; });
    const double length = std::sqrt(std::ldexp(double(sum), 2 * fixed.shift));
    const double norm = length * step_.sqrt_world * step_.factor;
    if (!(norm <= step_.clip)) step_.multiplier = float(step_.factor * (step_.clip / norm));
    return true;
  }

 private:
  const float* widened(const void* data, int dtype, size_t at, size_t count, float* scratch) const {
    if (dtype == HGC_FLOAT32) return static_cast<const float*>(data) + at;
    const uint16_t* half = static_cast<const uint16_t*>(data) + at;
    (dtype == HGC_FLOAT16 ? passes_.widen_half : passes_.widen_bfloat)(half, scratch, count);
    return scratch;
  }

  // The largest magnitude of the gradient; an infinity where there is a NaN.
  float largest() const {
    const uint32_t most =
        reduce<uint32_t>([&](const float* x, size_t count) { return passes_.max_magnitude(x, count); },
                         [](uint32_t a, uint32_t b) { return std::max(a, b); });
    return bits_float(std::min(0x7f800000u, most));
  }

  template <class Value, class Map, class Join>
  Value reduce(const Map& map, const Join& join) const {
    const std::vector<Range> ranges = cut(n_, step_.threads, kBlock);
    std::vector<Value> values(ranges.size());
    for_each(ranges.size(), [&](size_t part) {
      float scratch[kBlock];
      for (size_t at = ranges[part].begin; at < ranges[part].end; at += kBlock) {
        const size_t count = std::min(kBlock, ranges[part].end - at);
        const float* x = widened(step_.gradient, step_.gradient_dtype, at, count, scratch);
        values[part] = join(values[part], map(x, count));
      }
    });
    Value all{};
    for (const Value value : values) all = join(all, value);
    return all;
  }

  hgc_step& step_;
  const Passes& passes_;
  const size_t n_;
};

}  // namespace hgc
