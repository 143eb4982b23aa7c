// Graph: a sequence of launches captured once and replayed with one call.
#pragma once

#include <functional>

#include "demi/core/cuda/context.h"

namespace demi::cuda {

// Runs `step` `warmup` times for real (so that plans are found and memory is cached), then captures it once without
// running it; replay() runs what was captured. Inputs and outputs live in buffers that outlive the graph. Memory taken
// while capturing stays with the graph. A synchronization or a plan search inside the capture is an Error.
class Graph {
 public:
  explicit Graph(const std::function<void()>& step, int warmup = 3, Device device = Device::cuda());
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void replay();  // on the calling thread's stream; does not wait

 private:
  Device device_;
  memory::PrivatePool pool_;  // ends after what uses it
  Handle<cudaGraph_t, cudaGraphDestroy> graph_;
  Handle<cudaGraphExec_t, cudaGraphExecDestroy> executable_;
};

}  // namespace demi::cuda
