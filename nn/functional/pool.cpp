#include "demi/nn/functional/pool.h"

#include "demi/amp/autocast.h"
#include "demi/kernels/reduce.h"
#include "demi/kernels/scale.h"

namespace demi {

Variable max_pool2d(const Variable& x_in, const Pool2dOptions& options) {
  const auto in = amp::prepare("max_pool2d", {x_in});
  const kernels::MaxPoolResult r = kernels::max_pool2d(in[0].tensor(), options);
  return record("max_pool2d", r.y, in, [index = r.index, shape = x_in.shape(), options](const Tensor& dy) {
    return std::vector<Tensor>{kernels::max_pool2d_backward(dy, index, shape, options)};
  });
}

Variable avg_pool2d(const Variable& x_in, const Pool2dOptions& options) {
  const auto in = amp::prepare("avg_pool2d", {x_in});
  return record("avg_pool2d", kernels::avg_pool2d(in[0].tensor(), options), in,
                [shape = x_in.shape(), options](const Tensor& dy) {
                  return std::vector<Tensor>{kernels::avg_pool2d_backward(dy, shape, options)};
                });
}

Variable global_avg_pool(const Variable& x_in) {
  const auto in = amp::prepare("global_avg_pool", {x_in});
  const Shape shape = x_in.shape();
  DEMI_CHECK(shape.rank() == 4 && shape[1] * shape[2] > 0,
             "[global_avg_pool] takes [N, H, W, C] with at least one pixel, not shape {}", shape);
  return record(
      "global_avg_pool", kernels::reduce(kernels::ReduceOp::Mean, in[0].tensor(), {1, 2}), in,
      [shape](const Tensor& dy) {
        const Tensor each = kernels::scale(dy, 1.0 / static_cast<double>(shape[1] * shape[2]));
        return std::vector<Tensor>{kernels::broadcast_to(each.reshape(Shape{shape[0], 1, 1, shape[3]}), shape)};
      });
}

}  // namespace demi
