// Initial values of weights. They are drawn on the CPU, so that a seed gives the same network on every device.
// fan_in and fan_out count, for a matrix [out, in] or a filter [K, R, S, C], the inputs of one output and the reverse.
#pragma once

#include "demi/core/tensor.h"

namespace demi::nn::init {

enum class Fan : uint8_t { In, Out };

Tensor zeros(const Shape& shape);
Tensor ones(const Shape& shape);
Tensor uniform(const Shape& shape, double bound);                       // in [-bound, bound)
Tensor kaiming_normal(const Shape& shape, Fan fan = Fan::In);           // N(0, 2 / fan), He et al., 2015
Tensor kaiming_uniform(const Shape& shape, double negative_slope = 0);  // bound sqrt(6 / ((1 + slope^2) fan_in))
Tensor xavier_normal(const Shape& shape);   // N(0, 2 / (fan_in + fan_out)), Glorot and Bengio, 2010
Tensor xavier_uniform(const Shape& shape);  // bound sqrt(6 / (fan_in + fan_out))

int64_t fan_in(const Shape& shape);
int64_t fan_out(const Shape& shape);

}  // namespace demi::nn::init
