// Batch norm over rows of channels, in training: forward, and backward from what forward kept. Bytes: every operand and
// result once. (Two passes are needed where x does not stay in the cache, so a share of 2/3 forward is a full pipe.)
#include "demi/bench/cases.h"
#include "demi/kernels/batch_norm.h"

namespace demi::bench {
namespace {

using namespace kernels;
using Fill = Input::Fill;

struct Variant {
  bool residual = false, relu = false;
};

Shape rows_of(const Request& request, Extents& e) {
  e = parse_extents(request, Kind::Rows);
  DEMI_CHECK(e.shape.numel() / e.shape[-1] > 1,
             "shape '{}' is impossible for {}: training needs more than one row; such as {}", request.shape, request.op,
             example_of(Kind::Rows));
  return Shape{e.shape[-1]};
}

Spec forward(const Request& request, Variant v) {
  Extents e;
  const Shape channels = rows_of(request, e);
  const DType dtype = request.dtype();
  Spec s;
  // The running variance is far from x's: it shows where it is left alone.
  s.inputs = {{.shape = e.shape, .dtype = dtype, .a = 0.5, .odd = e.odd},
              {.shape = channels, .dtype = DType::F32, .fill = Fill::Uniform, .a = 0.5, .b = 1.5, .batched = false},
              {.shape = channels, .dtype = DType::F32, .batched = false},
              {.shape = channels, .dtype = DType::F32, .fill = Fill::Constant, .a = 0, .batched = false},
              {.shape = channels, .dtype = DType::F32, .fill = Fill::Constant, .a = 2, .batched = false}};
  if (v.residual) s.inputs.push_back({.shape = e.shape, .dtype = dtype, .odd = e.odd});
  s.run = [v](Tensors& in) {
    const Tensor residual = v.residual ? in[5] : Tensor();
    const BatchNormResult r = batch_norm_train(in[0], in[1], in[2], residual, in[3], in[4], {.relu = v.relu});
    return Tensors{r.y, r.mean, r.inv_std, in[3], in[4]};
  };
  const auto n = static_cast<double>(e.shape.numel());
  s.bytes = (v.residual ? 3 : 2) * bytes_of(e.shape, dtype) + 8 * bytes_of(channels, DType::F32);
  s.flops = n * (4 + 2 + (v.residual ? 1 : 0) + (v.relu ? 1 : 0));  // mean, squared deviations; scale and shift
  return s;
}

Spec backward(const Request& request, Variant v) {
  Extents e;
  const Shape channels = rows_of(request, e);
  const DType dtype = request.dtype();
  Spec s;
  s.inputs = {{.shape = e.shape, .dtype = dtype, .odd = e.odd},            // dy
              {.shape = e.shape, .dtype = dtype, .a = 0.5, .odd = e.odd},  // x
              {.shape = channels, .dtype = DType::F32, .fill = Fill::Uniform, .a = 0.5, .b = 1.5, .batched = false},
              {.shape = channels, .dtype = DType::F32, .fill = Fill::Derived, .batched = false},
              {.shape = channels, .dtype = DType::F32, .fill = Fill::Derived, .batched = false}};
  if (v.relu) s.inputs.push_back({.shape = e.shape, .dtype = dtype, .fill = Fill::Derived, .odd = e.odd});  // y
  s.derive = [v](Tensors& in) {
    Tensor none, bias = Tensor::zeros(in[2].shape(), DType::F32, in[0].device());
    const BatchNormResult r = batch_norm_train(in[1], in[2], bias, v.residual ? in[0] : Tensor(), none, none, {});
    in[3] = r.mean;
    in[4] = r.inv_std;
    if (v.relu) in[5].copy_from(r.y);  // before its ReLU: what is not above 0 masks the same elements
  };
  s.run = [v](Tensors& in) {
    const auto like = [](const Tensor& t) { return Tensor::empty(t.shape(), t.dtype(), t.device()); };
    Tensor dx = like(in[1]), dresidual = v.residual ? like(in[1]) : Tensor(), dweight = like(in[2]),
           dbias = like(in[2]);
    batch_norm_backward(in[0], in[1], v.relu ? in[5] : Tensor(), in[2], {.y = {}, .mean = in[3], .inv_std = in[4]},
                        v.relu, true, dx, dresidual, dweight, dbias);
    return Tensors{dx, dweight, dbias, dresidual};
  };
  const auto n = static_cast<double>(e.shape.numel());
  s.bytes =
      (3 + (v.relu ? 1 : 0) + (v.residual ? 1 : 0)) * bytes_of(e.shape, dtype) + 5 * bytes_of(channels, DType::F32);
  s.flops = n * (5 + 4 + (v.relu ? 1 : 0));  // xhat and two sums; dx
  return s;
}

}  // namespace

void add_norm(std::vector<Op>& ops) {
  const std::pair<const char*, Variant> variants[] = {{"batch_norm", {}},
                                                      {"batch_norm_relu", {.relu = true}},
                                                      {"batch_norm_add_relu", {.residual = true, .relu = true}}};
  for (const auto& [name, v] : variants)
    ops.push_back({name, Kind::Rows, kStored, [v = v](const Request& r) { return forward(r, v); }});
  for (const auto& [name, v] : variants)
    ops.push_back(
        {std::string(name) + "_backward", Kind::Rows, kStored, [v = v](const Request& r) { return backward(r, v); }});
}

}  // namespace demi::bench
