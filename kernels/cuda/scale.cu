// scale, scale_by, axpy: y = alpha x and y += alpha x. One multiplication an element: 2 (axpy: 3) tensors of bytes to
// move.
#include "demi/kernels/scale.h"

#include "demi/kernels/cuda/elementwise.cuh"

namespace demi::kernels::cuda {
namespace {

struct Times {
  float alpha;
  template <int N>
  __device__ void operator()(const float (&in)[1][N], float (&out)[N]) const {
#pragma unroll
    for (int j = 0; j < N; ++j) out[j] = alpha * in[0][j];
  }
};

struct TimesStored {
  const float* factor;  // in device memory: read by the kernel, so the host need not know it
  template <int N>
  __device__ void operator()(const float (&in)[1][N], float (&out)[N]) const {
    Times{*factor}(in, out);
  }
};

struct AddTimes {
  float alpha;
  template <int N>
  __device__ void operator()(const float (&in)[2][N], float (&out)[N]) const {
#pragma unroll
    for (int j = 0; j < N; ++j) out[j] = in[1][j] + alpha * in[0][j];
  }
};

}  // namespace

void scale(const Tensor& x, double alpha, Tensor& y) {
  visit_cuda(x.dtype(), "scale", [&](auto type) {
    using T = typename decltype(type)::type;
    map(x, x.numel(), Times{static_cast<float>(alpha)}, y.mutable_data<T>(), x.data<T>());
  });
}

void scale_by(const Tensor& x, const Tensor& factor, Tensor& y) {
  visit_cuda(x.dtype(), "scale_by", [&](auto type) {
    using T = typename decltype(type)::type;
    map(x, x.numel(), TimesStored{factor.data<float>()}, y.mutable_data<T>(), x.data<T>());
  });
}

void axpy(double alpha, const Tensor& x, Tensor& y) {
  visit_cuda(x.dtype(), "axpy", [&](auto from) {
    visit_cuda(y.dtype(), "axpy", [&](auto to) {
      using X = typename decltype(from)::type;
      using Y = typename decltype(to)::type;
      Y* out = y.mutable_data<Y>();
      map(x, x.numel(), AddTimes{static_cast<float>(alpha)}, out, x.data<X>(), static_cast<const Y*>(out));
    });
  });
}

}  // namespace demi::kernels::cuda
