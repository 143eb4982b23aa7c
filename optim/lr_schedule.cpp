#include "demi/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace demi::optim {
namespace {

using std::numbers::pi;

std::vector<double> warmup(double lr, int64_t steps) {
  std::vector<double> table;
  for (int64_t k = 0; k < steps; ++k) table.push_back(lr * static_cast<double>(k + 1) / static_cast<double>(steps + 1));
  return table;
}

// From `from` to `to` on half a cosine, t in [0, 1].
double anneal(double from, double to, double t) { return to + (from - to) * (1 + std::cos(pi * t)) / 2; }

void check_steps(const char* name, int64_t total, int64_t warmup_steps) {
  DEMI_CHECK(total > 0 && warmup_steps >= 0 && warmup_steps < total, "[{}] {} steps with {} of warm-up", name, total,
             warmup_steps);
}

}  // namespace

Schedule::Schedule(Optimizer& optimizer, std::vector<double> lr_at) : optimizer_(optimizer), values_(std::move(lr_at)) {
  DEMI_CHECK(!values_.empty(), "[schedule] needs at least one learning rate");
  const memory::Scope scope(memory::Category::OptimizerState);
  table_ = Tensor::from(std::vector<float>(values_.begin(), values_.end()), {static_cast<int64_t>(values_.size())},
                        optimizer.device());
  optimizer.set_lr(values_[0]);
}

void Schedule::step() {
  kernels::advance_schedule(optimizer_.last_skip(), table_, optimizer_.schedule_position(), optimizer_.lr_tensor());
}

double Schedule::lr_at(int64_t step) const {
  return values_[static_cast<size_t>(std::clamp<int64_t>(step, 0, static_cast<int64_t>(values_.size()) - 1))];
}

int64_t Schedule::position() const { return optimizer_.schedule_position().item<int64_t>(); }

std::vector<double> cosine(const CosineOptions& o) {
  check_steps("cosine", o.total_steps, o.warmup_steps);
  std::vector<double> table = warmup(o.lr, o.warmup_steps);
  const int64_t n = o.total_steps - o.warmup_steps;
  for (int64_t k = 0; k <= n; ++k)
    table.push_back(anneal(o.lr, o.lr_min, static_cast<double>(k) / static_cast<double>(n)));
  return table;
}

std::vector<double> step_decay(const StepDecayOptions& o) {
  check_steps("step", o.total_steps, o.warmup_steps);
  DEMI_CHECK(o.step_size > 0, "[step] step_size is positive, not {}", o.step_size);
  std::vector<double> table = warmup(o.lr, o.warmup_steps);
  for (int64_t k = 0; k <= o.total_steps - o.warmup_steps; ++k)
    table.push_back(o.lr * std::pow(o.gamma, static_cast<double>(k / o.step_size)));
  return table;
}

std::vector<double> one_cycle(const OneCycleOptions& o) {
  DEMI_CHECK(o.total_steps > 1 && o.pct_start > 0 && o.pct_start < 1, "[one_cycle] {} steps, {} of them rising",
             o.total_steps, o.pct_start);
  const double first = o.max_lr / o.div_factor, last = first / o.final_div_factor;
  const double peak = o.pct_start * static_cast<double>(o.total_steps) - 1,
               end = static_cast<double>(o.total_steps) - 1;
  std::vector<double> table;
  for (int64_t k = 0; k < o.total_steps; ++k) {
    const double t = static_cast<double>(k);
    const double rise = peak > 0 ? t / peak : 1;  // a peak at step 0 leaves nothing to rise over
    table.push_back(t <= peak ? anneal(first, o.max_lr, rise) : anneal(o.max_lr, last, (t - peak) / (end - peak)));
  }
  return table;
}

std::vector<double> constant(double lr, int64_t warmup_steps) {
  std::vector<double> table = warmup(lr, warmup_steps);
  table.push_back(lr);
  return table;
}

}  // namespace demi::optim
