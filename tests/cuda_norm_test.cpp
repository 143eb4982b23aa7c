// Batch norm gives on CUDA what it gives on the CPU.
#include "demi/kernels/batch_norm.h"
#include "demi/tests/cuda_kernels.h"

namespace demi {
namespace {

using namespace demi::kernels;
using namespace demi::test;

class CudaNorm : public CudaKernels {};

const Shape kNormShapes[] = {{2, 1},     {777, 1},  {5, 3},     {37, 7},   {2, 3, 3, 64}, {64, 64},
                             {1001, 65}, {33, 128}, {130, 512}, {7, 1000}, {1000, 8},     {515, 24},
                             {4097, 16}, {40, 4},   {300, 257}, {3, 20000}};

TEST_F(CudaNorm, BatchNormTrainsAsOnTheCpu) {
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

TEST_F(CudaNorm, BatchNormBackwardIsAsOnTheCpu) {
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

TEST_F(CudaNorm, BatchNormEvalIsAsOnTheCpu) {
  for (DType dtype : kDTypes) {
    const Tensor x = random({9, 5, 16}, dtype, 1), mean = random({16}, DType::F32, 2);
    const Tensor var = random({16}, DType::F32, 3, 0.5, 0.6);
    const BatchNormResult a = batch_norm_eval(send(x), {}, {}, {}, send(mean), send(var), {});
    const BatchNormResult b = batch_norm_eval(x, {}, {}, {}, mean, var, {});
    expect_same(a.inv_std, b.inv_std, "inv_std");
    expect_same(a.y, b.y, "y", 2e-6);
  }
}

TEST_F(CudaNorm, BatchNormSurvivesOutliersFirst) {
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

TEST_F(CudaNorm, BatchNormKeepsNaNToItsChannel) {
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

}  // namespace
}  // namespace demi
