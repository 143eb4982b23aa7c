// What every optimizer step begins and ends with. Whether a step is real (no overflow was found) is known only on the
// device, so everything that must happen only in a real step is decided there.
#pragma once

#include "demi/kernels/dispatch.h"

namespace demi::kernels {

DEMI_BACKENDS(
    // skip (int32) = found is set, or, on CUDA, the device's error word is; found may be undefined. random_step (int64)
    // += 1.
    void begin_step(const Tensor& found, Tensor& skip, Tensor& random_step);
    // counts (int32, any number) += 1 unless skip.
    void advance_counts(const Tensor& skip, Tensor& counts);
    // skip: live = shadow; else shadow = live. FP32, one shape; counts likewise, int64. Either pair may be undefined.
    void commit_or_restore(const Tensor& skip, Tensor& live, Tensor& shadow, Tensor& counts, Tensor& shadow_counts);
    // Unless skip: lr = table[min(++position, n - 1)]. table: FP32 [n]; position: int64; lr: FP32.
    void advance_schedule(const Tensor& skip, const Tensor& table, Tensor& position, Tensor& lr);)

inline void begin_step(const Tensor& found, Tensor& skip, Tensor& random_step) {
  DEMI_DISPATCH(skip, begin_step, found, skip, random_step);
}
inline void advance_counts(const Tensor& skip, Tensor& counts) {
  if (counts.numel() > 0) DEMI_DISPATCH(skip, advance_counts, skip, counts);
}
inline void commit_or_restore(const Tensor& skip, Tensor& live, Tensor& shadow, Tensor& counts, Tensor& shadow_counts) {
  if (live.numel() + counts.numel() > 0)
    DEMI_DISPATCH(skip, commit_or_restore, skip, live, shadow, counts, shadow_counts);
}
inline void advance_schedule(const Tensor& skip, const Tensor& table, Tensor& position, Tensor& lr) {
  DEMI_DISPATCH(skip, advance_schedule, skip, table, position, lr);
}

// The operands that SGD and Adam share: one run of flat storage of n elements.
struct StepOperands {
  Tensor master;               // FP32 [n], read and written
  Tensor grad;                 // [n] in FP32, FP16 or BF16, left as it is
  Tensor copy_f16, copy_bf16;  // [n], rewritten from the new master; undefined where there is none
  Tensor lr;                   // FP32, one element
  Tensor scale;                // FP32: grad is scale times the true gradient; undefined means 1
  Tensor skip;                 // int32: when set, nothing is written
  Tensor count;                // int32: the real steps that this run has seen before
};

}  // namespace demi::kernels
