#include "demi/core/device.h"

#include <atomic>
#include <charconv>

#include "demi/core/backend.h"

namespace demi {

Device Device::cuda(int index) {
  const int count = backend::device_count();
  DEMI_CHECK(count > 0, "no CUDA device here (built with {}): use the device cpu", backend::versions().built_with);
  DEMI_CHECK(index >= 0 && index < count, "no device cuda:{}: this machine has cuda:0 to cuda:{}", index, count - 1);
  return {Kind::CUDA, index};
}

Device Device::best() { return backend::device_count() > 0 ? cuda(0) : cpu(); }

Device Device::parse(std::string_view text) {
  if (text == "auto") return best();
  if (text == "cpu") return cpu();
  if (text == "cuda") return cuda(0);
  int index = -1;
  if (text.starts_with("cuda:")) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + 5, end, index);
    if (error == std::errc{} && stop == end) return cuda(index);
  }
  fail("unknown device '{}': auto, cpu, cuda or cuda:N", text);
}

std::string Device::str() const { return is_cpu() ? "cpu" : "cuda:" + std::to_string(index_); }

void synchronize(Device device) {
  if (device.is_cuda()) backend::synchronize(device.index());
}

namespace {
thread_local Float32Math current_math = Float32Math::Ieee;
std::atomic<bool> deterministic_mode{false};
}  // namespace

Float32Math float32_math() { return current_math; }
Float32MathGuard::Float32MathGuard(Float32Math math) : before_(current_math) { current_math = math; }
Float32MathGuard::~Float32MathGuard() { current_math = before_; }

bool deterministic() { return deterministic_mode; }
void set_deterministic(bool on) { deterministic_mode = on; }

}  // namespace demi
