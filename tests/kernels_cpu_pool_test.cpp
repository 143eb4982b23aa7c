// Pooling against FP64 loops, and the faults that it is known for, on every device.
#include <limits>

#include "demi/kernels/fill.h"
#include "demi/kernels/pool.h"
#include "demi/tests/devices.h"

namespace demi {
namespace {

using namespace kernels;  // NOLINT
using test::epsilon_of, test::expect_close, test::noise, test::rounded_to, test::tensor_of, test::values_of;
using Values = std::vector<double>;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class PoolTest : public test::OnDevice {};
DEMI_ON_ALL_DEVICES(PoolTest);

TEST_P(PoolTest, MaxPoolSeesNaNAndKeepsItsIndexInsideTheWindow) {
  for (const DType dtype : floating_dtypes()) {
    const auto pooled = [&](const Values& v) { return max_pool2d(tensor_of(v, {1, 2, 2, 1}, dtype, device()), {}); };
    const auto check = [&](const Values& v, double expected, int32_t index) {
      const MaxPoolResult r = pooled(v);
      expect_close(values_of(r.y), {expected}, 0, 0, "value");
      EXPECT_EQ(r.index.to_vector<int32_t>()[0], index);
      const Tensor dx = max_pool2d_backward(full({1, 1, 1, 1}, 5, dtype, device()), r.index, {1, 2, 2, 1}, {});
      Values one(4, 0);
      one[static_cast<size_t>(index)] = 5;
      expect_close(values_of(dx), one, 0, 0, "the gradient goes to one element");
    };
    check({kNaN, 1, 2, 3}, kNaN, 0);
    check({1, kNaN, 9, 3}, kNaN, 1);
    check({kNaN, kNaN, kNaN, kNaN}, kNaN, 0);
    check({-kInf, -kInf, -kInf, -kInf}, -kInf, 0);
    check({-kInf, -kInf, -5, -kInf}, -5, 2);
    check({1, 3, 3, 0}, 3, 1);  // the first of equals
  }
}

TEST_P(PoolTest, PaddingNeverWins) {
  const Pool2dOptions options{.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
  const MaxPoolResult r = max_pool2d(full({1, 4, 4, 2}, -7, DType::F16, device()), options);
  expect_close(values_of(r.y), Values(8, -7), 0, 0, "negative input");
  const MaxPoolResult lowest = max_pool2d(full({1, 4, 4, 1}, -kInf, DType::F32, device()), options);
  EXPECT_EQ(lowest.index.to_vector<int32_t>(), (std::vector<int32_t>{0, 1, 4, 5}));
}

struct Case {
  Shape x;
  Pool2dOptions options;
};
const std::vector<Case> kCases{
    {{2, 7, 9, 5}, {}},
    {{2, 7, 9, 5}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}},
    {{1, 8, 6, 33}, {.kernel = {3, 2}, .stride = {1, 3}, .padding = {1, 0}}},
    {{1, 5, 5, 1}, {.kernel = {5, 5}, .stride = {1, 1}, .count_include_pad = false}},
    {{3, 6, 6, 2}, {.kernel = {2, 2}, .stride = {3, 3}, .padding = {1, 1}}},
    {{1, 4, 4, 1030}, {.kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}, .count_include_pad = false}}};

// body(output element, input element, count of the window) for each pair.
template <typename F>
void for_window_pairs(const Case& c, const Shape& y, F body) {
  const Pool2dOptions& o = c.options;
  for (int64_t n = 0; n < y[0]; ++n)
    for (int64_t p = 0; p < y[1]; ++p)
      for (int64_t q = 0; q < y[2]; ++q)
        for (int64_t k = 0; k < y[3]; ++k) {
          std::vector<size_t> inputs;
          for (int64_t r = 0; r < o.kernel[0]; ++r)
            for (int64_t s = 0; s < o.kernel[1]; ++s) {
              const int64_t h = p * o.stride[0] - o.padding[0] + r, w = q * o.stride[1] - o.padding[1] + s;
              if (h >= 0 && h < c.x[1] && w >= 0 && w < c.x[2])
                inputs.push_back(static_cast<size_t>(((n * c.x[1] + h) * c.x[2] + w) * y[3] + k));
            }
          const double count =
              o.count_include_pad ? static_cast<double>(o.kernel[0] * o.kernel[1]) : static_cast<double>(inputs.size());
          for (const size_t i : inputs) body(static_cast<size_t>(((n * y[1] + p) * y[2] + q) * y[3] + k), i, count);
        }
}

TEST_P(PoolTest, MaxAndAveragePoolingMatchALoop) {
  for (const Case& c : kCases)
    for (const DType dtype : floating_dtypes()) {
      const Shape shape = pool2d_shape("pool", c.x, c.options);
      const Values x = rounded_to(dtype, noise(c.x.numel())), g = rounded_to(dtype, noise(shape.numel(), 2));
      const Tensor tx = tensor_of(x, c.x, dtype, device()), tg = tensor_of(g, shape, dtype, device());
      const size_t outputs = g.size();
      Values largest(outputs, -kInf), mean(outputs, 0), d_max(x.size(), 0), d_mean(x.size(), 0);
      std::vector<size_t> taken(outputs, 0);
      for_window_pairs(c, shape, [&](size_t out, size_t in, double count) {
        if (x[in] > largest[out]) largest[out] = x[in], taken[out] = in;
        mean[out] += x[in] / count;
        d_mean[in] += g[out] / count;
      });
      for (size_t i = 0; i < outputs; ++i) d_max[taken[i]] += g[i];
      const MaxPoolResult r = max_pool2d(tx, c.options);
      const double rel = epsilon_of(dtype) + 1e-6;
      expect_close(values_of(r.y), largest, 0, 0, "max " + c.x.str());
      expect_close(values_of(max_pool2d_backward(tg, r.index, c.x, c.options)), d_max, rel, 1e-6,
                   "max dx " + c.x.str());
      expect_close(values_of(avg_pool2d(tx, c.options)), mean, rel, 1e-6, "avg " + c.x.str());
      expect_close(values_of(avg_pool2d_backward(tg, c.x, c.options)), d_mean, rel, 1e-6, "avg dx " + c.x.str());
    }
}

TEST_P(PoolTest, EmptyBatchKeepsItsShape) {
  const Tensor x = Tensor::empty({0, 4, 4, 3}, DType::F16, device());
  const MaxPoolResult r = max_pool2d(x, {});
  EXPECT_EQ(r.y.shape(), (Shape{0, 2, 2, 3}));
  EXPECT_EQ(max_pool2d_backward(r.y, r.index, x.shape(), {}).shape(), x.shape());
  EXPECT_EQ(avg_pool2d(x, {}).shape(), (Shape{0, 2, 2, 3}));
  synchronize(device());
}

TEST_P(PoolTest, AverageOfHalfDoesNotOverflow) {
  const Pool2dOptions whole{.kernel = {8, 8}, .stride = {8, 8}};
  expect_close(values_of(avg_pool2d(full({1, 8, 8, 3}, 60000, DType::F16, device()), whole)), Values(3, 60000), 0, 0,
               "average");
}

}  // namespace
}  // namespace demi
