// Matmul, step 6: c = a b^T by Hopper's warpgroup instructions. A block makes 128 x 256 of c, each of its two
// multiplying warpgroups 64 x 256.
//
// Operations: 2 m n k = 1.10e12 for 8192^3, 1.6 ms at 700 TFLOP/s. Bytes that reach a block: as in step 5.
// Adds over step 5:
//   - wgmma: 128 threads multiply together, operands straight from shared memory; registers hold sums only;
//   - bulk copies (TMA): one thread asks for a whole tile, the copy engine computes addresses, swizzles, and counts the
//     bytes that have come at a barrier;
//   - roles: one warpgroup copies, two multiply. They meet at two barriers a stage, "full" and "empty", and never at
//     __syncthreads(); the copying one gives up registers, so that the others hold 128 sums a thread;
//   - a block a multiprocessor that walks over tiles: the next tile is being copied while this one's sums are written.
#include <cudaTypedefs.h>

#include "demi/bench/ladder/hopper.cuh"
#include "demi/bench/ladder/ptx.cuh"
#include "demi/bench/ladder/steps.h"
#include "demi/kernels/cuda/device.cuh"

namespace demi::bench::ladder {
namespace {

using kernels::cuda::store_floats;

constexpr int kTileM = kWgmma.m, kTileN = kWgmma.n, kTileK = kWgmma.k, kStages = 4, kStrip = 16;
constexpr int kGroup = 128, kMultiplying = 2, kGroupM = kTileM / kMultiplying, kThreads = (1 + kMultiplying) * kGroup;
constexpr int kRowBytes = kTileK * 2, kBytesA = kTileM * kRowBytes, kStageBytes = (kTileM + kTileN) * kRowBytes;
constexpr int kSharedBytes = kStages * kStageBytes + 1024;  // stages start at a multiple of 1024
static_assert(kGroupM == 64 && kTileN == 256 && kRowBytes == 128);

// Strips of kStrip rows of tiles, each strip column by column: blocks that run together share rows in the L2.
__device__ int2 corner_of(int tile, int tiles_m, int tiles_n) {
  const int first = tile / (kStrip * tiles_n) * kStrip, at = tile - first * tiles_n;
  const int height = min(kStrip, tiles_m - first);
  return make_int2((first + at % height) * kTileM, at / height * kTileN);
}

// The stages form a ring, walked by both roles in the same order; `parity` turns with each round.
struct Ring {
  int stage = 0, parity = 0;
  __device__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

__global__ void __launch_bounds__(kThreads, 1)
    wgmma_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, Half* __restrict__ c,
                 int m, int n, int k) {
  extern __shared__ unsigned char memory[];
  __shared__ __align__(8) uint64_t barriers[2 * kStages];
  const uint32_t stages = (ptx::shared_address(memory) + 1023) & ~1023u;
  const uint32_t full = ptx::shared_address(barriers), empty = full + kStages * 8;
  const int steps = k / kTileK, tiles_m = m / kTileM, tiles_n = n / kTileN, tiles = tiles_m * tiles_n;

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      hopper::init_barrier(full + i * 8, 1);              // the copying thread, and the bytes
      hopper::init_barrier(empty + i * 8, kMultiplying);  // a thread of each multiplying warpgroup
    }
    hopper::publish_barriers();
  }
  __syncthreads();

  Ring ring;
  if (threadIdx.x < kGroup) {
    hopper::lower_registers<40>();
    if (threadIdx.x != 0) return;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const int2 corner = corner_of(tile, tiles_m, tiles_n);
      for (int step = 0; step < steps; ++step, ring.next()) {
        const uint32_t stage = stages + ring.stage * kStageBytes, barrier = full + ring.stage * 8;
        hopper::wait(empty + ring.stage * 8, ring.parity ^ 1);  // in the first round at once
        hopper::arrive_and_expect(barrier, kStageBytes);
        hopper::copy_box(stage, a, corner.x, step * kTileK, barrier);
        hopper::copy_box(stage + kBytesA, b, corner.y, step * kTileK, barrier);
      }
    }
    return;
  }

  hopper::raise_registers<232>();
  const int group = threadIdx.x / kGroup - 1, warp = threadIdx.x % kGroup / 32, lane = threadIdx.x % 32;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    float sum[128];
    uint32_t last_empty = 0;
    for (int step = 0; step < steps; ++step, ring.next()) {
      const uint32_t stage = stages + ring.stage * kStageBytes;
      const uint64_t of_a = hopper::operand(stage + group * kGroupM * kRowBytes);
      const uint64_t of_b = hopper::operand(stage + kBytesA);
      hopper::wait(full + ring.stage * 8, ring.parity);
      hopper::fence_products();
#pragma unroll
      for (int i = 0; i < kTileK / 16; ++i) hopper::multiply(sum, of_a + 2 * i, of_b + 2 * i, step > 0 || i > 0);
      hopper::commit_products();
      // This step's products run on while the step before gives its stage back.
      hopper::wait_for_products<1>();
      if (step > 0 && threadIdx.x % kGroup == 0) hopper::arrive(last_empty);
      last_empty = empty + ring.stage * 8;
    }
    hopper::wait_for_products<0>();
    if (threadIdx.x % kGroup == 0) hopper::arrive(last_empty);

    const int2 corner = corner_of(tile, tiles_m, tiles_n);
    Half* out = c + int64_t{corner.x + group * kGroupM + warp * 16 + lane / 4} * n + corner.y + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kTileN / 8; ++j) {
      store_floats<2>(out + j * 8, {sum[4 * j], sum[4 * j + 1]});
      store_floats<2>(out + int64_t{8} * n + j * 8, {sum[4 * j + 2], sum[4 * j + 3]});
    }
  }
}

// The driver's entry point through the runtime, so that a machine without a driver can start the program.
PFN_cuTensorMapEncodeTiled_v12000 find_encode() {
  void* encode = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  DEMI_CUDA_CHECK(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found));
#else
  DEMI_CUDA_CHECK(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &encode, cudaEnableDefault, &found));
#endif
  DEMI_CHECK(found == cudaDriverEntryPointSuccess, "[6_wgmma] the driver has no cuTensorMapEncodeTiled: update it");
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(encode);
}

// A row-major [rows, k] matrix of FP16, of which a copy takes box_rows x kTileK, swizzled.
CUtensorMap map_of(const Half* matrix, int rows, int k, int box_rows) {
  static const auto encode = find_encode();
  CUtensorMap map;
  const cuuint64_t extents[] = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(k) * 2};
  const cuuint32_t box[] = {kTileK, static_cast<cuuint32_t>(box_rows)}, every[] = {1, 1};
  const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, const_cast<Half*>(matrix), extents, strides,
                                 box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  DEMI_CHECK(result == CUDA_SUCCESS, "[6_wgmma] cuTensorMapEncodeTiled: error {}", static_cast<int>(result));
  return map;
}

}  // namespace

void matmul_wgmma(const Tensor& a, const Tensor& b, Tensor& c) {
  const Matmul p = checked_matmul("6_wgmma", a, b, c, kWgmma);
  cudaFuncAttributes code;
  int major = 0;
  DEMI_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, a.device().index()));
  DEMI_CUDA_CHECK(cudaFuncGetAttributes(&code, wgmma_kernel));
  DEMI_CHECK(major == 9 && code.binaryVersion == 90, "[6_wgmma] needs a Hopper card and a build for 90a");
  DEMI_CUDA_CHECK(cudaFuncSetAttribute(wgmma_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  const int tiles = p.m / kTileM * (p.n / kTileN);
  const int blocks = std::min(tiles, cuda::Context::get(a.device()).multiprocessors());
  wgmma_kernel<<<blocks, kThreads, kSharedBytes, p.stream>>>(map_of(p.a, p.m, p.k, kTileM),
                                                             map_of(p.b, p.n, p.k, kTileN), p.c, p.m, p.n, p.k);
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace demi::bench::ladder
