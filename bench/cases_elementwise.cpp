// Elementwise ops: bytes alone. Operations counted are those of the formula.
#include "demi/bench/cases.h"
#include "demi/kernels/binary.h"
#include "demi/kernels/cast.h"
#include "demi/kernels/scale.h"
#include "demi/kernels/unary.h"

namespace demi::bench {
namespace {

using namespace kernels;

// An op whose results and batched operands all have one shape, which moves `tensors` of them.
struct Plain {
  int operands = 1, tensors = 2;
  double flops = 0;  // an element
};

Spec plain(const Request& request, const Plain& p, std::function<Tensors(Tensors&)> run) {
  const Extents e = parse_extents(request, Kind::Elements);
  Spec s;
  for (int i = 0; i < p.operands; ++i) s.inputs.push_back({.shape = e.shape, .dtype = request.dtype(), .odd = e.odd});
  s.run = std::move(run);
  s.by_rows = true;
  s.bytes = p.tensors * bytes_of(e.shape, request.dtype());
  s.flops = p.flops * static_cast<double>(e.shape.numel());
  return s;
}

Spec copy(const Request& request) {
  return plain(request, {.operands = 1, .tensors = 2}, [](Tensors& in) {
    Tensor y = Tensor::empty(in[0].shape(), in[0].dtype(), in[0].device());
    y.copy_from(in[0]);
    return Tensors{y};
  });
}

Spec cast_between(const Request& request, bool to_fp32) {
  const Extents e = parse_extents(request, Kind::Elements);
  const DType narrow = request.dtype();
  Spec s;
  s.inputs.push_back({.shape = e.shape, .dtype = to_fp32 ? narrow : DType::F32, .odd = e.odd});
  s.run = [=](Tensors& in) { return Tensors{cast(in[0], to_fp32 ? DType::F32 : narrow)}; };
  s.reference = [](Tensors& in) { return in; };
  s.by_rows = true;
  s.bytes = bytes_of(e.shape, narrow) + bytes_of(e.shape, DType::F32);
  if (to_fp32) s.limit = 1e-12;  // exact
  return s;
}

Spec axpy_into(const Request& request) {
  return plain(request, {.operands = 2, .tensors = 3, .flops = 2}, [](Tensors& in) {
    axpy(0.5, in[0], in[1]);  // large enough for BF16's limit to notice an op that does nothing
    return Tensors{in[1]};
  });
}

Spec add_bias_rows(const Request& request) {
  const Extents e = parse_extents(request, Kind::Rows);
  const Shape channels{e.shape[-1]};
  Spec s;
  s.inputs = {{.shape = e.shape, .dtype = request.dtype(), .odd = e.odd},
              {.shape = channels, .dtype = request.dtype(), .batched = false, .odd = e.odd}};
  s.run = [](Tensors& in) { return Tensors{add(in[0], in[1])}; };
  s.by_rows = true;
  s.bytes = 2 * bytes_of(e.shape, request.dtype()) + bytes_of(channels, request.dtype());
  s.flops = static_cast<double>(e.shape.numel());
  return s;
}

}  // namespace

void add_elementwise(std::vector<Op>& ops) {
  ops.push_back({"copy", Kind::Elements, kStored, copy});
  ops.push_back({"cast", Kind::Elements, k16Bit, [](const Request& r) { return cast_between(r, false); }});
  ops.push_back({"cast_to_fp32", Kind::Elements, k16Bit, [](const Request& r) { return cast_between(r, true); }});
  ops.push_back({"add", Kind::Elements, kStored, [](const Request& r) {
                   return plain(r, {.operands = 2, .tensors = 3, .flops = 1},
                                [](Tensors& in) { return Tensors{add(in[0], in[1])}; });
                 }});
  ops.push_back({"axpy", Kind::Elements, kStored, axpy_into});
  ops.push_back({"bias", Kind::Rows, kStored, add_bias_rows});
  ops.push_back({"relu", Kind::Elements, kStored, [](const Request& r) {
                   return plain(r, {.operands = 1, .tensors = 2, .flops = 1},
                                [](Tensors& in) { return Tensors{unary(UnaryOp::Relu, in[0])}; });
                 }});
  ops.push_back({"relu_backward", Kind::Elements, kStored, [](const Request& r) {
                   return plain(r, {.operands = 2, .tensors = 3, .flops = 1}, [](Tensors& in) {
                     return Tensors{unary_backward(UnaryOp::Relu, in[0], in[1], in[1])};
                   });
                 }});
}

}  // namespace demi::bench
