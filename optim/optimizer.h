// What SGD and Adam share: flat storage, the step's frame, learning rate, state for checkpoints.
//
// A step, from first kernel to last, asks the device nothing:
//   begin_step      skip = was an overflow found?   (always 0 without a loss scaler)
//   one update kernel a run of flat storage: unscale, decay, moments, new master, new 16-bit copies
//   advance_counts, commit_or_restore               the counters and running statistics of real steps only
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "demi/autograd/parameter.h"
#include "demi/kernels/optimizer_step.h"

namespace demi::optim {

// Parameters that share a weight decay; without one the optimizer's own holds.
struct ParameterGroup {
  ParameterList parameters;
  std::optional<double> weight_decay;
};

// Two groups: matrices and filters with the optimizer's weight decay, vectors (biases, norms) with none.
std::vector<ParameterGroup> no_decay_for_vectors(const ParameterList& parameters);

// What became of a step. Asking waits for the device; not asking costs nothing.
class StepOutcome {
 public:
  explicit StepOutcome(Tensor skip) : skip_(std::move(skip)) {}
  bool skipped() const { return skip_.item<int32_t>() != 0; }

 private:
  Tensor skip_;
};

// A scaled step's operands, from amp::GradScaler: the loss scale that gradients still carry (FP32, one element;
// undefined when they are unscaled already) and the flag that overflow was found (int32, one element).
struct ScaledStep {
  Tensor scale, found_inf;
};

class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  void zero_grad();  // gradients become absent; nothing is written
  StepOutcome step() { return step(ScaledStep{}); }
  StepOutcome step(const ScaledStep& scaled);

  double lr() const { return lr_.item<float>(); }  // waits for the device
  void set_lr(double lr);                          // does not
  const std::vector<Parameter>& parameters() const { return *parameters_; }
  std::shared_ptr<const std::vector<Parameter>> shared_parameters() const { return parameters_; }
  Device device() const { return device_; }

  // The gradients that are there, as few flat runs as possible; padding between parameters is zero. May be 16-bit.
  std::vector<Tensor> gradient_runs();
  // The same, all moved to FP32 storage first: before unscaling, clipping and whatever else changes gradients.
  std::vector<Tensor> promoted_gradient_runs();
  // Moves scaled gradients to FP32 storage, divided by scale; found becomes 1 where one is not finite.
  void unscale(const Tensor& scale, Tensor& found);

  // Everything a resumed run needs, by name: moments, counters, learning rate, schedule position, and the numbers of
  // the update's formula (betas, momentum, weight decay), which replace those that this optimizer was made with.
  std::map<std::string, Tensor> state();
  void load_state(const std::map<std::string, Tensor>& state);
  void check_state(const std::map<std::string, Tensor>& state);  // throws Error on another set of names, or a shape

  // For schedules: the device's learning rate, how far it has come, and whether the last step was skipped.
  Tensor& lr_tensor() { return lr_; }
  Tensor& schedule_position() { return schedule_position_; }
  const Tensor& last_skip() const { return last_skip_; }

 protected:
  // One flat storage with what the optimizer keeps beside it.
  struct Block {
    std::shared_ptr<FlatStorage> storage;
    std::vector<ParameterState*> parameters;  // one a slice
    std::vector<uint64_t> history;            // equal values: present in the same steps, so equal counters
    double weight_decay = 0;
    std::vector<Tensor> moments;  // FP32 [numel] each
    Tensor counts;                // int32, one a slice: real steps so far
  };

  Optimizer(std::vector<ParameterGroup> groups, double lr, double weight_decay, int moments);

  // The numbers of the update's formula, "sgd.momentum" for one, but for the learning rate and weight decay.
  virtual std::map<std::string, double> hyperparameters() const = 0;
  virtual void set_hyperparameters(const std::map<std::string, double>& values) = 0;

  // Updates one run. moments: the run's part of the block's moments.
  virtual void update(const kernels::StepOperands& run, std::vector<Tensor>& moments, double weight_decay) = 0;

 private:
  struct Run {
    Block* block;
    size_t first, last;  // slices [first, last)
    int64_t start, length;
    DType dtype;
  };
  std::vector<Run> runs(bool same_history);
  void add_block(const std::vector<Parameter>& parameters, double weight_decay, int moments);

  void warn_without_scaler();

  std::shared_ptr<const std::vector<Parameter>> parameters_;
  std::vector<std::unique_ptr<Block>> blocks_;
  GuardedBuffers buffers_;
  Device device_;
  Tensor lr_, schedule_position_, last_skip_;
  uint64_t steps_ = 0;  // attempted
  bool warned_ = false;
};

}  // namespace demi::optim
