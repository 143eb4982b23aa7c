#include "demi/bench/ceilings.h"

#include <algorithm>
#include <limits>

#include "demi/bench/timing.h"
#include "demi/kernels/matmul.h"
#include "demi/kernels/random.h"
#include "demi/kernels/unary.h"

namespace demi::bench {
namespace {

constexpr int kMeasurements = 7;  // of which the best one counts: it is a ceiling

double best_seconds(const std::vector<Call>& sets, Device device) {
  const Timed timed = prepare_timing(sets, device);
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kMeasurements; ++i) best = std::min(best, timed.seconds() / static_cast<double>(timed.calls));
  return best;
}

}  // namespace

double Ceilings::bytes_per_second() {
  if (!bytes_) {
    const int64_t n = device_.is_cuda() ? int64_t{1} << 28 : int64_t{1} << 25;  // of 4 bytes: far beyond any cache
    Tensor x = Tensor::empty({n}, DType::F32, device_), y = Tensor::empty({n}, DType::F32, device_);
    kernels::fill_uniform(x, 0, 1, 1, 1);
    kernels::fill_uniform(y, 0, 1, 1, 2);
    // By the driver's copy or by a kernel that does as much: the faster one.
    const double copy = best_seconds({[&] { y.copy_from(x); }}, device_);
    const double kernel = best_seconds({[&] {
                                         y = Tensor();
                                         y = kernels::unary(kernels::UnaryOp::Relu, x);
                                       }},
                                       device_);
    bytes_ = 2 * static_cast<double>(x.bytes()) / std::min(copy, kernel);
  }
  return *bytes_;
}

double Ceilings::flops_per_second(Precision precision) {
  std::optional<double>& flops = flops_[static_cast<size_t>(precision)];
  if (!flops) {
    const Float32MathGuard math(math_of(precision));
    const int64_t n = device_.is_cuda() ? 8192 : 768;
    const DType dtype = stored_dtype(precision);
    Tensor a = Tensor::empty({n, n}, dtype, device_), b = Tensor::empty({n, n}, dtype, device_);
    Tensor c = Tensor::empty({n, n}, dtype, device_);
    kernels::fill_normal(a, 0, 1, 1, 1);
    kernels::fill_normal(b, 0, 1 / 90.0, 1, 2);
    const double operations = 2 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
    flops = operations / best_seconds({[&] { kernels::gemm_into(a, false, b, false, {}, c); }}, device_);
  }
  return *flops;
}

}  // namespace demi::bench
