// cast: y[i] = x[i] in another dtype. Moves size(x) + size(y) bytes; between FP32, FP16 and BF16 in packs of 16 bytes.
#include "demi/kernels/cast.h"

#include <type_traits>

#include "demi/kernels/cuda/elementwise.cuh"

namespace demi::kernels::cuda {
namespace {

template <typename T>
constexpr bool kReal = !std::is_integral_v<T>;

struct Copy {
  template <int N>
  __device__ void operator()(const float (&in)[1][N], float (&out)[N]) const {
#pragma unroll
    for (int j = 0; j < N; ++j) out[j] = in[0][j];
  }
};

template <typename Y, typename X>
__device__ __forceinline__ Y convert(X x) {
  if constexpr (kReal<Y> && kReal<X>) {
    return static_cast<Y>(static_cast<float>(x));
  } else if constexpr (kReal<Y> && sizeof(Y) == 2) {
    // Integers reach 16 bits through FP32. Cut off there with an odd last bit where digits are lost, so that the second
    // rounding sees on which side of a tie the integer was.
    const auto exact = static_cast<long long>(x);
    float wide = __ll2float_rz(exact);
    if (static_cast<long long>(wide) != exact) wide = __uint_as_float(__float_as_uint(wide) | 1u);
    return static_cast<Y>(wide);
  } else if constexpr (kReal<Y>) {
    return static_cast<Y>(x);
  } else if constexpr (kReal<X>) {
    return static_cast<Y>(static_cast<float>(x));
  } else {
    return static_cast<Y>(x);
  }
}

template <typename Y, typename X>
__global__ void __launch_bounds__(kThreads) cast_kernel(const X* x, Y* y, int64_t n) {
  DEMI_GRID_STRIDE(i, n) y[i] = convert<Y>(x[i]);
}

template <typename F>
void visit(DType dtype, F&& f) {
  DEMI_CHECK(dtype != DType::F64, "[cast] fp64 exists on the CPU only");
  if (is_floating(dtype))
    visit_training(dtype, "cast", f);
  else
    visit_integer(dtype, "cast", f);
}

}  // namespace

void cast(const Tensor& x, Tensor& y) {
  const int64_t n = x.numel();
  visit(x.dtype(), [&](auto from) {
    visit(y.dtype(), [&](auto to) {
      using X = typename decltype(from)::type;
      using Y = typename decltype(to)::type;
      if constexpr (std::is_same_v<X, Y>) {
        y.copy_from(x);
      } else if constexpr (kReal<X> && kReal<Y>) {
        map(x, n, Copy{}, y.mutable_data<Y>(), x.data<X>());
      } else {
        cast_kernel<<<blocks_for(n, x), kThreads, 0, stream_of(x)>>>(x.data<X>(), y.mutable_data<Y>(), n);
        DEMI_CUDA_CHECK(cudaGetLastError());
      }
    });
  });
}

}  // namespace demi::kernels::cuda
