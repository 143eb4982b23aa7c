// The loader: which record is in which batch, and that this depends on seed, epoch and index alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "demi/data/loader.h"

namespace demi {
namespace {

// `size` images of 32x32, image i filled with the byte i % 256 and labelled i.
data::Dataset numbered(int64_t size) {
  data::Records records{Tensor::empty({size, 3, 32, 32}, DType::U8), Tensor::empty({size}, DType::I64)};
  for (int64_t i = 0; i < size; ++i) {
    std::fill_n(records.images.mutable_data<uint8_t>() + i * 3072, 3072, static_cast<uint8_t>(i % 256));
    records.labels.mutable_data<int64_t>()[i] = i;
  }
  return {"numbered", static_cast<int>(size), records, records};
}

constexpr data::Normalization kBytes{{0, 0, 0}, {1 / 255.f, 1 / 255.f, 1 / 255.f}};  // gives the byte itself

class Loader : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "cuda" && Device::best().is_cpu()) GTEST_SKIP() << "no CUDA device";
    device_ = Device::parse(GetParam());
  }
  Device device_;
};

std::vector<int64_t> labels_of(const data::Batches& batches) {
  std::vector<int64_t> all;
  for (const data::Batch& batch : batches) {
    const auto labels = batch.labels.to_vector<int64_t>();
    EXPECT_EQ(static_cast<int64_t>(labels.size()), batch.count);
    all.insert(all.end(), labels.begin(), labels.end());
  }
  return all;
}

std::vector<int64_t> sorted(std::vector<int64_t> v) {
  std::sort(v.begin(), v.end());
  return v;
}

std::vector<int64_t> counting(int64_t n) {
  std::vector<int64_t> v(static_cast<size_t>(n));
  std::iota(v.begin(), v.end(), int64_t{0});
  return v;
}

TEST_P(Loader, EveryRecordOnceAnEpochInAnotherOrderEach) {
  data::Source source(numbered(250));
  const auto first = labels_of(source.train({.batch = 64}, device_)),
             second = labels_of(source.train({.batch = 64}, device_));
  EXPECT_EQ(sorted(first), counting(250));
  EXPECT_EQ(sorted(second), counting(250));
  EXPECT_NE(first, second);
  EXPECT_NE(first, counting(250));
  EXPECT_EQ(labels_of(source.train({.batch = 10, .epoch = 0}, device_)), first);  // whatever the batch size
  EXPECT_EQ(labels_of(source.train({.batch = 64}, device_)), second);             // goes on from there
  EXPECT_NE(labels_of(source.train({.batch = 64, .seed = 1, .epoch = 0}, device_)), first);
}

TEST_P(Loader, TestSetInTheFilesOrder) {
  data::Source source(numbered(100));
  EXPECT_EQ(labels_of(source.test({.batch = 30}, device_)), counting(100));
  EXPECT_NE(labels_of(source.test({.batch = 30, .shuffle = true}, device_)), counting(100));
  EXPECT_EQ(labels_of(source.train({.batch = 30, .shuffle = false}, device_)), counting(100));
}

TEST_P(Loader, LastShortBatchKeptOrDropped) {
  data::Source source(numbered(101));
  const data::Batches kept = source.train({.batch = 50}, device_);
  const data::Batches dropped = source.train({.batch = 50, .drop_last = true}, device_);
  EXPECT_EQ(kept.size(), 3);
  EXPECT_EQ(kept.samples(), 101);
  EXPECT_EQ(kept.at(2).count, 1);
  EXPECT_EQ(kept.at(2).images.shape(), (Shape{1, 32, 32, 3}));
  EXPECT_EQ(labels_of(kept).size(), 101u);
  EXPECT_EQ(dropped.size(), 2);
  EXPECT_EQ(dropped.samples(), 100);
  EXPECT_EQ(labels_of(dropped).size(), 100u);
  EXPECT_EQ(source.train({.batch = 500}, device_).size(), 1);
  EXPECT_EQ(source.train({.batch = 500, .drop_last = true}, device_).size(), 0);
}

TEST_P(Loader, ImagesBelongToTheirLabels) {
  data::Source source(numbered(200));
  for (const data::Batch& batch :
       source.train({.batch = 32, .augment = data::flip_only, .normalization = kBytes}, device_)) {
    const auto images = batch.images.to_vector<float>();
    const auto labels = batch.labels.to_vector<int64_t>();
    for (size_t n = 0; n < labels.size(); ++n)
      for (const size_t i : {0, 1535, 3071}) ASSERT_NEAR(images[n * 3072 + i], static_cast<float>(labels[n]), 1e-3f);
  }
}

TEST_P(Loader, ABatchIsTheSameWhereverTheLoopStarts) {
  const data::LoadOptions options{.batch = 16, .augment = data::crop_and_flip, .seed = 5, .epoch = 7};
  data::Source source(numbered(100));
  const data::Batches all = source.train(options, device_);
  data::LoadOptions late = options;
  late.start_batch = 4;
  int64_t expected = 4;
  for (const data::Batch& batch : source.train(late, device_)) {
    EXPECT_EQ(batch.index, expected);
    const data::Batch same = all.at(expected++);
    EXPECT_EQ(batch.labels.to_vector<int64_t>(), same.labels.to_vector<int64_t>());
    EXPECT_EQ(batch.images.to_vector<float>(), same.images.to_vector<float>());
  }
  EXPECT_EQ(expected, all.size());
  late.start_batch = all.size();
  EXPECT_TRUE(labels_of(source.train(late, device_)).empty());
}

TEST_P(Loader, DevicesAgree) {
  const data::Dataset set = data::make_synthetic({.train = 64, .test = 0});
  const data::LoadOptions options{.batch = 64, .augment = data::crop_and_flip, .epoch = 1};
  const data::Batch here = data::Source(set).train(options, Device::cpu()).at(0);
  const data::Batch there = data::Source(set).train(options, device_).at(0);
  EXPECT_EQ(here.labels.to_vector<int64_t>(), there.labels.to_vector<int64_t>());
  const auto a = here.images.to_vector<float>(), b = there.images.to_vector<float>();
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-5f);
}

TEST_P(Loader, NormalizesAndCasts) {
  data::Source source(numbered(256));
  const data::Batches batches =
      source.test({.batch = 256, .normalization = data::half_normalization, .dtype = DType::F16}, device_);
  const Tensor images = batches.at(0).images;
  EXPECT_EQ(images.dtype(), DType::F16);
  const auto values = images.to_vector<Half>();
  EXPECT_EQ(static_cast<float>(values[0]), -1.0f);
  EXPECT_EQ(static_cast<float>(values[255 * 3072]), 1.0f);
  for (size_t i = 0; i < 256; ++i)
    EXPECT_NEAR(static_cast<float>(values[i * 3072]), static_cast<float>(i) / 127.5f - 1, 1e-3f);
}

TEST_P(Loader, RefusesWhatMakesNoSense) {
  data::Source source(numbered(20));
  EXPECT_THROW(source.train({.batch = 0}, device_), Error);
  EXPECT_THROW(source.train({.augment = {.pad = -1, .flip = false}}, device_), Error);
  EXPECT_THROW(source.train({.dtype = DType::I32}, device_), Error);
  EXPECT_THROW(source.train({.batch = 10, .start_batch = 3}, device_), Error);
  EXPECT_THROW(source.train({.batch = 10}, device_).at(2), Error);
  data::Source empty(numbered(0));
  EXPECT_EQ(empty.train({.batch = 10}, device_).size(), 0);
  EXPECT_TRUE(labels_of(empty.train({.batch = 10}, device_)).empty());
}

INSTANTIATE_TEST_SUITE_P(Devices, Loader, testing::Values("cpu", "cuda"),
                         [](const auto& i) { return std::string(i.param); });

}  // namespace
}  // namespace demi
