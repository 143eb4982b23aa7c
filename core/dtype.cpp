#include "demi/core/dtype.h"

#include <array>

namespace demi {
namespace {
struct Row {
  DType dtype;
  std::string_view name;
  size_t bytes;
};
constexpr std::array<Row, 7> kRows{{{DType::F32, "fp32", 4},
                                    {DType::F16, "fp16", 2},
                                    {DType::BF16, "bf16", 2},
                                    {DType::F64, "fp64", 8},
                                    {DType::I32, "int32", 4},
                                    {DType::I64, "int64", 8},
                                    {DType::U8, "uint8", 1}}};
}  // namespace

size_t size_of(DType dtype) { return kRows[static_cast<size_t>(dtype)].bytes; }

std::string_view name_of(DType dtype) { return kRows[static_cast<size_t>(dtype)].name; }

DType dtype_from_name(std::string_view name) {
  for (const Row& row : kRows)
    if (row.name == name) return row.dtype;
  fail("unknown dtype '{}': fp32, fp16, bf16, fp64, int32, int64 or uint8", name);
}

namespace detail {

uint16_t half_from_float(float f) {
  const uint32_t u = bits_of(f);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));  // NaN, quiet
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);     // >= 65520
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 lets the FP32 adder round the value to a multiple of 2^-24
    const float rounded = float_of(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_of(rounded) - bits_of(0.5f)));
  }
  const uint32_t even = (magnitude >> 13) & 1u;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + even) >> 13));
}

float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude >= 0x0400u) return float_of(sign | ((magnitude << 13) + 0x38000000u));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return float_of(sign | bits_of(subnormal));
}

}  // namespace detail
}  // namespace demi
