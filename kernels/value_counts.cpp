#include "demi/kernels/value_counts.h"

#include <algorithm>
#include <numeric>

namespace demi::kernels {

int64_t ValueCounts::finite_non_zero() const { return std::accumulate(exponents.begin(), exponents.end(), int64_t{0}); }

ValueCounts& ValueCounts::operator+=(const ValueCounts& other) {
  std::transform(kinds.begin(), kinds.end(), other.kinds.begin(), kinds.begin(), std::plus<>());
  std::transform(exponents.begin(), exponents.end(), other.exponents.begin(), exponents.begin(), std::plus<>());
  return *this;
}

Tensor value_counters(Device device) { return Tensor::zeros({ValueCounts::kCounters}, DType::I64, device); }

ValueCounts read_counts(const Tensor& counters) {
  const std::vector<int64_t> all = counters.to_vector<int64_t>();
  ValueCounts counts;
  std::copy_n(all.begin(), +ValueCounts::kKinds, counts.kinds.begin());
  std::copy(all.begin() + ValueCounts::kKinds, all.end(), counts.exponents.begin());
  return counts;
}

}  // namespace demi::kernels
