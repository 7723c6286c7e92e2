// Decoding: check every payload, then add their values up a cache-sized block at a time.
#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "bits.h"
#include "environment.h"
#include "hgc.h"
#include "layout.h"
#include "parallel.h"
#include "passes.h"
#include "source.h"

namespace hgc {
namespace {

constexpr int64_t kBlock = 1 << 12;  // entries of the output that are finished at once
constexpr int64_t kLarge = 1 << 21;  // an output of more entries is not expected to stay in the caches

// Write a block's sum to its place in the output, and clear the block.
void finish(const Passes& passes, float* block, void* out, int dtype, int64_t begin, int64_t count,
            bool large) {
  if (dtype == HGC_FLOAT32)
    return passes.flush(block, static_cast<float*>(out) + begin, size_t(count), large);
  uint16_t* half = static_cast<uint16_t*>(out) + begin;
  (dtype == HGC_FLOAT16 ? passes.narrow_half : passes.narrow_bfloat)(block, half, size_t(count));
  std::memset(block, 0, size_t(count) * sizeof(float));
}

int decode_sum(const uint8_t* at, int64_t bytes, int64_t count, int64_t n, float factor, void* out, int dtype,
               const Passes& passes, int threads) {
  std::vector<Source> sources;
  sources.reserve(size_t(std::clamp<int64_t>(count, 0, bytes / 16)));  // no more than their headers fit
  for (const uint8_t* const end = at + bytes; at < end;) {
    hgc_format format;
    if (!Layout::read_header(at, end - at, &format) || format.n != n) return HGC_DAMAGED;
    const Layout layout(format);
    sources.emplace_back(layout, at, factor);
    at += layout.end;
  }
  if (sources.size() != size_t(count)) return HGC_DAMAGED;
  const std::vector<Range> ranges = cut(size_t(n), threads, size_t(kBlock));
  std::vector<std::vector<Cursor>> cursors(sources.size());  // of each source, one for each range
  std::vector<char> good(sources.size());
  for_each(ranges.size(), [&](size_t thread) {
    for (size_t i = thread; i < sources.size(); i += ranges.size())
      good[i] = sources[i].check(ranges, &cursors[i]);
  });
  if (std::count(good.begin(), good.end(), 0)) return HGC_DAMAGED;
  for_each(ranges.size(), [&](size_t part) {
    alignas(64) float block[kBlock];
    const int64_t last = int64_t(ranges[part].end);
    std::memset(block, 0, size_t(std::min(kBlock, last)) * sizeof(float));
    for (int64_t begin = int64_t(ranges[part].begin); begin < last; begin += kBlock) {
      const int64_t end = std::min(last, begin + kBlock);
      for (size_t i = 0; i < sources.size(); i++)
        cursors[i][part] = sources[i].add(end, cursors[i][part], block, begin);
      finish(passes, block, out, dtype, begin, end - begin, n > kLarge);
    }
    passes.fence();
  });
  return HGC_OK;
}

}  // namespace
}  // namespace hgc

extern "C" int hgc_decode_sum(const uint8_t* payloads, int64_t bytes, int64_t count, int64_t n, float factor,
                              void* out, int32_t out_dtype, int32_t path, int32_t threads) {
  try {
    const hgc::Environment environment;
    return hgc::decode_sum(payloads, bytes, count, n, factor, out, out_dtype, hgc::passes_of(path), threads);
  } catch (const std::bad_alloc&) {
    return HGC_NO_MEMORY;
  }
}
