// Models with weights that PyTorch made: tests/golden/torch_state.safetensors, written by torch_state.py beside it.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "demi/amp/autocast.h"
#include "demi/amp/grad_scaler.h"
#include "demi/autograd/engine.h"
#include "demi/kernels/permute.h"
#include "demi/nn/functional/loss.h"
#include "demi/nn/resnet.h"
#include "demi/nn/safetensors.h"
#include "demi/nn/torch_state.h"
#include "demi/optim/sgd.h"
#include "devices.h"

namespace demi::test {

namespace fs = std::filesystem;
using nn::StateDict;

inline const nn::Safetensors& golden() {
  static const nn::Safetensors file =
      nn::read_safetensors(fs::path(DEMI_SOURCE_DIR) / "tests/golden/torch_state.safetensors");
  return file;
}

// One model of the golden file.
inline StateDict golden_state(const std::string& model) {
  StateDict state;
  for (const auto& [name, t] : golden().tensors)
    if (name.starts_with(model + ".")) state[name.substr(model.size() + 1)] = t;
  return state;
}

inline std::unique_ptr<nn::Module> make(const std::string& model) {
  if (model != "mixed")
    return nn::resnet({.depth = 18,
                       .classes = 7,
                       .stem = model == "cifar" ? nn::Stem::Cifar : nn::Stem::ImageNet,
                       .width = 3.0 / 64});
  using namespace nn;
  return std::make_unique<Sequential>(
      std::make_unique<Conv2d>(Conv2dConfig{.in = 3, .out = 6, .kernel = 3, .stride = 2, .padding = 1, .bias = false}),
      std::make_unique<BatchNorm2d>(BatchNorm2dConfig{.channels = 6, .affine = false}), std::make_unique<ReLU>(),
      std::make_unique<Conv2d>(Conv2dConfig{.in = 6, .out = 8, .kernel = 3, .groups = 2}),
      std::make_unique<MaxPool2d>(), std::make_unique<Flatten>(),
      std::make_unique<Linear>(LinearConfig{.in = 8 * 8 * 10, .out = 7, .channels = 8}));
}
inline const std::vector<std::string> kModels{"cifar", "imagenet", "mixed"};

inline std::vector<double> logits_of(nn::Module& model, Device device) {
  model.eval();
  const NoGrad off;
  return values_of(model(kernels::to_channels_last(golden().tensors.at("input")).to(device)).tensor());
}

inline std::string bytes_of(const StateDict& state) {
  std::string all;
  for (const auto& [name, t] : state) {
    all += fmt::format("{} {} {} ", name, t.dtype(), t.shape());
    all.append(static_cast<const char*>(t.raw()), t.bytes());
  }
  return all;
}

// A training step in FP16 on the golden images; a scale that overflows makes it a skipped one.
struct TorchTraining {
  explicit TorchTraining(Device device)
      : model(make("cifar")),
        images(kernels::to_channels_last(golden().tensors.at("input")).to(device)),
        labels(Tensor::from<int64_t>({1, 3}, {2}, device)) {
    model->to(device);
    sgd = std::make_unique<optim::SGD>(model->parameters(), optim::SGDOptions{.lr = 0.01, .momentum = 0.9});
  }
  void step(double scale = 1024) {
    amp::GradScaler scaler({.init_scale = scale});
    model->train();
    sgd->zero_grad();
    Variable loss;
    {
      const amp::Autocast region(DType::F16);
      loss = nn::cross_entropy((*model)(images), labels);
    }
    backward(scaler.scale(loss));
    scaler.step(*sgd);
  }
  static constexpr double kOverflow = 0x1p120;

  std::unique_ptr<nn::Module> model;
  std::unique_ptr<optim::SGD> sgd;
  Tensor images, labels;
};

}  // namespace demi::test
