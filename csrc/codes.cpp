// Dense bit fields: a code of 1 to 8 bits for every entry, and a scale for every bucket of entries.
#include <algorithm>
#include <cstring>
#include <new>
#include <system_error>

#include "hgc.h"
#include "parallel.h"
#include "passes.h"
#include "step.h"

namespace hgc {
namespace {

// Eight codes stand in eight bytes of a word; squeezed, they are its 8 * bits low bits. Three rounds move neighbours
// together: bytes to pairs, pairs to fours, fours to eights.
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

// Eight codes at `at`, of which `count` are there, from or to the bytes they take.
void pack_eight(const uint8_t *codes, size_t at, size_t count, int bits, uint8_t *packed) {
  uint64_t word = 0;
  std::memcpy(&word, codes + at, count);
  word = squeeze(word, bits);
  std::memcpy(packed + at / 8 * size_t(bits), &word, (count * size_t(bits) + 7) / 8);
}

void unpack_eight(const uint8_t *packed, size_t at, size_t count, int bits, uint8_t *codes) {
  uint64_t word = 0;
  std::memcpy(&word, packed + at / 8 * size_t(bits), (count * size_t(bits) + 7) / 8);
  word = spread(word & (bits == 8 ? ~uint64_t(0) : (uint64_t(1) << 8 * bits) - 1), bits);
  std::memcpy(codes, &word, 8);
}

void add(const uint8_t *packed, Range range, int bits, const float *levels, const float *scales, size_t bucket,
         float *out, const Passes &passes) {
  uint8_t codes[kBlock];
  for (size_t at = range.begin; at < range.end; at += kBlock) {
    const size_t end = std::min(range.end, at + kBlock);
    for (size_t i = at; i < end; i += 8) unpack_eight(packed, i, std::min<size_t>(8, end - i), bits, codes + (i - at));
    for (size_t i = at; i < end;) {
      const size_t stop = std::min(end, (i / bucket + 1) * bucket);
      passes.add_levels(codes + (i - at), levels, scales[i / bucket], out + i, stop - i);
      i = stop;
    }
  }
}

template <class Work>
int in_ranges(int64_t n, int threads, const Work &work) {
  try {
    const std::vector<Range> ranges = cut(size_t(n), threads, kBlock);
    for_each(ranges.size(), [&](size_t part) { work(ranges[part]); });
    return HGC_OK;
  } catch (const std::bad_alloc &) {
    return HGC_NO_MEMORY;
  } catch (const std::system_error &) {  // no thread
    return HGC_NO_MEMORY;
  }
}

}  // namespace
}  // namespace hgc

extern "C" int hgc_pack_codes(const uint8_t *codes, int64_t n, int32_t bits, uint8_t *packed, int32_t threads) {
  return hgc::in_ranges(n, threads, [&](hgc::Range range) {
    size_t at = range.begin;
    for (; at + 8 <= range.end; at += 8) hgc::pack_eight(codes, at, 8, bits, packed);
    if (at < range.end) hgc::pack_eight(codes, at, range.end - at, bits, packed);
  });
}

extern "C" int hgc_add_codes(const uint8_t *packed, int64_t n, int32_t bits, const float *levels, const float *scales,
                             int64_t bucket, float *out, int32_t path, int32_t threads) {
  return hgc::in_ranges(n, threads, [&](hgc::Range range) {
    hgc::add(packed, range, bits, levels, scales, size_t(bucket), out, hgc::passes_of(path));
  });
}
