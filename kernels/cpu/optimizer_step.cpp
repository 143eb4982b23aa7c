// What every optimizer step begins and ends with.
#include "demi/kernels/optimizer_step.h"

#include <algorithm>

namespace demi::kernels::cpu {

void begin_step(const Tensor& found, Tensor& skip, Tensor& random_step) {
  *skip.mutable_data<int32_t>() = found.defined() && *found.data<int32_t>() != 0 ? 1 : 0;
  if (random_step.defined()) ++*random_step.mutable_data<int64_t>();
}

void advance_counts(const Tensor& skip, Tensor& counts) {
  if (*skip.data<int32_t>() != 0) return;
  int32_t* count = counts.mutable_data<int32_t>();
  for (int64_t i = 0; i < counts.numel(); ++i) ++count[i];
}

void commit_or_restore(const Tensor& skip, Tensor& live, Tensor& shadow, Tensor& counts, Tensor& shadow_counts) {
  const bool restore = *skip.data<int32_t>() != 0;
  if (live.defined()) restore ? live.copy_from(shadow) : shadow.copy_from(live);
  if (counts.defined()) restore ? counts.copy_from(shadow_counts) : shadow_counts.copy_from(counts);
}

void advance_schedule(const Tensor& skip, const Tensor& table, Tensor& position, Tensor& lr) {
  if (*skip.data<int32_t>() != 0) return;
  const int64_t at = ++*position.mutable_data<int64_t>();
  *lr.mutable_data<float>() = table.data<float>()[std::min(at, table.numel() - 1)];
}

}  // namespace demi::kernels::cpu
