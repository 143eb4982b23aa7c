// Elementwise ops, reductions, softmax, layer norm, permute and random numbers give on CUDA what they give on the CPU:
// every dtype, odd sizes, broadcasts, views that start one element late, NaN and infinity.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "demi/kernels/binary.h"
#include "demi/kernels/cast.h"
#include "demi/kernels/dropout.h"
#include "demi/kernels/fill.h"
#include "demi/kernels/layer_norm.h"
#include "demi/kernels/permute.h"
#include "demi/kernels/random.h"
#include "demi/kernels/reduce.h"
#include "demi/kernels/scale.h"
#include "demi/kernels/softmax.h"
#include "demi/kernels/unary.h"

namespace demi {
namespace {

using namespace kernels;

constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr DType kTraining[] = {DType::F32, DType::F16, DType::BF16};
constexpr DType kOnCuda[] = {DType::F32, DType::F16, DType::BF16, DType::I32, DType::I64, DType::U8};
const std::vector<Shape> kShapes{{0}, {1}, {3}, {7}, {8}, {1023}, {8192, 33}};

class CudaParity : public testing::Test {
 protected:
  void SetUp() override {
    if (backend::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

// Numbers in [low, high) on the CPU, in any dtype.
Tensor numbers(const Shape& shape, DType dtype, uint32_t seed, float low = -2, float high = 2) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  for (float& v : values) v = uniform(generator);
  return cast(Tensor::from(values, shape), dtype);
}

// The same with NaN, infinities, zeros of both signs and ties among the first elements.
Tensor with_specials(const Shape& shape, DType dtype, uint32_t seed) {
  Tensor x = cast(numbers(shape, dtype, seed), DType::F32);
  const float specials[] = {kNaN, kInf, -kInf, 0.0f, -0.0f, 1.0f, 1.0f, 65519.0f, 1e-7f};
  float* p = x.mutable_data<float>();
  for (int64_t i = 0; i < std::min<int64_t>(x.numel(), 9); ++i) p[i] = specials[i];
  return cast(x, dtype);
}

// The same elements on the device, `skip` elements behind an aligned address.
Tensor on_gpu(const Tensor& host, int64_t skip = 0) {
  Tensor room = Tensor::zeros({host.numel() + skip}, host.dtype(), Device::cuda());
  Tensor view = room.narrow(skip, host.numel()).reshape(host.shape());
  if (host.numel() > 0) view.copy_from(host);
  return view;
}

double rounding(DType dtype) { return dtype == DType::F16 ? 1.1e-3 : dtype == DType::BF16 ? 8.5e-3 : 1e-5; }

// |actual - expected| <= absolute + relative |expected|; NaN and infinities match themselves, integers exactly.
void expect_near(const Tensor& actual, const Tensor& expected, double relative, double absolute) {
  ASSERT_TRUE(actual.device().is_cuda());
  ASSERT_EQ(actual.shape(), expected.shape());
  ASSERT_EQ(actual.dtype(), expected.dtype());
  const std::vector<double> a = cast(actual.to(Device::cpu()), DType::F64).to_vector<double>(),
                            e = cast(expected, DType::F64).to_vector<double>();
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == e[i] || (a[i] != a[i] && e[i] != e[i])) continue;
    ASSERT_LE(std::abs(a[i] - e[i]), absolute + relative * std::abs(e[i])) << "element " << i << " of " << a.size();
  }
}
void expect_rounded(const Tensor& actual, const Tensor& expected) {
  expect_near(actual, expected, rounding(expected.dtype()), 1e-6);
}
void expect_same(const Tensor& actual, const Tensor& expected) { expect_near(actual, expected, 0, 0); }

#define TRACE(...) SCOPED_TRACE(fmt::format(__VA_ARGS__))

TEST_F(CudaParity, Fill) {
  for (DType dtype : kOnCuda)
    for (int64_t n : {1, 3, 7, 8, 1023, 70001})
      for (int64_t skip : {0, 1, 5}) {
        TRACE("{} {} skip {}", dtype, n, skip);
        Tensor room = Tensor::zeros({n + 10}, dtype, Device::cuda()), expected = Tensor::zeros({n + 10}, dtype);
        Tensor inside = room.narrow(skip, n), expected_inside = expected.narrow(skip, n);
        fill(inside, 3.3);
        fill(expected_inside, 3.3);
        expect_same(room, expected);
      }
}

TEST_F(CudaParity, Cast) {
  for (DType from : kOnCuda)
    for (DType to : kOnCuda)
      for (const Shape& shape : kShapes)
        for (int64_t skip : {0, 1}) {
          TRACE("{} to {} {} skip {}", from, to, shape, skip);
          const Tensor x =
              is_floating(from) && is_floating(to) ? with_specials(shape, from, 1) : numbers(shape, from, 1, 0, 250);
          expect_same(cast(on_gpu(x, skip), to), cast(x, to));
        }
  // Integers just beside a tie of BF16, beyond FP32's 24 bits.
  const Tensor ties =
      Tensor::from<int64_t>({(1ll << 32) + (1 << 24) + 1, (1ll << 32) + (1 << 24), -(1ll << 40) - 1}, {3});
  for (DType to : kTraining) expect_same(cast(on_gpu(ties), to), cast(ties, to));
}

TEST_F(CudaParity, Scale) {
  const Tensor factor = Tensor::scalar(-1.7f);
  for (DType dtype : kTraining)
    for (const Shape& shape : kShapes)
      for (int64_t skip : {0, 1}) {
        TRACE("{} {} skip {}", dtype, shape, skip);
        const Tensor x = with_specials(shape, dtype, 2);
        expect_rounded(scale(on_gpu(x, skip), 0.3), scale(x, 0.3));
        expect_rounded(scale_by(on_gpu(x, skip), on_gpu(factor)), scale_by(x, factor));
        for (DType sum_dtype : kTraining) {
          Tensor y = numbers(shape, sum_dtype, 3), y_gpu = on_gpu(y, skip);
          axpy(0.6, on_gpu(x, skip), y_gpu);
          axpy(0.6, x, y);
          expect_rounded(y_gpu, y);
        }
      }
}

TEST_F(CudaParity, BinaryBroadcasts) {
  const std::pair<Shape, Shape> pairs[] = {{{0}, {0}},
                                           {{1}, {1}},
                                           {{7}, {7}},
                                           {{8}, {8}},
                                           {{1023}, {1023}},
                                           {{8192, 33}, {33}},
                                           {{33}, {8192, 33}},
                                           {{512, 64}, {64}},
                                           {{64}, {512, 64}},
                                           {{512, 64}, {512, 1}},
                                           {{1000}, {}},
                                           {{}, {1000}},
                                           {{64, 1}, {1, 64}},
                                           {{5, 1, 7}, {3, 1}},
                                           {{2, 4, 16, 8}, {4, 1, 8}},
                                           {{8192, 33}, {1}},
                                           {{4, 1, 6, 1, 5, 1, 3, 1}, {1, 3, 1, 2, 1, 2, 1, 8}},
                                           {{2, 3, 8}, {2, 1, 8}}};
  for (DType dtype : kTraining)
    for (const auto& [sa, sb] : pairs)
      for (int64_t skip : {0, 1}) {
        TRACE("{} {} and {} skip {}", dtype, sa, sb, skip);
        const Tensor a = with_specials(sa, dtype, 4), b = numbers(sb, dtype, 5, 0.5f, 3);
        const Tensor a_gpu = on_gpu(a, skip), b_gpu = on_gpu(b, skip);
        for (BinaryOp op : {BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul, BinaryOp::Div, BinaryOp::Maximum}) {
          expect_rounded(binary(op, a_gpu, b_gpu), binary(op, a, b));
          expect_rounded(binary(op, b_gpu, a_gpu), binary(op, b, a));
        }
        const Tensor dy = numbers(broadcast("test", sa, sb), dtype, 6);
        expect_same(maximum_backward(on_gpu(dy, skip), a_gpu, a_gpu.numel() == dy.numel() ? a_gpu : b_gpu),
                    maximum_backward(dy, a, a.numel() == dy.numel() ? a : b));
        expect_same(maximum_backward(on_gpu(dy, skip), b_gpu, a_gpu), maximum_backward(dy, b, a));
      }
}

TEST_F(CudaParity, Unary) {
  for (int i = 0; i <= static_cast<int>(UnaryOp::Softplus); ++i)
    for (DType dtype : kTraining)
      for (const Shape& shape : kShapes) {
        const auto op = static_cast<UnaryOp>(i);
        const int64_t skip = shape.numel() % 2;
        TRACE("op {} {} {} skip {}", i, dtype, shape, skip);
        const double a = op == UnaryOp::Clamp ? -0.5 : 2.5, b = 1.0;
        const Tensor x = with_specials(shape, dtype, 7), dy = numbers(shape, dtype, 8), y = unary(op, x, a, b);
        expect_rounded(unary(op, on_gpu(x, skip), a, b), y);
        const Tensor dx = unary_backward(op, on_gpu(dy, skip), on_gpu(x, skip), on_gpu(y, skip), a, b);
        expect_rounded(dx, unary_backward(op, dy, x, y, a, b));
      }
}

// [outer, extent, inner]: each way through the kernels, whole and in parts.
const std::vector<Shape> kViews{{1, 1, 1},      {1, 7, 1},     {5, 33, 1},     {9000, 10, 1},  {300, 5000, 1},
                                {3, 300001, 1}, {2, 3, 5},     {1, 50000, 64}, {1, 50000, 10}, {64, 16, 512},
                                {3, 1000, 7},   {1, 8192, 33}, {5000, 4, 8},   {2, 300, 4096}, {40, 1, 24},
                                {1000, 128, 1}, {2, 20000, 1}};

TEST_F(CudaParity, Reduce) {
  for (DType dtype : kTraining)
    for (const Shape& shape : kViews)
      for (int64_t skip : {0, 1}) {
        const Tensor x = numbers(shape, dtype, 9, 0, 1), x_gpu = on_gpu(x, skip);
        for (ReduceOp op : {ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max})
          for (DType out : {DType::F32, dtype}) {
            TRACE("{} {} to {} {} skip {}", name_of(op), dtype, out, shape, skip);
            const Tensor y = reduce(op, x_gpu, {1}, true, out);
            expect_near(y, reduce(op, x, {1}, true, out), out == DType::F32 ? 2e-6 : rounding(out), 0);
            expect_same(reduce(op, x_gpu, {1}, true, out), y.to(Device::cpu()));  // the same every time
          }
      }
  const Tensor x = numbers({6, 50, 7, 16}, DType::F16, 10);
  expect_near(reduce(ReduceOp::Sum, on_gpu(x), {0, 2}), reduce(ReduceOp::Sum, x, {0, 2}), 2e-3, 1e-3);
  expect_near(bias_grad(on_gpu(x)), bias_grad(x), 1e-5, 1e-3);
  expect_near(sum_to(on_gpu(x), {50, 1, 16}), sum_to(x, {50, 1, 16}), 2e-3, 1e-3);
  for (int64_t skip : {0, 1}) {
    const Tensor row = numbers({16}, DType::F16, 11), column = numbers({50, 1, 1}, DType::F16, 12);
    for (const Tensor& t : {row, column})
      expect_same(broadcast_to(on_gpu(t, skip), {6, 50, 7, 16}), broadcast_to(t, {6, 50, 7, 16}));
  }
}

TEST_F(CudaParity, MaximaWithTiesAndNaN) {
  for (DType dtype : kTraining)
    for (const Shape& shape : kViews)
      for (const bool nan : {false, true}) {
        TRACE("{} {} NaN {}", dtype, shape, nan);
        // Few different values, so that the largest comes many times.
        Tensor x = cast(cast(numbers(shape, DType::F32, 13, -5, 5), DType::I32), DType::F32);
        if (nan)
          for (int64_t i = 2; i < x.numel(); i += 997) x.mutable_data<float>()[i] = kNaN;
        x = cast(x, dtype);
        const Tensor x_gpu = on_gpu(x, 1), y = reduce(ReduceOp::Max, x, {1}, true);
        expect_same(reduce(ReduceOp::Max, x_gpu, {1}, true), y);
        expect_same(argmax(x_gpu, 1), argmax(x, 1));
        expect_same(argmax(x_gpu), argmax(x));
        const Tensor dy = numbers(y.shape(), dtype, 14);
        expect_rounded(amax_backward(on_gpu(dy), x_gpu, on_gpu(y), {1}), amax_backward(dy, x, y, {1}));
      }
}

TEST_F(CudaParity, Softmax) {
  for (DType dtype : kTraining)
    for (const Shape& shape : kViews)
      for (const bool log : {false, true}) {
        const int64_t skip = log ? 1 : 0;
        TRACE("{} {} log {} skip {}", dtype, shape, log, skip);
        const Tensor x = numbers(shape, dtype, 15, -8, 8), dy = numbers(shape, dtype, 16, 0, 1);
        const Tensor y = softmax(x, 1, log);
        expect_near(softmax(on_gpu(x, skip), 1, log), y, rounding(dtype), 2e-6);
        const Tensor dx = softmax_backward(on_gpu(dy, skip), on_gpu(y, skip), 1, log);
        expect_near(dx, softmax_backward(dy, y, 1, log), 2 * rounding(dtype), 1e-5);
      }
  // Masked elements before the first finite one; rows of -infinity alone, with infinity, with NaN.
  std::vector<float> rows(8 * 300, -kInf);
  for (size_t i = 250; i < 290; ++i) rows[i] = static_cast<float>(i % 7);
  rows[2 * 300 + 5] = kInf;
  rows[3 * 300 + 7] = kNaN;
  for (size_t i = 4 * 300; i < 5 * 300; ++i) rows[i] = 1e30f;
  rows[5 * 300 + 3] = kNaN;
  rows[5 * 300 + 200] = 1;
  const Tensor x = Tensor::from(rows, {8, 300}), across = permute(x, {1, 0});
  for (const bool log : {false, true}) {
    expect_near(softmax(on_gpu(x), 1, log), softmax(x, 1, log), 1e-5, 1e-7);
    expect_near(softmax(on_gpu(across), 0, log), softmax(across, 0, log), 1e-5, 1e-7);
  }
}

TEST_F(CudaParity, LayerNorm) {
  for (DType dtype : kTraining)
    for (const Shape& shape : {Shape{1, 1}, {3, 7}, {5, 8}, {2000, 64}, {8192, 33}, {300, 5000}, {4, 70001}, {7, 1024}})
      for (int64_t skip : {0, 1})
        for (const bool affine : {true, false}) {
          TRACE("{} {} skip {} affine {}", dtype, shape, skip, affine);
          const Tensor x = numbers(shape, dtype, 17, 8, 12), dy = numbers(shape, dtype, 18);
          const Tensor w = affine ? numbers({shape[1]}, DType::F32, 19) : Tensor();
          const Tensor b = affine ? numbers({shape[1]}, DType::F32, 20) : Tensor();
          const Tensor w_gpu = affine ? on_gpu(w, skip) : w, b_gpu = affine ? on_gpu(b, skip) : b;
          const LayerNormResult cpu = layer_norm(x, w, b, 1e-5), gpu = layer_norm(on_gpu(x, skip), w_gpu, b_gpu, 1e-5);
          expect_near(gpu.mean, cpu.mean, 1e-6, 0);
          expect_near(gpu.inv_std, cpu.inv_std, 1e-4, 0);
          expect_near(gpu.y, cpu.y, rounding(dtype), shape[1] == 1 ? 1e-2 : 1e-4);
          if (shape[1] == 1) continue;  // inv_std = 1 / sqrt(eps) there: nothing but rounding is left
          const LayerNormGradients of_cpu = layer_norm_backward(dy, x, w, cpu.mean, cpu.inv_std);
          const LayerNormGradients of_gpu =
              layer_norm_backward(on_gpu(dy, skip), on_gpu(x, skip), w_gpu, on_gpu(cpu.mean), on_gpu(cpu.inv_std));
          expect_near(of_gpu.dx, of_cpu.dx, rounding(dtype), 1e-4);
          if (!affine) continue;
          expect_near(of_gpu.dweight, of_cpu.dweight, 1e-5, 1e-3);
          expect_near(of_gpu.dbias, of_cpu.dbias, 1e-5, 1e-3);
        }
}

// Rows shorter than what lies before their first 16-byte boundary: nothing of the next row may be read or written.
TEST_F(CudaParity, ShortRowsFromEveryStart) {
  for (DType dtype : kTraining)
    for (int64_t extent = 1; extent <= 17; ++extent)
      for (int64_t skip = 0; skip < 8; ++skip) {
        TRACE("{} extent {} skip {}", dtype, extent, skip);
        const Tensor x = numbers({3, extent}, dtype, 30), y = softmax(x, 1);
        expect_rounded(softmax(on_gpu(x, skip), 1), y);
        expect_rounded(softmax_backward(on_gpu(x, skip), on_gpu(y, skip), 1), softmax_backward(x, y, 1));
        expect_near(reduce(ReduceOp::Sum, on_gpu(x, skip), {1}), reduce(ReduceOp::Sum, x, {1}), rounding(dtype), 1e-5);
        expect_same(argmax(on_gpu(x, skip), 1), argmax(x, 1));
        const Tensor none;
        if (extent > 1)
          expect_near(layer_norm(on_gpu(x, skip), none, none, 1e-5).y, layer_norm(x, none, none, 1e-5).y,
                      rounding(dtype), 1e-4);
      }
}

TEST_F(CudaParity, Permute) {
  const std::pair<Shape, std::vector<int>> cases[] = {{{7}, {0}},
                                                      {{33, 65}, {1, 0}},
                                                      {{128, 64}, {1, 0}},
                                                      {{3, 17, 9, 33}, {0, 2, 3, 1}},
                                                      {{3, 9, 33, 17}, {0, 3, 1, 2}},
                                                      {{2, 3, 31, 5}, {0, 2, 3, 1}},
                                                      {{4, 32, 32, 64}, {0, 3, 1, 2}},
                                                      {{5, 6, 16}, {1, 0, 2}},
                                                      {{5, 6, 7}, {2, 1, 0}},
                                                      {{20, 5, 30}, {2, 0, 1}},
                                                      {{2, 3, 4, 5, 6}, {4, 1, 3, 0, 2}},
                                                      {{1, 40, 1, 50}, {3, 2, 1, 0}},
                                                      {{0, 4}, {1, 0}},
                                                      {{2, 1, 3, 2, 2, 1, 4, 2}, {7, 5, 3, 1, 6, 4, 2, 0}}};
  for (DType dtype : kOnCuda)
    for (const auto& [shape, axes] : cases)
      for (int64_t skip : {0, 1}) {
        TRACE("{} {} {} skip {}", dtype, shape, Shape(std::vector<int64_t>(axes.begin(), axes.end())), skip);
        const Tensor x = numbers(shape, dtype, 21, 0, 250);
        expect_same(permute(on_gpu(x, skip), axes), permute(x, axes));
      }
}

TEST_F(CudaParity, RandomFills) {
  for (DType dtype : kTraining)
    for (int64_t n : {1, 3, 4, 7, 1023, 70001})
      for (int64_t skip : {0, 1}) {
        TRACE("{} {} skip {}", dtype, n, skip);
        Tensor room = Tensor::zeros({n + 3}, dtype, Device::cuda()), x = Tensor::zeros({n + 3}, dtype);
        Tensor inside = room.narrow(skip, n), expected = x.narrow(skip, n);
        fill_uniform(inside, -0.3, 1.1, 1234567890123ull, 77);
        fill_uniform(expected, -0.3, 1.1, 1234567890123ull, 77);
        expect_same(room, x);
        fill_normal(inside, 0.5, 2.0, 5, 1ull << 40);
        fill_normal(expected, 0.5, 2.0, 5, 1ull << 40);
        expect_near(room, x, rounding(dtype), 1e-5);
      }
}

TEST_F(CudaParity, Dropout) {
  const Tensor step = Tensor::scalar<int64_t>(41);
  for (DType dtype : kTraining)
    for (const Shape& shape : kShapes)
      for (double p : {0.0, 0.3, 1.0})
        for (int64_t skip : {0, 1}) {
          TRACE("{} {} p {} skip {}", dtype, shape, p, skip);
          const Tensor x = with_specials(shape, dtype, 22), dy = numbers(shape, dtype, 23);
          const DropoutResult cpu = dropout(x, p, 99, step, 6), gpu = dropout(on_gpu(x, skip), p, 99, on_gpu(step), 6);
          expect_same(gpu.mask, cpu.mask);
          expect_rounded(gpu.y, cpu.y);
          expect_rounded(dropout_backward(on_gpu(dy, skip), on_gpu(cpu.mask, skip), p),
                         dropout_backward(dy, cpu.mask, p));
        }
}

TEST_F(CudaParity, Fp64IsRefused) {
  Tensor x = Tensor::zeros({4}, DType::F64, Device::cuda());
  const auto message = [](const std::function<void()>& f) -> std::string {
    try {
      f();
    } catch (const Error& e) {
      return e.what();
    }
    return "nothing thrown";
  };
  EXPECT_EQ(message([&] { fill(x, 1); }), "[fill] fp64 exists on the CPU only");
  EXPECT_EQ(message([&] { cast(x, DType::F32); }), "[cast] fp64 exists on the CPU only");
  EXPECT_EQ(message([&] { add(x, x); }), "[add] fp64 exists on the CPU only");
  EXPECT_EQ(message([&] { permute(x, {0}); }), "[permute] fp64 exists on the CPU only");
}

}  // namespace
}  // namespace demi
