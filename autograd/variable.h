// Variable: a tensor with a history. A value type: copies share the same tensor, gradient and history.
//
// Every operation on Variables makes a new one and, when an input wants a gradient, remembers how to go back: a Node
// with one closure that turns the gradient of the output into the gradients of the inputs. backward() walks the nodes
// from the newest to the oldest (autograd/engine.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "demi/autograd/grad_mode.h"
#include "demi/core/tensor.h"

namespace demi {

class Node;
class ParameterState;

// What the copies of one Variable share.
struct VariableState {
  Tensor data;
  bool requires_grad = false;                 // a leaf that collects a gradient
  Tensor grad;                                // of a leaf that is no parameter
  std::shared_ptr<Node> producer;             // the operation that made this; none for a leaf
  std::shared_ptr<ParameterState> parameter;  // set for a parameter and for its 16-bit compute copies
};

class Variable {
 public:
  Variable() = default;                               // undefined
  Variable(Tensor data, bool requires_grad = false);  // NOLINT: a tensor is a constant Variable

  bool defined() const { return state_ != nullptr; }
  const Tensor& tensor() const;
  const Shape& shape() const { return tensor().shape(); }
  int64_t size(int axis) const { return tensor().size(axis); }
  DType dtype() const { return tensor().dtype(); }
  Device device() const { return tensor().device(); }
  template <typename T>
  T item() const {
    return tensor().item<T>();
  }

  // Whether a gradient flows to or through this variable.
  bool requires_grad() const;
  // The gradient that backward() left in a leaf; undefined where there is none. A parameter's may be 16-bit: it has the
  // dtype that backward computed it in.
  Tensor grad() const;
  void zero_grad();
  // The same tensor without a history.
  Variable detach() const { return Variable(tensor()); }

  const std::shared_ptr<VariableState>& state() const { return state_; }
  explicit Variable(std::shared_ptr<VariableState> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<VariableState> state_;
};

// dy: the gradient of the output -> one gradient an input, undefined for those that need none.
using Backward = std::function<std::vector<Tensor>(const Tensor& dy)>;

// The result of an operation. When recording is on and an input requires a gradient, `y` remembers `backward`; the
// closure captures tensors that it needs, never its own output Variable (that would be a cycle).
Variable record(const char* name, Tensor y, const std::vector<Variable>& inputs, Backward backward);

// Where a backward closure may write the gradient of `input`: the parameter's own slice of flat gradient storage when
// it has no gradient yet (so that nothing is copied later), else a new tensor. Shape as the input, dtype as asked.
Tensor gradient_buffer(const Variable& input, DType dtype);

}  // namespace demi
