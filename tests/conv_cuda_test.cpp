// Convolutions and matrix products on CUDA give what the CPU gives, for odd shapes, alignments and every dtype.
#include <gtest/gtest.h>

#include <random>

#include "demi/kernels/conv2d.h"
#include "demi/kernels/matmul.h"

#if DEMI_CUDA
#include "demi/core/cuda/graph.h"
#include "demi/kernels/cuda/conv_cudnn.h"
#endif

namespace demi {
namespace {

using kernels::Conv2dOptions;

#define SKIP_WITHOUT_GPU() \
  if (backend::device_count() == 0) GTEST_SKIP() << "no CUDA device"

template <typename T>
Tensor random_tensor(const Shape& shape, uint32_t seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<T> values(static_cast<size_t>(shape.numel()));
  for (T& v : values) v = T(uniform(generator));
  return Tensor::from(values, shape);
}

// The same elements on the GPU, starting `skip` elements after an allocation's start.
Tensor on_gpu(const Tensor& host, int64_t skip) {
  Tensor room = Tensor::zeros({host.numel() + skip}, host.dtype(), Device::cuda());
  Tensor view = room.narrow(skip, host.numel()).reshape(host.shape());
  view.copy_from(host);
  return view;
}

// The largest difference is at most `tolerance` times the largest expected magnitude.
template <typename T>
void expect_close(const Tensor& actual, const Tensor& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(actual.shape(), expected.shape()) << what;
  const std::vector<T> a = actual.to_vector<T>(), e = expected.to_vector<T>();
  double largest = 0.0, difference = 0.0;
  size_t worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(e[i]));
    largest = std::max(largest, std::abs(static_cast<double>(e[i])));
    if (!(d <= difference)) {  // also for NaN
      difference = d;
      worst = i;
    }
  }
  EXPECT_LE(difference, tolerance * largest)
      << what << ": element " << worst << " is " << static_cast<float>(a[worst]) << ", not "
      << static_cast<float>(e[worst]) << ", the largest is " << largest;
}

// One rounding may go either way where two sums differ in their last bits: one unit in the last place of the largest.
template <typename T>
constexpr double kOneRounding = 2e-5;
template <>
constexpr double kOneRounding<Half> = 1e-3;
template <>
constexpr double kOneRounding<BFloat16> = 8e-3;

struct Case {
  Shape x, w;
  std::array<int64_t, 2> stride{1, 1}, padding{0, 0}, dilation{1, 1};
  int64_t groups = 1;
  Conv2dOptions options() const { return {stride, padding, dilation, groups}; }
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {{2, 16, 16, 64}, {64, 3, 3, 64}, {1, 1}, {1, 1}},   // ResNet's
      {{2, 16, 16, 64}, {128, 3, 3, 64}, {2, 2}, {1, 1}},  //
      {{2, 16, 16, 64}, {128, 1, 1, 64}, {2, 2}},          //
      {{4, 32, 32, 3}, {64, 3, 3, 3}, {1, 1}, {1, 1}},     // its stem
      {{2, 4, 4, 256}, {256, 3, 3, 256}, {1, 1}, {1, 1}},  //
      {{1, 33, 31, 3}, {64, 7, 7, 3}, {2, 2}, {3, 3}},     // ImageNet's stem
      {{3, 9, 11, 5}, {7, 3, 3, 5}, {1, 1}, {1, 1}},       // odd channels
      {{3, 9, 11, 7}, {5, 1, 1, 7}},                       //
      {{2, 14, 9, 16}, {8, 7, 2, 16}, {3, 1}, {3, 0}},     // 7x2, unequal strides and paddings
      {{2, 13, 13, 16}, {24, 3, 3, 16}, {1, 1}, {2, 2}, {2, 2}},
      {{2, 17, 19, 8}, {16, 3, 3, 8}, {2, 2}, {2, 3}, {2, 3}},
      {{2, 12, 11, 16}, {16, 3, 3, 16}, {3, 3}, {1, 1}},  // rows and columns that no tap reaches
      {{2, 10, 10, 8}, {8, 5, 5, 8}, {2, 2}, {1, 1}},     //
      {{2, 9, 9, 16}, {32, 1, 1, 16}, {4, 4}},            //
      {{2, 8, 8, 16}, {32, 3, 3, 8}, {1, 1}, {1, 1}, {1, 1}, 2},
      {{2, 8, 8, 9}, {6, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1}, 3},
      {{2, 10, 10, 8}, {8, 3, 3, 1}, {1, 1}, {1, 1}, {1, 1}, 8},   // depthwise
      {{2, 10, 10, 6}, {12, 3, 3, 1}, {2, 2}, {1, 1}, {1, 1}, 6},  // with a multiplier
      {{2, 12, 12, 16}, {32, 3, 3, 4}, {1, 1}, {3, 3}, {3, 3}, 4},
      {{2, 12, 12, 12}, {8, 3, 3, 3}, {3, 2}, {2, 1}, {2, 1}, 4},
      {{1, 1, 1, 64}, {10, 1, 1, 64}},
      {{1, 4, 4, 32}, {16, 4, 4, 32}},               // one output position
      {{1, 5, 5, 1}, {1, 3, 3, 1}, {1, 1}, {1, 1}},  // one channel
      {{2, 6, 6, 8}, {8, 3, 3, 8}, {1, 1}, {4, 4}},  // more padding than taps
      {{2, 7, 20, 8}, {8, 1, 7, 8}, {1, 1}, {0, 3}},
      {{5, 7, 7, 512}, {10, 1, 1, 512}},
  };
  return all;
}

template <typename T>
void check_case(const Case& c, int64_t skip) {
  const Conv2dOptions o = c.options();
  const double tolerance = kOneRounding<T>;
  const std::string what = fmt::format("{} x {} w {} stride {},{} padding {},{} dilation {},{} groups {} offset {} ",
                                       name_of(dtype_of<T>), c.x.str(), c.w.str(), o.stride[0], o.stride[1],
                                       o.padding[0], o.padding[1], o.dilation[0], o.dilation[1], o.groups, skip);
  const Tensor x = random_tensor<T>(c.x, 1), w = random_tensor<T>(c.w, 2), none;
  const Tensor dy = random_tensor<T>(kernels::conv2d_shape(c.x, c.w, o), 3);
  const Tensor bias = random_tensor<float>(Shape{c.w[0]}, 4);
  const Tensor gpu_x = on_gpu(x, skip), gpu_w = on_gpu(w, skip), gpu_dy = on_gpu(dy, skip);
  const Tensor gpu_bias = on_gpu(bias, skip);
  const auto compare = [&] {
    expect_close<T>(kernels::conv2d(gpu_x, gpu_w, none, o), kernels::conv2d(x, w, none, o), tolerance, what + "fprop");
    // Twice the tolerance: where no engine adds the bias itself, the result is rounded twice.
    expect_close<T>(kernels::conv2d(gpu_x, gpu_w, gpu_bias, o), kernels::conv2d(x, w, bias, o), 2 * tolerance,
                    what + "fprop with bias");
    expect_close<T>(kernels::conv2d_dgrad(gpu_dy, gpu_w, c.x, o), kernels::conv2d_dgrad(dy, w, c.x, o), tolerance,
                    what + "dgrad");
    Tensor dw = Tensor::empty(c.w, dtype_of<T>), gpu_dw = on_gpu(Tensor::zeros(c.w, dtype_of<T>), skip);
    kernels::conv2d_wgrad(dy, x, o, dw);
    kernels::conv2d_wgrad(gpu_dy, gpu_x, o, gpu_dw);
    expect_close<T>(gpu_dw, dw, tolerance, what + "wgrad");
  };
  ASSERT_NO_THROW(compare()) << what;
}

class Deterministic {  // takes cuDNN's first engine instead of timing eight: a search is short
 public:
  Deterministic() { set_deterministic(true); }
  ~Deterministic() { set_deterministic(before_); }

 private:
  bool before_ = deterministic();
};

template <typename T>
class ConvCuda : public testing::Test {};
using TrainingTypes = testing::Types<float, Half, BFloat16>;
TYPED_TEST_SUITE(ConvCuda, TrainingTypes);

TYPED_TEST(ConvCuda, EqualsCpu) {
  SKIP_WITHOUT_GPU();
  const Deterministic deterministic;
  for (const Case& c : cases()) check_case<TypeParam>(c, 0);
}

TYPED_TEST(ConvCuda, EqualsCpuFromAnyElement) {
  SKIP_WITHOUT_GPU();
  const Deterministic deterministic;
  for (const size_t i : {0, 3, 6, 15}) check_case<TypeParam>(cases()[i], 1);
}

TYPED_TEST(ConvCuda, EqualsCpuWithTimedPlans) {
  SKIP_WITHOUT_GPU();
  for (const size_t i : {0, 1, 3}) check_case<TypeParam>(cases()[i], 0);
}

TEST(ConvCudaMath, RepeatsBitForBitWhenDeterministic) {
  SKIP_WITHOUT_GPU();
  const Deterministic deterministic;
  const Conv2dOptions o{{1, 1}, {1, 1}, {1, 1}, 1};
  const Tensor x = random_tensor<Half>({32, 16, 16, 64}, 1).to(Device::cuda());
  const Tensor dy = random_tensor<Half>({32, 16, 16, 64}, 2).to(Device::cuda());
  std::vector<std::vector<uint16_t>> results;
  for (int i = 0; i < 3; ++i) {
    Tensor dw = Tensor::empty({64, 3, 3, 64}, DType::F16, Device::cuda());
    kernels::conv2d_wgrad(dy, x, o, dw);
    std::vector<uint16_t> bits;
    for (const Half h : dw.to_vector<Half>()) bits.push_back(h.bits);
    results.push_back(std::move(bits));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

// 1024.5 needs 12 bits; TF32 keeps 11.
TEST(ConvCudaMath, Fp32KeepsAllBits) {
  SKIP_WITHOUT_GPU();
  constexpr int64_t kSize = 64;
  std::vector<float> identity(kSize * kSize, 0.0f);
  for (size_t i = 0; i < kSize; ++i) identity[i * kSize + i] = 1.0f;
  const Tensor ones = Tensor::from(identity, {kSize, kSize}, Device::cuda());
  const std::vector<float> values(4 * 8 * 8 * kSize, 1024.5f);
  const Tensor x = Tensor::from(values, {4 * 8 * 8, kSize}, Device::cuda());
  EXPECT_EQ(kernels::matmul(x, ones).to_vector<float>(), values);
  EXPECT_EQ(kernels::matmul(x, ones, false, true).to_vector<float>(), values);
  const Tensor image = x.reshape({4, 8, 8, kSize}), filter = ones.reshape({kSize, 1, 1, kSize});
  EXPECT_EQ(kernels::conv2d(image, filter, {}, {}).to_vector<float>(), values);
  EXPECT_EQ(kernels::conv2d_dgrad(image, filter, image.shape(), {}).to_vector<float>(), values);
  {
    const Float32MathGuard guard(Float32Math::Tf32);  // a plan of its own: it must not be found by the next line
    (void)kernels::conv2d(image, filter, {}, {});
    (void)kernels::matmul(x, ones);
  }
  EXPECT_EQ(kernels::conv2d(image, filter, {}, {}).to_vector<float>(), values);
  EXPECT_EQ(kernels::matmul(x, ones).to_vector<float>(), values);
}

TEST(ConvCudaMath, Fp64IsAnErrorOnCuda) {
  SKIP_WITHOUT_GPU();
  const Tensor x = Tensor::zeros({2, 2}, DType::F64, Device::cuda());
  EXPECT_THROW((void)kernels::matmul(x, x), Error);
  const Tensor image = x.reshape({1, 2, 2, 1}), filter = Tensor::zeros({1, 1, 1, 1}, DType::F64, Device::cuda());
  EXPECT_THROW((void)kernels::conv2d(image, filter, {}, {}), Error);
}

struct Sizes {
  int64_t m, n, k;
};

// c, rounded to T or FP32, from operands of T.
template <typename T, typename Out>
void check_gemm(Sizes s, bool transpose_a, bool transpose_b, bool with_bias, int64_t skip) {
  const Tensor a = random_tensor<T>(transpose_a ? Shape{s.k, s.m} : Shape{s.m, s.k}, 1);
  const Tensor b = random_tensor<T>(transpose_b ? Shape{s.n, s.k} : Shape{s.k, s.n}, 2);
  Tensor bias, gpu_bias;
  if (with_bias) {
    bias = random_tensor<float>({s.n}, 3);
    gpu_bias = on_gpu(bias, skip);
  }
  Tensor c = Tensor::zeros({s.m, s.n}, dtype_of<Out>), gpu_c = on_gpu(c, skip);
  const std::string what =
      fmt::format("{} to {} m {} n {} k {} transposed {} {} bias {} offset {}", name_of(dtype_of<T>),
                  name_of(dtype_of<Out>), s.m, s.n, s.k, transpose_a, transpose_b, with_bias, skip);
  const auto compare = [&] {
    kernels::gemm_into(a, transpose_a, b, transpose_b, bias, c);
    kernels::gemm_into(on_gpu(a, skip), transpose_a, on_gpu(b, skip), transpose_b, gpu_bias, gpu_c);
    expect_close<Out>(gpu_c, c, kOneRounding<Out>, what);
  };
  ASSERT_NO_THROW(compare()) << what;
}

TYPED_TEST(ConvCuda, GemmEqualsCpu) {
  SKIP_WITHOUT_GPU();
  const Sizes all[] = {{1, 1, 1},     {5, 7, 3},  {64, 64, 64},    {33, 65, 129}, {128, 10, 512}, {256, 512, 1},
                       {1, 1000, 37}, {17, 1, 9}, {100, 200, 300}, {4, 6, 0},     {256, 10, 513}, {1, 3, 4096}};
  for (const Sizes s : all) {
    for (int mask = 0; mask < 8; ++mask) {
      const int64_t skip = mask % 3 == 2 ? 1 : 0;
      check_gemm<TypeParam, TypeParam>(s, mask & 1, mask & 2, mask & 4, skip);
      check_gemm<TypeParam, float>(s, mask & 1, mask & 2, mask & 4, 3 * skip);
    }
  }
}

#if DEMI_CUDA
TEST(ConvCudaGraph, CapturesWhatWasRunBeforeAndRefusesASearch) {
  SKIP_WITHOUT_GPU();
  const Device gpu = Device::cuda();
  const Conv2dOptions o{{1, 1}, {1, 1}, {1, 1}, 1};
  const Tensor x = random_tensor<Half>({3, 10, 12, 3}, 1).to(gpu), w = random_tensor<Half>({16, 3, 3, 3}, 2).to(gpu);
  const Tensor bias = random_tensor<float>({16}, 3).to(gpu);
  Tensor y;
  const auto step = [&] { y = kernels::conv2d(x, w, bias, o); };
  EXPECT_THROW(cuda::Graph(step, 0), Error);
  step();
  const std::vector<Half> expected = y.to_vector<Half>();
  const auto engine =
      kernels::cuda::conv2d_engine(kernels::cuda::ConvOp::FpropBias, x.shape(), w.shape(), o, DType::F16, gpu);
  EXPECT_NE(engine.name, "");
  cuda::Graph graph(step, 1);
  y.zero();
  graph.replay();
  const std::vector<Half> replayed = y.to_vector<Half>();
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(replayed[i].bits, expected[i].bits) << i;
}
#endif

}  // namespace
}  // namespace demi
