// The elementwise functions, y = f(x), and dx = dy f'. Memory-bound but for the costliest of them: 2 and 3 tensors of
// bytes to move. The op is switched on once a pack, inside one kernel a dtype: a uniform branch that costs nothing
// beside the memory, where a kernel an op would cost minutes of compiling.
#include "demi/kernels/unary.h"

#include "demi/kernels/cuda/elementwise.cuh"
#include "demi/kernels/unary_functors.h"

namespace demi::kernels::cuda {
namespace {

struct Forward {
  UnaryOp op;
  float a, b;
  template <int N>
  __device__ void operator()(const float (&in)[1][N], float (&out)[N]) const {
    visit_unary(op, [&](auto f) {
#pragma unroll
      for (int j = 0; j < N; ++j) out[j] = f.forward(in[0][j], a, b);
    });
  }
};

// in[0] is dy, in[1] the saved x or y: each functor reads only the one it needs.
struct Backward {
  UnaryOp op;
  float a, b;
  template <int N>
  __device__ void operator()(const float (&in)[2][N], float (&out)[N]) const {
    visit_unary(op, [&](auto f) {
#pragma unroll
      for (int j = 0; j < N; ++j) out[j] = f.backward(in[0][j], in[1][j], in[1][j], a, b);
    });
  }
};

}  // namespace

void unary(UnaryOp op, const Tensor& x, double a, double b, Tensor& y) {
  visit_cuda(x.dtype(), "unary", [&](auto type) {
    using T = typename decltype(type)::type;
    map(x, x.numel(), Forward{op, static_cast<float>(a), static_cast<float>(b)}, y.mutable_data<T>(), x.data<T>());
  });
}

void unary_backward(UnaryOp op, const Tensor& dy, const Tensor& x, const Tensor& y, double a, double b, Tensor& dx) {
  // An op that needs neither gets dy twice: the second read comes from the cache.
  const Tensor& saved = backward_needs_input(op) ? x : backward_needs_output(op) ? y : dy;
  visit_cuda(dy.dtype(), "unary_backward", [&](auto type) {
    using T = typename decltype(type)::type;
    map(dy, dy.numel(), Backward{op, static_cast<float>(a), static_cast<float>(b)}, dx.mutable_data<T>(), dy.data<T>(),
        saved.data<T>());
  });
}

}  // namespace demi::kernels::cuda
