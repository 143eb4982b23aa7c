// demi_bench: what half precision buys, op by op.
//
//   demi_bench [--set=default] [--ops=...] [--dtypes=...] [--shape=...] [Google Benchmark's flags]
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "demi/bench/clocks.h"
#include "demi/bench/options.h"
#include "demi/bench/reporter.h"
#include "demi/bench/runner.h"
#include "demi/core/backend.h"
#include "demi/core/processor.h"
#include "demi_commit.h"

using namespace demi;
using namespace demi::bench;

namespace {

size_t cache_of(Device device) {
  if (device.is_cuda()) return backend::device_info(device.index()).l2_bytes;
  const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? static_cast<size_t>(bytes) : 0;
}

std::string commit() {
  const char* given = std::getenv("DEMI_COMMIT");  // where the tree that was built had no history
  return given && *given ? given : DEMI_COMMIT;
}

// Measures the ceilings that these cases need, and reads the clocks right behind them, while the card is awake.
ContextLines context_of(const Options& options, const std::vector<Case>& cases, Device device, Runner& runner) {
  ContextLines lines;
  const auto add = [&](const std::string& key, std::string value) { lines.emplace_back(key, std::move(value)); };
  const double copy = runner.ceilings().bytes_per_second() * 1e-9;
  std::string flops[4];
  for (const Case& c : cases)
    if (std::string& text = flops[static_cast<size_t>(c.request.precision)]; c.tensor_cores && text.empty())
      text = fmt::format("{:.4g}", runner.ceilings().flops_per_second(c.request.precision) * 1e-12);
  const CardState card = read_card(device);
  const backend::Versions versions = backend::versions();
  add("card", device.is_cuda() ? backend::device_info(device.index()).name : processor_name());
  if (device.is_cuda()) {
    add("driver", card.driver.empty() ? versions.driver : card.driver);
    add("cuda", versions.runtime);
    add("cudnn", versions.cudnn);
    add("cublas", versions.cublas);
  }
  add("demi_commit", commit());
  add("command", options.command);
  add("l2_bytes", std::to_string(cache_of(device)));
  add("ceiling_copy_GBps", fmt::format("{:.4g}", copy));
  for (const Precision p : kPrecisions)
    if (const std::string& text = flops[static_cast<size_t>(p)]; !text.empty())
      add(fmt::format("ceiling_{}_TFLOPs", name_of(p)), text);
  if (card.sm_clock_MHz > 0) add("sm_clock_MHz", std::to_string(card.sm_clock_MHz));
  if (card.memory_clock_MHz > 0) add("memory_clock_MHz", std::to_string(card.memory_clock_MHz));
  return lines;
}

int measure(Options options) {
  const Device device = Device::parse(options.device);
  const backend::DeviceScope scope(device.is_cuda() ? device.index() : -1);
  const size_t cache = cache_of(device);
  const std::vector<Case> cases = select_cases(options, device, cache);
  if (options.list) {
    for (const Case& c : cases) fmt::print("{}\n", c.name());
    return 0;
  }
  std::vector<char*> words;
  for (std::string& word : options.remaining) words.push_back(word.data());
  int count = static_cast<int>(words.size());
  benchmark::Initialize(&count, words.data());
  DEMI_CHECK(count <= 1, "{} is no flag of Google Benchmark, or its value is none; --help lists the flags", words[1]);

  constexpr std::string_view kOut = "--benchmark_out=";
  for (const std::string& word : options.remaining)  // now, and not after the ceilings have been measured
    if (word.starts_with(kOut))
      DEMI_CHECK(std::ofstream(word.substr(kOut.size()), std::ios::app), "{}: cannot write there", word);

  if (device.is_cpu())
    fmt::print(stderr, "demi_bench: no GPU: {}; figures of the CPU, the sets' shapes are smaller\n",
               options.device == "auto" ? "none was found" : "--device=cpu");
  const auto asked_for = [&](std::string_view flag) {
    return std::any_of(options.remaining.begin(), options.remaining.end(),
                       [&](const std::string& word) { return word.starts_with(flag); });
  };
  Runner runner(device, cache);
  ContextLines context;
  if (!asked_for("--benchmark_list_tests")) context = context_of(options, cases, device, runner);
  for (const auto& [key, value] : context) benchmark::AddCustomContext(key, value);
  for (const Case& c : cases)
    benchmark::RegisterBenchmark(c.name().c_str(), [&runner, c](benchmark::State& state) { runner.run(c, state); })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
  Reporter reporter(context);
  benchmark::BenchmarkReporter* none = nullptr;
  benchmark::RunSpecifiedBenchmarks(asked_for("--benchmark_format") ? none : &reporter, none);
  benchmark::Shutdown();
  if (runner.failures() > 0) fmt::print(stderr, "demi_bench: {} failed\n", runner.failures());
  return runner.failures() > 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  int code = 0;
  std::optional<Options> options = parse_options(argc, argv, code);
  if (!options) return code;
  try {
    return measure(std::move(*options));
  } catch (const std::exception& e) {
    fmt::print(stderr, "demi_bench: {}\n", e.what());
    return 1;
  }
}
