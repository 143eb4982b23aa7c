// The decisions around an optimizer step, taken where the flags are: on the device. All but commit_or_restore are a
// handful of words; that one reads and writes one FP32 tensor (8 bytes an element) and some counts.
#include "demi/kernels/optimizer_step.h"

#include "demi/kernels/cuda/device.cuh"

namespace demi::kernels::cuda {
namespace {

__global__ void begin_step_kernel(const int* found, const ErrorWord* word, int* skip, int64_t* random_step) {
  // volatile: the word is host memory, which the host clears between launches
  const bool failed = static_cast<const volatile ErrorWord*>(word)->code != ErrorWord::None;
  *skip = failed || (found != nullptr && *found != 0) ? 1 : 0;
  if (random_step != nullptr) *random_step += 1;
}

__global__ void advance_counts_kernel(const int* skip, int* counts, int64_t n) {
  if (*skip != 0) return;
  DEMI_GRID_STRIDE(i, n) counts[i] += 1;
}

template <int N>
__global__ void commit_or_restore_kernel(const int* skip, float* live, float* shadow, int64_t n, int64_t* counts,
                                         int64_t* shadow_counts, int64_t count) {
  const bool restore = *skip != 0;
  const float* from = restore ? shadow : live;
  float* to = restore ? live : shadow;
  DEMI_GRID_STRIDE(i, n / N) {
    float v[N];
    load_floats<N>(from + i * N, v);
    store_floats<N>(to + i * N, v);
  }
  DEMI_GRID_STRIDE(i, n % N) to[n - 1 - i] = from[n - 1 - i];
  const int64_t* count_from = restore ? shadow_counts : counts;
  int64_t* count_to = restore ? counts : shadow_counts;
  DEMI_GRID_STRIDE(i, count) count_to[i] = count_from[i];
}

__global__ void advance_schedule_kernel(const int* skip, const float* table, int64_t n, int64_t* position, float* lr) {
  if (*skip != 0) return;
  const int64_t at = *position + 1;
  *position = at;
  *lr = table[at < n ? at : n - 1];
}

}  // namespace

void begin_step(const Tensor& found, Tensor& skip, Tensor& random_step) {
  begin_step_kernel<<<1, 1, 0, stream_of(skip)>>>(
      found.defined() ? found.data<int>() : nullptr, error_word(skip.device()), skip.mutable_data<int>(),
      random_step.defined() ? random_step.mutable_data<int64_t>() : nullptr);
  DEMI_CUDA_CHECK(cudaGetLastError());
}

void advance_counts(const Tensor& skip, Tensor& counts) {
  const int64_t n = counts.numel();
  advance_counts_kernel<<<blocks_for(n, counts), kThreads, 0, stream_of(counts)>>>(skip.data<int>(),
                                                                                   counts.mutable_data<int>(), n);
  DEMI_CUDA_CHECK(cudaGetLastError());
}

void commit_or_restore(const Tensor& skip, Tensor& live, Tensor& shadow, Tensor& counts, Tensor& shadow_counts) {
  const int64_t n = live.numel(), m = counts.numel();
  float *a = n > 0 ? live.mutable_data<float>() : nullptr, *b = n > 0 ? shadow.mutable_data<float>() : nullptr;
  int64_t *c = m > 0 ? counts.mutable_data<int64_t>() : nullptr,
          *d = m > 0 ? shadow_counts.mutable_data<int64_t>() : nullptr;
  if (aligned16(a) && aligned16(b))
    commit_or_restore_kernel<4><<<blocks_for(std::max((n + 3) / 4, m), skip), kThreads, 0, stream_of(skip)>>>(
        skip.data<int>(), a, b, n, c, d, m);
  else
    commit_or_restore_kernel<1>
        <<<blocks_for(std::max(n, m), skip), kThreads, 0, stream_of(skip)>>>(skip.data<int>(), a, b, n, c, d, m);
  DEMI_CUDA_CHECK(cudaGetLastError());
}

void advance_schedule(const Tensor& skip, const Tensor& table, Tensor& position, Tensor& lr) {
  advance_schedule_kernel<<<1, 1, 0, stream_of(skip)>>>(skip.data<int>(), table.data<float>(), table.numel(),
                                                        position.mutable_data<int64_t>(), lr.mutable_data<float>());
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace demi::kernels::cuda
