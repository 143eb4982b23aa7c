// cast as a differentiable operation: the gradient is cast back. In demi, not demi::amp: it needs no autocast.
#pragma once

#include "demi/autograd/variable.h"

namespace demi {

// x in another floating dtype; x itself where it has the dtype already. The gradient returns in x's dtype.
Variable cast(const Variable& x, DType dtype);

}  // namespace demi
