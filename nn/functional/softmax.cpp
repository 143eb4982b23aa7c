#include "demi/nn/functional/softmax.h"

#include "demi/amp/autocast.h"
#include "demi/kernels/softmax.h"

namespace demi {
namespace {

Variable any_softmax(const char* name, const Variable& x_in, int axis, bool log) {
  const auto in = amp::prepare(name, {x_in});
  const Tensor y = kernels::softmax(in[0].tensor(), axis, log);
  return record(name, y, in,
                [=](const Tensor& dy) { return std::vector<Tensor>{kernels::softmax_backward(dy, y, axis, log)}; });
}

}  // namespace

Variable softmax(const Variable& x, int axis) { return any_softmax("softmax", x, axis, false); }
Variable log_softmax(const Variable& x, int axis) { return any_softmax("log_softmax", x, axis, true); }

}  // namespace demi
