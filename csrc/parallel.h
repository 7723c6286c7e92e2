// One thread for each part; the caller's own takes the first.
#pragma once

#include <algorithm>
#include <cstddef>
#include <exception>
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

// work(i) for each i below `count`, at least 1, each on a thread of its own, or on the caller's where none
// can be had. The first exception of any of them is thrown again here.
template <class Work>
void for_each(size_t count, const Work& work) {
  if (count == 1) return work(0);
  std::vector<std::exception_ptr> errors(count);
  const auto guarded = [&](size_t i) {
    try {
      work(i);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(count);
  for (size_t i = 1; i < count; i++) {
    try {
      threads.emplace_back(guarded, i);
    } catch (const std::exception&) {
      guarded(i);
    }
  }
  guarded(0);
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace hgc
