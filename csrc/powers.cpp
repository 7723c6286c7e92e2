// Powers of two in codes of 9 bits, and outer products.
#include <cstring>

#include "bits.h"
#include "passes.h"
#include "tiles.h"

namespace hgc {
namespace {

constexpr size_t kBits = 9;
constexpr uint32_t kCode = (1 << kBits) - 1;

// Eight codes take nine bytes: seven whole ones and a bit of the last stand in the first eight.
void pack(const uint16_t* codes, size_t count, uint8_t* packed) {
  for (size_t i = 0; i < count; i += 8, packed += kBits) {
    const size_t some = std::min<size_t>(8, count - i);
    uint16_t eight[8] = {};
    std::memcpy(eight, codes + i, some * sizeof *eight);
    uint64_t word = 0;
    for (size_t j = 0; j < 8; j++) word |= uint64_t(eight[j] & kCode) << kBits * j;
    const uint8_t last = uint8_t((eight[7] & kCode) >> 1);
    const size_t bytes = (some * kBits + 7) / 8;
    std::memcpy(packed, &word, std::min<size_t>(bytes, 8));
    if (bytes > 8) packed[8] = last;
  }
}

void unpack(const uint8_t* packed, size_t count, uint32_t* codes) {
  for (size_t i = 0; i < count; i += 8, packed += kBits) {
    const size_t some = std::min<size_t>(8, count - i), bytes = (some * kBits + 7) / 8;
    uint64_t word = 0;
    std::memcpy(&word, packed, std::min<size_t>(bytes, 8));
    const uint32_t last = bytes > 8 ? packed[8] : 0;
    for (size_t j = 0; j < 7; j++) codes[i + j] = uint32_t(word >> kBits * j) & kCode;
    codes[i + 7] = uint32_t(word >> 63) | (last << 1 & kCode);
  }
}

}  // namespace
}  // namespace hgc

using namespace hgc;

extern "C" int hgc_pack_powers(const uint16_t* codes, int64_t n, uint8_t* packed, int32_t threads) {
  return call_tiles(n, threads,
                    [&](size_t at, size_t count) { pack(codes + at, count, packed + at / 8 * kBits); });
}

extern "C" int hgc_add_powers(const uint8_t* packed, int64_t n, float factor, float* out, int32_t path,
                              int32_t threads) {
  const Passes& passes = passes_of(path);
  return call_tiles(n, threads, [&](size_t at, size_t count) {
    uint32_t codes[kTile];
    unpack(packed + at / 8 * kBits, count, codes);
    passes.loops.add_powers(codes, count, factor, out + at);
  });
}

extern "C" int hgc_add_outer(const float* left, const float* right, int64_t atoms, int64_t rows,
                             int64_t columns, float factor, float* out, int32_t path, int32_t threads) {
  const Passes& passes = passes_of(path);
  const size_t width = size_t(columns);
  return call([&] {
    const std::vector<Range> ranges = cut(size_t(rows), threads, 1);
    for_each(ranges.size(), [&](size_t part) {
      for (size_t i = ranges[part].begin; i < ranges[part].end; i++)
        each_tile({0, width}, [&](size_t at, size_t count) {
          float* const to = out + i * width + at;
          for (size_t a = 0; a < size_t(atoms); a++)
            passes.multiply_add(to, factor * left[a * size_t(rows) + i], right + a * width + at, to, count);
        });
    });
  });
}
