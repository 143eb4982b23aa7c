// replay_scaler_traces FILE: PyTorch as the referee of the loss scaler. Replays every trace of a file through demi,
// names the first difference of each, and exits with 0 only when there is none; 2 for bad input.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "scaler_traces.h"

int main(int argc, char** argv) {
  using demi::test::ReplayBy;
  std::string file, device_name = "auto";
  bool graph = false;
  CLI::App app("Replays traces recorded from PyTorch's GradScaler through demi and compares.", "replay_scaler_traces");
  app.add_option("FILE", file, "traces (JSON, as in tests/golden/grad_scaler_traces.json)")->required();
  app.add_option("--device", device_name, "auto, cpu, cuda or cuda:N")->capture_default_str();
  app.add_flag("--graph", graph, "replay the steps from CUDA graphs");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    fmt::print(stderr, "replay_scaler_traces: {}\n", e.what());
    return 2;
  }

  int passed = 0, failed = 0;
  try {
    const demi::Device device = demi::Device::parse(device_name);
    DEMI_CHECK(!graph || device.is_cuda(), "--graph needs a CUDA device, not {}", device);
    const std::vector<demi::test::ScalerTrace> traces = demi::test::read_scaler_traces(file);
    for (size_t t = 0; t < traces.size(); ++t) {
      const std::string difference = demi::test::replay(traces[t], device, graph ? ReplayBy::Graph : ReplayBy::Eager);
      ++(difference.empty() ? passed : failed);
      if (!difference.empty()) fmt::print("FAILED trace {}, {}\n", t, difference);
    }
  } catch (const std::exception& e) {
    fmt::print(stderr, "replay_scaler_traces: {}\n", e.what());
    return 2;
  }
  fmt::print("{} passed, {} failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
