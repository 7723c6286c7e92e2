// The loops over a tile that methods are made of (core/passes.py), once for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hgc.h"

namespace hgc {

constexpr int kMostEdges = 127;
constexpr float kLargest = 0x1.fffffep127f;

struct Loops {
  // Words 4 * block to 4 * block + n of a draw, and up to kWordGroup - 1 more.
  void (*words)(const hgc_draw& draw, uint32_t block, size_t n, uint32_t* words);
  // The sum of round(|x| * factor), where none is above 2^bits.
  int64_t (*abs_sum)(const float* x, size_t n, double factor, int bits);
  // out = x between the bounds, neither included, and 0 elsewhere. Returns how many are between them.
  size_t (*between)(const float* x, size_t n, float above, float below, float* out);
  // The half octave less `first`, no less than 0 and no more than 63.
  void (*bins)(const float* x, size_t n, int32_t first, uint8_t* bins);
  void (*signs)(const float* x, size_t n, uint8_t* codes);
  // Codes of x / scale, where the scale is above 0.
  void (*round_levels)(const float* x, size_t n, float scale, float top, const uint32_t* words,
                       uint8_t* codes);
  // `edges` are kMostEdges, those behind the first `count` NaN.
  void (*nearest_levels)(const float* x, size_t n, float scale, const float* edges, int count,
                         uint8_t* codes);
  void (*round_powers)(const float* x, size_t n, const uint32_t* words, uint16_t* codes);
  // marks = 1 where an entry is taken, 0 elsewhere.
  void (*mark_at_least)(const float* x, size_t n, float limit, uint8_t* marks);
  void (*mark_lucky)(const float* x, size_t n, float factor, const uint32_t* words, uint8_t* marks);
  // The new mean and square, which may be the old ones.
  void (*moments)(const float* x, size_t n, float decay, float rest, const float* mean, const float* square,
                  float* new_mean, float* new_square);
  void (*spread)(const float* mean, const float* square, size_t n, float* out);  // square - mean^2
  void (*add_powers)(const uint32_t* codes, size_t n, float factor, float* out);
};

}  // namespace hgc
