// The error of a loss scale that gave up because step after step overflowed: worded here for both backends. core does
// not know gradients, so whoever does may leave a witness who says which of them it was.
#pragma once

#include <functional>
#include <string>

#include "demi/core/device.h"

namespace demi {

// in_a_row: consecutive overflows; step: the attempted step of the last. Asks the device's witness.
std::string overflow_message(Device device, int in_a_row, int64_t step);

// witness: a clause such as "the first gradient to overflow was that of fc.weight", or nothing. It may use the device.
void set_overflow_witness(Device device, std::function<std::string()> witness);

}  // namespace demi
