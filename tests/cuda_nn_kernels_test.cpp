// Pooling, losses and augmentation give on CUDA what they give on the CPU.
#include "demi/kernels/augment.h"
#include "demi/kernels/batch_norm.h"
#include "demi/kernels/cross_entropy.h"
#include "demi/kernels/gradient.h"
#include "demi/kernels/mse.h"
#include "demi/kernels/pool.h"
#include "demi/tests/cuda_kernels.h"

namespace demi {
namespace {

using namespace demi::kernels;
using namespace demi::test;

class CudaNnKernels : public CudaKernels {};

TEST_F(CudaNnKernels, ReductionsRepeatBitForBit) {
  const Tensor x = send(random({3000, 64}, DType::F16, 1)), logits = send(random({500, 10}, DType::F32, 2));
  const Tensor labels = Tensor::from(std::vector<int64_t>(500, 3), {500}, device_);
  Tensor none;
  std::vector<double> first;
  for (int i = 0; i < 3; ++i) {
    const BatchNormResult r = batch_norm_train(x, {}, {}, {}, none, none, {});
    std::vector<double> all = values_of(r.inv_std);
    all.push_back(values_of(cross_entropy(logits, labels, 0.1, Reduction::Mean).loss)[0]);
    all.push_back(values_of(l2_norm({x, logits}))[0]);
    all.push_back(values_of(mse(x, x, Reduction::Sum))[0]);
    if (i == 0) first = all;
    EXPECT_EQ(all, first) << i;
  }
}

TEST_F(CudaNnKernels, PoolingIsAsOnTheCpu) {
  const Pool2dOptions options[] = {{},
                                   {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}},
                                   {.kernel = {3, 2}, .stride = {1, 3}, .padding = {1, 0}},
                                   {.kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}, .count_include_pad = false},
                                   {.kernel = {1, 1}, .stride = {2, 2}}};
  for (const Shape& shape : {Shape{2, 7, 9, 3}, Shape{3, 8, 8, 16}, Shape{1, 5, 6, 1}})
    for (DType dtype : kDTypes)
      for (int64_t late : {0, 1})
        for (const Pool2dOptions& o : options) {
          const std::string what = named(shape, dtype, late);
          std::vector<double> values = noise(shape.numel(), 5);
          values[3] = values[values.size() - 4] = kNaN;
          values[20] = -kInf;
          std::fill_n(values.begin() + 8, values.size() / 3, 0.5);  // of equals the first is taken
          const Tensor x = tensor_of(values, shape, dtype), clean = random(shape, dtype, 6);
          const MaxPoolResult a = max_pool2d(send(x, late), o), b = max_pool2d(x, o);
          expect_same(a.y, b.y, what + " max");
          EXPECT_EQ(a.index.to_vector<int32_t>(), b.index.to_vector<int32_t>()) << what;
          const Tensor dy = random(b.y.shape(), dtype, 7);
          expect_same(max_pool2d_backward(send(dy, late), a.index, shape, o),
                      max_pool2d_backward(dy, b.index, shape, o), what + " max backward");
          expect_same(avg_pool2d(send(clean, late), o), avg_pool2d(clean, o), what + " average");
          expect_same(avg_pool2d_backward(send(dy, late), shape, o), avg_pool2d_backward(dy, shape, o),
                      what + " average backward");
        }
}

TEST_F(CudaNnKernels, MaxPoolIndexStaysInTheWindow) {
  const Tensor x = tensor_of(std::vector<double>(16, -kInf), {1, 4, 4, 1}, DType::F16, device_);
  const MaxPoolResult r = max_pool2d(x, {});
  EXPECT_EQ(r.index.to_vector<int32_t>(), (std::vector<int32_t>{0, 2, 8, 10}));
}

TEST_F(CudaNnKernels, CrossEntropyIsAsOnTheCpu) {
  for (const Shape& shape :
       {Shape{1, 1}, Shape{5, 10}, Shape{700, 10}, Shape{33, 1000}, Shape{3, 3000}, Shape{9000, 3}})
    for (DType dtype : kDTypes)
      for (double smoothing : {0.0, 0.1})
        for (Reduction reduction : {Reduction::Mean, Reduction::Sum, Reduction::None}) {
          const std::string what = named(shape, dtype);
          const Tensor logits = random(shape, dtype, 1, 8, 30);
          std::vector<int64_t> classes(static_cast<size_t>(shape[0]));
          for (size_t n = 0; n < classes.size(); ++n) classes[n] = static_cast<int64_t>(n * 7) % shape[1];
          const Tensor labels = Tensor::from(classes, {shape[0]});
          const Tensor cuda_logits = send(logits, 1), cuda_labels = send(labels, 1);
          const CrossEntropyResult a = cross_entropy(cuda_logits, cuda_labels, smoothing, reduction);
          const CrossEntropyResult b = cross_entropy(logits, labels, smoothing, reduction);
          expect_same(a.loss, b.loss, what + " loss");
          expect_same(a.log_sum, b.log_sum, what + " log_sum");
          const Tensor dy = random(b.loss.shape(), DType::F32, 2, 100);
          expect_same(cross_entropy_backward(send(dy), cuda_logits, cuda_labels, a.log_sum, smoothing, reduction),
                      cross_entropy_backward(dy, logits, labels, b.log_sum, smoothing, reduction), what + " backward",
                      2e-3, 2 * epsilon_of(dtype) + 1e-5);
          Tensor count = Tensor::scalar<int64_t>(5), cuda_count = count.to(device_);
          count_correct(logits, labels, count);
          count_correct(cuda_logits, cuda_labels, cuda_count);
          EXPECT_EQ(cuda_count.item<int64_t>(), count.item<int64_t>()) << what;
        }
}

TEST_F(CudaNnKernels, CrossEntropyOfExtremeLogits) {
  const Tensor logits = tensor_of({kInf, 0, 1, kNaN, 0, 1, -kInf, 3, 2, 1e4, 0, 9999, 2, 2, 2}, {5, 3}, DType::F32);
  const Tensor labels = Tensor::from<int64_t>({0, 0, 1, 2, 0}, {5});
  const CrossEntropyResult a = cross_entropy(send(logits), send(labels), 0, Reduction::None);
  const CrossEntropyResult b = cross_entropy(logits, labels, 0, Reduction::None);
  expect_same(a.loss, b.loss, "loss");
  Tensor count = Tensor::scalar<int64_t>(0), cuda_count = count.to(device_);
  count_correct(logits, labels, count);
  count_correct(send(logits), send(labels), cuda_count);
  EXPECT_EQ(cuda_count.item<int64_t>(), count.item<int64_t>());
}

TEST_F(CudaNnKernels, MseIsAsOnTheCpu) {
  for (int64_t n : {1, 7, 1000, 20001})
    for (DType dtype : kDTypes)
      for (int64_t late : {0, 1})
        for (Reduction reduction : {Reduction::Mean, Reduction::Sum, Reduction::None}) {
          const std::string what = named({n}, dtype, late);
          const Tensor x = random({n}, dtype, 1), target = random({n}, dtype, 2);
          const Tensor a = mse(send(x, late), send(target, late), reduction), b = mse(x, target, reduction);
          expect_same(a, b, what);
          const Tensor dy = random(b.shape(), DType::F32, 3);
          expect_same(mse_backward(send(dy), send(x, late), send(target, late), reduction),
                      mse_backward(dy, x, target, reduction), what + " backward");
        }
}

TEST_F(CudaNnKernels, AugmentationIsAsOnTheCpu) {
  std::vector<uint8_t> bytes(6 * 3 * 9 * 7);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37 % 251);
  const Tensor index = Tensor::from<int64_t>({5, 0, 3, 3, 1}, {5});
  for (RecordLayout layout : {RecordLayout::CHW, RecordLayout::HWC})
    for (DType dtype : kDTypes)
      for (int pad : {0, 4})
        for (uint64_t epoch = 0; epoch < 4; ++epoch) {
          const Tensor records =
              Tensor::from(bytes, layout == RecordLayout::CHW ? Shape{6, 3, 9, 7} : Shape{6, 9, 7, 3});
          const AugmentOptions options{.layout = layout,
                                       .pad = pad,
                                       .flip = pad != 0,
                                       .mean = {0.49f, 0.48f, 0.45f},
                                       .std_dev = {0.25f, 0.24f, 0.26f},
                                       .seed = 11,
                                       .epoch = epoch};
          expect_same(augment(send(records, 1), send(index, 1), options, dtype),
                      augment(records, index, options, dtype), fmt::format("{} pad {} epoch {}", dtype, pad, epoch));
        }
}

TEST_F(CudaNnKernels, Fp64IsRefused) {
  Tensor x = Tensor::zeros({4, 4}, DType::F64, device_), found = flag(0), none;
  EXPECT_NE(error_of([&] { check_finite(x, found); }).find("fp64 exists on the CPU only"), std::string::npos);
  EXPECT_NE(error_of([&] { mse(x, x, Reduction::Sum); }).find("fp64 exists on the CPU only"), std::string::npos);
  EXPECT_NE(error_of([&] { batch_norm_train(x, none, none, none, none, none, {}); }).find("fp64"), std::string::npos);
}

}  // namespace
}  // namespace demi
