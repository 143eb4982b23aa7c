// Softmax and log-softmax along the middle of [outer, extent, inner], one line at a time.
#include "demi/kernels/softmax.h"

#include <cmath>

#include "demi/kernels/cpu/elementwise.h"

namespace demi::kernels::cpu {
namespace {

// body(offset of the line's first element) for every line.
template <typename F>
void for_lines(const AxisView& view, F body) {
  parallel_for(view.outer * view.inner, std::max<int64_t>(1, kGrain / 8 / view.extent),
               [&](int64_t begin, int64_t end) {
                 for (int64_t l = begin; l < end; ++l) body(l / view.inner * view.extent * view.inner + l % view.inner);
               });
}

}  // namespace

void softmax(const Tensor& x, const AxisView& view, bool log, Tensor& y) {
  visit_floating(x.dtype(), "softmax", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const T* in = x.data<T>();
    T* out = y.mutable_data<T>();
    for_lines(view, [&](int64_t first) {
      const auto value = [&](int64_t e) { return static_cast<A>(in[first + e * view.inner]); };
      A m = value(0);
      for (int64_t e = 1; e < view.extent; ++e) m = value(e) > m ? value(e) : m;
      double sum = 0;  // a NaN anywhere comes back through exp
      for (int64_t e = 0; e < view.extent; ++e) sum += static_cast<double>(std::exp(value(e) - m));
      const A log_sum = static_cast<A>(std::log(sum)), inverse = static_cast<A>(1 / sum);
      for (int64_t e = 0; e < view.extent; ++e)
        out[first + e * view.inner] = T(log ? value(e) - m - log_sum : std::exp(value(e) - m) * inverse);
    });
  });
}

void softmax_backward(const Tensor& dy, const Tensor& y, const AxisView& view, bool log, Tensor& dx) {
  visit_floating(y.dtype(), "softmax_backward", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const T *grad = dy.data<T>(), *in = y.data<T>();
    T* out = dx.mutable_data<T>();
    for_lines(view, [&](int64_t first) {
      double total = 0;
      for (int64_t e = 0; e < view.extent; ++e) {
        const int64_t i = first + e * view.inner;
        total += static_cast<double>(static_cast<A>(grad[i]) * (log ? A(1) : static_cast<A>(in[i])));
      }
      const A sum = static_cast<A>(total);
      for (int64_t e = 0; e < view.extent; ++e) {
        const int64_t i = first + e * view.inner;
        const A g = static_cast<A>(grad[i]), v = static_cast<A>(in[i]);
        out[i] = T(log ? g - std::exp(v) * sum : v * (g - sum));
      }
    });
  });
}

}  // namespace demi::kernels::cpu
