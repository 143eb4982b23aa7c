#include "demi/kernels/random.h"

#include <map>
#include <mutex>
#include <utility>

namespace demi {
namespace {

struct States {
  std::mutex mutex;
  uint64_t seed = 0;
  std::map<std::pair<Device::Kind, int>, RandomState> of;  // a map: references to its values stay valid
};

// Never destroyed: at exit its tensors' allocator may be gone already.
States& states() {
  static States* const all = new States;
  return *all;
}

}  // namespace

RandomState& random_state(Device device) {
  States& all = states();
  std::lock_guard lock(all.mutex);
  RandomState& state = all.of[{device.kind(), device.index()}];
  if (!state.step.defined()) {
    const memory::Scope scope(memory::Category::Workspace);
    const backend::DeviceScope current(device.is_cuda() ? device.index() : -1);
    state.seed = all.seed;
    state.step = Tensor::zeros({}, DType::I64, device);
  }
  return state;
}

void manual_seed(uint64_t seed) {
  States& all = states();
  std::lock_guard lock(all.mutex);
  all.seed = seed;
  for (auto& [key, state] : all.of) {
    state.seed = seed;
    state.call = 0;
    if (!state.step.defined()) continue;
    const backend::DeviceScope current(state.step.device().is_cuda() ? state.step.device().index() : -1);
    state.step.zero();
  }
}

}  // namespace demi
