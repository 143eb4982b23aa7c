// What a training leaves in its --out folder:
//   metrics.jsonl  a line of JSON an epoch      command.txt, run.json  the exact command, the machine and the versions
//   report.html    curves and tables, one file that needs no network
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "demi/core/device.h"
#include "demi/examples/common/files.h"

namespace demi::examples {

// One epoch. What was not measured in it (a test that --eval-every left out) is NaN, null in JSON.
struct EpochMetrics {
  int64_t epoch = 0;  // 1 for the first
  double train_loss = 0, test_loss = 0;
  double test_accuracy = 0;  // 0 to 1
  double seconds = 0, images_per_second = 0;
  int64_t peak_bytes = 0, skipped_steps = 0;
  double loss_scale = 1, lr = 0;
};

// A training: what the plots and tables show.
struct Run {
  std::string name;  // "fp16"
  std::vector<EpochMetrics> epochs;
};

using Facts = std::vector<std::pair<std::string, std::string>>;  // name and value, in the order to show them

// The command as one could paste it into a shell.
std::string command_line(int argc, const char* const* argv);

// The device, the processor, and the versions of demi's parts that this binary was built with and runs on.
Facts machine_facts(Device device);

// Appends epochs to `folder`/metrics.jsonl, each flushed at once. A new run starts the file anew; one that resumes
// keeps the lines of the epochs up to `done_epochs`. Throws Error when the folder or file cannot be made or written.
class MetricsLog {
 public:
  MetricsLog(const std::filesystem::path& folder, std::string run_name, int64_t done_epochs = 0);
  void add(const EpochMetrics& metrics);
  const Run& run() const { return run_; }  // the epochs kept and those added

 private:
  std::filesystem::path path_;
  std::ofstream file_;
  Run run_;
};

// The runs side by side, as a table in Markdown: seconds an epoch (median), images/s, peak memory and accuracy of the
// last epoch, and how each compares to the first run.
std::string comparison_table(const std::vector<Run>& runs);

// Writes command.txt and run.json. Throws Error naming the file.
void write_run_info(const std::filesystem::path& folder, const std::string& command, const Facts& facts);

// Writes report.html whole or not at all: it can be called after every epoch and watched meanwhile.
void write_report(const std::filesystem::path& file, const std::string& title, const std::string& command,
                  const Facts& facts, const std::vector<Run>& runs);

// The report's curves as files of their own: loss.svg, accuracy.svg, lr.svg and, where a scale was used,
// loss_scale.svg.
void write_charts(const std::filesystem::path& folder, const std::vector<Run>& runs);

}  // namespace demi::examples
