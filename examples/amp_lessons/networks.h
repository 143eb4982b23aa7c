// Small networks that lessons train, each with its loss of a batch.
#pragma once

#include <vector>

#include "demi/demi.h"

namespace demi::lessons {

// Tells the classes of 32x32 images: two convolutions with pooling, one linear layer.
struct Classifier : nn::Module {
  nn::Conv2d conv1{{.in = 3, .out = 8, .kernel = 3, .padding = 1}},
      conv2{{.in = 8, .out = 16, .kernel = 3, .padding = 1}};
  nn::Linear fc{{.in = 16 * 8 * 8, .out = 10}};

  Classifier() { register_modules({{"conv1", conv1}, {"conv2", conv2}, {"fc", fc}}); }
  Variable forward(const Variable& x) override {
    return fc(flatten(max_pool2d(relu(conv2(max_pool2d(relu(conv1(x))))))));
  }
  Variable loss(const data::Batch& batch) { return nn::cross_entropy((*this)(batch.images), batch.labels); }
};

// Learns how heat flows, u' = Laplace u, from images u before and after a time step h: as solvers do it takes one step
// of Euler's method, u + h f(u), and f is the network.
struct HeatFlow : nn::Module {
  static constexpr double h = 1.0 / 128;
  nn::Conv2d conv1{{.in = 3, .out = 8, .kernel = 3, .padding = 1}},
      conv2{{.in = 8, .out = 8, .kernel = 3, .padding = 1}}, conv3{{.in = 8, .out = 3, .kernel = 3, .padding = 1}};

  HeatFlow() { register_modules({{"conv1", conv1}, {"conv2", conv2}, {"conv3", conv3}}); }
  Variable forward(const Variable& u) override { return conv3(relu(conv2(relu(conv1(u))))); }
  Variable loss(const data::Batch& batch) {
    const Variable u = batch.images;
    return nn::mse_loss(u + h * (*this)(u), u + h * laplace(u));
  }
  // What flows into each pixel from its four neighbours, each channel by itself.
  static Variable laplace(const Variable& u) {
    const amp::Autocast off(DType::F32);
    std::vector<float> filters;
    for (int c = 0; c < 3; ++c) filters.insert(filters.end(), {0, 1, 0, 1, -4, 1, 0, 1, 0});
    return conv2d(u, Tensor::from<float>(filters, {3, 3, 3, 1}, u.device()), {}, {.padding = {1, 1}, .groups = 3});
  }
};

}  // namespace demi::lessons
