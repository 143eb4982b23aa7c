// Sum, mean and max over axes (none: all of them); sum_to is the reverse of broadcasting.
#pragma once

#include <vector>

#include "demi/autograd/variable.h"

namespace demi {

Variable sum(const Variable& x, const std::vector<int>& axes = {}, bool keepdim = false);
Variable mean(const Variable& x, const std::vector<int>& axes = {}, bool keepdim = false);
Variable amax(const Variable& x, const std::vector<int>& axes = {},
              bool keepdim = false);                               // equal maxima share the gradient
Tensor argmax(const Variable& x, int axis, bool keepdim = false);  // int64, no gradient

}  // namespace demi
