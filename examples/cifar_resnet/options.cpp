#include "demi/examples/cifar_resnet/options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "demi/examples/cifar_resnet/command_line.h"
#include "demi/nn/checkpoint.h"

namespace demi::examples {
namespace {

constexpr std::array kPrecisions{"fp32", "tf32", "fp16", "bf16"};
constexpr double kLargestScale = 0x1p127;  // an FP32 value
constexpr double kMostEpochs = 100000;     // the schedule is a table of all steps

// The values as they are typed; an empty one was not given.
struct Flags {
  std::string data, device = "auto", precision, stem, loss_scale = "dynamic", compare;
  std::optional<double> width, lr, momentum, weight_decay, warmup;
  std::optional<int64_t> epochs, batch;
  std::optional<std::string> augment, normalize;
  Options rest;
};

void declare(CLI::App& app, Flags& f) {
  Options& o = f.rest;
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  std::string group;
  auto add = [&](const char* name, auto& value, const char* type, const char* text) {
    return app.add_option(name, value, text)->group(group)->type_name(type);
  };
  auto add_flag = [&](const char* name, bool& value, const char* text) {
    app.add_flag(name, value, text)->group(group);
  };

  group = "What to train";
  add("--data", f.data, "DIR",
      "folder that holds cifar-10-batches-bin (or is it), or CIFAR-100's binary files; synthetic: the built-in set, "
      "synthetic:N: N images of it; default: cifar-10-batches-bin where it lies here or in data/, else synthetic")
      ->check(not_empty());
  add("--depth", o.depth, "N", "ResNet-18, 34, 50, 101 or 152")
      ->capture_default_str()
      ->check(one_of({"18", "34", "50", "101", "152"}));
  add("--width", f.width, "X", "multiplies all channel counts; default: 1 on a GPU, 0.25 on the CPU")
      ->check(range(0, 16, false, true));
  add("--stem", f.stem, "NAME",
      "cifar: 3x3, imagenet: 7x7 with stride 2 and pooling; default: cifar, with --recipe plain imagenet")
      ->check(one_of({"cifar", "imagenet"}));

  group = "Where, and in which precision";
  add("--device", f.device, "NAME", "auto, cpu, cuda or cuda:N")->capture_default_str();
  add("--precision", f.precision, "NAME", "fp32, tf32, fp16 or bf16; default: fp16 on a GPU, fp32 on the CPU")
      ->check(one_of({kPrecisions.begin(), kPrecisions.end()}));
  add("--compare", f.compare, "A,B", "train once in each of these, from one seed, and print the table: fp32,fp16")
      ->check(not_empty());
  add("--loss-scale", f.loss_scale, "X", "dynamic, or a fixed value (fp16 only)")->capture_default_str();
  add("--init-scale", o.init_scale, "X", "first value of the dynamic loss scale")
      ->capture_default_str()
      ->check(range(0, kLargestScale, false, true));
  add("--growth-interval", o.growth_interval, "N", "steps without overflow after which it doubles")
      ->capture_default_str()
      ->check(count(std::numeric_limits<int>::max()));
  add_flag("--deterministic", o.deterministic, "the same bits in every run; convolutions may be slower");

  group = "How";
  add("--recipe", o.recipe, "NAME",
      "strong: crop + flip, warm-up, weight decay; plain: ImageNet stem, flip only, no decay, 100 epochs")
      ->capture_default_str()
      ->check(one_of({"strong", "plain"}));
  add("--epochs", f.epochs, "N", "default: 30, 100 with --recipe plain, 5 for the built-in set on the CPU")
      ->check(count(kMostEpochs));
  add("--stop-after", o.stop_after, "N", "end after so many of the epochs; --resume goes on")->check(count());
  add("--batch", f.batch, "N", "images a step; default: 256, on the CPU 64")->check(count());
  add("--accumulate", o.accumulate, "N", "batches whose gradients are summed for one step")
      ->capture_default_str()
      ->check(count());
  add("--lr", f.lr, "X", "peak learning rate; default: 0.1")->check(at_least_zero());
  add("--momentum", f.momentum, "X", "default: 0.9")->check(share());
  add("--weight-decay", f.weight_decay, "X", "default: 5e-4, with --recipe plain 0")->check(at_least_zero());
  add_flag("--nesterov", o.nesterov, "Nesterov momentum");
  add("--schedule", o.schedule, "NAME",
      "cosine, step (a tenth after half and after three quarters of the way), one_cycle or constant")
      ->capture_default_str()
      ->check(one_of({"cosine", "step", "one_cycle", "constant"}));
  add("--schedule-epochs", o.schedule_epochs, "N", "the schedule's length where it is not that of the run")
      ->check(count(kMostEpochs));
  add("--warmup", f.warmup, "X",
      "epochs of linear warm-up; default: 5, at most a fifth of the run; one_cycle has its own")
      ->check(at_least_zero());
  add("--augment", f.augment, "NAME", "crop+flip, flip or none; default: crop+flip, with --recipe plain flip")
      ->check(one_of({"crop+flip", "flip", "none"}));
  add("--normalize", f.normalize, "NAME",
      "cifar: CIFAR-10's mean and deviation, half: 0.5 and 0.5; default: cifar, with --recipe plain half")
      ->check(one_of({"cifar", "half"}));
  add("--label-smoothing", o.label_smoothing, "X", "share of each label spread over all classes")
      ->capture_default_str()
      ->check(share());
  add("--clip", o.clip, "X", "largest L2 norm of the gradients; 0: no clipping")
      ->capture_default_str()
      ->check(at_least_zero());
  add("--seed", o.seed, "N", "of weights, order and augmentation")
      ->capture_default_str()
      ->check(range(0, kNoLimit, true));
  add_flag("--drop-last", o.drop_last, "leave out the last, short batch of an epoch");

  group = "Results";
  add("--eval-every", o.eval_every, "N", "test after every so many epochs (and after the last)")
      ->capture_default_str()
      ->check(count());
  app.add_flag(
         "--inspect{1},--inspect", o.inspect,
         "look into the first step (--inspect=N: into step N) and end: which dtype each operation ran in, casts, how "
         "far gradients fit into FP16; inspect.json holds the same")
      ->group(group)
      ->multi_option_policy(CLI::MultiOptionPolicy::Throw)
      ->check(count());
  add("--out", o.out, "DIR",
      "folder for metrics.jsonl, report.html, curves, the exact command and last.ckpt; with --compare "
      "metrics.jsonl and last.ckpt lie in it in a folder a precision")
      ->check(not_empty());
  add("--save", o.save, "FILE", "checkpoint to write at the end, on Ctrl-C and SIGTERM; default: last.ckpt in --out")
      ->check(not_empty());
  add("--resume", o.resume, "FILE", "checkpoint to go on from; its flags are the defaults")->check(not_empty());
  add("--load", o.load, "FILE",
      "weights to start from: safetensors with torchvision's names and layouts, or a checkpoint of --save")
      ->check(not_empty());
  add_flag("--eval-only", o.eval_only, "test the weights of --load or --resume; trains nothing");
  add("--export", o.export_to, "FILE",
      "safetensors to write the weights to at the end, with torchvision's names and layouts, in FP32")
      ->check(not_empty());
  app.set_help_flag("--help", "this text")->group(group);
}

bool is_synthetic(const std::string& data) { return data.starts_with("synthetic"); }

std::string default_data() {
  for (const char* folder : {".", "data", "cifar-10-batches-bin"}) {
    const std::filesystem::path p(folder);
    if (std::filesystem::exists(p / "cifar-10-batches-bin") || std::filesystem::exists(p / "data_batch_1.bin"))
      return folder;
  }
  return "synthetic";
}

// The flags about weights, against each other.
bool same_file(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return !a.empty() && !b.empty() &&
         std::filesystem::weakly_canonical(a, ignored) == std::filesystem::weakly_canonical(b, ignored);
}

void check_weights(const Options& o) {
  DEMI_CHECK(o.load.empty() || o.resume.empty(),
             "--load starts a training from weights, --resume goes on with one: leave out one of them");
  const auto last = o.out.empty() ? std::string() : (std::filesystem::path(o.out) / "last.ckpt").string();
  const std::pair<const char*, std::string> others[] = {
      {"--save", o.save}, {"--load", o.load}, {"--resume", o.resume}, {"--out", last}};
  for (const auto& [flag, file] : others)
    DEMI_CHECK(!same_file(o.export_to, file), "--export would overwrite {}, which {} names", o.export_to, flag);
  DEMI_CHECK(o.inspect == 0 || (o.export_to.empty() && o.save.empty() && !o.eval_only),
             "--inspect looks into one training step and ends: leave out {}",
             o.eval_only           ? "--eval-only"
             : o.export_to.empty() ? "--save"
                                   : "--export");
  if (!o.eval_only) return;
  DEMI_CHECK(!o.load.empty() || !o.resume.empty(), "--eval-only needs weights to test: give --load or --resume");
  DEMI_CHECK(o.out.empty() && o.save.empty(), "--eval-only trains nothing: leave out {}",
             o.out.empty() ? "--save" : "--out");
  DEMI_CHECK(o.compare.empty(), "--eval-only tests in one precision: leave out --compare");
}

Options resolve(const Flags& f) {
  Options o = f.rest;
  const bool plain = o.recipe == "plain";
  o.data = f.data.empty() ? default_data() : f.data;
  o.device = Device::parse(f.device);
  const bool cpu = o.device.is_cpu(), small = cpu && is_synthetic(o.data);
  o.precision = f.precision.empty() ? (cpu ? Precision::FP32 : Precision::FP16) : precision_from_name(f.precision);
  o.width = f.width.value_or(cpu ? 0.25 : 1.0);
  o.stem = f.stem == "imagenet" || (f.stem.empty() && plain) ? nn::Stem::ImageNet : nn::Stem::Cifar;
  o.epochs = f.epochs.value_or(plain ? 100 : small ? 5 : 30);
  o.batch = f.batch.value_or(cpu ? 64 : 256);
  o.lr = f.lr.value_or(0.1);
  o.momentum = f.momentum.value_or(0.9);
  o.weight_decay = f.weight_decay.value_or(plain ? 0.0 : 5e-4);
  const bool own_warmup = o.schedule == "one_cycle";
  o.warmup = f.warmup.value_or(plain || own_warmup ? 0.0 : std::min(5.0, static_cast<double>(o.epochs) / 5));
  DEMI_CHECK(!own_warmup || o.warmup == 0, "--schedule one_cycle has a warm-up of its own: leave out --warmup");
  if (plain && o.schedule_epochs == 0) o.schedule_epochs = 200;
  o.augment = f.augment.value_or(plain ? "flip" : "crop+flip");
  o.normalize = f.normalize.value_or(plain ? "half" : "cifar");
  const int64_t length = o.schedule_epochs > 0 ? o.schedule_epochs : o.epochs;
  DEMI_CHECK(o.warmup < static_cast<double>(length), "--warmup {} leaves nothing of {} epochs: give less", o.warmup,
             length);
  if (f.loss_scale != "dynamic") {
    double value = 0;
    DEMI_CHECK(CLI::detail::lexical_cast(f.loss_scale, value) && value > 0 && value <= kLargestScale,
               "--loss-scale is dynamic or a positive number, not '{}'", f.loss_scale);
    o.fixed_scale = value;
  }
  for (const std::string& name : CLI::detail::split(f.compare, ','))
    if (!name.empty()) {
      o.compare.push_back(precision_from_name(name));
      DEMI_CHECK(std::count(o.compare.begin(), o.compare.end(), o.compare.back()) == 1, "--compare has {} twice", name);
    }
  DEMI_CHECK(f.compare.empty() || o.compare.size() >= 2,
             "--compare takes two or more precisions, fp32,fp16 for example, not '{}'", f.compare);
  DEMI_CHECK(o.compare.empty() || o.inspect == 0, "--inspect looks into one training: leave out --compare");
  DEMI_CHECK(o.compare.empty() || o.resume.empty(), "--resume goes on with one training: leave out --compare");
  check_weights(o);
  return o;
}

}  // namespace

Precision precision_from_name(const std::string& name) {
  for (size_t i = 0; i < kPrecisions.size(); ++i)
    if (name == kPrecisions[i]) return static_cast<Precision>(i);
  fail("unknown precision '{}': fp32, tf32, fp16 or bf16", name);
}

const char* name_of(Precision precision) { return kPrecisions[static_cast<size_t>(precision)]; }

std::optional<Options> parse_options(int argc, char** argv, int& exit_code) {
  auto parse = [&](std::vector<std::string> arguments, Flags& flags) {
    CLI::App app{
        "Trains a ResNet on CIFAR-10 in FP32 or in mixed precision and says what each cost. With no flags it\n"
        "picks the best that the machine has."};
    app.name("cifar_resnet");
    app.formatter(std::make_shared<Help>());
    app.failure_message([](const CLI::App* a, const CLI::Error& e) {
      const bool extra = e.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
      return fmt::format("cifar_resnet: {}; --help lists the flags\n", extra ? unknown_argument(*a) : e.what());
    });
    declare(app, flags);
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
    try {
      app.parse(arguments);
      return true;
    } catch (const CLI::ParseError& e) {
      exit_code = app.exit(e) == 0 ? 0 : 2;
      return false;
    }
  };
  const std::vector<std::string> given(argv + 1, argv + argc);
  Flags flags;
  if (!parse(given, flags)) return std::nullopt;
  if (flags.rest.resume.empty()) return resolve(flags);

  const nn::Notes notes = nn::read_notes(flags.rest.resume);
  const auto saved = notes.find("flags");
  DEMI_CHECK(saved != notes.end(), "{}: a checkpoint, but not of cifar_resnet", flags.rest.resume);
  std::vector<std::string> all;
  try {
    all = nlohmann::json::parse(saved->second).get<std::vector<std::string>>();
  } catch (const nlohmann::json::exception&) {
    fail("{}: the checkpoint's flags cannot be read", flags.rest.resume);
  }
  const std::vector<std::string> before = all;
  all.insert(all.end(), given.begin(), given.end());
  Flags merged;
  if (!parse(all, merged)) return std::nullopt;
  Options o = resolve(merged);
  const std::vector<std::string> after = training_flags(o);
  DEMI_CHECK(before.size() == after.size(), "{}: the checkpoint is of another version of cifar_resnet", o.resume);
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i] == after[i]) continue;
    const std::string folder = "--data=";  // may have moved
    if (before[i].starts_with(folder) && !is_synthetic(before[i].substr(folder.size())) && !is_synthetic(o.data))
      continue;
    fail("{} was trained with {}, not {}: a resumed run must be the same training", o.resume, before[i], after[i]);
  }
  return o;
}

std::vector<std::string> training_flags(const Options& o) {
  std::vector<std::string> flags;
  auto add = [&flags](const char* name, const auto& value) { flags.push_back(fmt::format("--{}={}", name, value)); };
  add("data", o.data);
  add("precision", name_of(o.precision));
  add("depth", o.depth);
  add("width", o.width);
  add("stem", o.stem == nn::Stem::Cifar ? "cifar" : "imagenet");
  add("epochs", o.epochs);
  add("batch", o.batch);
  add("accumulate", o.accumulate);
  add("lr", o.lr);
  add("momentum", o.momentum);
  add("weight-decay", o.weight_decay);
  add("nesterov", o.nesterov ? "true" : "false");
  add("schedule", o.schedule);
  add("schedule-epochs", o.schedule_epochs > 0 ? o.schedule_epochs : o.epochs);
  add("warmup", o.warmup);
  add("augment", o.augment);
  add("normalize", o.normalize);
  add("label-smoothing", o.label_smoothing);
  add("clip", o.clip);
  add("loss-scale", o.fixed_scale ? fmt::format("{}", *o.fixed_scale) : "dynamic");
  add("growth-interval", o.growth_interval);
  add("seed", o.seed);
  add("drop-last", o.drop_last ? "true" : "false");
  return flags;
}

data::Augment augment_of(const Options& o) {
  return o.augment == "crop+flip" ? data::crop_and_flip : o.augment == "flip" ? data::flip_only : data::no_augment;
}

data::Normalization normalization_of(const Options& o) {
  return o.normalize == "half" ? data::half_normalization : data::cifar_normalization;
}

}  // namespace demi::examples
