#include "demi/nn/layers/simple.h"

namespace demi::nn {
namespace {
Pool2dOptions options_of(const Pool2dConfig& c) {
  const int64_t stride = c.stride > 0 ? c.stride : c.kernel;
  return {.kernel = {c.kernel, c.kernel}, .stride = {stride, stride}, .padding = {c.padding, c.padding}};
}
}  // namespace

Variable MaxPool2d::forward(const Variable& x) { return max_pool2d(x, options_of(config_)); }
Variable AvgPool2d::forward(const Variable& x) { return avg_pool2d(x, options_of(config_)); }

Dropout::Dropout(double p) : p_(p) { DEMI_CHECK(p >= 0 && p <= 1, "[Dropout] p is between 0 and 1, not {}", p); }

void Sequential::append(std::unique_ptr<Module> module) {
  register_modules({{std::to_string(modules_.size()), *module}});
  modules_.push_back(std::move(module));
}

Variable Sequential::forward(const Variable& x) {
  Variable y = x;
  for (const auto& m : modules_) y = (*m)(y);
  return y;
}

}  // namespace demi::nn
