// Function: an operation of one's own, with its own forward and backward.
//
//   struct Cube : Function<Cube> {
//     static Tensor forward(FunctionContext& context, const Tensor& x) { context.save({x}); return mul(mul(x, x), x); }
//     static std::vector<Tensor> backward(FunctionContext& context, const Tensor& dy) { ... context.saved(0) ... }
//   };
//   Variable y = Cube::apply(x);
#pragma once

#include <memory>
#include <vector>

#include "demi/autograd/variable.h"

namespace demi {

// Carries tensors from forward to backward.
class FunctionContext {
 public:
  void save(std::vector<Tensor> tensors) { saved_ = std::move(tensors); }
  const Tensor& saved(size_t i) const { return saved_.at(i); }
  // Whether input i wants a gradient; where it does not, backward may give an undefined tensor.
  bool needs_grad(size_t i) const { return needs_grad_.at(i); }

 private:
  template <typename, typename>
  friend struct Function;
  std::vector<Tensor> saved_;
  std::vector<bool> needs_grad_;
};

// The default policy: forward and backward see tensors as they come.
struct AsTheyCome {
  struct Scope {};
  static Variable prepare(const Variable& v) { return v; }
};

// Derived gives forward(context, tensors...) and backward(context, dy), which returns one gradient an input, in the
// input's dtype. Policy may cast the inputs and hold a scope around forward and backward (amp::RunIn fixes a
// precision).
template <typename Derived, typename Policy = AsTheyCome>
struct Function {
  template <typename... Inputs>
  static Variable apply(const Inputs&... inputs) {
    return run(Policy::prepare(inputs)...);
  }

 private:
  template <typename... Inputs>
  static Variable run(const Inputs&... inputs) {
    auto context = std::make_shared<FunctionContext>();
    context->needs_grad_ = {inputs.requires_grad()...};
    Tensor y;
    {
      const NoGrad off;
      [[maybe_unused]] const typename Policy::Scope scope{};
      y = Derived::forward(*context, inputs.tensor()...);
    }
    return record("function", std::move(y), {inputs...}, [context](const Tensor& dy) {
      [[maybe_unused]] const typename Policy::Scope scope{};
      return Derived::backward(*context, dy);
    });
  }
};

}  // namespace demi
