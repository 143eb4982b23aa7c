// What is said when mixed precision goes wrong for good: who overflowed first, and that FP16 wants a loss scaler.
#include "demi/core/overflow.h"
#include "demi/autograd/function.h"
#include "demi/core/warning.h"
#include "demi/kernels/scale.h"
#include "demi/nn/functional/arithmetic.h"
#include "demi/nn/functional/linear.h"
#include "demi/nn/functional/reduce.h"
#include "training.h"

namespace demi::test {
namespace {

// The identity, whose gradient is infinite.
struct Explode : Function<Explode> {
  static Tensor forward(FunctionContext&, const Tensor& x) { return x.clone(); }
  static std::vector<Tensor> backward(FunctionContext&, const Tensor& dy) {
    return {kernels::scale(dy, std::numeric_limits<double>::infinity())};
  }
};
struct Exploding : nn::Module {
  Variable forward(const Variable& x) override { return Explode::apply(x); }
};

class Overflow : public OnDevice {};
DEMI_ON_ALL_DEVICES(Overflow);

// Of the layers below the explosion all have gradients that are not finite: the one next to it was the first.
TEST_P(Overflow, TooManyInARowNameTheFirstLayerInBackward) {
  nn::Sequential net(std::make_unique<nn::Linear>(nn::LinearConfig{.in = 4, .out = 4}),
                     std::make_unique<nn::Linear>(nn::LinearConfig{.in = 4, .out = 4}), std::make_unique<Exploding>(),
                     std::make_unique<nn::Linear>(nn::LinearConfig{.in = 4, .out = 4}));
  net.to(device());
  for (const bool by_groups : {false, true}) {
    optim::SGD sgd = by_groups ? optim::SGD(optim::no_decay_for_vectors(net.parameters()), {.lr = 0.1})
                               : optim::SGD(net.parameters(), {.lr = 0.1});
    amp::GradScaler scaler({.max_consecutive_overflows = 4});
    std::string message;
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(message, "") << "after " << i;
      message = error_of([&] {
        sgd.zero_grad();
        backward(scaler.scale(sum(net(tensor_of(noise(8), {2, 4}, DType::F32, device())))));
        scaler.step(sgd);
        scaler.update();
        synchronize(device());
      });
    }
    EXPECT_NE(message.find("4 steps in a row overflowed"), std::string::npos) << message;
    EXPECT_NE(message.find("the first gradient to overflow was that of 1.bias in the layer 1"), std::string::npos)
        << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

// Groups made from parts of a model name their parameters as the model does, and keep its order.
TEST_P(Overflow, GroupsOfSubmodulesNameTheLayerOfTheWholeModel) {
  struct Net : nn::Module {
    nn::Linear body{{.in = 4, .out = 4}}, head{{.in = 4, .out = 4}};
    Net() { register_modules({{"body", body}, {"head", head}}); }
    Variable forward(const Variable& x) override { return head(body(x)); }
  } net;
  net.to(device());
  optim::SGD sgd({{net.head.parameters(), {}}, {net.body.parameters(), 0.1}}, {.lr = 0.1});
  amp::GradScaler scaler({.max_consecutive_overflows = 1});
  backward(scaler.scale(sum(Explode::apply(net(tensor_of(noise(8), {2, 4}, DType::F32, device()))))));
  scaler.step(sgd);
  const std::string message = error_of([&] {
    scaler.update();
    synchronize(device());
  });
  EXPECT_NE(message.find("that of head.bias in the layer head"), std::string::npos) << message;
}

TEST_P(Overflow, ParametersWithoutANameAreToldByTheirShape) {
  const Parameter w(tensor_of({1, 2, 3}, {3}, DType::F32, device()));
  optim::SGD sgd(std::vector{w}, {.lr = 0.1});
  amp::GradScaler scaler({.max_consecutive_overflows = 1});
  backward(scaler.scale(sum(Explode::apply(w))));
  scaler.step(sgd);
  const std::string message = error_of([&] {
    scaler.update();
    synchronize(device());
  });
  EXPECT_NE(message.find("of a parameter of shape [3]"), std::string::npos) << message;
}

TEST_P(Overflow, MoreOptimizersThanAScalerServesAreRefusedBeforeAnyStep) {
  amp::GradScaler scaler;
  std::vector<Parameter> weights;
  std::vector<std::unique_ptr<optim::SGD>> optimizers;
  Variable loss(Tensor::zeros({}, DType::F32, device()));
  for (int i = 0; i < 9; ++i) {
    weights.emplace_back(tensor_of({1}, {1}, DType::F32, device()));
    optimizers.push_back(std::make_unique<optim::SGD>(std::vector{weights.back()}, optim::SGDOptions{.lr = 0.1}));
    loss = loss + sum(weights.back());
  }
  backward(scaler.scale(loss));
  for (int i = 0; i < 8; ++i) scaler.step(*optimizers[static_cast<size_t>(i)]);
  EXPECT_NE(error_of([&] { scaler.step(*optimizers[8]); }).find("at most 8 optimizers"), std::string::npos);
  EXPECT_EQ(weights[8].master().item<float>(), 1.0f);
  scaler.update();
  EXPECT_EQ(scaler.growth_tracker(), 1);
}

// An optimizer may end before update(), and another may take its place in memory.
TEST_P(Overflow, OptimizersThatEndBeforeUpdateAreNotMixedUp) {
  const Parameter w(tensor_of({1}, {1}, DType::F32, device()));
  amp::GradScaler scaler;
  for (int i = 0; i < 3; ++i) {
    optim::SGD sgd(std::vector{w}, {.lr = 0.1});
    sgd.zero_grad();
    backward(scaler.scale(sum(w)));
    EXPECT_EQ(error_of([&] { scaler.step(sgd); }), "");
  }
  scaler.update();
  EXPECT_EQ(scaler.growth_tracker(), 1);
}

class Fp16WithoutAScaler : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    set_warning_sink([this](const std::string& line) { warnings_.push_back(line); });
  }
  void TearDown() override { set_warning_sink({}); }
  void step(optim::Optimizer& optimizer, const Parameter& w, DType dtype, amp::GradScaler* scaler) {
    optimizer.zero_grad();
    Variable loss;
    {
      const amp::Autocast region(dtype);
      loss = sum(linear(tensor_of({1, 2}, {1, 2}, DType::F32, device()), w));
    }
    backward(scaler ? scaler->scale(loss) : loss);
    if (!scaler) {
      optimizer.step();
      return;
    }
    scaler->step(optimizer);
    scaler->update();
  }
  std::vector<std::string> warnings_;
};
DEMI_ON_ALL_DEVICES(Fp16WithoutAScaler);

TEST_P(Fp16WithoutAScaler, WarnsOnceAndOnlyThen) {
  const Parameter w(tensor_of({1, 2}, {1, 2}, DType::F32, device()));
  optim::SGD sgd(std::vector{w}, {.lr = 0.1});
  amp::GradScaler scaler;
  step(sgd, w, DType::F32, nullptr);
  step(sgd, w, DType::BF16, nullptr);
  step(sgd, w, DType::F16, &scaler);
  EXPECT_TRUE(warnings_.empty());
  for (int i = 0; i < 3; ++i) step(sgd, w, DType::F16, nullptr);
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_NE(warnings_[0].find("fp16 gradients and no loss scaler"), std::string::npos) << warnings_[0];
}

}  // namespace
}  // namespace demi::test
