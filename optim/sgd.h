// Stochastic gradient descent with momentum; formula and source in kernels/sgd.h.
#pragma once

#include "demi/kernels/sgd.h"
#include "demi/optim/optimizer.h"

namespace demi::optim {

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;  // needs momentum > 0 and no dampening
};

class SGD : public Optimizer {
 public:
  SGD(const ParameterList& parameters, const SGDOptions& options)
      : SGD(std::vector<ParameterGroup>{{parameters, {}}}, options) {}
  SGD(std::vector<ParameterGroup> groups, const SGDOptions& options);

 private:
  std::map<std::string, double> hyperparameters() const override;
  void set_hyperparameters(const std::map<std::string, double>& values) override;
  void update(const kernels::StepOperands& run, std::vector<Tensor>& moments, double weight_decay) override;
  SGDOptions options_;
};

}  // namespace demi::optim
