// Taking an encoded step back: kernels/reference.py's take_back.
#include <new>

#include "environment.h"
#include "hgc.h"
#include "layout.h"
#include "source.h"
#include "step.h"

namespace hgc {
namespace {

void put_back(const Source& sent, int64_t n, const hgc_step& step) {
  sent.each(n, [&](int64_t slot, int64_t index, float value) {
    if (step.masking) step.velocity[index] = step.masked[slot];
    if (step.keep) step.residual[index] += value;
  });
}

}  // namespace
}  // namespace hgc

extern "C" int hgc_undo(const uint8_t* payload, int64_t bytes, int64_t n, hgc_step* step) {
  try {
    const hgc::Environment environment;
    hgc_format format;
    if (!hgc::Layout::read_header(payload, bytes, &format) || format.n != n) return HGC_DAMAGED;
    hgc::put_back(hgc::Source(hgc::Layout(format), payload, 1), n, *step);
    const size_t size = size_t(n);
    const hgc::Update update(*step, size);
    const auto ranges = hgc::cut(size, step->threads, hgc::kBlock);
    hgc::for_each(ranges.size(),
                  [&](size_t i) { update.take_back(ranges[i].begin, ranges[i].end, size, size); });
    return HGC_OK;
  } catch (const std::bad_alloc&) {
    return HGC_NO_MEMORY;
  }
}

extern "C" int hgc_read_format(const uint8_t* payload, int64_t bytes, hgc_format* format) {
  return hgc::Layout::read_header(payload, bytes, format) ? HGC_OK : HGC_DAMAGED;
}

extern "C" void hgc_encode_nothing(const hgc_format* format, uint8_t* payload) {
  const hgc::Layout layout(*format);
  std::fill_n(payload, layout.end, uint8_t(0));
  layout.write_header(payload);
}
