// Tests that run on every device: the CPU, and CUDA, whose tests count as skipped where there is none.
//
//   class ReluTest : public demi::test::OnDevice {};
//   DEMI_ON_ALL_DEVICES(ReluTest);
//   TEST_P(ReluTest, KeepsNaN) { ... device() ... }
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "demi/core/backend.h"
#include "demi/kernels/cast.h"

namespace demi::test {

inline bool cuda_is_missing() { return backend::device_count() == 0; }

class OnDevice : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "cuda" && cuda_is_missing()) GTEST_SKIP() << "no CUDA device";
    device_ = Device::parse(GetParam());
  }
  Device device() const { return device_; }
  // What both backends compute in; FP64 is added where there is no device to do without it.
  std::vector<DType> floating_dtypes() const {
    std::vector<DType> dtypes{DType::F32, DType::F16, DType::BF16};
    if (device_.is_cpu()) dtypes.push_back(DType::F64);
    return dtypes;
  }

 private:
  Device device_;
};

// Convolution plans are not timed while one lives: for tests of many shapes, where the search would take most of the
// time.
struct WithoutPlanSearch {
  WithoutPlanSearch() { set_deterministic(true); }
  ~WithoutPlanSearch() { set_deterministic(false); }
};

inline std::string device_name(const ::testing::TestParamInfo<std::string>& info) { return info.param; }

#define DEMI_ON_ALL_DEVICES(Fixture) \
  INSTANTIATE_TEST_SUITE_P(, Fixture, ::testing::Values("cpu", "cuda"), ::demi::test::device_name)

// A tensor of the dtype holding the values, each rounded once.
inline Tensor tensor_of(const std::vector<double>& values, const Shape& shape, DType dtype, Device device = {}) {
  return kernels::cast(Tensor::from<double>(values, shape), dtype).to(device);
}

// All elements as double, whatever the dtype and device.
inline std::vector<double> values_of(const Tensor& x) {
  return kernels::cast(x.to(Device::cpu()), DType::F64).to_vector<double>();
}

constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();

// The spacing of values near 1.
inline double epsilon_of(DType dtype) {
  return dtype == DType::F64 ? 0x1p-52 : dtype == DType::F32 ? 0x1p-23 : dtype == DType::F16 ? 0x1p-10 : 0x1p-7;
}

// Each element within absolute + relative * |expected|; NaN equals NaN, an infinity itself.
inline void expect_close(const std::vector<double>& actual, const std::vector<double>& expected, double relative,
                         double absolute, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double a = actual[i], e = expected[i];
    if ((std::isnan(a) && std::isnan(e)) || a == e) continue;
    ASSERT_LE(std::fabs(a - e), absolute + relative * std::fabs(e))
        << what << ", element " << i << ": " << a << ", not " << e;
  }
}

// A fixed series of numbers in [-1, 1] without a pattern.
inline std::vector<double> noise(int64_t n, uint64_t seed = 1) {
  std::vector<double> values(static_cast<size_t>(n));
  uint64_t state = seed * 0x9E3779B97F4A7C15ull + 1;
  for (double& v : values) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    v = static_cast<double>(static_cast<int64_t>(state >> 11)) * 0x1p-52 - 1.0;
  }
  return values;
}

// The values as the dtype holds them.
inline std::vector<double> rounded_to(DType dtype, const std::vector<double>& values) {
  return values_of(tensor_of(values, Shape{static_cast<int64_t>(values.size())}, dtype));
}

// The message of the Error that f throws; empty when it throws none.
template <typename F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace demi::test
