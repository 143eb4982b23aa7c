// Inside of the ladders: the steps' functions and what all steps check of their operands. All throw Error.
#pragma once

#include "demi/core/cuda/context.h"
#include "demi/core/tensor.h"

namespace demi::bench::ladder {

// What the extents of a matmul step's operands must be multiples of: its tile.
struct Multiples {
  int m, n, k;
};
constexpr Multiples kNaive{1, 1, 1}, kTiled{32, 32, 32}, kVectorized{128, 128, 16}, kWmma{128, 128, 32},
    kMma{128, 256, 64}, kWgmma{128, 256, 64};

void matmul_naive(const Tensor& a, const Tensor& b, Tensor& c);
void matmul_tiled(const Tensor& a, const Tensor& b, Tensor& c);
void matmul_vectorized(const Tensor& a, const Tensor& b, Tensor& c);
void matmul_wmma(const Tensor& a, const Tensor& b, Tensor& c);
void matmul_mma(const Tensor& a, const Tensor& b, Tensor& c);
void matmul_wgmma(const Tensor& a, const Tensor& b, Tensor& c);

void sum_atomic(const Tensor& x, Tensor& y);
void sum_shared_tree(const Tensor& x, Tensor& y);
void sum_warp_shuffle(const Tensor& x, Tensor& y);
void sum_vectorized(const Tensor& x, Tensor& y);
void sum_last_block(const Tensor& x, Tensor& y);

void batch_norm_channel_a_block(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor& y);
void batch_norm_coalesced(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor& y);
void batch_norm_vectorized(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor& y);
void batch_norm_fused(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor& y);

struct Matmul {
  const Half *a, *b;
  Half* c;
  int m, n, k;
  cudaStream_t stream;
};
// Shapes, dtypes, devices, multiples, and 16-byte alignment where rows consist of 16-byte pieces (k a multiple of 8).
Matmul checked_matmul(const char* step, const Tensor& a, const Tensor& b, Tensor& c, Multiples multiples);

// `pack`: how many elements one access of the step takes; x must be aligned to that.
void check_sum(const char* step, const Tensor& x, const Tensor& y, int64_t pack = 1);
void check_batch_norm(const char* step, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y,
                      int64_t pack = 1);

}  // namespace demi::bench::ladder
