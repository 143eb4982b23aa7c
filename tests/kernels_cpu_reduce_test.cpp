// Reductions over any axes against FP64 loops, on every device.
#include <limits>

#include "demi/core/parallel.h"
#include "demi/kernels/fill.h"
#include "demi/kernels/gradient.h"
#include "demi/kernels/reduce.h"
#include "demi/tests/devices.h"

namespace demi {
namespace {

using namespace kernels;  // NOLINT
using test::epsilon_of, test::expect_close, test::noise, test::rounded_to, test::tensor_of, test::values_of;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class ReduceTest : public test::OnDevice {};
DEMI_ON_ALL_DEVICES(ReduceTest);

std::vector<double> reference(ReduceOp op, const std::vector<double>& x, const Shape& shape, unsigned mask) {
  int64_t out = 1, count = 1;
  for (int i = 0; i < shape.rank(); ++i) ((mask >> i & 1) ? count : out) *= shape[i];
  std::vector<double> y(static_cast<size_t>(out), op == ReduceOp::Max ? -kInf : 0);
  for (int64_t i = 0; i < shape.numel(); ++i) {
    int64_t rest = i, at = 0, stride = 1;
    for (int a = shape.rank(); a-- > 0;) {
      if (!(mask >> a & 1)) at += rest % shape[a] * stride, stride *= shape[a];
      rest /= shape[a];
    }
    double &to = y[static_cast<size_t>(at)], v = x[static_cast<size_t>(i)];
    to = op == ReduceOp::Max ? std::max(to, v) : to + v;
  }
  if (op == ReduceOp::Mean)
    for (double& v : y) v /= static_cast<double>(count);
  return y;
}

TEST_P(ReduceTest, EverySubsetOfAxesMatchesALoop) {
  for (const Shape& shape : {Shape{3, 5, 4, 7}, Shape{2, 1, 33, 3}, Shape{1, 1, 1, 1}, Shape{70, 3, 1, 1100}})
    for (const DType dtype : floating_dtypes()) {
      const std::vector<double> x = rounded_to(dtype, noise(shape.numel()));
      const Tensor tx = tensor_of(x, shape, dtype, device());
      for (unsigned mask = 1; mask < 16; ++mask) {
        std::vector<int> axes;
        Shape kept;
        for (int i = 0; i < 4; ++i) (mask >> i & 1) ? axes.push_back(i % 2 ? i : i - 4) : kept.append(shape[i]);
        for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max}) {
          const Tensor y = reduce(op, tx, axes);
          EXPECT_EQ(y.shape(), kept);
          expect_close(values_of(y), reference(op, x, shape, mask), epsilon_of(dtype),
                       dtype == DType::F64 ? 1e-11 : 2e-4, fmt::format("{} {} mask {}", name_of(op), shape, mask));
          EXPECT_EQ(reduce(op, tx, axes, true).rank(), 4);
        }
      }
    }
}

TEST_P(ReduceTest, HalfSumsAreHeldInSinglePrecision) {
  const auto half = [&](int64_t n, double v) { return full({n}, v, DType::F16, device()); };
  EXPECT_EQ(values_of(reduce(ReduceOp::Sum, half(4096, 1), {}))[0], 4096);    // an FP16 sum sticks at 2048
  EXPECT_EQ(values_of(reduce(ReduceOp::Mean, half(4096, 100), {}))[0], 100);  // the sum 409600 overflows FP16
  const Tensor cancelling =
      tensor_of({32000, 32000, 32000, 32000, -32000, -32000, -32000, -32000}, {8}, DType::F16, device());
  EXPECT_EQ(values_of(reduce(ReduceOp::Sum, cancelling, {}))[0], 0);
  EXPECT_EQ(values_of(reduce(ReduceOp::Sum, cancelling.reshape(Shape{2, 4}), {0, 1}))[0], 0);
  EXPECT_EQ(values_of(reduce(ReduceOp::Sum, cancelling.reshape(Shape{2, 1, 4}), {2, 0}))[0], 0);
  EXPECT_EQ(values_of(l2_norm({half(4, 200)}))[0], 400);  // the squares sum to 160000

  const Tensor dy = full({128, 32, 32, 3}, 1, DType::F16, device());  // N H W = 131072
  const Tensor db = bias_grad(dy);
  EXPECT_EQ(db.dtype(), DType::F32);
  expect_close(values_of(db), {131072, 131072, 131072}, 0, 0, "bias gradient");
  const Tensor in_half = sum_to(dy, {3}, DType::F16);
  expect_close(values_of(in_half), {kInf, kInf, kInf}, 0, 0, "bias gradient in FP16");
  Tensor found = Tensor::zeros({}, DType::I32, device());
  check_finite(in_half, found);
  EXPECT_EQ(found.item<int32_t>(), 1);
}

TEST_P(ReduceTest, SumOverSeparatedAxesOfHalfDoesNotOverflowInBetween) {
  const Tensor x = full({64, 3, 64}, 100, DType::F16, device());
  expect_close(values_of(reduce(ReduceOp::Mean, x, {0, 2})), {100, 100, 100}, 0, 0, "mean");
}

TEST_P(ReduceTest, EmptyTensorsSumToZeroAndHaveNoMean) {
  const Tensor x = Tensor::empty({0, 3}, DType::F32, device());
  expect_close(values_of(reduce(ReduceOp::Sum, x, {0})), {0, 0, 0}, 0, 0, "sum");
  EXPECT_EQ(reduce(ReduceOp::Sum, x, {1}).shape(), Shape{0});
  expect_close(values_of(bias_grad(x)), {0, 0, 0}, 0, 0, "bias gradient");
  EXPECT_THROW(reduce(ReduceOp::Mean, x, {0}), Error);
  EXPECT_THROW(reduce(ReduceOp::Max, x, {}), Error);
  EXPECT_THROW(argmax(x, 0), Error);
  EXPECT_EQ(argmax(x, 1).shape(), Shape{0});
}

TEST_P(ReduceTest, BadAxesAreRefused) {
  const Tensor x = Tensor::zeros({2, 3}, DType::F32, device());
  EXPECT_THROW(reduce(ReduceOp::Sum, x, {0, -2}), Error);
  EXPECT_THROW(reduce(ReduceOp::Sum, x, {2}), Error);
  EXPECT_THROW(sum_to(x, {2}), Error);
  EXPECT_THROW(broadcast_to(x, {3, 3}), Error);
}

TEST_P(ReduceTest, MaxAndArgmaxSeeNaNAndTakeTheFirstOfEquals) {
  const Tensor x = tensor_of({1, 3, 3, kNaN, 5, kNaN, -kInf, -kInf, -kInf}, {3, 3}, DType::F16, device());
  expect_close(values_of(reduce(ReduceOp::Max, x, {1})), {3, kNaN, -kInf}, 0, 0, "max");
  EXPECT_EQ(argmax(x, 1).to_vector<int64_t>(), (std::vector<int64_t>{1, 0, 0}));
  EXPECT_EQ(argmax(x, 0).to_vector<int64_t>(), (std::vector<int64_t>{1, 1, 1}));
  EXPECT_EQ(argmax(x, 0, true).shape(), (Shape{1, 3}));
  EXPECT_EQ(argmax(x).item<int64_t>(), 3);
}

// Long rows are taken in blocks: the largest, or a NaN, may stand anywhere.
TEST_P(ReduceTest, MaxOfLongRowsSeesEveryElement) {
  for (const int64_t n : {255, 256, 257, 1000, 5003})
    for (const int64_t at : {int64_t{0}, n / 2, n - 1})
      for (const double largest : {7.0, kNaN}) {
        std::vector<double> values(static_cast<size_t>(2 * n), -3);
        values[static_cast<size_t>(n + at)] = largest;
        const Tensor x = tensor_of(values, {2, n}, DType::F32, device());
        expect_close(values_of(reduce(ReduceOp::Max, x, {1})), {-3, largest}, 0, 0, fmt::format("{} of {}", at, n));
        expect_close(values_of(reduce(ReduceOp::Max, x, {})), {largest}, 0, 0, fmt::format("{} of {}, all", at, n));
      }
}

TEST_P(ReduceTest, GradientOfMaxIsSharedAmongEqualElements) {
  const Tensor x = tensor_of({1, 4, 4, 2, 4, 3, 0, 4}, {2, 2, 2}, DType::F32, device());
  const auto gradient = [&](const std::vector<int>& axes) {
    const Tensor y = reduce(ReduceOp::Max, x, axes, true);
    return values_of(amax_backward(full(y.shape(), 12, DType::F32, device()), x, y, axes));
  };
  expect_close(gradient({}), {0, 3, 3, 0, 3, 0, 0, 3}, 0, 0, "all");
  expect_close(gradient({0, 2}), {0, 6, 6, 0, 6, 0, 0, 6}, 0, 0, "axes 0 and 2");
  expect_close(gradient({1}), {0, 12, 12, 0, 12, 0, 0, 12}, 0, 0, "axis 1");
}

TEST_P(ReduceTest, SumToUndoesBroadcasting) {
  const Tensor x = tensor_of(noise(4 * 3 * 5), {4, 3, 5}, DType::F32, device());
  for (const Shape& shape :
       {Shape{5}, Shape{3, 1}, Shape{1, 5}, Shape{4, 1, 5}, Shape{1, 1, 1}, Shape{}, Shape{4, 3, 5}}) {
    const Tensor y = sum_to(x, shape);
    EXPECT_EQ(y.shape(), shape);
    unsigned mask = 0;
    for (int i = 1; i <= 3; ++i)
      if (i > shape.rank() || shape[-i] == 1) mask |= 1u << (3 - i);
    expect_close(values_of(y), reference(ReduceOp::Sum, values_of(x), x.shape(), mask), 1e-6, 1e-6, shape.str());
    EXPECT_EQ(broadcast_to(y, x.shape()).shape(), x.shape());
  }
  expect_close(values_of(broadcast_to(tensor_of({1, 2}, {2, 1}, DType::F16, device()), {2, 2, 3})),
               {1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2}, 0, 0, "broadcast");
}

TEST(ReduceOrderTest, ResultsDoNotDependOnTheNumberOfThreads) {
  const Tensor x = tensor_of(noise(300 * 700), {300, 700}, DType::F32);
  const int before = num_threads();
  std::vector<std::vector<double>> columns, totals;
  for (const int threads : {1, 2, 5}) {
    set_num_threads(threads);
    columns.push_back(values_of(reduce(ReduceOp::Sum, x, {0})));
    totals.push_back(values_of(reduce(ReduceOp::Sum, x, {})));
  }
  set_num_threads(before);
  EXPECT_EQ(columns[0], columns[1]);
  EXPECT_EQ(columns[0], columns[2]);
  EXPECT_EQ(totals[0], totals[1]);
  EXPECT_EQ(totals[0], totals[2]);
}

}  // namespace
}  // namespace demi
