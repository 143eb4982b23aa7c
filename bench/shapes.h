// Shapes as the names of benchmarks spell them: "256x32x32x64", "8192x8192x8192", "256x32x32x64_k128_r3_s2"; "_odd" at
// the end makes the operands start one element past what is aligned.
#pragma once

#include <string>

#include "demi/bench/harness.h"
#include "demi/kernels/conv2d.h"

namespace demi::bench {

// An example of how shapes of this kind are written.
const char* example_of(Kind kind);

struct Extents {
  Shape shape;
  bool odd = false;
};
// Throws Error, naming op and shape, for what does not fit the kind or cannot exist.
Extents parse_extents(const Request& request, Kind kind);

struct Convolution {
  Shape x, w, y;
  kernels::Conv2dOptions options;
  bool odd = false;
};
Convolution parse_convolution(const Request& request);

}  // namespace demi::bench
