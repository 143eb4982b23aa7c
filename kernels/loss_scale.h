// The dynamic loss scale's update, where the state lives: on the device. What it is for: amp/grad_scaler.h.
#pragma once

#include <vector>

#include "demi/kernels/dispatch.h"

namespace demi::kernels {

constexpr size_t kMostLossScaleFlags = 8;  // optimizers that one scaler serves between two updates

struct LossScaleOptions {
  double growth_factor = 2.0, backoff_factor = 0.5;
  int growth_interval = 2000;
  int max_consecutive_overflows = 0;  // report an error when so many steps in a row overflowed; 0: never
};

// found: int32 flags, one an optimizer, [n] gathered by the caller. scale: FP32; tracker: int32; overflows: int32,
// consecutive. Any flag: scale *= backoff (kept at 2^-126 or more, the smallest normal), tracker = 0, overflows += 1.
// Else overflows = 0, tracker += 1, and when that equals the interval, scale *= growth if finite, and tracker = 0.
// Products are formed in FP64 and rounded once.
DEMI_BACKENDS(void update_loss_scale(const std::vector<Tensor>& found, const LossScaleOptions& options, Tensor& scale,
                                     Tensor& tracker, Tensor& overflows, const Tensor& random_step);)

// At most kMostLossScaleFlags flags. random_step (int64) is only named in the error.
inline void update_loss_scale(const std::vector<Tensor>& found, const LossScaleOptions& options, Tensor& scale,
                              Tensor& tracker, Tensor& overflows, const Tensor& random_step) {
  DEMI_CHECK(found.size() <= kMostLossScaleFlags, "[loss_scale] one scaler serves at most {} optimizers, not {}",
             kMostLossScaleFlags, found.size());
  DEMI_DISPATCH(scale, update_loss_scale, found, options, scale, tracker, overflows, random_step);
}

}  // namespace demi::kernels
