#include "demi/amp/overflow_witness.h"

#include "demi/core/overflow.h"
#include "demi/kernels/gradient.h"

namespace demi::amp {
namespace {

bool is_finite(const Tensor& x) {
  Tensor found = Tensor::zeros({}, DType::I32, x.device());
  kernels::check_finite(x, found);
  return found.item<int32_t>() == 0;
}

// Backward goes from the last layer to the first, and a gradient that is not finite spoils those of all layers that
// come after it on that way. So the last parameter, in the model's order,
// was the first whose gradient overflowed.
std::string first_to_overflow(const std::vector<OverflowWitness::Parameters>& lists) {
  const ParameterState* first = nullptr;
  for (const auto& list : lists)
    for (const Parameter& p : *list) {
      const ParameterState& state = p.parameter();
      if (!state.has_grad() || (first && state.order < first->order)) continue;
      if (!is_finite(state.grad())) first = &state;
    }
  if (!first) return {};
  if (first->name.empty())
    return fmt::format("the first gradient to overflow was that of a parameter of shape {}", first->master().shape());
  const size_t dot = first->name.rfind('.');
  return fmt::format("the first gradient to overflow was that of {}{}", first->name,
                     dot == std::string::npos ? "" : fmt::format(" in the layer {}", first->name.substr(0, dot)));
}

}  // namespace

void OverflowWitness::watch(Device device, std::vector<Parameters> parameters) {
  watched_ = std::make_shared<const std::vector<Parameters>>(std::move(parameters));
  set_overflow_witness(device, [weak = std::weak_ptr(watched_)] {
    const auto lists = weak.lock();
    return lists ? first_to_overflow(*lists) : std::string();
  });
}

}  // namespace demi::amp
