#include "demi/nn/functional/shape.h"

#include "demi/kernels/permute.h"

namespace demi {

Variable reshape(const Variable& x, const std::vector<int64_t>& shape) {
  return record("reshape", x.tensor().reshape(shape), {x},
                [from = x.shape()](const Tensor& dy) { return std::vector<Tensor>{dy.reshape(from)}; });
}

Variable flatten(const Variable& x) {
  DEMI_CHECK(x.tensor().rank() >= 1, "[flatten] needs at least one axis");
  const int64_t rows = x.size(0);
  int64_t rest = 1;
  for (int i = 1; i < x.tensor().rank(); ++i) rest *= x.size(i);
  return reshape(x, {rows, rest});
}

Variable permute(const Variable& x, const std::vector<int>& axes) {
  std::vector<int> back(axes.size());
  const Tensor y = kernels::permute(x.tensor(), axes);
  for (size_t i = 0; i < axes.size(); ++i) back[static_cast<size_t>(x.shape().axis(axes[i]))] = static_cast<int>(i);
  return record("permute", y, {x},
                [back](const Tensor& dy) { return std::vector<Tensor>{kernels::permute(dy, back)}; });
}

}  // namespace demi
