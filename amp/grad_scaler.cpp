#include "demi/amp/grad_scaler.h"

#include <cmath>
#include <limits>

#include "demi/amp/autocast.h"
#include "demi/core/backend.h"
#include "demi/kernels/cast.h"
#include "demi/kernels/fill.h"
#include "demi/kernels/gradient.h"
#include "demi/kernels/loss_scale.h"
#include "demi/kernels/random.h"
#include "demi/kernels/scale.h"

namespace demi::amp {
namespace {
// Both the scale and its inverse must be numbers in FP32.
void check_scale(double scale) {
  DEMI_CHECK(scale >= std::numeric_limits<float>::min() && scale <= std::numeric_limits<float>::max(),
             "[grad_scaler] the scale is positive and finite in fp32, not {}", scale);
}

void check_options(const GradScalerOptions& o) {
  check_scale(o.init_scale);
  DEMI_CHECK(o.growth_factor > 1, "[grad_scaler] growth_factor is above 1, not {}", o.growth_factor);
  DEMI_CHECK(o.backoff_factor > 0 && o.backoff_factor < 1, "[grad_scaler] backoff_factor is between 0 and 1, not {}",
             o.backoff_factor);
  DEMI_CHECK(o.growth_interval > 0, "[grad_scaler] growth_interval is positive, not {}", o.growth_interval);
}

int whole(const std::map<std::string, double>& state, const char* name) {
  const double value = state.at(name);
  DEMI_CHECK(std::fabs(value) <= std::numeric_limits<int>::max() && value == std::floor(value),
             "[grad_scaler] the saved {} is {}, not a whole number that fits", name, value);
  return static_cast<int>(value);
}
}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options), host_scale_(options.init_scale) {
  options_.enabled = options.enabled && amp_allowed();
  check_options(options);
}

void GradScaler::start(Device device) {
  if (scale_.defined()) return;
  // In a capture these fills would become part of it, and reset the scale at each replay.
  DEMI_CHECK(!backend::capturing_graph(),
             "[grad_scaler] the first scale() makes the scale: call it once before a graph is captured");
  scale_ = kernels::full({}, host_scale_, DType::F32, device);
  tracker_ = kernels::full({}, host_tracker_, DType::I32, device);
  overflows_ = Tensor::zeros({}, DType::I32, device);
}

Variable GradScaler::scale(const Variable& loss) {
  if (!enabled()) return loss;
  start(loss.device());
  const Tensor y = kernels::scale_by(kernels::cast(loss.tensor(), DType::F32), scale_);
  // Backward reads the scale when it runs, so update() does not come between scale() and backward().
  return record("scale_loss", y, {loss}, [factor = scale_, dtype = loss.dtype()](const Tensor& dy) {
    return std::vector<Tensor>{kernels::cast(kernels::scale_by(dy, factor), dtype)};
  });
}

void GradScaler::check_started(const char* call) const {
  DEMI_CHECK(scale_.defined(), "[grad_scaler] {}() before any scale(): the scale is made when the first loss is scaled",
             call);
}

GradScaler::PerOptimizer& GradScaler::found_for(optim::Optimizer& optimizer) {
  DEMI_CHECK(optimizer.device() == scale_.device(), "[grad_scaler] the loss is on {}, the optimizer on {}",
             scale_.device(), optimizer.device());
  const OverflowWitness::Parameters parameters = optimizer.shared_parameters();
  DEMI_CHECK(per_optimizer_.contains(parameters.get()) || per_optimizer_.size() < kernels::kMostLossScaleFlags,
             "[grad_scaler] one scaler serves at most {} optimizers between two updates", kernels::kMostLossScaleFlags);
  PerOptimizer& found = per_optimizer_[parameters.get()];
  found.parameters = parameters;
  return found;
}

void GradScaler::unscale(optim::Optimizer& optimizer) {
  if (!enabled()) return;
  check_started("unscale");
  PerOptimizer& mine = found_for(optimizer);
  DEMI_CHECK(mine.stage != Stage::Unscaled,
             "[grad_scaler] unscale() has already been called on this optimizer since the last update()");
  DEMI_CHECK(mine.stage != Stage::Stepped, "[grad_scaler] unscale() is being called after step()");
  mine.stage = Stage::Unscaled;
  if (optimizer.gradient_runs().empty()) return;
  mine.found_inf = Tensor::zeros({}, DType::I32, optimizer.device());
  optimizer.unscale(scale_, mine.found_inf);
}

optim::StepOutcome GradScaler::step(optim::Optimizer& optimizer) {
  if (!enabled()) return optimizer.step();
  check_started("step");
  PerOptimizer& mine = found_for(optimizer);
  DEMI_CHECK(mine.stage != Stage::Stepped, "[grad_scaler] step() has already been called since the last update()");
  const bool still_scaled = mine.stage == Stage::Ready;
  if (still_scaled) {
    const std::vector<Tensor> gradients = optimizer.gradient_runs();  // few long stretches of flat storage
    if (!gradients.empty()) mine.found_inf = Tensor::zeros({}, DType::I32, optimizer.device());
    for (const Tensor& g : gradients) kernels::check_finite(g, mine.found_inf);
  }
  DEMI_CHECK(mine.found_inf.defined(),
             "[grad_scaler] No inf checks were recorded for this optimizer: it has no gradients, run backward() first");
  mine.stage = Stage::Stepped;
  return optimizer.step({still_scaled ? scale_ : Tensor{}, mine.found_inf});
}

void GradScaler::update() {
  if (!enabled()) return;
  check_started("update");
  std::vector<Tensor> found;
  std::vector<OverflowWitness::Parameters> parameters;
  for (const auto& [list, mine] : per_optimizer_) {
    if (mine.found_inf.defined()) found.push_back(mine.found_inf);
    parameters.push_back(mine.parameters);
  }
  DEMI_CHECK(!found.empty(),
             "[grad_scaler] No inf checks were recorded prior to update(): call step() or unscale() first");
  witness_.watch(scale_.device(), std::move(parameters));
  per_optimizer_.clear();
  kernels::update_loss_scale(
      found,
      {options_.growth_factor, options_.backoff_factor, options_.growth_interval, options_.max_consecutive_overflows},
      scale_, tracker_, overflows_, random_state(scale_.device()).step);
}

void GradScaler::update(double new_scale) {
  if (!enabled()) return;
  check_started("update");
  check_scale(new_scale);
  kernels::fill(scale_, new_scale);
  per_optimizer_.clear();
}

double GradScaler::get_scale() const {
  if (!enabled()) return 1.0;
  return scale_.defined() ? scale_.item<float>() : host_scale_;
}

int GradScaler::growth_tracker() const { return tracker_.defined() ? tracker_.item<int32_t>() : host_tracker_; }

std::map<std::string, double> GradScaler::state_dict() const {
  if (!enabled()) return {};
  return {{"scale", get_scale()},
          {"growth_factor", options_.growth_factor},
          {"backoff_factor", options_.backoff_factor},
          {"growth_interval", options_.growth_interval},
          {"growth_tracker", growth_tracker()}};
}

void GradScaler::load_state_dict(const std::map<std::string, double>& state) {
  if (!enabled()) return;
  DEMI_CHECK(!state.empty(), "[grad_scaler] the saved state is empty: it comes from a disabled scaler");
  for (const char* name : {"scale", "growth_factor", "backoff_factor", "growth_interval", "growth_tracker"})
    DEMI_CHECK(state.contains(name), "[grad_scaler] the saved state has no '{}'", name);
  GradScalerOptions loaded = options_;
  loaded.init_scale = state.at("scale");
  loaded.growth_factor = state.at("growth_factor");
  loaded.backoff_factor = state.at("backoff_factor");
  loaded.growth_interval = whole(state, "growth_interval");
  check_options(loaded);  // before anything is changed
  const int tracker = whole(state, "growth_tracker");
  DEMI_CHECK(tracker >= 0, "[grad_scaler] the saved growth_tracker is {}: it counts steps", tracker);
  host_tracker_ = tracker;
  options_ = loaded;
  host_scale_ = loaded.init_scale;
  per_optimizer_.clear();
  if (!scale_.defined()) return;
  kernels::fill(scale_, host_scale_);
  kernels::fill(tracker_, host_tracker_);
  kernels::fill(overflows_, 0);
}

}  // namespace demi::amp
