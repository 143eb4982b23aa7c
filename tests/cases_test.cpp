// Known faults of autograd, views, empty tensors, dropout and copies: what no file of a topic of its own holds.
#include <functional>

#include "cases.h"
#include "demi/amp/autocast.h"
#include "demi/autograd/engine.h"
#include "demi/autograd/function.h"
#include "demi/kernels/binary.h"
#include "demi/kernels/dropout.h"
#include "demi/kernels/matmul.h"
#include "demi/kernels/reduce.h"
#include "demi/nn/functional/arithmetic.h"
#include "demi/nn/functional/batch_norm.h"
#include "demi/nn/functional/conv2d.h"
#include "demi/nn/functional/dropout.h"
#include "demi/nn/functional/elementwise.h"
#include "demi/nn/functional/layer_norm.h"
#include "demi/nn/functional/linear.h"
#include "demi/nn/functional/loss.h"
#include "demi/nn/functional/pool.h"
#include "demi/nn/functional/reduce.h"
#include "demi/nn/functional/shape.h"
#include "demi/nn/functional/softmax.h"
#include "demi/optim/sgd.h"

#if DEMI_CUDA
#include "demi/core/cuda/graph.h"
#endif

namespace demi::test {
namespace {

class Fault : public FaultTest {};
DEMI_ON_ALL_DEVICES(Fault);

// ---- Gradients of values that are used more than once, or broadcast

TEST_P(Fault, BranchDroppedOrCountedTwiceInBackward) {
  for (const DType dtype : floating_dtypes()) {
    const auto gradient = [&](double at, const std::function<Variable(const Variable&)>& f) {
      const Variable x = leaf({at}, {1}, dtype);
      backward(f(x));
      EXPECT_EQ(x.grad().dtype(), dtype);
      return values_of(x.grad())[0];
    };
    const Variable one(constant(1, {1}, dtype));
    EXPECT_EQ(gradient(2,
                       [](const Variable& x) {
                         const Variable y = 3.0 * x;
                         return 2.0 * y + 5.0 * y;
                       }),
              21);
    EXPECT_EQ(gradient(1, [&](const Variable& x) { return x * (x * one) + x * (x * one) + (x * x) * one; }), 6);
    for (const int copies : {1, 2, 3, 8, 9, 24})
      EXPECT_EQ(gradient(0.5,
                         [&](const Variable& x) {
                           Variable total = x;
                           for (int i = 1; i < copies; ++i) total = total + x;
                           return total;
                         }),
                copies);
    EXPECT_EQ(gradient(1, [](const Variable& x) { return x + relu(x) + relu(x + x * 2.0); }), 5);  // residual diamonds
    EXPECT_EQ(gradient(3, [](const Variable& x) { return x * x * x; }), 27);
    EXPECT_EQ(gradient(3, [](const Variable& x) { return maximum(x, x) + x / x; }), 1);
  }
}

// A parameter used twice through its 16-bit copy: y = W (W x), so dW = (W^T dy) x^T + dy (W x)^T.
TEST_P(Fault, SharedWeightThatGetsOneOfItsGradients) {
  for (const DType dtype : kTrainingDtypes) {
    const Parameter w = parameter({1, 2, 3, 4}, {2, 2});
    Variable y;
    {
      const amp::Autocast region(dtype);
      y = linear(linear(tensor({1, 1}, {1, 2}), w), w);
    }
    backward(y, constant(1, {1, 2}, dtype));
    EXPECT_EQ(values_of(w.grad()), (Values{3 + 4, 7 + 4, 3 + 6, 7 + 6})) << name_of(dtype);
  }
}

TEST_P(Fault, GradientOfABroadcastOperandNotReduced) {
  const Values upstream = noise(2 * 4 * 3, 5);
  for (const DType dtype : floating_dtypes())
    for (const Shape& shape :
         {Shape{3}, Shape{1, 3}, Shape{4, 1}, Shape{1, 1}, Shape{}, Shape{2, 1, 3}, Shape{1, 4, 3}, Shape{2, 4, 3}}) {
      for (const bool first : {true, false}) {  // the narrow operand comes first, or second
        const auto f = [&](const Variable& x, const Variable& b, const Variable& c) {
          return first ? c * (b + x) : (x + b) * c;
        };
        const Variable b = leaf(noise(shape.numel(), 2), shape, dtype), c = leaf(noise(shape.numel(), 3), shape, dtype);
        const Variable x = leaf(noise(24), {2, 4, 3}, dtype);
        backward(f(x, b, c), tensor(upstream, {2, 4, 3}, dtype));
        // The same with operands written out, each gradient added up by hand.
        const Variable all_b(kernels::broadcast_to(b.tensor(), {2, 4, 3}), true),
            all_c(kernels::broadcast_to(c.tensor(), {2, 4, 3}), true);
        backward(f(x.detach(), all_b, all_c), tensor(upstream, {2, 4, 3}, dtype));
        for (const auto& [mine, all] : {std::pair{b, all_b}, std::pair{c, all_c}}) {
          ASSERT_EQ(mine.grad().shape(), shape);
          const Tensor expected = kernels::sum_to(tensor_of(values_of(all.grad()), {2, 4, 3}, DType::F64), shape);
          expect_close(values_of(mine.grad()), values_of(expected), 2 * epsilon_of(dtype) + 1e-6,
                       16 * epsilon_of(dtype), fmt::format("{} {}", dtype, shape));
        }
        EXPECT_EQ(x.grad().shape(), (Shape{2, 4, 3}));
      }
    }
}

// ---- Backward that failed

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

// ---- Tensors without elements

// Every operation keeps shapes with 0, gives gradients without elements or of zeros, and leaves no error behind for the
// next one. What does not exist (statistics, means and maxima of nothing) is an error at once.
TEST_P(Fault, EmptyTensorsThatLeaveAnErrorBehind) {
  using Layer = std::function<Variable(const Variable&)>;
  const Parameter gamma = parameter(Values(8, 1), {8}), beta = parameter(Values(8, 0), {8}),
                  matrix = parameter(noise(5 * 8), {5, 8}), filter = parameter(noise(4 * 4 * 8), {4, 2, 2, 8});
  Buffer mean_buffer(constant(0, {8})), var_buffer(constant(1, {8}));
  const std::pair<const char*, Layer> works[] = {
      {"relu", [](const Variable& x) { return relu(x); }},
      {"add", [&](const Variable& x) { return x + Variable(constant(1, {8}, x.dtype())); }},
      {"maximum", [](const Variable& x) { return maximum(x, x); }},
      {"scale", [](const Variable& x) { return scale(x, 2); }},
      {"softmax", [](const Variable& x) { return softmax(x); }},
      {"log_softmax of the first axis", [](const Variable& x) { return log_softmax(x, 0); }},
      {"layer_norm", [&](const Variable& x) { return layer_norm(x, gamma, beta); }},
      {"dropout", [](const Variable& x) { return dropout(x, 0.5); }},
      {"permute",
       [](const Variable& x) {
         return permute(x, {0, 3, 1, 2});
       }},
      {"flatten", [](const Variable& x) { return flatten(x); }},
      {"sum of a row", [](const Variable& x) { return sum(x, {3}); }},
      {"sum of nothing", [](const Variable& x) { return sum(x); }},
      {"linear", [&](const Variable& x) { return linear(x, matrix); }},
      {"conv2d",
       [&](const Variable& x) {
         return conv2d(x, filter, {}, {.padding = {1, 1}});
       }},
      {"batch_norm", [&](const Variable& x) {
         return batch_norm(x, {.weight = gamma,
                               .bias = beta,
                               .running_mean = mean_buffer,
                               .running_var = var_buffer,
                               .training = false,
                               .relu = true});
       }}};
  const std::pair<const char*, Layer> refuses[] = {{"batch_norm", [](const Variable& x) { return batch_norm(x, {}); }},
                                                   {"mean", [](const Variable& x) { return mean(x); }},
                                                   {"amax", [](const Variable& x) { return amax(x); }},
                                                   {"mse", [](const Variable& x) { return mse_loss(x, x); }},
                                                   {"cross_entropy", [&](const Variable& x) {
                                                      return cross_entropy(reshape(x, {0, 8}), labels({}));
                                                    }}};
  const Variable two(constant(1, {2}));
  for (const DType dtype : kTrainingDtypes)
    for (const Shape& shape : {Shape{0, 4, 4, 8}, Shape{2, 0, 4, 8}}) {
      const amp::Autocast region(dtype);
      for (const auto& [name, layer] : works) {
        for (const Parameter& p : {gamma, beta, matrix, filter}) p.parameter().zero_grad();
        const Variable x(Tensor::empty(shape, dtype, device()), true);
        const Variable y = layer(x);
        for (const double v : values_of(y.tensor())) EXPECT_EQ(v, 0) << name;
        backward(y, constant(1, y.shape(), y.dtype()));
        EXPECT_EQ(x.grad().shape(), shape) << name;
        for (const Parameter& p : {gamma, beta, matrix, filter})
          if (p.grad().defined()) {
            EXPECT_EQ(values_of(p.grad()), Values(static_cast<size_t>(p.master().numel()), 0)) << name;
          }
        EXPECT_EQ(error_of([&] { synchronize(device()); }), "") << name;
        EXPECT_EQ(values_of((two + two).tensor()), (Values{2, 2})) << name;
      }
      for (const auto& [name, layer] : refuses) {
        EXPECT_NE(error_of([&] { layer(Variable(Tensor::empty(shape, dtype, device()), true)); }), "") << name;
        EXPECT_EQ(values_of((two + two).tensor()), (Values{2, 2})) << name;
      }
    }
  const Variable none(Tensor::empty({0, 4, 4, 8}, DType::F32, device()), true);
  EXPECT_EQ(max_pool2d(none, {}).shape(), (Shape{0, 2, 2, 8}));
  EXPECT_EQ(avg_pool2d(none, {}).shape(), (Shape{0, 2, 2, 8}));
  EXPECT_EQ(global_avg_pool(none).shape(), (Shape{0, 8}));
}

// ---- Dropout

// p = 1 divides by 0, and a dropped infinity must not become 0 * infinity: in the forward, and in the backward.
TEST_P(Fault, DroppedElementThatIsNotZero) {
  for (const DType dtype : floating_dtypes())
    for (const double p : {0.0, 0.5, 1.0})
      for (const double value : {1.0, kInf, -kInf, kNaN}) {
        const Variable x = leaf(Values(1001, value), {1001}, dtype), ones = leaf(Values(1001, 1), {1001}, dtype);
        const Values y = values_of(dropout(x, p).tensor());
        const Variable z = dropout(ones, p);
        backward(z, constant(value, {1001}, dtype));
        const Values kept = values_of(z.tensor()), dx = values_of(ones.grad());
        int64_t zeros = 0;
        for (size_t i = 0; i < y.size(); ++i) {
          zeros += y[i] == 0;
          ASSERT_TRUE(y[i] == 0 || !std::isfinite(value) || y[i] == 1 / (1 - p))
              << name_of(dtype) << " " << p << " " << y[i];
          if (kept[i] == 0)
            ASSERT_EQ(dx[i], 0) << name_of(dtype) << " " << p;
          else
            ASSERT_EQ(std::isfinite(dx[i]), std::isfinite(value)) << name_of(dtype) << " " << p;
        }
        ASSERT_NEAR(static_cast<double>(zeros), 1001 * p, p == 0.5 ? 100 : 0)
            << name_of(dtype) << " " << p << " " << value;
      }
}

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

// ---- Memory that is written again while the device still has to read it

TEST_P(Fault, BufferReusedBeforeItsCopyRan) {
  const int64_t n = 20000, batches = 100;
  const Tensor slow = constant(1, {512, 512});
  Tensor staging[2] = {Tensor::zeros({1, n}, DType::I32), Tensor::zeros({1, n}, DType::I32)};
  Tensor there = Tensor::zeros({batches, n}, DType::I32, device());
  (void)kernels::matmul(slow, slow);  // what is copied has to wait for it
  for (int32_t i = 0; i < batches; ++i) {
    Tensor& buffer = staging[i % 2];
    std::fill_n(buffer.mutable_data<int32_t>(), n, i);
    there.narrow(i, 1).copy_from(buffer);
  }
  const std::vector<int32_t> all = there.to_vector<int32_t>();
  for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], static_cast<int32_t>(i / n));
}

TEST_P(Fault, FreedMemoryHandedOutWhileItIsRead) {
  const Tensor slow = constant(1, {512, 512});
  std::vector<Tensor> results;
  for (int i = 0; i < 100; ++i) {
    (void)kernels::matmul(slow, slow);
    const Tensor x = constant(i, {5000});
    results.push_back(kernels::add(x, x));
  }  // x is free before the sum has been computed, and the next one takes its place
  for (size_t i = 0; i < results.size(); ++i)
    ASSERT_EQ(values_of(results[i]), Values(5000, 2 * static_cast<double>(i)));
}

}  // namespace
}  // namespace demi::test
