#include "demi/examples/cifar_resnet/trainer.h"

#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "demi/amp/autocast.h"
#include "demi/autograd/engine.h"
#include "demi/kernels/cast.h"
#include "demi/kernels/cross_entropy.h"
#include "demi/kernels/random.h"
#include "demi/kernels/scale.h"
#include "demi/nn/functional/arithmetic.h"
#include "demi/nn/functional/loss.h"
#include "demi/optim/clip.h"

namespace demi::examples {

volatile std::sig_atomic_t interrupted = 0;

namespace {

constexpr double kSecondsBetweenSaves = 60;
constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

Float32Math float32_math(const Options& o) {
  return o.precision == Precision::TF32 ? Float32Math::Tf32 : Float32Math::Ieee;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<double> lr_table(const Options& o, int64_t steps_an_epoch) {
  const int64_t total = steps_an_epoch * (o.schedule_epochs > 0 ? o.schedule_epochs : o.epochs);
  const int64_t warmup = std::llround(o.warmup * static_cast<double>(steps_an_epoch));
  if (o.schedule == "constant") return optim::constant(o.lr, warmup);
  if (o.schedule == "one_cycle") return optim::one_cycle({.max_lr = o.lr, .total_steps = total});
  if (o.schedule == "cosine") return optim::cosine({.lr = o.lr, .total_steps = total, .warmup_steps = warmup});
  std::vector<double> table =
      optim::step_decay({.lr = o.lr, .total_steps = total, .step_size = total, .warmup_steps = warmup});
  for (size_t k = 0; k < table.size(); ++k)
    table[k] *= k >= table.size() * 3 / 4 ? 0.01 : k >= table.size() / 2 ? 0.1 : 1.0;
  return table;
}

}  // namespace

Trainer::Trainer(const Options& o, data::Source& source) : options_(o), source_(source) {
  compute_ = o.precision == Precision::FP16 ? DType::F16 : o.precision == Precision::BF16 ? DType::BF16 : DType::F32;
  manual_seed(o.seed);
  model_ = nn::resnet({.depth = o.depth, .classes = source.classes(), .stem = o.stem, .width = o.width});
  if (!o.load.empty()) nn::load_weights(o.load, *model_);
  model_->to(o.device);
  sgd_ = std::make_unique<optim::SGD>(
      model_->parameters(),
      optim::SGDOptions{.lr = o.lr, .momentum = o.momentum, .weight_decay = o.weight_decay, .nesterov = o.nesterov});
  scaler_ = std::make_unique<amp::GradScaler>(amp::GradScalerOptions{.init_scale = o.fixed_scale.value_or(o.init_scale),
                                                                     .growth_interval = o.growth_interval,
                                                                     .enabled = compute_ == DType::F16});
  load_ = {.batch = o.batch,
           .augment = augment_of(o),
           .normalization = normalization_of(o),
           .dtype = amp::amp_allowed() ? compute_ : DType::F32,
           .seed = o.seed,
           .drop_last = o.drop_last};
  const int64_t batches = source.train(load_, o.device).size();
  DEMI_CHECK(batches > 0, "--drop-last with --batch {} leaves nothing of {} training images", o.batch,
             source.dataset().train.labels.numel());
  schedule_ = std::make_unique<optim::Schedule>(*sgd_, lr_table(o, (batches + o.accumulate - 1) / o.accumulate));
  results_.name = name_of(o.precision);
  start_totals();
  if (!o.resume.empty()) resume();
  const int64_t last = o.stop_after > 0 ? std::min(o.stop_after, o.epochs) : o.epochs;
  const int64_t left = (batches + o.accumulate - 1) / o.accumulate * (last - epoch_) - next_batch_ / o.accumulate;
  DEMI_CHECK(o.inspect <= left, "--inspect={}: this run has {} steps", o.inspect, left);
}

void Trainer::start_totals() {
  totals_ = {Tensor::zeros({}, DType::F32, options_.device), Tensor::zeros({}, DType::F32, options_.device)};
  next_batch_ = 0;
}

// One optimizer step on a window of batches: the mean over all samples that are really in it.
void Trainer::step(const data::Batch* first, const data::Batch* last) {
  int64_t samples = 0;
  for (const data::Batch* b = first; b != last; ++b) samples += b->count;
  if (++steps_ == options_.inspect) inspector_ = std::make_unique<amp::Inspector>(*model_);
  sgd_->zero_grad();
  for (const data::Batch* b = first; b != last; ++b) {
    Variable loss;
    {
      const amp::Autocast region(compute_);
      loss = nn::cross_entropy((*model_)(b->images), b->labels, {.label_smoothing = options_.label_smoothing});
    }
    kernels::axpy(static_cast<double>(b->count), loss.tensor(), totals_.loss);
    totals_.images += b->count;
    if (b->count != samples) loss = scale(loss, static_cast<double>(b->count) / static_cast<double>(samples));
    backward(scaler_->scale(loss));
  }
  if (options_.clip > 0) {
    scaler_->unscale(*sgd_);
    optim::clip_grad_norm(*sgd_, options_.clip);
  }
  scaler_->step(*sgd_);
  if (options_.fixed_scale)
    scaler_->update(*options_.fixed_scale);
  else
    scaler_->update();
  schedule_->step();
  kernels::axpy(1.0, kernels::cast(sgd_->last_skip(), DType::F32), totals_.skipped);
}

bool Trainer::train_epoch(Progress& progress) {
  model_->train();
  data::LoadOptions load = load_;
  load.epoch = epoch_;
  load.start_batch = next_batch_;
  const data::Batches batches = source_.train(load, options_.device);
  progress.start_epoch(epoch_ + 1, batches.size());
  std::vector<data::Batch> window;
  for (const data::Batch& batch : batches) {
    window.push_back(batch);
    if (std::ssize(window) < options_.accumulate && batch.index + 1 < batches.size()) continue;
    step(window.data(), window.data() + window.size());
    window.clear();
    next_batch_ = batch.index + 1;
    if (inspector_) return false;
    if (progress.due()) {
      progress.set_loss(totals_.loss.item<float>() / static_cast<double>(totals_.images));
      progress.set_scale(scaler_->get_scale());
    }
    progress.step(next_batch_, totals_.images);
    if (interrupted && next_batch_ < batches.size()) return false;
  }
  return true;
}

Trainer::Tested Trainer::test() {
  model_->eval();
  const NoGrad off;
  const Float32MathGuard math(float32_math(options_));
  const amp::Autocast region(compute_);
  Tensor correct = Tensor::zeros({}, DType::I64, options_.device),
         loss = Tensor::zeros({}, DType::F32, options_.device);
  data::LoadOptions load = load_;
  load.augment = data::no_augment;
  load.batch = options_.device.is_cpu() ? 250 : 1000;
  load.drop_last = false;
  int64_t samples = 0;
  for (const data::Batch& batch : source_.test(load, options_.device)) {
    const Variable logits = (*model_)(batch.images);
    kernels::axpy(1.0, cross_entropy(logits, batch.labels, {.reduction = Reduction::Sum}).tensor(), loss);
    kernels::count_correct(logits.tensor(), batch.labels, correct);
    samples += batch.count;
  }
  DEMI_CHECK(samples > 0, "the set {} has no test images", source_.name());
  return {loss.item<float>() / static_cast<double>(samples),
          static_cast<double>(correct.item<int64_t>()) / static_cast<double>(samples)};
}

EpochMetrics Trainer::finish_epoch(double seconds) {
  EpochMetrics m;
  m.epoch = ++epoch_;
  m.train_loss = totals_.loss.item<float>() / static_cast<double>(totals_.images);
  m.skipped_steps = std::llround(totals_.skipped.item<float>());
  m.seconds = seconds;
  m.images_per_second = static_cast<double>(totals_.images) / seconds;
  m.loss_scale = scaler_->get_scale();
  m.lr = sgd_->lr();
  m.peak_bytes = static_cast<int64_t>(memory::statistics(options_.device).peak);
  m.test_loss = m.test_accuracy = kNotMeasured;
  if (epoch_ % options_.eval_every == 0 || epoch_ == options_.epochs || epoch_ == options_.stop_after) {
    const Tested t = test();
    m.test_loss = t.loss;
    m.test_accuracy = t.accuracy;
  }
  return m;
}

bool Trainer::run(Progress& progress, MetricsLog* log) {
  const Float32MathGuard math(float32_math(options_));
  memory::release_cached(options_.device);  // what an earlier training left must not count as this one's
  const int64_t last = options_.stop_after > 0 ? std::min(options_.stop_after, options_.epochs) : options_.epochs;
  if (epoch_ >= last) progress.say(fmt::format("nothing left to train: {} of {} epochs are done", epoch_, last));
  double saved_at = now();
  while (epoch_ < last) {
    memory::reset_peak(options_.device);
    const double start = now();
    const bool whole = train_epoch(progress);
    synchronize(options_.device);
    const double seconds = totals_.seconds + now() - start;
    if (inspector_) {
      tell_inspection(progress);
      return true;
    }
    if (options_.inspect > 0) {
      if (!whole) return false;  // Ctrl-C: there is nothing to save, this run only looks
      (void)finish_epoch(seconds);
      start_totals();
      continue;
    }
    if (!whole) {
      totals_.seconds = seconds;
      save();
      return false;
    }
    const EpochMetrics metrics = finish_epoch(seconds);
    start_totals();
    results_.epochs.push_back(metrics);
    progress.end_epoch(metrics);
    if (log) log->add(metrics);
    const bool late = now() - saved_at > kSecondsBetweenSaves;
    if (!save_path().empty() && (late || epoch_ == last || interrupted)) {
      save();
      saved_at = now();
    }
    if (interrupted && epoch_ < last) {
      if (save_path().empty()) save();
      return false;
    }
  }
  return true;
}

void Trainer::tell_inspection(Progress& progress) {
  const std::string path = inspection_path();
  progress.clear();
  fmt::print("\nstep {} in {}, loss scale {} after it{}\n\n{}", steps_,
             amp::amp_allowed() ? name_of(options_.precision) : "fp32 (DEMI_AMP=0)", scaler_->get_scale(),
             sgd_->last_skip().item<int32_t>() ? " (the step was skipped)" : "", inspector_->table());
  write_whole(path, inspector_->json() + "\n");
  fmt::print("written to {}\n", path);
}

std::string Trainer::inspection_path() const { return (std::filesystem::path(options_.out) / "inspect.json").string(); }

std::string Trainer::save_path() const {
  if (!options_.save.empty()) return options_.save;
  return options_.out.empty() ? "" : (std::filesystem::path(options_.out) / "last.ckpt").string();
}

void Trainer::save() {
  const std::string path = save_path().empty() ? "cifar_resnet.ckpt" : save_path();
  const nlohmann::json flags = training_flags(options_);
  const auto replace = nlohmann::json::error_handler_t::replace;  // a path need not be UTF-8
  // Sums are kept to the last bit ({:a}), so that the epoch's loss is that of an uninterrupted run.
  nn::save_checkpoint(path, {*model_, *sgd_, *scaler_},
                      {{"flags", flags.dump(-1, ' ', false, replace)},
                       {"epoch", std::to_string(epoch_)},
                       {"next_batch", std::to_string(next_batch_)},
                       {"images", std::to_string(totals_.images)},
                       {"loss", fmt::format("{:a}", totals_.loss.item<float>())},
                       {"skipped", fmt::format("{:a}", totals_.skipped.item<float>())},
                       {"seconds", fmt::format("{}", totals_.seconds)}});
  if (interrupted) fmt::print("\nsaved to {}: go on with --resume {}\n", path, path);
}

void Trainer::resume() {
  // The scale's place on the device is made by the first scale(); loading before that is fine.
  const nn::Notes notes = nn::load_checkpoint(options_.resume, {*model_, *sgd_, *scaler_});
  try {
    epoch_ = std::stoll(notes.at("epoch"));
    next_batch_ = std::stoll(notes.at("next_batch"));
    totals_.images = std::stoll(notes.at("images"));
    totals_.loss = Tensor::scalar(std::strtof(notes.at("loss").c_str(), nullptr), options_.device);
    totals_.skipped = Tensor::scalar(std::strtof(notes.at("skipped").c_str(), nullptr), options_.device);
    totals_.seconds = std::stod(notes.at("seconds"));
  } catch (const std::exception&) {
    fail("{}: the checkpoint's notes are incomplete", options_.resume);
  }
}

}  // namespace demi::examples
