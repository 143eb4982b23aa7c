// Three tests of every operation in op_cases.cpp, forward and backward: finite differences in FP64, CPU against CUDA,
// and 16-bit against FP32 on the CPU.
#include "op_cases.h"

#include <cmath>

#include "demi/autograd/engine.h"
#include "devices.h"

namespace demi::test {
namespace {

using Values = std::vector<double>;

struct Computed {
  std::vector<Values> results, gradients;
};

class OpCaseTest : public ::testing::TestWithParam<OpCase> {
 protected:
  // The case's inputs, the same at every call; rounded to `rounding` first, so that a wider dtype sees the same values.
  std::vector<Values> draw(DType rounding) const {
    std::vector<Values> all;
    uint64_t seed = 0;
    for (const OpInput& in : GetParam().inputs) {
      Values v = noise(in.shape.numel(), ++seed);
      for (double& e : v) e = in.low + (e + 1) / 2 * (in.high - in.low);
      all.push_back(in.wide && is_16bit(rounding) ? rounded_to(DType::F32, v) : rounded_to(rounding, v));
    }
    return all;
  }
  std::vector<Variable> leaves(const std::vector<Values>& values, DType dtype, Device device, bool grad = true) const {
    std::vector<Variable> all;
    for (size_t i = 0; i < values.size(); ++i) {
      const OpInput& in = GetParam().inputs[i];
      const DType d = in.wide && is_16bit(dtype) ? DType::F32 : dtype;
      all.emplace_back(tensor_of(values[i], in.shape, d, device), grad);
    }
    return all;
  }
  // The gradient of the first result: BF16 holds it, so it is one in every dtype.
  static Tensor seed_of(const Variable& y) {
    return tensor_of(rounded_to(DType::BF16, noise(y.tensor().numel(), 99)), y.shape(), y.dtype(), y.device());
  }
  Computed compute(const std::vector<Values>& values, DType dtype, Device device) const {
    const std::vector<Variable> in = leaves(values, dtype, device);
    const std::vector<Variable> results = GetParam().run(in);
    backward(results[0], seed_of(results[0]));
    Computed c;
    for (const Variable& r : results) c.results.push_back(values_of(r.tensor()));
    for (const Variable& v : in) {
      EXPECT_TRUE(v.grad().defined());
      if (!v.grad().defined()) continue;
      EXPECT_EQ(v.grad().shape(), v.shape());
      EXPECT_EQ(v.grad().dtype(), v.dtype());
      c.gradients.push_back(values_of(v.grad()));
    }
    return c;
  }
  // max |a - b| / max |b|, with a floor for what cancels.
  static double error(const Values& a, const Values& b, double floor) {
    double worst = 0, largest = floor;
    if (a.size() != b.size()) return INFINITY;
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
      const double difference = std::fabs(a[i] - b[i]);
      worst = std::isfinite(difference) ? std::max(worst, difference) : INFINITY;
      largest = std::max(largest, std::fabs(b[i]));
    }
    return worst / largest;
  }
  static void expect_equal(const Computed& a, const Computed& b, double limit, const std::string& what) {
    ASSERT_EQ(a.results.size(), b.results.size());
    ASSERT_EQ(a.gradients.size(), b.gradients.size());
    for (size_t i = 0; i < a.results.size(); ++i)
      EXPECT_LE(error(a.results[i], b.results[i], 1e-2), limit) << what << ", result " << i;
    for (size_t i = 0; i < a.gradients.size(); ++i)
      EXPECT_LE(error(a.gradients[i], b.gradients[i], 1e-1), limit) << what << ", gradient of input " << i;
  }
};

INSTANTIATE_TEST_SUITE_P(, OpCaseTest, ::testing::ValuesIn(op_cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(OpCaseTest, GradientsAreFiniteDifferences) {
  if (!GetParam().finite_differences) GTEST_SKIP() << "no FP64 form";
  std::vector<Values> values = draw(DType::F64);
  const Computed analytic = compute(values, DType::F64, Device::cpu());
  const NoGrad off;
  auto weighted = [&] {  // the function whose gradient backward gave: sum of seed * y
    const Variable y = GetParam().run(leaves(values, DType::F64, Device::cpu(), false))[0];
    const Values v = values_of(y.tensor()), g = values_of(seed_of(y));
    double total = 0;
    for (size_t i = 0; i < v.size(); ++i) total += v[i] * g[i];
    return total;
  };
  for (size_t input = 0; input < values.size(); ++input) {
    Values& x = values[input];
    const Values& gradient = analytic.gradients.at(input);
    double largest = 0;
    for (double g : gradient) largest = std::max(largest, std::fabs(g));
    const size_t stride = std::max<size_t>(1, x.size() / 40);  // some 40 elements of each input
    for (size_t i = 0; i < x.size(); i += stride) {
      const double h = 1e-5, at = x[i];
      x[i] = at + h;
      const double above = weighted();
      x[i] = at - h;
      const double below = weighted();
      x[i] = at;
      ASSERT_NEAR(gradient[i], (above - below) / (2 * h), 1e-6 * (1 + largest))
          << "input " << input << ", element " << i;
    }
  }
}

TEST_P(OpCaseTest, CpuAndCudaAgree) {
  const WithoutPlanSearch quick;
  if (cuda_is_missing()) GTEST_SKIP() << "no CUDA device";
  struct Limit {
    DType dtype;
    double limit;
  };
  for (const Limit& l : {Limit{DType::F32, 4e-6}, Limit{DType::F16, 1e-3}, Limit{DType::BF16, 8e-3}}) {
    const auto values = draw(l.dtype);
    expect_equal(compute(values, l.dtype, Device::cuda()), compute(values, l.dtype, Device::cpu()),
                 l.limit * (is_16bit(l.dtype) ? GetParam().roundings : GetParam().slack),
                 std::string(name_of(l.dtype)));
  }
}

TEST_P(OpCaseTest, SixteenBitsFollowFp32) {
  struct Limit {
    DType dtype;
    double limit;
  };
  for (const Limit& l : {Limit{DType::F16, 1e-3}, Limit{DType::BF16, 8e-3}}) {
    const auto values = draw(l.dtype);
    expect_equal(compute(values, l.dtype, Device::cpu()), compute(values, DType::F32, Device::cpu()),
                 l.limit * GetParam().roundings, std::string(name_of(l.dtype)));
  }
}

}  // namespace
}  // namespace demi::test
