// The built-in set: repeatable, balanced, not empty of content.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "demi/core/parallel.h"
#include "demi/data/synthetic.h"

namespace demi {
namespace {

std::vector<int> count_labels(const data::Records& records) {
  std::vector<int> count(10);
  for (const int64_t label : records.labels.to_vector<int64_t>()) ++count.at(static_cast<size_t>(label));
  return count;
}

TEST(Synthetic, BalancedInTheFormatOfCifar) {
  const data::Dataset set = data::make_synthetic({.train = 600, .test = 200});
  EXPECT_EQ(set.classes, 10);
  EXPECT_EQ(set.train.images.shape(), (Shape{600, 3, 32, 32}));
  EXPECT_EQ(set.test.images.shape(), (Shape{200, 3, 32, 32}));
  EXPECT_EQ(set.train.images.dtype(), DType::U8);
  EXPECT_EQ(count_labels(set.train), std::vector<int>(10, 60));
  EXPECT_EQ(count_labels(set.test), std::vector<int>(10, 20));
}

TEST(Synthetic, DependsOnTheSeedAlone) {
  const data::Dataset a = data::make_synthetic({.train = 200, .test = 100, .seed = 3});
  const int threads = num_threads();
  set_num_threads(threads == 1 ? 2 : 1);
  const data::Dataset b = data::make_synthetic({.train = 300, .test = 100, .seed = 3});
  set_num_threads(threads);
  EXPECT_EQ(std::memcmp(a.train.images.raw(), b.train.images.raw(), 200 * 3072), 0);
  EXPECT_EQ(a.test.images.to_vector<uint8_t>(), b.test.images.to_vector<uint8_t>());
  const data::Dataset c = data::make_synthetic({.train = 200, .test = 100, .seed = 4});
  EXPECT_NE(a.train.images.to_vector<uint8_t>(), c.train.images.to_vector<uint8_t>());
}

TEST(Synthetic, NoTwoImagesAreEqual) {
  const data::Dataset set = data::make_synthetic({.train = 150, .test = 150});
  std::vector<std::vector<uint8_t>> images;
  for (const data::Records* records : {&set.train, &set.test})
    for (int64_t i = 0; i < records->size(); ++i) images.push_back(records->images.narrow(i, 1).to_vector<uint8_t>());
  for (size_t i = 0; i < images.size(); ++i)
    for (size_t j = 0; j < i; ++j) ASSERT_NE(images[i], images[j]) << i << " and " << j;
}

TEST(Synthetic, EdgesOfTheOptions) {
  EXPECT_EQ(data::make_synthetic({.train = 0, .test = 0}).train.size(), 0);
  EXPECT_THROW(data::make_synthetic({.train = -1}), Error);
  EXPECT_EQ(data::synthetic_class_name(9), "checker");
  EXPECT_THROW(data::synthetic_class_name(10), Error);
}

}  // namespace
}  // namespace demi
