// y = alpha x with alpha on the host or in a tensor, and y += alpha x.
#include "demi/kernels/scale.h"

#include "demi/kernels/cpu/elementwise.h"

namespace demi::kernels::cpu {

void scale(const Tensor& x, double alpha, Tensor& y) {
  visit_floating(x.dtype(), "scale", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const A factor = static_cast<A>(alpha);
    map(
        x.numel(), [=](A v) { return factor * v; }, y.mutable_data<T>(), x.data<T>());
  });
}

void scale_by(const Tensor& x, const Tensor& factor, Tensor& y) { scale(x, *factor.data<float>(), y); }

void axpy(double alpha, const Tensor& x, Tensor& y) {
  visit_floating(x.dtype(), "axpy", [&](auto from) {
    using X = typename decltype(from)::type;
    visit_floating(y.dtype(), "axpy", [&](auto to) {
      using Y = typename decltype(to)::type;
      using A = std::common_type_t<Accumulator<X>, Accumulator<Y>>;
      const A factor = static_cast<A>(alpha);
      Y* out = y.mutable_data<Y>();
      map(
          y.numel(),
          [=](Accumulator<X> a, Accumulator<Y> b) {
            return static_cast<Accumulator<Y>>(b + factor * static_cast<A>(a));
          },
          out, x.data<X>(), static_cast<const Y*>(out));
    });
  });
}

}  // namespace demi::kernels::cpu
