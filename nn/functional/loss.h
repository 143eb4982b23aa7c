// Losses. They are computed and returned in FP32 whatever their inputs are in.
#pragma once

#include "demi/autograd/variable.h"
#include "demi/kernels/dispatch.h"

namespace demi {

using kernels::Reduction;

struct CrossEntropyOptions {
  Reduction reduction = Reduction::Mean;
  double label_smoothing = 0;
};

// logits: [N, C], labels: [N] int64 -> [] or, with Reduction::None, [N]. Formula in kernels/cross_entropy.h.
Variable cross_entropy(const Variable& logits, const Tensor& labels, const CrossEntropyOptions& options = {});

// x, target: the same shape -> [] or, with Reduction::None, that shape.
Variable mse_loss(const Variable& x, const Variable& target, Reduction reduction = Reduction::Mean);

namespace nn {
using demi::cross_entropy;
using demi::mse_loss;
}  // namespace nn

}  // namespace demi
