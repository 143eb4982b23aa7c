// Where backends meet. Every op has the same functions in kernels::cpu and kernels::cuda, declared once by
// DEMI_BACKENDS; its public function checks shapes, dtypes and devices, then DEMI_DISPATCH calls the one that the
// tensor's device needs.
#pragma once

#include "demi/core/backend.h"
#include "demi/core/tensor.h"

// Declares the same functions for both backends.
#define DEMI_BACKENDS(...) \
  namespace cpu {          \
  __VA_ARGS__              \
  }                        \
  namespace cuda {         \
  __VA_ARGS__              \
  }

// Calls backend::function(arguments...) for the device of `tensor`, which is made current meanwhile.
#if DEMI_CUDA
#define DEMI_DISPATCH(tensor, function, ...)                                  \
  [&] {                                                                       \
    if ((tensor).device().is_cpu()) return cpu::function(__VA_ARGS__);        \
    const ::demi::backend::DeviceScope demi_scope((tensor).device().index()); \
    return cuda::function(__VA_ARGS__);                                       \
  }()
#else
#define DEMI_DISPATCH(tensor, function, ...) cpu::function(__VA_ARGS__)
#endif

namespace demi::kernels {

enum class Reduction : uint8_t { Mean, Sum, None };  // of a loss over its samples

// A tensor seen as [outer, extent, inner] around one axis, or around adjacent axes.
struct AxisView {
  int64_t outer = 1, extent = 1, inner = 1;
};
inline AxisView axis_view(const Shape& shape, int axis) {
  AxisView v;
  const int at = shape.axis(axis);
  for (int i = 0; i < at; ++i) v.outer *= shape[i];
  v.extent = shape[at];
  for (int i = at + 1; i < shape.rank(); ++i) v.inner *= shape[i];
  return v;
}

}  // namespace demi::kernels
