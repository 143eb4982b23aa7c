// Optimizer steps, the loss scale and what happens to gradients between give on CUDA what they give on the CPU.
#include "demi/kernels/adam.h"
#include "demi/kernels/fill.h"
#include "demi/kernels/gradient.h"
#include "demi/kernels/loss_scale.h"
#include "demi/kernels/sgd.h"
#include "demi/tests/cuda_kernels.h"

namespace demi {
namespace {

using namespace demi::kernels;
using namespace demi::test;

class CudaOptimizer : public CudaKernels {};

TEST_F(CudaOptimizer, GradientsAreCheckedUnscaledAndClipped) {
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

TEST_F(CudaOptimizer, UnscaleJudgesBeforeTheProductAndWorksInPlace) {
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

TEST_F(CudaOptimizer, SgdStepsAsOnTheCpu) {
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

TEST_F(CudaOptimizer, AdamStepsAsOnTheCpu) {
  const AdamOptions all[] = {{}, {.weight_decay = 0.1}, {.beta1 = 0.8, .weight_decay = 0.1, .decoupled = true}};
  for (int64_t n : {1, 3, 1024, 5003})
    for (int64_t late : {0, 1})
      for (DType grad : kDTypes)
        for (const AdamOptions& options : all)
          run_steps(device_, n, late, grad, 2, [&](const StepOperands& run, std::vector<Tensor>& state) {
            adam_step(run, state[0], state[1], options);
          });
}

TEST_F(CudaOptimizer, StepsBeginAndEnd) {
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

TEST_F(CudaOptimizer, LossScaleFollowsTheCpu) {
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

TEST_F(CudaOptimizer, OverflowsInARowAreReported) {
  Tensor scale = scalar(8), tracker = flag(0), overflows = flag(0), step = Tensor::scalar<int64_t>(123, device_);
  const LossScaleOptions options{.max_consecutive_overflows = 2};
  update_loss_scale({flag(1)}, options, scale, tracker, overflows, step);
  EXPECT_EQ(scale.item<float>(), 4);
  update_loss_scale({flag(1)}, options, scale, tracker, overflows, step);
  const std::string error = error_of([&] { scale.item<float>(); });
  EXPECT_NE(error.find("123"), std::string::npos) << error;
  synchronize(device_);
}

}  // namespace
}  // namespace demi
