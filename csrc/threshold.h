// A guess at the k-th largest magnitude of what the residual is going to be. It decides no byte.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "half.h"
#include "hgc.h"

namespace hgc {

constexpr float kLeast =
    std::numeric_limits<float>::denorm_min();  // at this threshold all but zeros are collected

// For small tensors the last step's k-th magnitude is the guess, a fifth lowered, since a few candidates more
// cost little; else a sample's. What is looked at stands in groups, which share a line of the cache, at
// pseudo-random places, so that no period in the tensor can fool the guess, and at others in the next step.
class Threshold {
 public:
  Threshold(hgc_step& step, size_t n, size_t k) : step_(step) {
    constexpr size_t kGroup = 8, kSmall = 1 << 16;
    const size_t size = std::min<size_t>(std::max<size_t>(n / 512, 512), 8192);
    if (!step.keep || n < 2 * size) return;
    if (n <= kSmall && step.hint > 0) {
      threshold_ = 0.8f * step.hint;
      return;
    }
    magnitudes_.reserve(size);
    uint32_t place = step.turn++ * 0x85ebca6bu;
    for (size_t i = 0; i < size / kGroup; i++, place += 0x9e3779b9u) {  // Fibonacci hashing
      const size_t at = size_t(uint64_t(place) * (n - kGroup) >> 32);
      for (size_t j = at; j < at + kGroup; j++) magnitudes_.push_back(magnitude(j));
    }
    // Three standard deviations low for independent entries, and lower where that has failed of late.
    const double expected = double(size) * double(k) / double(n);
    step.caution = std::max(1.0f, 0.99f * step.caution);
    rank_ = size_t((expected + 3 * std::sqrt(expected) + 4) * step.caution);
    threshold_ = of_rank();
  }

  float first() const { return std::max(kLeast, threshold_); }

  // The next guess where fewer than k entries were found.
  float lower() {
    if (magnitudes_.empty()) {
      threshold_ = lowered_++ < 2 ? threshold_ / 4 : kLeast;
    } else {
      step_.caution = std::min(2 * step_.caution, 64.0f);
      rank_ *= 4;
      threshold_ = of_rank();
    }
    return first();
  }

 private:
  // A little below the magnitude of the rank: the lower end of its bin, 64 of which make a factor of two. Bin
  // 0 holds all that is further below the largest than the other bins reach.
  float of_rank() const {
    if (rank_ >= magnitudes_.size()) return kLeast;
    constexpr int kBins = 512, kShift = 17;
    const uint32_t most = *std::max_element(magnitudes_.begin(), magnitudes_.end());
    const uint32_t base = most - std::min(most, uint32_t(kBins - 1) << kShift);
    uint32_t histogram[kBins] = {};
    for (const uint32_t magnitude : magnitudes_) histogram[(std::max(magnitude, base) - base) >> kShift]++;
    uint32_t bin = kBins - 1;
    for (size_t rank = rank_; histogram[bin] < rank; bin--) rank -= histogram[bin];
    return bin == 0 ? kLeast : bits_float(base + (bin << kShift));
  }

  float widened(const void* data, int dtype, size_t at) const {
    if (dtype == HGC_FLOAT32) return static_cast<const float*>(data)[at];
    const uint16_t half = static_cast<const uint16_t*>(data)[at];
    return dtype == HGC_FLOAT16 ? half_to_float(half) : bits_float(uint32_t(half) << 16);
  }

  uint32_t magnitude(size_t at) const {
    float x = widened(step_.gradient, step_.gradient_dtype, at) * step_.clip_factor;
    if (step_.weight) x += step_.weight_decay * widened(step_.weight, step_.weight_dtype, at);
    if (step_.velocity) {
      const float velocity = step_.momentum * step_.velocity[at] + x;
      x = step_.nesterov ? x + step_.momentum * velocity : velocity;
    }
    return magnitude_bits(step_.residual[at] + x);
  }

  hgc_step& step_;
  float threshold_ = kLeast;
  int lowered_ = 0;
  std::vector<uint32_t> magnitudes_;
  size_t rank_ = 0;
};

}  // namespace hgc
