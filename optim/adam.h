// Adam and AdamW; formulas and sources in kernels/adam.h.
#pragma once

#include "demi/kernels/adam.h"
#include "demi/optim/optimizer.h"

namespace demi::optim {

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
};

class Adam : public Optimizer {
 public:
  Adam(const ParameterList& parameters, const AdamOptions& options = {})
      : Adam(std::vector<ParameterGroup>{{parameters, {}}}, options) {}
  Adam(std::vector<ParameterGroup> groups, const AdamOptions& options = {}) : Adam(std::move(groups), options, false) {}

 protected:
  Adam(std::vector<ParameterGroup> groups, const AdamOptions& options, bool decoupled);

 private:
  std::map<std::string, double> hyperparameters() const override;
  void set_hyperparameters(const std::map<std::string, double>& values) override;
  void update(const kernels::StepOperands& run, std::vector<Tensor>& moments, double weight_decay) override;
  AdamOptions options_;
  bool decoupled_;
};

// Adam with weight decay applied to the weights themselves, not to the gradient. PyTorch's default decay here is 0.01.
class AdamW : public Adam {
 public:
  AdamW(const ParameterList& parameters, const AdamOptions& options = {.weight_decay = 0.01})
      : AdamW(std::vector<ParameterGroup>{{parameters, {}}}, options) {}
  AdamW(std::vector<ParameterGroup> groups, const AdamOptions& options = {.weight_decay = 0.01})
      : Adam(std::move(groups), options, true) {}
};

}  // namespace demi::optim
