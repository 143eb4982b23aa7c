// argmax: the index of the first largest element along an axis, NaN counting as largest; amax_backward: dy shared among
// the elements equal to the maximum. Each byte of x is read once (amax_backward: twice).
#include "demi/kernels/cuda/rows.cuh"
#include "demi/kernels/cuda/strided.cuh"
#include "demi/kernels/reduce.h"

namespace demi::kernels::cuda {
namespace {

// [outer, extent, inner] cut into [outer, parts, inner] items of `split.length` elements each. `lanes` threads share an
// item: several along a row (inner == 1), one across rows, where neighbours read neighbouring columns.
struct Items {
  AxisView view;
  Split split;
  Divider by_inner, by_parts;
  int64_t count = 0;
  int lanes = 1;

  Items(const AxisView& v, const Tensor& x) : view(v) {
    if (v.inner == 1) {
      split = split_rows(v.outer, v.extent, 1 << 16, x);
    } else {
      const int64_t fill = ceil_div(int64_t{1024} * Context::get(x.device()).multiprocessors(), v.outer * v.inner);
      const int64_t parts = std::max<int64_t>(1, std::min(fill, v.extent / 64));
      split.length = std::max<int64_t>(1, ceil_div(v.extent, parts));
      split.count = std::max<int64_t>(1, ceil_div(v.extent, split.length));
    }
    count = v.outer * split.count * v.inner;
    if (v.inner == 1) lanes = lanes_for(std::min(v.extent, split.length), count, 4);
    by_inner = Divider(v.inner, count);
    by_parts = Divider(split.count, count);
  }
  int blocks(const Tensor& x) const { return blocks_for_rows(count, lanes, x); }

  // Where item i starts in x, how many elements it has, and its place among the [outer, inner] results.
  struct Place {
    int64_t start, length, first, result;
  };
  __device__ Place place(int64_t i) const {
    const int64_t row = by_inner(i), column = i - row * view.inner;
    const int64_t outer = by_parts(row), first = (row - outer * split.count) * split.length;
    return {(outer * view.extent + first) * view.inner + column, min(split.length, view.extent - first), first,
            outer * view.inner + column};
  }
};

struct Best {
  float value;
  int64_t index;
};
__device__ __forceinline__ Best better(const Best& a, const Best& b) {
  const bool nan_a = a.value != a.value, nan_b = b.value != b.value;
  bool first = a.value > b.value;
  if (nan_a || nan_b) first = nan_a && (!nan_b || a.index < b.index);
  if (a.value == b.value) first = a.index < b.index;
  return first ? a : b;
}
__device__ __forceinline__ Best best_of_warp(Best best, int lanes) {
  for (int mask = lanes / 2; mask > 0; mask /= 2) {
    const Best other{__shfl_xor_sync(0xffffffffu, best.value, mask), __shfl_xor_sync(0xffffffffu, best.index, mask)};
    best = better(best, other);
  }
  return best;
}

// `indices`: what the elements of x stand for, when x holds the values of an earlier pass. `values` may be null.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    argmax_kernel(const T* x, const int64_t* indices, const Items items, float* values, int64_t* y) {
  __shared__ Best partial[kThreads / 32];
  const int lanes = items.lanes, groups = kThreads / lanes, lane = threadIdx.x % lanes;
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * groups; base < items.count;
       base += static_cast<int64_t>(gridDim.x) * groups) {
    const int64_t item = base + threadIdx.x / lanes;
    Best best{-kInfinity, std::numeric_limits<int64_t>::max()};
    if (item < items.count) {
      const Items::Place at = items.place(item);
#pragma unroll 4
      for (int64_t e = lane; e < at.length; e += lanes) {
        const int64_t i = at.start + e * items.view.inner;
        best = better(best, Best{static_cast<float>(x[i]), indices ? indices[i] : at.first + e});
      }
    }
    best = best_of_warp(best, min(lanes, 32));
    if (lanes > 32) {
      __syncthreads();  // the item before has been read
      if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = best;
      __syncthreads();
      best = best_of_warp(partial[threadIdx.x % (kThreads / 32)], kThreads / 32);
    }
    if (item < items.count && lane == 0) {
      if (values) values[item] = best.value;
      y[item] = best.index;
    }
  }
}

template <typename T>
void argmax_of(const Tensor& x, const int64_t* indices, const AxisView& view, Tensor& y) {
  const Items items(view, x);
  const bool whole = items.split.count == 1;
  Tensor values, places = y;
  if (!whole) {
    const memory::Scope scope(memory::Category::Workspace);
    values = Tensor::empty({items.count}, DType::F32, x.device());
    places = Tensor::empty({items.count}, DType::I64, x.device());
  }
  argmax_kernel<<<items.blocks(x), kThreads, 0, stream_of(x)>>>(
      x.data<T>(), indices, items, whole ? nullptr : values.mutable_data<float>(), places.mutable_data<int64_t>());
  DEMI_CUDA_CHECK(cudaGetLastError());
  if (!whole) argmax_of<float>(values, places.data<int64_t>(), {view.outer, items.split.count, view.inner}, y);
}

__device__ __forceinline__ bool is_maximum(float x, float y) { return x == y || (x != x && y != y); }

// How many elements of each item equal the maximum y.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    count_maxima_kernel(const T* x, const T* y, const Items items, float* counts) {
  const int lanes = items.lanes, groups = kThreads / lanes, lane = threadIdx.x % lanes;
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * groups; base < items.count;
       base += static_cast<int64_t>(gridDim.x) * groups) {
    const int64_t item = base + threadIdx.x / lanes;
    float count = 0;
    if (item < items.count) {
      const Items::Place at = items.place(item);
      const float largest = static_cast<float>(y[at.result]);
      for (int64_t e = lane; e < at.length; e += lanes)
        if (is_maximum(static_cast<float>(x[at.start + e * items.view.inner]), largest)) count += 1;
    }
    count = sum_lanes(count, lanes);
    if (item < items.count && lane == 0) counts[item] = count;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    amax_backward_kernel(const T* dy, const T* x, const T* y, const float* counts, int64_t n, int64_t inner,
                         Divider by_inner, Divider by_extent, T* dx) {
  DEMI_GRID_STRIDE(i, n) {
    const int64_t row = by_inner(i), result = by_extent(row) * inner + i - row * inner;
    const bool largest = is_maximum(static_cast<float>(x[i]), static_cast<float>(y[result]));
    dx[i] = static_cast<T>(largest ? static_cast<float>(dy[result]) / counts[result] : 0.0f);
  }
}

}  // namespace

void argmax(const Tensor& x, const AxisView& view, Tensor& y) {
  if (y.numel() == 0) return;
  visit_cuda(x.dtype(), "argmax", [&](auto type) { argmax_of<typename decltype(type)::type>(x, nullptr, view, y); });
}

void amax_backward(const Tensor& dy, const Tensor& x, const Tensor& y, const AxisView& view, Tensor& dx) {
  const int64_t n = x.numel();
  if (n == 0) return;
  const Items items(view, x);
  const memory::Scope scope(memory::Category::Workspace);
  Tensor counts = Tensor::empty({items.count}, DType::F32, x.device());
  visit_cuda(x.dtype(), "amax_backward", [&](auto type) {
    using T = typename decltype(type)::type;
    count_maxima_kernel<<<items.blocks(x), kThreads, 0, stream_of(x)>>>(x.data<T>(), y.data<T>(), items,
                                                                        counts.mutable_data<float>());
    DEMI_CUDA_CHECK(cudaGetLastError());
    if (items.split.count > 1) {
      Tensor all = Tensor::empty({view.outer * view.inner}, DType::F32, x.device());
      reduce(ReduceOp::Sum, counts, {view.outer, items.split.count, view.inner}, 1.0, all);
      counts = all;
    }
    amax_backward_kernel<<<blocks_for(n, x), kThreads, 0, stream_of(x)>>>(
        dy.data<T>(), x.data<T>(), y.data<T>(), counts.data<float>(), n, view.inner, Divider(view.inner, n),
        Divider(view.extent, n), dx.mutable_data<T>());
    DEMI_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace demi::kernels::cuda
