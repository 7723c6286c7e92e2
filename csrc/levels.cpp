// A code for every entry, and the random words that some of them are drawn by.
#include <cmath>
#include <cstring>

#include "bits.h"
#include "passes.h"
#include "random.h"
#include "tiles.h"

using namespace hgc;

static_assert(kTile % kWordGroup == 0, "a tile has room for the words of its entries");

extern "C" int hgc_draw_words(const hgc_draw* draw, int64_t n, uint32_t* words, int32_t path,
                              int32_t threads) {
  const Passes& passes = passes_of(path);
  return call_tiles(n, threads, [&](size_t at, size_t count) {
    uint32_t tile[kTile];
    passes.loops.words(*draw, uint32_t(at / 4), count, tile);
    std::copy_n(tile, count, words + at);
  });
}

extern "C" int hgc_signs(const float* values, int64_t n, uint8_t* codes, int32_t path, int32_t threads) {
  const Passes& passes = passes_of(path);
  return call_tiles(n, threads,
                    [&](size_t at, size_t count) { passes.loops.signs(values + at, count, codes + at); });
}

extern "C" int hgc_round_levels(const float* values, int64_t n, const float* scales, int64_t bucket,
                                int32_t top, const hgc_draw* draw, uint8_t* codes, int32_t path,
                                int32_t threads) {
  const Passes& passes = passes_of(path);
  return call_tiles(n, threads, [&](size_t at, size_t count) {
    uint32_t words[kTile];
    passes.loops.words(*draw, uint32_t(at / 4), count, words);
    each_run(at, count, size_t(bucket), [&](size_t number, size_t begin, size_t length) {
      if (scales[number] > 0)
        passes.loops.round_levels(values + begin, length, scales[number], float(top), words + (begin - at),
                                  codes + begin);
      else
        std::memset(codes + begin, 0, length);
    });
  });
}

extern "C" int hgc_nearest_levels(const float* values, int64_t n, const float* scales, int64_t bucket,
                                  const float* edges, int32_t edge_count, uint8_t* codes, int32_t path,
                                  int32_t threads) {
  const Passes& passes = passes_of(path);
  float padded[kMostEdges];
  std::fill_n(std::copy_n(edges, edge_count, padded), kMostEdges - edge_count, NAN);
  int at_zero = 0;  // what a ratio of 0 reaches, which has no sign where it is 0
  while (at_zero < edge_count && edges[at_zero] <= 0) at_zero++;
  return call_tiles(n, threads, [&](size_t at, size_t count) {
    each_run(at, count, size_t(bucket), [&](size_t number, size_t begin, size_t length) {
      if (scales[number] > 0)
        passes.loops.nearest_levels(values + begin, length, scales[number], padded, edge_count,
                                    codes + begin);
      else
        for (size_t i = begin; i < begin + length; i++)
          codes[i] = uint8_t(at_zero << 1 | int(at_zero > 0 && values[i] < 0));
    });
  });
}

extern "C" int hgc_round_powers(const float* values, int64_t n, const hgc_draw* draw, uint16_t* codes,
                                int32_t path, int32_t threads) {
  const Passes& passes = passes_of(path);
  return call_tiles(n, threads, [&](size_t at, size_t count) {
    uint32_t words[kTile];
    passes.loops.words(*draw, uint32_t(at / 4), count, words);
    passes.loops.round_powers(values + at, count, words, codes + at);
  });
}
