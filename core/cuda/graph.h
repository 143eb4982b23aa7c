// Graph: a sequence of launches captured once and replayed with one call.
#pragma once

#include <functional>
#include <vector>

#include "demi/core/backend.h"
#include "demi/core/cuda/context.h"

namespace demi::cuda {

// Runs `step` `warmup` times for real (so that plans are found and memory is cached), then captures it once without
// running it; replay() runs what was captured. Inputs and outputs live in buffers that outlive the graph. Memory taken
// while capturing stays with the graph. A synchronization or a plan search inside the capture is an Error.
//
// A replay does on the host what the step would have had to do there (backend::around_replays): compute copies that a
// load of weights has made old are cast again, and copies that the replay leaves behind count as old. Capture whole
// steps, zero_grad() to the optimizer's step(): whether a parameter has a gradient is known on the host, and a replay
// does not tell.
class Graph {
 public:
  explicit Graph(const std::function<void()>& step, int warmup = 3, Device device = Device::cuda());
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void replay();  // on the calling thread's stream; does not wait; throws what kernels have reported until then

 private:
  Device device_;
  struct Hook {
    const void* key;
    std::function<void()> before, after;
  };
  friend void backend::around_replays(const void*, std::function<void()>, std::function<void()>);

  std::vector<Hook> hooks_;
  memory::PrivatePool pool_;  // ends after what uses it
  Handle<cudaGraph_t, cudaGraphDestroy> graph_;
  Handle<cudaGraphExec_t, cudaGraphExecDestroy> executable_;
};

}  // namespace demi::cuda
