#include "demi/bench/runner.h"

#include <algorithm>
#include <cmath>

namespace demi::bench {
namespace {

constexpr int kFewestSamples = 5;  // behind a median and a spread, also of a slow op

// Operands of one call, and what it gave: kept, so that the next call on another set finds other memory.
struct Set {
  Tensors in, out;
  std::function<Tensors(Tensors&)> run;
  void operator()() {
    out.clear();  // its memory is what the new results take
    out = run(in);
  }
};

}  // namespace

struct Runner::Prepared {
  std::string name, label, failure;  // failure: why there is nothing to time
  Spec spec;
  Verdict verdict;
  Timed timed;
};

Runner::Prepared& Runner::prepare(const Case& c) {
  const std::string name = c.name();
  if (current_ && current_->name == name) return *current_;
  current_.reset();  // the memory of the one before goes first
  auto p = std::make_shared<Prepared>();
  p->name = name;
  try {
    p->spec = c.op->spec(c.request);
    const std::string checked = name.substr(0, name.rfind('/'));
    if (!verdicts_.contains(checked)) verdicts_[checked] = verify(p->spec, c.request);
    p->verdict = verdicts_[checked];
    if (!p->verdict.passed()) {
      p->failure = "wrong result: " + p->verdict.failure;
    } else {
      const Float32MathGuard math(math_of(c.request.precision));
      const double enough = kColdFactor * static_cast<double>(cache_bytes_);
      // Bytes of memory that a call touches: of some operands it reads a part (records), some it reads twice.
      const double touched = std::max(1.0, std::min(static_cast<double>(p->verdict.footprint), p->spec.bytes));
      const int sets = c.cold ? static_cast<int>(std::ceil(enough / touched)) + 1 : 1;
      std::vector<Call> calls;
      for (int i = 0; i < sets; ++i) {
        auto set = std::make_shared<Set>();
        set->in = draw(p->spec, device_, static_cast<uint64_t>(i) + 1);
        set->run = bound(p->spec, set->in);
        calls.push_back([set] { (*set)(); });
      }
      p->timed = prepare_timing(calls, device_);
      if (p->spec.label) p->label = p->spec.label();
    }
  } catch (const std::exception& e) {
    p->failure = e.what();
  }
  if (!p->failure.empty()) failed_.insert(name);
  current_ = p;
  return *current_;
}

void Runner::run(const Case& c, benchmark::State& state) {
  Prepared& p = prepare(c);
  if (!p.failure.empty()) {
    state.SkipWithError(p.failure.c_str());
    return;
  }
  std::vector<double> samples;  // microseconds a call
  const auto measure = [&] {
    const double seconds = p.timed.seconds();
    samples.push_back(seconds * 1e6 / static_cast<double>(p.timed.calls));
    return seconds;
  };
  while (state.KeepRunningBatch(p.timed.calls)) state.SetIterationTime(measure());
  while (samples.size() < kFewestSamples) measure();

  const double us = median(samples);
  const double byte_us = p.spec.bytes / ceilings_.bytes_per_second() * 1e6;
  const double flop_us = p.spec.tensor_cores ? p.spec.flops / ceilings_.flops_per_second(c.request.precision) * 1e6 : 0;
  const double floor_us = std::max(byte_us, flop_us);
  auto& counters = state.counters;
  counters["median_us"] = us;
  counters["spread_percent"] = 100 * (quantile(samples, 0.9) - quantile(samples, 0.1)) / us;
  counters["bytes"] = p.spec.bytes;
  counters["flops"] = p.spec.flops;
  counters["GB/s"] = p.spec.bytes / us * 1e-3;
  counters["TFLOP/s"] = p.spec.flops / us * 1e-6;
  counters["floor_us"] = floor_us;
  counters["ceiling_percent"] = 100 * floor_us / us;
  counters["relative_error"] = p.verdict.error.norm;
  counters["host_us"] = device_.is_cuda() ? p.timed.host_us : us;  // the CPU's call is the work itself
  if (!p.label.empty()) state.SetLabel(p.label);
}

}  // namespace demi::bench
