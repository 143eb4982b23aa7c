// Batch norm on [rows, C]: statistics and gradients are per-channel sums (columns.h), the rest is elementwise with
// per-channel operands.
//
// The variance takes the corrected two passes (Chan, Golub and LeVeque, 1983): with a mean a that may be off by its
// rounding, var = sum (x - a)^2 / n - (sum (x - a) / n)^2, where the second term is tiny.
#include "demi/kernels/batch_norm.h"

#include <cmath>

#include "demi/kernels/cpu/columns.h"

namespace demi::kernels::cpu {
namespace {

// A per-channel operand, repeated; `otherwise` where it is undefined.
template <typename A>
std::vector<A> operand(const Tensor& v, int64_t channels, A otherwise) {
  const A* p = v.defined() ? v.data<A>() : nullptr;
  return repeat_channels<A>(channels, [=](int64_t c) { return p ? p[c] : otherwise; });
}

template <typename A>
void store(const std::vector<double>& values, Tensor& out) {
  A* p = out.mutable_data<A>();
  for (int64_t c = 0; c < out.numel(); ++c) p[c] = static_cast<A>(values[static_cast<size_t>(c)]);
}

template <typename A>
void move_running(Tensor& running, const std::vector<double>& batch, double momentum, double factor) {
  A* p = running.mutable_data<A>();
  for (int64_t c = 0; c < running.numel(); ++c)
    p[c] =
        static_cast<A>((1 - momentum) * static_cast<double>(p[c]) + momentum * factor * batch[static_cast<size_t>(c)]);
}

}  // namespace

void batch_norm_statistics(const Tensor& x, double momentum, double eps, Tensor& running_mean, Tensor& running_var,
                           Tensor& num_batches_tracked, Tensor& mean, Tensor& inv_std) {
  visit_floating(x.dtype(), "batch_norm", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const int64_t channels = x.size(-1), rows = x.numel() / channels;
    const double n = static_cast<double>(rows);
    const T* in = x.data<T>();

    const std::vector<double> sum =
        column_sums<1, A>(rows, channels, [in](int64_t offset, int64_t m, int64_t, const std::array<A*, 1>& sums) {
          Reader<T> read;
          map_block(
              m, [](A s, A v) { return s + v; }, sums[0], sums[0], read(in + offset, m));
        });
    const std::vector<A> about =
        repeat_channels<A>(channels, [&](int64_t c) { return sum[static_cast<size_t>(c)] / n; });
    const std::vector<double> deviations = column_sums<2, A>(
        rows, channels, [in, &about](int64_t offset, int64_t m, int64_t c, const std::array<A*, 2>& sums) {
          Reader<T> read;
          const A *v = read(in + offset, m), *a = about.data() + c;
          A *first = sums[0], *second = sums[1];
#pragma GCC ivdep
          for (int64_t i = 0; i < m; ++i) {
            const A d = v[i] - a[i];
            first[i] += d;
            second[i] += d * d;
          }
        });

    std::vector<double> batch_mean(static_cast<size_t>(channels)), var(batch_mean), inverse(batch_mean);
    for (size_t c = 0; c < var.size(); ++c) {
      const double shift = deviations[c] / n;
      batch_mean[c] = static_cast<double>(about[c]) + shift;
      const double v = deviations[c + var.size()] / n - shift * shift;
      var[c] = v < 0 ? 0 : v;  // NaN stays
      inverse[c] = 1 / std::sqrt(var[c] + eps);
    }
    store<A>(batch_mean, mean);
    store<A>(inverse, inv_std);
    if (num_batches_tracked.defined()) ++*num_batches_tracked.mutable_data<int64_t>();
    if (running_mean.defined()) move_running<A>(running_mean, batch_mean, momentum, 1);
    if (running_var.defined()) move_running<A>(running_var, var, momentum, n / (n - 1));
  });
}

void batch_norm_apply(const Tensor& x, const Tensor& mean, const Tensor& inv_std, const Tensor& weight,
                      const Tensor& bias, const Tensor& residual, bool relu, Tensor& y) {
  visit_floating(x.dtype(), "batch_norm", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const int64_t channels = x.size(-1);
    const std::vector<A> centre = operand<A>(mean, channels, A(0)), shift = operand<A>(bias, channels, A(0));
    std::vector<A> gain = operand<A>(weight, channels, A(1));
    const std::vector<A> inverse = operand<A>(inv_std, channels, A(1));
    for (size_t i = 0; i < gain.size(); ++i) gain[i] *= inverse[i];

    const T *in = x.data<T>(), *added = residual.defined() ? residual.data<T>() : nullptr;
    T* out = y.mutable_data<T>();
    // (x - mean) first: a scale and shift folded into one would cancel for a large mean.
    const auto normalize = [](A v, A m, A g, A b) { return (v - m) * g + b; };
    const auto rectified = [=](A v, A m, A g, A b) {
      const A z = normalize(v, m, g, b);
      return z <= A(0) ? A(0) : z;
    };
    const auto with_residual = [=](A v, A r, A m, A g, A b) { return normalize(v, m, g, b) + r; };
    const auto with_both = [=](A v, A r, A m, A g, A b) {
      const A z = normalize(v, m, g, b) + r;
      return z <= A(0) ? A(0) : z;
    };
    parallel_for(x.numel() / channels, row_grain(channels), [&](int64_t begin, int64_t end) {
      Reader<T> read_x, read_r;
      Writer<T> writer;
      for_channel_blocks(begin, end, channels, [&](int64_t at, int64_t n, int64_t c) {
        const A *v = read_x(in + at, n), *m = centre.data() + c, *g = gain.data() + c, *b = shift.data() + c;
        A* to = writer.at(out + at);
        if (added) {
          const A* r = read_r(added + at, n);
          relu ? map_block(n, with_both, to, v, r, m, g, b) : map_block(n, with_residual, to, v, r, m, g, b);
        } else {
          relu ? map_block(n, rectified, to, v, m, g, b) : map_block(n, normalize, to, v, m, g, b);
        }
        writer.commit(out + at, n);
      });
    });
  });
}

void batch_norm_inv_std(const Tensor& var, double eps, Tensor& inv_std) {
  visit_floating(var.dtype(), "batch_norm", [&](auto type) {
    using A = Accumulator<typename decltype(type)::type>;
    const A* v = var.data<A>();
    A* out = inv_std.mutable_data<A>();
    for (int64_t c = 0; c < var.numel(); ++c) out[c] = static_cast<A>(1 / std::sqrt(static_cast<double>(v[c]) + eps));
  });
}

void batch_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& y, const Tensor& weight, const Tensor& mean,
                         const Tensor& inv_std, bool relu, bool training, Tensor& dx, Tensor& dresidual,
                         Tensor& dweight, Tensor& dbias) {
  visit_floating(x.dtype(), "batch_norm_backward", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const int64_t channels = x.size(-1), rows = x.numel() / channels;
    const auto per_channel = static_cast<size_t>(channels);
    const T *grad = dy.data<T>(), *in = x.data<T>(), *out = relu ? y.data<T>() : nullptr;
    const std::vector<A> centre = operand<A>(mean, channels, A(0));
    const A* inverse = inv_std.data<A>();
    const A* gain = weight.defined() ? weight.data<A>() : nullptr;
    // g: the gradient that passed the ReLU.
    const auto gate = [](A g, A z) { return z <= A(0) ? A(0) : g; };

    // sums[c] = sum g, sums[C + c] = sum g xhat
    std::vector<double> sums(2 * per_channel, 0.0);
    if (training || dweight.defined()) {
      sums =
          column_sums<2, A>(rows, channels, [=, &centre](int64_t at, int64_t n, int64_t c, const std::array<A*, 2>& s) {
            Reader<T> read_g, read_x, read_y;
            const A *g = read_g(grad + at, n), *v = read_x(in + at, n), *m = centre.data() + c;
            const A* z = out ? read_y(out + at, n) : nullptr;
            A *first = s[0], *second = s[1];
#pragma GCC ivdep
            for (int64_t i = 0; i < n; ++i) {
              const A passed = z ? gate(g[i], z[i]) : g[i];
              first[i] += passed;
              second[i] += passed * (v[i] - m[i]);
            }
          });
      for (size_t c = 0; c < per_channel; ++c) sums[per_channel + c] *= static_cast<double>(inverse[c]);
    }

    // dx = k (g - p - (x - mean) q)
    const double n_rows = training ? static_cast<double>(rows) : 1;
    const std::vector<A> k = repeat_channels<A>(channels, [&](int64_t c) {
      return static_cast<double>(inverse[c]) * (gain ? static_cast<double>(gain[c]) : 1);
    });
    const std::vector<A> p =
        repeat_channels<A>(channels, [&](int64_t c) { return training ? sums[static_cast<size_t>(c)] / n_rows : 0.0; });
    const std::vector<A> q = repeat_channels<A>(channels, [&](int64_t c) {
      return training ? sums[per_channel + static_cast<size_t>(c)] * static_cast<double>(inverse[c]) / n_rows : 0.0;
    });
    T* to_x = dx.mutable_data<T>();
    T* to_r = dresidual.defined() ? dresidual.mutable_data<T>() : nullptr;
    const auto train = [](A g, A v, A m, A s, A t, A u) { return s * (g - t - (v - m) * u); };
    const auto train_relu = [=](A g, A z, A v, A m, A s, A t, A u) { return train(gate(g, z), v, m, s, t, u); };
    const auto eval = [](A g, A s) { return s * g; };
    const auto eval_relu = [=](A g, A z, A s) { return s * gate(g, z); };
    const auto same = [](A g) { return g; };
    parallel_for(rows, row_grain(channels), [&](int64_t begin, int64_t end) {
      Reader<T> read_g, read_x, read_y;
      Writer<T> writer;
      for_channel_blocks(begin, end, channels, [&](int64_t at, int64_t n, int64_t c) {
        const A *g = read_g(grad + at, n), *z = out ? read_y(out + at, n) : nullptr;
        if (to_r) {
          A* to = writer.at(to_r + at);
          z ? map_block(n, gate, to, g, z) : map_block(n, same, to, g);
          writer.commit(to_r + at, n);
        }
        A* to = writer.at(to_x + at);
        const A* gains = k.data() + c;
        if (training) {
          const A *v = read_x(in + at, n), *m = centre.data() + c, *t = p.data() + c, *u = q.data() + c;
          z ? map_block(n, train_relu, to, g, z, v, m, gains, t, u) : map_block(n, train, to, g, v, m, gains, t, u);
        } else {
          z ? map_block(n, eval_relu, to, g, z, gains) : map_block(n, eval, to, g, gains);
        }
        writer.commit(to_x + at, n);
      });
    });
    if (!dweight.defined()) return;
    store<A>(sums, dbias);
    sums.erase(sums.begin(), sums.begin() + channels);
    store<A>(sums, dweight);
  });
}

}  // namespace demi::kernels::cpu
