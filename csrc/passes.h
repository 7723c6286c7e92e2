// What is done to every entry of a tensor: the loops that exist once for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "loops.h"

#define HGC_INLINE inline __attribute__((always_inline))

namespace hgc {

// Entries whose magnitude reached a threshold, in ascending order of position.
struct Candidates {
  uint32_t* index;
  float* value;
  size_t count, capacity;
};

constexpr size_t kWidth = 64;  // entries that `collect` does at once, and the room that it needs to go on

struct Passes {
  const char* name;
  // The largest magnitude as the bits of a float; 0x7f800000 and above mean an infinity or a NaN.
  uint32_t (*max_magnitude)(const float* x, size_t n);
  void (*widen_half)(const uint16_t* x, float* out, size_t n);
  void (*widen_bfloat)(const uint16_t* x, float* out, size_t n);
  void (*narrow_half)(const float* x, uint16_t* out, size_t n);
  void (*narrow_bfloat)(const float* x, uint16_t* out, size_t n);
  // The sum of round(|x| * factor)^2, where no rounded value is above 2^30.
  uint64_t (*square_sum)(const float* x, size_t n, double factor);
  void (*scale)(float* out, float factor, const float* x, size_t n);  // out = factor * x; out may be x
  // out = factor * a + b, the product rounded as well; out may be a or b.
  void (*multiply_add)(float* out, float factor, const float* a, const float* b, size_t n);
  // residual += x where x is not null; append the entries whose magnitude reaches `threshold`, the first of
  // them at position `begin`. Stops early at a full buffer and before sums that are not finite, which are
  // not written; returns how many entries were done.
  size_t (*collect)(float* residual, const float* x, size_t n, float threshold, uint32_t begin,
                    Candidates* to);
  // out = block, block = 0; past the caches where that is faster.
  void (*flush)(float* block, float* out, size_t n, bool large);
  // Behind it, what was flushed is there for other threads.
  void (*fence)();
  // codes[i] += 2 for each of the `count` edges that |x[i]| reaches.
  void (*count_edges)(const float* x, size_t n, const float* edges, size_t count, uint32_t* codes);
  // out[i] += scale * levels[codes[i]], with 2^bits levels.
  void (*add_levels)(const uint8_t* codes, int bits, const float* levels, float scale, float* out, size_t n);
  Loops loops;
};

extern const Passes portable_passes;
#if defined(__x86_64__)
extern const Passes avx2_passes, avx512_passes;
#endif

// The passes of a path's number: its place in what hgc_paths lists.
const Passes& passes_of(int32_t path);

}  // namespace hgc
