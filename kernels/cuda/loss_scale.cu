// The loss scale's update (rule in kernels/loss_scale.h): one thread on a dozen words, so that the host never waits to
// learn whether a step overflowed.
#include "demi/kernels/loss_scale.h"

#include <cfloat>

#include "demi/kernels/cuda/device.cuh"

namespace demi::kernels::cuda {
namespace {

constexpr int kMostFlags = static_cast<int>(kMostLossScaleFlags);
struct Flags {
  const int* found[kMostFlags];
  int n;
};

__global__ void update_loss_scale_kernel(Flags flags, LossScaleOptions options, float* scale, int* tracker,
                                         int* overflows, const int64_t* random_step, ErrorWord* word) {
  bool overflowed = false;
  for (int i = 0; i < flags.n; ++i) overflowed = overflowed || *flags.found[i] != 0;
  if (overflowed) {
    *scale = fmaxf(static_cast<float>(*scale * options.backoff_factor), FLT_MIN);
    *tracker = 0;
    const int in_a_row = ++*overflows;
    const int most = options.max_consecutive_overflows;
    if (most > 0 && in_a_row >= most)
      report_error(word, ErrorWord::TooManyOverflows, in_a_row, random_step != nullptr ? *random_step : 0, 0);
    return;
  }
  *overflows = 0;
  if (++*tracker != options.growth_interval) return;
  const float grown = static_cast<float>(*scale * options.growth_factor);
  if (grown <= FLT_MAX) *scale = grown;
  *tracker = 0;
}

}  // namespace

void update_loss_scale(const std::vector<Tensor>& found, const LossScaleOptions& options, Tensor& scale,
                       Tensor& tracker, Tensor& overflows, const Tensor& random_step) {
  Flags flags{{}, static_cast<int>(found.size())};  // at most 8: the caller has checked
  for (size_t i = 0; i < found.size(); ++i) flags.found[i] = found[i].data<int>();
  update_loss_scale_kernel<<<1, 1, 0, stream_of(scale)>>>(
      flags, options, scale.mutable_data<float>(), tracker.mutable_data<int>(), overflows.mutable_data<int>(),
      random_step.defined() ? random_step.data<int64_t>() : nullptr, error_word(scale.device()));
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace demi::kernels::cuda
