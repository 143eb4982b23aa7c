// A small training of everything that has state, for tests of checkpoints.
#pragma once

#include <map>
#include <memory>

#include "demi/amp/autocast.h"
#include "demi/amp/grad_scaler.h"
#include "demi/autograd/engine.h"
#include "demi/kernels/random.h"
#include "demi/nn/checkpoint.h"
#include "demi/nn/functional/arithmetic.h"
#include "demi/nn/functional/loss.h"
#include "demi/nn/layers/batch_norm.h"
#include "demi/nn/layers/conv2d.h"
#include "demi/nn/layers/linear.h"
#include "demi/nn/layers/simple.h"
#include "demi/optim/adam.h"
#include "demi/optim/lr_schedule.h"
#include "demi/optim/sgd.h"
#include "devices.h"
#include "files.h"

namespace demi::test {

// A network with running statistics and dropout, an optimizer with moments, a schedule, and a loss scaler that grows,
// in the middle of its interval when it is saved.
struct Trained {
  struct Net : nn::Module {
    nn::Conv2d conv{{.in = 3, .out = 8, .kernel = 3, .padding = 1, .bias = false}};
    nn::BatchNorm2d norm{8};
    nn::GlobalAvgPool pool;
    nn::Dropout dropout{0.25};
    nn::Linear fc;
    explicit Net(int64_t classes) : fc({.in = 8, .out = classes}) {
      register_modules({{"conv", conv}, {"norm", norm}, {"pool", pool}, {"dropout", dropout}, {"fc", fc}});
    }
    Variable forward(const Variable& x) override { return fc(dropout(pool(relu(norm(conv(x)))))); }
  };

  struct Kind {
    bool adam = false;
    DType dtype = DType::F32;
    int64_t classes = 10;
    double beta1 = 0.9, beta2 = 0.999, momentum = 0.9;
    uint64_t seed = 3;
  };

  Trained(Device device, const Kind& kind)
      : device(device),
        dtype(kind.dtype),
        scaler({.init_scale = 16, .growth_interval = 7, .enabled = kind.dtype == DType::F16}) {
    manual_seed(kind.seed);
    net = std::make_unique<Net>(kind.classes);
    net->to(device);
    if (kind.adam)
      optimizer = std::make_unique<optim::Adam>(
          net->parameters(),
          optim::AdamOptions{.lr = 1e-2, .beta1 = kind.beta1, .beta2 = kind.beta2, .weight_decay = 1e-3});
    else
      optimizer = std::make_unique<optim::SGD>(
          net->parameters(), optim::SGDOptions{.lr = 0.05, .momentum = kind.momentum, .weight_decay = 1e-3});
    schedule = std::make_unique<optim::Schedule>(*optimizer,
                                                 optim::cosine({.lr = 0.05, .total_steps = 25, .warmup_steps = 3}));
  }

  void steps(int first, int count, double factor = 1) {
    for (int i = first; i < first + count; ++i) {
      const Tensor x = tensor_of(noise(4 * 6 * 6 * 3, static_cast<uint64_t>(i)), {4, 6, 6, 3}, DType::F32, device);
      const Tensor y = Tensor::from<int64_t>({i % 10, (i + 3) % 10, (i + 5) % 10, 9}, {4}, device);
      optimizer->zero_grad();
      Variable loss;
      {
        const amp::Autocast region(dtype);
        loss = nn::cross_entropy((*net)(x), y);
      }
      if (factor != 1) loss = scale(loss, factor);
      backward(scaler.scale(loss));
      scaler.step(*optimizer);
      scaler.update();
      schedule->step();
    }
  }

  nn::Training parts() { return {*net, *optimizer, scaler}; }
  void save(const fs::path& path, const nn::Notes& notes = {}) { nn::save_checkpoint(path, parts(), notes); }
  nn::Notes load(const fs::path& path) { return nn::load_checkpoint(path, parts()); }

  // All state, as bytes.
  std::map<std::string, std::string> everything() {
    std::map<std::string, std::string> all;
    for (const auto& [name, t] : net->state()) all["model." + name] = bytes_of(t);
    for (const auto& [name, t] : optimizer->state()) all["optimizer." + name] = bytes_of(t);
    for (const auto& [name, v] : scaler.state_dict()) all["scaler." + name] = fmt::format("{:a}", v);
    const RandomState& random = random_state(device);
    all["random"] = fmt::format("{} {}", random.seed, random.call) + bytes_of(random.step);
    return all;
  }

  Device device;
  DType dtype;
  std::unique_ptr<Net> net;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<optim::Schedule> schedule;
  amp::GradScaler scaler;
};

// The names whose bytes differ: short enough to print.
inline std::string differences(const std::map<std::string, std::string>& a,
                               const std::map<std::string, std::string>& b) {
  std::string names;
  for (const auto& [name, bytes] : a)
    if (!b.contains(name) || b.at(name) != bytes) names += name + " ";
  for (const auto& [name, bytes] : b)
    if (!a.contains(name)) names += name + " ";
  return names;
}

}  // namespace demi::test
