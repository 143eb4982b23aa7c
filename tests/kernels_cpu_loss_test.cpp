// Losses and softmax, and the faults that they are known for, on every device.
#include <limits>

#include "demi/kernels/cross_entropy.h"
#include "demi/kernels/fill.h"
#include "demi/kernels/mse.h"
#include "demi/kernels/softmax.h"
#include "demi/tests/devices.h"

namespace demi {
namespace {

using namespace kernels;  // NOLINT
using test::epsilon_of, test::expect_close, test::noise, test::rounded_to, test::tensor_of, test::values_of;
using Values = std::vector<double>;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class LossTest : public test::OnDevice {
 protected:
  Tensor labels(const std::vector<int64_t>& values) {
    return Tensor::from<int64_t>(values, {static_cast<int64_t>(values.size())}, device());
  }
};
DEMI_ON_ALL_DEVICES(LossTest);

DType statistic(DType dtype) { return dtype == DType::F64 ? DType::F64 : DType::F32; }

TEST_P(LossTest, CrossEntropyMatchesTheFormulaForEveryDtypeAndReduction) {
  for (const DType dtype : floating_dtypes())
    for (const int64_t classes : {1, 3, 10, 1000})
      for (const double smoothing : {0.0, 0.1, 1.0})
        for (const Reduction reduction : {Reduction::Mean, Reduction::Sum, Reduction::None}) {
          const int64_t samples = 33;
          Values x = noise(samples * classes);
          for (double& v : x) v *= 8;
          x = rounded_to(dtype, x);
          std::vector<int64_t> label;
          for (int64_t n = 0; n < samples; ++n) label.push_back(n * 7 % classes);
          const size_t outputs = reduction == Reduction::None ? static_cast<size_t>(samples) : 1;
          const Values g = rounded_to(statistic(dtype), noise(static_cast<int64_t>(outputs), 9));
          Values loss(outputs), dx(x.size());
          for (size_t n = 0; n < static_cast<size_t>(samples); ++n) {
            const size_t count = static_cast<size_t>(classes), at = n * count;
            double sum = 0, mean_of_all = 0;
            for (size_t c = 0; c < count; ++c) sum += std::exp(x[at + c]);
            const double lse = std::log(sum);
            for (size_t c = 0; c < count; ++c) mean_of_all += (lse - x[at + c]) / static_cast<double>(classes);
            const double l = (1 - smoothing) * (lse - x[at + static_cast<size_t>(label[n])]) + smoothing * mean_of_all;
            const double share = reduction == Reduction::Mean ? 1.0 / static_cast<double>(samples) : 1;
            loss[reduction == Reduction::None ? n : 0] += l * share;
            for (size_t c = 0; c < count; ++c)
              dx[at + c] = g[reduction == Reduction::None ? n : 0] * share *
                           (std::exp(x[at + c] - lse) - (static_cast<int64_t>(c) == label[n] ? 1 - smoothing : 0) -
                            smoothing / static_cast<double>(classes));
          }
          const Tensor tx = tensor_of(x, {samples, classes}, dtype, device()), tl = labels(label);
          const CrossEntropyResult r = cross_entropy(tx, tl, smoothing, reduction);
          EXPECT_EQ(r.loss.dtype(), statistic(dtype));
          const Tensor dy = tensor_of(g, r.loss.shape(), statistic(dtype), device());
          const double exact = dtype == DType::F64 ? 1e-12 : 2e-6;
          expect_close(values_of(r.loss), loss, exact, exact, "loss");
          expect_close(values_of(cross_entropy_backward(dy, tx, tl, r.log_sum, smoothing, reduction)), dx,
                       epsilon_of(dtype) + exact, dtype == DType::F64 ? 1e-12 : 1e-6, "gradient");
        }
}

TEST_P(LossTest, LogitsThatOverflowExpGiveAFiniteLoss) {
  const Tensor x = tensor_of({60000, 0, -60000, 60000}, {2, 2}, DType::F16, device());
  expect_close(values_of(cross_entropy(x, labels({0, 0}), 0, Reduction::None).loss), {0, 120000}, 1e-6, 0, "loss");
  const Tensor masked = tensor_of({1, 1, -kInf}, {1, 3}, DType::F32, device());
  expect_close(values_of(cross_entropy(masked, labels({0}), 0, Reduction::Mean).loss), {std::log(2.0)}, 1e-6, 0,
               "masked");
}

TEST_P(LossTest, EmptyBatchHasNoMeanButASumOfZero) {
  const Tensor x = Tensor::empty({0, 3}, DType::F32, device());
  EXPECT_THROW(cross_entropy(x, labels({}), 0, Reduction::Mean), Error);
  EXPECT_EQ(values_of(cross_entropy(x, labels({}), 0, Reduction::Sum).loss)[0], 0);
  EXPECT_EQ(cross_entropy(x, labels({}), 0, Reduction::None).loss.shape(), Shape{0});
}

TEST_P(LossTest, CountCorrectTakesTheFirstOfEqualLogits) {
  const Tensor x = tensor_of({1, 1, 0, 0, 2, 2, 5, 4, 3}, {3, 3}, DType::F16, device());
  Tensor count = full({}, 10, DType::I64, device());
  count_correct(x, labels({0, 2, 0}), count);
  EXPECT_EQ(count.item<int64_t>(), 12);
  count_correct(x, labels({0, 2, 1000}), count);  // no class: never right
  EXPECT_EQ(count.item<int64_t>(), 13);
}

TEST_P(LossTest, MeanSquaredErrorAndItsGradient) {
  for (const DType dtype : floating_dtypes()) {
    const Values x = rounded_to(dtype, noise(2500)), t = rounded_to(dtype, noise(2500, 2));
    Values each, slope;
    double total = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      each.push_back((x[i] - t[i]) * (x[i] - t[i]));
      slope.push_back(2 * 3 * (x[i] - t[i]));
      total += each.back();
    }
    const Tensor tx = tensor_of(x, {50, 50}, dtype, device()), tt = tensor_of(t, {50, 50}, dtype, device());
    expect_close(values_of(mse(tx, tt, Reduction::None)), each, 1e-6, 1e-9, "none");
    EXPECT_NEAR(values_of(mse(tx, tt, Reduction::Sum))[0], total, 1e-3);
    EXPECT_NEAR(values_of(mse(tx, tt, Reduction::Mean))[0], total / 2500, 1e-6);
    const Tensor three = full({}, 3, statistic(dtype), device());
    expect_close(values_of(mse_backward(three, tx, tt, Reduction::Sum)), slope, epsilon_of(dtype), 1e-7, "sum");
    const Tensor threes = full({50, 50}, 3, statistic(dtype), device());
    expect_close(values_of(mse_backward(threes, tx, tt, Reduction::None)), slope, epsilon_of(dtype), 1e-7, "none");
    for (double& v : slope) v /= 2500;
    expect_close(values_of(mse_backward(three, tx, tt, Reduction::Mean)), slope, epsilon_of(dtype) + 1e-6, 1e-7,
                 "mean");
  }
}

TEST_P(LossTest, SoftmaxAlongAnyAxis) {
  const Shape shape{3, 17, 5};
  for (const DType dtype : floating_dtypes())
    for (int axis = -3; axis < 3; ++axis)
      for (const bool log : {false, true}) {
        Values x = noise(shape.numel()), g = rounded_to(dtype, noise(shape.numel(), 2));
        for (double& v : x) v *= 10;
        x = rounded_to(dtype, x);
        const AxisView v = axis_view(shape, axis);
        const Tensor tx = tensor_of(x, shape, dtype, device());
        const Tensor y = softmax(tx, axis, log);
        const Values actual = values_of(y);  // backward is judged on the rounded output that it reads
        Values expected(x.size()), dx(x.size());
        for (int64_t o = 0; o < v.outer; ++o)
          for (int64_t i = 0; i < v.inner; ++i) {
            const auto at = [&](int64_t e) { return static_cast<size_t>((o * v.extent + e) * v.inner + i); };
            double sum = 0, dot = 0;
            for (int64_t e = 0; e < v.extent; ++e) {
              sum += std::exp(x[at(e)]);
              dot += g[at(e)] * (log ? 1 : actual[at(e)]);
            }
            for (int64_t e = 0; e < v.extent; ++e) {
              expected[at(e)] = log ? x[at(e)] - std::log(sum) : std::exp(x[at(e)]) / sum;
              dx[at(e)] = log ? g[at(e)] - std::exp(actual[at(e)]) * dot : actual[at(e)] * (g[at(e)] - dot);
            }
          }
        const double exact = dtype == DType::F64 ? 1e-12 : 2e-6, tiny = dtype == DType::F16 ? 0x1p-24 : exact;
        expect_close(actual, expected, epsilon_of(dtype) + exact, tiny, "y");
        expect_close(values_of(softmax_backward(tensor_of(g, shape, dtype, device()), y, axis, log)), dx,
                     epsilon_of(dtype) + exact, std::max(exact, tiny), "dx");
      }
  const Tensor large = tensor_of({1000, 1001, kNaN, 1}, {2, 2}, DType::F32, device());
  const double e = std::exp(1.0);
  expect_close(values_of(softmax(large, 1)), {1 / (1 + e), e / (1 + e), kNaN, kNaN}, 1e-6, 0, "large");
}

}  // namespace
}  // namespace demi
