// Runs a case for Google Benchmark: verified first, then timed, with the counters that bench/README.md lists.
#pragma once

#include <benchmark/benchmark.h>

#include <memory>
#include <set>
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
  size_t failures() const { return failed_.size(); }

 private:
  struct Prepared;
  Prepared& prepare(const Case& c);
  Device device_;
  size_t cache_bytes_;
  Ceilings ceilings_;
  std::unordered_map<std::string, Verdict> verdicts_;  // cold and warm share one
  std::shared_ptr<Prepared> current_;                  // Google Benchmark comes several times, with more iterations
  std::set<std::string> failed_;  // by name: repetitions in random order come back to what has failed
};

}  // namespace demi::bench
