#include "demi/optim/optimizer.h"

#include <algorithm>

#include "demi/core/warning.h"
#include "demi/kernels/fill.h"
#include "demi/kernels/gradient.h"
#include "demi/kernels/random.h"

namespace demi::optim {
namespace {
std::string block_name(size_t i) { return "block" + std::to_string(i) + "."; }
}  // namespace

std::vector<ParameterGroup> no_decay_for_vectors(const ParameterList& list) {
  ParameterGroup matrices, vectors{{}, 0.0};
  for (const Parameter& p : list.parameters)
    (p.master().rank() >= 2 ? matrices : vectors).parameters.parameters.push_back(p);
  matrices.parameters.buffers = list.buffers;
  return {std::move(matrices), std::move(vectors)};
}

Optimizer::Optimizer(std::vector<ParameterGroup> groups, double lr, double weight_decay, int moments) {
  std::vector<Parameter> parameters;
  std::vector<Buffer> buffers;
  std::map<const ParameterState*, size_t> group_of;
  for (size_t i = 0; i < groups.size(); ++i) {
    const ParameterGroup& g = groups[i];
    for (const Parameter& p : g.parameters.parameters)
      DEMI_CHECK(group_of.try_emplace(&p.parameter(), i).first->second == i,
                 "[optimizer] a parameter of shape {} is in two groups", p.shape());
    parameters.insert(parameters.end(), g.parameters.parameters.begin(), g.parameters.parameters.end());
    buffers.insert(buffers.end(), g.parameters.buffers.begin(), g.parameters.buffers.end());
  }
  DEMI_CHECK(!parameters.empty(), "[optimizer] was given no parameters");
  device_ = parameters[0].master().device();
  for (const Parameter& p : parameters) {
    check_same_device("optimizer", p.master(), parameters[0].master());
    DEMI_CHECK(!p.parameter().storage()->owned_by_optimizer,
               "[optimizer] a parameter of shape {} belongs to another optimizer already", p.shape());
  }
  parameters_ = std::make_shared<const std::vector<Parameter>>(std::move(parameters));
  const memory::Scope scope(memory::Category::OptimizerState);
  lr_ = kernels::full({}, lr, DType::F32, device_);
  schedule_position_ = Tensor::zeros({}, DType::I64, device_);
  last_skip_ = Tensor::zeros({}, DType::I32, device_);
  // Filters and matrices get 16-bit gradients under autocast, norms and biases FP32 ones: apart, each kind is one run.
  for (const ParameterGroup& g : groups) {
    std::vector<Parameter> matrices, vectors;
    for (const Parameter& p : g.parameters.parameters) (p.master().rank() >= 2 ? matrices : vectors).push_back(p);
    const double decay = g.weight_decay.value_or(weight_decay);
    add_block(matrices, decay, moments);
    add_block(vectors, decay, moments);
  }
  buffers_ = GuardedBuffers(std::move(buffers));
  // Last: were there an error before, another optimizer could still take them.
  for (auto& b : blocks_) b->storage->owned_by_optimizer = true;
}

Optimizer::~Optimizer() {
  for (auto& b : blocks_) b->storage->owned_by_optimizer = false;
}

void Optimizer::add_block(const std::vector<Parameter>& parameters, double weight_decay, int moments) {
  if (parameters.empty()) return;
  auto block = std::make_unique<Block>();
  std::vector<Shape> shapes;
  for (const Parameter& p : parameters) shapes.push_back(p.shape());
  block->storage = std::make_shared<FlatStorage>(shapes, device_);
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].parameter().move_to(block->storage, i);
    block->parameters.push_back(&parameters[i].parameter());
  }
  block->history.assign(parameters.size(), 0);
  block->weight_decay = weight_decay;
  for (int i = 0; i < moments; ++i)
    block->moments.push_back(Tensor::zeros({block->storage->numel()}, DType::F32, device_));
  block->counts = Tensor::zeros({static_cast<int64_t>(parameters.size())}, DType::I32, device_);
  blocks_.push_back(std::move(block));
}

void Optimizer::zero_grad() {
  for (const Parameter& p : *parameters_) p.parameter().zero_grad();
}

void Optimizer::set_lr(double lr) { kernels::fill(lr_, lr); }

std::vector<Optimizer::Run> Optimizer::runs(bool same_history) {
  std::vector<Run> found;
  for (auto& b : blocks_) {
    const auto& slices = b->storage->slices();
    for (size_t i = 0; i < slices.size(); ++i) {
      const ParameterState& p = *b->parameters[i];
      if (!p.has_grad()) continue;
      const int64_t end = i + 1 < slices.size() ? slices[i + 1].start : b->storage->numel();
      const bool joins = !found.empty() && found.back().block == b.get() && found.back().last == i &&
                         found.back().dtype == p.grad_dtype() && (!same_history || b->history[i] == b->history[i - 1]);
      if (!joins) found.push_back({b.get(), i, i, slices[i].start, 0, p.grad_dtype()});
      found.back().last = i + 1;
      found.back().length = end - found.back().start;
    }
  }
  return found;
}

std::vector<Tensor> Optimizer::gradient_runs() {
  std::vector<Tensor> tensors;
  for (const Run& r : runs(false)) tensors.push_back(r.block->storage->gradient(r.dtype).narrow(r.start, r.length));
  return tensors;
}

std::vector<Tensor> Optimizer::promoted_gradient_runs() {
  for (const Parameter& p : *parameters_) p.parameter().promote_grad();
  return gradient_runs();
}

void Optimizer::unscale(const Tensor& scale, Tensor& found) {
  for (const Run& r : runs(false)) {
    const Tensor scaled = r.block->storage->gradient(r.dtype).narrow(r.start, r.length);
    Tensor wide = r.block->storage->gradient(DType::F32).narrow(r.start, r.length);
    kernels::unscale(scaled, scale, found, wide);
    for (size_t i = r.first; i < r.last; ++i) r.block->parameters[i]->set_grad_dtype(DType::F32);
  }
}

void Optimizer::warn_without_scaler() {
  const auto in_fp16 = [](const Parameter& p) {
    return p.parameter().has_grad() && p.parameter().grad_dtype() == DType::F16;
  };
  if (warned_ || std::none_of(parameters_->begin(), parameters_->end(), in_fp16)) return;
  warned_ = true;
  warn(
      "[optimizer] steps with fp16 gradients and no loss scaler: those of 2^-25 and below are lost. Use "
      "amp::GradScaler, "
      "or bf16, which needs none");
}

StepOutcome Optimizer::step(const ScaledStep& scaled) {
  ++steps_;
  if (!scaled.found_inf.defined()) warn_without_scaler();
  last_skip_ = Tensor::empty({}, DType::I32, device_);  // the outcome of each step stays readable after the next
  kernels::begin_step(scaled.found_inf, last_skip_, random_state(device_).step);
  random_state(device_).call = 0;
  for (const Run& r : runs(true)) {
    FlatStorage& s = *r.block->storage;
    auto part = [&](const Tensor& flat) { return flat.defined() ? flat.narrow(r.start, r.length) : Tensor{}; };
    kernels::StepOperands operands;
    operands.master = part(s.master());
    operands.grad = part(s.gradient(r.dtype));
    operands.copy_f16 = part(s.existing_copy(DType::F16));
    operands.copy_bf16 = part(s.existing_copy(DType::BF16));
    operands.lr = lr_;
    operands.scale = scaled.scale;
    operands.skip = last_skip_;
    operands.count = r.block->counts.narrow(static_cast<int64_t>(r.first), 1);
    std::vector<Tensor> moments;
    for (const Tensor& m : r.block->moments) moments.push_back(part(m));
    if (backend::capturing_graph()) s.follow_replays();
    const bool copies_fresh = s.copies_fresh();
    update(operands, moments, r.block->weight_decay);
    if (copies_fresh) s.copies_written();
    Tensor counts = r.block->counts.narrow(static_cast<int64_t>(r.first), static_cast<int64_t>(r.last - r.first));
    kernels::advance_counts(last_skip_, counts);
    for (size_t i = r.first; i < r.last; ++i) r.block->history[i] = mix(r.block->history[i], steps_);
  }
  buffers_.commit_or_restore(last_skip_);
  return StepOutcome(last_skip_);
}

std::map<std::string, Tensor> Optimizer::state() {
  std::map<std::string, Tensor> all{{"lr", lr_}, {"schedule_position", schedule_position_}};
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const std::string prefix = block_name(i);
    all[prefix + "counts"] = blocks_[i]->counts;
    all[prefix + "weight_decay"] = Tensor::scalar(blocks_[i]->weight_decay);
    for (size_t k = 0; k < blocks_[i]->moments.size(); ++k)
      all[prefix + "moment" + std::to_string(k)] = blocks_[i]->moments[k];
  }
  for (const auto& [name, value] : hyperparameters()) all[name] = Tensor::scalar(value);
  return all;
}

void Optimizer::check_state(const std::map<std::string, Tensor>& saved) {
  const auto mine = state();
  for (const auto& [name, tensor] : mine) {
    const auto it = saved.find(name);
    DEMI_CHECK(it != saved.end(), "[optimizer] the saved state has no '{}': it is of another optimizer", name);
    DEMI_CHECK(it->second.shape() == tensor.shape() && it->second.dtype() == tensor.dtype(),
               "[optimizer] saved '{}' is {} {}, here {} {}", name, it->second.dtype(), it->second.shape(),
               tensor.dtype(), tensor.shape());
  }
  for (const auto& [name, tensor] : saved)
    DEMI_CHECK(mine.contains(name), "[optimizer] the saved state has '{}', which this one has not", name);
}

void Optimizer::load_state(const std::map<std::string, Tensor>& saved) {
  check_state(saved);  // all is checked before anything is written
  lr_.copy_from(saved.at("lr"));
  schedule_position_.copy_from(saved.at("schedule_position"));
  for (size_t i = 0; i < blocks_.size(); ++i) {
    Block& b = *blocks_[i];
    const std::string prefix = block_name(i);
    b.weight_decay = saved.at(prefix + "weight_decay").item<double>();
    for (size_t k = 0; k < b.moments.size(); ++k)
      b.moments[k].copy_from(saved.at(prefix + "moment" + std::to_string(k)));
    b.counts.copy_from(saved.at(prefix + "counts"));
    // Slices with equal counters may share a run again.
    const std::vector<int32_t> counts = b.counts.to_vector<int32_t>();
    for (size_t n = 0; n < counts.size(); ++n) b.history[n] = mix(static_cast<uint64_t>(counts[n]), 0);
  }
  std::map<std::string, double> values = hyperparameters();
  for (auto& [name, value] : values) value = saved.at(name).item<double>();
  set_hyperparameters(values);
}

}  // namespace demi::optim
