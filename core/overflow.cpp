#include "demi/core/overflow.h"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <utility>

namespace demi {
namespace {
std::mutex mutex;
std::map<int, std::function<std::string()>>& witnesses() {
  static auto& all = *new std::map<int, std::function<std::string()>>;  // as long as the process
  return all;
}
int key_of(Device device) { return device.is_cpu() ? -1 : device.index(); }
}  // namespace

std::string overflow_message(Device device, int in_a_row, int64_t step) {
  std::function<std::string()> witness;
  {
    const std::lock_guard lock(mutex);
    if (const auto it = witnesses().find(key_of(device)); it != witnesses().end()) witness = it->second;
  }
  std::string who;
  try {
    if (witness) who = witness();
  } catch (const std::exception&) {  // out of memory, say: the overflow is what must be told
  }
  return fmt::format(
      "[grad_scaler] {} steps in a row overflowed (step {}){}{}: no loss scale helps; look for a NaN in data or "
      "weights, or lower the learning rate",
      in_a_row, step, who.empty() ? "" : "; ", who);
}

void set_overflow_witness(Device device, std::function<std::string()> witness) {
  const std::lock_guard lock(mutex);
  witnesses()[key_of(device)] = std::move(witness);
}

}  // namespace demi
