// backward: runs the recorded operations in reverse.
#pragma once

#include "demi/autograd/variable.h"

namespace demi {

// Computes the gradient of `root` for every leaf that it depends on and adds it to the leaf's grad. `seed` is the
// gradient of root itself (its shape and dtype); without one root must have a single element and gets 1. Nodes give up
// their closures, and so the memory these hold, as the walk passes them: a second backward through the same graph is an
// Error.
void backward(const Variable& root, const Tensor& seed = {});

}  // namespace demi
