// A step without a choice of entries: what hgc_encode adds to the residual, checks and takes back, alone.
#include <new>

#include "environment.h"
#include "hgc.h"
#include "step.h"

namespace hgc {
namespace {

// How far the step has got, in the residual and in the velocity alike.
struct Done {
  size_t begin, end, moved;
};

void accumulate(const hgc_step& step, const Update& update, float* total, Done* part) {
  float scratch[kBlock], spare[kBlock], next[kBlock], kept[kBlock];
  for (size_t at = part->begin; at < part->end; at += kBlock) {
    const size_t count = std::min(kBlock, part->end - at);
    const float* x = update.accumulated(update.gradient(at, count, scratch), at, count, spare, next);
    if (step.keep) {
      for (size_t i = 0; i < count; i++) kept[i] = step.residual[at + i] + x[i];
      x = kept;
    }
    if (update.passes().max_magnitude(x, count) >= 0x7f800000u) return;
    std::copy_n(x, count, (step.keep ? step.residual : total) + at);
    update.store_velocity(at, count, next);
    part->moved = at + count;
  }
}

int run(hgc_step& step, size_t n, float* total) {
  Update update(step, n);
  if (step.guard && update.dwarfs()) return HGC_DWARFED;
  if (!update.clip()) return HGC_NON_FINITE;
  std::vector<Done> parts;
  for (const Range& range : cut(n, step.threads, kBlock))
    parts.push_back({range.begin, range.end, range.begin});
  for_each(parts.size(), [&](size_t i) { accumulate(step, update, total, &parts[i]); });
  if (std::all_of(parts.begin(), parts.end(), [](const Done& part) { return part.moved == part.end; }))
    return HGC_OK;
  for_each(parts.size(),
           [&](size_t i) { update.take_back(parts[i].begin, parts[i].end, parts[i].moved, parts[i].moved); });
  return HGC_NON_FINITE;
}

}  // namespace
}  // namespace hgc

extern "C" int hgc_accumulate(hgc_step* step, int64_t n, float* total) {
  try {
    const hgc::Environment environment;
    return hgc::run(*step, size_t(n), total);
  } catch (const std::bad_alloc&) {
    return HGC_NO_MEMORY;
  }
}
