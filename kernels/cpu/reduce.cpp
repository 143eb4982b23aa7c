// Sum, mean, max, argmax over the middle of [outer, extent, inner], and copies to a broadcast shape.
#include "demi/kernels/reduce.h"

#include <numeric>

#include "demi/kernels/cpu/broadcast.h"
#include "demi/kernels/cpu/columns.h"

namespace demi::kernels::cpu {
namespace {

// body(o, i, n) for every outer index and every stretch of n <= kBlock inner ones.
template <typename F>
void for_tiles(const AxisView& view, F body) {
  const int64_t tiles = (view.inner + kBlock - 1) / kBlock;
  const int64_t work = view.extent * std::min(view.inner, kBlock);
  parallel_for(view.outer * tiles, std::max<int64_t>(1, kGrain / std::max<int64_t>(work, 1)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t t = begin; t < end; ++t) {
                   const int64_t i = t % tiles * kBlock;
                   body(t / tiles, i, std::min(kBlock, view.inner - i));
                 }
               });
}

// One output element, in the dtype asked for.
template <typename Y>
Y rounded(double value) {
  if constexpr (std::is_same_v<Y, Half> || std::is_same_v<Y, BFloat16>)
    return Y(static_cast<float>(value));
  else
    return static_cast<Y>(value);
}

template <typename X, typename Y>
void sum(const X* x, const AxisView& view, double divisor, Y* y) {
  using A = Accumulator<X>;
  const int64_t size = view.extent * view.inner;
  parallel_for(view.outer, std::max<int64_t>(1, kGrain / size), [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      const X* from = x + o * size;
      if (view.inner == 1) {
        y[o] = rounded<Y>(map_sum(
                              size, [](A v) { return v; }, from) /
                          divisor);
        continue;
      }
      const std::vector<double> sums = column_sums<1, A>(
          view.extent, view.inner, [from](int64_t offset, int64_t n, int64_t, const std::array<A*, 1>& s) {
            Reader<X> read;
            map_block(
                n, [](A a, A v) { return a + v; }, s[0], s[0], read(from + offset, n));
          });
      for (int64_t i = 0; i < view.inner; ++i)
        y[o * view.inner + i] = rounded<Y>(sums[static_cast<size_t>(i)] / divisor);
    }
  });
}

// A NaN is larger than everything.
constexpr auto larger = [](auto a, auto b) { return b > a || b != b ? b : a; };

// The largest of a row: maxima of every kBlock-th element side by side, then the largest of those.
template <typename X>
Accumulator<X> row_max(const X* x, int64_t n) {
  using A = Accumulator<X>;
  Reader<X> read;
  alignas(64) A best[kBlock];
  const int64_t lanes = std::min(n, kBlock);
  const A* first = read(x, lanes);
  std::copy(first, first + lanes, best);
  for (int64_t at = lanes; at < n; at += kBlock) {
    const int64_t more = std::min(kBlock, n - at);
    map_block(more, larger, best, best, read(x + at, more));
  }
  return std::accumulate(best + 1, best + lanes, best[0], larger);
}

template <typename X, typename Y>
void max(const X* x, const AxisView& view, Y* y) {
  using A = Accumulator<X>;
  if (view.inner == 1) {
    return parallel_for(view.outer, std::max<int64_t>(1, kGrain / view.extent), [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o)
        y[o] = rounded<Y>(static_cast<double>(row_max(x + o * view.extent, view.extent)));
    });
  }
  for_tiles(view, [&](int64_t o, int64_t i, int64_t n) {
    Reader<X> read;
    alignas(64) A best[kBlock];
    const X* from = x + o * view.extent * view.inner + i;
    const A* first = read(from, n);
    std::copy(first, first + n, best);
    for (int64_t e = 1; e < view.extent; ++e) map_block(n, larger, best, best, read(from + e * view.inner, n));
    for (int64_t j = 0; j < n; ++j) y[o * view.inner + i + j] = rounded<Y>(static_cast<double>(best[j]));
  });
}

}  // namespace

void reduce(ReduceOp op, const Tensor& x, const AxisView& view, double divisor, Tensor& y) {
  visit_floating(x.dtype(), name_of(op), [&](auto from) {
    using X = typename decltype(from)::type;
    visit_floating(y.dtype(), name_of(op), [&](auto to) {
      using Y = typename decltype(to)::type;
      if (op == ReduceOp::Max)
        max(x.data<X>(), view, y.mutable_data<Y>());
      else
        sum(x.data<X>(), view, divisor, y.mutable_data<Y>());
    });
  });
}

void argmax(const Tensor& x, const AxisView& view, Tensor& y) {
  visit_floating(x.dtype(), "argmax", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const T* in = x.data<T>();
    int64_t* out = y.mutable_data<int64_t>();
    for_tiles(view, [&](int64_t o, int64_t i, int64_t n) {
      Reader<T> read;
      alignas(64) A best[kBlock];
      const T* from = in + o * view.extent * view.inner + i;
      int64_t* at = out + o * view.inner + i;
      const A* first = read(from, n);
      std::copy(first, first + n, best);
      std::fill_n(at, n, int64_t{0});
      for (int64_t e = 1; e < view.extent; ++e) {
        const A* v = read(from + e * view.inner, n);
        for (int64_t j = 0; j < n; ++j)
          if (best[j] == best[j] && !(v[j] <= best[j])) best[j] = v[j], at[j] = e;  // larger, or the first NaN
      }
    });
  });
}

void amax_backward(const Tensor& dy, const Tensor& x, const Tensor& y, const AxisView& view, Tensor& dx) {
  visit_floating(x.dtype(), "amax_backward", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const T *grad = dy.data<T>(), *in = x.data<T>(), *largest = y.data<T>();
    T* out = dx.mutable_data<T>();
    const auto equal = [](A a, A b) { return a == b || (a != a && b != b); };
    for_tiles(view, [&](int64_t o, int64_t i, int64_t n) {
      Reader<T> read_g, read_x, read_y;
      Writer<T> writer;
      alignas(64) A share[kBlock] = {};
      const int64_t top = o * view.inner + i, base = o * view.extent * view.inner + i;
      const A *g = read_g(grad + top, n), *m = read_y(largest + top, n);
      for (int64_t e = 0; e < view.extent; ++e)
        map_block(
            n, [=](A s, A v, A b) { return s + (equal(v, b) ? A(1) : A(0)); }, share, share,
            read_x(in + base + e * view.inner, n), m);
      map_block(
          n, [](A s, A d) { return d / s; }, share, share, g);
      for (int64_t e = 0; e < view.extent; ++e) {
        const int64_t at = base + e * view.inner;
        map_block(
            n, [=](A v, A b, A s) { return equal(v, b) ? s : A(0); }, writer.at(out + at), read_x(in + at, n), m,
            share);
        writer.commit(out + at, n);
      }
    });
  });
}

void broadcast_copy(const Tensor& x, Tensor& y) {
  visit_any(x.dtype(), "broadcast_to", [&](auto type) {
    using T = typename decltype(type)::type;
    const T* in = x.data<T>();
    T* out = y.mutable_data<T>();
    const BroadcastLoop<1> loop(y.shape(), {&x.shape()});
    const int64_t length = loop.row_length(), stride = loop.row_stride()[0];
    parallel_for(loop.rows(), std::max<int64_t>(1, kGrain / length), [&](int64_t begin, int64_t end) {
      loop.for_rows(begin, end, [&](int64_t to, const std::array<int64_t, 1>& from) {
        if (stride == 0)
          std::fill_n(out + to, length, in[from[0]]);
        else
          std::copy_n(in + from[0], length, out + to);
      });
    });
  });
}

}  // namespace demi::kernels::cpu
