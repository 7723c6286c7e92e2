// The exact k largest of some candidates.
#pragma once

#include <vector>

#include "bits.h"
#include "passes.h"

namespace hgc {

struct Extremes {
  uint32_t least, most;  // magnitudes as bits
};

// The k-th largest magnitude as bits, and how many of the k largest are equal to it, and how many there are
// in all.
struct Kth {
  uint32_t limit;
  size_t ties, equal;
};

// Over all lists, which hold at least k >= 1 entries within `reach`. One histogram over that range tells the
// bin that the k-th lies in; few entries share it.
inline Kth kth_largest(const Candidates* lists, size_t list_count, size_t k, Extremes reach) {
  constexpr int kMostBinBits = 11;
  const int bin_bits =
      k < 1024 ? 8 : kMostBinBits;  // for few entries, clearing many bins would take the longest
  const int shift = std::max(0, bit_length(reach.most - reach.least) - bin_bits);
  uint32_t histogram[1 << kMostBinBits];
  std::fill_n(histogram, size_t(1) << bin_bits, 0u);
  for (size_t l = 0; l < list_count; l++)
    for (size_t i = 0; i < lists[l].count; i++)
      histogram[(magnitude_bits(lists[l].value[i]) - reach.least) >> shift]++;
  uint32_t bin = (reach.most - reach.least) >> shift;
  while (histogram[bin] < k) k -= histogram[bin--];
  if (shift == 0) return {reach.least + bin, k, histogram[bin]};
  std::vector<uint32_t> inside(histogram[bin] + 1);
  size_t count = 0;
  for (size_t l = 0; l < list_count; l++)
    for (size_t i = 0; i < lists[l].count; i++) {
      const uint32_t word = inside[count] = magnitude_bits(lists[l].value[i]);
      count += (word - reach.least) >> shift == bin;
    }
  inside.pop_back();
  const auto kth = inside.begin() + ptrdiff_t(count - k);
  std::nth_element(inside.begin(), kth, inside.end());
  const uint32_t limit = *kth;
  const size_t above = size_t(std::count_if(kth, inside.end(), [&](uint32_t word) { return word > limit; }));
  return {limit, k - above, size_t(std::count(inside.begin(), inside.end(), limit))};
}

// Keep those above the limit and the first `ties` of those that are equal to it.
inline void keep(Candidates* list, const Kth& kth, size_t* ties) {
  size_t kept = 0;
  const bool all_ties = *ties >= kth.equal;
  for (size_t i = 0; i < list->count; i++) {
    const uint32_t word = magnitude_bits(list->value[i]);
    bool good = word >= kth.limit;
    if (!all_ties) {
      const bool tie = word == kth.limit;
      good = tie ? *ties > 0 : good;
      *ties -= tie && good;
    }
    list->index[kept] = list->index[i];
    list->value[kept] = list->value[i];
    kept += good;
  }
  list->count = kept;
}

// Keep the `k` largest of all lists, of equal ones the first, in their order. No magnitude is below `least`,
// given as bits. Returns the extremes of what is kept.
inline Extremes keep_largest(const Passes& passes, Candidates* lists, size_t list_count, size_t k,
                             uint32_t least) {
  Extremes reach{least, 0};
  size_t total = 0;
  for (size_t l = 0; l < list_count; l++) {
    reach.most = std::max(reach.most, passes.max_magnitude(lists[l].value, lists[l].count));
    total += lists[l].count;
  }
  if (total > k) {
    const Kth kth = kth_largest(lists, list_count, k, reach);
    size_t ties = kth.ties;
    for (size_t l = 0; l < list_count; l++) keep(&lists[l], kth, &ties);
    return {kth.limit, reach.most};
  }
  reach.least = reach.most;
  for (size_t l = 0; l < list_count; l++)
    for (size_t i = 0; i < lists[l].count; i++)
      reach.least = std::min(reach.least, magnitude_bits(lists[l].value[i]));
  return reach;
}

}  // namespace hgc
