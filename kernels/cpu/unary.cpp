// y = f(x) and dx = dy f'(x), element by element, for the functors of unary_functors.h.
#include "demi/kernels/unary.h"

#include "demi/kernels/cpu/elementwise.h"
#include "demi/kernels/unary_functors.h"

namespace demi::kernels::cpu {

void unary(UnaryOp op, const Tensor& x, double a, double b, Tensor& y) {
  visit_floating(x.dtype(), "unary", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const A ca = static_cast<A>(a), cb = static_cast<A>(b);
    visit_unary(op, [&](auto f) {
      using F = decltype(f);
      map(
          x.numel(), [=](A v) { return F::forward(v, ca, cb); }, y.mutable_data<T>(), x.data<T>());
    });
  });
}

void unary_backward(UnaryOp op, const Tensor& dy, const Tensor& x, const Tensor& y, double a, double b, Tensor& dx) {
  visit_floating(dy.dtype(), "unary_backward", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const A ca = static_cast<A>(a), cb = static_cast<A>(b);
    visit_unary(op, [&](auto f) {
      using F = decltype(f);
      T* out = dx.mutable_data<T>();
      if constexpr (F::kNeedsInput)
        map(
            dy.numel(), [=](A g, A v) { return F::backward(g, v, v, ca, cb); }, out, dy.data<T>(), x.data<T>());
      else if constexpr (F::kNeedsOutput)
        map(
            dy.numel(), [=](A g, A v) { return F::backward(g, v, v, ca, cb); }, out, dy.data<T>(), y.data<T>());
      else
        map(
            dy.numel(), [=](A g) { return F::backward(g, g, g, ca, cb); }, out, dy.data<T>());
    });
  });
}

}  // namespace demi::kernels::cpu
