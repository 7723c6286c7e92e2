// Encoding: add the gradient to the residual and collect its largest entries in one pass, then quantize and
// pack.
#include <cmath>
#include <limits>
#include <new>

#include "bits.h"
#include "environment.h"
#include "hgc.h"
#include "layout.h"
#include "parallel.h"
#include "part.h"
#include "passes.h"
#include "quantize.h"
#include "select.h"
#include "step.h"
#include "threshold.h"

namespace hgc {
namespace {

constexpr size_t kChunk = 32;  // entries that are quantized at once

// One step of one tensor.
class Encoder {
 public:
  Encoder(const Layout& layout, hgc_step& step)
      : layout_(layout),
        step_(step),
        update_(step, size_t(layout.n)),
        n_(size_t(layout.n)),
        k_(size_t(layout.k)) {
    const std::vector<Range> ranges = cut(n_, step.threads, kBlock);
    Store* store = take_stores(ranges.size());
    for (const Range& range : ranges)
      parts_.push_back({range.begin, range.end, range.begin, range.begin, store++});
  }

  ~Encoder() { give_back_stores(); }

  int run(uint8_t* payload) {
    step_.scans = 1;
    if (step_.guard && update_.dwarfs()) return HGC_DWARFED;
    if (!update_.clip()) return HGC_NON_FINITE;
    layout_.write_header(payload);
    try {
      float threshold = 0;
      if (layout_.all)
        in_parts([&](Part& part) { send_all(part, payload); });
      else
        threshold = update();
      if (!finite()) {
        in_parts([&](Part& part) { take_back(part); });
        return HGC_NON_FINITE;
      }
      if (!layout_.all) choose(threshold);
    } catch (const std::bad_alloc&) {  // nothing was taken out of the residual yet
      for (const Part& part : parts_) take_back(part);
      throw;
    }
    if (layout_.all)
      finish_all(payload);
    else
      pack(payload);
    return HGC_OK;
  }

 private:
  template <class Work>
  void in_parts(const Work& work) {
    for_each(parts_.size(), [&](size_t i) { work(parts_[i]); });
  }

  void take_back(const Part& part) const { update_.take_back(part.begin, part.end, part.added, part.moved); }

  // Add the step to the residual, and collect at least k candidates, or all nonzero entries where those are
  // fewer. No candidate is below what is returned.
  float update() {
    for (Part& part : parts_)
      part.hold(std::min(2 * (k_ / parts_.size()) + 1024, part.end - part.begin + kWidth));
    Threshold guess(step_, update_, n_, k_);
    float threshold = guess.first();
    in_parts([&](Part& part) { update(part, threshold); });
    while (finite() && threshold > kLeast &&
           collected() < k_) {  // the guess was too high: look again, for more
      step_.scans++;
      threshold = guess.lower();
      in_parts([&](Part& part) { rescan(part, threshold); });
    }
    return threshold;
  }

  void update(Part& part, float threshold) {
    float scratch[kBlock], spare[kBlock], next[kBlock];
    for (size_t at = part.begin; at < part.end; at += kBlock) {
      const size_t count = std::min(kBlock, part.end - at);
      const float* x = update_.accumulated(update_.gradient(at, count, scratch), at, count, spare, next);
      float nothing[kBlock];  // in place of the residual where none is kept
      if (!step_.keep) std::fill_n(nothing, count, 0.0f);
      const size_t done = collect(part, step_.keep ? step_.residual + at : nothing, x, at, count, threshold);
      if (done < count) return;
      update_.store_velocity(at, count, next);
      part.moved = at + count;
    }
  }

  void rescan(Part& part, float threshold) {
    part.found.count = 0;
    collect(part, step_.residual + part.begin, nullptr, part.begin, part.end - part.begin, threshold);
  }

  // Returns how many entries were done: fewer than `count` where the next sums are not finite.
  // The threshold rises where more than k candidates are found.
  size_t collect(Part& part, float* residual, const float* x, size_t at, size_t count, float& threshold) {
    for (size_t done = 0;;) {
      done += update_.passes().collect(residual + done, x ? x + done : nullptr, count - done, threshold,
                                       uint32_t(at + done), &part.found);
      if (x) part.added = at + done;
      if (done == count || part.found.count + kWidth <= part.found.capacity) return done;
      if (part.found.count < k_ + kWidth)  // the buffer is full
        part.hold(std::min(2 * part.found.capacity, 2 * k_ + 1024));
      else  // and what is below its k largest is out of the race
        threshold =
            bits_float(keep_largest(update_.passes(), &part.found, 1, k_, float_bits(threshold)).least);
    }
  }

  bool finite() const {
    return std::all_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.finite(); });
  }

  size_t collected() const {
    size_t count = 0;
    for (const Part& part : parts_) count += part.found.count;
    return count;
  }

  void choose(float threshold) {
    for (const Part& part : parts_) lists_.push_back(part.found);
    reach_ = keep_largest(update_.passes(), lists_.data(), lists_.size(), k_, float_bits(threshold));
  }

  void pack(uint8_t* payload) {
    Quantizer quantizer(layout_.value_kind, layout_.bits);
    quantizer.fit(lists_.data(), lists_.size(), reach_);
    step_.hint = bits_float(reach_.least);
    std::memcpy(payload + layout_.at_scales, quantizer.scales(), 4 * size_t(layout_.scale_count));

    BitSetter high(payload + layout_.at_high, payload + layout_.at_fields);
    FieldWriter fields(payload + layout_.at_fields, payload + layout_.end);
    size_t slot = 0;
    for (const Candidates& list : lists_)
      for (size_t at = 0; at < list.count;) {
        const size_t count = std::min(kChunk, list.count - at);
        const uint32_t* index = list.index + at;
        uint32_t codes[kChunk];
        if (step_.keep)  // on its way into the cache while what comes before is quantized and packed
          for (size_t i = at + kChunk; i < std::min(at + 2 * kChunk, list.count); i++)
            __builtin_prefetch(step_.residual + list.index[i], 1);
        quantizer.encode(update_.passes(), list.value + at, count, codes);
        high = put_high(index, count, slot, high);
        fields = put_fields(index, codes, count, fields);
        if (step_.keep) quantizer.subtract(list.value + at, codes, index, count, step_.residual);
        if (step_.masking)
          for (size_t i = 0; i < count; i++) mask(index[i], slot + i);
        at += count;
        slot += count;
      }
    high.finish();
    fields.finish();
    step_.sent = int64_t(slot);
  }

  // The writers are passed by value so that they live in registers.
  BitSetter put_high(const uint32_t* index, size_t count, size_t slot, BitSetter to) const {
    const int low_bits = layout_.low_bits;
    for (size_t i = 0; i < count; i++) to.set((index[i] >> low_bits) + slot + i);
    return to;
  }

  FieldWriter put_fields(const uint32_t* index, const uint32_t* codes, size_t count, FieldWriter to) const {
    const int low_bits = layout_.low_bits, bits = layout_.bits, width = layout_.width();
    const uint32_t low_mask = (uint32_t(1) << low_bits) - 1;
    if (width <= FieldWriter::kMaxWidth) {
      for (size_t i = 0; i < count; i++)
        to.put(uint64_t(codes[i]) << low_bits | (index[i] & low_mask), width);
    } else {
      for (size_t i = 0; i < count; i++) {
        to.put(index[i] & low_mask, low_bits);
        to.put(codes[i], bits);
      }
    }
    return to;
  }

  void mask(size_t at, size_t slot) {
    step_.masked[slot] = step_.velocity[at];
    step_.velocity[at] = 0;
  }

  // Every entry is sent, in order and without positions, in codes of whole bytes.
  void send_all(Part& part, uint8_t* payload) {
    const Quantizer quantizer(layout_.value_kind, layout_.bits);
    const size_t bytes = size_t(layout_.bits) / 8;
    float scratch[kBlock], spare[kBlock], next[kBlock], total[kBlock];
    uint32_t codes[kBlock];
    for (size_t at = part.begin; at < part.end; at += kBlock) {
      const size_t count = std::min(kBlock, part.end - at);
      const float* x = update_.accumulated(update_.gradient(at, count, scratch), at, count, spare, next);
      for (size_t i = 0; i < count; i++) total[i] = step_.keep ? step_.residual[at + i] + x[i] : x[i];
      if (update_.passes().max_magnitude(total, count) >= 0x7f800000u) return;
      quantizer.encode(update_.passes(), total, count, codes);
      for (size_t i = 0; i < count; i++)
        std::memcpy(payload + layout_.at_fields + (at + i) * bytes, &codes[i], bytes);
      if (step_.keep) std::copy_n(total, count, step_.residual + at);
      update_.store_velocity(at, count, next);
      part.added = part.moved = at + count;
    }
  }

  // What must wait until all parts are known to be finite: the residual keeps what the codes lose.
  void finish_all(uint8_t* payload) {
    const size_t bytes = size_t(layout_.bits) / 8;
    const Quantizer quantizer(layout_.value_kind, layout_.bits);
    in_parts([&](const Part& part) {
      for (size_t i = part.begin; i < part.end; i++) {
        uint32_t code = 0;
        std::memcpy(&code, payload + layout_.at_fields + i * bytes, bytes);
        if (step_.keep) step_.residual[i] -= quantizer.decode(code);
        if (step_.masking) mask(i, i);
      }
    });
    step_.sent = layout_.n;
    const int64_t used = layout_.at_fields + layout_.n * int64_t(bytes);
    std::memset(payload + used, 0, size_t(layout_.end - used));
  }

  const Layout layout_;
  hgc_step& step_;
  Update update_;
  const size_t n_, k_;
  std::vector<Part> parts_;
  std::vector<Candidates> lists_;  // what is sent, part by part
  Extremes reach_{};
};

}  // namespace
}  // namespace hgc

extern "C" int64_t hgc_payload_bytes(const hgc_format* format) { return hgc::Layout(*format).end; }

extern "C" int hgc_encode(const hgc_format* format, hgc_step* step, uint8_t* payload) {
  try {
    const hgc::Environment environment;
    return hgc::Encoder(hgc::Layout(*format), *step).run(payload);
  } catch (const std::bad_alloc&) {
    return HGC_NO_MEMORY;
  }
}
