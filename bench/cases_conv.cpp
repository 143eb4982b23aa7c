// Convolutions and their gradients, with a bias, and the fused layer conv -> batch norm -> ReLU in training. Each is
// 2 N P Q K R S C operations; images and filters are moved once.
#include <cmath>
#include <memory>

#include "demi/amp/autocast.h"
#include "demi/bench/cases.h"
#include "demi/bench/engines.h"
#include "demi/kernels/batch_norm.h"
#include "demi/kernels/cast.h"
#include "demi/kernels/fill.h"
#include "demi/nn/layers/batch_norm.h"

namespace demi::bench {
namespace {

Spec base(const Request& request, const Convolution& c, ConvKind kind) {
  Spec s;
  s.tensor_cores = true;
  const double elements =
      static_cast<double>(c.x.numel()) + static_cast<double>(c.w.numel()) + static_cast<double>(c.y.numel());
  s.bytes = elements * static_cast<double>(size_of(request.dtype()));
  s.flops = 2 * static_cast<double>(c.y.numel()) * static_cast<double>(c.w.numel()) / static_cast<double>(c.w[0]);
  s.label = [=] { return conv_label(request, c, kind); };
  return s;
}

// Random filters that keep the size of what goes through them.
Input filter(const Request& request, const Convolution& c) {
  const double spread = 1 / std::sqrt(static_cast<double>(c.w.numel() / c.w[0]));
  return {.shape = c.w, .dtype = request.dtype(), .b = spread, .batched = false, .odd = c.odd};
}
Input image(const Request& request, const Convolution& c, const Shape& shape) {
  return {.shape = shape, .dtype = request.dtype(), .odd = c.odd};
}

Spec fprop(const Request& request, bool bias) {
  const Convolution c = parse_convolution(request);
  Spec s = base(request, c, bias ? ConvKind::FpropBias : ConvKind::Fprop);
  s.inputs = {image(request, c, c.x), filter(request, c)};
  if (bias) {
    s.inputs.push_back({.shape = {c.w[0]}, .dtype = DType::F32, .batched = false});
    s.bytes += 4 * static_cast<double>(c.w[0]);
    s.flops += static_cast<double>(c.y.numel());
  }
  s.run = [=](Tensors& in) { return Tensors{kernels::conv2d(in[0], in[1], bias ? in[2] : Tensor(), c.options)}; };
  s.by_rows = true;
  return s;
}

Spec dgrad(const Request& request) {
  const Convolution c = parse_convolution(request);
  Spec s = base(request, c, ConvKind::Dgrad);
  s.inputs = {image(request, c, c.y), filter(request, c)};
  s.run = [=](Tensors& in) {
    Shape x = c.x;
    x.set(0, in[0].size(0));
    return Tensors{kernels::conv2d_dgrad(in[0], in[1], x, c.options)};
  };
  s.by_rows = true;
  return s;
}

Spec wgrad(const Request& request) {
  const Convolution c = parse_convolution(request);
  Spec s = base(request, c, ConvKind::Wgrad);
  // Sums over all pixels of the batch: kept far from 65504.
  const double spread = 1 / std::sqrt(static_cast<double>(c.y.numel() / c.w[0]));
  s.inputs = {image(request, c, c.y), image(request, c, c.x)};
  s.inputs[0].b = spread;
  s.run = [=](Tensors& in) {
    Tensor dw = Tensor::empty(c.w, in[0].dtype(), in[0].device());
    kernels::conv2d_wgrad(in[0], in[1], c.options, dw);
    return Tensors{dw};
  };
  return s;
}

// The layer keeps FP32 masters; with a 16-bit dtype it runs in autocast, on their compute copies.
struct Layer {
  explicit Layer(const Convolution& c)
      : conv({.in = c.x[3],
              .out = c.w[0],
              .kernel = c.w[1],
              .stride = c.options.stride[0],
              .padding = c.options.padding[0],
              .bias = false}),
        bn(c.w[0]) {}
  nn::Conv2d conv;
  nn::BatchNorm2d bn;
};

Spec conv_bn_relu_layer(const Request& request) {
  const Convolution c = parse_convolution(request);
  DEMI_CHECK(c.y.numel() / c.y[3] > 1,
             "shape '{}' is impossible for {}: training needs more than one value a channel; such as {}", request.shape,
             request.op, example_of(Kind::Convolution));
  const DType dtype = request.dtype();
  Spec s = base(request, c, ConvKind::Fprop);
  s.inputs = {image(request, c, c.x), filter(request, c)};
  s.inputs[1].dtype = DType::F32;
  s.inputs[1].odd = false;
  s.bind = [=](const Tensors& in) {
    const auto layer = std::make_shared<Layer>(c);
    layer->conv.to(in[1].device());
    layer->bn.to(in[1].device());
    layer->conv.weight.assign(in[1]);
    return [=](Tensors& operands) {
      const amp::Autocast region(dtype);
      return Tensors{nn::conv_bn_relu(layer->conv, layer->bn, Variable(operands[0])).tensor()};
    };
  };
  s.reference = [=](Tensors& in) {  // the weight as the layer's copy of it rounds it
    const Tensor w = kernels::cast(kernels::cast(in[1], dtype), in[1].dtype());
    const Tensor y = kernels::conv2d(in[0], w, {}, c.options);
    const Tensor one = kernels::full({c.w[0]}, 1, y.dtype(), y.device()),
                 zero = kernels::full({c.w[0]}, 0, y.dtype(), y.device());
    Tensor none;
    return Tensors{kernels::batch_norm_train(y, one, zero, {}, none, none, {.relu = true}).y};
  };
  if (request.precision == Precision::Fp16) s.limit = 2e-3;  // the convolution's result is rounded too
  if (request.precision == Precision::Bf16) s.limit = 16e-3;
  s.flops += 7 * static_cast<double>(c.y.numel());
  return s;
}

}  // namespace

void add_conv(std::vector<Op>& ops) {
  ops.push_back({"conv_fprop", Kind::Convolution, kAll, [](const Request& r) { return fprop(r, false); }});
  ops.push_back({"conv_fprop_bias", Kind::Convolution, kAll, [](const Request& r) { return fprop(r, true); }});
  ops.push_back({"conv_dgrad", Kind::Convolution, kAll, dgrad});
  ops.push_back({"conv_wgrad", Kind::Convolution, kAll, wgrad});
  ops.push_back({"conv_bn_relu", Kind::Convolution, kAll, conv_bn_relu_layer});
}

}  // namespace demi::bench
