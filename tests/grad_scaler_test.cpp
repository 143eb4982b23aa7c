// GradScaler's rules, each by itself: what PyTorch's scaler does, what it refuses, and that a skipped step leaves no
// trace. Whole trajectories are compared in scaler_traces_test.cpp.
#include "demi/amp/grad_scaler.h"

#include <cmath>

#include "demi/amp/autocast.h"
#include "demi/autograd/engine.h"
#include "demi/kernels/fill.h"
#include "demi/kernels/random.h"
#include "demi/nn/functional/arithmetic.h"
#include "demi/nn/functional/dropout.h"
#include "demi/nn/functional/linear.h"
#include "demi/nn/functional/reduce.h"
#include "demi/optim/sgd.h"
#include "devices.h"

namespace demi::test {
namespace {

using Values = std::vector<double>;

// One weight of value 0 under SGD with learning rate 1, whose gradient is given.
struct OneWeight {
  explicit OneWeight(Device device)
      : w(tensor_of({0}, {1, 1}, DType::F32, device)), sgd(std::vector{w}, {.lr = 1}), device(device) {}

  void backward_of(amp::GradScaler& scaler, double gradient) {
    backward(scaler.scale(sum(w * Variable(tensor_of({gradient}, {1, 1}, DType::F32, device)))));
  }
  // The same through a compute copy: the gradient is FP16.
  void backward_of_half(amp::GradScaler& scaler, double gradient) {
    const amp::Autocast region(DType::F16);
    backward(scaler.scale(sum(linear(Variable(tensor_of({gradient}, {1, 1}, DType::F32, device)), w))));
  }
  optim::StepOutcome step(amp::GradScaler& scaler, double gradient) {
    sgd.zero_grad();
    backward_of(scaler, gradient);
    return scaler.step(sgd);
  }
  // A whole step; the scale after it.
  double train(amp::GradScaler& scaler, double gradient) {
    step(scaler, gradient);
    scaler.update();
    return scaler.get_scale();
  }
  double value() const { return values_of(w.master())[0]; }
  double gradient() const { return values_of(w.grad())[0]; }

  Parameter w;
  optim::SGD sgd;
  Device device;
};

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
  OneWeight first(device()), second(device()), third(device()), idle(device());
  amp::GradScaler scaler({.init_scale = 1024});
  const auto a = first.step(scaler, INFINITY), b = second.step(scaler, 3), c = third.step(scaler, NAN);
  scaler.update();
  EXPECT_TRUE(a.skipped());
  EXPECT_FALSE(b.skipped());
  EXPECT_TRUE(c.skipped());
  EXPECT_EQ((Values{first.value(), second.value(), third.value(), idle.value()}), (Values{0, -3, 0, 0}));
  EXPECT_EQ(scaler.get_scale(), 512);
  EXPECT_EQ(first.train(scaler, 1), 512);
  EXPECT_EQ(first.value(), -1) << "what was found belongs to one update";
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

// ---- A skipped step leaves no trace (weights, momentum, Adam's counter, schedule and running statistics:
// optim_test.cpp and training_step_test.cpp)

TEST_P(GradScaler, ASkippedStepLeavesComputeCopiesAlone) {
  const Parameter w(tensor_of(noise(6), {2, 3}, DType::F32, device()));
  optim::SGD sgd(std::vector{w}, {.lr = 0.25, .momentum = 0.9});
  amp::GradScaler scaler({.init_scale = 1024});
  const auto step = [&](DType dtype, double x) {
    sgd.zero_grad();
    {
      const amp::Autocast region(dtype);
      backward(scaler.scale(sum(linear(Variable(kernels::full({1, 3}, x, DType::F32, device())), w))));
    }
    const bool skipped = scaler.step(sgd).skipped();
    scaler.update();
    return skipped;
  };
  const auto copy = [&](DType dtype) { return w.parameter().storage()->existing_copy(dtype); };
  const auto rounded = [&](DType dtype) { return rounded_to(dtype, values_of(w.parameter().storage()->master())); };
  EXPECT_FALSE(step(DType::F16, 1));
  EXPECT_FALSE(step(DType::BF16, 1));
  for (const DType dtype : {DType::F16, DType::BF16}) {
    const Values half = values_of(copy(DType::F16)), brain = values_of(copy(DType::BF16));
    EXPECT_TRUE(step(dtype, INFINITY));
    EXPECT_EQ(values_of(copy(DType::F16)), half);
    EXPECT_EQ(values_of(copy(DType::BF16)), brain);
    EXPECT_TRUE(w.parameter().storage()->copies_fresh()) << "nothing to cast again";
    EXPECT_FALSE(step(dtype, 1));
    EXPECT_NE(values_of(copy(DType::F16)), half);
    EXPECT_EQ(values_of(copy(DType::F16)), rounded(DType::F16));
    EXPECT_EQ(values_of(copy(DType::BF16)), rounded(DType::BF16));
  }
}

// Random numbers follow attempted steps: the step after a skipped one draws what it would have drawn anyway.
TEST_P(GradScaler, ASkippedStepLeavesTheNextDropoutMaskAlone) {
  const auto masks = [&](double second) {
    manual_seed(11);
    OneWeight one(device());
    amp::GradScaler scaler({.init_scale = 1024});
    const Variable ones(kernels::full({256}, 1, DType::F32, device()));
    std::vector<Values> drawn;
    for (const double gradient : {1.0, second, 1.0}) {
      for (int call = 0; call < 2; ++call) drawn.push_back(values_of(dropout(ones, 0.5).tensor()));
      one.train(scaler, gradient);
    }
    return drawn;
  };
  const auto skipped = masks(NAN), straight = masks(1);
  EXPECT_EQ(skipped, straight);
  for (size_t i = 0; i < straight.size(); ++i)
    for (size_t j = 0; j < i; ++j) EXPECT_NE(straight[i], straight[j]) << i << " and " << j;
}

// A load between two steps is no trace of the step: it stays when the next one is skipped.
TEST_P(GradScaler, ASkippedStepGivesBackRunningStatisticsAsTheyWereLoaded) {
  OneWeight one(device());
  Buffer mean(tensor_of({1, 2}, {2}, DType::F32, device()));
  const Parameter w(tensor_of({0}, {1}, DType::F32, device()));
  ParameterList list({w});
  list.buffers.push_back(mean);
  optim::SGD sgd(list, {.lr = 1});
  amp::GradScaler scaler({.init_scale = 1024});
  mean.assign(tensor_of({5, 6}, {2}, DType::F32, device()));
  kernels::fill(mean.tensor(), NAN);  // what a forward pass does that overflows
  backward(scaler.scale(sum(w * Variable(tensor_of({INFINITY}, {1}, DType::F32, device())))));
  EXPECT_TRUE(scaler.step(sgd).skipped());
  EXPECT_EQ(values_of(mean.tensor()), (Values{5, 6}));
}

}  // namespace
}  // namespace demi::test
