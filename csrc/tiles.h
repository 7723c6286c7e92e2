// A tensor in tiles that stay in the first-level cache, for all the calls that only loop over its entries.
#pragma once

#include <new>

#include "environment.h"
#include "hgc.h"
#include "parallel.h"

namespace hgc {

constexpr size_t kTile = 2048;  // entries

// work(at, count) for each tile of the range.
template <class Work>
void each_tile(Range range, const Work& work) {
  for (size_t at = range.begin; at < range.end; at += kTile) work(at, std::min(kTile, range.end - at));
}

// work(bucket, begin, count) for each run of [at, at + count) that lies in one bucket.
template <class Work>
void each_run(size_t at, size_t count, size_t bucket, const Work& work) {
  for (size_t i = at, end = at + count; i < end;) {
    const size_t number = i / bucket, stop = std::min(end, (number + 1) * bucket);
    work(number, i, stop - i);
    i = stop;
  }
}

// The join of what map(range) gives for the parts of n entries, which begin at multiples of `kTile`.
template <class Value, class Map, class Join>
Value reduce(size_t n, int threads, const Map& map, const Join& join) {
  if (threads <= 1) return map(Range{0, n});  // buckets are many: spare them the vectors
  const std::vector<Range> ranges = cut(n, threads, kTile);
  std::vector<Value> values(ranges.size());
  for_each(ranges.size(), [&](size_t part) { values[part] = map(ranges[part]); });
  Value all = values[0];
  for (size_t part = 1; part < values.size(); part++) all = join(all, values[part]);
  return all;
}

// The status of a call whose body is `work`.
template <class Work>
int call(const Work& work) {
  try {
    const Environment environment;
    work();
    return HGC_OK;
  } catch (const std::bad_alloc&) {
    return HGC_NO_MEMORY;
  }
}

// A call that does work(at, count) for all tiles of n entries, on threads.
template <class Work>
int call_tiles(int64_t n, int threads, const Work& work) {
  return call([&] {
    const std::vector<Range> ranges = cut(size_t(n), threads, kTile);
    for_each(ranges.size(), [&](size_t part) { each_tile(ranges[part], work); });
  });
}

}  // namespace hgc
