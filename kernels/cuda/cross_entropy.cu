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
  static __device__ double sum(double v) {
    v = warp_sum(v);
    if constexpr (kTeam == 32) return v;
    __shared__ double warps[kThreads / 32];
    __syncthreads();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (double w : warps) v += w;
    return v;
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

// exp in the precision that the logits deserve. FP32 ones get FP64: the loss and the gradient of a sure prediction are
// the small difference of the largest probability from 1.
template <typename T>
__device__ __forceinline__ double exp_for(double d) {
  if constexpr (std::is_same_v<T, float>)
    return exp(d);
  else
    return static_cast<double>(expf(static_cast<float>(d)));
}

template <int kTeam, typename T>
__global__ void __launch_bounds__(kThreads)
    loss_kernel(const T* __restrict__ logits, const int64_t* __restrict__ labels, int64_t samples, int64_t classes,
                double smoothing, Reduction reduction, float* loss, double* lse, float* partial, int slot,
                ErrorWord* word) {
  using team = Team<kTeam>;
  float total = 0;
  for (int64_t n = team::first_row(); n < samples; n += team::step()) {  // all threads of a team stay together
    const T* x = logits + n * classes;
    float largest = -INFINITY;
    for (int64_t c = team::lane(); c < classes; c += kTeam) largest = fmaxf(largest, static_cast<float>(x[c]));
    largest = team::max(largest);
    double sum = 0, below = 0;  // of exp(x - largest), of largest - x
    for (int64_t c = team::lane(); c < classes; c += kTeam) {
      const double d = static_cast<double>(static_cast<float>(x[c])) - static_cast<double>(largest);
      sum += exp_for<T>(d);
      below -= d;
    }
    sum = team::sum(sum);
    if (smoothing > 0) below = team::sum(below);
    if (team::lane() != 0) continue;
    const double log_sum = log(sum);
    lse[2 * n] = static_cast<double>(largest);
    lse[2 * n + 1] = log_sum;
    const int64_t label = labels[n];
    float value;
    if (label < 0 || label >= classes) {
      report_error(word, ErrorWord::LabelOutOfRange, static_cast<int>(classes), n, label);
      value = NAN;
    } else {
      const double distance =
          log_sum + (static_cast<double>(largest) - static_cast<double>(static_cast<float>(x[label])));
      value = static_cast<float>(smoothing > 0 ? (1 - smoothing) * distance +
                                                     smoothing * (log_sum + below / static_cast<double>(classes))
                                               : distance);
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
                         const double* __restrict__ lse, int64_t samples, int64_t classes, double target, double spread,
                         Reduction reduction, T* __restrict__ dlogits) {
  using team = Team<kTeam>;
  for (int64_t n = team::first_row(); n < samples; n += team::step()) {
    const int64_t label = labels[n];
    const bool valid = label >= 0 && label < classes;  // else the forward pass has reported it
    double g = static_cast<double>(dy[reduction == Reduction::None ? n : 0]);
    if (reduction == Reduction::Mean) g /= static_cast<double>(samples);
    const double largest = lse[2 * n], log_sum = lse[2 * n + 1];
    for (int64_t c = team::lane(); c < classes; c += kTeam) {
      const int64_t at = n * classes + c;
      const double p = exp_for<T>(static_cast<double>(static_cast<float>(logits[at])) - largest - log_sum);
      const double d = g * (p - (c == label ? target : 0.0) - spread);
      dlogits[at] = static_cast<T>(valid ? static_cast<float>(d) : 0.0f);
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
          logits.data<T>(), labels.data<int64_t>(), logits.size(0), logits.size(1), smoothing, reduction,
          loss.mutable_data<float>(), log_sum.mutable_data<double>(), partial.mutable_data<float>(), counter_slot(),
          error_word(logits.device()));
    });
  });
}

void cross_entropy_backward(const Tensor& dy, const Tensor& logits, const Tensor& labels, const Tensor& log_sum,
                            double smoothing, Reduction reduction, Tensor& dlogits) {
  visit_cuda(logits.dtype(), "cross_entropy_backward", [&](auto type) {
    using T = typename decltype(type)::type;
    const double spread = smoothing / static_cast<double>(logits.size(1));
    with_team(logits.size(1), [&](auto team) {
      loss_backward_kernel<team><<<blocks_for(logits.size(0) * team, logits), kThreads, 0, stream_of(logits)>>>(
          dy.data<float>(), logits.data<T>(), labels.data<int64_t>(), log_sum.data<double>(), logits.size(0),
          logits.size(1), 1 - smoothing, spread, reduction, dlogits.mutable_data<T>());
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
