// What people see on the console: one line a benchmark.
#pragma once

#include <benchmark/benchmark.h>

#include <string>
#include <utility>
#include <vector>

namespace demi::bench {

using ContextLines = std::vector<std::pair<std::string, std::string>>;

class Reporter : public benchmark::BenchmarkReporter {
 public:
  explicit Reporter(ContextLines context) : context_(std::move(context)) {}
  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;

 private:
  ContextLines context_;
  size_t width_ = 0;
};

}  // namespace demi::bench
