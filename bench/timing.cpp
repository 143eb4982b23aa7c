#include "demi/bench/timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace demi::bench {

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double quantile(std::vector<double> values, double q) {
  DEMI_CHECK(!values.empty(), "a quantile of no values");
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at), above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - std::floor(at)) * (values[above] - values[below]);
}

double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

Timed prepare_timing(const std::vector<Call>& sets, Device device) {
  DEMI_CHECK(!sets.empty(), "nothing to time");
#if DEMI_CUDA
  if (device.is_cuda()) return prepare_cuda_timing(sets, device);
#else
  DEMI_CHECK(device.is_cpu(), "demi was built without CUDA");
#endif
  for (const Call& call : sets) call();
  const auto next = [sets, i = size_t{0}]() mutable {
    const double start = wall_seconds();
    sets[i++ % sets.size()]();
    return wall_seconds() - start;
  };
  return {.calls = 1, .seconds = next, .host_us = 0};
}

}  // namespace demi::bench
