// The floating-point environment that every byte is defined in: to nearest, denormals kept.
#pragma once

#include <cfenv>

namespace hgc {

// Sets it for the calling thread, and for the threads it starts, which inherit it; puts back what was.
class Environment {
 public:
  Environment() {
    std::fegetenv(&was_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~Environment() { std::fesetenv(&was_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::fenv_t was_;
};

}  // namespace hgc
