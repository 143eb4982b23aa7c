// Where a tensor lives: the CPU, or one of the CUDA devices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "demi/core/error.h"

namespace demi {

class Device {
 public:
  enum class Kind : uint8_t { CPU, CUDA };

  constexpr Device() = default;  // the CPU
  static constexpr Device cpu() { return {}; }
  static Device cuda(int index = 0);           // throws Error when there is no such device
  static Device best();                        // the first CUDA device, else the CPU
  static Device parse(std::string_view text);  // "auto", "cpu", "cuda", "cuda:1"; throws Error for anything else

  constexpr Kind kind() const { return kind_; }
  constexpr bool is_cpu() const { return kind_ == Kind::CPU; }
  constexpr bool is_cuda() const { return kind_ == Kind::CUDA; }
  constexpr int index() const { return index_; }
  std::string str() const;  // "cpu", "cuda:0"

  friend constexpr bool operator==(Device a, Device b) { return a.kind_ == b.kind_ && a.index_ == b.index_; }

 private:
  constexpr Device(Kind kind, int index) : kind_(kind), index_(index) {}
  Kind kind_ = Kind::CPU;
  int index_ = 0;
};

// Waits until all work given to the device by this thread is done, and throws the first error that a kernel reported
// (a label out of range, say). On the CPU there is nothing to wait for.
void synchronize(Device device);

// How FP32 matrix products and convolutions are computed. Ieee keeps all 24 bits; Tf32 lets tensor cores round the
// operands to 11 bits (10 stored). Never on unless asked for; on the CPU both mean Ieee. Thread-local.
enum class Float32Math : uint8_t { Ieee, Tf32 };
Float32Math float32_math();
class Float32MathGuard {
 public:
  explicit Float32MathGuard(Float32Math math);
  ~Float32MathGuard();
  Float32MathGuard(const Float32MathGuard&) = delete;
  Float32MathGuard& operator=(const Float32MathGuard&) = delete;

 private:
  Float32Math before_;
};

// Deterministic mode, process-wide: convolution plans are taken in the library's own order without timing them, and
// engines whose results may differ from run to run are refused. demi's own kernels are deterministic always.
bool deterministic();
void set_deterministic(bool on);

}  // namespace demi

template <>
struct fmt::formatter<demi::Device> {
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
  template <typename Context>
  auto format(demi::Device d, Context& context) const {
    const std::string text = d.str();
    return std::copy(text.begin(), text.end(), context.out());
  }
};
