// One payload on its way back into values.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "bits.h"
#include "layout.h"
#include "parallel.h"
#include "quantize.h"

namespace hgc {

// Where the reading of a payload stands.
struct Cursor {
  int64_t slot = 0;   // of the next entry
  int64_t word = 0;   // of the high-bit vector, in units of 64 bits
  uint64_t bits = 0;  // those of that word that are still to come
};

// One payload, whose entries are read in ascending order of their positions.
class Source {
 public:
  Source(const Layout& layout, const uint8_t* payload, float factor)
      : layout_(layout), payload_(payload), quantizer_(layout.value_kind, layout.bits) {
    std::memcpy(scales_, payload + layout.at_scales, 4 * size_t(layout.scale_count));
    quantizer_.use(scales_);
    quantizer_.multiply(factor);
  }

  // Whether an encoder could have written the payload. `cursors` are where each range's first entry is read.
  bool check(const std::vector<Range>& ranges, std::vector<Cursor>* cursors) const {
    Cursor cursor{0, 0, high_word(0)};
    int64_t last = -1;
    bool good = true;
    for (const Range& range : ranges) {
      cursors->push_back(cursor);
      cursor = read(int64_t(range.end), cursor, [&](int64_t index, uint32_t code) {
        good &= index > last;
        good &= quantizer_.table() || quantizer_.finite(code);
        last = index;
      });
    }
    // What is left must be zero: further high bits, unused fields, and what fills the sections up.
    bool more = cursor.bits != 0;
    for (int64_t word = cursor.word + 1; word * 64 < layout_.high_bits; word++) more |= high_word(word) != 0;
    return good && !more && plausible(cursor.slot) &&
           zero(layout_.at_high, layout_.high_bits, layout_.at_fields) &&
           zero(layout_.at_fields, cursor.slot * layout_.width(), layout_.end);
  }

  // work(slot, index, value) for each of n entries that is there.
  template <class Work>
  void each(int64_t n, const Work& work) const {
    int64_t slot = 0;
    read(n, {0, 0, high_word(0)},
         [&](int64_t index, uint32_t code) { work(slot++, index, quantizer_.decode(code)); });
  }

  // Add all entries from the cursor to below `end` to `out`, whose first entry is number `begin`.
  Cursor add(int64_t end, Cursor cursor, float* out, int64_t begin) const {
    if (const float* table = quantizer_.table())  // for the usual kinds without a branch on the kind
      return read(end, cursor, [=](int64_t index, uint32_t code) { out[index - begin] += table[code]; });
    return read(end, cursor,
                [&](int64_t index, uint32_t code) { out[index - begin] += quantizer_.decode(code); });
  }

 private:
  template <class Work>
  Cursor read(int64_t end, Cursor cursor, const Work& work) const {
    return layout_.all ? read_all(end, cursor, work) : read_positions(end, cursor, work);
  }

  template <class Work>
  Cursor read_all(int64_t end, Cursor cursor, const Work& work) const {
    for (; cursor.slot < end; cursor.slot++) work(cursor.slot, uint32_t(field(cursor.slot)));
    return cursor;
  }

  template <class Work>
  Cursor read_positions(int64_t end, Cursor cursor, const Work& work) const {
    const int64_t inside = slots_inside();
    if (cursor.slot < inside) cursor = read_slots<true>(end, inside, cursor, work);
    return cursor.slot < inside ? cursor : read_slots<false>(end, layout_.k, cursor, work);
  }

  // Stops at the first entry that is not below `end`, at `last_slot`, and behind the last bit.
  template <bool kInside, class Work>
  Cursor read_slots(int64_t end, int64_t last_slot, Cursor cursor, const Work& work) const {
    const int low_bits = layout_.low_bits, width = layout_.width();
    const uint64_t low_mask = (uint64_t(1) << low_bits) - 1, code_mask = (uint64_t(1) << layout_.bits) - 1;
    const int64_t words = (layout_.high_bits + 63) / 64;
    const uint8_t* const fields = payload_ + layout_.at_fields;
    int64_t slot = cursor.slot, word = cursor.word, offset = word * 64 - slot;
    uint64_t bits = cursor.bits, at = uint64_t(slot) * uint64_t(width);
    for (; slot < last_slot; slot++, offset--, at += uint64_t(width), bits &= bits - 1) {
      if (!bits) {
        while (!bits && word + 1 < words) bits = high_word(++word);
        if (!bits) break;
        offset = word * 64 - slot;
      }
      uint64_t value;
      if (kInside) {
        std::memcpy(&value, fields + (at >> 3), 8);
        value >>= at & 7;
      } else {
        value = field(slot);
      }
      const int64_t index = (offset + __builtin_ctzll(bits)) << low_bits | int64_t(value & low_mask);
      if (index >= end) break;
      work(index, uint32_t(value >> low_bits & code_mask));
    }
    return {slot, word, bits};
  }

  // How many slots' fields lie in the 8 bytes that begin with their first byte, and those in the payload.
  int64_t slots_inside() const {
    const int64_t width = layout_.width(), bytes = layout_.end - layout_.at_fields;
    return width <= 57 && bytes >= 8 ? (bytes - 8) * 8 / width : 0;
  }

  uint64_t field(int64_t slot) const {
    const int width = layout_.width();
    return get_field(payload_ + layout_.at_fields, size_t(layout_.end - layout_.at_fields),
                     uint64_t(slot) * uint64_t(width), width);
  }

  // 64 bits of the high-bit vector; zeros behind its section.
  uint64_t high_word(int64_t word) const {
    const int64_t at = layout_.at_high + 8 * word, left = layout_.at_fields - at;
    uint64_t bits = 0;
    if (left >= 8)
      std::memcpy(&bits, payload_ + at, 8);
    else if (left > 0)
      std::memcpy(&bits, payload_ + at, size_t(left));
    return bits;
  }

  bool plausible(int64_t count) const {
    if (layout_.scale_count == 0) return true;
    const float lo = scales_[0], hi = scales_[layout_.scale_count - 1];
    if (count == 0) return float_bits(lo) == 0 && float_bits(hi) == 0;
    return 0 < lo && lo <= hi && std::isfinite(hi);
  }

  // Whether the section from byte `begin` to `end` is zero behind its first `used` bits.
  bool zero(int64_t begin, int64_t used, int64_t end) const {
    int64_t at = begin + used / 8;
    if (used % 8 && payload_[at++] >> (used % 8)) return false;
    return std::all_of(payload_ + at, payload_ + end, [](uint8_t byte) { return byte == 0; });
  }

  Layout layout_;
  const uint8_t* payload_;
  Quantizer quantizer_;
  float scales_[2] = {};
};

}  // namespace hgc
