#include "demi/bench/ladder/ladder.h"

#include "demi/bench/ladder/steps.h"

namespace demi::bench {
namespace ladder {
namespace {

void check_on_cuda(const char* step, const Tensor& x, const char* name, DType dtype) {
  DEMI_CHECK(x.defined() && x.device().is_cuda(), "[{}] {} must be on a CUDA device", step, name);
  DEMI_CHECK(x.dtype() == dtype, "[{}] {} must be {}, not {}", step, name, dtype, x.dtype());
}

void check_aligned(const char* step, const Tensor& x, const char* name, int64_t bytes) {
  DEMI_CHECK(reinterpret_cast<uintptr_t>(x.raw()) % static_cast<uintptr_t>(bytes) == 0,
             "[{}] {} must start at a multiple of {} bytes", step, name, bytes);
}

int checked_extent(const char* step, const char* name, int64_t extent, int multiple) {
  constexpr int64_t kLargest = 1 << 20;  // so that numbers of tiles fit every axis of a grid
  DEMI_CHECK(extent >= 1 && extent <= kLargest, "[{}] takes {} from 1 to {}, not {}", step, name, kLargest, extent);
  DEMI_CHECK(extent % multiple == 0, "[{}] takes {} in multiples of {}, not {}", step, name, multiple, extent);
  return static_cast<int>(extent);
}

}  // namespace

Matmul checked_matmul(const char* step, const Tensor& a, const Tensor& b, Tensor& c, Multiples multiples) {
  check_on_cuda(step, a, "a", DType::F16);
  check_on_cuda(step, b, "b", DType::F16);
  check_on_cuda(step, c, "c", DType::F16);
  check_same_device(step, a, b);
  check_same_device(step, a, c);
  DEMI_CHECK(a.rank() == 2 && b.rank() == 2 && a.size(1) == b.size(1) && c.shape() == Shape({a.size(0), b.size(0)}),
             "[{}] takes a [m, k], b [n, k], c [m, n], not {}, {}, {}", step, a.shape(), b.shape(), c.shape());
  const int m = checked_extent(step, "m", a.size(0), multiples.m),
            n = checked_extent(step, "n", b.size(0), multiples.n);
  const int k = checked_extent(step, "k", a.size(1), multiples.k);
  if (multiples.k % 8 == 0) {
    check_aligned(step, a, "a", 16);
    check_aligned(step, b, "b", 16);
    check_aligned(step, c, "c", 16);
  }
  const cudaStream_t stream = cuda::Context::get(a.device()).stream();
  return {a.data<Half>(), b.data<Half>(), c.mutable_data<Half>(), m, n, k, stream};
}

void check_sum(const char* step, const Tensor& x, const Tensor& y, int64_t pack) {
  check_on_cuda(step, x, "x", x.dtype() == DType::F16 ? DType::F16 : DType::F32);
  check_on_cuda(step, y, "y", DType::F32);
  check_same_device(step, x, y);
  DEMI_CHECK(x.numel() >= 1 && y.shape() == Shape(), "[{}] sums one or more elements into shape [], not {} into {}",
             step, x.shape(), y.shape());
  check_aligned(step, x, "x", pack * static_cast<int64_t>(size_of(x.dtype())));
}

void check_batch_norm(const char* step, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y,
                      int64_t pack) {
  check_on_cuda(step, x, "x", DType::F16);
  check_on_cuda(step, y, "y", DType::F16);
  check_on_cuda(step, weight, "weight", DType::F32);
  check_on_cuda(step, bias, "bias", DType::F32);
  for (const Tensor* t : {&weight, &bias, &y}) check_same_device(step, x, *t);
  DEMI_CHECK(x.rank() == 2 && y.shape() == x.shape(), "[{}] takes x and y of one shape [rows, C], not {} and {}", step,
             x.shape(), y.shape());
  const int64_t rows = x.size(0), channels = x.size(1);
  DEMI_CHECK(weight.shape() == Shape({channels}) && bias.shape() == weight.shape(),
             "[{}] takes weight and bias of shape [{}], not {} and {}", step, channels, weight.shape(), bias.shape());
  DEMI_CHECK(rows >= 2 && channels >= 1, "[{}] takes two rows or more of one channel or more, not {}", step, x.shape());
  DEMI_CHECK(channels % pack == 0, "[{}] takes C in multiples of {}, not {}", step, pack, channels);
  if (pack == 1) return;
  check_aligned(step, x, "x", 16);
  check_aligned(step, y, "y", 16);
  check_aligned(step, weight, "weight", 16);
  check_aligned(step, bias, "bias", 16);
}

}  // namespace ladder

using namespace ladder;

const std::vector<MatmulStep>& matmul_steps() {
  const auto step = [](const char* name, const char* adds, Multiples tile, auto run) {
    return MatmulStep{name, adds, tile.m, tile.n, tile.k, run};
  };
  static const std::vector<MatmulStep> steps{
      step("1_naive", "a thread an element of c", kNaive, matmul_naive),
      step("2_tiled", "tiles in shared memory: an element read serves 32 threads", kTiled, matmul_tiled),
      step("3_vectorized", "16-byte loads, 8 x 8 results in a thread's registers", kVectorized, matmul_vectorized),
      step("4_wmma", "tensor cores through nvcuda::wmma", kWmma, matmul_wmma),
      step("5_mma", "mma.sync fed by ldmatrix from swizzled tiles that cp.async fills ahead", kMma, matmul_mma),
      step("6_wgmma", "wgmma from shared memory, bulk copies, a warpgroup a role, one block a multiprocessor", kWgmma,
           matmul_wgmma),
  };
  return steps;
}

const std::vector<SumStep>& sum_steps() {
  static const std::vector<SumStep> steps{
      // Once its one sum is past 2^22, terms are rounded to halves: 16.7 million between -0.25 and 1 come out 2 % too
      // large. That is what the step shows.
      {"1_atomic", "an atomic addition an element: not deterministic", sum_atomic, 5e-2},
      {"2_shared_tree", "a tree in shared memory, a result a block", sum_shared_tree},
      {"3_warp_shuffle", "warps add in registers: one barrier in place of nine", sum_warp_shuffle},
      {"4_vectorized", "16-byte loads, several under way in a thread", sum_vectorized},
      {"5_last_block", "the last block finishes: one launch", sum_last_block},
  };
  return steps;
}

const std::vector<BatchNormStep>& batch_norm_steps() {
  static const std::vector<BatchNormStep> steps{
      {"1_channel_a_block", "a block a channel, three walks down the rows", batch_norm_channel_a_block},
      {"2_coalesced", "threads along channels, rows over all blocks", batch_norm_coalesced},
      {"3_vectorized", "16-byte accesses, several rows under way in a thread", batch_norm_vectorized},
      {"4_fused", "statistics end in the last block; the second pass starts where the first ended", batch_norm_fused},
  };
  return steps;
}

}  // namespace demi::bench
