// Known faults of computing in 16 bits: copies of weights that are stale or get no gradient, sums held in the dtype of
// their terms, and products that are less exact than the dtype says.
#include "cases.h"
#include "demi/amp/autocast.h"
#include "demi/amp/grad_scaler.h"
#include "demi/autograd/engine.h"
#include "demi/nn/functional/arithmetic.h"
#include "demi/nn/functional/batch_norm.h"
#include "demi/nn/functional/conv2d.h"
#include "demi/nn/functional/layer_norm.h"
#include "demi/nn/functional/linear.h"
#include "demi/nn/functional/loss.h"
#include "demi/nn/functional/pool.h"
#include "demi/nn/functional/reduce.h"
#include "demi/nn/functional/softmax.h"
#include "demi/nn/layers/linear.h"
#include "demi/nn/resnet.h"
#include "demi/optim/adam.h"
#include "demi/optim/clip.h"
#include "demi/optim/sgd.h"

namespace demi::test {
namespace {

class PrecisionFault : public FaultTest {};
DEMI_ON_ALL_DEVICES(PrecisionFault);

// ---- Copies of weights

// y = W x with x = 1, after everything that may write W: y is the present W rounded, in both 16-bit dtypes, whether a
// forward without gradients or a training forward made the copy, within one autocast region or in regions of their own.
TEST_P(PrecisionFault, StaleCopyAfterAnyWriteToTheMaster) {
  for (const bool conv : {false, true})
    for (const bool one_region : {false, true}) {
      const WithoutPlanSearch quick;
      const Shape shape = conv ? Shape{1, 1, 1, 1} : Shape{1, 1};
      nn::Linear layer({.in = 1, .out = 1, .bias = false});
      layer.to(device());
      const Parameter w = conv ? Parameter(constant(1, shape)) : layer.weight, other = parameter({1, 2, 3, 4}, {2, 2});
      const amp::Autocast region(DType::F16, one_region);
      const auto forward = [&](DType dtype) {
        const amp::Autocast inner(dtype);
        const Variable x(constant(1, shape));
        return conv ? conv2d(x, w) : linear(x, w);
      };
      const auto expect = [&](double value, const char* after) {  // leaves a gradient of 1
        EXPECT_NEAR(w.master().item<float>(), value, 1e-6) << after;
        for (const DType dtype : {DType::F16, DType::BF16}) {
          const Values rounded = rounded_to(dtype, values_of(w.master()));
          {
            const NoGrad off;
            EXPECT_EQ(values_of(forward(dtype).tensor()), rounded) << after;
          }
          w.parameter().zero_grad();
          const Variable y = forward(dtype);
          EXPECT_EQ(values_of(y.tensor()), rounded) << after;
          backward(y, constant(1, shape, dtype));
          ASSERT_TRUE(w.grad().defined()) << after;
          EXPECT_EQ(values_of(w.grad()), Values{1}) << after;
        }
      };
      w.parameter().assign(constant(1, shape));
      expect(1, "assign");
      if (!conv) {
        layer.load_state({{"weight", Tensor::from<float>({0.3f}, {1, 1})}});
        expect(0.3f, "load_state");
      }
      kernels::fill(w.parameter().storage()->master(), -2);
      expect(-2, "a write to the storage");
      Tensor master = w.master();
      master.copy_from(constant(1.1, shape));
      expect(1.1f, "a copy into the master");
      {
        optim::SGD sgd(std::vector{w, other}, {.lr = 0.3});
        expect(1.1f, "the move into the optimizer's storage");
        sgd.step();
        expect(0.8f, "a step");
        sgd.step();
        expect(0.5f, "another step");
        sgd.step({{}, constant(1, {}, DType::I32)});
        expect(0.5f, "a skipped step");
        w.parameter().assign(constant(4, shape));
        expect(4, "assign under an optimizer");
        sgd.step();
        expect(3.7f, "a step after it");
        other.parameter().assign(constant(7, {2, 2}));  // of the same storage
        expect(3.7f, "a write to another parameter");
      }
      optim::AdamW adam(std::vector{other, w}, {.lr = 0.1});
      expect(3.7f, "the move into another optimizer");
      adam.step();
      expect(3.6f, "a step of Adam");
    }
}

// A copy made while nothing was recorded serves the training forward too: were it a constant there, the weights below
// would silently get no gradient.
TEST_P(PrecisionFault, EvaluationBeforeTrainingThatTakesTheGradientsAway) {
  const WithoutPlanSearch quick;
  for (const DType dtype : {DType::F16, DType::BF16}) {
    const auto model = nn::resnet18({.width = 0.125});
    model->to(device());
    optim::SGD sgd(model->parameters(), {.lr = 0.1});
    const Tensor images = tensor(noise(4 * 16 * 16 * 3), {4, 16, 16, 3});
    for (int i = 0; i < 2; ++i) {
      sgd.zero_grad();
      Variable loss;
      {
        const amp::Autocast region(dtype);
        {
          const NoGrad off;
          model->eval();
          (void)(*model)(images);
          model->train();
        }
        loss = cross_entropy((*model)(images), labels({0, 1, 2, 3}));
      }
      backward(loss);
      for (const auto& [name, p] : model->named_parameters()) {
        ASSERT_TRUE(p.grad().defined()) << name;
        double sum = 0;
        for (const double g : values_of(p.grad())) sum += std::fabs(g);
        EXPECT_TRUE(std::isfinite(sum) && sum > 0) << name;
      }
      sgd.step();
    }
  }
}

// ---- Sums

// Of terms that the dtype holds; the sum, or a sum on the way, it does not: a half cannot count beyond 2048, a bfloat16
// not beyond 256, and 65520 is infinite.
TEST_P(PrecisionFault, SumsHeldInTheDtypeOfTheirTerms) {
  const WithoutPlanSearch quick;
  for (const DType dtype : {DType::F16, DType::BF16}) {
    const auto full = [&](double value, const Shape& shape) { return Variable(constant(value, shape, dtype)); };
    const auto expect = [&](const Variable& y, double value, const char* what) {
      for (const double v : values_of(y.tensor())) ASSERT_EQ(v, value) << name_of(dtype) << " " << what;
    };
    expect(sum(full(1, {4096})), 4096, "sum");
    expect(sum(full(1, {4096, 3}), {0}), 4096, "sum of columns");
    expect(mean(full(100, {4096})), 100, "mean");
    expect(mean(full(100, {2, 4096, 3}), {1}), 100, "mean of columns");
    expect(sum(leaf({32768, 32768, 32768, 32768, -32768, -32768, -32768, -32768}, {8}, dtype)), 0, "cancelling sum");
    expect(global_avg_pool(full(100, {2, 64, 64, 8})), 100, "global_avg_pool");
    expect(avg_pool2d(full(60416, {1, 8, 8, 3}), {.kernel = {8, 8}, .stride = {8, 8}}), 60416, "avg_pool2d");
    expect(matmul(full(1, {3, 4096}), full(1, {4096, 5})), 4096, "matmul");
    expect(matmul(full(128, {1, 512}), full(1, {512, 1})) - full(65536 - 1024, {1, 1}),
           dtype == DType::F16 ? kInf : 1024, "matmul beyond 65504");
    expect(linear(full(1, {3, 4096}), full(1, {2, 4096})), 4096, "linear");
    expect(conv2d(full(1, {1, 3, 3, 512}), full(1, {2, 3, 3, 512})), 4608, "conv2d");
    expect(softmax(full(9, {3, 4096})), 0x1p-12, "softmax");
    const Variable equal = full(2, {20000, 16});
    EXPECT_NEAR(cross_entropy(equal, labels(std::vector<int64_t>(20000, 7))).item<float>(), std::log(16.0), 1e-5);
    EXPECT_NEAR(
        cross_entropy(equal, labels(std::vector<int64_t>(20000, 7)), {.reduction = Reduction::Sum}).item<float>(),
        20000 * std::log(16.0), 0.1);
    {
      const amp::Autocast region(dtype);
      expect(mse_loss(full(512, {100}), full(-512, {100})), 0x1p20, "mse_loss");
      expect(mse_loss(full(512, {128}), full(-512, {128}), Reduction::Sum), 0x1p27, "sum of squares");
    }

    // Gradients: of a bias over 131072 pixels, of a broadcast operand, of batch norm's parameters, of weights.
    const int64_t pixels = 131072;
    const Parameter bias = parameter({0, 0}, {2}), weight = parameter({1, 1}, {2, 1}),
                    filter = parameter({1, 1}, {2, 1, 1, 1}), gamma = parameter({1, 1}, {2}),
                    beta = parameter({0, 0}, {2});
    optim::SGD sgd(std::vector{bias, weight, filter, gamma, beta}, {.lr = 1});
    const auto gradient = [&](const Variable& y) {
      sgd.zero_grad();
      backward(y, constant(1, y.shape(), y.dtype()));
    };
    {
      const amp::Autocast region(dtype);
      gradient(linear(full(1, {pixels, 1}), weight, bias));
    }
    EXPECT_EQ(bias.grad().dtype(), DType::F32);
    EXPECT_EQ(values_of(bias.grad()), Values(2, pixels));
    EXPECT_EQ(weight.grad().dtype(), dtype);
    EXPECT_EQ(values_of(weight.grad()), Values(2, dtype == DType::F16 ? kInf : pixels));
    amp::GradScaler scaler({.init_scale = 1});
    (void)scaler.scale(Variable(constant(1)));
    EXPECT_EQ(scaler.step(sgd).skipped(), dtype == DType::F16) << "what a half cannot hold is reported";
    {
      const amp::Autocast region(dtype);
      gradient(conv2d(full(1, {128, 32, 32, 1}), filter, bias));
    }
    EXPECT_EQ(values_of(bias.grad()), Values(2, pixels));
    EXPECT_EQ(values_of(filter.grad()), Values(2, dtype == DType::F16 ? kInf : pixels));
    gradient(batch_norm(full(1, {pixels, 2}), {.weight = gamma, .bias = beta}));
    EXPECT_EQ(values_of(beta.grad()), Values(2, pixels));
    const Variable row = leaf({0, 0, 0}, {1, 3}, dtype);
    backward(sum(row + full(0, {4096, 3})));
    EXPECT_EQ(values_of(row.grad()), Values(3, 4096));

    // And their norm: squares of 200 sum to 160000, of 512 to 2^29.
    sgd.zero_grad();
    weight.parameter().accumulate(constant(200, {2, 1}, dtype));
    filter.parameter().accumulate(constant(200, {2, 1, 1, 1}, dtype));
    EXPECT_EQ(optim::grad_norm(sgd).item<float>(), 400);
    const Variable wide = leaf(Values(2048, 512), {1, 2048}, dtype);
    expect(layer_norm(wide), 0, "layer_norm of a constant row");
  }
}

// ---- Products

// 1024.5 needs 12 bits. TF32 keeps 11 and would give 1024 or 1025; it is used where it was asked for, and nowhere
// after.
TEST_P(PrecisionFault, Fp32ProductsRoundedToTf32) {
  const WithoutPlanSearch quick;
  for (const int64_t n : {1, 3, 64}) {
    Values ones(static_cast<size_t>(n * n), 0);
    for (int64_t i = 0; i < n; ++i) ones[static_cast<size_t>(i * n + i)] = 1;
    const Tensor unit = tensor(ones, {n, n}), large = constant(1024.5, {n, n});
    const Values expected(static_cast<size_t>(n * n), 1024.5);
    const auto check = [&](bool conv) {
      const Shape image = conv ? Shape{n, 1, 1, n} : Shape{n, n};
      const auto product = [&](const Variable& x, const Variable& w) { return conv ? conv2d(x, w) : linear(x, w); };
      const Variable x(large.reshape(image), true), w(unit.reshape(image), true), one(unit.reshape(image), true);
      const Variable y = product(x, w);
      EXPECT_EQ(values_of(y.tensor()), expected) << n << " " << conv;
      backward(y, large.reshape(image));
      EXPECT_EQ(values_of(x.grad()), expected) << n << " " << conv << ", input's gradient";
      const Variable weight(unit.reshape(image), true);
      backward(product(one, weight), large.reshape(image));
      EXPECT_EQ(values_of(weight.grad()), expected) << n << " " << conv << ", weight's gradient";
    };
    for (const bool conv : {false, true}) {
      check(conv);
      {
        const Float32MathGuard guard(Float32Math::Tf32);
        (void)linear(large, unit);
        (void)conv2d(large.reshape({n, 1, 1, n}), unit.reshape({n, 1, 1, n}));
      }
      check(conv);
    }
    EXPECT_EQ(values_of(matmul(large, unit, true, true).tensor()), expected);
  }
}

}  // namespace
}  // namespace demi::test
