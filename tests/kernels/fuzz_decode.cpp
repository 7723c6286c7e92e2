// libFuzzer's target: any bytes are decoded or refused, without a foreign access, and a refusal writes
// nothing. scripts/fuzz.sh builds and runs it.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "hgc.h"

namespace {

constexpr uint32_t kMostEntries = 65536;
constexpr int kPaths = 2, kMostThreads = 3, kFill = 0xa5;

void require(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// Memory of exactly these bytes, so that AddressSanitizer sees every access beyond them.
std::unique_ptr<uint8_t[]> exact(size_t bytes) {
  std::unique_ptr<uint8_t[]> memory(new uint8_t[bytes]);
  std::memset(memory.get(), kFill, bytes);
  return memory;
}

bool untouched(const uint8_t* memory, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    if (memory[i] != kFill) return false;
  return true;
}

// As many entries as the payload says where those are few; what says more is refused for any number.
uint32_t entries(const uint8_t* data, size_t size) {
  uint32_t n = 0;
  if (size >= 12) std::memcpy(&n, data + 8, 4);
  return n <= kMostEntries ? n : 16;
}

struct Decoded {
  int status;
  std::unique_ptr<uint8_t[]> out;
};

Decoded decode(const uint8_t* data, size_t size, uint32_t n, int32_t count, int32_t dtype, int32_t path,
               int32_t threads) {
  const size_t bytes = size_t(n) * (dtype == HGC_FLOAT32 ? 4 : 2);
  Decoded result{0, exact(bytes)};
  result.status = hgc_decode_sum(data, int64_t(size), count, n, 1.0f, result.out.get(), dtype, path, threads);
  require(result.status == HGC_OK || result.status == HGC_DAMAGED, "neither decoded nor refused");
  if (result.status == HGC_DAMAGED) require(untouched(result.out.get(), bytes), "a refusal has written");
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* given, size_t size) {
  const auto data = exact(size);
  if (size) std::memcpy(data.get(), given, size);
  const uint32_t n = entries(data.get(), size);
  const Decoded first = decode(data.get(), size, n, 1, HGC_FLOAT32, 0, 1);
  if (first.status == HGC_OK)
    for (uint32_t i = 0; i < n; i++) {
      float value;
      std::memcpy(&value, first.out.get() + 4 * size_t(i), 4);
      require(std::isfinite(value), "a value is not finite");
    }
  // Other paths and numbers of threads agree; which of them are tried varies from input to input.
  const int32_t path = int32_t(size % kPaths), threads = 1 + int32_t(size / kPaths % kMostThreads);
  const Decoded second = decode(data.get(), size, n, 1, HGC_FLOAT32, path, threads);
  require(first.status == second.status, "paths disagree about a payload");
  require(std::memcmp(first.out.get(), second.out.get(), 4 * size_t(n)) == 0, "paths decode differently");
  const int32_t dtype = size % 2 ? HGC_FLOAT16 : HGC_BFLOAT16;
  require(decode(data.get(), size, n, 1, dtype, path, 1).status == first.status,
          "dtypes disagree about a payload");
  decode(data.get(), size, n, 0, dtype, path, threads);
  decode(data.get(), size, n, 2, dtype, path, threads);
  return 0;
}
