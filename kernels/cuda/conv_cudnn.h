// Convolutions through cuDNN's graph API: a plan is searched once a problem and kept.
#pragma once

#include <string>

#include "demi/kernels/conv2d.h"

namespace demi::kernels::cuda {

enum class ConvOp : uint8_t { Fprop, FpropBias, Dgrad, Wgrad };
const char* name_of(ConvOp op);  // "conv2d", "conv2d_dgrad", "conv2d_wgrad"

// One problem: x [N, H, W, C], w [K, R, S, C / groups], y [N, P, Q, K].
struct ConvProblem {
  ConvOp op;
  DType dtype;
  Device device;
  Shape x, w, y;
  Conv2dOptions options;
};

// Device memory, each 16-byte aligned. The op's result is written, the others are read; bias: FP32 [K] for FpropBias.
struct ConvBuffers {
  void *x, *w, *y, *bias;
};

// Runs the problem on this thread's stream. The first call searches a plan: the heuristics' first candidates that keep
// FP32 accumulation (and, with Float32Math::Ieee, all bits of FP32 operands) are timed on these buffers, the fastest is
// kept; with deterministic() it is the first one that runs. False when no engine of cuDNN takes the problem. Throws
// Error for a search inside a capture and for a plan that fails.
bool conv_cudnn(const ConvProblem& problem, const ConvBuffers& buffers);

// True once a search of this thread has found that no engine takes the problem.
bool conv_cudnn_refuses(const ConvProblem& problem);

// The engine and its settings that this thread uses for the problem: cuDNN's name, "direct" once no engine was found,
// "" before the first run. And whether cuDNN notes that it computes on tensor cores.
struct ConvEngine {
  std::string name;
  bool tensor_cores = false;
};
ConvEngine conv_cudnn_engine(const ConvProblem& problem);

// The same for a convolution of these public shapes (channels are padded as conv2d() pads them).
ConvEngine conv2d_engine(ConvOp op, const Shape& x, const Shape& w, const Conv2dOptions& options, DType dtype,
                         Device device);

}  // namespace demi::kernels::cuda
