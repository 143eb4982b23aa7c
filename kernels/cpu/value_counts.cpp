// Counts of values by magnitude: each thread counts for itself, then adds.
#include "demi/kernels/value_counts.h"

#include <mutex>

#include "demi/core/parallel.h"

namespace demi::kernels::cpu {

void count_values(const Tensor& x, Tensor& counts) {
  visit_training(x.dtype(), "count_values", [&](auto type) {
    using T = typename decltype(type)::type;
    const T* in = x.data<T>();
    int64_t* total = counts.mutable_data<int64_t>();
    std::mutex mutex;
    parallel_for(x.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
      std::array<int64_t, ValueCounts::kCounters> mine{};
      for (int64_t i = begin; i < end; ++i)
        detail::classify(static_cast<float>(in[i]), [&](int counter) { ++mine[static_cast<size_t>(counter)]; });
      const std::lock_guard lock(mutex);
      for (size_t k = 0; k < mine.size(); ++k) total[k] += mine[k];
    });
  });
}

}  // namespace demi::kernels::cpu
