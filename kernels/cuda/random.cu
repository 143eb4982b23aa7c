// Random fills: element i from word i % 4 of Philox block i / 4, as on the CPU. About 20 integer operations an element,
// which hides behind writing it (4 or 2 bytes).
#include "demi/kernels/random.h"

#include "demi/kernels/cuda/device.cuh"

namespace demi::kernels::cuda {
namespace {

struct Uniform {
  float low, width;
  // One rounding, as std::fma on the CPU: the same numbers bit by bit.
  __device__ void operator()(const Philox& random, float (&v)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = __fmaf_rn(width, random.uniform(i), low);
  }
};

// Box and Muller (1958): u1 in (0, 1], u2 in [0, 1).
struct Normal {
  float mean, std_dev;
  __device__ void operator()(const Philox& random, float (&v)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const float r = sqrtf(-2.0f * logf(1.0f - random.uniform(i)));
      float sine, cosine;
      sincospif(2.0f * random.uniform(i + 1), &sine, &cosine);
      v[i] = mean + std_dev * r * cosine;
      v[i + 1] = mean + std_dev * r * sine;
    }
  }
};

template <typename T, typename Draw>
__global__ void __launch_bounds__(kThreads)
    random_kernel(T* x, int64_t n, bool aligned, uint64_t seed, uint64_t stream, Draw draw) {
  DEMI_GRID_STRIDE(block, (n + 3) / 4) {
    float v[4];
    draw(Philox(seed, stream, static_cast<uint64_t>(block)), v);
    const int64_t first = block * 4;
    if (aligned && first + 4 <= n) {
      store_floats<4>(x + first, v);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (first + i < n) x[first + i] = static_cast<T>(v[i]);
    }
  }
}

template <typename Draw>
void fill_random(const char* op, Tensor& x, uint64_t seed, uint64_t stream, const Draw& draw) {
  const int64_t n = x.numel();
  visit_cuda(x.dtype(), op, [&](auto type) {
    using T = typename decltype(type)::type;
    T* p = x.mutable_data<T>();
    random_kernel<<<blocks_for((n + 3) / 4, x), kThreads, 0, stream_of(x)>>>(p, n, aligned16(p), seed, stream, draw);
    DEMI_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace

void fill_uniform(Tensor& x, double low, double high, uint64_t seed, uint64_t stream) {
  fill_random("fill_uniform", x, seed, stream, Uniform{static_cast<float>(low), static_cast<float>(high - low)});
}

void fill_normal(Tensor& x, double mean, double std_dev, uint64_t seed, uint64_t stream) {
  fill_random("fill_normal", x, seed, stream, Normal{static_cast<float>(mean), static_cast<float>(std_dev)});
}

}  // namespace demi::kernels::cuda
