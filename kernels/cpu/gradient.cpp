// The finite check, unscaling, sums of squares and clipping of gradients.
#include "demi/kernels/gradient.h"

#include <atomic>
#include <cmath>
#include <cstring>

#include "demi/kernels/cpu/elementwise.h"

namespace demi::kernels::cpu {
namespace {

// The bits of T as an unsigned integer, and those of its exponent: all ones in infinities and NaNs only.
template <typename T>
struct Bits {
  using type = uint16_t;
  static constexpr type exponent = std::is_same_v<T, Half> ? 0x7c00 : 0x7f80;
};
template <>
struct Bits<float> {
  using type = uint32_t;
  static constexpr type exponent = 0x7f800000u;
};
template <>
struct Bits<double> {
  using type = uint64_t;
  static constexpr type exponent = 0x7ff0000000000000ull;
};

template <typename T>
bool all_finite(const T* x, int64_t n) {
  using U = typename Bits<T>::type;
  std::atomic<bool> found{false};
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    U bad = 0;
    for (int64_t i = begin; i < end; ++i) {
      U u;
      std::memcpy(&u, x + i, sizeof u);
      bad = static_cast<U>(bad | ((u & Bits<T>::exponent) == Bits<T>::exponent));
    }
    if (bad) found = true;
  });
  return !found;
}

}  // namespace

void check_finite(const Tensor& x, Tensor& found) {
  visit_floating(x.dtype(), "check_finite", [&](auto type) {
    using T = typename decltype(type)::type;
    if (!all_finite(x.data<T>(), x.numel())) *found.mutable_data<int32_t>() = 1;
  });
}

void unscale(const Tensor& x, const Tensor& scale, Tensor& found, Tensor& y) {
  visit_training(x.dtype(), "unscale", [&](auto type) {
    using T = typename decltype(type)::type;
    const float inverse = static_cast<float>(1.0 / static_cast<double>(*scale.data<float>()));
    if (!all_finite(x.data<T>(), x.numel())) *found.mutable_data<int32_t>() = 1;
    map(
        x.numel(), [=](float g) { return g * inverse; }, y.mutable_data<float>(), x.data<T>());
  });
}

void add_squares(const Tensor& x, Tensor& total) {
  visit_floating(x.dtype(), "l2_norm", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    float* sum = total.mutable_data<float>();
    *sum = static_cast<float>(static_cast<double>(*sum) + map_sum(
                                                              x.numel(), [](A v) { return v * v; }, x.data<T>()));
  });
}

void norm_and_coefficient(const Tensor& total, double max_norm, Tensor& norm, Tensor& coefficient) {
  const float value = std::sqrt(*total.data<float>()), ratio = static_cast<float>(max_norm) / (value + 1e-6f);
  *norm.mutable_data<float>() = value;
  *coefficient.mutable_data<float>() = std::isfinite(value) && ratio < 1 ? ratio : 1.0f;
}

void clip_value(Tensor& x, double limit) {
  visit_floating(x.dtype(), "clip_value", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const A high = static_cast<A>(limit), low = -high;
    T* p = x.mutable_data<T>();
    map(
        x.numel(), [=](A v) { return v < low    ? low
                                     : v > high ? high
                                                : v; }, p, static_cast<const T*>(p));
  });
}

}  // namespace demi::kernels::cpu
