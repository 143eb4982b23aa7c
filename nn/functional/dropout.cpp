#include "demi/nn/functional/dropout.h"

#include "demi/kernels/dropout.h"
#include "demi/kernels/random.h"

namespace demi {

Variable dropout(const Variable& x, double p) {
  RandomState& random = random_state(x.device());
  const kernels::DropoutResult r = kernels::dropout(x.tensor(), p, random.seed, random.step, random.call++);
  return record("dropout", r.y, {x}, [mask = r.mask, p](const Tensor& dy) {
    return std::vector<Tensor>{kernels::dropout_backward(dy, mask, p)};
  });
}

}  // namespace demi
