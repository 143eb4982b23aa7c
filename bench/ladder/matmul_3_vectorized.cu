// Matmul, step 3: c = a b^T, a block 128 x 128 elements of c, a thread 8 x 8 of them in registers.
//
// Operations: 2 m n k on the CUDA cores in FP32, 18 ms for 8192^3 at 60 TFLOP/s: this step's floor.
// Adds over step 2:
//   - per k a thread reads 8 + 8 numbers from shared memory, as four 16-byte loads, for 64 products: a pass of shared
//     memory serves 256 products or more, where in step 2 it served 26;
//   - global memory is read in 16-byte pieces, one instruction for eight elements; reads from the L2 fall to 17 GB;
//   - two stages: the next pieces are on their way into registers while this stage is multiplied, and one barrier a
//     stage does, since the stage being written is never the one being read.
// What holds it back: the CUDA cores. Half precision has saved bytes so far, and no operation.
#include "demi/bench/ladder/steps.h"
#include "demi/kernels/cuda/device.cuh"

namespace demi::bench::ladder {
namespace {

using kernels::cuda::load_floats;
using kernels::cuda::Pack;

constexpr int kTile = kVectorized.m, kTileK = kVectorized.k, kThreads = 256, kPiece = 8;
static_assert(kVectorized.n == kTile && kThreads == kTile * kTileK / kPiece);

struct alignas(16) Stage {  // operands as FP32 and transposed: what a thread takes of one k is then contiguous
  float a[kTileK][kTile], b[kTileK][kTile];
};

__device__ Pack<Half, kPiece> load_piece(const Half* p) { return *reinterpret_cast<const Pack<Half, kPiece>*>(p); }

// Rows first .. first + 3 and first + 64 .. first + 67: a warp then reads runs of 64 and 128 bytes, free of conflicts.
__device__ void load_eight(const float* row, int first, float (&v)[8]) {
  float low[4], high[4];
  load_floats<4>(row + first, low);
  load_floats<4>(row + kTile / 2 + first, high);
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = low[i], v[4 + i] = high[i];
}

__global__ void __launch_bounds__(kThreads, 2)
    vectorized_kernel(const Half* __restrict__ a, const Half* __restrict__ b, Half* __restrict__ c, int n, int k) {
  __shared__ Stage stages[2];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;

  // Loading: a thread has one piece of a row of each operand. Neighbours have neighbouring rows, whose transposed
  // elements lie side by side.
  const int row = thread % kTile, first_k = thread / kTile * kPiece;
  const Half* from_a = a + (int64_t{blockIdx.y} * kTile + row) * k + first_k;
  const Half* from_b = b + (int64_t{blockIdx.x} * kTile + row) * k + first_k;
  Pack<Half, kPiece> piece_a = load_piece(from_a), piece_b = load_piece(from_b);

  // Multiplying: threads are 16 x 16 over the tile, those of a warp 4 x 8.
  const int y = (warp / 2 * 4 + lane / 8) * 4, x = (warp % 2 * 8 + lane % 8) * 4;
  float sum[8][8] = {};
  for (int k0 = 0; k0 < k; k0 += kTileK) {
    Stage& stage = stages[k0 / kTileK % 2];
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      stage.a[first_k + i][row] = piece_a.value[i];
      stage.b[first_k + i][row] = piece_b.value[i];
    }
    __syncthreads();
    if (k0 + kTileK < k) {
      piece_a = load_piece(from_a + k0 + kTileK);
      piece_b = load_piece(from_b + k0 + kTileK);
    }
#pragma unroll
    for (int kk = 0; kk < kTileK; ++kk) {
      float of_a[8], of_b[8];
      load_eight(stage.a[kk], y, of_a);
      load_eight(stage.b[kk], x, of_b);
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[i][j] += of_a[i] * of_b[j];
    }
  }

#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 8; j += 4) {
      const int64_t at_row = int64_t{blockIdx.y} * kTile + y + i % 4 + i / 4 * (kTile / 2);
      const int64_t at_column = int64_t{blockIdx.x} * kTile + x + j / 4 * (kTile / 2);
      const __half2 four[2] = {__floats2half2_rn(sum[i][j], sum[i][j + 1]),
                               __floats2half2_rn(sum[i][j + 2], sum[i][j + 3])};
      uint2 bits;  // else the compiler splits the store
      memcpy(&bits, four, sizeof bits);
      *reinterpret_cast<uint2*>(c + at_row * n + at_column) = bits;
    }
}

}  // namespace

void matmul_vectorized(const Tensor& a, const Tensor& b, Tensor& c) {
  const Matmul p = checked_matmul("3_vectorized", a, b, c, kVectorized);
  vectorized_kernel<<<dim3(p.n / kTile, p.m / kTile), kThreads, 0, p.stream>>>(p.a, p.b, p.c, p.n, p.k);
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace demi::bench::ladder
