// Dropout; formula and source in kernels/dropout.h.
#pragma once

#include "demi/autograd/variable.h"

namespace demi {

// Each element is dropped with probability p, the others are divided by 1 - p. Draws from the device's random_state().
Variable dropout(const Variable& x, double p);

}  // namespace demi
