// The teaching ladders (bench/ladder, docs/kernel_ladders.md): one operation written several times; the last rung is
// what the library runs. matmul: c [m, n] = a [m, k] b [n, k]^T.
#include <cmath>

#include "demi/bench/cases.h"
#include "demi/bench/ladder/ladder.h"
#include "demi/kernels/batch_norm.h"
#include "demi/kernels/matmul.h"
#include "demi/kernels/reduce.h"

namespace demi::bench {
namespace {

using Fill = Input::Fill;

// step: nullptr for the library's own.
Spec matmul_rung(const Request& request, const MatmulStep* step) {
  const Extents e = parse_extents(request, Kind::Matrix);
  const int64_t m = e.shape[0], n = e.shape[1], k = e.shape[2];
  DEMI_CHECK(!e.odd && (!step || (m % step->multiple_m == 0 && n % step->multiple_n == 0 && k % step->multiple_k == 0)),
             "shape '{}' is impossible for {}: m, n, k are multiples of {}, {}, {}; such as {}", request.shape,
             request.op, step ? step->multiple_m : 1, step ? step->multiple_n : 1, step ? step->multiple_k : 1,
             example_of(Kind::Matrix));
  Spec s;
  s.inputs = {{.shape = {m, k}, .dtype = DType::F16},
              {.shape = {n, k}, .dtype = DType::F16, .b = 1 / std::sqrt(static_cast<double>(k)), .batched = false}};
  s.run = [=](Tensors& in) {
    Tensor c = Tensor::empty({m, n}, DType::F16, in[0].device());
    if (step)
      step->run(in[0], in[1], c);
    else
      kernels::gemm_into(in[0], false, in[1], true, {}, c);
    return Tensors{c};
  };
  s.reference = [](Tensors& in) { return Tensors{kernels::matmul(in[0], in[1], false, true)}; };
  s.by_rows = true;
  s.tensor_cores = true;
  const auto M = static_cast<double>(m), N = static_cast<double>(n), K = static_cast<double>(k);
  s.bytes = 2 * (M * K + N * K + M * N);
  s.flops = 2 * M * N * K;
  s.label = [=] { return std::string(step ? step->adds : "cuBLASLt"); };
  return s;
}

Spec sum_rung(const Request& request, const SumStep* step) {
  const Extents e = parse_extents(request, Kind::Elements);
  Spec s;
  s.inputs = {
      {.shape = {e.shape.numel()}, .dtype = request.dtype(), .fill = Fill::Uniform, .a = -0.25, .b = 1, .odd = e.odd}};
  s.run = [=](Tensors& in) {
    if (!step) return Tensors{kernels::reduce(kernels::ReduceOp::Sum, in[0], {}, false, DType::F32)};
    Tensor y = Tensor::empty({}, DType::F32, in[0].device());
    step->run(in[0], y);
    return Tensors{y};
  };
  s.reference = [](Tensors& in) {
    return Tensors{kernels::reduce(kernels::ReduceOp::Sum, in[0], {}, false, in[0].dtype())};
  };
  if (step) s.limit = step->limit;
  s.bytes = bytes_of(e.shape, request.dtype());
  s.flops = static_cast<double>(e.shape.numel());
  s.label = [=] { return std::string(step ? step->adds : "kernels/cuda/reduce.cu"); };
  return s;
}

Spec batch_norm_rung(const Request& request, const BatchNormStep* step) {
  const Extents e = parse_extents(request, Kind::Rows);
  const int64_t channels = e.shape[-1], rows = e.shape.numel() / channels;
  DEMI_CHECK(rows > 1 && !e.odd, "shape '{}' is impossible for {}: it takes more than one aligned row; such as {}",
             request.shape, request.op, example_of(Kind::Rows));
  Spec s;
  s.inputs = {{.shape = {rows, channels}, .dtype = DType::F16, .a = 0.5},
              {.shape = {channels}, .dtype = DType::F32, .fill = Fill::Uniform, .a = 0.5, .b = 1.5, .batched = false},
              {.shape = {channels}, .dtype = DType::F32, .batched = false}};
  const auto library = [](Tensors& in) {
    Tensor none;
    return Tensors{kernels::batch_norm_train(in[0], in[1], in[2], {}, none, none, {}).y};
  };
  s.run = [=](Tensors& in) {
    if (!step) return library(in);
    Tensor y = Tensor::empty(in[0].shape(), DType::F16, in[0].device());
    step->run(in[0], in[1], in[2], y);
    return Tensors{y};
  };
  s.reference = library;
  s.bytes = 2 * bytes_of(e.shape, DType::F16) + 8 * static_cast<double>(channels);
  s.flops = 6 * static_cast<double>(e.shape.numel());
  s.label = [=] { return std::string(step ? step->adds : "kernels/cuda/batch_norm.cu"); };
  return s;
}

}  // namespace

void add_ladder(std::vector<Op>& ops) {
  const std::vector<Precision> half{Precision::Fp16}, both{Precision::Fp32, Precision::Fp16};
  const auto add = [&](const char* ladder, const std::string& step, Kind kind, const std::vector<Precision>& precisions,
                       std::function<Spec(const Request&)> spec) {
    ops.push_back({fmt::format("ladder_{}_{}", ladder, step), kind, precisions, std::move(spec), true});
  };
  const auto rungs = [&](const char* ladder, const auto& steps, const char* last, Kind kind,
                         const std::vector<Precision>& precisions, auto spec) {
    for (const auto& step : steps)
      add(ladder, step.name, kind, precisions, [=, step = &step](const Request& r) { return spec(r, step); });
    add(ladder, last, kind, precisions, [=](const Request& r) { return spec(r, nullptr); });
  };
  rungs("matmul", matmul_steps(), "cublaslt", Kind::Matrix, half, matmul_rung);
  rungs("sum", sum_steps(), "library", Kind::Elements, both, sum_rung);
  rungs("batch_norm", batch_norm_steps(), "library", Kind::Rows, half, batch_norm_rung);
}

}  // namespace demi::bench
