// fill: x[i] = value. Writes every byte once: the value's bit pattern, whatever the dtype, 16 bytes at a time.
#include "demi/kernels/fill.h"

#include "demi/kernels/cpu/convert.h"
#include "demi/kernels/cuda/device.cuh"

namespace demi::kernels::cuda {
namespace {

// `head` elements come before the first 16-byte boundary.
template <typename T>
__global__ void __launch_bounds__(kThreads) fill_kernel(T* x, int64_t n, int64_t head, T value) {
  constexpr int N = kPack<T>;
  const int64_t packs = (n - head) / N, tail = head + packs * N;
  Pack<T, N> pack;
#pragma unroll
  for (int j = 0; j < N; ++j) pack.value[j] = value;
  auto* aligned = reinterpret_cast<Pack<T, N>*>(x + head);
  DEMI_GRID_STRIDE(i, packs) aligned[i] = pack;
  DEMI_GRID_STRIDE(i, head + (n - tail)) x[i < head ? i : tail + (i - head)] = value;
}

template <typename T>
void fill_bits(Tensor& x, T value) {
  T* p = static_cast<T*>(x.mutable_raw());
  const int64_t n = x.numel();
  const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(p) % 16);
  const int64_t head = std::min<int64_t>(n, (16 - past) % 16 / static_cast<int64_t>(sizeof(T)));
  fill_kernel<<<blocks_for((n + kPack<T> - 1) / kPack<T>, x), kThreads, 0, stream_of(x)>>>(p, n, head, value);
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void fill(Tensor& x, double value) {
  switch (x.dtype()) {
    case DType::F32:
      return fill_bits(x, static_cast<float>(value));
    case DType::F16:
      return fill_bits(x, cpu::narrow_once<Half>(value).bits);
    case DType::BF16:
      return fill_bits(x, cpu::narrow_once<BFloat16>(value).bits);
    case DType::I32:
      return fill_bits(x, static_cast<int32_t>(value));
    case DType::I64:
      return fill_bits(x, static_cast<int64_t>(value));
    case DType::U8:
      return fill_bits(x, static_cast<uint8_t>(value));
    case DType::F64:
      break;
  }
  fail("[fill] fp64 exists on the CPU only");
}

}  // namespace demi::kernels::cuda
