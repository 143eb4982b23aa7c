// Layers without parameters, and Sequential.
#pragma once

#include <memory>
#include <vector>

#include "demi/nn/functional/dropout.h"
#include "demi/nn/functional/elementwise.h"
#include "demi/nn/functional/pool.h"
#include "demi/nn/functional/shape.h"
#include "demi/nn/module.h"

namespace demi::nn {

class ReLU : public Module {
 public:
  Variable forward(const Variable& x) override { return relu(x); }
};

class LeakyReLU : public Module {
 public:
  explicit LeakyReLU(double negative_slope = 0.01) : negative_slope_(negative_slope) {}
  Variable forward(const Variable& x) override { return leaky_relu(x, negative_slope_); }

 private:
  double negative_slope_;
};

struct Pool2dConfig {
  int64_t kernel = 2, stride = 0, padding = 0;  // stride 0: the kernel's size
};

class MaxPool2d : public Module {
 public:
  explicit MaxPool2d(const Pool2dConfig& config = {}) : config_(config) {}
  Variable forward(const Variable& x) override;

 private:
  Pool2dConfig config_;
};

class AvgPool2d : public Module {
 public:
  explicit AvgPool2d(const Pool2dConfig& config = {}) : config_(config) {}
  Variable forward(const Variable& x) override;

 private:
  Pool2dConfig config_;
};

class GlobalAvgPool : public Module {  // [N, H, W, C] -> [N, C]
 public:
  Variable forward(const Variable& x) override { return global_avg_pool(x); }
};

class Flatten : public Module {  // [N, ...] -> [N, product of the rest]
 public:
  Variable forward(const Variable& x) override { return flatten(x); }
};

class Dropout : public Module {  // the identity in eval()
 public:
  explicit Dropout(double p = 0.5);
  Variable forward(const Variable& x) override { return training() ? dropout(x, p_) : x; }

 private:
  double p_;
};

// Modules one after another, named "0", "1", ... It owns them:
//   Sequential net(std::make_unique<Conv2d>(...), std::make_unique<ReLU>());
class Sequential : public Module {
 public:
  Sequential() = default;
  template <typename... M>
  explicit Sequential(std::unique_ptr<M>... modules) {
    (append(std::move(modules)), ...);
  }
  void append(std::unique_ptr<Module> module);
  Variable forward(const Variable& x) override;
  size_t size() const { return modules_.size(); }
  Module& operator[](size_t i) { return *modules_.at(i); }

 private:
  std::vector<std::unique_ptr<Module>> modules_;
};

}  // namespace demi::nn
