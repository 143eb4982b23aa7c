// Runs of 16-bit values to FP32 and back, many at a time.
#pragma once

#include "demi/core/dtype.h"

namespace demi::kernels::cpu {

inline void widen(const Half* x, float* y, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512F__)  // as wide as the loads of the loops that follow: two narrow stores do not forward to a wide
                          // load
  for (; i + 16 <= n; i += 16)
    _mm512_storeu_ps(y + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i))));
#endif
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
#endif
  for (; i < n; ++i) y[i] = x[i];
}

inline void narrow(const float* x, Half* y, int64_t n) {
  int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; i < n; ++i) y[i] = Half(x[i]);
}

// Shifts and integer adds: the compiler vectorizes these two by itself.
inline void widen(const BFloat16* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i];
}
inline void narrow(const float* x, BFloat16* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = BFloat16(x[i]);
}

// An FP64 as a 16-bit value, rounded once: through an FP32 rounded to odd, whose last bit keeps what was cut off, so
// that the second rounding never meets a tie that was none.
template <typename T>
T narrow_once(double x) {
  float f = static_cast<float>(x);
  if (x == x && static_cast<double>(f) != x) {
    const uint32_t bits = detail::bits_of(f);
    const double magnitude = x < 0 ? -x : x, rounded = f < 0 ? -static_cast<double>(f) : static_cast<double>(f);
    if ((bits & 1u) == 0) f = detail::float_of(magnitude > rounded ? bits + 1 : bits - 1);
  }
  return T(f);
}

}  // namespace demi::kernels::cpu
