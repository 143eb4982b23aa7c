// Optimizer steps, the loss scale and what happens to gradients between, on every device.
#include <limits>

#include "demi/kernels/adam.h"
#include "demi/kernels/fill.h"
#include "demi/kernels/gradient.h"
#include "demi/kernels/loss_scale.h"
#include "demi/kernels/scale.h"
#include "demi/kernels/sgd.h"
#include "demi/tests/devices.h"

namespace demi {
namespace {

using namespace kernels;  // NOLINT
using test::expect_close, test::noise, test::rounded_to, test::tensor_of, test::values_of;
using Values = std::vector<double>;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class OptimizerTest : public test::OnDevice {
 protected:
  StepOperands run(const Values& w, const Values& g, double lr, DType grad_dtype = DType::F32) const {
    const auto n = static_cast<int64_t>(w.size());
    StepOperands r;
    r.master = tensor_of(w, {n}, DType::F32, device());
    r.grad = tensor_of(g, {n}, grad_dtype, device());
    r.lr = full({}, lr, DType::F32, device());
    r.skip = full({}, 0, DType::I32, device());
    r.count = full({}, 0, DType::I32, device());
    return r;
  }
  Tensor zeros(int64_t n) const { return Tensor::zeros({n}, DType::F32, device()); }
  Tensor flag(double value) const { return full({}, value, DType::I32, device()); }
};
DEMI_ON_ALL_DEVICES(OptimizerTest);
class GradientTest : public OptimizerTest {};
DEMI_ON_ALL_DEVICES(GradientTest);
class LossScaleTest : public OptimizerTest {};
DEMI_ON_ALL_DEVICES(LossScaleTest);

TEST_P(OptimizerTest, SgdWithMomentumNesterovAndDecay) {
  const auto three_steps = [&](const SgdOptions& options) {
    StepOperands r = run({1}, {1}, 0.1);
    Tensor v = options.momentum != 0 ? zeros(1) : Tensor{};
    Values w;
    for (int i = 0; i < 3; ++i) {
      sgd_step(r, v, options);
      advance_counts(r.skip, r.count);
      w.push_back(values_of(r.master)[0]);
    }
    return w;
  };
  expect_close(three_steps({.momentum = 0.9}), {0.9, 0.71, 0.439}, 1e-6, 0, "momentum");
  expect_close(three_steps({.momentum = 0.9, .nesterov = true}), {0.81, 0.539, 0.1951}, 1e-6, 0, "Nesterov");
  expect_close(three_steps({}), {0.9, 0.8, 0.7}, 1e-6, 0, "plain");
  expect_close(three_steps({.weight_decay = 0.5}), {0.85, 0.7075, 0.572125}, 1e-6, 0, "decay without momentum");
  expect_close(three_steps({.momentum = 0.9, .dampening = 0.5}), {0.9, 0.76, 0.584}, 1e-6, 0,
               "dampening leaves the first step alone");
}

TEST_P(OptimizerTest, SkippedStepLeavesEverythingAsItWas) {
  StepOperands r = run({1, 2}, {kInf, 1}, 0.01);
  r.copy_f16 = tensor_of({1, 2}, {2}, DType::F16, device());
  Tensor m = zeros(2), v = zeros(2), momentum = full({2}, 3, DType::F32, device());
  Tensor random_step = Tensor::zeros({}, DType::I64, device());
  begin_step(flag(1), r.skip, random_step);
  EXPECT_EQ(r.skip.item<int32_t>(), 1);
  EXPECT_EQ(random_step.item<int64_t>(), 1);
  adam_step(r, m, v, {});
  sgd_step(r, momentum, {.momentum = 0.9});
  advance_counts(r.skip, r.count);
  EXPECT_EQ(values_of(r.master), (Values{1, 2}));
  EXPECT_EQ(values_of(r.copy_f16), (Values{1, 2}));
  EXPECT_EQ(values_of(m), (Values{0, 0}));
  EXPECT_EQ(values_of(momentum), (Values{3, 3}));
  EXPECT_EQ(r.count.item<int32_t>(), 0);

  begin_step({}, r.skip, random_step);  // Adam's first real step has t = 1: a counted skip would give 0.99255863
  EXPECT_EQ(r.skip.item<int32_t>(), 0);
  fill(r.grad, 0.5);
  adam_step(r, m, v, {});
  advance_counts(r.skip, r.count);
  EXPECT_NEAR(values_of(r.master)[0], 0.99, 1e-6);
  EXPECT_EQ(r.count.item<int32_t>(), 1);
}

TEST_P(OptimizerTest, AdamMatchesTheFormulaOverSteps) {
  for (const bool decoupled : {false, true}) {
    const int64_t n = 1500;
    const AdamOptions o{.beta1 = 0.8, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.1, .decoupled = decoupled};
    Values w = rounded_to(DType::F32, noise(n)), m(w.size(), 0), v(w.size(), 0);
    StepOperands r = run(w, w, 0.05);
    Tensor tm = zeros(n), tv = zeros(n);
    for (int t = 1; t <= 4; ++t) {
      const Values g = rounded_to(DType::F32, noise(n, static_cast<uint64_t>(t)));
      r.grad = tensor_of(g, {n}, DType::F32, device());
      adam_step(r, tm, tv, o);
      advance_counts(r.skip, r.count);
      for (size_t i = 0; i < w.size(); ++i) {
        const double gi = g[i] + (decoupled ? 0 : o.weight_decay * w[i]);
        if (decoupled) w[i] -= 0.05 * o.weight_decay * w[i];
        m[i] = o.beta1 * m[i] + (1 - o.beta1) * gi;
        v[i] = o.beta2 * v[i] + (1 - o.beta2) * gi * gi;
        w[i] -= 0.05 / (1 - std::pow(o.beta1, t)) * m[i] / (std::sqrt(v[i] / (1 - std::pow(o.beta2, t))) + o.eps);
      }
      expect_close(values_of(r.master), w, 1e-5, 2e-6, "step");
    }
  }
}

TEST_P(OptimizerTest, ScheduleFollowsRealStepsAndStaysAtItsEnd) {
  const Tensor table = tensor_of({0.1, 0.2, 0.3}, {3}, DType::F32, device());
  Tensor position = Tensor::zeros({}, DType::I64, device()), lr = full({}, 0.1, DType::F32, device());
  advance_schedule(flag(1), table, position, lr);
  EXPECT_EQ(values_of(lr), rounded_to(DType::F32, {0.1}));
  for (const double expected : {0.2, 0.3, 0.3}) {
    advance_schedule(flag(0), table, position, lr);
    EXPECT_EQ(values_of(lr), rounded_to(DType::F32, {expected}));
  }
  EXPECT_EQ(position.item<int64_t>(), 3);
}

TEST_P(OptimizerTest, RunningStatisticsAreTakenBackInASkippedStep) {
  Tensor live = tensor_of({kNaN, 5}, {2}, DType::F32, device()), shadow = tensor_of({1, 2}, {2}, DType::F32, device());
  const int64_t large = (int64_t{1} << 53) + 1;  // no FP64 holds it
  Tensor counts = Tensor::from<int64_t>({large + 1, 8, 9}, {3}, device()),
         shadow_counts = Tensor::from<int64_t>({large, 2, 3}, {3}, device()), none;
  commit_or_restore(flag(1), live, shadow, counts, shadow_counts);
  EXPECT_EQ(values_of(live), (Values{1, 2}));
  EXPECT_EQ(counts.to_vector<int64_t>(), (std::vector<int64_t>{large, 2, 3}));
  fill(live, 7);
  counts.copy_from(Tensor::from<int64_t>({1, 2, large}, {3}, device()));
  commit_or_restore(flag(0), live, shadow, counts, shadow_counts);
  EXPECT_EQ(values_of(shadow), (Values{7, 7}));
  EXPECT_EQ(shadow_counts.to_vector<int64_t>(), (std::vector<int64_t>{1, 2, large}));
  fill(live, 4);
  commit_or_restore(flag(1), live, shadow, none, none);
  EXPECT_EQ(values_of(live), (Values{7, 7}));
  fill(counts, 0);
  commit_or_restore(flag(1), none, none, counts, shadow_counts);
  EXPECT_EQ(counts.to_vector<int64_t>(), (std::vector<int64_t>{1, 2, large}));
}

TEST_P(GradientTest, OneBadElementAnywhereIsFound) {
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16})
    for (const int64_t n : {1, 9, 1024, 40001})
      for (const double bad : {kInf, -kInf, kNaN, 1.0}) {
        Values x(static_cast<size_t>(n), dtype == DType::F16 ? 65504 : 3e38);
        x.back() = bad;
        const Tensor tx = tensor_of(x, {n}, dtype, device());
        Tensor found = flag(0);
        check_finite(tx, found);
        EXPECT_EQ(found.item<int32_t>(), std::isfinite(bad) ? 0 : 1) << bad << " in " << n;
        Tensor y = zeros(n), found2 = flag(0);
        unscale(tx, full({}, 2, DType::F32, device()), found2, y);
        EXPECT_EQ(found2.item<int32_t>(), std::isfinite(bad) ? 0 : 1);
        if (std::isfinite(bad)) {
          EXPECT_EQ(values_of(y).back(), 0.5);
        }
      }
  Tensor found = flag(1);
  check_finite(zeros(3), found);
  EXPECT_EQ(found.item<int32_t>(), 1) << "the flag is never set back";
}

TEST_P(GradientTest, ClippingByNorm) {
  const auto clipped = [&](const Values& g) {
    Tensor t = tensor_of(g, {2}, DType::F32, device());
    const ClipResult r = clip_coefficient({t}, 1);
    scale_by_into(t, r.coefficient, t);
    return values_of(t);
  };
  expect_close(clipped({3, 4}), {0.6, 0.8}, 1e-6, 0, "(3, 4)");
  expect_close(clipped({0, 0}), {0, 0}, 0, 0, "(0, 0)");
  expect_close(clipped({0.3, 0.4}), {0.3, 0.4}, 1e-6, 0, "short enough");
  expect_close(clipped({kInf, 4}), {kInf, 4}, 0, 0, "no coefficient for a norm that is not finite");
  expect_close(clipped({kNaN, 4}), {kNaN, 4}, 0, 0, "nor for NaN");
  const Tensor big = full({100000}, 2, DType::F16, device()), one = full({3}, 1, DType::F32, device());
  EXPECT_NEAR(values_of(l2_norm({big, one}))[0], std::sqrt(400003.0), 1e-3);
}

TEST_P(GradientTest, ClippingByValueKeepsNaN) {
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    Tensor x = tensor_of({-5, 0.5, 5, kNaN, kInf}, {5}, dtype, device());
    clip_value(x, 1);
    expect_close(values_of(x), {-1, 0.5, 1, kNaN, 1}, 0, 0, "clip_value");
  }
}

TEST_P(LossScaleTest, NeverBecomesZeroOrInfinite) {
  Tensor scale = full({}, 65536, DType::F32, device()), tracker = flag(0), overflows = flag(0);
  const Tensor step = Tensor::zeros({}, DType::I64, device());
  for (int i = 0; i < 300; ++i) update_loss_scale({flag(1)}, {}, scale, tracker, overflows, step);
  EXPECT_EQ(values_of(scale)[0], 0x1p-126);  // its inverse is finite
  EXPECT_EQ(overflows.item<int32_t>(), 300);
  for (int i = 0; i < 300; ++i) update_loss_scale({flag(0)}, {.growth_interval = 1}, scale, tracker, overflows, step);
  EXPECT_EQ(values_of(scale)[0], 0x1p127);
  EXPECT_EQ(overflows.item<int32_t>(), 0);
}

TEST_P(LossScaleTest, GrowsAfterTheIntervalAndBacksOffForAnyFlag) {
  Tensor scale = full({}, 1024, DType::F32, device()), tracker = flag(0), overflows = flag(0);
  const Tensor step = Tensor::zeros({}, DType::I64, device());
  const LossScaleOptions options{.growth_interval = 3};
  const auto update = [&](double a, double b) {
    update_loss_scale({flag(a), flag(b)}, options, scale, tracker, overflows, step);
    return values_of(scale)[0];
  };
  EXPECT_EQ(update(0, 0), 1024);
  EXPECT_EQ(update(0, 0), 1024);
  EXPECT_EQ(update(0, 1), 512);
  EXPECT_EQ(tracker.item<int32_t>(), 0);
  EXPECT_EQ(update(0, 0), 512);
  EXPECT_EQ(update(0, 0), 512);
  EXPECT_EQ(update(0, 0), 1024);
  EXPECT_EQ(tracker.item<int32_t>(), 0);
}

TEST_P(LossScaleTest, OverflowsWithoutEndAreAnErrorThatNamesTheStep) {
  Tensor scale = full({}, 1024, DType::F32, device()), tracker = flag(0), overflows = flag(0);
  const Tensor step = full({}, 41, DType::I64, device());
  const auto update = [&] {
    return test::error_of([&] {
      update_loss_scale({flag(1)}, {.max_consecutive_overflows = 3}, scale, tracker, overflows, step);
      synchronize(device());
    });
  };
  EXPECT_EQ(update(), "");
  EXPECT_EQ(update(), "");
  const std::string message = update();
  EXPECT_NE(message.find("[grad_scaler] 3 steps in a row overflowed (step 41)"), std::string::npos) << message;
  EXPECT_EQ(values_of(scale)[0], 128) << "the state is written before the error";
}

}  // namespace
}  // namespace demi
