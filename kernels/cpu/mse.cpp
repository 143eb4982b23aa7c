// Mean squared error: (x - target)^2, in FP32 (FP64 for FP64).
#include "demi/kernels/mse.h"

#include "demi/kernels/cpu/elementwise.h"

namespace demi::kernels::cpu {

void mse(const Tensor& x, const Tensor& target, Reduction reduction, Tensor& loss) {
  visit_floating(x.dtype(), "mse_loss", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const auto square = [](A a, A b) { return (a - b) * (a - b); };
    A* out = loss.mutable_data<A>();
    const T *px = x.data<T>(), *pt = target.data<T>();
    if (reduction == Reduction::None) return map(x.numel(), square, out, px, pt);
    const double total = map_sum(x.numel(), square, px, pt);
    *out = static_cast<A>(reduction == Reduction::Mean ? total / static_cast<double>(x.numel()) : total);
  });
}

void mse_backward(const Tensor& dy, const Tensor& x, const Tensor& target, Reduction reduction, Tensor& dx) {
  visit_floating(x.dtype(), "mse_loss_backward", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const A* grad = dy.data<A>();
    const T *px = x.data<T>(), *pt = target.data<T>();
    T* out = dx.mutable_data<T>();
    if (reduction == Reduction::None)
      return map(
          x.numel(), [](A g, A a, A b) { return 2 * g * (a - b); }, out, grad, px, pt);
    const A g = 2 * *grad / (reduction == Reduction::Mean ? static_cast<A>(x.numel()) : A(1));
    map(
        x.numel(), [=](A a, A b) { return g * (a - b); }, out, px, pt);
  });
}

}  // namespace demi::kernels::cpu
