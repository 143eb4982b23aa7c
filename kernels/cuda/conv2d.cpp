// The three convolution ops on CUDA: operands are made fit for cuDNN (16-byte aligned; 16-bit channels a multiple of 8,
// which tensor cores want, so three input channels become eight), cuDNN runs, and results are cut back. What no engine
// takes goes to demi's own kernel.
#include <algorithm>

#include "demi/core/memory.h"
#include "demi/kernels/cuda/conv_cudnn.h"
#include "demi/kernels/cuda/conv_kernels.h"
#include "demi/kernels/cuda/gemm_kernels.h"

namespace demi::kernels::cuda {
namespace {

constexpr int64_t kMostElements = (int64_t{1} << 31) - 1;  // of one tensor: cuDNN's engines count in 32 bits

bool aligned16(const Tensor& t) { return reinterpret_cast<uintptr_t>(t.raw()) % 16 == 0; }

Shape with_channels(Shape shape, bool pad, bool filter) {
  if (!pad) return shape;
  const auto up = [](int64_t channels) { return (channels + 7) / 8 * 8; };
  shape.set(3, up(shape[3]));
  if (filter) shape.set(0, up(shape[0]));
  return shape;
}

ConvProblem problem_of(ConvOp op, const Shape& x, const Shape& w, const Shape& y, const Conv2dOptions& options,
                       DType dtype, Device device) {
  const bool pad = is_16bit(dtype) && options.groups == 1;
  return {
      op,     dtype, device, with_channels(x, pad, false), with_channels(w, pad, true), with_channels(y, pad, false),
      options};
}

bool fits(const Tensor& t, const Shape& shape) { return t.shape() == shape && aligned16(t); }

// An operand as cuDNN gets it, and a place for a result: the tensor itself where it fits.
Tensor operand(const Tensor& t, const Shape& shape) {
  if (fits(t, shape)) return t;
  Tensor wide = Tensor::empty(shape, t.dtype(), t.device());
  copy_channels(t, wide);
  return wide;
}
Tensor place(const Tensor& t, const Shape& shape) {
  return fits(t, shape) ? t : Tensor::empty(shape, t.dtype(), t.device());
}

void* address(const Tensor& t) { return t.defined() ? const_cast<void*>(t.raw()) : nullptr; }

// Writes the op's result, which is one of x, w and y. False when cuDNN has no engine for the problem.
bool through_cudnn(ConvOp op, Tensor x, Tensor w, Tensor y, const Tensor& bias, const Conv2dOptions& options) {
  const ConvProblem problem = problem_of(op, x.shape(), w.shape(), y.shape(), options, x.dtype(), x.device());
  if (std::max({problem.x.numel(), problem.w.numel(), problem.y.numel()}) > kMostElements) return false;
  if (conv_cudnn_refuses(problem)) return false;
  const memory::Scope scope(memory::Category::Workspace);
  Tensor& result = op == ConvOp::Dgrad ? x : op == ConvOp::Wgrad ? w : y;
  const auto fit = [&](const Tensor& t, const Shape& shape) {
    return &t == &result ? place(t, shape) : operand(t, shape);
  };
  Tensor wide_x = fit(x, problem.x), wide_w = fit(w, problem.w), wide_y = fit(y, problem.y), wide_bias;
  if (op == ConvOp::FpropBias) wide_bias = operand(bias, Shape{problem.y[3]});
  Tensor& wide = op == ConvOp::Dgrad ? wide_x : op == ConvOp::Wgrad ? wide_w : wide_y;
  (void)wide.mutable_raw();  // it is about to be written
  if (!conv_cudnn(problem, {address(wide_x), address(wide_w), address(wide_y), address(wide_bias)})) return false;
  if (wide.raw() != result.raw()) copy_channels(wide, result);
  return true;
}

void check_dtype(ConvOp op, const Tensor& t) {
  DEMI_CHECK(t.dtype() != DType::F64, "[{}] fp64 exists on the CPU only: cast to fp32 or move to the CPU", name_of(op));
}

// Calls f(first sample, count) for parts of a batch that keep both tensors, padded, under kMostElements.
template <typename F>
void for_parts(const Tensor& a, const Tensor& b, const F& f) {
  const auto padded = [](const Tensor& t) { return with_channels(t.shape(), is_16bit(t.dtype()), false).numel(); };
  const int64_t samples = a.size(0), largest = std::max(padded(a), padded(b)) / samples;
  const int64_t part = std::clamp<int64_t>(kMostElements / largest, 1, samples);
  for (int64_t first = 0; first < samples; first += part) f(first, std::min(part, samples - first));
}

void fprop(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dOptions& options, Tensor y) {
  if (bias.defined() && through_cudnn(ConvOp::FpropBias, x, w, y, bias, options)) return;
  if (through_cudnn(ConvOp::Fprop, x, w, y, {}, options)) {
    if (bias.defined()) add_bias(y, bias, y);
  } else {
    conv_direct(x, w, bias, options, y);
  }
}

// With stride 1 the gradient of the input is the forward convolution of dy with the turned filter. For IEEE FP32, whose
// engines do not use tensor cores, cuDNN's forward engines are the faster ones: 559, 507, 485 and 515 us for the four
// 3x3 convolutions of ResNet-18 at batch 256 on an H200, against 901, 684, 565 and 692 us for its dgrad engines.
bool dgrad_as_fprop(const Tensor& dy, const Tensor& w, const Conv2dOptions& options, const Tensor& dx) {
  if (dy.dtype() != DType::F32 || float32_math() != Float32Math::Ieee || options.groups != 1) return false;
  Conv2dOptions forward = options;
  for (int i = 0; i < 2; ++i) {
    const auto a = static_cast<size_t>(i);
    forward.padding[a] = options.dilation[a] * (w.size(1 + i) - 1) - options.padding[a];
    if (options.stride[a] != 1 || forward.padding[a] < 0) return false;
  }
  const memory::Scope scope(memory::Category::Workspace);
  Tensor turned = Tensor::empty({w.size(3), w.size(1), w.size(2), w.size(0)}, w.dtype(), w.device());
  turn_filter(w, turned);
  return through_cudnn(ConvOp::Fprop, dy, turned, dx, {}, forward);
}

void dgrad(const Tensor& dy, const Tensor& w, const Conv2dOptions& options, Tensor dx) {
  if (dgrad_as_fprop(dy, w, options, dx)) return;
  if (!through_cudnn(ConvOp::Dgrad, dx, w, dy, {}, options)) conv_direct_dgrad(dy, w, options, dx);
}

}  // namespace

void conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dOptions& options, Tensor& y) {
  check_dtype(ConvOp::Fprop, x);
  for_parts(x, y, [&](int64_t first, int64_t count) {
    fprop(x.narrow(first, count), w, bias, options, y.narrow(first, count));
  });
}

void conv2d_dgrad(const Tensor& dy, const Tensor& w, const Conv2dOptions& options, Tensor& dx) {
  check_dtype(ConvOp::Dgrad, dy);
  for_parts(dy, dx,
            [&](int64_t first, int64_t count) { dgrad(dy.narrow(first, count), w, options, dx.narrow(first, count)); });
}

void conv2d_wgrad(const Tensor& dy, const Tensor& x, const Conv2dOptions& options, Tensor& dw) {
  check_dtype(ConvOp::Wgrad, dy);
  if (!through_cudnn(ConvOp::Wgrad, x, dw, dy, {}, options)) conv_direct_wgrad(dy, x, options, dw);
}

ConvEngine conv2d_engine(ConvOp op, const Shape& x, const Shape& w, const Conv2dOptions& options, DType dtype,
                         Device device) {
  const backend::DeviceScope scope(device.index());
  return conv_cudnn_engine(problem_of(op, x, w, conv2d_shape(x, w, options), options, dtype, device));
}

}  // namespace demi::kernels::cuda
