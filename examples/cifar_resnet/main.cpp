// Trains a ResNet on CIFAR-10 (or on the built-in set) in FP32, TF32, FP16 or BF16.
//
//   cifar_resnet                                     the best that the machine has
//   cifar_resnet --data DIR --compare fp32,fp16      what half precision buys
//
// Options in options.h, the training in trainer.cpp, what is written in report.h.
#include <cmath>
#include <csignal>
#include <filesystem>

#include "demi/amp/autocast.h"
#include "demi/core/backend.h"
#include "demi/core/parallel.h"
#include "demi/examples/cifar_resnet/trainer.h"
#include "demi/nn/safetensors.h"

namespace demi::examples {
namespace {

void describe(const Options& o, const data::Source& source, int64_t parameters) {
  const auto& set = source.dataset();
  fmt::print("model      ResNet-{}, width {}, {} stem, {} parameters\n", o.depth, o.width,
             o.stem == nn::Stem::Cifar ? "3x3" : "7x7", parameters);
  fmt::print("data       {}: {} training and {} test images, {} classes\n", source.name(), set.train.labels.numel(),
             set.test.labels.numel(), source.classes());
  if (!o.load.empty()) fmt::print("weights    {}\n", o.load);
  const std::string device =
      o.device.is_cpu() ? fmt::format("{} threads", num_threads()) : backend::device_info(o.device.index()).name;
  const bool off = (o.precision == Precision::FP16 || o.precision == Precision::BF16) && !amp::amp_allowed();
  fmt::print("device     {} ({}), precision {}{}\n", o.device, device, name_of(o.precision),
             off ? ", which DEMI_AMP=0 turns into fp32" : "");
  if (o.eval_only) return;
  fmt::print("recipe     {} epochs, batch {}{}, lr {} {}{}, weight decay {}, {}, seed {}\n", o.epochs, o.batch,
             o.accumulate > 1 ? fmt::format(" x {}", o.accumulate) : "", o.lr, o.schedule,
             o.warmup > 0 ? fmt::format(" with {} epochs of warm-up", o.warmup) : "", o.weight_decay, o.augment,
             o.seed);
}

// The options of each training: one, or with --compare one a precision, each with its own files.
std::vector<Options> trainings(const Options& options) {
  if (options.compare.empty()) return {options};
  std::vector<Options> all;
  for (const Precision precision : options.compare) {
    Options& one = all.emplace_back(options);
    one.precision = precision;
    for (std::string* file : {&one.save, &one.export_to})
      if (!file->empty()) *file += std::string(".") + name_of(precision);
    if (!one.out.empty()) one.out = (std::filesystem::path(one.out) / name_of(precision)).string();
  }
  return all;
}

void evaluate(const Options& options, data::Source& source) {
  Trainer trainer(options, source);
  describe(options, source, trainer.parameter_count());
  const Trainer::Tested tested = trainer.test();
  fmt::print("test loss      {:.4f}\ntest accuracy  {:.2f} %\n", tested.loss, 100 * tested.accuracy);
  DEMI_CHECK(std::isfinite(tested.loss),
             "{}: the test loss is no number: weights or statistics hold NaN or infinities, or {} overflows",
             options.load.empty() ? options.resume : options.load, name_of(options.precision));
  if (!options.export_to.empty()) trainer.export_weights();
}

int run(int argc, char** argv) {
  int exit_code = 0;
  const std::optional<Options> parsed = parse_options(argc, argv, exit_code);
  if (!parsed) return exit_code;
  const Options& options = *parsed;
  set_deterministic(options.deterministic);
  const std::string command = command_line(argc, argv);
  const Facts facts = machine_facts(options.device);
  const std::vector<Options> all = trainings(options);
  // What cannot be written is said now, not after hours.
  for (const Options& o : all)
    for (const std::string& file : {o.save, o.export_to})
      if (!file.empty()) nn::check_writable(file);
  data::Source source = data::open(options.data);
  if (options.eval_only) return evaluate(options, source), 0;
  for (const int kind : {SIGINT, SIGTERM})
    std::signal(kind, [](int signal) {
      if (interrupted) std::_Exit(128 + signal);  // a second one does not wait
      interrupted = signal;
    });

  std::vector<Run> runs;
  bool whole = true;
  for (size_t i = 0; whole && i < all.size(); ++i) {
    const Options& o = all[i];
    Trainer trainer(o, source);
    if (i == 0) {
      describe(o, source, trainer.parameter_count());
      // Only now, when nothing is wrong with the flags, the data and the checkpoint.
      if (!options.out.empty() && o.inspect == 0) write_run_info(options.out, command, facts);
    }
    if (all.size() > 1) fmt::print("\n{}\n", name_of(o.precision));
    std::fflush(stdout);
    std::optional<MetricsLog> log;
    if (o.inspect > 0) {
      if (!o.out.empty()) make_folder(o.out);
      nn::check_writable(trainer.inspection_path());
    } else if (!o.out.empty()) {
      log.emplace(o.out, name_of(o.precision), trainer.done_epochs());
      nn::check_writable(trainer.save_path());
    }
    Progress progress(o.epochs, trainer.done_epochs());
    whole = trainer.run(progress, log ? &*log : nullptr);
    if (o.inspect > 0) return whole ? 0 : 128 + interrupted;
    if (whole && !o.export_to.empty()) trainer.export_weights();
    runs.push_back(log ? log->run() : trainer.results());
  }
  if (whole && runs.size() > 1) fmt::print("\n{}\n", comparison_table(runs));
  if (!options.out.empty()) {
    write_report(std::filesystem::path(options.out) / "report.html",
                 "ResNet-" + std::to_string(options.depth) + " on " + source.name(), command, facts, runs);
    write_charts(options.out, runs);
    fmt::print("results in {}: report.html", options.out);
    for (const Run& one : runs) fmt::print(", {}metrics.jsonl", options.compare.empty() ? "" : one.name + "/");
    fmt::print("\n");
  }
  return whole ? 0 : 128 + interrupted;
}

}  // namespace
}  // namespace demi::examples

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is then an error of write()
  try {
    const int code = demi::examples::run(argc, argv);
    if (std::fflush(stdout) != 0 || std::ferror(stdout)) demi::fail("standard output: cannot be written");
    return code;
  } catch (const std::exception& e) {
    fmt::print(stderr, "cifar_resnet: {}\n", e.what());
    return 1;
  }
}
