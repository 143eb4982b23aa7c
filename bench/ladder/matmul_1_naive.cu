// Matmul, step 1: c[i, j] = sum over k of a[i, k] b[j, k], a thread an element of c.
//
// Operations: 2 m n k = 1.10e12 for 8192^3. They run on the CUDA cores in FP32: 18 ms at 60 TFLOP/s; the tensor cores'
// floor is 1.6 ms at 700 TFLOP/s. Bytes that must move: 2 (m k + n k + m n) = 403 MB, 94 us at 4.28 TB/s.
//
// What holds it back: each multiplication loads two elements, 2.2 TB in all where 0.27 GB would do. A load of a warp,
// whose threads make 4 x 8 elements of c, meets 4 rows of a and 8 of b, k elements apart: 12 cache lines for 32
// products, when the cache looks up about one a cycle.
#include "demi/bench/ladder/steps.h"
#include "demi/core/dtype.h"

namespace demi::bench::ladder {
namespace {

constexpr dim3 kThreads(8, 32);  // along n, along m

__global__ void naive_kernel(const Half* a, const Half* b, Half* c, int m, int n, int k) {
  const int64_t row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= m || column >= n) return;
  float sum = 0.0f;
  for (int i = 0; i < k; ++i) sum += float(a[row * k + i]) * float(b[column * k + i]);
  c[row * n + column] = Half(sum);
}

}  // namespace

void matmul_naive(const Tensor& a, const Tensor& b, Tensor& c) {
  const Matmul p = checked_matmul("1_naive", a, b, c, kNaive);
  const dim3 blocks((p.n - 1) / kThreads.x + 1, (p.m - 1) / kThreads.y + 1);
  naive_kernel<<<blocks, kThreads, 0, p.stream>>>(p.a, p.b, p.c, p.m, p.n, p.k);
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace demi::bench::ladder
