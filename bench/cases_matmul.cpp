// Matrix products: C = A B, and linear: y = x W^T + bias. 2 m n k operations; every matrix is moved once.
#include <cmath>

#include "demi/bench/cases.h"
#include "demi/bench/engines.h"
#include "demi/kernels/matmul.h"

namespace demi::bench {
namespace {

using namespace kernels;

Spec product(const Request& request, bool linear_layer) {
  const Extents e = parse_extents(request, Kind::Matrix);
  const int64_t m = e.shape[0], n = e.shape[1], k = e.shape[2];
  const DType dtype = request.dtype();
  Spec s;
  // Sums of k products of size 1 / sqrt(k) are of size 1: far from 65504 in FP16.
  const double spread = 1 / std::sqrt(static_cast<double>(k));
  s.inputs = {{.shape = {m, k}, .dtype = dtype, .odd = e.odd}};
  if (linear_layer) {
    s.inputs.push_back({.shape = {n, k}, .dtype = dtype, .b = spread, .batched = false, .odd = e.odd});
    s.inputs.push_back({.shape = {n}, .dtype = DType::F32, .batched = false, .odd = e.odd});
    s.run = [](Tensors& in) { return Tensors{linear(in[0], in[1], in[2])}; };
  } else {
    s.inputs.push_back({.shape = {k, n}, .dtype = dtype, .b = spread, .batched = false, .odd = e.odd});
    s.run = [](Tensors& in) { return Tensors{matmul(in[0], in[1])}; };
  }
  s.by_rows = true;
  s.tensor_cores = true;
  const auto M = static_cast<double>(m), N = static_cast<double>(n), K = static_cast<double>(k);
  s.bytes = (M * K + N * K + M * N) * static_cast<double>(size_of(dtype)) + (linear_layer ? 4 * N : 0);
  s.flops = 2 * M * N * K + (linear_layer ? M * N : 0);
  s.label = [=] { return gemm_label(request, m, n, k, linear_layer, e.odd); };
  return s;
}

}  // namespace

void add_matmul(std::vector<Op>& ops) {
  ops.push_back({"matmul", Kind::Matrix, kAll, [](const Request& r) { return product(r, false); }});
  ops.push_back({"linear", Kind::Matrix, kAll, [](const Request& r) { return product(r, true); }});
}

}  // namespace demi::bench
