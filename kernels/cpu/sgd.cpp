// One SGD step in one pass: reads gradient, momentum and master, writes momentum, master and its 16-bit copies.
#include "demi/kernels/sgd.h"

#include <cmath>

#include "demi/kernels/cpu/step.h"

namespace demi::kernels::cpu {
namespace {

// a * b + c, rounded once where that is one instruction: PyTorch's kernels are compiled so, and the same roundings give
// its weights bit for bit.
inline float multiply_add(float a, float b, float c) {
#ifdef FP_FAST_FMAF
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

}  // namespace

void sgd_step(const StepOperands& run, Tensor& momentum, const SgdOptions& options) {
  const float inverse = inverse_scale(run), lr = *run.lr.data<float>();
  const float decay = static_cast<float>(options.weight_decay), mu = static_cast<float>(options.momentum);
  const bool first = !run.count.defined() || *run.count.data<int32_t>() == 0, nesterov = options.nesterov;
  const float take = first ? 1.0f : static_cast<float>(1 - options.dampening), keep = first ? 0.0f : mu;
  const bool skipped = run.skip.defined() && *run.skip.data<int32_t>() != 0;
  float* velocity = momentum.defined() && options.momentum != 0 && !skipped ? momentum.mutable_data<float>() : nullptr;
  for_step_blocks("sgd_step", run, [=](int64_t at, int64_t n, float* w, const float* grad) {
    if (!velocity) {
      map_block(
          n, [=](float a, float g) { return multiply_add(-lr, multiply_add(decay, a, g * inverse), a); }, w, w, grad);
      return;
    }
    float* v = velocity + at;
    if (first) std::fill_n(v, n, 0.0f);  // whatever was there, a NaN too, is not kept
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const float g = multiply_add(decay, w[i], grad[i] * inverse);
      v[i] = multiply_add(take, g, keep * v[i]);
      w[i] = multiply_add(-lr, nesterov ? multiply_add(mu, v[i], g) : v[i], w[i]);
    }
  });
}

}  // namespace demi::kernels::cpu
