// What the device can do at most, measured by the same binary: bytes a second of a copy, operations a second of a large
// matrix product in each precision. Each is measured once, when it is first asked for.
#pragma once

#include <optional>

#include "demi/bench/harness.h"

namespace demi::bench {

class Ceilings {
 public:
  explicit Ceilings(Device device) : device_(device) {}
  double bytes_per_second();
  double flops_per_second(Precision precision);

 private:
  Device device_;
  std::optional<double> bytes_, flops_[4];
};

}  // namespace demi::bench
