// What the tests of known faults share: faults that training software has really had, each as a small case with the
// value that is right, and as a test of its whole kind.
#pragma once

#include <map>

#include "demi/autograd/parameter.h"
#include "demi/kernels/fill.h"
#include "devices.h"

namespace demi::test {

using Values = std::vector<double>;

constexpr DType kTrainingDtypes[] = {DType::F32, DType::F16, DType::BF16};

class FaultTest : public OnDevice {
 protected:
  Tensor tensor(const Values& values, const Shape& shape = {}, DType dtype = DType::F32) const {
    return tensor_of(values, shape, dtype, device());
  }
  Variable leaf(const Values& values, const Shape& shape = {}, DType dtype = DType::F32) const {
    return Variable(tensor(values, shape, dtype), true);
  }
  Parameter parameter(const Values& values, const Shape& shape = {}) const { return Parameter(tensor(values, shape)); }
  Tensor constant(double value, const Shape& shape = {}, DType dtype = DType::F32) const {
    return kernels::full(shape, value, dtype, device());
  }
  Tensor labels(const std::vector<int64_t>& values) const {
    return Tensor::from(values, {static_cast<int64_t>(values.size())}, device());
  }
};

// Named tensors as values that can be compared: a module's or an optimizer's state.
inline std::map<std::string, Values> snapshot(const std::map<std::string, Tensor>& state) {
  std::map<std::string, Values> values;
  for (const auto& [name, t] : state) values[name] = values_of(t);
  return values;
}

}  // namespace demi::test
