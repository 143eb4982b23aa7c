// Whole training steps, from batch to weights: what a user would notice when a part of mixed precision is wrong.
#include <cmath>
#include <fstream>
#include <map>
#include <string_view>

#include "demi/core/memory.h"
#include "demi/kernels/fill.h"
#include "demi/nn/functional/arithmetic.h"
#include "training.h"

#if DEMI_CUDA
#include "demi/core/cuda/graph.h"
#endif

namespace demi::test {
namespace {

class TrainingStep : public OnDevice {};
DEMI_ON_ALL_DEVICES(TrainingStep);

TEST_P(TrainingStep, LearnsAFixedBatchInEveryPrecision) {
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    Training t(device(), dtype);
    t.step();
    const float first = t.loss.item<float>();
    for (int i = 0; i < 12; ++i) t.step();
    EXPECT_GT(first, 1.5f) << name_of(dtype);
    EXPECT_LT(t.loss.item<float>(), 0.5f * first) << name_of(dtype);
  }
}

TEST_P(TrainingStep, HalfPrecisionFollowsFp32) {
  Training full(device(), DType::F32), half(device(), DType::F16);
  for (int i = 0; i < 3; ++i) {
    full.step();
    half.step();
    EXPECT_NEAR(half.loss.item<float>(), full.loss.item<float>(), 0.05f * full.loss.item<float>()) << "step " << i;
  }
}

// The allocator's free memory, filled with one byte: what is allocated next holds it.
void fill_free_memory(Device device, int byte) {
  memory::release_cached(device);
  std::vector<Tensor> blocks;  // one for what is large, and what small tensors come from
  for (int i = 0; i < 65; ++i) {
    const int64_t mib = i > 0 ? 1 : device.is_cuda() ? 1024 : 256;
    blocks.push_back(Tensor::empty({mib << 20}, DType::U8, device));
    kernels::fill(blocks.back(), byte);
  }
}

// Nothing reads memory that nobody wrote: zeros or NaN (all bits set, in each dtype) beneath make no difference.
TEST_P(TrainingStep, BitsDoNotDependOnWhatFreshMemoryHeld) {
  set_deterministic(true);
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    std::map<std::string, std::vector<double>> after[2];
    for (const int byte : {0, 255}) {
      fill_free_memory(device(), byte);
      Training t(device(), dtype);
      const size_t held = memory::statistics(device()).reserved;
      for (int i = 0; i < 4; ++i) t.step();
      EXPECT_EQ(memory::statistics(device()).reserved, held) << "some memory did not come from what was filled";
      after[byte / 255] = t.everything();
    }
    EXPECT_EQ(after[0], after[1]) << name_of(dtype);
  }
  set_deterministic(false);
}

// A skipped step leaves no trace: weights, momentum, counters, learning rate and running statistics keep their bits.
TEST_P(TrainingStep, OverflowLeavesNoTraceInWeightsMomentumScheduleOrRunningStatistics) {
  Training t(device(), DType::F16);
  t.step();
  const auto before = t.everything();
  const double scale = t.scaler.get_scale();
  const Tensor good = t.images.clone();
  std::vector<double> values = values_of(t.images);
  values[100] = 70000;  // infinity in FP16
  t.images = tensor_of(values, t.images.shape(), DType::F32, device());
  EXPECT_TRUE(t.step().skipped());
  EXPECT_EQ(t.everything(), before);
  EXPECT_EQ(t.scaler.get_scale(), scale / 2);
  t.images = good;
  t.model->eval();
  {
    const NoGrad off;
    for (double v : values_of((*t.model)(t.images).tensor())) EXPECT_TRUE(std::isfinite(v));
  }
  t.model->train();
  EXPECT_FALSE(t.step().skipped());
  EXPECT_NE(t.everything(), before);
}

// A skipped step and then the same data give exactly what the data alone give.
TEST_P(TrainingStep, GoesOnAfterASkipAsIfItHadNotHappened) {
  Training skips(device(), DType::F16), straight(device(), DType::F16, 512);
  const Tensor good = skips.images.clone();
  Tensor bad = good.clone();
  kernels::fill(bad, 1e30);
  skips.images = bad;
  EXPECT_TRUE(skips.step().skipped());  // 1024 falls to 512
  skips.images = good;
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(skips.step().skipped());
    straight.step();
  }
  EXPECT_EQ(skips.everything(), straight.everything());
}

// On a fixed batch the first scale that fits is known beforehand: the largest 16-bit gradient is the FP32 one, scaled.
TEST_P(TrainingStep, ComesDownFromAScaleFarTooLargeInThePredictedNumberOfSteps) {
  Training full(device(), DType::F32), half(device(), DType::F16, 0x1p40);
  full.step();
  double largest = 0;
  for (const Parameter& p : full.sgd->parameters())
    if (p.shape().rank() >= 2)  // norms have FP32 gradients
      for (const double g : values_of(p.grad())) largest = std::max(largest, std::fabs(g));
  const double predicted = std::ceil(std::log2(0x1p40 * largest / 65504));
  const auto expect_finite = [&] {
    const NoGrad off;
    half.model->eval();
    for (const double v : values_of((*half.model)(half.images).tensor())) ASSERT_TRUE(std::isfinite(v));
    half.model->train();
  };
  const auto before = half.everything();
  int skipped = 0;
  for (; half.step().skipped(); ++skipped) {
    ASSERT_LT(skipped, 60);
    EXPECT_EQ(half.everything(), before);
    expect_finite();
  }
  EXPECT_NEAR(skipped, predicted, 1) << "largest gradient " << largest;
  EXPECT_EQ(half.scaler.get_scale(), std::ldexp(1, 40 - skipped));
  for (int i = 0; i < 6; ++i) half.step();
  expect_finite();
  EXPECT_LT(half.loss.item<float>(), 0.7f * full.loss.item<float>()) << "it learns";
}

// One layer's own precision holds inside a region and outside of it, and gradients come back to the layers below.
TEST_P(TrainingStep, SetPrecisionFixesTheClassifierAndNothingElse) {
  Training t(device(), DType::F16);
  const auto logits = [&] {
    const amp::Autocast region(DType::F16);
    return (*t.model)(t.images);
  };
  EXPECT_EQ(logits().dtype(), DType::F16);
  t.model->classifier().set_precision(DType::F32);
  EXPECT_EQ(logits().dtype(), DType::F32);
  t.step();
  for (const auto& [name, p] : t.model->named_parameters()) {
    ASSERT_TRUE(p.grad().defined()) << name;
    const bool sixteen_bits = p.shape().rank() == 4;  // filters; norms and the classifier are FP32
    EXPECT_EQ(p.grad().dtype(), sixteen_bits ? DType::F16 : DType::F32) << name;
  }
}

TEST_P(TrainingStep, MixedInputsMeetInFp32AndADisabledRegionUsesTheMaster) {
  const Variable wide(tensor_of({1}, {1, 1}, DType::F32, device())), half(tensor_of({1}, {1, 1}, DType::F16, device())),
      brain(tensor_of({1}, {1, 1}, DType::BF16, device()));
  const Parameter w(tensor_of({1 + 0x1p-20}, {1, 1}, DType::F32, device()));  // rounds to 1 in 16 bits
  for (const auto& low : {half, brain}) {
    EXPECT_EQ((low + wide).dtype(), DType::F32);
    EXPECT_EQ(linear(low, wide).dtype(), DType::F32);
  }
  EXPECT_EQ((half + brain).dtype(), DType::F32);
  EXPECT_EQ(linear(half, brain).dtype(), DType::F32);
  const amp::Autocast region(DType::F16);
  EXPECT_EQ(values_of(linear(half, w).tensor())[0], 1);
  {
    const amp::Autocast off(DType::F16, false);
    EXPECT_EQ(linear(half, half).dtype(), DType::F16);
    EXPECT_EQ((brain + brain).dtype(), DType::BF16);
    const Variable y = linear(half, w);
    EXPECT_EQ(y.dtype(), DType::F32);
    EXPECT_EQ(values_of(y.tensor())[0], 1 + 0x1p-20);
  }
  EXPECT_EQ(linear(half, w).dtype(), DType::F16);
}

// docs/mixed_precision.md shows the table that this code follows.
TEST(AutocastTable, IsTheOneInTheDocs) {
  std::ifstream in(std::string(DEMI_SOURCE_DIR) + "/docs/mixed_precision.md");
  const std::string page{std::istreambuf_iterator<char>(in), {}};
  EXPECT_NE(page.find(amp::op_table()), std::string::npos) << "put this into docs/mixed_precision.md:\n"
                                                           << amp::op_table();
}

// The printed table is the policy: each operation once, under the rule that prepare() follows.
TEST(AutocastTable, ListsEachOperationOnceAndCastsAsItSays) {
  std::map<std::string_view, amp::Rule> seen;
  for (const amp::OpRule& r : amp::op_rules()) {
    EXPECT_TRUE(seen.emplace(r.op, r.rule).second) << r.op;
    EXPECT_EQ(amp::find_rule(r.op), &r);
  }
  EXPECT_EQ(amp::find_rule("no such operation"), nullptr);
  const Variable wide(Tensor::zeros({2}, DType::F32)), half(Tensor::zeros({2}, DType::F16));
  const amp::Autocast region(DType::F16);
  for (const auto& [op, rule] : seen) {
    EXPECT_NE(amp::op_table().find(fmt::format("| {} |", op)), std::string::npos) << op;
    const DType of_wide = amp::prepare(op, {wide})[0].dtype(), of_half = amp::prepare(op, {half})[0].dtype();
    EXPECT_EQ(of_wide, rule == amp::Rule::Lower ? DType::F16 : DType::F32) << op;
    EXPECT_EQ(of_half, rule == amp::Rule::Float32 ? DType::F32 : DType::F16) << op;
    EXPECT_EQ(amp::prepare(op, {wide, half})[1].dtype(), of_wide)
        << op;  // together: the rule's dtype, or the wider one
  }
}

#if DEMI_CUDA
// A synchronization inside a capture is an error, so a step that is captured has none; and a replayed step is the eager
// one.
TEST(TrainingStepGraph, AWholeStepIsCapturedAndReplaysToTheSameBits) {
  if (cuda_is_missing()) GTEST_SKIP() << "no CUDA device";
  set_deterministic(true);
  for (const DType dtype : {DType::F32, DType::F16}) {
    Training eager(Device::cuda(), dtype), replayed(Device::cuda(), dtype);
    for (int i = 0; i < 8; ++i) eager.step();
    cuda::Graph graph([&] { (void)replayed.step(); }, 3);
    for (int i = 0; i < 5; ++i) graph.replay();
    EXPECT_EQ(replayed.everything(), eager.everything()) << name_of(dtype);
    EXPECT_EQ(replayed.scaler.get_scale(), eager.scaler.get_scale());
  }
  set_deterministic(false);
}
#endif

}  // namespace
}  // namespace demi::test
