// Batch norm of x [rows, C] (formulas in kernels/batch_norm.h), all in FP32. Bytes, in tensors of x's size:
//   statistics  reads x                                          1
//   apply       reads x (, residual), writes y                   2, 3 with a residual
//   backward    sums: reads dy, x (, y) (, writes dresidual)     2, 3 with ReLU; dresidual 1 more
//               dx:   reads dy, x (, y), writes dx               3, 4 with ReLU; 3 from dresidual
// All walk the rows as batch_norm_rows.cuh says, the second pass of a pair upwards: the rows that the first one read
// last are those that the L2 cache still holds.
#include "demi/kernels/batch_norm.h"

#include "demi/kernels/cuda/batch_norm_rows.cuh"

namespace demi::kernels::cuda {
namespace {

using namespace batch_norm;

// Rows that a thread has under way.
constexpr int kAheadStatistics = 8, kAheadSums = 4, kAheadApply = 4, kAheadGradient = 2;

struct Statistics {
  float *mean, *inv_std, *running_mean, *running_var;
  int64_t* num_batches_tracked;
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
    // One thread of the grid finishes channel 0: the count costs no launch and no atomic.
    if (c == 0 && out.num_batches_tracked != nullptr) *out.num_batches_tracked += 1;
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
            if constexpr (kRelu) g[j] = static_cast<float>(out[u].value[j]) <= 0.0f ? 0.0f : g[j];
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
          if constexpr (kRelu) g[j] = static_cast<float>(out[u].value[j]) <= 0.0f ? 0.0f : g[j];
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
                           Tensor& num_batches_tracked, Tensor& mean, Tensor& inv_std) {
  visit_cuda(x.dtype(), "batch_norm", [&](auto type) {
    using T = typename decltype(type)::type;
    const T* in = x.data<T>();
    const Statistics out{mean.mutable_data<float>(),
                         inv_std.mutable_data<float>(),
                         pointer<float>(running_mean),
                         pointer<float>(running_var),
                         pointer<int64_t>(num_batches_tracked),
                         momentum,
                         eps};
    with_pack<T>(
        x,
        [&](auto v) {
          const Tiling t = tiling_of(x, v, kReduceThreads, kReduceBlocks);
          Tensor partials = partials_of(t, x);
          statistics_kernel<T, v>
              <<<grid_of(t), kReduceThreads, 0, stream_of(x)>>>(in, t, out, pairs(partials), counter_slot(x));
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
                  gradient, in, output, out_residual, t, m, s, gx, g, pairs(partials), counter_slot(x));
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
