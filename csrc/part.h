// A part of a tensor that one thread works on, and its candidates.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "passes.h"

namespace hgc {

// Room for candidates. It stays with the calling thread from call to call: fresh memory would cost more in
// page faults than all that is done in it.
struct Store {
  std::unique_ptr<uint32_t[]> index;
  std::unique_ptr<float[]> value;
  size_t capacity = 0;
};

inline std::vector<Store>& stores() {
  thread_local std::vector<Store> of_thread;
  return of_thread;
}

inline Store* take_stores(size_t count) {
  if (stores().size() < count) stores().resize(count);
  return stores().data();
}

// Keep no more than what large tensors need at usual densities.
inline void give_back_stores() {
  constexpr size_t kKept = 1 << 22;  // candidates
  for (Store& store : stores())
    if (store.capacity > kKept) store = {};
}

// One thread's part of the tensor, and how far the step has got in it: see Update::take_back.
struct Part {
  size_t begin, end, added, moved;
  Store* store;
  Candidates found{};

  bool finite() const { return moved == end; }

  void hold(size_t capacity) {
    if (capacity > store->capacity) {
      std::unique_ptr<uint32_t[]> index(new uint32_t[capacity]);
      std::unique_ptr<float[]> value(new float[capacity]);
      std::copy_n(found.index, found.count, index.get());
      std::copy_n(found.value, found.count, value.get());
      *store = {std::move(index), std::move(value), capacity};
    }
    found = {store->index.get(), store->value.get(), found.count, capacity};
  }
};

}  // namespace hgc
