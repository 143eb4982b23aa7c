// Batch norm and layer norm against FP64 loops, and the faults that norms are known for, on every device.
#include "demi/core/parallel.h"
#include "demi/kernels/batch_norm.h"
#include "demi/kernels/fill.h"
#include "demi/kernels/layer_norm.h"
#include "demi/tests/devices.h"

namespace demi {
namespace {

using namespace kernels;  // NOLINT
using test::epsilon_of, test::expect_close, test::noise, test::rounded_to, test::tensor_of, test::values_of;
using Values = std::vector<double>;

class BatchNormTest : public test::OnDevice {};
DEMI_ON_ALL_DEVICES(BatchNormTest);
class LayerNormTest : public test::OnDevice {};
DEMI_ON_ALL_DEVICES(LayerNormTest);

DType statistic(DType dtype) { return dtype == DType::F64 ? DType::F64 : DType::F32; }

BatchNormResult train(const Tensor& x, const BatchNormOptions& options = {}) {
  Tensor mean, var;
  return batch_norm_train(x, {}, {}, {}, mean, var, options);
}

TEST_P(BatchNormTest, OneValueAChannelIsAnErrorInTrainingAndChangesNothing) {
  Tensor mean = full({4}, 2, DType::F32, device()), var = full({4}, 3, DType::F32, device());
  const auto attempt = [&](const Shape& shape) {
    return test::error_of(
        [&] { batch_norm_train(Tensor::zeros(shape, DType::F32, device()), {}, {}, {}, mean, var, {}); });
  };
  const std::string message = attempt({1, 1, 1, 4});
  EXPECT_NE(message.find("[1, 1, 1, 4]"), std::string::npos) << message;
  EXPECT_NE(message.find("drop_last"), std::string::npos) << message;
  EXPECT_NE(attempt({0, 2, 2, 4}), "");  // an empty batch has no statistics either
  EXPECT_EQ(values_of(mean), Values(4, 2));
  EXPECT_EQ(values_of(var), Values(4, 3));
  EXPECT_EQ(attempt({1, 2, 2, 4}), "");
  const Tensor x = full({1, 1, 1, 4}, 5, DType::F32, device());
  const BatchNormResult eval = batch_norm_eval(x, {}, {}, {}, full({4}, 2, DType::F32, device()),
                                               full({4}, 9, DType::F32, device()), {.eps = 0});
  expect_close(values_of(eval.y), Values(4, 1), 1e-6, 0, "eval");
  const Tensor empty = Tensor::empty({0, 2, 2, 4}, DType::F16, device());
  EXPECT_EQ(batch_norm_eval(empty, {}, {}, {}, mean, var, {}).y.shape(), empty.shape());
}

struct Reference {
  Values y, dx, dresidual, dweight, dbias;
};

// Everything in FP64 from the formulas of batch_norm.h. dy is also the upstream gradient.
Reference batch_norm_reference(const Values& x, const Values& residual, const Values& w, const Values& b,
                               const Values& dy, const Values& gate, bool relu, bool training, const Values& run_mean,
                               const Values& run_var) {
  const size_t channels = w.size(), rows = x.size() / channels;
  const double n = static_cast<double>(rows);
  Reference r{Values(x.size()), Values(x.size()), Values(x.size()), Values(channels), Values(channels)};
  for (size_t c = 0; c < channels; ++c) {
    double mean = 0, var = 0;
    for (size_t i = c; i < x.size(); i += channels) mean += x[i] / n;
    for (size_t i = c; i < x.size(); i += channels) var += (x[i] - mean) * (x[i] - mean) / n;
    if (!training) mean = run_mean[c], var = run_var[c];
    const double inv = 1 / std::sqrt(var + 1e-5);
    for (size_t i = c; i < x.size(); i += channels) {
      const double z = (x[i] - mean) * inv * w[c] + b[c] + (residual.empty() ? 0 : residual[i]);
      r.y[i] = relu && z < 0 ? 0 : z;
      r.dresidual[i] = relu && !(gate[i] > 0) ? 0 : dy[i];
      r.dbias[c] += r.dresidual[i];
      r.dweight[c] += r.dresidual[i] * (x[i] - mean) * inv;
    }
    for (size_t i = c; i < x.size(); i += channels)
      r.dx[i] = w[c] * inv * (r.dresidual[i] - (training ? (r.dbias[c] + (x[i] - mean) * inv * r.dweight[c]) / n : 0));
  }
  return r;
}

TEST_P(BatchNormTest, MatchesTheFormulasForEveryDtypeShapeAndOption) {
  for (const Shape& shape : {Shape{5, 3}, Shape{4, 9, 7, 16}, Shape{2, 3, 5, 70}, Shape{3, 1100}, Shape{64, 33, 33, 2}})
    for (const DType dtype : floating_dtypes())
      for (int variant = 0; variant < 8; ++variant) {
        const bool relu = variant & 1, with_residual = variant & 2, training = variant & 4;
        const int64_t n = shape.numel(), channels = shape[-1];
        Values x = noise(n, 1);
        for (size_t i = 0; i < x.size(); ++i) x[i] = 2 * x[i] + static_cast<double>(i % 3);
        x = rounded_to(dtype, x);
        const Values residual = with_residual ? rounded_to(dtype, noise(n, 2)) : Values{};
        const Values dy = rounded_to(dtype, noise(n, 3));
        const DType wide = statistic(dtype);
        const Values w = rounded_to(wide, noise(channels, 4)), b = rounded_to(wide, noise(channels, 5));
        Values mean0 = rounded_to(wide, noise(channels, 6)), var0 = noise(channels, 7);
        for (double& v : var0) v = v * v + 0.5;
        var0 = rounded_to(wide, var0);
        const auto vector = [&](const Values& v) { return tensor_of(v, {channels}, wide, device()); };
        const Tensor tx = tensor_of(x, shape, dtype, device()), tdy = tensor_of(dy, shape, dtype, device());
        const Tensor tr = with_residual ? tensor_of(residual, shape, dtype, device()) : Tensor{};
        Tensor running_mean = vector(mean0), running_var = vector(var0);
        const BatchNormOptions options{.relu = relu};
        const BatchNormResult r =
            training ? batch_norm_train(tx, vector(w), vector(b), tr, running_mean, running_var, options)
                     : batch_norm_eval(tx, vector(w), vector(b), tr, running_mean, running_var, options);
        Tensor dx = Tensor::empty(shape, dtype, device()), dres = with_residual ? dx.clone() : Tensor{};
        Tensor dweight = Tensor::empty({channels}, wide, device()), dbias = dweight.clone();
        batch_norm_backward(tdy, tx, r.y, vector(w), r, relu, training, dx, dres, dweight, dbias);
        const Reference e = batch_norm_reference(x, residual, w, b, dy, values_of(r.y), relu, training, mean0, var0);
        const double rel = epsilon_of(dtype) + (dtype == DType::F64 ? 1e-12 : 1e-5);
        const double tiny = dtype == DType::F64 ? 1e-11 : 2e-5;
        const std::string what = fmt::format("{} {} variant {}", dtype, shape, variant);
        expect_close(values_of(r.y), e.y, rel, tiny, "y " + what);
        expect_close(values_of(dx), e.dx, rel, tiny, "dx " + what);
        if (with_residual) expect_close(values_of(dres), e.dresidual, 0, 0, "dresidual " + what);
        const double grown = tiny * std::sqrt(static_cast<double>(n / channels));
        expect_close(values_of(dweight), e.dweight, 1e-5, grown, "dweight " + what);
        expect_close(values_of(dbias), e.dbias, 1e-5, grown, "dbias " + what);
        if (!training) {
          EXPECT_EQ(values_of(running_mean), mean0) << "eval leaves the running statistics alone";
        }
      }
}

TEST_P(BatchNormTest, WorksWithoutAffineParametersOrTheirGradients) {
  const Values x = rounded_to(DType::F16, noise(40 * 6)), dy = rounded_to(DType::F16, noise(40 * 6, 2));
  const Tensor tx = tensor_of(x, {40, 6}, DType::F16, device()), tdy = tensor_of(dy, {40, 6}, DType::F16, device());
  const BatchNormResult r = train(tx);
  Tensor dx = Tensor::empty(tx.shape(), DType::F16, device()), none, none_w, none_b;
  const Reference e = batch_norm_reference(x, {}, Values(6, 1), Values(6, 0), dy, x, false, true, {}, {});
  batch_norm_backward(tdy, tx, r.y, {}, r, false, true, dx, none, none_w, none_b);
  expect_close(values_of(r.y), e.y, 2e-3, 1e-4, "y");
  expect_close(values_of(dx), e.dx, 2e-3, 1e-4, "dx");
}

TEST(BatchNormThreadsTest, ResultsDoNotDependOnTheNumberOfThreads) {
  const Tensor x = tensor_of(noise(32 * 32 * 32 * 16), {32, 32, 32, 16}, DType::F32);
  const int before = num_threads();
  std::vector<Values> results;
  for (const int threads : {1, 2, 5}) {
    set_num_threads(threads);
    results.push_back(values_of(train(x).y));
  }
  set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST_P(LayerNormTest, MatchesTheFormulasForEveryDtype) {
  for (const Shape& shape : {Shape{1, 1}, Shape{7, 5}, Shape{3, 4, 64}, Shape{5, 1500}})
    for (const DType dtype : floating_dtypes())
      for (const bool affine : {true, false}) {
        const DType wide = statistic(dtype);
        const auto columns = static_cast<size_t>(shape[-1]), total = static_cast<size_t>(shape.numel());
        const Values x = rounded_to(dtype, noise(shape.numel())), dy = rounded_to(dtype, noise(shape.numel(), 2));
        const Values w = affine ? rounded_to(wide, noise(shape[-1], 3)) : Values(columns, 1);
        const Values b = affine ? rounded_to(wide, noise(shape[-1], 4)) : Values(columns, 0);
        Values y(total), dx(total), dweight(columns), dbias(columns);
        for (size_t row = 0; row < total; row += columns) {
          const double n = static_cast<double>(columns);
          double mean = 0, var = 0, sum = 0, projected = 0;
          for (size_t c = 0; c < columns; ++c) mean += x[row + c] / n;
          for (size_t c = 0; c < columns; ++c) var += (x[row + c] - mean) * (x[row + c] - mean) / n;
          const double inv = 1 / std::sqrt(var + 1e-5);
          for (size_t c = 0; c < columns; ++c) {
            const double xhat = (x[row + c] - mean) * inv, g = dy[row + c];
            y[row + c] = xhat * w[c] + b[c];
            dweight[c] += g * xhat;
            dbias[c] += g;
            sum += g * w[c] / n;
            projected += g * w[c] * xhat / n;
          }
          for (size_t c = 0; c < columns; ++c)
            dx[row + c] = inv * (dy[row + c] * w[c] - sum - (x[row + c] - mean) * inv * projected);
        }
        const Tensor tx = tensor_of(x, shape, dtype, device()), tdy = tensor_of(dy, shape, dtype, device());
        const Tensor tw = affine ? tensor_of(w, {shape[-1]}, wide, device()) : Tensor{};
        const Tensor tb = affine ? tensor_of(b, {shape[-1]}, wide, device()) : Tensor{};
        const LayerNormResult r = layer_norm(tx, tw, tb, 1e-5);
        const LayerNormGradients g = layer_norm_backward(tdy, tx, tw, r.mean, r.inv_std);
        const double rel = epsilon_of(dtype) + (dtype == DType::F64 ? 1e-12 : 1e-5);
        const double tiny = dtype == DType::F64 ? 1e-11 : 2e-5;
        expect_close(values_of(r.y), y, rel, tiny, "y " + shape.str());
        expect_close(values_of(g.dx), dx, rel, tiny, "dx " + shape.str());
        ASSERT_EQ(g.dweight.defined(), affine);
        if (!affine) continue;
        expect_close(values_of(g.dweight), dweight, 1e-5, tiny, "dweight " + shape.str());
        expect_close(values_of(g.dbias), dbias, 1e-5, tiny, "dbias " + shape.str());
      }
}

TEST_P(LayerNormTest, EmptyBatchHasZeroParameterGradients) {
  const Tensor x = Tensor::empty({0, 3}, DType::F32, device()), w = full({3}, 1, DType::F32, device());
  const LayerNormResult r = layer_norm(x, w, w, 1e-5);
  const LayerNormGradients g = layer_norm_backward(x, x, w, r.mean, r.inv_std);
  expect_close(values_of(g.dweight), {0, 0, 0}, 0, 0, "dweight");
}

}  // namespace
}  // namespace demi
