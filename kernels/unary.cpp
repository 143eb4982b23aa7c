#include "demi/kernels/unary.h"

#include "demi/kernels/unary_functors.h"

namespace demi::kernels {

bool backward_needs_input(UnaryOp op) {
  return visit_unary(op, [](auto f) { return decltype(f)::kNeedsInput; });
}
bool backward_needs_output(UnaryOp op) {
  return visit_unary(op, [](auto f) { return decltype(f)::kNeedsOutput; });
}

}  // namespace demi::kernels
