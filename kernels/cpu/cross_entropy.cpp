// Softmax cross-entropy, one sample a row. Labels are checked before anything is written.
#include "demi/kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "demi/kernels/cpu/elementwise.h"

namespace demi::kernels::cpu {
namespace {

const int64_t* checked_labels(const Tensor& labels, int64_t classes) {
  const int64_t* label = labels.data<int64_t>();
  for (int64_t n = 0; n < labels.numel(); ++n)
    DEMI_CHECK(label[n] >= 0 && label[n] < classes,
               "[cross_entropy] label {} of sample {} is out of range: the classes are 0 to {}", label[n], n,
               classes - 1);
  return label;
}

template <typename T>
Accumulator<T> largest_of(const T* x, int64_t n) {
  auto m = static_cast<Accumulator<T>>(x[0]);
  for (int64_t i = 1; i < n; ++i) m = std::max(m, static_cast<Accumulator<T>>(x[i]));
  return m;
}

}  // namespace

void cross_entropy(const Tensor& logits, const Tensor& labels, double smoothing, Reduction reduction, Tensor& loss,
                   Tensor& log_sum) {
  visit_floating(logits.dtype(), "cross_entropy", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const int64_t samples = logits.size(0), classes = logits.size(1);
    const int64_t* label = checked_labels(labels, classes);
    const T* in = logits.data<T>();
    A* kept = log_sum.mutable_data<A>();
    std::vector<double> losses(static_cast<size_t>(samples));
    parallel_for(samples, std::max<int64_t>(1, kGrain / 8 / classes), [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const T* x = in + n * classes;
        const double largest = static_cast<double>(largest_of(x, classes));
        double ones = 0, rest = 0;  // of the sum of exp(x - largest)
        for (int64_t c = 0; c < classes; ++c) {
          const double d = static_cast<double>(x[c]) - largest;
          (d == 0 ? ones : rest) += std::exp(d);
        }
        const double log_of_sum = std::log1p((ones + rest) - 1);  // a rest below FP64's resolution of 1 is nothing
        const auto distance = [&](int64_t c) { return log_of_sum + (largest - static_cast<double>(x[c])); };
        double value = (1 - smoothing) * distance(label[n]);
        if (smoothing > 0) {  // else a class ruled out by -infinity would give 0 * infinity
          double all = 0;
          for (int64_t c = 0; c < classes; ++c) all += distance(c);
          value += smoothing / static_cast<double>(classes) * all;
        }
        losses[static_cast<size_t>(n)] = value;
        kept[n] = static_cast<A>(log_of_sum);
      }
    });
    A* out = loss.mutable_data<A>();
    if (reduction == Reduction::None) {
      for (size_t n = 0; n < losses.size(); ++n) out[n] = static_cast<A>(losses[n]);
      return;
    }
    double total = 0;
    for (double value : losses) total += value;
    *out = static_cast<A>(reduction == Reduction::Mean ? total / static_cast<double>(samples) : total);
  });
}

void cross_entropy_backward(const Tensor& dy, const Tensor& logits, const Tensor& labels, const Tensor& log_sum,
                            double smoothing, Reduction reduction, Tensor& dlogits) {
  visit_floating(logits.dtype(), "cross_entropy_backward", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const int64_t samples = logits.size(0), classes = logits.size(1);
    const int64_t* label = checked_labels(labels, classes);
    const T* in = logits.data<T>();
    const A *grad = dy.data<A>(), *kept = log_sum.data<A>();
    T* out = dlogits.mutable_data<T>();
    const A spread = static_cast<A>(smoothing / static_cast<double>(classes)), smooth = static_cast<A>(smoothing);
    const A count = reduction == Reduction::Mean ? static_cast<A>(samples) : A(1);
    parallel_for(samples, std::max<int64_t>(1, kGrain / 8 / classes), [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const A g = (reduction == Reduction::None ? grad[n] : *grad) / count;
        const T* x = in + n * classes;
        const A m = largest_of(x, classes);
        for (int64_t c = 0; c < classes; ++c) {
          const A d = static_cast<A>(x[c]) - m - kept[n];
          out[n * classes + c] = T(g * ((c == label[n] ? std::expm1(d) + smooth : std::exp(d)) - spread));
        }
      }
    });
  });
}

void count_correct(const Tensor& logits, const Tensor& labels, Tensor& count) {
  visit_floating(logits.dtype(), "count_correct", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = Accumulator<T>;
    const int64_t classes = logits.size(1);
    const T* x = logits.data<T>();
    const int64_t* label = labels.data<int64_t>();
    int64_t correct = 0;
    for (int64_t n = 0; n < labels.numel(); ++n, x += classes) {
      int64_t best = 0;
      for (int64_t c = 1; c < classes; ++c) {
        const A v = static_cast<A>(x[c]), b = static_cast<A>(x[best]);
        if (b == b && !(v <= b)) best = c;  // larger, or the first NaN
      }
      correct += best == label[n];
    }
    *count.mutable_data<int64_t>() += correct;
  });
}

}  // namespace demi::kernels::cpu
