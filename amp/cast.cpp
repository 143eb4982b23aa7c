#include "demi/amp/cast.h"

#include "demi/kernels/cast.h"

namespace demi {

Variable cast(const Variable& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  DEMI_CHECK(is_floating(dtype) && is_floating(x.dtype()), "[cast] from {} to {} has no gradient", x.dtype(), dtype);
  return record("cast", kernels::cast(x.tensor(), dtype), {x},
                [from = x.dtype()](const Tensor& dy) { return std::vector<Tensor>{kernels::cast(dy, from)}; });
}

}  // namespace demi
