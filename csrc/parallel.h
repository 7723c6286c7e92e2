// One thread for each part; the caller's own takes the first.
#pragma once

#include <algorithm>
#include <cstddef>
#include <thread>
#include <vector>

namespace hgc {

struct Range {
  size_t begin, end;
};

// n entries cut into at most `threads` ranges that begin at multiples of `grain`; at least one, maybe empty.
inline std::vector<Range> cut(size_t n, int threads, size_t grain) {
  const size_t count = size_t(std::max(1, threads));
  const size_t share = std::max<size_t>(1, (n + count * grain - 1) / (count * grain)) * grain;
  std::vector<Range> ranges;
  for (size_t begin = 0; begin < n || ranges.empty(); begin += share)
    ranges.push_back({begin, std::min(n, begin + share)});
  return ranges;
}

// work(i) for each i below `count`, each on a thread of its own.
template <class Work>
void for_each(size_t count, const Work &work) {
  struct Joined {
    std::vector<std::thread> threads;
    ~Joined() {
      for (std::thread &thread : threads) thread.join();
    }
  } joined;
  for (size_t i = 1; i < count; i++) joined.threads.emplace_back([&work, i] { work(i); });
  if (count) work(0);
}

}  // namespace hgc
