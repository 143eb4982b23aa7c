#include "demi/bench/clocks.h"

#include <dlfcn.h>

#include <array>
#include <memory>
#if DEMI_CUDA
#include "demi/core/cuda/check.h"
#endif

namespace demi::bench {

#if DEMI_CUDA
CardState read_card(Device device) {
  CardState state;
  if (!device.is_cuda()) return state;
  const std::unique_ptr<void, int (*)(void*)> library(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL), dlclose);
  if (!library) return state;
  // NVML's C interface: a result of 0 is success, a device an opaque pointer; clocks 1 and 2 are the SMs' and the
  // memory's.
  using Nvml = int (*)();
  using ByBusId = int (*)(const char*, void**);
  using Clock = int (*)(void*, int, unsigned*);
  using Version = int (*)(char*, unsigned);
  const auto find = [&](const char* name) { return dlsym(library.get(), name); };
  const auto init = reinterpret_cast<Nvml>(find("nvmlInit_v2")),
             shutdown = reinterpret_cast<Nvml>(find("nvmlShutdown"));
  const auto by_bus_id = reinterpret_cast<ByBusId>(find("nvmlDeviceGetHandleByPciBusId_v2"));
  const auto clock = reinterpret_cast<Clock>(find("nvmlDeviceGetClockInfo"));
  const auto version = reinterpret_cast<Version>(find("nvmlSystemGetDriverVersion"));
  if (!init || !shutdown || !by_bus_id || !clock || !version || init() != 0) return state;
  std::array<char, 96> text{};
  if (version(text.data(), text.size()) == 0) state.driver = text.data();
  void* card = nullptr;
  if (cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), device.index()) == cudaSuccess &&
      by_bus_id(text.data(), &card) == 0) {
    if (clock(card, 1, &state.sm_clock_MHz) != 0) state.sm_clock_MHz = 0;
    if (clock(card, 2, &state.memory_clock_MHz) != 0) state.memory_clock_MHz = 0;
  }
  (void)shutdown();
  return state;
}
#else
CardState read_card(Device) { return {}; }
#endif

}  // namespace demi::bench
