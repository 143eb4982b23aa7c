// All ops, in the order in which they are listed and run.
#include <algorithm>

#include "demi/bench/cases.h"

namespace demi::bench {

const std::vector<Op>& ops() {
  static const std::vector<Op> all = [] {
    std::vector<Op> list;
    add_elementwise(list);
    add_norm(list);
    add_pool_loss(list);
    add_reduce(list);
    add_optim(list);
    add_matmul(list);
    add_conv(list);
#if DEMI_BENCH_LADDERS
    add_ladder(list);
#endif
    return list;
  }();
  return all;
}

const Op* find_op(std::string_view name) {
  const auto found = std::find_if(ops().begin(), ops().end(), [&](const Op& op) { return op.name == name; });
  return found == ops().end() ? nullptr : &*found;
}

}  // namespace demi::bench
