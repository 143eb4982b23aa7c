// A small training that tests look into.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "demi/amp/autocast.h"
#include "demi/amp/grad_scaler.h"
#include "demi/autograd/engine.h"
#include "demi/kernels/random.h"
#include "demi/nn/functional/loss.h"
#include "demi/nn/resnet.h"
#include "demi/optim/lr_schedule.h"
#include "demi/optim/sgd.h"
#include "devices.h"

namespace demi::test {

// A small ResNet with everything that a training step has, on a fixed batch.
struct Training {
  std::unique_ptr<nn::ResNet> model;
  std::unique_ptr<optim::SGD> sgd;
  std::unique_ptr<optim::Schedule> schedule;
  amp::GradScaler scaler;
  DType dtype;
  Tensor images, labels, loss;

  Training(Device device, DType dtype_, double scale = 1024)
      : scaler({.init_scale = scale, .growth_interval = 3, .enabled = dtype_ == DType::F16}), dtype(dtype_) {
    manual_seed(7);
    model = nn::resnet18({.width = 0.125});
    model->to(device);
    sgd = std::make_unique<optim::SGD>(model->parameters(),
                                       optim::SGDOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 5e-4});
    schedule = std::make_unique<optim::Schedule>(*sgd, optim::cosine({.lr = 0.05, .total_steps = 40}));
    images = tensor_of(noise(8 * 32 * 32 * 3), {8, 32, 32, 3}, DType::F32, device);
    labels = Tensor::from<int64_t>({0, 1, 2, 3, 4, 5, 6, 7}, {8}, device);
    loss = Tensor::zeros({}, DType::F32, device);
  }

  optim::StepOutcome step() {
    sgd->zero_grad();
    Variable l;
    {
      const amp::Autocast region(dtype);
      l = nn::cross_entropy((*model)(images), labels);
    }
    loss.copy_from(l.tensor());
    backward(scaler.scale(l));
    const optim::StepOutcome outcome = scaler.step(*sgd);
    scaler.update();
    schedule->step();
    return outcome;
  }

  // Every number that a step may change, as it lies in memory.
  std::map<std::string, std::vector<double>> everything() const {
    std::map<std::string, std::vector<double>> all;
    for (const auto& [name, t] : model->state()) all["model." + name] = values_of(t);
    for (const auto& [name, t] : sgd->state()) all["optimizer." + name] = values_of(t);
    return all;
  }
};

}  // namespace demi::test
