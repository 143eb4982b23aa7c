// Every element becomes one value.
#include "demi/kernels/fill.h"

#include "demi/kernels/cpu/elementwise.h"

namespace demi::kernels::cpu {

void fill(Tensor& x, double value) {
  visit_any(x.dtype(), "fill", [&](auto type) {
    using T = typename decltype(type)::type;
    T rounded;
    if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>)
      rounded = narrow_once<T>(value);
    else
      rounded = static_cast<T>(value);
    T* out = x.mutable_data<T>();
    parallel_for(x.numel(), kGrain, [&](int64_t begin, int64_t end) { std::fill(out + begin, out + end, rounded); });
  });
}

}  // namespace demi::kernels::cpu
