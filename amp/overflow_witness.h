// OverflowWitness: when a GradScaler gives up, who it was. Nothing is recorded while training goes well: the gradients
// are looked at when the error is raised, as they are then.
#pragma once

#include <memory>
#include <vector>

#include "demi/autograd/parameter.h"

namespace demi::amp {

class OverflowWitness {
 public:
  using Parameters = std::shared_ptr<const std::vector<Parameter>>;
  // From now on these are the gradients to look at on this device. One witness a device: the last that called.
  void watch(Device device, std::vector<Parameters> parameters);

 private:
  std::shared_ptr<const std::vector<Parameters>> watched_;  // the device's witness ends with this
};

}  // namespace demi::amp
