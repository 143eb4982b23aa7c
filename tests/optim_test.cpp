#include <cmath>

#include "demi/kernels/fill.h"
#include "demi/optim/adam.h"
#include "demi/optim/clip.h"
#include "demi/optim/lr_schedule.h"
#include "demi/optim/sgd.h"
#include "devices.h"

namespace demi::test {
namespace {

using Values = std::vector<double>;

class OptimTest : public OnDevice {
 protected:
  Parameter parameter(const Values& values, const Shape& shape = {}) const {
    return Parameter(tensor_of(values, shape, DType::F32, device()));
  }
  Tensor tensor(const Values& values, const Shape& shape = {}, DType dtype = DType::F32) const {
    return tensor_of(values, shape, dtype, device());
  }
  void give(const Parameter& p, const Values& gradient, DType dtype = DType::F32) const {
    p.parameter().zero_grad();
    p.parameter().accumulate(tensor_of(gradient, p.shape(), dtype, device()));
  }
  Values after(const Parameter& p) const { return values_of(p.master()); }
  // Weights after each of three steps with gradient 1.
  Values three_steps(const optim::SGDOptions& options) const {
    const Parameter w = parameter({1});
    optim::SGD sgd(std::vector{w}, options);
    Values trajectory;
    for (int i = 0; i < 3; ++i) {
      give(w, {1});
      sgd.step();
      trajectory.push_back(after(w)[0]);
    }
    return trajectory;
  }
  using State = std::map<std::string, Values>;
  static State snapshot(optim::Optimizer& o) {
    State values;
    for (const auto& [name, t] : o.state()) values[name] = values_of(t);
    return values;
  }
  optim::ScaledStep overflow(bool found) const { return {{}, kernels::full({}, found ? 1 : 0, DType::I32, device())}; }
};
DEMI_ON_ALL_DEVICES(OptimTest);

// ---- Arithmetic

TEST_P(OptimTest, SgdFollowsItsFormula) {
  expect_close(three_steps({.lr = 0.1, .momentum = 0.9}), {0.9, 0.71, 0.439}, 1e-6, 0, "momentum");
  expect_close(three_steps({.lr = 0.1, .momentum = 0.9, .nesterov = true}), {0.81, 0.539, 0.1951}, 1e-6, 0, "nesterov");
  expect_close(three_steps({.lr = 0.1}), {0.9, 0.8, 0.7}, 1e-6, 0, "plain");
  // Decay acts without momentum: w = 0.95 w - 0.1.
  expect_close(three_steps({.lr = 0.1, .weight_decay = 0.5}), {0.85, 0.7075, 0.572125}, 1e-6, 0, "decay");
  // The first velocity is the gradient itself, undampened: v = 1, 0.9 + 0.5, 0.9 * 1.4 + 0.5.
  expect_close(three_steps({.lr = 0.1, .momentum = 0.9, .dampening = 0.5}), {0.9, 0.76, 0.584}, 1e-6, 0, "dampening");
}

TEST_P(OptimTest, RefusesWhatMakesNoSense) {
  const std::vector w{parameter({1})};
  EXPECT_THROW(optim::SGD(w, {.lr = 0.1, .nesterov = true}), Error);
  EXPECT_THROW(optim::SGD(w, {.lr = 0.1, .momentum = 0.9, .dampening = 0.1, .nesterov = true}), Error);
  EXPECT_THROW(optim::SGD(w, {.lr = -1}), Error);
  EXPECT_THROW(optim::Adam(w, {.beta1 = 1}), Error);
  EXPECT_THROW(optim::SGD(std::vector<Parameter>{}, {.lr = 0.1}), Error);
  EXPECT_THROW(Parameter(tensor({1}, {}, DType::F16)), Error);  // the master is FP32: no update can round to nothing
  const optim::SGD first(w, {.lr = 0.1});
  EXPECT_NE(error_of([&] { optim::SGD second(w, {.lr = 0.1}); }).find("another optimizer"), std::string::npos);
}

TEST_P(OptimTest, AdamWDecaysTheWeightItself) {
  const Parameter coupled = parameter({1}), decoupled = parameter({1});
  optim::Adam adam(std::vector{coupled}, {.lr = 0.1, .weight_decay = 0.5});
  optim::AdamW adamw(std::vector{decoupled}, {.lr = 0.1, .weight_decay = 0.5});
  give(coupled, {0});
  give(decoupled, {0});
  adam.step();
  adamw.step();
  EXPECT_NEAR(after(coupled)[0], 0.9, 1e-6);     // g = 0.5: a step of lr
  EXPECT_NEAR(after(decoupled)[0], 0.95, 1e-6);  // w -= lr decay w
}

// ---- Skipped steps

TEST_P(OptimTest, TellsOutcomesOfEarlierSteps) {
  const Parameter w = parameter({1});
  optim::SGD sgd(std::vector{w}, {.lr = 0.1});
  give(w, {1});
  const auto first = sgd.step(overflow(true)), second = sgd.step(overflow(false)), third = sgd.step();
  EXPECT_TRUE(first.skipped());
  EXPECT_FALSE(second.skipped());
  EXPECT_FALSE(third.skipped());
}

// ---- Which parameters take part

TEST_P(OptimTest, DecaysNoVectorsWhereAskedTo) {
  const Parameter matrix = parameter({1, 1, 1, 1}, {2, 2}), vector = parameter({1, 1}, {2});
  optim::SGD sgd(optim::no_decay_for_vectors(std::vector{matrix, vector}), {.lr = 0.1, .weight_decay = 0.5});
  give(matrix, Values(4, 0));
  give(vector, Values(2, 0));
  sgd.step();
  expect_close(after(matrix), Values(4, 0.95), 1e-6, 0, "matrix");
  EXPECT_EQ(after(vector), Values(2, 1));
}

TEST_P(OptimTest, LeavesParametersWithoutAGradientAlone) {
  const Parameter first = parameter(Values(70, 1), {70}), absent = parameter(Values(3, 1), {3}),
                  last = parameter(Values(5, 1), {5});
  optim::SGD sgd(std::vector{first, absent, last}, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.5});
  give(first, Values(70, 1));
  give(last, Values(5, 1), DType::F16);  // of another dtype: its own run
  sgd.step();
  EXPECT_EQ(after(absent), Values(3, 1));
  expect_close(after(first), Values(70, 0.85), 1e-6, 0, "first");
  expect_close(after(last), Values(5, 0.85), 1e-6, 0, "last");
  sgd.zero_grad();
  EXPECT_FALSE(first.grad().defined());
  const auto before = snapshot(sgd);
  sgd.step();
  EXPECT_EQ(snapshot(sgd), before);
}

TEST_P(OptimTest, CountsStepsForEachParameter) {
  const Parameter early = parameter({1}), late = parameter({1});
  optim::Adam adam(std::vector{early, late}, {.lr = 0.01});
  for (int i = 0; i < 10; ++i) {
    give(early, {1});
    adam.step();
  }
  give(early, {1});
  give(late, {0.5});
  adam.step();
  EXPECT_NEAR(after(late)[0], 0.99, 1e-7);  // its first step: t = 1
  EXPECT_NEAR(after(early)[0], 0.89, 1e-5);
}

// ---- Clipping

TEST_P(OptimTest, ClipsByValueAndTellsNorms) {
  const Parameter a = parameter({0, 0, 0}, {3}), b = parameter(Values(4, 0), {2, 2}), none = parameter({0});
  optim::SGD sgd(std::vector{a, b, none}, {.lr = 1});
  EXPECT_EQ(optim::grad_norm(sgd).item<float>(), 0);
  EXPECT_EQ(optim::clip_grad_norm(sgd, 1).item<float>(), 0);
  give(a, {2, -3, 0.5});
  give(b, Values(4, 200), DType::F16);  // squares leave the range of a half
  EXPECT_NEAR(optim::grad_norm(sgd).item<float>(), std::sqrt(4 + 9 + 0.25 + 160000), 1e-3);
  optim::clip_grad_value(sgd, 1);
  EXPECT_EQ(values_of(a.grad()), (Values{1, -1, 0.5}));
  EXPECT_EQ(values_of(b.grad()), Values(4, 1));
  EXPECT_FALSE(none.grad().defined());
}

// ---- Schedules

TEST_P(OptimTest, SchedulesFollowTheirClosedForms) {
  const Values cosine = optim::cosine({.lr = 0.1, .total_steps = 10});
  ASSERT_EQ(cosine.size(), 11u);
  expect_close({cosine[0], cosine[1], cosine[5], cosine[9], cosine[10]}, {0.1, 0.097553, 0.05, 0.002447, 0}, 0, 1e-6,
               "cosine");
  const Values warm = optim::cosine({.lr = 0.1, .total_steps = 10, .warmup_steps = 4});
  expect_close({warm[0], warm[3], warm[4], warm[7], warm[10]}, {0.02, 0.08, 0.1, 0.05, 0}, 0, 1e-12, "warm-up");
  for (const double lr : warm) EXPECT_LE(lr, 0.1);
  const Values steps = optim::step_decay({.lr = 1, .total_steps = 6, .step_size = 2});
  expect_close({steps[0], steps[1], steps[2], steps[5]}, {1, 1, 0.1, 0.01}, 1e-12, 0, "step");
  const Values cycle = optim::one_cycle({.max_lr = 1, .total_steps = 20});
  EXPECT_EQ(*std::max_element(cycle.begin(), cycle.end()), 1.0);
  EXPECT_NEAR(cycle[0], 0.04, 1e-12);
  EXPECT_NEAR(cycle[19], 4e-6, 1e-12);
  EXPECT_THROW(optim::cosine({.total_steps = 0}), Error);
  EXPECT_THROW(optim::cosine({.total_steps = 3, .warmup_steps = 3}), Error);

  const Parameter w = parameter({1});
  optim::SGD sgd(std::vector{w}, {.lr = 7});
  optim::Schedule schedule(sgd, cosine);
  EXPECT_FLOAT_EQ(static_cast<float>(sgd.lr()), 0.1f);
  for (int k = 1; k < 14; ++k) {
    give(w, {0});
    sgd.step();
    schedule.step();
    EXPECT_FLOAT_EQ(static_cast<float>(sgd.lr()), static_cast<float>(schedule.lr_at(k)));
  }
  EXPECT_EQ(sgd.lr(), 0);  // past the end the last rate stays
}

// ---- State

template <typename Make>
void expect_resumes(Device device, Make make) {
  auto train = [&](const std::vector<Parameter>& w, optim::Optimizer& o, optim::Schedule& s, int from, int to) {
    for (int i = from; i < to; ++i) {
      o.zero_grad();
      for (size_t k = 0; k < w.size(); ++k) {
        if (k == 1 && i < 2) continue;  // a late parameter, so counters differ
        w[k].parameter().accumulate(tensor_of(noise(w[k].master().numel(), static_cast<uint64_t>(i + 1)), w[k].shape(),
                                              i % 2 ? DType::F16 : DType::F32, device));
      }
      o.step();
      s.step();
    }
  };
  auto start = [&] {
    return std::vector<Parameter>{Parameter(tensor_of(noise(15), {3, 5}, DType::F32, device)),
                                  Parameter(tensor_of(noise(4), {4}, DType::F32, device)),
                                  Parameter(tensor_of(noise(70), {70}, DType::F32, device))};
  };
  const Values table = optim::cosine({.lr = 0.1, .total_steps = 10});

  const auto straight = start();
  auto whole = make(straight);
  optim::Schedule whole_schedule(*whole, table);
  train(straight, *whole, whole_schedule, 0, 5);
  const auto middle = start();
  for (size_t k = 0; k < middle.size(); ++k) middle[k].parameter().assign(straight[k].master());
  std::map<std::string, Tensor> saved;
  for (const auto& [name, t] : whole->state()) saved[name] = t.to(Device::cpu()).clone();
  train(straight, *whole, whole_schedule, 5, 10);

  auto resumed = make(middle);
  optim::Schedule resumed_schedule(*resumed, table);
  resumed->load_state(saved);
  EXPECT_EQ(resumed_schedule.position(), 5);
  EXPECT_FLOAT_EQ(static_cast<float>(resumed->lr()), 0.05f);
  train(middle, *resumed, resumed_schedule, 5, 10);
  for (size_t k = 0; k < middle.size(); ++k)
    EXPECT_EQ(values_of(middle[k].master()), values_of(straight[k].master())) << "parameter " << k;

  saved.erase("lr");
  const auto before = values_of(middle[0].master());
  EXPECT_NE(error_of([&] { resumed->load_state(saved); }).find("'lr'"), std::string::npos);
  saved["lr"] = Tensor::zeros({2}, DType::F32);
  EXPECT_NE(error_of([&] { resumed->load_state(saved); }).find("[2]"), std::string::npos);
}

TEST_P(OptimTest, ResumesBitForBit) {
  expect_resumes(device(), [](const std::vector<Parameter>& w) {
    return std::make_unique<optim::SGD>(w, optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
  });
  expect_resumes(device(), [](const std::vector<Parameter>& w) {
    return std::make_unique<optim::Adam>(w, optim::AdamOptions{.lr = 0.1, .beta1 = 0.8, .beta2 = 0.99});
  });
  expect_resumes(device(), [](const std::vector<Parameter>& w) {
    return std::make_unique<optim::AdamW>(w, optim::AdamOptions{});
  });
}

}  // namespace
}  // namespace demi::test
