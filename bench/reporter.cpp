#include "demi/bench/reporter.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

namespace demi::bench {
namespace {

// Google Benchmark 1.8 has renamed what 1.7 calls error_occurred and error_message.
template <typename Run>
std::string failure_of(const Run& run) {
  if constexpr (requires { run.error_occurred; })
    return run.error_occurred ? run.error_message : "";
  else
    return run.skipped ? run.skip_message : "";
}

std::string short_name(const std::string& name) {
  constexpr std::string_view kSuffix = "/manual_time";
  const size_t at = name.find(kSuffix);
  return at == std::string::npos ? name : name.substr(0, at) + name.substr(at + kSuffix.size());
}

// Three significant digits, but no exponent for what people read as a number.
std::string digits(double v) {
  if (v >= 100) return fmt::format("{:.0f}", v);
  if (v >= 10) return fmt::format("{:.1f}", v);
  return v >= 0.1 || v == 0 ? fmt::format("{:.2f}", v) : fmt::format("{:.1e}", v);
}

}  // namespace

bool Reporter::ReportContext(const Context& context) {
  std::ostream& out = GetOutputStream();
  for (const auto& [key, value] : context_) out << fmt::format("{:<22} {}\n", key, value);
  width_ = std::max<size_t>(context.name_field_width, 40);
  out << fmt::format("\n{:<{}} {:>10} {:>8} {:>8} {:>8} {:>9} {:>9} {:>10}\n", "benchmark", width_, "median us",
                     "spread", "GB/s", "TFLOP/s", "ceiling", "error", "host us");
  return true;
}

void Reporter::ReportRuns(const std::vector<Run>& runs) {
  std::ostream& out = GetOutputStream();
  for (const Run& run : runs) {
    const std::string name = short_name(run.benchmark_name());
    if (const std::string failure = failure_of(run); !failure.empty()) {
      out << fmt::format("{:<{}} FAILED: {}\n", name, width_, failure);
      continue;
    }
    const auto counter = [&](const char* key) {
      const auto found = run.counters.find(key);
      return found == run.counters.end() ? 0.0 : static_cast<double>(found->second);
    };
    out << fmt::format("{:<{}} {:>10} {:>7.1f}% {:>8} {:>8} {:>8.1f}% {:>9.2g} {:>10}", name, width_,
                       digits(counter("median_us")), counter("spread_percent"), digits(counter("GB/s")),
                       digits(counter("TFLOP/s")), counter("ceiling_percent"), counter("relative_error"),
                       digits(counter("host_us")));
    if (!run.report_label.empty()) out << "  " << run.report_label;
    out << '\n';
  }
  out.flush();
}

}  // namespace demi::bench
