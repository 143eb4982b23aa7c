// Device time a call: n calls, rotating through the sets of operands, are captured in one graph, so that no launch is
// waited for, and the graph is replayed between two events.
#include <algorithm>
#include <cmath>
#include <memory>

#include "demi/bench/timing.h"
#include "demi/core/cuda/context.h"
#include "demi/core/cuda/graph.h"
#include "demi/kernels/cuda/conv_kernels.h"

namespace demi::bench {
namespace {

using cuda::Context;
using cuda::Event;

constexpr double kReplaySeconds = 2e-3;  // a replay is at least about this long: its start is under 1 % of it
constexpr double kHostSeconds = 20e-3;   // of device work queued for the host's figure
constexpr int64_t kMostCalls = 4096;     // in one graph

class Stopwatch {
 public:
  explicit Stopwatch(Device device) : device_(device) {
    DEMI_CUDA_CHECK(cudaEventCreate(start_.out()));
    DEMI_CUDA_CHECK(cudaEventCreate(stop_.out()));
  }
  // Device time of what `launch` queues. The stream is held meanwhile, so that queueing it does not count.
  double seconds(int hold_microseconds, const Call& launch) {
    const cudaStream_t stream = Context::get(device_).stream();
    kernels::cuda::hold_stream(device_, hold_microseconds);
    DEMI_CUDA_CHECK(cudaEventRecord(start_.get(), stream));
    launch();
    DEMI_CUDA_CHECK(cudaEventRecord(stop_.get(), stream));
    DEMI_CUDA_CHECK(cudaEventSynchronize(stop_.get()));
    float milliseconds = 0;
    DEMI_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start_.get(), stop_.get()));
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  Device device_;
  Event start_, stop_;
};

// Wall time to issue one call while the device is busy with those before; the median of some.
double host_microseconds(const std::vector<Call>& sets, double device_seconds, Device device) {
  const auto calls = static_cast<size_t>(std::clamp(kHostSeconds / device_seconds, 5.0, 100.0));
  std::vector<double> times;
  synchronize(device);
  for (size_t i = 0; i < calls; ++i) {
    const double start = wall_seconds();
    sets[i % sets.size()]();
    times.push_back((wall_seconds() - start) * 1e6);
  }
  synchronize(device);
  return median(std::move(times));
}

}  // namespace

Timed prepare_cuda_timing(const std::vector<Call>& sets, Device device) {
  const backend::DeviceScope scope(device.index());
  const auto all = [&] {
    for (const Call& call : sets) call();
  };
  all();  // plans are found, memory is cached
  auto stopwatch = std::make_shared<Stopwatch>(device);
  const double once = std::max(1e-7, stopwatch->seconds(50, all) / static_cast<double>(sets.size()));
  const double host_us = host_microseconds(sets, once, device);

  const auto turn = static_cast<int64_t>(sets.size());
  const int64_t turns = std::clamp(static_cast<int64_t>(std::ceil(kReplaySeconds / once)), int64_t{1}, kMostCalls);
  const int64_t n = std::max<int64_t>(turn, (turns + turn - 1) / turn * turn);
  const auto graph = std::make_shared<cuda::Graph>(
      [&] {
        for (int64_t i = 0; i < n; ++i) sets[static_cast<size_t>(i % turn)]();
      },
      0, device);
  const int hold = 50 + static_cast<int>(n / 2);  // longer than it takes to launch a graph of n kernels
  // The graph knows addresses alone: what lies there is kept with it.
  const auto replay = [=, kept = sets] {
    (void)kept;
    return stopwatch->seconds(hold, [&] { graph->replay(); });
  };
  for (double spent = 0; spent < 5e-3;) spent += replay();  // clocks rise, instructions and tables are cached
  return {.calls = n, .seconds = replay, .host_us = host_us};
}

}  // namespace demi::bench
