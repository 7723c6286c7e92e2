// Philox4x32-10 (core/random.py): words that depend on a key and a counter alone.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hgc {

constexpr uint32_t kPhiloxMultiplier[2] = {0xd2511f53, 0xcd9e8d57};
constexpr uint32_t kPhiloxWeyl[2] = {0x9e3779b9, 0xbb67ae85};
constexpr int kPhiloxRounds = 10;
constexpr size_t kWordGroup = 32;  // words that are made at once: room for a multiple of it is needed

}  // namespace hgc
