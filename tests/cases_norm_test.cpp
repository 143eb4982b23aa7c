// Known faults of batch norm and layer norm: poisoned statistics, cancelling variances, other conventions.
#include "cases.h"
#include "demi/amp/autocast.h"
#include "demi/amp/grad_scaler.h"
#include "demi/autograd/engine.h"
#include "demi/kernels/batch_norm.h"
#include "demi/nn/functional/arithmetic.h"
#include "demi/nn/functional/batch_norm.h"
#include "demi/nn/functional/elementwise.h"
#include "demi/nn/functional/layer_norm.h"
#include "demi/nn/functional/pool.h"
#include "demi/nn/functional/reduce.h"
#include "demi/nn/layers/batch_norm.h"
#include "demi/optim/sgd.h"

namespace demi::test {
namespace {

class NormFault : public FaultTest {};
DEMI_ON_ALL_DEVICES(NormFault);

// ---- Running statistics

// An overflow reaches them in the forward, before anyone knows that the step will be skipped. 0 stands for a batch that
// is fine and a gradient that is not.
TEST_P(NormFault, SkippedStepThatPoisonsRunningStatistics) {
  for (const DType dtype : kTrainingDtypes)
    for (const bool relu : {false, true})
      for (const double bad : {kInf, -kInf, kNaN, 70000.0, 0.0}) {
        if (bad == 70000 && dtype != DType::F16) continue;  // no overflow there
        nn::BatchNorm2d bn(2);
        bn.to(device());
        optim::SGD sgd(bn.parameters(), {.lr = 0.1, .momentum = 0.9});
        amp::GradScaler scaler({.init_scale = 1024});
        const auto step = [&](Values batch, double factor) {
          sgd.zero_grad();
          Variable loss;
          {
            const amp::Autocast region(dtype);
            const Variable y = bn.normalize(tensor(batch, {2, 1, 2, 2}, dtype), {}, relu);
            loss = sum(square(y));
          }
          backward(scaler.scale(scale(loss, factor)));
          const bool skipped = scaler.step(sgd).skipped();
          scaler.update();
          return skipped;
        };
        const Values good{1, 2, 3, 5, 2, 8, 4, 1};
        Values spoilt = good;
        if (bad != 0) spoilt[5] = bad;
        ASSERT_FALSE(step(good, 1));
        const auto model = snapshot(bn.state()), optimizer = snapshot(sgd.state());
        ASSERT_TRUE(step(spoilt, bad == 0 ? kInf : 1)) << name_of(dtype) << " " << bad;
        EXPECT_EQ(snapshot(bn.state()), model) << name_of(dtype) << " " << bad;
        EXPECT_EQ(snapshot(sgd.state()), optimizer) << name_of(dtype) << " " << bad;
        EXPECT_EQ(scaler.get_scale(), 512);
        bn.eval();
        for (const double v : values_of(bn(tensor(good, {2, 1, 2, 2}, dtype)).tensor())) EXPECT_TRUE(std::isfinite(v));
        bn.train();
        EXPECT_FALSE(step(good, 1));
        EXPECT_NE(snapshot(bn.state()), model);
      }
}

// An optimizer that is gone must not leave its running statistics without a guard under the next one.
TEST_P(NormFault, SecondOptimizerThatCannotTakeRunningStatisticsBack) {
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
    sgd.step({{}, constant(1, {}, DType::I32)});  // skipped
    EXPECT_EQ(values_of(mean.tensor()), Values{0}) << "optimizer " << i;
  }
  mean.to(Device::cpu());  // nobody holds it any more
  EXPECT_EQ(values_of(mean.tensor()), Values{0});
}

TEST_P(NormFault, RunningStatisticsThatAreASliceOfSomethingLarger) {
  Tensor all = constant(1, {7});
  Tensor mean = all.narrow(1, 2), var = all.narrow(4, 2);
  kernels::batch_norm_train(tensor({10, 0, 12, 0}, {2, 2}), {}, {}, {}, mean, var, {});
  expect_close(values_of(all), {1, 2, 0.9, 1, 1.1, 0.9, 1}, 1e-6, 0, "the object itself has moved");
}

// The running variance is the unbiased one and momentum weighs the new value; the output of training takes the biased
// variance, that of eval the running one.
TEST_P(NormFault, BiasedRunningVarianceOrMomentumOfTheOldValue) {
  for (const DType dtype : kTrainingDtypes)
    for (const double momentum : {0.0, 0.1, 0.25, 1.0}) {
      nn::BatchNorm2d bn({.channels = 1, .momentum = momentum});
      bn.to(device());
      double mean = 0, var = 1;
      for (const Values& batch : {Values{1, 2, 3, 4}, Values{10, 12}, Values{-3, 5, 7}}) {
        const auto n = static_cast<double>(batch.size());
        double m = 0, squares = 0;
        for (const double v : batch) m += v / n;
        for (const double v : batch) squares += (v - m) * (v - m);
        mean += momentum * (m - mean);
        var += momentum * (squares / (n - 1) - var);
        const Variable x = tensor(batch, {static_cast<int64_t>(n), 1, 1, 1}, dtype);
        Values expected;
        for (const double v : batch) expected.push_back((v - m) / std::sqrt(squares / n + 1e-5));
        expect_close(values_of(bn(x).tensor()), expected, epsilon_of(dtype) + 1e-6, 1e-6, "training");
        expect_close(values_of(bn.running_mean.tensor()), {mean}, 1e-6, 1e-6, "mean");
        expect_close(values_of(bn.running_var.tensor()), {var}, 1e-6, 1e-6, "var");
        bn.eval();
        expected.clear();
        for (const double v : batch) expected.push_back((v - mean) / std::sqrt(var + 1e-5));
        expect_close(values_of(bn(x).tensor()), expected, epsilon_of(dtype) + 4e-6, 4e-6, "eval");
        bn.train();
      }
    }
  nn::BatchNorm2d bn(1);
  bn.to(device());
  (void)bn(tensor({1, 2, 3, 4}, {4, 1, 1, 1}));
  EXPECT_NEAR(values_of(bn.running_var.tensor())[0], 1.0666667, 1e-6);  // biased: 1.025
}

// 101 samples in batches of 50 behind global average pooling: the last batch has one value a channel.
TEST_P(NormFault, LastBatchOfOneSample) {
  for (const DType dtype : kTrainingDtypes) {
    Buffer mean(constant(0, {4})), var(constant(1, {4}));
    const auto train = [&](int64_t samples) {
      const Variable x = leaf(noise(samples * 9 * 4), {samples, 3, 3, 4}, dtype);
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
}

// ---- Numbers

struct Channels {
  DType dtype;
  double mean, distance;
};
const Channels kCancelling[] = {{DType::F32, 10000, 1},        {DType::F32, 1e6, 1},    {DType::F16, 300, 0.5},
                                {DType::F16, 2000, 1},         {DType::F16, 60000, 32}, {DType::BF16, 300, 2},
                                {DType::BF16, 0x1p60, 0x1p54}, {DType::F32, 100, 0}};

// Values mean -+ distance in turn; every third channel is constant. Their E[x^2] - E[x]^2 is 0, negative or infinite.
TEST_P(NormFault, VarianceFromSumsOfSquares) {
  for (const Channels& k : kCancelling)
    for (const int64_t channels : {1, 3, 8, 16})
      for (const int64_t rows : {2, 1024, 20000}) {
        const auto c_of = [&](size_t i) { return static_cast<int64_t>(i) % channels; };
        const auto n = static_cast<double>(rows);
        Values x(static_cast<size_t>(rows * channels));
        for (size_t i = 0; i < x.size(); ++i) {
          const bool odd = static_cast<int64_t>(i) / channels % 2 != 0;
          x[i] = k.mean + (c_of(i) % 3 == 2 ? 0 : odd ? k.distance : -k.distance);
        }
        x = rounded_to(k.dtype, x);
        const double m = rounded_to(k.dtype, {k.mean})[0], d = std::fabs(x[0] - m);
        const Values dy = rounded_to(k.dtype, noise(rows * channels, 3));
        Buffer running_mean(constant(0, {channels})), running_var(constant(0, {channels}));
        const Variable in(tensor(x, {rows, channels}, k.dtype), true);
        const Variable y = batch_norm(in, {.running_mean = running_mean, .running_var = running_var, .momentum = 1});
        backward(y, tensor(dy, {rows, channels}, k.dtype));
        Values sum_g(static_cast<size_t>(channels)), sum_gx = sum_g, expected(x.size()), gradient(x.size());
        const auto inverse = [&](int64_t c) { return 1 / std::sqrt((c % 3 == 2 ? 0 : d * d) + 1e-5); };
        for (size_t i = 0; i < x.size(); ++i) {
          const auto c = static_cast<size_t>(c_of(i));
          expected[i] = (x[i] - m) * inverse(c_of(i));
          sum_g[c] += dy[i];
          sum_gx[c] += dy[i] * expected[i];
        }
        for (size_t i = 0; i < x.size(); ++i) {
          const auto c = static_cast<size_t>(c_of(i));
          gradient[i] = inverse(c_of(i)) * (dy[i] - (sum_g[c] + expected[i] * sum_gx[c]) / n);
        }
        const std::string what = fmt::format("{} {} +- {}, [{}, {}]", k.dtype, k.mean, k.distance, rows, channels);
        const double unit = epsilon_of(k.dtype);
        expect_close(values_of(y.tensor()), expected, unit + 1e-6, 0, what);
        const Values means = values_of(running_mean.tensor()), variances = values_of(running_var.tensor());
        for (int64_t c = 0; c < channels; ++c) {
          const auto at = static_cast<size_t>(c);
          ASSERT_NEAR(means[at], m, 1e-6 * m) << what;
          ASSERT_NEAR(variances[at], c % 3 == 2 ? 0 : d * d * n / (n - 1), 1e-6 * d * d) << what;
        }
        const Values dx = values_of(in.grad());
        for (size_t i = 0; i < dx.size(); ++i)
          ASSERT_NEAR(dx[i], gradient[i], (2 * unit + 1e-5) * inverse(c_of(i))) << what << ", element " << i;
      }
}

TEST_P(NormFault, LayerNormVarianceFromSumsOfSquares) {
  for (const Channels& k : kCancelling)
    for (const int64_t columns : {2, 7 * 8, 1026}) {
      Values x, expected;  // a row of mean -+ distance, a constant row
      for (int64_t i = 0; i < 2 * columns; ++i)
        x.push_back(k.mean + (i >= columns ? 0 : i % 2 ? k.distance : -k.distance));
      x = rounded_to(k.dtype, x);
      const double m = rounded_to(k.dtype, {k.mean})[0], d = x[1] - m, inverse = 1 / std::sqrt(d * d + 1e-5);
      for (const double v : x) expected.push_back((v - m) * inverse);
      const Variable in(tensor(x, {2, columns}, k.dtype), true);
      const Variable y = layer_norm(in);
      const std::string what = fmt::format("{} {} +- {}, {} columns", k.dtype, k.mean, k.distance, columns);
      expect_close(values_of(y.tensor()), expected, epsilon_of(k.dtype) + 1e-6, 0, what);
      backward(y, tensor(noise(2 * columns), {2, columns}, y.dtype()));
      for (const double v : values_of(in.grad())) ASSERT_TRUE(std::isfinite(v)) << what;
    }
}

// What libraries' batch norms refuse: 16-bit inputs with FP32 parameters, a gradient through eval mode, no parameters
// or one of two, and eps just below 1e-5.
TEST_P(NormFault, SixteenBitsOrEvalModeOrNoParametersUnsupported) {
  const double eps = static_cast<double>(1e-5f);
  for (const DType dtype : kTrainingDtypes) {
    const Parameter gamma = parameter({2, -0.5}, {2}), beta = parameter({1, 0.25}, {2});
    Buffer mean(tensor({0.5, -1}, {2})), var(tensor({4, 0.25}, {2}));
    const Variable x = leaf({1, 2, 3, 4, 5, 6}, {3, 2}, dtype);
    Variable y;
    {
      const amp::Autocast region(dtype);
      y = batch_norm(
          x, {.weight = gamma, .bias = beta, .running_mean = mean, .running_var = var, .training = false, .eps = eps});
    }
    EXPECT_EQ(y.dtype(), dtype);
    backward(y, constant(1, {3, 2}, dtype));
    const double first = 2 / std::sqrt(4 + eps), second = -0.5 / std::sqrt(0.25 + eps);
    expect_close(values_of(x.grad()), {first, second, first, second, first, second}, epsilon_of(dtype) + 1e-6, 0,
                 "dy gamma / sqrt(running_var + eps)");
    EXPECT_EQ(gamma.grad().dtype(), DType::F32);
    expect_close(values_of(beta.grad()), {3, 3}, 0, 0, "beta");
    expect_close(values_of(gamma.grad()), {(0.5 + 2.5 + 4.5) / 2, (3 + 5 + 7) * 2}, 1e-4, 0, "gamma");
    EXPECT_EQ(values_of(mean.tensor()), (Values{0.5, -1}));
    EXPECT_EQ(values_of(var.tensor()), (Values{4, 0.25}));
    for (const bool training : {true, false})
      for (const Variable& weight : {Variable(), Variable(gamma)}) {
        const Variable in = leaf({1, 2, 3, 4, 5, 7}, {3, 2}, dtype);
        const Variable out = batch_norm(
            in, {.weight = weight, .running_mean = mean, .running_var = var, .training = training, .eps = eps});
        EXPECT_EQ(out.dtype(), dtype);
        backward(out, tensor({1, 0, 0, 2, 0, 0}, {3, 2}, dtype));
        for (const double v : values_of(in.grad())) EXPECT_TRUE(std::isfinite(v));
        EXPECT_EQ(mean.tensor().dtype(), DType::F32);
        EXPECT_EQ(var.tensor().dtype(), DType::F32);
      }
  }
}

// Fused with a ReLU, a gradient stops where y <= 0 and passes where y is NaN, as in the plain spelling.
TEST_P(NormFault, NaNThatTheFusedReluSwallows) {
  for (const DType dtype : kTrainingDtypes)
    for (const int64_t channels : {3, 16})
      for (const bool training : {true, false}) {
        const Shape shape{40, channels};
        Values in = noise(shape.numel()), added = noise(shape.numel(), 2), upstream = noise(shape.numel(), 3);
        in[static_cast<size_t>(7 * channels)] = kNaN;          // channel 0: in training all of it
        added[static_cast<size_t>(9 * channels + 1)] = kNaN;   // channel 1: one element, whose gradient is a number
        added[static_cast<size_t>(11 * channels + 1)] = kNaN;  // and one whose gradient is none
        upstream[static_cast<size_t>(11 * channels + 1)] = kNaN;
        const auto run = [&](bool fused) {
          Buffer mean(constant(0.1, {channels})), var(constant(0.5, {channels}));
          const Parameter gamma = parameter(noise(channels, 4), {channels}),
                          beta = parameter(noise(channels, 5), {channels});
          const Variable x = leaf(in, shape, dtype), residual = leaf(added, shape, dtype);
          BatchNormArguments a{
              .weight = gamma, .bias = beta, .running_mean = mean, .running_var = var, .training = training};
          a.residual = fused ? residual : Variable();
          a.relu = fused;
          const Variable y = fused ? batch_norm(x, a) : relu(batch_norm(x, a) + residual);
          backward(y, tensor(upstream, shape, dtype));
          return std::vector{values_of(y.tensor()), values_of(x.grad()), values_of(residual.grad()),
                             values_of(gamma.grad()), values_of(beta.grad())};
        };
        const auto fused = run(true), plain = run(false);
        for (size_t i = 0; i < fused.size(); ++i) {
          const std::string what =
              fmt::format("{} channels {} {} result {}", dtype, channels, training ? "training" : "eval", i);
          for (size_t k = 0; k < fused[i].size(); ++k)
            ASSERT_EQ(std::isnan(fused[i][k]), std::isnan(plain[i][k])) << what << ", element " << k;
          // In 16 bits the plain spelling rounds on the way, and so may gate otherwise near 0.
          if (dtype == DType::F32) expect_close(fused[i], plain[i], 1e-5, 1e-5, what);
        }
        EXPECT_TRUE(std::isnan(fused[0][static_cast<size_t>(9 * channels + 1)]));
        EXPECT_EQ(fused[2][static_cast<size_t>(9 * channels + 1)],
                  rounded_to(dtype, {upstream[static_cast<size_t>(9 * channels + 1)]})[0]);
        EXPECT_TRUE(std::isnan(fused[2][static_cast<size_t>(11 * channels + 1)]));
        EXPECT_TRUE(std::isnan(fused[4][1]));
      }
}

TEST_P(NormFault, MoreChannelsThanAGridHasInOneAxis) {
  for (const int64_t channels : {70000, 70001}) {
    Values values(static_cast<size_t>(3 * channels)), upstream = values;
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<double>(i % 97);
      upstream[i] = static_cast<double>(i % 89) / 64;
    }
    const Variable x = leaf(values, {3, channels}, DType::F16);
    const Parameter gamma(constant(1, {channels})), beta(constant(0, {channels}));
    Buffer mean(constant(0, {channels})), var(constant(1, {channels}));
    const Variable y =
        batch_norm(x, {.weight = gamma, .bias = beta, .running_mean = mean, .running_var = var, .momentum = 1});
    backward(y, tensor(upstream, {3, channels}, DType::F16));
    const Values out = values_of(y.tensor()), means = values_of(mean.tensor()), variances = values_of(var.tensor());
    const Values dx = values_of(x.grad()), dgamma = values_of(gamma.grad()), dbeta = values_of(beta.grad());
    for (int64_t c = 0; c < channels; ++c) {
      const auto at = [&](const Values& v, int64_t row) { return v[static_cast<size_t>(row * channels + c)]; };
      const double m = (at(values, 0) + at(values, 1) + at(values, 2)) / 3;
      double squares = 0, g = 0, gx = 0;
      for (int64_t row = 0; row < 3; ++row) squares += (at(values, row) - m) * (at(values, row) - m);
      const double inverse = 1 / std::sqrt(squares / 3 + 1e-5);
      for (int64_t row = 0; row < 3; ++row) {
        g += at(upstream, row);
        gx += at(upstream, row) * (at(values, row) - m) * inverse;
      }
      const double last = (at(values, 2) - m) * inverse;
      const auto channel = static_cast<size_t>(c);
      ASSERT_NEAR(means[channel], m, 1e-4) << c;
      ASSERT_NEAR(variances[channel], squares / 2, 1e-4 * squares) << c;
      ASSERT_NEAR(at(out, 2), last, 2e-3) << c;
      ASSERT_NEAR(dbeta[channel], g, 1e-4) << c;
      ASSERT_NEAR(dgamma[channel], gx, 1e-4) << c;
      ASSERT_NEAR(at(dx, 2), inverse * (at(upstream, 2) - (g + last * gx) / 3), 1e-3) << c;
    }
  }
}

}  // namespace
}  // namespace demi::test
