// Matmul, step 4: c = a b^T on tensor cores. One instruction of a warp multiplies 16 x 16 fragments of FP16 and adds
// the exact products in FP32; nvcuda::wmma hides which thread holds which element.
//
// Operations: 2 m n k = 1.10e12 for 8192^3, 1.6 ms at 700 TFLOP/s: the floor from here on.
// Adds over step 3: the tensor cores, at more than ten times the CUDA cores' rate, and operands that stay FP16 in
// shared memory, half the bytes. A block makes 128 x 128 of c, each of its 8 warps 64 x 32 as 4 x 2 fragments: per 16
// of k a warp reads six fragments for eight products. What holds it back: tiles pass through registers on their way to
// shared memory, fragments are read and multiplied by turns, and one stage ahead is less than the memory's latency at
// this rate.
#include <mma.h>

#include "demi/bench/ladder/steps.h"
#include "demi/kernels/cuda/device.cuh"

namespace demi::bench::ladder {
namespace {

namespace wmma = nvcuda::wmma;
using kernels::cuda::Pack;

constexpr int kTile = kWmma.m, kTileK = kWmma.k, kThreads = 256, kPiece = 8, kFragment = 16;
constexpr int kWarpM = 64, kWarpN = 32, kFragmentsM = kWarpM / kFragment, kFragmentsN = kWarpN / kFragment;
constexpr int kPiecesARow = kTileK / kPiece, kRowsAPass = kThreads / kPiecesARow, kPasses = kTile / kRowsAPass;
// Rows of 80 bytes: eight rows that a fragment load takes together then start in different banks.
constexpr int kPitch = kTileK + 8;
static_assert(kWmma.n == kTile && (kTile / kWarpM) * (kTile / kWarpN) * 32 == kThreads);

using FragmentA = wmma::fragment<wmma::matrix_a, kFragment, kFragment, kFragment, __half, wmma::row_major>;
// b[j, k] read as b^T[k, j]: column by column.
using FragmentB = wmma::fragment<wmma::matrix_b, kFragment, kFragment, kFragment, __half, wmma::col_major>;
using FragmentC = wmma::fragment<wmma::accumulator, kFragment, kFragment, kFragment, float>;

struct alignas(32) Stage {
  Half a[kTile][kPitch], b[kTile][kPitch];
};

__device__ const __half* native(const Half* p) { return reinterpret_cast<const __half*>(p); }

__global__ void __launch_bounds__(kThreads, 2)
    wmma_kernel(const Half* __restrict__ a, const Half* __restrict__ b, Half* __restrict__ c, int n, int k) {
  __shared__ Stage stages[2];
  __shared__ __align__(32) float patches[kThreads / 32][kFragment][kFragment];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_m = warp / (kTile / kWarpN) * kWarpM, warp_n = warp % (kTile / kWarpN) * kWarpN;
  const int row = threadIdx.x / kPiecesARow, column = threadIdx.x % kPiecesARow * kPiece;
  const Half* from_a = a + (int64_t{blockIdx.y} * kTile + row) * k + column;
  const Half* from_b = b + (int64_t{blockIdx.x} * kTile + row) * k + column;

  using Piece = Pack<Half, kPiece>;
  Piece piece_a[kPasses], piece_b[kPasses];
  const auto load = [&](int k0) {
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
      piece_a[p] = *reinterpret_cast<const Piece*>(from_a + int64_t{p} * kRowsAPass * k + k0);
      piece_b[p] = *reinterpret_cast<const Piece*>(from_b + int64_t{p} * kRowsAPass * k + k0);
    }
  };

  FragmentC sum[kFragmentsM][kFragmentsN];
#pragma unroll
  for (auto& line : sum)
#pragma unroll
    for (auto& fragment : line) wmma::fill_fragment(fragment, 0.0f);
  load(0);
  for (int k0 = 0; k0 < k; k0 += kTileK) {
    Stage& stage = stages[k0 / kTileK % 2];
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
      *reinterpret_cast<Piece*>(&stage.a[row + p * kRowsAPass][column]) = piece_a[p];
      *reinterpret_cast<Piece*>(&stage.b[row + p * kRowsAPass][column]) = piece_b[p];
    }
    __syncthreads();
    if (k0 + kTileK < k) load(k0 + kTileK);
#pragma unroll
    for (int kk = 0; kk < kTileK; kk += kFragment) {
      FragmentA of_a[kFragmentsM];
      FragmentB of_b[kFragmentsN];
#pragma unroll
      for (int i = 0; i < kFragmentsM; ++i)
        wmma::load_matrix_sync(of_a[i], native(&stage.a[warp_m + i * kFragment][kk]), kPitch);
#pragma unroll
      for (int j = 0; j < kFragmentsN; ++j)
        wmma::load_matrix_sync(of_b[j], native(&stage.b[warp_n + j * kFragment][kk]), kPitch);
#pragma unroll
      for (int i = 0; i < kFragmentsM; ++i)
#pragma unroll
        for (int j = 0; j < kFragmentsN; ++j) wmma::mma_sync(sum[i][j], of_a[i], of_b[j], sum[i][j]);
    }
  }

  // Fragments leave by way of shared memory, the only place where the layout is known: a lane rounds half a row.
  const int patch_row = lane / 2, patch_column = lane % 2 * kPiece;
#pragma unroll
  for (int i = 0; i < kFragmentsM; ++i)
#pragma unroll
    for (int j = 0; j < kFragmentsN; ++j) {
      wmma::store_matrix_sync(&patches[warp][0][0], sum[i][j], kFragment, wmma::mem_row_major);
      __syncwarp();
      Piece out;
#pragma unroll
      for (int e = 0; e < kPiece; ++e) out.value[e] = Half(patches[warp][patch_row][patch_column + e]);
      const int64_t at_row = int64_t{blockIdx.y} * kTile + warp_m + i * kFragment + patch_row;
      const int64_t at_column = int64_t{blockIdx.x} * kTile + warp_n + j * kFragment + patch_column;
      uint4 bits;  // else the compiler splits the store
      memcpy(&bits, &out, sizeof bits);
      *reinterpret_cast<uint4*>(c + at_row * n + at_column) = bits;
      __syncwarp();
    }
}

}  // namespace

void matmul_wmma(const Tensor& a, const Tensor& b, Tensor& c) {
  const Matmul p = checked_matmul("4_wmma", a, b, c, kWmma);
  wmma_kernel<<<dim3(p.n / kTile, p.m / kTile), kThreads, 0, p.stream>>>(p.a, p.b, p.c, p.n, p.k);
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace demi::bench::ladder
