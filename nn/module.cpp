#include "demi/nn/module.h"

#include "demi/amp/autocast.h"
#include "demi/autograd/observer.h"
#include "demi/kernels/cast.h"

namespace demi::nn {
namespace {
std::string join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}
}  // namespace

Variable Module::operator()(const Variable& x) {
  const ObserverScope scope(this);
  if (!precision_) return forward(x);
  const amp::Autocast region(*precision_);
  const bool to_fp32 = *precision_ == DType::F32 && is_16bit(x.dtype());
  return forward(to_fp32 ? cast(x, DType::F32) : x);
}

ParameterList Module::parameters() const {
  name_parameters();
  ParameterList list;
  for (const auto& [name, p] : named_parameters())
    if (p.requires_grad()) list.parameters.push_back(p);
  for (const auto& [name, b] : named_buffers()) list.buffers.push_back(b);
  return list;
}

// The outermost module gives the longest names, and those stay.
void Module::name_parameters() const {
  int64_t order = 0;
  for (const auto& [name, p] : named_parameters()) {
    ParameterState& state = p.parameter();
    if (name.size() > state.name.size()) {
      state.name = name;
      state.order = order;
    }
    ++order;
  }
}

Named<Parameter> Module::named_parameters(const std::string& prefix) const {
  Named<Parameter> all;
  for (const auto& [name, p] : parameters_) all.emplace_back(join(prefix, name), p);
  for (const auto& [name, child] : children_)
    for (auto& entry : child->named_parameters(join(prefix, name))) all.push_back(std::move(entry));
  return all;
}

Named<const Module*> Module::named_modules(const std::string& prefix) const {
  Named<const Module*> all{{prefix, this}};
  for (const auto& [name, child] : children_)
    for (auto& entry : child->named_modules(join(prefix, name))) all.push_back(std::move(entry));
  return all;
}

Named<Buffer> Module::named_buffers(const std::string& prefix) const {
  Named<Buffer> all;
  for (const auto& [name, b] : buffers_) all.emplace_back(join(prefix, name), b);
  for (const auto& [name, child] : children_)
    for (auto& entry : child->named_buffers(join(prefix, name))) all.push_back(std::move(entry));
  return all;
}

void Module::train(bool on) {
  training_ = on;
  for (const auto& [name, child] : children_) child->train(on);
}

void Module::to(Device device) {
  name_parameters();
  for (auto& [name, p] : named_parameters()) p.to(device);
  for (auto& [name, b] : named_buffers()) b.to(device);
}

std::map<std::string, Tensor> Module::state() const {
  std::map<std::string, Tensor> all;
  for (const auto& [name, p] : named_parameters())
    all[name] = p.master().device().is_cpu() ? p.master().clone() : p.master().to(Device::cpu());
  for (const auto& [name, b] : named_buffers())
    all[name] = b.tensor().device().is_cpu() ? b.tensor().clone() : b.tensor().to(Device::cpu());
  return all;
}

void Module::check_state(const std::map<std::string, Tensor>& state) const {
  std::map<std::string, Tensor> mine;
  for (const auto& [name, p] : named_parameters()) mine[name] = p.master();
  for (const auto& [name, b] : named_buffers()) mine[name] = b.tensor();
  for (const auto& [name, tensor] : mine) {
    const auto it = state.find(name);
    DEMI_CHECK(it != state.end(), "[load] '{}' is missing: the weights are of another model", name);
    DEMI_CHECK(it->second.shape() == tensor.shape(), "[load] '{}' has shape {}, this model's is {}", name,
               it->second.shape(), tensor.shape());
    const bool reals = is_floating(tensor.dtype());
    DEMI_CHECK(is_floating(it->second.dtype()) == reals, "[load] '{}' holds {}, not {}", name, it->second.dtype(),
               reals ? "reals" : "a count");
  }
  for (const auto& [name, tensor] : state) DEMI_CHECK(mine.contains(name), "[load] this model has no '{}'", name);
}

void Module::load_state(const std::map<std::string, Tensor>& state) {
  check_state(state);
  for (auto& [name, p] : named_parameters()) p.assign(state.at(name));
  for (auto& [name, b] : named_buffers()) b.assign(state.at(name));
}

}  // namespace demi::nn
