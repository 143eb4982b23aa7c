// Softmax and log-softmax along the middle of [outer, extent, inner], in FP64; several short lines at a time.
// Lines are summed by block_sum: the order of Eigen's sums would depend on where a line lies in the scratch.
#include "demi/kernels/softmax.h"

#include "demi/kernels/cpu/eigen.h"

namespace demi::kernels::cpu {
namespace {

using Lines = Eigen::ArrayXXd;  // a line a column

// body(first line, scratch for as many lines as it is to do)
template <typename F>
void for_lines(const AxisView& view, F body) {
  const int64_t at_once = std::max<int64_t>(1, kBlock / view.extent);
  parallel_for(view.outer * view.inner, std::max<int64_t>(1, kGrain / 8 / view.extent),
               [&](int64_t begin, int64_t end) {
                 Lines v;
                 for (int64_t first = begin; first < end; first += at_once) {
                   v.resize(view.extent, std::min(at_once, end - first));
                   body(first, v);
                 }
               });
}

// run(offset of the elements in memory, their number, their distance, column of the scratch) for every line, or, where
// lines follow each other, once.
template <typename F>
void for_runs(const AxisView& view, int64_t first, const Lines& v, F run) {
  if (view.inner == 1) return run(first * view.extent, v.size(), int64_t{1}, int64_t{0});
  for (int64_t l = first; l < first + v.cols(); ++l)
    run(l / view.inner * view.extent * view.inner + l % view.inner, view.extent, view.inner, l - first);
}

template <typename T>
void read(const T* x, const AxisView& view, int64_t first, Lines& v) {
  for_runs(view, first, v, [&](int64_t offset, int64_t n, int64_t stride, int64_t column) {
    load(x + offset, stride, n, v.col(column).data());
  });
}

template <typename T>
void write(const Lines& v, const AxisView& view, int64_t first, T* y) {
  for_runs(view, first, v, [&](int64_t offset, int64_t n, int64_t stride, int64_t column) {
    store(v.col(column).data(), n, y + offset, stride);
  });
}

}  // namespace

void softmax(const Tensor& x, const AxisView& view, bool log, Tensor& y) {
  visit_floating(x.dtype(), "softmax", [&](auto type) {
    using T = typename decltype(type)::type;
    const T* in = x.data<T>();
    T* out = y.mutable_data<T>();
    for_lines(view, [&](int64_t first, Lines& v) {
      read(in, view, first, v);
      for (auto line : v.colwise()) line -= line.maxCoeff();
      Lines e = v;
      exponentiate<T>(e);
      for (int64_t l = 0; l < v.cols(); ++l) {
        const double sum = block_sum(e.col(l).data(), view.extent);  // NaN if any element is
        if (log)
          v.col(l) -= std::log(sum);
        else
          v.col(l) = e.col(l) * (1 / sum);
      }
      write(v, view, first, out);
    });
  });
}

void softmax_backward(const Tensor& dy, const Tensor& y, const AxisView& view, bool log, Tensor& dx) {
  visit_floating(y.dtype(), "softmax_backward", [&](auto type) {
    using T = typename decltype(type)::type;
    const T *grad = dy.data<T>(), *in = y.data<T>();
    T* out = dx.mutable_data<T>();
    for_lines(view, [&](int64_t first, Lines& g) {
      Lines v(g.rows(), g.cols());
      read(grad, view, first, g);
      read(in, view, first, v);
      if (log) exponentiate<T>(v);
      const Lines terms = log ? g : Lines(g * v);
      for (int64_t l = 0; l < v.cols(); ++l) {
        const double sum = block_sum(terms.col(l).data(), view.extent);
        if (log)
          g.col(l) -= v.col(l) * sum;
        else
          g.col(l) = v.col(l) * (g.col(l) - sum);
      }
      write(g, view, first, out);
    });
  });
}

}  // namespace demi::kernels::cpu
