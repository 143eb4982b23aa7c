#include "demi/nn/functional/linear.h"

#include "demi/amp/autocast.h"
#include "demi/kernels/matmul.h"
#include "demi/kernels/reduce.h"

namespace demi {

Variable bias_in_accumulator(const Variable& bias) {
  return bias.defined() && is_16bit(bias.dtype()) ? cast(bias, DType::F32) : bias;
}

// c = op(a) op(b): da = dc op(b)^T and db = op(a)^T dc, each transposed once more where its operand was.
Variable matmul(const Variable& a_in, const Variable& b_in, bool ta, bool tb) {
  const auto in = amp::prepare("matmul", {a_in, b_in});
  const Tensor &a = in[0].tensor(), &b = in[1].tensor();
  const bool wants_a = in[0].requires_grad(), wants_b = in[1].requires_grad();
  return record("matmul", kernels::matmul(a, b, ta, tb), in, [=](const Tensor& dc) {
    Tensor da, db;
    if (wants_a) da = ta ? kernels::matmul(b, dc, tb, true) : kernels::matmul(dc, b, false, !tb);
    if (wants_b) db = tb ? kernels::matmul(dc, a, true, ta) : kernels::matmul(a, dc, !ta, false);
    return std::vector<Tensor>{da, db};
  });
}

Variable linear(const Variable& x_in, const Variable& weight_in, const Variable& bias_in) {
  const auto in = amp::prepare("linear", {x_in, weight_in});
  const Variable &x = in[0], &weight = in[1], bias = bias_in_accumulator(bias_in);
  const bool wants_x = x.requires_grad(), wants_w = weight.requires_grad(), wants_b = bias.requires_grad();
  const Tensor y = kernels::linear(x.tensor(), weight.tensor(), bias.defined() ? bias.tensor() : Tensor{});
  return record("linear", y, {x, weight, bias},
                [=, x = wants_w ? x.tensor() : Tensor{}, w = wants_x ? weight.tensor() : Tensor{},
                 shape = x.shape()](const Tensor& dy) {
                  int64_t n = 1;
                  for (int i = 0; i + 1 < shape.rank(); ++i) n *= shape[i];
                  const Tensor rows = dy.reshape(Shape{n, dy.size(-1)});
                  Tensor dx, dw, db;
                  if (wants_x) dx = kernels::matmul(rows, w).reshape(shape);
                  if (wants_w) {
                    dw = gradient_buffer(weight, dy.dtype());
                    kernels::gemm_into(rows, true, x.reshape(Shape{n, x.size(-1)}), false, {}, dw);
                  }
                  if (wants_b) db = kernels::bias_grad(dy);
                  return std::vector<Tensor>{dx, dw, db};
                });
}

}  // namespace demi
