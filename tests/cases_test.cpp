// Faults that training software has really had, each as a small case with the value that is right; those that no other
// file covers.
#include <limits>

#include "demi/amp/autocast.h"
#include "demi/amp/grad_scaler.h"
#include "demi/autograd/engine.h"
#include "demi/autograd/function.h"
#include "demi/kernels/batch_norm.h"
#include "demi/kernels/binary.h"
#include "demi/kernels/cross_entropy.h"
#include "demi/kernels/fill.h"
#include "demi/kernels/reduce.h"
#include "demi/kernels/softmax.h"
#include "demi/nn/functional/arithmetic.h"
#include "demi/nn/functional/batch_norm.h"
#include "demi/nn/functional/conv2d.h"
#include "demi/nn/functional/dropout.h"
#include "demi/nn/functional/elementwise.h"
#include "demi/nn/functional/loss.h"
#include "demi/nn/functional/pool.h"
#include "demi/nn/functional/reduce.h"
#include "demi/nn/functional/shape.h"
#include "demi/nn/functional/softmax.h"
#include "demi/optim/adam.h"
#include "demi/optim/lr_schedule.h"
#include "demi/optim/sgd.h"
#include "devices.h"

#if DEMI_CUDA
#include "demi/core/cuda/graph.h"
#endif

namespace demi::test {
namespace {

using Values = std::vector<double>;

class Fault : public OnDevice {
 protected:
  Variable leaf(const Values& values, const Shape& shape = {}, DType dtype = DType::F32) const {
    return Variable(tensor_of(values, shape, dtype, device()), true);
  }
  Tensor constant(double value, const Shape& shape = {}, DType dtype = DType::F32) const {
    return kernels::full(shape, value, dtype, device());
  }
  Tensor labels(const std::vector<int64_t>& values) const {
    return Tensor::from(values, {static_cast<int64_t>(values.size())}, device());
  }
};
DEMI_ON_ALL_DEVICES(Fault);

// ---- Loss scale

// FP16 holds neither 65536 nor 150902: one 16-bit number on the way would make every first step overflow.
TEST_P(Fault, ScaledLossHeldInSixteenBits) {
  const Variable logits = leaf(Values(128 * 10, 0), {128, 10}, DType::F16);
  Variable loss;
  {
    const amp::Autocast region;
    loss = cross_entropy(logits, labels(std::vector<int64_t>(128, 3)));
  }
  amp::GradScaler scaler({.init_scale = 65536});
  const Variable scaled = scaler.scale(loss);
  EXPECT_EQ(scaled.dtype(), DType::F32);
  EXPECT_NEAR(scaled.item<float>(), 150902.2, 0.1);
  backward(scaled);
  const Values gradient = values_of(logits.grad());
  for (size_t i = 0; i < gradient.size(); ++i) ASSERT_NEAR(gradient[i], i % 10 == 3 ? -460.8 : 51.2, 0.2);
}

TEST_P(Fault, LossScaleThatReachesZeroOrInfinity) {
  const Parameter w(constant(1, {1}));
  optim::SGD sgd(std::vector{w}, {.lr = 0.5});
  const auto run = [&](amp::GradScaler& scaler, double x) {
    sgd.zero_grad();
    backward(scaler.scale(sum(w * Variable(constant(x, {1})))));
    scaler.step(sgd);
    scaler.update();
    return scaler.get_scale();  // waits, and so throws what the device reported
  };
  amp::GradScaler falling({.max_consecutive_overflows = 0}), growing({.growth_interval = 1}), stopped;
  for (int i = 0; i < 300; ++i) {
    const double scale = run(falling, NAN);
    ASSERT_TRUE(scale > 0 && std::isfinite(1 / static_cast<float>(scale))) << "overflow " << i;
  }
  EXPECT_EQ(w.master().item<float>(), 1);
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(std::isfinite(run(growing, 1e-38)));
  const std::string message = error_of([&] {
    for (int i = 0; i < 300; ++i) run(stopped, NAN);
  });
  EXPECT_NE(message.find("100 steps in a row"), std::string::npos) << message;
}

TEST_P(Fault, LossScaleThatIsNoNumberFromTheStart) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double scale : {0.0, -1.0, inf, 1e39, 1e-40, std::nan("")}) {
    EXPECT_THROW(amp::GradScaler({.init_scale = scale}), Error) << scale;
    amp::GradScaler scaler;
    scaler.scale(Variable(constant(1)));
    EXPECT_THROW(scaler.update(scale), Error) << scale;
    auto state = scaler.state_dict();
    state["scale"] = scale;
    EXPECT_THROW(scaler.load_state_dict(state), Error) << scale;
    EXPECT_EQ(scaler.get_scale(), 65536);
  }
}

// ---- Batch norm

// 101 samples in batches of 50 behind global average pooling: the last batch has one value a channel.
TEST_P(Fault, LastBatchOfOneSampleThroughBatchNorm) {
  Buffer mean(constant(0, {4})), var(constant(1, {4}));
  const auto train = [&](int64_t samples) {
    const Variable x = leaf(noise(samples * 9 * 4), {samples, 3, 3, 4});
    batch_norm(global_avg_pool(x), {.running_mean = mean, .running_var = var});
  };
  train(50);
  train(50);
  const Values means = values_of(mean.tensor()), variances = values_of(var.tensor());
  const std::string message = error_of([&] { train(1); });
  EXPECT_NE(message.find("[1, 4]"), std::string::npos) << message;
  EXPECT_NE(message.find("drop_last"), std::string::npos) << message;
  EXPECT_EQ(values_of(mean.tensor()), means);
  EXPECT_EQ(values_of(var.tensor()), variances);
  for (const double v : variances) EXPECT_TRUE(std::isfinite(v));
}

// Half inputs with FP32 parameters, a gradient through eval mode, none of the parameters, and eps just below 1e-5.
TEST_P(Fault, BatchNormOfHalvesInEvalWithAGradient) {
  const double eps = static_cast<double>(1e-5f);
  const Parameter gamma(tensor_of({2, -0.5}, {2}, DType::F32, device())),
      beta(tensor_of({1, 0.25}, {2}, DType::F32, device()));
  Buffer mean(tensor_of({0.5, -1}, {2}, DType::F32, device())), var(tensor_of({4, 0.25}, {2}, DType::F32, device()));
  const Variable x = leaf({1, 2, 3, 4, 5, 6}, {3, 2}, DType::F16);
  Variable y;
  {
    const amp::Autocast region;
    y = batch_norm(
        x, {.weight = gamma, .bias = beta, .running_mean = mean, .running_var = var, .training = false, .eps = eps});
  }
  EXPECT_EQ(y.dtype(), DType::F16);
  backward(y, constant(1, {3, 2}, DType::F16));
  expect_close(values_of(x.grad()), {1, -1, 1, -1, 1, -1}, 1e-3, 0, "dy gamma / sqrt(running_var + eps)");
  EXPECT_EQ(gamma.grad().dtype(), DType::F32);
  expect_close(values_of(beta.grad()), {3, 3}, 0, 0, "beta");
  expect_close(values_of(gamma.grad()), {(0.5 + 2.5 + 4.5) / 2, (3 + 5 + 7) * 2}, 1e-4, 0, "gamma");
  EXPECT_EQ(values_of(mean.tensor()), (Values{0.5, -1}));
  EXPECT_EQ(values_of(var.tensor()), (Values{4, 0.25}));
  for (const bool training : {true, false})
    EXPECT_EQ(batch_norm(x, {.running_mean = mean, .running_var = var, .training = training, .eps = eps}).dtype(),
              DType::F16);
}

// An optimizer that is gone must not leave its running statistics without a guard under the next one.
TEST_P(Fault, SecondOptimizerThatCannotTakeRunningStatisticsBack) {
  Buffer mean(constant(0, {1}));
  const Parameter w(constant(1, {1}));
  for (int i = 0; i < 2; ++i) {
    optim::SGD sgd(
        [&] {
          ParameterList list({w});
          list.buffers.push_back(mean);
          return list;
        }(),
        {.lr = 1});
    kernels::fill(mean.tensor(), NAN);
    w.parameter().accumulate(constant(1, {1}));
    sgd.step({{}, kernels::full({}, 1, DType::I32, device())});  // skipped
    EXPECT_EQ(values_of(mean.tensor()), Values{0}) << "optimizer " << i;
  }
  mean.to(Device::cpu());  // nobody holds it any more
  EXPECT_EQ(values_of(mean.tensor()), Values{0});
}

// ---- Views, and gradients that repeat one number

TEST_P(Fault, ViewsThatStartAtAnOddElementInEveryLayer) {
  const WithoutPlanSearch quick;
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16})
    for (const int64_t channels : {8, 5}) {
      const Shape shape{2, 6, 6, channels};
      const int64_t n = shape.numel();
      const Tensor flat = tensor_of(noise(n + 1), {n + 1}, dtype, device());
      const Tensor view = flat.narrow(1, n).reshape(shape), whole = view.clone();
      const Tensor filters = tensor_of(noise(n + 1, 2), {n + 1}, dtype, device()).narrow(1, 4 * 9 * channels);
      const auto run = [&](const Tensor& input, const Tensor& filter) {
        std::vector<Values> results;
        const Variable w(filter.reshape(Shape{4, 3, 3, channels}), true);
        Buffer mean(constant(0, {channels})), var(constant(1, {channels}));
        const std::vector<std::function<Variable(const Variable&)>> layers{
            [&](const Variable& x) {
              return conv2d(x, w, {}, {.padding = {1, 1}});
            },
            [&](const Variable& x) { return batch_norm(x, {.running_mean = mean, .running_var = var}); },
            [&](const Variable& x) { return relu(x); },
            [&](const Variable& x) { return max_pool2d(x, {}); },
            [&](const Variable& x) { return avg_pool2d(x, {}); },
            [&](const Variable& x) {
              return sum(x, {1, 2});
            },
            [&](const Variable& x) { return softmax(x, -1); },
            [&](const Variable& x) {
              return cross_entropy(reshape(x, {72, channels}), labels(std::vector<int64_t>(72, 1)));
            }};
        for (const auto& layer : layers) {
          const Variable x(input, true);
          const Variable y = layer(x);
          backward(y, kernels::full(y.shape(), 1, y.dtype(), device()));
          results.push_back(values_of(y.tensor()));
          results.push_back(values_of(x.grad()));
        }
        results.push_back(values_of(w.grad()));
        results.push_back(values_of(mean.tensor()));
        return results;
      };
      const auto on_view = run(view, filters), on_whole = run(whole, filters.clone());
      for (size_t i = 0; i < on_view.size(); ++i)
        expect_close(on_view[i], on_whole[i], std::max(1e-5, 2 * epsilon_of(dtype)), 2e-6,
                     fmt::format("{}, result {}", dtype, i));
    }
}

TEST_P(Fault, RunningStatisticsThatAreASliceOfSomethingLarger) {
  Tensor all = constant(1, {7});
  Tensor mean = all.narrow(1, 2), var = all.narrow(4, 2);
  kernels::batch_norm_train(tensor_of({10, 0, 12, 0}, {2, 2}, DType::F32, device()), {}, {}, {}, mean, var, {});
  expect_close(values_of(all), {1, 2, 0.9, 1, 1.1, 0.9, 1}, 1e-6, 0, "the object itself has moved");
}

TEST_P(Fault, GradientOfASumThroughLayersBelow) {
  for (const DType dtype : {DType::F32, DType::F16}) {
    const Tensor input = tensor_of(noise(2 * 4 * 4 * 8), {2, 4, 4, 8}, dtype, device());
    const auto gradient = [&](bool by_sum) {
      const Variable x(input, true);
      const Variable y = max_pool2d(relu(batch_norm(x, {})), {});
      if (by_sum)
        backward(sum(y));
      else
        backward(y, kernels::full(y.shape(), 1, dtype, device()));
      return values_of(x.grad());
    };
    EXPECT_EQ(gradient(true), gradient(false));
  }
}

// ---- Many rows, many channels, many elements

TEST_P(Fault, MoreRowsThanAGridHasInOneAxis) {
  const int64_t rows = 90000, classes = 10;
  Values values(static_cast<size_t>(rows * classes));
  std::vector<int64_t> targets(static_cast<size_t>(rows));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 97) / 32;
  for (size_t i = 0; i < targets.size(); ++i) targets[i] = static_cast<int64_t>(i) % classes;
  const Tensor x = tensor_of(values, {rows, classes}, DType::F16, device()), t = labels(targets);
  const int64_t first = rows - 7;
  const Tensor last = x.narrow(first, 7).to(Device::cpu()), last_labels = t.narrow(first, 7).to(Device::cpu());
  const auto loss = kernels::cross_entropy(x, t, 0, Reduction::None);
  const auto expected = kernels::cross_entropy(last, last_labels, 0, Reduction::None);
  expect_close(values_of(loss.loss.narrow(first, 7)), values_of(expected.loss), 1e-5, 1e-6, "loss");
  const Tensor dx = kernels::cross_entropy_backward(constant(1, {rows}), x, t, loss.log_sum, 0, Reduction::None);
  expect_close(values_of(dx.narrow(first, 7)),
               values_of(kernels::cross_entropy_backward(kernels::full({7}, 1, DType::F32), last, last_labels,
                                                         expected.log_sum, 0, Reduction::None)),
               1e-3, 1e-6, "gradient");
  expect_close(values_of(kernels::softmax(x, 1).narrow(first, 7)), values_of(kernels::softmax(last, 1)), 1e-3, 0,
               "softmax");
}

TEST_P(Fault, MoreChannelsThanAGridHasInOneAxis) {
  for (const int64_t channels : {70000, 70001}) {
    Values values(static_cast<size_t>(3 * channels));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 97);
    const Tensor x = tensor_of(values, {3, channels}, DType::F16, device());
    Tensor mean = constant(0, {channels}), var = constant(1, {channels});
    const auto r = kernels::batch_norm_train(x, {}, {}, {}, mean, var, {.momentum = 1});
    const Values y = values_of(r.y), means = values_of(mean), variances = values_of(var);
    for (int64_t c = 0; c < channels; ++c) {
      const auto at = [&](int64_t row) { return values[static_cast<size_t>(row * channels + c)]; };
      const double m = (at(0) + at(1) + at(2)) / 3;
      double squares = 0;
      for (int64_t row = 0; row < 3; ++row) squares += (at(row) - m) * (at(row) - m);
      ASSERT_NEAR(means[static_cast<size_t>(c)], m, 1e-4) << c;
      ASSERT_NEAR(variances[static_cast<size_t>(c)], squares / 2, 1e-4 * squares) << c;
      ASSERT_NEAR(y[static_cast<size_t>(2 * channels + c)], (at(2) - m) / std::sqrt(squares / 3 + 1e-5), 2e-3) << c;
    }
  }
}

TEST_P(Fault, ElementsLeftOutOfAnAddition) {
  const int64_t rows = device().is_cpu() ? 512 : 8192, columns = 16384;
  Values along(static_cast<size_t>(columns)), down(static_cast<size_t>(rows));
  for (size_t i = 0; i < along.size(); ++i) along[i] = static_cast<double>(i % 97);
  for (size_t i = 0; i < down.size(); ++i) down[i] = static_cast<double>(i % 89);
  const Tensor a = tensor_of(along, {1, columns}, DType::F16, device()),
               b = tensor_of(down, {rows, 1}, DType::F16, device());
  const Tensor y = kernels::add(kernels::broadcast_to(a, {rows, columns}), kernels::broadcast_to(b, {rows, columns}));
  for (const int64_t row : {int64_t{0}, rows / 2, rows - 1}) {
    const Values got = values_of(y.narrow(row, 1));
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], along[i] + down[static_cast<size_t>(row)]) << row;
  }
  for (const int64_t n : {1, 3, 7, 8, 1023}) {
    const Values values = rounded_to(DType::F16, noise(n + 1));
    const Tensor x = tensor_of(values, {n + 1}, DType::F16, device()).narrow(1, n);
    const Values doubled = values_of(kernels::add(x, x)), expected(values.begin() + 1, values.end());
    for (size_t i = 0; i < doubled.size(); ++i) ASSERT_EQ(doubled[i], 2 * expected[i]) << n;
  }
  EXPECT_THROW(Tensor::empty({int64_t{1} << 40, int64_t{1} << 40}, DType::F32, device()), Error);
}

// ---- Backward that failed, schedules at their edge

struct FailsOnce : Function<FailsOnce> {
  static Tensor forward(FunctionContext&, const Tensor& x) { return x.clone(); }
  static std::vector<Tensor> backward(FunctionContext&, const Tensor&) { fail("of its own"); }
};

TEST_P(Fault, BackwardThatFailedLosesGradientsOfTheNext) {
  const Variable x = leaf({1});
  const Variable shared = x * 2.0;
  const Variable fails = FailsOnce::apply(shared), works = shared * 3.0;
  EXPECT_EQ(error_of([&] { backward(fails + works); }), "of its own");
  backward(shared * 5.0);
  ASSERT_TRUE(x.grad().defined());
  EXPECT_EQ(values_of(x.grad()), Values{10});
}

TEST_P(Fault, OptimizerThatFailedKeepsItsParameters) {
  const Parameter w(constant(1, {1 << 22}));
  memory::release_cached(device());
  memory::set_limit(device(), memory::statistics(device()).reserved + (size_t{24} << 20));  // of 32 MiB more
  const std::string message = error_of([&] { optim::Adam(std::vector{w}, {}); });
  memory::set_limit(device(), 0);
  EXPECT_NE(message.find("no room"), std::string::npos) << message;
  optim::Adam adam(std::vector{w}, {.lr = 0.5});
  w.parameter().accumulate(constant(1, {1 << 22}));
  adam.step();
  EXPECT_NEAR(values_of(w.master())[0], 0.5, 1e-6);

  const Parameter a(constant(1)), b(constant(1));
  using Groups = std::vector<optim::ParameterGroup>;
  EXPECT_THROW(optim::SGD(Groups{{{{a, b}}, {}}, {{{b}}, 0.0}}, {.lr = 1}), Error);
  optim::SGD both(Groups{{{{a}}, {}}, {{{b}}, 0.0}}, {.lr = 1});
}

TEST_P(Fault, OneCycleThatPeaksAtItsFirstStep) {
  for (const int64_t steps : {2, 5, 10})
    for (const double lr : optim::one_cycle({.max_lr = 1, .total_steps = steps, .pct_start = 0.1}))
      EXPECT_TRUE(lr >= 0 && lr <= 1) << steps << " steps: " << lr;
}

// ---- Dropout

TEST_P(Fault, DropoutThatRepeatsItsMask) {
  const Parameter w(constant(1, {4096}));
  optim::SGD sgd(std::vector{w}, {.lr = 0});
  Tensor kept = constant(0, {4096});
  const auto step = [&] {
    sgd.zero_grad();
    const Variable y = dropout(w, 0.5);
    kept.copy_from(y.tensor());
    backward(sum(y));
    sgd.step();
  };
  const auto results = [&] {
    EXPECT_EQ(values_of(w.grad()), values_of(kept)) << "the gradient's mask is the forward's";
    return values_of(kept);
  };
  step();
  const Values first = results();
  step();
  EXPECT_NE(results(), first);
#if DEMI_CUDA
  if (device().is_cpu()) return;
  cuda::Graph graph(step);
  graph.replay();
  const Values replayed = results();
  graph.replay();
  EXPECT_NE(results(), replayed);
#endif
}

}  // namespace
}  // namespace demi::test
