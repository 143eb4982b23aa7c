// Softmax cross-entropy (formulas in kernels/cross_entropy.h). A row of up to 1024 classes belongs to a warp, a longer
// one to a block. Bytes: forward reads the logits, backward reads them and writes dlogits (both read them twice, the
// second time from the caches).
#include "demi/kernels/cross_entropy.h"

#include "demi/kernels/cuda/last_block.cuh"

namespace demi::kernels::cuda {
namespace {

constexpr int kWarpClasses = 1024;

__device__ unsigned losses_done[kSlots];

// The threads that share a row: kTeam is 32 or kThreads. Reductions give their result to every thread of the team.
template <int kTeam>
struct Team {
  static __device__ int lane() { return static_cast<int>(threadIdx.x) % kTeam; }
  static __device__ int64_t first_row() {
    return blockIdx.x * static_cast<int64_t>(kThreads / kTeam) + threadIdx.x / kTeam;
  }
  static __device__ int64_t step() { return static_cast<int64_t>(gridDim.x) * (kThreads / kTeam); }
  static __device__ float sum(float v) {
    if constexpr (kTeam == 32)
      return warp_sum(v);
    else
      return block_sum(v);
  }
  static __device__ float max(float v) {  // drops NaN
    v = warp_max(v);
    if constexpr (kTeam == 32) return v;
    __shared__ float warps[kThreads / 32];
    __syncthreads();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
    __syncthreads();
    for (float w : warps) v = fmaxf(v, w);
    return v;
  }
  template <typename T>
  static __device__ float largest(const T* x, int64_t classes) {
    float v = -INFINITY;
    for (int64_t c = lane(); c < classes; c += kTeam) v = fmaxf(v, static_cast<float>(x[c]));
    return max(v);
  }
};

template <int kTeam, typename T>
__global__ void __launch_bounds__(kThreads)
    loss_kernel(const T* __restrict__ logits, const int64_t* __restrict__ labels, int64_t samples, int64_t classes,
                float smoothing, Reduction reduction, float* loss, float* log_sums, float* partial, int slot,
                ErrorWord* word) {
  using team = Team<kTeam>;
  float total = 0;
  for (int64_t n = team::first_row(); n < samples; n += team::step()) {  // all threads of a team stay together
    const T* x = logits + n * classes;
    const float largest = team::largest(x, classes);
    float ones = 0, rest = 0, below = 0;  // of the sum of exp(x - largest); the sum of largest - x
    for (int64_t c = team::lane(); c < classes; c += kTeam) {
      const float d = static_cast<float>(x[c]) - largest;
      (d == 0 ? ones : rest) += expf(d);
      below -= d;
    }
    ones = team::sum(ones);
    rest = team::sum(rest);
    if (smoothing > 0) below = team::sum(below);
    if (team::lane() != 0) continue;
    // A rest below FP64's resolution of 1 is nothing, as on the CPU.
    const float log_sum = log1pf(static_cast<float>((static_cast<double>(ones) + static_cast<double>(rest)) - 1));
    log_sums[n] = log_sum;
    const int64_t label = labels[n];
    float value;
    if (label < 0 || label >= classes) {
      report_error(word, ErrorWord::LabelOutOfRange, static_cast<int>(classes), n, label);
      value = NAN;
    } else {
      value = (1.0f - smoothing) * (log_sum + (largest - static_cast<float>(x[label])));
      if (smoothing > 0) value += smoothing * (log_sum + below / static_cast<float>(classes));
    }
    if (reduction == Reduction::None)
      loss[n] = value;
    else
      total += value;
  }
  if (reduction == Reduction::None) return;
  double sum;
  if (grid_sum(total, partial, &losses_done[slot], sum))
    *loss = static_cast<float>(reduction == Reduction::Mean ? sum / static_cast<double>(samples) : sum);
}

template <int kTeam, typename T>
__global__ void __launch_bounds__(kThreads)
    loss_backward_kernel(const float* dy, const T* __restrict__ logits, const int64_t* __restrict__ labels,
                         const float* __restrict__ log_sums, int64_t samples, int64_t classes, float smoothing,
                         float spread, Reduction reduction, T* __restrict__ dlogits, ErrorWord* word) {
  using team = Team<kTeam>;
  for (int64_t n = team::first_row(); n < samples; n += team::step()) {
    const int64_t label = labels[n];
    const bool valid = label >= 0 && label < classes;
    if (!valid && team::lane() == 0)
      report_error(word, ErrorWord::LabelOutOfRange, static_cast<int>(classes), n, label);
    float g = dy[reduction == Reduction::None ? n : 0];
    if (reduction == Reduction::Mean) g /= static_cast<float>(samples);
    const float log_sum = log_sums[n], largest = team::largest(logits + n * classes, classes);
    for (int64_t c = team::lane(); c < classes; c += kTeam) {
      const int64_t at = n * classes + c;
      const float d = static_cast<float>(logits[at]) - largest - log_sum;
      const float difference = (c == label ? expm1f(d) + smoothing : expf(d)) - spread;
      dlogits[at] = static_cast<T>(valid ? g * difference : 0.0f);
    }
  }
}

// Whether class a with logit va comes before class b with vb: a larger logit, NaN being the largest, then a lower
// class.
__device__ __forceinline__ bool before(float va, int64_t a, float vb, int64_t b) {
  const bool nan_a = va != va, nan_b = vb != vb;
  if (nan_a || nan_b) return nan_a != nan_b ? nan_a : a < b;
  return va != vb ? va > vb : a < b;
}

// A warp a row, whatever its length; counts are integers, so their order does not matter.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    count_correct_kernel(const T* __restrict__ logits, const int64_t* __restrict__ labels, int64_t samples,
                         int64_t classes, unsigned long long* count) {
  using team = Team<32>;
  float correct = 0;
  for (int64_t n = team::first_row(); n < samples; n += team::step()) {
    float best = -INFINITY;
    int64_t at = INT64_MAX;
    for (int64_t c = team::lane(); c < classes; c += 32) {
      const float v = static_cast<float>(logits[n * classes + c]);
      if (before(v, c, best, at)) {
        best = v;
        at = c;
      }
    }
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) {
      const float v = __shfl_xor_sync(0xffffffffu, best, lane);
      const int64_t c = __shfl_xor_sync(0xffffffffu, at, lane);
      if (before(v, c, best, at)) {
        best = v;
        at = c;
      }
    }
    if (team::lane() == 0 && at == labels[n]) correct += 1;
  }
  correct = block_sum(correct);  // exact: far fewer than 2^24 rows a block
  if (threadIdx.x == 0 && correct > 0) atomicAdd(count, static_cast<unsigned long long>(correct));
}

// f(kTeam) with the team as a constant.
template <typename F>
void with_team(int64_t classes, const F& f) {
  if (classes <= kWarpClasses)
    f(std::integral_constant<int, 32>{});
  else
    f(std::integral_constant<int, kThreads>{});
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void cross_entropy(const Tensor& logits, const Tensor& labels, double smoothing, Reduction reduction, Tensor& loss,
                   Tensor& log_sum) {
  visit_cuda(logits.dtype(), "cross_entropy", [&](auto type) {
    using T = typename decltype(type)::type;
    with_team(logits.size(1), [&](auto team) {
      const int blocks = blocks_for(logits.size(0) * team, logits);
      Tensor partial = partial_sums(blocks, logits);
      loss_kernel<team><<<blocks, kThreads, 0, stream_of(logits)>>>(
          logits.data<T>(), labels.data<int64_t>(), logits.size(0), logits.size(1), static_cast<float>(smoothing),
          reduction, loss.mutable_data<float>(), log_sum.mutable_data<float>(), partial.mutable_data<float>(),
          counter_slot(logits), error_word(logits.device()));
    });
  });
}

void cross_entropy_backward(const Tensor& dy, const Tensor& logits, const Tensor& labels, const Tensor& log_sum,
                            double smoothing, Reduction reduction, Tensor& dlogits) {
  visit_cuda(logits.dtype(), "cross_entropy_backward", [&](auto type) {
    using T = typename decltype(type)::type;
    const float spread = static_cast<float>(smoothing / static_cast<double>(logits.size(1)));
    with_team(logits.size(1), [&](auto team) {
      loss_backward_kernel<team><<<blocks_for(logits.size(0) * team, logits), kThreads, 0, stream_of(logits)>>>(
          dy.data<float>(), logits.data<T>(), labels.data<int64_t>(), log_sum.data<float>(), logits.size(0),
          logits.size(1), static_cast<float>(smoothing), spread, reduction, dlogits.mutable_data<T>(),
          error_word(logits.device()));
    });
  });
}

void count_correct(const Tensor& logits, const Tensor& labels, Tensor& count) {
  visit_cuda(logits.dtype(), "count_correct", [&](auto type) {
    using T = typename decltype(type)::type;
    auto* total = reinterpret_cast<unsigned long long*>(count.mutable_data<int64_t>());
    count_correct_kernel<<<blocks_for(logits.size(0) * 32, logits), kThreads, 0, stream_of(logits)>>>(
        logits.data<T>(), labels.data<int64_t>(), logits.size(0), logits.size(1), total);
    DEMI_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace demi::kernels::cuda
