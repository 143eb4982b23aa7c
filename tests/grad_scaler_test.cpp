// GradScaler's rules, each by itself: what PyTorch's scaler does and what it refuses. Whole trajectories are compared
// in scaler_traces_test.cpp.
#include "demi/amp/grad_scaler.h"

#include <cmath>
#include <memory>

#include "demi/amp/autocast.h"
#include "demi/autograd/engine.h"
#include "demi/kernels/fill.h"
#include "demi/nn/functional/arithmetic.h"
#include "demi/nn/functional/linear.h"
#include "demi/nn/functional/reduce.h"
#include "one_weight.h"

namespace demi::test {
namespace {

using Values = std::vector<double>;

class GradScaler : public OnDevice {};
DEMI_ON_ALL_DEVICES(GradScaler);

// ---- Settings and errors

TEST_P(GradScaler, HasPyTorchsDefaults) {
  amp::GradScaler scaler;
  EXPECT_TRUE(scaler.enabled());
  const std::map<std::string, double> defaults{{"scale", 65536},
                                               {"growth_factor", 2},
                                               {"backoff_factor", 0.5},
                                               {"growth_interval", 2000},
                                               {"growth_tracker", 0}};
  EXPECT_EQ(scaler.state_dict(), defaults);
  scaler.scale(Variable(tensor_of({1}, {}, DType::F32, device())));
  EXPECT_EQ(scaler.state_dict(), defaults) << "the same once it lives on the device";
}

TEST_P(GradScaler, RefusesFactorsThatDoNotGrowOrShrink) {
  OneWeight one(device());
  const auto expect_refused = [&](const amp::GradScalerOptions& options, const char* name, double value,
                                  const char* text) {
    EXPECT_EQ(error_of([&] { amp::GradScaler{options}; }).find(text), 0u) << text;
    amp::GradScaler scaler;
    auto state = scaler.state_dict();
    state[name] = value;
    EXPECT_EQ(error_of([&] { scaler.load_state_dict(state); }).find(text), 0u) << text;
    EXPECT_EQ(one.train(scaler, 1), 65536);
  };
  for (const double v : {1.0, 0.5, 0.0, -2.0, double(NAN)})
    expect_refused({.growth_factor = v}, "growth_factor", v, "[grad_scaler] growth_factor is above 1, not ");
  for (const double v : {1.0, 1.5, 0.0, -0.5, double(NAN)})
    expect_refused({.backoff_factor = v}, "backoff_factor", v, "[grad_scaler] backoff_factor is between 0 and 1, not ");
  for (const int v : {0, -1})
    expect_refused({.growth_interval = v}, "growth_interval", v, "[grad_scaler] growth_interval is positive, not ");
}

TEST_P(GradScaler, SaysWhatIsCalledBeforeTheFirstScale) {
  OneWeight one(device());
  amp::GradScaler scaler;
  const auto text = [](const char* call) {
    return fmt::format("[grad_scaler] {}() before any scale(): the scale is made when the first loss is scaled", call);
  };
  EXPECT_EQ(error_of([&] { scaler.unscale(one.sgd); }), text("unscale"));
  EXPECT_EQ(error_of([&] { scaler.step(one.sgd); }), text("step"));
  EXPECT_EQ(error_of([&] { scaler.update(); }), text("update"));
  EXPECT_EQ(error_of([&] { scaler.update(4); }), text("update"));
  EXPECT_EQ(scaler.get_scale(), 65536);
  EXPECT_EQ(one.train(scaler, 1), 65536);
  EXPECT_EQ(one.value(), -1);
}

TEST_P(GradScaler, SaysWhatIsCalledWithoutGradients) {
  OneWeight one(device());
  amp::GradScaler scaler;
  scaler.scale(Variable(tensor_of({1}, {}, DType::F32, device())));
  const char* of_step =
      "[grad_scaler] No inf checks were recorded for this optimizer: it has no gradients, run backward() first";
  const char* of_update = "[grad_scaler] No inf checks were recorded prior to update(): call step() or unscale() first";
  EXPECT_EQ(error_of([&] { scaler.update(); }), of_update);
  EXPECT_EQ(error_of([&] { scaler.step(one.sgd); }), of_step);
  scaler.unscale(one.sgd);
  EXPECT_EQ(error_of([&] { scaler.step(one.sgd); }), of_step);
  EXPECT_EQ(error_of([&] { scaler.update(); }), of_update);
  EXPECT_EQ(one.value(), 0);
}

TEST_P(GradScaler, SaysWhatIsCalledTwice) {
  OneWeight one(device());
  amp::GradScaler scaler;
  const char* unscale_twice =
      "[grad_scaler] unscale() has already been called on this optimizer since the last update()";
  const char* step_twice = "[grad_scaler] step() has already been called since the last update()";
  const char* unscale_late = "[grad_scaler] unscale() is being called after step()";
  for (int i = 1; i <= 2; ++i) {  // update() starts all over
    one.sgd.zero_grad();
    one.backward_of(scaler, 1);
    scaler.unscale(one.sgd);
    EXPECT_EQ(error_of([&] { scaler.unscale(one.sgd); }), unscale_twice);
    EXPECT_EQ(one.gradient(), 1) << "divided once";
    scaler.step(one.sgd);
    EXPECT_EQ(error_of([&] { scaler.step(one.sgd); }), step_twice);
    EXPECT_EQ(error_of([&] { scaler.unscale(one.sgd); }), unscale_late);
    EXPECT_EQ(one.value(), -i);
    scaler.update();
  }
  EXPECT_EQ(scaler.growth_tracker(), 2);
}

// ---- Several optimizers, and when the scale changes

TEST_P(GradScaler, SkipsOptimizersSeparatelyAndBacksOffOnce) {
  for (int bad = 1; bad < 8; ++bad) {  // every set of overflowing ones
    std::vector<std::unique_ptr<OneWeight>> all;
    amp::GradScaler scaler({.init_scale = 1024});
    std::vector<optim::StepOutcome> outcomes;
    for (int i = 0; i < 3; ++i) {
      all.push_back(std::make_unique<OneWeight>(device()));
      outcomes.push_back(all.back()->step(scaler, bad >> i & 1 ? NAN : i + 1));
    }
    scaler.update();
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(outcomes[static_cast<size_t>(i)].skipped(), (bad >> i & 1) == 1) << bad;
      EXPECT_EQ(all[static_cast<size_t>(i)]->value(), bad >> i & 1 ? 0 : -(i + 1)) << bad;
    }
    EXPECT_EQ(scaler.get_scale(), 512) << bad;
    EXPECT_EQ(all[0]->train(scaler, 1), 512) << "what was found belongs to one update";
  }
}

// An overflow that only unscale() saw counts too.
TEST_P(GradScaler, BacksOffForAnOptimizerThatWasOnlyUnscaled) {
  OneWeight looked(device()), stepped(device());
  amp::GradScaler scaler({.init_scale = 1024});
  looked.backward_of(scaler, -INFINITY);
  scaler.unscale(looked.sgd);
  EXPECT_FALSE(stepped.step(scaler, 1).skipped());
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 512);
}

TEST_P(GradScaler, CountsUpdatesNotSteps) {
  OneWeight first(device()), second(device());
  amp::GradScaler scaler({.init_scale = 4, .growth_interval = 3});
  for (int i = 1; i <= 2; ++i) {
    first.step(scaler, 1);
    second.step(scaler, 1);
    scaler.update();
    EXPECT_EQ(scaler.growth_tracker(), i);
    EXPECT_EQ(scaler.get_scale(), 4);
  }
  first.train(scaler, 1);
  EXPECT_EQ(scaler.get_scale(), 8);
}

TEST_P(GradScaler, GrowsWhenTheTrackerEqualsTheInterval) {
  OneWeight one(device());
  amp::GradScaler scaler({.init_scale = 4, .growth_factor = 3, .growth_interval = 3});
  for (const double scale : {4, 4, 12, 12, 12, 36}) EXPECT_EQ(one.train(scaler, 1), scale);
  EXPECT_EQ(scaler.growth_tracker(), 0);
}

// The factors are doubles: in float, these products would round elsewhere.
TEST_P(GradScaler, RoundsTheNewScaleOnce) {
  OneWeight one(device());
  const double growth = 1.1, backoff = 0.7;
  amp::GradScaler scaler(
      {.init_scale = 65536, .growth_factor = growth, .backoff_factor = backoff, .growth_interval = 1});
  float scale = 65536;
  int would_differ[2] = {};
  for (int i = 0; i < 40; ++i) {
    const bool overflow = i % 3 == 2;
    const double factor = overflow ? backoff : growth;
    const float rounded_once = static_cast<float>(static_cast<double>(scale) * factor);
    would_differ[overflow] += rounded_once != scale * static_cast<float>(factor);
    scale = rounded_once;
    ASSERT_EQ(one.train(scaler, overflow ? INFINITY : 0), static_cast<double>(scale)) << "step " << i;
  }
  EXPECT_GT(would_differ[0], 0);
  EXPECT_GT(would_differ[1], 0);
}

// The interval can be lowered below the tracker: they are not equal until an overflow has brought the tracker back.
TEST_P(GradScaler, AnIntervalLoweredBelowTheTrackerWaitsForAnOverflow) {
  OneWeight one(device());
  amp::GradScaler scaler({.init_scale = 8, .growth_interval = 100});
  for (int i = 0; i < 4; ++i) one.train(scaler, 1);
  auto state = scaler.state_dict();
  state["growth_interval"] = 2;
  scaler.load_state_dict(state);
  for (int i = 5; i <= 8; ++i) {
    EXPECT_EQ(one.train(scaler, 1), 8);
    EXPECT_EQ(scaler.growth_tracker(), i);
  }
  EXPECT_EQ(one.train(scaler, INFINITY), 4);
  EXPECT_EQ(one.train(scaler, 1), 4);
  EXPECT_EQ(one.train(scaler, 1), 8);
}

TEST_P(GradScaler, SetsANewScaleAndLeavesTheTrackerAlone) {
  OneWeight one(device());
  amp::GradScaler scaler({.init_scale = 1024});
  for (int i = 0; i < 2; ++i) one.train(scaler, 1);
  scaler.update(8);  // needs nothing that was found
  EXPECT_EQ(scaler.get_scale(), 8);
  EXPECT_EQ(scaler.growth_tracker(), 2);
  EXPECT_TRUE(one.step(scaler, NAN).skipped());
  scaler.update(256);  // neither backs off nor starts counting again
  EXPECT_EQ(scaler.get_scale(), 256);
  EXPECT_EQ(scaler.growth_tracker(), 2);
  EXPECT_FALSE(one.step(scaler, 1).skipped()) << "the optimizer may step again, and what was found is forgotten";
  EXPECT_EQ(one.gradient(), 256);
  scaler.update();
  EXPECT_EQ(scaler.growth_tracker(), 3);
}

// ---- Switched off

void expect_plain_training(amp::GradScaler& scaler, Device device) {
  OneWeight one(device);
  EXPECT_FALSE(scaler.enabled());
  const Variable loss(tensor_of({3}, {}, DType::F16, device), true);
  EXPECT_EQ(scaler.scale(loss).state(), loss.state()) << "the loss itself";
  one.backward_of(scaler, 2);
  for (int i = 0; i < 2; ++i) scaler.unscale(one.sgd);
  EXPECT_EQ(one.gradient(), 2);
  EXPECT_FALSE(scaler.step(one.sgd).skipped());
  scaler.step(one.sgd);  // a plain step: nobody counts
  EXPECT_EQ(one.value(), -4);
  scaler.update();
  scaler.update(16);
  EXPECT_FALSE(one.step(scaler, INFINITY).skipped());
  EXPECT_EQ(one.value(), -INFINITY);
  EXPECT_EQ(scaler.get_scale(), 1);
  EXPECT_EQ(scaler.growth_tracker(), 0);
  EXPECT_TRUE(scaler.state_dict().empty());
  scaler.load_state_dict({});
  scaler.load_state_dict({{"scale", 4}});
  EXPECT_EQ(scaler.get_scale(), 1);
}

TEST_P(GradScaler, DisabledIsPlainTraining) {
  amp::GradScaler scaler({.enabled = false});
  expect_plain_training(scaler, device());
}

// The environment is read once a process, so in a new one: this test begins anew there.
TEST_P(GradScaler, DemiAmp0InTheEnvironmentSwitchesMixedPrecisionOff) {
  const char* before = getenv("DEMI_AMP");
  const std::string kept = before ? before : "1";
  setenv("DEMI_AMP", "0", 1);
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        amp::GradScaler scaler;
        expect_plain_training(scaler, device());
        const amp::Autocast region(DType::F16);
        const Variable one(tensor_of({1}, {1, 1}, DType::F32, device()));
        EXPECT_EQ(linear(one, one).dtype(), DType::F32);
        std::exit(HasFailure() ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "");
  setenv("DEMI_AMP", kept.c_str(), 1);
}

// ---- State

TEST_P(GradScaler, GoesOnFromASavedState) {
  OneWeight one(device());
  const amp::GradScalerOptions settings{
      .init_scale = 4, .growth_factor = 1.5, .backoff_factor = 0.7, .growth_interval = 4};
  const auto gradient = [](int i) { return i % 7 == 5 ? double(NAN) : 1.0; };
  amp::GradScaler straight(settings);
  for (int i = 0; i < 9; ++i) one.train(straight, gradient(i));
  const auto saved = straight.state_dict();
  EXPECT_EQ(saved.at("growth_tracker"), 3);
  amp::GradScaler fresh, used({.init_scale = 2});
  one.train(used, 1);
  for (amp::GradScaler* scaler : {&fresh, &used}) {
    scaler->load_state_dict(saved);
    EXPECT_EQ(scaler->state_dict(), saved);
  }
  for (int i = 9; i < 30; ++i) {
    const double scale = one.train(straight, gradient(i));
    for (amp::GradScaler* scaler : {&fresh, &used}) {
      EXPECT_EQ(one.train(*scaler, gradient(i)), scale) << "step " << i;
      EXPECT_EQ(scaler->growth_tracker(), straight.growth_tracker()) << "step " << i;
    }
  }
}

TEST_P(GradScaler, RefusesStatesThatAreEmptyOrIncomplete) {
  amp::GradScaler scaler({.init_scale = 32});
  const amp::GradScaler disabled({.enabled = false});
  EXPECT_EQ(error_of([&] { scaler.load_state_dict(disabled.state_dict()); }),
            "[grad_scaler] the saved state is empty: it comes from a disabled scaler");
  const auto whole = amp::GradScaler().state_dict();
  EXPECT_EQ(whole.size(), 5u);
  for (const auto& [name, value] : whole) {
    auto part = whole;
    part.erase(name);
    EXPECT_EQ(error_of([&] { scaler.load_state_dict(part); }),
              fmt::format("[grad_scaler] the saved state has no '{}'", name));
  }
  EXPECT_EQ(scaler.get_scale(), 32);
}

// ---- Gradients

TEST_P(GradScaler, APlainStepDividesOnTheFlyAndLeavesGradientsScaled) {
  for (const bool half : {false, true}) {
    OneWeight one(device());
    amp::GradScaler scaler({.init_scale = 1024});
    half ? one.backward_of_half(scaler, 2) : one.backward_of(scaler, 2);
    scaler.step(one.sgd);
    EXPECT_EQ(one.w.grad().dtype(), half ? DType::F16 : DType::F32);
    EXPECT_EQ(one.gradient(), 2048);
    EXPECT_EQ(one.value(), -2);
  }
}

// 2^-30 and 0.75 * 2^-26 are no halves, but their scaled gradients are.
TEST_P(GradScaler, UnscalesIntoFp32WhatHalfCannotHold) {
  for (const double gradient : {0x1p-30, 0x1.8p-27}) {
    OneWeight looked(device()), plain(device());
    amp::GradScaler scaler({.init_scale = 0x1p24});
    looked.backward_of_half(scaler, 1);  // makes the copies
    looked.sgd.zero_grad();
    for (OneWeight* one : {&looked, &plain}) {
      const amp::Autocast region(DType::F16);
      const Variable x(tensor_of({1}, {1, 1}, DType::F32, device()));
      backward(scaler.scale(scale(sum(linear(x, one->w)), gradient)));
      EXPECT_EQ(one->w.grad().dtype(), DType::F16);
    }
    scaler.unscale(looked.sgd);
    EXPECT_EQ(looked.w.grad().dtype(), DType::F32);
    EXPECT_EQ(looked.gradient(), gradient);
    scaler.step(looked.sgd);
    scaler.step(plain.sgd);
    EXPECT_EQ(looked.value(), -gradient);
    EXPECT_EQ(plain.value(), -gradient);
  }
}

// 1/scale is rounded to FP32 and multiplied: not the same as a division.
TEST_P(GradScaler, MultipliesWithTheInverseRoundedToFp32) {
  const float gradient = 5.0f / 7, scaled = 49.0f * gradient, inverse = static_cast<float>(1.0 / 49.0);
  ASSERT_NE(scaled * inverse, scaled / 49.0f);
  OneWeight looked(device()), plain(device());
  amp::GradScaler scaler({.init_scale = 49});
  looked.backward_of(scaler, static_cast<double>(gradient));
  scaler.unscale(looked.sgd);
  plain.step(scaler, static_cast<double>(gradient));
  EXPECT_EQ(looked.gradient(), static_cast<double>(scaled * inverse));
  EXPECT_EQ(plain.value(), static_cast<double>(-(scaled * inverse)));
}

// What unscale() found decides, whatever becomes of the gradients before step().
TEST_P(GradScaler, StepDoesNotLookAgainAfterUnscale) {
  for (const bool overflow : {false, true}) {
    OneWeight one(device());
    amp::GradScaler scaler({.init_scale = 1024});
    one.backward_of(scaler, overflow ? double(NAN) : 1);
    scaler.unscale(one.sgd);
    Tensor gradient = one.w.grad();
    kernels::fill(gradient, overflow ? 1 : INFINITY);
    EXPECT_EQ(scaler.step(one.sgd).skipped(), overflow);
    EXPECT_EQ(one.value(), overflow ? 0 : -INFINITY);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), overflow ? 512 : 1024);
  }
}

// The loss is whatever it is: only gradients decide.
TEST_P(GradScaler, AnInfiniteLossWithFiniteGradientsIsNoOverflow) {
  OneWeight one(device());
  amp::GradScaler scaler({.init_scale = 0x1p126});
  const Variable constant(tensor_of({8}, {1, 1}, DType::F32, device()));
  const Variable scaled = scaler.scale(sum(one.w * 0.5 + constant));
  EXPECT_EQ(scaled.item<float>(), INFINITY);
  backward(scaled);
  EXPECT_FALSE(scaler.step(one.sgd).skipped());
  EXPECT_EQ(one.value(), -0.5);
}

}  // namespace
}  // namespace demi::test
