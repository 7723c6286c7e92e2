// Bits of floats, and bit fields in a little-endian stream.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "payloads are read and written in the machine's own order");

namespace hgc {

inline uint32_t float_bits(float value) {
  uint32_t word;
  std::memcpy(&word, &value, 4);
  return word;
}

inline float bits_float(uint32_t word) {
  float value;
  std::memcpy(&value, &word, 4);
  return value;
}

inline uint32_t magnitude_bits(float value) { return float_bits(value) & 0x7fffffffu; }

inline int bit_length(uint64_t x) { return x ? 64 - __builtin_clzll(x) : 0; }

// Writes fields of up to kMaxWidth bits one behind the other, and never past `end`.
class FieldWriter {
 public:
  static constexpr int kMaxWidth = 56;

  FieldWriter(uint8_t* to, uint8_t* end) : to_(to), end_(end) {}

  void put(uint64_t value, int width) {
    const uint64_t word = word_ | value << filled_;
    if (end_ - to_ >= 8)
      std::memcpy(to_, &word, 8);
    else
      std::memcpy(to_, &word, size_t(end_ - to_));
    filled_ += width;
    to_ += filled_ >> 3;
    word_ = word >> (filled_ & ~7);
    filled_ &= 7;
  }

  // Zeros to the end.
  void finish() {
    put(0, 0);
    to_ += filled_ > 0;
    std::memset(to_, 0, size_t(end_ - to_));
  }

 private:
  uint8_t *to_, *end_;
  uint64_t word_ = 0;
  int filled_ = 0;
};

// Sets single bits of ascending numbers, and writes the zeros between them.
class BitSetter {
 public:
  BitSetter(uint8_t* to, uint8_t* end) : to_(to), end_(end) {}

  void set(uint64_t bit) {
    while (bit - base_ >= 64) next();
    word_ |= uint64_t(1) << (bit - base_);
  }

  void finish() {
    while (to_ < end_) next();
  }

 private:
  void next() {
    const uint64_t word = word_;
    const ptrdiff_t left = std::min<ptrdiff_t>(8, end_ - to_);
    std::memcpy(to_, &word, size_t(left));
    to_ += left;
    word_ = 0;
    base_ += 64;
  }

  uint8_t *to_, *end_;
  uint64_t word_ = 0, base_ = 0;
};

// The field of `width` (at most 63) bits at bit `at` of a stream of `bytes` bytes.
inline uint64_t get_field(const uint8_t* stream, size_t bytes, uint64_t at, int width) {
  const size_t first = size_t(at >> 3);
  const int shift = int(at & 7);
  uint64_t word = 0;
  if (first + 8 <= bytes)
    std::memcpy(&word, stream + first, 8);
  else if (first < bytes)
    std::memcpy(&word, stream + first, bytes - first);
  word >>= shift;
  if (shift + width > 64) word |= uint64_t(stream[first + 8]) << (64 - shift);
  return word & ((uint64_t(1) << width) - 1);
}

}  // namespace hgc
