// One optimizer step over flat storage: FP32 masters and state, gradients in the benchmark's dtype, which in 16 bits
// are scaled and come with a 16-bit copy of the weights to write.
#include <cmath>

#include "demi/bench/cases.h"
#include "demi/kernels/adam.h"
#include "demi/kernels/sgd.h"

namespace demi::bench {
namespace {

using namespace kernels;
using Fill = Input::Fill;

const SgdOptions kSgd{.momentum = 0.9, .weight_decay = 5e-4};
const AdamOptions kAdam{.weight_decay = 1e-2, .decoupled = true};

enum Operand : size_t { kMaster, kGrad, kLr, kScale, kSkip, kCount, kMomentum, kSecond };

Spec step(const Request& request, bool adam) {
  const Extents e = parse_extents(request, Kind::Weights);
  const DType dtype = request.dtype();
  const bool narrow = is_16bit(dtype);
  const auto one = [](DType type, double value) {
    return Input{.shape = {}, .dtype = type, .fill = Fill::Constant, .a = value, .batched = false};
  };
  Spec s;
  s.inputs = {{.shape = e.shape, .dtype = DType::F32, .odd = e.odd},
              {.shape = e.shape, .dtype = dtype, .odd = e.odd},
              one(DType::F32, 0.5),  // a step that moves the weights by more than BF16's limit
              one(DType::F32, 128),
              one(DType::I32, 0),
              one(DType::I32, 3),
              {.shape = e.shape, .dtype = DType::F32, .b = 0.1, .odd = e.odd}};
  if (adam)
    s.inputs.push_back(
        {.shape = e.shape, .dtype = DType::F32, .fill = Fill::Uniform, .a = 1e-6, .b = 1e-4, .odd = e.odd});
  if (narrow) s.inputs.push_back({.shape = e.shape, .dtype = dtype, .fill = Fill::Constant, .a = 0, .odd = e.odd});
  s.run = [=](Tensors& in) {
    StepOperands o{.master = in[kMaster],
                   .grad = in[kGrad],
                   .copy_f16 = {},
                   .copy_bf16 = {},
                   .lr = in[kLr],
                   .scale = in[kScale],
                   .skip = in[kSkip],
                   .count = in[kCount]};
    if (dtype == DType::F16) o.copy_f16 = in.back();
    if (dtype == DType::BF16) o.copy_bf16 = in.back();
    if (adam)
      adam_step(o, in[kMomentum], in[kSecond], kAdam);
    else
      sgd_step(o, in[kMomentum], kSgd);
    Tensors out{in[kMaster], in[kMomentum]};
    if (adam) out.push_back(in[kSecond]);
    if (narrow) out.push_back(in.back());
    return out;
  };
  s.reference = [=](Tensors& in) {  // the formulas of kernels/sgd.h and kernels/adam.h, in FP64
    const int64_t n = in[kMaster].numel();
    double *w = in[kMaster].mutable_data<double>(), *m = in[kMomentum].mutable_data<double>();
    const double *g = in[kGrad].data<double>(), lr = *in[kLr].data<double>(), scale = *in[kScale].data<double>();
    const double t = 1 + *in[kCount].data<int32_t>();
    double* v = adam ? in[kSecond].mutable_data<double>() : nullptr;
    for (int64_t i = 0; i < n; ++i) {
      if (adam) {
        const double grad = g[i] / scale;
        w[i] -= lr * kAdam.weight_decay * w[i];
        m[i] = kAdam.beta1 * m[i] + (1 - kAdam.beta1) * grad;
        v[i] = kAdam.beta2 * v[i] + (1 - kAdam.beta2) * grad * grad;
        const double root = std::sqrt(v[i]) / std::sqrt(1 - std::pow(kAdam.beta2, t));
        w[i] -= lr / (1 - std::pow(kAdam.beta1, t)) * m[i] / (root + kAdam.eps);
      } else {
        m[i] = kSgd.momentum * m[i] + g[i] / scale + kSgd.weight_decay * w[i];
        w[i] -= lr * m[i];
      }
    }
    Tensors out{in[kMaster], in[kMomentum]};
    if (adam) out.push_back(in[kSecond]);
    if (narrow) out.push_back(in[kMaster]);
    return out;
  };
  s.host_reference = true;
  s.by_rows = true;
  const auto n = static_cast<double>(e.shape.numel()), grad = static_cast<double>(size_of(dtype));
  s.bytes = n * ((adam ? 24 : 16) + grad + (narrow ? grad : 0));
  s.flops = n * (adam ? 14 : 7);
  return s;
}

}  // namespace

void add_optim(std::vector<Op>& ops) {
  ops.push_back({"sgd", Kind::Weights, kStored, [](const Request& r) { return step(r, false); }});
  ops.push_back({"adam", Kind::Weights, kStored, [](const Request& r) { return step(r, true); }});
}

}  // namespace demi::bench
