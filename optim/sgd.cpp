#include "demi/optim/sgd.h"

namespace demi::optim {
namespace {
const SGDOptions& checked(const SGDOptions& o) {
  DEMI_CHECK(o.lr >= 0 && o.momentum >= 0 && o.weight_decay >= 0,
             "[sgd] lr, momentum and weight_decay are not negative: {}, {}, {}", o.lr, o.momentum, o.weight_decay);
  DEMI_CHECK(!o.nesterov || (o.momentum > 0 && o.dampening == 0),
             "[sgd] nesterov needs momentum above 0 and no dampening");
  return o;
}
}  // namespace

SGD::SGD(std::vector<ParameterGroup> groups, const SGDOptions& options)
    : Optimizer(std::move(groups), checked(options).lr, options.weight_decay, options.momentum != 0 ? 1 : 0),
      options_(options) {}

std::map<std::string, double> SGD::hyperparameters() const {
  return {{"sgd.momentum", options_.momentum},
          {"sgd.dampening", options_.dampening},
          {"sgd.nesterov", options_.nesterov ? 1.0 : 0.0}};
}

void SGD::set_hyperparameters(const std::map<std::string, double>& values) {
  options_.momentum = values.at("sgd.momentum");
  options_.dampening = values.at("sgd.dampening");
  options_.nesterov = values.at("sgd.nesterov") != 0;
}

void SGD::update(const kernels::StepOperands& run, std::vector<Tensor>& moments, double weight_decay) {
  Tensor none;
  kernels::sgd_step(run, moments.empty() ? none : moments[0],
                    {options_.momentum, options_.dampening, weight_decay, options_.nesterov});
}

}  // namespace demi::optim
