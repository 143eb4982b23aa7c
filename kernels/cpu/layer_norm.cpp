// Layer norm, row by row: mean, then squared deviations, then the result. The parameters' gradients are column sums.
#include "demi/kernels/layer_norm.h"

#include <cmath>

#include "demi/kernels/cpu/columns.h"

namespace demi::kernels::cpu {
namespace {

// sum of f(block of x..., first index) over one row, blocks in a fixed order
template <typename F>
double row_sum(int64_t n, F block) {
  double sum = 0;
  for (int64_t at = 0; at < n; at += kBlock) sum += block(at, std::min(kBlock, n - at));
  return sum;
}

}  // namespace

void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, Tensor& y, Tensor& mean,
                Tensor& inv_std) {
  visit_floating(x.dtype(), "layer_norm", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const int64_t columns = x.size(-1);
    const double n = static_cast<double>(columns);
    const T* in = x.data<T>();
    const A *gain = weight.defined() ? weight.data<A>() : nullptr, *shift = bias.defined() ? bias.data<A>() : nullptr;
    T* out = y.mutable_data<T>();
    A *means = mean.mutable_data<A>(), *inverses = inv_std.mutable_data<A>();
    parallel_for(x.numel() / columns, row_grain(columns), [&](int64_t begin, int64_t end) {
      Reader<T> read;
      Writer<T> writer;
      alignas(64) A values[kBlock];
      for (int64_t row = begin; row < end; ++row) {
        const T* from = in + row * columns;
        const double m = row_sum(columns, [&](int64_t at, int64_t k) { return block_sum(read(from + at, k), k); }) / n;
        const A centre = static_cast<A>(m);
        const double var =
            row_sum(columns,
                    [&](int64_t at, int64_t k) {
                      map_block(
                          k, [=](A v) { return (v - centre) * (v - centre); }, values, read(from + at, k));
                      return block_sum(values, k);
                    }) /
            n;
        const A inverse = static_cast<A>(1 / std::sqrt(var + eps));
        means[row] = centre;
        inverses[row] = inverse;
        for (int64_t at = 0; at < columns; at += kBlock) {
          const int64_t k = std::min(kBlock, columns - at);
          T* to = out + row * columns + at;
          const A* v = read(from + at, k);
          if (gain)
            map_block(
                k, [=](A a, A g, A b) { return (a - centre) * inverse * g + b; }, writer.at(to), v, gain + at,
                shift + at);
          else
            map_block(
                k, [=](A a) { return (a - centre) * inverse; }, writer.at(to), v);
          writer.commit(to, k);
        }
      }
    });
  });
}

// With h = dy weight and xhat = (x - mean) inv_std:  dx = inv_std (h - mean(h) - xhat mean(h xhat)),
// dweight = sum over rows of dy xhat, dbias = sum over rows of dy.
void layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& mean,
                         const Tensor& inv_std, Tensor& dx, Tensor& dweight, Tensor& dbias) {
  visit_floating(x.dtype(), "layer_norm_backward", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const int64_t columns = x.size(-1), rows = x.numel() / columns;
    const T *grad = dy.data<T>(), *in = x.data<T>();
    const A *means = mean.data<A>(), *inverses = inv_std.data<A>();
    T* out = dx.mutable_data<T>();
    const std::vector<A> ones(weight.defined() ? 0 : static_cast<size_t>(columns), A(1));
    const A* gain = weight.defined() ? weight.data<A>() : ones.data();
    parallel_for(rows, row_grain(columns), [&](int64_t begin, int64_t end) {
      Reader<T> read_x, read_g;
      Writer<T> writer;
      alignas(64) A values[kBlock];
      for (int64_t row = begin; row < end; ++row) {
        const T *g = grad + row * columns, *v = in + row * columns;
        const A centre = means[row], inverse = inverses[row];
        const double plain = row_sum(columns, [&](int64_t at, int64_t k) {
          map_block(
              k, [](A d, A w) { return d * w; }, values, read_g(g + at, k), gain + at);
          return block_sum(values, k);
        });
        const double projected = row_sum(columns, [&](int64_t at, int64_t k) {
          map_block(
              k, [=](A d, A w, A a) { return d * w * (a - centre) * inverse; }, values, read_g(g + at, k), gain + at,
              read_x(v + at, k));
          return block_sum(values, k);
        });
        const A p = static_cast<A>(plain / static_cast<double>(columns));
        const A q = static_cast<A>(projected / static_cast<double>(columns));
        for (int64_t at = 0; at < columns; at += kBlock) {
          const int64_t k = std::min(kBlock, columns - at);
          T* to = out + row * columns + at;
          map_block(
              k, [=](A d, A w, A a) { return inverse * (d * w - p - (a - centre) * inverse * q); }, writer.at(to),
              read_g(g + at, k), gain + at, read_x(v + at, k));
          writer.commit(to, k);
        }
      }
    });
    if (!dweight.defined()) return;
    const std::vector<double> sums =
        column_sums<2, A>(rows, columns, [=](int64_t offset, int64_t n, int64_t, const std::array<A*, 2>& s) {
          Reader<T> read_x, read_g;
          const A *v = read_x(in + offset, n), *g = read_g(grad + offset, n);
          A *first = s[0], *second = s[1];
          for (int64_t i = 0; i < n;) {
            const int64_t row = (offset + i) / columns, end = std::min(n, (row + 1) * columns - offset);
            const A centre = means[row], inverse = inverses[row];
#pragma GCC ivdep
            for (int64_t j = i; j < end; ++j) {
              first[j] += g[j];
              second[j] += g[j] * ((v[j] - centre) * inverse);
            }
            i = end;
          }
        });
    A *to_bias = dbias.mutable_data<A>(), *to_weight = dweight.mutable_data<A>();
    for (int64_t c = 0; c < columns; ++c) {
      to_bias[c] = static_cast<A>(sums[static_cast<size_t>(c)]);
      to_weight[c] = static_cast<A>(sums[static_cast<size_t>(columns + c)]);
    }
  });
}

}  // namespace demi::kernels::cpu
