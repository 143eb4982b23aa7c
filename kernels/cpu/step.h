// The part that SGD and Adam share: a run of flat storage, a block at a time.
#pragma once

#include "demi/kernels/cpu/elementwise.h"
#include "demi/kernels/optimizer_step.h"

namespace demi::kernels::cpu {

// update(offset, n, master, grad) changes one block of masters in place; then the 16-bit copies are written from it.
// Nothing happens in a step that is skipped.
template <typename F>
void for_step_blocks(const char* op, const StepOperands& run, F update) {
  if (run.skip.defined() && *run.skip.data<int32_t>() != 0) return;
  visit_training(run.grad.dtype(), op, [&](auto type) {
    using T = typename decltype(type)::type;
    Tensor master = run.master, copy_f16 = run.copy_f16, copy_bf16 = run.copy_bf16;  // handles: they share the storage
    float* w = master.mutable_data<float>();
    const T* g = run.grad.data<T>();
    Half* half = copy_f16.defined() ? copy_f16.mutable_data<Half>() : nullptr;
    BFloat16* brain = copy_bf16.defined() ? copy_bf16.mutable_data<BFloat16>() : nullptr;
    parallel_for(master.numel(), kGrain, [&](int64_t begin, int64_t end) {
      Reader<T> read;
      for (int64_t at = begin; at < end; at += kBlock) {
        const int64_t n = std::min(kBlock, end - at);
        update(at, n, w + at, read(g + at, n));
        if (half) narrow(w + at, half + at, n);
        if (brain) narrow(w + at, brain + at, n);
      }
    });
  });
}

// What the gradient is multiplied with: 1/scale, formed in FP64 and rounded once.
inline float inverse_scale(const StepOperands& run) {
  return run.scale.defined() ? static_cast<float>(1.0 / static_cast<double>(*run.scale.data<float>())) : 1.0f;
}

}  // namespace demi::kernels::cpu
