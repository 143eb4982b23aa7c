// Elementwise ops against their formulas in FP64, on every device.
#include <limits>

#include "demi/kernels/binary.h"
#include "demi/kernels/fill.h"
#include "demi/kernels/permute.h"
#include "demi/kernels/scale.h"
#include "demi/kernels/unary.h"
#include "demi/kernels/unary_functors.h"
#include "demi/nn/functional/elementwise.h"
#include "demi/tests/devices.h"

namespace demi {
namespace {

using namespace kernels;  // NOLINT
using test::epsilon_of, test::expect_close, test::noise, test::rounded_to, test::tensor_of, test::values_of;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class ElementwiseTest : public test::OnDevice {};
DEMI_ON_ALL_DEVICES(ElementwiseTest);

const std::vector<UnaryOp> kAllUnary{
    UnaryOp::Neg,     UnaryOp::Abs,  UnaryOp::Square, UnaryOp::Sqrt,     UnaryOp::Rsqrt,    UnaryOp::Reciprocal,
    UnaryOp::Exp,     UnaryOp::Log,  UnaryOp::Pow,    UnaryOp::Clamp,    UnaryOp::Relu,     UnaryOp::Tanh,
    UnaryOp::Sigmoid, UnaryOp::Silu, UnaryOp::Gelu,   UnaryOp::Softplus, UnaryOp::LeakyRelu};

double reference(UnaryOp op, double x, double a, double b) {
  switch (op) {
    case UnaryOp::Neg:
      return -x;
    case UnaryOp::Abs:
      return std::fabs(x);
    case UnaryOp::Square:
      return x * x;
    case UnaryOp::Sqrt:
      return std::sqrt(x);
    case UnaryOp::Rsqrt:
      return 1 / std::sqrt(x);
    case UnaryOp::Reciprocal:
      return 1 / x;
    case UnaryOp::Exp:
      return std::exp(x);
    case UnaryOp::Log:
      return std::log(x);
    case UnaryOp::Pow:
      return std::pow(x, a);
    case UnaryOp::Clamp:
      return x < a ? a : x > b ? b : x;
    case UnaryOp::Relu:
      return x > 0 ? x : 0;
    case UnaryOp::LeakyRelu:
      return x > 0 ? x : a * x;
    case UnaryOp::Tanh:
      return std::tanh(x);
    case UnaryOp::Sigmoid:
      return 1 / (1 + std::exp(-x));
    case UnaryOp::Silu:
      return x / (1 + std::exp(-x));
    case UnaryOp::Gelu:
      return x * 0.5 * (1 + std::erf(x / std::sqrt(2.0)));
    case UnaryOp::Softplus:
      return std::log1p(std::exp(x));
  }
  return kNaN;
}

double constant_of(UnaryOp op) { return op == UnaryOp::Pow ? 2.5 : op == UnaryOp::LeakyRelu ? 0.3 : -1; }

bool positive_only(UnaryOp op) {
  return op == UnaryOp::Sqrt || op == UnaryOp::Rsqrt || op == UnaryOp::Log || op == UnaryOp::Pow ||
         op == UnaryOp::Reciprocal;
}

TEST_P(ElementwiseTest, UnaryMatchesFormulaForEveryDtypeAndOddLength) {
  for (const UnaryOp op : kAllUnary)
    for (const DType dtype : floating_dtypes())
      for (const int64_t n : {1, 7, 1023, 1025, 20001}) {
        std::vector<double> x = noise(n);
        for (double& v : x) v = positive_only(op) ? std::fabs(v) * 2 + 0.1 : v * 4;
        x = rounded_to(dtype, x);
        std::vector<double> expected;
        for (const double v : x) expected.push_back(reference(op, v, constant_of(op), 1.5));
        const Tensor y = unary(op, tensor_of(x, {n}, dtype, device()), constant_of(op), 1.5);
        expect_close(values_of(y), expected, epsilon_of(dtype) + 1e-14 + (dtype == DType::F64 ? 0 : 1e-6),
                     dtype == DType::F64 ? 1e-14 : 3e-7, fmt::format("op {} {}", static_cast<int>(op), dtype));
      }
}

TEST_P(ElementwiseTest, UnaryGradientIsTheSlopeOfTheFunction) {
  const DType dtype = device().is_cpu() ? DType::F64 : DType::F32;
  for (const UnaryOp op : kAllUnary) {
    std::vector<double> x = noise(101, 3);
    for (double& v : x) v = positive_only(op) ? std::fabs(v) * 2 + 0.5 : v * 2;
    x = rounded_to(dtype, x);
    const double a = constant_of(op), b = 1.5, h = 1e-6;
    std::vector<double> expected;
    for (const double v : x)
      expected.push_back(3 * (reference(op, v + h, a, b) - reference(op, v - h, a, b)) / (2 * h));
    const Tensor tx = tensor_of(x, {101}, dtype, device()), y = unary(op, tx, a, b);
    const Tensor dy = full({101}, 3, dtype, device());
    const Tensor dx = unary_backward(op, dy, backward_needs_input(op) ? tx : Tensor{},
                                     backward_needs_output(op) ? y : Tensor{}, a, b);
    expect_close(values_of(dx), expected, dtype == DType::F64 ? 1e-7 : 2e-5, 1e-6,
                 fmt::format("op {}", static_cast<int>(op)));
  }
}

// The functor of `op` and its derivative (of x or y, whichever it reads; times dy), in the arithmetic of the dtype.
double functor(UnaryOp op, DType dtype, double x, double a, double b) {
  return visit_unary(op, [&](auto f) -> double {
    if (dtype == DType::F64) return f.forward(x, a, b);
    return f.forward(static_cast<float>(x), static_cast<float>(a), static_cast<float>(b));
  });
}
double functor_backward(UnaryOp op, DType dtype, double dy, double saved, double a, double b) {
  return visit_unary(op, [&](auto f) -> double {
    if (dtype == DType::F64) return f.backward(dy, saved, saved, a, b);
    const float v = static_cast<float>(saved);
    return f.backward(static_cast<float>(dy), v, v, static_cast<float>(a), static_cast<float>(b));
  });
}

// Both zeros, subnormals, what overflows or underflows, infinities and NaN; blocks of them, and what does not fill one.
TEST_P(ElementwiseTest, UnarySpecialValuesAreThoseOfTheFunctors) {
  const std::vector<double> magnitudes{
      0,     0x1p-1074, 0x1p-1022, 0x1p-149, 0x1p-127, 0x1p-126, 0x1p-24,  0x1p-14,      1e-5,  1e-4, 1.0001e-4, 0.5,
      1,     2.5,       8.9,       9.1,      16,       30,       87.2,     87.5,         88.3,  88.5, 88.75,     89,
      103.5, 104.5,     710,       746,      65504,    65536,    0x1p+127, 3.4028234e38, 1e300, kInf, kNaN};
  std::vector<double> all;
  for (int repeat = 0; repeat < 9; ++repeat)
    for (const double v : magnitudes) all.insert(all.end(), {v, -v});
  const auto n = static_cast<int64_t>(all.size());
  for (const UnaryOp op : kAllUnary)
    for (const DType dtype : floating_dtypes())
      for (const double a :
           op == UnaryOp::Pow ? std::vector<double>{-1, 0, 0.5, 2, 3} : std::vector<double>{constant_of(op)}) {
        const std::string what = fmt::format("op {} {} constant {}", static_cast<int>(op), dtype, a);
        const double b = 1.5, dy = 1.25;
        // The functors lose FP32 results under 2^-120 where an exponential in them overflows; FP16's end at 2^-24.
        const double absolute = dtype == DType::F64 ? 0 : dtype == DType::F16 ? 0x1p-24 : 0x1p-120;
        const double relative = !device().is_cpu()    ? epsilon_of(dtype) + 1e-5
                                : dtype == DType::F32 ? 0x1p-22
                                                      : epsilon_of(dtype);
        // 1 - y^2 has the rounding of 1, and none where it is fused.
        const double rounding = !backward_needs_output(op) ? 0 : dtype == DType::F64 ? 0x1p-51 : 0x1p-22;
        const std::vector<double> x = rounded_to(dtype, all);
        const Tensor tx = tensor_of(x, {n}, dtype, device()), y = unary(op, tx, a, b);
        std::vector<double> expected;
        for (const double v : x) expected.push_back(functor(op, dtype, v, a, b));
        const std::vector<double> actual = values_of(y);
        expect_close(actual, rounded_to(dtype, expected), relative, absolute, what);
        for (size_t i = 0; device().is_cpu() && i < actual.size(); ++i) {
          if (actual[i] != 0 || expected[i] != 0) continue;
          ASSERT_EQ(std::signbit(actual[i]), std::signbit(expected[i])) << what << ", the zero of " << x[i];
        }

        const std::vector<double> saved = backward_needs_output(op) ? actual : x;
        const Tensor dx = unary_backward(op, full({n}, dy, dtype, device()), tx, y, a, b);
        expected.clear();
        for (const double v : saved) expected.push_back(functor_backward(op, dtype, dy, v, a, b));
        expect_close(values_of(dx), rounded_to(dtype, expected), 4 * relative, absolute + rounding,
                     what + ", backward");
      }
}

// The sign that the backward reads is that of x even where a x underflows to a zero; 0 has the slope of what is below.
TEST_P(ElementwiseTest, LeakyReluFindsTheSignInItsResult) {
  const Tensor x = tensor_of({-0x1p-24, -0.0, 0, 0x1p-24, -2, 3}, {6}, DType::F16, device());
  const Tensor y = unary(UnaryOp::LeakyRelu, x, 0.25);
  expect_close(values_of(y), {-0.0, -0.0, 0, 0x1p-24, -0.5, 3}, 0, 0, "leaky_relu");
  const Tensor dx = unary_backward(UnaryOp::LeakyRelu, full({6}, 1, DType::F16, device()), {}, y, 0.25);
  expect_close(values_of(dx), {0.25, 0.25, 0.25, 1, 0.25, 1}, 0, 0, "its gradient");
  EXPECT_THROW(leaky_relu(Variable(x), -0.1), Error);
}

TEST_P(ElementwiseTest, NaNIsNeverSwallowed) {
  for (const UnaryOp op : kAllUnary)
    for (const DType dtype : floating_dtypes())
      for (const double a : {0.0, 2.0}) {
        const std::vector<double> y = values_of(unary(op, tensor_of({kNaN, 1}, {2}, dtype, device()), a, 3));
        EXPECT_TRUE(std::isnan(y[0])) << "op " << static_cast<int>(op) << " constant " << a;
        EXPECT_FALSE(std::isnan(y[1])) << "op " << static_cast<int>(op) << " constant " << a;
      }
  for (const DType dtype : floating_dtypes()) {
    const Tensor x = tensor_of({kNaN, -1, 2}, {3}, dtype, device());
    const std::vector<double> y = values_of(unary(UnaryOp::Relu, x));
    expect_close(y, {kNaN, 0, 2}, 0, 0, "relu");
    const Tensor zeros = Tensor::zeros({3}, dtype, device());
    expect_close(values_of(maximum(x, zeros)), {kNaN, 0, 2}, 0, 0, "maximum(NaN, 0)");
    expect_close(values_of(maximum(zeros, x)), {kNaN, 0, 2}, 0, 0, "maximum(0, NaN)");
  }
}

TEST_P(ElementwiseTest, GradientsAtTheCorners) {
  const auto slope = [&](UnaryOp op, double x, double a, double b) {
    const Tensor tx = tensor_of({x}, {1}, DType::F32, device());
    return values_of(unary_backward(op, full({1}, 1, DType::F32, device()), tx, unary(op, tx, a, b), a, b))[0];
  };
  EXPECT_EQ(slope(UnaryOp::Relu, 0, 0, 0), 0);
  EXPECT_EQ(slope(UnaryOp::Abs, 0, 0, 0), 0);
  EXPECT_EQ(slope(UnaryOp::Clamp, -1, -1, 1), 1);
  EXPECT_EQ(slope(UnaryOp::Clamp, 1, -1, 1), 1);
  EXPECT_EQ(slope(UnaryOp::Clamp, 1.5, -1, 1), 0);
  EXPECT_EQ(slope(UnaryOp::Pow, 0, 0, 0), 0);  // 0 * 0^-1 is not NaN
  EXPECT_EQ(slope(UnaryOp::Pow, 0, 1, 0), 1);
  EXPECT_EQ(slope(UnaryOp::Pow, 0, 2, 0), 0);
  EXPECT_EQ(slope(UnaryOp::Pow, -2, 3, 0), 12);
  EXPECT_EQ(slope(UnaryOp::Softplus, 200, 0, 0), 1);
  EXPECT_EQ(values_of(unary(UnaryOp::Softplus, full({1}, 200, DType::F32, device())))[0], 200);
  EXPECT_EQ(values_of(unary(UnaryOp::Sigmoid, full({1}, -200, DType::F32, device())))[0], 0);
}

TEST_P(ElementwiseTest, BinaryBroadcastsLikeNumPy) {
  struct Case {
    Shape a, b, y;
  };
  const std::vector<Case> cases{{{3, 5}, {3, 5}, {3, 5}},
                                {{7, 3, 5}, {5}, {7, 3, 5}},
                                {{7, 1, 5}, {3, 1}, {7, 3, 5}},
                                {{1}, {2, 3}, {2, 3}},
                                {{}, {4}, {4}},
                                {{}, {}, {}},
                                {{2, 1, 3, 1}, {5, 1, 2}, {2, 5, 3, 2}},
                                {{2, 2100}, {2, 1}, {2, 2100}},
                                {{3, 1100}, {1100}, {3, 1100}},
                                {{4, 0, 3}, {3}, {4, 0, 3}}};
  for (const Case& c : cases)
    for (const DType dtype : floating_dtypes()) {
      std::vector<double> a = rounded_to(dtype, noise(c.a.numel(), 5)), b = noise(c.b.numel(), 6);
      for (double& v : b) v = v < 0 ? v - 0.5 : v + 0.5;  // a divisor
      b = rounded_to(dtype, b);
      const Tensor ta = tensor_of(a, c.a, dtype, device()), tb = tensor_of(b, c.b, dtype, device());
      const auto at = [&](const Shape& s, const std::vector<double>& v, int64_t i) {
        int64_t index = 0, stride = 1;
        for (int axis = 1; axis <= c.y.rank(); ++axis) {
          const int64_t position = i % c.y[-axis];
          i /= c.y[-axis];
          if (axis > s.rank()) continue;
          if (s[-axis] != 1) index += position * stride;
          stride *= s[-axis];
        }
        return v[static_cast<size_t>(index)];
      };
      for (const BinaryOp op : {BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul, BinaryOp::Div, BinaryOp::Maximum}) {
        std::vector<double> expected;
        for (int64_t i = 0; i < c.y.numel(); ++i) {
          const double x = at(c.a, a, i), z = at(c.b, b, i);
          expected.push_back(op == BinaryOp::Add   ? x + z
                             : op == BinaryOp::Sub ? x - z
                             : op == BinaryOp::Mul ? x * z
                             : op == BinaryOp::Div ? x / z
                                                   : std::max(x, z));
        }
        const Tensor y = binary(op, ta, tb);
        EXPECT_EQ(y.shape(), c.y);
        expect_close(values_of(y), expected, epsilon_of(dtype), 1e-7, name_of(op) + c.y.str());
      }
    }
  EXPECT_NE(test::error_of([&] {
              add(Tensor::zeros({2, 3}, DType::F32, device()), Tensor::zeros({2, 4}, DType::F32, device()));
            }).find("[add] shapes [2, 3] and [2, 4] do not broadcast"),
            std::string::npos);
}

TEST_P(ElementwiseTest, MaximumSharesTheGradientOfEqualOnes) {
  const Tensor a = tensor_of({1, 2, 3}, {3}, DType::F32, device()), b = tensor_of({2}, {1}, DType::F32, device());
  const Tensor dy = full({3}, 4, DType::F32, device());
  expect_close(values_of(maximum_backward(dy, a, b)), {0, 2, 4}, 0, 0, "da");
  expect_close(values_of(maximum_backward(dy, b, a)), {4, 2, 0}, 0, 0, "db");
}

TEST_P(ElementwiseTest, CastRoundsOnceToNearestEven) {
  const std::vector<double> x{0,    -0.0,    1,       65504, 65519, 65520, 70000, -70000,
                              1e-8, 0x1p-24, 0x1p-25, 2049,  2051,  kInf,  kNaN};
  const std::vector<double> half{0, 0, 1, 65504, 65504, kInf, kInf, -kInf, 0, 0x1p-24, 0, 2048, 2052, kInf, kNaN};
  const Shape shape{static_cast<int64_t>(x.size())};
  expect_close(values_of(cast(tensor_of(x, shape, DType::F32, device()), DType::F16)), half, 0, 0, "half");
  const Tensor bf = cast(tensor_of({1.00390625, 1.01171875, 3.4e38, kNaN}, {4}, DType::F32, device()), DType::BF16);
  expect_close(values_of(bf), {1, 1.015625, kInf, kNaN}, 0, 0, "bf16");
  const Tensor integers = cast(tensor_of({-1.75, 2.5, 255}, {3}, DType::F32, device()), DType::I32);
  EXPECT_EQ(integers.to_vector<int32_t>(), (std::vector<int32_t>{-1, 2, 255}));
  EXPECT_EQ(cast(integers, DType::I64).to_vector<int64_t>(), (std::vector<int64_t>{-1, 2, 255}));
  for (const DType dtype : {DType::F32, DType::F16, DType::I32, DType::I64, DType::U8})
    expect_close(values_of(cast(full({3000}, 200, DType::U8, device()), dtype)), std::vector<double>(3000, 200), 0, 0,
                 "from uint8");
}

TEST(CastTest, FromDoubleToHalfRoundsOnceNotTwice) {
  // In FP32 this is the tie 1 + 2^-11, which would go down to 1; the value itself lies above the tie.
  const double above = 1 + 0x1p-11 + 0x1p-40;
  EXPECT_EQ(values_of(tensor_of({above, -above}, {2}, DType::F16)), (std::vector<double>{1 + 0x1p-10, -1 - 0x1p-10}));
  EXPECT_EQ(values_of(tensor_of({1e300, 1 + 0x1p-8 + 0x1p-40}, {2}, DType::BF16)),
            (std::vector<double>{kInf, 1 + 0x1p-7}));
}

TEST_P(ElementwiseTest, ScaleAxpyAndFill) {
  for (const DType dtype : floating_dtypes()) {
    const Tensor x = tensor_of({1, -2, 4}, {3}, dtype, device());
    expect_close(values_of(scale(x, -0.5)), {-0.5, 1, -2}, 0, 0, "scale");
    expect_close(values_of(scale_by(x, full({}, 3, DType::F32, device()))), {3, -6, 12}, 0, 0, "scale_by");
    Tensor sum = full({3}, 10, DType::F32, device());
    if (dtype != DType::F64) {
      axpy(2, x, sum);
      expect_close(values_of(sum), {12, 6, 18}, 0, 0, "axpy");
    }
    Tensor same = x.clone();
    axpy(-1, x, same);
    expect_close(values_of(same), {0, 0, 0}, 0, 0, "axpy into its own dtype");
    expect_close(values_of(full({1025}, 3, dtype, device())), std::vector<double>(1025, 3), 0, 0, "fill");
  }
  expect_close(values_of(full({5}, 7, DType::I64, device())), std::vector<double>(5, 7), 0, 0, "fill int64");
}

TEST_P(ElementwiseTest, PermuteMovesBetweenLayouts) {
  for (const DType dtype : {DType::F32, DType::F16, DType::U8, DType::I64}) {
    std::vector<double> values;
    for (int i = 0; i < 2 * 3 * 4 * 5; ++i) values.push_back(i);
    const Tensor x = tensor_of(values, {2, 3, 4, 5}, dtype, device());
    const Tensor y = to_channels_last(x);
    ASSERT_EQ(y.shape(), (Shape{2, 4, 5, 3}));
    const std::vector<double> got = values_of(y);
    for (size_t n = 0; n < 2; ++n)
      for (size_t c = 0; c < 3; ++c)
        for (size_t h = 0; h < 4; ++h)
          for (size_t w = 0; w < 5; ++w)
            ASSERT_EQ(got[((n * 4 + h) * 5 + w) * 3 + c], values[((n * 3 + c) * 4 + h) * 5 + w]);
    EXPECT_EQ(values_of(to_channels_first(y)), values);
  }
}

TEST_P(ElementwiseTest, ViewsThatStartAtAnyElement) {
  for (const DType dtype : floating_dtypes())
    for (const int64_t n : {1, 3, 7, 8, 1023}) {
      const std::vector<double> values = rounded_to(dtype, noise(n + 1));
      const Tensor x = tensor_of(values, {n + 1}, dtype, device()).narrow(1, n);
      std::vector<double> expected;
      for (int64_t i = 1; i <= n; ++i) expected.push_back(-values[static_cast<size_t>(i)]);
      expect_close(values_of(unary(UnaryOp::Neg, x)), expected, 0, 0, "neg");
    }
}

}  // namespace
}  // namespace demi
