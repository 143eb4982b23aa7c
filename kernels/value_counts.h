// How the magnitudes of a tensor's values are distributed, and what FP16 would make of them: what shows whether
// gradients underflow or overflow. For amp::Inspector and for lessons, not for training steps.
#pragma once

#include <array>

#include "demi/kernels/dispatch.h"

namespace demi::kernels {

// Counters, in the order of the tensor that the kernel fills. Every value is in one of the first three kinds or has an
// exponent; the last three say what becomes of finite non-zero values when they are rounded to FP16.
struct ValueCounts {
  static constexpr int kLowest = -149, kHighest = 127;  // floor(log2 |x|) of FP32's finite values
  static constexpr int kExponents = kHighest - kLowest + 1;
  enum Kind : int { Zero, Infinite, NaN, Fp16Zero, Fp16Subnormal, Fp16Overflow, kKinds };
  static constexpr int kCounters = kKinds + kExponents;

  std::array<int64_t, kKinds> kinds{};
  std::array<int64_t, kExponents> exponents{};  // [e - kLowest]: values with 2^e <= |x| < 2^(e + 1)

  int64_t zero() const { return kinds[Zero]; }
  int64_t non_finite() const { return kinds[Infinite] + kinds[NaN]; }
  int64_t finite_non_zero() const;
  int64_t values() const { return zero() + non_finite() + finite_non_zero(); }
  ValueCounts& operator+=(const ValueCounts& other);
};

DEMI_BACKENDS(void count_values(const Tensor& x, Tensor& counts);)

// counts (int64 [kCounters]) += the values of x. x: FP32, FP16 or BF16.
inline void count_values(const Tensor& x, Tensor& counts) {
  check_same_device("count_values", x, counts);
  DEMI_CHECK(counts.dtype() == DType::I64 && counts.numel() == ValueCounts::kCounters,
             "[count_values] the counters are {} int64, not {} {}", +ValueCounts::kCounters, counts.numel(),
             counts.dtype());
  if (x.numel() > 0) DEMI_DISPATCH(x, count_values, x, counts);
}

Tensor value_counters(Device device);             // counters at 0
ValueCounts read_counts(const Tensor& counters);  // waits for the device

namespace detail {
// Calls count(counter) for each counter that a value belongs to.
template <typename Count>
DEMI_HOST_DEVICE inline void classify(float x, Count&& count) {
  const uint32_t bits = demi::detail::bits_of(x) & 0x7fffffffu;  // |x|
  if (bits == 0) return count(+ValueCounts::Zero);
  if (bits > 0x7f800000u) return count(+ValueCounts::NaN);
  if (bits == 0x7f800000u) return count(+ValueCounts::Infinite);
  int exponent = static_cast<int>(bits >> 23) - 127;
  if (bits < 0x00800000u) {  // subnormal: the exponent is that of the highest bit that is set
    exponent = -149;
    for (uint32_t rest = bits; rest > 1; rest >>= 1) ++exponent;
  }
  count(ValueCounts::kKinds + exponent - ValueCounts::kLowest);
  const uint16_t half = static_cast<uint16_t>(Half(x).bits & 0x7fffu);
  if (half == 0) count(+ValueCounts::Fp16Zero);
  if (half != 0 && half < 0x0400u) count(+ValueCounts::Fp16Subnormal);
  if (half == 0x7c00u) count(+ValueCounts::Fp16Overflow);
}
}  // namespace detail

}  // namespace demi::kernels
