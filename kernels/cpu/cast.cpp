// The same values in another dtype, each rounded once.
#include "demi/kernels/cast.h"

#include "demi/kernels/cpu/elementwise.h"

namespace demi::kernels::cpu {
namespace {

template <typename T>
constexpr bool kIs16bit = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

template <typename X, typename Y>
void convert(const X* x, Y* y, int64_t n) {
  if constexpr (kIs16bit<X> && std::is_same_v<Y, float>) {
    widen(x, y, n);
  } else if constexpr (std::is_same_v<X, float> && kIs16bit<Y>) {
    narrow(x, y, n);
  } else if constexpr (kIs16bit<X> && kIs16bit<Y>) {
    float block[kBlock];
    for (int64_t at = 0; at < n; at += kBlock) {
      const int64_t m = std::min(kBlock, n - at);
      widen(x + at, block, m);
      narrow(block, y + at, m);
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      if constexpr (kIs16bit<Y>)
        y[i] = narrow_once<Y>(static_cast<double>(x[i]));
      else if constexpr (kIs16bit<X>)
        y[i] = static_cast<Y>(static_cast<float>(x[i]));
      else
        y[i] = static_cast<Y>(x[i]);
    }
  }
}

}  // namespace

void cast(const Tensor& x, Tensor& y) {
  visit_any(x.dtype(), "cast", [&](auto from) {
    using X = typename decltype(from)::type;
    visit_any(y.dtype(), "cast", [&](auto to) {
      using Y = typename decltype(to)::type;
      const X* in = x.data<X>();
      Y* out = y.mutable_data<Y>();
      parallel_for(x.numel(), kGrain,
                   [&](int64_t begin, int64_t end) { convert(in + begin, out + begin, end - begin); });
    });
  });
}

}  // namespace demi::kernels::cpu
