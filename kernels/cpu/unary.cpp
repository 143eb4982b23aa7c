// y = f(x) and dx = dy f'(x), element by element, for the functors of unary_functors.h. The compiler vectorizes most of
// them; where it calls exp or log once an element, and Eigen's packets are faster, the formula is written for a block.
#include "demi/kernels/unary.h"

#include "demi/kernels/cpu/eigen.h"
#include "demi/kernels/unary_functors.h"

namespace demi::kernels::cpu {
namespace {

// v = f(v) and g = g f'(v), for results of FP32 or narrower.
#if defined(__AVX2__)
void forward(Exp, Block& v) { v = v.exp(); }
void forward(Sigmoid, Block& v) { v = (1 + (-v).exp()).inverse(); }
void forward(Silu, Block& v) { v /= 1 + (-v).exp(); }
void backward(Softplus, Block& g, Block& v) { g /= 1 + (-v).exp(); }
void backward(Silu, Block& g, Block& v) {
  const Block s = (1 + (-v).exp()).inverse();
  g *= s * (1 + v * (1 - s));
}
void forward(Tanh, Block& v) {
  const Block e = (-2 * v.abs()).exp();
  const auto tanh = [](double x, double t) {  // a small x is its own tanh in FP32, and 1 - t would lose its digits
    return std::fabs(x) < 1e-4 ? x : std::copysign((1 - t) / (1 + t), x);
  };
  map_block(v.size(), tanh, v.data(), v.data(), e.data());
}
void forward(Softplus, Block& v) {
  const Block e = (-v.abs()).exp(), u = 1 + e;
  v = v.max(0) + (u.log() + (e - (u - 1)) / u);  // log(1 + e), the last term for what u has rounded off
}
#endif
#if defined(__AVX512F__)
void forward(Log, Block& v) { v = v.log(); }
#endif

template <typename T, typename F>
constexpr bool kHasForward = kPackets<T>&& requires(F f, Block& v) {
  forward(f, v);
};
template <typename T, typename F>
constexpr bool kHasBackward = kPackets<T>&& requires(F f, Block& v) {
  backward(f, v, v);
};

}  // namespace

void unary(UnaryOp op, const Tensor& x, double a, double b, Tensor& y) {
  visit_floating(x.dtype(), "unary", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const A ca = static_cast<A>(a), cb = static_cast<A>(b);
    visit_unary(op, [&](auto f) {
      using F = decltype(f);
      if constexpr (kHasForward<T, F>)
        map_blocks(
            x.numel(), [](Block& v) { forward(F{}, v); }, y.mutable_data<T>(), x.data<T>());
      else
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
      if constexpr (kHasBackward<T, F>)
        map_blocks(
            dy.numel(), [](Block& g, Block& v) { backward(F{}, g, v); }, out, dy.data<T>(), x.data<T>());
      else if constexpr (F::kNeedsInput)
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
