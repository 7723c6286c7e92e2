// A guess at the k-th largest magnitude of what the residual is going to be. It decides no byte.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "bits.h"
#include "hgc.h"
#include "step.h"

namespace hgc {

constexpr float kLeast =
    std::numeric_limits<float>::denorm_min();  // at this threshold all but zeros are collected

// For small tensors the last step's k-th magnitude is the guess, a fifth lowered, since a few candidates more
// cost little; else a sample's. What is looked at stands in groups, which share a line of the cache, at
// pseudo-random places, so that no period in the tensor can fool the guess, and at others in the next step.
class Threshold {
 public:
  Threshold(hgc_step& step, const Update& update, size_t n, size_t k) : step_(step) {
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
      float scratch[kGroup], spare[kGroup], next[kGroup];
      const float* x = update.accumulated(update.gradient(at, kGroup, scratch), at, kGroup, spare, next);
      for (size_t j = 0; j < kGroup; j++) magnitudes_.push_back(magnitude_bits(step.residual[at + j] + x[j]));
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

  hgc_step& step_;
  float threshold_ = kLeast;
  int lowered_ = 0;
  std::vector<uint32_t> magnitudes_;
  size_t rank_ = 0;
};

}  // namespace hgc
