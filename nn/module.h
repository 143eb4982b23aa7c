// Module: a layer or a network: named parameters and buffers, submodules, and forward.
#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "demi/autograd/parameter.h"

namespace demi::nn {

template <typename T>
using Named = std::vector<std::pair<std::string, T>>;

// Submodules are members and are registered by reference, so modules neither move nor copy.
class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  virtual Variable forward(const Variable& x) = 0;
  // forward in this module's own precision, if it was given one.
  Variable operator()(const Variable& x);

  // What an optimizer takes: everything trainable, and the buffers that training steps write.
  ParameterList parameters() const;
  // By dotted names, as in PyTorch: "layer1.0.conv1.weight", "bn1.running_mean".
  Named<Parameter> named_parameters(const std::string& prefix = "") const;
  Named<Buffer> named_buffers(const std::string& prefix = "") const;
  // This module, under the name "" (or the prefix), and all below it.
  Named<const Module*> named_modules(const std::string& prefix = "") const;

  virtual void train(bool on = true);
  void eval() { train(false); }
  bool training() const { return training_; }
  // Moves parameters and buffers; before an optimizer is made.
  void to(Device device);
  // Runs this module and everything below it in one precision, whatever region it is called in: FP32 switches autocast
  // off and casts the input, FP16 and BF16 open a region.
  void set_precision(DType dtype) { precision_ = dtype; }
  const std::optional<DType>& precision() const { return precision_; }

  // Parameters and buffers by name, on the host, in demi's layouts. load_state() checks everything before it writes
  // anything: a missing or unknown name or another shape is an Error that names it.
  std::map<std::string, Tensor> state() const;
  void load_state(const std::map<std::string, Tensor>& state);
  void check_state(const std::map<std::string, Tensor>& state) const;  // the same checks alone

 protected:
  void register_parameter(const std::string& name, const Parameter& parameter) {
    parameters_.emplace_back(name, parameter);
  }
  void register_buffer(const std::string& name, const Buffer& buffer) { buffers_.emplace_back(name, buffer); }
  using Child = std::pair<std::string, Module*>;
  struct ChildReference : Child {  // so that {"conv1", conv1} does
    ChildReference(std::string name, Module& module) : Child(std::move(name), &module) {}
  };
  void register_modules(std::initializer_list<ChildReference> children) {
    children_.insert(children_.end(), children.begin(), children.end());
  }

 private:
  void name_parameters() const;  // tells parameters what they are called, for messages
  Named<Parameter> parameters_;
  Named<Buffer> buffers_;
  std::vector<Child> children_;
  bool training_ = true;
  std::optional<DType> precision_;
};

}  // namespace demi::nn
