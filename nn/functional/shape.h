// Other shapes for the same elements, and other orders of axes.
#pragma once

#include <vector>

#include "demi/autograd/variable.h"

namespace demi {

Variable reshape(const Variable& x, const std::vector<int64_t>& shape);  // one extent may be -1
Variable flatten(const Variable& x);                                     // [N, ...] -> [N, product of the rest]
Variable permute(const Variable& x, const std::vector<int>& axes);       // a copy: tensors are always contiguous

}  // namespace demi
