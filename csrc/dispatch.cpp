// Which instruction set's passes run.
#include <cstring>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "hgc.h"
#include "passes.h"

namespace hgc {
namespace {

#if defined(__x86_64__)
bool has_f16c() {  // not every compiler's __builtin_cpu_supports knows it
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

// Those that this machine can run, best first.
const std::vector<const Passes*>& runnable() {
  static const std::vector<const Passes*> paths = [] {
    std::vector<const Passes*> found;
#if defined(__x86_64__)
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                      __builtin_cpu_supports("popcnt") && has_f16c();
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
      found.push_back(&avx512_passes);
    if (avx2) found.push_back(&avx2_passes);
#endif
    found.push_back(&portable_passes);
    return found;
  }();
  return paths;
}

}  // namespace

const Passes& passes_of(int32_t path) {
  const auto& paths = runnable();
  return *paths[path >= 0 && size_t(path) < paths.size() ? size_t(path) : 0];
}

}  // namespace hgc

extern "C" int32_t hgc_version(void) { return HGC_VERSION; }

extern "C" const char* hgc_paths(void) {
  static const std::string names = [] {
    std::string joined;
    for (const hgc::Passes* passes : hgc::runnable())
      joined += (joined.empty() ? "" : ",") + std::string(passes->name);
    return joined;
  }();
  return names.c_str();
}
