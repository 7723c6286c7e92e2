// Scales of buckets, and sums over all entries: each from order-independent sums (core/sums.py).
#include <array>
#include <cmath>

#include "bits.h"
#include "passes.h"
#include "sums.h"
#include "tiles.h"

namespace hgc {
namespace {

enum class Sum { kAbs, kSquare };

constexpr auto kAdd = [](int64_t a, int64_t b) { return a + b; };
constexpr auto kMost = [](uint32_t a, uint32_t b) { return std::max(a, b); };

// A fixed-point sum of `count` terms, none larger than `largest`.
class Terms {
 public:
  Terms(Sum kind, const Passes& passes, float largest, size_t count)
      : kind_(kind),
        passes_(passes),
        bits_((62 - bit_length(count)) / (kind == Sum::kSquare ? 2 : 1)),
        fixed_(largest, bits_) {}

  int64_t add(const float* x, size_t n) const {
    if (kind_ == Sum::kAbs) return passes_.loops.abs_sum(x, n, fixed_.factor, bits_);
    return int64_t(passes_.square_sum(x, n, fixed_.factor));
  }

  double value(int64_t sum) const {
    return std::ldexp(double(sum), kind_ == Sum::kSquare ? 2 * fixed_.shift : fixed_.shift);
  }

 private:
  Sum kind_;
  const Passes& passes_;
  int bits_;
  FixedPoint fixed_;
};

float largest(const Passes& passes, const float* x, size_t n, int threads) {
  return bits_float(reduce<uint32_t>(
      n, threads, [&](Range part) { return passes.max_magnitude(x + part.begin, part.end - part.begin); },
      kMost));
}

double sum(const Terms& terms, const float* x, size_t n, int threads) {
  return terms.value(reduce<int64_t>(
      n, threads, [&](Range part) { return terms.add(x + part.begin, part.end - part.begin); }, kAdd));
}

float scale(const Passes& passes, int kind, const float* x, size_t n, int threads) {
  const float most = largest(passes, x, n, threads);
  switch (kind) {
    case HGC_BUCKET_MAX:
      return most;
    case HGC_BUCKET_NORM: {
      const double norm = std::sqrt(sum(Terms(Sum::kSquare, passes, most, n), x, n, threads));
      return float(std::min(norm, double(kLargest)));
    }
    default:
      return float(sum(Terms(Sum::kAbs, passes, most, n), x, n, threads) / double(n));
  }
}

// The entries between two bounds, neither included.
struct Class {
  float above, below;
  size_t count = 0;
  double sum = 0;  // of magnitudes

  double mean() const { return sum / double(std::max<size_t>(count, 1)); }
};

template <size_t kClasses>
void sum_classes(const Passes& passes, const float* x, size_t n, int threads, Class* classes) {
  struct Extent {
    uint32_t most;
    size_t count;
  };
  using Extents = std::array<Extent, kClasses>;
  using Totals = std::array<int64_t, kClasses>;
  const auto each = [&](Range part, const auto& work) {
    each_tile(part, [&](size_t at, size_t count) {
      float in[kTile];
      for (size_t c = 0; c < kClasses; c++) {
        const size_t found = passes.loops.between(x + at, count, classes[c].above, classes[c].below, in);
        work(c, in, count, found);
      }
    });
  };
  const Extents extents = reduce<Extents>(
      n, threads,
      [&](Range part) {
        Extents own{};
        each(part, [&](size_t c, const float* in, size_t count, size_t found) {
          own[c] = {std::max(own[c].most, passes.max_magnitude(in, count)), own[c].count + found};
        });
        return own;
      },
      [](Extents a, const Extents& b) {
        for (size_t c = 0; c < kClasses; c++)
          a[c] = {std::max(a[c].most, b[c].most), a[c].count + b[c].count};
        return a;
      });
  std::vector<Terms> terms;
  for (const Extent& extent : extents)
    terms.emplace_back(Sum::kAbs, passes, bits_float(extent.most), extent.count);
  const Totals totals = reduce<Totals>(
      n, threads,
      [&](Range part) {
        Totals own{};
        each(part,
             [&](size_t c, const float* in, size_t count, size_t) { own[c] += terms[c].add(in, count); });
        return own;
      },
      [](Totals a, const Totals& b) {
        for (size_t c = 0; c < kClasses; c++) a[c] += b[c];
        return a;
      });
  for (size_t c = 0; c < kClasses; c++) {
    classes[c].count = extents[c].count;
    classes[c].sum = terms[c].value(totals[c]);
  }
}

}  // namespace
}  // namespace hgc

using namespace hgc;

extern "C" int hgc_bucket_scales(const float* values, int64_t n, int64_t bucket, int32_t kind, float* scales,
                                 int32_t path, int32_t threads) {
  return call([&] {
    const Passes& passes = passes_of(path);
    const size_t size = size_t(n), length = size_t(bucket), count = (size + length - 1) / length;
    const auto of = [&](size_t i, int each) {
      const size_t begin = i * length;
      scales[i] = scale(passes, kind, values + begin, std::min(length, size - begin), each);
    };
    if (count < 2 * size_t(threads)) {
      for (size_t i = 0; i < count; i++) of(i, threads);
      return;
    }
    const std::vector<Range> ranges = cut(count, threads, 1);
    for_each(ranges.size(), [&](size_t part) {
      for (size_t i = ranges[part].begin; i < ranges[part].end; i++) of(i, 1);
    });
  });
}

extern "C" int hgc_class_means(const float* values, int64_t n, double means[2], int32_t path,
                               int32_t threads) {
  return call([&] {
    Class classes[2] = {{-0x1p-149f, INFINITY}, {-INFINITY, 0}};  // the smallest denormal: -0 is not negative
    sum_classes<2>(passes_of(path), values, size_t(n), threads, classes);
    for (int c = 0; c < 2; c++) means[c] = classes[c].mean();
  });
}

extern "C" int hgc_sum_below(const float* values, int64_t n, float bound, int64_t* count, double* sum,
                             int32_t path, int32_t threads) {
  return call([&] {
    Class below = {-bound, bound};
    sum_classes<1>(passes_of(path), values, size_t(n), threads, &below);
    *count = int64_t(below.count);
    *sum = below.sum;
  });
}

extern "C" int hgc_moments(const float* values, int64_t n, float decay, float rest, const float* mean,
                           const float* square, float* new_mean, float* new_square, double sums[2],
                           int32_t path, int32_t threads) {
  return call([&] {
    struct Largest {
      uint32_t mean, spread;
    };
    const Passes& passes = passes_of(path);
    const size_t size = size_t(n);
    const Largest most = reduce<Largest>(
        size, threads,
        [&](Range part) {
          Largest own{};
          each_tile(part, [&](size_t at, size_t count) {
            float spread[kTile];
            passes.loops.moments(values + at, count, decay, rest, mean + at, square + at, new_mean + at,
                                 new_square + at);
            passes.loops.spread(new_mean + at, new_square + at, count, spread);
            own = {std::max(own.mean, passes.max_magnitude(new_mean + at, count)),
                   std::max(own.spread, passes.max_magnitude(spread, count))};
          });
          return own;
        },
        [](Largest a, Largest b) { return Largest{std::max(a.mean, b.mean), std::max(a.spread, b.spread)}; });
    const Terms squares(Sum::kSquare, passes, bits_float(most.mean), size);
    const Terms spreads(Sum::kAbs, passes, bits_float(most.spread), size);
    using Totals = std::array<int64_t, 2>;
    const Totals totals = reduce<Totals>(
        size, threads,
        [&](Range part) {
          Totals own{};
          each_tile(part, [&](size_t at, size_t count) {
            float spread[kTile];
            passes.loops.spread(new_mean + at, new_square + at, count, spread);
            own[0] += squares.add(new_mean + at, count);
            own[1] += spreads.add(spread, count);
          });
          return own;
        },
        [](const Totals& a, const Totals& b) { return Totals{a[0] + b[0], a[1] + b[1]}; });
    sums[0] = squares.value(totals[0]);
    sums[1] = spreads.value(totals[1]);
  });
}
