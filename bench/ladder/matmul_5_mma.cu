// Matmul, step 5: c = a b^T on tensor cores by the instructions themselves. A block makes 128 x 256 of c, each of its 8
// warps 64 x 64.
//
// Operations: 2 m n k = 1.10e12 for 8192^3, 1.6 ms at 700 TFLOP/s. Bytes that reach a block: (128 + 256) k * 2, in all
// 2 m n k (1/128 + 1/256) = 12.9 GB from the L2.
// Adds over step 4:
//   - cp.async: tiles go to shared memory without passing registers, up to three tiles ahead of the products;
//   - a swizzle: piece p of row r lies at piece p ^ (r % 8) of its 128 bytes, so both a row written and a column of
//     eight pieces read by ldmatrix touch all banks once, without padding;
//   - ldmatrix: one instruction for four 8 x 8 matrices, just as mma.sync wants them; the fragments of the next 16 of k
//     are read while this one's are multiplied, across tiles as well;
//   - 64 x 64 results a warp: per 16 of k 8 fragments are read for 32 products of 16 x 8 x 16, in step 4 6 for 16;
//   - blocks that run together take tiles of 16 neighbouring rows, so they share rows of a and of b in the L2.
// What holds it back: mma.sync takes its operands from registers, through which every byte must pass first. On Hopper
// only wgmma, which reads shared memory by itself, keeps the tensor cores at their full rate.
#include "demi/bench/ladder/ptx.cuh"
#include "demi/bench/ladder/steps.h"
#include "demi/core/dtype.h"

namespace demi::bench::ladder {
namespace {

constexpr int kTileM = kMma.m, kTileN = kMma.n, kTileK = kMma.k, kThreads = 256, kPiece = 8;
constexpr int kWarpM = 64, kWarpN = 64, kWarpsN = kTileN / kWarpN, kSteps = kTileK / 16, kStrip = 16;
constexpr int kRowBytes = kTileK * 2, kBytesA = kTileM * kRowBytes, kStageBytes = (kTileM + kTileN) * kRowBytes;
constexpr int kRowsAPass = kThreads / (kTileK / kPiece);  // rows that the block copies with one piece a thread
static_assert(kRowBytes == 128 && kRowsAPass * kSteps == kTileM && (kTileM / kWarpM) * kWarpsN * 32 == kThreads);

__device__ int swizzled(int row, int piece) { return row * kRowBytes + ((piece ^ (row % 8)) * 16); }

// Strips of kStrip rows of tiles, each strip column by column.
__device__ int2 tile_of(int block, int tiles_m, int tiles_n) {
  const int first = block / (kStrip * tiles_n) * kStrip, at = block - first * tiles_n;
  const int height = min(kStrip, tiles_m - first);
  return make_int2(first + at % height, at / height);
}

template <int kStages>
__global__ void __launch_bounds__(kThreads, 1)
    mma_kernel(const Half* __restrict__ a, const Half* __restrict__ b, Half* __restrict__ c, int m, int n, int k) {
  extern __shared__ __align__(128) unsigned char stages[];
  const uint32_t shared = ptx::shared_address(stages);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tiles = k / kTileK;
  const int2 block = tile_of(blockIdx.x, m / kTileM, n / kTileN);
  const int64_t first_m = int64_t{block.x} * kTileM, first_n = int64_t{block.y} * kTileN;

  // Copying: a quarter of a tile at a time, 32 rows of a and 64 of b.
  const int row = threadIdx.x / (kTileK / kPiece), piece = threadIdx.x % (kTileK / kPiece), to = swizzled(row, piece);
  const Half* from_a = a + (first_m + row) * k + piece * kPiece;
  const Half* from_b = b + (first_n + row) * k + piece * kPiece;
  const auto copy_quarter = [&](int tile, int quarter) {
    if (tile >= tiles) return;
    const uint32_t stage = shared + tile % kStages * kStageBytes + to;
    const int down = quarter * kRowsAPass, k0 = tile * kTileK;  // a multiple of 8 rows: the swizzle stays
    ptx::copy_async(stage + down * kRowBytes, from_a + int64_t{down} * k + k0);
#pragma unroll
    for (int rows = 2 * down; rows <= 2 * down + kRowsAPass; rows += kRowsAPass)
      ptx::copy_async(stage + kBytesA + rows * kRowBytes, from_b + int64_t{rows} * k + k0);
  };

  // Reading: per 16 of k four times 16 rows of a, four times 16 rows of b.
  const int row_a = warp / kWarpsN * kWarpM + lane % 16, piece_a = lane / 16;
  const int row_b = warp % kWarpsN * kWarpN + lane / 16 * 8 + lane % 8, piece_b = lane / 8 % 2;
  uint32_t of_a[2][4][4], of_b[2][4][4];
  const auto load_fragments = [&](int tile, int step) {
    const uint32_t stage = shared + tile % kStages * kStageBytes;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      ptx::load_matrices(of_a[step % 2][i], stage + swizzled(row_a + i * 16, step * 2 + piece_a));
      ptx::load_matrices(of_b[step % 2][i], stage + kBytesA + swizzled(row_b + i * 16, step * 2 + piece_b));
    }
  };

  for (int tile = 0; tile < kStages - 1; ++tile) {
    for (int quarter = 0; quarter < kSteps; ++quarter) copy_quarter(tile, quarter);
    ptx::commit_copies();
  }
  ptx::wait_for_copies<kStages - 2>();
  __syncthreads();
  load_fragments(0, 0);

  float sum[4][8][4] = {};
  for (int tile = 0; tile < tiles; ++tile) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      // The stage that this fills was last read one tile ago, before the barrier below.
      copy_quarter(tile + kStages - 1, step);
      if (step + 1 < kSteps) {
        load_fragments(tile, step + 1);
      } else {
        ptx::commit_copies();
        ptx::wait_for_copies<kStages - 2>();  // this thread's part of the next tile has arrived,
        __syncthreads();                      // and everybody's
        if (tile + 1 < tiles) load_fragments(tile + 1, 0);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j)
          ptx::multiply_add(sum[i][j], of_a[step % 2][i], of_b[step % 2][j / 2][j % 2 * 2],
                            of_b[step % 2][j / 2][j % 2 * 2 + 1]);
    }
  }

  Half* out = c + (first_m + warp / kWarpsN * kWarpM + lane / 4) * n + first_n + warp % kWarpsN * kWarpN + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      *reinterpret_cast<__half2*>(out + int64_t{i} * 16 * n + j * 8) = __floats2half2_rn(sum[i][j][0], sum[i][j][1]);
      *reinterpret_cast<__half2*>(out + int64_t{i * 16 + 8} * n + j * 8) =
          __floats2half2_rn(sum[i][j][2], sum[i][j][3]);
    }
}

template <int kStages>
void launch(const Matmul& p) {
  cudaFuncAttributes code;
  DEMI_CUDA_CHECK(cudaFuncGetAttributes(&code, mma_kernel<kStages>));
  DEMI_CHECK(code.ptxVersion >= 80, "[5_mma] needs compute capability 8.0 or newer; what runs here is built for {}.{}",
             code.ptxVersion / 10, code.ptxVersion % 10);
  constexpr int kBytes = kStages * kStageBytes;
  DEMI_CUDA_CHECK(cudaFuncSetAttribute(mma_kernel<kStages>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const int blocks = p.m / kTileM * (p.n / kTileN);
  mma_kernel<kStages><<<blocks, kThreads, kBytes, p.stream>>>(p.a, p.b, p.c, p.m, p.n, p.k);
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

// As many stages as the card's shared memory holds: 4 on Hopper, 3 on A100, 2 where a block gets 99 KiB.
void matmul_mma(const Tensor& a, const Tensor& b, Tensor& c) {
  const Matmul p = checked_matmul("5_mma", a, b, c, kMma);
  int bytes = 0;
  DEMI_CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, a.device().index()));
  if (bytes >= 4 * kStageBytes)
    launch<4>(p);
  else if (bytes >= 3 * kStageBytes)
    launch<3>(p);
  else
    launch<2>(p);
}

}  // namespace demi::bench::ladder
