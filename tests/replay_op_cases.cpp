// replay_op_cases FILE: PyTorch as the referee. Runs every case of an op case file through demi, forward and backward,
// names what failed and what it cannot run, and exits with 0 only when every case ran and passed; 2 for bad input.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "op_replay.h"

int main(int argc, char** argv) {
  using demi::test::Verdict;
  std::string file, device_name = "auto", dtype_name = "fp32";
  CLI::App app("Runs op cases recorded from PyTorch through demi and judges the results.", "replay_op_cases");
  app.add_option("FILE", file, "an op case file (safetensors, format demi-op-cases-1)")->required();
  app.add_option("--device", device_name, "auto, cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--dtype", dtype_name, "fp32, fp16 or bf16")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    fmt::print(stderr, "replay_op_cases: {}\n", e.what());
    return 2;
  }

  int counts[3] = {};
  try {
    DEMI_CHECK(dtype_name == "fp32" || dtype_name == "fp16" || dtype_name == "bf16",
               "--dtype is fp32, fp16 or bf16, not '{}'", dtype_name);
    const demi::DType dtype = demi::dtype_from_name(dtype_name);
    const demi::Device device = demi::Device::parse(device_name);
    const demi::test::OpCaseFile cases = demi::test::read_op_cases(file);
    for (const auto& c : cases.cases) {
      const Verdict verdict = demi::test::replay(cases, c, device, dtype);
      ++counts[static_cast<int>(verdict.kind)];
      const char* what = verdict.kind == Verdict::Kind::Skipped ? "skipped" : "FAILED";
      for (const std::string& note : verdict.notes) fmt::print("{} {}: {}\n", what, verdict.name, note);
    }
  } catch (const std::exception& e) {
    fmt::print(stderr, "replay_op_cases: {}\n", e.what());
    return 2;
  }
  fmt::print("{} passed, {} failed, {} skipped\n", counts[0], counts[1], counts[2]);
  return counts[1] == 0 && counts[2] == 0 ? 0 : 1;
}
