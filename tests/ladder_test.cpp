// Every step of the teaching ladders gives what the library's kernels give, on the same device.
#include "demi/bench/ladder/ladder.h"

#include <array>

#include "demi/core/cuda/graph.h"
#include "demi/kernels/batch_norm.h"
#include "demi/kernels/matmul.h"
#include "demi/kernels/reduce.h"
#include "demi/tests/cuda_kernels.h"

namespace demi {
namespace {

using namespace demi::bench;
using namespace demi::test;

class Ladder : public CudaKernels {
 protected:
  // A tensor on the device, all NaN: an element that a step leaves out stays one.
  Tensor unwritten(const Shape& shape, DType dtype) const {
    return tensor_of(std::vector<double>(static_cast<size_t>(shape.numel()), kNaN), shape, dtype, device_);
  }
};

void expect_product(const MatmulStep& step, int64_t m, int64_t n, int64_t k, Device device, Tensor c) {
  const Tensor a = random({m, k}, DType::F16, 1).to(device), b = random({n, k}, DType::F16, 2).to(device);
  step.run(a, b, c);
  // FP32 sums of k terms in another order, then one rounding.
  expect_same(c, kernels::matmul(a, b, false, true), fmt::format("{} {} x {} x {}", step.name, m, n, k),
              1e-6 * static_cast<double>(k), 0);
}

TEST_F(Ladder, MatmulStepsGiveTheLibrarysProduct) {
  constexpr int64_t kTiles[][3] = {{1, 1, 1}, {2, 1, 2}, {1, 3, 3}, {3, 2, 4}, {2, 2, 5}, {19, 3, 7}, {5, 9, 2}};
  for (const MatmulStep& step : matmul_steps())
    for (const auto& [tiles_m, tiles_n, tiles_k] : kTiles) {
      const int64_t m = tiles_m * step.multiple_m, n = tiles_n * step.multiple_n, k = tiles_k * step.multiple_k;
      expect_product(step, m, n, k, device_, unwritten({m, n}, DType::F16));
    }
}

TEST_F(Ladder, MatmulStepsAgreeOnCommonSizes) {
  for (const MatmulStep& step : matmul_steps())
    for (const auto& [m, n, k] :
         {std::array<int64_t, 3>{256, 512, 128}, {1280, 768, 1024}, {512, 256, 4096}, {2560, 3584, 192}})
      expect_product(step, m, n, k, device_, unwritten({m, n}, DType::F16));
}

TEST_F(Ladder, NaiveMatmulTakesAnyExtent) {
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{33, 9, 1}, {7, 65, 130}, {100, 1, 77}})
    expect_product(matmul_steps().front(), m, n, k, device_, unwritten({m, n}, DType::F16));
}

TEST_F(Ladder, MatmulWritesNothingButItsResult) {
  for (const MatmulStep& step : matmul_steps()) {
    const int64_t m = 2 * step.multiple_m, n = step.multiple_n * 8 / std::min(step.multiple_n, 8), k = step.multiple_k;
    Tensor around = unwritten({m + 2, n}, DType::F16);
    expect_product(step, m, n, k, device_, around.narrow(1, m));
    for (const Tensor& edge : {around.narrow(0, 1), around.narrow(m + 1, 1)})
      for (const double v : values_of(edge)) ASSERT_TRUE(std::isnan(v)) << step.name;
  }
}

TEST_F(Ladder, MatmulNamesTheMultipleThatIsWrong) {
  for (const MatmulStep& step : matmul_steps()) {
    const int64_t good[] = {step.multiple_m, step.multiple_n, step.multiple_k};
    for (int axis = 0; axis < 3; ++axis) {
      if (good[axis] == 1) continue;
      int64_t e[] = {good[0], good[1], good[2]};
      e[axis] += good[axis] / 2;
      const Tensor a = unwritten({e[0], e[2]}, DType::F16), b = unwritten({e[1], e[2]}, DType::F16);
      Tensor c = unwritten({e[0], e[1]}, DType::F16);
      EXPECT_EQ(error_of([&] { step.run(a, b, c); }),
                fmt::format("[{}] takes {} in multiples of {}, not {}", step.name, "mnk"[axis], good[axis], e[axis]));
    }
    Tensor c = unwritten({good[0], good[1]}, DType::F16);
    const Tensor a = unwritten({good[0], good[2]}, DType::F16), b = unwritten({good[1], 2 * good[2]}, DType::F16);
    EXPECT_NE(error_of([&] { step.run(a, b, c); }).find("takes a [m, k], b [n, k], c [m, n]"), std::string::npos);
    EXPECT_NE(error_of([&] { step.run(a, kernels::cast(a, DType::F32), c); }).find("b must be fp16, not fp32"),
              std::string::npos);
  }
}

Tensor sum_of(const SumStep& step, const Tensor& x) {
  Tensor y = tensor_of({kNaN}, {}, DType::F32, x.device());
  step.run(x, y);
  return y;
}

constexpr int64_t kCounts[] = {1, 7, 8, 31, 256, 257, 4095, 65'536, 65'537, 1'000'003, 3'000'000};

// Whole numbers whose sum stays below 2^24: exact in any order, so that a single term too few or too many shows.
TEST_F(Ladder, SumStepsCountEveryTermOnce) {
  for (const SumStep& step : sum_steps())
    for (DType dtype : {DType::F32, DType::F16})
      for (const int64_t n : kCounts) {
        std::vector<double> values = noise(n, 3);
        double expected = 0;
        for (double& v : values) expected += v = std::floor(std::fabs(v) * 8);
        const Tensor x = tensor_of(values, {n}, dtype, device_);
        EXPECT_EQ(sum_of(step, x).item<float>(), expected) << step.name << " " << named({n}, dtype);
      }
}

TEST_F(Ladder, SumStepsGiveTheLibrarysSum) {
  for (const SumStep& step : sum_steps())
    for (DType dtype : {DType::F32, DType::F16})
      for (const int64_t n : kCounts) {
        const Tensor x = random({n}, dtype, 4).to(device_);
        const Tensor library = kernels::reduce(kernels::ReduceOp::Sum, x, {}, false, DType::F32);
        expect_same(sum_of(step, x), library, std::string(step.name) + " " + named({n}, dtype),
                    1e-7 * static_cast<double>(n));
      }
}

TEST_F(Ladder, SumStepsRepeatBitByBitButForAtomics) {
  const Tensor x = random({1'000'003}, DType::F32, 5).to(device_);
  for (const SumStep& step : sum_steps()) {
    if (std::string(step.name) == "1_atomic") continue;
    const float first = sum_of(step, x).item<float>();
    for (int i = 0; i < 20; ++i) EXPECT_EQ(sum_of(step, x).item<float>(), first) << step.name;
  }
}

TEST_F(Ladder, SumStepsRefuseWhatTheyCannotTake) {
  const Tensor x = random({100}, DType::F16, 6);
  for (const SumStep& step : sum_steps()) {
    const bool wide = std::string(step.name) >= "4";
    EXPECT_EQ(error_of([&] { sum_of(step, send(x, 1)); }),
              wide ? fmt::format("[{}] x must start at a multiple of 16 bytes", step.name) : "");
    EXPECT_NE(error_of([&] { sum_of(step, send(kernels::cast(x, DType::BF16))); }).find("not bf16"), std::string::npos);
  }
}

void expect_normalized(const BatchNormStep& step, const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor y) {
  step.run(x, weight, bias, y);
  Tensor none_mean, none_var;
  const Tensor library = kernels::batch_norm_train(x, weight, bias, {}, none_mean, none_var, {}).y;
  expect_same(y, library, fmt::format("{} {}", step.name, x.shape()), 1e-3);
}

TEST_F(Ladder, BatchNormStepsGiveTheLibrarysResult) {
  for (const BatchNormStep& step : batch_norm_steps())
    for (const int64_t channels : {8, 64, 72, 200})
      for (const int64_t rows : {2, 3, 33, 500, 20'001})
        for (const double mean : {0.0, 100.0}) {  // at 100 FP16's steps are 1/16
          const Tensor x = random({rows, channels}, DType::F16, 7, 4, mean).to(device_);
          const Tensor weight = random({channels}, DType::F32, 8, 1, 1).to(device_);
          const Tensor bias = random({channels}, DType::F32, 9).to(device_);
          expect_normalized(step, x, weight, bias, unwritten({rows, channels}, DType::F16));
        }
}

TEST_F(Ladder, BatchNormStepsWithSmallAccessesTakeAnyNumberOfChannels) {
  for (const BatchNormStep& step : batch_norm_steps())
    for (const int64_t channels : {1, 3, 33, 100}) {
      const Tensor x = random({1234, channels}, DType::F16, 10).to(device_);
      const Tensor weight = random({channels}, DType::F32, 11).to(device_);
      const Tensor bias = random({channels}, DType::F32, 12).to(device_);
      Tensor y = unwritten(x.shape(), DType::F16);
      if (std::string(step.name) >= "3")
        EXPECT_EQ(error_of([&] { step.run(x, weight, bias, y); }),
                  fmt::format("[{}] takes C in multiples of 8, not {}", step.name, channels));
      else
        expect_normalized(step, x, weight, bias, y);
    }
}

TEST_F(Ladder, BatchNormOfEqualValuesIsTheBias) {
  for (const BatchNormStep& step : batch_norm_steps()) {
    const Tensor x = tensor_of(std::vector<double>(3000 * 16, 1234), {3000, 16}, DType::F16, device_);
    const Tensor weight = random({16}, DType::F32, 13).to(device_), bias = random({16}, DType::F32, 14).to(device_);
    Tensor y = unwritten(x.shape(), DType::F16);
    step.run(x, weight, bias, y);
    const std::vector<double> expected = rounded_to(DType::F16, values_of(bias)), got = values_of(y);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], expected[i % 16]) << step.name;
  }
}

TEST_F(Ladder, StepsRepeatBitByBitInAGraphToo) {
  const Tensor x = random({5000, 64}, DType::F16, 15, 4, 1).to(device_);
  const Tensor weight = random({64}, DType::F32, 16).to(device_), bias = random({64}, DType::F32, 17).to(device_);
  for (const BatchNormStep& step : batch_norm_steps()) {
    Tensor once = unwritten(x.shape(), DType::F16), again = unwritten(x.shape(), DType::F16);
    step.run(x, weight, bias, once);
    cuda::Graph graph([&] { step.run(x, weight, bias, again); }, 1, device_);
    again.copy_from(unwritten(x.shape(), DType::F16));
    for (int i = 0; i < 3; ++i) graph.replay();
    EXPECT_EQ(values_of(again), values_of(once)) << step.name;
  }
  const Tensor a = random({256, 128}, DType::F16, 18).to(device_), b = random({256, 128}, DType::F16, 19).to(device_);
  for (const MatmulStep& step : matmul_steps()) {
    Tensor once = unwritten({256, 256}, DType::F16), again = unwritten({256, 256}, DType::F16);
    step.run(a, b, once);
    cuda::Graph graph([&] { step.run(a, b, again); }, 1, device_);
    again.copy_from(unwritten({256, 256}, DType::F16));
    graph.replay();
    EXPECT_EQ(values_of(again), values_of(once)) << step.name;
  }
}

}  // namespace
}  // namespace demi
