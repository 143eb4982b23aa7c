// Where the files of cases meet: each adds its ops.
#pragma once

#include "demi/bench/harness.h"
#include "demi/bench/shapes.h"

namespace demi::bench {

void add_elementwise(std::vector<Op>& ops);
void add_norm(std::vector<Op>& ops);
void add_pool_loss(std::vector<Op>& ops);
void add_reduce(std::vector<Op>& ops);
void add_optim(std::vector<Op>& ops);
void add_matmul(std::vector<Op>& ops);
void add_conv(std::vector<Op>& ops);
void add_ladder(std::vector<Op>& ops);  // in builds with CUDA

inline const std::vector<Precision> kStored{Precision::Fp32, Precision::Fp16, Precision::Bf16};
inline const std::vector<Precision> k16Bit{Precision::Fp16, Precision::Bf16};
inline const std::vector<Precision> kAll{Precision::Fp32, Precision::Tf32, Precision::Fp16, Precision::Bf16};

inline double bytes_of(const Shape& shape, DType dtype) {
  return static_cast<double>(shape.numel()) * static_cast<double>(size_of(dtype));
}

}  // namespace demi::bench
