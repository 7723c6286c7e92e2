// Entries that are picked by a limit or by chance, and histograms that limits are found from.
#include <cstring>

#include "bits.h"
#include "passes.h"
#include "random.h"
#include "tiles.h"

namespace hgc {
namespace {

constexpr size_t kBins = 64;

// marks(at, count, bytes) gives a 0 or a 1 for each entry of a tile, which become bits.
template <class Marks>
int mark(int64_t n, uint64_t* marks, int64_t* counts, int threads, const Marks& of) {
  return call([&] {
    std::fill_n(counts, std::max(threads, 1), 0);
    const std::vector<Range> ranges = cut(size_t(n), threads, kTile);
    for_each(ranges.size(), [&](size_t part) {
      int64_t found = 0;
      each_tile(ranges[part], [&](size_t at, size_t count) {
        uint8_t bytes[kTile];
        of(at, count, bytes);
        std::memset(bytes + count, 0, (64 - count % 64) % 64);
        for (size_t i = 0; i < count; i += 64) {
          uint64_t bits = 0;
          for (size_t j = 0; j < 64; j += 8) {
            uint64_t eight;
            std::memcpy(&eight, bytes + i + j, 8);
            bits |= (eight * 0x0102040810204080u >> 56) << j;  // the low bits of eight bytes, side by side
          }
          marks[(at + i) / 64] = bits;
          found += __builtin_popcountll(bits);
        }
      });
      counts[part] = found;
    });
  });
}

// Four tables, so that one entry's count need not wait for that of the entry before.
void count(const uint8_t* bins, size_t n, int64_t* histogram) {
  uint32_t table[4][kBins] = {};
  size_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (size_t j = 0; j < 4; j++) table[j][bins[i + j]]++;
  for (; i < n; i++) table[0][bins[i]]++;
  for (size_t bin = 0; bin < kBins; bin++)
    histogram[bin] += table[0][bin] + table[1][bin] + table[2][bin] + table[3][bin];
}

}  // namespace
}  // namespace hgc

using namespace hgc;

extern "C" int hgc_mark_at_least(const float* values, int64_t n, const float* limits, int64_t block,
                                 uint64_t* marks, int64_t* counts, int32_t path, int32_t threads) {
  const Passes& passes = passes_of(path);
  return mark(n, marks, counts, threads, [&](size_t at, size_t count, uint8_t* bytes) {
    each_run(at, count, size_t(block), [&](size_t number, size_t begin, size_t length) {
      passes.loops.mark_at_least(values + begin, length, limits[number], bytes + (begin - at));
    });
  });
}

extern "C" int hgc_mark_lucky(const float* values, int64_t n, float factor, const hgc_draw* draw,
                              uint64_t* marks, int64_t* counts, int32_t path, int32_t threads) {
  const Passes& passes = passes_of(path);
  return mark(n, marks, counts, threads, [&](size_t at, size_t count, uint8_t* bytes) {
    uint32_t words[kTile];
    passes.loops.words(*draw, uint32_t(at / 4), count, words);
    passes.loops.mark_lucky(values + at, count, factor, words, bytes);
  });
}

extern "C" int hgc_positions(const uint64_t* marks, int64_t n, const int64_t* counts, int64_t* positions,
                             int32_t threads) {
  return call([&] {
    const std::vector<Range> ranges = cut(size_t(n), threads, kTile);
    for_each(ranges.size(), [&](size_t part) {
      int64_t* to = positions;
      for (size_t before = 0; before < part; before++) to += counts[before];
      for (size_t at = ranges[part].begin; at < ranges[part].end; at += 64)
        for (uint64_t bits = marks[at / 64]; bits; bits &= bits - 1)
          *to++ = int64_t(at) + __builtin_ctzll(bits);
    });
  });
}

extern "C" int hgc_log_histograms(const float* values, int64_t n, int64_t block, int32_t first,
                                  int64_t* histograms, int32_t path, int32_t threads) {
  const size_t size = size_t(n), length = size_t(block);
  const Passes& passes = passes_of(path);
  return call([&] {
    std::fill_n(histograms, (size + length - 1) / length * kBins, 0);
    const std::vector<Range> ranges = cut(size, threads, kTile);
    for_each(ranges.size(), [&](size_t part) {
      const Range range = ranges[part];
      each_run(range.begin, range.end - range.begin, length, [&](size_t number, size_t begin, size_t run) {
        int64_t histogram[kBins] = {};
        each_tile({begin, begin + run}, [&](size_t at, size_t tile) {
          uint8_t bins[kTile];
          passes.loops.bins(values + at, tile, first, bins);
          count(bins, tile, histogram);
        });
        int64_t* const to = histograms + number * kBins;
        const bool shared = run < std::min(length, size - number * length);  // with another thread
        for (size_t bin = 0; bin < kBins; bin++)
          if (shared)
            __atomic_fetch_add(to + bin, histogram[bin], __ATOMIC_RELAXED);
          else
            to[bin] = histogram[bin];
      });
    });
  });
}
