#include "demi/optim/adam.h"

namespace demi::optim {
namespace {
const AdamOptions& checked(const AdamOptions& o) {
  DEMI_CHECK(o.lr >= 0 && o.eps >= 0 && o.weight_decay >= 0,
             "[adam] lr, eps and weight_decay are not negative: {}, {}, {}", o.lr, o.eps, o.weight_decay);
  DEMI_CHECK(o.beta1 >= 0 && o.beta1 < 1 && o.beta2 >= 0 && o.beta2 < 1, "[adam] betas are in [0, 1), not {} and {}",
             o.beta1, o.beta2);
  return o;
}
}  // namespace

Adam::Adam(std::vector<ParameterGroup> groups, const AdamOptions& options, bool decoupled)
    : Optimizer(std::move(groups), checked(options).lr, options.weight_decay, 2),
      options_(options),
      decoupled_(decoupled) {}

// The name tells the two apart, which treat the decay differently.
std::map<std::string, double> Adam::hyperparameters() const {
  const std::string name = decoupled_ ? "adamw." : "adam.";
  return {{name + "beta1", options_.beta1}, {name + "beta2", options_.beta2}, {name + "eps", options_.eps}};
}

void Adam::set_hyperparameters(const std::map<std::string, double>& values) {
  const std::string name = decoupled_ ? "adamw." : "adam.";
  options_.beta1 = values.at(name + "beta1");
  options_.beta2 = values.at(name + "beta2");
  options_.eps = values.at(name + "eps");
}

void Adam::update(const kernels::StepOperands& run, std::vector<Tensor>& moments, double weight_decay) {
  kernels::adam_step(run, moments[0], moments[1],
                     {options_.beta1, options_.beta2, options_.eps, weight_decay, decoupled_});
}

}  // namespace demi::optim
