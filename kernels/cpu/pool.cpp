// Max and average pooling over NHWC images: all channels of a pixel at a time.
#include "demi/kernels/pool.h"

#include <limits>

#include "demi/kernels/cpu/elementwise.h"

namespace demi::kernels::cpu {
namespace {

struct Range {
  int64_t begin, end;
};

// The inputs that window `at` covers, padding left out.
Range window(const Pool2dOptions& o, size_t axis, int64_t at, int64_t extent) {
  const int64_t start = at * o.stride[axis] - o.padding[axis];
  return {std::max<int64_t>(start, 0), std::min(start + o.kernel[axis], extent)};
}

// The windows that cover input `at`.
Range covering(const Pool2dOptions& o, size_t axis, int64_t at, int64_t windows) {
  const int64_t shifted = at + o.padding[axis], first = shifted - o.kernel[axis] + 1;
  return {first > 0 ? (first + o.stride[axis] - 1) / o.stride[axis] : 0,
          std::min(shifted / o.stride[axis] + 1, windows)};
}

// body(n, row, column, c, k) for each pixel of [N, rows, columns, channels] and each stretch of k <= kBlock channels.
template <typename F>
void for_pixels(const Shape& s, F body) {
  parallel_for(s[0] * s[1], std::max<int64_t>(1, kGrain / (s[2] * s[3])), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t column = 0; column < s[2]; ++column)
        for (int64_t c = 0; c < s[3]; c += kBlock) body(i / s[1], i % s[1], column, c, std::min(kBlock, s[3] - c));
  });
}

double divisor(const Pool2dOptions& o, const Range& rows, const Range& columns) {
  if (o.count_include_pad) return static_cast<double>(o.kernel[0] * o.kernel[1]);
  return static_cast<double>((rows.end - rows.begin) * (columns.end - columns.begin));
}

}  // namespace

void max_pool2d(const Tensor& x, const Pool2dOptions& options, Tensor& y, Tensor& index) {
  visit_floating(x.dtype(), "max_pool2d", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const int64_t height = x.size(1), width = x.size(2), channels = x.size(3);
    const T* in = x.data<T>();
    T* out = y.mutable_data<T>();
    int32_t* taken = index.mutable_data<int32_t>();
    for_pixels(y.shape(), [&](int64_t n, int64_t p, int64_t q, int64_t c, int64_t k) {
      Reader<T> read;
      Writer<T> writer;
      const int64_t to = ((n * y.size(1) + p) * y.size(2) + q) * channels + c;
      A* best = writer.at(out + to);
      const Range rows = window(options, 0, p, height), columns = window(options, 1, q, width);
      int32_t* at = taken + to;
      std::fill_n(best, k, -std::numeric_limits<A>::infinity());
      std::fill_n(at, k, static_cast<int32_t>(rows.begin * width + columns.begin));  // all -inf: the first one
      for (int64_t h = rows.begin; h < rows.end; ++h)
        for (int64_t w = columns.begin; w < columns.end; ++w) {
          const A* v = read(in + ((n * height + h) * width + w) * channels + c, k);
          const auto here = static_cast<int32_t>(h * width + w);
#pragma GCC ivdep
          for (int64_t i = 0; i < k; ++i) {
            const bool take = !(v[i] <= best[i]) && best[i] == best[i];  // larger, or the first NaN
            best[i] = take ? v[i] : best[i];
            at[i] = take ? here : at[i];
          }
        }
      writer.commit(out + to, k);
    });
  });
}

void max_pool2d_backward(const Tensor& dy, const Tensor& index, const Pool2dOptions& options, Tensor& dx) {
  visit_floating(dy.dtype(), "max_pool2d_backward", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const int64_t width = dx.size(2), channels = dx.size(3);
    const T* in = dy.data<T>();
    const int32_t* taken = index.data<int32_t>();
    T* out = dx.mutable_data<T>();
    for_pixels(dx.shape(), [&](int64_t n, int64_t h, int64_t w, int64_t c, int64_t k) {
      Reader<T> read;
      Writer<T> writer;
      T* to = out + ((n * dx.size(1) + h) * width + w) * channels + c;
      A* sum = writer.at(to);
      std::fill_n(sum, k, A(0));
      const auto here = static_cast<int32_t>(h * width + w);
      const Range rows = covering(options, 0, h, dy.size(1)), columns = covering(options, 1, w, dy.size(2));
      for (int64_t p = rows.begin; p < rows.end; ++p)
        for (int64_t q = columns.begin; q < columns.end; ++q) {
          const int64_t from = ((n * dy.size(1) + p) * dy.size(2) + q) * channels + c;
          const A* g = read(in + from, k);
#pragma GCC ivdep
          for (int64_t i = 0; i < k; ++i) sum[i] += taken[from + i] == here ? g[i] : A(0);
        }
      writer.commit(to, k);
    });
  });
}

void avg_pool2d(const Tensor& x, const Pool2dOptions& options, Tensor& y) {
  visit_floating(x.dtype(), "avg_pool2d", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const int64_t height = x.size(1), width = x.size(2), channels = x.size(3);
    const T* in = x.data<T>();
    T* out = y.mutable_data<T>();
    for_pixels(y.shape(), [&](int64_t n, int64_t p, int64_t q, int64_t c, int64_t k) {
      Reader<T> read;
      Writer<T> writer;
      T* to = out + ((n * y.size(1) + p) * y.size(2) + q) * channels + c;
      A* sum = writer.at(to);
      std::fill_n(sum, k, A(0));
      const Range rows = window(options, 0, p, height), columns = window(options, 1, q, width);
      for (int64_t h = rows.begin; h < rows.end; ++h)
        for (int64_t w = columns.begin; w < columns.end; ++w)
          map_block(
              k, [](A s, A v) { return s + v; }, sum, sum, read(in + ((n * height + h) * width + w) * channels + c, k));
      const A count = static_cast<A>(divisor(options, rows, columns));
      map_block(
          k, [=](A s) { return s / count; }, sum, sum);
      writer.commit(to, k);
    });
  });
}

void avg_pool2d_backward(const Tensor& dy, const Pool2dOptions& options, Tensor& dx) {
  visit_floating(dy.dtype(), "avg_pool2d_backward", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const int64_t height = dx.size(1), width = dx.size(2), channels = dx.size(3);
    const T* in = dy.data<T>();
    T* out = dx.mutable_data<T>();
    for_pixels(dx.shape(), [&](int64_t n, int64_t h, int64_t w, int64_t c, int64_t k) {
      Reader<T> read;
      Writer<T> writer;
      T* to = out + ((n * height + h) * width + w) * channels + c;
      A* sum = writer.at(to);
      std::fill_n(sum, k, A(0));
      const Range rows = covering(options, 0, h, dy.size(1)), columns = covering(options, 1, w, dy.size(2));
      for (int64_t p = rows.begin; p < rows.end; ++p)
        for (int64_t q = columns.begin; q < columns.end; ++q) {
          const A count = static_cast<A>(divisor(options, window(options, 0, p, height), window(options, 1, q, width)));
          map_block(
              k, [=](A s, A g) { return s + g / count; }, sum, sum,
              read(in + ((n * dy.size(1) + p) * dy.size(2) + q) * channels + c, k));
        }
      writer.commit(to, k);
    });
  });
}

}  // namespace demi::kernels::cpu
