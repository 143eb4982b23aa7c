// One Adam or AdamW step in one pass: reads gradient, both moments and master, writes moments, master and its copies.
#include "demi/kernels/adam.h"

#include <cmath>

#include "demi/kernels/cpu/step.h"

namespace demi::kernels::cpu {

void adam_step(const StepOperands& run, Tensor& m, Tensor& v, const AdamOptions& options) {
  if (run.skip.defined() && *run.skip.data<int32_t>() != 0) return;
  const double t = 1.0 + (run.count.defined() ? static_cast<double>(*run.count.data<int32_t>()) : 0.0);
  const double lr = static_cast<double>(*run.lr.data<float>());
  const float step = static_cast<float>(lr / (1 - std::pow(options.beta1, t)));
  const float correction = static_cast<float>(1 / std::sqrt(1 - std::pow(options.beta2, t)));
  const float b1 = static_cast<float>(options.beta1), c1 = static_cast<float>(1 - options.beta1);
  const float b2 = static_cast<float>(options.beta2), c2 = static_cast<float>(1 - options.beta2);
  const float eps = static_cast<float>(options.eps), inverse = inverse_scale(run);
  const float coupled = options.decoupled ? 0.0f : static_cast<float>(options.weight_decay);
  const float shrink = options.decoupled ? static_cast<float>(1 - lr * options.weight_decay) : 1.0f;
  float *first = m.mutable_data<float>(), *second = v.mutable_data<float>();
  for_step_blocks("adam_step", run, [=](int64_t at, int64_t n, float* w, const float* grad) {
    float *pm = first + at, *pv = second + at;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const float g = grad[i] * inverse + coupled * w[i];
      pm[i] = b1 * pm[i] + c1 * g;
      pv[i] = b2 * pv[i] + c2 * g * g;
      w[i] = shrink * w[i] - step * pm[i] / (std::sqrt(pv[i]) * correction + eps);
    }
  });
}

}  // namespace demi::kernels::cpu
