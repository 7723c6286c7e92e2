// Dense bit fields: a code of 1 to 8 bits for every entry, and a scale for every bucket of entries.
#include <algorithm>
#include <cstring>
#include <new>

#include "environment.h"
#include "hgc.h"
#include "parallel.h"
#include "passes.h"

namespace hgc {
namespace {

constexpr size_t kBlock = 2048;  // entries that are unpacked at once

// Eight codes stand in eight bytes of a word; squeezed, they are its 8 * bits low bits. Three rounds move
// neighbours together: bytes to pairs, pairs to fours, fours to eights.
inline uint64_t squeeze(uint64_t word, int bits) {
  const int gap = 8 - bits;
  word = (word & 0x00ff00ff00ff00ffu) | (word & 0xff00ff00ff00ff00u) >> gap;
  word = (word & 0x0000ffff0000ffffu) | (word & 0xffff0000ffff0000u) >> 2 * gap;
  return (word & 0x00000000ffffffffu) | (word & 0xffffffff00000000u) >> 4 * gap;
}

inline uint64_t spread(uint64_t word, int bits) {
  const int gap = 8 - bits;
  const uint64_t four = (uint64_t(1) << 4 * bits) - 1, two = (uint64_t(1) << 2 * bits) - 1;
  word = (word & four) | (word & ~four) << 4 * gap;
  const uint64_t pairs = two | two << 32;
  word = (word & pairs) | (word & ~pairs) << 2 * gap;
  const uint64_t ones = (uint64_t(1) << bits) - 1, singles = ones | ones << 16 | ones << 32 | ones << 48;
  return (word & singles) | (word & ~singles) << gap;
}

// Eight codes take `bits` bytes. A whole word is written and read where the range has that many left.
void pack(const uint8_t* codes, Range range, int bits, uint8_t* packed) {
  const uint64_t low_bits = 0x0101010101010101u * ((uint64_t(1) << bits) - 1);  // of each byte
  const size_t size =
      (range.end * size_t(bits) + 7) / 8;  // where the range's bytes end: it begins at a multiple of 8
  for (size_t i = range.begin; i < range.end; i += 8) {
    const size_t at = i / 8 * size_t(bits);
    uint64_t word = 0;
    if (range.end - i >= 8)
      std::memcpy(&word, codes + i, 8);
    else
      std::memcpy(&word, codes + i, range.end - i);
    word = squeeze(word & low_bits, bits);
    if (size - at >= 8)
      std::memcpy(packed + at, &word, 8);
    else
      std::memcpy(packed + at, &word, std::min(size - at, size_t(bits)));
  }
}

void unpack(const uint8_t* packed, size_t begin, size_t end, size_t n, int bits, uint8_t* codes) {
  const size_t size = (n * size_t(bits) + 7) / 8;
  const uint64_t mask = ~uint64_t(0) >> (64 - 8 * bits);
  for (size_t i = begin; i < end; i += 8) {
    const size_t at = i / 8 * size_t(bits);
    uint64_t word = 0;
    if (size - at >= 8)
      std::memcpy(&word, packed + at, 8);
    else
      std::memcpy(&word, packed + at, size - at);
    word = spread(word & mask, bits);
    std::memcpy(codes + (i - begin), &word, 8);
  }
}

void add(const uint8_t* packed, Range range, size_t n, int bits, const float* levels, const float* scales,
         size_t bucket, float* out, const Passes& passes) {
  uint8_t codes[kBlock];
  for (size_t at = range.begin; at < range.end; at += kBlock) {
    const size_t end = std::min(range.end, at + kBlock);
    unpack(packed, at, end, n, bits, codes);
    for (size_t i = at; i < end;) {
      const size_t stop = std::min(end, (i / bucket + 1) * bucket);
      passes.add_levels(codes + (i - at), bits, levels, scales[i / bucket], out + i, stop - i);
      i = stop;
    }
  }
}

template <class Work>
int in_ranges(int64_t n, int threads, const Work& work) {
  try {
    const std::vector<Range> ranges = cut(size_t(n), threads, kBlock);
    for_each(ranges.size(), [&](size_t part) { work(ranges[part]); });
    return HGC_OK;
  } catch (const std::bad_alloc&) {
    return HGC_NO_MEMORY;
  }
}

}  // namespace
}  // namespace hgc

extern "C" int hgc_pack_codes(const uint8_t* codes, int64_t n, int32_t bits, uint8_t* packed,
                              int32_t threads) {
  return hgc::in_ranges(n, threads, [&](hgc::Range range) { hgc::pack(codes, range, bits, packed); });
}

extern "C" int hgc_add_codes(const uint8_t* packed, int64_t n, int32_t bits, const float* levels,
                             const float* scales, int64_t bucket, float* out, int32_t path, int32_t threads) {
  const hgc::Environment environment;
  return hgc::in_ranges(n, threads, [&](hgc::Range range) {
    hgc::add(packed, range, size_t(n), bits, levels, scales, size_t(bucket), out, hgc::passes_of(path));
  });
}
