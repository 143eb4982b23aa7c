// reduce: y[o, i] = sum_e x[o, e, i] / divisor or the maximum over e. One addition an element: each byte of x is read
// once. Sums are built from many short FP32 chains that are then added pairwise, always in the same order, so a sum of
// a million numbers keeps about six digits. Two kernels: inner == 1 reads along rows, inner > 1 across them.
#include "demi/kernels/reduce.h"

#include "demi/kernels/cuda/rows.cuh"
#include "demi/kernels/cuda/strided.cuh"

namespace demi::kernels::cuda {
namespace {

// Where results go, in the dtype asked for.
struct Output {
  void* data;
  DType dtype;
  bool aligned;

  __device__ void set(int64_t i, float v) const {
    if (dtype == DType::F32)
      static_cast<float*>(data)[i] = v;
    else if (dtype == DType::F16)
      static_cast<Half*>(data)[i] = Half(v);
    else
      static_cast<BFloat16*>(data)[i] = BFloat16(v);
  }
  template <int N>
  __device__ void set_pack(int64_t i, const float (&v)[N]) const {  // i is a multiple of N
    if (!aligned) {
#pragma unroll
      for (int k = 0; k < N; ++k) set(i + k, v[k]);
    } else if (dtype == DType::F32) {
      store_floats<N>(static_cast<float*>(data) + i, v);
    } else if (dtype == DType::F16) {
      store_floats<N>(static_cast<Half*>(data) + i, v);
    } else {
      store_floats<N>(static_cast<BFloat16*>(data) + i, v);
    }
  }
};

Output output_of(Tensor& y, const char* op) {
  DEMI_CHECK(is_floating(y.dtype()) && y.dtype() != DType::F64, "[{}] writes fp32, fp16 or bf16 on CUDA, not {}", op,
             y.dtype());
  void* p = y.mutable_raw();
  return {p, y.dtype(), aligned16(p)};
}

struct Add {
  static constexpr float kIdentity = 0.0f;
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Larger {  // NaN wins
  static constexpr float kIdentity = -kInfinity;
  __device__ float operator()(float a, float b) const { return a != a || a > b ? a : b; }
};

// Part `item % splits` of row `item / splits` -> y[item].
template <typename T, typename F>
__global__ void __launch_bounds__(kThreads) reduce_rows_kernel(const T* x, int64_t items, int64_t extent, Split split,
                                                               Divider by_parts, int lanes, float divisor, Output y) {
  constexpr int N = kPack<T>;
  const F f;
  const int groups = kThreads / lanes, lane = threadIdx.x % lanes;
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * groups; base < items;
       base += static_cast<int64_t>(gridDim.x) * groups) {
    const int64_t item = base + threadIdx.x / lanes;
    float value = F::kIdentity, chain[N];
#pragma unroll
    for (int k = 0; k < N; ++k) chain[k] = F::kIdentity;
    if (item < items) {
      const int64_t row = by_parts(item), begin = (item - row * split.count) * split.length;
      const T* p = x + row * extent + begin;
      const int64_t n = min(split.length, extent - begin);
      for_row<N>(
          p, n, lane, lanes, [&](int64_t i) { value = f(value, static_cast<float>(p[i])); },
          [&](int64_t i) {
            float v[N];
            load_floats<N>(p + i, v);
#pragma unroll
            for (int k = 0; k < N; ++k) chain[k] = f(chain[k], v[k]);
          });
    }
#pragma unroll
    for (int width = N / 2; width > 0; width /= 2)
#pragma unroll
      for (int k = 0; k < width; ++k) chain[k] = f(chain[k], chain[k + width]);
    value = combine_lanes(f(value, chain[0]), lanes, F::kIdentity, f);
    if (item < items && lane == 0) y.set(item, value / divisor);
  }
}

// Across rows. A block is tx x ty threads: tx of them take neighbouring packs of N columns (all outer x inner of them,
// numbered through), ty share the extent of part `item % splits`. Partial results are [outer, splits, inner].
template <typename T, int N, typename F>
__global__ void __launch_bounds__(kThreads)
    reduce_columns_kernel(const T* x, int64_t columns, int64_t inner, int64_t extent, Split split, Divider by_parts,
                          Divider by_packs, int tx, float divisor, Output y) {
  const F f;
  __shared__ float tile[N][kThreads];
  const int ty = kThreads / tx, line = threadIdx.x / tx;
  const int64_t items = (columns + tx - 1) / tx * split.count, packs_inside = inner / N;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const int64_t strip = by_parts(item), part = item - strip * split.count, column = strip * tx + threadIdx.x % tx;
    const int64_t outer = by_packs(column), at = (column - outer * packs_inside) * N;
    float v[N], other[N];
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = other[k] = F::kIdentity;
    if (column < columns) {
      const T* p = x + outer * extent * inner + at;
      const int64_t end = min(extent, (part + 1) * split.length);
      int64_t e = part * split.length + line;
      for (; e + 3 * ty < end; e += 4 * ty) {
        float u[4][N];
#pragma unroll
        for (int j = 0; j < 4; ++j) load_floats<N>(p + (e + j * ty) * inner, u[j]);
#pragma unroll
        for (int k = 0; k < N; ++k) {
          v[k] = f(v[k], f(u[0][k], u[1][k]));
          other[k] = f(other[k], f(u[2][k], u[3][k]));
        }
      }
      for (; e < end; e += ty) {
        float u[N];
        load_floats<N>(p + e * inner, u);
#pragma unroll
        for (int k = 0; k < N; ++k) v[k] = f(v[k], u[k]);
      }
#pragma unroll
      for (int k = 0; k < N; ++k) v[k] = f(v[k], other[k]);
    }
    for (int half = ty / 2; half > 0; half /= 2) {
      if (line >= half && line < 2 * half) {
#pragma unroll
        for (int k = 0; k < N; ++k) tile[k][threadIdx.x] = v[k];
      }
      __syncthreads();
      if (line < half) {
#pragma unroll
        for (int k = 0; k < N; ++k) v[k] = f(v[k], tile[k][threadIdx.x + half * tx]);
      }
      __syncthreads();
    }
    if (line == 0 && column < columns) {
#pragma unroll
      for (int k = 0; k < N; ++k) v[k] /= divisor;
      y.set_pack<N>((outer * split.count + part) * inner + at, v);
    }
  }
}

// x: [rows, extent]. Parts of long rows go to a workspace and are reduced again.
template <typename T, typename F>
void reduce_rows(const Tensor& x, int64_t rows, int64_t extent, float divisor, Tensor& y) {
  const Split split = split_rows(rows, extent, 1 << 16, x);
  const int64_t items = rows * split.count;
  const int lanes = lanes_for(std::min(extent, split.length), items, kPack<T>);
  Tensor partial = split.count > 1 ? partials(items, x) : y;
  reduce_rows_kernel<T, F><<<blocks_for_rows(items, lanes, x), kThreads, 0, stream_of(x)>>>(
      x.data<T>(), items, extent, split, Divider(split.count, items), lanes, split.count > 1 ? 1.0f : divisor,
      output_of(partial, "reduce"));
  DEMI_CUDA_CHECK(cudaGetLastError());
  if (split.count > 1) reduce_rows<float, F>(partial, rows, split.count, divisor, y);
}

template <typename T, typename F>
void reduce_columns(const Tensor& x, const AxisView& view, float divisor, Tensor& y) {
  constexpr int kWide = kPack<T>;
  const T* p = x.data<T>();
  const int N = view.inner % kWide == 0 && aligned16(p) ? kWide : 1;
  const int64_t columns = view.outer * view.inner / N;
  const auto [tx, split] = plan_columns(columns, view.extent, N, x);
  Tensor partial = split.count > 1 ? partials(view.outer * split.count * view.inner, x) : y;
  const float by = split.count > 1 ? 1.0f : divisor;
  const int64_t items = ceil_div(columns, tx) * split.count;
  const int blocks = blocks_for(items, x, 1);
  const Divider by_parts(split.count, items), by_packs(view.inner / N, columns + kThreads);
  const Output out = output_of(partial, "reduce");
  if (N > 1)
    reduce_columns_kernel<T, kWide, F><<<blocks, kThreads, 0, stream_of(x)>>>(p, columns, view.inner, view.extent,
                                                                              split, by_parts, by_packs, tx, by, out);
  else
    reduce_columns_kernel<T, 1, F><<<blocks, kThreads, 0, stream_of(x)>>>(p, columns, view.inner, view.extent, split,
                                                                          by_parts, by_packs, tx, by, out);
  DEMI_CUDA_CHECK(cudaGetLastError());
  if (split.count > 1) reduce_columns<float, F>(partial, {view.outer, split.count, view.inner}, divisor, y);
}

template <typename T, typename F>
void reduce_as(const Tensor& x, const AxisView& view, float divisor, Tensor& y) {
  if (view.inner == 1)
    reduce_rows<T, F>(x, view.outer, view.extent, divisor, y);
  else
    reduce_columns<T, F>(x, view, divisor, y);
}

}  // namespace

void reduce(ReduceOp op, const Tensor& x, const AxisView& view, double divisor, Tensor& y) {
  if (y.numel() == 0) return;
  visit_cuda(x.dtype(), name_of(op), [&](auto type) {
    using T = typename decltype(type)::type;
    if (op == ReduceOp::Max)
      reduce_as<T, Larger>(x, view, 1.0f, y);
    else
      reduce_as<T, Add>(x, view, static_cast<float>(divisor), y);
  });
}

}  // namespace demi::kernels::cuda
