// Sums, norms and losses as a program without autocast computes them: every result is rounded to T.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "demi/core/dtype.h"

namespace demi::lessons {

template <typename T>
struct By {
  using Values = std::vector<double>;
  static double rounded(double x) { return T(x); }
  static double sum(const Values& x) {
    double s = 0;
    for (const double v : x) s = rounded(s + v);
    return s;
  }
  static double norm(Values x) {
    for (double& v : x) v = rounded(v * v);
    return rounded(std::sqrt(sum(x)));
  }
  static double softmax(Values x, double maximum) {  // of the first value
    for (double& v : x) v = rounded(std::exp(rounded(v - maximum)));
    return rounded(x[0] / sum(x));
  }
  static double layer_norm(Values x) {  // of the first value
    const double n = static_cast<double>(x.size()), mean = rounded(sum(x) / n);
    for (double& v : x) v = rounded(v - mean);
    return rounded(x[0] / rounded(norm(x) / std::sqrt(n)));
  }
  static double cross_entropy(double gap) { return rounded(-std::log(softmax({gap, 0}, std::max(gap, 0.0)))); }
};

}  // namespace demi::lessons
