// A program outside the tree, built against the installed package by run.cmake: every public header, and a small use
// of each folder's code.
#include <demi/demi.h>

#include <cstdio>

int main() {
  using namespace demi;
  const Variable x(Tensor::from<float>({1, -2, 3}, {3}), true);
  backward(sum(mul(relu(x), x)));  // d/dx of the sum of relu(x) x: 2 x where x is positive
  for (const float value : x.grad().to_vector<float>()) std::printf("%g ", static_cast<double>(value));
  nn::Linear linear({.in = 3, .out = 2});
  optim::SGD sgd(linear.parameters(), {.lr = 0.1});
  std::printf("%lld\n", static_cast<long long>(linear(x).shape()[0]));
}
