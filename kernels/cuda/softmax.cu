// softmax and log-softmax, y = exp(x - m) / s or x - m - log s, and their gradients. Forward reads x twice (the second
// time from a cache, unless the row is too long for it) and writes y once; one pass finds m and s together: when the
// maximum grows, the sum so far is scaled down. About two exponentials an element. Backward reads dy and y the same
// way.
#include "demi/kernels/softmax.h"

#include "demi/kernels/cuda/rows.cuh"
#include "demi/kernels/cuda/strided.cuh"

namespace demi::kernels::cuda {
namespace {

// The maximum seen and the sum of exp(x - maximum); backward sums plainly, with a maximum of 0 throughout. A maximum of
// -infinity means that nothing but -infinity (or NaN, which is then in the sum) has come yet.
struct Sum {
  float largest, sum;
};
__device__ __forceinline__ float scaled(const Sum& s, float largest) {
  return s.largest == largest ? s.sum : s.sum * expf(s.largest - largest);
}
__device__ __forceinline__ Sum merge(const Sum& a, const Sum& b) {
  const float largest = fmaxf(a.largest, b.largest);
  return {largest, scaled(a, largest) + scaled(b, largest)};
}

// in[0] is x.
struct Forward {
  static constexpr int kInputs = 1;
  bool log;
  static constexpr Sum kStart{-kInfinity, 0};
  template <int N>
  __device__ void take(Sum& s, const float (&in)[1][N]) const {
    float largest = s.largest, sum = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) largest = fmaxf(largest, in[0][k]);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float v = in[0][k];
      sum += v == -kInfinity ? 0.0f : expf(v - largest);  // -infinity less -infinity would be NaN
    }
    s = {largest, scaled(s, largest) + sum};
  }
  __device__ float last(const Sum& s) const { return log ? logf(s.sum) : 1.0f / s.sum; }
  template <int N>
  __device__ void give(const Sum& s, float last, const float (&in)[1][N], float (&out)[N]) const {
#pragma unroll
    for (int k = 0; k < N; ++k) out[k] = log ? in[0][k] - s.largest - last : expf(in[0][k] - s.largest) * last;
  }
};

// in[0] is dy, in[1] is y.
struct Backward {
  static constexpr int kInputs = 2;
  bool log;
  static constexpr Sum kStart{0, 0};
  template <int N>
  __device__ void take(Sum& s, const float (&in)[2][N]) const {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) sum += log ? in[0][k] : in[0][k] * in[1][k];
    s.sum += sum;
  }
  __device__ float last(const Sum& s) const { return s.sum; }
  template <int N>
  __device__ void give(const Sum&, float last, const float (&in)[2][N], float (&out)[N]) const {
#pragma unroll
    for (int k = 0; k < N; ++k) out[k] = log ? in[0][k] - expf(in[1][k]) * last : in[1][k] * (in[0][k] - last);
  }
};

template <int N, typename Op, typename T>
__device__ __forceinline__ void load_inputs(const T* a, const T* b, int64_t i, float (&in)[Op::kInputs][N]) {
  load_floats<N>(a + i, in[0]);
  if constexpr (Op::kInputs == 2) load_floats<N>(b + i, in[1]);
}

__device__ __forceinline__ Sum merge_warp(Sum s, int lanes) {
  for (int mask = lanes / 2; mask > 0; mask /= 2)
    s = merge(s, {__shfl_xor_sync(0xffffffffu, s.largest, mask), __shfl_xor_sync(0xffffffffu, s.sum, mask)});
  return s;
}
// All threads of the block must come here together.
__device__ __forceinline__ Sum merge_lanes(Sum s, int lanes) {
  __shared__ Sum partial[kThreads / 32];
  s = merge_warp(s, min(lanes, 32));
  if (lanes > 32) {
    __syncthreads();  // a second call must not overwrite what a slow warp still reads
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = s;
    __syncthreads();
    s = merge_warp(partial[threadIdx.x % (kThreads / 32)], kThreads / 32);
  }
  return s;
}

// Rows (inner == 1), cut into parts where they are long and few: then one launch sums the parts, a second one merges
// the sums of a row and writes.
enum class Stage { Whole, SumParts, WriteParts };

template <int N, typename Op, typename T>
__global__ void __launch_bounds__(kThreads)
    softmax_rows_kernel(Op op, Stage stage, const T* a, const T* b, int64_t items, int64_t extent, Split split,
                        Divider by_parts, int lanes, Sum* parts, T* y) {
  const int groups = kThreads / lanes, lane = threadIdx.x % lanes;
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * groups; base < items;
       base += static_cast<int64_t>(gridDim.x) * groups) {
    const int64_t item = base + threadIdx.x / lanes, row = by_parts(item), part = item - row * split.count;
    const int64_t start = row * extent + part * split.length;
    const int64_t n = item < items ? min(split.length, extent - part * split.length) : 0;
    Sum s = Op::kStart;
    if (stage != Stage::WriteParts) {
      for_row<N, 2>(
          a + start, n, lane, lanes,
          [&](int64_t i) {
            float in[Op::kInputs][1];
            load_inputs<1, Op>(a, b, start + i, in);
            op.take(s, in);
          },
          [&](int64_t i) {
            float in[Op::kInputs][N];
            load_inputs<N, Op>(a, b, start + i, in);
            op.take(s, in);
          });
    } else if (item < items) {
      for (int64_t j = lane; j < split.count; j += lanes) s = merge(s, parts[row * split.count + j]);
    }
    s = merge_lanes(s, lanes);
    if (stage == Stage::SumParts) {
      if (item < items && lane == 0) parts[item] = s;
      continue;
    }
    const float last = op.last(s);
    for_row<N, 2>(
        a + start, n, lane, lanes,
        [&](int64_t i) {
          float in[Op::kInputs][1], out[1];
          load_inputs<1, Op>(a, b, start + i, in);
          op.give(s, last, in, out);
          store_floats<1>(y + start + i, out);
        },
        [&](int64_t i) {
          float in[Op::kInputs][N], out[N];
          load_inputs<N, Op>(a, b, start + i, in);
          op.give(s, last, in, out);
          store_floats<N>(y + start + i, out);
        });
  }
}

// inner > 1: a block is tx x ty threads, tx of them on neighbouring columns (outer x inner, numbered through), ty
// sharing a column's extent, which is read four elements at a time.
template <typename Op, typename T>
__global__ void __launch_bounds__(kThreads)
    softmax_columns_kernel(Op op, const T* a, const T* b, int64_t columns, int64_t extent, int64_t inner,
                           Divider by_inner, int tx, T* y) {
  constexpr int kAtOnce = 4;
  __shared__ Sum tile[kThreads];
  const int ty = kThreads / tx, line = threadIdx.x / tx;
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * tx; base < columns;
       base += static_cast<int64_t>(gridDim.x) * tx) {
    const int64_t column = base + threadIdx.x % tx, outer = by_inner(column);
    const int64_t start = outer * extent * inner + column - outer * inner;
    const int64_t n = column < columns ? extent : 0;
    Sum s = Op::kStart;
    int64_t e = line;
    for (; e + (kAtOnce - 1) * ty < n; e += kAtOnce * ty) {
      float in[Op::kInputs][kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int64_t i = start + (e + k * ty) * inner;
        in[0][k] = static_cast<float>(a[i]);
        if constexpr (Op::kInputs == 2) in[1][k] = static_cast<float>(b[i]);
      }
      op.take(s, in);
    }
    for (; e < n; e += ty) {
      float in[Op::kInputs][1];
      load_inputs<1, Op>(a, b, start + e * inner, in);
      op.take(s, in);
    }
    for (int half = ty / 2; half > 0; half /= 2) {
      tile[threadIdx.x] = s;
      __syncthreads();
      if (line < half) s = merge(s, tile[threadIdx.x + half * tx]);
      __syncthreads();
    }
    if (line == 0) tile[threadIdx.x] = s;
    __syncthreads();
    s = tile[threadIdx.x % tx];
    __syncthreads();  // before the next columns overwrite the tile
    const float last = op.last(s);
#pragma unroll 4
    for (e = line; e < n; e += ty) {
      float in[Op::kInputs][1], out[1];
      load_inputs<1, Op>(a, b, start + e * inner, in);
      op.give(s, last, in, out);
      store_floats<1>(y + start + e * inner, out);
    }
  }
}

template <typename Op, typename T>
void run_rows(const Op& op, const Tensor& like, const T* a, const T* b, int64_t rows, int64_t extent, T* y) {
  const Split split = rows < 2 * Context::get(like.device()).multiprocessors() ? split_rows(rows, extent, 1 << 20, like)
                                                                               : Split{1, extent};
  const int64_t items = rows * split.count;
  const int lanes = lanes_for(std::min(extent, split.length), items, kPack<T>);
  const bool packs = aligned16(a) && (!b || aligned16(b)) && aligned16(y);
  Tensor partial;
  if (split.count > 1) {
    const memory::Scope scope(memory::Category::Workspace);
    partial = Tensor::empty({items, 2}, DType::F32, like.device());
  }
  Sum* parts = split.count > 1 ? static_cast<Sum*>(partial.mutable_raw()) : nullptr;
  const auto launch = [&](Stage stage) {
    const auto kernel = packs ? softmax_rows_kernel<kPack<T>, Op, T> : softmax_rows_kernel<1, Op, T>;
    kernel<<<blocks_for_rows(items, lanes, like), kThreads, 0, stream_of(like)>>>(
        op, stage, a, b, items, extent, split, Divider(split.count, items + kThreads), lanes, parts, y);
    DEMI_CUDA_CHECK(cudaGetLastError());
  };
  if (split.count == 1) return launch(Stage::Whole);
  launch(Stage::SumParts);
  launch(Stage::WriteParts);
}

template <typename Op, typename T>
void run(const Op& op, const Tensor& like, const T* a, const T* b, const AxisView& view, T* y) {
  if (view.inner == 1) return run_rows(op, like, a, b, view.outer, view.extent, y);
  const int64_t columns = view.outer * view.inner;
  const int ty = power_of_two_above(ceil_div(view.extent, 8), kThreads / power_of_two_above(columns, 32));
  const int tx = kThreads / ty;
  softmax_columns_kernel<Op, T><<<blocks_for(ceil_div(columns, tx), like, 1), kThreads, 0, stream_of(like)>>>(
      op, a, b, columns, view.extent, view.inner, Divider(view.inner, columns + kThreads), tx, y);
  DEMI_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void softmax(const Tensor& x, const AxisView& view, bool log, Tensor& y) {
  visit_cuda(x.dtype(), "softmax", [&](auto type) {
    using T = typename decltype(type)::type;
    run<Forward, T>({log}, x, x.data<T>(), nullptr, view, y.mutable_data<T>());
  });
}

void softmax_backward(const Tensor& dy, const Tensor& y, const AxisView& view, bool log, Tensor& dx) {
  visit_cuda(y.dtype(), "softmax_backward", [&](auto type) {
    using T = typename decltype(type)::type;
    run<Backward, T>({log}, dy, dy.data<T>(), y.data<T>(), view, dx.mutable_data<T>());
  });
}

}  // namespace demi::kernels::cuda
