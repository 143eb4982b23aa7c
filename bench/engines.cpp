#include "demi/bench/engines.h"

#if DEMI_CUDA
#include "demi/kernels/cuda/conv_cudnn.h"
#include "demi/kernels/cuda/gemm_kernels.h"
#endif

namespace demi::bench {

#if DEMI_CUDA
namespace {

// Tensor cores take rows in pieces of 16 bytes.
int64_t piece_of(DType dtype) { return 16 / static_cast<int64_t>(size_of(dtype)); }

std::string with_reason(const Request& request, std::string label, bool tensor_cores, const std::string& why) {
  if (request.precision != Precision::Fp32 && !tensor_cores) label += " | no tensor cores: " + why;
  return label;
}

}  // namespace

std::string gemm_label(const Request& request, int64_t m, int64_t n, int64_t k, bool linear, bool odd) {
  if (request.device.is_cpu()) return "";
  const Float32MathGuard math(math_of(request.precision));
  const backend::DeviceScope scope(request.device.index());
  const DType dtype = request.dtype();
  const auto operand = [&](const Shape& shape, DType type) {
    return allocate({.shape = shape, .dtype = type, .odd = odd}, request.device);
  };
  const Tensor a = operand({m, k}, dtype), b = operand(linear ? Shape{n, k} : Shape{k, n}, dtype);
  const Tensor c = Tensor::empty({m, n}, dtype, request.device);
  const Tensor bias = linear ? operand({n}, DType::F32) : Tensor();
  const auto engine = kernels::cuda::gemm_engine(a, false, b, linear, bias, c);
  const int64_t piece = piece_of(dtype), row = k % piece != 0 ? k : n;
  std::string unaligned;
  if (odd)
    unaligned = fmt::format("operands start {} bytes past what is aligned to 16", size_of(dtype));
  else if (row % piece != 0)
    unaligned = fmt::format("rows of {} elements are no multiple of {}", row, piece);
  if (request.precision != Precision::Fp32 && engine.tensor_cores && !unaligned.empty())
    return engine.name + " | unaligned: " + unaligned;
  return with_reason(request, engine.name, engine.tensor_cores,
                     unaligned.empty() ? "cuBLASLt's choice for this shape" : unaligned);
}

std::string conv_label(const Request& request, const Convolution& c, ConvKind kind) {
  if (request.device.is_cpu()) return "";
  using kernels::cuda::ConvOp;
  constexpr ConvOp conv_ops[] = {ConvOp::Fprop, ConvOp::FpropBias, ConvOp::Dgrad, ConvOp::Wgrad};
  const Float32MathGuard math(math_of(request.precision));
  const DType dtype = request.dtype();
  const auto engine_of = [&](ConvOp op, const Shape& x, const Shape& w, const kernels::Conv2dOptions& options) {
    return kernels::cuda::conv2d_engine(op, x, w, options, dtype, request.device);
  };
  auto engine = engine_of(conv_ops[static_cast<size_t>(kind)], c.x, c.w, c.options);
  // kernels/cuda/conv2d.cpp may have made a forward convolution of it.
  if (engine.name.empty() && kind == ConvKind::Dgrad) {
    kernels::Conv2dOptions turned = c.options;
    for (size_t i = 0; i < 2; ++i) turned.padding[i] = c.w[1] - 1 - c.options.padding[i];
    engine = engine_of(ConvOp::Fprop, c.y, {c.w[3], c.w[1], c.w[2], c.w[0]}, turned);
    if (!engine.name.empty()) engine.name += " (dgrad as fprop)";
  }
  std::string label = engine.name == "direct" ? "demi's own kernel" : engine.name.empty() ? "" : "cuDNN " + engine.name;
  const int64_t piece = piece_of(dtype), channels = c.x[3] % piece != 0 ? c.x[3] : c.w[0];
  const bool padded = is_16bit(dtype) && channels % piece != 0;
  if (padded) label += fmt::format(" | {} channels padded to {}", channels, (channels + piece - 1) / piece * piece);
  if (c.odd) label += " | operands copied to where they are aligned";
  std::string why = "cuDNN's choice for this shape";
  if (engine.name == "direct")
    why = "no engine of cuDNN takes it";
  else if (channels % piece != 0 && !padded)
    why = fmt::format("{} channels are no multiple of {}", channels, piece);
  return with_reason(request, label, engine.tensor_cores, why);
}
#else
std::string gemm_label(const Request&, int64_t, int64_t, int64_t, bool, bool) { return ""; }
std::string conv_label(const Request&, const Convolution&, ConvKind) { return ""; }
#endif

}  // namespace demi::bench
