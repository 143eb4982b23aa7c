// The loss scale's update. Products are formed in FP64 and rounded once.
#include "demi/kernels/loss_scale.h"

#include <algorithm>
#include <cmath>

#include "demi/core/overflow.h"

namespace demi::kernels::cpu {

void update_loss_scale(const std::vector<Tensor>& found, const LossScaleOptions& options, Tensor& scale,
                       Tensor& tracker, Tensor& overflows, const Tensor& random_step) {
  constexpr float kSmallest = 0x1p-126f;  // the smallest normal: its inverse is finite
  const bool overflow =
      std::any_of(found.begin(), found.end(), [](const Tensor& flag) { return *flag.data<int32_t>() != 0; });
  float& value = *scale.mutable_data<float>();
  int32_t &clean = *tracker.mutable_data<int32_t>(), &in_a_row = *overflows.mutable_data<int32_t>();
  if (!overflow) {
    in_a_row = 0;
    if (++clean != options.growth_interval) return;
    clean = 0;
    const float grown = static_cast<float>(static_cast<double>(value) * options.growth_factor);
    if (std::isfinite(grown)) value = grown;
    return;
  }
  value = std::max(kSmallest, static_cast<float>(static_cast<double>(value) * options.backoff_factor));
  clean = 0;
  ++in_a_row;
  if (options.max_consecutive_overflows > 0 && in_a_row >= options.max_consecutive_overflows)
    throw Error(overflow_message(scale.device(), in_a_row, random_step.defined() ? *random_step.data<int64_t>() : 0));
}

}  // namespace demi::kernels::cpu
