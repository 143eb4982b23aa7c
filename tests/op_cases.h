// Every public operation in one or more small cases. From this one table come three tests of each: finite differences,
// CPU against CUDA, 16-bit against FP32. A new operation is one more entry in op_cases.cpp.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "demi/autograd/variable.h"

namespace demi::test {

struct OpInput {
  Shape shape;
  double low = -1, high = 1;  // values are uniform in between
  bool wide = false;          // stays FP32 beside 16-bit inputs: batch norm's and layer norm's parameters
};

struct OpCase {
  std::string name;  // [a-z0-9_]
  std::vector<OpInput> inputs;
  // The first result is differentiated, all are compared.
  std::function<std::vector<Variable>(const std::vector<Variable>&)> run;
  double slack = 1;                // multiplies the tolerance in FP32: for sums that cancel
  bool finite_differences = true;  // false where the op has no FP64 form
  double roundings = 1;            // multiplies the tolerances in 16 bits: how often a value is rounded on its way
};
inline void PrintTo(const OpCase& c, std::ostream* out) { *out << c.name; }  // for GoogleTest

const std::vector<OpCase>& op_cases();

}  // namespace demi::test
