// Random numbers, dropout and augmentation, on every device.
#include <limits>
#include <set>

#include "demi/kernels/augment.h"
#include "demi/kernels/dropout.h"
#include "demi/kernels/fill.h"
#include "demi/kernels/random.h"
#include "demi/tests/devices.h"

namespace demi {
namespace {

using namespace kernels;  // NOLINT
using test::expect_close, test::tensor_of, test::values_of;
using Values = std::vector<double>;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class RandomTest : public test::OnDevice {
 protected:
  Tensor step(double value) const { return full({}, value, DType::I64, device()); }
};
DEMI_ON_ALL_DEVICES(RandomTest);
class DropoutTest : public RandomTest {};
DEMI_ON_ALL_DEVICES(DropoutTest);
class AugmentTest : public RandomTest {};
DEMI_ON_ALL_DEVICES(AugmentTest);

double mean_of(const Values& v) {
  double sum = 0;
  for (const double x : v) sum += x;
  return sum / static_cast<double>(v.size());
}

TEST_P(RandomTest, UniformElementsAreTheWordsOfTheirBlock) {
  for (const int64_t n : {1, 5, 1023}) {
    Tensor x = Tensor::empty({n}, DType::F32, device());
    fill_uniform(x, -1, 3, 7, 9);
    Values expected;
    for (int64_t i = 0; i < n; ++i)
      expected.push_back(-1 + 4.0 * static_cast<double>(Philox(7, 9, static_cast<uint64_t>(i / 4)).uniform(i % 4)));
    expect_close(values_of(x), expected, 0, 3e-7, "uniform");
  }
  Tensor x = Tensor::empty({100000}, DType::F32, device());
  fill_uniform(x, 0, 1, 1, 1);
  for (const double v : values_of(x)) ASSERT_TRUE(v >= 0 && v < 1);
  EXPECT_NEAR(mean_of(values_of(x)), 0.5, 0.003);
}

TEST_P(RandomTest, NormalHasItsMomentsAndBlocks) {
  Tensor x = Tensor::empty({200001}, DType::F32, device());
  fill_normal(x, 2, 3, 5, 6);
  const Values v = values_of(x);
  Values square, cube;
  for (const double a : v) square.push_back((a - 2) * (a - 2) / 9), cube.push_back(std::pow((a - 2) / 3, 3));
  EXPECT_NEAR(mean_of(v), 2, 0.03);
  EXPECT_NEAR(mean_of(square), 1, 0.02);
  EXPECT_NEAR(mean_of(cube), 0, 0.03);
  const Philox block(5, 6, 1);
  const double r = std::sqrt(-2 * std::log(1.0 - static_cast<double>(block.uniform(0))));
  const double angle = 2 * std::acos(-1.0) * static_cast<double>(block.uniform(1));
  EXPECT_NEAR(v[4], 2 + 3 * r * std::cos(angle), 1e-5);
  EXPECT_NEAR(v[5], 2 + 3 * r * std::sin(angle), 1e-5);
}

TEST_P(RandomTest, SeedingRestartsStepAndCalls) {
  manual_seed(11);
  RandomState& state = random_state(device());
  EXPECT_EQ(&state, &random_state(device()));
  EXPECT_EQ(state.seed, 11u);
  state.call = 5;
  fill(state.step, 9);
  manual_seed(12);
  EXPECT_EQ(state.seed, 12u);
  EXPECT_EQ(state.call, 0u);
  EXPECT_EQ(state.step.item<int64_t>(), 0);
  EXPECT_EQ(state.step.device(), device());
}

TEST_P(DropoutTest, KeepsTheShareItShouldAndScalesIt) {
  const int64_t n = 1000000;
  for (const DType dtype : floating_dtypes()) {
    const Tensor ones = full({n}, 1, dtype, device());
    expect_close(values_of(dropout(ones, 0, 1, step(0), 0).y), Values(n, 1), 0, 0, "p = 0");
    const DropoutResult none = dropout(ones, 1, 1, step(0), 0);
    expect_close(values_of(none.y), Values(n, 0), 0, 0, "p = 1");
    expect_close(values_of(dropout_backward(ones, none.mask, 1)), Values(n, 0), 0, 0, "p = 1 backward");
    const DropoutResult half = dropout(ones, 0.5, 1, step(0), 0);
    const Values y = values_of(half.y);
    for (const double v : y) ASSERT_TRUE(v == 0 || v == 2);
    EXPECT_NEAR(mean_of(y), 1, 0.003);
    EXPECT_EQ(values_of(dropout_backward(ones, half.mask, 0.5)), y) << "the gradient's mask is the forward's";
  }
}

TEST_P(DropoutTest, MasksDifferByCallStepAndSeedAndRepeatOtherwise) {
  const Tensor ones = full({1000}, 1, DType::F32, device());
  const auto mask = [&](uint64_t seed, double at, uint64_t call) {
    return values_of(dropout(ones, 0.5, seed, step(at), call).mask);
  };
  const std::set<Values> all{mask(1, 0, 0), mask(1, 0, 1), mask(1, 1, 0), mask(2, 0, 0)};
  EXPECT_EQ(all.size(), 4u);
  EXPECT_EQ(mask(1, 0, 0), mask(1, 0, 0));
  const Values kept = mask(3, 4, 5);
  for (size_t i = 0; i < kept.size(); ++i)
    ASSERT_EQ(kept[i] != 0, Philox(3, mix(4, 5), i / 4).uniform(static_cast<int>(i % 4)) >= 0.5f);
}

TEST_P(DropoutTest, DroppedInfinityIsZero) {
  for (const double value : {kInf, kNaN}) {
    const DropoutResult r = dropout(full({1001}, value, DType::F16, device()), 0.5, 1, step(0), 0);
    const Values y = values_of(r.y);
    const std::vector<uint8_t> kept = r.mask.to_vector<uint8_t>();
    for (size_t i = 0; i < y.size(); ++i) ASSERT_TRUE(kept[i] ? !std::isfinite(y[i]) : y[i] == 0);
  }
}

TEST_P(AugmentTest, MatchesTheFormulaInBothLayouts) {
  const int64_t count = 5, height = 6, width = 7;
  std::vector<uint8_t> bytes;
  for (int64_t i = 0; i < count * 3 * height * width; ++i) bytes.push_back(static_cast<uint8_t>(i * 37 % 256));
  const std::vector<int64_t> chosen{4, 0, 3, 3};
  const Tensor index = Tensor::from<int64_t>(chosen, {4}, device());
  for (const RecordLayout layout : {RecordLayout::CHW, RecordLayout::HWC})
    for (const int pad : {0, 2})
      for (const bool flip : {false, true})
        for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
          const bool chw = layout == RecordLayout::CHW;
          const Shape shape = chw ? Shape{count, 3, height, width} : Shape{count, height, width, 3};
          const AugmentOptions o{layout, pad, flip, {0.5f, 0.25f, 0.75f}, {0.5f, 2.0f, 1.0f}, 3, 8};
          const Tensor y = augment(Tensor::from<uint8_t>(bytes, shape, device()), index, o, dtype);
          ASSERT_EQ(y.shape(), (Shape{4, height, width, 3}));
          Values expected;
          for (const int64_t record : chosen) {
            const Philox random(o.seed, o.epoch, static_cast<uint64_t>(record));
            const int64_t span = 2 * pad + 1, dy = random.word[0] % span, dx = random.word[1] % span;
            const bool flipped = flip && random.word[2] >> 31;
            for (int64_t h = 0; h < height; ++h)
              for (int64_t w = 0; w < width; ++w)
                for (int64_t c = 0; c < 3; ++c) {
                  const int64_t row = h + dy - pad, column = (flipped ? width - 1 - w : w) + dx - pad;
                  double u = 0;
                  if (row >= 0 && row < height && column >= 0 && column < width)
                    u = bytes[static_cast<size_t>(chw ? ((record * 3 + c) * height + row) * width + column
                                                      : ((record * height + row) * width + column) * 3 + c)];
                  expected.push_back((u / 255 - o.mean[static_cast<size_t>(c)]) / o.std_dev[static_cast<size_t>(c)]);
                }
          }
          expect_close(values_of(y), expected, test::epsilon_of(dtype), 1e-6, "augment");
        }
}

TEST_P(AugmentTest, ARecordLooksTheSameWhereverItStandsInABatchAndNewEachEpoch) {
  std::vector<uint8_t> bytes(3 * 3 * 8 * 8);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 73 % 251);
  const Tensor records = Tensor::from<uint8_t>(bytes, {3, 3, 8, 8}, device());
  const auto image = [&](const std::vector<int64_t>& order, int64_t at, uint64_t epoch) {
    AugmentOptions o;
    o.pad = 4, o.flip = true, o.epoch = epoch;
    const Tensor index = Tensor::from<int64_t>(order, {static_cast<int64_t>(order.size())}, device());
    return values_of(augment(records, index, o, DType::F32).narrow(at, 1));
  };
  EXPECT_EQ(image({0, 1, 2}, 1, 0), image({1}, 0, 0));
  std::set<Values> epochs;
  for (uint64_t e = 0; e < 8; ++e) epochs.insert(image({1}, 0, e));
  EXPECT_GT(epochs.size(), 4u);
}

}  // namespace
}  // namespace demi
