// Softmax and log-softmax along one axis; the formula in kernels/softmax.h.
#pragma once

#include "demi/autograd/variable.h"

namespace demi {

Variable softmax(const Variable& x, int axis = -1);
Variable log_softmax(const Variable& x, int axis = -1);

}  // namespace demi
