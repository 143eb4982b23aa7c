// What the tests share that compare CUDA's kernels with the CPU's: every dtype, odd shapes, tensors that start one
// element late, NaN and infinity, large means.
#pragma once

#include <gtest/gtest.h>

#include "demi/tests/devices.h"

namespace demi::test {

constexpr DType kDTypes[] = {DType::F32, DType::F16, DType::BF16};

class CudaKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_is_missing()) GTEST_SKIP() << "no CUDA device";
    device_ = Device::best();
  }
  // A copy on the device that starts `late` elements into its storage: at 1 its address suits no wide access.
  Tensor send(const Tensor& x, int64_t late = 0) const {
    if (!x.defined()) return x;
    Tensor flat = Tensor::empty({x.numel() + late}, x.dtype(), device_);
    Tensor view = flat.narrow(late, x.numel()).reshape(x.shape());
    view.copy_from(x);
    return view;
  }
  Tensor scalar(float v) const { return Tensor::scalar(v, device_); }
  Tensor flag(int32_t v) const { return Tensor::scalar(v, device_); }
  Device device_;
};

inline std::string named(const Shape& shape, DType dtype, int64_t late = 0) {
  return fmt::format("{} {}, {} late", dtype, shape, late);
}

// Results of one rounding to the dtype from sums that may differ in their last FP32 bits.
inline void expect_same(const Tensor& cuda, const Tensor& cpu, const std::string& what, double absolute = 1e-6,
                        double relative = 0) {
  ASSERT_EQ(cuda.defined(), cpu.defined()) << what;
  if (!cpu.defined()) return;
  ASSERT_EQ(cuda.shape(), cpu.shape()) << what;
  ASSERT_EQ(cuda.dtype(), cpu.dtype()) << what;
  if (relative == 0) relative = cpu.dtype() == DType::F32 ? 1e-5 : epsilon_of(cpu.dtype());
  expect_close(values_of(cuda), values_of(cpu), relative, absolute, what);
}

inline Tensor random(const Shape& shape, DType dtype, uint64_t seed, double scale = 1, double offset = 0) {
  std::vector<double> v = noise(shape.numel(), seed);
  for (double& one : v) one = one * scale + offset;
  return tensor_of(v, shape, dtype);
}

}  // namespace demi::test
