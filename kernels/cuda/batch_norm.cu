// Batch norm of x [rows, C] (formulas in kernels/batch_norm.h), all in FP32. Bytes, in tensors of x's size:
//   statistics  reads x                                          1
//   apply       reads x (, residual), writes y                   2, 3 with a residual
//   backward    sums: reads dy, x (, y) (, writes dresidual)     2, 3 with ReLU; dresidual 1 more
//               dx:   reads dy, x (, y), writes dx               3, 4 with ReLU; 3 from dresidual
// Every kernel tiles alike: a block takes up to 64 channels (128 bytes of FP16) and walks down the rows; a thread holds
// the V channels of one 16-byte access (V = 1 where C or a pointer does not allow that), so what belongs to a channel
// stays in registers. The second pass walks up again: the rows read last are those that the L2 cache still holds.
#include "demi/kernels/batch_norm.h"

#include "demi/kernels/cuda/last_block.cuh"

namespace demi::kernels::cuda {
namespace {

// Reductions take few, large blocks, since one block reads every other's partial sums; passes without sums smaller
// ones.
constexpr int kReduceThreads = 512, kReduceBlocks = 1;  // a block, blocks on a multiprocessor
constexpr int kStreamThreads = 256, kStreamBlocks = 3;
constexpr int kTileChannels = 64, kScalarLanes = 32;  // a tile is lanes * V channels: at most 64, at most 32 for V = 1
constexpr int kTileCounters = 512;
// Rows that a thread has under way.
constexpr int kAheadStatistics = 8, kAheadSums = 4, kAheadApply = 4, kAheadGradient = 2;
constexpr int64_t kRowsPerThread = 1024;  // the most that one FP32 sum runs over

__device__ unsigned tiles_done[kSlots][kTileCounters];

// Who does what: block b takes tile b % tiles and, of every `step` rows, the row_lanes rows that chunk b / tiles says.
struct Tiling {
  int64_t rows, channels;
  int lanes, row_lanes;  // lanes * row_lanes is the block, both powers of two
  int64_t tiles, chunks;
  int64_t step, full, rest;  // step = row_lanes * chunks; rows = full * step + rest

  __device__ int row_lane() const { return static_cast<int>(threadIdx.x) / lanes; }
  __device__ int64_t chunk() const { return blockIdx.x / static_cast<unsigned>(tiles); }
  __device__ int64_t tile() const { return blockIdx.x % static_cast<unsigned>(tiles); }
  __device__ int64_t first_row(int64_t of_chunk, int lane) const { return of_chunk * row_lanes + lane; }
  __device__ int64_t first_row() const { return first_row(chunk(), row_lane()); }
  __device__ int64_t count(int64_t of_chunk, int lane) const {  // rows that a lane of a chunk sees
    return full + (first_row(of_chunk, lane) < rest ? 1 : 0);
  }
  __device__ int64_t count(int64_t of_chunk) const {  // rows that a chunk sees
    const int64_t more = rest - of_chunk * row_lanes;
    return full * row_lanes + (more < 0 ? 0 : more < row_lanes ? more : row_lanes);
  }
};

// The V channels of a thread in one row: a single access.
template <typename T, int V>
__device__ __forceinline__ Pack<T, V> load_pack(const T* p) {
  return *reinterpret_cast<const Pack<T, V>*>(p);
}
template <typename T, int V>
__device__ __forceinline__ void store_pack(T* p, const float (&v)[V]) {
  Pack<T, V> pack;
#pragma unroll
  for (int j = 0; j < V; ++j) pack.value[j] = static_cast<T>(v[j]);
  if constexpr (sizeof(pack) == 16) {
    uint4 bits;  // an intrinsic, since the compiler splits some plain stores into four
    memcpy(&bits, &pack, sizeof bits);
    __stcg(reinterpret_cast<uint4*>(p), bits);
  } else {
    *reinterpret_cast<Pack<T, V>*>(p) = pack;
  }
}

// Visits the rows of a thread, `kAhead` at a time: all are loaded before the first is used, or too few bytes are under
// way to fill the memory's pipe. load(u, row) and use(u, row) get u in [0, kAhead).
template <int kAhead, typename Load, typename Use>
__device__ __forceinline__ void walk_rows(const Tiling& t, const Load& load, const Use& use) {
  for (int64_t row = t.first_row(); row < t.rows; row += kAhead * t.step) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u)
      if (row + u * t.step < t.rows) load(u, row + u * t.step);
#pragma unroll
    for (int u = 0; u < kAhead; ++u)
      if (row + u * t.step < t.rows) use(u, row + u * t.step);
  }
}

Tiling tiling_of(const Tensor& x, int pack, int threads, int blocks_per_sm) {
  Tiling t;
  t.channels = x.size(-1);
  t.rows = x.numel() / t.channels;
  const int64_t groups = t.channels / pack;
  const int widest = pack == 1 ? kScalarLanes : kTileChannels / pack;
  t.lanes = 1;
  while (t.lanes < widest && t.lanes < groups) t.lanes *= 2;
  t.row_lanes = threads / t.lanes;
  t.tiles = (groups + t.lanes - 1) / t.lanes;
  const int64_t fill = Context::get(x.device()).multiprocessors() * blocks_per_sm / t.tiles;
  const int64_t most = (t.rows + t.row_lanes - 1) / t.row_lanes;
  const int64_t least = most / kRowsPerThread;
  t.chunks = t.tiles > kTileCounters ? 1 : std::max<int64_t>(1, std::min(most, std::max(fill, least)));
  t.step = t.row_lanes * t.chunks;
  t.full = t.rows / t.step;
  t.rest = t.rows % t.step;
  return t;
}

template <typename A>
__device__ A not_negative(A v) {  // NaN stays
  return v < A(0) ? A(0) : v;
}

// What a thread, a block, then all blocks know of one channel: a pair that folds into sums over `count` rows.
struct Moments {  // a: mean - origin, b: sum of (x - mean)^2
  static __device__ void fold(float2 pair, int64_t count, double& s1, double& s2) {
    const double n = static_cast<double>(count), a = pair.x;
    s1 += n * a;
    s2 += pair.y + n * a * a;
  }
  static __device__ float2 close(int64_t count, double s1, double s2) {
    const double mean = s1 / static_cast<double>(count);
    return make_float2(static_cast<float>(mean), static_cast<float>(not_negative(s2 - s1 * mean)));
  }
};
struct Sums {  // a: sum of g, b: sum of g (x - mean)
  static __device__ void fold(float2 pair, int64_t, double& s1, double& s2) {
    s1 += pair.x;
    s2 += pair.y;
  }
  static __device__ float2 close(int64_t, double s1, double s2) {
    return make_float2(static_cast<float>(s1), static_cast<float>(s2));
  }
};

// Folds the pairs of all threads to one a block and channel, in partial [chunks, C], and in the last block of a tile
// over the chunks in FP64: finish(channel, s1, s2) is called once a channel. Every thread of the block calls this.
template <typename Kind, int V, typename Finish>
__device__ void fold_rows(const Tiling& t, const float (&a)[V], const float (&b)[V], float2* partial, int slot,
                          Finish finish) {
  __shared__ float2
      pair[kReduceThreads * (V + 1)];  // row_lanes rows of width + 1: the odd width keeps lanes off each other
  const int width = t.lanes * V, lane = static_cast<int>(threadIdx.x) % t.lanes;
#pragma unroll
  for (int j = 0; j < V; ++j) pair[t.row_lane() * (width + 1) + lane * V + j] = make_float2(a[j], b[j]);
  __syncthreads();

  // From here on `parts` neighbouring lanes of a warp share a channel.
  const int parts = min(32, kReduceThreads / width), part = static_cast<int>(threadIdx.x) % parts;
  const int at = static_cast<int>(threadIdx.x) / parts;
  const int64_t channel = t.tile() * width + at, chunk = t.chunk();
  const bool mine = at < width && channel < t.channels;
  const auto over_parts = [&](double& s) {
    for (int other = parts / 2; other > 0; other /= 2) s += __shfl_xor_sync(0xffffffffu, s, other);
  };
  double s1 = 0, s2 = 0;
  if (mine)
    for (int i = part; i < t.row_lanes; i += parts) Kind::fold(pair[i * (width + 1) + at], t.count(chunk, i), s1, s2);
  over_parts(s1);
  over_parts(s2);
  if (t.chunks > 1) {
    if (mine && part == 0) partial[chunk * t.channels + channel] = Kind::close(t.count(chunk), s1, s2);
    if (!last_block(&tiles_done[slot][t.tile()], static_cast<unsigned>(t.chunks))) return;
    s1 = s2 = 0;
    for (int64_t i = part; mine && i < t.chunks; i += 8 * parts) {
      float2 some[8];
#pragma unroll
      for (int u = 0; u < 8; ++u)
        if (i + u * parts < t.chunks) some[u] = __ldcg(partial + (i + u * parts) * t.channels + channel);
#pragma unroll
      for (int u = 0; u < 8; ++u)
        if (i + u * parts < t.chunks) Kind::fold(some[u], t.count(i + u * parts), s1, s2);
    }
    over_parts(s1);
    over_parts(s2);
  }
  if (mine && part == 0) finish(channel, s1, s2);
}

struct Statistics {
  float *mean, *inv_std, *running_mean, *running_var;
  double momentum, eps;
};

// A thread sums x - shift and its square, the shift being the first value that it sees, so nothing cancels: the error
// is at most as many roundings of the variance as the thread has rows. Means then travel relative to row 0 ("origin").
template <typename T, int V>
__global__ void __launch_bounds__(kReduceThreads, kReduceBlocks)
    statistics_kernel(const T* __restrict__ x, Tiling t, Statistics out, float2* partial, int slot) {
  const int64_t channel = (t.tile() * t.lanes + threadIdx.x % t.lanes) * V;
  float mean[V] = {}, m2[V] = {};
  if (channel < t.channels && t.first_row() < t.rows) {
    float shift[V], s1[V] = {}, s2[V] = {}, origin[V];
    load_floats<V>(x + channel, origin);
    load_floats<V>(x + t.first_row() * t.channels + channel, shift);
    Pack<T, V> in[kAheadStatistics];
    walk_rows<kAheadStatistics>(
        t, [&](int u, int64_t row) { in[u] = load_pack<T, V>(x + row * t.channels + channel); },
        [&](int u, int64_t) {
#pragma unroll
          for (int j = 0; j < V; ++j) {
            const float d = static_cast<float>(in[u].value[j]) - shift[j];
            s1[j] += d;
            s2[j] += d * d;
          }
        });
    const float over_n = 1.0f / static_cast<float>(t.count(t.chunk(), t.row_lane()));
#pragma unroll
    for (int j = 0; j < V; ++j) {
      mean[j] = shift[j] - origin[j] + s1[j] * over_n;
      m2[j] = not_negative(s2[j] - s1[j] * s1[j] * over_n);
    }
  }
  fold_rows<Moments, V>(t, mean, m2, partial, slot, [&](int64_t c, double s1, double s2) {
    const double n = static_cast<double>(t.rows), delta = s1 / n, m = static_cast<float>(x[c]) + delta;
    const double var = not_negative(s2 - s1 * delta) / n;
    out.mean[c] = static_cast<float>(m);
    out.inv_std[c] = static_cast<float>(1.0 / sqrt(var + out.eps));
    if (out.running_mean == nullptr) return;
    const double keep = 1.0 - out.momentum;
    out.running_mean[c] = static_cast<float>(keep * out.running_mean[c] + out.momentum * m);
    out.running_var[c] = static_cast<float>(keep * out.running_var[c] + out.momentum * (var * n / (n - 1.0)));
  });
}

// The scale and bias of a tile's channels are formed once a block. (x - mean) comes first: folding the mean into the
// bias would cancel when it is large.
template <typename T, int V, bool kResidual, bool kRelu>
__global__ void __launch_bounds__(kStreamThreads, kStreamBlocks)
    apply_kernel(const T* __restrict__ x, const T* __restrict__ residual, T* __restrict__ y, Tiling t,
                 const float* mean, const float* inv_std, const float* weight, const float* bias) {
  __shared__ float shared[3][kTileChannels];
  const int width = t.lanes * V, lane = static_cast<int>(threadIdx.x) % t.lanes;
  const int64_t first = t.tile() * width, c = first + threadIdx.x;
  if (threadIdx.x < static_cast<unsigned>(width) && c < t.channels) {
    shared[0][threadIdx.x] = mean[c];
    shared[1][threadIdx.x] = inv_std[c] * (weight ? weight[c] : 1.0f);
    shared[2][threadIdx.x] = bias ? bias[c] : 0.0f;
  }
  __syncthreads();
  const int64_t channel = first + lane * V;
  if (channel >= t.channels) return;
  float centre[V], scale[V], shift[V];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    centre[j] = shared[0][lane * V + j];
    scale[j] = shared[1][lane * V + j];
    shift[j] = shared[2][lane * V + j];
  }
  const auto offset = [&](int64_t row) { return (t.rows - 1 - row) * t.channels + channel; };
  Pack<T, V> in[kAheadApply], more[kAheadApply];
  walk_rows<kAheadApply>(
      t,
      [&](int u, int64_t row) {
        in[u] = load_pack<T, V>(x + offset(row));
        if constexpr (kResidual) more[u] = load_pack<T, V>(residual + offset(row));
      },
      [&](int u, int64_t row) {
        float v[V];
#pragma unroll
        for (int j = 0; j < V; ++j) {
          v[j] = (static_cast<float>(in[u].value[j]) - centre[j]) * scale[j] + shift[j];
          if constexpr (kResidual) v[j] += static_cast<float>(more[u].value[j]);
          if constexpr (kRelu) v[j] = v[j] <= 0.0f ? 0.0f : v[j];  // NaN stays
        }
        store_pack<T, V>(y + offset(row), v);
      });
}

__global__ void inv_std_kernel(const float* var, double eps, float* inv_std, int64_t n) {
  DEMI_GRID_STRIDE(c, n) inv_std[c] = static_cast<float>(1.0 / sqrt(var[c] + eps));
}

// The first pass of backward: dbias = sum g, dweight = sum g xhat; g goes to dresidual on the way.
template <typename T, int V, bool kRelu, bool kResidual>
__global__ void __launch_bounds__(kReduceThreads, kReduceBlocks)
    gradient_sums_kernel(const T* __restrict__ dy, const T* __restrict__ x, const T* __restrict__ y,
                         T* __restrict__ dresidual, Tiling t, const float* mean, const float* inv_std, float* dweight,
                         float* dbias, float2* partial, int slot) {
  const int64_t channel = (t.tile() * t.lanes + threadIdx.x % t.lanes) * V;
  float sum_g[V] = {}, sum_gx[V] = {};
  if (channel < t.channels && t.first_row() < t.rows) {
    float centre[V];
#pragma unroll
    for (int j = 0; j < V; ++j) centre[j] = mean[channel + j];
    Pack<T, V> gradient[kAheadSums], in[kAheadSums], out[kAheadSums];
    walk_rows<kAheadSums>(
        t,
        [&](int u, int64_t row) {
          const int64_t at = row * t.channels + channel;
          gradient[u] = load_pack<T, V>(dy + at);
          in[u] = load_pack<T, V>(x + at);
          if constexpr (kRelu) out[u] = load_pack<T, V>(y + at);
        },
        [&](int u, int64_t row) {
          float g[V];
#pragma unroll
          for (int j = 0; j < V; ++j) {
            g[j] = static_cast<float>(gradient[u].value[j]);
            if constexpr (kRelu) g[j] = static_cast<float>(out[u].value[j]) > 0.0f ? g[j] : 0.0f;
            sum_g[j] += g[j];
            sum_gx[j] += g[j] * (static_cast<float>(in[u].value[j]) - centre[j]);
          }
          if constexpr (kResidual) store_pack<T, V>(dresidual + row * t.channels + channel, g);
        });
  }
  fold_rows<Sums, V>(t, sum_g, sum_gx, partial, slot, [&](int64_t c, double g, double gx) {
    dbias[c] = static_cast<float>(g);
    dweight[c] = static_cast<float>(gx * inv_std[c]);
  });
}

// The second: dx = weight inv_std (g - dbias / m - (x - mean) inv_std dweight / m); in eval only weight inv_std g.
template <typename T, int V, bool kRelu, bool kTraining>
__global__ void __launch_bounds__(kStreamThreads, kStreamBlocks)
    input_gradient_kernel(const T* __restrict__ dy, const T* __restrict__ x, const T* __restrict__ y,
                          T* __restrict__ dx, Tiling t, const float* mean, const float* inv_std, const float* weight,
                          const float* dweight, const float* dbias) {
  __shared__ float shared[4][kTileChannels];
  const int width = t.lanes * V, lane = static_cast<int>(threadIdx.x) % t.lanes;
  const int64_t first = t.tile() * width, c = first + threadIdx.x;
  if (threadIdx.x < static_cast<unsigned>(width) && c < t.channels) {
    shared[0][threadIdx.x] = inv_std[c] * (weight ? weight[c] : 1.0f);
    if constexpr (kTraining) {
      const float over_m = 1.0f / static_cast<float>(t.rows);
      shared[1][threadIdx.x] = mean[c];
      shared[2][threadIdx.x] = dbias[c] * over_m;
      shared[3][threadIdx.x] = dweight[c] * inv_std[c] * over_m;
    }
  }
  __syncthreads();
  const int64_t channel = first + lane * V;
  if (channel >= t.channels) return;
  float scale[V], centre[V], mean_g[V], slope[V];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    scale[j] = shared[0][lane * V + j];
    if constexpr (kTraining) {
      centre[j] = shared[1][lane * V + j];
      mean_g[j] = shared[2][lane * V + j];
      slope[j] = shared[3][lane * V + j];
    }
  }
  const auto offset = [&](int64_t row) { return (t.rows - 1 - row) * t.channels + channel; };
  Pack<T, V> gradient[kAheadGradient], in[kAheadGradient], out[kAheadGradient];
  walk_rows<kAheadGradient>(
      t,
      [&](int u, int64_t row) {
        gradient[u] = load_pack<T, V>(dy + offset(row));
        if constexpr (kTraining) in[u] = load_pack<T, V>(x + offset(row));
        if constexpr (kRelu) out[u] = load_pack<T, V>(y + offset(row));
      },
      [&](int u, int64_t row) {
        float g[V];
#pragma unroll
        for (int j = 0; j < V; ++j) {
          g[j] = static_cast<float>(gradient[u].value[j]);
          if constexpr (kRelu) g[j] = static_cast<float>(out[u].value[j]) > 0.0f ? g[j] : 0.0f;
          if constexpr (kTraining) g[j] -= mean_g[j] + (static_cast<float>(in[u].value[j]) - centre[j]) * slope[j];
          g[j] *= scale[j];
        }
        store_pack<T, V>(dx + offset(row), g);
      });
}

template <typename T>
const T* pointer(const Tensor& x) {
  return x.defined() ? x.data<T>() : nullptr;
}
template <typename T>
T* pointer(Tensor& x) {
  return x.defined() ? x.mutable_data<T>() : nullptr;
}

// f(V) with V as a constant: a pack where rows of C elements can be read so from all these addresses, else 1.
template <typename T, typename F, typename... P>
void with_pack(const Tensor& x, const F& f, const P*... p) {
  if (x.size(-1) % kPack<T> == 0 && (aligned16(p) && ...))
    f(std::integral_constant<int, kPack<T>>{});
  else
    f(std::integral_constant<int, 1>{});
}
template <typename F>
void with_flags(bool a, bool b, const F& f) {
  if (a)
    b ? f(std::true_type{}, std::true_type{}) : f(std::true_type{}, std::false_type{});
  else
    b ? f(std::false_type{}, std::true_type{}) : f(std::false_type{}, std::false_type{});
}

unsigned grid_of(const Tiling& t) {
  DEMI_CHECK(t.tiles * t.chunks <= INT32_MAX, "[batch_norm] {} channels are too many", t.channels);
  return static_cast<unsigned>(t.tiles * t.chunks);
}
Tensor partials_of(const Tiling& t, const Tensor& x) {
  const memory::Scope scope(memory::Category::Workspace);
  return Tensor::empty({t.chunks > 1 ? t.chunks * t.channels : 0, 2}, DType::F32, x.device());
}
float2* pairs(Tensor& partials) { return static_cast<float2*>(partials.mutable_raw()); }

}  // namespace

void batch_norm_statistics(const Tensor& x, double momentum, double eps, Tensor& running_mean, Tensor& running_var,
                           Tensor& mean, Tensor& inv_std) {
  visit_cuda(x.dtype(), "batch_norm", [&](auto type) {
    using T = typename decltype(type)::type;
    const T* in = x.data<T>();
    const Statistics out{mean.mutable_data<float>(),
                         inv_std.mutable_data<float>(),
                         pointer<float>(running_mean),
                         pointer<float>(running_var),
                         momentum,
                         eps};
    with_pack<T>(
        x,
        [&](auto v) {
          const Tiling t = tiling_of(x, v, kReduceThreads, kReduceBlocks);
          Tensor partials = partials_of(t, x);
          statistics_kernel<T, v>
              <<<grid_of(t), kReduceThreads, 0, stream_of(x)>>>(in, t, out, pairs(partials), counter_slot());
          DEMI_CUDA_CHECK(cudaGetLastError());
        },
        in);
  });
}

void batch_norm_apply(const Tensor& x, const Tensor& mean, const Tensor& inv_std, const Tensor& weight,
                      const Tensor& bias, const Tensor& residual, bool relu, Tensor& y) {
  visit_cuda(x.dtype(), "batch_norm", [&](auto type) {
    using T = typename decltype(type)::type;
    const T *in = x.data<T>(), *more = pointer<T>(residual);
    T* out = y.mutable_data<T>();
    with_pack<T>(
        x,
        [&](auto v) {
          const Tiling t = tiling_of(x, v, kStreamThreads, kStreamBlocks);
          with_flags(more != nullptr, relu, [&](auto has_residual, auto has_relu) {
            apply_kernel<T, v, has_residual, has_relu><<<grid_of(t), kStreamThreads, 0, stream_of(x)>>>(
                in, more, out, t, mean.data<float>(), inv_std.data<float>(), pointer<float>(weight),
                pointer<float>(bias));
          });
          DEMI_CUDA_CHECK(cudaGetLastError());
        },
        in, more, out);
  });
}

void batch_norm_inv_std(const Tensor& var, double eps, Tensor& inv_std) {
  const int64_t n = var.numel();
  inv_std_kernel<<<blocks_for(n, var), kThreads, 0, stream_of(var)>>>(var.data<float>(), eps,
                                                                      inv_std.mutable_data<float>(), n);
  DEMI_CUDA_CHECK(cudaGetLastError());
}

void batch_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& y, const Tensor& weight, const Tensor& mean,
                         const Tensor& inv_std, bool relu, bool training, Tensor& dx, Tensor& dresidual,
                         Tensor& dweight, Tensor& dbias) {
  Tensor sum_gx = dweight, sum_g = dbias;  // training needs the sums even where nobody asked for them
  if (!sum_gx.defined()) {
    sum_gx = Tensor::empty(mean.shape(), DType::F32, x.device());
    sum_g = Tensor::empty(mean.shape(), DType::F32, x.device());
  }
  visit_cuda(x.dtype(), "batch_norm_backward", [&](auto type) {
    using T = typename decltype(type)::type;
    const T *in = x.data<T>(), *gradient = dy.data<T>(), *output = relu ? y.data<T>() : nullptr;
    T *out = dx.mutable_data<T>(), *out_residual = pointer<T>(dresidual);
    float *gx = sum_gx.mutable_data<float>(), *g = sum_g.mutable_data<float>();
    const float *m = mean.data<float>(), *s = inv_std.data<float>(), *w = pointer<float>(weight);
    with_pack<T>(
        x,
        [&](auto v) {
          if (training || dweight.defined() || out_residual != nullptr) {
            const Tiling t = tiling_of(x, v, kReduceThreads, kReduceBlocks);
            Tensor partials = partials_of(t, x);
            with_flags(relu, out_residual != nullptr, [&](auto has_relu, auto has_residual) {
              gradient_sums_kernel<T, v, has_relu, has_residual><<<grid_of(t), kReduceThreads, 0, stream_of(x)>>>(
                  gradient, in, output, out_residual, t, m, s, gx, g, pairs(partials), counter_slot());
            });
            DEMI_CUDA_CHECK(cudaGetLastError());
          }
          const Tiling t = tiling_of(x, v, kStreamThreads, kStreamBlocks);
          const bool masked = out_residual != nullptr;  // dresidual holds g: neither dy nor y is needed again
          with_flags(relu && !masked, training, [&](auto has_relu, auto is_training) {
            input_gradient_kernel<T, v, has_relu, is_training><<<grid_of(t), kStreamThreads, 0, stream_of(x)>>>(
                masked ? out_residual : gradient, in, output, out, t, m, s, w, gx, g);
          });
          DEMI_CUDA_CHECK(cudaGetLastError());
        },
        in, gradient, output, out, out_residual);
  });
}

}  // namespace demi::kernels::cuda
