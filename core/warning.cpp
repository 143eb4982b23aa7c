#include "demi/core/warning.h"

#include <fmt/core.h>

#include <cstdio>
#include <mutex>
#include <utility>

namespace demi {
namespace {
std::mutex mutex;
std::function<void(const std::string&)> receiver;
}  // namespace

void warn(const std::string& line) {
  std::function<void(const std::string&)> to;
  {
    const std::lock_guard lock(mutex);
    to = receiver;
  }
  if (to)
    to(line);
  else
    fmt::print(stderr, "demi: warning: {}\n", line);
}

void set_warning_sink(std::function<void(const std::string&)> sink) {
  const std::lock_guard lock(mutex);
  receiver = std::move(sink);
}

}  // namespace demi
