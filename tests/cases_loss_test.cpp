// Known faults of losses and of the loss scale: labels out of range, overflows that nobody sees, a scale that
// collapses.
#include <functional>

#include "cases.h"
#include "demi/amp/autocast.h"
#include "demi/amp/cast.h"
#include "demi/amp/grad_scaler.h"
#include "demi/autograd/engine.h"
#include "demi/kernels/cross_entropy.h"
#include "demi/kernels/layer_norm.h"
#include "demi/kernels/softmax.h"
#include "demi/nn/functional/arithmetic.h"
#include "demi/nn/functional/batch_norm.h"
#include "demi/nn/functional/dropout.h"
#include "demi/nn/functional/elementwise.h"
#include "demi/nn/functional/layer_norm.h"
#include "demi/nn/functional/linear.h"
#include "demi/nn/functional/loss.h"
#include "demi/nn/functional/pool.h"
#include "demi/nn/functional/reduce.h"
#include "demi/nn/functional/shape.h"
#include "demi/nn/functional/softmax.h"
#include "demi/optim/adam.h"
#include "demi/optim/sgd.h"

namespace demi::test {
namespace {

class LossFault : public FaultTest {};
DEMI_ON_ALL_DEVICES(LossFault);

// ---- Labels

// Three classes, and more than one warp takes a row of. Backward alone finds it too: nothing says that a forward ran.
TEST_P(LossFault, LabelOutOfRangeThatIsNoError) {
  for (const DType dtype : kTrainingDtypes)
    for (const int64_t classes : {int64_t{3}, int64_t{5000}})
      for (const double smoothing : {0.0, 0.1})
        for (const Reduction reduction : {Reduction::Mean, Reduction::Sum, Reduction::None}) {
          Values values(static_cast<size_t>(2 * classes), 0);
          values.front() = values.back() = 2.5;
          const Tensor logits = tensor(values, {2, classes}, dtype), good = labels({0, classes - 1});
          const auto expected = kernels::cross_entropy(logits, good, smoothing, reduction);
          const Values loss = values_of(expected.loss);
          const Tensor dy = constant(1, expected.loss.shape());
          for (const int64_t bad : {classes, classes + 997, int64_t{-1}, int64_t{-100}, INT64_MAX, INT64_MIN}) {
            const std::string text = fmt::format(
                "[cross_entropy] label {} of sample 1 is out of range: the classes are 0 to {}", bad, classes - 1);
            ASSERT_EQ(error_of([&] {
                        kernels::cross_entropy(logits, labels({0, bad}), smoothing, reduction);
                        synchronize(device());
                      }),
                      text);
            EXPECT_EQ(
                error_of([&] {
                  kernels::cross_entropy_backward(dy, logits, labels({0, bad}), expected.log_sum, smoothing, reduction);
                  synchronize(device());
                }),
                text)
                << "backward";
            synchronize(device());  // thrown once
            EXPECT_EQ(values_of(kernels::cross_entropy(logits, good, smoothing, reduction).loss), loss);
          }
        }
  const Variable logits = leaf({2.5, 0, 0, 0, 0, 2.5}, {2, 3});
  EXPECT_NEAR(cross_entropy(logits, labels({0, 2})).item<float>(), 0.152008, 1e-6);  // the fault gave 0.076004
  EXPECT_NE(error_of([&] {
              cross_entropy(logits, labels({0, 255})).item<float>();
            }).find("label 255"),
            std::string::npos);
}

// On a GPU the error is known only when the step has been queued: it must not have happened.
TEST_P(LossFault, BadLabelThatReachesTheWeights) {
  const Parameter w = parameter(noise(6), {3, 2});
  optim::Adam adam(std::vector{w}, {.lr = 0.1});
  amp::GradScaler scaler({.init_scale = 1024});
  const Variable x = tensor(noise(8), {4, 2});
  const auto step = [&](int64_t label) {
    return error_of([&] {
      adam.zero_grad();
      Variable loss;
      {
        const amp::Autocast region;
        loss = cross_entropy(linear(x, w), labels({0, 1, label, 2}));
      }
      backward(scaler.scale(loss));
      scaler.step(adam);
      scaler.update();
      synchronize(device());
    });
  };
  EXPECT_EQ(step(1), "");
  const Values before = values_of(w.master());
  const auto state = snapshot(adam.state());
  const std::string message = step(3);
  EXPECT_NE(message.find("label 3 of sample 2"), std::string::npos) << message;
  EXPECT_EQ(values_of(w.master()), before);
  EXPECT_EQ(snapshot(adam.state()), state);
  EXPECT_EQ(step(1), "");
  EXPECT_NE(values_of(w.master()), before);
}

TEST_P(LossFault, MoreRowsThanAGridHasInOneAxis) {
  const int64_t rows = 90000, classes = 10, first = rows - 7;
  Values values(static_cast<size_t>(rows * classes));
  std::vector<int64_t> targets(static_cast<size_t>(rows));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 97) / 32;
  for (size_t i = 0; i < targets.size(); ++i) targets[i] = static_cast<int64_t>(i) % classes;
  for (const DType dtype : kTrainingDtypes) {
    const Tensor x = tensor(values, {rows, classes}, dtype), t = labels(targets);
    const Tensor last = x.narrow(first, 7).to(Device::cpu()), last_labels = t.narrow(first, 7).to(Device::cpu());
    const double relative = epsilon_of(dtype) + 1e-5;
    const auto expect_last = [&](const Tensor& all, const Tensor& expected, const char* what) {
      expect_close(values_of(all.narrow(first, 7)), values_of(expected), relative, 2e-6, what);
    };
    const auto loss = kernels::cross_entropy(x, t, 0, Reduction::None);
    const auto expected = kernels::cross_entropy(last, last_labels, 0, Reduction::None);
    expect_last(loss.loss, expected.loss, "loss");
    const Tensor ones = kernels::full({7}, 1, DType::F32);
    expect_last(kernels::cross_entropy_backward(constant(1, {rows}), x, t, loss.log_sum, 0, Reduction::None),
                kernels::cross_entropy_backward(ones, last, last_labels, expected.log_sum, 0, Reduction::None),
                "gradient");
    for (const bool log : {false, true}) {
      const Tensor y = kernels::softmax(x, 1, log), y7 = kernels::softmax(last, 1, log);
      expect_last(y, y7, "softmax");
      expect_last(kernels::softmax_backward(x, y, 1, log), kernels::softmax_backward(last, y7, 1, log),
                  "softmax gradient");
    }
    const auto norm = kernels::layer_norm(x, {}, {}, 1e-5), norm7 = kernels::layer_norm(last, {}, {}, 1e-5);
    expect_last(norm.y, norm7.y, "layer norm");
    expect_last(kernels::layer_norm_backward(x, x, {}, norm.mean, norm.inv_std).dx,
                kernels::layer_norm_backward(last, last, {}, norm7.mean, norm7.inv_std).dx, "layer norm gradient");
  }
}

// ---- Overflows

// inf - inf on the way gives NaN. Were a layer to answer it with a number, forward or backward, every gradient below
// would be finite and the step would be taken.
TEST_P(LossFault, NaNSwallowedBetweenWeightAndLoss) {
  using Layer = std::function<Variable(const Variable&)>;
  const std::pair<const char*, Layer> layers[] = {
      {"nothing", [](const Variable& x) { return x; }},
      {"relu", [](const Variable& x) { return relu(x); }},
      {"leaky_relu", [](const Variable& x) { return leaky_relu(x); }},
      {"abs", [](const Variable& x) { return abs(x); }},
      {"clamp", [](const Variable& x) { return clamp(x, -2, 2); }},
      {"square", [](const Variable& x) { return square(x); }},
      {"sqrt", [](const Variable& x) { return sqrt(x); }},
      {"pow", [](const Variable& x) { return pow(x, 3); }},
      {"constant pow", [](const Variable& x) { return pow(x, 0); }},
      {"tanh", [](const Variable& x) { return tanh(x); }},
      {"sigmoid", [](const Variable& x) { return sigmoid(x); }},
      {"silu", [](const Variable& x) { return silu(x); }},
      {"gelu", [](const Variable& x) { return gelu(x); }},
      {"softplus", [](const Variable& x) { return softplus(x); }},
      {"maximum", [this](const Variable& x) { return maximum(x, constant(0, {8}, x.dtype())); }},
      {"maximum of others", [this](const Variable& x) { return maximum(constant(0, {8}, x.dtype()), x); }},
      {"max_pool2d", [](const Variable& x) { return max_pool2d(x, {}); }},
      {"avg_pool2d", [](const Variable& x) { return avg_pool2d(x, {}); }},
      {"global_avg_pool", [](const Variable& x) { return global_avg_pool(x); }},
      {"amax",
       [](const Variable& x) {
         return amax(x, {1, 2});
       }},
      {"sum", [](const Variable& x) { return sum(x, {3}); }},
      {"mean",
       [](const Variable& x) {
         return mean(x, {0, 2});
       }},
      {"softmax", [](const Variable& x) { return softmax(x); }},
      {"log_softmax", [](const Variable& x) { return log_softmax(x); }},
      {"layer_norm", [](const Variable& x) { return layer_norm(x); }},
      {"batch_norm and relu", [](const Variable& x) { return batch_norm(x, {.relu = true}); }},
      {"residual and relu",
       [&](const Variable& x) {
         return batch_norm(Variable(constant(1, x.shape(), x.dtype())) + 0.5 * x, {.residual = x, .relu = true});
       }},
      {"dropout", [](const Variable& x) { return dropout(x, 0); }},
      {"permute",
       [](const Variable& x) {
         return permute(x, {0, 3, 1, 2});
       }},
      {"cross_entropy",
       [&](const Variable& x) {
         return cross_entropy(reshape(x, {32, 8}), labels(std::vector<int64_t>(32, 3)));
       }},
  };
  const Values ones(2 * 4 * 4 * 8, 1);
  for (const DType dtype : kTrainingDtypes)
    for (const auto& [name, layer] : layers)
      for (const bool overflow : {false, true}) {
        Values values = ones;
        if (overflow) values[77] = 2;
        const Parameter w = parameter(values, {2, 4, 4, 8});
        optim::SGD sgd(std::vector{w}, {.lr = 1});
        amp::GradScaler scaler({.init_scale = 4});
        const double large = dtype == DType::F16 ? 40000 : 3e38;
        const Variable a = cast(w, dtype) * large, z = a - a + Variable(constant(1, {8}, dtype));
        const Variable y = layer(z);
        const Variable loss = mse_loss(cast(y, DType::F32), constant(0.5, y.shape()));
        EXPECT_EQ(std::isnan(loss.item<float>()), overflow) << name_of(dtype) << " " << name;
        backward(scaler.scale(loss));
        EXPECT_EQ(scaler.step(sgd).skipped(), overflow) << name_of(dtype) << " " << name;
        if (overflow) {
          EXPECT_EQ(values_of(w.master()), values) << name_of(dtype) << " " << name;
        }
      }
}

// FP16 holds neither 65536 nor 150902: one 16-bit number on the way would make every first step overflow.
TEST_P(LossFault, ScaledLossHeldInSixteenBits) {
  for (const DType dtype : kTrainingDtypes) {
    const Variable logits = leaf(Values(128 * 10, 0), {128, 10}, dtype);
    Variable loss;
    {
      const amp::Autocast region(dtype);
      loss = cross_entropy(logits, labels(std::vector<int64_t>(128, 3)));
    }
    amp::GradScaler scaler({.init_scale = 65536});
    const Variable scaled = scaler.scale(loss);
    EXPECT_EQ(scaled.dtype(), DType::F32);
    EXPECT_NEAR(scaled.item<float>(), 150902.2, 0.1);
    backward(scaled);
    const Values gradient = values_of(logits.grad());
    for (size_t i = 0; i < gradient.size(); ++i)
      ASSERT_NEAR(gradient[i], i % 10 == 3 ? -460.8 : 51.2, 460.8 * epsilon_of(dtype)) << name_of(dtype);

    // A scale beyond FP16's largest number, and a loss near it: their product is FP32's.
    const Variable x = leaf(Values(1000, 200), {1000}, dtype);
    {
      const amp::Autocast region(dtype);
      loss = mse_loss(x, constant(0, {1000}, dtype));
    }
    amp::GradScaler large({.init_scale = 0x1p20});
    const double squared = rounded_to(dtype, {200})[0] * rounded_to(dtype, {200})[0];
    EXPECT_NEAR(large.scale(loss).item<float>(), squared * 0x1p20, 1e-6 * squared * 0x1p20);
  }
}

TEST_P(LossFault, LossScaleThatReachesZeroOrInfinity) {
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

TEST_P(LossFault, LossScaleThatIsNoNumberFromTheStart) {
  for (const double scale : {0.0, -1.0, kInf, 1e39, 1e-40, kNaN}) {
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

}  // namespace
}  // namespace demi::test
