#include <cmath>

#include "demi/amp/autocast.h"
#include "demi/autograd/engine.h"
#include "demi/autograd/function.h"
#include "demi/autograd/observer.h"
#include "demi/kernels/binary.h"
#include "demi/kernels/fill.h"
#include "demi/kernels/scale.h"
#include "demi/nn/functional/arithmetic.h"
#include "demi/nn/functional/batch_norm.h"
#include "demi/nn/functional/conv2d.h"
#include "demi/nn/functional/elementwise.h"
#include "demi/nn/functional/loss.h"
#include "demi/nn/functional/pool.h"
#include "demi/nn/functional/reduce.h"
#include "demi/nn/functional/shape.h"
#include "demi/nn/layers/linear.h"
#include "demi/optim/sgd.h"
#include "devices.h"

namespace demi::test {
namespace {

class AutogradTest : public OnDevice {
 protected:
  Variable leaf(const std::vector<double>& values, const Shape& shape = {}, DType dtype = DType::F32) const {
    return Variable(tensor_of(values, shape, dtype, device()), true);
  }
  Parameter parameter(const std::vector<double>& values, const Shape& shape = {}) const {
    return Parameter(tensor_of(values, shape, DType::F32, device()));
  }
  Tensor constant(double value, const Shape& shape = {}, DType dtype = DType::F32) const {
    return kernels::full(shape, value, dtype, device());
  }
};
DEMI_ON_ALL_DEVICES(AutogradTest);

using Values = std::vector<double>;

TEST_P(AutogradTest, AddsTheGradientsOfAllUses) {
  const Variable x = leaf({2});
  const Variable y = 3.0 * x, a = 2.0 * y, b = 5.0 * y;
  backward(a + b);
  EXPECT_EQ(values_of(x.grad()), Values{21});
}

TEST_P(AutogradTest, CountsNestedUsesOnce) {
  const Variable x = leaf({1}), one(constant(1));
  const Variable f = x * (x * one) + x * (x * one) + (x * x) * one;
  backward(f);
  EXPECT_EQ(values_of(x.grad()), Values{6});
}

TEST_P(AutogradTest, SumsTwentyFourCopies) {
  const Variable x = leaf({0.5});
  Variable total = x;
  for (int i = 1; i < 24; ++i) total = total + x;
  backward(total);
  EXPECT_EQ(values_of(x.grad()), Values{24});
}

TEST_P(AutogradTest, ReducesTheGradientOfABroadcast) {
  const Variable bias = leaf({1, 2, 3}, {1, 3}), x = leaf(noise(12), {4, 3});
  backward(sum(x + bias));
  EXPECT_EQ(bias.grad().shape(), (Shape{1, 3}));
  EXPECT_EQ(values_of(bias.grad()), (Values{4, 4, 4}));
  EXPECT_EQ(values_of(x.grad()), Values(12, 1.0));
}

// Twice the work a level, were paths walked instead of nodes.
TEST_P(AutogradTest, WalksADiamondOnce) {
  const Variable x = leaf({1});
  Variable y = x;
  for (int i = 0; i < 60; ++i) y = y + y;
  backward(y);
  EXPECT_EQ(values_of(x.grad()), Values{0x1p60});
}

TEST_P(AutogradTest, SurvivesDeepGraphs) {
  constexpr int kDepth = 200000;
  const Variable x = leaf({1});
  {
    Variable y = x;
    for (int i = 0; i < kDepth; ++i) y = scale(y, 1.0);
    backward(y);
    EXPECT_EQ(values_of(x.grad()), Values{1});
  }  // used up, then destroyed
  Variable y = x;
  for (int i = 0; i < kDepth; ++i) y = y * x;  // every node holds its inputs
  y = {};                                      // destroyed without a backward
}

TEST_P(AutogradTest, RefusesASecondBackward) {
  const Variable x = leaf({2});
  const Variable y = x * x, z = y * y;
  backward(z);
  EXPECT_NE(error_of([&] { backward(z); }).find("run the forward again"), std::string::npos);
  EXPECT_NE(error_of([&] { backward(y + x); }).find("run the forward again"), std::string::npos);
}

TEST_P(AutogradTest, ReleasesWhatBackwardKept) {
  Variable x = leaf({2}), y;
  std::weak_ptr<int> alive;
  {
    auto held = std::make_shared<int>(1);
    alive = held;
    y = record("held", constant(1), {x}, [held](const Tensor& dy) { return std::vector<Tensor>{dy}; });
  }
  EXPECT_FALSE(alive.expired());
  backward(y);
  EXPECT_TRUE(alive.expired());
}

TEST_P(AutogradTest, SaysWhatBackwardNeeds) {
  const Variable x = leaf({1, 2}, {2}), y = x * x;
  EXPECT_NE(error_of([&] { backward(y); }).find("single element"), std::string::npos);
  EXPECT_NE(error_of([&] { backward(y, constant(1, {3})); }).find("[3]"), std::string::npos);
  EXPECT_NE(error_of([&] { backward(y, constant(1, {2}, DType::F16)); }).find("fp16"), std::string::npos);
  EXPECT_NE(error_of([&] { backward(Variable(constant(1))); }).find("requires a gradient"), std::string::npos);
  EXPECT_NE(error_of([&] { backward(Variable{}); }).find("[backward]"), std::string::npos);
  backward(y, constant(1, {2}));
  EXPECT_EQ(values_of(x.grad()), (Values{2, 4}));
}

TEST_P(AutogradTest, RecordsNothingInNoGrad) {
  const Variable x = leaf({2});
  {
    const NoGrad off;
    EXPECT_FALSE(grad_enabled());
    { const NoGrad nested; }
    EXPECT_FALSE((x * x).requires_grad());
  }
  EXPECT_TRUE(grad_enabled());
  EXPECT_TRUE((x * x).requires_grad());
  EXPECT_FALSE((x * x).detach().requires_grad());
  const Variable y = (x * x).detach() * x;
  backward(y);
  EXPECT_EQ(values_of(x.grad()), Values{4});
}

TEST_P(AutogradTest, AddsToALeafUntilItIsCleared) {
  Variable x = leaf({3}), other = leaf({1});
  backward(x + other);
  const Tensor first = other.grad();
  backward(2.0 * x);
  EXPECT_EQ(values_of(x.grad()), Values{3});
  EXPECT_EQ(values_of(first), Values{1});  // both got the same gradient once: adding to one left the other alone
  x.zero_grad();
  EXPECT_FALSE(x.grad().defined());
  backward(2.0 * x);
  EXPECT_EQ(values_of(x.grad()), Values{2});
}

TEST_P(AutogradTest, LeavesConstantsAlone) {
  const Variable x = leaf({3}), constant_two(constant(2));
  backward(x * constant_two);
  EXPECT_FALSE(constant_two.grad().defined());
  EXPECT_EQ(values_of(x.grad()), Values{2});
}

struct Cube : Function<Cube> {
  static Tensor forward(FunctionContext& context, const Tensor& x) {
    context.save({x});
    return kernels::mul(kernels::mul(x, x), x);
  }
  static std::vector<Tensor> backward(FunctionContext& context, const Tensor& dy) {
    const Tensor& x = context.saved(0);
    return {kernels::scale(kernels::mul(dy, kernels::mul(x, x)), 3.0)};
  }
};

struct Multiply : Function<Multiply> {
  static Tensor forward(FunctionContext& context, const Tensor& a, const Tensor& b) {
    EXPECT_FALSE(grad_enabled());
    context.save({a, b});
    return kernels::mul(a, b);
  }
  static std::vector<Tensor> backward(FunctionContext& context, const Tensor& dy) {
    return {context.needs_grad(0) ? kernels::mul(dy, context.saved(1)) : Tensor{},
            context.needs_grad(1) ? kernels::mul(dy, context.saved(0)) : Tensor{}};
  }
};

struct CubeInFp32 : Function<CubeInFp32, amp::RunIn<DType::F32>> {
  static Tensor forward(FunctionContext& context, const Tensor& x) {
    EXPECT_EQ(x.dtype(), DType::F32);
    EXPECT_FALSE(amp::autocast_enabled());
    return Cube::forward(context, x);
  }
  static std::vector<Tensor> backward(FunctionContext& context, const Tensor& dy) {
    return Cube::backward(context, dy);
  }
};

TEST_P(AutogradTest, TakesFunctionsOfOnesOwn) {
  const Variable x = leaf({2});
  const Variable y = Cube::apply(3.0 * x);
  EXPECT_EQ(values_of(y.tensor()), Values{216});
  backward(y);
  EXPECT_EQ(values_of(x.grad()), Values{324});

  const Variable a = leaf({2, 3}, {2}), b(constant(5, {2}));
  backward(sum(Multiply::apply(a, b)));
  EXPECT_EQ(values_of(a.grad()), (Values{5, 5}));

  const Variable half = leaf({2}, {}, DType::F16);
  const amp::Autocast region;
  backward(CubeInFp32::apply(half));
  EXPECT_EQ(half.grad().dtype(), DType::F16);
  EXPECT_EQ(values_of(half.grad()), Values{12});
}

struct Trace : Observer {
  std::vector<std::string> seen;
  std::vector<uint64_t> ids;
  void forward(const char* op, const std::vector<Variable>&, const Tensor&, uint64_t id) override {
    seen.emplace_back(op);
    ids.push_back(id);
  }
  void backward(const char* op, uint64_t id, const Tensor& dy, const std::vector<Tensor>& gradients) override {
    seen.push_back(std::string("d") + op);
    ids.push_back(id);
    EXPECT_TRUE(dy.defined() && gradients[0].defined());
  }
  void compute_copy(const ParameterState&, DType, bool) override {}
  void enter(const void*) override {}
  void leave() override {}
};

TEST_P(AutogradTest, ShowsOperationsToAnObserver) {
  Trace trace;
  const Variable x = leaf({2});
  set_observer(&trace);
  backward(relu(x * x));
  set_observer(nullptr);
  EXPECT_EQ(trace.seen, (std::vector<std::string>{"mul", "relu", "drelu", "dmul"}));
  EXPECT_EQ(trace.ids[0], trace.ids[3]);
  EXPECT_EQ(trace.ids[1], trace.ids[2]);
  EXPECT_NE(trace.ids[0], 0u);
}

// ---- Parameters and their 16-bit copies

TEST_P(AutogradTest, BringsGradientsOfComputeCopiesToTheParameter) {
  const Parameter w = parameter({1, 2, 3, 4, 5, 6}, {2, 3});
  const Variable x(constant(1, {4, 3}));
  for (const DType dtype : {DType::F16, DType::BF16}) {
    w.parameter().zero_grad();
    auto run = [&] {
      Variable y;
      {
        const amp::Autocast region(dtype);
        y = linear(x, w);
      }
      EXPECT_EQ(y.dtype(), dtype);
      backward(y, constant(1, {4, 2}, dtype));
    };
    run();
    EXPECT_EQ(w.grad().dtype(), dtype);
    EXPECT_EQ(values_of(w.grad()), Values(6, 4.0));
    run();  // sums of 16-bit gradients are FP32
    EXPECT_EQ(w.grad().dtype(), DType::F32);
    EXPECT_EQ(values_of(w.grad()), Values(6, 8.0));
    backward(sum(w * w));  // and meet those of the master itself
    EXPECT_EQ(values_of(w.grad()), (Values{10, 12, 14, 16, 18, 20}));
  }
}

TEST_P(AutogradTest, AddsUpASharedParameterWithinOneGraph) {
  const Parameter w = parameter({1, 2, 3, 4}, {2, 2});
  Variable y;
  {
    const amp::Autocast region;
    y = linear(linear(Variable(constant(1, {1, 2})), w), w);
  }
  backward(y, constant(1, {1, 2}, DType::F16));
  // h = W 1 = (3, 7); y = W h: dW = 1 h^T + W^T 1 1^T
  EXPECT_EQ(values_of(w.grad()), (Values{3 + 4, 7 + 4, 3 + 6, 7 + 6}));
}

TEST_P(AutogradTest, NeverComputesWithAStaleCopy) {
  nn::Linear layer({.in = 1, .out = 1, .bias = false});
  layer.weight.assign(Tensor::from<float>({1}, {1, 1}));
  layer.to(device());
  optim::SGD optimizer(layer.parameters(), {.lr = 0.5});
  const Variable x(constant(1, {1, 1}));
  auto forward = [&] {
    const amp::Autocast region;
    const NoGrad off;
    return values_of(layer(x).tensor());
  };
  Variable y;
  {
    const amp::Autocast region;
    {
      const NoGrad off;
      EXPECT_EQ(values_of(layer(x).tensor()), Values{1});
    }
    y = layer(x);  // the copy made without recording serves here too, and still brings a gradient
  }
  EXPECT_EQ(values_of(y.tensor()), Values{1});
  backward(y);
  ASSERT_TRUE(layer.weight.grad().defined());
  EXPECT_EQ(values_of(layer.weight.grad()), Values{1});
  optimizer.step();
  EXPECT_EQ(forward(), Values{0.5});
  layer.weight.assign(Tensor::from<float>({5}, {1, 1}));
  EXPECT_EQ(forward(), Values{5});
  layer.load_state({{"weight", Tensor::from<float>({-2}, {1, 1})}});
  EXPECT_EQ(forward(), Values{-2});
  kernels::fill(layer.weight.parameter().storage()->master(), 7);  // a write past the parameter
  EXPECT_EQ(forward(), Values{7});
}

TEST_P(AutogradTest, DropsGradientsOfFrozenParameters) {
  Parameter w = parameter({2}), v = parameter({3});
  w.freeze();
  EXPECT_FALSE(w.requires_grad());
  backward(w * v);
  EXPECT_FALSE(w.grad().defined());
  EXPECT_EQ(values_of(v.grad()), Values{2});
  w.freeze(false);
  backward(w * v);
  EXPECT_EQ(values_of(w.grad()), Values{3});
}

// ---- Size 0

TEST_P(AutogradTest, RunsAnEmptyBatch) {
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    const Variable x = leaf({}, {0, 6, 6, 3}, dtype);
    const Parameter filter = parameter(noise(4 * 9 * 3), {4, 3, 3, 3}), bias = parameter({1, 2, 3, 4}, {4}),
                    gamma = parameter({1, 1, 1, 1}, {4}), beta = parameter({0, 0, 0, 0}, {4}),
                    matrix = parameter(noise(5 * 36), {5, 36});
    Buffer mean(constant(0, {4})), var(constant(1, {4}));
    Variable loss;
    {
      const amp::Autocast region(dtype);
      Variable y = conv2d(x, filter, bias, {.padding = {1, 1}});
      EXPECT_EQ(y.shape(), (Shape{0, 6, 6, 4}));
      y = batch_norm(y, {.weight = gamma, .bias = beta, .running_mean = mean, .running_var = var, .training = false});
      y = max_pool2d(relu(y), {});
      EXPECT_EQ(y.shape(), (Shape{0, 3, 3, 4}));
      EXPECT_EQ(avg_pool2d(y, {.kernel = {3, 3}}).shape(), (Shape{0, 1, 1, 4}));
      EXPECT_EQ(global_avg_pool(y).shape(), (Shape{0, 4}));
      y = linear(flatten(y), matrix);
      EXPECT_EQ(y.shape(), (Shape{0, 5}));
      const Tensor labels = Tensor::zeros({0}, DType::I64, device());
      EXPECT_THROW(cross_entropy(y, labels), Error);
      loss = cross_entropy(y, labels, {.reduction = Reduction::Sum});
    }
    EXPECT_EQ(values_of(loss.tensor()), Values{0});
    backward(loss);
    for (const Parameter& p : {filter, bias, gamma, beta, matrix}) {
      ASSERT_TRUE(p.grad().defined());
      EXPECT_EQ(values_of(p.grad()), Values(static_cast<size_t>(p.master().numel()), 0.0));
    }
    EXPECT_EQ(x.grad().shape(), x.shape());
    synchronize(device());
    EXPECT_EQ(values_of((Variable(constant(1)) + Variable(constant(2))).tensor()), Values{3});
  }
}

TEST_P(AutogradTest, ConvolvesNothingToTheBias) {
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    const Variable x = leaf({}, {2, 0, 5, 32}, dtype), w = leaf(noise(32 * 4 * 32), {32, 2, 2, 32}, dtype),
                   b = leaf(rounded_to(dtype, noise(32)), {32}, dtype);
    const Variable y = conv2d(x, w, b, {.padding = {1, 1}});
    ASSERT_EQ(y.shape(), (Shape{2, 1, 6, 32}));
    const Values got = values_of(y.tensor()), bias = values_of(b.tensor());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], bias[i % 32]);
    backward(sum(y));
    EXPECT_EQ(x.grad().shape(), x.shape());
    EXPECT_EQ(values_of(w.grad()), Values(static_cast<size_t>(w.tensor().numel()), 0.0));
    EXPECT_EQ(values_of(b.grad()), Values(32, 12.0));
  }
}

TEST_P(AutogradTest, RefusesStatisticsOfNothing) {
  Buffer mean(constant(0.5, {3})), var(constant(2, {3}));
  const Variable empty = leaf({}, {0, 2, 2, 3}), one = leaf({1, 2, 3}, {1, 1, 1, 3});
  for (const Variable& x : {empty, one}) EXPECT_THROW(batch_norm(x, {.running_mean = mean, .running_var = var}), Error);
  EXPECT_EQ(values_of(mean.tensor()), Values(3, 0.5));
  EXPECT_EQ(values_of(var.tensor()), Values(3, 2.0));
  EXPECT_THROW(mse_loss(empty, empty), Error);
  EXPECT_THROW(demi::mean(empty), Error);
  EXPECT_THROW(amax(empty), Error);
}

}  // namespace
}  // namespace demi::test
