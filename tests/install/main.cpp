// A program outside the tree: built against the installed package by run.cmake.
#include <demi/core/tensor.h>

#include <cstdio>

int main() {
  const demi::Tensor t = demi::Tensor::from<float>({1, 2, 3}, {3});
  float sum = 0;
  for (const float value : t.to_vector<float>()) sum += value;
  std::printf("%g\n", static_cast<double>(sum));
}
