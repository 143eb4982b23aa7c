#include "demi/nn/init.h"

#include <cmath>

#include "demi/kernels/fill.h"
#include "demi/kernels/random.h"

namespace demi::nn::init {
namespace {

Tensor normal(const Shape& shape, double std_dev) {
  RandomState& random = random_state(Device::cpu());
  Tensor x = Tensor::empty(shape, DType::F32);
  kernels::fill_normal(x, 0, std_dev, random.seed, random.call++);
  return x;
}

}  // namespace

int64_t fan_in(const Shape& shape) {
  DEMI_CHECK(shape.rank() >= 2 && shape[0] > 0, "[init] fans exist for matrices and filters, not for shape {}", shape);
  return shape.numel() / shape[0];
}

// A filter [K, R, S, C / groups]: each input channel reaches K outputs through R S taps.
int64_t fan_out(const Shape& shape) {
  DEMI_CHECK(shape.rank() >= 2 && shape[-1] > 0, "[init] fans exist for matrices and filters, not for shape {}", shape);
  return shape.numel() / shape[-1];
}

Tensor zeros(const Shape& shape) { return Tensor::zeros(shape, DType::F32); }
Tensor ones(const Shape& shape) { return kernels::full(shape, 1.0, DType::F32); }

Tensor uniform(const Shape& shape, double bound) {
  RandomState& random = random_state(Device::cpu());
  Tensor x = Tensor::empty(shape, DType::F32);
  kernels::fill_uniform(x, -bound, bound, random.seed, random.call++);
  return x;
}

Tensor kaiming_normal(const Shape& shape, Fan fan) {
  return normal(shape, std::sqrt(2.0 / static_cast<double>(fan == Fan::In ? fan_in(shape) : fan_out(shape))));
}

Tensor kaiming_uniform(const Shape& shape, double slope) {
  return uniform(shape, std::sqrt(6.0 / ((1 + slope * slope) * static_cast<double>(fan_in(shape)))));
}

Tensor xavier_normal(const Shape& shape) {
  return normal(shape, std::sqrt(2.0 / static_cast<double>(fan_in(shape) + fan_out(shape))));
}

Tensor xavier_uniform(const Shape& shape) {
  return uniform(shape, std::sqrt(6.0 / static_cast<double>(fan_in(shape) + fan_out(shape))));
}

}  // namespace demi::nn::init
