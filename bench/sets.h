// Which shapes a set measures an op at.
#pragma once

#include <string>
#include <vector>

#include "demi/bench/harness.h"

namespace demi::bench {

const std::vector<std::string>& set_names();

struct SetShape {
  std::string shape;
  bool warm_too = true;  // where it fits into the cache
};
// At a set of that name; empty where it leaves the op out. On the CPU batches and sizes are smaller.
std::vector<SetShape> shapes_of(const std::string& set, const Op& op, Device device);

}  // namespace demi::bench
