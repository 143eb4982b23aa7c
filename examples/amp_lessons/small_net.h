// The network that dynamic_scale and autocast look into, and how they look.
#pragma once

#include <cstring>

#include "demi/amp/inspect.h"
#include "demi/demi.h"

namespace demi::lessons {

// Two convolutions with batch norm and ReLU, the mean over the image, a classifier. No biases.
struct SmallNet : nn::Module {
  nn::Conv2d conv1{{.in = 3, .out = 16, .stride = 2, .padding = 1, .bias = false}},
      conv2{{.in = 16, .out = 32, .stride = 2, .padding = 1, .bias = false}};
  nn::BatchNorm2d bn1{16}, bn2{32};
  nn::Linear fc{{.in = 32, .out = 10, .bias = false}};
  SmallNet() { register_modules({{"conv1", conv1}, {"bn1", bn1}, {"conv2", conv2}, {"bn2", bn2}, {"fc", fc}}); }
  Variable forward(const Variable& x) override {
    return fc(global_avg_pool(conv_bn_relu(conv2, bn2, conv_bn_relu(conv1, bn1, x))));
  }
};

// One training step with PyTorch's three lines of mixed precision. FP32 makes them do nothing, with a scaler that is
// not enabled.
inline void train_step(nn::Module& net, optim::Optimizer& optimizer, amp::GradScaler& scaler, const data::Batch& batch,
                       DType dtype) {
  optimizer.zero_grad();
  Variable loss;
  {
    const amp::Autocast region(dtype);  // 1
    loss = nn::cross_entropy(net(batch.images), batch.labels);
  }
  backward(scaler.scale(loss));  // 2
  scaler.step(optimizer);        // 3
  scaler.update();
}

// floor(log2 |x|) of the largest gradient x among those that backward computed in `dtype`.
inline int highest_exponent(const amp::Inspector& inspector, DType dtype) {
  int highest = kernels::ValueCounts::kLowest;
  const auto look = [&](std::optional<DType> of, const kernels::ValueCounts& counts) {
    for (int e = highest; e <= counts.kHighest; ++e)
      if (of == dtype && counts.exponents[static_cast<size_t>(e - counts.kLowest)] > 0) highest = e;
  };
  for (const auto& operation : inspector.operations()) {
    look(operation.gradient_dtype, operation.gradient);
    look(operation.weight_gradient_dtype, operation.weight_gradient);
  }
  return highest;
}

// Copies of all that a step may write, each with its kind.
using State = std::vector<std::pair<std::string, Tensor>>;
inline State state_of(const SmallNet& net, optim::Optimizer& optimizer) {
  State all;
  const auto add = [&](const char* kind, const Tensor& t) { all.emplace_back(kind, t.clone().to(Device::cpu())); };
  for (const auto& [name, p] : net.named_parameters()) add("weights", p.master());
  for (const auto& [name, p] : net.named_parameters()) add("FP16 copies", p.parameter().compute(DType::F16));
  for (const auto& [name, t] : optimizer.state())
    if (name.ends_with("moment0")) add("momentum", t);
  for (const auto& [name, b] : net.named_buffers()) add("batch norm's statistics", b.tensor());
  return all;
}

// How many tensors of a kind differ in any bit.
inline int changed(const State& a, const State& b, const std::string& kind) {
  int n = 0;
  for (size_t i = 0; i < a.size(); ++i)
    n += a[i].first == kind && std::memcmp(a[i].second.raw(), b[i].second.raw(), a[i].second.bytes()) != 0;
  return n;
}

}  // namespace demi::lessons
