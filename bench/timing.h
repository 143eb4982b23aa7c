// How long a call takes: on CUDA many calls captured in one graph and replayed between two events, on the CPU one call
// by the clock.
#pragma once

#include <functional>
#include <vector>

#include "demi/core/device.h"

namespace demi::bench {

using Call = std::function<void()>;

// Something to be timed again and again.
struct Timed {
  int64_t calls = 1;                // in one measurement
  std::function<double()> seconds;  // makes one measurement: of all these calls
  double host_us = 0;               // wall time to issue one call, without waiting for it; 0 on the CPU
};

// Rotating through `sets`, each with operands of its own: with enough of them no call meets what lies in the cache.
// What the calls hold stays alive with the result.
Timed prepare_timing(const std::vector<Call>& sets, Device device);
#if DEMI_CUDA
Timed prepare_cuda_timing(const std::vector<Call>& sets, Device device);
#endif

double wall_seconds();  // monotonic
double median(std::vector<double> values);
double quantile(std::vector<double> values, double q);  // linear between neighbours

}  // namespace demi::bench
