// The card's clocks and driver, read through NVML, which is opened at run time: never linked, and nothing is set.
#pragma once

#include <string>

#include "demi/core/device.h"

namespace demi::bench {

struct CardState {
  std::string driver;                               // empty where NVML is not there
  unsigned sm_clock_MHz = 0, memory_clock_MHz = 0;  // 0: not told
};
CardState read_card(Device device);

}  // namespace demi::bench
