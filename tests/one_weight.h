// A training as small as can be, for tests of the loss scaler: its numbers can be told beforehand.
#pragma once

#include "demi/amp/autocast.h"
#include "demi/amp/grad_scaler.h"
#include "demi/autograd/engine.h"
#include "demi/nn/functional/arithmetic.h"
#include "demi/nn/functional/linear.h"
#include "demi/nn/functional/reduce.h"
#include "demi/optim/sgd.h"
#include "devices.h"

namespace demi::test {

// One weight of value 0 under SGD with learning rate 1, whose gradient is given.
struct OneWeight {
  explicit OneWeight(Device device)
      : w(tensor_of({0}, {1, 1}, DType::F32, device)), sgd(std::vector{w}, {.lr = 1}), device(device) {}

  void backward_of(amp::GradScaler& scaler, double gradient) {
    backward(scaler.scale(sum(w * Variable(tensor_of({gradient}, {1, 1}, DType::F32, device)))));
  }
  // The same through a compute copy: the gradient is FP16.
  void backward_of_half(amp::GradScaler& scaler, double gradient) {
    const amp::Autocast region(DType::F16);
    backward(scaler.scale(sum(linear(Variable(tensor_of({gradient}, {1, 1}, DType::F32, device)), w))));
  }
  optim::StepOutcome step(amp::GradScaler& scaler, double gradient) {
    sgd.zero_grad();
    backward_of(scaler, gradient);
    return scaler.step(sgd);
  }
  // A whole step; the scale after it.
  double train(amp::GradScaler& scaler, double gradient) {
    step(scaler, gradient);
    scaler.update();
    return scaler.get_scale();
  }
  double value() const { return values_of(w.master())[0]; }
  double gradient() const { return values_of(w.grad())[0]; }

  Parameter w;
  optim::SGD sgd;
  Device device;
};

}  // namespace demi::test
