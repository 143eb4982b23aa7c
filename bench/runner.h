// Runs a case for Google Benchmark: verified first, then timed, with the counters that bench/README.md lists.
#pragma once

#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <unordered_map>

#include "demi/bench/ceilings.h"
#include "demi/bench/timing.h"

namespace demi::bench {

class Runner {
 public:
  Runner(Device device, size_t cache_bytes) : device_(device), cache_bytes_(cache_bytes), ceilings_(device) {}
  Ceilings& ceilings() { return ceilings_; }
  void run(const Case& c, benchmark::State& state);
  int failures() const { return failures_; }

 private:
  struct Prepared;
  Prepared& prepare(const Case& c);
  Device device_;
  size_t cache_bytes_;
  Ceilings ceilings_;
  std::unordered_map<std::string, Verdict> verdicts_;  // cold and warm share one
  std::shared_ptr<Prepared> current_;                  // Google Benchmark comes several times, with more iterations
  int failures_ = 0;
};

}  // namespace demi::bench
