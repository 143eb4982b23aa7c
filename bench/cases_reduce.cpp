// Reductions: each byte of x is read once. Sums go to FP32, whatever x is.
#include <algorithm>
#include <cmath>

#include "demi/bench/cases.h"
#include "demi/kernels/fill.h"
#include "demi/kernels/gradient.h"
#include "demi/kernels/reduce.h"

namespace demi::bench {
namespace {

using namespace kernels;
using Fill = Input::Fill;

constexpr double kSumLimit = 1e-5;  // of a sum kept in FP32

Spec over_all(const Request& request, Kind kind, double limit, std::function<Tensors(Tensors&)> run) {
  const Extents e = parse_extents(request, kind);
  Spec s;
  // Not around 0, where a sum of many would be a small difference of large numbers.
  s.inputs = {{.shape = e.shape, .dtype = request.dtype(), .fill = Fill::Uniform, .a = -0.25, .b = 1, .odd = e.odd}};
  s.run = std::move(run);
  s.limit = limit;
  s.bytes = bytes_of(e.shape, request.dtype());
  s.flops = static_cast<double>(e.shape.numel());
  return s;
}

DType wide_of(const Tensor& x) { return x.dtype() == DType::F64 ? DType::F64 : DType::F32; }

Spec sum(const Request& request) {
  return over_all(request, Kind::Elements, kSumLimit,
                  [](Tensors& in) { return Tensors{reduce(ReduceOp::Sum, in[0], {}, false, wide_of(in[0]))}; });
}

Spec sum_rows(const Request& request) {
  return over_all(request, Kind::Rows, kSumLimit, [](Tensors& in) { return Tensors{bias_grad(in[0])}; });
}

Spec amax(const Request& request) {
  return over_all(request, Kind::Elements, 1e-12,
                  [](Tensors& in) { return Tensors{reduce(ReduceOp::Max, in[0], {})}; });
}

// Its result says nothing unless it is checked with and without an infinity.
Spec finite_check(const Request& request) {
  const Extents e = parse_extents(request, Kind::Elements);
  Spec s;
  s.inputs = {{.shape = e.shape, .dtype = request.dtype(), .odd = e.odd},
              {.shape = {}, .dtype = DType::I32, .fill = Fill::Constant, .a = 0, .batched = false}};
  s.plant = [](Tensors& in) {
    Tensor last = in[0].flatten().narrow(in[0].numel() - 1, 1);
    fill(last, INFINITY);
  };
  s.run = [](Tensors& in) {
    check_finite(in[0], in[1]);
    return Tensors{in[1]};
  };
  s.reference = [](Tensors& in) {
    const std::vector<double> x = in[0].to_vector<double>();
    const bool finite = std::all_of(x.begin(), x.end(), [](double v) { return std::isfinite(v); });
    return Tensors{Tensor::scalar<int32_t>(finite ? 0 : 1)};
  };
  s.host_reference = true;
  s.limit = 1e-12;
  s.bytes = bytes_of(e.shape, request.dtype());
  return s;
}

}  // namespace

void add_reduce(std::vector<Op>& ops) {
  ops.push_back({"sum", Kind::Elements, kStored, sum});
  ops.push_back({"sum_rows", Kind::Rows, kStored, sum_rows});
  ops.push_back({"amax", Kind::Elements, kStored, amax});
  ops.push_back({"finite_check", Kind::Elements, kStored, finite_check});
}

}  // namespace demi::bench
