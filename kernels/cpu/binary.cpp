// Elementwise arithmetic of two broadcast tensors, row by row of the result.
#include "demi/kernels/binary.h"

#include "demi/kernels/cpu/broadcast.h"
#include "demi/kernels/cpu/columns.h"

namespace demi::kernels::cpu {
namespace {

// f(binary functor) for the op's functor.
template <typename F>
void visit_binary(BinaryOp op, F&& f) {
  switch (op) {
    case BinaryOp::Add:
      return f([](auto a, auto b) { return a + b; });
    case BinaryOp::Sub:
      return f([](auto a, auto b) { return a - b; });
    case BinaryOp::Mul:
      return f([](auto a, auto b) { return a * b; });
    case BinaryOp::Div:
      return f([](auto a, auto b) { return a / b; });
    case BinaryOp::Maximum:
      return f([](auto a, auto b) { return a > b || a != a ? a : b; });  // b when it is NaN: the comparison is false
  }
}

// y = f(x, v) for v [C] under x [..., C] of few channels: v is repeated, so that the loop is longer than a row.
template <typename T, typename F>
void with_channels(const T* x, const T* v, int64_t rows, int64_t channels, F f, T* y) {
  using A = Accumulator<T>;
  const std::vector<A> repeated = repeat_channels<A>(channels, [v](int64_t c) { return static_cast<A>(v[c]); });
  parallel_for(rows, row_grain(channels), [&](int64_t begin, int64_t end) {
    Reader<T> read;
    Writer<T> writer;
    for_channel_blocks(begin, end, channels, [&](int64_t at, int64_t n, int64_t c) {
      map_block(n, f, writer.at(y + at), read(x + at, n), repeated.data() + c);
      writer.commit(y + at, n);
    });
  });
}

}  // namespace

void binary(BinaryOp op, const Tensor& a, const Tensor& b, Tensor& y) {
  visit_floating(y.dtype(), name_of(op), [&](auto type) {
    using T = typename decltype(type)::type;
    const T *pa = a.data<T>(), *pb = b.data<T>();
    T* out = y.mutable_data<T>();
    visit_binary(op, [&](auto f) {
      if (a.shape() == b.shape()) return map(y.numel(), f, out, pa, pb);
      const BroadcastLoop<2> loop(y.shape(), {&a.shape(), &b.shape()});
      const auto [stride_a, stride_b] = loop.row_stride();
      const int64_t length = loop.row_length();
      if (length <= kBlock && a.numel() == y.numel() && b.numel() == length && stride_b == 1)
        return with_channels(pa, pb, loop.rows(), length, f, out);
      if (length <= kBlock && b.numel() == y.numel() && a.numel() == length && stride_a == 1)
        return with_channels(
            pb, pa, loop.rows(), length, [f](auto u, auto v) { return f(v, u); }, out);
      parallel_for(loop.rows(), std::max<int64_t>(1, kGrain / length), [&](int64_t begin, int64_t end) {
        RowReader<T> read_a, read_b;
        Writer<T> writer;
        loop.for_rows(begin, end, [&](int64_t to, const std::array<int64_t, 2>& from) {
          for (int64_t at = 0; at < length; at += kBlock) {
            const int64_t n = std::min(kBlock, length - at);
            const auto* va = read_a(pa + from[0] + at * stride_a, stride_a, n);
            const auto* vb = read_b(pb + from[1] + at * stride_b, stride_b, n);
            map_block(n, f, writer.at(out + to + at), va, vb);
            writer.commit(out + to + at, n);
          }
        });
      });
    });
  });
}

void maximum_backward(const Tensor& dy, const Tensor& a, const Tensor& b, Tensor& da) {
  visit_floating(dy.dtype(), "maximum_backward", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const T *pg = dy.data<T>(), *pa = a.data<T>(), *pb = b.data<T>();
    T* out = da.mutable_data<T>();
    const BroadcastLoop<2> loop(da.shape(), {&a.shape(), &b.shape()});
    const auto [stride_a, stride_b] = loop.row_stride();
    const int64_t length = loop.row_length();
    parallel_for(loop.rows(), std::max<int64_t>(1, kGrain / length), [&](int64_t begin, int64_t end) {
      RowReader<T> read_a, read_b;
      Reader<T> read_g;
      Writer<T> writer;
      loop.for_rows(begin, end, [&](int64_t to, const std::array<int64_t, 2>& from) {
        for (int64_t at = 0; at < length; at += kBlock) {
          const int64_t n = std::min(kBlock, length - at);
          const A* va = read_a(pa + from[0] + at * stride_a, stride_a, n);
          const A* vb = read_b(pb + from[1] + at * stride_b, stride_b, n);
          map_block(
              n, [](A g, A x, A y) { return x < y    ? A(0)
                                            : x == y ? g / A(2)
                                                     : g; }, writer.at(out + to + at),
              read_g(pg + to + at, n), va, vb);
          writer.commit(out + to + at, n);
        }
      });
    });
  });
}

}  // namespace demi::kernels::cpu
