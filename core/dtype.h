// Element types: the enum that tensors carry at run time, the two 16-bit types, and the switch from one to the other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "demi/core/error.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define DEMI_HOST_DEVICE __host__ __device__
#else
#define DEMI_HOST_DEVICE
#endif
#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace demi {

enum class DType : uint8_t { F32, F16, BF16, F64, I32, I64, U8 };

size_t size_of(DType dtype);                   // bytes an element
std::string_view name_of(DType dtype);         // "fp32", "fp16", "bf16", "fp64", "int32", "int64", "uint8"
DType dtype_from_name(std::string_view name);  // throws Error for an unknown name
constexpr bool is_floating(DType d) { return d <= DType::F64; }
constexpr bool is_16bit(DType d) { return d == DType::F16 || d == DType::BF16; }

namespace detail {
DEMI_HOST_DEVICE inline uint32_t bits_of(float f) {
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return u;
}
DEMI_HOST_DEVICE inline float float_of(uint32_t u) {
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}
uint16_t half_from_float(float f);  // software paths, for hosts without F16C
float half_to_float(uint16_t h);
}  // namespace detail

// IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits. Largest 65504, smallest normal 2^-14, smallest subnormal
// 2^-24. Widening to float is exact and implicit, so arithmetic happens in FP32; narrowing is explicit and rounds to
// nearest even (65520 and above become infinity).
struct Half {
  uint16_t bits;

  Half() = default;
  DEMI_HOST_DEVICE explicit Half(float value) {
#if defined(__CUDA_ARCH__)
    bits = __half_as_ushort(__float2half_rn(value));
#elif defined(__F16C__)
    bits = static_cast<uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT));
#else
    bits = detail::half_from_float(value);
#endif
  }
  DEMI_HOST_DEVICE operator float() const {
#if defined(__CUDA_ARCH__)
    return __half2float(__ushort_as_half(bits));
#elif defined(__F16C__)
    return _cvtsh_ss(bits);
#else
    return detail::half_to_float(bits);
#endif
  }
};

// The upper half of an FP32: 8 exponent bits (FP32's range), 7 fraction bits. Rounds to nearest even; NaN stays NaN.
struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  DEMI_HOST_DEVICE explicit BFloat16(float value) {
#if defined(__CUDA_ARCH__)
    bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
    const uint32_t u = detail::bits_of(value);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<uint16_t>(nan ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
#endif
  }
  DEMI_HOST_DEVICE operator float() const { return detail::float_of(static_cast<uint32_t>(bits) << 16); }
};

static_assert(sizeof(Half) == 2 && sizeof(BFloat16) == 2);

// The type in which sums over T are held: FP32 for FP32 and the 16-bit types, FP64 for FP64.
template <typename T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
template <typename T>
using Accumulator = typename AccumulatorOf<T>::type;

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::F32;
};
template <>
struct DTypeOf<Half> {
  static constexpr DType value = DType::F16;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::BF16;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::F64;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::I32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::I64;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::U8;
};
template <typename T>
constexpr DType dtype_of = DTypeOf<T>::value;

// Carries a type into a generic lambda: visit(dtype, "op", [&](auto type) { using T = typename decltype(type)::type;
// ... }).
template <typename T>
struct TypeTag {
  using type = T;
};

// FP32, FP16, BF16: what both backends compute in.
template <typename F>
decltype(auto) visit_training(DType dtype, const char* op, F&& f) {
  switch (dtype) {
    case DType::F32:
      return f(TypeTag<float>{});
    case DType::F16:
      return f(TypeTag<Half>{});
    case DType::BF16:
      return f(TypeTag<BFloat16>{});
    default:
      fail("[{}] takes fp32, fp16 or bf16, not {}", op, name_of(dtype));
  }
}

// The same and FP64, which exists on the CPU for gradient checks and references.
template <typename F>
decltype(auto) visit_floating(DType dtype, const char* op, F&& f) {
  DEMI_CHECK(is_floating(dtype), "[{}] takes a floating dtype, not {}", op, name_of(dtype));
  return dtype == DType::F64 ? f(TypeTag<double>{}) : visit_training(dtype, op, std::forward<F>(f));
}

// int32, int64, uint8.
template <typename F>
decltype(auto) visit_integer(DType dtype, const char* op, F&& f) {
  switch (dtype) {
    case DType::I32:
      return f(TypeTag<int32_t>{});
    case DType::I64:
      return f(TypeTag<int64_t>{});
    case DType::U8:
      return f(TypeTag<uint8_t>{});
    default:
      fail("[{}] takes int32, int64 or uint8, not {}", op, name_of(dtype));
  }
}

// All of them.
template <typename F>
decltype(auto) visit_any(DType dtype, const char* op, F&& f) {
  return is_floating(dtype) ? visit_floating(dtype, op, std::forward<F>(f))
                            : visit_integer(dtype, op, std::forward<F>(f));
}

}  // namespace demi

template <>
struct fmt::formatter<demi::DType> {
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
  template <typename Context>
  auto format(demi::DType d, Context& context) const {
    const std::string_view s = demi::name_of(d);
    return std::copy(s.begin(), s.end(), context.out());
  }
};
