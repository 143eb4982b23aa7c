// The elementwise functions f and their derivatives, one functor each, for both backends. A is float or double; a and b
// are the op's constants. `backward` is dy f'(x), from the input x or the output y, whichever the functor says it needs
// (the other holds no value). Comparisons are written so that NaN falls through as itself: fmax(NaN, 0) would be 0.
#pragma once

#include <cmath>

#include "demi/core/dtype.h"
#include "demi/kernels/unary.h"

namespace demi::kernels {

struct Neg {
  static constexpr bool kNeedsInput = false, kNeedsOutput = false;
  template <typename A>
  DEMI_HOST_DEVICE static A forward(A x, A, A) {
    return -x;
  }
  template <typename A>
  DEMI_HOST_DEVICE static A backward(A dy, A, A, A, A) {
    return -dy;
  }
};

struct Abs {
  static constexpr bool kNeedsInput = true, kNeedsOutput = false;
  template <typename A>
  DEMI_HOST_DEVICE static A forward(A x, A, A) {
    return std::fabs(x);
  }
  template <typename A>
  DEMI_HOST_DEVICE static A backward(A dy, A x, A, A, A) {
    return x > A(0) ? dy : x < A(0) ? -dy : x * A(0);
  }
};

struct Square {
  static constexpr bool kNeedsInput = true, kNeedsOutput = false;
  template <typename A>
  DEMI_HOST_DEVICE static A forward(A x, A, A) {
    return x * x;
  }
  template <typename A>
  DEMI_HOST_DEVICE static A backward(A dy, A x, A, A, A) {
    return A(2) * x * dy;
  }
};

struct Sqrt {
  static constexpr bool kNeedsInput = false, kNeedsOutput = true;
  template <typename A>
  DEMI_HOST_DEVICE static A forward(A x, A, A) {
    return std::sqrt(x);
  }
  template <typename A>
  DEMI_HOST_DEVICE static A backward(A dy, A, A y, A, A) {
    return dy / (A(2) * y);
  }
};

struct Rsqrt {
  static constexpr bool kNeedsInput = false, kNeedsOutput = true;
  template <typename A>
  DEMI_HOST_DEVICE static A forward(A x, A, A) {
    return A(1) / std::sqrt(x);
  }
  template <typename A>
  DEMI_HOST_DEVICE static A backward(A dy, A, A y, A, A) {
    return A(-0.5) * dy * y * y * y;
  }
};

struct Reciprocal {
  static constexpr bool kNeedsInput = false, kNeedsOutput = true;
  template <typename A>
  DEMI_HOST_DEVICE static A forward(A x, A, A) {
    return A(1) / x;
  }
  template <typename A>
  DEMI_HOST_DEVICE static A backward(A dy, A, A y, A, A) {
    return -dy * y * y;
  }
};

struct Exp {
  static constexpr bool kNeedsInput = false, kNeedsOutput = true;
  template <typename A>
  DEMI_HOST_DEVICE static A forward(A x, A, A) {
    return std::exp(x);
  }
  template <typename A>
  DEMI_HOST_DEVICE static A backward(A dy, A, A y, A, A) {
    return dy * y;
  }
};

struct Log {
  static constexpr bool kNeedsInput = true, kNeedsOutput = false;
  template <typename A>
  DEMI_HOST_DEVICE static A forward(A x, A, A) {
    return std::log(x);
  }
  template <typename A>
  DEMI_HOST_DEVICE static A backward(A dy, A x, A, A, A) {
    return dy / x;
  }
};

// x^a. The exponent 0 is a constant function, so its gradient is 0 even at x = 0, where a x^(a-1) is 0 * infinity.
struct Pow {
  static constexpr bool kNeedsInput = true, kNeedsOutput = false;
  template <typename A>
  DEMI_HOST_DEVICE static A forward(A x, A a, A) {
    return x != x ? x : std::pow(x, a);
  }
  template <typename A>
  DEMI_HOST_DEVICE static A backward(A dy, A x, A, A a, A) {
    return x != x ? x : a == A(0) ? A(0) : dy * a * std::pow(x, a - A(1));
  }
};

struct Clamp {
  static constexpr bool kNeedsInput = true, kNeedsOutput = false;
  template <typename A>
  DEMI_HOST_DEVICE static A forward(A x, A a, A b) {
    return x < a ? a : x > b ? b : x;
  }
  template <typename A>
  DEMI_HOST_DEVICE static A backward(A dy, A x, A, A a, A b) {
    return x < a || x > b ? A(0) : dy;
  }
};

struct Relu {
  static constexpr bool kNeedsInput = false, kNeedsOutput = true;
  template <typename A>
  DEMI_HOST_DEVICE static A forward(A x, A, A) {
    return x <= A(0) ? A(0) : x;
  }
  template <typename A>
  DEMI_HOST_DEVICE static A backward(A dy, A, A y, A, A) {
    return y <= A(0) ? A(0) : dy;
  }
};

// a x below 0 (Maas, Hannun and Ng, 2013). y has the sign of x, since a >= 0, so the backward reads y, which the next
// layer keeps anyway, and x can go.
struct LeakyRelu {
  static constexpr bool kNeedsInput = false, kNeedsOutput = true;
  template <typename A>
  DEMI_HOST_DEVICE static A forward(A x, A a, A) {
    return x <= A(0) ? a * x : x;
  }
  template <typename A>
  DEMI_HOST_DEVICE static A backward(A dy, A, A y, A a, A) {
    return y > A(0) ? dy : a * dy;
  }
};

struct Tanh {
  static constexpr bool kNeedsInput = false, kNeedsOutput = true;
  template <typename A>
  DEMI_HOST_DEVICE static A forward(A x, A, A) {
    return std::tanh(x);
  }
  template <typename A>
  DEMI_HOST_DEVICE static A backward(A dy, A, A y, A, A) {
    return dy * (A(1) - y * y);
  }
};

struct Sigmoid {
  static constexpr bool kNeedsInput = false, kNeedsOutput = true;
  template <typename A>
  DEMI_HOST_DEVICE static A forward(A x, A, A) {
    return A(1) / (A(1) + std::exp(-x));
  }
  template <typename A>
  DEMI_HOST_DEVICE static A backward(A dy, A, A y, A, A) {
    return dy * y * (A(1) - y);
  }
};

// x sigmoid(x) (Hendrycks and Gimpel, 2016; Ramachandran et al., 2017, as swish)
struct Silu {
  static constexpr bool kNeedsInput = true, kNeedsOutput = false;
  template <typename A>
  DEMI_HOST_DEVICE static A forward(A x, A, A) {
    return x / (A(1) + std::exp(-x));
  }
  template <typename A>
  DEMI_HOST_DEVICE static A backward(A dy, A x, A, A, A) {
    const A s = A(1) / (A(1) + std::exp(-x));
    return dy * s * (A(1) + x * (A(1) - s));
  }
};

// x Phi(x), Phi the normal distribution (Hendrycks and Gimpel, 2016). erfc keeps the digits that 1 + erf would lose for
// negative x.
struct Gelu {
  static constexpr bool kNeedsInput = true, kNeedsOutput = false;
  template <typename A>
  DEMI_HOST_DEVICE static A forward(A x, A, A) {
    return x * A(0.5) * std::erfc(-x * A(0.70710678118654752440));
  }
  template <typename A>
  DEMI_HOST_DEVICE static A backward(A dy, A x, A, A, A) {
    const A cumulative = A(0.5) * std::erfc(-x * A(0.70710678118654752440));
    const A density = A(0.39894228040143267794) * std::exp(A(-0.5) * x * x);
    return dy * (cumulative + x * density);
  }
};

// log(1 + e^x) = max(x, 0) + log(1 + e^-|x|), which neither overflows nor loses small results.
struct Softplus {
  static constexpr bool kNeedsInput = true, kNeedsOutput = false;
  template <typename A>
  DEMI_HOST_DEVICE static A forward(A x, A, A) {
    return (x > A(0) ? x : A(0)) + std::log1p(std::exp(-std::fabs(x)));
  }
  template <typename A>
  DEMI_HOST_DEVICE static A backward(A dy, A x, A, A, A) {
    return dy / (A(1) + std::exp(-x));
  }
};

// f(Functor{}) for the functor of `op`, on the host or inside a kernel.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable  // f runs where its caller does
#endif
template <typename F>
DEMI_HOST_DEVICE inline decltype(auto) visit_unary(UnaryOp op, F&& f) {
  switch (op) {
    case UnaryOp::Neg:
      return f(Neg{});
    case UnaryOp::Abs:
      return f(Abs{});
    case UnaryOp::Square:
      return f(Square{});
    case UnaryOp::Sqrt:
      return f(Sqrt{});
    case UnaryOp::Rsqrt:
      return f(Rsqrt{});
    case UnaryOp::Reciprocal:
      return f(Reciprocal{});
    case UnaryOp::Exp:
      return f(Exp{});
    case UnaryOp::Log:
      return f(Log{});
    case UnaryOp::Pow:
      return f(Pow{});
    case UnaryOp::Clamp:
      return f(Clamp{});
    case UnaryOp::Relu:
      return f(Relu{});
    case UnaryOp::LeakyRelu:
      return f(LeakyRelu{});
    case UnaryOp::Tanh:
      return f(Tanh{});
    case UnaryOp::Sigmoid:
      return f(Sigmoid{});
    case UnaryOp::Silu:
      return f(Silu{});
    case UnaryOp::Gelu:
      return f(Gelu{});
    case UnaryOp::Softplus:
      break;
  }
  return f(Softplus{});
}

}  // namespace demi::kernels
