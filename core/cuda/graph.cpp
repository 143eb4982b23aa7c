#include "demi/core/cuda/graph.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace demi::cuda {
namespace {
Device require_cuda(Device device) {
  DEMI_CHECK(device.is_cuda(), "[graph] only work on a CUDA device can be captured, not on {}", device);
  return device;
}

thread_local Graph* capturing = nullptr;
struct Capturing {
  explicit Capturing(Graph* graph) { capturing = graph; }
  ~Capturing() { capturing = nullptr; }
  Capturing(const Capturing&) = delete;
  Capturing& operator=(const Capturing&) = delete;
};
}  // namespace

Graph::Graph(const std::function<void()>& step, int warmup, Device device)
    : device_(require_cuda(device)), pool_(device) {
  const backend::DeviceScope scope(device.index());
  Context& context = Context::get(device);
  DEMI_CHECK(!backend::capturing(device.index()), "[graph] a capture inside a capture");
  for (int i = 0; i < warmup; ++i) step();
  backend::synchronize(device.index());
  memory::release_cached(device);  // the pool needs as much again
  {
    const memory::PrivatePool::Use use(pool_);
    const Capturing mark(this);
    DEMI_CUDA_CHECK(cudaStreamBeginCapture(context.stream(), cudaStreamCaptureModeThreadLocal));
    // The thread's workspace may move when it grows later; what the graph writes to must stay its own.
    Tensor workspace = context.exchange_workspace({});
    std::exception_ptr failed;
    try {
      step();
    } catch (...) {
      failed = std::current_exception();
    }
    (void)context.exchange_workspace(std::move(workspace));
    const cudaError_t ended = cudaStreamEndCapture(context.stream(), graph_.out());
    if (failed) {
      (void)cudaGetLastError();  // a capture that was broken off says so
      std::rethrow_exception(failed);
    }
    DEMI_CUDA_CHECK(ended);
  }
  DEMI_CUDA_CHECK(cudaGraphInstantiate(executable_.out(), graph_.get(), 0));
}

void Graph::replay() {
  const backend::DeviceScope scope(device_.index());
  throw_pending_error(device_);
  for (const Hook& h : hooks_)
    if (h.before) h.before();
  DEMI_CUDA_CHECK(cudaGraphLaunch(executable_.get(), Context::get(device_).stream()));
  for (const Hook& h : hooks_)
    if (h.after) h.after();
}

}  // namespace demi::cuda

namespace demi::backend {

bool capturing_graph() { return cuda::capturing != nullptr; }

void around_replays(const void* key, std::function<void()> before, std::function<void()> after) {
  DEMI_CHECK(cuda::capturing, "[graph] no graph is being captured on this thread");
  auto& hooks = cuda::capturing->hooks_;
  if (std::any_of(hooks.begin(), hooks.end(), [&](const auto& h) { return h.key == key; })) return;
  hooks.push_back({key, std::move(before), std::move(after)});
}

}  // namespace demi::backend
