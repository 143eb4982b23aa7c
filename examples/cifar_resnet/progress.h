// What a training says while it runs: on a terminal one line that is redrawn, elsewhere plain lines.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "demi/examples/cifar_resnet/report.h"

namespace demi::examples {

class Progress {
 public:
  // The epochs planned, those done before this process among them.
  explicit Progress(int64_t epochs, int64_t done_epochs = 0, std::FILE* out = stdout);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void start_epoch(int64_t epoch, int64_t batches);  // epoch: 1 for the first

  // Whether step() would draw now: once a second on a terminal, every half minute elsewhere. What must be read from the
  // device (and so waits for it) is worth reading only then.
  bool due() const;
  void set_loss(double loss) { loss_ = loss; }  // shown from the next drawing on
  void set_scale(double scale) { scale_ = scale; }

  void step(int64_t batches_done, int64_t images_done);  // of this epoch
  void end_epoch(const EpochMetrics& metrics);           // prints the epoch's line, which stays
  void say(const std::string& line);                     // a line of the caller's own, above the live one
  void clear();                                          // takes the live line off the terminal

 private:
  using Clock = std::chrono::steady_clock;
  void draw(const std::string& text);

  std::FILE* out_;
  bool terminal_, live_ = false;
  int64_t epochs_, done_before_, epoch_ = 0, batches_ = 0;
  double loss_, scale_ = 1, accuracy_;  // NaN until known
  Clock::time_point start_, epoch_start_, drawn_;
};

std::string format_bytes(int64_t bytes);      // "784 MiB", "1.46 GiB"
std::string format_duration(double seconds);  // "0:07", "1:02:03"

}  // namespace demi::examples
