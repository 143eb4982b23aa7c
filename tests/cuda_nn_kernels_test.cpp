// Batch norm, pooling, losses, gradient and optimizer kernels and augmentation give on CUDA what they give on the CPU:
// every dtype, odd shapes, tensors that start one element late, NaN and infinity, large means.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "demi/kernels/adam.h"
#include "demi/kernels/augment.h"
#include "demi/kernels/batch_norm.h"
#include "demi/kernels/cross_entropy.h"
#include "demi/kernels/fill.h"
#include "demi/kernels/gradient.h"
#include "demi/kernels/loss_scale.h"
#include "demi/kernels/mse.h"
#include "demi/kernels/pool.h"
#include "demi/kernels/sgd.h"
#include "demi/tests/devices.h"

namespace demi {
namespace {

using namespace demi::kernels;
using namespace demi::test;

const double kNaN = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
const DType kDTypes[] = {DType::F32, DType::F16, DType::BF16};

class CudaNnKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_is_missing()) GTEST_SKIP() << "no CUDA device";
    device_ = Device::best();
  }
  // A copy on the device that starts `late` elements into its storage: at 1 its address suits no wide access.
  Tensor send(const Tensor& x, int64_t late = 0) const {
    if (!x.defined()) return x;
    Tensor flat = Tensor::empty({x.numel() + late}, x.dtype(), device_);
    Tensor view = flat.narrow(late, x.numel()).reshape(x.shape());
    view.copy_from(x);
    return view;
  }
  Tensor scalar(float v) const { return Tensor::scalar(v, device_); }
  Tensor flag(int32_t v) const { return Tensor::scalar(v, device_); }
  Device device_;
};

std::string named(const Shape& shape, DType dtype, int64_t late = 0) {
  return fmt::format("{} {}, {} late", dtype, shape, late);
}

// Results of one rounding to the dtype from sums that may differ in their last FP32 bits.
void expect_same(const Tensor& cuda, const Tensor& cpu, const std::string& what, double absolute = 1e-6,
                 double relative = 0) {
  ASSERT_EQ(cuda.defined(), cpu.defined()) << what;
  if (!cpu.defined()) return;
  ASSERT_EQ(cuda.shape(), cpu.shape()) << what;
  ASSERT_EQ(cuda.dtype(), cpu.dtype()) << what;
  if (relative == 0) relative = cpu.dtype() == DType::F32 ? 1e-5 : epsilon_of(cpu.dtype());
  expect_close(values_of(cuda), values_of(cpu), relative, absolute, what);
}

Tensor random(const Shape& shape, DType dtype, uint64_t seed, double scale = 1, double offset = 0) {
  std::vector<double> v = noise(shape.numel(), seed);
  for (double& one : v) one = one * scale + offset;
  return tensor_of(v, shape, dtype);
}

const Shape kNormShapes[] = {{2, 1},     {777, 1},  {5, 3},     {37, 7},   {2, 3, 3, 64}, {64, 64},
                             {1001, 65}, {33, 128}, {130, 512}, {7, 1000}, {1000, 8},     {515, 24},
                             {4097, 16}, {40, 4},   {300, 257}, {3, 20000}};

TEST_F(CudaNnKernels, BatchNormTrainsAsOnTheCpu) {
  for (const Shape& shape : kNormShapes)
    for (DType dtype : kDTypes)
      for (int64_t late : {0, 1}) {
        const int64_t channels = shape[-1];
        const bool affine = channels != 24, with_residual = channels % 2 == 0, relu = channels % 3 != 0;
        const std::string what = named(shape, dtype, late);
        const Tensor x = random(shape, dtype, 1, 2, 0.5);
        const Tensor residual = with_residual ? random(shape, dtype, 2) : Tensor();
        const Tensor weight = affine ? random({channels}, DType::F32, 3, 1, 1) : Tensor();
        const Tensor bias = affine ? random({channels}, DType::F32, 4) : Tensor();
        Tensor mean = random({channels}, DType::F32, 5), var = random({channels}, DType::F32, 6, 0.5, 1);
        Tensor cuda_mean = send(mean, late), cuda_var = send(var, late);
        const BatchNormOptions options{.momentum = 0.2, .eps = 1e-5, .relu = relu};
        const BatchNormResult a = batch_norm_train(send(x, late), send(weight, late), send(bias, late),
                                                   send(residual, late), cuda_mean, cuda_var, options);
        const BatchNormResult b = batch_norm_train(x, weight, bias, residual, mean, var, options);
        expect_same(a.mean, b.mean, what + " mean");
        expect_same(a.inv_std, b.inv_std, what + " inv_std");
        expect_same(cuda_mean, mean, what + " running mean");
        expect_same(cuda_var, var, what + " running var");
        expect_same(a.y, b.y, what + " y", 2e-5);
      }
}

TEST_F(CudaNnKernels, BatchNormBackwardIsAsOnTheCpu) {
  for (const Shape& shape : kNormShapes)
    for (DType dtype : kDTypes)
      for (int64_t late : {0, 1})
        for (bool training : {true, false}) {
          const int64_t channels = shape[-1];
          const bool relu = channels % 3 != 0, with_residual = channels % 2 == 0, affine = channels != 24;
          const std::string what = named(shape, dtype, late) + (training ? " training" : " eval");
          const Tensor x = random(shape, dtype, 1, 2, 0.5), y = random(shape, dtype, 2), dy = random(shape, dtype, 3);
          const Tensor weight = affine ? random({channels}, DType::F32, 4, 1, 1) : Tensor();
          const BatchNormResult saved{Tensor(), random({channels}, DType::F32, 5, 0.5, 0.5),
                                      random({channels}, DType::F32, 6, 0.1, 0.8)};
          const BatchNormResult cuda_saved{Tensor(), send(saved.mean, late), send(saved.inv_std, late)};
          const auto like = [&](const Tensor& t, bool wanted) { return wanted ? t.clone() : Tensor(); };
          Tensor dx = x.clone(), dr = like(x, with_residual), dw = like(saved.mean, affine), db = like(dw, affine);
          Tensor cuda_dx = send(dx, late), cuda_dr = send(dr, late), cuda_dw = send(dw, late), cuda_db = send(db, late);
          batch_norm_backward(dy, x, y, weight, saved, relu, training, dx, dr, dw, db);
          batch_norm_backward(send(dy, late), send(x, late), send(y, late), send(weight, late), cuda_saved, relu,
                              training, cuda_dx, cuda_dr, cuda_dw, cuda_db);
          const double sums = 1e-6 * std::sqrt(static_cast<double>(x.numel() / channels));
          expect_same(cuda_dr, dr, what + " dresidual");
          expect_same(cuda_db, db, what + " dbias", 4 * sums);
          expect_same(cuda_dw, dw, what + " dweight", 4 * sums);
          expect_same(cuda_dx, dx, what + " dx", 4e-6);
        }
}

TEST_F(CudaNnKernels, BatchNormEvalIsAsOnTheCpu) {
  for (DType dtype : kDTypes) {
    const Tensor x = random({9, 5, 16}, dtype, 1), mean = random({16}, DType::F32, 2);
    const Tensor var = random({16}, DType::F32, 3, 0.5, 0.6);
    const BatchNormResult a = batch_norm_eval(send(x), {}, {}, {}, send(mean), send(var), {});
    const BatchNormResult b = batch_norm_eval(x, {}, {}, {}, mean, var, {});
    expect_same(a.inv_std, b.inv_std, "inv_std");
    expect_same(a.y, b.y, "y", 2e-6);
  }
}

// The variance of values around `mean` at +-`distance`, for channels that allow wide accesses and for one that does
// not.
void expect_variance(Device device, DType dtype, int64_t rows, double mean, double distance) {
  for (int64_t channels : {1, 16}) {
    std::vector<double> values(static_cast<size_t>(rows * channels));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = mean + (i / static_cast<size_t>(channels) % 2 == 0 ? -distance : distance);
    const Tensor x = tensor_of(values, {rows, channels}, dtype, device);
    Tensor running_mean = Tensor::zeros({channels}, DType::F32, device), running_var = running_mean.clone();
    const BatchNormResult r =
        batch_norm_train(x, {}, {}, {}, running_mean, running_var, {.momentum = 1.0, .eps = 1e-5});
    const double var = distance * distance, n = static_cast<double>(rows);
    for (double v : values_of(r.mean)) EXPECT_EQ(v, mean);
    for (double v : values_of(running_var)) EXPECT_NEAR(v, var * n / (n - 1), 1e-6 * var);
    for (double v : values_of(r.y))
      EXPECT_NEAR(std::fabs(v), distance / std::sqrt(var + 1e-5), dtype == DType::F32 ? 1e-6 : 1e-3);
  }
}

TEST_F(CudaNnKernels, BatchNormVarianceDoesNotCancel) {
  expect_variance(device_, DType::F32, 1024, 10000, 1);
  expect_variance(device_, DType::F32, 40000, 1e6, 1);
  expect_variance(device_, DType::F16, 1024, 300, 0.5);
  expect_variance(device_, DType::F32, 1024, 100, 0);
  expect_variance(device_, DType::F16, 6000, 100, 0);
}

TEST_F(CudaNnKernels, BatchNormSurvivesOutliersFirst) {
  // The first rows are far from all others: no shift that is taken from them may spoil the variance.
  for (int64_t outliers : {1, 8, 100}) {
    Tensor x = random({5000, 8}, DType::F32, 7);
    std::fill_n(x.mutable_data<float>(), outliers * 8, 1e4f);
    Tensor none;
    const BatchNormResult a = batch_norm_train(send(x), {}, {}, {}, none, none, {});
    const BatchNormResult b = batch_norm_train(x, {}, {}, {}, none, none, {});
    expect_same(a.inv_std, b.inv_std, "inv_std", 0, 2e-6);
    expect_same(a.mean, b.mean, "mean", 4e-6 / values_of(b.inv_std)[0], 1e-6);  // of the standard deviation
  }
}

TEST_F(CudaNnKernels, BatchNormKeepsNaNToItsChannel) {
  Tensor x = random({600, 16}, DType::F32, 1);
  x.mutable_data<float>()[300 * 16 + 3] = static_cast<float>(kNaN);
  x.mutable_data<float>()[300 * 16 + 4] = static_cast<float>(kInf);
  Tensor none;
  const BatchNormResult a = batch_norm_train(send(x), {}, {}, {}, none, none, {.relu = true});
  const std::vector<double> inv_std = values_of(a.inv_std), y = values_of(a.y);
  for (size_t c = 0; c < 16; ++c) {
    EXPECT_EQ(std::isnan(inv_std[c]), c == 3 || c == 4) << c;
    EXPECT_EQ(std::isnan(y[c]), c == 3 || c == 4) << c;
  }
}

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

TEST_F(CudaNnKernels, LabelOutOfRangeIsReported) {
  const Tensor logits = send(random({40, 10}, DType::F32, 1));
  std::vector<int64_t> classes(40, 2);
  classes[17] = 10;
  const Tensor labels = Tensor::from(classes, {40}, device_);
  const std::string error = error_of([&] { cross_entropy(logits, labels, 0, Reduction::Mean).loss.item<float>(); });
  EXPECT_NE(error.find("17"), std::string::npos) << error;
  EXPECT_NE(error.find("10"), std::string::npos) << error;
  synchronize(device_);  // the report is thrown once
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

TEST_F(CudaNnKernels, GradientsAreCheckedUnscaledAndClipped) {
  for (int64_t n : {1, 5, 1003, 20000})
    for (DType dtype : kDTypes)
      for (int64_t late : {0, 1})
        for (double bad : {0.0, kNaN, kInf, -kInf}) {
          const std::string what = named({n}, dtype, late) + fmt::format(" with {}", bad);
          std::vector<double> values = noise(n, 4);
          values.back() = bad;
          const Tensor x = tensor_of(values, {n}, dtype), on_cuda = send(x, late);
          Tensor found = flag(0);
          check_finite(on_cuda, found);
          EXPECT_EQ(found.item<int32_t>(), std::isfinite(bad) ? 0 : 1) << what;

          Tensor cuda_found = flag(0), cpu_found = Tensor::scalar<int32_t>(0);
          Tensor y = Tensor::empty({n}, DType::F32), cuda_y = send(y, late);
          unscale(x, Tensor::scalar(3.0f), cpu_found, y);
          unscale(on_cuda, scalar(3.0f), cuda_found, cuda_y);
          EXPECT_EQ(cuda_found.item<int32_t>(), cpu_found.item<int32_t>()) << what;
          expect_same(cuda_y, y, what + " unscaled", 0, 1e-30);

          expect_same(l2_norm({on_cuda, cuda_y}), l2_norm({x, y}), what + " norm");
          expect_same(clip_coefficient({on_cuda}, 0.1).coefficient, clip_coefficient({x}, 0.1).coefficient, what);
          Tensor clipped = x.clone(), cuda_clipped = on_cuda;
          clip_value(clipped, 0.25);
          clip_value(cuda_clipped, 0.25);
          expect_same(cuda_clipped, clipped, what + " clipped");
        }
}

TEST_F(CudaNnKernels, UnscaleJudgesBeforeTheProductAndWorksInPlace) {
  Tensor x = send(tensor_of({3e38, 1e-45, -2, 5, 6}, {5}, DType::F32)), found = flag(0);
  unscale(x, scalar(0x1p-10f), found, x);  // the products overflow, the gradients did not
  EXPECT_EQ(found.item<int32_t>(), 0);
  EXPECT_EQ(values_of(x)[2], -2048);
  EXPECT_EQ(values_of(x)[0], kInf);
  check_finite(x, found);
  EXPECT_EQ(found.item<int32_t>(), 1);
}

// Steps of `step(run)` on both devices, with a skipped one in between; compares what it leaves.
template <typename Step>
void run_steps(Device device, int64_t n, int64_t late, DType grad_dtype, int states, const Step& step) {
  const std::string what = named({n}, grad_dtype, late);
  std::vector<Tensor> left[2];
  for (int side = 0; side < 2; ++side) {
    const Device at = side == 0 ? Device::cpu() : device;
    const auto place = [&](const Tensor& x) {
      Tensor view = Tensor::empty({n + late}, x.dtype(), at).narrow(late, n);
      view.copy_from(x);
      return view;
    };
    StepOperands run;
    run.master = place(random({n}, DType::F32, 1));
    run.copy_f16 = place(random({n}, DType::F16, 2));
    if (n % 2 == 1) run.copy_bf16 = place(random({n}, DType::BF16, 3));
    run.lr = Tensor::scalar(0.05f, at);
    run.scale = Tensor::scalar(7.0f, at);
    std::vector<Tensor> state;
    for (int i = 0; i < states; ++i) state.push_back(place(tensor_of(std::vector<double>(n, 0.0), {n}, DType::F32)));
    for (int t = 0; t < 4; ++t) {
      run.grad = place(random({n}, grad_dtype, 10 + static_cast<uint64_t>(t), 7));
      run.skip = Tensor::scalar<int32_t>(t == 2, at);
      run.count = Tensor::scalar<int32_t>(t < 3 ? t : 2, at);
      step(run, state);
    }
    left[side] = {run.master, run.copy_f16, run.copy_bf16};
    left[side].insert(left[side].end(), state.begin(), state.end());
  }
  for (size_t i = 0; i < left[0].size(); ++i) expect_same(left[1][i], left[0][i], what + fmt::format(" result {}", i));
}

TEST_F(CudaNnKernels, SgdStepsAsOnTheCpu) {
  const SgdOptions all[] = {{},
                            {.weight_decay = 0.1},
                            {.momentum = 0.9, .weight_decay = 5e-4},
                            {.momentum = 0.9, .dampening = 0.3},
                            {.momentum = 0.9, .weight_decay = 0.01, .nesterov = true}};
  for (int64_t n : {1, 3, 1024, 5003})
    for (int64_t late : {0, 1})
      for (DType grad : kDTypes)
        for (const SgdOptions& options : all)
          run_steps(device_, n, late, grad, 1, [&](const StepOperands& run, std::vector<Tensor>& state) {
            Tensor momentum = options.momentum != 0 ? state[0] : Tensor();
            sgd_step(run, momentum, options);
          });
}

TEST_F(CudaNnKernels, AdamStepsAsOnTheCpu) {
  const AdamOptions all[] = {{}, {.weight_decay = 0.1}, {.beta1 = 0.8, .weight_decay = 0.1, .decoupled = true}};
  for (int64_t n : {1, 3, 1024, 5003})
    for (int64_t late : {0, 1})
      for (DType grad : kDTypes)
        for (const AdamOptions& options : all)
          run_steps(device_, n, late, grad, 2, [&](const StepOperands& run, std::vector<Tensor>& state) {
            adam_step(run, state[0], state[1], options);
          });
}

TEST_F(CudaNnKernels, StepsBeginAndEnd) {
  for (int32_t overflow : {0, 1}) {
    Tensor skip = flag(7), random_step = Tensor::scalar<int64_t>(41, device_);
    begin_step(flag(overflow), skip, random_step);
    EXPECT_EQ(skip.item<int32_t>(), overflow);
    EXPECT_EQ(random_step.item<int64_t>(), 42);

    Tensor counts = Tensor::from<int32_t>({1, 2, 3}, {3}, device_);
    advance_counts(skip, counts);
    EXPECT_EQ(counts.to_vector<int32_t>()[2], overflow ? 3 : 4);

    for (int64_t late : {0, 1}) {
      Tensor live = send(random({11}, DType::F32, 1), late), shadow = send(random({11}, DType::F32, 2), late);
      const std::vector<double> kept = values_of(overflow ? shadow : live);
      // More counts than packs of reals, and the other way round: the grid must reach the last of both.
      for (const int64_t n : {1, 4099}) {
        Tensor batches = full({n}, 5, DType::I64, device_), shadow_batches = full({n}, 4, DType::I64, device_);
        commit_or_restore(skip, live, shadow, batches, shadow_batches);
        EXPECT_EQ(batches.to_vector<int64_t>(), std::vector<int64_t>(static_cast<size_t>(n), overflow ? 4 : 5));
        EXPECT_EQ(shadow_batches.to_vector<int64_t>(), batches.to_vector<int64_t>());
      }
      EXPECT_EQ(values_of(live), kept);
      EXPECT_EQ(values_of(shadow), kept);
    }

    const Tensor table = Tensor::from<float>({1, 2, 3}, {3}, device_);
    Tensor position = Tensor::scalar<int64_t>(0, device_), lr = scalar(9);
    for (float expected : {2.0f, 3.0f, 3.0f}) {
      advance_schedule(skip, table, position, lr);
      EXPECT_EQ(lr.item<float>(), overflow ? 9.0f : expected);
    }
  }
  Tensor skip = flag(7), random_step = Tensor::scalar<int64_t>(0, device_);
  begin_step({}, skip, random_step);
  EXPECT_EQ(skip.item<int32_t>(), 0);
}

TEST_F(CudaNnKernels, LossScaleFollowsTheCpu) {
  const LossScaleOptions options{.growth_factor = 3.7, .backoff_factor = 0.3, .growth_interval = 2};
  Tensor state[2][3];  // scale, tracker, overflows
  for (int side = 0; side < 2; ++side) {
    const Device at = side == 0 ? Device::cpu() : device_;
    state[side][0] = Tensor::scalar(65536.0f, at);
    state[side][1] = Tensor::scalar<int32_t>(0, at);
    state[side][2] = Tensor::scalar<int32_t>(0, at);
  }
  for (int step = 0; step < 300; ++step) {
    const int32_t overflow = step < 100 ? step % 5 == 0 : step < 220;  // up to the largest, down to the smallest
    for (auto& [scale, tracker, overflows] : state) {
      const Tensor clear = Tensor::scalar<int32_t>(0, scale.device());
      update_loss_scale({clear, Tensor::scalar(overflow, scale.device())}, options, scale, tracker, overflows, {});
    }
    for (int i = 0; i < 3; ++i) ASSERT_EQ(values_of(state[1][i]), values_of(state[0][i])) << step << " " << i;
  }
}

TEST_F(CudaNnKernels, OverflowsInARowAreReported) {
  Tensor scale = scalar(8), tracker = flag(0), overflows = flag(0), step = Tensor::scalar<int64_t>(123, device_);
  const LossScaleOptions options{.max_consecutive_overflows = 2};
  update_loss_scale({flag(1)}, options, scale, tracker, overflows, step);
  EXPECT_EQ(scale.item<float>(), 4);
  update_loss_scale({flag(1)}, options, scale, tracker, overflows, step);
  const std::string error = error_of([&] { scale.item<float>(); });
  EXPECT_NE(error.find("123"), std::string::npos) << error;
  synchronize(device_);
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
