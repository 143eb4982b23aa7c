#include "demi/autograd/variable.h"

#include <algorithm>

#include "demi/autograd/flat_storage.h"
#include "demi/autograd/node.h"
#include "demi/autograd/observer.h"

namespace demi {

Variable::Variable(Tensor data, bool requires_grad) : state_(std::make_shared<VariableState>()) {
  DEMI_CHECK(data.defined(), "[variable] of an undefined tensor");
  DEMI_CHECK(!requires_grad || is_floating(data.dtype()), "[variable] only floating tensors have gradients, not {}",
             data.dtype());
  state_->data = std::move(data);
  state_->requires_grad = requires_grad;
}

const Tensor& Variable::tensor() const {
  DEMI_CHECK(defined(), "[variable] undefined: it was never given a value");
  return state_->parameter && state_->requires_grad ? state_->parameter->master() : state_->data;
}

bool Variable::requires_grad() const {
  if (!defined()) return false;
  return state_->parameter ? state_->parameter->trainable : state_->producer || state_->requires_grad;
}

Tensor Variable::grad() const {
  DEMI_CHECK(defined(), "[variable] undefined: it was never given a value");
  return state_->parameter ? state_->parameter->grad() : state_->grad;
}

void Variable::zero_grad() {
  DEMI_CHECK(defined(), "[variable] undefined: it was never given a value");
  if (state_->parameter)
    state_->parameter->zero_grad();
  else
    state_->grad = {};
}

Edge edge_of(const Variable& v) {
  if (!v.defined()) return {};
  if (v.state()->producer) return {v.state()->producer, nullptr};
  if (v.requires_grad()) return {nullptr, v.state()};
  return {};
}

Variable record(const char* name, Tensor y, const std::vector<Variable>& inputs, Backward backward) {
  Variable result(std::move(y));
  uint64_t id = 0;
  if (grad_enabled() &&
      std::any_of(inputs.begin(), inputs.end(), [](const Variable& v) { return v.requires_grad(); })) {
    std::vector<Edge> edges;
    edges.reserve(inputs.size());
    for (const Variable& v : inputs) edges.push_back(edge_of(v));
    result.state()->producer = std::make_shared<Node>(name, std::move(edges), std::move(backward));
    id = result.state()->producer->sequence();
  }
  if (Observer* o = observer()) o->forward(name, inputs, result.tensor(), id);
  return result;
}

Tensor gradient_buffer(const Variable& input, DType dtype) {
  const auto& parameter = input.state()->parameter;
  if (parameter && !parameter->has_grad()) return parameter->gradient_slice(dtype);
  return Tensor::empty(input.shape(), dtype, input.device());
}

}  // namespace demi
