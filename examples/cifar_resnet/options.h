// The command line of cifar_resnet.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/device.h"
#include "demi/data/loader.h"
#include "demi/nn/resnet.h"

namespace demi::examples {

enum class Precision : uint8_t { FP32, TF32, FP16, BF16 };
Precision precision_from_name(const std::string& name);
const char* name_of(Precision precision);

struct Options {
  std::string data = "synthetic";
  Device device;
  Precision precision = Precision::FP32;
  double width = 1;
  int depth = 18;
  nn::Stem stem = nn::Stem::Cifar;

  int64_t epochs = 30, stop_after = 0;  // 0: all
  int64_t batch = 256, accumulate = 1;
  double lr = 0.1, momentum = 0.9, weight_decay = 5e-4;
  bool nesterov = false;
  std::string schedule = "cosine";
  double warmup = 5;            // epochs
  int64_t schedule_epochs = 0;  // what the schedule's length is counted in; 0: the epochs of the run
  std::string augment = "crop+flip", normalize = "cifar";
  double label_smoothing = 0, clip = 0;

  std::optional<double> fixed_scale;  // --loss-scale VALUE
  double init_scale = 65536;
  int growth_interval = 2000;

  uint64_t seed = 0;
  bool deterministic = false, drop_last = false;
  int64_t eval_every = 1;
  int64_t inspect = 0;  // the step to look into, after which the run ends; 0: none
  std::string out, resume, save, load, export_to;
  bool eval_only = false;
  std::vector<Precision> compare;
  std::string recipe = "strong";
};

// What the flags say, over what the recipe, the machine and, with --resume, the checkpoint say. Throws Error for a
// value that makes no sense. nullopt: --help was printed, or a flag was wrong and said so; `exit_code` tells which.
std::optional<Options> parse_options(int argc, char** argv, int& exit_code);

// The flags that decide what a training computes, resolved: what a checkpoint remembers and a resumed run must share.
std::vector<std::string> training_flags(const Options& options);

data::Augment augment_of(const Options& options);
data::Normalization normalization_of(const Options& options);

}  // namespace demi::examples
