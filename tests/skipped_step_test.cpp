// A skipped step leaves no trace. Weights, momentum, Adam's counter, schedule and running statistics:
// cases_optim_test.cpp and cases_norm_test.cpp; here are compute copies, random numbers and what was loaded.
#include <cmath>

#include "demi/kernels/fill.h"
#include "demi/kernels/random.h"
#include "demi/nn/functional/dropout.h"
#include "one_weight.h"

namespace demi::test {
namespace {

using Values = std::vector<double>;

class SkippedStep : public OnDevice {};
DEMI_ON_ALL_DEVICES(SkippedStep);

TEST_P(SkippedStep, LeavesComputeCopiesAlone) {
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

// The master was loaded anew since the copy was made: a step that writes neither must not take the copy for fresh.
TEST_P(SkippedStep, DoesNotHideThatACopyIsStale) {
  OneWeight one(device());
  amp::GradScaler scaler({.init_scale = 1024});
  const auto forward = [&] {
    const amp::Autocast region(DType::F16);
    const NoGrad off;
    return values_of(linear(Variable(tensor_of({1}, {1, 1}, DType::F32, device())), one.w).tensor())[0];
  };
  EXPECT_EQ(forward(), 0);
  one.w.assign(tensor_of({5}, {1, 1}, DType::F32, device()));
  one.train(scaler, NAN);
  EXPECT_EQ(one.value(), 5);
  EXPECT_EQ(forward(), 5);
}

// Random numbers follow attempted steps: the step after a skipped one draws what it would have drawn anyway.
TEST_P(SkippedStep, LeavesTheNextDropoutMaskAlone) {
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
TEST_P(SkippedStep, GivesBackRunningStatisticsAsTheyWereLoaded) {
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
