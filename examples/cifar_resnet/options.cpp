#include "demi/examples/cifar_resnet/options.h"

#include <CLI/CLI.hpp>
#include <array>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "demi/nn/checkpoint.h"

namespace demi::examples {
namespace {

constexpr std::array kPrecisions{"fp32", "tf32", "fp16", "bf16"};

// The values as they are typed; an empty one was not given.
struct Flags {
  std::string data, device = "auto", precision, stem = "cifar", loss_scale = "dynamic", compare;
  std::optional<double> width, lr, momentum, weight_decay, warmup;
  std::optional<int64_t> epochs, batch;
  std::optional<std::string> augment, normalize;
  Options rest;
};

void declare(CLI::App& app, Flags& f) {
  Options& o = f.rest;
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  const char* what = "What to train";
  app.add_option("--data", f.data,
                 "synthetic, or a folder that holds cifar-10-batches-bin (or is it) or CIFAR-100's binary files; "
                 "default: ./cifar-10-batches-bin where it exists, else synthetic")
      ->group(what)
      ->type_name("DIR|synthetic");
  app.add_option("--depth", o.depth, "ResNet-18, 34, 50, 101 or 152")
      ->capture_default_str()
      ->check(CLI::IsMember({18, 34, 50, 101, 152}))
      ->group(what);
  app.add_option("--width", f.width, "multiplies all channel counts; default: 1 on a GPU, 0.25 on the CPU")
      ->group(what);
  app.add_option("--stem", f.stem, "cifar: 3x3, imagenet: 7x7 with stride 2 and pooling")
      ->check(CLI::IsMember({"cifar", "imagenet"}))
      ->group(what);

  const char* where = "Where, and in which precision";
  app.add_option("--device", f.device, "auto, cpu, cuda or cuda:N")->capture_default_str()->group(where);
  app.add_option("--precision", f.precision, "fp32, tf32, fp16 or bf16; default: fp16 on a GPU, fp32 on the CPU")
      ->check(CLI::IsMember(kPrecisions))
      ->group(where);
  app.add_option("--compare", f.compare, "train once in each of these, from one seed, and print the table: fp32,fp16")
      ->group(where);
  app.add_option("--loss-scale", f.loss_scale, "dynamic, or a fixed value (fp16 only)")
      ->capture_default_str()
      ->group(where);
  app.add_option("--init-scale", o.init_scale, "first value of the dynamic loss scale")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->group(where);
  app.add_option("--growth-interval", o.growth_interval, "steps without overflow after which it doubles")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->group(where);
  app.add_flag("--deterministic", o.deterministic, "the same bits in every run; convolutions may be slower")
      ->group(where);

  const char* how = "How";
  app.add_option("--recipe", o.recipe,
                 "strong: crop + flip, warm-up, weight decay; plain: ImageNet stem, flip only, no decay, 100 epochs")
      ->capture_default_str()
      ->check(CLI::IsMember({"strong", "plain"}))
      ->group(how);
  app.add_option("--epochs", f.epochs,
                 "default: 30 on a GPU, 100 with --recipe plain, 5 for the built-in set on the CPU")
      ->check(CLI::PositiveNumber)
      ->group(how);
  app.add_option("--stop-after", o.stop_after, "end after so many of the epochs; --resume goes on")
      ->check(CLI::PositiveNumber)
      ->group(how);
  app.add_option("--batch", f.batch, "images a step; default: 256, on the CPU 64")
      ->check(CLI::PositiveNumber)
      ->group(how);
  app.add_option("--accumulate", o.accumulate, "batches whose gradients are summed for one step")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->group(how);
  app.add_option("--lr", f.lr, "peak learning rate, default 0.1")->check(CLI::NonNegativeNumber)->group(how);
  app.add_option("--momentum", f.momentum, "default 0.9")->check(CLI::Range(0.0, 1.0))->group(how);
  app.add_option("--weight-decay", f.weight_decay, "default 5e-4, with --recipe plain 0")
      ->check(CLI::NonNegativeNumber)
      ->group(how);
  app.add_flag("--nesterov", o.nesterov, "Nesterov momentum")->group(how);
  app.add_option("--schedule", o.schedule,
                 "cosine, step (a tenth after half and after three quarters of the way), one_cycle or constant")
      ->capture_default_str()
      ->check(CLI::IsMember({"cosine", "step", "one_cycle", "constant"}))
      ->group(how);
  app.add_option("--schedule-epochs", o.schedule_epochs, "the schedule's length where it is not that of the run")
      ->check(CLI::PositiveNumber)
      ->group(how);
  app.add_option("--warmup", f.warmup, "epochs of linear warm-up; default 5, at most a fifth of the run")
      ->check(CLI::NonNegativeNumber)
      ->group(how);
  app.add_option("--augment", f.augment, "crop+flip, flip or none")
      ->check(CLI::IsMember({"crop+flip", "flip", "none"}))
      ->group(how);
  app.add_option("--normalize", f.normalize, "cifar: CIFAR-10's mean and deviation, half: 0.5 and 0.5")
      ->check(CLI::IsMember({"cifar", "half"}))
      ->group(how);
  app.add_option("--label-smoothing", o.label_smoothing, "share of each label spread over all classes")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0))
      ->group(how);
  app.add_option("--clip", o.clip, "largest L2 norm of the gradients; 0: no clipping")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber)
      ->group(how);
  app.add_option("--seed", o.seed, "of weights, order and augmentation")->capture_default_str()->group(how);
  app.add_flag("--drop-last", o.drop_last, "leave out the last, short batch of an epoch")->group(how);

  const char* results = "Results";
  app.add_option("--eval-every", o.eval_every, "test after every so many epochs (and after the last)")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->group(results);
  app.add_option("--out", o.out, "folder for metrics.jsonl, report.html, curves and the exact command")->group(results);
  app.add_option("--save", o.save, "checkpoint to write at the end and on Ctrl-C")->group(results);
  app.add_option("--resume", o.resume, "checkpoint to go on from; its flags are the defaults")->group(results);
}

std::string default_data() {
  for (const char* folder : {".", "data", "cifar-10-batches-bin"}) {
    const std::filesystem::path p(folder);
    if (std::filesystem::exists(p / "cifar-10-batches-bin") || std::filesystem::exists(p / "data_batch_1.bin"))
      return folder;
  }
  return "synthetic";
}

Options resolve(const Flags& f) {
  Options o = f.rest;
  const bool plain = o.recipe == "plain";
  o.data = f.data.empty() ? default_data() : f.data;
  o.device = Device::parse(f.device);
  const bool cpu = o.device.is_cpu(), small = cpu && o.data == "synthetic";
  o.precision = f.precision.empty() ? (cpu ? Precision::FP32 : Precision::FP16) : precision_from_name(f.precision);
  o.width = f.width.value_or(cpu ? 0.25 : 1.0);
  o.stem = f.stem == "imagenet" || plain ? nn::Stem::ImageNet : nn::Stem::Cifar;
  o.epochs = f.epochs.value_or(plain ? 100 : small ? 5 : 30);
  o.batch = f.batch.value_or(cpu ? 64 : 256);
  o.lr = f.lr.value_or(0.1);
  o.momentum = f.momentum.value_or(0.9);
  o.weight_decay = f.weight_decay.value_or(plain ? 0.0 : 5e-4);
  o.warmup = f.warmup.value_or(plain ? 0.0 : std::min(5.0, static_cast<double>(o.epochs) / 5));
  if (plain && o.schedule_epochs == 0) o.schedule_epochs = 200;
  o.augment = f.augment.value_or(plain ? "flip" : "crop+flip");
  o.normalize = f.normalize.value_or(plain ? "half" : "cifar");
  DEMI_CHECK(o.width > 0 && o.width <= 16, "--width {} is out of range: above 0 and at most 16", o.width);
  DEMI_CHECK(o.warmup < static_cast<double>(o.schedule_epochs > 0 ? o.schedule_epochs : o.epochs),
             "--warmup {} leaves nothing of {} epochs", o.warmup, o.epochs);
  if (f.loss_scale != "dynamic") {
    double value = 0;
    DEMI_CHECK(CLI::detail::lexical_cast(f.loss_scale, value) && value > 0,
               "--loss-scale is dynamic or a positive number, not '{}'", f.loss_scale);
    o.fixed_scale = value;
  }
  for (const std::string& name : CLI::detail::split(f.compare, ','))
    if (!name.empty()) o.compare.push_back(precision_from_name(name));
  DEMI_CHECK(o.compare.empty() || (o.compare.size() >= 2 && o.resume.empty()),
             "--compare takes two or more precisions and no --resume");
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
        "Trains a ResNet on CIFAR-10 in FP32 or in mixed precision and says what each cost. With no flags it picks the "
        "best that the machine has."};
    app.name("cifar_resnet");
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
  std::vector<std::string> all = nlohmann::json::parse(saved->second).get<std::vector<std::string>>();
  const std::vector<std::string> before = all;
  all.insert(all.end(), given.begin(), given.end());
  Flags merged;
  if (!parse(all, merged)) return std::nullopt;
  Options o = resolve(merged);
  const std::vector<std::string> after = training_flags(o);
  for (size_t i = 0; i < before.size(); ++i)
    DEMI_CHECK(i < after.size() && before[i] == after[i],
               "{} was trained with {}, not {}: a resumed run must be the same training", o.resume, before[i],
               i < after.size() ? after[i] : "without it");
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
  if (o.schedule_epochs > 0) add("schedule-epochs", o.schedule_epochs);
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
