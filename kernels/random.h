// Random fills and the generator's state. A number is a pure function of (seed, stream, element), so both backends
// draw the same ones; Philox in core/random.h.
#pragma once

#include "demi/core/random.h"
#include "demi/kernels/dispatch.h"

namespace demi::kernels {

DEMI_BACKENDS(void fill_uniform(Tensor& x, double low, double high, uint64_t seed, uint64_t stream);
              void fill_normal(Tensor& x, double mean, double std_dev, uint64_t seed, uint64_t stream);)

// x: floating. Element i comes from word i % 4 of Philox block i / 4. Uniform in [low, high); normal by Box and Muller
// (two words give two numbers: elements 2j and 2j + 1 of a block).
inline void fill_uniform(Tensor& x, double low, double high, uint64_t seed, uint64_t stream) {
  if (x.numel() > 0) DEMI_DISPATCH(x, fill_uniform, x, low, high, seed, stream);
}
inline void fill_normal(Tensor& x, double mean, double std_dev, uint64_t seed, uint64_t stream) {
  if (x.numel() > 0) DEMI_DISPATCH(x, fill_normal, x, mean, std_dev, seed, stream);
}

}  // namespace demi::kernels

namespace demi {

// What random ops of one device draw from: (seed, attempted step, call). The step lives on the device, so that a
// replayed CUDA graph draws new numbers: the optimizer's step raises it. Calls are numbered by the host within a step.
struct RandomState {
  uint64_t seed = 0;
  Tensor step;  // int64, one element, on the device
  uint64_t call = 0;
};
RandomState& random_state(Device device);  // process-wide, one a device
void manual_seed(uint64_t seed);           // of every device; step and call return to 0

}  // namespace demi
