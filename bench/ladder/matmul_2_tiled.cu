// Matmul, step 2: c = a b^T in tiles. A block makes 32 x 32 elements of c; along k it copies 32 x 32 elements of a and
// of b at a time into shared memory, where each serves 32 threads.
//
// Operations: 2 m n k on the CUDA cores in FP32, 18 ms for 8192^3 at 60 TFLOP/s.
// Adds over step 1: reads from the L2 fall to 2 m n k (1/32 + 1/32) = 69 GB, in whole 64-byte runs of a row.
// What holds it back: a product still takes an element of each operand from shared memory. For 32 products of a warp
// that is one pass of shared memory for b and a quarter for a (its row is the same for the warp: four elements come as
// one 16-byte broadcast). A pass takes a cycle, in which the cores could do 128 products: at best a fifth of their
// peak.
#include "demi/bench/ladder/steps.h"
#include "demi/core/dtype.h"

namespace demi::bench::ladder {
namespace {

constexpr int kTile = 32;
static_assert(kTiled.m == kTile && kTiled.n == kTile && kTiled.k == kTile);

__global__ void __launch_bounds__(kTile* kTile) tiled_kernel(const Half* a, const Half* b, Half* c, int n, int k) {
  // Threads of a warp read a column of tile_b: rows of 33 put its elements into different banks.
  __shared__ __align__(16) float tile_a[kTile][kTile];
  __shared__ float tile_b[kTile][kTile + 1];
  const int x = threadIdx.x, y = threadIdx.y;
  const int64_t row = blockIdx.y * kTile + y, column = blockIdx.x * kTile + x, row_b = blockIdx.x * kTile + y;
  float sum = 0.0f;
  for (int k0 = 0; k0 < k; k0 += kTile) {
    tile_a[y][x] = a[row * k + k0 + x];
    tile_b[y][x] = b[row_b * k + k0 + x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTile; ++i) sum += tile_a[y][i] * tile_b[x][i];
    __syncthreads();
  }
  c[row * n + column] = Half(sum);
}

}  // namespace

void matmul_tiled(const Tensor& a, const Tensor& b, Tensor& c) {
  const Matmul p = checked_matmul("2_tiled", a, b, c, kTiled);
  tiled_kernel<<<dim3(p.n / kTile, p.m / kTile), dim3(kTile, kTile), 0, p.stream>>>(p.a, p.b, p.c, p.n, p.k);
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace demi::bench::ladder
