// The types that everything is built from: 16-bit floats, shapes, tensors, random numbers, the thread pool.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>
#include <stdexcept>
#include <vector>

#include "demi/core/backend.h"
#include "demi/core/parallel.h"
#include "demi/core/random.h"
#include "demi/core/tensor.h"

namespace demi {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Half half_of_bits(uint16_t bits) {
  Half h;
  h.bits = bits;
  return h;
}

// What a bit pattern means, by the definition in IEEE 754.
double half_value(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) return fraction ? std::numeric_limits<double>::quiet_NaN() : sign * kInfinity;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

TEST(Half, EveryBitPatternWidensExactlyAndComesBack) {
  for (uint32_t u = 0; u < 0x10000; ++u) {
    const auto bits = static_cast<uint16_t>(u);
    const double expected = half_value(bits);
    const float wide = half_of_bits(bits), software = detail::half_to_float(bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide) && std::isnan(software)) << u;
      ASSERT_TRUE(std::isnan(static_cast<float>(Half(wide)))) << u;
      ASSERT_TRUE(std::isnan(detail::half_to_float(detail::half_from_float(software)))) << u;
      continue;
    }
    ASSERT_EQ(wide, expected) << u;
    ASSERT_EQ(std::signbit(wide), std::signbit(expected)) << u;
    ASSERT_EQ(detail::bits_of(software), detail::bits_of(wide)) << u;
    ASSERT_EQ(Half(wide).bits, bits);
    ASSERT_EQ(detail::half_from_float(wide), bits);
  }
}

TEST(Half, NarrowingRoundsToNearestEven) {
  const auto narrow = [](float f) {
    EXPECT_EQ(Half(f).bits, detail::half_from_float(f)) << f;
    EXPECT_EQ(Half(-f).bits, detail::half_from_float(-f)) << -f;
    EXPECT_EQ(Half(-f).bits, Half(f).bits | 0x8000) << f;
    return static_cast<float>(Half(f));
  };
  EXPECT_EQ(narrow(65504.0f), 65504.0f);
  EXPECT_EQ(narrow(65519.0f), 65504.0f);
  EXPECT_EQ(narrow(std::nextafter(65520.0f, 0.0f)), 65504.0f);
  EXPECT_EQ(narrow(65520.0f), kInfinity);
  EXPECT_EQ(narrow(1e30f), kInfinity);
  EXPECT_EQ(narrow(kInfinity), kInfinity);
  EXPECT_EQ(narrow(0x1p-24f), 0x1p-24f);  // the smallest subnormal
  EXPECT_EQ(narrow(0x1p-25f), 0.0f);      // a tie, to even
  EXPECT_EQ(narrow(std::nextafter(0x1p-25f, 1.0f)), 0x1p-24f);
  EXPECT_EQ(narrow(0x1.8p-24f), 0x1p-23f);  // a tie between 1 and 2 units
  EXPECT_EQ(narrow(0x1.4p-23f), 0x1p-23f);  // a tie between 2 and 3
  EXPECT_EQ(narrow(0x1p-126f), 0.0f);
  EXPECT_EQ(narrow(std::numeric_limits<float>::denorm_min()), 0.0f);
  EXPECT_EQ(narrow(1.0f + 0x1p-11f), 1.0f);
  EXPECT_EQ(narrow(1.0f + 0x1.8p-10f), 1.0f + 0x1p-9f);
  EXPECT_EQ(narrow(2049.0f), 2048.0f);
  EXPECT_EQ(narrow(2051.0f), 2052.0f);
  EXPECT_EQ(narrow(0x1.ffep-15f), 0x1p-14f);  // the last subnormal and a half: up to the first normal
  EXPECT_EQ(narrow(0.0f), 0.0f);
}

TEST(Half, NarrowingIsRightAroundEveryValue) {
  // Between neighbours a < b everything below the middle goes to a, above to b, the middle to the even one.
  for (uint16_t bits = 0; bits < 0x7bff; ++bits) {
    const auto a = static_cast<float>(half_value(bits)), b = static_cast<float>(half_value(bits + 1));
    const float middle = 0.5f * (a + b);  // exact in FP32
    ASSERT_EQ(Half(std::nextafter(middle, a)).bits, bits);
    ASSERT_EQ(Half(std::nextafter(middle, b)).bits, bits + 1);
    ASSERT_EQ(Half(middle).bits, bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(detail::half_from_float(std::nextafter(middle, a)), bits);
    ASSERT_EQ(detail::half_from_float(std::nextafter(middle, b)), bits + 1);
    ASSERT_EQ(detail::half_from_float(middle), bits % 2 == 0 ? bits : bits + 1);
  }
}

TEST(BFloat16, WidensExactlyAndRoundsToNearestEven) {
  for (uint32_t u = 0; u < 0x10000; ++u) {
    BFloat16 b;
    b.bits = static_cast<uint16_t>(u);
    const float wide = b;
    ASSERT_EQ(detail::bits_of(wide), u << 16);
    if (std::isnan(wide))
      ASSERT_TRUE(std::isnan(static_cast<float>(BFloat16(wide))));
    else
      ASSERT_EQ(BFloat16(wide).bits, b.bits);
  }
  const auto narrow = [](float f) { return static_cast<float>(BFloat16(f)); };
  EXPECT_EQ(narrow(1.0f + 0x1p-8f), 1.0f);
  EXPECT_EQ(narrow(1.0f + 0x1.8p-7f), 1.0f + 0x1p-6f);
  EXPECT_EQ(narrow(std::nextafter(1.0f + 0x1p-8f, 2.0f)), 1.0f + 0x1p-7f);
  EXPECT_EQ(narrow(std::numeric_limits<float>::max()), kInfinity);
  EXPECT_EQ(narrow(-kInfinity), -kInfinity);
  EXPECT_TRUE(std::isnan(narrow(detail::float_of(0x7f800001u))));  // a NaN whose upper half is infinity's
}

TEST(DType, NamesAndSizes) {
  for (DType d : {DType::F32, DType::F16, DType::BF16, DType::F64, DType::I32, DType::I64, DType::U8})
    EXPECT_EQ(dtype_from_name(name_of(d)), d);
  EXPECT_EQ(size_of(DType::F16), 2u);
  EXPECT_EQ(size_of(DType::I64), 8u);
  EXPECT_EQ(fmt::format("{}", DType::BF16), "bf16");
  EXPECT_THROW((void)dtype_from_name("fp8"), Error);
  EXPECT_TRUE(is_floating(DType::F64) && !is_floating(DType::U8) && is_16bit(DType::BF16) && !is_16bit(DType::F32));
  EXPECT_THROW(visit_training(DType::F64, "op", [](auto) {}), Error);
}

TEST(Shape, ExtentsAndErrors) {
  const Shape s{2, 3, 4};
  EXPECT_EQ(s.rank(), 3);
  EXPECT_EQ(s.numel(), 24);
  EXPECT_EQ(s[-1], 4);
  EXPECT_EQ(s.str(), "[2, 3, 4]");
  EXPECT_EQ(Shape{}.numel(), 1);
  EXPECT_EQ(Shape{}.str(), "[]");
  EXPECT_EQ((Shape{5, 0, 7}).numel(), 0);
  EXPECT_EQ((Shape{int64_t{1} << 20, int64_t{1} << 20}).numel(), int64_t{1} << 40);
  EXPECT_FALSE((Shape{2, 3}) == (Shape{2, 3, 1}));
  EXPECT_THROW((void)s[3], Error);
  EXPECT_THROW((void)s[-4], Error);
  EXPECT_THROW((Shape{2, -1}), Error);
  EXPECT_THROW((Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}), Error);
}

TEST(Shape, Broadcast) {
  EXPECT_EQ(broadcast("op", Shape{2, 3}, Shape{3}), (Shape{2, 3}));
  EXPECT_EQ(broadcast("op", Shape{4, 1, 3}, Shape{5, 1}), (Shape{4, 5, 3}));
  EXPECT_EQ(broadcast("op", Shape{}, Shape{2, 2}), (Shape{2, 2}));
  EXPECT_EQ(broadcast("op", Shape{0, 3}, Shape{1, 3}), (Shape{0, 3}));
  EXPECT_EQ(broadcast("op", Shape{1}, Shape{0}), (Shape{0}));
  try {
    (void)broadcast("add", Shape{2, 3}, Shape{2});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[add] shapes [2, 3] and [2] do not broadcast");
  }
  EXPECT_THROW((void)broadcast("op", Shape{0}, Shape{2}), Error);
}

TEST(Tensor, ViewsShareElements) {
  Tensor t = Tensor::from<float>({0, 1, 2, 3, 4, 5}, {3, 2});
  Tensor rows = t.narrow(1, 2);
  EXPECT_EQ(rows.shape(), (Shape{2, 2}));
  EXPECT_EQ(rows.to_vector<float>(), (std::vector<float>{2, 3, 4, 5}));
  EXPECT_EQ(rows.narrow(1, 1).to_vector<float>(), (std::vector<float>{4, 5}));
  EXPECT_TRUE(rows.same_storage(t));
  const uint64_t before = t.version();
  rows.mutable_data<float>()[0] = 20;
  EXPECT_GT(t.version(), before);
  EXPECT_EQ(t.to_vector<float>(), (std::vector<float>{0, 1, 20, 3, 4, 5}));
  EXPECT_EQ(t.reshape({-1, 3}).shape(), (Shape{2, 3}));
  EXPECT_EQ(t.flatten().shape(), Shape{6});
  EXPECT_EQ(t.narrow(3, 0).numel(), 0);
  EXPECT_THROW((void)t.narrow(2, 2), Error);
  EXPECT_THROW((void)t.narrow(-1, 1), Error);
  EXPECT_THROW((void)t.reshape({4, 2}), Error);
  EXPECT_THROW((void)t.reshape({-1, 4}), Error);
  EXPECT_THROW((void)t.reshape({-1, -1}), Error);
}

TEST(Tensor, CopiesAndErrors) {
  const Tensor t = Tensor::from<int32_t>({1, 2, 3}, {3});
  Tensor c = t.clone();
  EXPECT_FALSE(c.same_storage(t));
  c.zero();
  EXPECT_EQ(t.to_vector<int32_t>(), (std::vector<int32_t>{1, 2, 3}));
  c.copy_from(t);
  EXPECT_EQ(c.to_vector<int32_t>(), t.to_vector<int32_t>());
  EXPECT_TRUE(t.to(Device::cpu()).same_storage(t));
  EXPECT_THROW(c.copy_from(Tensor::zeros(Shape{2}, DType::I32)), Error);
  EXPECT_THROW(c.copy_from(Tensor::zeros(Shape{3}, DType::F32)), Error);
  EXPECT_THROW((void)t.data<float>(), Error);
  EXPECT_THROW((void)t.item<int32_t>(), Error);
  EXPECT_THROW((void)Tensor::from<float>({1, 2}, {3}), Error);
  EXPECT_EQ(Tensor::scalar<double>(2.5).item<double>(), 2.5);
  EXPECT_FALSE(Tensor().defined());
  EXPECT_THROW((void)Tensor().data<float>(), Error);
}

TEST(Tensor, EmptyTensorsWork) {
  Tensor t = Tensor::zeros(Shape{0, 5}, DType::F16);
  EXPECT_EQ(t.numel(), 0);
  EXPECT_EQ(t.raw(), nullptr);
  EXPECT_TRUE(t.to_vector<Half>().empty());
  EXPECT_EQ(t.clone().shape(), (Shape{0, 5}));
  EXPECT_EQ(t.narrow(0, 0).numel(), 0);
}

TEST(Device, ParsesAndNames) {
  EXPECT_EQ(Device::parse("cpu"), Device::cpu());
  EXPECT_EQ(Device::cpu().str(), "cpu");
  EXPECT_EQ(Device::parse("auto"), Device::best());
  EXPECT_THROW((void)Device::parse("gpu"), Error);
  EXPECT_THROW((void)Device::parse("cuda:"), Error);
  EXPECT_THROW((void)Device::parse("cuda:1x"), Error);
  EXPECT_THROW((void)Device::cuda(backend::device_count()), Error);
  EXPECT_FALSE(backend::versions().built_with.empty());
  synchronize(Device::cpu());
}

TEST(Philox, KnownAnswers) {
  // The authors' own test vectors, philox4x32-10.
  const auto words = [](const Philox& p) { return std::vector<uint32_t>(p.word, p.word + 4); };
  EXPECT_EQ(words(Philox(0, 0, 0)), (std::vector<uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(words(Philox(~0ull, ~0ull, ~0ull)),
            (std::vector<uint32_t>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(words(Philox(0x299f31d0a4093822ull, 0x0370734413198a2eull, 0x85a308d3243f6a88ull)),
            (std::vector<uint32_t>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformStaysBelowOne) {
  Philox p(1, 2, 3);
  p.word[0] = 0xffffffffu;
  p.word[1] = 0;
  EXPECT_LT(p.uniform(0), 1.0f);
  EXPECT_EQ(p.uniform(0), 1.0f - 0x1p-24f);
  EXPECT_EQ(p.uniform(1), 0.0f);
  double sum = 0;
  for (uint64_t i = 0; i < 25000; ++i) {
    const Philox block(7, 1, i);
    for (int k = 0; k < 4; ++k) sum += block.uniform(k);
  }
  EXPECT_NEAR(sum / 100000, 0.5, 5 * std::sqrt(1.0 / 12 / 100000));
  EXPECT_NE(mix(1, 2), mix(2, 1));
}

TEST(ParallelFor, CoversEveryIndexOnce) {
  const int before = num_threads();
  for (const int threads : {1, 3, 8}) {
    set_num_threads(threads);
    for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{1000}})
      for (const int64_t grain : {int64_t{1}, int64_t{10}, int64_t{5000}}) {
        std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
        std::atomic<int> calls{0};
        parallel_for(n, grain, [&](int64_t begin, int64_t end) {
          ++calls;
          EXPECT_LT(begin, end);
          for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
        });
        for (const auto& hit : hits) ASSERT_EQ(hit, 1);
        EXPECT_LE(calls, threads);
        if (n <= grain) {
          EXPECT_LE(calls, 1);
        }
      }
  }
  set_num_threads(before);
}

TEST(ParallelFor, NestsAndRethrows) {
  const int before = num_threads();
  set_num_threads(4);
  std::atomic<int> sum{0};
  parallel_for(8, 1, [&](int64_t begin, int64_t end) {
    parallel_for(end - begin, 1, [&](int64_t b, int64_t e) { sum += static_cast<int>(e - b); });
  });
  EXPECT_EQ(sum, 8);
  const auto failing = [](int64_t begin, int64_t) {
    if (begin > 0) fail("range at {}", begin);
  };
  EXPECT_THROW(parallel_for(100, 1, failing), Error);
  std::atomic<int64_t> covered{0};  // the pool still works
  parallel_for(100, 1, [&](int64_t b, int64_t e) { covered += e - b; });
  EXPECT_EQ(covered, 100);
  set_num_threads(before);
}

}  // namespace
}  // namespace demi
